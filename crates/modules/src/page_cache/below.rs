//! Looks for a page below the memory: on disk, then in the store that several machines share.
//!
//! The request waits in its client's task; other requests for the same page wait for it as for any fetch. A
//! page that is found is put into memory, and the request is looked up once more.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::blocking::{FileDeadline, RunningJob};
use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::module::{Outcome, Pending};
use petrel_engine::proto::stored_page::blob::{self, Blob, BlobName};
use petrel_engine::proto::stored_page::{CachedPage, vary};
use petrel_engine::waits::HolderText;

use super::entry::CacheEntry;
use super::flight::{Landing, Pilot};
use super::lookup::{Gate, LookupTurn};
use super::shared::PageCache;

/// A request whose page is looked for below the memory.
pub(crate) struct Below {
    gate: Rc<Gate>,
    cache: Rc<PageCache>,
    key: Arc<[u8]>,
    /// The client, because disk threads serve clients in turn.
    client: u64,
    turn: LookupTurn,
    /// The number of the latest purge when the search began.
    since: u64,
    place: BelowPlace,
    name: BlobName,
    answer: BelowAnswer,
    /// A blob has named the request fields that the page's name depends on.
    is_varied: bool,
}

/// Where the page is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BelowPlace {
    Disk,
    Tier,
}

enum BelowAnswer {
    None,
    Disk(RunningJob<Option<Blob>>, Option<FileDeadline>),
    Tier(Pin<Box<dyn Future<Output = Option<Blob>>>>),
}

impl Below {
    /// Starts to look for `key` on behalf of `client`; `None` if there is neither a disk cache nor a shared
    /// store.
    pub(crate) fn begin(
        gate: &Rc<Gate>,
        cache: &Rc<PageCache>,
        key: &[u8],
        client: u64,
        pilot: &mut Option<Pilot>,
        waits: u8,
    ) -> Option<Below> {
        if cache.shared.disk.is_none() && cache.tier.is_none() {
            return None;
        }
        let mut below = Below {
            gate: Rc::clone(gate),
            cache: Rc::clone(cache),
            turn: LookupTurn {
                waits,
                pilot: None,
                is_below_asked: true,
            },
            since: cache.shared.purges.number(),
            place: BelowPlace::Disk,
            name: blob::name(key, &[]),
            answer: BelowAnswer::None,
            is_varied: false,
            key: key.into(),
            client,
        };
        if !below.ask() && !below.ask_next() {
            return None;
        }
        below.turn.pilot = pilot.take();
        Some(below)
    }

    /// Asks at the present place. False: it certainly does not have the page.
    fn ask(&mut self) -> bool {
        let bytes_max = self.gate.options.object_bytes_max;
        self.answer = match (self.place, &self.cache.shared.disk, &self.cache.tier) {
            (BelowPlace::Disk, Some(disk), _) if disk.has(&self.name) => {
                BelowAnswer::Disk(disk.read(self.name, bytes_max, self.client), None)
            }
            (BelowPlace::Tier, _, Some(tier)) => {
                BelowAnswer::Tier(Box::pin(Rc::clone(tier).find(self.name)))
            }
            _ => return false,
        };
        true
    }

    /// Goes on to the next place. False: there is none.
    fn ask_next(&mut self) -> bool {
        if self.place == BelowPlace::Tier {
            return false;
        }
        self.place = BelowPlace::Tier;
        self.name = blob::name(&self.key, &[]);
        self.is_varied = false;
        self.ask()
    }

    /// A disk that does not answer in time counts as a miss: the backend is asked.
    fn poll_answer(
        &mut self,
        exchange: &mut Exchange,
        context: &mut Context<'_>,
    ) -> Poll<Option<Blob>> {
        match &mut self.answer {
            BelowAnswer::None => Poll::Ready(None),
            BelowAnswer::Disk(running, deadline) => {
                let polled = Pin::new(running).poll(context);
                let deadline = deadline.get_or_insert_with(|| exchange.file_deadline());
                if let Ok(read) = ready!(deadline.limit(polled, context)) {
                    return Poll::Ready(read.ok().flatten());
                }
                if let Some(disk) = &self.cache.shared.disk {
                    disk.is_late();
                    exchange.log_late_file("page-cache", disk.path().as_bytes());
                }
                Poll::Ready(None)
            }
            BelowAnswer::Tier(found) => found.as_mut().poll(context),
        }
    }

    /// Whether the page can be sent, now or after a validation.
    fn is_of_use(&self, exchange: &Exchange, page: &CachedPage, stored_ms: u64) -> bool {
        let now_s = exchange.worker.clock().steady_seconds();
        let has_validator = page.field("ETag").is_some() || page.field("Last-Modified").is_some();
        let is_purged = self.place == BelowPlace::Disk
            && self.cache.shared.tag_purges.concern(&page.tags, stored_ms);
        !is_purged && (now_s < page.times.useful_until_s() || has_validator)
    }

    /// Puts the page into memory, unless it was purged or replaced while it was being read.
    fn adopt(&mut self, page: CachedPage) -> Landing {
        let entry = CacheEntry::new(page);
        if self.place == BelowPlace::Disk {
            let disk = self.cache.shared.disk.as_ref();
            if !disk.is_some_and(|disk| disk.has(&self.name)) {
                return Landing::NotStored;
            }
            self.cache.counters.disk_hits.add();
        }
        let stored = self.cache.shared.memory.find(&entry.page.key);
        let is_newer = |stored: &Arc<CacheEntry>| {
            let (times, ours) = (&stored.page.times, &entry.page.times);
            stored.is_same_variant(&entry) && times.received_s >= ours.received_s
        };
        match stored.iter().any(is_newer) {
            true => Landing::Stored,
            false => self.cache.adopt(&entry, self.since),
        }
    }
}

impl Pending for Below {
    fn waits_in(&self) -> Option<Stage> {
        Some(Stage::Cache)
    }

    fn holder(&self, _: &Exchange, since: Nanos, text: &mut HolderText<'_>) {
        crate::remote_store::tell_slow_server(since, text);
    }

    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        loop {
            let blob = ready!(self.poll_answer(exchange, context));
            self.answer = BelowAnswer::None;
            match blob {
                Some(Blob::Page { page, stored_ms })
                    if blob::is_for(&page, &self.key, &exchange.request.head)
                        && self.is_of_use(exchange, &page, stored_ms) =>
                {
                    let landing = self.adopt(*page);
                    if landing == Landing::Stored
                        && let Some(pilot) = self.turn.pilot.take()
                    {
                        pilot.land(landing);
                    }
                    break;
                }
                Some(Blob::Vary { key, names }) if *key == *self.key && !self.is_varied => {
                    let varying = vary::varying(names, &exchange.request.head);
                    self.name = blob::name(&self.key, &varying);
                    self.is_varied = true;
                    if !self.ask() && !self.ask_next() {
                        break;
                    }
                }
                _ if self.ask_next() => {}
                _ => break,
            }
        }
        let turn = std::mem::take(&mut self.turn);
        Poll::Ready(self.gate.look(exchange, turn))
    }
}
