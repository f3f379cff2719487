//! Sends the head and the body in as few system calls as possible.
//!
//! The next bytes to send are always a prefix (the head, or the header of a chunk) and a piece of the body.
//! If both are in memory, one writev sends them. If the piece is in a file, the network backend sends it, and
//! the kernel holds the prefix back for it (MSG_MORE).

use std::io::{self, IoSlice};
use std::ops::ControlFlow::{Break, Continue};
use std::task::{Context, Poll};

use petrel_proto::header_block::HeaderBlock;
use petrel_proto::http1::{write_chunk_header, write_interim, write_last_chunk};

use super::link::Link;
use super::serving::{Broken, Serving};
use super::{ConnectionState, Step};
use crate::blocking::Late;
use crate::body::{Body, InMemory, Piece};
use crate::cause::CauseCode;
use crate::deadlines::Deadlines;
use crate::exchange::holders;
use crate::ledger::Stage;
use crate::limits;
use crate::network_backend::{self, Flight, SendResult, Stretch};
use crate::pace::ClientPace;
use crate::run::ExchangeRun;
use crate::transport::{Peeked, Transport};
use crate::worker::Cut;

/// How the end of the body is marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Framing {
    /// By Content-Length, or there is no body.
    #[default]
    Plain,
    /// By chunked coding (RFC 9112 section 7.1).
    Chunked,
    /// By closing the connection (HTTP/1.0).
    UntilClose,
}

/// The response that is being sent.
#[derive(Default)]
pub(super) struct Sending {
    prefix: Vec<u8>,
    prefix_sent: usize,
    piece: Option<Piece>,
    framing: Framing,
    /// How many bytes at the end of `prefix` are of the body: small pieces are copied there.
    inlined: usize,
    /// How many bytes at the front of `prefix` are of interim responses.
    interim: usize,
    /// The end of the body has been queued.
    is_last: bool,
    in_chunk: bool,
    /// The worker has looked already whether the client sends something while it waits for its response.
    pub(crate) has_looked: bool,
    /// The source of the body has no piece ready.
    pub(crate) waits_for_maker: bool,
    /// The stage of the present wait, if it is not for the source of the body: for the client or a bandwidth
    /// limit.
    waits_in: Option<Stage>,
    /// The second in which the client must have taken more of the response; 0: it takes what there is.
    write_due_s: u32,
    /// Reads of files of the body that are under way.
    flight: Option<Box<Flight>>,
    /// Reads of files into memory, for a connection that encrypts.
    memory: Option<Box<InMemory>>,
    /// How fast the client takes the response.
    pub(crate) pace: ClientPace,
    /// How much of the response the client had taken when the worker last asked the kernel. Below zero: bytes
    /// of an earlier response were still unacknowledged. `None`: the worker has not waited for the client.
    taken_bytes: Option<i64>,
}

impl Sending {
    /// Starts a response. The caller appends the head to the returned buffer, which may begin with interim
    /// responses that the client has not taken yet.
    pub(crate) fn begin(&mut self, framing: Framing, run: &mut ExchangeRun) -> &mut Vec<u8> {
        self.queue_interim(run);
        self.interim = self.prefix.len();
        self.framing = framing;
        self.has_looked = false;
        &mut self.prefix
    }

    /// Removes a response of which nothing was sent. Interim responses in front of its head stay.
    fn take_back(&mut self) {
        let mut prefix = std::mem::take(&mut self.prefix);
        prefix.truncate(self.interim);
        self.clear();
        self.prefix = prefix;
    }

    /// Forgets the response. Large buffers are freed.
    pub(crate) fn clear(&mut self) {
        let Sending {
            prefix,
            prefix_sent,
            piece,
            framing,
            inlined,
            interim,
            is_last,
            in_chunk,
            has_looked,
            waits_for_maker,
            waits_in,
            write_due_s,
            flight,
            memory,
            pace,
            taken_bytes,
        } = self;
        prefix.clear();
        prefix.shrink_to(limits::POOLED_BUFFER_BYTES_MAX);
        *prefix_sent = 0;
        *piece = None;
        *framing = Framing::Plain;
        *inlined = 0;
        *interim = 0;
        *is_last = false;
        *in_chunk = false;
        *has_looked = false;
        *waits_for_maker = false;
        *waits_in = None;
        *write_due_s = 0;
        *flight = None;
        *memory = None;
        *pace = ClientPace::default();
        *taken_bytes = None;
    }

    /// Queues the interim responses of `run`.
    fn queue_interim(&mut self, run: &mut ExchangeRun) {
        if self.prefix_sent > 0 {
            self.prefix.drain(..self.prefix_sent);
            self.prefix_sent = 0;
        }
        while let Some(interim) = run.take_interim() {
            write_interim(&mut self.prefix, interim.status, &interim.fields);
        }
    }

    /// Queues `bytes` that are not part of the response.
    pub(crate) fn push_prefix(&mut self, bytes: &[u8]) {
        self.prefix.extend_from_slice(bytes);
    }

    fn prefix_left(&self) -> &[u8] {
        self.prefix.get(self.prefix_sent..).unwrap_or_default()
    }

    fn queued_bytes(&self) -> u64 {
        self.prefix_left().len() as u64 + self.piece.as_ref().map_or(0, Piece::length)
    }

    fn is_drained(&self) -> bool {
        self.piece.is_none() && self.prefix_sent >= self.prefix.len()
    }

    /// The stage that the time since the last stamp belongs to.
    pub(super) fn wait_stage(&self, run: &ExchangeRun) -> Stage {
        match self.waits_for_maker {
            true => run.response.body.stage(),
            false => self.waits_in.unwrap_or(Stage::Send),
        }
    }

    /// Queues `piece` after what is queued already.
    #[inline]
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

    /// Queues the end of the body. Trailers are sent only with chunked coding.
    fn queue_end(&mut self, trailers: &HeaderBlock) {
        self.forget_sent_prefix();
        if self.framing == Framing::Chunked {
            if self.in_chunk {
                self.prefix.extend_from_slice(b"\r\n");
            }
            write_last_chunk(&mut self.prefix, trailers);
        }
        self.is_last = true;
    }

    /// The next piece, in memory, for a connection that cannot send from files.
    fn poll_in_memory(
        &mut self,
        run: &mut ExchangeRun,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Piece>>> {
        if let Some(memory) = &mut self.memory {
            return run.poll_in_memory(memory, context);
        }
        match run.poll_piece(context) {
            Poll::Ready(Some(Ok(piece))) if piece.in_memory().is_none() => {
                let memory = InMemory::beginning_with(piece, run.file_reader());
                run.poll_in_memory(self.memory.insert(Box::new(memory)), context)
            }
            polled => polled,
        }
    }

    /// See [`ExchangeRun::may_still_fail`].
    fn may_still_fail(&self, run: &ExchangeRun) -> bool {
        let reads = self
            .memory
            .as_ref()
            .is_some_and(|memory| memory.is_waiting());
        run.may_still_fail() || reads && run.sent.bytes == 0
    }

    fn forget_sent_prefix(&mut self) {
        if self.prefix_sent >= self.prefix.len() {
            self.prefix.clear();
            self.prefix_sent = 0;
            self.inlined = 0;
        }
    }

    /// Accounts for `count` bytes that the kernel has taken. Returns how many of them were of the body.
    #[inline]
    fn advance(&mut self, count: usize) -> u64 {
        let of_prefix = count.min(self.prefix_left().len());
        self.prefix_sent += of_prefix;
        let of_piece = (count - of_prefix) as u64;
        // The bytes of the body are at the end of the prefix, so they count when all of it is sent.
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

/// How sending ended.
enum Ended {
    /// All was sent.
    Complete,
    /// The disk or the source of the body has failed. If nothing was sent yet, another response takes its
    /// place.
    Failed(io::Error),
    /// The client is gone or has broken the protocol.
    Lost(String),
}

impl Serving {
    /// Sends interim responses, as far as the client takes them.
    pub(super) fn poll_interim(
        &mut self,
        link: &mut Link,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        loop {
            let sending = &mut self.wire.sending;
            if sending.prefix_left().is_empty() {
                sending.queue_interim(&mut self.run);
            }
            if sending.prefix_left().is_empty() {
                if let Poll::Ready(flushed) = link.transport.poll_flush(context) {
                    flushed?;
                }
                return Ok(());
            }
            match link.transport.poll_write(context, sending.prefix_left()) {
                Poll::Ready(count) => sending.prefix_sent += count?,
                Poll::Pending => return Ok(()),
            }
        }
    }

    /// Sends the response to its end, or as far as the client takes it.
    pub(crate) fn poll_send(mut self, link: &mut Link, context: &mut Context<'_>) -> Step {
        let Poll::Ready(ended) = self.poll_to_end(link, context) else {
            return Break(ConnectionState::Send(self));
        };
        Continue(match ended {
            Ended::Complete => self.finish(link),
            Ended::Failed(error) if self.run.fail_answer(&error) => {
                self.wire.sending.take_back();
                ConnectionState::Walk(self)
            }
            Ended::Failed(error) => self.abort_sending(&error.to_string(), link),
            Ended::Lost(cause) => self.abort_sending(&cause, link),
        })
    }

    fn poll_to_end(&mut self, link: &mut Link, context: &mut Context<'_>) -> Poll<Ended> {
        let mut turn = link.turn_bytes();
        self.stamp_wait_of_sending();
        self.stop_paces();
        loop {
            if let Err(cause) = self.work_beside_sending(link, context) {
                return Poll::Ready(Ended::Lost(cause));
            }
            match self.fill(link.transport.is_tls(), context) {
                Fill::Ready => {}
                Fill::Complete if self.run.is_tunnel() && !self.is_received() => {
                    return self.poll_rest_of_tunnel(link, context);
                }
                Fill::Complete => match link.transport.poll_flush(context) {
                    Poll::Ready(Ok(())) => return Poll::Ready(Ended::Complete),
                    Poll::Ready(Err(error)) => return Poll::Ready(Ended::Lost(error.to_string())),
                    Poll::Pending => {
                        self.wait_for_client(link);
                        return Poll::Pending;
                    }
                },
                Fill::Wait => return self.wait_for_maker(link, context),
                Fill::Broken(error) => {
                    let loss = self.run.loss();
                    self.run
                        .log_error("content", format_args!("{loss}: {error}"));
                    return Poll::Ready(Ended::Failed(error));
                }
            }
            // Other connections run first; this one could go on at once.
            if turn == 0 {
                self.wait_in(Stage::Lag);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let queued = self.wire.sending.queued_bytes();
            let Some(allowed) = self.run.poll_allowance(queued, context) else {
                // The connection waits for the bandwidth limit, so the timeouts of the client do not run.
                link.no_deadline();
                self.wire.sending.write_due_s = 0;
                self.wait_in(Stage::Throttle);
                return self.wait_unless_left(link, context);
            };
            match self.send_once(&mut link.transport, allowed.min(turn), context) {
                Ok(SendResult::Bytes(count)) => {
                    let body_bytes = self.wire.sending.advance(count);
                    self.run.account(count as u64, body_bytes);
                    turn = turn.saturating_sub((count as u64).max(limits::SEND_COST_BYTES));
                    // The deadline was set, so the worker has waited for the client.
                    let has_taken = std::mem::take(&mut self.wire.sending.write_due_s) != 0;
                    link.judge_reader(self.run.sent.bytes, has_taken);
                    if !self.wire.sending.is_drained() {
                        link.set_deadline(self.run.settings.core.write_idle_s);
                    }
                }
                Ok(SendResult::Truncated) => {
                    self.log_file("the file became shorter while it was sent");
                    return Poll::Ready(Ended::Failed(io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(SendResult::WaitsForDisk) => return self.wait_for_disk(link, context),
                Ok(SendResult::WaitsForClient) => {
                    self.wait_for_client(link);
                    return Poll::Pending;
                }
                Err(error) if Late::is(&error) => {
                    self.log_file(&error.to_string());
                    return Poll::Ready(Ended::Failed(error));
                }
                Err(error) if self.is_of_disk(&error, &link.transport) => {
                    self.log_file(&format!("{}: {error}", self.run.loss()));
                    return Poll::Ready(Ended::Failed(error));
                }
                Err(error) => return Poll::Ready(Ended::Lost(error.to_string())),
            }
        }
    }

    /// The connection goes on after a wait.
    #[inline]
    fn stamp_wait_of_sending(&mut self) {
        let sending = &mut self.wire.sending;
        let waited_for_maker = std::mem::take(&mut sending.waits_for_maker);
        if let Some(stage) = sending.waits_in.take() {
            // How fast the client was is noted at the end, once.
            self.run.stamp_wait_unnoted(stage);
        } else if waited_for_maker {
            let stage = self.run.response.body.stage();
            self.run.stamp_wait(stage, holders::of_content);
        } else if matches!(self.run.response.body, Body::Source(_)) && self.run.sent.bytes > 0 {
            // The next wait may be for the source.
            self.run.stamp(Stage::Send);
        }
    }

    /// The connection begins to wait in `stage`.
    fn wait_in(&mut self, stage: Stage) {
        self.run.stamp(Stage::Send);
        self.wire.sending.waits_in = Some(stage);
    }

    /// While a response is sent, its body's source may take more of a streamed request body, or read ahead.
    #[inline]
    fn work_beside_sending(
        &mut self,
        link: &mut Link,
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        if !matches!(self.run.response.body, Body::Source(_)) {
            return Ok(());
        }
        self.run.work(context);
        while let Poll::Ready(streamed) = self.poll_streamed_body(link, context) {
            match streamed {
                Ok(()) => self.run.work(context),
                Err(Broken::Malformed(error)) => return Err(error.to_string()),
                Err(Broken::Left | Broken::TooEarly) => return Err(LEFT.to_owned()),
            }
        }
        Ok(())
    }

    /// The client takes nothing now. Its timeout continues to run when something else wakes the connection,
    /// such as a backend with more data or its own request body.
    fn wait_for_client(&mut self, link: &Link) {
        self.wait_in(Stage::ClientDrain);
        let sending = &mut self.wire.sending;
        let core = &self.run.settings.core;
        let clock = self.run.worker.clock();
        if sending.write_due_s == 0 {
            sending.write_due_s = clock.after(core.write_idle_s);
        }
        link.set_due(sending.write_due_s);
        if sending.taken_bytes.is_none() {
            sending.look_what_is_taken(self.run.sent.bytes, &link.transport);
        }
        if !self.run.is_tunnel() {
            link.lower_due(sending.pace.wait(clock.seconds(), core.write_rate_min));
        }
    }

    /// The next bytes are still on the disk, which is not the client's fault. The reader has a deadline of
    /// its own.
    fn wait_for_disk(&mut self, link: &mut Link, context: &mut Context<'_>) -> Poll<Ended> {
        self.wait_until(Deadlines::NEVER, link, context)
    }

    /// The source of the body waits, which is not the client's fault.
    fn wait_for_maker(&mut self, link: &mut Link, context: &mut Context<'_>) -> Poll<Ended> {
        let due_s = self.run.due_s();
        self.wait_until(due_s, link, context)
    }

    /// Waits for the next piece, until the second `due_s` at most.
    fn wait_until(
        &mut self,
        due_s: u32,
        link: &mut Link,
        context: &mut Context<'_>,
    ) -> Poll<Ended> {
        self.run.stamp(Stage::Send);
        self.wire.sending.waits_for_maker = true;
        self.wire.sending.write_due_s = 0;
        link.set_due(due_s);
        // An error will show when the next piece is sent.
        let _ = link.transport.poll_flush(context);
        self.wait_unless_left(link, context)
    }

    /// Waits for something other than the client, which may leave meanwhile.
    fn wait_unless_left(&mut self, link: &mut Link, context: &mut Context<'_>) -> Poll<Ended> {
        match self.poll_leaving(link, context) {
            Poll::Ready(Peeked::Gone) => Poll::Ready(Ended::Lost(LEFT.to_owned())),
            _ => Poll::Pending,
        }
    }

    /// The backend has closed its side of a tunnel, and the client has not: closes our sending side, and
    /// passes on what the client still sends.
    fn poll_rest_of_tunnel(&mut self, link: &mut Link, context: &mut Context<'_>) -> Poll<Ended> {
        // The socket may not have taken all encrypted bytes yet.
        match link.transport.poll_flush(context) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Ended::Lost(error.to_string())),
            Poll::Pending => {
                self.wait_for_client(link);
                return Poll::Pending;
            }
        }
        if !std::mem::replace(&mut self.run.sent.is_complete, true) {
            if link.transport.is_tls() {
                // After its close_notify a TLS session drops what still arrives, so the tunnel ends for both
                // sides.
                return Poll::Ready(Ended::Complete);
            }
            link.transport.shutdown_write();
        }
        match self.run.response.body.has_failed() {
            true => Poll::Ready(Ended::Complete),
            false => self.wait_for_maker(link, context),
        }
    }

    /// The server process ends during the response. A client that has received nothing of it gets 503.
    pub(crate) fn cut_off_sending(mut self, why: Cut, link: &mut Link) -> ConnectionState {
        self.log_cut(Stage::Send, why);
        if self.run.replace_answer(CauseCode::ServerStopping) {
            self.wire.sending.take_back();
            return ConnectionState::Walk(self);
        }
        self.abort_sending(why.sentence(), link)
    }

    /// The deadline has passed during the response.
    pub(crate) fn time_out(self, is_late_reader: bool, link: &mut Link) -> ConnectionState {
        let waits_for_maker = self.wire.sending.waits_for_maker;
        // The source of the body may be waiting for the request body.
        if waits_for_maker && self.run.is_body_late() {
            let cause = self.run.lateness_of_body();
            self.run
                .log_error(Stage::RequestBody.name(), format_args!("{cause}"));
            return self.abort_sending(&cause, link);
        }
        match is_late_reader {
            true => self.abort_sending("the client took no bytes for too long", link),
            // The source checks its own deadlines, or the client takes the waiting bytes fast enough.
            false => ConnectionState::Send(self),
        }
    }

    fn abort_sending(self, cause: &str, link: &mut Link) -> ConnectionState {
        let stage = self.stage_of_sending();
        self.abort(stage, format_args!("{cause}"), link)
    }

    /// Whether the client has taken nothing of the response for `server.max-write-idle`, or takes it too
    /// slowly; the latter is logged. A full socket becomes writable only when much of its queue is free. The
    /// queue may hold megabytes, for which a slow client may need minutes. So the worker asks the kernel how
    /// much the client has acknowledged before it gives up.
    pub(crate) fn is_late_reader(&mut self, link: &Link) -> bool {
        let now_s = link.worker.clock().seconds();
        let core = &self.run.settings.core;
        let rate = core.write_rate_min;
        let sending = &mut self.wire.sending;
        let is_idle = sending.write_due_s != 0 && sending.write_due_s <= now_s;
        if sending.waits_for_maker || !is_idle && !sending.pace.is_over(now_s, rate) {
            return false;
        }
        if sending.look_what_is_taken(self.run.sent.bytes, &link.transport) {
            sending.write_due_s = link.worker.clock().after(core.write_idle_s);
        }
        let is_slow = sending.pace.is_over(now_s, rate);
        if is_slow {
            self.run.log_error(
                Stage::Send.name(),
                format_args!(
                    "the client took its answer at {} bytes a second, below server.min-write-rate = {};",
                    sending.pace.rate(now_s),
                    rate.bytes_per_second
                ),
            );
        }
        is_slow || self.is_write_idle()
    }

    /// Whether the client has taken nothing for `server.max-write-idle`, as far as the worker knows.
    pub(crate) fn is_write_idle(&self) -> bool {
        let due_s = self.wire.sending.write_due_s;
        due_s != 0 && due_s <= self.run.worker.clock().seconds()
    }

    /// Makes sure that something is queued. The head is sent with the first piece of the body, and waits for
    /// it only if it is on a disk.
    fn fill(&mut self, in_memory: bool, context: &mut Context<'_>) -> Fill {
        let sending = &mut self.wire.sending;
        // Many small pieces must not pile up here while the client takes nothing.
        let is_enough = sending.prefix_left().len() > limits::INLINED_PIECE_BYTES_MAX;
        if sending.piece.is_some() || is_enough {
            return Fill::Ready;
        }
        if sending.is_last {
            return match sending.is_drained() {
                true => Fill::Complete,
                false => Fill::Ready,
            };
        }
        let polled = match in_memory {
            true => sending.poll_in_memory(&mut self.run, context),
            false => self.run.poll_piece(context),
        };
        match polled {
            Poll::Ready(Some(Ok(piece))) => {
                self.queue(piece);
                // Most bodies are one piece, and nothing marks their end.
                let sending = &mut self.wire.sending;
                sending.is_last = sending.framing != Framing::Chunked
                    && sending.memory.is_none()
                    && matches!(self.run.response.body, Body::Empty);
            }
            Poll::Ready(Some(Err(error))) => return Fill::Broken(error),
            Poll::Ready(None) => {
                sending.queue_end(&self.run.take_trailers());
                if sending.is_drained() {
                    return Fill::Complete;
                }
            }
            Poll::Pending if sending.is_drained() || sending.may_still_fail(&self.run) => {
                return Fill::Wait;
            }
            Poll::Pending => {}
        }
        Fill::Ready
    }

    /// Queues a piece. If a disk job has just read the beginning of its file, and the network backend lets
    /// threads read, that part is sent from memory.
    fn queue(&mut self, piece: Piece) {
        let (run, sending) = (&self.run, &mut self.wire.sending);
        if let Piece::File { file, range } = &piece
            && range.start < limits::FIRST_READ_BYTES_MAX
            && run.settings.core.network_backend.reads_by_threads()
            && let Some(first) = run.cold.take_first(file)
        {
            let flight = &mut sending.flight;
            let flight = flight.get_or_insert_with(|| Box::new(Flight::new(run.file_reader())));
            flight.give_first(file, first);
        }
        sending.queue(piece);
    }

    /// Makes one system call for what is queued, for `allowed` bytes at most.
    fn send_once(
        &mut self,
        transport: &mut Transport,
        allowed: u64,
        context: &mut Context<'_>,
    ) -> io::Result<SendResult> {
        let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
        let (run, sending) = (&self.run, &mut *self.wire);
        let sending = &mut sending.sending;
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
            return Ok(SendResult::Truncated);
        };
        let stretch = Stretch {
            prefix,
            file,
            range: range.clone(),
            bytes_max: allowed,
            readers: run.worker.readers(),
        };
        let Some(socket) = transport.plain() else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let backend = run.settings.core.network_backend;
        let now_s = run.worker.clock().seconds();
        if sending.flight.is_none()
            && let Some(seen) = network_backend::at_hand(backend, &stretch, now_s)
        {
            return network_backend::send_at_hand(backend, socket, &seen, context);
        }
        let flight = &mut sending.flight;
        let flight = flight.get_or_insert_with(|| Box::new(Flight::new(run.file_reader())));
        let scratch = || run.worker.receive_buffer();
        flight.send(backend, socket, &stretch, scratch, now_s, context)
    }

    /// Whether the disk has failed, which the log must tell; a client that is gone is not worth a line.
    /// sendfile(2) returns errors of both, and network file systems have some of the same.
    fn is_of_disk(&self, error: &io::Error, transport: &Transport) -> bool {
        let is_of_socket = is_of_socket(error, || transport.is_broken());
        matches!(self.wire.sending.piece, Some(Piece::File { .. })) && !is_of_socket
    }

    /// Logs an error of the file that is being sent.
    fn log_file(&self, cause: &str) {
        let path = match &self.wire.sending.piece {
            Some(Piece::File { file, .. }) => String::from_utf8_lossy(&file.path()).into_owned(),
            _ => String::new(),
        };
        self.run
            .log_error("send", format_args!("{cause} path={path:?}"));
    }
}

impl Sending {
    /// Asks the kernel how much of the response the client has acknowledged; `sent_bytes` of it were sent.
    /// Returns whether that is more than at the last call. The kernel's queue may also hold bytes of earlier
    /// responses on this connection, so only the differences since the first wait for the client count. One
    /// system call.
    fn look_what_is_taken(&mut self, sent_bytes: u64, transport: &Transport) -> bool {
        let taken_bytes = sent_bytes.cast_signed() - transport.unacknowledged().cast_signed();
        let before = self.taken_bytes.unwrap_or(taken_bytes);
        self.taken_bytes = Some(taken_bytes.max(before));
        let more = u64::try_from(taken_bytes - before).unwrap_or(0);
        self.pace.moved(more);
        more > 0
    }
}

/// What there is to send.
enum Fill {
    Ready,
    Complete,
    Wait,
    Broken(io::Error),
}

/// The client has closed the connection.
const LEFT: &str = "the client left before it had its answer";

/// Whether the socket has failed. Some errors can come from files as well; for those, checks whether the
/// socket is broken.
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

/// Turns the result of a write to the socket into a [`SendResult`].
fn sent(polled: Poll<io::Result<usize>>) -> io::Result<SendResult> {
    match polled {
        Poll::Ready(Ok(0)) => Err(io::ErrorKind::WriteZero.into()),
        Poll::Ready(count) => Ok(SendResult::Bytes(count?)),
        Poll::Pending => Ok(SendResult::WaitsForClient),
    }
}
