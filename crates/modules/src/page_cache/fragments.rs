//! Parts of pages that scripts make and store, each with a lifetime of its own, shared by pages and workers.
//!
//! A script asks for a fragment ([`PageCache::fragment`]). It either gets the stored one, or becomes the one
//! to make it while other scripts that want the same wait. Fragments have memory of their own, so that
//! fragments and whole pages do not evict each other. The keys are chosen by scripts; nothing of the request
//! is added to them.
#![expect(
    clippy::disallowed_methods,
    reason = "the runtime's timer has its own time"
)]

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use petrel_engine::request_id::RequestId;
use petrel_engine::worker::Worker;

use super::flight::{Boarding, Flights, Landing, Pilot};
use super::memory::{Memory, MemoryContent};
use super::shared::PageCache;

/// The fragments of all workers.
#[derive(Debug)]
pub struct Fragments {
    memory: Memory<Fragment>,
    flights: Arc<Flights>,
}

#[derive(Debug)]
struct Fragment {
    key: Arc<[u8]>,
    bytes: Bytes,
    /// The second of the monotonic clock from which on the fragment has expired.
    until_s: u32,
    was_used: AtomicBool,
}

impl MemoryContent for Fragment {
    fn key(&self) -> &Arc<[u8]> {
        &self.key
    }

    fn size(&self) -> usize {
        self.bytes.len() + self.key.len() + FRAGMENT_BYTES
    }

    fn take_used(&self) -> bool {
        self.was_used.swap(false, Relaxed)
    }

    fn replaces(&self, _: &Fragment) -> bool {
        true
    }
}

/// The memory that a fragment takes in addition to its key and bytes, roughly.
const FRAGMENT_BYTES: usize = 200;

/// The answer to a script that asks for a fragment.
pub(crate) enum FragmentTurn {
    /// The fragment.
    Found(Bytes),
    /// The script has to make the fragment; others wait for it.
    Make(Maker),
    /// The script has to make the fragment for itself only. Another script has been making it for longer than
    /// this one wants to wait, or its result could not be stored.
    Alone,
}

/// The right to make a fragment. If it is dropped without a result, the next script tries.
pub(crate) struct Maker {
    pilot: Pilot,
    cache: Rc<PageCache>,
    key: Box<[u8]>,
    now_s: u32,
}

impl Maker {
    /// Stores the result for `lifetime_s` seconds, and lets the waiting scripts go on.
    pub(crate) fn finish(self, bytes: Bytes, lifetime_s: u32) {
        let is_stored = self
            .cache
            .set_fragment(&self.key, bytes, self.now_s, lifetime_s);
        self.pilot.land(match is_stored {
            true => Landing::Stored,
            false => Landing::NotStored,
        });
    }

    /// There is no result: each waiting script makes its own.
    pub(crate) fn give_up(self) {
        self.pilot.land(Landing::NotStored);
    }
}

impl PageCache {
    /// The fragment stored under `key`, unless it has expired.
    pub(crate) fn fragment_get(&self, worker: &Worker, key: &[u8]) -> Option<Bytes> {
        let found = self.shared.fragments.find(key, worker.clock().seconds());
        match found {
            Some(_) => self.counters.fragment_hits.add(),
            None => self.counters.fragment_misses.add(),
        }
        found
    }

    /// Stores a fragment for `lifetime_s` seconds and replaces an older one. False: it is larger than all the
    /// memory, or its lifetime is 0.
    pub(crate) fn fragment_set(
        &self,
        worker: &Worker,
        key: &[u8],
        bytes: Bytes,
        lifetime_s: u32,
    ) -> bool {
        self.set_fragment(key, bytes, worker.clock().seconds(), lifetime_s)
    }

    /// Gets the fragment under `key`, or the right to make it. If another script is making it, waits for
    /// that, but not longer than `wait`.
    pub(crate) async fn fragment(
        self: &Rc<Self>,
        worker: &Worker,
        key: &[u8],
        wait: Duration,
    ) -> FragmentTurn {
        let fragments = &self.shared.fragments;
        let due = tokio::time::Instant::now() + wait;
        loop {
            if let Some(bytes) = self.fragment_get(worker, key) {
                return FragmentTurn::Found(bytes);
            }
            let hash = fragments.memory.hash(key);
            let boarding = fragments.flights.board(key, hash, RequestId::default());
            let passenger = match boarding {
                Boarding::Pilot(pilot) => {
                    return FragmentTurn::Make(Maker {
                        pilot,
                        cache: Rc::clone(self),
                        key: key.into(),
                        now_s: worker.clock().seconds(),
                    });
                }
                Boarding::Passenger(passenger) => passenger,
            };
            match tokio::time::timeout_at(due, passenger.landed()).await {
                Ok(Landing::Stored | Landing::Crashed) => {}
                Ok(Landing::NotStored) | Err(_) => return FragmentTurn::Alone,
            }
        }
    }

    fn set_fragment(&self, key: &[u8], bytes: Bytes, now_s: u32, lifetime_s: u32) -> bool {
        let is_stored = self.shared.fragments.insert(key, bytes, now_s, lifetime_s);
        if is_stored {
            self.counters.fragment_stores.add();
        }
        is_stored
    }
}

impl Fragments {
    /// No fragments, with room for so many bytes.
    pub fn new(bytes_max: usize) -> Fragments {
        Fragments {
            memory: Memory::new(bytes_max),
            flights: Arc::default(),
        }
    }

    /// How many fragments there are, expired ones included.
    pub fn entries(&self) -> usize {
        self.memory.entries()
    }

    /// How many bytes they take.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn find(&self, key: &[u8], now_s: u32) -> Option<Bytes> {
        let fragment = self.memory.find_latest(key)?;
        let is_over = |fragment: &Fragment| now_s >= fragment.until_s;
        if is_over(&fragment) {
            self.memory.remove_variants(key, is_over);
            return None;
        }
        fragment.was_used.store(true, Relaxed);
        Some(fragment.bytes.clone())
    }

    fn insert(&self, key: &[u8], bytes: Bytes, now_s: u32, lifetime_s: u32) -> bool {
        if lifetime_s == 0 {
            self.memory.remove_variants(key, |_| true);
            return false;
        }
        let fragment = Arc::new(Fragment {
            key: key.into(),
            // A slice of something larger would keep all of that in memory.
            bytes: Bytes::copy_from_slice(&bytes),
            until_s: now_s.saturating_add(lifetime_s),
            was_used: AtomicBool::new(false),
        });
        self.memory.insert(&fragment).is_some()
    }
}

#[cfg(test)]
mod tests {
    use petrel_engine::testing::Site;

    use super::*;

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn fragments_last_as_long_as_they_are_told() {
        let fragments = Fragments::new(10_000);
        assert!(fragments.insert(b"a", bytes("x"), 10, 5));
        assert_eq!(fragments.find(b"a", 14), Some(bytes("x")));
        assert_eq!(fragments.find(b"b", 14), None);
        assert_eq!(fragments.find(b"a", 15), None);
        assert_eq!((fragments.entries(), fragments.bytes()), (0, 0));
        assert!(!fragments.insert(b"a", bytes("x"), 10, 0));
        assert!(fragments.insert(b"a", bytes("x"), 10, u32::MAX));
        assert!(fragments.insert(b"a", bytes("y"), 10, 1));
        assert_eq!(
            (fragments.entries(), fragments.find(b"a", 10)),
            (1, Some(bytes("y")))
        );
        assert!(!fragments.insert(b"a", bytes("x"), 10, 0));
        assert_eq!(fragments.entries(), 0);
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let fragments = Fragments::new(20_000);
        assert!(fragments.insert(b"hot", bytes("hot"), 0, 100));
        for number in 0..1000 {
            let key = format!("{number}");
            assert!(fragments.insert(key.as_bytes(), vec![b'x'; 700].into(), 0, 100));
            assert!(fragments.bytes() <= 20_000);
            assert!(fragments.find(b"hot", 1).is_some(), "{number}");
        }
        assert!(!fragments.insert(b"hot", vec![b'x'; 20_000].into(), 0, 100));
        assert!(
            fragments.find(b"hot", 1).is_none(),
            "the old one does not count any more"
        );
    }

    #[tokio::test(flavor = "local")]
    async fn one_makes_and_the_others_wait() {
        let site = Site::new("", &[]);
        let worker = Rc::clone(site.worker());
        let cache = PageCache::of(&worker);
        let wait = Duration::from_secs(60);
        let FragmentTurn::Make(maker) = cache.fragment(&worker, b"k", wait).await else {
            panic!("no script makes it");
        };
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let (cache, worker) = (Rc::clone(&cache), Rc::clone(&worker));
                tokio::task::spawn_local(async move {
                    match cache.fragment(&worker, b"k", wait).await {
                        FragmentTurn::Found(bytes) => bytes,
                        FragmentTurn::Make(_) | FragmentTurn::Alone => {
                            panic!("another request makes it")
                        }
                    }
                })
            })
            .collect();
        tokio::task::yield_now().await;
        maker.finish(bytes("made"), 60);
        for task in waiting {
            assert_eq!(task.await.expect("it ends"), bytes("made"));
        }
        assert_eq!(cache.counters.fragment_stores.count(), 1);
    }

    #[tokio::test(flavor = "local")]
    async fn a_maker_that_fails_makes_no_request_wait() {
        let site = Site::new("", &[]);
        let worker = Rc::clone(site.worker());
        let cache = PageCache::of(&worker);
        let turn = async |wait_ms| {
            let wait = Duration::from_millis(wait_ms);
            cache.fragment(&worker, b"k", wait).await
        };
        let FragmentTurn::Make(first) = turn(1000).await else {
            panic!("no script makes it");
        };
        assert!(
            matches!(turn(1).await, FragmentTurn::Alone),
            "it has waited long enough"
        );
        drop(first);
        let FragmentTurn::Make(second) = turn(1000).await else {
            panic!("the next one tries");
        };
        let (other, ()) = tokio::join!(turn(5000), async { second.give_up() });
        assert!(matches!(other, FragmentTurn::Alone));
    }
}
