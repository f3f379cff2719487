//! The request body, as far as it was received.
//!
//! The connection writes into it, and hooks read from it. A hook that needs the whole body returns
//! [`crate::module::Outcome::NeedBody`] and is called again when it is complete. A hook that passes the body
//! on while it arrives calls [`RequestBody::stream`]. A body that no hook wants is received and dropped.

use std::io;
use std::path::PathBuf;
use std::task::{Context, Poll, ready};

use petrel_proto::header_block::HeaderBlock;

use super::Spool;
use crate::limits;

/// The request body of one exchange.
#[derive(Default)]
pub struct RequestBody {
    spool: Spool,
    use_: Use,
    complete: bool,
    failure: Option<io::Error>,
    trailers: HeaderBlock,
    waits_for_disk: bool,
}

/// What happens to the received bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Use {
    /// They are dropped.
    #[default]
    None,
    /// They are stored until the body is complete.
    Hold,
    /// A hook takes them while they arrive.
    Stream(ReadAhead),
    /// A hook took them until it needed no more. The rest is received and dropped.
    GivenUp,
}

/// How many bytes of a streamed body may be stored before the hook takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAhead {
    /// All of them. What does not fit into memory goes to a temporary file (`server.stream-request-body =
    /// 1`).
    Unbounded,
    /// At most [`limits::STREAM_BUFFER_BYTES_MAX`] (`server.stream-request-body = 2`).
    Bounded,
}

impl RequestBody {
    /// Forgets everything, for the next request.
    pub fn clear(&mut self) {
        let RequestBody {
            spool,
            use_,
            complete,
            failure,
            trailers,
            waits_for_disk,
        } = self;
        spool.clear();
        *use_ = Use::None;
        *complete = false;
        *failure = None;
        *trailers = HeaderBlock::new();
        *waits_for_disk = false;
    }

    /// Asks the connection to store the whole body. A [`Pending`](crate::module::Pending) that calls this and
    /// waits is polled again when the body is complete, and not before. A hook returns
    /// [`NeedBody`](crate::module::Outcome::NeedBody) instead. Has no effect on a body that is streamed or
    /// was given up.
    pub fn want(&mut self) {
        if self.use_ == Use::None {
            self.use_ = Use::Hold;
        }
    }

    /// Asks the connection for the body while it arrives; the exchange continues.
    pub fn stream(&mut self, ahead: ReadAhead) {
        self.use_ = Use::Stream(ahead);
    }

    /// Replaces a body that is complete, or a missing one, with `bytes`: backends and scripts get them
    /// instead.
    pub fn replace(&mut self, bytes: &[u8], directories: &[PathBuf], client: u64) {
        self.spool.clear();
        self.use_ = Use::Hold;
        self.complete = true;
        self.failure = None;
        self.trailers = HeaderBlock::new();
        // Stores all bytes now, even if they cannot be written to a file, because there is no later
        // opportunity.
        self.spool.push(bytes, directories, client);
    }

    /// Drops the stored bytes, and all that the client still sends: from now on the body is empty.
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

    /// Whether a hook asked for the body.
    pub fn is_wanted(&self) -> bool {
        !matches!(self.use_, Use::None | Use::GivenUp)
    }

    /// Whether a hook waits for the end of a body that is being stored.
    pub(crate) fn is_held_incomplete(&self) -> bool {
        self.use_ == Use::Hold && !self.complete
    }

    /// Whether the body is received while the exchange continues.
    pub fn is_streamed(&self) -> bool {
        matches!(self.use_, Use::Stream(_) | Use::GivenUp)
    }

    /// Whether more bytes may be received now.
    pub fn has_room(&self) -> bool {
        match self.use_ {
            Use::Stream(ReadAhead::Bounded) => self.spool.held() < limits::STREAM_BUFFER_BYTES_MAX,
            Use::None | Use::Hold | Use::GivenUp | Use::Stream(ReadAhead::Unbounded) => {
                self.failure.is_none() && self.spool.has_room()
            }
        }
    }

    /// Whether receiving it waits for the disk, and not for the client.
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.waits_for_disk
    }

    /// See [`RequestBody::waits_for_disk`].
    pub(crate) fn set_waits_for_disk(&mut self, waits: bool) {
        self.waits_for_disk = waits;
    }

    /// Waits until the disk has taken enough that more can be received. Also ready if the disk has failed;
    /// then [`RequestBody::failure`] has the error. Does not wait for room in a bounded body: the hook that
    /// takes its bytes makes that room itself.
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

    /// For a body that is complete: waits until the disk has taken what should not stay in memory. Also ready
    /// if the disk has failed.
    pub fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.failure.is_none()
            && let Err(error) = ready!(self.spool.poll_written(context))
        {
            self.failure = Some(error);
        }
        Poll::Ready(())
    }

    /// Stores bytes if a hook wants them and the disk has not failed. The caller waits for
    /// [`RequestBody::poll_room`] before it receives more.
    pub fn receive(&mut self, bytes: &[u8], directories: &[PathBuf], client: u64) {
        if self.is_wanted() && self.failure.is_none() {
            self.spool.push(bytes, directories, client);
        }
    }

    /// The error because of which the body could not be stored.
    pub fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    /// Marks the body as complete.
    pub fn complete(&mut self) {
        self.complete = true;
    }

    /// Marks the body as complete; `trailers` came after it. They are kept only for a streamed body: a stored
    /// one goes to backends with a Content-Length, and that leaves no place for trailers.
    pub fn complete_with(&mut self, trailers: HeaderBlock) {
        self.complete = true;
        if matches!(self.use_, Use::Stream(_)) {
            self.trailers = trailers;
        }
    }

    /// The trailers after the body; an empty block if there are none.
    pub fn trailers(&self) -> &HeaderBlock {
        &self.trailers
    }

    /// Whether all wanted bytes were received.
    pub fn is_complete(&self) -> bool {
        self.complete || self.use_ == Use::GivenUp
    }

    /// How many wanted bytes were received.
    pub fn received(&self) -> u64 {
        self.spool.pushed()
    }

    /// The stored bytes, if all of them are in memory.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.spool.in_memory(0)
    }

    /// The bytes that were received and not released.
    pub fn spool(&self) -> &Spool {
        &self.spool
    }

    /// The spool, for the code that reads it ([`Spool::poll_read`], [`Spool::poll_recall`]) and releases
    /// bytes that were passed on ([`Spool::release`]).
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
        // The body of the next request does not inherit the failure.
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
