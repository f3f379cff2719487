//! mod_rewrite and mod_redirect as a client and an application see them.

mod bad_input;
mod like_lighttpd;
mod sites;
