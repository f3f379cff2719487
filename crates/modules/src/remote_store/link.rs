//! A connection to a store, and one exchange of commands and replies on it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use super::error::{Kind, OperationStage};
use super::limits;
use crate::gateway::stream::BackendStream;
use crate::kept_connections::Keepable;

/// A connection. It is idle between two exchanges.
pub(crate) struct Link {
    pub(crate) stream: BackendStream,
    pub(super) idle_since_ms: u64,
}

impl Keepable for Link {
    fn is_stale(&mut self) -> bool {
        self.stream.is_stale()
    }

    fn idle_since_ms(&self) -> u64 {
        self.idle_since_ms
    }
}

/// Decodes the replies to the commands of one exchange.
pub(super) trait Replies {
    /// Decodes `input` up to the end of the last reply. Returns how many bytes that were.
    ///
    /// # Errors
    /// The bytes are no reply, or no reply to these commands: a sentence.
    fn feed(&mut self, input: &[u8]) -> Result<usize, &'static str>;

    /// Whether the last reply is complete.
    fn is_complete(&self) -> bool;

    /// Whether the connection can be used for another exchange after these replies.
    fn leave_it_sound(&self) -> bool {
        true
    }
}

/// The buffer that is read into; all clients of a worker share it.
pub(super) type ReceiveBuffer = RefCell<Box<[u8]>>;

/// What can be done with the connection when all replies are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Afterwards {
    /// It can be used for another exchange.
    Reusable,
    /// It has to be closed: not everything was sent, or its state was changed.
    Spent,
}

/// An exchange that has failed. The connection cannot be used any more.
#[derive(Debug)]
pub(super) struct ExchangeFailure {
    pub(crate) kind: Kind,
    pub(crate) stage: OperationStage,
    pub(crate) text: String,
    /// How many bytes of the commands the socket has taken.
    pub(crate) written: usize,
    /// Whether any byte of a reply has arrived.
    pub(crate) has_reply_begun: bool,
}

impl Link {
    pub(super) fn new(stream: BackendStream) -> Link {
        Link {
            stream,
            idle_since_ms: 0,
        }
    }

    /// Sends `commands` and reads `replies` at the same time, because a server may stop reading until its
    /// replies are read. `stage` is updated on the way.
    pub(super) async fn exchange(
        &mut self,
        commands: &[u8],
        replies: &mut dyn Replies,
        buffer: &ReceiveBuffer,
        stage: &Cell<OperationStage>,
    ) -> Result<Afterwards, ExchangeFailure> {
        stage.set(OperationStage::Write);
        let mut progress = ExchangeProgress::default();
        poll_fn(|context| self.poll(context, commands, replies, buffer, &mut progress, stage)).await
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
        commands: &[u8],
        replies: &mut dyn Replies,
        buffer: &ReceiveBuffer,
        progress: &mut ExchangeProgress,
        stage: &Cell<OperationStage>,
    ) -> Poll<Result<Afterwards, ExchangeFailure>> {
        self.poll_write(context, commands, progress);
        if progress.written == commands.len() {
            stage.set(OperationStage::Read);
        }
        for _ in 0..limits::READS_AT_ONCE_MAX {
            let mut buffer = buffer.borrow_mut();
            let Poll::Ready(read) = self.stream.poll_read(context, &mut buffer) else {
                // After a failed write, the server will not send anything more, so waiting would be useless.
                return match progress.write_error.take() {
                    Some(error) => Poll::Ready(Err(lost(progress, OperationStage::Write, &error))),
                    None => Poll::Pending,
                };
            };
            let count = match read {
                Ok(0) => {
                    let error = progress.write_error.take();
                    let error = error.unwrap_or_else(|| closed(progress));
                    return Poll::Ready(Err(lost(progress, stage.get(), &error)));
                }
                Ok(count) => count,
                Err(error) => {
                    return Poll::Ready(Err(lost(progress, stage.get(), &error)));
                }
            };
            progress.has_reply_begun = true;
            let input = buffer.get(..count).unwrap_or_default();
            match replies.feed(input) {
                Err(text) => return Poll::Ready(Err(not_understood(progress, text))),
                Ok(used) if replies.is_complete() => {
                    return Poll::Ready(match used == input.len() {
                        true => Ok(progress.afterwards(commands, replies)),
                        false => Err(not_understood(progress, "it sent more than was asked for")),
                    });
                }
                Ok(_) => {}
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Sends what the socket takes. An error is kept and not returned, because the server may have sent the
    /// reason before it closed the connection.
    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        commands: &[u8],
        progress: &mut ExchangeProgress,
    ) {
        while progress.write_error.is_none() {
            let rest = commands.get(progress.written..).unwrap_or_default();
            if rest.is_empty() {
                return;
            }
            match self.stream.poll_write(context, rest) {
                Poll::Pending => return,
                Poll::Ready(Ok(0)) => {
                    progress.write_error = Some(io::ErrorKind::WriteZero.into());
                }
                Poll::Ready(Ok(count)) => progress.written += count,
                Poll::Ready(Err(error)) => progress.write_error = Some(error),
            }
        }
    }
}

fn lost(progress: &ExchangeProgress, stage: OperationStage, error: &io::Error) -> ExchangeFailure {
    ExchangeFailure {
        kind: Kind::Lost,
        stage,
        text: error.to_string(),
        written: progress.written,
        has_reply_begun: progress.has_reply_begun,
    }
}

#[derive(Default)]
struct ExchangeProgress {
    written: usize,
    write_error: Option<io::Error>,
    has_reply_begun: bool,
}

impl ExchangeProgress {
    fn afterwards(&self, commands: &[u8], replies: &dyn Replies) -> Afterwards {
        let is_sent = self.written == commands.len() && self.write_error.is_none();
        match is_sent && replies.leave_it_sound() {
            true => Afterwards::Reusable,
            false => Afterwards::Spent,
        }
    }
}

fn closed(progress: &ExchangeProgress) -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        match progress.has_reply_begun {
            true => "it has closed the connection in the middle of its reply",
            false => "it has closed the connection without a reply",
        },
    )
}

fn not_understood(progress: &ExchangeProgress, text: &str) -> ExchangeFailure {
    ExchangeFailure {
        kind: Kind::Protocol,
        stage: OperationStage::Read,
        text: text.to_owned(),
        written: progress.written,
        has_reply_begun: true,
    }
}
