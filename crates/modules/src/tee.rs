//! A body that is sent and kept at once: what goes to the client is collected until it is complete.
//!
//! A body that breaks off, is dropped, turns out too long or ends with trailers is not kept. The page cache and mod_mcpage
//! store pages by this.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use petrel_engine::body::{Body, BodySource, InMemory, Piece, RequestBody};
use petrel_engine::ledger::Stage;
use petrel_engine::proto::header_block::HeaderBlock;

/// What is made of a collected body.
pub(crate) trait Draft {
    /// The body is complete.
    fn finish(self, body: Bytes);

    /// It cannot be kept: it is too long, did not come to its end, or has trailers behind it.
    fn give_up(self);
}

/// The body of an answer that is kept when it is complete.
pub(crate) struct Tee<D> {
    body: Body,
    draft: Option<D>,
    reader: InMemory,
    collected: Vec<u8>,
    /// Bytes that were announced.
    expected: Option<u64>,
    bytes_max: usize,
    trailers: HeaderBlock,
}

impl<D: Draft> Tee<D> {
    /// Collects up to `bytes_max` bytes of `body` for `draft`. `reader` reads its files.
    pub(crate) fn new(body: Body, reader: InMemory, draft: D, bytes_max: usize) -> Tee<D> {
        Tee {
            expected: body.length(),
            body,
            draft: Some(draft),
            reader,
            collected: Vec::new(),
            bytes_max,
            trailers: HeaderBlock::new(),
        }
    }

    fn collect(&mut self, piece: &Piece) {
        if self.draft.is_none() {
            return;
        }
        let length = usize::try_from(piece.length()).unwrap_or(usize::MAX);
        let end = self.collected.len().saturating_add(length);
        if end > self.bytes_max || !self.take_in(piece) {
            self.collected = Vec::new();
            if let Some(draft) = self.draft.take() {
                draft.give_up();
            }
        }
    }

    /// Whether the bytes are there, which they are as long as they are wanted.
    fn take_in(&mut self, piece: &Piece) -> bool {
        let bytes = piece.in_memory();
        self.collected.extend_from_slice(bytes.unwrap_or_default());
        bytes.is_some()
    }

    /// The next piece, with its bytes as long as they are collected.
    fn poll_in_memory(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        match self.draft {
            Some(_) => self.body.poll_in_memory(&mut self.reader, context),
            None => self.reader.poll_rest(&mut self.body, context),
        }
    }

    fn finish(&mut self) {
        let Some(draft) = self.draft.take() else {
            return;
        };
        let collected = std::mem::take(&mut self.collected);
        let is_whole = self
            .expected
            .is_none_or(|expected| expected == collected.len() as u64);
        match is_whole && self.trailers.is_empty() {
            true => draft.finish(collected.into_boxed_slice().into()),
            false => draft.give_up(),
        }
    }
}

impl<D: Draft> BodySource for Tee<D> {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        let polled = self.poll_in_memory(context);
        match &polled {
            Poll::Ready(Some(Ok(piece))) => self.collect(piece),
            Poll::Ready(None) => {
                self.trailers = self.body.take_trailers();
                self.finish();
            }
            Poll::Ready(Some(Err(_))) => self.draft = None,
            Poll::Pending => {}
        }
        polled
    }

    fn remaining(&self) -> Option<u64> {
        Some(self.body.length()? + self.reader.remaining())
    }

    fn take_trailers(&mut self) -> HeaderBlock {
        std::mem::take(&mut self.trailers)
    }

    fn work(&mut self, request_body: &mut RequestBody, context: &mut Context<'_>) {
        self.body.work(request_body, context);
    }

    fn wake_at_s(&self) -> Option<u32> {
        self.body.wake_at_s()
    }

    fn waits_for_disk(&self) -> bool {
        self.reader.is_waiting() || self.body.waits_for_disk()
    }

    fn stage(&self) -> Stage {
        match self.reader.is_waiting() {
            true => Stage::Content,
            false => self.body.stage(),
        }
    }

    fn has_failed(&self) -> bool {
        self.body.has_failed()
    }
}
