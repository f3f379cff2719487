//! One stored answer, and how fresh it is.
//!
//! An entry never changes: a validation makes a new entry around the same body. Only a few flags change:
//! whether the entry is still in use, whether it was read lately, whether a request is refreshing it. So
//! workers read entries without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use petrel_engine::proto::date;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::request_head::RequestHead;
use petrel_engine::proto::status::Status;

use super::limits;
use super::vary::{self, Varying};

/// A stored answer, with what is computed from it and its flags.
#[derive(Debug)]
pub struct CacheEntry {
    /// The answer as it is stored.
    pub page: CachedPage,
    /// The second of Last-Modified.
    pub(crate) modified_s: Option<u64>,
    /// The stored fields with Date and Server, as they are sent.
    pub wire: Box<[u8]>,
    /// A number that identifies the body; see [`petrel_engine::response::KeptContent`].
    pub content: u64,
    is_gone: AtomicBool,
    is_withdrawn: AtomicBool,
    was_used: AtomicBool,
    /// The second until which a request is refreshing it; 0: none is.
    refreshed_until_s: AtomicU32,
    /// The second until which the backend is not asked for it again, because it has just failed.
    failing_until_s: AtomicU32,
}

/// The lasting part of a stored answer.
#[derive(Clone, Debug)]
pub struct CachedPage {
    /// The whole key.
    pub key: Arc<[u8]>,
    /// The request fields that the answer depends on (Vary), with their values.
    pub vary: Box<[Varying]>,
    /// Its status.
    pub status: Status,
    /// Its fields in wire form, without Date, Server and Age.
    pub fields: Box<[u8]>,
    /// Date: the backend's, or the time when the answer arrived.
    pub date: [u8; 29],
    /// Server, if the backend sent one.
    pub server: Option<Box<[u8]>>,
    /// The whole body.
    pub body: Bytes,
    /// Until when it may be used, and how.
    pub times: Times,
    /// Tags by which it can be purged.
    pub tags: Box<[Box<[u8]>]>,
    /// How long the backend took to make it.
    pub took_ms: u32,
}

/// Until when an answer may be used, and how. Seconds of the wall clock, and durations in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// When it arrived.
    pub received_s: u64,
    /// Its age at that time.
    pub age_s: u32,
    /// The age up to which it is fresh.
    pub lifetime_s: u32,
    /// How long after that it may be sent while it is being refreshed.
    pub stale_while_revalidate_s: u32,
    /// How long after that it may be sent if the backend fails.
    pub stale_if_error_s: u32,
    /// It may be sent in answer to requests with Authorization, too (RFC 9111 3.5).
    pub is_shareable: bool,
}

/// How fresh an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// For this many more seconds.
    Fresh(u32),
    /// It became stale this many seconds ago.
    Stale(u32),
}

impl Times {
    /// The current age (RFC 9111 4.2.3).
    pub fn age(&self, now_s: u64) -> u32 {
        let resident = u32::try_from(now_s.saturating_sub(self.received_s)).unwrap_or(u32::MAX);
        self.age_s.saturating_add(resident)
    }

    /// How fresh the answer is (RFC 9111 4.2).
    pub fn freshness(&self, now_s: u64) -> Freshness {
        let age = self.age(now_s);
        match self.lifetime_s.checked_sub(age) {
            Some(left) if left > 0 => Freshness::Fresh(left),
            _ => Freshness::Stale(age - self.lifetime_s),
        }
    }

    /// Whether it may be sent now while it is being refreshed.
    pub fn serves_while_revalidating(&self, now_s: u64) -> bool {
        match self.freshness(now_s) {
            Freshness::Fresh(_) => true,
            Freshness::Stale(by) => by < self.stale_while_revalidate_s,
        }
    }

    /// Whether it may be sent now because the backend fails.
    pub fn serves_on_error(&self, now_s: u64) -> bool {
        match self.freshness(now_s) {
            Freshness::Fresh(_) => true,
            Freshness::Stale(by) => by < self.stale_if_error_s,
        }
    }

    /// Whether it must be validated for every request.
    pub(crate) fn needs_validation_always(&self) -> bool {
        self.lifetime_s == 0 && self.stale_while_revalidate_s == 0
    }

    /// The last second in which the answer may be sent without a validation.
    pub fn useful_until_s(&self) -> u64 {
        let window = self.stale_while_revalidate_s.max(self.stale_if_error_s);
        let left = u64::from(self.lifetime_s).saturating_sub(u64::from(self.age_s));
        self.received_s
            .saturating_add(left)
            .saturating_add(u64::from(window))
    }
}

impl CacheEntry {
    /// A new entry with a body of its own.
    pub fn new(page: CachedPage) -> Arc<CacheEntry> {
        static CONTENTS: AtomicU64 = AtomicU64::new(0);
        CacheEntry::with_content(page, CONTENTS.fetch_add(1, Relaxed) + 1)
    }

    /// An entry with the body of another one, whose number is `content`.
    pub(crate) fn with_content(page: CachedPage, content: u64) -> Arc<CacheEntry> {
        let modified_s = page.field("Last-Modified").and_then(date::parse);
        Arc::new(CacheEntry {
            wire: page.wire(),
            page,
            modified_s,
            content,
            is_gone: AtomicBool::new(false),
            is_withdrawn: AtomicBool::new(false),
            was_used: AtomicBool::new(false),
            refreshed_until_s: AtomicU32::new(0),
            failing_until_s: AtomicU32::new(0),
        })
    }

    /// Whether it is still in use.
    #[inline]
    pub(crate) fn is_live(&self) -> bool {
        !self.is_gone.load(Relaxed)
    }

    /// It was purged, replaced or evicted, so it must not be sent any more.
    pub fn end(&self) {
        self.is_gone.store(true, Relaxed);
    }

    /// As [`Self::end`], and its copies on disk and in the shared store do not count either.
    pub(crate) fn withdraw(&self) {
        self.is_withdrawn.store(true, Relaxed);
        self.end();
    }

    /// Whether it was withdrawn. An entry that was only evicted from memory was not.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.is_withdrawn.load(Relaxed)
    }

    /// Marks it as used.
    #[inline]
    pub(crate) fn touch(&self) {
        // A load first: a cache line that is only read can be shared by all processors.
        if !self.was_used.load(Relaxed) {
            self.was_used.store(true, Relaxed);
        }
    }

    /// Whether it was used since the last call.
    pub(crate) fn take_used(&self) -> bool {
        self.was_used.swap(false, Relaxed)
    }

    /// Whether the caller may refresh it. `now_s` is monotonic.
    pub(crate) fn begin_refresh(&self, now_s: u32) -> bool {
        let until_s = self.refreshed_until_s.load(Relaxed);
        if now_s < until_s {
            return false;
        }
        let next_s = now_s.saturating_add(limits::REFRESH_S);
        self.refreshed_until_s
            .compare_exchange(until_s, next_s, Relaxed, Relaxed)
            .is_ok()
    }

    /// The refresh has ended. Another one may begin after `second`.
    pub(crate) fn end_refresh(&self, second: u32) {
        self.refreshed_until_s.store(second, Relaxed);
    }

    /// The backend has failed: it is asked again after [`limits::RETRY_S`]. `now_s` is monotonic.
    pub fn fail(&self, now_s: u32) {
        let retry_s = now_s.saturating_add(limits::RETRY_S);
        self.failing_until_s.store(retry_s, Relaxed);
        self.end_refresh(retry_s);
    }

    /// Whether the backend has failed a moment ago.
    pub(crate) fn is_failing(&self, now_s: u32) -> bool {
        now_s < self.failing_until_s.load(Relaxed)
    }

    /// Whether it answers a request with this head, as far as Vary is concerned.
    #[inline]
    pub fn answers(&self, head: &RequestHead) -> bool {
        vary::matches(&self.page.vary, head)
    }

    /// Whether both answer the same requests.
    pub(crate) fn is_same_variant(&self, other: &CacheEntry) -> bool {
        self.page.vary == other.page.vary
    }
}

impl CachedPage {
    /// The value of the first field with this name.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        let lines = self.fields.split(|byte| *byte == b'\n');
        lines
            .filter_map(|line| {
                let colon = memchr::memchr(b':', line)?;
                let (found, value) = line.split_at(colon);
                let is_it = found.eq_ignore_ascii_case(name.as_bytes());
                is_it.then(|| value.get(1..).unwrap_or_default().trim_ascii())
            })
            .next()
    }

    /// The fields that are the same in every answer.
    fn wire(&self) -> Box<[u8]> {
        let mut block = HeaderBlock::new();
        block.extend_from_wire(&self.fields);
        block.append("Date", &self.date);
        if let Some(server) = &self.server {
            block.append("Server", server);
        }
        block.as_bytes().into()
    }

    /// The memory that it takes, in bytes, roughly.
    pub fn size(&self) -> usize {
        let vary = self.vary.iter().map(|varying| {
            varying.name.len() + varying.value.as_ref().map_or(0, |value| value.len()) + 32
        });
        let tags = self.tags.iter().map(|tag| tag.len() + 16);
        limits::ENTRY_BYTES
            + self.body.len()
            + 2 * self.fields.len()
            + 2 * self.key.len()
            + vary.sum::<usize>()
            + tags.sum::<usize>()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A page for tests: `body` under `key`, fresh for `lifetime_s` from second `now_s` on.
    pub fn page(key: &[u8], body: &str, now_s: u64, lifetime_s: u32) -> CachedPage {
        CachedPage {
            key: key.into(),
            vary: Box::default(),
            status: Status::OK,
            fields: b"Content-Type: text/plain\r\nETag: \"1\"\r\n"[..].into(),
            date: *b"Sun, 06 Nov 1994 08:49:37 GMT",
            server: None,
            body: Bytes::copy_from_slice(body.as_bytes()),
            times: Times {
                received_s: now_s,
                lifetime_s,
                ..Times::default()
            },
            tags: Box::default(),
            took_ms: 3,
        }
    }

    #[test]
    fn freshness_follows_the_age() {
        let times = Times {
            received_s: 100,
            age_s: 5,
            lifetime_s: 10,
            stale_while_revalidate_s: 3,
            stale_if_error_s: 6,
            is_shareable: false,
        };
        for (now_s, freshness, revalidating, on_error) in [
            (90, Freshness::Fresh(5), true, true),
            (100, Freshness::Fresh(5), true, true),
            (104, Freshness::Fresh(1), true, true),
            (105, Freshness::Stale(0), true, true),
            (107, Freshness::Stale(2), true, true),
            (108, Freshness::Stale(3), false, true),
            (111, Freshness::Stale(6), false, false),
        ] {
            assert_eq!(times.freshness(now_s), freshness, "{now_s}");
            assert_eq!(
                times.serves_while_revalidating(now_s),
                revalidating,
                "{now_s}"
            );
            assert_eq!(times.serves_on_error(now_s), on_error, "{now_s}");
        }
        assert_eq!(times.useful_until_s(), 111);
    }

    #[test]
    fn times_that_overflow_are_as_long_as_can_be() {
        let times = Times {
            received_s: u64::MAX - 1,
            age_s: 0,
            lifetime_s: u32::MAX,
            stale_if_error_s: u32::MAX,
            ..Times::default()
        };
        assert_eq!(times.useful_until_s(), u64::MAX);
        let old = Times::default();
        assert_eq!(old.freshness(u64::MAX), Freshness::Stale(u32::MAX));
    }

    #[test]
    fn one_refreshes_at_a_time() {
        let entry = CacheEntry::new(page(b"k", "x", 0, 1));
        assert!(entry.begin_refresh(10));
        assert!(!entry.begin_refresh(10));
        assert!(entry.begin_refresh(10 + limits::REFRESH_S));
        entry.end_refresh(0);
        assert!(entry.begin_refresh(11));
    }

    #[test]
    fn fields_are_found_in_any_case() {
        let page = page(b"k", "x", 0, 1);
        assert_eq!(page.field("etag"), Some(&b"\"1\""[..]));
        assert_eq!(page.field("eta"), None);
    }
}
