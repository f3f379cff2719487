//! Stored answers in a Redis or memcached that several machines share.
//!
//! Every error of the store counts as a miss. Such a store cannot search for all variants of a page, or for
//! all pages with a tag. So a purge writes a record with its time instead, and a worker that reads a page
//! also reads the records of its base and its tags. Records and pages are kept for [`limits::TIER_S_MAX`] at
//! most. The clocks of the machines may differ by [`limits::CLOCKS_MS`].
//!
//! Writes and removals of one key are applied in the order in which they were started, across all workers
//! ([`Turns`]). Without that a removal could overtake the write of a page, because each operation uses a
//! connection of its own and a removal is quicker.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use petrel_engine::blocking::{self, Origin};
use petrel_engine::proto::stored_page::blob::{self, Blob, BlobName, Damaged, HALF_BYTES};
use petrel_engine::proto::stored_page::{CachedPage, key};
use petrel_engine::worker::Worker;

use super::counters::Counters;
use super::limits;
use super::options::Places;
use super::tag_purges::tag_name;
use super::turns::{NameTurn, Turns};
use crate::remote_store::tier::Tier;
use crate::remote_store::{MemcachedOptions, RedisOptions, StoreAddress, StoreError, Stores};

/// The store that `page-cache.second-tier` names.
#[derive(Clone, Debug)]
pub(crate) enum TierStore {
    /// `redis:`
    Redis(StoreAddress),
    /// `memcached:`, one or more servers.
    Memcached(Vec<StoreAddress>),
}

impl TierStore {
    /// Parses the value of the directive.
    ///
    /// # Errors
    /// What is wrong with it, without a full stop.
    pub(crate) fn parse(text: &str) -> Result<TierStore, String> {
        let (kind, address) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "redis" => {
                let address = StoreAddress::parse(address, RedisOptions::PORT_DEFAULT)?;
                Ok(TierStore::Redis(address))
            }
            "memcached" => {
                let servers = address.split(',').map(str::trim);
                let servers = servers
                    .map(|server| StoreAddress::parse(server, MemcachedOptions::PORT_DEFAULT));
                Ok(TierStore::Memcached(
                    servers.collect::<Result<_, String>>()?,
                ))
            }
            _ => Err(format!(
                "{text:?} begins with neither \"redis:\" nor \"memcached:\""
            )),
        }
    }
}

/// Whether memcached accepts keys with this prefix.
pub(crate) fn is_prefix(text: &str) -> bool {
    text.len() <= PREFIX_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The store, as one worker sees it.
pub(crate) struct SecondTier {
    tier: Rc<dyn Tier>,
    prefix: String,
    counters: Arc<Counters>,
    /// How many answers are being sent to it.
    pending: Cell<usize>,
    turns: Arc<Turns>,
}

impl SecondTier {
    /// The configured store; `None` if there is none or it cannot be used.
    pub(crate) fn new(
        worker: &Rc<Worker>,
        places: &Places,
        counters: &Arc<Counters>,
        turns: &Arc<Turns>,
    ) -> Option<Rc<Self>> {
        let store = TierStore::parse(places.second_tier.as_deref()?).ok()?;
        let tier = match connect(worker, store) {
            Ok(tier) => tier,
            Err(error) => {
                let settings = worker.base_settings();
                let log = &settings.core.error_log;
                log.error(format_args!(
                    "(page-cache) page-cache.second-tier is not used: {error}"
                ));
                return None;
            }
        };
        Some(Rc::new(SecondTier {
            tier,
            prefix: places.second_tier_prefix.clone(),
            counters: Arc::clone(counters),
            pending: Cell::new(0),
            turns: Arc::clone(turns),
        }))
    }

    /// The blob `name`. `None` if it is missing, was purged, or does not arrive in time.
    pub(crate) async fn find(self: Rc<Self>, name: BlobName) -> Option<Blob> {
        let time = Duration::from_millis(limits::TIER_WAIT_MS);
        match tokio::time::timeout(time, self.find_at_leisure(name)).await {
            Ok(found) => found,
            Err(_) => {
                self.counters.tier_errors.add();
                None
            }
        }
    }

    async fn find_at_leisure(&self, name: BlobName) -> Option<Blob> {
        let found = match self.tier.get(&self.key('p', &name)).await {
            Ok(found) => found,
            Err(_) => {
                self.counters.tier_errors.add();
                return None;
            }
        };
        let Some(bytes) = found else {
            self.counters.tier_misses.add();
            return None;
        };
        let blob = match decode(bytes).await {
            Ok(blob) => blob,
            Err(Damaged) => {
                self.counters.tier_errors.add();
                return None;
            }
        };
        if let Blob::Page { page, stored_ms } = &blob {
            if self.is_purged(page, *stored_ms).await {
                self.counters.tier_misses.add();
                return None;
            }
            self.counters.tier_hits.add();
        }
        Some(blob)
    }

    /// Sends blobs to the store in a task of its own.
    pub(crate) fn store(self: &Rc<Self>, blobs: Vec<(BlobName, Vec<u8>)>, lifetime_s: u64) {
        if self.pending.get() >= limits::WRITES_MAX {
            return;
        }
        self.pending.set(self.pending.get() + 1);
        let ask = |(name, bytes)| (self.turns.ask(name), name, bytes);
        let blobs: Vec<(NameTurn, BlobName, Vec<u8>)> = blobs.into_iter().map(ask).collect();
        let tier = Rc::clone(self);
        tokio::task::spawn_local(async move {
            for (mut turn, name, bytes) in blobs {
                turn.comes().await;
                let lifetime_s = lifetime_s.clamp(1, limits::TIER_S_MAX);
                let key = tier.key('p', &name);
                let is_short = bytes.len() <= tier.tier.value_bytes_max();
                match is_short && tier.tier.set(&key, &bytes, lifetime_s).await.is_ok() {
                    true => tier.counters.tier_stores.add(),
                    false => tier.counters.tier_errors.add(),
                }
            }
            tier.pending.set(tier.pending.get() - 1);
        });
    }

    /// Removes the blob `name`.
    pub(crate) fn remove(self: &Rc<Self>, name: BlobName) {
        let mut turn = self.turns.ask(name);
        let tier = Rc::clone(self);
        tokio::task::spawn_local(async move {
            turn.comes().await;
            let key = tier.key('p', &name);
            if tier.tier.delete(&key).await.is_err() {
                tier.counters.tier_errors.add();
            }
        });
    }

    /// Everything with this base that was requested until now counts as purged.
    pub(crate) fn purge_base(self: &Rc<Self>, base: [u8; HALF_BYTES], now_ms: u64) {
        self.record('b', base, now_ms);
    }

    /// Everything with this tag that was requested until now counts as purged.
    pub(crate) fn purge_tag(self: &Rc<Self>, tag: &[u8], now_ms: u64) {
        self.record('t', tag_name(tag), now_ms);
    }

    fn record(self: &Rc<Self>, kind: char, name: [u8; HALF_BYTES], now_ms: u64) {
        let tier = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let (key, value) = (tier.key(kind, &name), now_ms.to_string());
            let set = tier.tier.set(&key, value.as_bytes(), limits::TIER_S_MAX);
            if set.await.is_err() {
                tier.counters.tier_errors.add();
            }
        });
    }

    /// Whether the page was purged. The records are read after the page, so that a purge in between is
    /// noticed. If a record cannot be read, the page counts as purged.
    async fn is_purged(&self, page: &CachedPage, stored_ms: u64) -> bool {
        let base = blob::base_name(key::base(&page.key));
        if self.is_recorded('b', base, stored_ms).await {
            return true;
        }
        for tag in &page.tags {
            if self.is_recorded('t', tag_name(tag), stored_ms).await {
                return true;
            }
        }
        false
    }

    async fn is_recorded(&self, kind: char, name: [u8; HALF_BYTES], stored_ms: u64) -> bool {
        match self.tier.get(&self.key(kind, &name)).await {
            Ok(None) => false,
            Ok(Some(value)) => {
                let purged_ms = std::str::from_utf8(&value)
                    .ok()
                    .and_then(|text| text.parse().ok());
                purged_ms.is_none_or(|purged_ms: u64| {
                    stored_ms <= purged_ms.saturating_add(limits::CLOCKS_MS)
                })
            }
            Err(_) => {
                self.counters.tier_errors.add();
                true
            }
        }
    }

    fn key(&self, kind: char, name: &[u8]) -> Vec<u8> {
        use std::io::Write;
        let mut key = Vec::with_capacity(self.prefix.len() + 2 + 2 * name.len());
        write!(key, "{}{kind}:", self.prefix).expect("writing to memory");
        for byte in name {
            write!(key, "{byte:02x}").expect("writing to memory");
        }
        key
    }
}

fn connect(worker: &Rc<Worker>, store: TierStore) -> Result<Rc<dyn Tier>, StoreError> {
    let stores = Stores::of(worker);
    Ok(match store {
        TierStore::Redis(address) => stores.redis(&RedisOptions::new(address))?,
        TierStore::Memcached(servers) => stores.memcached(&MemcachedOptions::new(servers))?,
    })
}

/// Decodes on a thread if the blob is large: its checksum takes a while, and the worker's other connections
/// must not wait.
async fn decode(bytes: Bytes) -> Result<Blob, Damaged> {
    match bytes.len() > DECODED_HERE_BYTES_MAX {
        true => blocking::run(Origin::PROCESSOR, move || blob::decode(&bytes))
            .await
            .unwrap_or(Err(Damaged)),
        false => blob::decode(&bytes),
    }
}

const DECODED_HERE_BYTES_MAX: usize = 64 * 1024;

/// memcached accepts keys of up to 250 bytes.
const PREFIX_BYTES_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::sync::Notify;

    use super::*;
    use crate::remote_store::tier::TierAnswer;

    /// Records the operations. A write takes until the test lets it go on.
    #[derive(Default)]
    struct Slow {
        done: RefCell<Vec<String>>,
        goes_on: Notify,
    }

    impl Tier for Slow {
        fn get<'a>(&'a self, _: &'a [u8]) -> TierAnswer<'a, Option<Bytes>> {
            Box::pin(async { Ok(None) })
        }

        fn set<'a>(&'a self, key: &'a [u8], value: &'a [u8], _: u64) -> TierAnswer<'a, ()> {
            Box::pin(async move {
                self.goes_on.notified().await;
                let (key, value) = (key.escape_ascii(), value.escape_ascii());
                self.done.borrow_mut().push(format!("{key} is {value}"));
                Ok(())
            })
        }

        fn delete<'a>(&'a self, key: &'a [u8]) -> TierAnswer<'a, ()> {
            Box::pin(async move {
                let key = key.escape_ascii();
                self.done.borrow_mut().push(format!("{key} is gone"));
                Ok(())
            })
        }

        fn value_bytes_max(&self) -> usize {
            1 << 20
        }
    }

    #[tokio::test(flavor = "local")]
    async fn a_removed_page_stays_removed_while_others_are_on_their_way() {
        let (slow, turns) = (Rc::new(Slow::default()), Arc::default());
        let worker = || {
            Rc::new(SecondTier {
                tier: Rc::clone(&slow) as Rc<dyn Tier>,
                prefix: String::new(),
                counters: Arc::default(),
                pending: Cell::new(0),
                turns: Arc::clone(&turns),
            })
        };
        let (one, other) = (worker(), worker());
        let name = |byte| [byte; size_of::<BlobName>()];
        one.store(vec![(name(1), b"page".to_vec())], 60);
        other.remove(name(1));
        other.remove(name(2));
        let has_ended = |count| {
            let slow = Rc::clone(&slow);
            let all = async move {
                while slow.done.borrow().len() < count {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), all)
        };
        has_ended(1).await.expect("no turn waits for another name");
        slow.goes_on.notify_one();
        has_ended(3).await.expect("they end");
        let key = |byte| String::from_utf8(one.key('p', &name(byte))).expect("text");
        let (first, second) = (key(1), key(2));
        assert_eq!(
            *slow.done.borrow(),
            [
                format!("{second} is gone"),
                format!("{first} is page"),
                format!("{first} is gone")
            ]
        );
    }

    #[test]
    fn stores_are_named_by_their_kind() {
        for text in [
            "redis:127.0.0.1:6379",
            "redis:cache.example",
            "redis:/run/redis.sock",
        ] {
            assert!(
                matches!(TierStore::parse(text), Ok(TierStore::Redis(_))),
                "{text}"
            );
        }
        match TierStore::parse("memcached:a.example:11211, b.example") {
            Ok(TierStore::Memcached(servers)) => assert_eq!(servers.len(), 2),
            other => panic!("{other:?}"),
        }
        for text in [
            "",
            "redis",
            "redis:",
            "127.0.0.1",
            "mysql:a",
            "memcached:a,,b",
        ] {
            assert!(TierStore::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn prefixes_are_such_as_keys_can_have() {
        assert!(is_prefix("petrel:") && is_prefix(""));
        assert!(!is_prefix("a b") && !is_prefix("a\n") && !is_prefix(&"a".repeat(101)));
    }
}
