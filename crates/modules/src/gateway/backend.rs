//! One backend: what all workers share about it, and this worker's connections to it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use petrel_engine::log::LogHandle;
use petrel_engine::metrics::{FineCounts, LatencyCells};
use petrel_engine::proto::method::Method;
use petrel_engine::shared::lock;
use petrel_engine::tls::TlsServer;

use super::active_check::{CheckTarget, Checked, Checker, CheckerTask};
use super::asking::AskingConnections;
use super::balance::{Candidate, stable_hash};
use super::capacity::{Answers, Capacity, Permit};
use super::connection::{BackendConnection, Questions, Workbench};
use super::failure::Failure;
use super::fpm::{FpmBackend, FpmWatch, FpmWatches, WaitCounts};
use super::health::Health;
use super::holders::{HolderBoard, HolderSurvey, OwnHolders};
use super::limits;
use super::newcomers::Newcomers;
use super::options::{BackendHost, Protocol};
use super::pool::{Grant, Queue, QueueTicket, Signal};
use super::protocol;
use super::resolve::FollowedNames;
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
    log: LogHandle,
    /// Whether it works.
    pub(crate) health: Health,
    /// How many connections it may have, and which of its processes are known to be free.
    pub capacity: Capacity,
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
    /// For how long requests have waited for a connection, in nanoseconds. Those that still wait are not in it.
    pub(crate) waited_ns: AtomicU64,
    /// Requests that wait for a connection now.
    pub waiting: AtomicU32,
    /// The php-fpm behind it, if that tells its status.
    pub(crate) fpm: Option<Arc<FpmWatch>>,
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
    /// The thread that makes health checks and asks for the status of php-fpm, started for the first backend
    /// that has one of these.
    checker: Mutex<Option<Checker>>,
    fpm: FpmWatches,
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
    before: FineCounts,
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
    pub(crate) fn read(&self) -> FineCounts {
        let all = lock(&self.0);
        let mut counts = all.before.clone();
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
    pub(super) workbench: Rc<Workbench>,
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
    /// Connections that ask whether a process has them.
    pub(super) asking: AskingConnections,
    /// New connections of which only the kernel can say whether a process has them.
    newcomers: Rc<Newcomers>,
    /// Requests of this worker have waited for a process for longer than [`limits::STUCK_MS`].
    is_stuck: Cell<bool>,
    /// Which requests had the connections when requests of this worker waited last, and when that was.
    survey: Cell<Option<(u64, HolderSurvey)>>,
    /// When the kernel was last asked for the length of the backend's queue.
    looked_at_ms: Cell<u64>,
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
        names: &FollowedNames,
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
        let answers = match host.protocol {
            Protocol::FastCgi => Answers::Unknown,
            _ => Answers::No,
        };
        let tls = trusts.backend(host);
        let watch = self.fpm.of(host, address, tls.as_ref(), names, log);
        let (fpm, fpm_task) = watch.unzip();
        let made = Arc::new(SharedBackend {
            id: id.to_owned(),
            key: stable_hash(&[host.label.as_bytes(), name.as_bytes()]),
            name,
            label: host.label.clone(),
            protocol: host.protocol,
            log: log.clone(),
            health: Health::new(host.disable_time, host.slow_start),
            capacity: Capacity::new(host.connections_max, answers),
            holders: HolderBoard::default(),
            load: AtomicU32::new(0),
            shares: Arc::default(),
            requests: AtomicU64::new(0),
            first_bytes: FirstBytes::default(),
            connected: AtomicU64::new(0),
            backlogged: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            fpm,
            turn: AtomicUsize::new(0),
            signals: Mutex::default(),
            is_draining: Arc::clone(&self.is_draining),
            tls,
        });
        known.insert(key, Arc::downgrade(&made));
        drop(known);
        if let Some(fpm) = &made.fpm {
            fpm.add(Arc::downgrade(&made) as Weak<dyn FpmBackend>);
        }
        if made.is_draining() {
            return made;
        }
        let checked = Arc::downgrade(&made) as Weak<dyn Checked>;
        let check = CheckTarget::of(
            host,
            address.clone(),
            made.tls.clone(),
            checked,
            log.clone(),
        );
        let tasks = [check.map(CheckTarget::task), fpm_task.flatten()];
        for task in tasks.into_iter().flatten() {
            if let Err(error) = self.run(task) {
                log.error(format_args!(
                    "(backend-connect) no thread for health checks and status of backend={}: {error}",
                    made.name
                ));
            }
        }
        made
    }

    fn run(&self, task: CheckerTask) -> io::Result<()> {
        let mut checker = lock(&self.checker);
        match &*checker {
            Some(checker) => checker.run(task),
            None => checker.insert(Checker::start()?).run(task),
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
    pub(super) fn give_permit(&self) {
        self.capacity.closed();
        self.call_waiting();
    }

    /// The kernel cannot say whether a process has accepted a connection. Said once.
    #[cold]
    pub(super) fn is_unseen(&self) {
        if self.capacity.is_unseen() || self.capacity.told().is_some() {
            return;
        }
        self.log.error(format_args!(
            "(backend-accept) whether a process has accepted a connection cannot be seen from here: requests beyond \
             what its processes can do wait there, and not in this server. max-connections limits them backend={}",
            self.name
        ));
    }

    /// Which requests have its connections now.
    pub(super) fn survey(&self) -> HolderSurvey {
        self.holders.survey(&self.capacity)
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
            newcomers: Newcomers::new(&shared, &workbench, &signal),
            asking: AskingConnections::default(),
            is_stuck: Cell::new(false),
            survey: Cell::new(None),
            looked_at_ms: Cell::new(0),
            first_bytes: shared.first_bytes.part(),
            shared,
            workbench,
            priority,
            weight,
            idle: KeptConnections::new(),
            queue: Queue::default(),
            signal,
            kept_proofs: Cell::new(0),
        });
        tokio::task::spawn_local(look_after(
            Rc::downgrade(&backend),
            Arc::clone(&backend.signal),
        ));
        backend
    }

    /// Milliseconds of the worker's clock.
    pub(super) fn now_ms(&self) -> u64 {
        self.workbench.clock.now_ms()
    }

    /// The idle connection that was used last, or one that asks in vain.
    fn take_open(&self, now_ms: u64) -> Option<Box<BackendConnection>> {
        let connection = self.idle.take();
        self.count_idle();
        connection.or_else(|| self.take_asked(now_ms))
    }

    /// A connection, or a permit to open one, without waiting. `None`: the request has to queue.
    pub(super) fn try_take(&self) -> Option<Grant> {
        if !self.queue.is_empty() {
            return None;
        }
        let now_ms = self.workbench.clock.latest_ms();
        if let Some(connection) = self.take_open(now_ms) {
            return Some(Grant::Kept(connection));
        }
        self.open(now_ms)
    }

    /// A permit to open a connection that a request is written on at once: a process is known to be free, or
    /// none of the connections that were opened before is known to wait for one.
    fn open(&self, now_ms: u64) -> Option<Grant> {
        let capacity = &self.shared.capacity;
        if capacity.is_reached() || capacity.is_restarting(now_ms, self.patience_ms()) {
            return None;
        }
        let may_open = capacity.has_free(now_ms, self.newcomers.opening())
            || (!self.asks(now_ms) && self.newcomers.allow_another());
        if !may_open {
            return None;
        }
        let mut permit = Permit::take(&self.shared)?;
        permit.opens(self.newcomers.begin_opening());
        Some(Grant::Open(permit))
    }

    /// How long requests wait for this backend at most.
    fn patience_ms(&self) -> u64 {
        u64::try_from(self.host.backlog_timeout.as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether the backend has served requests, and is probably being restarted: requests may wait for it.
    pub(super) fn is_restarting(&self) -> bool {
        let patience_ms = self.patience_ms();
        self.shared
            .capacity
            .is_restarting(self.now_ms(), patience_ms)
    }

    /// Joins the queue of requests that wait for a connection. `None` when the queue is full.
    pub(super) fn wait(self: &Rc<Self>, method: Method) -> Option<QueueTicket> {
        // A connection that asks is for one of the requests that wait.
        let waiting = self.shared.waiting.load(Ordering::Relaxed);
        let asking = self.shared.capacity.unaccepted();
        if waiting.saturating_sub(asking) >= self.host.backlog_max {
            return None;
        }
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        self.signal.waiting.fetch_add(1, Ordering::Relaxed);
        let is_backlogged = self.shared.capacity.is_reached();
        if is_backlogged {
            self.shared.call_idle(Some(&self.signal));
        }
        let now_ms = self.workbench.clock.latest_ms();
        let was_empty = self.queue.is_empty();
        let place = self.queue.join(now_ms, method);
        if was_empty {
            if self.asks(now_ms) {
                self.ask_for_more(now_ms);
            }
            // The backend's task reads the answer, and looks around at intervals from now on.
            self.signal.notify.notify_one();
        }
        Some(QueueTicket {
            backend: Rc::clone(self),
            place,
            since_ms: now_ms,
            is_backlogged,
        })
    }

    /// Called when a ticket is dropped: its request got a connection, or gave up. An unused connection goes
    /// to the next request.
    pub(super) fn leave(&self, ticket: &QueueTicket) {
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        self.signal.waiting.fetch_sub(1, Ordering::Relaxed);
        // The first request on a connection waits until a process has it, which takes no time if one is free.
        let waited_ms = self
            .workbench
            .clock
            .latest_ms()
            .saturating_sub(ticket.since_ms);
        if ticket.is_backlogged || waited_ms >= limits::STUCK_MS {
            self.shared.backlogged.fetch_add(1, Ordering::Relaxed);
            let waited_ns = waited_ms * NANOS_PER_MILLI;
            self.shared
                .waited_ns
                .fetch_add(waited_ns, Ordering::Relaxed);
        }
        match self.queue.leave(ticket.place) {
            // It is news for the one request that it was put there for.
            None | Some(Grant::Failed(_)) => {}
            Some(unused) => self.give(unused),
        }
    }

    /// Wraps a connected socket.
    pub(super) fn adopt(
        &self,
        stream: BackendStream,
        mut permit: Permit,
        now_ms: u64,
    ) -> Box<BackendConnection> {
        permit.has_opened();
        self.shared.connected.fetch_add(1, Ordering::Relaxed);
        let workbench = &self.workbench;
        let conversation = protocol::conversation(self.host.protocol, &workbench.repeated);
        let of_backend = Some((permit, Rc::clone(&self.newcomers)));
        let connection =
            BackendConnection::new(stream, conversation, of_backend, workbench, now_ms);
        Box::new(connection)
    }

    /// A connection was made.
    pub(super) fn is_connected(&self, now_ms: u64) {
        let was_gone = self.is_restarting();
        self.shared.capacity.is_there();
        match was_gone {
            // It was expected back, so there is no reason to wait for the end of `disable-time`.
            true => self.shared.health.is_back(),
            false => self.shared.health.connected(now_ms),
        };
    }

    /// No connection could be made. Requests that wait are told, unless they wait because of that.
    pub(super) fn has_failed(&self, failure: &Failure, now_ms: u64) {
        let was_restarting = self.is_restarting();
        if failure.is_gone() {
            self.shared.capacity.is_gone(now_ms);
        }
        if was_restarting && self.is_restarting() {
            return;
        }
        while !self.queue.is_empty() {
            self.queue.give(Grant::Failed(failure.again()));
        }
    }

    /// Begins to connect. `prefix` is sent in front of the TLS handshake.
    pub(super) fn connect(&self, prefix: &[u8]) -> Connecting {
        let tls = self.shared.tls.as_ref();
        self.address.connect_to(tls, prefix.to_vec())
    }

    /// Sets `shakes_hands` when the TLS handshake begins.
    pub(super) fn connect_watched(
        &self,
        prefix: &[u8],
        shakes_hands: Option<Rc<Cell<bool>>>,
    ) -> Connecting {
        let tls = self.shared.tls.as_ref();
        self.address
            .connect_watched(tls, prefix.to_vec(), shakes_hands)
    }

    /// Takes a connection back after a reply. It is kept for another request, unless there is a reason to
    /// close it.
    pub(super) fn release(&self, mut connection: Box<BackendConnection>, now_ms: u64) {
        if connection.proves_keeping() {
            self.shared.capacity.set_keeps_asked(true);
        }
        if connection.is_kept() {
            self.keeps_connections();
        }
        if !connection.end_is_due() {
            connection.rest(now_ms);
            let has_closed = self.shared.capacity.closes() && connection.stream.is_stale_now();
            if has_closed || self.closes(&connection, now_ms) {
                return;
            }
            if !self.asks_before_next(now_ms) {
                return self.give(Grant::Kept(connection));
            }
            connection.ask_first();
        }
        self.asking.await_end(connection, now_ms);
        self.signal.notify.notify_one();
    }

    /// Whether a connection whose reply has ended is asked before the next request is written on it. php-fpm with
    /// `pm.max_requests` closes it a moment after the reply. A request that must not be sent twice would be lost then.
    fn asks_before_next(&self, now_ms: u64) -> bool {
        let next = self.queue.next_method();
        next.is_some_and(|method| !method.is_idempotent())
            && self.asks(now_ms)
            && self.shared.capacity.behind.get(now_ms) == Answers::Yes
    }

    /// Which questions go with a request on `connection`.
    #[inline]
    pub(super) fn questions(&self, connection: &BackendConnection, now_ms: u64) -> Questions {
        self.asking.questions(self, connection, now_ms)
    }

    /// A process has read again on a connection that it had replied on.
    pub(super) fn keeps_connections(&self) {
        self.kept_proofs.set(limits::KEPT_PROOFS);
    }

    /// Whether the backend may close this persistent connection, or has closed it, before it reads another
    /// request.
    ///
    /// Some backends close each connection right after their reply although they were asked to keep it open
    /// (the FastCGI library of Ruby without its C part). That close may still be on its way, and then cannot
    /// be seen. So a backend first has to show that it keeps connections open: one connection has answered
    /// twice, or the question behind a reply, or has stayed open for [`limits::KEPT_PROOF_MS`], or
    /// [`limits::KEPT_PROOFS`] connections in a row were open when a request wanted them. Asks the kernel with
    /// one system call, because the connection may have ended after the worker last polled its sockets.
    pub(super) fn may_close(&self, connection: &mut BackendConnection, now_ms: u64) -> bool {
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

    /// Called once a second: closes connections that have been idle for too long, and has php-fpm asked about slow
    /// requests.
    pub(crate) fn tidy(&self, now_ms: u64) {
        let slow_since = now_ms.saturating_sub(limits::SLOW_MS) * NANOS_PER_MILLI;
        if let Some(fpm) = &self.shared.fpm
            && fpm.has_slow_log()
            && self.shared.holders.has_from_before(slow_since)
        {
            fpm.ask_soon();
        }
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

    /// Whether a connection is closed behind its reply.
    ///
    /// While connections of any worker wait in the backend's queue, each one that has had its time is closed,
    /// although requests of its own worker wait: the queue is first come, first served, and that is what shares
    /// out the processes among workers, server processes and other front ends.
    pub(super) fn closes(&self, connection: &BackendConnection, now_ms: u64) -> bool {
        let requests_max = self.host.requests_per_connection_max;
        let capacity = &self.shared.capacity;
        (requests_max > 0 && connection.requests() >= requests_max)
            || self.host.keep_alive_idle.is_zero() && connection.requests() > 0
            || (capacity.is_stuck()
                && (capacity.unaccepted() > 0 || capacity.others_are_stuck(self.is_stuck.get()))
                && connection.is_tenure_over(now_ms))
            || self.is_wanted_elsewhere()
    }

    /// Whether requests wait in other workers and none in this one, and they cannot have another connection.
    fn is_wanted_elsewhere(&self) -> bool {
        let capacity = &self.shared.capacity;
        self.queue.is_empty()
            && self.shared.waiting.load(Ordering::Relaxed) > 0
            && (capacity.is_reached() || capacity.others_are_stuck(self.is_stuck.get()))
    }

    pub(super) fn give(&self, grant: Grant) {
        match (self.queue.give(grant), self.shared.is_draining()) {
            (Some(Grant::Kept(mut connection)), false) => {
                connection.rest(self.workbench.clock.latest_ms());
                self.idle.keep(connection);
                self.count_idle();
                // The request this was meant for may have left without using it. A request of another worker
                // that queued a moment ago has not asked for idle connections since it is one.
                self.let_others_have_one();
                if self.idle.count() == 1 {
                    // The backend's task looks for front ends that wait for its process.
                    self.signal.notify.notify_one();
                }
            }
            (left, _) => drop(left),
        }
    }

    /// The time until the task looks around again, unless it is notified before. `None`: it waits for the
    /// notification.
    fn pause(&self) -> Option<Duration> {
        let now = self.workbench.clock.now();
        let do_requests_wait = !self.queue.is_empty();
        let milliseconds = |count: u64| count * NANOS_PER_MILLI;
        let pauses = [
            (do_requests_wait || self.asking.has_deadline(self))
                .then_some(milliseconds(limits::LOOK_AROUND_MS)),
            self.newcomers.pause(now, do_requests_wait),
            (self.idle.count() > 0).then_some(milliseconds(limits::LOOK_AT_QUEUE_MS)),
        ];
        let pause = pauses.into_iter().flatten().min();
        pause.map(Duration::from_nanos)
    }

    /// Reacts to a change: a permit is free, another worker waits for a connection, or an idle connection
    /// occupies a process of the backend that another connection needs.
    pub(super) fn look_around(&self) {
        let now_ms = self.now_ms();
        if self.shared.is_draining() {
            self.forget_idle();
            if self.queue.is_empty() {
                self.asking.close_all(self);
            }
        }
        self.newcomers.look_if_due(self.workbench.clock.latest());
        while !self.queue.is_empty() {
            let grant = match self.take_open(now_ms) {
                Some(connection) => Grant::Kept(connection),
                None => match self.open(now_ms) {
                    Some(grant) => grant,
                    None => break,
                },
            };
            self.give(grant);
        }
        if !self.queue.is_empty() {
            if self.asks(now_ms) {
                self.ask_for_more(now_ms);
            } else if self.is_restarting() && self.asking.may_try(now_ms) {
                // One request finds out whether the backend is back.
                if let Some(permit) = Permit::take(&self.shared) {
                    self.give(Grant::Open(permit));
                }
            }
        }
        self.count_stuck(now_ms);
        self.let_go_of_idle(now_ms);
    }

    /// Says to the other workers whether requests of this one have waited for long.
    fn count_stuck(&self, now_ms: u64) {
        let since_ms = self.queue.oldest_since_ms();
        let is_stuck = since_ms.is_some_and(|since_ms| now_ms >= since_ms + limits::STUCK_MS);
        if self.is_stuck.replace(is_stuck) != is_stuck {
            self.shared.capacity.set_stuck(is_stuck);
            if is_stuck {
                // They may go to other backends.
                self.queue.wake_all();
                if let Some(fpm) = &self.shared.fpm {
                    fpm.ask_soon();
                }
            }
        }
        if is_stuck {
            let is_recent = |(at_ms, _)| now_ms < at_ms + limits::SURVEY_MS;
            if !self.survey.get().is_some_and(is_recent) {
                let survey = self.shared.survey();
                // A process that has just become free has not taken the next request yet. Which requests had the
                // processes before says more.
                let says_more = |(at_ms, before): (u64, HolderSurvey)| {
                    before.is_busier_than(&survey) && now_ms < at_ms + limits::SURVEY_KEPT_MS
                };
                if !self.survey.get().is_some_and(says_more) {
                    self.survey.set(Some((now_ms, survey)));
                }
            }
            // Another worker may have an idle connection by now, which it had not when this request queued.
            self.shared.call_idle(Some(&self.signal));
        }
    }

    /// Which requests had the connections at the end of a wait that began at `since_ms`, as far as that was
    /// looked at. A request ends the wait of the next one, so nothing of it can be seen then.
    pub(super) fn survey_since(&self, since_ms: u64) -> Option<HolderSurvey> {
        let (at_ms, survey) = self.survey.get()?;
        (at_ms >= since_ms).then_some(survey)
    }

    /// Whether requests of this worker have waited for a process for longer than [`limits::STUCK_MS`].
    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck.get()
    }

    /// Closes an idle connection if requests of other workers wait for one.
    fn let_others_have_one(&self) {
        if self.is_wanted_elsewhere() {
            drop(self.idle.take());
            self.shared.capacity.is_given_to_others();
            self.count_idle();
        }
    }

    /// Closes idle connections that occupy processes of the backend for which others wait: requests of other
    /// workers, and connections of other front ends in the backend's queue, if the kernel shows them.
    fn let_go_of_idle(&self, now_ms: u64) {
        if self.idle.count() == 0 {
            return;
        }
        if self.idle.has_rested(now_ms, limits::KEPT_PROOF_MS) {
            self.keeps_connections();
        }
        self.let_others_have_one();
        // A connection that is used all the time is shared out when it has had its time.
        let is_due = now_ms >= self.looked_at_ms.get() + limits::LOOK_AT_QUEUE_MS;
        if !is_due || !self.idle.has_rested(now_ms, limits::LOOK_AT_QUEUE_MS) {
            return;
        }
        self.looked_at_ms.set(now_ms);
        let queued = self
            .workbench
            .kernel
            .queue_length(&self.address)
            .unwrap_or(0);
        let others = queued.saturating_sub(self.shared.capacity.unaccepted());
        for _ in 0..others {
            self.idle.close_oldest();
            self.shared.capacity.is_given_to_others();
        }
        self.count_idle();
    }

    fn count_idle(&self) {
        let count = u32::try_from(self.idle.count()).unwrap_or(u32::MAX);
        self.signal.idle.store(count, Ordering::Relaxed);
    }
}

/// A backend's task in one worker: looks around when it is notified or a pause is over, and reads the answers of
/// connections that ask. It ends when the backend is gone.
async fn look_after(listener: std::rc::Weak<Backend>, signal: Arc<Signal>) {
    loop {
        let Some(pause) = listener.upgrade().map(|backend| backend.pause()) else {
            return;
        };
        let mut pause = std::pin::pin!(async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        });
        let mut notified = std::pin::pin!(signal.notify.notified());
        std::future::poll_fn(|context| {
            if let Some(backend) = listener.upgrade() {
                backend.poll_asked(context);
            }
            if notified.as_mut().poll(context).is_ready() || pause.as_mut().poll(context).is_ready()
            {
                return std::task::Poll::Ready(());
            }
            std::task::Poll::Pending
        })
        .await;
        let Some(backend) = listener.upgrade() else {
            return;
        };
        backend.look_around();
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.asking.close_all(self);
        if self.is_stuck.get() {
            self.shared.capacity.set_stuck(false);
        }
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

impl FpmBackend for SharedBackend {
    fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed).into()
    }

    fn waited(&self) -> WaitCounts {
        WaitCounts {
            requests: self.backlogged.load(Ordering::Relaxed),
            nanos: self.waited_ns.load(Ordering::Relaxed),
        }
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

const NANOS_PER_MILLI: u64 = 1_000_000;
