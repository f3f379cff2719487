//! A body that is collected while it is sent to the client, and faster if the client is slow.
//!
//! It is not kept if it breaks off, is dropped, becomes too long or ends with trailers. The page cache and
//! mod_mcpage store pages with it.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use petrel_engine::body::{Body, BodySource, InMemory, Piece, RequestBody};
use petrel_engine::ledger::Stage;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::turn::Turn;
use petrel_engine::waits::HolderText;

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
    /// What the bytes are collected for; `None` once they are complete or cannot be kept.
    draft: Option<D>,
    reader: InMemory,
    collected: Vec<u8>,
    /// How many of the collected bytes the client has taken.
    taken: usize,
    /// What the client has not taken of the bytes that were read while they were collected.
    ahead: VecDeque<Piece>,
    /// The body has come to its end.
    has_ended: bool,
    /// The error that ends the body behind those bytes.
    error: Option<io::Error>,
    turn: Turn,
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
            taken: 0,
            ahead: VecDeque::new(),
            has_ended: false,
            error: None,
            turn: Turn::default(),
            bytes_max,
            trailers: HeaderBlock::new(),
        }
    }

    /// Reads the next piece, and collects it. Ready with its length, or 0 if there is none.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<u64> {
        let piece = match ready!(self.body.poll_in_memory(&mut self.reader, context)) {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => {
                self.error = Some(error);
                self.draft = None;
                self.release();
                return Poll::Ready(0);
            }
            None => {
                self.has_ended = true;
                self.trailers = self.body.take_trailers();
                self.finish();
                return Poll::Ready(0);
            }
        };
        let length = piece.length();
        let end = self.collected.len() as u64 + length;
        match piece.in_memory() {
            Some(bytes) if end <= self.bytes_max as u64 => self.collected.extend_from_slice(bytes),
            _ => {
                self.release();
                self.ahead.push_back(piece);
                if let Some(draft) = self.draft.take() {
                    draft.give_up();
                }
            }
        }
        Poll::Ready(length)
    }

    fn finish(&mut self) {
        let Some(draft) = self.draft.take() else {
            return;
        };
        let whole = self.release();
        let is_whole = self
            .expected
            .is_none_or(|expected| expected == whole.len() as u64);
        match is_whole && self.trailers.is_empty() {
            true => draft.finish(whole),
            false => draft.give_up(),
        }
    }

    /// Ends collecting. What the client has not taken yet comes next.
    fn release(&mut self) -> Bytes {
        let whole = Bytes::from(std::mem::take(&mut self.collected).into_boxed_slice());
        let rest = whole.slice(std::mem::take(&mut self.taken)..);
        if !rest.is_empty() {
            self.ahead.push_back(Piece::Bytes(rest));
        }
        whole
    }

    /// The next bytes that were read and that the client has not taken.
    fn take_ahead(&mut self) -> Option<Piece> {
        let rest = self.collected.get(self.taken..).unwrap_or_default();
        if rest.is_empty() {
            return self.ahead.pop_front();
        }
        let count = rest.len().min(PIECE_BYTES);
        let bytes = rest.get(..count).unwrap_or_default();
        let piece = Piece::Bytes(Bytes::copy_from_slice(bytes));
        self.taken += count;
        Some(piece)
    }

    fn bytes_ahead(&self) -> u64 {
        let collected = self.collected.len() - self.taken;
        self.ahead.iter().map(Piece::length).sum::<u64>() + collected as u64
    }
}

impl<D: Draft> BodySource for Tee<D> {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        loop {
            if let Some(piece) = self.take_ahead() {
                return Poll::Ready(Some(Ok(piece)));
            }
            if let Some(error) = self.error.take() {
                return Poll::Ready(Some(Err(error)));
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            if self.draft.is_none() {
                return self.reader.poll_rest(&mut self.body, context);
            }
            ready!(self.poll_more(context));
        }
    }

    fn remaining(&self) -> Option<u64> {
        let ahead = self.bytes_ahead();
        match self.has_ended {
            true => self.trailers.is_empty().then_some(ahead),
            false => Some(self.body.length()? + self.reader.remaining() + ahead),
        }
    }

    fn take_trailers(&mut self) -> HeaderBlock {
        std::mem::take(&mut self.trailers)
    }

    /// Reads ahead of the client, because others may wait for what is collected.
    fn work(&mut self, request_body: &mut RequestBody, context: &mut Context<'_>) {
        self.body.work(request_body, context);
        while self.draft.is_some() && self.turn.poll(context).is_ready() {
            match self.poll_more(context) {
                Poll::Ready(length) => self.turn.moved(length),
                Poll::Pending => return self.turn.waits(),
            }
        }
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

    fn tell_wait(&self, text: &mut HolderText<'_>) {
        self.body.tell_wait(text);
    }

    fn has_failed(&self) -> bool {
        self.body.has_failed()
    }
}

/// Bytes of a piece that is copied while the body is still collected.
const PIECE_BYTES: usize = 128 * 1024;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::task::Waker;

    use petrel_engine::testing::Site;

    use super::*;

    /// Pieces that are there at once, and an error at the end if there is one.
    struct Pieces(VecDeque<&'static str>, Option<io::Error>);

    impl BodySource for Pieces {
        fn poll_piece(&mut self, _: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
            let piece = |text: &'static str| Piece::Bytes(Bytes::from_static(text.as_bytes()));
            Poll::Ready(match self.0.pop_front() {
                Some(text) => Some(Ok(piece(text))),
                None => self.1.take().map(Err),
            })
        }

        fn remaining(&self) -> Option<u64> {
            None
        }
    }

    /// Notes what became of the collected bytes.
    struct Noted(Rc<RefCell<Option<Result<Bytes, ()>>>>);

    impl Draft for Noted {
        fn finish(self, body: Bytes) {
            *self.0.borrow_mut() = Some(Ok(body));
        }

        fn give_up(self) {
            *self.0.borrow_mut() = Some(Err(()));
        }
    }

    /// What becomes of a body of which the client takes one piece before the rest is read ahead, and what the
    /// client gets.
    fn run(error: Option<io::ErrorKind>, bytes_max: usize) -> (Option<Result<Bytes, ()>>, String) {
        let site = Site::new("server.document-root = \"/nonexistent\"", &[]);
        let answer = site.request("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let body = Pieces(["ab", "cd", "ef"].into(), error.map(io::Error::from));
        let noted = Rc::default();
        let draft = Noted(Rc::clone(&noted));
        let reader = InMemory::new(answer.exchange().file_reader());
        let mut tee = Tee::new(Body::Source(Box::new(body)), reader, draft, bytes_max);
        let mut context = Context::from_waker(Waker::noop());
        let mut text = String::new();
        let mut kept = None;
        loop {
            match tee.poll_piece(&mut context) {
                Poll::Ready(Some(Ok(piece))) => {
                    let bytes = piece.in_memory().expect("it is in memory");
                    text.push_str(std::str::from_utf8(bytes).expect("it is text"));
                }
                Poll::Ready(Some(Err(_))) => text.push('!'),
                Poll::Ready(None) => return (kept, text),
                Poll::Pending => panic!("all of it is there"),
            }
            tee.work(&mut RequestBody::default(), &mut context);
            kept = kept.or(noted.borrow_mut().take());
            if error.is_some() && text.ends_with('!') {
                return (kept, text);
            }
        }
    }

    #[test]
    fn a_body_is_read_ahead_of_the_client_and_comes_in_order() {
        let whole = Bytes::from_static(b"abcdef");
        assert_eq!(run(None, 6), (Some(Ok(whole)), "abcdef".to_owned()));
        assert_eq!(run(None, 5), (Some(Err(())), "abcdef".to_owned()));
        assert_eq!(run(None, 1), (Some(Err(())), "abcdef".to_owned()));
        let broken = Some(io::ErrorKind::ConnectionReset);
        assert_eq!(run(broken, 6), (None, "abcdef!".to_owned()));
    }
}
