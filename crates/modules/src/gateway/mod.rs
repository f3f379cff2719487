//! Requests answered by backends, over connections that are kept.

mod directives;
pub mod header_map;
pub mod options;
pub mod protocol;
pub mod resolve;

pub use directives::{AJP13, FASTCGI, PROXY, PROXY_CORE, SCGI};
