//! State that all workers share: connection permits and counters. Atomic, changed once for each exchange.

use std::any::Any;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::cause::CauseCounters;
use crate::file_accounts::FileAccounts;
use crate::file_cache::Contents;
use crate::http2_counters::Http2Counters;
use crate::metrics::Metrics;
use crate::recorder::SharedMemory;
use crate::request_id::{RequestIdSpace, RequestIds};
use crate::throttle::{Bucket, ScopeThrottle};
use crate::tls::TlsCounts;

/// The state that all workers of a server process share.
pub struct Shared {
    connections: AtomicUsize,
    connections_max: usize,
    requests: AtomicU64,
    open_requests: AtomicUsize,
    started: Instant,
    /// Woken when a connection ends while the server was at its limit.
    room: Notify,
    buckets: Mutex<HashMap<u32, Arc<Bucket>>>,
    http2: Http2Counters,
    causes: CauseCounters,
    accounts: Arc<FileAccounts>,
    contents: Arc<Contents>,
    tls_counts: TlsCounts,
    request_ids: RequestIdSpace,
    memory: SharedMemory,
    workers: AtomicUsize,
    metrics: Metrics,
    belongings: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

impl Shared {
    /// State without connections. At most `connections_max` connections may be open, and the file cache of
    /// each worker keeps at most `cached_descriptors_max` files open.
    #[expect(clippy::disallowed_methods, reason = "the server starts")]
    pub fn new(connections_max: usize, cached_descriptors_max: usize) -> Shared {
        let accounts = Arc::<FileAccounts>::default();
        let contents = Contents::new(cached_descriptors_max, Arc::clone(&accounts));
        Shared {
            connections: AtomicUsize::new(0),
            connections_max,
            requests: AtomicU64::new(0),
            open_requests: AtomicUsize::new(0),
            started: Instant::now(),
            room: Notify::new(),
            buckets: Mutex::default(),
            http2: Http2Counters::default(),
            causes: CauseCounters::default(),
            accounts,
            contents: Arc::new(contents),
            tls_counts: TlsCounts::default(),
            request_ids: RequestIdSpace::new(),
            metrics: Metrics::new(SharedMemory::private()),
            memory: SharedMemory::private(),
            workers: AtomicUsize::new(0),
            belongings: Mutex::default(),
        }
    }

    /// Has counters and records in `memory`, which other server processes use as well.
    #[must_use]
    pub fn with_memory(self, memory: SharedMemory) -> Shared {
        Shared {
            metrics: Metrics::new(memory.clone()),
            memory,
            ..self
        }
    }

    /// Memory for counters and records that outlive this process.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// How many connections there may be at once.
    pub fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// How long this server process has been running.
    #[expect(clippy::disallowed_methods, reason = "statistics alone ask for it")]
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// How many requests were answered.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// How many requests are being received or answered. May be a second old.
    pub fn open_requests(&self) -> usize {
        self.open_requests.load(Ordering::Relaxed)
    }

    /// The number of one more worker, from 0.
    pub(crate) fn number_of_next_worker(&self) -> usize {
        self.workers.fetch_add(1, Ordering::Relaxed)
    }

    /// The ids of the requests of one more worker.
    pub(crate) fn request_ids_of_worker(&self) -> RequestIds {
        self.request_ids.of_next_worker()
    }

    /// Counts of requests by route, stage, host and second.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Counters of TLS.
    pub fn tls_counts(&self) -> &TlsCounts {
        &self.tls_counts
    }

    /// Waits for a permit for one more connection. Meanwhile new clients wait in the kernel's queue of the
    /// listener instead of being refused.
    pub(crate) async fn take_permit(&self) {
        loop {
            let room = self.room.notified();
            if self.try_take_permit() {
                return;
            }
            // A connection may have ended between the count and the wait, so the wait has a timeout.
            let pause = std::time::Duration::from_millis(crate::limits::ACCEPT_PAUSE_MS);
            let _ = tokio::time::timeout(pause, room).await;
        }
    }

    /// Takes a permit if there is one.
    pub(crate) fn try_take_permit(&self) -> bool {
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        if before >= self.connections_max {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Takes a permit for a connection that cannot wait, even beyond the limit.
    pub(crate) fn take_permit_over_limit(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a permit.
    pub(crate) fn give_permit(&self) {
        let before = self.connections.fetch_sub(1, Ordering::Relaxed);
        if before >= self.connections_max {
            self.room.notify_waiters();
        }
    }

    /// The token bucket that all responses under one `server.kbytes-per-second` share.
    pub(crate) fn scope_bucket(&self, scope: ScopeThrottle) -> Arc<Bucket> {
        let mut buckets = lock(&self.buckets);
        let new = || Bucket::new("server.kbytes-per-second", scope.bytes_per_second);
        Arc::clone(buckets.entry(scope.block.0).or_insert_with(new))
    }

    /// The value of type `T` that a module keeps for all workers. The first call creates it by `make`. Takes
    /// a lock, so use it once and keep the result.
    pub fn belonging<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut belongings = lock(&self.belongings);
        let mut known = belongings.iter().map(Arc::clone);
        if let Some(found) = known.find_map(|known| known.downcast::<T>().ok()) {
            return found;
        }
        let made = Arc::new(make());
        belongings.push(Arc::clone(&made) as Arc<dyn Any + Send + Sync>);
        made
    }

    /// Counts the HTTP/2 connections that were ended because of a limit.
    pub fn http2(&self) -> &Http2Counters {
        &self.http2
    }

    /// Counts the requests that failed, by cause.
    pub fn causes(&self) -> &CauseCounters {
        &self.causes
    }

    /// Memory and read counters for files.
    pub(crate) fn accounts(&self) -> &Arc<FileAccounts> {
        &self.accounts
    }

    /// Contents of small files, for the file caches of the workers.
    pub(crate) fn contents(&self) -> &Arc<Contents> {
        &self.contents
    }

    /// Updates the number of open requests: a worker had reported `before`, and has `now`.
    pub(crate) fn count_open_requests(&self, before: usize, now: usize) {
        if now > before {
            self.open_requests
                .fetch_add(now - before, Ordering::Relaxed);
        } else if before > now {
            self.open_requests
                .fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_requests(&self, count: u64) {
        self.requests.fetch_add(count, Ordering::Relaxed);
    }
}

/// Locks `mutex`, even if a thread has panicked with it: no statement under these locks leaves the data half
/// changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
