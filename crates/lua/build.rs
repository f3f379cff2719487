//! Tells at build time whether LuaJIT gets the flag that scripts' budgets need. At run time the crate's
//! `budget::proof` finds out for itself.

use std::env;

/// Makes compiled loops look at hooks.
const FLAG: &str = "LUAJIT_ENABLE_CHECKHOOK";

fn main() {
    let of = |name: &str| env::var(name).unwrap_or_default();
    let (host, target) = (of("HOST"), of("TARGET"));
    let kind = if host == target { "HOST" } else { "TARGET" };
    // Those that the crate `cc` puts together for the build of LuaJIT.
    let names = [
        "CFLAGS".to_owned(),
        format!("{kind}_CFLAGS"),
        format!("CFLAGS_{target}"),
        format!("CFLAGS_{}", target.replace(['-', '.'], "_")),
    ];
    for name in &names {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    if !names.iter().any(|name| of(name).contains(FLAG)) {
        println!(
            "cargo:warning=LuaJIT is built without -D{FLAG}: Petrel will run Lua scripts without its compiler, \
             slower, so that it can stop them. Set {kind}_CFLAGS=-D{FLAG}, as .cargo/config.toml does in \
             Petrel's source"
        );
    }
}
