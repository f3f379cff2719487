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
use petrel_proto::trailers;

use super::http2::Http2;
use super::link::Link;
use super::serving::{Broken, Serving, Wire};
use super::{ConnectionState, Step};
use crate::cause::CauseCode;
use crate::exchange::holders;
use crate::ledger::Stage;
use crate::limits;
use crate::trace;
use crate::turn::Turn;

/// The first byte from a client that speaks TLS (RFC 8446 5.1).
const TLS_HANDSHAKE: u8 = 22;

/// The state of receiving a request body.
#[derive(Default)]
pub(super) struct Receiving {
    decoder: Option<BodyDecoder>,
    /// The client waits for "100 Continue", and it was not sent.
    pub(crate) waits_for_continue: bool,
    /// The client of a tunnel sends no more.
    has_tunnel_ended: bool,
    /// The body was not complete at once when a hook wanted it.
    has_waited: bool,
    /// Counts bytes of the body, so that other tasks get their turn.
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

/// Receiving the head.
impl Serving {
    /// Waits for the first byte of a request, if `input` is empty.
    pub(crate) fn poll_first(input: Vec<u8>, link: &mut Link, context: &mut Context<'_>) -> Step {
        if !input.is_empty() {
            // The client has sent its next request already (pipelining).
            return Continue(Serving::begin_next(link).take_first(input.into(), link));
        }
        let worker = Rc::clone(&link.worker);
        let mut buffer = worker.receive_buffer.borrow_mut();
        match link.transport.poll_read(context, &mut buffer) {
            Poll::Ready(Ok(count)) if count > 0 => {
                let bytes = Cow::Borrowed(&buffer[..count]);
                Continue(Serving::begin(link).take_first(bytes, link))
            }
            Poll::Ready(ended) => {
                if ended.is_ok() {
                    link.transport.say_end();
                }
                Continue(ConnectionState::Over(None))
            }
            Poll::Pending => link.rest(ConnectionState::Idle(input)),
        }
    }

    /// Parses the first bytes of a head. If there are more to come, the time for the head begins: further
    /// bytes do not renew it.
    #[inline]
    fn take_first(self, bytes: Cow<'_, [u8]>, link: &mut Link) -> ConnectionState {
        let next = self.take_head(bytes, link);
        if matches!(next, ConnectionState::Head(_)) {
            link.set_deadline(link.worker.base_settings().core.read_idle_s);
        }
        next
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
        self.run.stamp_wait(Stage::ReadHead, |_, text| {
            text.write_str("the client sent the head in pieces");
        });
        Continue(self.take_head(input.into(), link))
    }

    /// Parses `bytes`, which are what has arrived of the head.
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
            // A client of HTTP/2 would take a response of HTTP/1 for an unfinished frame (RFC 9113 3.4). Its
            // first bytes are letters, unlike those of a TLS client.
            Err(HeadError::RequestLine)
                if Http2::may_begin(link) && bytes.first().is_some_and(u8::is_ascii_uppercase) =>
            {
                self.run.request.keep_refused_line(&bytes);
                let cause = format_args!("neither HTTP/1 nor HTTP/2 begins like this");
                self.run.log_error(Stage::ReadHead.name(), cause);
                self.abort(Stage::Parse, cause, link)
            }
            Err(error) => {
                let what = match bytes.first() {
                    Some(&TLS_HANDSHAKE) => "the client speaks TLS to a port without it".to_owned(),
                    _ => error.to_string(),
                };
                let cause = CauseCode::of_head(error);
                self.refuse_head(&bytes, Stage::Parse, cause, format_args!("{what}"))
            }
        }
    }

    /// Refuses a head; `bytes` are what has arrived of it.
    pub(super) fn refuse_head(
        mut self,
        bytes: &[u8],
        stage: Stage,
        cause: CauseCode,
        what: Arguments<'_>,
    ) -> ConnectionState {
        let run = &mut self.run;
        // Without a head it is unknown which settings apply. Those of the previous request would be wrong.
        run.settings = run.worker.base_settings();
        run.request.method = run.request.head.method();
        run.request.keep_refused_line(bytes);
        trace::refused_header(run, bytes);
        run.refuse_head(stage, cause, what);
        ConnectionState::Walk(self)
    }

    pub(crate) fn refuse_late_head(mut self) -> ConnectionState {
        let input = std::mem::take(&mut self.wire.input);
        let what = format_args!("the request head came too slowly");
        self.refuse_head(&input, Stage::ReadHead, CauseCode::HeadTimeout, what)
    }

    /// The head is complete: finds the settings, and checks that they allow a body of this length.
    fn begin_request(mut self, link: &mut Link) -> ConnectionState {
        if let Err(error) = self.run.begin(&link.scope) {
            let cause = format_args!("the URL is refused: {error}");
            self.run
                .refuse_head(Stage::Parse, CauseCode::UrlMalformed, cause);
            return ConnectionState::Walk(self);
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
            // For chunks the decoder counts the bytes.
            BodyFraming::None | BodyFraming::Chunked => true,
        };
        if is_allowed {
            self.run.stamp_begin();
        }
        match link.takes_http2_in_clear() {
            true => self.upgrade_if_asked(link),
            false => ConnectionState::Walk(self),
        }
    }

    /// Changes to HTTP/2 if the request asks for that.
    fn upgrade_if_asked(mut self, link: &Link) -> ConnectionState {
        let Some(settings) = Http2::upgrade_of(&self.run.request.head) else {
            return ConnectionState::Walk(self);
        };
        let input = std::mem::take(&mut self.wire.input);
        Http2::upgrade(link, self, &settings, input)
    }
}

/// Receiving the body.
impl Serving {
    /// Whether the whole request was received; in a tunnel, whether the client has closed its side.
    #[inline]
    pub(crate) fn is_received(&self) -> bool {
        let receiving = &self.wire.receiving;
        match self.run.is_tunnel() {
            true => receiving.has_tunnel_ended,
            false => receiving.decoder.as_ref().is_none_or(BodyDecoder::is_end),
        }
    }

    /// Whether the rest of the body is short enough to read, so that the connection can be used again.
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

    /// Whether the request body is read before the response is sent. That is so for a response that is no
    /// error, so that a body that turns out malformed or too large is still refused. Errors are sent at once.
    /// If the body is passed on while it arrives, the hook that makes the response decides by itself.
    pub(crate) fn reads_before_answer(&self) -> bool {
        let run = &self.run;
        !self.is_received()
            && !run.is_refused()
            && !run.response.status.is_error()
            && !run.request.body.is_streamed()
    }

    /// Receives the request body. `waiting` is the state that waits for it, `then` the state that follows.
    pub(crate) fn poll_body(
        mut self,
        waiting: fn(Serving) -> ConnectionState,
        then: fn(Serving, &Link) -> ConnectionState,
        link: &mut Link,
        context: &mut Context<'_>,
    ) -> Step {
        self.ask_for_body();
        if self.poll_interim(link, context).is_err() {
            // The client sent the body without waiting for 100 Continue. This is not logged.
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
            self.run
                .stamp_wait(Stage::RequestBody, holders::of_request_body);
        }
        // No hook gets a body that could not be stored.
        Poll::Ready(match self.run.request.body.failure() {
            Some(_) => Err(Broken::TooEarly),
            None => Ok(()),
        })
    }

    /// Receives more of a body that is passed on while it arrives, as far as there is room. Ready when the
    /// exchange has something new to process.
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

    /// Moves the bytes of a streamed body from the input to the request.
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

    /// The trailers after the body that may be passed on.
    fn trailers(&self) -> HeaderBlock {
        let decoder = self.wire.receiving.decoder.as_ref();
        let lines = decoder.map_or(&b""[..], BodyDecoder::trailer_lines);
        trailers::of_request(lines, &self.run.request.head)
    }

    /// Reads and drops the rest of a body after the response was sent.
    pub(crate) fn poll_discard(mut self, link: &mut Link, context: &mut Context<'_>) -> Step {
        match self.poll_rest_of_body(false, link, context) {
            Poll::Pending => Break(ConnectionState::Discard(self)),
            Poll::Ready(Ok(())) => Continue(self.end("Discard", link)),
            // The rest cannot be parsed, and the client may not have read all of the response yet.
            Poll::Ready(Err(Broken::Malformed(_))) => Continue(self.linger(link)),
            Poll::Ready(Err(_)) => Continue(ConnectionState::Over(Some(self))),
        }
    }

    /// Feeds the decoder until the body is complete. `is_wanted`: each byte restarts the client's timeout.
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

    /// Receives bytes and appends them to the input; 0 is the end.
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

    /// Waits until the disk has taken enough that more can be received, or until it has taken the whole body.
    /// The client's timeout does not run meanwhile; the spool has one for the disk.
    fn poll_disk(&mut self, is_received: bool, link: &Link, context: &mut Context<'_>) -> Poll<()> {
        let waited = self.run.request.body.waits_for_disk();
        let polled = self.run.poll_disk(is_received, context);
        match (waited, polled.is_pending()) {
            (_, true) => link.no_deadline(),
            (true, false) => link.set_deadline(self.run.settings.core.read_idle_s),
            (false, false) => {}
        }
        polled
    }

    /// Queues "100 Continue" for a client that waits for it. Returns false if the client does not wait.
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
