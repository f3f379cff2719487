//! `petrel fcgi-stat-accel`, tested record by record, and behind Petrel and lighttpd as in the article about
//! accelerating small files.
//!
//! lighttpd comes from Debian's packages, which `cargo xtask test` installs. If a test's web server is
//! missing, or the test needs root, it prints that it is skipped.

mod accelerator;
mod bad_files;
mod fronts;
mod hanging;
mod records;
mod snippet;
mod standard_error;
mod start;
