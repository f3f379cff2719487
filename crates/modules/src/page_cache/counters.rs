//! The counters of the page cache. Each worker counts for itself; the status page adds them up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use petrel_engine::shared::Shared;

use super::shared::Registry;

macro_rules! counters {
    ($($field:ident $name:literal $doc:literal,)*) => {
        /// The counters of one worker.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(#[doc = $doc] pub $field: Counter,)*
        }

        impl Counters {
            /// All names with their counts.
            pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field.count()),)*].into_iter()
            }
        }
    };
}

counters! {
    hits "page-cache.hits" "Requests answered by a fresh stored answer.",
    stale "page-cache.stale" "Requests answered by a stale one.",
    misses "page-cache.misses" "Requests that could have been answered from the cache, and were not.",
    bypassed "page-cache.bypassed" "Requests that pass the cache by.",
    waits "page-cache.waits" "Requests that waited for the fetch of another one.",
    stores "page-cache.stores" "Answers that were stored.",
    revalidated "page-cache.revalidated" "Stored answers that a backend confirmed by 304.",
    refreshes "page-cache.refreshes" "Fetches in the background.",
    evictions "page-cache.evictions" "Stored answers that made room for others.",
    purged "page-cache.purged" "Stored answers that were removed by a purge or by an unsafe method.",
    saved_ms "page-cache.backend-ms-saved" "Milliseconds that hits would have taken the backends.",
    disk_hits "page-cache.disk.hits" "Answers found on disk.",
    disk_stores "page-cache.disk.stores" "Answers written to disk.",
    tier_hits "page-cache.second-tier.hits" "Answers found in the shared store.",
    tier_misses "page-cache.second-tier.misses" "Answers not found there.",
    tier_stores "page-cache.second-tier.stores" "Answers sent there.",
    tier_errors "page-cache.second-tier.errors" "Times it could not be asked, or said what is no answer.",
    fragment_hits "page-cache.fragments.hits" "Fragments that were found.",
    fragment_misses "page-cache.fragments.misses" "Fragments that were not.",
    fragment_stores "page-cache.fragments.stores" "Fragments that were stored.",
}

/// A number that one thread changes and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    #[inline]
    pub fn add(&self) {
        self.add_many(1);
    }

    /// Adds `count`. This is not atomic: only the thread that owns the counter may call it.
    #[inline]
    pub(crate) fn add_many(&self, count: u64) {
        self.0.store(self.count().wrapping_add(count), Relaxed);
    }

    /// The count.
    #[inline]
    pub fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Adds the counters of all workers, and the present sizes, to `counters`. Adds nothing if no request has
/// used the cache.
pub fn read(shared: &Shared, counters: &mut BTreeMap<String, u64>) {
    let registry = shared.belonging(Registry::default);
    let Some(cache) = registry.get() else { return };
    for worker in cache.counters() {
        for (name, count) in worker.all() {
            *counters.entry(name.to_owned()).or_default() += count;
        }
    }
    for (name, count) in cache.sizes() {
        counters.insert(name.to_owned(), count);
    }
}
