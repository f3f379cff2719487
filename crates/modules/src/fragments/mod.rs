//! Fragments: parts of pages, each with a lifetime, shared by all pages and workers.
//!
//! Scripts choose the keys of fragments. If a fragment is missing, the first request makes it while others
//! wait ([`take`]). If making it fails, the previous one is used a little longer. [`lua`] is
//! `petrel.fragment` for scripts; [`fetch`] makes fragments from the answers of URLs, for mod_cml. They are
//! stored by [`crate::page_cache`].

mod fetch;
mod lua;

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use petrel_engine::worker::Worker;

use crate::page_cache::{FragmentTurn, Maker, PageCache};

pub(crate) use fetch::{Source, fetch_all};
pub(crate) use lua::open;

/// The result of asking for a fragment.
pub enum Taken {
    /// The fragment.
    Found(Bytes),
    /// The caller has to make it; others may wait for it.
    Make(Ticket),
}

/// The right to make a fragment. If it is dropped without a result, the next request that waits gets it.
pub struct Ticket {
    /// `None`: the result is for the caller only and is not stored.
    maker: Option<Maker>,
    worker: Rc<Worker>,
    key: Vec<u8>,
    lifetime_s: u32,
}

/// How many seconds a fragment is kept after its lifetime, as a substitute if the next one cannot be made.
const STALE_S: u32 = 600;

/// How many seconds such a substitute is used before making a new one is tried again.
const RETRY_S: u32 = 5;

/// How long a request waits for another one that makes the fragment.
const WAIT: Duration = Duration::from_secs(10);

/// The fragment under `key`, if its lifetime is not over.
pub fn fresh(worker: &Rc<Worker>, key: &[u8]) -> Option<Bytes> {
    PageCache::of(worker).fragment_get(worker, &marked(FRESH, key))
}

/// Whether a request may wait while another one makes a fragment. It may not if it has a fragment to make
/// itself, nor if it is a subrequest, whose parent may have one to make: two requests could wait for each
/// other, or one for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// For a while.
    Waits,
    /// Not at all.
    MakesItsOwn,
}

/// Gets the fragment under `key`, or the right to make it for `lifetime_s` seconds. If another request is
/// making it, this waits as `patience` says, or uses the previous fragment if its lifetime has just ended.
pub async fn take(worker: &Rc<Worker>, key: &[u8], lifetime_s: u32, patience: Patience) -> Taken {
    let cache = PageCache::of(worker);
    let alone = || {
        Taken::Make(Ticket {
            maker: None,
            worker: Rc::clone(worker),
            key: key.to_vec(),
            lifetime_s,
        })
    };
    if lifetime_s == 0 {
        return alone();
    }
    let stale = || cache.fragment_get(worker, &marked(STALE, key));
    let fresh = marked(FRESH, key);
    if let Some(bytes) = cache.fragment_get(worker, &fresh) {
        return Taken::Found(bytes);
    }
    let wait = match patience {
        Patience::Waits if stale().is_none() => WAIT,
        _ => Duration::ZERO,
    };
    match cache.fragment(worker, &fresh, wait).await {
        FragmentTurn::Found(bytes) => Taken::Found(bytes),
        FragmentTurn::Make(maker) => Taken::Make(Ticket {
            maker: Some(maker),
            worker: Rc::clone(worker),
            key: key.to_vec(),
            lifetime_s,
        }),
        FragmentTurn::Alone => stale().map_or_else(alone, Taken::Found),
    }
}

impl Ticket {
    /// Stores the fragment for its lifetime. Requests that wait get it.
    pub fn finish(self, bytes: Bytes) {
        let Some(maker) = self.maker else { return };
        let stale = marked(STALE, &self.key);
        let until_s = self.lifetime_s.saturating_add(STALE_S);
        PageCache::of(&self.worker).fragment_set(&self.worker, &stale, bytes.clone(), until_s);
        maker.finish(bytes, self.lifetime_s);
    }

    /// The fragment is not for others: requests that wait make their own.
    pub(crate) fn keep_to_oneself(self) {
        if let Some(maker) = self.maker {
            maker.give_up();
        }
    }

    /// The fragment cannot be made. Returns the previous one, if there still is one, which is used for some
    /// seconds more.
    pub fn fail(self) -> Option<Bytes> {
        let cache = PageCache::of(&self.worker);
        let last = cache.fragment_get(&self.worker, &marked(STALE, &self.key));
        match (self.maker, &last) {
            (Some(maker), Some(bytes)) => maker.finish(bytes.clone(), RETRY_S),
            (Some(maker), None) => maker.give_up(),
            (None, _) => {}
        }
        last
    }
}

/// The prefix of keys of fragments within their lifetime.
const FRESH: u8 = b'f';
/// The prefix of keys of the previous fragments.
const STALE: u8 = b's';

fn marked(mark: u8, key: &[u8]) -> Vec<u8> {
    let mut marked = Vec::with_capacity(key.len() + 1);
    marked.push(mark);
    marked.extend_from_slice(key);
    marked
}

#[cfg(test)]
mod tests {
    use petrel_engine::testing::Site;

    use super::*;

    async fn ticket(worker: &Rc<Worker>, lifetime_s: u32) -> Ticket {
        match take(worker, b"k", lifetime_s, Patience::Waits).await {
            Taken::Make(ticket) => ticket,
            Taken::Found(bytes) => panic!("there is one: {bytes:?}"),
        }
    }

    #[tokio::test(flavor = "local")]
    async fn what_was_made_is_found_and_outlives_its_time_on_errors() {
        let site = Site::new("", &[]);
        let worker = site.worker();
        assert_eq!(ticket(worker, 60).await.fail(), None);
        ticket(worker, 60).await.finish(Bytes::from_static(b"made"));
        assert_eq!(fresh(worker, b"k").as_deref(), Some(&b"made"[..]));
        worker.clock().skip(Duration::from_secs(60));
        let maker = ticket(worker, 60).await;
        match take(worker, b"k", 60, Patience::Waits).await {
            Taken::Found(bytes) => {
                assert_eq!(&bytes[..], b"made", "others get the last one at once")
            }
            Taken::Make(_) => panic!("it is made twice"),
        }
        assert_eq!(maker.fail().as_deref(), Some(&b"made"[..]));
        assert!(
            fresh(worker, b"k").is_some(),
            "it is not tried again at once"
        );
    }

    #[tokio::test(flavor = "local")]
    async fn without_a_lifetime_nothing_is_kept() {
        let site = Site::new("", &[]);
        let worker = site.worker();
        for _ in 0..2 {
            ticket(worker, 0).await.finish(Bytes::from_static(b"made"));
        }
        assert_eq!(fresh(worker, b"k"), None);
    }
}
