//! Real input: configurations, trees and clients that nobody made for these tests.
//!
//! They come from Debian packages that `cargo xtask test` installs. A test whose package cannot be
//! had says on standard error that it is skipped, and why.

mod articles;
mod browser;
mod clients;
mod debian;
mod isolated;
mod python_doc;

use std::io::Write;

/// Says, past the test harness, which swallows what is printed, that a test does not run.
fn skip(test: &str, why: &str) {
    // There is nobody to tell if standard error is closed.
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}
