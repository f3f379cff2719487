//! A body that is collected while it is sent to the client.
//!
//! It is not kept if it breaks off, is dropped, becomes too long or ends with trailers. The page cache and
//! mod_mcpage store pages with it.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use petrel_engine::body::{Body, BodySource, InMemory, Piece, RequestBody};
use petrel_engine::ledger::Stage;
use petrel_engine::proto::header_block::HeaderBlock;

/// What a collected body is for.
pub(crate) trait Draft {
    /// The body is complete.
    fn finish(self, body: Bytes);

    /// The body cannot be kept: it is too long, was cut off, or has trailers.
    fn give_up(self);
}

/// The body of an answer that is kept when it is complete.
pub(crate) struct Tee<D> {
    body: Body,
    draft: Option<D>,
    reader: InMemory,
    collected: Vec<u8>,
    /// The length that was announced.
    expected: Option<u64>,
    bytes_max: usize,
    trailers: HeaderBlock,
}

impl<D: Draft> Tee<D> {
    /// Collects up to `bytes_max` bytes of `body` for `draft`. `reader` reads the files in it.
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

    /// Adds a piece. False if its bytes are not in memory; they are as long as the body is collected.
    fn take_in(&mut self, piece: &Piece) -> bool {
        let bytes = piece.in_memory();
        self.collected.extend_from_slice(bytes.unwrap_or_default());
        bytes.is_some()
    }

    /// The next piece. As long as the body is collected its bytes are read into memory.
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
            true => Stage::ReadFile,
            false => self.body.stage(),
        }
    }

    fn has_failed(&self) -> bool {
        self.body.has_failed()
    }
}
