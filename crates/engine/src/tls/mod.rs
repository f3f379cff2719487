//! TLS under a connection: bytes of the socket to plaintext, and plaintext to records.
//!
//! A [`TlsSession`] is one connection. It does no IO, has no task and reads no clock: its owner reads from the socket,
//! writes what [`Outgoing`] shows, and says what time it is. Only `session.rs` names rustls's types of a server's
//! connection. A [`TlsClient`] is the other side: of a connection to a backend. Where the configurations come from is
//! the business of the module that makes a [`TlsHost`] or a [`TlsTrust`]; HTTP is not known here.

mod client;
mod counts;
mod facts;
mod host;
mod record_sizes;
mod session;

use rustls::crypto::aws_lc_rs;

pub use client::{ClientIdentity, TlsClient, TlsClientError, TlsName, TlsServer, TlsTrust};
pub use counts::TlsCounts;
pub use facts::{TlsFacts, TlsVersion};
pub use host::{ChooseForHost, RefuseClient, TlsConnectionFacts, TlsHost};
pub use session::{ChooseConfig, Outgoing, Received, TlsBuffers, TlsError, TlsSession};

/// Lets the thread draw its first random number, which takes some 35 ms: aws-lc seeds the generator of each thread from the
/// jitter of the processor. Otherwise the first client of the thread waits for it, and all others of the worker with it.
pub(crate) fn prepare_thread() {
    // If there are no random numbers, each handshake fails and says so.
    let _ = aws_lc_rs::default_provider().secure_random.fill(&mut [0]);
}

#[cfg(test)]
mod tests;
