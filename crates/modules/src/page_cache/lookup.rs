//! The hook that looks for a stored answer, before any module that would answer.
//!
//! It runs after all access rules, so that a hit skips none of them. A request that is not answered here goes
//! on to its backend with a [`Fetch`], which [`super::store`] takes.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::exchange::dry_run::Note;
use petrel_engine::module::{Hook, Outcome};
use petrel_engine::proto::status::Status;
use petrel_engine::proto::stored_page::Freshness;

use super::answer::{self, By};
use super::below::Below;
use super::entry::CacheEntry;
use super::fetch::{Fetch, Forward, PageFetch};
use super::flight::{Boarding, Landing, Pilot};
use super::front::FrontAnswer;
use super::key;
use super::limits;
use super::options::CacheOptions;
use super::refresh;
use super::request::{self, Class, Reason, WantedPage};
use super::shared::PageCache;
use super::wait::WaitingLookup;

/// The cache as it is configured for one set of settings.
pub(super) struct Gate {
    /// The options of these settings.
    pub options: CacheOptions,
    cache: OnceCell<Rc<PageCache>>,
}

/// The hook that answers from the cache.
pub(crate) struct CacheLookup(pub(crate) Rc<Gate>);

impl Hook for CacheLookup {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if Fetch::is_kept(exchange) {
            return self.0.look_again(exchange);
        }
        match exchange.handles_error() {
            // An error page must not be taken for the answer to its URL.
            true => Outcome::Next,
            false => self.0.look(exchange, LookupTurn::default()),
        }
    }

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.handles_error() {
            return Outcome::Next;
        }
        match request::classify(exchange, &self.0.options) {
            Class::Page(_) => exchange.note(|| {
                Note::Text("would look for a stored page first, and store the answer".to_owned())
            }),
            Class::Bypass(reason) => {
                exchange.note(|| Note::Text(format!("would bypass the cache ({})", reason.word())))
            }
            Class::Unsafe => exchange.note(|| {
                Note::Text("would remove the stored pages of this URL afterwards".to_owned())
            }),
            Class::Ignored => {}
        }
        Outcome::Next
    }
}

/// What a request has already been through when it is looked up again.
#[derive(Debug, Default)]
pub(super) struct LookupTurn {
    /// How often it has waited for other requests.
    pub waits: u8,
    /// The requests that wait for it.
    pub pilot: Option<Pilot>,
    /// It was looked for on disk and in the second tier.
    pub is_below_asked: bool,
}

/// A request that is being looked up.
struct Question<'a> {
    cache: &'a Rc<PageCache>,
    key: &'a [u8],
    wanted: WantedPage,
    now_s: u64,
    waits: u8,
}

impl Gate {
    /// The cache for requests with these options.
    pub(super) fn new(options: CacheOptions) -> Gate {
        Gate {
            options,
            cache: OnceCell::new(),
        }
    }

    /// The cache of this worker.
    pub(super) fn cache(&self, exchange: &Exchange) -> &Rc<PageCache> {
        self.cache.get_or_init(|| PageCache::of(&exchange.worker))
    }

    /// Looks for a stored answer.
    pub(super) fn look(self: &Rc<Self>, exchange: &mut Exchange, turn: LookupTurn) -> Outcome {
        let cache = Rc::clone(self.cache(exchange));
        let wanted = match request::classify(exchange, &self.options) {
            Class::Page(wanted) => wanted,
            Class::Ignored => return Outcome::Next,
            Class::Unsafe => {
                Fetch::Unsafe.keep(exchange);
                return Outcome::Next;
            }
            Class::Bypass(reason) => return bypass(exchange, &cache, reason),
        };
        let mut key = cache.key.take();
        let outcome = match key::write(&mut key, exchange, &self.options, wanted.has_trusted_fields)
        {
            Ok(()) => {
                let question = Question {
                    now_s: exchange.worker.clock().steady_seconds(),
                    cache: &cache,
                    key: &key,
                    wanted,
                    waits: turn.waits,
                };
                self.answer_or_fetch(exchange, &question, turn)
            }
            Err(key::TooLong) => bypass(exchange, &cache, Reason::Key),
        };
        cache.key.replace(key);
        outcome
    }

    /// The exchange has begun again, for an error page or because a backend has named another URL. Its first
    /// lookup stays in force.
    fn look_again(&self, exchange: &mut Exchange) -> Outcome {
        let now_s = exchange.worker.clock().steady_seconds();
        if exchange.handles_error() && Fetch::fallback(exchange, now_s).is_some() {
            // The store phase replaces this answer by the stored one.
            exchange.response.answer(Status::SERVICE_UNAVAILABLE);
            exchange.response.is_final = true;
            return Outcome::Answer;
        }
        Outcome::Next
    }

    fn answer_or_fetch(
        self: &Rc<Self>,
        exchange: &mut Exchange,
        question: &Question<'_>,
        turn: LookupTurn,
    ) -> Outcome {
        let found = match question.find(exchange) {
            FrontAnswer::Page(entry) => Some(entry),
            FrontAnswer::Nothing => None,
            // A file needs no cache.
            FrontAnswer::File => return Outcome::Next,
        };
        let is_known = found.is_some();
        let usable = found.filter(|entry| question.may_have(entry));
        if let Some(entry) = &usable
            && let Some(outcome) = self.answer(exchange, question, entry)
        {
            return outcome;
        }
        let mut pilot = match self.board(exchange, question, usable.as_deref(), turn.pilot) {
            Ok(pilot) => pilot,
            Err(outcome) => return outcome,
        };
        if usable.is_none()
            && !turn.is_below_asked
            && let Some(below) = Below::begin(
                self,
                question.cache,
                question.key,
                exchange.connection.client_key(),
                &mut pilot,
                question.waits,
            )
        {
            return Outcome::Later(Box::new(below));
        }
        if question.wanted.directives.only_if_cached {
            return exchange.fail(CauseCode::CacheOnly);
        }
        let forward = match &usable {
            Some(entry) => match entry.page.times.freshness(question.now_s) {
                Freshness::Fresh(_) => Forward::Request,
                Freshness::Stale(_) => Forward::Stale,
            },
            None if is_known || !question.cache.shared.memory.find(question.key).is_empty() => {
                Forward::VaryMiss
            }
            None => Forward::UriMiss,
        };
        self.fetch(exchange, question, usable, forward, pilot)
    }

    /// Answers with the stored answer, if it is fresh enough for this request.
    fn answer(
        self: &Rc<Self>,
        exchange: &mut Exchange,
        question: &Question<'_>,
        entry: &Arc<CacheEntry>,
    ) -> Option<Outcome> {
        let times = &entry.page.times;
        let (cache, now_s) = (question.cache, question.now_s);
        let left_s = match times.freshness(now_s) {
            Freshness::Fresh(left_s) => left_s,
            Freshness::Stale(_) => 0,
        };
        if question.wanted.refuses(times.age(now_s), left_s) {
            return None;
        }
        let by = match question.waits {
            0 => By::Hit,
            _ => By::Collapsed,
        };
        if left_s > 0 {
            cache.counters.hits.add();
        } else if times.serves_while_revalidating(now_s) {
            cache.counters.stale.add();
            refresh::begin(exchange, cache, question.key, entry);
        } else if times.serves_on_error(now_s)
            && entry.is_failing(exchange.worker.clock().seconds())
        {
            cache.counters.stale.add();
        } else {
            return None;
        }
        cache.counters.saved_ms.add_many(entry.page.took_ms.into());
        Some(answer::send(exchange, entry, now_s, by))
    }

    /// Makes the request the one that fetches, if other requests may wait for its answer. `Err(outcome)`: it
    /// waits for another request itself, or its answer has just been stored.
    fn board(
        self: &Rc<Self>,
        exchange: &mut Exchange,
        question: &Question<'_>,
        old: Option<&CacheEntry>,
        pilot: Option<Pilot>,
    ) -> Result<Option<Pilot>, Outcome> {
        if pilot.is_some() || !self.may_wait(exchange, question, old) {
            return Ok(pilot);
        }
        let cache = question.cache;
        let hash = cache.shared.memory.hash(question.key);
        match cache.shared.flights.board(question.key, hash, exchange.id) {
            Boarding::Passenger(passenger) => {
                if question.waits == 0 {
                    cache.counters.waits.add();
                }
                let waiting = WaitingLookup::new(self, passenger, question.waits);
                Err(Outcome::Later(Box::new(waiting)))
            }
            Boarding::Pilot(pilot) => match self.landed_before(exchange, question, pilot) {
                Ok(outcome) => Err(outcome),
                Err(pilot) => Ok(Some(pilot)),
            },
        }
    }

    /// Sends the request on to its backend.
    fn fetch(
        &self,
        exchange: &mut Exchange,
        question: &Question<'_>,
        old: Option<Arc<CacheEntry>>,
        forward: Forward,
        pilot: Option<Pilot>,
    ) -> Outcome {
        let cache = question.cache;
        cache.counters.misses.add();
        let mut fetch = PageFetch {
            key: question.key.into(),
            forward,
            wanted: question.wanted,
            old,
            validates: false,
            pilot,
            conditions: Vec::new(),
            since: cache.shared.purges.number(),
            at_s: question.now_s,
        };
        let wanted = &question.wanted;
        let is_whole = !wanted.is_head && !wanted.has_range && !wanted.has_hard_conditions;
        if fetch.pilot.is_some() || fetch.old.is_some() && is_whole {
            fetch.take_conditions(exchange);
        }
        Fetch::Page(Box::new(fetch)).keep(exchange);
        Outcome::Next
    }

    /// Whether the request may wait for another one, and other requests for it.
    fn may_wait(
        &self,
        exchange: &Exchange,
        question: &Question<'_>,
        old: Option<&CacheEntry>,
    ) -> bool {
        let wanted = &question.wanted;
        let now_s = exchange.worker.clock().seconds();
        let is_plain = !wanted.is_head
            && !wanted.has_range
            && !wanted.has_hard_conditions
            && !wanted.is_authorized
            && !wanted.directives.no_store
            && !wanted.directives.only_if_cached;
        is_plain
            && question.waits < limits::WAITS_MAX
            && !self.options.lock_timeout.is_zero()
            // Each request needs a validation of its own: waiting would only send them one after the other.
            && !old.is_some_and(|old| old.page.times.needs_validation_always())
            && !question
                .cache
                .front
                .borrow_mut()
                .passes(question.key, now_s)
    }

    /// Another request's fetch may have ended between the lookup and boarding.
    fn landed_before(
        self: &Rc<Self>,
        exchange: &mut Exchange,
        question: &Question<'_>,
        pilot: Pilot,
    ) -> Result<Outcome, Pilot> {
        let found = question.find_shared(exchange);
        let Some(entry) = found.filter(|entry| question.may_have(entry)) else {
            return Err(pilot);
        };
        match entry.page.times.freshness(question.now_s) {
            Freshness::Fresh(_) => match self.answer(exchange, question, &entry) {
                Some(outcome) => {
                    pilot.land(Landing::Stored);
                    Ok(outcome)
                }
                None => Err(pilot),
            },
            Freshness::Stale(_) => Err(pilot),
        }
    }
}

impl Question<'_> {
    /// The stored answer, in this worker's own table or in the shared memory.
    fn find(&self, exchange: &Exchange) -> FrontAnswer {
        let head = &exchange.request.head;
        let now_s = exchange.worker.clock().seconds();
        match self.cache.front.borrow_mut().find(self.key, head, now_s) {
            FrontAnswer::Nothing => {}
            found => return found,
        }
        self.find_shared(exchange)
            .map_or(FrontAnswer::Nothing, FrontAnswer::Page)
    }

    fn find_shared(&self, exchange: &Exchange) -> Option<Arc<CacheEntry>> {
        let variants = self.cache.shared.memory.find(self.key);
        if variants.is_empty() {
            return None;
        }
        self.cache.front.borrow_mut().learn(self.key, &variants);
        let head = &exchange.request.head;
        variants.into_iter().find(|entry| entry.answers(head))
    }

    /// Whether the client may have the entry. A stored answer is not for a client whose identity is known,
    /// unless the answer allows that (RFC 9111 3.5).
    fn may_have(&self, entry: &CacheEntry) -> bool {
        !self.wanted.is_authorized || entry.page.times.is_shareable
    }
}

fn bypass(exchange: &mut Exchange, cache: &PageCache, reason: Reason) -> Outcome {
    cache.counters.bypassed.add();
    Fetch::Bypass(reason).keep(exchange);
    Outcome::Next
}
