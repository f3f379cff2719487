//! Receiving: request heads and bodies, from the worker's buffer.

use std::borrow::Cow;
use std::fmt::Arguments;
use std::io;
use std::ops::ControlFlow::{Break, Continue};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_proto::header_block::HeaderBlock;
use petrel_proto::http1::{BodyDecoder, BodyError, BodyLimits, CONTINUE, Parsed, Piece};
use petrel_proto::request_head::{BodyFraming, HeadError};
use petrel_proto::status::Status;
use petrel_proto::trailers;

use super::http2::Http2;
use super::link::Link;
use super::serving::{Broken, Serving, Wire};
use super::{ConnectionState, Step};
use crate::ledger::Stage;
use crate::limits;
use crate::trace;
use crate::turn::Turn;

/// What a client begins with that speaks TLS (RFC 8446 5.1).
const TLS_HANDSHAKE: u8 = 22;

/// How the body of the request at hand is being received.
#[derive(Default)]
pub(super) struct Receiving {
    decoder: Option<BodyDecoder>,
    /// The client waits for "100 Continue" and has not got it.
    pub(crate) waits_for_continue: bool,
    /// Nothing more comes from the client of a tunnel.
    has_tunnel_ended: bool,
    /// The client's body waits for the disk, not for the client.
    waits_for_disk: bool,
    /// The body was not there at once when a hook wanted it.
    has_waited: bool,
    /// Bytes of the body that were received before others had their turn.
    turn: Turn,
}

impl Receiving {
    fn begin(&mut self, framing: BodyFraming, body_bytes_max: Option<u64>, expects_continue: bool) {
        let limits = BodyLimits {
            body_bytes_max,
            ..BodyLimits::default()
        };
        self.decoder = match framing {
            BodyFraming::None | BodyFraming::Length(0) => None,
            framing => Some(BodyDecoder::new(framing, limits)),
        };
        self.waits_for_continue = expects_continue && self.decoder.is_some();
    }
}

/// The head.
impl Serving {
    /// Waits for the first byte of a request, if it is not in `input`.
    pub(crate) fn poll_first(input: Vec<u8>, link: &mut Link, context: &mut Context<'_>) -> Step {
        if !input.is_empty() {
            // The next request of a pipeline.
            return Continue(Serving::begin(link).take_head(input.into(), link));
        }
        let worker = Rc::clone(&link.worker);
        let mut buffer = worker.receive_buffer.borrow_mut();
        match link.transport.poll_read(context, &mut buffer) {
            Poll::Ready(Ok(count)) if count > 0 => {
                let bytes = Cow::Borrowed(&buffer[..count]);
                Continue(Serving::begin(link).take_head(bytes, link))
            }
            Poll::Ready(_) => Continue(ConnectionState::Over(None)),
            Poll::Pending => link.rest(ConnectionState::Idle(input)),
        }
    }

    /// Waits for the rest of a head.
    pub(crate) fn poll_head(mut self, link: &mut Link, context: &mut Context<'_>) -> Step {
        let mut input = std::mem::take(&mut self.wire.input);
        let mut buffer = link.worker.receive_buffer.borrow_mut();
        match link.transport.poll_read(context, &mut buffer) {
            Poll::Ready(Ok(count)) if count > 0 => input.extend_from_slice(&buffer[..count]),
            Poll::Ready(_) => return Continue(ConnectionState::Over(Some(self))),
            Poll::Pending => {
                self.wire.input = input;
                return Break(ConnectionState::Head(self));
            }
        }
        drop(buffer);
        self.run.stamp(Stage::Receive);
        Continue(self.take_head(input.into(), link))
    }

    /// Parses `bytes`, the head so far.
    fn take_head(mut self, bytes: Cow<'_, [u8]>, link: &mut Link) -> ConnectionState {
        if bytes.first() == Some(&b'P') {
            match Http2::poll_begins_with(&bytes, link) {
                Poll::Ready(true) => return Http2::begin(link, bytes.into_owned()),
                Poll::Ready(false) => {}
                Poll::Pending => {
                    self.wire.input = bytes.into_owned();
                    return ConnectionState::Head(self);
                }
            }
        }
        let options = self.run.head_options();
        match self.run.request.head.parse(&bytes, &options) {
            Ok(Parsed::Partial) => {
                self.wire.input = bytes.into_owned();
                ConnectionState::Head(self)
            }
            Ok(Parsed::Complete { length }) => {
                self.wire.input.extend_from_slice(&bytes[length..]);
                self.begin_request(link)
            }
            // A client of HTTP/2 would take an answer of HTTP/1 for a frame that goes on (RFC 9113 3.4). It begins with a
            // word, unlike one of TLS.
            Err(HeadError::RequestLine)
                if Http2::may_begin(link) && bytes.first().is_some_and(u8::is_ascii_uppercase) =>
            {
                self.run.request.keep_refused_line(&bytes);
                let cause = format_args!("neither HTTP/1 nor HTTP/2 begins like this");
                self.run.log_error(Stage::Receive.name(), cause);
                self.abort(Stage::Parse, cause, link)
            }
            Err(error) => {
                let cause = match bytes.first() {
                    Some(&TLS_HANDSHAKE) => "the client speaks TLS to a port without it".to_owned(),
                    _ => error.to_string(),
                };
                let cause = format_args!("{cause}");
                self.refuse_head(&bytes, Stage::Parse, error.status(), cause)
            }
        }
    }

    /// Refuses a head of which `bytes` have been received.
    pub(super) fn refuse_head(
        mut self,
        bytes: &[u8],
        stage: Stage,
        status: Status,
        cause: Arguments<'_>,
    ) -> ConnectionState {
        let run = &mut self.run;
        // Whose settings apply is not known; those of the last request would be wrong.
        run.settings = run.worker.base_settings();
        run.request.method = run.request.head.method();
        run.request.keep_refused_line(bytes);
        trace::refused_header(run, bytes);
        self.refuse(stage, status, cause)
    }

    pub(crate) fn refuse_late_head(mut self) -> ConnectionState {
        let input = std::mem::take(&mut self.wire.input);
        let cause = format_args!("the request head came too slowly");
        self.refuse_head(&input, Stage::Receive, Status::REQUEST_TIMEOUT, cause)
    }

    /// A complete head: what does the request obey, and may it have a body that long?
    fn begin_request(mut self, link: &mut Link) -> ConnectionState {
        if let Err(error) = self.run.begin(&link.scope) {
            let cause = format_args!("the URL is refused: {error}");
            return self.refuse(Stage::Parse, Status::BAD_REQUEST, cause);
        }
        if self.run.refuse_misdirected() {
            return ConnectionState::Walk(self);
        }
        link.know_local_address(&mut self.run);
        let body_bytes_max = self.run.settings.core.body_bytes_max;
        let head = &self.run.request.head;
        let (framing, expects) = (head.framing(), head.expects_continue());
        self.wire.receiving.begin(framing, body_bytes_max, expects);
        if self.is_received() {
            self.run.complete_body();
        }
        let is_allowed = match framing {
            BodyFraming::Length(length) => self.run.allows_body(length),
            // The decoder counts what comes.
            BodyFraming::None | BodyFraming::Chunked => true,
        };
        if is_allowed {
            self.run.stamp(Stage::Parse);
        }
        match link.takes_http2_in_clear() {
            true => self.upgrade_if_asked(link),
            false => ConnectionState::Walk(self),
        }
    }

    /// The request may ask for HTTP/2 from here on.
    fn upgrade_if_asked(mut self, link: &Link) -> ConnectionState {
        let Some(settings) = Http2::upgrade_of(&self.run.request.head) else {
            return ConnectionState::Walk(self);
        };
        let input = std::mem::take(&mut self.wire.input);
        Http2::upgrade(link, self, &settings, input)
    }
}

/// The body.
impl Serving {
    /// Whether the whole request has been received, or the client's side of a tunnel.
    #[inline]
    pub(crate) fn is_received(&self) -> bool {
        let receiving = &self.wire.receiving;
        match self.run.is_tunnel() {
            true => receiving.has_tunnel_ended,
            false => receiving.decoder.as_ref().is_none_or(BodyDecoder::is_end),
        }
    }

    /// Whether what is left of the body is worth reading to use the connection again.
    pub(crate) fn can_be_received(&self) -> bool {
        let receiving = &self.wire.receiving;
        let is_short = |decoder: &BodyDecoder| {
            decoder.is_end() || decoder.remaining().unwrap_or(0) <= limits::DISCARD_BODY_BYTES_MAX
        };
        !self.run.is_tunnel()
            && !self.run.is_refused()
            && !receiving.waits_for_continue
            && receiving.decoder.as_ref().is_none_or(is_short)
    }

    /// An answer that is no error comes after the body, so that a body that turns out to be
    /// malformed or too large is still refused. Errors are answered at once.
    /// A body that is passed on while it comes is the answer's maker's business.
    pub(crate) fn reads_before_answer(&self) -> bool {
        let run = &self.run;
        !self.is_received()
            && !run.is_refused()
            && !run.response.status.is_error()
            && !run.request.body.is_streamed()
    }

    /// Receives the request body: `waiting` is the state that waits for it, `then` what comes behind it.
    pub(crate) fn poll_body(
        mut self,
        waiting: fn(Serving) -> ConnectionState,
        then: fn(Serving, &Link) -> ConnectionState,
        link: &mut Link,
        context: &mut Context<'_>,
    ) -> Step {
        self.ask_for_body();
        if self.poll_interim(link, context).is_err() {
            // The client has not waited to be asked. No log is told of it.
            return Continue(ConnectionState::Over(Some(self)));
        }
        match self.poll_whole_body(link, context) {
            Poll::Pending => Break(waiting(self)),
            Poll::Ready(Ok(())) => Continue(then(self, link)),
            Poll::Ready(Err(broken)) => Continue(self.give_up(Stage::RequestBody, &broken, link)),
        }
    }

    fn poll_whole_body(
        &mut self,
        link: &mut Link,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>> {
        let polled = self.poll_rest_of_body(true, link, context);
        self.wire.receiving.has_waited |= polled.is_pending();
        ready!(polled)?;
        self.run.complete_body();
        if self.wire.receiving.has_waited {
            self.run.stamp(Stage::RequestBody);
        }
        // A body that there was no room for is not worked on.
        Poll::Ready(match self.run.request.body.failure() {
            Some(_) => Err(Broken::TooEarly),
            None => Ok(()),
        })
    }

    /// Goes on receiving a body that is passed on while it comes, as far as there is room for it.
    /// Ready when the exchange has something new to look at.
    pub(crate) fn poll_streamed_body(
        &mut self,
        link: &mut Link,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>> {
        if !self.run.takes_stream() || self.is_received() {
            return Poll::Pending;
        }
        ready!(self.run.poll_room(context));
        if self.run.request.body.failure().is_some() {
            return Poll::Ready(Err(Broken::TooEarly));
        }
        if self.ask_for_body() && self.poll_interim(link, context).is_err() {
            return Poll::Ready(Err(Broken::TooEarly));
        }
        let mut is_end = false;
        if self.wire.input.is_empty() {
            ready!(self.wire.receiving.turn.poll(context));
            match ready!(self.poll_receive(link, context)) {
                Ok(count) => is_end = count == 0,
                Err(_) => return Poll::Ready(Err(Broken::TooEarly)),
            }
        }
        let taken = self.take_streamed(is_end);
        self.run.renew_body_time();
        Poll::Ready(taken)
    }

    /// Takes what came of a streamed body out of the input.
    fn take_streamed(&mut self, is_end: bool) -> Result<(), Broken> {
        if self.run.is_tunnel() {
            self.run.receive(&self.wire.input);
            self.wire.input.clear();
            self.wire.receiving.has_tunnel_ended = is_end;
        } else if is_end {
            return Err(Broken::TooEarly);
        } else {
            self.take_body().map_err(Broken::Malformed)?;
        }
        if self.is_received() {
            let trailers = self.trailers();
            self.run.complete_body_with(trailers);
        }
        match self.run.request.body.failure() {
            Some(_) => Err(Broken::TooEarly),
            None => Ok(()),
        }
    }

    /// What the client has sent behind its body and may go on.
    fn trailers(&self) -> HeaderBlock {
        let decoder = self.wire.receiving.decoder.as_ref();
        let lines = decoder.map_or(&b""[..], BodyDecoder::trailer_lines);
        trailers::of_request(lines, &self.run.request.head)
    }

    /// Throws away what is left of a body after the answer.
    pub(crate) fn poll_discard(mut self, link: &mut Link, context: &mut Context<'_>) -> Step {
        match self.poll_rest_of_body(false, link, context) {
            Poll::Pending => Break(ConnectionState::Discard(self)),
            Poll::Ready(Ok(())) => Continue(self.end("Discard", link)),
            // It cannot be read on, and the client may not have the whole answer yet.
            Poll::Ready(Err(Broken::Malformed(_))) => {
                link.transport.say_end();
                link.transport.shutdown_write();
                Continue(self.linger())
            }
            Poll::Ready(Err(_)) => Continue(ConnectionState::Over(Some(self))),
        }
    }

    /// Feeds the decoder from the connection until the body is complete. `is_wanted`: the client has its time anew
    /// with each byte.
    fn poll_rest_of_body(
        &mut self,
        is_wanted: bool,
        link: &mut Link,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Broken>> {
        loop {
            self.run.stop_body_pace();
            self.take_body().map_err(Broken::Malformed)?;
            let is_received = self.is_received();
            ready!(self.poll_disk(is_received, link, context));
            if is_received || self.run.request.body.failure().is_some() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.wire.receiving.turn.poll(context));
            match self.poll_receive(link, context) {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(_) => return Poll::Ready(Err(Broken::TooEarly)),
                Poll::Pending => {
                    link.lower_due(self.run.wait_for_body());
                    return Poll::Pending;
                }
            }
            if is_wanted {
                link.set_deadline(self.run.settings.core.read_idle_s);
            }
        }
    }

    /// Receives bytes behind those that are there; 0 is the end.
    fn poll_receive(
        &mut self,
        link: &mut Link,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut buffer = link.worker.receive_buffer.borrow_mut();
        let polled = link.transport.poll_read(context, &mut buffer);
        match &polled {
            Poll::Pending => self.wire.receiving.turn.waits(),
            Poll::Ready(Ok(count)) => {
                self.wire.receiving.turn.moved(*count as u64);
                self.run.body_moved(*count as u64);
                self.wire.input.extend_from_slice(&buffer[..*count]);
            }
            Poll::Ready(Err(_)) => {}
        }
        polled
    }

    /// Waits until the disk has taken enough for more to be received, or for the body to be complete. The
    /// client's time does not run meanwhile; the disk's is limited by the spool.
    fn poll_disk(&mut self, is_received: bool, link: &Link, context: &mut Context<'_>) -> Poll<()> {
        let body = &mut self.run.request.body;
        let polled = match is_received {
            true => body.poll_written(context),
            false => body.poll_room(context),
        };
        let waits = polled.is_pending();
        let waited = std::mem::replace(&mut self.wire.receiving.waits_for_disk, waits);
        match (waited, waits) {
            (_, true) => link.no_deadline(),
            (true, false) => link.set_deadline(self.run.settings.core.read_idle_s),
            (false, false) => {}
        }
        polled
    }

    /// Tells a waiting client that its body is welcome, behind what it has not taken yet. False: it does not wait.
    fn ask_for_body(&mut self) -> bool {
        let waits = std::mem::take(&mut self.wire.receiving.waits_for_continue);
        let is_asked = waits && self.wire.input.is_empty();
        if is_asked {
            self.wire.sending.push_prefix(CONTINUE);
        }
        is_asked
    }

    /// Decodes body bytes out of the input.
    fn take_body(&mut self) -> Result<(), BodyError> {
        let Wire {
            input, receiving, ..
        } = &mut *self.wire;
        let Some(decoder) = &mut receiving.decoder else {
            return Ok(());
        };
        let mut used = 0;
        loop {
            let decoded = decoder.decode(&input[used..])?;
            let begin = used;
            used += decoded.consumed;
            match decoded.piece {
                Piece::Data(range) => {
                    let range = begin + range.start..begin + range.end;
                    self.run.receive(&input[range]);
                }
                Piece::NeedMore | Piece::End => break,
            }
        }
        input.drain(..used);
        Ok(())
    }
}
