//! One backend: what all workers know of it, and this worker's connections to it.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use petrel_engine::log::LogHandle;
use petrel_engine::shared::lock;
use petrel_engine::tls::TlsServer;

use super::active_check::{CheckTarget, Checked, Checker};
use super::balance::{Candidate, stable_hash};
use super::connection::{BackendConnection, Standing, Workbench};
use super::health::Health;
use super::limit::ConnectionLimit;
use super::limits;
use super::options::{BackendHost, Protocol};
use super::pool::{Grant, Queue, QueueTicket, Signal};
use super::protocol;
use super::stream::{BackendStream, Connecting, SocketAddress};
use super::trust::LoadedTrusts;
use crate::kept_connections::KeptConnections;
use crate::limit::PoolShares;

/// What all workers know of one backend.
pub struct SharedBackend {
    /// Its address, for logs and counters.
    pub name: String,
    /// Its label in the configuration, for counters.
    pub label: String,
    /// What it speaks, for counters.
    pub protocol: Protocol,
    /// Whether it works.
    pub(crate) health: Health,
    /// Its connections.
    pub limit: ConnectionLimit,
    /// Requests under way: those that wait for a connection, too.
    pub load: AtomicU32,
    /// Those of keys that may have a share of it only.
    pub(crate) shares: Arc<PoolShares>,
    /// Requests it was asked.
    pub requests: AtomicU64,
    /// Connections made.
    pub connected: AtomicU64,
    /// Requests that had to wait for a connection.
    pub(crate) backlogged: AtomicU64,
    /// Requests that wait for a connection now.
    pub waiting: AtomicU32,
    key: u64,
    turn: AtomicUsize,
    signals: Mutex<Vec<Arc<Signal>>>,
    is_draining: Arc<AtomicBool>,
    /// What connections to it are made with, if it speaks TLS.
    pub(crate) tls: Option<TlsServer>,
}

/// The backends of a server process, by the id of their route, their label and their address.
#[derive(Default)]
pub(crate) struct SharedBackends {
    /// Those that some worker still uses: addresses of names come and go.
    known: Mutex<HashMap<BackendKey, Weak<SharedBackend>>>,
    workers: AtomicUsize,
    /// The thread that checks backends, once there is one to be checked.
    checker: Mutex<Option<Checker>>,
    /// The server process drains: no connection is kept.
    is_draining: Arc<AtomicBool>,
}

/// The id of a backend, and how it is spoken to by TLS.
type BackendKey = (String, Option<String>);

/// One backend as a worker sees it.
pub struct Backend {
    /// Its options.
    pub host: Rc<BackendHost>,
    /// Where it is.
    pub address: SocketAddress,
    /// What all workers know.
    pub shared: Arc<SharedBackend>,
    workbench: Rc<Workbench>,
    priority: u16,
    weight: u32,
    idle: KeptConnections<Box<BackendConnection>>,
    /// Requests of this worker that wait for a connection.
    pub(super) queue: Queue,
    signal: Arc<Signal>,
    /// How long a request usually takes, in microseconds: a moving average.
    usual_us: Cell<u64>,
    /// How often a connection was found open after a reply; [`limits::KEPT_PROOFS`] is enough to believe that the
    /// backend keeps connections.
    kept_proofs: Cell<u8>,
}

impl SharedBackends {
    /// The backend with that `id` and the rules of TLS in `host`, made when a worker asks first.
    pub(crate) fn get(
        &self,
        id: &str,
        host: &BackendHost,
        address: &SocketAddress,
        trusts: &LoadedTrusts,
        log: &LogHandle,
    ) -> Arc<SharedBackend> {
        let mut known = lock(&self.known);
        let tls = host.tls.as_ref().map(|tls| format!("{tls:?}"));
        let key = (id.to_owned(), tls);
        if let Some(found) = known.get(&key).and_then(Weak::upgrade) {
            return found;
        }
        known.retain(|_, backend| backend.strong_count() > 0);
        let name = address.to_string();
        let learns = host.protocol == Protocol::FastCgi;
        let made = Arc::new(SharedBackend {
            key: stable_hash(&[host.label.as_bytes(), name.as_bytes()]),
            name,
            label: host.label.clone(),
            protocol: host.protocol,
            health: Health::new(host.disable_time, host.slow_start),
            limit: ConnectionLimit::new(host.connections_max, learns),
            load: AtomicU32::new(0),
            shares: Arc::default(),
            requests: AtomicU64::new(0),
            connected: AtomicU64::new(0),
            backlogged: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            turn: AtomicUsize::new(0),
            signals: Mutex::default(),
            is_draining: Arc::clone(&self.is_draining),
            tls: trusts.backend(host),
        });
        known.insert(key, Arc::downgrade(&made));
        drop(known);
        if made.is_draining() {
            return made;
        }
        let checked = Arc::downgrade(&made) as Weak<dyn Checked>;
        if let Some(target) = CheckTarget::of(
            host,
            address.clone(),
            made.tls.clone(),
            checked,
            log.clone(),
        ) && let Err(error) = self.check(target)
        {
            log.error(format_args!(
                "(backend-connect) no health checks for backend={}: {error}",
                made.name
            ));
        }
        made
    }

    fn check(&self, target: CheckTarget) -> io::Result<()> {
        let mut checker = lock(&self.checker);
        match &*checker {
            Some(checker) => checker.watch(target),
            None => checker.insert(Checker::start()?).watch(target),
        }
        Ok(())
    }

    /// A number for each worker that asks.
    pub(crate) fn next_worker(&self) -> usize {
        self.workers.fetch_add(1, Ordering::Relaxed)
    }

    /// The server process drains: workers close their idle connections, and keep none from now on.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
        lock(&self.checker).take();
        for (_, backend) in self.all() {
            backend.health.checks_end();
            let signals = lock(&backend.signals);
            signals.iter().for_each(|signal| signal.notify.notify_one());
        }
    }

    /// All backends and their ids, for counters.
    pub(crate) fn all(&self) -> Vec<(String, Arc<SharedBackend>)> {
        let known = lock(&self.known);
        let mut all: Vec<_> = known
            .iter()
            .filter_map(|((id, _), backend)| Some((id.clone(), backend.upgrade()?)))
            .collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }
}

impl SharedBackend {
    /// A connection is closed, or could not be made: a request that waits may open one.
    pub(crate) fn give_permit(&self, was_proven: bool) {
        self.limit.closed(was_proven);
        self.call_waiting();
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Wakes one worker that has requests waiting: they take turns.
    fn call_waiting(&self) {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let signals = lock(&self.signals);
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % signals.len().max(1);
        let (before, from_first) = signals.split_at(first.min(signals.len()));
        let mut in_turn = from_first.iter().chain(before);
        if let Some(signal) = in_turn.find(|signal| signal.waiting.load(Ordering::Relaxed) > 0) {
            signal.notify.notify_one();
        }
    }

    /// Asks workers that have idle connections to give one up; not `own` worker.
    fn call_idle(&self, own: Option<&Arc<Signal>>) {
        for signal in lock(&self.signals).iter() {
            let is_own = own.is_some_and(|own| Arc::ptr_eq(own, signal));
            if !is_own && signal.idle.load(Ordering::Relaxed) > 0 {
                signal.notify.notify_one();
            }
        }
    }

    /// The first request was written on a new connection.
    pub(super) fn newcomer(&self, now_ms: u64) -> Standing {
        let id = self.limit.newcomer(now_ms);
        self.call_idle(None);
        Standing::Newcomer(id)
    }
}

impl Backend {
    /// A backend of this worker; a task looks after it until it is dropped.
    pub fn new(
        host: Rc<BackendHost>,
        address: SocketAddress,
        shared: Arc<SharedBackend>,
        workbench: Rc<Workbench>,
        weight: u32,
        priority: u16,
    ) -> Rc<Backend> {
        let signal = Arc::new(Signal::default());
        let mut signals = lock(&shared.signals);
        signals.push(Arc::clone(&signal));
        drop(signals);
        let backend = Rc::new(Backend {
            host,
            address,
            shared,
            workbench,
            priority,
            weight,
            idle: KeptConnections::new(),
            queue: Queue::default(),
            signal,
            usual_us: Cell::new(0),
            kept_proofs: Cell::new(0),
        });
        let listener = Rc::downgrade(&backend);
        let signal = Arc::clone(&backend.signal);
        tokio::task::spawn_local(async move {
            loop {
                let Some(pause) = listener.upgrade().map(|backend| backend.pause()) else {
                    return;
                };
                match pause {
                    None => signal.notify.notified().await,
                    Some(pause) => {
                        drop(tokio::time::timeout(pause, signal.notify.notified()).await)
                    }
                }
                let Some(backend) = listener.upgrade() else {
                    return;
                };
                backend.look_around();
            }
        });
        backend
    }

    /// The idle connection used last.
    fn take_idle(&self) -> Option<Box<BackendConnection>> {
        let connection = self.idle.take();
        self.count_idle();
        connection
    }

    /// A connection, or the right to make one, at once. `None`: it has to be waited for.
    pub(crate) fn try_take(&self) -> Option<Grant> {
        if !self.queue.is_empty() {
            return None;
        }
        if let Some(connection) = self.take_idle() {
            return Some(Grant::Kept(connection));
        }
        self.shared.limit.try_open().then_some(Grant::Open)
    }

    /// Joins the queue of those who wait. `None` when it is full.
    pub fn wait(self: &Rc<Self>) -> Option<QueueTicket> {
        if self.shared.waiting.load(Ordering::Relaxed) >= self.host.backlog_max {
            return None;
        }
        self.shared.backlogged.fetch_add(1, Ordering::Relaxed);
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        if self.signal.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
            // The task of the backend looks around from now on.
            self.signal.notify.notify_one();
        }
        self.shared.call_idle(Some(&self.signal));
        Some(QueueTicket {
            backend: Rc::clone(self),
            place: self.queue.join(),
        })
    }

    /// A ticket is given back: its request has what it wanted, or does not want it any more.
    pub(super) fn leave(&self, place: u64) {
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        self.signal.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Some(unused) = self.queue.leave(place) {
            self.give(unused);
        }
    }

    /// A connection whose permit was taken and whose socket is connected.
    pub fn adopt(&self, stream: BackendStream, now_ms: u64) -> Box<BackendConnection> {
        self.shared.connected.fetch_add(1, Ordering::Relaxed);
        let workbench = &self.workbench;
        let conversation = protocol::conversation(self.host.protocol, &workbench.constants);
        let permit = Some(Arc::clone(&self.shared));
        let connection = BackendConnection::new(stream, conversation, permit, workbench, now_ms);
        Box::new(connection)
    }

    /// Begins to connect. `prefix` goes in front of TLS.
    pub(super) fn connect(&self, prefix: &[u8]) -> Connecting {
        let tls = self.shared.tls.as_ref();
        self.address.connect_to(tls, prefix.to_vec())
    }

    /// Takes a connection back after a reply that allows another request.
    pub fn release(&self, mut connection: Box<BackendConnection>, now_ms: u64, took_us: u64) {
        let usual_us = self.usual_us.get();
        self.usual_us.set(match usual_us {
            0 => took_us,
            _ => usual_us - usual_us / 8 + took_us / 8,
        });
        if connection.is_kept() {
            self.kept_proofs.set(limits::KEPT_PROOFS);
        }
        if self.must_close(&connection, now_ms) {
            return;
        }
        connection.rest(now_ms);
        self.give(Grant::Kept(connection));
    }

    /// Whether the backend may close this kept connection, or has closed it, before it reads another request.
    ///
    /// Some backends close each connection right after their reply, although they were asked to keep it (the
    /// FastCGI library of Ruby without its C part). The close may still be under way then, and cannot be seen.
    /// So a backend has to show that it keeps connections: one has answered twice, or has stayed open for
    /// [`limits::KEPT_PROOF_MS`], or [`limits::KEPT_PROOFS`] in a row were open when a request wanted them. Asks the
    /// kernel, by one system call, because the end of the connection may have arrived after the worker last heard
    /// of its sockets.
    pub(crate) fn may_close(&self, connection: &mut BackendConnection, now_ms: u64) -> bool {
        if connection.stream.is_stale_now() {
            self.kept_proofs.set(0);
            return true;
        }
        let proofs = match connection.idle_for_ms(now_ms) >= limits::KEPT_PROOF_MS {
            true => limits::KEPT_PROOFS,
            false => self
                .kept_proofs
                .get()
                .saturating_add(1)
                .min(limits::KEPT_PROOFS),
        };
        self.kept_proofs.set(proofs);
        proofs < limits::KEPT_PROOFS
    }

    /// Time after which a request without an answer waits for a process to accept it.
    pub(crate) fn patience_ms(&self) -> u64 {
        let usual_ms = self.usual_us.get() / 1000;
        (usual_ms * limits::PATIENCE_FACTOR).max(limits::PATIENCE_MS_MIN)
    }

    /// Once a second: connections that have been idle for too long are closed.
    pub(crate) fn tidy(&self, now_ms: u64) {
        let idle_ms = u64::try_from(self.host.keep_alive_idle.as_millis()).unwrap_or(u64::MAX);
        // One that was given back just before the process began to drain has not been seen then.
        if self.shared.is_draining() {
            return self.forget_idle();
        }
        self.idle.close_old(now_ms, idle_ms);
        self.count_idle();
    }

    /// Closes all idle connections: one of them was found closed by the backend.
    pub(crate) fn forget_idle(&self) {
        self.kept_proofs.set(0);
        self.idle.close_all();
        self.count_idle();
    }

    fn must_close(&self, connection: &BackendConnection, now_ms: u64) -> bool {
        let requests_max = self.host.requests_per_connection_max;
        let limit = &self.shared.limit;
        (requests_max > 0 && connection.requests() >= requests_max)
            || self.host.keep_alive_idle.is_zero()
            || limit.must_give_up(
                now_ms,
                self.patience_ms(),
                connection.is_tenure_over(now_ms),
            )
            || (limit.is_learned()
                && self.shared.waiting.load(Ordering::Relaxed) > 0
                && limit.is_reached()
                && connection.is_tenure_over(now_ms))
            || self.is_wanted_elsewhere()
    }

    /// Requests wait in other workers, none here, and no connection may be opened.
    fn is_wanted_elsewhere(&self) -> bool {
        self.shared.waiting.load(Ordering::Relaxed) > 0
            && self.queue.is_empty()
            && self.shared.limit.is_reached()
    }

    fn give(&self, grant: Grant) {
        match (self.queue.give(grant), self.shared.is_draining()) {
            (None, _) => {}
            (Some(Grant::Kept(connection)), false) => {
                let is_first = self.idle.count() == 0;
                self.idle.keep(connection);
                self.count_idle();
                if is_first && (self.shared.limit.is_learned() || self.shared.limit.has_newcomers())
                {
                    // It must not be kept for long.
                    self.signal.notify.notify_one();
                }
                // Its request may have left instead of using it, and a request that began to wait a moment ago
                // has not seen it.
                self.let_others_have_one();
            }
            (Some(Grant::Kept(connection)), true) => drop(connection),
            (Some(Grant::Open), _) => self.shared.give_permit(false),
        }
    }

    /// When to look around again, if nothing is heard before.
    fn pause(&self) -> Option<Duration> {
        let has_idle = self.idle.count() > 0;
        let limit = &self.shared.limit;
        let pause_ms = if !self.queue.is_empty() || (has_idle && limit.has_newcomers()) {
            limits::LOOK_AROUND_MS
        } else if has_idle && limit.is_learned() {
            limits::TENURE_MS
        } else {
            return None;
        };
        Some(Duration::from_millis(pause_ms))
    }

    /// Something may have changed: a permit is free, another worker waits for one, or a process that
    /// an idle connection holds is needed.
    fn look_around(&self) {
        let now_ms = self.workbench.clock.now_ms();
        if self.shared.is_draining() {
            self.forget_idle();
        }
        self.let_go_of_idle(now_ms);
        while !self.queue.is_empty() {
            let grant = match self.take_idle() {
                Some(connection) => Grant::Kept(connection),
                None if self.shared.limit.try_probe(now_ms) => Grant::Open,
                None => {
                    // One that has become idle elsewhere since this began to wait.
                    self.shared.call_idle(Some(&self.signal));
                    return;
                }
            };
            self.give(grant);
        }
        self.let_others_have_one();
    }

    /// Gives up an idle connection if others wait for one.
    fn let_others_have_one(&self) {
        if self.is_wanted_elsewhere() {
            // Its permit goes to a request that waits.
            drop(self.idle.take());
            self.count_idle();
        }
    }

    /// Idle connections must not hold processes that are scarce: one ends for each newcomer that
    /// waits for long, and at a learned limit all end when they have been idle for a tenure.
    fn let_go_of_idle(&self, now_ms: u64) {
        let limit = &self.shared.limit;
        while self.idle.count() > 0 && limit.must_give_up(now_ms, self.patience_ms(), true) {
            self.idle.close_oldest();
        }
        if limit.is_learned() {
            self.idle.close_old(now_ms, limits::TENURE_MS);
        }
        self.count_idle();
    }

    fn count_idle(&self) {
        let count = u32::try_from(self.idle.count()).unwrap_or(u32::MAX);
        self.signal.idle.store(count, Ordering::Relaxed);
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let mut signals = lock(&self.shared.signals);
        signals.retain(|signal| !Arc::ptr_eq(signal, &self.signal));
        drop(signals);
        // The task that looks after it ends.
        self.signal.notify.notify_one();
    }
}

impl Checked for SharedBackend {
    fn health(&self) -> &Health {
        &self.health
    }
}

impl Candidate for Rc<Backend> {
    fn key(&self) -> u64 {
        self.shared.key
    }

    fn weight(&self) -> u32 {
        self.weight
    }

    fn load(&self) -> u32 {
        self.shared.load.load(Ordering::Relaxed)
    }

    fn health(&self) -> &Health {
        &self.shared.health
    }

    fn priority(&self) -> u16 {
        self.priority
    }
}
