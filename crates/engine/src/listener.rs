//! Accepting connections: one loop a listening socket and worker.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};

use crate::connection::Connection;
use crate::exchange::Peer;
use crate::limits;
use crate::transport::Transport;
use crate::worker::Worker;

/// What an exchange may know of the socket its connection came in by.
#[derive(Debug)]
pub struct ListenerFacts {
    /// The address in the canonical form that conditions compare.
    pub address: String,
    /// The TCP port; 0 for a unix socket.
    pub port: u16,
}

/// A listening socket of one worker.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<(Transport, Peer)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Transport::Tcp(stream), Peer::Ip(peer)))
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Transport::Unix(stream), Peer::Unix))
            }
        }
    }
}

/// Accepts until the worker drains. When the server is full, or out of descriptors, it stops
/// accepting for a while: newcomers wait in the kernel's queue instead of getting an error.
pub(crate) async fn run(worker: Rc<Worker>, listener: Listener, facts: Rc<ListenerFacts>) {
    loop {
        let drained = worker.drained();
        tokio::select! {
            biased;
            () = worker.shared().take_permit() => {}
            () = drained => return,
        }
        let accepted = tokio::select! {
            biased;
            accepted = listener.accept() => Some(accepted),
            () = worker.drained() => None,
        };
        match accepted {
            Some(Ok((transport, peer))) => {
                tokio::task::spawn_local(Connection::new(&worker, transport, peer, &facts));
            }
            Some(Err(error)) => {
                worker.shared().give_permit();
                pause_after(&worker, &facts, &error).await;
            }
            None => {
                worker.shared().give_permit();
                return accept_the_rest(&worker, &listener, &facts);
            }
        }
    }
}

/// Connections the kernel has already completed are accepted before the listener is left: after a
/// reload nobody else may be there to take them.
fn accept_the_rest(worker: &Rc<Worker>, listener: &Listener, facts: &Rc<ListenerFacts>) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for _ in 0..65_536 {
        let accepted = match listener {
            Listener::Tcp(listener) => match listener.poll_accept(&mut context) {
                std::task::Poll::Ready(Ok((stream, peer))) => {
                    (Transport::Tcp(stream), Peer::Ip(peer))
                }
                _ => return,
            },
            Listener::Unix(listener) => match listener.poll_accept(&mut context) {
                std::task::Poll::Ready(Ok((stream, _))) => (Transport::Unix(stream), Peer::Unix),
                _ => return,
            },
        };
        worker.shared().take_permit_over_limit();
        tokio::task::spawn_local(Connection::new(worker, accepted.0, accepted.1, facts));
    }
}

/// A client that gave up before it was accepted costs nothing; everything else is worth a line
/// and a pause, so that a shortage does not become a busy loop.
async fn pause_after(worker: &Worker, facts: &ListenerFacts, error: &io::Error) {
    let harmless = [
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::ConnectionReset,
    ];
    if harmless.contains(&error.kind()) {
        return;
    }
    worker.logs().error(format_args!(
        "(accept) {error} listener={}; not accepting for {} ms",
        facts.address,
        limits::ACCEPT_PAUSE_MS
    ));
    tokio::time::sleep(Duration::from_millis(limits::ACCEPT_PAUSE_MS)).await;
}
