//! A server that is not a backend of a gateway, and the connections of one worker to it: a store, or a server
//! that scripts make HTTP requests to.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use petrel_engine::tls::TlsServer;
use petrel_engine::worker::Worker;

use super::address::StorePlace;
use super::error::Kind;
use super::link::Link;
use crate::kept_connections::KeptConnections;

/// A server, and the idle connections to it.
pub(crate) struct RemoteServer {
    place: StorePlace,
    tls: Option<TlsServer>,
    worker: Weak<Worker>,
    kept: KeptConnections<Link>,
    kept_max: usize,
    idle_ms_max: u64,
    /// When a connection was last taken or kept, in milliseconds of the worker's clock.
    used_ms: Cell<u64>,
}

impl RemoteServer {
    /// The server at `place`, of which `worker` keeps at most `kept_max` idle connections, each for
    /// `idle_ms_max`.
    pub(crate) fn new(
        place: StorePlace,
        worker: &Weak<Worker>,
        kept_max: usize,
        idle_ms_max: u64,
    ) -> RemoteServer {
        RemoteServer {
            place,
            tls: None,
            worker: Weak::clone(worker),
            kept: KeptConnections::new(),
            kept_max,
            idle_ms_max,
            used_ms: Cell::new(0),
        }
    }

    /// Uses TLS for connections if `tls` is given.
    pub(crate) fn with_tls(self, tls: Option<TlsServer>) -> RemoteServer {
        RemoteServer { tls, ..self }
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// The kind of failure, and a sentence about it.
    pub(crate) async fn connect(&self) -> Result<Link, (Kind, String)> {
        self.place.connect(self.tls.as_ref()).await.map(Link::new)
    }

    /// The idle connection that was used last. The longer a connection has been idle, the more likely the
    /// server closes it while a request is on its way.
    pub(crate) fn take(&self) -> Option<Link> {
        self.close_old(self.use_now()?);
        self.kept.take()
    }

    /// As [`Self::take`], but also asks the kernel, so that a close of a moment ago is noticed.
    pub(crate) fn take_open(&self) -> Option<Link> {
        loop {
            let mut link = self.take()?;
            if !link.stream.is_stale_now() {
                return Some(link);
            }
        }
    }

    /// Keeps a connection that can be used again, unless there are enough. While the worker drains none is
    /// kept, because a server process that was replaced by a reload may live for long.
    pub(crate) fn keep(&self, mut link: Link) {
        let Some(now_ms) = self.use_now() else { return };
        if self.kept_count() == self.kept_max {
            self.close_old(now_ms);
        }
        if self.kept_count() < self.kept_max {
            link.idle_since_ms = now_ms;
            self.kept.keep(link);
        }
    }

    /// Notes the use of the server and returns the time; `None` while the worker drains.
    fn use_now(&self) -> Option<u64> {
        let worker = self.worker.upgrade();
        let worker = worker.filter(|worker| worker.draining().is_none())?;
        self.used_ms.set(worker.clock().now_ms());
        Some(self.used_ms.get())
    }

    /// Closes connections that were idle for too long; all of them while the worker drains. Returns whether
    /// the server was used in that time.
    pub(crate) fn look_after(&self, worker: &Rc<Worker>) -> bool {
        if worker.draining().is_some() {
            self.close_kept();
            return false;
        }
        let now_ms = worker.clock().now_ms();
        self.close_old(now_ms);
        now_ms.saturating_sub(self.used_ms.get()) < self.idle_ms_max
    }

    fn close_old(&self, now_ms: u64) {
        self.kept.close_old(now_ms, self.idle_ms_max);
    }

    /// Closes all idle connections. Called when the server has closed one of them, because the others are
    /// probably closed as well.
    pub(crate) fn close_kept(&self) {
        self.kept.close_all();
    }

    /// The number of idle connections.
    pub(crate) fn kept_count(&self) -> usize {
        self.kept.count()
    }
}
