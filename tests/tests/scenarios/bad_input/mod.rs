//! How bad input and faults are handled: the rows of the project's list that concern the core, by number.

mod framing;
mod http2;
mod log_fields;
mod paths;
mod resources;
mod slow_clients;
mod slow_http2;
mod tls;
