//! `petrel fcgi-stat-accel`: asked record by record, and behind Petrel and lighttpd as in the article about
//! accelerating small files.
//!
//! lighttpd comes from Debian's packages, which `cargo xtask test` installs; a test whose web server is
//! missing says that it is skipped. So does one that needs root.

mod accelerator;
mod bad_files;
mod fronts;
mod hanging;
mod records;
mod snippet;
mod standard_error;
mod start;
