//! A stored answer, and how fresh it is (RFC 9111).

use std::sync::Arc;

use bytes::Bytes;

use super::vary::Varying;
use crate::header_block::HeaderBlock;
use crate::status::Status;

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

/// By how many seconds the clocks of machines that share stored pages may differ.
const CLOCKS_DIFFER_S_MAX: u64 = 60;

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
    /// The current age (RFC 9111 4.2.3). The largest one if it arrived in the future: the clock was set back since
    /// then, and how old it is cannot be known.
    #[inline]
    pub fn age(&self, now_s: u64) -> u32 {
        if self.received_s > now_s.saturating_add(CLOCKS_DIFFER_S_MAX) {
            return u32::MAX;
        }
        let resident = u32::try_from(now_s.saturating_sub(self.received_s)).unwrap_or(u32::MAX);
        self.age_s.saturating_add(resident)
    }

    /// How fresh the answer is (RFC 9111 4.2).
    #[inline]
    pub fn freshness(&self, now_s: u64) -> Freshness {
        let age = self.age(now_s);
        match self.lifetime_s.checked_sub(age) {
            Some(left) if left > 0 => Freshness::Fresh(left),
            _ => Freshness::Stale(age - self.lifetime_s),
        }
    }

    /// Whether it may be sent now while it is being refreshed.
    #[inline]
    pub fn serves_while_revalidating(&self, now_s: u64) -> bool {
        match self.freshness(now_s) {
            Freshness::Fresh(_) => true,
            Freshness::Stale(by) => by < self.stale_while_revalidate_s,
        }
    }

    /// Whether it may be sent now because the backend fails.
    #[inline]
    pub fn serves_on_error(&self, now_s: u64) -> bool {
        match self.freshness(now_s) {
            Freshness::Fresh(_) => true,
            Freshness::Stale(by) => by < self.stale_if_error_s,
        }
    }

    /// Whether it must be validated for every request.
    #[inline]
    pub fn needs_validation_always(&self) -> bool {
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

    /// The fields that are the same in every answer that it becomes.
    pub fn wire(&self) -> Box<[u8]> {
        let mut block = HeaderBlock::new();
        block.extend_from_wire(&self.fields);
        block.append("Date", &self.date);
        if let Some(server) = &self.server {
            block.append("Server", server);
        }
        block.as_bytes().into()
    }
}

/// Field names in Vary. An answer with more is not stored.
pub const VARY_NAMES_MAX: usize = 16;

/// Tags of one answer.
pub const TAGS_MAX: usize = 256;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn what_arrived_in_the_future_is_stale() {
        let times = Times {
            received_s: 10_000,
            lifetime_s: 600,
            ..Times::default()
        };
        assert_eq!(times.freshness(10_100), Freshness::Fresh(500));
        // Another machine's clock.
        assert_eq!(times.freshness(9_990), Freshness::Fresh(600));
        assert!(matches!(times.freshness(6_400), Freshness::Stale(_)));
        assert!(!times.serves_on_error(6_400));
    }

    /// A page for tests: `body` under `key`, fresh for `lifetime_s` from second `now_s` on.
    pub(crate) fn page(key: &[u8], body: &str, now_s: u64, lifetime_s: u32) -> CachedPage {
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
    fn fields_are_found_in_any_case() {
        let page = page(b"k", "x", 0, 1);
        assert_eq!(page.field("etag"), Some(&b"\"1\""[..]));
        assert_eq!(page.field("eta"), None);
    }
}
