//! Refreshes a stale answer in the background while clients get the stale one (RFC 5861 3).
//!
//! The refresh is a subrequest with the client's request and the settings that apply to it, so it passes
//! through all phases like the original. It bypasses the lookup, and its answer is stored like any other.

use std::sync::Arc;

use petrel_engine::Exchange;
use petrel_engine::proto::method::Method;
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::subrequest::{Inherit, Subrequest, SubrequestHead};

use super::entry::CacheEntry;
use super::fetch::{Fetch, Forward, KEPT, PageFetch, validators};
use super::flight::Boarding;
use super::key;
use super::limits;
use super::request::WantedPage;
use super::shared::PageCache;

/// Starts to refresh `entry`, unless a refresh is under way.
pub(super) fn begin(exchange: &Exchange, cache: &PageCache, key: &[u8], entry: &Arc<CacheEntry>) {
    let now_s = exchange.worker.clock().seconds();
    if !entry.begin_refresh(now_s) {
        return;
    }
    let hash = cache.shared.memory.hash(key);
    let Boarding::Pilot(pilot) = cache.shared.flights.board(key, hash, exchange.id) else {
        return;
    };
    let fetch = PageFetch {
        key: key.into(),
        forward: Forward::Stale,
        wanted: WantedPage::default(),
        old: Some(Arc::clone(entry)),
        validates: validators(entry).next().is_some(),
        pilot: Some(pilot),
        conditions: Vec::new(),
        since: cache.shared.purges.number(),
        at_s: exchange.worker.clock().steady_seconds(),
    };
    let begun = Subrequest::new(exchange, head(exchange, entry)).and_then(|mut subrequest| {
        subrequest.keep(KEPT, Fetch::Page(Box::new(fetch)).into_kept());
        subrequest.detach(async move |mut subrequest: Subrequest| {
            // The answer is stored as it passes the store phase; its pieces are not needed here.
            while let Some(Ok(_)) = subrequest.piece().await {}
        })
    });
    match begun {
        Ok(()) => cache.counters.refreshes.add(),
        // Clients get the stale answer as long as that is allowed, and then fetch for themselves.
        Err(_) => entry.end_refresh(now_s.saturating_add(limits::RETRY_S)),
    }
}

/// The client's request, with the validators of the stored answer in place of its conditions.
fn head(exchange: &Exchange, entry: &CacheEntry) -> SubrequestHead {
    let target = key::without_origin(exchange.request.original_target());
    let (path, query) = key::split(target);
    let mut target = path.to_vec();
    if let Some(query) = query {
        target.push(b'?');
        target.extend_from_slice(query);
    }
    let mut fields: Vec<(String, Vec<u8>)> = validators(entry)
        .map(|(field, value)| (field.name().to_owned(), value.to_vec()))
        .collect();
    if let Some(codings) = exchange.request.head.field(KnownField::AcceptEncoding) {
        fields.push((
            KnownField::AcceptEncoding.name().to_owned(),
            codings.to_vec(),
        ));
    }
    SubrequestHead {
        method: Method::Get,
        target,
        host: None,
        fields,
        inherit: Inherit::All,
        body: Default::default(),
    }
}
