//! What an exchange keeps about a request that the cache has not answered, until the answer arrives.
//!
//! The lookup hook of the content phase keeps it with the exchange, the hook of the store phase takes it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use petrel_engine::Exchange;
use petrel_engine::proto::request_head::KnownField;

use super::entry::CacheEntry;
use super::flight::Pilot;
use super::request::{Reason, WantedPage};

/// What the lookup has decided about a request.
#[derive(Debug)]
pub(super) enum Fetch {
    /// It bypasses the cache.
    Bypass(Reason),
    /// Its method is unsafe, so it may change what is stored.
    Unsafe,
    /// It asks for a page that may be stored.
    Page(Box<PageFetch>),
}

/// A request whose answer may be stored.
#[derive(Debug)]
pub(super) struct PageFetch {
    /// The key of the answer.
    pub key: Arc<[u8]>,
    /// Why it was not answered from the cache.
    pub forward: Forward,
    /// What the request asks of the cache.
    pub wanted: WantedPage,
    /// The stored answer, which is too old or refused by the request.
    pub old: Option<Arc<CacheEntry>>,
    /// Whether the backend is asked to validate `old`.
    pub validates: bool,
    /// Reports the end of the fetch to the requests that wait for it; `None` if none may wait.
    pub pilot: Option<Pilot>,
    /// The client's conditions, which are not sent to the backend.
    pub conditions: Vec<(KnownField, Vec<u8>)>,
    /// The number of the latest purge when the fetch began.
    pub since: u64,
    /// The second in which the fetch began.
    pub at_s: u64,
}

/// Why a request is forwarded to the backend (RFC 9211 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forward {
    /// Nothing is stored for this URL.
    UriMiss,
    /// Only answers to other variants of the request are stored.
    VaryMiss,
    /// The stored answer is stale.
    Stale,
    /// The client asks for a newer answer (Cache-Control of the request).
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

/// A [`Fetch`] that an exchange keeps until it is taken.
#[derive(Debug)]
struct KeptFetch(RefCell<Option<Fetch>>);

/// The key under which an exchange keeps it.
pub(super) const KEPT: &str = "page-cache";

impl Fetch {
    /// Wraps it for an exchange or a subrequest.
    pub(crate) fn into_kept(self) -> Rc<dyn std::any::Any> {
        Rc::new(KeptFetch(RefCell::new(Some(self))))
    }

    /// Keeps it with the exchange.
    pub(super) fn keep(self, exchange: &mut Exchange) {
        exchange.keep(KEPT, self.into_kept());
    }

    /// Takes it from the exchange.
    pub(super) fn take(exchange: &Exchange) -> Option<Fetch> {
        exchange.kept::<KeptFetch>(KEPT)?.0.take()
    }

    /// Whether the exchange has been looked up before.
    pub(super) fn is_kept(exchange: &Exchange) -> bool {
        exchange.kept::<KeptFetch>(KEPT).is_some()
    }

    /// The stored answer that may be sent if the backend fails.
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
    /// Takes the conditions that a backend could answer with 304 out of the request: a whole answer is
    /// needed, to which they are applied afterwards. If there is a stored answer that can be validated, its
    /// validators are sent instead.
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

    /// Puts the client's conditions back into the request.
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

/// The conditions that can be applied to a stored answer.
const CONDITIONS: [KnownField; 2] = [KnownField::IfNoneMatch, KnownField::IfModifiedSince];

/// The conditions that ask the backend whether `entry` is still valid (RFC 9111 4.3.1).
pub(crate) fn validators(entry: &CacheEntry) -> impl Iterator<Item = (KnownField, &[u8])> {
    let of = |field, name| Some((field, entry.page.field(name)?));
    let etag = of(KnownField::IfNoneMatch, "ETag");
    let modified = of(KnownField::IfModifiedSince, "Last-Modified");
    etag.into_iter().chain(modified)
}
