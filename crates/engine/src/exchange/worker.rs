//! A worker: one thread, one runtime, and everything that its connections share.

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use petrel_proto::hpack::PreparedLines;
use tokio::sync::Notify;

use crate::blocking::{self, FileDeadline};
use crate::clock::{self, Clock};
use crate::deadlines::Deadlines;
use crate::exchange::{Exchange, ListenerFacts, Scheme};
use crate::file_cache::FileCache;
use crate::ledger::{Nanos, Stage};
use crate::limits;
use crate::log::LogRegistry;
use crate::metrics::{HogShown, WorkerGauges, WorkerMetrics};
use crate::network_backend::{FileReader, Readers};
use crate::processor::ProcessorTimes;
use crate::recorder::Recorder;
use crate::request_id::{RequestId, RequestIds};
use crate::settings::{CoreSettings, ProcessSettings, Settings, SettingsTable};
use crate::shared::Shared;
use crate::tls::TlsBuffers;
use crate::waits::{Hog, Hogs, HolderText, LongRun};

/// What all connections of one worker share. Only its own thread uses it, so there is no lock.
pub struct Worker {
    clock: Rc<Clock>,
    files: FileCache,
    settings: SettingsTable,
    base_settings: Rc<Settings>,
    process: Arc<ProcessSettings>,
    shared: Arc<Shared>,
    logs: Arc<LogRegistry>,
    pub(crate) deadlines: Rc<Deadlines>,
    pub(crate) receive_buffer: RefCell<Box<[u8]>>,
    /// Received bytes of an HTTP/2 connection, while its streams work on them. They cannot be in
    /// [`Worker::receive_buffer`]: a stream that ends may read from its backend, and that uses the other
    /// buffer. Allocated for the first HTTP/2 connection.
    http2_buffer: Cell<Option<Box<[u8]>>>,
    /// Allocated for the first connection that speaks TLS.
    tls_buffers: OnceCell<Rc<RefCell<TlsBuffers>>>,
    /// How many TLS handshakes are under way.
    pub(crate) handshakes: Cell<usize>,
    /// The buffer in which connections assemble what they send. A connection that cannot send all of it keeps
    /// the buffer, and the next connection allocates another one.
    pub(crate) send_buffer: Cell<Vec<u8>>,
    /// Header lines that HTTP/2 has encoded before. The connection that is being polled borrows them.
    pub(crate) prepared_lines: Cell<PreparedLines>,
    /// Unused exchanges. Boxed, because a connection holds a pointer, and none while it is idle.
    #[expect(clippy::vec_box, reason = "the box itself is what is pooled")]
    exchanges: RefCell<Vec<Box<Exchange>>>,
    /// Unused objects of HTTP/1 connections, pooled in the same way.
    spares: RefCell<Vec<Box<dyn Any>>>,
    draining: Cell<Option<Drain>>,
    cut: Cell<Option<Cut>>,
    drain_begins: Notify,
    each_second: RefCell<Vec<LookAfter>>,
    connections: Cell<usize>,
    connection_ended: Notify,
    connection_ids: Cell<u64>,
    request_ids: RequestIds,
    recorder: Option<Recorder>,
    metrics: Arc<WorkerMetrics>,
    requests: Cell<u64>,
    /// How many requests have begun since the metrics were published.
    begun: Cell<u64>,
    /// How many exchanges are in use, and the number that this worker last told the others.
    exchanges_used: Cell<usize>,
    exchanges_published: Cell<usize>,
    /// How many subrequests run although their client is gone.
    pub(crate) detached: Cell<u32>,
    belongings: RefCell<Vec<Rc<dyn Any>>>,
    /// See [`Worker::join_bytes`].
    joined: RefCell<BytesMut>,
    readers: Rc<Readers>,
    /// The requests that kept the worker busy for long.
    hogs: RefCell<Hogs>,
    /// The one that [`WorkerMetrics`] last got.
    hog_shown: RefCell<Option<Arc<HogShown>>>,
    processor: ProcessorTimes,
}

/// Called once a second for the data of a module.
pub type LookAfter = fn(&Rc<Worker>);

/// How a worker stops accepting connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// A new server process serves the same listeners. An idle connection stays open for a moment and answers
    /// a request that was on its way.
    Successor,
    /// The server stops: idle connections end at once.
    Stop,
}

/// Why the worker ends requests before their response is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A reload replaced the server process, and the time for its requests is over.
    DrainTimeOver,
    /// There were more reloads than old server processes may stay.
    TooManyGenerations,
    /// The reload was told to end all requests of the old configuration.
    ReloadNow,
    /// A graceful stop, and the time for requests is over.
    StopTimeOver,
    /// The server was told to stop at once.
    StopNow,
}

impl Cut {
    /// All reasons.
    pub const ALL: [Cut; 5] = [
        Cut::DrainTimeOver,
        Cut::TooManyGenerations,
        Cut::ReloadNow,
        Cut::StopTimeOver,
        Cut::StopNow,
    ];

    /// The reason, for the log.
    pub fn sentence(self) -> &'static str {
        match self {
            Cut::DrainTimeOver => {
                "a reload replaced the server process, and the time for its requests is over (server.drain-timeout)"
            }
            Cut::TooManyGenerations => {
                "more reloads came meanwhile than old server processes may go on (server.drain-generations)"
            }
            Cut::ReloadNow => {
                "a reload was told to end the requests of the old configuration at once"
            }
            Cut::StopTimeOver => {
                "the server stops, and the time for its requests is over (server.graceful-shutdown-timeout)"
            }
            Cut::StopNow => "the server was told to stop at once",
        }
    }
}

impl Worker {
    /// A worker without connections.
    pub fn new(
        settings: SettingsTable,
        process: Arc<ProcessSettings>,
        shared: Arc<Shared>,
        logs: Arc<LogRegistry>,
    ) -> Rc<Worker> {
        let base_scope = settings.connection_scope("", None, Scheme::Http);
        let base_settings = settings.unconditional(&base_scope);
        let clock = Rc::<Clock>::default();
        let readers = Readers::new(
            process.io_chunk_bytes,
            process.workers.get(),
            process.threads.read,
            &logs,
            shared.contents(),
            &clock,
        );
        let number = shared.number_of_next_worker();
        let recorder = Recorder::new(shared.memory(), process.recorder, number);
        if shared.memory().is_shared() && recorder.as_ref().is_some_and(Recorder::is_private) {
            logs.error(format_args!(
                "recorder: the memory that the server processes share has no room left for worker {number}, \
                 so petrel why finds none of its requests; restart the server"
            ));
        }
        let metrics = shared.metrics();
        metrics.name_hosts(settings.host_names());
        let metrics = metrics.of_next_worker(settings.module_names());
        let worker = Rc::new(Worker {
            clock,
            recorder,
            metrics,
            files: FileCache::new(process.stat_cache, Arc::clone(shared.contents())),
            request_ids: shared.request_ids_of_worker(),
            settings,
            base_settings,
            process,
            shared,
            logs,
            deadlines: Rc::default(),
            receive_buffer: RefCell::new(vec![0; limits::RECEIVE_BUFFER_BYTES].into()),
            http2_buffer: Cell::default(),
            tls_buffers: OnceCell::new(),
            handshakes: Cell::new(0),
            send_buffer: Cell::default(),
            prepared_lines: Cell::default(),
            exchanges: RefCell::default(),
            spares: RefCell::default(),
            draining: Cell::new(None),
            cut: Cell::new(None),
            drain_begins: Notify::new(),
            each_second: RefCell::default(),
            connections: Cell::new(0),
            connection_ended: Notify::new(),
            connection_ids: Cell::new(first_id()),
            requests: Cell::new(0),
            begun: Cell::new(0),
            exchanges_used: Cell::new(0),
            exchanges_published: Cell::new(0),
            detached: Cell::new(0),
            belongings: RefCell::default(),
            joined: RefCell::default(),
            readers: Rc::new(readers),
            hogs: RefCell::default(),
            hog_shown: RefCell::default(),
            processor: ProcessorTimes::default(),
        });
        worker.tend_recorder();
        worker
    }

    /// The clock.
    #[inline]
    pub fn clock(&self) -> &Rc<Clock> {
        &self.clock
    }

    /// The worker's file cache.
    pub fn files(&self) -> &FileCache {
        &self.files
    }

    /// A reader for files that are not in memory, with the settings `core`. It reads under the turn of
    /// `client` ([`Origin::client`](blocking::Origin::client)).
    pub fn file_reader(&self, core: &CoreSettings, client: u64) -> FileReader {
        let deadline = self.file_deadline(core.file_wait_s);
        FileReader::new(&self.readers, core.network_backend, client, deadline)
    }

    /// A timeout of `wait_s` seconds for a file system, which runs from the first wait.
    pub fn file_deadline(&self, wait_s: u32) -> FileDeadline {
        FileDeadline::new(&self.clock, &self.deadlines, wait_s)
    }

    /// The network backends of this worker that read files.
    pub(crate) fn readers(&self) -> &Rc<Readers> {
        &self.readers
    }

    /// The settings table of this worker.
    pub fn settings_table(&self) -> &SettingsTable {
        &self.settings
    }

    /// The settings outside all conditions, for requests whose settings are not known.
    pub fn base_settings(&self) -> Rc<Settings> {
        Rc::clone(&self.base_settings)
    }

    /// The settings of the process.
    pub fn process(&self) -> &ProcessSettings {
        &self.process
    }

    /// State that all workers share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The value of type `T` that a module keeps for this worker. The first call creates it by `make`.
    pub fn belonging<T: Any>(&self, make: impl FnOnce() -> T) -> Rc<T> {
        let find = || {
            let belongings = self.belongings.borrow();
            let known = belongings.iter().find(|known| known.is::<T>())?;
            Rc::clone(known).downcast::<T>().ok()
        };
        find().unwrap_or_else(|| {
            let made = Rc::new(make());
            self.belongings
                .borrow_mut()
                .push(Rc::clone(&made) as Rc<dyn Any>);
            made
        })
    }

    /// The buffer for all reads of this worker, from clients and from backends; HTTP/2 connections use
    /// another one. The borrow must end before another future is polled and before an exchange ends.
    pub fn receive_buffer(&self) -> RefMut<'_, Box<[u8]>> {
        self.receive_buffer.borrow_mut()
    }

    /// Takes the buffer that an HTTP/2 connection reads into. The connection gives it back after it has
    /// processed all of it.
    pub(crate) fn take_http2_buffer(&self) -> Box<[u8]> {
        let buffer = self.http2_buffer.take();
        buffer.unwrap_or_else(|| vec![0; limits::RECEIVE_BUFFER_BYTES].into())
    }

    pub(crate) fn give_http2_buffer(&self, buffer: Box<[u8]>) {
        self.http2_buffer.set(Some(buffer));
    }

    /// Whether clients of a listener speak TLS, leaving aside conditions on the client's address.
    pub(crate) fn speaks_tls(&self, listener: &ListenerFacts) -> bool {
        let scope = self
            .settings
            .connection_scope(&listener.address, None, Scheme::Http);
        scope.speaks_tls
    }

    /// The buffers that all TLS sessions of this worker share.
    pub(crate) fn tls_buffers(&self) -> Rc<RefCell<TlsBuffers>> {
        Rc::clone(self.tls_buffers.get_or_init(Rc::default))
    }

    /// The open logs.
    pub fn logs(&self) -> &LogRegistry {
        &self.logs
    }

    /// Set while the worker stops accepting connections.
    #[inline]
    pub fn draining(&self) -> Option<Drain> {
        self.draining.get()
    }

    /// Notes that a request or other work has kept the worker busy since the reading of the clock before the
    /// last one ([`Clock::gap`]). `what` says its name.
    #[cold]
    pub(crate) fn note_hog(
        &self,
        stage: Option<Stage>,
        what: impl FnOnce(&mut HolderText<'_>),
    ) -> LongRun {
        let ran = self.clock.gap();
        let on_processor = self.processor.had();
        let run = LongRun {
            stage,
            ran,
            on_processor,
            without_processor: match on_processor < ran / 2 {
                true => self.processor.waited().min(ran - on_processor),
                false => 0,
            },
            ended: self.clock.latest(),
        };
        self.hogs.borrow_mut().note(run, self.clock.turn(), what);
        run
    }

    /// Says which request kept the worker busy for longest from `since` to `until`.
    pub(crate) fn tell_hog_between(&self, since: Nanos, until: Nanos, text: &mut HolderText<'_>) {
        match self.hogs.borrow().between(since, until) {
            Some(hog) => hog.tell(text),
            None => text.write_str("the worker ran many other tasks, or had no processor"),
        }
    }

    /// Stops accepting connections and drops caches for later requests. Requests that have begun go on.
    pub fn drain(self: &Rc<Self>, how: Drain) {
        self.draining.set(Some(how));
        self.drain_begins.notify_waiters();
        self.deadlines.wake_all();
        self.files.flush();
        self.exchanges.take();
        self.spares.take();
        self.look_after();
    }

    /// Calls `look_after` once a second, and when the worker begins to drain, so that a module can tidy its
    /// data.
    pub fn each_second(&self, look_after: LookAfter) {
        self.each_second.borrow_mut().push(look_after);
    }

    fn look_after(self: &Rc<Self>) {
        for index in 0.. {
            let look_after = self.each_second.borrow().get(index).copied();
            let Some(look_after) = look_after else { return };
            look_after(self);
        }
    }

    /// Set when requests that have begun must end.
    #[inline]
    pub fn cut(&self) -> Option<Cut> {
        self.cut.get()
    }

    /// Stops accepting connections and ends all requests.
    pub fn cut_off(self: &Rc<Self>, why: Cut) {
        self.cut.set(Some(why));
        self.drain(Drain::Stop);
    }

    /// How many connections this worker has.
    pub fn connections(&self) -> usize {
        self.connections.get()
    }

    /// Resolves when the worker drains and has no connection left.
    pub(crate) async fn drained_and_empty(&self) {
        self.drained().await;
        // The kernel may have completed connections that the listeners have not accepted yet: give them one
        // turn.
        tokio::task::yield_now().await;
        while self.connections.get() > 0 {
            self.connection_ended.notified().await;
        }
    }

    /// Resolves when draining begins; at once if it has begun.
    pub(crate) async fn drained(&self) {
        let begins = self.drain_begins.notified();
        if self.draining.get().is_none() {
            begins.await;
        }
    }

    /// Where requests are recorded. `None`: the configuration has switched that off.
    #[inline]
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    fn tend_recorder(&self) {
        if let Some(recorder) = &self.recorder {
            let now = self.clock.latest();
            let to_wall = self.clock.wall_nanos_at(now).wrapping_sub(now);
            recorder.tick(to_wall, now);
        }
    }

    /// What this worker counts for the metrics.
    #[inline]
    pub(crate) fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }

    /// Adds what was counted in the last second to the metrics of all workers.
    pub(crate) fn publish_metrics(&self) {
        let hogs = self.hogs.borrow();
        let gauges = WorkerGauges {
            connections: self.connections.get() as u64,
            begun_per_s: self.begun.take(),
            open_requests: self.exchanges_used.get() as u64,
            turn_max: self.clock.take_longest_turn(),
            is_draining: self.draining.get().is_some(),
            hog: hogs.latest().map(|hog| self.shown_hog(hog)),
        };
        let second = (self.clock.latest() / 1_000_000_000) as u32;
        self.metrics.publish(self.shared.metrics(), second, gauges);
    }

    /// What other threads get to know of `hog`: the same as in the last second, unless there is another one.
    fn shown_hog(&self, hog: &Hog) -> Arc<HogShown> {
        let mut shown = self.hog_shown.borrow_mut();
        if let Some(shown) = shown.as_ref().filter(|shown| shown.ended == hog.run.ended) {
            return Arc::clone(shown);
        }
        let new = Arc::new(HogShown {
            what: hog.what.clone(),
            stage: hog.run.stage,
            ran: hog.run.ran,
            ended: hog.run.ended,
        });
        Arc::clone(shown.insert(new))
    }

    /// Counts a request of a client that begins.
    #[inline]
    pub(crate) fn count_begun(&self) {
        self.begun.set(self.begun.get() + 1);
    }

    /// Counts an answered request. Other workers see the count within a second.
    #[inline]
    pub(crate) fn count_request(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    /// Adds the counts of this worker to the shared ones.
    pub(crate) fn publish_counts(&self) {
        self.shared.count_requests(self.requests.take());
        let used = self.exchanges_used.get();
        let before = self.exchanges_published.replace(used);
        self.shared.count_open_requests(before, used);
        self.readers.publish_counts();
    }

    pub(crate) fn connection_begins(&self) -> u64 {
        self.connections.set(self.connections.get() + 1);
        let id = self.connection_ids.get() + 1;
        self.connection_ids.set(id);
        id
    }

    pub(crate) fn connection_ends(&self) {
        self.connections.set(self.connections.get() - 1);
        self.shared.give_permit();
        self.connection_ended.notify_waiters();
    }

    /// One short text of several parts, for a response. The texts share one piece of memory. When it is used
    /// up and none of them is being sent, it is used again from its beginning. So it allocates only when many
    /// are.
    pub(crate) fn join_bytes(&self, parts: [&[u8]; 3]) -> Bytes {
        let length = parts.iter().map(|part| part.len()).sum();
        let mut joined = self.joined.borrow_mut();
        if joined.capacity() < length && !joined.try_reclaim(length.max(limits::JOINED_BYTES)) {
            joined.reserve(length.max(limits::JOINED_BYTES));
        }
        for part in parts {
            joined.extend_from_slice(part);
        }
        joined.split().freeze()
    }

    /// The id of one more request or subrequest.
    #[inline]
    pub(crate) fn next_request_id(&self) -> RequestId {
        self.request_ids.next()
    }

    /// Takes an exchange from the pool. `None`: the caller makes a new one. In both cases the caller gives it
    /// back by [`Worker::give_exchange`].
    pub(crate) fn take_exchange(&self) -> Option<Box<Exchange>> {
        self.exchanges_used.set(self.exchanges_used.get() + 1);
        self.exchanges.borrow_mut().pop()
    }

    pub(crate) fn give_exchange(&self, exchange: Box<Exchange>) {
        self.exchanges_used.set(self.exchanges_used.get() - 1);
        if exchange.is_worth_keeping() {
            self.keep(&self.exchanges, exchange);
        }
    }

    /// Like [`Worker::take_exchange`], for the objects of HTTP/1 connections, which are all of one type.
    pub(crate) fn take_spare<T: Any>(&self) -> Option<Box<T>> {
        self.spares.borrow_mut().pop()?.downcast().ok()
    }

    pub(crate) fn give_spare(&self, spare: Box<dyn Any>) {
        self.keep(&self.spares, spare);
    }

    fn keep<T>(&self, pool: &RefCell<Vec<T>>, unused: T) {
        let mut pool = pool.borrow_mut();
        if pool.len() < limits::EXCHANGE_POOL_MAX && self.draining.get().is_none() {
            pool.push(unused);
        }
    }
}

/// The number before that of a worker's first connection. Workers have separate ranges, also from workers of
/// before a reload, whose connections may still be open.
fn first_id() -> u64 {
    static WORKERS: AtomicU64 = AtomicU64::new(0);
    WORKERS.fetch_add(1, Ordering::Relaxed) << CONNECTION_ID_BITS
}

/// After 4 billion connections a worker uses the numbers of the next one. Then two clients on unix sockets
/// might share a turn at the disk, which does no harm.
const CONNECTION_ID_BITS: u32 = 32;

/// Once a second: updates the date, ends connections whose time is up, and calls the modules' [`LookAfter`]
/// functions.
pub(crate) async fn tick(worker: Rc<Worker>) {
    let mut interval = tokio::time::interval(Duration::from_millis(1000));
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        worker.clock.now();
        worker.deadlines.sweep(worker.clock.seconds());
        worker.publish_counts();
        worker.tend_recorder();
        worker.publish_metrics();
        worker.look_after();
        worker.files.look_after(worker.clock.seconds());
        blocking::look_after();
        worker.clock.now();
        if worker.clock.gap() >= limits::HOG_NANOS {
            worker.note_hog(None, |text| text.write_str("the work of each second"));
        }
        worker.processor.next_second();
    }
}

/// Passes inotify events to the file cache.
pub(crate) async fn watch_files(worker: Rc<Worker>) {
    let Some(descriptor) = worker.files.watcher().descriptor() else {
        return;
    };
    let Ok(readable) = petrel_sys::readiness::readable(descriptor) else {
        return;
    };
    while let Ok(mut guard) = readable.readable().await {
        // Cleared before reading, so that an event that arrives during the read makes the descriptor ready
        // again.
        guard.clear_ready();
        while worker.files.process_events() {
            tokio::task::yield_now().await;
            clock::task_runs();
        }
    }
}
