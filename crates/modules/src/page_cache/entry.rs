//! One stored answer in memory.
//!
//! An entry never changes: a validation makes a new entry around the same body. Only a few flags change:
//! whether the entry is still in use, whether it was read lately, whether a request is refreshing it. So
//! workers read entries without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use petrel_engine::proto::date;
use petrel_engine::proto::request_head::RequestHead;
use petrel_engine::proto::stored_page::{CachedPage, vary};

use super::limits;

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

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;
    use petrel_engine::proto::status::Status;
    use petrel_engine::proto::stored_page::Times;

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
    fn one_refreshes_at_a_time() {
        let entry = CacheEntry::new(page(b"k", "x", 0, 1));
        assert!(entry.begin_refresh(10));
        assert!(!entry.begin_refresh(10));
        assert!(entry.begin_refresh(10 + limits::REFRESH_S));
        entry.end_refresh(0);
        assert!(entry.begin_refresh(11));
    }
}
