//! Accepting connections: one loop a listening socket and worker.

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
                .map_ok(|(stream, peer)| (ClientSocket::Tcp(stream), Peer::Ip(peer))),
            ListeningSocket::Unix(listener) => listener
                .poll_accept(context)
                .map_ok(|(stream, _)| (ClientSocket::Unix(stream), Peer::Unix)),
        }
    }

    /// Takes a connection if the kernel has one. Asks the kernel itself: what the runtime knows of
    /// the listener may be a turn old.
    fn accept_now(&self) -> io::Result<(ClientSocket, Peer)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match self {
            ListeningSocket::Tcp(listener) => {
                let (socket, peer) = acceptfrom_with(listener, flags)?;
                let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                let peer = peer.ok_or(io::ErrorKind::ConnectionAborted)?;
                Ok((
                    ClientSocket::Tcp(TcpStream::from_std(socket.into())?),
                    Peer::Ip(peer),
                ))
            }
            ListeningSocket::Unix(listener) => {
                let socket = accept_with(listener, flags)?;
                Ok((
                    ClientSocket::Unix(UnixStream::from_std(socket.into())?),
                    Peer::Unix,
                ))
            }
        }
    }
}

/// Accepts until the worker drains. When the server is full, or out of descriptors, it stops
/// accepting for a while: newcomers wait in the kernel's queue instead of getting an error, and
/// the first of them in our hand. The permit comes after the connection: a listener that held one
/// while nobody comes would keep it from another worker's, whose queue is not empty.
pub(crate) async fn run(worker: Rc<Worker>, listener: ListeningSocket, facts: Rc<ListenerFacts>) {
    loop {
        let stopped_by = tokio::select! {
            biased;
            stopped_by = accept_while_there_is_room(&worker, &listener, &facts) => stopped_by,
            () = worker.drained() => return accept_the_rest(&worker, &listener, &facts),
        };
        match stopped_by {
            Ok((socket, peer)) => {
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

/// Accepts and serves; ends with an error, or with a connection that is one too many.
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

/// Connections the kernel has already completed are accepted before the listener is left: after a
/// reload nobody else may be there to take them.
fn accept_the_rest(worker: &Rc<Worker>, listener: &ListeningSocket, facts: &Rc<ListenerFacts>) {
    if worker.cut().is_some() {
        // It would only close them.
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

/// The log holds the same line back when it comes more than once a second.
fn tell_of_the_limit(worker: &Worker, facts: &ListenerFacts) {
    worker.logs().error(format_args!(
        "(accept) {} connections are open, all that server.max-connections allows: newcomers wait \
         listener={}",
        worker.shared().connections_max(),
        facts.address
    ));
}

/// A client that gave up before it was accepted costs nothing; everything else is worth a line
/// and a pause, so that a shortage does not become a busy loop.
async fn pause_after(worker: &Worker, facts: &ListenerFacts, error: &io::Error) {
    if is_harmless(error) {
        return;
    }
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

/// Whether only the client of the connection that was to be accepted is concerned.
fn is_harmless(error: &io::Error) -> bool {
    let harmless = [
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::Interrupted,
    ];
    harmless.contains(&error.kind())
}
