//! Files as they are served, and how soon a change of them is seen.

mod errors;
mod freshness;
mod like_lighttpd;
mod signed_links;
mod static_files;
mod told;
