//! Requests answered by backends, over connections that are kept.
//!
//! One core for all protocols: `fastcgi.server`, `scgi.server`, `proxy.server`, `ajp13.server` and
//! `proxy-core.*` become the same [`options::Gateway`], and [`cgi`] joins in with the pipes of a program. The
//! engine knows none of this; it calls hooks and polls what they answer with. Who starts backend
//! programs is not known here either: that is the keeper's, which reads [`options::spawn_specs`] and hears
//! of [`overload`].
//!
//! # Where to look
//!
//! | files | |
//! |---|---|
//! | `directives`, [`options`] | the tables of directives; text to typed options |
//! | [`route`], `hook` | which URLs, and when that is decided |
//! | `upstream`, [`resolve`], [`balance`] | the backends of a route, their addresses, the choice |
//! | [`health`], [`active_check`] | whether one works: what requests learn, what checks learn |
//! | `backend`, `pool`, `limit` | one backend: its connections, who waits, how many there may be |
//! | `connection`, `stream` | one connection and its socket, with TLS or without |
//! | [`trust`] | certificates and keys for TLS, read at the start |
//! | `request` | one request until its reply's head: choose, queue, connect, await |
//! | `relay`, `talk` | the conversation with the backend, from the first byte of the request to the last of the reply |
//! | `failure`, `replay` | what can go wrong, when a request is sent again |
//! | [`protocol`], [`environment`], [`header_map`] | what is said to backends and understood of them |
//! | `answer`, [`offload`], `reroute` | what becomes of a reply |
//! | [`upgrade`] | which tunnels a client may open |
//! | [`limits`], [`counters`], `debug`, [`overload`] | bounds, and what others get to know |
//!
//! # The way of a request
//!
//! `hook` finds the route, sees to the request body and answers with a `request::GatewayRequest`, which
//! the phase loop polls in the task of the client's connection: look up names, choose, queue, connect,
//! talk. A `talk::Talk` owns a connection until the reply is complete; it sends what the
//! [`protocol::Conversation`] encodes and hands out what it decodes. A `relay::Relay` drives it, from the first byte
//! of the request to the last of the reply, and keeps what has come of the body. `answer` says what a head means. A
//! body is collected and sent when it is whole, or the relay itself becomes the body of the answer and is polled
//! while that is sent. Dropped before, because the client has left, it finishes without a client,
//! within limits, if its backend would work on anyway.
//!
//! # What must stay true
//!
//! - Workers share a `backend::SharedBackend` for each address: health, load and permits, all atomic. Connections
//!   belong to one worker.
//! - A connection holds its permit; both end by being dropped.
//! - A request is sent again by one rule only (`replay::FailedAttempt::may_be_repeated`).
//! - A connection is given back only when the reply is complete, the request is sent, and nothing is
//!   left over.
//! - Times of backends are checked when the client's connection is polled; it is woken by
//!   `Exchange::wake_at`.

pub(crate) mod active_check;
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
pub(crate) mod header_map;
pub(crate) mod health;
mod hook;
mod limit;
pub mod limits;
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

/// The server process drains. Idle connections to backends end, and none is kept from now on: each may hold a
/// process of the backend. Backends are checked no more and their names stay where they lead now; requests that are
/// still to come find out by themselves whether a backend works.
pub fn drain(shared: &Shared) {
    resolve::FollowedNames::of(shared).stop();
    shared.belonging(backend::SharedBackends::default).drain();
}
