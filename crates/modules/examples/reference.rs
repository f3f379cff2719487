//! Prints the directive reference; `cargo xtask docs` puts it into `docs/directives.md`.
#![forbid(unsafe_code)]

use std::io::Write;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(petrel_modules::reference().as_bytes())
}
