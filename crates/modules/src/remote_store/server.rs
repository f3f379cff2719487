//! A server that is no gateway's backend, and the connections of one worker to it: a store, or what scripts ask over
//! HTTP.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use petrel_engine::tls::TlsServer;
use petrel_engine::worker::Worker;

use super::address::StorePlace;
use super::error::Kind;
use super::link::Link;
use crate::kept_connections::KeptConnections;

/// One server, and the connections to it that wait for their next request.
pub(crate) struct RemoteServer {
    place: StorePlace,
    tls: Option<TlsServer>,
    worker: Weak<Worker>,
    kept: KeptConnections<Link>,
    kept_max: usize,
    idle_ms_max: u64,
    /// When a connection was taken or kept last, in milliseconds of the worker's clock.
    used_ms: Cell<u64>,
}

impl RemoteServer {
    /// The server there, of which `worker` keeps so many connections, each for so long.
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

    /// The same server, if there is a `tls` by TLS.
    pub(crate) fn with_tls(self, tls: Option<TlsServer>) -> RemoteServer {
        RemoteServer { tls, ..self }
    }

    /// Makes a connection.
    ///
    /// # Errors
    /// What kind of failure it is, and a sentence about it.
    pub(crate) async fn connect(&self) -> Result<Link, (Kind, String)> {
        self.place.connect(self.tls.as_ref()).await.map(Link::new)
    }

    /// The kept connection used last. One that has waited too long may be closed while a request is on its way.
    pub(crate) fn take(&self) -> Option<Link> {
        self.close_old(self.use_now()?);
        self.kept.take()
    }

    /// The same, after asking the kernel: what the server did a moment ago counts, too.
    pub(crate) fn take_open(&self) -> Option<Link> {
        loop {
            let mut link = self.take()?;
            if !link.stream.is_stale_now() {
                return Some(link);
            }
        }
    }

    /// Keeps a connection whose request has left it as it was, unless there are enough, or the worker drains: a server
    /// process that a reload has replaced may live for long.
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

    /// The time, unless the worker drains.
    fn use_now(&self) -> Option<u64> {
        let worker = self.worker.upgrade();
        let worker = worker.filter(|worker| worker.draining().is_none())?;
        self.used_ms.set(worker.clock().now_ms());
        Some(self.used_ms.get())
    }

    /// Closes connections that were not used for long; all of them when the worker drains. Whether the server was used
    /// in that time.
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

    /// Closes the kept connections: one was found closed by the server, and the others are hardly better.
    pub(crate) fn close_kept(&self) {
        self.kept.close_all();
    }

    /// How many connections wait for their next request.
    pub(crate) fn kept_count(&self) -> usize {
        self.kept.count()
    }
}
