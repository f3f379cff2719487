//! Programs that others have made, as clients of Petrel, behind it and beside it, and what they were made for:
//! configurations, browsers, packages of Debian.

mod differential;
mod from_nginx;
mod readme;
mod real_backends;
mod real_clients;
mod real_input;
mod tls_clients;
