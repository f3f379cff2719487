//! Requests answered by backends, over connections that are kept.

pub mod balance;
pub mod header_map;
pub mod health;
pub mod options;
pub mod protocol;
