//! A worker's thread: its runtime and its accept loop.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use engine::socket::Socket;
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, SocketFlags, accept_with, acceptfrom_with, sockopt};
use sys::readiness::readable;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;

use super::connection::Connection;
use super::limits::{CONNECTIONS_PER_WORKER_MAX, FINISH_MAX};
use super::{Common, FcgiProgram};

/// The listening socket of a worker.
pub(crate) struct Listener {
    /// The socket, in non-blocking mode.
    pub(crate) descriptor: OwnedFd,
    /// Whether connections are TCP.
    pub(crate) is_tcp: bool,
    /// The addresses that may connect by TCP. If the list is empty, any may.
    pub(crate) web_servers: Vec<IpAddr>,
    /// Counts the connections of all workers.
    pub(crate) load: Arc<Load>,
}

/// How many connections all workers have together.
#[derive(Debug, Default)]
pub(crate) struct Load {
    connections: AtomicUsize,
}

/// Runs a worker with the program that `make` returns, until `stopped` turns true. Reports through `ready`
/// whether the worker could start.
///
/// # Errors
/// The worker could not start, or accepting fails for good.
pub(crate) fn run<P: FcgiProgram>(
    make: impl FnOnce() -> io::Result<Rc<P>>,
    listener: Listener,
    mut stopped: watch::Receiver<bool>,
    ready: &Sender<io::Result<()>>,
) -> io::Result<()> {
    let begin = || {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())?;
        Ok((runtime, make()?))
    };
    let (runtime, program) = match begin() {
        Ok(begun) => begun,
        Err(error) => {
            // If the receiver is gone, the process is ending anyway.
            let _ = ready.send(Err(error));
            return Ok(());
        }
    };
    runtime.block_on(async {
        let _ = ready.send(Ok(()));
        tokio::select! {
            result = accept_all(&program, listener) => return result,
            // No error is possible: the sender lives as long as the process.
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
        let end = Instant::now() + FINISH_MAX;
        while !is_idle(&*program) && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    })
}

/// Whether no request is open and no output is waiting.
fn is_idle(program: &impl FcgiProgram) -> bool {
    program.is_idle() && program.common().unsent.get() == 0
}

async fn accept_all<P: FcgiProgram>(program: &Rc<P>, listener: Listener) -> io::Result<()> {
    let Listener {
        descriptor,
        is_tcp,
        web_servers,
        load,
    } = listener;
    let descriptor = readable(descriptor)?;
    let common: &Common = program.common();
    let mine = Rc::new(());
    loop {
        leave_some_to_others(&mine, &load, common.workers).await;
        let mut guard = descriptor.readable().await?;
        match accept(&descriptor, is_tcp, &web_servers) {
            Ok(Some(socket)) => {
                let counted = Counted::new(&mine, &load);
                let connection = Connection::new(program, Socket::new(socket));
                tokio::task::spawn_local(async move {
                    connection.await;
                    drop(counted);
                });
            }
            Ok(None) => {}
            Err(Errno::AGAIN) => guard.clear_ready(),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                common.complain(&format!("accepting a connection: {error}"));
                tokio::time::sleep(SHORTAGE_PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Accepts the next connection. Returns `None` if its peer is not allowed to connect.
fn accept(
    listener: &AsyncFd<OwnedFd>,
    is_tcp: bool,
    web_servers: &[IpAddr],
) -> Result<Option<OwnedFd>, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    if !is_tcp {
        return accept_with(listener, flags).map(Some);
    }
    let (socket, peer) = acceptfrom_with(listener, flags)?;
    if !web_servers.is_empty() && !peer.is_some_and(|peer| is_among(&peer, web_servers)) {
        return Ok(None);
    }
    // A reply is one write, or is worth a packet of its own, so Nagle's algorithm would only delay it.
    let _ = sockopt::set_tcp_nodelay(&socket, true);
    Ok(Some(socket))
}

fn is_among(peer: &SocketAddrAny, web_servers: &[IpAddr]) -> bool {
    let address = std::net::SocketAddr::try_from(peer.clone());
    address.is_ok_and(|address| {
        let address = address.ip().to_canonical();
        web_servers
            .iter()
            .any(|known| known.to_canonical() == address)
    })
}

/// Pauses before the next accept: briefly if this worker has more than its share of the connections, so that
/// other workers can accept, and until there is room if it has as many as it may.
async fn leave_some_to_others(mine: &Rc<()>, load: &Load, workers: usize) {
    while Rc::strong_count(mine) > CONNECTIONS_PER_WORKER_MAX {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let all = load.connections.load(Ordering::Relaxed);
    if workers > 1 && (Rc::strong_count(mine) - 1) * workers > all {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Counts a connection for as long as this value lives.
struct Counted {
    /// The count of references, minus one, is the worker's number of connections.
    _mine: Rc<()>,
    load: Arc<Load>,
}

impl Counted {
    fn new(mine: &Rc<()>, load: &Arc<Load>) -> Counted {
        load.connections.fetch_add(1, Ordering::Relaxed);
        Counted {
            _mine: Rc::clone(mine),
            load: Arc::clone(load),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.load.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long accepting pauses when the system has run out of descriptors or memory.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);
