//! Requests answered by backends, over persistent connections.
//!
//! All protocols share one core: `fastcgi.server`, `scgi.server`, `proxy.server`, `ajp13.server` and
//! `proxy-core.*` become the same [`options::Gateway`]; [`cgi`] uses the pipes of a program in place of a
//! connection. The engine knows nothing of backends: it calls the hooks of this module and polls the request
//! that a hook answers with. This module does not start backend programs either. The keeper does: it reads
//! [`options::spawn_specs`] and is told through [`overload`] when a program has too few processes.
//!
//! # Where to look
//!
//! | files | |
//! |---|---|
//! | `directives`, [`options`] | the tables of directives; text to typed options |
//! | [`route`], `hook` | which URLs a gateway takes, and in which phase it takes them |
//! | `upstream`, [`resolve`], [`balance`] | the backends of a route, their addresses, the choice of one |
//! | [`health`], [`active_check`] | whether a backend works, by its requests and by health checks |
//! | `fpm` | what php-fpm says of itself: its children, what they run, and its memory |
//! | `backend`, `pool`, `capacity` | one backend: its connections, the requests that wait, how many there may be |
//! | `asking` | FastCGI connections that ask whether a process is free |
//! | `newcomers` | new connections of other protocols, of which the kernel says whether a process has them |
//! | `connection`, `stream` | one connection and its socket, with TLS or without |
//! | `kernel_view` | whether a process has accepted a connection, and how many wait for that |
//! | `holders` | which requests have the connections, for notes about requests that wait |
//! | [`trust`] | certificates and keys for TLS, read at the start |
//! | `request` | one request until the head of its reply: choose a backend, queue, connect, send, wait |
//! | `relay`, `talk` | the conversation with the backend, from the first byte to the last |
//! | `failure`, `replay` | what can go wrong, and when a request is sent again |
//! | [`protocol`], [`environment`], [`header_map`] | what backends are sent, and how their replies are read |
//! | `answer`, [`offload`], `reroute` | how a reply becomes the answer to the client |
//! | [`upgrade`] | which tunnels a client may open |
//! | [`limits`], [`counters`], `debug`, [`overload`] | bounds; what status page, log and keeper are told |
//!
//! # The way of a request
//!
//! `hook` finds the route, decides how the request body is received, and answers with a
//! `request::GatewayRequest`. The phase loop polls that in the task of the client's connection; it resolves
//! names, chooses a backend, queues, connects and talks. Requests for which no process is free wait in the queue
//! of their worker; the task `backend::look_after` looks for processes meanwhile. A `talk::Talk` owns a
//! connection until the reply is complete: it sends what the [`protocol::Conversation`] encodes and hands out
//! what that decodes. A `relay::Relay` drives the `Talk` from the first byte of the request to the last byte of the reply, and
//! buffers the body of the reply. `answer` decides what the head of the reply means. The body is either
//! collected and sent when it is complete, or the relay itself becomes the body of the answer and is polled
//! while the client is sent to. If the client leaves and the relay is dropped, and the backend would go on
//! working anyway, the relay reads the rest of the reply without a client, within limits.
//!
//! # What must stay true
//!
//! - Workers share one `backend::SharedBackend` for each address: health, load and connection permits, all
//!   atomic. A connection belongs to one worker.
//! - A connection holds its permit. Dropping it closes it and gives the permit back.
//! - No request is written on a connection that no process has, wherever that can be known: `asking` for
//!   applications that answer, `newcomers` for those behind the first one that the kernel sees waiting.
//! - One rule alone decides whether a request is sent again: `replay::FailedAttempt::may_be_repeated`.
//! - A connection is kept for another request only when the reply is complete, the request is sent to its
//!   end, and no byte is left over.
//! - Timeouts of backends are checked when the client's connection is polled; `Exchange::wake_at` sees to it
//!   that this happens in time.

pub(crate) mod active_check;
mod answer;
mod asking;
mod backend;
pub mod balance;
mod capacity;
pub mod cgi;
mod connection;
pub mod counters;
mod debug;
mod directives;
pub mod environment;
mod failure;
pub(crate) mod fpm;
pub(crate) mod header_map;
pub(crate) mod health;
mod holders;
mod hook;
mod kernel_view;
pub mod limits;
mod newcomers;
pub(crate) mod offload;
pub mod options;
pub mod overload;
mod pool;
pub mod protocol;
mod relay;
pub(crate) mod replay;
mod request;
mod reroute;
pub mod resolve;
pub mod route;
pub(crate) mod stream;
mod talk;
pub mod trust;
pub mod upgrade;
mod upstream;

pub(crate) use answer::AUTHORIZED;
pub use directives::{AJP13, FASTCGI, PROXY, PROXY_CORE, SCGI};
use petrel_engine::shared::Shared;
use std::io;
use std::path::Path;

/// What an operator should know if the kernel does not say whether processes of backends have accepted connections;
/// `None` if it does.
pub fn why_acceptance_is_unseen() -> Option<String> {
    let kernel = kernel_view::KernelView::open();
    let error = kernel.why_not()?;
    Some(format!(
        "the kernel does not say whether a process of a backend has accepted a connection ({error}): requests to \
         backends other than FastCGI applications that answer wait in the backend's own queue, and the stage \
         backend-accept is not known. A service of systemd needs AF_NETLINK in RestrictAddressFamilies, and the \
         kernel the modules unix_diag and tcp_diag"
    ))
}

/// Reads php-fpm's slow log as the server does.
///
/// # Errors
/// The file cannot be read, or is no regular file.
pub fn try_slow_log(path: &Path) -> io::Result<()> {
    fpm::read_end(path).map(drop)
}

/// Prepares the server process to end. Idle connections to backends are closed and no connection is kept from
/// now on, because each may occupy a process of the backend. Health checks and the following of host names
/// stop. Requests that still arrive find out by themselves whether a backend works.
pub fn drain(shared: &Shared) {
    resolve::FollowedNames::of(shared).stop();
    shared.belonging(backend::SharedBackends::default).drain();
}
