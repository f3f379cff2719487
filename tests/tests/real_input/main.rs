//! Real input: configurations, trees and clients that nobody made for these tests.
//!
//! They come from Debian packages that `cargo xtask test` installs. A test whose package cannot be
//! had says that it is skipped, and why.

mod articles;
mod browser;
mod clients;
mod debian;
mod isolated;
mod published;
mod published_tls;
mod python_doc;
