//! The fuzzing program: all targets in one, so that they are linked once.
//!
//! The environment variable PETREL_FUZZ_TARGET names the target, because libFuzzer has the command line.
//! `cargo xtask fuzz` builds the program with libFuzzer. Built without, it calls the target once with each file that
//! the command line names: `PETREL_FUZZ_TARGET=url cargo run --package petrel-fuzz FILE` repeats a failure.
#![cfg_attr(fuzzing, no_main)]

use petrel_fuzz::{TARGETS, Target};

#[cfg(fuzzing)]
static CHOSEN: std::sync::LazyLock<&Target> = std::sync::LazyLock::new(chosen);

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(
    init: std::sync::LazyLock::force(&CHOSEN),
    |input: &[u8]| (CHOSEN.run)(input)
);

#[cfg(not(fuzzing))]
fn main() {
    let target = chosen();
    for file in std::env::args_os().skip(1) {
        let name = file.display().to_string();
        match std::fs::read(file) {
            Ok(input) => {
                println!("{}: {name}", target.name);
                (target.run)(&input);
            }
            Err(error) => fail(&format!("{name}: {error}")),
        }
    }
}

/// The target that the environment names.
fn chosen() -> &'static Target {
    let name = std::env::var("PETREL_FUZZ_TARGET").unwrap_or_default();
    let target = TARGETS.iter().find(|target| target.name == name);
    target.unwrap_or_else(|| {
        let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        let known = known.join(", ");
        fail(&format!(
            "PETREL_FUZZ_TARGET is {name:?} and not one of {known}"
        ))
    })
}

fn fail(message: &str) -> ! {
    eprintln!("{message}");
    std::process::exit(2)
}
