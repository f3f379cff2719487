//! TLS under a connection: bytes of the socket to plaintext, and plaintext to records.
//!
//! A [`TlsSession`] is one connection. It does no IO, has no task and reads no clock: its owner reads from the socket,
//! writes what [`Outgoing`] shows, and says what time it is. Only `session.rs` names the connection types of
//! rustls. Where the configurations come from is the chooser's business ([`ChooseConfig`]); HTTP is not known here.

mod facts;
mod record_sizes;
mod session;

pub use facts::{TlsFacts, TlsVersion};
pub use session::{ChooseConfig, Outgoing, Received, TlsBuffers, TlsError, TlsSession};

#[cfg(test)]
mod tests;
