//! The hook that decides whether an answer is stored.
//!
//! It runs in the store phase, before all hooks of the transform phase. So the cache stores the backend's
//! answer before scripts change it and before it is compressed, and the hooks of the transform phase treat an
//! answer from the cache like one from the backend. Fields that scripts of earlier phases have added to this
//! answer count for the decision, but are not stored. A complete answer is stored at once; an answer that is
//! streamed is stored when its last byte has arrived.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_engine::body::{Body, InMemory, Piece};
use petrel_engine::ledger::Stage;
use petrel_engine::module::{Hook, Outcome};
use petrel_engine::proto::date;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::status::Status;
use petrel_engine::proto::stored_page::{CachedPage, TAGS_MAX, Times, vary};

use super::answer::{self, By};
use super::entry::CacheEntry;
use super::fetch::{Fetch, PageFetch};
use super::flight::{Landing, Pilot};
use super::limits;
use super::lookup::Gate;
use super::policy::{self, ACCEL_EXPIRES, RequestFacts, StoreVerdict, Why};
use super::purge;
use super::request;
use super::shared::PageCache;
use super::status::CacheStatus;
use crate::static_file;
use crate::tee::{self, Tee};

/// The hook that stores answers.
pub(crate) struct StoreAnswer(pub(crate) Rc<Gate>);

impl Hook for StoreAnswer {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        match Fetch::take(exchange) {
            None => {}
            Some(Fetch::Bypass(reason)) => {
                self.take_tags(exchange);
                let mut status = CacheStatus::new();
                status.parameter("fwd", "bypass");
                status.parameter("detail", reason.word());
                status.append_to(&mut exchange.response);
            }
            Some(Fetch::Unsafe) => {
                self.take_tags(exchange);
                if !exchange.response.status.is_error() {
                    purge::invalidate(exchange, self.0.cache(exchange), &self.0.options);
                }
            }
            Some(Fetch::Page(fetch)) => self.page(exchange, *fetch),
        }
        Outcome::Next
    }
}

impl StoreAnswer {
    fn page(&self, exchange: &mut Exchange, mut fetch: PageFetch) {
        let cache = Rc::clone(self.0.cache(exchange));
        let now_s = exchange.worker.clock().steady_seconds();
        let is_judged_here = !fetch.conditions.is_empty();
        fetch.give_conditions_back(exchange);
        if is_failure(exchange.response.status)
            && let Some(old) = fetch
                .old
                .take_if(|old| old.page.times.serves_on_error(now_s))
            && old.is_live()
        {
            return serve_stale(exchange, &cache, fetch, &old, now_s);
        }
        if exchange.response.status == Status::NOT_MODIFIED && fetch.validates {
            return self.freshen(exchange, &cache, fetch, now_s);
        }
        let tags = self.take_tags(exchange);
        let asked = RequestFacts {
            is_authorized: fetch.wanted.is_authorized || request::is_authorized(exchange),
            no_store: fetch.wanted.directives.no_store,
            at_s: fetch.at_s,
            answered_s: exchange.worker.clock().wall_seconds(),
        };
        let response = &exchange.response;
        let verdict = if exchange.handles_error() {
            StoreVerdict::Not(Why::Status)
        } else if response.has_carried() {
            StoreVerdict::Not(Why::Script)
        } else {
            let fields = response.with_carried(response.fields());
            let options = &self.0.options;
            policy::decide(response.status, &fields, &asked, options, now_s)
        };
        // It is an instruction for this server; clients do not get it, as in nginx.
        exchange.response.remove(ACCEL_EXPIRES);
        let has_range = fetch.wanted.has_range;
        match verdict {
            StoreVerdict::Not(why) => forget(exchange, &cache, fetch, why),
            StoreVerdict::Store { times, withheld } => {
                let page = page(exchange, &fetch, times, &withheld, tags);
                self.keep(exchange, &cache, fetch, page);
            }
        }
        if is_judged_here || has_range {
            judge_conditions(exchange);
        }
    }

    /// Stores the answer, at once or when its body has arrived.
    fn keep(
        &self,
        exchange: &mut Exchange,
        cache: &Rc<PageCache>,
        fetch: PageFetch,
        page: CachedPage,
    ) {
        let bytes_max = self.0.options.object_bytes_max;
        let length = exchange.response.body.length();
        let why = if fetch.wanted.is_head {
            Some(Why::Partial)
        } else if is_file(exchange) {
            Some(Why::File)
        } else {
            (length.is_some_and(|length| length > bytes_max as u64)).then_some(Why::TooLarge)
        };
        if let Some(why) = why {
            return forget(exchange, cache, fetch, why);
        }
        let forward = fetch.forward;
        let draft = PageDraft {
            cache: Rc::clone(cache),
            page,
            since: fetch.since,
            at_s: fetch.at_s,
            pilot: fetch.pilot,
        };
        let body = std::mem::take(&mut exchange.response.body);
        match in_memory(&body) {
            Some(bytes) => {
                tee::Draft::finish(draft, bytes);
                exchange.response.body = body;
            }
            None => {
                let reader = InMemory::new(exchange.file_reader());
                let tee = Tee::new(body, reader, draft, bytes_max);
                exchange.response.body = Body::Source(Box::new(tee));
            }
        }
        let mut status = CacheStatus::new();
        status.parameter("fwd", forward.word());
        status.word("stored");
        status.append_to(&mut exchange.response);
    }

    /// The backend has confirmed the stored answer (RFC 9111 4.3.4): stores it with the new fields and sends
    /// it.
    fn freshen(
        &self,
        exchange: &mut Exchange,
        cache: &Rc<PageCache>,
        mut fetch: PageFetch,
        now_s: u64,
    ) {
        let Some(old) = fetch.old.take() else {
            return;
        };
        let mut tags = self.take_tags(exchange);
        if tags.is_empty() {
            tags = old.page.tags.clone();
        }
        let fields = updated(&old.page, exchange.response.fields());
        let asked = RequestFacts {
            is_authorized: fetch.wanted.is_authorized || request::is_authorized(exchange),
            no_store: fetch.wanted.directives.no_store,
            at_s: fetch.at_s,
            answered_s: exchange.worker.clock().wall_seconds(),
        };
        let told = exchange.response.with_carried(&fields);
        let verdict = policy::decide(old.page.status, &told, &asked, &self.0.options, now_s);
        let is_of_request = asked.no_store || verdict == StoreVerdict::Not(Why::Authorized);
        let (times, withheld) = match verdict {
            StoreVerdict::Store { times, withheld } => (Some(times), withheld),
            StoreVerdict::Not(_) => (None, vec!["date".into(), "age".into(), "server".into()]),
        };
        let page = CachedPage {
            vary: vary::varying(
                vary::names(&told).unwrap_or_default(),
                &exchange.request.head,
            ),
            fields: stored_fields(&fields, &withheld),
            date: date_of(&fields, asked.answered_s),
            times: times.unwrap_or(Times {
                received_s: now_s,
                ..Times::default()
            }),
            tags,
            ..old.page.clone()
        };
        let entry = CacheEntry::with_content(page, old.content);
        cache.counters.revalidated.add();
        let landing = match times {
            Some(_) => cache.store(&entry, fetch.since, fetch.at_s),
            // A decision because of one client's request says nothing about the stored answer.
            None if is_of_request => Landing::NotStored,
            None => {
                cache.remove(&old);
                Landing::NotStored
            }
        };
        answer::send(exchange, &entry, now_s, By::Revalidation);
        if let Some(pilot) = fetch.pilot {
            pilot.land(landing);
        }
    }

    /// Takes the tags out of the answer; the client does not get that field.
    fn take_tags(&self, exchange: &mut Exchange) -> Box<[Box<[u8]>]> {
        let Some(name) = &self.0.options.tags_header else {
            return Box::default();
        };
        let mut tags: Vec<Box<[u8]>> = Vec::new();
        for (found, value) in exchange.response.fields().iter() {
            if found.eq_ignore_ascii_case(name.as_bytes()) {
                tags.extend(purge::tags_in(value).map(Box::from));
            }
        }
        tags.sort_unstable();
        tags.dedup();
        if tags.len() > TAGS_MAX {
            exchange.log_error(
                Stage::Transform.name(),
                format_args!(
                    "{name} has more than {} tags, the others are dropped;",
                    TAGS_MAX
                ),
            );
            tags.truncate(TAGS_MAX);
        }
        exchange.response.remove(name);
        tags.into()
    }
}

/// An answer that lacks only its body.
struct PageDraft {
    cache: Rc<PageCache>,
    /// The rest of the answer.
    page: CachedPage,
    /// The number of the latest purge when the fetch began.
    since: u64,
    /// The second in which it was requested.
    at_s: u64,
    /// Reports the end of the fetch to the requests that wait for it.
    pilot: Option<Pilot>,
}

impl tee::Draft for PageDraft {
    fn finish(mut self, body: Bytes) {
        self.page.body = body;
        let entry = CacheEntry::new(self.page);
        let landing = self.cache.store(&entry, self.since, self.at_s);
        if let Some(pilot) = self.pilot {
            pilot.land(landing);
        }
    }

    fn give_up(self) {
        if let Some(pilot) = self.pilot {
            pilot.land(Landing::NotStored);
        }
    }
}

/// The backend has failed, and the stored answer is sent instead of the error (RFC 5861 4).
fn serve_stale(
    exchange: &mut Exchange,
    cache: &PageCache,
    fetch: PageFetch,
    old: &Arc<CacheEntry>,
    now_s: u64,
) {
    let failed = exchange.response.status;
    old.fail(exchange.worker.clock().seconds());
    cache.counters.stale.add();
    answer::send(exchange, old, now_s, By::Failure(failed));
    // The waiting requests get the stored answer as well.
    if let Some(pilot) = fetch.pilot {
        pilot.land(Landing::Stored);
    }
}

/// The answer is not stored. For a while requests for this URL do not wait for each other. The answer that
/// was stored before is removed, unless the backend has only failed.
fn forget(exchange: &mut Exchange, cache: &PageCache, fetch: PageFetch, why: Why) {
    let now_s = exchange.worker.clock().seconds();
    let has_failed = is_failure(exchange.response.status);
    let is_file = is_file(exchange);
    let is_whole = !fetch.wanted.is_head && !fetch.wanted.has_range;
    // A decision because of one client's request says nothing about other clients.
    let is_of_request = match why {
        Why::NoStore => fetch.wanted.directives.no_store,
        Why::Authorized => true,
        _ => false,
    };
    if let Some(old) = &fetch.old {
        match has_failed || !is_whole || is_of_request {
            true => old.end_refresh(now_s.saturating_add(limits::RETRY_S)),
            false => cache.remove(old),
        }
    }
    if is_whole && (is_file || !is_of_request) {
        let time_s = match has_failed {
            true => limits::RETRY_S,
            false => limits::PASS_S,
        };
        let mut front = cache.front.borrow_mut();
        front.pass(&fetch.key, now_s.saturating_add(time_s), is_file);
    }
    if !is_file {
        let mut status = CacheStatus::new();
        status.parameter("fwd", fetch.forward.word());
        status.parameter("detail", why.word());
        status.append_to(&mut exchange.response);
    }
    if let Some(pilot) = fetch.pilot {
        pilot.land(Landing::NotStored);
    }
}

/// Applies the client's conditions, which the backend did not get, to the backend's answer. An answer that is
/// streamed is sent whole.
fn judge_conditions(exchange: &mut Exchange) {
    if exchange.response.status != Status::OK || exchange.handles_error() {
        return;
    }
    let modified_s = exchange.response.get("Last-Modified").and_then(date::parse);
    match std::mem::take(&mut exchange.response.body) {
        Body::Piece(whole) => static_file::answer_as_asked(exchange, whole, modified_s),
        other => exchange.response.body = other,
    }
}

/// The answer as it is stored, without its body.
fn page(
    exchange: &Exchange,
    fetch: &PageFetch,
    times: Times,
    withheld: &[Box<str>],
    tags: Box<[Box<[u8]>]>,
) -> CachedPage {
    let fields = exchange.response.fields();
    let told = exchange.response.with_carried(fields);
    let names = vary::names(&told).unwrap_or_default();
    CachedPage {
        key: Arc::clone(&fetch.key),
        vary: vary::varying(names, &exchange.request.head),
        status: exchange.response.status,
        fields: stored_fields(fields, withheld),
        date: date_of(fields, exchange.worker.clock().wall_seconds()),
        server: fields.get("Server").map(Box::from),
        body: Bytes::new(),
        times,
        tags,
        took_ms: took_ms(exchange),
    }
}

fn stored_fields(fields: &HeaderBlock, withheld: &[Box<str>]) -> Box<[u8]> {
    let mut stored = HeaderBlock::new();
    for (name, value) in fields.iter() {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let is_withheld = withheld.iter().any(|known| is(known)) || is(ACCEL_EXPIRES);
        if let Ok(name) = std::str::from_utf8(name)
            && !is_withheld
        {
            stored.append(name, value);
        }
    }
    stored.as_bytes().into()
}

/// The Date of the answer; without one, the time when it arrived (RFC 9110 6.6.1).
fn date_of(fields: &HeaderBlock, answered_s: u64) -> [u8; 29] {
    let made_s = fields
        .get("Date")
        .and_then(date::parse)
        .unwrap_or(answered_s);
    let mut text = [0; 29];
    date::format_imf(made_s.min(date::UNIX_SECONDS_MAX), &mut text);
    text
}

/// The fields of a stored answer, updated with those of a 304 (RFC 9111 3.2).
fn updated(old: &CachedPage, fields: &HeaderBlock) -> HeaderBlock {
    let mut updated = HeaderBlock::new();
    updated.extend_from_wire(&old.fields);
    let is_kept = |name: &[u8]| {
        let mut kept = KEPT_FIELDS.iter();
        kept.any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
    };
    let mut seen: Vec<&str> = Vec::new();
    for (name, value) in fields.iter().filter(|(name, _)| !is_kept(name)) {
        let Ok(name) = std::str::from_utf8(name) else {
            continue;
        };
        if !seen.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            updated.remove(name);
            seen.push(name);
        }
        updated.append(name, value);
    }
    updated
}

/// Fields that describe the stored body; those of a 304 do not replace them.
const KEPT_FIELDS: [&str; 5] = [
    "content-encoding",
    "content-length",
    "content-type",
    "content-range",
    "transfer-encoding",
];

/// Statuses for which the stored answer is sent instead (RFC 5861 4).
fn is_failure(status: Status) -> bool {
    matches!(
        status,
        Status::INTERNAL_SERVER_ERROR
            | Status::BAD_GATEWAY
            | Status::SERVICE_UNAVAILABLE
            | Status::GATEWAY_TIMEOUT
    )
}

/// Whether the body is a file of this server and not from a backend.
fn is_file(exchange: &Exchange) -> bool {
    let is_file = |piece: &Piece| matches!(piece, Piece::File { .. });
    let has_file = match &exchange.response.body {
        Body::Piece(piece) => is_file(piece),
        Body::Pieces(pieces) => pieces.iter().any(is_file),
        Body::Empty | Body::Source(_) => false,
    };
    has_file && exchange.ledger.stage(Stage::BackendFirstByte) == 0
}

/// The whole body if it is in memory. It is copied, because its bytes may be a part of something larger.
fn in_memory(body: &Body) -> Option<Bytes> {
    let bytes = |piece: &Piece| match piece {
        Piece::Bytes(bytes) => Some(bytes.clone()),
        Piece::File { .. } => None,
    };
    match body {
        Body::Empty => Some(Bytes::new()),
        Body::Piece(piece) => bytes(piece).map(|bytes| Bytes::copy_from_slice(&bytes)),
        Body::Pieces(pieces) => {
            let mut whole = Vec::new();
            for piece in pieces {
                whole.extend_from_slice(&bytes(piece)?);
            }
            Some(whole.into())
        }
        Body::Source(_) => None,
    }
}

/// How long the backend took, as far as the answer had to wait for it.
fn took_ms(exchange: &Exchange) -> u32 {
    let stages = [
        Stage::BackendConnect,
        Stage::BackendAccept,
        Stage::BackendSend,
        Stage::BackendFirstByte,
        Stage::BackendBody,
    ];
    let nanos: u64 = stages
        .iter()
        .map(|stage| exchange.ledger.stage(*stage))
        .sum();
    u32::try_from(nanos / 1_000_000).unwrap_or(u32::MAX)
}
