//! Accepts connections: each worker has one loop for each listening socket.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{SocketFlags, accept_with, acceptfrom_with};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::connection::Connection;
use crate::exchange::{ListenerFacts, Peer};
use crate::limits;
use crate::transport::ClientSocket;
use crate::worker::Worker;

/// A listening socket of one worker.
pub(crate) enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl ListeningSocket {
    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(ClientSocket, Peer)>> {
        match self {
            ListeningSocket::Tcp(listener) => listener
                .poll_accept(context)
                .map_ok(|(stream, peer)| (ClientSocket::tcp(stream), Peer::Ip(peer))),
            ListeningSocket::Unix(listener) => listener
                .poll_accept(context)
                .map_ok(|(stream, _)| (ClientSocket::unix(stream), Peer::Unix)),
        }
    }

    /// Accepts a connection if the kernel has one. Calls the kernel directly, because the runtime's readiness
    /// of the listener may be outdated.
    fn accept_now(&self) -> io::Result<(ClientSocket, Peer)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match self {
            ListeningSocket::Tcp(listener) => {
                let (socket, peer) = acceptfrom_with(listener, flags)?;
                let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                let peer = peer.ok_or(io::ErrorKind::ConnectionAborted)?;
                Ok((
                    ClientSocket::tcp(TcpStream::from_std(socket.into())?),
                    Peer::Ip(peer),
                ))
            }
            ListeningSocket::Unix(listener) => {
                let socket = accept_with(listener, flags)?;
                Ok((
                    ClientSocket::unix(UnixStream::from_std(socket.into())?),
                    Peer::Unix,
                ))
            }
        }
    }
}

/// Accepts connections until the worker drains. If the server has reached its limit of connections, or has no
/// descriptor left, it stops accepting for a while: new clients wait in the kernel's queue instead of getting
/// an error, and the first of them in this function. It accepts first and takes the permit after that: an
/// idle listener with a permit would keep it from other workers whose queues have connections.
pub(crate) async fn run(worker: Rc<Worker>, listener: ListeningSocket, facts: Rc<ListenerFacts>) {
    loop {
        let stopped_by = tokio::select! {
            biased;
            stopped_by = accept_while_there_is_room(&worker, &listener, &facts) => stopped_by,
            () = worker.drained() => return accept_the_rest(&worker, &listener, &facts),
        };
        match stopped_by {
            Ok((socket, peer)) => {
                worker.deadlines.end_lingering();
                tell_of_the_limit(&worker, &facts);
                tokio::select! {
                    biased;
                    () = worker.shared().take_permit() => {}
                    () = worker.drained() => worker.shared().take_permit_over_limit(),
                }
                tokio::task::spawn_local(Connection::new(&worker, socket, peer, &facts));
            }
            Err(error) => pause_after(&worker, &facts, &error).await,
        }
    }
}

/// Accepts and serves connections until there is an error or no permit for the last one.
async fn accept_while_there_is_room(
    worker: &Rc<Worker>,
    listener: &ListeningSocket,
    facts: &Rc<ListenerFacts>,
) -> io::Result<(ClientSocket, Peer)> {
    loop {
        let (socket, peer) = poll_fn(|context| listener.poll_accept(context)).await?;
        if !worker.shared().try_take_permit() {
            return Ok((socket, peer));
        }
        tokio::task::spawn_local(Connection::new(worker, socket, peer, facts));
    }
}

/// Accepts the connections that the kernel has completed already, before the listener is closed: after a
/// reload there may be no other process that would accept them.
fn accept_the_rest(worker: &Rc<Worker>, listener: &ListeningSocket, facts: &Rc<ListenerFacts>) {
    if worker.cut().is_some() {
        // This worker would only close them.
        return;
    }
    for _ in 0..limits::ACCEPTS_AT_THE_END_MAX {
        match listener.accept_now() {
            Ok((socket, peer)) => {
                worker.shared().take_permit_over_limit();
                tokio::task::spawn_local(Connection::new(worker, socket, peer, facts));
            }
            Err(error) if is_harmless(&error) => {}
            Err(_) => return,
        }
    }
}

/// The log suppresses repetitions of the line within a second.
fn tell_of_the_limit(worker: &Worker, facts: &ListenerFacts) {
    worker.logs().error(format_args!(
        "(accept) {} connections are open, as many as server.max-connections and server.max-fds allow: \
         newcomers wait listener={}",
        worker.shared().connections_max(),
        facts.address
    ));
}

/// An error that only concerns one client is ignored. Any other error is logged and followed by a pause, so
/// that a shortage does not cause a busy loop.
async fn pause_after(worker: &Worker, facts: &ListenerFacts, error: &io::Error) {
    if is_harmless(error) {
        return;
    }
    worker.deadlines.end_lingering();
    worker.logs().error(format_args!(
        "(accept) {error} listener={}; not accepting for {} ms",
        facts.address,
        limits::ACCEPT_PAUSE_MS
    ));
    let pause = tokio::time::sleep(Duration::from_millis(limits::ACCEPT_PAUSE_MS));
    tokio::select! {
        () = pause => {}
        () = worker.drained() => {}
    }
}

/// Whether the error only concerns the client whose connection was to be accepted.
fn is_harmless(error: &io::Error) -> bool {
    let harmless = [
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::Interrupted,
    ];
    harmless.contains(&error.kind())
}
