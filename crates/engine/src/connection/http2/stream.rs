//! One stream: the request on its way through the hooks, the body of the request, and the frames of the
//! answer.
//!
//! A stream knows its frames, and neither the socket nor other streams. Each of its steps returns a
//! [`Course`], which says what the connection must do for it.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow::{self, Break, Continue};
use std::task::{Context, Poll, ready};

use petrel_proto::header_block::HeaderBlock;
use petrel_proto::http2::{
    AfterFrame, ErrorCode, FRAME_HEADER_BYTES, Http2Connection, StreamKey, USEFUL_BYTES,
};
use petrel_proto::method::Method;
use petrel_proto::request_head::{BodyFraming, HeadError};
use petrel_proto::status::Status;
use petrel_proto::trailers;

use super::super::link::Link;
use super::send_queue::SendQueue;
use crate::blocking::Late;
use crate::body::{Body, InMemory, Piece};
use crate::cause::CauseCode;
use crate::deadlines::Deadlines;
use crate::exchange::holders;
use crate::ledger::{Nanos, Stage};
use crate::limits;
use crate::pace::ClientPace;
use crate::phase::Walked;
use crate::run::{AnswerHead, ExchangeRun};
use crate::trace;
use crate::worker::Cut;

/// A request and its answer.
pub(super) struct Http2Stream {
    pub(super) key: StreamKey,
    pub(super) run: ExchangeRun,
    phase: StreamPhase,
    inbox: Inbox,
    /// The head of the answer, until it is written: so long another answer can take its place.
    head: Option<AnswerHead>,
    /// The reader of a body that is a file and not in memory.
    memory: Option<Box<InMemory>>,
    /// The next bytes of the answer's body.
    piece: Option<Piece>,
    /// The stream waits for the backend, script or disk that makes the next piece.
    waits_for_maker: bool,
    /// The deadline of the stream, in seconds.
    pub(super) due_s: u32,
    /// The second in which more of the request body must have come, while a hook waits for all of it.
    body_due_s: u32,
    /// The second in which the client must have opened a window; 0: the stream does not wait for one.
    write_due_s: u32,
    /// The end of the last frame of the answer, as [`SendQueue::end`] counts.
    sent_end: u64,
    /// The second of that wait from which on a DATA frame of any length is sent.
    small_due_s: u32,
    /// The stage of the present wait for the client or a bandwidth limit.
    waits_in: Option<Stage>,
    /// A hook of the request has run, or was about to.
    has_run: bool,
    /// How fast the client opens windows.
    pace: ClientPace,
    /// Why the stream must end although a part of the answer is sent.
    lost: Option<String>,
}

/// The phase of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamPhase {
    /// The hooks run.
    Walk,
    /// A hook waits for the whole request body.
    WantedBody,
    /// The answer is being made and sent.
    Answer,
    /// All frames of the answer are in the queue. The client's side of a tunnel may go on.
    Sent,
}

/// The part of a request body that has come and was not taken by a hook or backend.
#[derive(Default)]
struct Inbox {
    held: VecDeque<u8>,
    /// The trailers of the request.
    trailers: HeaderBlock,
    /// The client has ended the request.
    is_over: bool,
    /// The client waits for "100 Continue".
    waits_for_continue: bool,
    /// A hook had to wait for the body.
    has_waited: bool,
}

/// The parts of the connection that streams use.
pub(super) struct Side<'c> {
    pub(super) protocol: &'c mut Http2Connection,
    pub(super) queue: &'c mut SendQueue,
    /// The connection stays open after the answer.
    pub(super) keeps_alive: bool,
    /// How many streams the connection has.
    pub(super) streams: usize,
}

/// What the connection must do for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// Nothing: the stream waits for a waker, for the client, or for its turn to send.
    Waits,
    /// Poll the stream again when the queue has room.
    NeedsRoom,
    /// Call [`Http2Stream::finish`] when everything that is in the queue now is sent.
    Ended,
    /// Drop the stream, which is logged.
    Gone,
}

/// The result of a step: go on with the next step, or return to the connection.
type StreamStep = ControlFlow<Course>;

impl Http2Stream {
    /// A stream with a complete head. `after` says whether a body follows.
    pub(super) fn new(key: StreamKey, run: ExchangeRun, after: AfterFrame) -> Http2Stream {
        let inbox = Inbox {
            is_over: after == AfterFrame::EndOfStream,
            waits_for_continue: run.request.head.expects_continue(),
            ..Inbox::default()
        };
        Http2Stream {
            key,
            run,
            phase: StreamPhase::Walk,
            inbox,
            head: None,
            memory: None,
            piece: None,
            waits_for_maker: false,
            due_s: Deadlines::NEVER,
            body_due_s: Deadlines::NEVER,
            write_due_s: 0,
            sent_end: 0,
            small_due_s: Deadlines::NEVER,
            waits_in: None,
            has_run: false,
            pace: ClientPace::default(),
            lost: None,
        }
    }

    /// The hooks run when the client has ended the request, which must have no body.
    pub(super) fn waits_for_end(&mut self) {
        self.renew_body_due();
        self.phase = StreamPhase::WantedBody;
    }

    /// Other streams of the connection ran while this one, which has just begun, was ready.
    pub(super) fn lags(&mut self) {
        if !std::mem::replace(&mut self.has_run, true) {
            self.run.stamp(Stage::Lag);
        }
    }

    /// Does all steps that are possible now.
    pub(super) fn advance(&mut self, side: &mut Side<'_>, context: &mut Context<'_>) -> Course {
        self.due_s = Deadlines::NEVER;
        self.has_run = true;
        loop {
            if let Some(cause) = self.lost.take() {
                return self.lose(side, &cause, ErrorCode::Cancel);
            }
            let next = match self.phase {
                StreamPhase::Walk => self.walk(side, context),
                StreamPhase::WantedBody => self.take_whole_body(side, context),
                StreamPhase::Answer => self.make_answer(side, context),
                StreamPhase::Sent => self.rest_of_tunnel(side, context),
            };
            if let Break(course) = next {
                return course;
            }
        }
    }

    fn walk(&mut self, side: &mut Side<'_>, context: &mut Context<'_>) -> StreamStep {
        match self.run.poll_answer(context) {
            Poll::Ready(Walked::NeedBody) => {
                // The time up to here belongs to the hooks, not to receiving the body.
                let stage = self.run.stage();
                self.run.stamp(stage);
                self.renew_body_due();
                self.phase = StreamPhase::WantedBody;
            }
            Poll::Ready(Walked::Answered) => {
                let is_tunnel_wanted = self.run.request.head.method() == Method::Connect;
                // A client takes a 2xx answer to CONNECT for the beginning of its tunnel.
                let is_misleading = !self.run.is_tunnel() && self.run.response.status.0 < 300;
                if is_tunnel_wanted
                    && is_misleading
                    && self.run.replace_answer(CauseCode::TunnelRefused)
                {
                    return Continue(());
                }
                self.write_interim(side);
                self.head = Some(self.run.answer_head());
                // There is an answer, so a client that waits for "100 Continue" gets none.
                self.inbox.waits_for_continue = false;
                self.phase = StreamPhase::Answer;
            }
            Poll::Pending => {
                self.run.stop_body_pace();
                self.write_interim(side);
                if !self.feed(side, context) {
                    self.due_s = self.run.due_s();
                    return Break(Course::Waits);
                }
            }
        }
        Continue(())
    }

    /// The deadline has passed. `taken_bytes` is how much of what was sent the client has acknowledged. If the
    /// client is late, the request is refused or the stream reset. Otherwise the hook or backend that waits is
    /// polled, and checks its own deadline.
    pub(super) fn time_out(
        &mut self,
        side: &mut Side<'_>,
        context: &mut Context<'_>,
        now_s: u32,
        taken_bytes: u64,
    ) -> Course {
        // A client opens no window for what it has not got: other answers may stand before it.
        if taken_bytes < self.sent_end {
            self.write_due_s = 0;
            self.pace = ClientPace::default();
        }
        match self.phase {
            StreamPhase::Walk if self.run.is_body_late() => self.refuse_late_body(),
            StreamPhase::WantedBody if self.is_whole_body_late(now_s) => self.refuse_late_body(),
            StreamPhase::Answer if self.waits_for_maker && self.run.is_body_late() => {
                let cause = self.run.lateness_of_body();
                self.run
                    .log_error(Stage::RequestBody.name(), format_args!("{cause}"));
                return self.lose(side, &cause, ErrorCode::Cancel);
            }
            StreamPhase::Answer if self.is_late_reader(side, now_s) => {
                let cause = "the client opened no HTTP/2 window for too long";
                return self.lose(side, cause, ErrorCode::Cancel);
            }
            StreamPhase::Answer if self.may_send_little(side, now_s) => {
                side.protocol.mark_ready(self.key, 1);
                self.due_s = Deadlines::NEVER;
                return Course::Waits;
            }
            _ => {}
        }
        self.advance(side, context)
    }

    /// Gives up the answer: logs it as incomplete and resets the stream.
    pub(super) fn lose(&mut self, side: &mut Side<'_>, cause: &str, code: ErrorCode) -> Course {
        self.abort(format_args!("{cause}"));
        side.protocol.reset(self.key, code);
        Course::Gone
    }

    /// Logs the answer as incomplete.
    pub(super) fn abort(&mut self, cause: std::fmt::Arguments<'_>) {
        let stage = self.stage();
        let for_maker = std::mem::take(&mut self.waits_for_maker);
        self.run.abandon(stage, for_maker);
        self.run.note_slow_client(|| None);
        self.run.abort(stage, cause);
    }

    /// The server process ends. A client that has got nothing of its answer gets 503, others a reset.
    pub(super) fn cut_off(&mut self, side: &mut Side<'_>, why: Cut) -> Course {
        if self.run.is_refused() || self.phase == StreamPhase::Sent && !self.run.is_tunnel() {
            return Course::Waits;
        }
        self.log_cut(why);
        let stage = self.stage();
        match self.phase {
            StreamPhase::Walk | StreamPhase::WantedBody => {
                self.run.refuse_quietly(stage, CauseCode::ServerStopping);
            }
            StreamPhase::Answer
                if self.head.is_some() && self.run.replace_answer(CauseCode::ServerStopping) => {}
            StreamPhase::Answer | StreamPhase::Sent => {
                return self.lose(side, why.sentence(), ErrorCode::InternalError);
            }
        }
        self.begin_anew(side);
        Course::Waits
    }

    /// Logs a stream that is dropped because the server process ends.
    pub(super) fn tell_dropped(&mut self, why: Cut) {
        if !self.run.is_refused() {
            self.log_cut(why);
        }
        self.abort(format_args!("{}", why.sentence()));
    }

    fn log_cut(&self, why: Cut) {
        let stage = match self.phase {
            StreamPhase::Walk => Stage::Content,
            StreamPhase::WantedBody => Stage::RequestBody,
            StreamPhase::Answer | StreamPhase::Sent => Stage::Send,
        };
        let cause = format_args!("{}: {}", self.run.loss(), why.sentence());
        self.run.log_error(stage.name(), cause);
    }

    /// Everything of the answer is sent. Returns false for a tunnel whose client has not ended its side.
    pub(super) fn finish(&mut self, now: Nanos, link: &Link) -> bool {
        let is_over = !self.run.is_tunnel() || self.is_tunnel_over();
        if is_over {
            if let Some(stage) = self.waits_in.take() {
                self.run.ledger.stamp(stage, now);
            }
            self.run.note_slow_client(|| link.transport.tcp_path());
            self.run.finish_at(now);
        }
        is_over
    }

    /// Whether the client has ended its request.
    pub(super) fn is_received(&self) -> bool {
        self.inbox.is_over
    }

    /// The stage to which the time since the last stamp belongs.
    fn stage(&self) -> Stage {
        match self.phase {
            StreamPhase::Walk => self.run.stage(),
            StreamPhase::WantedBody => Stage::RequestBody,
            StreamPhase::Answer if self.waits_for_maker => self.run.response.body.stage(),
            StreamPhase::Answer | StreamPhase::Sent => self.waits_in.unwrap_or(Stage::Send),
        }
    }

    /// The name of the phase, for `debug.log-state-handling`.
    pub(super) fn phase_name(&self) -> &'static str {
        match self.phase {
            StreamPhase::Walk => "Walk",
            StreamPhase::WantedBody => "WantedBody",
            StreamPhase::Answer => "Send",
            StreamPhase::Sent => "Sent",
        }
    }

    /// Starts again with another answer.
    fn begin_anew(&mut self, side: &mut Side<'_>) {
        self.head = None;
        self.memory = None;
        self.piece = None;
        self.waits_for_maker = false;
        self.phase = StreamPhase::Walk;
        side.protocol.mark_waiting(self.key);
    }
}

/// The request body.
impl Http2Stream {
    /// Bytes of the body have come.
    pub(super) fn receive(&mut self, bytes: &[u8], after: AfterFrame, side: &mut Side<'_>) {
        self.inbox.is_over |= after == AfterFrame::EndOfStream;
        self.run.body_moved(bytes.len() as u64);
        if self.phase == StreamPhase::WantedBody {
            self.renew_body_due();
        }
        let is_taken_now = self.phase == StreamPhase::WantedBody || self.run.takes_stream();
        if self.is_discarded() {
            side.protocol.discarded(self.key, bytes.len() as u32);
        } else if is_taken_now && self.inbox.held.is_empty() && self.run.request.body.has_room() {
            self.take(bytes, side);
        } else {
            self.inbox.held.extend(bytes);
        }
    }

    /// The body has ended with these trailers.
    pub(super) fn receive_end(&mut self, lines: &[u8]) {
        self.inbox.is_over = true;
        self.inbox.trailers = trailers::of_request(lines, &self.run.request.head);
    }

    /// Whether the rest of the body is thrown away: the request is refused, the hook or backend has given the
    /// body up, the answer's maker does not read it, or the answer is complete.
    fn is_discarded(&self) -> bool {
        let run = &self.run;
        let is_unwanted = match self.phase {
            StreamPhase::Walk | StreamPhase::WantedBody => false,
            StreamPhase::Answer => {
                !run.takes_stream() || !matches!(run.response.body, Body::Source(_))
            }
            StreamPhase::Sent => !run.is_tunnel() || !run.takes_stream(),
        };
        run.is_refused() || run.request.body.is_given_up() || is_unwanted
    }

    /// Throws held bytes away if nothing reads them, so that the connection's window opens for other streams.
    pub(super) fn discard(&mut self, side: &mut Side<'_>) {
        if self.is_discarded() && !self.inbox.held.is_empty() {
            let unwanted = std::mem::take(&mut self.inbox.held);
            side.protocol.discarded(self.key, unwanted.len() as u32);
        }
    }

    /// Passes bytes of the body on. Refuses the request if the body becomes too long.
    fn take(&mut self, bytes: &[u8], side: &mut Side<'_>) {
        side.protocol.consumed(self.key, bytes.len() as u32);
        let run = &mut self.run;
        let is_unexpected = run.body_framing() == BodyFraming::None && !run.is_tunnel();
        if is_unexpected && !bytes.is_empty() {
            let error = HeadError::BodyUnexpected;
            let cause = CauseCode::of_head(error);
            run.refuse(Stage::Parse, cause, format_args!("{error}"));
            self.begin_anew(side);
            return;
        }
        let length = run.request.body_bytes + bytes.len() as u64;
        let has_length = matches!(run.body_framing(), BodyFraming::Length(_));
        let bytes_max = run.settings.core.body_bytes_max;
        if run.is_tunnel() || has_length || bytes_max.is_none_or(|bytes_max| length <= bytes_max) {
            run.receive(bytes);
        } else if self.phase == StreamPhase::Answer && self.head.is_none() {
            // It is too late for another answer.
            self.lost = Some(format!(
                "the body of {length} bytes is over server.max-request-size"
            ));
        } else {
            run.allows_body(length);
            self.begin_anew(side);
            return;
        }
        self.run.renew_body_time();
    }

    /// Passes held bytes on to a hook or backend that reads the body while it comes, as far as it has room.
    /// Returns whether there is something new for it.
    fn feed(&mut self, side: &mut Side<'_>, context: &mut Context<'_>) -> bool {
        if !self.run.takes_stream() || self.run.request.body.is_complete() {
            return false;
        }
        self.ask_for_body(side);
        let mut has_fed = false;
        while !self.inbox.held.is_empty() && self.run.poll_room(context).is_ready() {
            if self.refuse_unkept_body(side) {
                return true;
            }
            let part = self.inbox.pop();
            self.take(&part, side);
            has_fed = true;
            if self.lost.is_some() || self.is_discarded() {
                return true;
            }
        }
        let is_received = self.inbox.held.is_empty() && self.inbox.is_over;
        if is_received && !self.run.request.body.is_complete() {
            let trailers = std::mem::take(&mut self.inbox.trailers);
            self.run.complete_body_with(trailers);
            has_fed = true;
        }
        has_fed
    }

    fn take_whole_body(&mut self, side: &mut Side<'_>, context: &mut Context<'_>) -> StreamStep {
        self.ask_for_body(side);
        self.write_interim(side);
        self.run.stop_body_pace();
        loop {
            let is_received = self.inbox.held.is_empty() && self.inbox.is_over;
            if self.run.poll_disk(is_received, context).is_pending() {
                // The spool waits for the disk, and has a deadline for that.
                self.inbox.has_waited = true;
                self.body_due_s = Deadlines::NEVER;
                return Break(Course::Waits);
            }
            if self.body_due_s == Deadlines::NEVER {
                self.renew_body_due();
            }
            if self.refuse_unkept_body(side) {
                return Continue(());
            }
            if is_received {
                self.run.complete_body();
                if self.inbox.has_waited {
                    self.run
                        .stamp_wait(Stage::RequestBody, holders::of_request_body);
                }
                self.phase = StreamPhase::Walk;
                return Continue(());
            }
            if self.inbox.held.is_empty() {
                self.inbox.has_waited = true;
                let slow_s = self.run.wait_for_body().unwrap_or(Deadlines::NEVER);
                self.due_s = self.body_due_s.min(slow_s);
                return Break(Course::Waits);
            }
            let part = self.inbox.pop();
            self.take(&part, side);
            if self.phase != StreamPhase::WantedBody {
                return Continue(());
            }
        }
    }

    /// Refuses the request if its body cannot be stored.
    fn refuse_unkept_body(&mut self, side: &mut Side<'_>) -> bool {
        let Some((cause, what)) = self.run.body_refusal() else {
            return false;
        };
        let stage = self.stage();
        if self.phase == StreamPhase::Answer && self.head.is_none() {
            // It is too late for another answer.
            self.lost = Some(what);
            return true;
        }
        self.run.refuse(stage, cause, format_args!("{what}"));
        self.begin_anew(side);
        true
    }

    fn refuse_late_body(&mut self) {
        let (stage, cause) = (self.stage(), self.run.lateness_of_body());
        let cause = format_args!("{cause}");
        self.run.refuse(stage, CauseCode::BodyTimeout, cause);
        self.phase = StreamPhase::Walk;
    }

    fn is_whole_body_late(&self, now_s: u32) -> bool {
        self.body_due_s <= now_s || self.run.is_body_slow()
    }

    fn renew_body_due(&mut self) {
        let clock = self.run.worker.clock();
        self.body_due_s = clock.after(self.run.settings.core.read_idle_s);
    }

    /// Sends "100 Continue" to a client that waits for it.
    fn ask_for_body(&mut self, side: &mut Side<'_>) {
        if std::mem::take(&mut self.inbox.waits_for_continue)
            && self.inbox.held.is_empty()
            && !self.inbox.is_over
        {
            let (protocol, out) = (&mut *side.protocol, &mut side.queue.bytes);
            let _ = protocol.write_interim(self.key, Status::CONTINUE, b"", out);
        }
    }
}

/// The answer.
impl Http2Stream {
    /// Writes interim answers.
    fn write_interim(&mut self, side: &mut Side<'_>) {
        while let Some(interim) = self.run.take_interim() {
            let (status, fields) = (interim.status, interim.fields.as_bytes());
            let (protocol, out) = (&mut *side.protocol, &mut side.queue.bytes);
            // Writes nothing if the stream is reset.
            let _ = protocol.write_interim(self.key, status, fields, out);
        }
    }

    fn make_answer(&mut self, side: &mut Side<'_>, context: &mut Context<'_>) -> StreamStep {
        if std::mem::take(&mut self.waits_for_maker) {
            let stage = self.run.response.body.stage();
            self.run.stamp_wait(stage, holders::of_content);
        }
        self.run.stop_body_pace();
        self.work_beside(side, context);
        if self.lost.is_some() || self.phase != StreamPhase::Answer {
            return Continue(());
        }
        if let Some(piece) = &self.piece {
            side.protocol.mark_ready(self.key, piece.length());
            return Break(Course::Waits);
        }
        if !side.queue.has_room() {
            self.wait_in(Stage::ClientDrain);
            return Break(Course::NeedsRoom);
        }
        if let Some(stage) = self.waits_in.take() {
            self.end_wait(stage);
        }
        let has_body = match &self.head {
            Some(head) => head.has_body || self.run.is_tunnel(),
            None => true,
        };
        if has_body && self.leaves_unread(side, side.protocol.send_room(self.key)) {
            self.write_head(AfterFrame::More, side);
            side.protocol.mark_ready(self.key, self.unread());
            return Break(Course::Waits);
        }
        let next = match has_body {
            true => self.poll_next(side, context),
            false => Poll::Ready(None),
        };
        match next {
            Poll::Ready(Some(Ok(piece))) => {
                self.write_head(AfterFrame::More, side);
                side.protocol.mark_ready(self.key, piece.length());
                self.piece = Some(piece);
                Break(Course::Waits)
            }
            Poll::Ready(None) => {
                self.end(side);
                Break(Course::Ended)
            }
            Poll::Ready(Some(Err(error))) => self.fail(&error, side),
            Poll::Pending => {
                self.wait_for_maker(side);
                Break(Course::Waits)
            }
        }
    }

    /// Writes one DATA frame: it is the turn of this stream.
    pub(super) fn send_frame(&mut self, side: &mut Side<'_>, context: &mut Context<'_>) -> Course {
        let wait = |stream: &mut Http2Stream, side: &mut Side<'_>| {
            side.protocol.mark_waiting(stream.key);
            stream.write_due_s = 0;
            Course::Waits
        };
        let wanted = match self.run.is_bandwidth_limited() {
            true => {
                let room = u64::from(side.protocol.send_room(self.key));
                self.ready_bytes().min(room) + FRAME_HEADER_BYTES as u64
            }
            false => u64::MAX,
        };
        let Some(allowed) = self.run.poll_allowance(wanted, context) else {
            // The bandwidth limit allows nothing now, and wakes the stream later.
            self.wait_in(Stage::Throttle);
            return wait(self, side);
        };
        if self.piece.is_none() {
            let next = self.poll_next(side, context);
            let course = self.take_next(next, side);
            if course != Course::Waits {
                return course;
            }
        }
        let Some(mut piece) = self.piece.take() else {
            return wait(self, side);
        };
        if let Some(stage) = self.waits_in.take() {
            self.end_wait(stage);
        }
        let window = side.protocol.window_room(self.key);
        let longest = (side.protocol.send_room(self.key)).min(limits::HTTP2_DATA_BYTES_MAX);
        let mut length = piece.length().min(u64::from(longest)).min(allowed);
        let useful = u64::from(USEFUL_BYTES);
        let room = u64::from(window) - length;
        if (1..useful).contains(&room) && length > useful && piece.length() + self.unread() > length
        {
            // What the window has left behind the frame would be too little for another one.
            length -= useful - room;
        }
        // The length fits: it is at most `longest`.
        let count = length as u32;
        let mut next = None;
        let is_used_up = piece.length() == length;
        let leaves_unread = is_used_up && self.leaves_unread(side, window - count);
        if is_used_up && !leaves_unread {
            next = Some(self.poll_next(side, context));
        }
        let mut trailers = HeaderBlock::new();
        let mut after = AfterFrame::More;
        if let Some(Poll::Ready(None)) = next {
            trailers = self.run.take_trailers();
            after = before_trailers(&trailers);
        }
        let written =
            side.protocol
                .write_data_header(self.key, count, after, &mut side.queue.bytes);
        debug_assert_eq!(written, petrel_proto::http2::Written::Yes);
        append(&piece, count as usize, side.queue);
        let framed = length + FRAME_HEADER_BYTES as u64;
        self.run.account(framed, length);
        self.has_sent(length, side);
        match next {
            None if leaves_unread => {
                side.protocol.mark_ready(self.key, self.unread());
                Course::Waits
            }
            None => {
                piece.advance(length);
                side.protocol.mark_ready(self.key, piece.length());
                self.piece = Some(piece);
                Course::Waits
            }
            Some(Poll::Ready(None)) => {
                self.write_trailers(&trailers, side);
                self.phase = StreamPhase::Sent;
                Course::Ended
            }
            Some(next) => self.take_next(next, side),
        }
    }

    /// Goes on with the next piece, while the head is written.
    fn take_next(&mut self, next: Poll<Option<io::Result<Piece>>>, side: &mut Side<'_>) -> Course {
        match next {
            Poll::Ready(Some(Ok(next))) => {
                side.protocol.mark_ready(self.key, next.length());
                self.piece = Some(next);
                Course::Waits
            }
            Poll::Ready(None) => {
                side.protocol.mark_waiting(self.key);
                self.end(side);
                Course::Ended
            }
            Poll::Ready(Some(Err(error))) => {
                side.protocol.mark_waiting(self.key);
                match self.fail(&error, side) {
                    Break(course) => course,
                    // The head is written, so another answer cannot take its place.
                    Continue(()) => Course::Gone,
                }
            }
            Poll::Pending => {
                side.protocol.mark_waiting(self.key);
                self.wait_for_maker(side);
                Course::Waits
            }
        }
    }

    /// Whether the next part of the body stays where it is until the stream can send it: with many streams,
    /// or a window without room, the parts that wait would take memory. A source is asked in any case,
    /// because it works while it is asked.
    fn leaves_unread(&self, side: &Side<'_>, room: u32) -> bool {
        let is_source = matches!(self.run.response.body, Body::Source(_));
        !is_source && (room == 0 || side.streams > READING_STREAMS_MAX) && self.unread() > 0
    }

    /// Bytes of the body that have not been read.
    fn unread(&self) -> u64 {
        let begun = self.memory.as_ref().map_or(0, |memory| memory.remaining());
        begun + self.run.response.body.length().unwrap_or(0)
    }

    /// Bytes of the body for which the stream need not wait for a source.
    fn ready_bytes(&self) -> u64 {
        let unread = match self.run.response.body {
            Body::Source(_) => 0,
            _ => self.unread(),
        };
        self.piece.as_ref().map_or(0, Piece::length) + unread
    }

    /// Lets the source of the answer's body work: it may take the request body, or read ahead.
    fn work_beside(&mut self, side: &mut Side<'_>, context: &mut Context<'_>) {
        if matches!(self.run.response.body, Body::Source(_)) {
            self.run.work(context);
            while self.feed(side, context) && self.lost.is_none() {
                self.run.work(context);
            }
        }
    }

    /// The next piece of the answer's body, read into memory.
    fn poll_next(
        &mut self,
        side: &Side<'_>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Piece>>> {
        let room = side.protocol.send_room(self.key);
        let is_little = side.streams > READING_STREAMS_MAX || room < limits::HTTP2_DATA_BYTES_MAX;
        let bytes_max = match is_little {
            true => room.clamp(READ_BYTES_MIN, limits::HTTP2_DATA_BYTES_MAX) as usize,
            false => limits::CHUNK_BYTES_FIRST,
        };
        if let Some(memory) = &mut self.memory {
            memory.read_at_most(bytes_max);
            return self.run.poll_in_memory(memory, context);
        }
        let next = ready!(self.run.poll_piece(context));
        match next {
            Some(Ok(Piece::File { file, range })) if file.content().is_none() => {
                let first = match range.start < limits::FIRST_READ_BYTES_MAX {
                    true => self.run.cold.take_first(&file),
                    false => None,
                };
                let mut reader = self.run.file_reader();
                if let Some(first) = first {
                    reader.give_first(&file, first);
                }
                let piece = Piece::File { file, range };
                let memory = Box::new(InMemory::beginning_with(piece, reader));
                let memory = self.memory.insert(memory);
                memory.read_at_most(bytes_max);
                self.run.poll_in_memory(memory, context)
            }
            other => Poll::Ready(other),
        }
    }

    /// Waits for the next piece. No deadline of the client runs: disks and backends have their own.
    fn wait_for_maker(&mut self, side: &mut Side<'_>) {
        let waits_for_disk = self
            .memory
            .as_ref()
            .is_some_and(|memory| memory.is_waiting());
        let may_fail = waits_for_disk && self.run.sent.bytes == 0 || self.run.may_still_fail();
        if !may_fail {
            self.write_head(AfterFrame::More, side);
        }
        if waits_for_disk || matches!(self.run.response.body, Body::Source(_)) {
            self.run.stamp(Stage::Send);
        }
        self.waits_for_maker = true;
        self.write_due_s = 0;
        self.due_s = match waits_for_disk {
            true => Deadlines::NEVER,
            false => self.run.due_s(),
        };
    }

    /// Writes the head, unless it is written.
    fn write_head(&mut self, after: AfterFrame, side: &mut Side<'_>) {
        let Some(head) = self.head.take() else {
            return;
        };
        let run = &mut self.run;
        let mut status = head.status;
        if run.is_tunnel() {
            run.response.remove("Sec-WebSocket-Accept");
            // What logs say is what the client gets.
            status = Status::OK;
            run.response.status = status;
        }
        let out = &mut side.queue.bytes;
        side.protocol.write_control(out);
        let begin = out.len();
        let date = head.adds_date.then(|| run.worker.clock().date_line());
        let date = date.as_ref().map_or(&b""[..], |line| line);
        let server: &[u8] = match head.adds_server {
            true => &run.settings.core.server_line,
            false => b"",
        };
        let timing = head.server_timing.map(|value| {
            let mut line = b"Server-Timing: ".to_vec();
            line.extend_from_slice(&value);
            line.extend_from_slice(b"\r\n");
            line
        });
        let timing = timing.as_deref().unwrap_or_default();
        let fields = run.response.fields().as_bytes();
        let parts = [date, server, fields, timing];
        let written = (side.protocol).write_head(self.key, status, &parts, head.length, after, out);
        debug_assert_eq!(written, petrel_proto::http2::Written::Yes);
        let head_bytes = (out.len() - begin) as u64;
        if run.settings.core.debug.response_header {
            let status = format!("HTTP/2 {}\r\n", status.0).into_bytes();
            let lines = [&status, date, server, fields, timing].concat();
            trace::response_header(run, &lines);
        }
        run.sent.head_bytes = head_bytes;
        run.sent.keep_alive = side.keeps_alive;
        run.account_head(head_bytes);
        self.has_sent(0, side);
    }

    /// Ends the answer, after its head or its body.
    fn end(&mut self, side: &mut Side<'_>) {
        let trailers = self.run.take_trailers();
        match (self.head.is_some(), trailers.is_empty()) {
            (true, _) => self.write_head(before_trailers(&trailers), side),
            (false, false) => {}
            (false, true) => {
                let (out, after) = (&mut side.queue.bytes, AfterFrame::EndOfStream);
                // An empty frame needs no window.
                let _ = side.protocol.write_data_header(self.key, 0, after, out);
                self.run.account(FRAME_HEADER_BYTES as u64, 0);
            }
        }
        self.write_trailers(&trailers, side);
        self.phase = StreamPhase::Sent;
    }

    /// Writes the trailers of the answer, if it has any.
    fn write_trailers(&mut self, trailers: &HeaderBlock, side: &mut Side<'_>) {
        if trailers.is_empty() {
            return;
        }
        let out = &mut side.queue.bytes;
        let begin = out.len();
        let (protocol, fields) = (&mut *side.protocol, trailers.as_bytes());
        // Writes nothing if the stream is reset.
        let _ = protocol.write_trailers(self.key, fields, out);
        let bytes = (out.len() - begin) as u64;
        self.run.account(bytes, 0);
    }

    /// The disk, or the source of the body, has failed.
    fn fail(&mut self, error: &io::Error, side: &mut Side<'_>) -> StreamStep {
        let (stage, loss) = ("content", self.run.loss());
        match Late::is(error) {
            true => self.run.log_error("send", format_args!("{error}")),
            false => self.run.log_error(stage, format_args!("{loss}: {error}")),
        }
        if self.head.is_some() && self.run.fail_answer(error) {
            self.begin_anew(side);
            return Continue(());
        }
        Break(self.lose(side, &error.to_string(), ErrorCode::InternalError))
    }

    /// The stream begins to wait in `stage`.
    fn wait_in(&mut self, stage: Stage) {
        match self.waits_in.replace(stage) {
            Some(before) if before != stage => self.end_wait(before),
            Some(_) => {}
            None => self.run.stamp(Stage::Send),
        }
    }

    /// What held the answer up is noted when it ends, in one sentence for all such waits.
    fn end_wait(&mut self, stage: Stage) {
        self.run.stamp(stage);
    }

    /// The client takes nothing more, or has not opened the window of the connection. If there is something to send,
    /// that is what the answer waits for.
    pub(super) fn waits_for_client(&mut self) {
        let sends = match self.phase {
            StreamPhase::Walk | StreamPhase::WantedBody => false,
            StreamPhase::Answer => !self.waits_for_maker,
            StreamPhase::Sent => !self.run.is_tunnel(),
        };
        if sends && self.waits_in.is_none() {
            self.wait_in(Stage::ClientDrain);
        }
    }

    /// Bytes were put into frames, so the client has opened its windows: its time begins anew.
    fn has_sent(&mut self, bytes: u64, side: &Side<'_>) {
        self.sent_end = side.queue.end();
        self.pace.moved(bytes);
        self.end_window_wait(self.run.worker.clock().seconds());
    }
}

/// Clients that open no window.
impl Http2Stream {
    /// The stream has DATA to send and waits for the client to open a window, which has only `room`. The
    /// client's time runs from the first call on.
    pub(super) fn wait_for_window(&mut self, room: u32) {
        let core = &self.run.settings.core;
        let clock = self.run.worker.clock();
        if self.write_due_s == 0 {
            self.write_due_s = clock.after(core.write_idle_s);
            self.small_due_s = clock.after(SMALL_FRAME_S);
            self.wait_in(Stage::ClientDrain);
        }
        let (core, clock) = (&self.run.settings.core, self.run.worker.clock());
        let slow_s = match self.run.is_tunnel() {
            true => None,
            false => self.pace.wait(clock.seconds(), core.write_rate_min),
        };
        self.due_s = self.write_due_s.min(slow_s.unwrap_or(Deadlines::NEVER));
        if room > 0 {
            self.due_s = self.due_s.min(self.small_due_s);
        }
    }

    /// The stream does not wait for the client.
    pub(super) fn end_window_wait(&mut self, now_s: u32) {
        if std::mem::take(&mut self.write_due_s) != 0 {
            self.pace.stop(now_s);
        }
    }

    /// Whether the stream has waited so long for a useful amount that it takes what the windows have. A
    /// client may keep its windows small on purpose, and wait for DATA before it opens them again.
    fn may_send_little(&self, side: &Side<'_>, now_s: u32) -> bool {
        self.write_due_s != 0 && self.small_due_s <= now_s && side.protocol.send_room(self.key) > 0
    }

    fn is_late_reader(&self, side: &Side<'_>, now_s: u32) -> bool {
        if self.write_due_s == 0 || side.protocol.window_wait(self.key).is_none() {
            return false;
        }
        let rate = self.run.settings.core.write_rate_min;
        let is_slow = self.pace.is_over(now_s, rate);
        if is_slow {
            self.run.log_error(
                Stage::Send.name(),
                format_args!(
                    "the client opened the HTTP/2 window of its answer by {} bytes a second, below server.min-write-rate = {};",
                    self.pace.rate(now_s),
                    rate.bytes_per_second
                ),
            );
        }
        is_slow || self.write_due_s <= now_s
    }
}

/// Tunnels.
impl Http2Stream {
    /// The backend has ended its side of a tunnel. The client may go on.
    fn rest_of_tunnel(&mut self, side: &mut Side<'_>, context: &mut Context<'_>) -> StreamStep {
        if !self.run.is_tunnel() {
            return Break(Course::Waits);
        }
        self.work_beside(side, context);
        if self.lost.is_some() {
            return Continue(());
        }
        if self.is_tunnel_over() {
            return Break(Course::Ended);
        }
        self.due_s = self.run.due_s();
        Break(Course::Waits)
    }

    fn is_tunnel_over(&self) -> bool {
        let is_received = self.inbox.held.is_empty() && self.inbox.is_over;
        is_received || self.run.response.body.has_failed()
    }
}

impl Inbox {
    /// Takes the next bytes.
    fn pop(&mut self) -> Vec<u8> {
        let (next, _) = self.held.as_slices();
        let length = next.len().min(limits::HTTP2_BODY_PART_BYTES);
        let part = next[..length].to_vec();
        self.held.drain(..length);
        if self.held.is_empty() {
            self.held = VecDeque::new();
        }
        part
    }
}

/// The most streams of a connection that read their files further than they can send. They hold
/// [`limits::CHUNK_BYTES_FIRST`] each.
const READING_STREAMS_MAX: usize = 8;

/// The least that is read from a file at a time, for a window that is smaller.
const READ_BYTES_MIN: u32 = 4096;

/// Seconds after which a stream sends what a nearly empty window has room for.
const SMALL_FRAME_S: u32 = 1;

/// Whether `trailers` follow.
fn before_trailers(trailers: &HeaderBlock) -> AfterFrame {
    match trailers.is_empty() {
        true => AfterFrame::EndOfStream,
        false => AfterFrame::More,
    }
}

/// Appends the first `count` bytes of a piece to the queue.
fn append(piece: &Piece, count: usize, queue: &mut SendQueue) {
    match piece.in_memory() {
        Some(bytes) if count <= queue.copied_bytes_max => {
            queue.bytes.extend_from_slice(&bytes[..count]);
        }
        Some(_) => {
            let mut part = piece.clone();
            part.truncate(count as u64);
            queue.push(part);
        }
        None => debug_assert!(false, "pieces were asked for in memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_body_that_is_never_all_taken_needs_no_more_memory_than_the_window() {
        let window = 64 * 1024;
        let mut sent = (0..=u8::MAX).cycle();
        let mut expected = sent.clone();
        let mut inbox = Inbox::default();
        inbox.held.extend(sent.by_ref().take(window));
        for _ in 0..1000 {
            let part = inbox.pop();
            assert!(part.iter().all(|&byte| Some(byte) == expected.next()));
            inbox.held.extend(sent.by_ref().take(part.len()));
            assert!(inbox.held.capacity() <= 2 * window);
        }
    }
}
