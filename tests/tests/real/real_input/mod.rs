//! Real input: configurations, trees and clients that were not made for these tests.
//!
//! They come from Debian packages that `cargo xtask test` installs. If a package is missing, its test prints
//! that it is skipped, and why.

mod articles;
mod browser;
mod clients;
mod debian;
mod fail2ban;
mod isolated;
mod published;
mod published_tls;
mod python_doc;
mod status_page;
