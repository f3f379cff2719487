//! What all workers share: connection permits and counters. Atomic, touched once an exchange.

use std::any::Any;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::file_accounts::FileAccounts;
use crate::file_cache::Contents;
use crate::http2_counters::Http2Counters;
use crate::throttle::{Bucket, ScopeThrottle};
use crate::tls::TlsCounts;

/// The state all workers of a server process share.
pub struct Shared {
    connections: AtomicUsize,
    connections_max: usize,
    requests: AtomicU64,
    open_requests: AtomicUsize,
    started: Instant,
    /// Woken when a connection ends while the server was full.
    room: Notify,
    buckets: Mutex<HashMap<u32, Arc<Mutex<Bucket>>>>,
    http2: Http2Counters,
    accounts: Arc<FileAccounts>,
    contents: Arc<Contents>,
    tls_counts: TlsCounts,
    belongings: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

impl Shared {
    /// No connection yet, at most `connections_max` at once; at most `cached_descriptors_max` files
    /// are kept open for each worker's file cache.
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
            accounts,
            contents: Arc::new(contents),
            tls_counts: TlsCounts::default(),
            belongings: Mutex::default(),
        }
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// How many connections there may be at once.
    pub fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// How long this server process has been there.
    #[expect(clippy::disallowed_methods, reason = "statistics alone ask for it")]
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Requests that were answered.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Requests that are being received, worked on or answered, as of the last second.
    pub fn open_requests(&self) -> usize {
        self.open_requests.load(Ordering::Relaxed)
    }

    /// What was seen of TLS.
    pub fn tls_counts(&self) -> &TlsCounts {
        &self.tls_counts
    }

    /// Waits until one more connection is allowed, and takes it. Until then the listener's
    /// queue in the kernel holds newcomers: they wait instead of being refused.
    pub(crate) async fn take_permit(&self) {
        loop {
            let room = self.room.notified();
            if self.try_take_permit() {
                return;
            }
            // A connection may have ended between the count and the wait; so not for ever.
            let pause = std::time::Duration::from_millis(crate::limits::ACCEPT_PAUSE_MS);
            let _ = tokio::time::timeout(pause, room).await;
        }
    }

    /// Takes a permit if one is left.
    pub(crate) fn try_take_permit(&self) -> bool {
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        if before >= self.connections_max {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Takes a permit for a connection that cannot be made to wait.
    pub(crate) fn take_permit_over_limit(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives a permit back.
    pub(crate) fn give_permit(&self) {
        let before = self.connections.fetch_sub(1, Ordering::Relaxed);
        if before >= self.connections_max {
            self.room.notify_waiters();
        }
    }

    /// The bucket that all answers under one `server.kbytes-per-second` share.
    pub(crate) fn scope_bucket(&self, scope: ScopeThrottle) -> Arc<Mutex<Bucket>> {
        let mut buckets = lock(&self.buckets);
        let new = || Arc::new(Mutex::new(Bucket::new(scope.bytes_per_second, 0)));
        Arc::clone(buckets.entry(scope.block.0).or_insert_with(new))
    }

    /// What a module keeps for all workers together, made by the first that asks for it. Not for
    /// the request path: look once, and keep what it says.
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

    /// What HTTP/2 connections were ended for.
    pub fn http2(&self) -> &Http2Counters {
        &self.http2
    }

    /// What files cost all workers.
    pub(crate) fn accounts(&self) -> &Arc<FileAccounts> {
        &self.accounts
    }

    /// Contents of small files, for the workers' file caches.
    pub(crate) fn contents(&self) -> &Arc<Contents> {
        &self.contents
    }

    /// A worker that had told of `before` open requests has `now`.
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

/// What `mutex` holds, also if a thread has panicked with it: nothing is left half done between two statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
