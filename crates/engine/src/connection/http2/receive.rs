//! Handles received frames.

use petrel_proto::http2::{AfterFrame, Http2Error, Http2Event, Lent, StreamKey};
use petrel_proto::method::Method;
use petrel_proto::request_head::{BodyFraming, HeadError};

use super::Http2;
use super::stream::{Http2Stream, Side};
use crate::cause::CauseCode;
use crate::connection::link::Link;
use crate::ledger::{Nanos, Stage};
use crate::run::ExchangeRun;
use crate::trace;

impl Http2 {
    /// Handles all of `input`.
    pub(super) fn take_input(&mut self, input: &[u8], link: &mut Link) {
        if self.ending.has_failed() {
            return;
        }
        self.insert_upgraded();
        let now = link.worker.clock().now();
        let mut next = None;
        let mut position = 0;
        while position < input.len() {
            let run = next.get_or_insert_with(|| Http2::next_run(link));
            let mut lent = Lent {
                head: &mut run.request.head,
                head_options: &self.head_options,
                trailers: &mut self.trailers,
                now_s: link.worker.clock().seconds(),
            };
            let decoded = match self.protocol.step(&input[position..], &mut lent) {
                Ok(decoded) => decoded,
                Err(error) => return self.fail(error, link),
            };
            let begin = position;
            position += decoded.consumed;
            match decoded.event {
                Http2Event::NeedMore => break,
                Http2Event::Request { stream, body } => {
                    if let Some(run) = next.take() {
                        self.begin_request(stream, run, body, now, link);
                    }
                }
                Http2Event::Refused {
                    stream,
                    error,
                    body,
                } => {
                    if let Some(run) = next.take() {
                        self.refuse_head(stream, run, error, body, now, link);
                    }
                }
                Http2Event::Data {
                    stream,
                    range,
                    after,
                } => {
                    let bytes = &input[begin + range.start..begin + range.end];
                    self.receive_body(stream, bytes, after);
                }
                Http2Event::Trailers { stream } => {
                    let trailers = std::mem::take(&mut self.trailers);
                    match self.stream(stream) {
                        Some(stream) => stream.receive_end(trailers.as_bytes()),
                        None => self.discard(stream, 0, AfterFrame::EndOfStream),
                    }
                    self.trailers = trailers;
                    self.due.insert(stream.slot());
                }
                Http2Event::Reset { stream, .. } => {
                    self.lose(stream, "the client has reset the HTTP/2 stream");
                }
                Http2Event::StreamError { stream, error, .. } => {
                    match stream {
                        Some(stream) => self.lose(stream, error.sentence()),
                        // A stream too many is not logged: the client may not have seen our SETTINGS yet.
                        None if error == petrel_proto::http2::StreamError::TooMany => {}
                        None => link.log_common("read-head", error.sentence()),
                    }
                }
                Http2Event::PingAnswered => self.is_heard_of(),
                Http2Event::GoAway { .. } => self.ending.client_goes = true,
            }
            if !self.protocol.is_in_block() {
                self.end_block();
            }
        }
        match self.protocol.is_in_block() {
            true => self.block_began = self.block_began.or(Some(now)),
            false => self.end_block(),
        }
    }

    /// No header block is incomplete: the next one gets the whole time.
    fn end_block(&mut self) {
        self.block_began = None;
        self.ending.ends_block();
    }

    /// Begins a request whose head is complete: finds its settings, and checks the announced length of its
    /// body.
    fn begin_request(
        &mut self,
        key: StreamKey,
        run: ExchangeRun,
        body: AfterFrame,
        now: Nanos,
        link: &mut Link,
    ) {
        let mut run = self.begin_run(run, now, link);
        if let Err(error) = run.begin(&link.scope) {
            let cause = format_args!("the URL is refused: {error}");
            run.refuse_head(Stage::Parse, CauseCode::UrlMalformed, cause);
        } else {
            run.refuse_misdirected();
        }
        link.know_local_address(&mut run);
        let framing = run.request.head.framing();
        // The head of a GET does not say whether the client only ends its request late, or sends a body that
        // is not allowed.
        let may_end_late = body == AfterFrame::More
            && framing == BodyFraming::None
            && run.request.head.method() != Method::Connect
            && !run.is_refused();
        if body == AfterFrame::EndOfStream || framing == BodyFraming::None && !may_end_late {
            run.complete_body();
        }
        let is_allowed = match framing {
            BodyFraming::Length(length) => run.is_refused() || run.allows_body(length),
            // The length is checked while the body comes.
            BodyFraming::None | BodyFraming::Chunked => true,
        };
        if is_allowed {
            run.stamp_begin();
        }
        self.look_at_request_count(&run, link);
        let mut stream = Http2Stream::new(key, run, body);
        if may_end_late {
            stream.waits_for_end();
        }
        self.insert(stream);
    }

    fn refuse_head(
        &mut self,
        key: StreamKey,
        run: ExchangeRun,
        error: HeadError,
        body: AfterFrame,
        now: Nanos,
        link: &mut Link,
    ) {
        let mut run = self.begin_run(run, now, link);
        // The host is not known, so the settings outside all conditions apply. The pooled exchange has those
        // of another request.
        run.settings = run.worker.base_settings();
        let head = &run.request.head;
        let version = head.version().as_str().as_bytes();
        let line = [head.method_bytes(), b" ", head.target(), b" ", version].concat();
        run.request.method = head.method();
        run.request.keep_refused_line(&line);
        trace::refused_header(&run, &line);
        let cause = CauseCode::of_head(error);
        run.refuse_head(Stage::Parse, cause, format_args!("{error}"));
        self.look_at_request_count(&run, link);
        self.insert(Http2Stream::new(key, run, body));
    }

    /// Starts the clock of a request, at the first byte of its head.
    fn begin_run(&mut self, mut run: ExchangeRun, now: Nanos, link: &mut Link) -> ExchangeRun {
        link.facts.request_number += 1;
        run.connection.request_number = link.facts.request_number;
        let began = self.block_began.take();
        match began {
            Some(began) => {
                run.ledger.start(began);
                run.stamp_wait(Stage::ReadHead, |_, text| {
                    text.write_str("the client sent the head in pieces");
                });
                run.count_handshake();
            }
            None => run.start_ledger(now),
        }
        run
    }

    fn receive_body(&mut self, key: StreamKey, bytes: &[u8], after: AfterFrame) {
        let keeps_alive = self.ending.is_open();
        let slot = self.slots.get_mut(key.slot());
        let stream = slot.and_then(|slot| slot.stream.as_mut());
        if let Some(stream) = stream.filter(|stream| stream.key == key) {
            let mut side = Side {
                protocol: &mut self.protocol,
                queue: &mut self.queue,
                keeps_alive,
                streams: self.open,
            };
            stream.receive(bytes, after, &mut side);
            self.due.insert(key.slot());
        } else {
            self.discard(key, bytes.len(), after);
        }
    }

    /// Throws away bytes of a request that is already answered.
    fn discard(&mut self, key: StreamKey, count: usize, after: AfterFrame) {
        self.protocol.discarded(key, count as u32);
        if after == AfterFrame::EndOfStream {
            self.discarded.retain(|body| body.key != key);
            self.protocol.release(key);
        }
    }

    /// Ends a stream that the client has reset, or that RST_STREAM is queued for.
    fn lose(&mut self, key: StreamKey, cause: &str) {
        if let Some(stream) = self.stream(key) {
            stream.abort(format_args!("{cause}"));
            self.forget(key.slot());
        } else {
            self.discarded.retain(|body| body.key != key);
            self.protocol.release(key);
        }
    }

    /// Ends the connection because the client has broken the protocol or exceeded a limit. GOAWAY says why.
    pub(super) fn fail(&mut self, error: Http2Error, link: &Link) {
        link.worker.shared().http2().count(error);
        link.log_common("read-head", error.sentence());
        self.leave(error.sentence());
        self.ending.fail();
    }
}
