//! A connection to a backend: its socket, the conversation on it, and its history.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use petrel_engine::clock::Clock;
use petrel_engine::worker::Worker;

use super::backend::SharedBackend;
use super::limit::NewcomerId;
use super::limits;
use super::protocol::{Conversation, Repeated};
use super::stream::BackendStream;
use crate::kept_connections::Keepable;

/// What one worker's connections to backends share.
#[derive(Default)]
pub struct Workbench {
    /// The buffer that requests are encoded into. One request after the other uses it, so it stays in the
    /// processor's cache. A connection keeps it only while its socket does not take all bytes.
    outgoing: Cell<Vec<u8>>,
    /// Encoded parts of requests that occur again.
    pub(crate) repeated: Rc<Repeated>,
    /// The worker's clock.
    pub(crate) clock: Rc<Clock>,
}

impl Workbench {
    /// The workbench of `worker`.
    pub fn of(worker: &Worker) -> Rc<Workbench> {
        worker.belonging(|| Workbench {
            clock: Rc::clone(worker.clock()),
            ..Workbench::default()
        })
    }
}

/// A connection to a backend. Dropping it closes it and gives its permit back.
pub struct BackendConnection {
    /// The socket.
    pub stream: BackendStream,
    /// Encodes requests and decodes replies.
    pub conversation: Box<dyn Conversation>,
    /// Bytes that were received and are not decoded yet.
    pub input: Vec<u8>,
    workbench: Rc<Workbench>,
    outgoing: Vec<u8>,
    outgoing_sent: usize,
    permit: Option<Arc<SharedBackend>>,
    standing: Standing,
    requests: u32,
    tenure_since_ms: u64,
    idle_since_ms: u64,
}

/// Whether a process of the backend is known to serve this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// No request was written yet.
    New,
    /// A request was written and no byte has come back.
    Newcomer(NewcomerId),
    /// It has answered, so a process serves it.
    Proven,
}

impl BackendConnection {
    /// A new connection. `permit` is the backend that counts it towards its limit.
    pub fn new(
        stream: BackendStream,
        conversation: Box<dyn Conversation>,
        permit: Option<Arc<SharedBackend>>,
        workbench: &Rc<Workbench>,
        now_ms: u64,
    ) -> BackendConnection {
        BackendConnection {
            stream,
            conversation,
            input: Vec::new(),
            workbench: Rc::clone(workbench),
            outgoing: Vec::new(),
            outgoing_sent: 0,
            permit,
            standing: Standing::New,
            requests: 0,
            tenure_since_ms: now_ms,
            idle_since_ms: now_ms,
        }
    }

    /// Prepares for another request.
    pub fn begin(&mut self) {
        let BackendConnection {
            conversation,
            input,
            outgoing,
            outgoing_sent,
            requests,
            // These fields belong to the connection, not to a request.
            stream: _,
            workbench: _,
            permit: _,
            standing: _,
            tenure_since_ms: _,
            idle_since_ms: _,
        } = self;
        conversation.begin();
        input.clear();
        outgoing.clear();
        *outgoing_sent = 0;
        *requests += 1;
    }

    /// Whether the connection was used for an earlier request. An error on it may then only mean that the
    /// backend closed it while it was idle.
    pub fn is_kept(&self) -> bool {
        self.requests > 1
    }

    /// Requests so far.
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// The conversation, and the buffer that it appends encoded bytes to.
    pub(crate) fn encoder(&mut self) -> (&mut dyn Conversation, &mut Vec<u8>) {
        if self.outgoing.capacity() == 0 {
            self.outgoing = self.workbench.outgoing.take();
        }
        if self.outgoing_sent == self.outgoing.len() {
            self.outgoing.clear();
            self.outgoing_sent = 0;
        }
        (&mut *self.conversation, &mut self.outgoing)
    }

    /// Bytes that are encoded or encrypted and not sent.
    pub fn unsent(&self) -> usize {
        self.unwritten() + self.stream.unsent()
    }

    /// Bytes that the stream has not taken.
    fn unwritten(&self) -> usize {
        self.outgoing.len() - self.outgoing_sent
    }

    /// Sends what is encoded. Ready when all of it is sent. The number of bytes sent is added to `sent`.
    ///
    /// # Errors
    /// As send(2).
    #[inline]
    pub(crate) fn poll_flush(
        &mut self,
        context: &mut Context<'_>,
        sent: &mut u64,
    ) -> Poll<io::Result<()>> {
        while self.unwritten() > 0 {
            let bytes = self.outgoing.get(self.outgoing_sent..).unwrap_or_default();
            match std::task::ready!(self.stream.poll_write(context, bytes)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    self.outgoing_sent += count;
                    *sent += count as u64;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        std::task::ready!(self.stream.poll_flush(context))?;
        if self.outgoing.capacity() > 0 {
            self.outgoing_sent = 0;
            let mut outgoing = std::mem::take(&mut self.outgoing);
            outgoing.clear();
            self.workbench.outgoing.set(outgoing);
        }
        Poll::Ready(Ok(()))
    }

    /// Drops what is encoded and not sent.
    pub(crate) fn drop_unsent(&mut self) {
        self.outgoing.clear();
        self.outgoing_sent = 0;
    }

    /// Called when the first bytes of a request are sent.
    pub(crate) fn request_is_written(&mut self, now_ms: u64) {
        if self.standing == Standing::New
            && let Some(shared) = &self.permit
        {
            self.standing = shared.newcomer(now_ms);
        }
    }

    /// Called when the first byte of a reply arrives.
    pub(crate) fn reply_has_begun(&mut self, now_ms: u64) {
        if let (Standing::Newcomer(id), Some(shared)) = (self.standing, &self.permit) {
            let do_requests_wait = shared.waiting.load(Ordering::Relaxed) > 0;
            shared.limit.answered(id, now_ms, do_requests_wait);
            self.standing = Standing::Proven;
            self.tenure_since_ms = now_ms;
        }
    }

    /// The connection is idle from now on.
    pub fn rest(&mut self, now_ms: u64) {
        self.idle_since_ms = now_ms;
        for buffer in [&mut self.input, &mut self.outgoing] {
            buffer.clear();
            buffer.shrink_to(limits::IDLE_BUFFER_BYTES_MAX);
        }
        self.outgoing_sent = 0;
    }

    /// How long it has been idle.
    pub(crate) fn idle_for_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.idle_since_ms)
    }

    /// Whether it has been kept for so long that other front ends of the backend should get a turn.
    pub(crate) fn is_tenure_over(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.tenure_since_ms) >= limits::TENURE_MS
    }

    /// Closes the connection. The caller keeps its permit, for another connection in its place.
    pub(crate) fn close_for_another(mut self) {
        let Some(shared) = self.permit.take() else {
            return;
        };
        if let Standing::Newcomer(id) = self.standing {
            shared.limit.gone(id);
        }
        shared.limit.replaced(self.standing == Standing::Proven);
    }
}

impl Keepable for Box<BackendConnection> {
    #[inline]
    fn is_stale(&mut self) -> bool {
        self.stream.is_stale()
    }

    fn idle_since_ms(&self) -> u64 {
        self.idle_since_ms
    }
}

impl Drop for BackendConnection {
    fn drop(&mut self) {
        let Some(shared) = &self.permit else { return };
        if let Standing::Newcomer(id) = self.standing {
            shared.limit.gone(id);
        }
        shared.give_permit(self.standing == Standing::Proven);
    }
}
