//! Passes on whether LuaJIT gets the compiler flag that stopping compiled scripts needs. At run time
//! `budget::proof` tests that itself.

use std::env;

/// Makes compiled loops check for hooks.
const FLAG: &str = "LUAJIT_ENABLE_CHECKHOOK";

fn main() {
    let of = |name: &str| env::var(name).unwrap_or_default();
    let (host, target) = (of("HOST"), of("TARGET"));
    let kind = if host == target { "HOST" } else { "TARGET" };
    // The variables from which the crate `cc` takes the flags for the build of LuaJIT.
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
