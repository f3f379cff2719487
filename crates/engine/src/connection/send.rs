//! Sending: head and body pieces to the socket, in as few system calls as they allow.
//!
//! What goes out next is always a prefix (the head, or a chunk header) and a piece of the body.
//! In memory both leave in one writev; a piece that is a file leaves by the configured network
//! backend behind a prefix that the kernel holds back for it (MSG_MORE).

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use petrel_proto::http1::{LAST_CHUNK, write_chunk_header};
use petrel_proto::status::Status;

use super::receive::Streamed;
use super::{Connection, Reader, State};
use crate::body::{Body, Piece};
use crate::cold_files::status_of_error;
use crate::deadlines::Deadlines;
use crate::exchange::Exchange;
use crate::ledger::Stage;
use crate::limits;
use crate::network_backend::{self, Flight, Sent, Stretch};
use crate::pace::Pace;
use crate::phase;
use crate::throttle::Throttle;
use crate::transport::{Peeked, Transport};

/// How the end of the body is marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Framing {
    /// By Content-Length, or there is no body.
    #[default]
    Plain,
    /// By chunks (RFC 9112 section 7.1).
    Chunked,
    /// By the end of the connection (HTTP/1.0).
    UntilClose,
}

/// What is on its way to the client.
#[derive(Default)]
pub(crate) struct Sending {
    prefix: Vec<u8>,
    prefix_sent: usize,
    piece: Option<Piece>,
    framing: Framing,
    /// Body bytes at the end of `prefix`: small pieces travel with what is in front of them.
    inlined: usize,
    /// Bytes at the front of `prefix` that are interim responses, or the rest of one.
    interim: usize,
    /// The answer takes the place of another one, of whose file the disk had nothing.
    is_in_place: bool,
    /// The end of the body has been queued.
    is_last: bool,
    in_chunk: bool,
    /// What the client does while it waits for its answer has been looked at, and is known.
    looked: bool,
    throttle: Option<Box<Throttle>>,
    /// What is under way of the files of the body.
    flight: Option<Box<Flight>>,
    /// How fast the client takes the answer.
    pub(super) pace: Pace,
    /// How much of the answer the client had taken when the kernel was last asked. Below zero: bytes of an answer
    /// before it were still on their way. `None`: the client has not been waited for.
    taken_bytes: Option<i64>,
}

impl Sending {
    /// Starts a new answer; the head is written into the returned buffer. What the client has not taken yet
    /// of `interim` responses goes before it.
    pub(super) fn begin(&mut self, framing: Framing, interim: &mut Vec<u8>) -> &mut Vec<u8> {
        let is_in_place = self.is_in_place;
        self.clear();
        self.is_in_place = is_in_place;
        self.framing = framing;
        self.prefix.append(interim);
        self.interim = self.prefix.len();
        &mut self.prefix
    }

    /// Takes an answer back of which nothing has been sent. Answers with what stood before its head.
    fn take_back(&mut self) -> Vec<u8> {
        self.prefix.truncate(self.interim);
        let interim = std::mem::take(&mut self.prefix);
        self.clear();
        self.is_in_place = true;
        interim
    }

    /// Whether somebody has looked at what the client does beside waiting.
    pub fn has_looked(&self) -> bool {
        self.looked
    }

    /// Somebody has looked.
    pub fn look(&mut self) {
        self.looked = true;
    }

    /// Whether no answer has been begun.
    pub fn is_unused(&self) -> bool {
        self.prefix.is_empty() && self.piece.is_none() && !self.is_last
    }

    pub fn clear(&mut self) {
        let Sending {
            prefix,
            prefix_sent,
            piece,
            inlined,
            interim,
            is_in_place,
            framing,
            is_last,
            in_chunk,
            looked,
            throttle,
            flight,
            pace,
            taken_bytes,
        } = self;
        prefix.clear();
        *prefix_sent = 0;
        *piece = None;
        *inlined = 0;
        *interim = 0;
        *is_in_place = false;
        *framing = Framing::Plain;
        *is_last = false;
        *in_chunk = false;
        *looked = false;
        *throttle = None;
        *flight = None;
        *pace = Pace::default();
        *taken_bytes = None;
    }

    /// The head, until the first bytes are sent.
    pub(super) fn head(&self) -> &[u8] {
        &self.prefix
    }

    /// Bytes of memory held for reuse.
    pub fn capacity(&self) -> usize {
        self.prefix.capacity()
    }

    fn flight(&mut self) -> &mut Flight {
        self.flight.get_or_insert_default()
    }

    /// The path of the file that is being sent, for the log.
    fn file_path(&self) -> String {
        match &self.piece {
            Some(Piece::File { file, .. }) => String::from_utf8_lossy(&file.path()).into_owned(),
            _ => String::new(),
        }
    }

    fn prefix_left(&self) -> &[u8] {
        self.prefix.get(self.prefix_sent..).unwrap_or_default()
    }

    fn is_drained(&self) -> bool {
        self.piece.is_none() && self.prefix_sent >= self.prefix.len()
    }

    /// Queues `piece` behind what is queued.
    fn queue(&mut self, piece: Piece) {
        self.forget_sent_prefix();
        if self.framing == Framing::Chunked {
            if self.in_chunk {
                self.prefix.extend_from_slice(b"\r\n");
            }
            write_chunk_header(&mut self.prefix, piece.length());
            self.in_chunk = true;
        }
        match piece.in_memory() {
            Some(bytes) if bytes.len() <= limits::INLINED_PIECE_BYTES_MAX => {
                self.prefix.extend_from_slice(bytes);
                self.inlined += bytes.len();
            }
            _ => self.piece = Some(piece),
        }
    }

    /// Queues the end of the body.
    fn queue_end(&mut self) {
        self.forget_sent_prefix();
        if self.framing == Framing::Chunked {
            if self.in_chunk {
                self.prefix.extend_from_slice(b"\r\n");
            }
            self.prefix.extend_from_slice(LAST_CHUNK);
        }
        self.is_last = true;
    }

    fn forget_sent_prefix(&mut self) {
        if self.prefix_sent >= self.prefix.len() {
            self.prefix.clear();
            self.prefix_sent = 0;
            self.inlined = 0;
        }
    }

    /// Accounts for `count` bytes that the kernel took. Returns how many were body.
    fn advance(&mut self, count: usize) -> u64 {
        let of_prefix = count.min(self.prefix_left().len());
        self.prefix_sent += of_prefix;
        let of_piece = (count - of_prefix) as u64;
        // Inlined bytes stand at the end of the prefix: they are sent when all of it is.
        let is_prefix_sent = self.prefix_sent >= self.prefix.len();
        let inlined = if is_prefix_sent {
            std::mem::take(&mut self.inlined)
        } else {
            0
        };
        if let Some(piece) = &mut self.piece {
            piece.advance(of_piece);
            if piece.length() == 0 {
                self.piece = None;
            }
        }
        of_piece + inlined as u64
    }
}

impl Connection {
    /// Sends the answer; to the end, or as far as the client takes it.
    pub(super) fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<State> {
        let mut turn = match self.reader {
            Reader::New | Reader::Unproven => u64::from(limits::UNPROVEN_TURN_BYTES),
            Reader::Proven => limits::SEND_TURN_BYTES,
        };
        let exchange = self.exchange.as_mut().expect("an answer is under way");
        if std::mem::take(&mut self.waits_for_maker) {
            exchange.stamp(exchange.response.body.stage());
        } else if matches!(exchange.response.body, Body::Source(_)) && exchange.sent.bytes > 0 {
            // The connection has waited for the client or for a bandwidth limit, and may wait for the maker next.
            exchange.stamp(Stage::Send);
        }
        exchange.stop_paces();
        loop {
            if let Some(next) = self.work_beside_sending(context) {
                return Poll::Ready(next);
            }
            let exchange = self.exchange.as_mut().expect("an answer is under way");
            match exchange.fill(context) {
                Fill::Ready => {}
                Fill::Complete if exchange.tunnel_is_half_open() => {
                    return self.poll_rest_of_tunnel(context);
                }
                Fill::Complete => {
                    exchange.sent.is_complete = true;
                    return Poll::Ready(self.finish());
                }
                Fill::Wait => return self.wait_for_maker(context),
                Fill::Broken(error) => {
                    let loss = exchange.loss();
                    exchange.log_error("content", format_args!("{loss}: {error}"));
                    return Poll::Ready(self.break_off(&error));
                }
            }
            if turn == 0 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let Some(allowed) = exchange.poll_allowance(context) else {
                self.no_deadline();
                self.write_due_s = 0;
                return Poll::Pending;
            };
            let sent = exchange.send_once(&mut self.transport, allowed.min(turn), context);
            let write_idle_s = exchange.settings.core.write_idle_s;
            match sent {
                Ok(Sent::Truncated) => {
                    exchange.log_error(
                        "send",
                        format_args!(
                            "the file became shorter while it was sent path={:?}",
                            exchange.sending.file_path()
                        ),
                    );
                    return Poll::Ready(self.break_off(&io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(Sent::WaitsForDisk) => return self.wait_for_disk(context),
                Ok(Sent::Bytes(count)) => {
                    exchange.account(count);
                    turn = turn.saturating_sub(count as u64);
                    let sent_bytes = exchange.sent.bytes;
                    let is_drained = exchange.sending.is_drained();
                    // It was waited for.
                    let has_taken = std::mem::take(&mut self.write_due_s) != 0;
                    self.judge_reader(sent_bytes, has_taken);
                    if !is_drained {
                        self.set_deadline(write_idle_s);
                    }
                }
                Err(error) if exchange.tell_failure(&error, &self.transport) => {
                    return Poll::Ready(self.break_off(&error));
                }
                Err(error) => {
                    self.abort(format_args!("{error}"));
                    return Poll::Ready(State::Over);
                }
                Ok(Sent::WaitsForClient) => {
                    self.wait_for_client(write_idle_s);
                    return Poll::Pending;
                }
            }
        }
    }
}

impl Connection {
    /// A body that is made while it is sent may take a streamed request body meanwhile, or read ahead.
    #[inline]
    fn work_beside_sending(&mut self, context: &mut Context<'_>) -> Option<State> {
        let exchange = self.exchange.as_mut().expect("an answer is under way");
        if !matches!(exchange.response.body, Body::Source(_)) {
            return None;
        }
        exchange
            .response
            .body
            .work(&mut exchange.request.body, context);
        while let Poll::Ready(streamed) = self.poll_streamed_body(context) {
            let exchange = self.exchange.as_mut().expect("an answer is under way");
            match streamed {
                Streamed::More => exchange
                    .response
                    .body
                    .work(&mut exchange.request.body, context),
                Streamed::Gone => return Some(self.client_left()),
                Streamed::Malformed(error) => {
                    self.abort(format_args!("{}", error.reason.sentence()));
                    return Some(State::Over);
                }
            }
        }
        None
    }

    /// The client was sent more; `has_taken`: because it has taken what the kernel held for it. Until it has once, the
    /// kernel is given little, so that clients that do not read cost little of the worker's time.
    #[inline]
    fn judge_reader(&mut self, sent_bytes: u64, has_taken: bool) {
        match self.reader {
            Reader::New if sent_bytes >= limits::UNPROVEN_TURN_BYTES.into() => {
                self.transport.limit_unsent(limits::UNPROVEN_TURN_BYTES);
                self.reader = Reader::Unproven;
            }
            Reader::Unproven if has_taken => {
                self.transport.limit_unsent(0);
                self.reader = Reader::Proven;
            }
            Reader::New | Reader::Unproven | Reader::Proven => {}
        }
    }

    /// The client takes nothing. Its time goes on while others wake the connection: a backend that has
    /// more for it, or its own request body.
    fn wait_for_client(&mut self, write_idle_s: u32) {
        if self.write_due_s == 0 {
            self.write_due_s = self.due_after(write_idle_s);
        }
        if let (Some(deadline), Some(exchange)) = (self.deadline, &mut self.exchange) {
            self.worker.deadlines.set(deadline, self.write_due_s);
            let rate = exchange.settings.core.write_rate_min;
            let now_s = self.worker.clock().seconds();
            if exchange.sending.taken_bytes.is_none() {
                exchange.look_what_is_taken(&self.transport);
            }
            if !exchange.receiving.is_tunnel()
                && let Some(due_s) = exchange.sending.pace.wait(now_s, rate)
            {
                self.worker.deadlines.lower(deadline, due_s);
            }
        }
    }

    /// The next bytes are still on the disk; that is not the client's fault. The file system has
    /// `server.max-file-wait` for them.
    fn wait_for_disk(&mut self, context: &mut Context<'_>) -> Poll<State> {
        let now_s = self.worker.clock().seconds();
        let exchange = self.exchange.as_mut().expect("an answer is under way");
        let wait_s = exchange.settings.core.file_wait_s;
        let due_s = &mut exchange.sending.flight().due_s;
        if *due_s == 0 {
            *due_s = now_s.saturating_add(wait_s).saturating_add(1);
        }
        let due_s = *due_s;
        if now_s >= due_s {
            exchange.log_error(
                "send",
                format_args!(
                    "the file system has not answered for {wait_s} s (server.max-file-wait) path={:?}",
                    exchange.sending.file_path()
                ),
            );
            return Poll::Ready(self.break_off(&io::ErrorKind::TimedOut.into()));
        }
        exchange.stamp(Stage::Send);
        self.waits_for_maker = true;
        self.write_due_s = 0;
        if let Some(deadline) = self.deadline {
            self.worker.deadlines.set(deadline, due_s);
        }
        match self.poll_leaving(context) {
            Poll::Ready(Peeked::Gone) => Poll::Ready(self.client_left()),
            _ => Poll::Pending,
        }
    }

    /// The disk, or who makes the body, has failed the answer: another one takes its place as long as nothing of it
    /// has been sent, and if it has the connection ends. That other one may have a file as well, from a script say,
    /// but only once.
    fn break_off(&mut self, error: &io::Error) -> State {
        let status = match error.kind() {
            // What a backend says is no answer.
            io::ErrorKind::InvalidData => Status::BAD_GATEWAY,
            _ => status_of_error(error),
        };
        match self.replace_answer(status) {
            true => State::Walk,
            false => {
                self.abort(format_args!("{error}"));
                State::Over
            }
        }
    }

    /// Puts an answer with `status` in the place of one of which nothing has been sent. False: too late.
    pub(super) fn replace_answer(&mut self, status: Status) -> bool {
        let exchange = self.exchange.as_mut().expect("an answer is under way");
        if exchange.sent.bytes > 0 || exchange.sending.is_in_place || exchange.receiving.is_tunnel()
        {
            return false;
        }
        exchange.interim = exchange.sending.take_back();
        phase::refuse(exchange, status);
        exchange.receiving.give_up();
        true
    }

    /// The body's maker waits; that is not the client's fault.
    fn wait_for_maker(&mut self, context: &mut Context<'_>) -> Poll<State> {
        self.waits_for_maker = true;
        self.write_due_s = 0;
        let exchange = self.exchange.as_mut().expect("an answer is under way");
        let wake_at_s = exchange.response.body.wake_at_s();
        let waits_for_body = self.waits_for_streamed_body();
        let body_due_s = self.body_due_s(waits_for_body);
        if let Some(deadline) = self.deadline {
            let due_s = wake_at_s.unwrap_or(Deadlines::NEVER).min(body_due_s);
            self.worker.deadlines.set(deadline, due_s);
        }
        match self.poll_leaving(context) {
            Poll::Ready(Peeked::Gone) => Poll::Ready(self.client_left()),
            _ => Poll::Pending,
        }
    }

    /// The backend's side of a tunnel has ended, the client's has not: the client is told, and what it
    /// still sends is passed on.
    fn poll_rest_of_tunnel(&mut self, context: &mut Context<'_>) -> Poll<State> {
        let exchange = self.exchange.as_mut().expect("an answer is under way");
        if !std::mem::replace(&mut exchange.sent.is_complete, true) {
            self.transport.shutdown_write();
        }
        let exchange = self.exchange.as_mut().expect("an answer is under way");
        if exchange.response.body.has_failed() {
            return Poll::Ready(self.finish());
        }
        self.wait_for_maker(context)
    }
}

/// What there is to send.
enum Fill {
    Ready,
    Complete,
    Wait,
    Broken(io::Error),
}

impl Exchange {
    /// Sees to it that something is queued: the head goes out with the first piece of the body, and waits for that
    /// only if it is on a disk.
    fn fill(&mut self, context: &mut Context<'_>) -> Fill {
        // What the client does not take must not pile up here, a small piece a turn.
        let is_enough = self.sending.prefix_left().len() > limits::INLINED_PIECE_BYTES_MAX;
        if self.sending.piece.is_some() || is_enough {
            return Fill::Ready;
        }
        if self.sending.is_last {
            return if self.sending.is_drained() {
                Fill::Complete
            } else {
                Fill::Ready
            };
        }
        let is_made_now = matches!(self.response.body, Body::Source(_));
        let polled = self.response.body.poll_piece(context);
        // The pieces after the first do not read the clock here: `poll_send` does where it goes on after a wait.
        if is_made_now && self.sent.bytes == 0 {
            self.stamp(self.response.body.stage());
        }
        match polled {
            Poll::Ready(Some(Ok(piece))) => self.queue(piece),
            Poll::Ready(Some(Err(error))) => return Fill::Broken(error),
            Poll::Ready(None) => {
                self.sending.queue_end();
                if self.sending.is_drained() {
                    return Fill::Complete;
                }
            }
            Poll::Pending if self.sending.is_drained() || self.may_still_fail() => {
                return Fill::Wait;
            }
            Poll::Pending => {}
        }
        Fill::Ready
    }

    /// Whether the disk that the body waits for can still be the reason of another answer.
    fn may_still_fail(&self) -> bool {
        self.sent.bytes == 0 && self.response.body.waits_for_disk()
    }

    /// Queues a piece. What a job has just read of its file is sent from memory, if a thread was to read it.
    fn queue(&mut self, piece: Piece) {
        if let Piece::File { file, range } = &piece
            && range.start < limits::FIRST_READ_BYTES_MAX
            && self.settings.core.network_backend.reads_by_threads()
            && let Some(first) = self.cold.take_first(file)
        {
            let now = self.worker.clock().latest();
            self.sending.flight().give_first(file, first, now);
        }
        self.sending.queue(piece);
    }

    /// One system call's worth of what is queued, at most `allowed` bytes of it.
    fn send_once(
        &mut self,
        transport: &mut Transport,
        allowed: u64,
        context: &mut Context<'_>,
    ) -> io::Result<Sent> {
        let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
        let sending = &mut self.sending;
        let prefix = sending
            .prefix
            .get(sending.prefix_sent..)
            .unwrap_or_default();
        let prefix = &prefix[..prefix.len().min(allowed)];
        let Some(piece) = &sending.piece else {
            return sent(transport.poll_write(context, prefix));
        };
        if let Some(bytes) = piece.in_memory() {
            let bytes = &bytes[..bytes.len().min(allowed - prefix.len())];
            return sent(match (prefix.is_empty(), bytes.is_empty()) {
                (true, _) => transport.poll_write(context, bytes),
                (_, true) => transport.poll_write(context, prefix),
                _ => transport
                    .poll_write_vectored(context, &[IoSlice::new(prefix), IoSlice::new(bytes)]),
            });
        }
        let Piece::File { file, range } = piece else {
            return Ok(Sent::Truncated);
        };
        let stretch = Stretch {
            prefix,
            file,
            range: range.clone(),
            bytes_max: allowed,
            client: self.connection.client_key(),
        };
        let backend = self.settings.core.network_backend;
        if sending.flight.is_none()
            && let now_s = self.worker.clock().seconds()
            && let Some(seen) = network_backend::at_hand(backend, &stretch, now_s)
        {
            return network_backend::send_at_hand(backend, transport, &seen, context);
        }
        let flight = sending.flight.get_or_insert_default();
        flight.send(backend, &self.worker, transport, &stretch, context)
    }

    /// What a failure means for the answer, for the log.
    pub(super) fn loss(&self) -> &'static str {
        match self.sent.bytes {
            0 => "the answer cannot be sent",
            _ => "the answer was cut short",
        }
    }

    /// Tells of what the disk has failed with; that a client has gone is nothing to tell. sendfile(2) reports
    /// the errors of both, and network file systems have some of the same names. Answers whether it was the disk.
    fn tell_failure(&self, error: &io::Error, transport: &Transport) -> bool {
        let is_of_socket = is_of_socket(error, || transport.is_broken());
        let is_of_disk = matches!(self.sending.piece, Some(Piece::File { .. })) && !is_of_socket;
        if is_of_disk {
            self.log_error(
                "send",
                format_args!(
                    "{}: {error} path={:?}",
                    self.loss(),
                    self.sending.file_path()
                ),
            );
        }
        is_of_disk
    }

    /// Whether the client may go on sending after the last byte it got.
    fn tunnel_is_half_open(&self) -> bool {
        self.receiving.is_tunnel() && !self.receiving.is_finished()
    }

    /// How many bytes the bandwidth limits allow now. `None`: woken when they allow some.
    fn poll_allowance(&mut self, context: &mut Context<'_>) -> Option<u64> {
        let core = &self.settings.core;
        let own = self.response.bytes_per_second_max;
        let own = match (core.connection_bytes_per_second, own) {
            (0, limit) | (limit, 0) => limit,
            (connection, answer) => connection.min(answer),
        };
        if own == 0 && core.scope_throttle.is_none() {
            return Some(u64::MAX);
        }
        let now = self.worker.clock().now();
        let shared = self.worker.shared();
        let throttle = self.sending.throttle.get_or_insert_with(|| {
            let scope = core.scope_throttle.map(|scope| shared.scope_bucket(scope));
            Box::new(Throttle::new(own, scope, now))
        });
        throttle.poll_allowance(now, context)
    }

    /// Asks the kernel how much of the answer the client has taken. Answers whether that is more than the time before.
    /// The kernel's queue belongs to the connection: it may also hold bytes of the answers before. So only differences
    /// count, from the first time on that the client is waited for. One system call.
    pub(super) fn look_what_is_taken(&mut self, transport: &Transport) -> bool {
        let taken_bytes = self.sent.bytes.cast_signed() - transport.unacknowledged().cast_signed();
        let before = self.sending.taken_bytes.unwrap_or(taken_bytes);
        self.sending.taken_bytes = Some(taken_bytes.max(before));
        let more = u64::try_from(taken_bytes - before).unwrap_or(0);
        self.sending.pace.moved(more);
        more > 0
    }

    /// It is not known yet whether the client will be waited for.
    #[inline]
    pub(super) fn stop_paces(&mut self) {
        let now_s = self.worker.clock().seconds();
        self.sending.pace.stop(now_s);
        self.receiving.pace.stop(now_s);
    }

    fn account(&mut self, count: usize) {
        self.sent.bytes += count as u64;
        self.sent.body_bytes += self.sending.advance(count);
        if let Some(throttle) = &mut self.sending.throttle {
            throttle.take(count as u64);
        }
    }
}

/// Whether it is the socket that has failed: of errors that files may have as well, if the socket is broken.
fn is_of_socket(error: &io::Error, is_broken: impl FnOnce() -> bool) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, HostUnreachable, NetworkUnreachable,
        TimedOut, WriteZero,
    };
    match error.kind() {
        WriteZero => true,
        BrokenPipe | ConnectionAborted | ConnectionReset | HostUnreachable | NetworkUnreachable
        | TimedOut => is_broken(),
        _ => false,
    }
}

/// What the socket has said.
fn sent(polled: Poll<io::Result<usize>>) -> io::Result<Sent> {
    match polled {
        Poll::Ready(Ok(0)) => Err(io::ErrorKind::WriteZero.into()),
        Poll::Ready(count) => Ok(Sent::Bytes(count?)),
        Poll::Pending => Ok(Sent::WaitsForClient),
    }
}
