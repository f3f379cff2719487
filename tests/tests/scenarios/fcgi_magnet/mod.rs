//! `petrel fcgi-magnet`: Lua scripts by FastCGI, tested record by record and behind real web servers.
//!
//! nginx and lighttpd come from Debian's packages, which `cargo xtask test` installs. If a test's web server
//! is missing, the test prints that it is skipped.

mod bad_records;
mod budgets;
mod fronts;
mod records;
mod scripts;
mod start;
