//! Real input: configurations, trees and clients that nobody made for these tests.
//!
//! They come from Debian packages that `cargo xtask test` installs. A test whose package cannot be
//! had says that it is skipped, and why.

mod articles;
mod browser;
mod clients;
mod debian;
mod isolated;
mod python_doc;

use std::io::Write;

/// Says that a test does not run, past the test harness, which swallows what `println!` prints. The
/// summary of `cargo xtask test` repeats the line.
fn skip(test: &str, why: &str) {
    // There is nobody to tell if standard output is closed.
    let _ = writeln!(std::io::stdout(), "SKIPPED {test}: {why}");
}
