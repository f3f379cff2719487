//! A body that is sent and kept at once: what goes to the client is collected until it is complete.
//!
//! A body that breaks off, is dropped, or turns out too long is not stored; those who wait for it are told.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use petrel_engine::body::{Body, BodySource, Piece, RequestBody};

use super::entry::{Entry, Page};
use super::flight::{Landing, Pilot};
use super::shared::PageCache;

/// An answer that lacks only its body.
pub struct Draft {
    /// Everything else.
    pub page: Page,
    /// The number of the latest purge when it was begun.
    pub since: u64,
    /// The second in which it was asked for.
    pub at_s: u64,
    /// Those who wait for it.
    pub pilot: Option<Pilot>,
}

impl Draft {
    /// Stores it with this body.
    pub fn finish(mut self, cache: &PageCache, body: Bytes) {
        self.page.body = body;
        let landing = cache.store(&Entry::new(self.page), self.since, self.at_s);
        if let Some(pilot) = self.pilot {
            pilot.land(landing);
        }
    }

    /// It cannot be stored.
    fn give_up(self) {
        if let Some(pilot) = self.pilot {
            pilot.land(Landing::NotStored);
        }
    }
}

/// The body of an answer that is stored when it is complete.
pub struct Tee {
    body: Body,
    draft: Option<Draft>,
    cache: Rc<PageCache>,
    collected: Vec<u8>,
    /// Bytes that were announced.
    expected: Option<u64>,
    bytes_max: usize,
}

impl Tee {
    /// Collects up to `bytes_max` bytes of `body` for `draft`.
    pub fn new(body: Body, draft: Draft, cache: Rc<PageCache>, bytes_max: usize) -> Tee {
        Tee {
            expected: body.length(),
            body,
            draft: Some(draft),
            cache,
            collected: Vec::new(),
            bytes_max,
        }
    }

    fn collect(&mut self, piece: &Piece) {
        if self.draft.is_none() {
            return;
        }
        let length = usize::try_from(piece.length()).unwrap_or(usize::MAX);
        let end = self.collected.len().saturating_add(length);
        if end > self.bytes_max || self.take_in(piece, end).is_err() {
            self.collected = Vec::new();
            if let Some(draft) = self.draft.take() {
                draft.give_up();
            }
        }
    }

    fn take_in(&mut self, piece: &Piece, end: usize) -> io::Result<()> {
        if let Some(bytes) = piece.in_memory() {
            self.collected.extend_from_slice(bytes);
            return Ok(());
        }
        let mut start = self.collected.len();
        self.collected.resize(end, 0);
        let mut piece = piece.clone();
        while let Some(place) = self
            .collected
            .get_mut(start..)
            .filter(|place| !place.is_empty())
        {
            start += piece.read(place)?;
        }
        Ok(())
    }

    fn finish(&mut self) {
        let Some(draft) = self.draft.take() else {
            return;
        };
        let collected = std::mem::take(&mut self.collected);
        match self
            .expected
            .is_none_or(|expected| expected == collected.len() as u64)
        {
            true => draft.finish(&self.cache, Bytes::from(collected.into_boxed_slice())),
            false => draft.give_up(),
        }
    }
}

impl BodySource for Tee {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        let polled = self.body.poll_piece(context);
        match &polled {
            Poll::Ready(Some(Ok(piece))) => self.collect(piece),
            Poll::Ready(None) => self.finish(),
            Poll::Ready(Some(Err(_))) => self.draft = None,
            Poll::Pending => {}
        }
        polled
    }

    fn remaining(&self) -> Option<u64> {
        self.body.length()
    }

    fn work(&mut self, request_body: &mut RequestBody, context: &mut Context<'_>) {
        self.body.work(request_body, context);
    }

    fn wake_at_s(&self) -> Option<u32> {
        self.body.wake_at_s()
    }

    fn has_failed(&self) -> bool {
        self.body.has_failed()
    }
}
