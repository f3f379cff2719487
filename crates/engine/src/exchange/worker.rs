//! A worker: one thread, one runtime, and everything its connections share.

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use petrel_proto::hpack::PreparedLines;
use tokio::sync::Notify;

use crate::blocking::{self, FileDeadline};
use crate::clock::Clock;
use crate::deadlines::Deadlines;
use crate::exchange::{Exchange, ListenerFacts, Scheme};
use crate::file_cache::FileCache;
use crate::limits;
use crate::log::LogRegistry;
use crate::network_backend::{FileReader, Readers};
use crate::settings::{CoreSettings, ProcessSettings, Settings, SettingsTable};
use crate::shared::Shared;
use crate::tls::TlsBuffers;

/// What all connections of one core share. Lives on its thread; never locked, never waited for.
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
    /// What has come of HTTP/2, while the streams look at it: a stream that ends reads what its backend has sent
    /// meanwhile, which is what [`Worker::receive_buffer`] is for. Made for the first connection of HTTP/2.
    http2_buffer: Cell<Option<Box<[u8]>>>,
    /// Made for the first connection that speaks TLS.
    tls_buffers: OnceCell<Rc<RefCell<TlsBuffers>>>,
    /// Connections whose TLS handshake is not done.
    pub(crate) handshakes: Cell<usize>,
    /// What connections put together to send, if the one before has sent all of its own; else they make another one.
    pub(crate) send_buffer: Cell<Vec<u8>>,
    /// Lines of heads that HTTP/2 has encoded before, lent to the connection that is at work.
    pub(crate) prepared_lines: Cell<PreparedLines>,
    /// Exchanges waiting for a request. Boxed: a connection holds a pointer, and none when idle.
    #[expect(clippy::vec_box, reason = "the box itself is what is pooled")]
    exchanges: RefCell<Vec<Box<Exchange>>>,
    /// The same for what HTTP/1 has under way for an exchange.
    spares: RefCell<Vec<Box<dyn Any>>>,
    draining: Cell<Option<Drain>>,
    cut: Cell<Option<Cut>>,
    drain_begins: Notify,
    each_second: RefCell<Vec<LookAfter>>,
    connections: Cell<usize>,
    connection_ended: Notify,
    connection_ids: Cell<u64>,
    requests: Cell<u64>,
    /// Exchanges that are in use, and how many of them the other workers know of.
    exchanges_used: Cell<usize>,
    exchanges_published: Cell<usize>,
    /// Subrequests that go on without a client.
    pub(crate) detached: Cell<u32>,
    belongings: RefCell<Vec<Rc<dyn Any>>>,
    readers: Rc<Readers>,
}

/// Looks after what a module keeps for a worker.
pub type LookAfter = fn(&Rc<Worker>);

/// How a worker stops taking work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// A successor serves the same listeners: an idle connection ends after a moment in which its next request
    /// is still answered.
    Successor,
    /// The server stops: idle connections end at once.
    Stop,
}

/// Why requests end before their answer is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A reload has replaced the server process, and the time it had for its requests is over.
    DrainTimeOver,
    /// There were more reloads than replaced server processes may go on.
    TooManyGenerations,
    /// A reload was to end all requests of the old configuration.
    ReloadNow,
    /// A graceful stop, and the time it leaves to requests is over.
    StopTimeOver,
    /// The server was told to stop at once.
    StopNow,
}

impl Cut {
    /// All of them.
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
    /// A worker with nothing to do yet.
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
        Rc::new(Worker {
            clock,
            files: FileCache::new(process.stat_cache, Arc::clone(shared.contents())),
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
            exchanges_used: Cell::new(0),
            exchanges_published: Cell::new(0),
            detached: Cell::new(0),
            belongings: RefCell::default(),
            readers: Rc::new(readers),
        })
    }

    /// The clock.
    #[inline]
    pub fn clock(&self) -> &Rc<Clock> {
        &self.clock
    }

    /// The file cache.
    pub fn files(&self) -> &FileCache {
        &self.files
    }

    /// A reader of files that are not in memory, for `client`: [`Origin::client`](blocking::Origin::client), as `core`
    /// has it.
    pub fn file_reader(&self, core: &CoreSettings, client: u64) -> FileReader {
        let deadline = self.file_deadline(core.file_wait_s);
        FileReader::new(&self.readers, core.network_backend, client, deadline)
    }

    /// How long something waits for a file system: `wait_s` seconds from its first wait on.
    pub fn file_deadline(&self, wait_s: u32) -> FileDeadline {
        FileDeadline::new(&self.clock, &self.deadlines, wait_s)
    }

    /// What reads files for it that are not in memory.
    pub(crate) fn readers(&self) -> &Rc<Readers> {
        &self.readers
    }

    /// The configuration, compiled.
    pub fn settings_table(&self) -> &SettingsTable {
        &self.settings
    }

    /// The settings outside all conditions, for requests whose own are not known.
    pub fn base_settings(&self) -> Rc<Settings> {
        Rc::clone(&self.base_settings)
    }

    /// Settings of the process.
    pub fn process(&self) -> &ProcessSettings {
        &self.process
    }

    /// What all workers share.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// What a module keeps for this worker, made when it is first asked for.
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

    /// The buffer that reads of this worker go through, from clients and backends alike; those of HTTP/2 have one of their
    /// own. To be given back before anything else is polled, and before an exchange ends.
    pub fn receive_buffer(&self) -> RefMut<'_, Box<[u8]>> {
        self.receive_buffer.borrow_mut()
    }

    /// The buffer that a connection of HTTP/2 reads into. The connection gives it back when it has looked at all of it.
    pub(crate) fn take_http2_buffer(&self) -> Box<[u8]> {
        let buffer = self.http2_buffer.take();
        buffer.unwrap_or_else(|| vec![0; limits::RECEIVE_BUFFER_BYTES].into())
    }

    pub(crate) fn give_http2_buffer(&self, buffer: Box<[u8]>) {
        self.http2_buffer.set(Some(buffer));
    }

    /// Whether clients speak TLS to a listener, as far as conditions on addresses of clients do not say otherwise.
    pub(crate) fn speaks_tls(&self, listener: &ListenerFacts) -> bool {
        let scope = self
            .settings
            .connection_scope(&listener.address, None, Scheme::Http);
        scope.speaks_tls
    }

    /// What its TLS sessions use one after the other.
    pub(crate) fn tls_buffers(&self) -> Rc<RefCell<TlsBuffers>> {
        Rc::clone(self.tls_buffers.get_or_init(Rc::default))
    }

    /// The logs.
    pub fn logs(&self) -> &LogRegistry {
        &self.logs
    }

    /// Whether and how the worker is stopping.
    #[inline]
    pub fn draining(&self) -> Option<Drain> {
        self.draining.get()
    }

    /// Stops accepting; what is under way goes on. What the worker remembers for later requests is dropped.
    pub fn drain(self: &Rc<Self>, how: Drain) {
        self.draining.set(Some(how));
        self.drain_begins.notify_waiters();
        self.deadlines.wake_all();
        self.files.flush();
        self.exchanges.take();
        self.spares.take();
        self.look_after();
    }

    /// Has `look_after` called once a second, and when the worker begins to drain: for what a module keeps for later
    /// requests.
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

    /// Whether and why what is under way has to end.
    #[inline]
    pub fn cut(&self) -> Option<Cut> {
        self.cut.get()
    }

    /// Stops accepting, and ends what is under way.
    pub fn cut_off(self: &Rc<Self>, why: Cut) {
        self.cut.set(Some(why));
        self.drain(Drain::Stop);
    }

    /// Connections that are open on this worker.
    pub fn connections(&self) -> usize {
        self.connections.get()
    }

    /// Resolves when the worker is draining and no connection is left.
    pub(crate) async fn drained_and_empty(&self) {
        self.drained().await;
        // Listeners get one turn to accept what the kernel has completed.
        tokio::task::yield_now().await;
        while self.connections.get() > 0 {
            self.connection_ended.notified().await;
        }
    }

    /// Resolves when draining begins, at once if it has.
    pub(crate) async fn drained(&self) {
        let begins = self.drain_begins.notified();
        if self.draining.get().is_none() {
            begins.await;
        }
    }

    /// Counts an answered request. Other workers see it within a second.
    #[inline]
    pub(crate) fn count_request(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    /// Adds this worker's counts to those all workers share.
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

    /// An exchange of the pool. `None`: the caller makes a new one. In either case the caller gives the exchange back by
    /// [`Worker::give_exchange`].
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

    /// The same as [`Worker::take_exchange`] for what connections have under way, all of one type.
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

/// The number before that of a worker's first connection: no other worker of the process has its numbers, not
/// even one of before a reload, whose connections may go on.
fn first_id() -> u64 {
    static WORKERS: AtomicU64 = AtomicU64::new(0);
    WORKERS.fetch_add(1, Ordering::Relaxed) << CONNECTION_ID_BITS
}

/// After 4 billion connections a worker gets to the numbers of the next one. Two clients of unix sockets then
/// may share a turn at the disk.
const CONNECTION_ID_BITS: u32 = 32;

/// Once a second: the date, the connections whose time is up, and what modules keep.
pub(crate) async fn tick(worker: Rc<Worker>) {
    let mut interval = tokio::time::interval(Duration::from_millis(1000));
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        worker.clock.now();
        worker.deadlines.sweep(worker.clock.seconds());
        worker.publish_counts();
        worker.look_after();
        blocking::look_after();
    }
}

/// Hands inotify events to the file cache as they come.
pub(crate) async fn watch_files(worker: Rc<Worker>) {
    let Some(descriptor) = worker.files.watcher().descriptor() else {
        return;
    };
    let Ok(readable) = petrel_sys::readiness::readable(descriptor) else {
        return;
    };
    while let Ok(mut guard) = readable.readable().await {
        // Cleared first: an event that comes while these are read makes it readable again.
        guard.clear_ready();
        while worker.files.process_events() {
            tokio::task::yield_now().await;
        }
    }
}
