//! What a request that is not answered from the cache keeps until its answer is there.
//!
//! The hook of the content phase leaves it with the exchange, that of the store phase takes it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use petrel_engine::Exchange;
use petrel_engine::proto::request_head::KnownField;

use super::entry::CacheEntry;
use super::flight::Pilot;
use super::request::{Reason, WantedPage};

/// What became of a request at the cache.
#[derive(Debug)]
pub(super) enum Fetch {
    /// It passes the cache by.
    Bypass(Reason),
    /// It may change what is stored.
    Unsafe,
    /// Its answer may be stored.
    Page(Box<PageFetch>),
}

/// A request whose answer may be stored.
#[derive(Debug)]
pub(super) struct PageFetch {
    /// The key of the answer.
    pub key: Arc<[u8]>,
    /// Why it was not answered from the cache.
    pub forward: Forward,
    /// What it wants.
    pub wanted: WantedPage,
    /// What is stored, and is too old.
    pub old: Option<Arc<CacheEntry>>,
    /// Whether the backend is asked if `old` still counts.
    pub validates: bool,
    /// Those who wait for the answer, if there can be any.
    pub pilot: Option<Pilot>,
    /// Conditions of the client, which the backend does not get.
    pub conditions: Vec<(KnownField, Vec<u8>)>,
    /// The number of the latest purge when the fetch began.
    pub since: u64,
    /// The second in which the fetch began.
    pub at_s: u64,
}

/// Why a request is forwarded (RFC 9211 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forward {
    /// Nothing is stored for this URL.
    UriMiss,
    /// Only answers to other requests for this URL are.
    VaryMiss,
    /// What is stored is stale.
    Stale,
    /// The client wants it so.
    Request,
}

impl Forward {
    /// The token of Cache-Status.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Forward::UriMiss => "uri-miss",
            Forward::VaryMiss => "vary-miss",
            Forward::Stale => "stale",
            Forward::Request => "request",
        }
    }
}

/// A [`Fetch`] that an exchange keeps, until somebody takes it.
#[derive(Debug)]
struct KeptFetch(RefCell<Option<Fetch>>);

/// Under which it is kept.
pub(super) const KEPT: &str = "page-cache";

impl Fetch {
    /// In the form in which an exchange or a subrequest keeps it.
    pub(crate) fn into_kept(self) -> Rc<dyn std::any::Any> {
        Rc::new(KeptFetch(RefCell::new(Some(self))))
    }

    /// Leaves it with the exchange.
    pub(super) fn keep(self, exchange: &mut Exchange) {
        exchange.keep(KEPT, self.into_kept());
    }

    /// Takes it from the exchange.
    pub(super) fn take(exchange: &Exchange) -> Option<Fetch> {
        exchange.kept::<KeptFetch>(KEPT)?.0.take()
    }

    /// Whether the exchange has been at the cache before.
    pub(super) fn is_kept(exchange: &Exchange) -> bool {
        exchange.kept::<KeptFetch>(KEPT).is_some()
    }

    /// What is stored and may be sent if the backend fails.
    pub(crate) fn fallback(exchange: &Exchange, now_s: u64) -> Option<Arc<CacheEntry>> {
        let kept = exchange.kept::<KeptFetch>(KEPT)?;
        let fetch = kept.0.borrow();
        let Some(Fetch::Page(page)) = &*fetch else {
            return None;
        };
        let old = page.old.as_ref()?;
        old.page
            .times
            .serves_on_error(now_s)
            .then(|| Arc::clone(old))
    }
}

impl PageFetch {
    /// Takes the conditions that a backend would answer by 304 out of the request: a whole answer is
    /// wanted, and they are judged by it. If something is stored that can be validated, its conditions take
    /// their place.
    pub(crate) fn take_conditions(&mut self, exchange: &mut Exchange) {
        let head = &mut exchange.request.head;
        for field in CONDITIONS {
            if let Some(value) = head.field(field) {
                self.conditions.push((field, value.to_vec()));
                head.remove_field(field.name());
            }
        }
        for (field, value) in self.old.iter().flat_map(|old| validators(old)) {
            head.set_field(field.name(), value);
            self.validates = true;
        }
    }

    /// Gives the request the conditions of its client back.
    pub(crate) fn give_conditions_back(&mut self, exchange: &mut Exchange) {
        let head = &mut exchange.request.head;
        if self.validates {
            for field in CONDITIONS {
                head.remove_field(field.name());
            }
        }
        for (field, value) in self.conditions.drain(..) {
            head.set_field(field.name(), &value);
        }
    }
}

/// The conditions that can be judged by a stored answer.
const CONDITIONS: [KnownField; 2] = [KnownField::IfNoneMatch, KnownField::IfModifiedSince];

/// The conditions by which a backend tells whether `entry` still counts (RFC 9111 4.3.1).
pub(crate) fn validators(entry: &CacheEntry) -> impl Iterator<Item = (KnownField, &[u8])> {
    let of = |field, name| Some((field, entry.page.field(name)?));
    let etag = of(KnownField::IfNoneMatch, "ETag");
    let modified = of(KnownField::IfModifiedSince, "Last-Modified");
    etag.into_iter().chain(modified)
}
