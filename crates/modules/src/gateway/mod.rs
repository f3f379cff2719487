//! Requests answered by backends, over connections that are kept.

pub mod active_check;
mod answer;
mod backend;
pub mod balance;
pub mod cgi;
mod connection;
pub mod counters;
mod debug;
mod directives;
pub mod environment;
mod failure;
pub mod header_map;
pub mod health;
mod hook;
mod limit;
pub mod limits;
pub mod offload;
pub mod options;
pub mod overload;
mod pool;
pub mod protocol;
mod reply;
mod request;
mod reroute;
pub mod resolve;
pub mod route;
mod stream;
mod talk;
mod unix;
mod upstream;

pub use directives::{AJP13, FASTCGI, PROXY, PROXY_CORE, SCGI};
