//! The request body, as far as it has been received.
//!
//! The connection fills it; handlers read it. A handler that needs the whole body answers
//! [`crate::module::Outcome::NeedBody`] and is called again when it is complete; one that passes it on
//! while it comes asks for that with [`RequestBody::stream`]. What no handler asks for is read and
//! thrown away.

use std::io;
use std::path::PathBuf;
use std::task::{Context, Poll, ready};

use petrel_proto::header_block::HeaderBlock;

use super::Spool;
use crate::limits;

/// The received request body of one exchange.
#[derive(Default)]
pub struct RequestBody {
    spool: Spool,
    use_: Use,
    complete: bool,
    failure: Option<io::Error>,
    trailers: HeaderBlock,
}

/// What becomes of the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Use {
    /// They are thrown away.
    #[default]
    None,
    /// They are kept until the last one is there.
    Hold,
    /// They are taken while they come.
    Stream(ReadAhead),
    /// They were, until nobody needed them any more: they are received and thrown away.
    GivenUp,
}

/// How far the client may be ahead of who takes a streamed body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAhead {
    /// As far as it likes; what memory does not hold goes to a temporary file
    /// (`server.stream-request-body = 1`).
    Unbounded,
    /// By [`limits::STREAM_BUFFER_BYTES_MAX`] (`server.stream-request-body = 2`).
    Bounded,
}

impl RequestBody {
    /// Forgets everything: a new request begins.
    pub fn clear(&mut self) {
        let RequestBody {
            spool,
            use_,
            complete,
            failure,
            trailers,
        } = self;
        spool.clear();
        *use_ = Use::None;
        *complete = false;
        *failure = None;
        *trailers = HeaderBlock::new();
    }

    /// Asks the connection to keep the whole body. A [`Pending`](crate::module::Pending) that has asked
    /// and waits is polled again when it is complete, and not before; a hook says
    /// [`NeedBody`](crate::module::Outcome::NeedBody) instead. Nothing happens to a body that is streamed
    /// or was given up.
    pub fn want(&mut self) {
        if self.use_ == Use::None {
            self.use_ = Use::Hold;
        }
    }

    /// Asks the connection for the body while it comes, with the exchange going on.
    pub fn stream(&mut self, ahead: ReadAhead) {
        self.use_ = Use::Stream(ahead);
    }

    /// Puts `bytes` in the place of a body that is complete, or of none: backends and scripts get them instead.
    pub fn replace(&mut self, bytes: &[u8], directories: &[PathBuf], client: u64) {
        self.spool.clear();
        self.use_ = Use::Hold;
        self.complete = true;
        self.failure = None;
        self.trailers = HeaderBlock::new();
        // There is no other time when all of it has to be taken at once, so it is, also if it cannot be written.
        self.spool.push(bytes, directories, client);
    }

    /// Nobody wants what is held, or what is still to come: from now on it is a body without a
    /// byte, whatever the client sends.
    pub fn give_up(&mut self) {
        self.use_ = Use::GivenUp;
        self.spool.clear();
        self.failure = None;
        self.trailers = HeaderBlock::new();
    }

    /// Whether [`RequestBody::give_up`] was called for this body.
    pub(crate) fn is_given_up(&self) -> bool {
        self.use_ == Use::GivenUp
    }

    /// Whether a handler asked for the bytes.
    pub fn is_wanted(&self) -> bool {
        !matches!(self.use_, Use::None | Use::GivenUp)
    }

    /// Whether somebody waits for the last byte of a body that is kept.
    pub(crate) fn is_held_incomplete(&self) -> bool {
        self.use_ == Use::Hold && !self.complete
    }

    /// Whether the bytes are received while the exchange goes on.
    pub fn is_streamed(&self) -> bool {
        matches!(self.use_, Use::Stream(_) | Use::GivenUp)
    }

    /// Whether more may be received now.
    pub fn has_room(&self) -> bool {
        match self.use_ {
            Use::Stream(ReadAhead::Bounded) => self.spool.held() < limits::STREAM_BUFFER_BYTES_MAX,
            Use::None | Use::Hold | Use::GivenUp | Use::Stream(ReadAhead::Unbounded) => {
                self.failure.is_none() && self.spool.has_room()
            }
        }
    }

    /// Waits until the disk has taken enough for more to be received. Ready also if it has failed, which
    /// [`RequestBody::failure`] tells. Who takes a body that is bounded makes room for it itself, and nobody is woken for that.
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.failure.is_none()
            && let Err(error) = ready!(self.spool.poll_room(context))
        {
            self.failure = Some(error);
        }
        match self.has_room() || self.failure.is_some() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Waits until a body that is complete needs no more memory than it should. Ready also if the disk has
    /// failed.
    pub fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.failure.is_none()
            && let Err(error) = ready!(self.spool.poll_written(context))
        {
            self.failure = Some(error);
        }
        Poll::Ready(())
    }

    /// Takes bytes in, if they are wanted and the disk has not failed. Whoever calls this asks
    /// [`RequestBody::poll_room`] before it receives more.
    pub fn receive(&mut self, bytes: &[u8], directories: &[PathBuf], client: u64) {
        if self.is_wanted() && self.failure.is_none() {
            self.spool.push(bytes, directories, client);
        }
    }

    /// Why the body could not be kept.
    pub fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    /// The last byte has been received.
    pub fn complete(&mut self) {
        self.complete = true;
    }

    /// The same with `trailers` behind the last byte. They are kept for a body that is passed on while it comes: a whole
    /// one goes to backends with its length, which leaves no place for them.
    pub fn complete_with(&mut self, trailers: HeaderBlock) {
        self.complete = true;
        if matches!(self.use_, Use::Stream(_)) {
            self.trailers = trailers;
        }
    }

    /// What came behind the last byte; none if the block is empty.
    pub fn trailers(&self) -> &HeaderBlock {
        &self.trailers
    }

    /// Whether everything that is wanted has been received.
    pub fn is_complete(&self) -> bool {
        self.complete || self.use_ == Use::GivenUp
    }

    /// Bytes that were received and wanted.
    pub fn received(&self) -> u64 {
        self.spool.pushed()
    }

    /// The bytes held, if they are all in memory.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.spool.in_memory(0)
    }

    /// What has been received and not been released.
    pub fn spool(&self) -> &Spool {
        &self.spool
    }

    /// The same, for who reads it ([`Spool::poll_read`], [`Spool::poll_recall`]) and gives up what has been passed on for
    /// good ([`Spool::release`]).
    pub fn spool_mut(&mut self) -> &mut Spool {
        &mut self.spool
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwanted_body_is_not_kept() {
        let mut body = RequestBody::default();
        body.receive(b"abc", &[], 0);
        assert_eq!(body.received(), 0);
        body.want();
        body.receive(b"def", &[], 0);
        assert_eq!(body.bytes(), Some(&b"def"[..]));
        body.clear();
        assert!(!body.is_wanted() && body.spool().is_empty());
    }

    #[test]
    fn a_bounded_stream_has_room_again_when_bytes_are_passed_on() {
        let mut body = RequestBody::default();
        body.stream(ReadAhead::Bounded);
        assert!(body.has_room());
        let length = usize::try_from(limits::STREAM_BUFFER_BYTES_MAX).expect("small");
        body.receive(&vec![1; length], &[std::env::temp_dir()], 0);
        assert!(!body.has_room());
        body.spool_mut().release(1);
        assert!(body.has_room());
    }

    #[test]
    fn what_is_given_up_is_empty_and_takes_no_room() {
        let mut body = RequestBody::default();
        body.stream(ReadAhead::Bounded);
        body.receive(b"abc", &[], 0);
        body.give_up();
        body.receive(&vec![1; 10_000_000], &["/nonexistent".into()], 0);
        assert_eq!((body.received(), body.spool().held()), (0, 0));
        assert!(body.is_complete() && body.has_room() && body.failure().is_none());
        body.clear();
        assert!(!body.is_complete());
    }

    #[test]
    fn trailers_are_kept_for_those_who_pass_the_body_on() {
        let trailers = petrel_proto::trailers::of_reply(b"X-Sum: 1\r\n");
        let mut body = RequestBody::default();
        body.stream(ReadAhead::Unbounded);
        body.complete_with(trailers.clone());
        assert_eq!(body.trailers(), &trailers);
        body.give_up();
        assert!(body.is_complete() && body.trailers().is_empty());
        body.clear();
        body.want();
        body.complete_with(trailers);
        assert!(body.is_complete() && body.trailers().is_empty());
    }

    #[test]
    fn a_body_can_be_replaced_when_it_is_complete() {
        let mut body = RequestBody::default();
        body.want();
        body.receive(b"abc", &[], 0);
        body.complete();
        body.replace(b"other", &[], 0);
        assert_eq!((body.bytes(), body.received()), (Some(&b"other"[..]), 5));
        assert!(body.is_complete() && body.is_wanted());
    }

    #[tokio::test(flavor = "local")]
    async fn a_body_that_cannot_be_kept_says_why() {
        let mut body = RequestBody::default();
        body.want();
        body.receive(&vec![0; 10_000_000], &["/nonexistent".into()], 0);
        assert!(!body.has_room() && body.failure().is_none());
        std::future::poll_fn(|context| body.poll_room(context)).await;
        assert!(body.failure().is_some() && !body.has_room());
        let received = body.received();
        body.receive(b"more", &["/nonexistent".into()], 0);
        assert_eq!(body.received(), received);
        // The next request is another body.
        body.clear();
        body.want();
        assert!(body.failure().is_none() && body.has_room());
    }

    #[tokio::test(flavor = "local")]
    async fn what_is_in_a_file_can_be_had_in_memory() {
        let mut body = RequestBody::default();
        body.want();
        let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        for part in data.chunks(100_003) {
            body.receive(part, &[std::env::temp_dir()], 0);
            std::future::poll_fn(|context| body.poll_room(context)).await;
        }
        assert!(body.failure().is_none(), "{:?}", body.failure());
        std::future::poll_fn(|context| body.poll_written(context)).await;
        body.complete();
        assert_eq!(body.bytes(), None);
        let spool = body.spool_mut();
        let recalled = std::future::poll_fn(|context| spool.poll_recall(context)).await;
        recalled.expect("it is there");
        assert_eq!(body.bytes(), Some(&*data));
    }
}
