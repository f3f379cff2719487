//! HTTP/1.0 and 1.1 as a client sees them.

mod bandwidth;
mod bodies;
mod client_limits;
mod conditional;
mod evasive;
mod http2;
mod keep_alive;
mod limits;
mod listeners;
mod logs;
mod methods;
mod not_built;
mod parse_options;
mod proxied;
mod ranges;
mod stages;
mod tracked_clients;
mod upgrades;
