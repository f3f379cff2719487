//! Receiving: request heads and bodies, from the worker's buffer.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_proto::http1::{
    BodyDecoder, BodyError, BodyFraming, BodyLimits, CONTINUE, Parsed, Piece,
};
use petrel_proto::status::Status;

use super::{Connection, State};
use crate::body::RequestBody;
use crate::exchange::Exchange;
use crate::ledger::Stage;
use crate::limits;
use crate::pace::Pace;
use crate::response::Response;
use crate::trace;
use crate::turn::Turn;
use crate::worker::Drain;

/// How the body of the request at hand is being received.
#[derive(Default)]
pub(crate) struct Receiving {
    decoder: Option<BodyDecoder>,
    /// The client waits for "100 Continue" and has not got it.
    waits_for_continue: bool,
    /// The framing is broken or no longer of interest: the connection cannot be used again.
    given_up: bool,
    /// Whether the client's bytes are no HTTP any more, and whether they have ended.
    tunnel: Option<TunnelEnd>,
    /// The second in which more of a streamed body must have come; 0: none is waited for.
    pub(super) due_s: u32,
    /// The client's body waits for the disk, not for the client.
    waits_for_disk: bool,
    /// The body was not there at once when a hook wanted it.
    has_waited: bool,
    /// How fast the client sends its body.
    pub(super) pace: Pace,
    /// Bytes of the body that were received before others had their turn.
    turn: Turn,
}

/// How far the client's side of a tunnel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TunnelEnd {
    Open,
    Ended,
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
        self.given_up = false;
        self.tunnel = None;
    }

    /// So many bytes of the body have come.
    fn moved(&mut self, bytes: u64) {
        self.pace.moved(bytes);
        self.turn.moved(bytes);
    }

    /// Whether the whole request has been received.
    pub fn is_finished(&self) -> bool {
        match self.tunnel {
            Some(end) => end == TunnelEnd::Ended,
            None => self.decoder.as_ref().is_none_or(BodyDecoder::is_end),
        }
    }

    /// From now on every byte is passed on as it is.
    pub fn become_tunnel(&mut self) {
        self.tunnel = Some(TunnelEnd::Open);
    }

    /// Whether what the client sends is passed on as it is.
    pub fn is_tunnel(&self) -> bool {
        self.tunnel.is_some()
    }

    /// Whether what the client sends is no longer understood.
    pub fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// Stops caring about the body.
    pub fn give_up(&mut self) {
        self.given_up = true;
    }

    /// Whether what is left of the body is worth reading to use the connection again.
    pub fn can_be_finished(&self) -> bool {
        if self.is_tunnel() {
            return false;
        }
        if self.given_up || self.waits_for_continue {
            return self.is_finished() && !self.given_up;
        }
        match &self.decoder {
            None => true,
            Some(decoder) => {
                decoder.is_end()
                    || decoder.remaining().unwrap_or(0) <= limits::DISCARD_BODY_BYTES_MAX
            }
        }
    }

    /// An answer that is no error comes after the body, so that a body that turns out to be
    /// malformed or too large is still refused. Errors are answered at once.
    /// A body that is passed on while it comes is the answer's maker's business.
    pub fn wants_to_read_before_answer(&self, response: &Response, body: &RequestBody) -> bool {
        !self.given_up && !self.is_finished() && !response.status.is_error() && !body.is_streamed()
    }
}

impl Connection {
    /// Waits for a request head, parses it, chooses the settings.
    pub(super) fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<State> {
        if !self.head_begun && !self.input.is_empty() {
            // The next request of a pipeline.
            let input = std::mem::take(&mut self.input);
            if let Some(next) = self.take_head(&input) {
                return Poll::Ready(next);
            }
        }
        let worker = Rc::clone(&self.worker);
        loop {
            let mut buffer = worker.receive_buffer.borrow_mut();
            let count = match self.transport.poll_read(context, &mut buffer) {
                Poll::Ready(Ok(count)) if count > 0 => count,
                Poll::Ready(_) => return Poll::Ready(State::Over),
                Poll::Pending => return self.poll_rest(),
            };
            let next = if self.input.is_empty() {
                self.take_head(&buffer[..count])
            } else {
                let mut input = std::mem::take(&mut self.input);
                input.push(&buffer[..count]);
                self.take_head(&input)
            };
            if let Some(next) = next {
                return Poll::Ready(next);
            }
        }
    }

    /// Nothing is there to be read. An idle connection gives back what it borrowed.
    fn poll_rest(&mut self) -> Poll<State> {
        if self.head_begun {
            return Poll::Pending;
        }
        if let Some(exchange) = &self.exchange {
            self.set_deadline(exchange.settings.core.keep_alive_idle_s);
            self.rest();
        }
        self.poll_idle_drain()
    }

    /// Nothing is there to be read from an idle connection: it ends if the worker drains. What arrives between the
    /// last read and the end is answered all the same.
    pub(super) fn poll_idle_drain(&mut self) -> Poll<State> {
        match self.worker.draining() {
            Some(Drain::Stop) if self.transport.is_silent() => return Poll::Ready(State::Over),
            Some(Drain::Successor) => self.set_deadline(limits::IDLE_DRAIN_S),
            Some(Drain::Stop) | None => {}
        }
        Poll::Pending
    }

    /// Parses `bytes`, the head so far. `None`: it is not complete; the bytes are kept.
    fn take_head(&mut self, bytes: &[u8]) -> Option<State> {
        match &mut self.exchange {
            Some(exchange) if self.head_begun => exchange.stamp(Stage::Receive),
            _ => self.begin_head(),
        }
        let worker = Rc::clone(&self.worker);
        let exchange = self.exchange.as_mut().expect("begin_head took one");
        match exchange
            .request
            .head
            .parse(bytes, &worker.process().head_options)
        {
            Ok(Parsed::Partial) => {
                self.input.push(bytes);
                None
            }
            Ok(Parsed::Complete { length }) => {
                self.head_begun = false;
                self.input.push(&bytes[length..]);
                Some(self.begin_request())
            }
            Err(error) => {
                self.head_begun = false;
                self.input.release();
                let cause = format_args!("{}", error.reason.sentence());
                Some(self.refuse_head(bytes, error.status, cause))
            }
        }
    }

    /// Refuses a head of which `bytes` have been received.
    pub(super) fn refuse_head(
        &mut self,
        bytes: &[u8],
        status: Status,
        cause: std::fmt::Arguments<'_>,
    ) -> State {
        let exchange = self.exchange.as_mut().expect("begin_head took one");
        // Whose settings apply is not known; those of the last request would be wrong.
        exchange.settings = self.worker.base_settings();
        exchange.request.method = exchange.request.head.method();
        exchange.request.keep_refused_line(bytes);
        trace::refused_header(exchange, bytes);
        self.refuse(status, cause)
    }

    fn begin_head(&mut self) {
        let now = self.worker.clock().now();
        self.head_begun = true;
        self.begin_exchange().ledger.start(now);
        self.set_deadline(self.worker.base_settings().core.read_idle_s);
    }

    /// A complete head: what does the request obey, and may it have a body that long?
    fn begin_request(&mut self) -> State {
        let exchange = self.exchange.as_mut().expect("a head was parsed into it");
        exchange.receiving.due_s = 0;
        let request = &mut exchange.request;
        request.method = request.head.method();
        request
            .original_target
            .extend_from_slice(request.head.target());
        let options = &self.worker.process().url_options;
        if let Err(error) = request
            .url
            .parse(request.head.target(), request.method, options)
        {
            exchange.settle(&self.scope);
            trace::request_header(exchange);
            return self.refuse(
                Status::BAD_REQUEST,
                format_args!("the URL is refused: {error}"),
            );
        }
        exchange.settle(&self.scope);
        trace::request_header(exchange);
        self.know_local_address();
        let exchange = self.exchange.as_mut().expect("it is still there");
        let body_bytes_max = exchange.settings.core.body_bytes_max;
        let framing = exchange.request.head.framing();
        let expects = exchange.request.head.expects_continue();
        exchange.receiving.begin(framing, body_bytes_max, expects);
        if exchange.receiving.is_finished() {
            exchange.request.body.complete();
        }
        match (framing, body_bytes_max) {
            (BodyFraming::Length(length), Some(max)) if length > max => {
                let cause =
                    format_args!("the body of {length} bytes is over server.max-request-size");
                self.refuse(Status::CONTENT_TOO_LARGE, cause)
            }
            _ => {
                exchange.stamp(Stage::Parse);
                State::Walk
            }
        }
    }

    /// Receives the request body. `None` when it is complete.
    pub(super) fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Option<State>> {
        if !ready!(self.poll_send_continue(context)) {
            return Poll::Ready(Some(State::Over));
        }
        let polled = self.poll_rest_of_body(context);
        let exchange = self.exchange.as_mut().expect("a request is under way");
        exchange.receiving.has_waited |= polled.is_pending();
        match ready!(polled) {
            Ok(true) => {
                exchange.request.body.complete();
                if exchange.receiving.has_waited {
                    exchange.stamp(Stage::RequestBody);
                }
                Poll::Ready(self.refuse_unkept_body())
            }
            Ok(false) => {
                self.abort(format_args!(
                    "the client left before the request body was complete"
                ));
                Poll::Ready(Some(State::Over))
            }
            Err(error) => {
                let cause = format_args!("{}", error.reason.sentence());
                Poll::Ready(Some(self.refuse(error.status, cause)))
            }
        }
    }

    /// Goes on receiving a body that is passed on while it comes, as far as there is room for it.
    /// Ready when the exchange has something new to look at.
    pub(super) fn poll_streamed_body(&mut self, context: &mut Context<'_>) -> Poll<Streamed> {
        let exchange = self.exchange.as_mut().expect("a request is under way");
        let body = &mut exchange.request.body;
        if !body.is_streamed() || exchange.receiving.is_finished() || body.failure().is_some() {
            return Poll::Pending;
        }
        ready!(body.poll_room(context));
        if body.failure().is_some() {
            return Poll::Ready(Streamed::Gone);
        }
        if !ready!(self.poll_send_continue(context)) {
            return Poll::Ready(Streamed::Gone);
        }
        let worker = Rc::clone(&self.worker);
        let mut is_end = false;
        if self.input.is_empty() {
            let receiving = &mut self
                .exchange
                .as_mut()
                .expect("a request is under way")
                .receiving;
            ready!(receiving.turn.poll(context));
            let mut buffer = worker.receive_buffer.borrow_mut();
            let polled = self.transport.poll_read(context, &mut buffer);
            if polled.is_pending() {
                receiving.turn.waits();
            }
            match ready!(polled) {
                Ok(0) => is_end = true,
                Ok(count) => {
                    self.input.push(&buffer[..count]);
                    receiving.moved(count as u64);
                }
                Err(_) => return Poll::Ready(Streamed::Gone),
            }
        }
        let exchange = self.exchange.as_mut().expect("a request is under way");
        let read_idle_s = exchange.settings.core.read_idle_s;
        let streamed = match exchange.take_streamed(self.input.buffer(), is_end) {
            Ok(true) => Streamed::More,
            Ok(false) => Streamed::Gone,
            Err(error) => Streamed::Malformed(error),
        };
        let due_s = self.due_after(read_idle_s);
        let exchange = self.exchange.as_mut().expect("a request is under way");
        exchange.receiving.due_s = due_s;
        Poll::Ready(streamed)
    }

    /// Whether the next byte is the client's to send, for a body that is passed on while it comes.
    pub(super) fn waits_for_streamed_body(&self) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| {
            let body = &exchange.request.body;
            let is_tunnel = exchange.receiving.is_tunnel();
            let wants_more = body.is_streamed() && body.is_wanted() && body.has_room();
            wants_more && !is_tunnel && !exchange.receiving.is_finished()
        })
    }

    /// A body that there was no room for is not worked on.
    fn refuse_unkept_body(&mut self) -> Option<State> {
        let exchange = self.exchange.as_ref().expect("a request is under way");
        let failure = exchange.request.body.failure()?;
        let cause = format!("the request body cannot be kept: {failure}");
        Some(self.refuse(status_of_failure(failure), format_args!("{cause}")))
    }

    /// Throws away what is left of a body after the answer.
    pub(super) fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<State> {
        match ready!(self.poll_rest_of_body(context)) {
            Ok(true) => {
                self.reset_for_next_request();
                Poll::Ready(State::Head)
            }
            Ok(false) => Poll::Ready(State::Over),
            Err(_) => {
                // It cannot be read on, and the client may not have the whole answer yet.
                self.transport.shutdown_write();
                Poll::Ready(State::Linger)
            }
        }
    }

    /// Reads until the client closes, so that it gets the answer before it can see a reset.
    pub(super) fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<State> {
        self.input.release();
        let worker = Rc::clone(&self.worker);
        let mut buffer = worker.receive_buffer.borrow_mut();
        loop {
            match ready!(self.transport.poll_read(context, &mut buffer)) {
                Ok(0) | Err(_) => return Poll::Ready(State::Over),
                Ok(_) => {}
            }
        }
    }

    /// Feeds the decoder from the connection. True: the body is complete; false: the client left.
    fn poll_rest_of_body(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, BodyError>> {
        let worker = Rc::clone(&self.worker);
        let now_s = worker.clock().seconds();
        loop {
            let exchange = self.exchange.as_mut().expect("a request is under way");
            exchange.receiving.pace.stop(now_s);
            let used = exchange.take_body(&self.input)?;
            self.input.used(used);
            let is_finished = exchange.receiving.is_finished();
            ready!(self.poll_disk(is_finished, context));
            let exchange = self.exchange.as_mut().expect("a request is under way");
            if is_finished || exchange.request.body.failure().is_some() {
                return Poll::Ready(Ok(true));
            }
            ready!(exchange.receiving.turn.poll(context));
            let read_idle_s = exchange.settings.core.read_idle_s;
            let mut buffer = worker.receive_buffer.borrow_mut();
            match self.transport.poll_read(context, &mut buffer) {
                Poll::Ready(Ok(count)) if count > 0 => {
                    exchange.receiving.moved(count as u64);
                    self.input.push(&buffer[..count]);
                }
                Poll::Ready(_) => return Poll::Ready(Ok(false)),
                Poll::Pending => {
                    exchange.receiving.turn.waits();
                    let rate = exchange.settings.core.read_rate_min;
                    let due_s = exchange.receiving.pace.wait(now_s, rate);
                    if let (Some(deadline), Some(due_s)) = (self.deadline, due_s) {
                        worker.deadlines.lower(deadline, due_s);
                    }
                    return Poll::Pending;
                }
            }
            if self.state != State::Discard {
                self.set_deadline(read_idle_s);
            }
        }
    }

    /// Waits until the disk has taken enough for more to be received, or for the body to be complete. The
    /// client's time does not run meanwhile; the disk's is limited by the spool.
    fn poll_disk(&mut self, is_finished: bool, context: &mut Context<'_>) -> Poll<()> {
        let exchange = self.exchange.as_mut().expect("a request is under way");
        let body = &mut exchange.request.body;
        let polled = match is_finished {
            true => body.poll_written(context),
            false => body.poll_room(context),
        };
        let waited = std::mem::replace(&mut exchange.receiving.waits_for_disk, polled.is_pending());
        match (waited, polled) {
            (_, Poll::Pending) => self.no_deadline(),
            (true, Poll::Ready(())) => {
                let exchange = self.exchange.as_ref().expect("a request is under way");
                self.set_deadline(exchange.settings.core.read_idle_s);
            }
            (false, Poll::Ready(())) => {}
        }
        polled
    }

    /// Tells a waiting client that its body is welcome. False: the client is gone.
    fn poll_send_continue(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let exchange = self.exchange.as_mut().expect("a request is under way");
        if exchange.receiving.waits_for_continue && !exchange.interim.is_empty() {
            // Behind what the client has not taken yet.
            exchange.receiving.waits_for_continue = false;
            exchange.interim.extend_from_slice(CONTINUE);
        }
        if std::mem::take(&mut exchange.receiving.waits_for_continue) && self.input.is_empty() {
            // 25 bytes into an empty send buffer, unless the client does not read at all.
            match self.transport.poll_write(context, CONTINUE) {
                Poll::Ready(Ok(count)) if count == CONTINUE.len() => {}
                Poll::Ready(_) => return Poll::Ready(false),
                Poll::Pending => {
                    exchange.receiving.waits_for_continue = true;
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(true)
    }
}

/// What became of waiting for more of a streamed body.
pub(super) enum Streamed {
    /// There is more, or the body is complete.
    More,
    /// The client left before the body was complete, or the tunnel's client is gone.
    Gone,
    /// What it sends is no body.
    Malformed(BodyError),
}

/// What the client is told when its body cannot be kept: the disk is full, or broken.
pub(super) fn status_of_failure(failure: &std::io::Error) -> Status {
    match failure.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            Status::INSUFFICIENT_STORAGE
        }
        std::io::ErrorKind::TimedOut => Status::GATEWAY_TIMEOUT,
        // No descriptor is left for a temporary file.
        std::io::ErrorKind::ResourceBusy => Status::SERVICE_UNAVAILABLE,
        _ => Status::INTERNAL_SERVER_ERROR,
    }
}

impl Exchange {
    /// Takes what came of a streamed body out of `input`. False: the client ended too early.
    fn take_streamed(&mut self, input: &mut Vec<u8>, is_end: bool) -> Result<bool, BodyError> {
        if self.receiving.is_tunnel() {
            let directories = &self.worker.process().upload_directories;
            let client = self.connection.client_key();
            self.request.body.receive(input, directories, client);
            input.clear();
            if is_end {
                self.receiving.tunnel = Some(TunnelEnd::Ended);
            }
        } else if is_end {
            return Ok(false);
        } else {
            let used = self.take_body(input)?;
            input.drain(..used);
        }
        if self.receiving.is_finished() {
            self.request.body.complete();
        }
        Ok(self.request.body.failure().is_none())
    }

    /// Decodes body bytes out of `input`; the number of bytes used.
    fn take_body(&mut self, input: &[u8]) -> Result<usize, BodyError> {
        let Some(decoder) = &mut self.receiving.decoder else {
            return Ok(0);
        };
        let mut used = 0;
        loop {
            let decoded = decoder.decode(&input[used..])?;
            let begin = used;
            used += decoded.consumed;
            match decoded.piece {
                Piece::Data(range) => {
                    self.request.body_bytes += range.len() as u64;
                    self.request.body.receive(
                        &input[begin + range.start..begin + range.end],
                        &self.worker.process().upload_directories,
                        self.connection.client_key(),
                    );
                }
                Piece::NeedMore | Piece::End => return Ok(used),
            }
        }
    }
}
