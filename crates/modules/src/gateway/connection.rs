//! A connection to a backend: its socket, the conversation on it, and its history.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use petrel_engine::clock::Clock;
use petrel_engine::ledger::Nanos;
use petrel_engine::proto::fastcgi;
use petrel_engine::worker::Worker;

use super::capacity::Permit;
use super::holders::{HeldConnection, HolderSurvey};
use super::kernel_view::KernelView;
use super::limits;
use super::newcomers::{Newcomer, Newcomers};
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
    /// Asks the kernel about connections.
    pub(super) kernel: KernelView,
}

impl Workbench {
    /// The workbench of `worker`.
    pub(super) fn of(worker: &Worker) -> Rc<Workbench> {
        worker.belonging(|| Workbench {
            clock: Rc::clone(worker.clock()),
            ..Workbench::default()
        })
    }
}

/// A connection to a backend. Dropping it closes it and gives its permit back.
pub(super) struct BackendConnection {
    /// The socket.
    pub stream: BackendStream,
    /// Encodes requests and decodes replies.
    pub conversation: Box<dyn Conversation>,
    /// Bytes that were received and are not decoded yet.
    pub input: Vec<u8>,
    workbench: Rc<Workbench>,
    outgoing: Vec<u8>,
    outgoing_sent: usize,
    permit: Option<Permit>,
    /// The new connections of its backend; `None` for a CGI program.
    newcomers: Option<Rc<Newcomers>>,
    /// Set while no process is known to have accepted the connection, although a request was written.
    newcomer: Option<Newcomer>,
    /// A process of the backend has accepted the connection.
    is_accepted: bool,
    /// GET_VALUES was the first record on it.
    begins_asked: bool,
    /// The answer to a GET_VALUES in front of the request is still to come.
    lead_is_due: bool,
    /// The answer to a GET_VALUES behind the request is still to come.
    end_is_due: bool,
    was_idle: bool,
    requests: u32,
    tenure_since_ms: u64,
    idle_since_ms: u64,
}

/// Which questions (GET_VALUES) go with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Questions {
    /// One in front of the request. php-fpm counts the time from its last record, also while the connection is
    /// idle, as the time of the request.
    pub(super) leads: bool,
    /// One behind the request. Its answer says that the process has nothing to do any more.
    pub(super) ends: bool,
}

impl BackendConnection {
    /// A new connection. `of_backend`: the permit that counts it, and the new connections of the same backend.
    pub(super) fn new(
        stream: BackendStream,
        conversation: Box<dyn Conversation>,
        of_backend: Option<(Permit, Rc<Newcomers>)>,
        workbench: &Rc<Workbench>,
        now_ms: u64,
    ) -> BackendConnection {
        let (permit, newcomers) = of_backend.unzip();
        BackendConnection {
            stream,
            conversation,
            input: Vec::new(),
            workbench: Rc::clone(workbench),
            outgoing: Vec::new(),
            outgoing_sent: 0,
            permit,
            newcomers,
            newcomer: None,
            is_accepted: false,
            begins_asked: false,
            lead_is_due: false,
            end_is_due: false,
            was_idle: false,
            requests: 0,
            tenure_since_ms: now_ms,
            idle_since_ms: now_ms,
        }
    }

    /// Prepares for another request.
    pub(super) fn begin(&mut self, questions: Questions) {
        let BackendConnection {
            conversation,
            input,
            outgoing,
            outgoing_sent,
            requests,
            lead_is_due,
            end_is_due,
            // These fields belong to the connection, not to a request.
            stream: _,
            workbench: _,
            permit: _,
            newcomers: _,
            newcomer: _,
            is_accepted: _,
            begins_asked: _,
            was_idle: _,
            tenure_since_ms: _,
            idle_since_ms: _,
        } = self;
        conversation.begin();
        conversation.ask(questions.ends);
        input.clear();
        outgoing.clear();
        *outgoing_sent = 0;
        *requests += 1;
        *end_is_due = questions.ends;
        // An answer that was due before has not come: an application that answers together with its reply.
        *lead_is_due |= questions.leads;
    }

    /// Encodes the question whether a process has the connection, in front of everything else.
    pub(super) fn ask_first(&mut self) {
        self.begins_asked = self.requests == 0;
        self.lead_is_due = true;
        let (_, out) = self.encoder();
        fastcgi::write_get_values(out);
    }

    /// Appends what was read to the input, and removes the answer to a question from its beginning. True if
    /// the answer has come.
    ///
    /// # Errors
    /// Something else has come.
    pub(super) fn take_answer(&mut self, read: &[u8]) -> Result<bool, fastcgi::RecordError> {
        self.input.extend_from_slice(read);
        let Some(length) = fastcgi::values_answer(&self.input)? else {
            return Ok(false);
        };
        self.input.drain(..length);
        Ok(true)
    }

    /// Whether the answer to a question in front of the request is still to come.
    pub(super) fn lead_is_due(&self) -> bool {
        self.lead_is_due
    }

    /// The answer in front of the request has come, or the reply has begun without it.
    pub(super) fn lead_is_over(&mut self) {
        self.lead_is_due = false;
    }

    /// Whether the answer to a question behind the request is still to come.
    pub(super) fn end_is_due(&self) -> bool {
        self.end_is_due
    }

    /// The answer is not waited for any more. It may come in front of the next reply.
    pub(super) fn answer_is_late(&mut self) {
        self.lead_is_due = true;
        self.end_is_due = false;
    }

    /// A process of the backend has said that it has the connection.
    pub(super) fn is_taken(&mut self, now_ms: u64) {
        if !self.is_accepted {
            self.is_accepted(now_ms);
        }
        self.lead_is_due = false;
        self.end_is_due = false;
    }

    /// Whether the connection was used for an earlier request. An error on it may then only mean that the
    /// backend closed it while it was idle.
    pub(super) fn is_kept(&self) -> bool {
        self.requests > 1 || self.was_idle
    }

    /// Whether it served a request before, or was idle, if no request is sent on it now.
    pub(super) fn is_reused(&self) -> bool {
        self.requests > 0 || self.was_idle
    }

    /// Requests so far.
    pub(super) fn requests(&self) -> u32 {
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
    pub(super) fn unsent(&self) -> usize {
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

    /// Called when the first bytes of a request are sent. `holder` shows the request as one that a process has;
    /// it is hidden until one has.
    /// `sent`: how many bytes of it.
    pub(super) fn request_is_written(
        &mut self,
        now: Nanos,
        sent: u64,
        holder: Option<&HeldConnection>,
    ) {
        // A TLS handshake needs a process.
        if self.is_accepted || self.requests > 1 || self.stream.is_tls() {
            return;
        }
        if let Some(newcomers) = &self.newcomers {
            self.newcomer = newcomers.add(&self.stream, now, sent, holder);
        }
    }

    /// Called when more of a request is sent. `sent`: how many bytes of it in all.
    #[inline]
    pub(super) fn more_is_written(&self, sent: u64) {
        if let Some(newcomer) = &self.newcomer {
            newcomer.has_sent(sent);
        }
    }

    /// Called when the first byte of a reply arrives. If the kernel has said that no process had the connection,
    /// returns until when, and which requests the processes had meanwhile.
    pub(super) fn reply_has_begun(&mut self, now_ms: u64) -> Option<(Nanos, HolderSurvey)> {
        if self.is_accepted {
            return None;
        }
        let taken = self.newcomer.take().and_then(Newcomer::taken);
        self.is_accepted(now_ms);
        taken
    }

    fn is_accepted(&mut self, now_ms: u64) {
        self.is_accepted = true;
        self.tenure_since_ms = now_ms;
        if let Some(newcomers) = &self.newcomers {
            newcomers.capacity().is_taken(now_ms);
        }
    }

    /// No client waits for the reply any more.
    pub(super) fn is_left(&mut self) {
        if let Some(newcomer) = &self.newcomer {
            newcomer.is_left();
        }
    }

    /// Whether GET_VALUES was the first record on it and was answered, and no request was sent yet.
    pub(super) fn has_answered_first(&self) -> bool {
        self.begins_asked && self.is_accepted && self.requests == 0
    }

    /// Whether GET_VALUES was the first record on it, and this is its first request.
    pub(super) fn proves_keeping(&self) -> bool {
        self.begins_asked && self.requests == 1
    }

    /// The connection is idle from now on.
    pub(super) fn rest(&mut self, now_ms: u64) {
        self.idle_since_ms = now_ms;
        self.was_idle = true;
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

    /// Closes the connection. Its permit is for another connection in its place.
    pub(super) fn into_permit(mut self) -> Option<Permit> {
        self.permit.take()
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
        if self.is_accepted
            && let Some(newcomers) = &self.newcomers
        {
            newcomers.capacity().is_given_up();
        }
    }
}
