//! Prints the directive reference: `cargo xtask docs` keeps it in `docs/directives.md`.
#![forbid(unsafe_code)]

fn main() {
    print!("{}", petrel_modules::reference());
}
