//! Sending: head and body pieces to the socket, in as few system calls as they allow.
//!
//! What goes out next is always a prefix (the head, or a chunk header) and a piece of the body.
//! In memory both leave in one writev; a piece that is a file leaves by the configured network
//! backend behind a prefix that the kernel holds back for it (MSG_MORE).

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use petrel_proto::http1::{LAST_CHUNK, write_chunk_header};

use super::{Connection, State};
use crate::body::Piece;
use crate::exchange::Exchange;
use crate::limits;
use crate::network_backend;
use crate::throttle::Throttle;
use crate::transport::Transport;

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
    /// The end of the body has been queued.
    is_last: bool,
    in_chunk: bool,
    throttle: Option<Box<Throttle>>,
}

impl Sending {
    /// Starts a new answer; the head is written into the returned buffer.
    pub(super) fn begin(&mut self, framing: Framing) -> &mut Vec<u8> {
        self.clear();
        self.framing = framing;
        &mut self.prefix
    }

    pub fn clear(&mut self) {
        self.prefix.clear();
        self.prefix_sent = 0;
        self.piece = None;
        self.inlined = 0;
        self.framing = Framing::Plain;
        self.is_last = false;
        self.in_chunk = false;
        self.throttle = None;
    }

    /// The head, until the first bytes are sent.
    pub(super) fn head(&self) -> &[u8] {
        &self.prefix
    }

    /// Bytes of memory held for reuse.
    pub fn capacity(&self) -> usize {
        self.prefix.capacity()
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
        let mut turn = limits::SEND_TURN_BYTES;
        loop {
            let exchange = self.exchange.as_mut().expect("an answer is under way");
            match exchange.fill(context) {
                Fill::Ready => {}
                Fill::Complete => {
                    exchange.sent.is_complete = true;
                    return Poll::Ready(self.finish());
                }
                Fill::Wait => {
                    // The body's maker waits; that is not the client's fault.
                    self.no_deadline();
                    return Poll::Pending;
                }
                Fill::Broken(error) => {
                    exchange
                        .log_error("content", format_args!("the answer was cut short: {error}"));
                    self.abort(format_args!("{error}"));
                    return Poll::Ready(State::Over);
                }
            }
            if turn == 0 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let Some(allowed) = exchange.poll_allowance(context) else {
                self.no_deadline();
                return Poll::Pending;
            };
            let backend = self.worker.process().network_backend;
            let sent = send_once(
                &mut self.transport,
                &exchange.sending,
                backend,
                allowed.min(turn),
                context,
            );
            let write_idle_s = exchange.settings.core.write_idle_s;
            match sent {
                Poll::Ready(Ok(0)) => {
                    exchange.log_error(
                        "send",
                        format_args!("the file became shorter while it was sent"),
                    );
                    self.abort(format_args!("truncated"));
                    return Poll::Ready(State::Over);
                }
                Poll::Ready(Ok(count)) => {
                    exchange.account(count);
                    turn = turn.saturating_sub(count as u64);
                    if !exchange.sending.is_drained() {
                        self.set_deadline(write_idle_s);
                    }
                }
                Poll::Ready(Err(error)) => {
                    self.abort(format_args!("{error}"));
                    return Poll::Ready(State::Over);
                }
                Poll::Pending => {
                    self.set_deadline(write_idle_s);
                    return Poll::Pending;
                }
            }
        }
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
    /// Sees to it that something is queued: the head goes out with the first piece of the body, but
    /// does not wait for it.
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
        match self.response.body.poll_piece(context) {
            Poll::Ready(Some(Ok(piece))) => self.sending.queue(piece),
            Poll::Ready(Some(Err(error))) => return Fill::Broken(error),
            Poll::Ready(None) => {
                self.sending.queue_end();
                if self.sending.is_drained() {
                    return Fill::Complete;
                }
            }
            Poll::Pending if self.sending.is_drained() => return Fill::Wait,
            Poll::Pending => {}
        }
        Fill::Ready
    }

    /// How many bytes the bandwidth limits allow now. `None`: woken when they allow some.
    fn poll_allowance(&mut self, context: &mut Context<'_>) -> Option<u64> {
        let core = &self.settings.core;
        if core.connection_bytes_per_second == 0 && core.scope_throttle.is_none() {
            return Some(u64::MAX);
        }
        let now = self.worker.clock().now();
        let shared = self.worker.shared();
        let throttle = self.sending.throttle.get_or_insert_with(|| {
            let scope = core.scope_throttle.map(|scope| shared.scope_bucket(scope));
            Box::new(Throttle::new(core.connection_bytes_per_second, scope, now))
        });
        throttle.poll_allowance(now, context)
    }

    fn account(&mut self, count: usize) {
        self.sent.bytes += count as u64;
        self.sent.body_bytes += self.sending.advance(count);
        if let Some(throttle) = &mut self.sending.throttle {
            throttle.take(count as u64);
        }
    }
}

/// One system call's worth of what is queued, at most `allowed` bytes of it.
fn send_once(
    transport: &mut Transport,
    sending: &Sending,
    backend: network_backend::NetworkBackend,
    allowed: u64,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
    let prefix = sending.prefix_left();
    let prefix = &prefix[..prefix.len().min(allowed)];
    let for_piece = allowed - prefix.len();
    let Some(piece) = &sending.piece else {
        return transport.poll_write(context, prefix);
    };
    match piece.in_memory() {
        Some(bytes) => {
            let bytes = &bytes[..bytes.len().min(for_piece)];
            match (prefix.is_empty(), bytes.is_empty()) {
                (true, _) => transport.poll_write(context, bytes),
                (_, true) => transport.poll_write(context, prefix),
                _ => transport
                    .poll_write_vectored(context, &[IoSlice::new(prefix), IoSlice::new(bytes)]),
            }
        }
        None if !prefix.is_empty() => send_held_back(transport, prefix, context),
        None => network_backend::send(transport, backend, piece, for_piece, context),
    }
}

/// Sends bytes that the kernel may hold back until the file behind them comes.
fn send_held_back(
    transport: &mut Transport,
    prefix: &[u8],
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let sent = ready!(transport.poll_send_with(context, |socket| {
        let flags = rustix::net::SendFlags::MORE | rustix::net::SendFlags::NOSIGNAL;
        Ok(rustix::net::send(socket, prefix, flags)?)
    }));
    Poll::Ready(sent)
}
