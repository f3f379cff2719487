//! One request on one connection: sends what is encoded, decodes what arrives.
//!
//! A [`Talk`] begins when there is a connection and ends with the reply, or with the connection. A
//! [`Relay`](super::relay::Relay) polls it in the task of the client's connection, so that no other task has to be
//! woken in between: first for the sending side, then for the receiving one. [`Talk::detach`] reads the rest of a
//! reply that no client waits for.

use std::any::Any;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::body::RequestBody;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::reply_head::ReplyHead;
use petrel_engine::turn::Turn;
use petrel_engine::worker::Worker;

use super::backend::{Backend, SharedBackend};
use super::connection::BackendConnection;
use super::failure::Failure;
use super::limits;
use super::offload;
use super::options::{BackendHost, Gateway, Protocol};
use super::protocol::{BodyLength, Conversation, Outgoing, ReplyEvent, RequestError, proxy_header};
use crate::limit::TakenShares;

/// One request on one connection.
pub(super) struct Talk {
    /// The other end.
    pub peer: Peer,
    connection: Option<Box<BackendConnection>>,
    in_flight: Option<InFlight>,
    /// What must live as long as the conversation: a child process, or the share of a client that has gone.
    companion: Option<Box<dyn Any>>,
    body_offset: u64,
    body_is_sent: bool,
    /// The backend asked for more of the body since it was last sent to.
    wants_body: bool,
    written: u64,
    sending: Turn,
    receiving: Turn,
    reply_has_begun: bool,
    /// Something was read since the kernel was last told to acknowledge at once.
    is_unacknowledged: bool,
    has_ended: bool,
    /// What stood behind the body of a reply that is complete.
    pub trailers: HeaderBlock,
    /// The consumer of the reply has said stop. The end of the reply may be there already, without another byte.
    is_stopped: bool,
    log_bytes_dropped: u64,
    is_tunnel: bool,
    /// The backend was told that the client sends nothing more.
    is_end_told: bool,
    began_ns: u64,
    /// When something was last received.
    now_ns: u64,
    /// When something was last sent or received.
    progress_s: u32,
}

/// A request that counts for its backend's load.
pub(super) struct InFlight {
    shared: std::sync::Arc<SharedBackend>,
    /// And for what its keys take of it.
    shares: Option<TakenShares>,
}

/// Who is asked.
#[derive(Clone)]
pub(super) struct Peer {
    /// The options of the backend or of the CGI program.
    pub host: Rc<BackendHost>,
    /// The backend; a CGI program has none.
    pub backend: Option<Rc<Backend>>,
}

/// What a reply consists of.
pub(super) enum Event<'a> {
    /// A head, of which the last one is the reply's.
    Head(ArrivedHead<'a>),
    /// A stretch of the body.
    Body(&'a [u8]),
    /// Words for the error log.
    Log(&'a [u8]),
}

/// A head that is complete.
pub(super) enum ArrivedHead<'a> {
    /// Of an interim response.
    Interim(&'a ReplyHead),
    /// Of the reply.
    Final(&'a dyn Conversation),
}

/// Whether more events are wanted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// The next one.
    Go,
    /// Not now; what is there stays there.
    Stop,
}

/// Takes the events of a reply from a backend.
pub(crate) type TakeEvent<'a> = dyn FnMut(&Peer, Event<'_>) -> Flow + 'a;

/// How receiving came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Because it was told to.
    Stopped,
    /// The reply is complete.
    End,
}

impl Peer {
    /// The name for logs: the address of a backend, the label of a program, which has no address.
    pub(super) fn name(&self) -> &str {
        match &self.backend {
            Some(backend) => &backend.shared.name,
            None => &self.host.label,
        }
    }
}

impl InFlight {
    /// Counts a request.
    pub(super) fn new(backend: &Backend, shares: Option<TakenShares>) -> InFlight {
        let shared = std::sync::Arc::clone(&backend.shared);
        let order = std::sync::atomic::Ordering::Relaxed;
        shared.load.fetch_add(1, order);
        shared.requests.fetch_add(1, order);
        InFlight { shared, shares }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let order = std::sync::atomic::Ordering::Relaxed;
        self.shared.load.fetch_sub(1, order);
    }
}

impl Talk {
    /// Begins to talk on `connection`: the head of the request is encoded, nothing is sent.
    ///
    /// # Errors
    /// The protocol has no room for this request. The connection is closed.
    pub(super) fn begin(
        exchange: &Exchange,
        gateway: &Gateway,
        peer: Peer,
        in_flight: Option<InFlight>,
        mut connection: Box<BackendConnection>,
        body: BodyLength,
    ) -> Result<Talk, RequestError> {
        connection.begin();
        let is_new = !connection.is_kept();
        let is_tls = connection.stream.is_tls();
        let (conversation, out) = connection.encoder();
        // With TLS it stands in front of the handshake.
        if is_new && !is_tls {
            proxy_header::write(peer.host.proxy_protocol, exchange, out);
        }
        let outgoing = Outgoing {
            exchange,
            host: &peer.host,
            extras: &gateway.extras,
            body,
        };
        conversation.encode_head(&outgoing, out)?;
        Ok(Talk {
            peer,
            connection: Some(connection),
            in_flight,
            companion: None,
            body_offset: 0,
            body_is_sent: false,
            wants_body: false,
            written: 0,
            sending: Turn::default(),
            receiving: Turn::default(),
            reply_has_begun: false,
            is_unacknowledged: false,
            has_ended: false,
            trailers: HeaderBlock::new(),
            is_stopped: false,
            log_bytes_dropped: 0,
            is_tunnel: false,
            is_end_told: false,
            began_ns: exchange.worker.clock().latest(),
            now_ns: exchange.worker.clock().latest(),
            progress_s: exchange.worker.clock().seconds(),
        })
    }

    /// Keeps `companion` alive until the conversation is over.
    pub(crate) fn accompany(&mut self, companion: Box<dyn Any>) {
        self.companion = Some(companion);
    }

    /// Sends what is encoded, and of the body what there is and the backend takes. Ready when the whole
    /// request is sent.
    ///
    /// # Errors
    /// The request cannot be sent. A reply may be there all the same.
    pub(crate) fn poll_send(
        &mut self,
        body: &mut RequestBody,
        worker: &Worker,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
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
                connection.request_is_written(self.began_ns / NANOS_PER_MILLI);
            }
            if self.written > before || connection.unsent() < unsent_before {
                self.sending.moved(self.written - before);
                self.progress_s = worker.clock().seconds();
            }
            match flushed {
                Poll::Ready(Ok(())) => {}
                // It need not read what it is given, and may answer all the same.
                Poll::Ready(Err(_)) if connection.stream.is_program() => {
                    connection.drop_unsent();
                    self.body_is_sent = true;
                    body.give_up();
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Failure::Write(error))),
                Poll::Pending => {
                    self.sending.waits();
                    return Poll::Pending;
                }
            }
        }
    }

    /// Everything the client sends is with the kernel.
    fn request_is_sent(&mut self) {
        let Some(connection) = &self.connection else {
            return;
        };
        match self.is_tunnel {
            true => self.propagate_end(),
            false => connection.stream.request_is_sent(),
        }
    }

    /// Receives, and hands to `take` what comes.
    ///
    /// # Errors
    /// The reply is broken off or no reply.
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
            // The backend was not read from, which is not its fault.
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
                // (php-fpm leaves Nagle's algorithm on), and ours waits 40 ms for data to send that with.
                connection.stream.acknowledge();
            }
            if polled.is_pending() && std::mem::take(&mut self.wants_body) {
                // Sending comes before receiving, so it takes another turn.
                context.waker().wake_by_ref();
            }
            if polled.is_pending() {
                self.receiving.waits();
            }
            let count = match ready!(polled) {
                Ok(0) => return Poll::Ready(self.decode_end(take)),
                Ok(count) => count,
                Err(error) => return Poll::Ready(Err(Failure::Read(error))),
            };
            self.receiving.moved(count as u64);
            // Each side of a tunnel has its own pace, and answers at once as a rule.
            self.is_unacknowledged = !self.is_tunnel;
            self.now_ns = worker.clock().now();
            self.progress_s = worker.clock().seconds();
            if !self.reply_has_begun {
                self.reply_has_begun = true;
                connection.reply_has_begun(self.now_ns / NANOS_PER_MILLI);
            }
            if let Some(received) = self.decode(buffer.get(..count).unwrap_or_default(), take)? {
                return Poll::Ready(Ok(received));
            }
        }
    }

    /// From now on everything is passed on as it is, both ways.
    pub(crate) fn become_tunnel(&mut self) {
        self.is_tunnel = true;
        self.body_is_sent = false;
        self.body_offset = 0;
    }

    /// Whether it is a tunnel.
    pub(crate) fn is_tunnel(&self) -> bool {
        self.is_tunnel
    }

    /// Whether anything of a reply came.
    pub(crate) fn reply_has_begun(&self) -> bool {
        self.reply_has_begun
    }

    /// Bytes of the request that the kernel has taken.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.written
    }

    /// Whether the connection was one that had answered before: then an error on it says nothing of
    /// the backend.
    pub(crate) fn is_on_kept_connection(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|connection| connection.is_kept())
    }

    /// Why the backend is late, if it is.
    pub(crate) fn lateness(&self, worker: &Worker) -> Option<Failure> {
        let (due_s, failure) = self.due()?;
        (due_s <= worker.clock().seconds()).then_some(failure)
    }

    /// The second in which the backend has been silent for too long, if there is such a limit.
    pub(crate) fn due_s(&self) -> Option<u32> {
        self.due().map(|(due_s, _)| due_s)
    }

    fn due(&self) -> Option<(u32, Failure)> {
        let unsent = self.connection.as_ref().is_some_and(|c| c.unsent() > 0);
        let (limit, failure) = match unsent {
            true => (self.peer.host.write_timeout, Failure::WriteTimeout),
            // The client is the one who is waited for.
            false if !self.body_is_sent && !self.is_tunnel && self.may_send_body() => return None,
            false => (self.peer.host.read_timeout, Failure::ReadTimeout),
        };
        let seconds = match (limit.as_secs(), self.is_tunnel) {
            (0, true) => limits::TUNNEL_IDLE_S_MAX,
            (0, false) => return None,
            (seconds, _) => u32::try_from(seconds).unwrap_or(u32::MAX),
        };
        Some((
            self.progress_s.saturating_add(seconds).saturating_add(1),
            failure,
        ))
    }

    /// Nothing was received because we had no room for it: the backend's time begins anew.
    pub(crate) fn was_held_up(&mut self, worker: &Worker) {
        self.progress_s = worker.clock().seconds();
    }

    /// Whether the backend takes body now, or would if there was some.
    fn may_send_body(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|connection| connection.conversation.body_allowance() > 0)
    }

    /// Tells the backend, once, that no more of the request will come.
    pub(crate) fn propagate_end(&mut self) {
        if let Some(connection) = &mut self.connection
            && !std::mem::replace(&mut self.is_end_told, true)
        {
            connection.stream.shutdown_write();
        }
    }

    /// The conversation, for its head and what is still to come.
    pub(super) fn conversation(&self) -> Option<&dyn Conversation> {
        self.connection
            .as_ref()
            .map(|connection| &*connection.conversation)
    }

    /// Bytes that the application wrote for the log and that are too many for it.
    pub(crate) fn log_bytes_dropped(&self) -> u64 {
        let conversation = self.conversation();
        conversation.map_or(self.log_bytes_dropped, Conversation::log_bytes_dropped)
    }

    /// Whether the backend can still be sent something.
    pub(super) fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether the reply is complete.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Closes the connection, of which nothing can be saved.
    pub(super) fn close(&mut self) {
        self.connection = None;
        self.in_flight = None;
        self.companion = None;
    }

    /// No client waits for the rest of the reply any more. A backend that works on one request at a time on persistent
    /// connections finishes this one, within limits, and its slot counts until then; for others the connection
    /// ends with this talk.
    pub(super) fn detach(&mut self, worker: &Rc<Worker>) {
        let Peer { host, backend } = &self.peer;
        let finishes = match host.protocol {
            Protocol::FastCgi | Protocol::Ajp13 => true,
            Protocol::Http | Protocol::Scgi | Protocol::Uwsgi => self.is_nearly_over(),
        };
        // What is left of the request will never be sent.
        let unsent = self.connection.as_ref().is_none_or(|it| it.unsent() > 0);
        let is_whole = self.body_is_sent && !unsent;
        if self.has_ended || !is_whole || self.is_tunnel || !finishes || backend.is_none() {
            return;
        }
        // A backend that is silent for longer than that hangs, whether a client waits for it or not.
        let silence = Some(host.read_timeout).filter(|time| !time.is_zero());
        let time = std::time::Duration::from_secs(limits::DRAIN_S_MAX.into());
        let time = silence.map_or(time, |silence| silence.min(time));
        // The request is no load any more; its keys have their share until the backend is done.
        let in_flight = self.in_flight.take();
        let shares = in_flight.and_then(|mut in_flight| in_flight.shares.take());
        // Most of the time all of it is here already.
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut bytes = 0;
        if self.poll_drain(worker, &mut bytes, &mut context).is_ready() {
            return;
        }
        let mut rest = Talk {
            peer: self.peer.clone(),
            connection: self.connection.take(),
            in_flight: None,
            companion: shares.map(|shares| Box::new(shares) as Box<dyn Any>),
            sending: Turn::default(),
            receiving: Turn::default(),
            trailers: HeaderBlock::new(),
            ..*self
        };
        let worker = Rc::clone(worker);
        tokio::task::spawn_local(async move {
            let mut bytes = 0;
            let rest =
                std::future::poll_fn(|context| rest.poll_drain(&worker, &mut bytes, context));
            // Over time it is dropped, which closes the connection.
            let _ = tokio::time::timeout(time, rest).await;
        });
    }

    /// Reads the rest of the reply and throws it away. Ready at its end, or when it is too long.
    fn poll_drain(
        &mut self,
        worker: &Worker,
        bytes: &mut u64,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        let received = self.poll_receive(worker, context, &mut |peer, event| {
            match event {
                Event::Head(ArrivedHead::Final(conversation)) => {
                    offload::discard(&peer.host, conversation.head());
                }
                Event::Body(body) => *bytes += body.len() as u64,
                Event::Head(ArrivedHead::Interim(_)) | Event::Log(_) => {}
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

    /// Encodes of the body what is there, in as many steps as the outgoing buffer takes. Wakes when bytes
    /// come from the disk.
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

    /// Decodes what was left when the last one said stop.
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

    /// Hands out the events in `bytes`; what is not used stays in the connection's input.
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
                    // Its end may have been said before: a container that reads on wants it again.
                    self.body_is_sent = false;
                    self.wants_body = true;
                    continue;
                }
                ReplyEvent::End { reusable } => {
                    self.end(reusable && used == bytes.len());
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

    /// The reply is complete: the connection serves the next request, or is closed. That of a tunnel
    /// stays open for what the client still sends.
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
        let is_whole = self.body_is_sent && connection.unsent() == 0;
        // The header that it began with is about this client.
        let is_of_this_client = self.peer.host.proxy_protocol > 0;
        if let Some(backend) = &self.peer.backend
            && reusable
            && is_whole
            && !is_of_this_client
        {
            let now_ms = self.now_ns / NANOS_PER_MILLI;
            let took_us = self.now_ns.saturating_sub(self.began_ns) / NANOS_PER_MICRO;
            backend.release(connection, now_ms, took_us);
        }
    }
}

const NANOS_PER_MICRO: u64 = 1_000;
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

    /// A request that was sent to a backend by TCP, the backend's end of the connection, and another
    /// descriptor of this end.
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
        // As on a connection that has been used for a while.
        set_tcp_quickack(&ours, false).expect("it is TCP");
        (talk, backend, ours)
    }

    /// A request that was sent by `stream`.
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

    /// Receives what has arrived. Whether the reply is complete.
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
            // Nothing has come since, so nothing is to be acknowledged.
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
