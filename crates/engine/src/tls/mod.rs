//! TLS between a connection and its socket: turns received bytes into plaintext, and plaintext into records.
//!
//! A [`TlsSession`] is the server's side of one connection. It does no IO, has no task and reads no clock:
//! its owner reads from the socket, writes the bytes of [`Outgoing`] to it, and passes the present time. Only
//! `session.rs` names rustls's server connection types. A [`TlsClient`] is the client's side, for connections
//! to backends. This folder knows neither HTTP nor configuration files: the module that makes a [`TlsHost`]
//! or a [`TlsTrust`] has the rustls configurations.

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

/// Draws the thread's first random number, which takes some 35 ms: aws-lc seeds the generator of each thread
/// from CPU jitter. Called before the worker accepts connections; otherwise its first TLS handshake would
/// hold up all of its clients.
pub(crate) fn prepare_thread() {
    // An error needs no report here: without random numbers each handshake fails with its own message.
    let _ = aws_lc_rs::default_provider().secure_random.fill(&mut [0]);
}

#[cfg(test)]
mod tests;
