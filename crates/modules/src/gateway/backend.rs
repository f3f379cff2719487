//! One backend: what all workers share about it, and this worker's connections to it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use petrel_engine::log::LogHandle;
use petrel_engine::metrics::{LatencyCells, LatencyCounts};
use petrel_engine::shared::lock;
use petrel_engine::tls::TlsServer;

use super::active_check::{CheckTarget, Checked, Checker};
use super::balance::{Candidate, stable_hash};
use super::connection::{BackendConnection, Standing, Workbench};
use super::health::Health;
use super::holders::{HolderBoard, OwnHolders};
use super::limit::ConnectionLimit;
use super::limits;
use super::options::{BackendHost, Protocol};
use super::pool::{Grant, Queue, QueueTicket, Signal};
use super::protocol;
use super::stream::{BackendStream, Connecting, SocketAddress};
use super::trust::LoadedTrusts;
use crate::kept_connections::KeptConnections;
use crate::limit::PoolShares;

/// One backend, as all workers share it.
pub struct SharedBackend {
    /// The id of its route, its label and its address.
    pub(crate) id: String,
    /// Its address, for logs and counters.
    pub name: String,
    /// Its label in the configuration, for counters.
    pub label: String,
    /// Its protocol, for counters.
    pub protocol: Protocol,
    /// Whether it works.
    pub(crate) health: Health,
    /// How many connections it may have, and how many it has.
    pub limit: ConnectionLimit,
    /// The requests that have its connections.
    pub(crate) holders: HolderBoard,
    /// Requests under way, those that wait for a connection included.
    pub load: AtomicU32,
    /// How much of it single keys may take, and take now (`pool-share` of `limit.rules`).
    pub(crate) shares: Arc<PoolShares>,
    /// Requests it was sent.
    pub requests: AtomicU64,
    /// The times until the first byte of its replies.
    pub(crate) first_bytes: FirstBytes,
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
    /// How to speak TLS with it; `None` in the clear.
    pub(crate) tls: Option<TlsServer>,
}

/// All backends of a server process, by the id of their route with label and address, and by their TLS
/// options.
#[derive(Default)]
pub(crate) struct SharedBackends {
    /// Weak references: a backend disappears when no worker uses it any more, because the addresses that a
    /// host name resolves to come and go.
    known: Mutex<BTreeMap<BackendKey, Weak<SharedBackend>>>,
    workers: AtomicUsize,
    /// The thread that makes health checks, started for the first backend that has one.
    checker: Mutex<Option<Checker>>,
    /// The server process is about to end, so no connection is kept.
    is_draining: Arc<AtomicBool>,
}

/// The id of a backend, and its TLS options as text.
type BackendKey = (String, Option<String>);

/// The times until the first byte of a backend's replies. Each worker has a part that only it writes.
#[derive(Default)]
pub(crate) struct FirstBytes(Mutex<FirstByteParts>);

#[derive(Default)]
struct FirstByteParts {
    parts: Vec<Arc<LatencyCells>>,
    /// What workers have counted that use the backend no more.
    before: LatencyCounts,
}

impl FirstBytes {
    /// A part for one more worker.
    fn part(&self) -> Arc<LatencyCells> {
        let FirstByteParts { parts, before } = &mut *lock(&self.0);
        parts.retain(|part| {
            let is_used = Arc::strong_count(part) > 1;
            if !is_used {
                part.add_to(before);
            }
            is_used
        });
        let made = Arc::<LatencyCells>::default();
        parts.push(Arc::clone(&made));
        made
    }

    /// What all workers have counted.
    pub(crate) fn read(&self) -> LatencyCounts {
        let all = lock(&self.0);
        let mut counts = all.before;
        all.parts.iter().for_each(|part| part.add_to(&mut counts));
        counts
    }
}

/// One backend, as one worker sees it.
pub struct Backend {
    /// Its options.
    pub host: Rc<BackendHost>,
    /// Its address.
    pub address: SocketAddress,
    /// What all workers share about it.
    pub shared: Arc<SharedBackend>,
    /// [`SharedBackend::name`], for the requests of this worker.
    pub(crate) name: Rc<str>,
    workbench: Rc<Workbench>,
    priority: u16,
    weight: u32,
    /// This worker's part of the board of requests that have connections.
    pub(super) holders: Rc<OwnHolders>,
    /// The times until the first byte of its replies to this worker.
    pub(super) first_bytes: Arc<LatencyCells>,
    idle: KeptConnections<Box<BackendConnection>>,
    /// Requests of this worker that wait for a connection.
    pub(super) queue: Queue,
    signal: Arc<Signal>,
    /// How long a request usually takes, in microseconds: a moving average.
    usual_us: Cell<u64>,
    /// How often in a row a persistent connection was found open. [`limits::KEPT_PROOFS`] of them show that
    /// the backend keeps connections open after a reply.
    kept_proofs: Cell<u8>,
}

impl SharedBackends {
    /// The backend with that `id` and the TLS options of `host`. The first worker that asks creates it.
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
            id: id.to_owned(),
            key: stable_hash(&[host.label.as_bytes(), name.as_bytes()]),
            name,
            label: host.label.clone(),
            protocol: host.protocol,
            health: Health::new(host.disable_time, host.slow_start),
            limit: ConnectionLimit::new(host.connections_max, learns),
            holders: HolderBoard::default(),
            load: AtomicU32::new(0),
            shares: Arc::default(),
            requests: AtomicU64::new(0),
            first_bytes: FirstBytes::default(),
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

    /// Another number for each worker that asks.
    pub(crate) fn next_worker(&self) -> usize {
        self.workers.fetch_add(1, Ordering::Relaxed)
    }

    /// The server process is about to end: workers close their idle connections and keep none from now on.
    /// Health checks end.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
        lock(&self.checker).take();
        for backend in self.all() {
            backend.health.checks_end();
            let signals = lock(&backend.signals);
            signals.iter().for_each(|signal| signal.notify.notify_one());
        }
    }

    /// All backends, in the order of their ids, for counters.
    pub(crate) fn all(&self) -> Vec<Arc<SharedBackend>> {
        lock(&self.known)
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }
}

impl SharedBackend {
    /// A connection was closed, or could not be made: wakes a worker whose request waits, so that it opens
    /// one.
    pub(crate) fn give_permit(&self, was_proven: bool) {
        self.limit.closed(was_proven);
        self.call_waiting();
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Wakes one worker that has requests waiting; each worker in turn.
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

    /// Asks the workers that have idle connections to give one up, except the worker `own`.
    fn call_idle(&self, own: Option<&Arc<Signal>>) {
        for signal in lock(&self.signals).iter() {
            let is_own = own.is_some_and(|own| Arc::ptr_eq(own, signal));
            if !is_own && signal.idle.load(Ordering::Relaxed) > 0 {
                signal.notify.notify_one();
            }
        }
    }

    /// Called when the first request was written on a new connection.
    pub(super) fn newcomer(&self, now_ms: u64) -> Standing {
        let id = self.limit.newcomer(now_ms);
        self.call_idle(None);
        Standing::Newcomer(id)
    }
}

impl Backend {
    /// A backend of this worker, with a task that runs [`Backend::look_around`] until the backend is dropped.
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
            holders: shared.holders.part(),
            name: Rc::from(&*shared.name),
            first_bytes: shared.first_bytes.part(),
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

    /// The idle connection that was used last.
    fn take_idle(&self) -> Option<Box<BackendConnection>> {
        let connection = self.idle.take();
        self.count_idle();
        connection
    }

    /// A connection, or a permit to open one, without waiting. `None`: the request has to queue.
    pub(crate) fn try_take(&self) -> Option<Grant> {
        if !self.queue.is_empty() {
            return None;
        }
        if let Some(connection) = self.take_idle() {
            return Some(Grant::Kept(connection));
        }
        self.shared.limit.try_open().then_some(Grant::Open)
    }

    /// Joins the queue of requests that wait for a connection. `None` when the queue is full.
    pub fn wait(self: &Rc<Self>) -> Option<QueueTicket> {
        if self.shared.waiting.load(Ordering::Relaxed) >= self.host.backlog_max {
            return None;
        }
        self.shared.backlogged.fetch_add(1, Ordering::Relaxed);
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        if self.signal.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
            // The backend's task looks around at intervals from now on.
            self.signal.notify.notify_one();
        }
        self.shared.call_idle(Some(&self.signal));
        Some(QueueTicket {
            backend: Rc::clone(self),
            place: self.queue.join(),
        })
    }

    /// Called when a ticket is dropped: its request got a connection, or gave up. An unused connection goes
    /// to the next request.
    pub(super) fn leave(&self, place: u64) {
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        self.signal.waiting.fetch_sub(1, Ordering::Relaxed);
        if let Some(unused) = self.queue.leave(place) {
            self.give(unused);
        }
    }

    /// Wraps a connected socket, for which the permit was taken before.
    pub fn adopt(&self, stream: BackendStream, now_ms: u64) -> Box<BackendConnection> {
        self.shared.connected.fetch_add(1, Ordering::Relaxed);
        let workbench = &self.workbench;
        let conversation = protocol::conversation(self.host.protocol, &workbench.repeated);
        let permit = Some(Arc::clone(&self.shared));
        let connection = BackendConnection::new(stream, conversation, permit, workbench, now_ms);
        Box::new(connection)
    }

    /// Begins to connect. `prefix` is sent in front of the TLS handshake.
    pub(super) fn connect(&self, prefix: &[u8]) -> Connecting {
        let tls = self.shared.tls.as_ref();
        self.address.connect_to(tls, prefix.to_vec())
    }

    /// Takes a connection back after a reply. It is kept for another request, unless there is a reason to
    /// close it.
    pub fn release(&self, mut connection: Box<BackendConnection>, now_ms: u64, took_us: u64) {
        self.usual_us.set(usual_with(
            self.usual_us.get(),
            took_us,
            connection.is_kept(),
        ));
        if connection.is_kept() {
            self.kept_proofs.set(limits::KEPT_PROOFS);
        }
        if self.must_close(&connection, now_ms) {
            return;
        }
        connection.rest(now_ms);
        self.give(Grant::Kept(connection));
    }

    /// Whether the backend may close this persistent connection, or has closed it, before it reads another
    /// request.
    ///
    /// Some backends close each connection right after their reply although they were asked to keep it open
    /// (the FastCGI library of Ruby without its C part). That close may still be on its way, and then cannot
    /// be seen. So a backend first has to show that it keeps connections open: one connection has answered
    /// twice, or has stayed open for [`limits::KEPT_PROOF_MS`], or [`limits::KEPT_PROOFS`] connections in a
    /// row were open when a request wanted them. Asks the kernel with one system call, because the connection
    /// may have ended after the worker last polled its sockets.
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
        !self.keeps_connections()
    }

    /// Whether the backend has shown that it keeps connections open, see [`Self::may_close`]. The processes of
    /// one that closes them turn to the next connection by themselves: it needs no connection given up for
    /// another, and a new one that waits tells nothing about their number.
    fn keeps_connections(&self) -> bool {
        self.kept_proofs.get() == limits::KEPT_PROOFS
    }

    /// Milliseconds after which a request without an answer is taken to wait for a process of the backend to
    /// accept its connection.
    pub(crate) fn patience_ms(&self) -> u64 {
        let usual_ms = self.usual_us.get() / 1000;
        (usual_ms * limits::PATIENCE_FACTOR).max(limits::PATIENCE_MS_MIN)
    }

    /// Called once a second: closes connections that have been idle for too long.
    pub(crate) fn tidy(&self, now_ms: u64) {
        let idle_ms = u64::try_from(self.host.keep_alive_idle.as_millis()).unwrap_or(u64::MAX);
        // A connection that was given back just before the process began to drain was missed by `drain`.
        if self.shared.is_draining() {
            return self.forget_idle();
        }
        self.idle.close_old(now_ms, idle_ms);
        self.count_idle();
    }

    /// Closes all idle connections. Called when the backend was found to have closed one of them.
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
            || (self.keeps_connections()
                && limit.must_give_up(
                    now_ms,
                    self.patience_ms(),
                    connection.is_tenure_over(now_ms),
                ))
            // Requests wait at a learned limit, so the process has to serve another connection now and then.
            || (limit.is_learned()
                && self.shared.waiting.load(Ordering::Relaxed) > 0
                && limit.is_reached()
                && connection.is_tenure_over(now_ms))
            || self.is_wanted_elsewhere()
    }

    /// Whether requests wait in other workers and none in this one, and no further connection may be opened.
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
                    // The backend's task closes it after [`limits::TENURE_MS`], so that its process can serve
                    // another connection.
                    self.signal.notify.notify_one();
                }
                // The request this was meant for may have left without using it. A request of another worker
                // that queued a moment ago has not asked for idle connections since it is one.
                self.let_others_have_one();
            }
            (Some(Grant::Kept(connection)), true) => drop(connection),
            (Some(Grant::Open), _) => self.shared.give_permit(false),
        }
    }

    /// The time until the task looks around again, unless it is notified before. `None`: it waits for the
    /// notification.
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

    /// Reacts to a change: a permit is free, another worker waits for a connection, or an idle connection
    /// occupies a process of the backend that another connection needs.
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
                    // Another worker may have an idle connection by now, which it had not when this request
                    // queued.
                    self.shared.call_idle(Some(&self.signal));
                    return;
                }
            };
            self.give(grant);
        }
        self.let_others_have_one();
    }

    /// Closes an idle connection if requests of other workers wait for one.
    fn let_others_have_one(&self) {
        if self.is_wanted_elsewhere() {
            // The permit of the closed connection goes to a request that waits.
            drop(self.idle.take());
            self.count_idle();
        }
    }

    /// Closes idle connections that occupy scarce processes of the backend: one for each newcomer that has
    /// waited for long, and, at a learned limit, all that have been idle for [`limits::TENURE_MS`].
    fn let_go_of_idle(&self, now_ms: u64) {
        let limit = &self.shared.limit;
        if self.idle.has_rested(now_ms, limits::KEPT_PROOF_MS) {
            self.kept_proofs.set(limits::KEPT_PROOFS);
        }
        while self.keeps_connections()
            && self.idle.count() > 0
            && limit.must_give_up(now_ms, self.patience_ms(), true)
        {
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

/// How long a request usually takes, after one more that took `took_us`. The first request of a connection may
/// have waited for a process of the backend before it was worked on, so it tells only that requests take no
/// longer than that.
fn usual_with(usual_us: u64, took_us: u64, is_kept: bool) -> u64 {
    match (usual_us, is_kept) {
        (0, _) => took_us,
        (_, true) => usual_us - usual_us / 8 + took_us / 8,
        (_, false) => usual_us - usual_us / 8 + took_us.min(usual_us) / 8,
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let mut signals = lock(&self.shared.signals);
        signals.retain(|signal| !Arc::ptr_eq(signal, &self.signal));
        drop(signals);
        // Wakes the backend's task, which ends because the backend is gone.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_process_does_not_count_as_usual() {
        const MS: u64 = 1000;
        let mut usual_us = usual_with(0, 800 * MS, false);
        assert_eq!(usual_us, 800 * MS, "there is no other measure");
        usual_us = usual_with(usual_us, 2 * MS, false);
        assert!(usual_us < 800 * MS);
        let before_us = usual_us;
        for waited in 1..100 {
            usual_us = usual_with(usual_us, waited * 1000 * MS, false);
        }
        assert!(usual_us <= before_us, "{usual_us}");
        for _ in 0..100 {
            usual_us = usual_with(usual_us, 5000 * MS, true);
        }
        assert!(usual_us > 4900 * MS, "slow scripts are seen: {usual_us}");
    }
}
