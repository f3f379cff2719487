//! How files are served, and how soon their changes are visible.

mod errors;
mod freshness;
mod like_lighttpd;
mod signed_links;
mod static_files;
mod told;
