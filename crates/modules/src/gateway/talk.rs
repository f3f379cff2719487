//! One request on one connection to a backend: sends what is encoded, decodes what arrives.
//!
//! A [`Talk`] begins when there is a connection, and ends when the reply is complete or the connection fails.
//! A [`Relay`](super::relay::Relay) polls it in the task of the client's connection, so that no second task
//! has to be woken: first the sending side, then the receiving side. [`Talk::detach`] reads the rest of a
//! reply that no client waits for any more.

use std::any::Any;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::body::RequestBody;
use petrel_engine::ledger::Nanos;
use petrel_engine::proto::fastcgi;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::reply_head::ReplyHead;
use petrel_engine::turn::Turn;
use petrel_engine::worker::Worker;

use super::backend::Backend;
use super::connection::{BackendConnection, Questions};
use super::failure::Failure;
use super::holders::{HeldConnection, HolderSurvey};
use super::limits;
use super::offload;
use super::options::{BackendHost, Gateway, Protocol};
use super::protocol::{BodyLength, Conversation, Outgoing, ReplyEvent, RequestError, proxy_header};
use crate::limit::TakenShares;

/// One request on one connection to a backend.
pub(super) struct Talk {
    /// The backend or the CGI program at the other end.
    pub peer: Peer,
    connection: Option<Box<BackendConnection>>,
    in_flight: Option<InFlight>,
    /// Dropped together with the conversation: the guard of a CGI program's process, or, after
    /// [`Talk::detach`], the share that the client's keys have of the backend.
    companion: Option<Box<dyn Any>>,
    body_offset: u64,
    body_is_sent: bool,
    /// The backend has asked for more of the request body since something was last sent.
    wants_body: bool,
    written: u64,
    /// Why no more of the request can be sent.
    send_error: Option<io::Error>,
    sending: Turn,
    receiving: Turn,
    reply_has_begun: bool,
    /// When a process took the request, and which requests the processes had until then, if that was seen.
    taken: Option<(Nanos, Option<HolderSurvey>)>,
    /// Bytes were read since the kernel was last told to acknowledge them at once.
    is_unacknowledged: bool,
    has_ended: bool,
    /// Trailer fields of a complete reply.
    pub trailers: HeaderBlock,
    /// The consumer paused reading (it returned [`Flow::Stop`]). All bytes of the reply may have been read
    /// already, so decoding goes on when it resumes, even if the socket has nothing.
    is_stopped: bool,
    log_bytes_dropped: u64,
    is_tunnel: bool,
    /// The backend was told, by shutting the socket down for writing, that the client sends no more.
    is_end_told: bool,
    began_ns: u64,
    /// When the backend last sent something, on the clock of the worker.
    now_ns: u64,
    /// When bytes were last sent or received; timeouts count from here.
    progress_s: u32,
}

/// Counts one request in its backend's load, until it is dropped.
pub(super) struct InFlight {
    backend: Rc<Backend>,
    /// What the request takes of the shares of its keys (`limit`).
    shares: Option<TakenShares>,
    /// Names the request as one that has a connection.
    holder: Option<HeldConnection>,
}

/// The backend or the CGI program that a request is sent to.
#[derive(Clone)]
pub(super) struct Peer {
    /// The options of that backend or program.
    pub host: Rc<BackendHost>,
    /// The backend; `None` for a CGI program.
    pub backend: Option<Rc<Backend>>,
}

/// One piece of a reply.
pub(super) enum Event<'a> {
    /// A complete head: of an interim response, or of the reply.
    Head(ArrivedHead<'a>),
    /// A piece of the body.
    Body(&'a [u8]),
    /// Text that the application writes to the error log (FastCGI's STDERR).
    Log(&'a [u8]),
}

/// A complete head.
pub(super) enum ArrivedHead<'a> {
    /// The head of an interim response (1xx).
    Interim(&'a ReplyHead),
    /// The head of the reply; the conversation holds it.
    Final(&'a dyn Conversation),
}

/// Whether the consumer takes another event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// It takes the next event.
    Go,
    /// It pauses. Bytes that are not decoded yet stay in the connection's input.
    Stop,
}

/// The consumer of a reply: called with each event.
pub(crate) type TakeEvent<'a> = dyn FnMut(&Peer, Event<'_>) -> Flow + 'a;

/// Why [`Talk::poll_receive`] is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// The consumer paused.
    Stopped,
    /// The reply is complete.
    End,
}

impl Peer {
    /// The name for logs: a backend's address, or the label of a CGI program, which has no address.
    pub(super) fn name(&self) -> &str {
        match &self.backend {
            Some(backend) => &backend.shared.name,
            None => &self.host.label,
        }
    }
}

impl InFlight {
    /// Counts one request for `backend`.
    pub(super) fn new(backend: &Rc<Backend>, shares: Option<TakenShares>) -> InFlight {
        let order = std::sync::atomic::Ordering::Relaxed;
        backend.shared.load.fetch_add(1, order);
        InFlight {
            backend: Rc::clone(backend),
            shares,
            holder: None,
        }
    }

    /// Whether the request takes a share of its backend.
    pub(super) fn has_shares(&self) -> bool {
        self.shares.is_some()
    }

    /// Counts the request for another backend, before it has a connection.
    pub(super) fn move_to(&mut self, other: &Rc<Backend>) {
        let order = std::sync::atomic::Ordering::Relaxed;
        self.backend.shared.load.fetch_sub(1, order);
        other.shared.load.fetch_add(1, order);
        self.backend = Rc::clone(other);
    }

    /// The request has a connection to its backend from now on.
    #[inline]
    pub(super) fn hold(&mut self, exchange: &Exchange) {
        let order = std::sync::atomic::Ordering::Relaxed;
        self.backend.shared.requests.fetch_add(1, order);
        let holds = HeldConnection::new(
            &self.backend.holders,
            exchange.worker.clock().latest(),
            exchange.connection.client_key(),
            exchange.asked_path(),
        );
        self.holder = holds;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let order = std::sync::atomic::Ordering::Relaxed;
        self.backend.shared.load.fetch_sub(1, order);
    }
}

impl Talk {
    /// Encodes the head of the request for `connection`. Sends nothing yet.
    ///
    /// # Errors
    /// The protocol cannot carry this request, for example because its head is too long. The connection is
    /// closed.
    // Inlined, with the functions that it is handed on by: a talk is large, and should be made where it stays.
    #[inline(always)]
    pub(super) fn begin(
        exchange: &Exchange,
        gateway: &Gateway,
        peer: Peer,
        in_flight: Option<InFlight>,
        mut connection: Box<BackendConnection>,
        body: BodyLength,
    ) -> Result<Talk, RequestError> {
        encode_head(exchange, gateway, &peer, &mut connection, body)?;
        let clock = exchange.worker.clock();
        Ok(Talk {
            peer,
            connection: Some(connection),
            in_flight,
            companion: None,
            body_offset: 0,
            body_is_sent: false,
            wants_body: false,
            written: 0,
            send_error: None,
            sending: Turn::default(),
            receiving: Turn::default(),
            reply_has_begun: false,
            taken: None,
            is_unacknowledged: false,
            has_ended: false,
            trailers: HeaderBlock::new(),
            is_stopped: false,
            log_bytes_dropped: 0,
            is_tunnel: false,
            is_end_told: false,
            began_ns: clock.latest(),
            now_ns: clock.latest(),
            progress_s: clock.seconds(),
        })
    }

    /// Whether there are bytes that the backend has not taken.
    pub(super) fn has_unsent(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|connection| connection.unsent() > 0)
    }

    /// Keeps `companion` alive until the conversation ends.
    pub(crate) fn accompany(&mut self, companion: Box<dyn Any>) {
        self.companion = Some(companion);
    }

    /// Sends what is encoded, and as much of the request body as has been received and the backend takes.
    /// Ready when the whole request is sent, or when the backend takes no more of it: it may have replied all
    /// the same, so only the missing reply is an error ([`Talk::blame`]).
    ///
    /// # Errors
    /// The body cannot be read from the file that holds it.
    pub(crate) fn poll_send(
        &mut self,
        body: &mut RequestBody,
        worker: &Worker,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        // The usual case once the reply arrives.
        let is_sent = self.written > 0 && self.body_is_sent && !self.is_tunnel;
        if self.send_error.is_some() || is_sent && !self.has_unsent() {
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(self.sending.poll(context));
            self.encode(body, context).map_err(Failure::Body)?;
            let Some(connection) = &mut self.connection else {
                return Poll::Ready(Ok(()));
            };
            if connection.unsent() == 0 {
                return match self.body_is_sent {
                    true => {
                        self.request_is_sent();
                        Poll::Ready(Ok(()))
                    }
                    false => {
                        self.sending.waits();
                        Poll::Pending
                    }
                };
            }
            let is_first = self.written == 0;
            let before = self.written;
            let unsent_before = connection.unsent();
            let flushed = connection.poll_flush(context, &mut self.written);
            if is_first && self.written > 0 {
                let holder = self.in_flight.as_ref().and_then(|it| it.holder.as_ref());
                connection.request_is_written(self.began_ns, self.written, holder);
            } else {
                connection.more_is_written(self.written);
            }
            if self.written > before || connection.unsent() < unsent_before {
                self.sending.moved(self.written - before);
                self.progress_s = worker.clock().seconds();
            }
            match flushed {
                Poll::Ready(Ok(())) if self.body_is_sent => {
                    self.request_is_sent();
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(())) => {}
                // A CGI program need not read its input. It may write a reply although its input is closed.
                Poll::Ready(Err(_)) if connection.stream.is_program() => {
                    connection.drop_unsent();
                    self.body_is_sent = true;
                    body.give_up();
                    self.request_is_sent();
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Err(error)) => {
                    connection.drop_unsent();
                    self.send_error = Some(error);
                    return Poll::Ready(Ok(()));
                }
                Poll::Pending => {
                    self.sending.waits();
                    return Poll::Pending;
                }
            }
        }
    }

    /// All that the client sends has been given to the kernel: says so to a program or to the end of a
    /// tunnel.
    fn request_is_sent(&mut self) {
        let Some(connection) = &self.connection else {
            return;
        };
        match self.is_tunnel {
            true => self.propagate_end(),
            false => connection.stream.request_is_sent(),
        }
    }

    /// Receives, and hands each event of the reply to `take`.
    ///
    /// # Errors
    /// The connection broke, or the backend does not keep to its protocol.
    pub(crate) fn poll_receive(
        &mut self,
        worker: &Worker,
        context: &mut Context<'_>,
        take: &mut TakeEvent<'_>,
    ) -> Poll<Result<Received, Failure>> {
        if self.has_ended {
            return Poll::Ready(Ok(Received::End));
        }
        let was_stopped = std::mem::take(&mut self.is_stopped);
        if was_stopped {
            // The consumer was paused, so the time in which nothing was read does not count as the backend's
            // silence.
            self.was_held_up(worker);
            self.receiving.waits();
        }
        if let Some(received) = self.decode_input(was_stopped, take)? {
            return Poll::Ready(Ok(received));
        }
        loop {
            ready!(self.receiving.poll(context));
            let Some(connection) = &mut self.connection else {
                return Poll::Ready(Ok(Received::End));
            };
            let mut buffer = worker.receive_buffer();
            let polled = connection.stream.poll_read(context, &mut buffer);
            if polled.is_pending() && std::mem::take(&mut self.is_unacknowledged) {
                // The backend's kernel holds the rest of the reply back until the beginning is acknowledged
                // (php-fpm leaves Nagle's algorithm on), and our kernel delays the acknowledgement for 40 ms,
                // waiting for data to send along with it.
                connection.stream.acknowledge();
            }
            if polled.is_pending() && std::mem::take(&mut self.wants_body) {
                // The sending side is polled before the receiving side, so the task has to be polled once
                // more to send it.
                context.waker().wake_by_ref();
            }
            if polled.is_pending() {
                self.receiving.waits();
            }
            let count = match ready!(polled) {
                Ok(0) => {
                    // The end of the reply may be a long time after its last byte.
                    self.now_ns = worker.clock().now();
                    return Poll::Ready(self.decode_end(take));
                }
                Ok(count) => count,
                Err(error) => {
                    return Poll::Ready(match self.reset_ends_reply() {
                        true => self.decode_end(take),
                        false => Err(Failure::Read(error)),
                    });
                }
            };
            self.receiving.moved(count as u64);
            // Not for a tunnel: each of its sides sends at its own pace and usually answers at once.
            self.is_unacknowledged = !self.is_tunnel;
            self.now_ns = worker.clock().now();
            self.progress_s = worker.clock().seconds();
            let mut bytes = buffer.get(..count).unwrap_or_default();
            if connection.lead_is_due() {
                match connection.take_answer(bytes) {
                    Ok(false) => continue,
                    // A process has read the question, and the request behind it. An answer that comes together
                    // with the reply does not say when.
                    Ok(true) if connection.input.is_empty() => {
                        self.taken = Some((self.now_ns, None));
                        // It may have been late because the machine was busy.
                        if let Some(backend) = &self.peer.backend {
                            backend.shared.capacity.first.yes();
                        }
                    }
                    Ok(true) => {}
                    // An application that answers together with its reply, or behind it.
                    Err(_) => {}
                }
                connection.lead_is_over();
                if connection.input.is_empty() {
                    continue;
                }
                // What was read is in the input already.
                bytes = &[];
            }
            if !self.reply_has_begun {
                self.reply_has_begun = true;
                let taken = connection.reply_has_begun(self.now_ns / NANOS_PER_MILLI);
                if let Some((at, survey)) = taken {
                    self.taken = Some((at, Some(survey)));
                }
            }
            if let Some(received) = self.decode(bytes, take)? {
                return Poll::Ready(Ok(received));
            }
        }
    }

    /// Whether a reset may be the end of the reply. A backend that refuses a request and closes the connection
    /// before it has read the body resets the connection.
    fn reset_ends_reply(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| {
            self.body_offset > 0
                && !connection.stream.is_tls()
                && connection.conversation.head().status().is_error()
        })
    }

    /// Whether the backend takes no more of the request.
    pub(super) fn cannot_send(&self) -> bool {
        self.send_error.is_some()
    }

    /// What explains that the reply is missing or broken: the failure to send the request, if nothing of a reply
    /// came, otherwise `failure`.
    pub(super) fn blame(&mut self, failure: Failure) -> Failure {
        match failure {
            Failure::Read(_) if !self.reply_has_begun => {
                let error = self.send_error.take();
                error.map_or(failure, Failure::Write)
            }
            failure => failure,
        }
    }

    /// From now on bytes are passed on unchanged in both directions.
    pub(crate) fn become_tunnel(&mut self) {
        self.is_tunnel = true;
        self.body_is_sent = false;
        self.body_offset = 0;
    }

    /// Whether the connection has become a tunnel.
    pub(crate) fn is_tunnel(&self) -> bool {
        self.is_tunnel
    }

    /// Whether any byte of a reply has arrived.
    pub(crate) fn reply_has_begun(&self) -> bool {
        self.reply_has_begun
    }

    /// When a process took the request, and which requests the processes had until then, if that was seen. Told
    /// once.
    pub(super) fn take_taken(&mut self) -> Option<(Nanos, Option<HolderSurvey>)> {
        self.taken.take()
    }

    /// Bytes of the request that the kernel has taken.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.written
    }

    /// Whether `failure` only shows that the backend had closed this persistent connection while it was idle.
    pub(super) fn was_closed_idle(&self, failure: &Failure) -> bool {
        self.is_on_kept() && !self.reply_has_begun && !failure.is_timeout()
    }

    /// Whether the connection had served other requests before.
    pub(super) fn is_on_kept(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|connection| connection.is_kept())
    }

    /// Whether the request is the first one behind a question that was answered, and got no reply.
    pub(super) fn disproves_keeping(&self) -> bool {
        let connection = self.connection.as_ref();
        !self.reply_has_begun && connection.is_some_and(|connection| connection.proves_keeping())
    }

    /// The timeout that has expired, if one has.
    pub(crate) fn lateness(&self, worker: &Worker) -> Option<Failure> {
        let (due_s, failure) = self.due()?;
        (due_s <= worker.clock().seconds()).then_some(failure)
    }

    /// The second in which the backend's timeout expires, if it has one.
    pub(crate) fn due_s(&self) -> Option<u32> {
        self.due().map(|(due_s, _)| due_s)
    }

    fn due(&self) -> Option<(u32, Failure)> {
        let is_sending = self.send_error.is_none();
        let (limit, failure) = match is_sending && self.has_unsent() {
            true => (self.peer.host.write_timeout, Failure::WriteTimeout),
            // The backend waits for more of the request body, which the client has not sent yet.
            false
                if is_sending && !self.body_is_sent && !self.is_tunnel && self.may_send_body() =>
            {
                return None;
            }
            false => (self.peer.host.read_timeout, Failure::ReadTimeout),
        };
        let seconds = match (limit.as_secs(), self.is_tunnel) {
            (0, true) => limits::TUNNEL_IDLE_S_MAX,
            (0, false) => return None,
            (seconds, _) => u32::try_from(seconds).unwrap_or(u32::MAX),
        };
        // One second more: the last progress may have been at the end of its second.
        Some((
            self.progress_s.saturating_add(seconds).saturating_add(1),
            failure,
        ))
    }

    /// Starts the backend's timeout anew, because this server did not read while it had no room.
    pub(crate) fn was_held_up(&mut self, worker: &Worker) {
        self.progress_s = worker.clock().seconds();
    }

    /// Whether the backend takes more of the request body now, if there is more.
    fn may_send_body(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|connection| connection.conversation.body_allowance() > 0)
    }

    /// Tells the backend, once, that no more of the request or tunnel will come.
    pub(crate) fn propagate_end(&mut self) {
        if let Some(connection) = &mut self.connection
            && !std::mem::replace(&mut self.is_end_told, true)
        {
            connection.stream.shutdown_write();
        }
    }

    /// The conversation, which holds the reply's head and what is still to come; `None` when the connection
    /// is closed.
    pub(super) fn conversation(&self) -> Option<&dyn Conversation> {
        self.connection
            .as_ref()
            .map(|connection| &*connection.conversation)
    }

    /// Bytes that the application wrote to the error log beyond the limit, and that were dropped.
    pub(crate) fn log_bytes_dropped(&self) -> u64 {
        let conversation = self.conversation();
        conversation.map_or(self.log_bytes_dropped, Conversation::log_bytes_dropped)
    }

    /// Whether the connection is still open.
    pub(super) fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether the reply is complete.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether the body of the reply has all the bytes that its head has told, although the backend has not said
    /// that the reply ends: a script works on. The request is sent.
    pub(super) fn has_whole_body(&self) -> bool {
        let is_whole = |talk: &dyn Conversation| talk.remaining() == Some(0);
        let is_sent = self.body_is_sent && !self.has_unsent() && self.send_error.is_none();
        is_sent && !self.is_tunnel && self.conversation().is_some_and(is_whole)
    }

    /// Closes the connection, which cannot be used any more.
    pub(super) fn close(&mut self) {
        self.connection = None;
        self.in_flight = None;
        self.companion = None;
    }

    /// Called when no client waits for the rest of the reply. A backend that works on one request at a time
    /// on a persistent connection (FastCGI, AJP13) would finish the request anyway, so the rest of its reply
    /// is read, within limits, and the connection's permit stays taken until then. For other protocols this
    /// is done only when little of the reply is missing; otherwise dropping this talk closes the connection.
    /// `log` takes what the application still writes to the error log, with the name of the backend.
    pub(super) fn detach(&mut self, worker: &Rc<Worker>, log: impl Fn(&str, &[u8]) + 'static) {
        let Peer { host, backend } = &self.peer;
        let finishes = match host.protocol {
            Protocol::FastCgi | Protocol::Ajp13 => true,
            Protocol::Http | Protocol::Scgi | Protocol::Uwsgi => self.is_nearly_over(),
        };
        // What is unsent of the request will never be sent, so the reply may never come.
        let unsent = self.connection.as_ref().is_none_or(|it| it.unsent() > 0);
        let is_whole = self.body_is_sent && !unsent && self.send_error.is_none();
        if self.has_ended || !is_whole || self.is_tunnel || !finishes || backend.is_none() {
            return;
        }
        // A backend that is silent for longer than its read timeout hangs, with a client or without.
        let silence = Some(host.read_timeout).filter(|time| !time.is_zero());
        let time = std::time::Duration::from_secs(limits::DRAIN_S_MAX.into());
        let time = silence.map_or(time, |silence| silence.min(time));
        // The request counts as load no more, but its keys keep their share until the backend has finished
        // it.
        if let Some(connection) = &mut self.connection {
            connection.is_left();
        }
        let in_flight = self.in_flight.take();
        let shares = in_flight.and_then(|mut in_flight| in_flight.shares.take());
        // Usually the whole rest has arrived already; then no task is needed.
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut bytes = 0;
        if self
            .poll_drain(worker, &log, &mut bytes, &mut context)
            .is_ready()
        {
            return;
        }
        let mut rest = Talk {
            peer: self.peer.clone(),
            connection: self.connection.take(),
            in_flight: None,
            companion: shares.map(|shares| Box::new(shares) as Box<dyn Any>),
            send_error: None,
            sending: Turn::default(),
            receiving: Turn::default(),
            trailers: HeaderBlock::new(),
            ..*self
        };
        let worker = Rc::clone(worker);
        tokio::task::spawn_local(async move {
            let mut bytes = 0;
            let rest =
                std::future::poll_fn(|context| rest.poll_drain(&worker, &log, &mut bytes, context));
            // After the time limit the future is dropped, which closes the connection.
            let _ = tokio::time::timeout(time, rest).await;
        });
    }

    /// Reads the rest of the reply and throws it away. Ready at its end, or when it exceeds the limit.
    fn poll_drain(
        &mut self,
        worker: &Worker,
        log: &dyn Fn(&str, &[u8]),
        bytes: &mut u64,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let received = self.poll_receive(worker, context, &mut |peer, event| {
            match event {
                Event::Head(ArrivedHead::Final(conversation)) => {
                    offload::discard(&peer.host, conversation.head());
                }
                Event::Body(body) => *bytes += body.len() as u64,
                Event::Log(text) => log(peer.name(), text),
                Event::Head(ArrivedHead::Interim(_)) => {}
            }
            match *bytes > limits::DRAIN_BYTES_MAX {
                true => Flow::Stop,
                false => Flow::Go,
            }
        });
        received.map(|_| ())
    }

    fn is_nearly_over(&self) -> bool {
        let remaining = self.conversation().and_then(|talk| talk.remaining());
        self.reply_has_begun && remaining.is_some_and(|bytes| bytes < limits::DRAIN_BYTES_SMALL)
    }

    /// Encodes what there is of the request body, as far as the outgoing buffer has room. The task is woken
    /// when a part that was spooled to disk has been read.
    fn encode(&mut self, body: &mut RequestBody, context: &mut Context<'_>) -> io::Result<()> {
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        while !self.body_is_sent && connection.unsent() < limits::OUTGOING_BYTES_MAX {
            let (conversation, out) = connection.encoder();
            let there = body.received().saturating_sub(self.body_offset);
            let there = usize::try_from(there).unwrap_or(usize::MAX);
            let count = there
                .min(conversation.body_allowance())
                .min(limits::OUTGOING_BYTES_MAX);
            if count > 0 {
                let read = body
                    .spool_mut()
                    .poll_read(self.body_offset, count, context)?;
                let Poll::Ready(bytes) = read else { break };
                conversation.encode_body(bytes, out);
                self.body_offset += bytes.len() as u64;
                if body.is_streamed() {
                    body.spool_mut().release(self.body_offset);
                }
            } else if there == 0 && body.is_complete() {
                match body.trailers().is_empty() {
                    true => conversation.encode_end(out),
                    false => conversation.encode_trailers(body.trailers(), out),
                }
                self.body_is_sent = true;
            } else {
                break;
            }
        }
        Ok(())
    }

    /// Decodes what was left over when the consumer paused.
    fn decode_input(
        &mut self,
        was_stopped: bool,
        take: &mut TakeEvent<'_>,
    ) -> Result<Option<Received>, Failure> {
        let Some(connection) = &mut self.connection else {
            return Ok(Some(Received::End));
        };
        if connection.input.is_empty() && !was_stopped {
            return Ok(None);
        }
        let input = std::mem::take(&mut connection.input);
        self.decode_bytes(&input, take)
    }

    fn decode(
        &mut self,
        bytes: &[u8],
        take: &mut TakeEvent<'_>,
    ) -> Result<Option<Received>, Failure> {
        match &mut self.connection {
            Some(connection) if !connection.input.is_empty() => {
                let mut input = std::mem::take(&mut connection.input);
                input.extend_from_slice(bytes);
                self.decode_bytes(&input, take)
            }
            _ => self.decode_bytes(bytes, take),
        }
    }

    /// Hands out the events in `bytes`. Bytes that do not make an event yet stay in the connection's input.
    fn decode_bytes(
        &mut self,
        bytes: &[u8],
        take: &mut TakeEvent<'_>,
    ) -> Result<Option<Received>, Failure> {
        let Some(connection) = &mut self.connection else {
            return Ok(Some(Received::End));
        };
        let mut used = 0;
        loop {
            let input = bytes.get(used..).unwrap_or_default();
            let decoded = connection.conversation.decode(input);
            let decoded = decoded.map_err(Failure::from)?;
            used += decoded.consumed;
            let event = match decoded.event {
                ReplyEvent::NeedMore => break,
                ReplyEvent::Interim => {
                    Event::Head(ArrivedHead::Interim(connection.conversation.head()))
                }
                ReplyEvent::Head => Event::Head(ArrivedHead::Final(&*connection.conversation)),
                ReplyEvent::Body(range) => Event::Body(input.get(range).unwrap_or_default()),
                ReplyEvent::Log(range) => Event::Log(input.get(range).unwrap_or_default()),
                ReplyEvent::WantsBody => {
                    // The end of the body may have been sent already; an AJP13 container that reads beyond it
                    // asks again and must be told again.
                    self.body_is_sent = false;
                    self.wants_body = true;
                    continue;
                }
                ReplyEvent::End { reusable } => {
                    let rest = bytes.get(used..).unwrap_or_default();
                    let is_answer = connection.end_is_due();
                    if is_answer {
                        connection.input.extend_from_slice(rest);
                    }
                    self.end(reusable && (is_answer || rest.is_empty()));
                    return Ok(Some(Received::End));
                }
            };
            if take(&self.peer, event) == Flow::Stop {
                self.is_stopped = true;
                connection
                    .input
                    .extend_from_slice(bytes.get(used..).unwrap_or_default());
                return Ok(Some(Received::Stopped));
            }
        }
        connection
            .input
            .extend_from_slice(bytes.get(used..).unwrap_or_default());
        Ok(None)
    }

    fn decode_end(&mut self, take: &mut TakeEvent<'_>) -> Result<Received, Failure> {
        let cut_off = || Failure::Read(io::ErrorKind::UnexpectedEof.into());
        if !self.reply_has_begun {
            return Err(cut_off());
        }
        if let Some(connection) = &mut self.connection
            && !connection.input.is_empty()
        {
            connection.conversation.input_ends();
            let input = std::mem::take(&mut connection.input);
            if let Some(received) = self.decode_bytes(&input, take)? {
                return Ok(received);
            }
        }
        let Some(connection) = &mut self.connection else {
            return Ok(Received::End);
        };
        match connection.conversation.end_of_input() {
            Ok(ReplyEvent::End { .. }) => {
                self.end(false);
                Ok(Received::End)
            }
            Ok(_) => Err(cut_off()),
            Err(error) => Err(Failure::from(error)),
        }
    }

    /// The reply is complete: the connection is kept for the next request, or closed. The connection of a
    /// tunnel stays open for what the client still sends.
    fn end(&mut self, reusable: bool) {
        self.has_ended = true;
        self.in_flight = None;
        if self.is_tunnel {
            return;
        }
        self.log_bytes_dropped = self.log_bytes_dropped();
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        self.trailers = connection.conversation.take_trailers();
        let is_whole = self.body_is_sent && connection.unsent() == 0 && self.send_error.is_none();
        // The PROXY header at the beginning of the connection names this client, so no other client may use
        // it.
        let is_of_this_client = self.peer.host.proxy_protocol > 0;
        if let Some(backend) = &self.peer.backend
            && reusable
            && is_whole
            && !is_of_this_client
        {
            backend.release(connection, self.now_ns / NANOS_PER_MILLI);
        }
    }
}

/// Encodes the head of a request for `connection`.
fn encode_head(
    exchange: &Exchange,
    gateway: &Gateway,
    peer: &Peer,
    connection: &mut BackendConnection,
    body: BodyLength,
) -> Result<(), RequestError> {
    let host = &peer.host;
    let questions = match &peer.backend {
        Some(backend) => backend.questions(connection, exchange.worker.clock().latest_ms()),
        None => Questions::default(),
    };
    connection.begin(questions);
    let is_new = !connection.is_kept();
    let is_tls = connection.stream.is_tls();
    let (conversation, out) = connection.encoder();
    // With TLS, the PROXY header was already sent, in front of the handshake.
    if is_new && !is_tls {
        proxy_header::write(host.proxy_protocol, exchange, out);
    }
    if questions.leads {
        fastcgi::write_get_values(out);
    }
    let outgoing = Outgoing {
        exchange,
        host,
        extras: &gateway.extras,
        body,
    };
    conversation.encode_head(&outgoing, out)
}

const NANOS_PER_MILLI: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use petrel_engine::limits;
    use petrel_engine::socket::Socket;
    use petrel_engine::testing::{Answer, Site};
    use rustix::net::sockopt::{set_tcp_quickack, tcp_quickack};

    use super::*;
    use crate::gateway::options::testing::gateway_of;
    use crate::gateway::protocol;
    use crate::gateway::stream::{BackendStream, SocketAddress};

    /// A request that was sent to a backend over TCP, the backend's end of the connection, and a second
    /// descriptor of our end.
    async fn asked(answer: &Answer) -> (Talk, TcpStream, OwnedFd) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = SocketAddress::Ip(listener.local_addr().expect("bound"));
        let stream = address.connect().await.expect("it listens");
        let (backend, _) = listener.accept().expect("it is connected");
        let BackendStream::Tcp(tcp) = &stream else {
            panic!("it is TCP")
        };
        let ours = rustix::io::dup(tcp).expect("a descriptor");
        let talk = ask(answer, stream).await;
        // As on a connection that has been used for a while: the kernel delays its acknowledgements.
        set_tcp_quickack(&ours, false).expect("it is TCP");
        (talk, backend, ours)
    }

    /// A request that was sent over `stream`.
    async fn ask(answer: &Answer, stream: BackendStream) -> Talk {
        let text = "proxy.server = ( \"/\" => (( \"host\" => \"127.0.0.1\" )) )";
        let gateway = gateway_of("mod_proxy", text);
        let workbench = Rc::default();
        let conversation = protocol::conversation(Protocol::Http, &Rc::default());
        let connection = BackendConnection::new(stream, conversation, None, &workbench, 0);
        let connection = Box::new(connection);
        let exchange = answer.exchange();
        let peer = Peer {
            host: Rc::clone(&gateway.routes[0].hosts[0]),
            backend: None,
        };
        let begun = Talk::begin(exchange, &gateway, peer, None, connection, BodyLength::None);
        let Ok(mut talk) = begun else {
            panic!("HTTP has room for it")
        };
        let mut body = RequestBody::default();
        body.complete();
        let sent = std::future::poll_fn(|context| {
            talk.poll_send(&mut body, &answer.exchange().worker, context)
        });
        sent.await.expect("the backend reads");
        talk
    }

    /// Receives what has arrived. True when the reply is complete.
    async fn receive(talk: &mut Talk, answer: &Answer) -> bool {
        let before = talk.conversation().and_then(|talk| talk.remaining());
        std::future::poll_fn(|context| {
            let worker = &answer.exchange().worker;
            let polled = talk.poll_receive(worker, context, &mut |_, _| Flow::Go);
            let now = talk.conversation().and_then(|talk| talk.remaining());
            match polled {
                Poll::Ready(received) => {
                    assert_eq!(received.expect("it is a reply"), Received::End);
                    Poll::Ready(true)
                }
                Poll::Pending if now != before => Poll::Ready(false),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    fn get() -> Answer {
        let site = Site::new("server.document-root = \"/nonexistent\"", &[]);
        site.request("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    }

    #[tokio::test(flavor = "local")]
    async fn what_was_read_is_acknowledged_when_more_of_the_reply_is_waited_for() {
        let answer = get();
        let (mut talk, mut backend, ours) = asked(&answer).await;
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\na";
        for piece in [&head[..], b"bc"] {
            backend.write_all(piece).expect("the gateway reads");
            assert!(!receive(&mut talk, &answer).await, "it is incomplete");
            assert!(tcp_quickack(&ours).expect("it is TCP"));
            set_tcp_quickack(&ours, false).expect("it is TCP");
            // Nothing has arrived since, so there is nothing to acknowledge.
            let mut context = Context::from_waker(std::task::Waker::noop());
            let worker = &answer.exchange().worker;
            let polled = talk.poll_receive(worker, &mut context, &mut |_, _| Flow::Go);
            assert!(polled.is_pending());
            assert!(!tcp_quickack(&ours).expect("it is TCP"));
        }
        backend.write_all(b"def").expect("the gateway reads");
        assert!(receive(&mut talk, &answer).await);
    }

    #[tokio::test(flavor = "local")]
    async fn a_backend_that_always_has_more_does_not_keep_the_worker() {
        let answer = get();
        let (ours, mut backend) = UnixStream::pair().expect("a pair");
        let socket = Socket::watched(ours.into()).expect("it is a socket");
        let mut talk = ask(&answer, BackendStream::Unix(socket)).await;
        let length = 16 * limits::TURN_BYTES;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        let piece = vec![b'a'; limits::RECEIVE_BUFFER_BYTES];
        backend.write_all(head.as_bytes()).expect("there is room");
        backend.write_all(&piece).expect("there is room");
        let (mut written, mut taken, mut most) = (piece.len() as u64, 0, 0);
        let received = std::future::poll_fn(|context| {
            let before = taken;
            let worker = &answer.exchange().worker;
            let polled = talk.poll_receive(worker, context, &mut |_, event| {
                if let Event::Body(bytes) = event {
                    taken += bytes.len() as u64;
                    while written < length && written - taken <= piece.len() as u64 {
                        backend.write_all(&piece).expect("there is room");
                        written += piece.len() as u64;
                    }
                }
                Flow::Go
            });
            most = most.max(taken - before);
            polled
        });
        let received = received.await.expect("it is a reply");
        assert_eq!((received, taken), (Received::End, length));
        let most_wanted = limits::TURN_BYTES + limits::RECEIVE_BUFFER_BYTES as u64;
        assert!(most <= most_wanted, "{most} bytes in one turn");
    }

    #[tokio::test(flavor = "local")]
    async fn what_accompanies_a_conversation_ends_when_it_is_closed() {
        let answer = get();
        let (mut talk, _backend, _) = asked(&answer).await;
        let companion = Rc::new(());
        talk.accompany(Box::new(Rc::clone(&companion)));
        talk.close();
        assert_eq!(Rc::strong_count(&companion), 1);
    }

    #[tokio::test(flavor = "local")]
    async fn a_reply_that_comes_in_one_read_changes_no_option_of_the_socket() {
        let answer = get();
        let (mut talk, mut backend, ours) = asked(&answer).await;
        let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
        backend.write_all(reply).expect("the gateway reads");
        assert!(receive(&mut talk, &answer).await);
        assert!(!tcp_quickack(&ours).expect("it is TCP"));
    }
}
