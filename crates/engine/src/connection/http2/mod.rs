//! A client connection that speaks HTTP/2: many streams on one socket, each an exchange.
//!
//! [`Http2`] is a state of the [`Connection`](super::Connection). It stands between the socket, the protocol
//! ([`petrel_proto::http2`], which knows frames) and the requests (an [`ExchangeRun`] each). In a turn the
//! connection's task reads what the client has sent, polls the streams for which something has changed, and
//! sends their frames, in one write if they fit.
//!
//! | file | what it knows |
//! |---|---|
//! | `mod` | the turn: from the socket to the streams and back |
//! | `begin` | how a connection becomes one of HTTP/2 |
//! | `receive` | received frames |
//! | `stream` | one stream |
//! | `woken` | which streams are to be polled |
//! | `send_queue` | frames to be sent |
//! | `end` | deadlines, drain, the last frames |

mod begin;
mod end;
mod receive;
mod send_queue;
mod stream;
mod woken;

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use petrel_proto::header_block::HeaderBlock;
use petrel_proto::http2::{Http2Connection, StreamKey};
use petrel_proto::request_head::HeadOptions;

use super::link::Link;
use super::{ConnectionState, Step};
use crate::deadlines::Deadlines;
use crate::ledger::Nanos;
use crate::limits;
use crate::run::ExchangeRun;

use end::{Ending, ReaderWatch};
use send_queue::SendQueue;
use stream::{Course, Http2Stream, Side};
use woken::{SlotSet, WokenStreams};

/// The state of a connection that speaks HTTP/2.
pub(super) struct Http2 {
    protocol: Http2Connection,
    slots: Vec<StreamPlace>,
    /// The number of slots with a stream.
    open: usize,
    /// The set that wakers of streams add to; `None` before the first turn.
    woken: Option<Arc<WokenStreams>>,
    /// Streams to be polled.
    due: SlotSet,
    /// Streams that wait for room in `queue`.
    starved: SlotSet,
    queue: SendQueue,
    /// The kernel has taken everything that was sent.
    is_flushed: bool,
    /// The kernel takes nothing more, because the client takes nothing.
    is_blocked: bool,
    /// Streams whose last frame is in `queue`, each with the position behind that frame, as
    /// [`SendQueue::end`] counts.
    sending_last: VecDeque<(u64, StreamKey)>,
    /// Streams that are answered before the client has ended its request.
    discarded: Vec<DiscardedBody>,
    /// A PING was sent behind an answer whose request had not ended.
    asks_if_read: bool,
    /// The request with `Upgrade: h2c`. It is held back until the client has sent something in HTTP/2: curl
    /// 7.88 gives up when more than 32 KiB come together with the 101.
    upgraded: Option<Http2Stream>,
    /// Bytes that were received before the first turn.
    input: Vec<u8>,
    head_options: HeadOptions,
    trailers: HeaderBlock,
    /// The time at which the first byte of the incomplete header block came.
    block_began: Option<Nanos>,
    /// The first second in which a stream has a deadline.
    streams_due_s: u32,
    ending: Ending,
    reader: ReaderWatch,
}

/// A slot for a stream. The waker stays for the next stream in the slot.
struct StreamPlace {
    stream: Option<Http2Stream>,
    waker: Waker,
}

/// A stream whose answer is complete and whose request body is not. The server resets it with NO_ERROR (RFC
/// 9113 8.1) when the client has answered the PING behind the answer, or after a moment. If the server reset it
/// at once, clients such as curl 7.88 would drop the answer.
struct DiscardedBody {
    key: StreamKey,
    /// The second in which the server resets the stream.
    due_s: u32,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turned {
    /// The connection waits.
    Waits,
    /// Everything is sent: the connection waits for the client to close its side.
    Said,
    /// The client is gone.
    Gone,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Nothing,
    Bytes(u64),
    End,
}

impl Http2 {
    /// Runs one turn.
    pub(super) fn poll(mut self: Box<Self>, link: &mut Link, context: &mut Context<'_>) -> Step {
        if self.woken.is_none() {
            self.woken = Some(WokenStreams::new(context.waker().clone()));
        }
        self.queue
            .take_buffer(&link.worker, link.transport.is_tls());
        *self.protocol.lines() = link.worker.prepared_lines.take();
        let turned = self.turn(link, context);
        let lines = std::mem::take(self.protocol.lines());
        link.worker.prepared_lines.set(lines);
        self.queue.give_buffer(&link.worker);
        match turned {
            Turned::Waits => Break(ConnectionState::Http2(self)),
            Turned::Gone => {
                link.transport.say_end();
                Continue(ConnectionState::Over(None))
            }
            Turned::Said => {
                link.stop_speaking();
                Continue(ConnectionState::Linger(None))
            }
        }
    }

    fn turn(&mut self, link: &mut Link, context: &mut Context<'_>) -> Turned {
        if let Some(turned) = self.look_at_clock(link) {
            return turned;
        }
        let mut received_bytes = 0;
        loop {
            self.look_at_drain(link);
            let received = self.receive(link, context);
            if received == Heard::End {
                self.leave("the client left before it had its answer");
                return Turned::Gone;
            }
            self.run_streams(link);
            if let Err(error) = self.send(link, context) {
                self.leave(&error.to_string());
                return Turned::Gone;
            }
            if self.is_said() {
                return Turned::Said;
            }
            let Heard::Bytes(count) = received else {
                break;
            };
            received_bytes += count;
            if received_bytes >= limits::TURN_BYTES {
                context.waker().wake_by_ref();
                break;
            }
        }
        if !self.due.is_empty() {
            // A tunnel whose first side has just ended is polled again: its other side may have ended as
            // well.
            context.waker().wake_by_ref();
        }
        self.set_deadline(link);
        Turned::Waits
    }

    fn receive(&mut self, link: &mut Link, context: &mut Context<'_>) -> Heard {
        if !self.input.is_empty() {
            let input = std::mem::take(&mut self.input);
            self.take_input(&input, link);
            return Heard::Bytes(input.len() as u64);
        }
        let mut buffer = link.worker.take_http2_buffer();
        let heard = match link.transport.poll_read(context, &mut buffer) {
            Poll::Ready(Ok(count)) if count > 0 => {
                self.take_input(&buffer[..count], link);
                Heard::Bytes(count as u64)
            }
            Poll::Ready(_) => Heard::End,
            Poll::Pending => Heard::Nothing,
        };
        link.worker.give_http2_buffer(buffer);
        heard
    }

    /// Polls the streams that are due.
    fn run_streams(&mut self, link: &mut Link) {
        if let Some(woken) = &self.woken {
            self.due.extend(woken.take());
        }
        let mut is_first = true;
        while let Some(slot) = self.due.pop() {
            self.with_stream(slot, link, |stream, side, context| {
                if !std::mem::take(&mut is_first) {
                    stream.lags();
                }
                stream.advance(side, context)
            });
        }
    }

    /// Calls `go_on` with the stream in the slot, if there is one, and does what its [`Course`] asks for.
    fn with_stream(
        &mut self,
        slot: usize,
        link: &mut Link,
        go_on: impl FnOnce(&mut Http2Stream, &mut Side<'_>, &mut Context<'_>) -> Course,
    ) {
        let keeps_alive = self.ending.is_open();
        let Some(StreamPlace {
            stream: Some(stream),
            waker,
        }) = self.slots.get_mut(slot)
        else {
            return;
        };
        let mut side = Side {
            protocol: &mut self.protocol,
            queue: &mut self.queue,
            keeps_alive,
            streams: self.open,
        };
        let traces = link.worker.settings_table().traces_states;
        let before = traces.then(|| stream.phase_name());
        let course = go_on(stream, &mut side, &mut Context::from_waker(waker));
        stream.discard(&mut side);
        if let Some(before) = before
            && stream.run.settings.core.debug.state_handling
        {
            let (id, number, next) = (link.facts.id, stream.key.id(), stream.phase_name());
            if before != next {
                let change = format_args!("connection={id} stream={number} {before} -> {next}");
                stream.run.log_error("state", change);
            }
        }
        self.streams_due_s = self.streams_due_s.min(stream.due_s);
        match course {
            Course::Waits => {}
            Course::NeedsRoom => self.starved.insert(slot),
            Course::Ended => {
                let key = stream.key;
                self.sending_last.push_back((self.queue.end(), key));
                if !stream.is_received() && !stream.run.is_tunnel() {
                    self.asks_if_read = true;
                    self.protocol.ping();
                }
            }
            Course::Gone => self.forget(slot),
        }
    }

    /// Sends frames until there are no more or the socket takes no more.
    fn send(&mut self, link: &mut Link, context: &mut Context<'_>) -> io::Result<()> {
        let mut turn = link.turn_bytes();
        self.is_blocked = false;
        loop {
            self.fill(link);
            if self.queue.is_empty() {
                let flushed = link.transport.poll_flush(context)?;
                self.is_flushed = flushed.is_ready();
                self.is_blocked = !self.is_flushed;
                match self.is_flushed {
                    true => drop(self.reader.takes(link.worker.clock().seconds())),
                    false => self.reader.waits(self.queue.sent_total(), link),
                }
                self.finish_sent(link);
                return Ok(());
            }
            if turn == 0 {
                context.waker().wake_by_ref();
                return Ok(());
            }
            let allowed = usize::try_from(turn).unwrap_or(usize::MAX);
            match (self.queue).poll_write(&mut link.transport, allowed, context) {
                Poll::Ready(count) => {
                    turn = turn.saturating_sub(count? as u64);
                    let has_waited = self.reader.takes(link.worker.clock().seconds());
                    link.judge_reader(self.queue.sent_total(), has_waited);
                    self.finish_sent(link);
                }
                Poll::Pending => {
                    self.is_blocked = true;
                    self.queue.compact();
                    self.reader.waits(self.queue.sent_total(), link);
                    self.finish_sent(link);
                    return Ok(());
                }
            }
        }
    }

    /// Fills the queue with frames, in the order of the streams' turns.
    fn fill(&mut self, link: &mut Link) {
        while self.queue.has_room() {
            self.protocol.write_control(&mut self.queue.bytes);
            if !self.starved.is_empty() {
                self.due.extend(std::mem::take(&mut self.starved));
                self.run_streams(link);
            }
            let Some(next) = self.protocol.next_to_send() else {
                return;
            };
            self.with_stream(next.slot(), link, |stream, side, context| {
                stream.send_frame(side, context)
            });
        }
    }

    /// Ends the exchanges whose last frame the kernel has taken.
    fn finish_sent(&mut self, link: &mut Link) {
        if self.sending_last.is_empty() {
            return;
        }
        // A lower bound for TLS: the records that wait are longer than their plaintext.
        let kernel_has = (self.queue.sent_total()).saturating_sub(link.transport.unsent());
        let now = link.worker.clock().now();
        while let Some(&(end, key)) = self.sending_last.front()
            && end <= kernel_has
        {
            self.sending_last.pop_front();
            let slot = key.slot();
            let Some(StreamPlace {
                stream: Some(stream),
                ..
            }) = self.slots.get_mut(slot)
            else {
                continue;
            };
            if stream.key != key {
                continue;
            }
            link.know_local_address(&mut stream.run);
            match stream.finish(now, link) {
                true => {
                    self.ending.idle_s = stream.run.settings.core.keep_alive_idle_s;
                    if stream.is_received() {
                        self.forget(slot);
                    } else {
                        self.discard_rest(slot, link);
                    }
                }
                false => self.due.insert(slot),
            }
        }
    }

    /// Begins the request that came with `Upgrade: h2c`.
    fn insert_upgraded(&mut self) {
        if let Some(stream) = self.upgraded.take() {
            self.insert(stream);
        }
    }

    /// Puts a stream into its slot.
    fn insert(&mut self, stream: Http2Stream) {
        let slot = stream.key.slot();
        let stream_began_s = stream.run.worker.clock().seconds();
        let Some(woken) = &self.woken else { return };
        while self.slots.len() <= slot {
            let waker = woken.waker(self.slots.len());
            self.slots.push(StreamPlace {
                stream: None,
                waker,
            });
        }
        self.slots[slot].stream = Some(stream);
        self.open += 1;
        self.ending.begins_stream(stream_began_s);
        self.due.insert(slot);
    }

    /// Drops the stream in a slot, which is over and logged.
    fn forget(&mut self, slot: usize) {
        if let Some(stream) = self.slots.get_mut(slot).and_then(|slot| slot.stream.take()) {
            self.protocol.release(stream.key);
            self.open -= 1;
        }
    }

    /// Drops the stream in a slot, whose client has not ended its request.
    fn discard_rest(&mut self, slot: usize, link: &Link) {
        let stream = self.slots.get_mut(slot).and_then(|slot| slot.stream.take());
        if let Some(stream) = stream {
            self.open -= 1;
            let due_s = link.worker.clock().after(limits::DISCARD_S);
            self.streams_due_s = self.streams_due_s.min(due_s);
            self.discarded.push(DiscardedBody {
                key: stream.key,
                due_s,
            });
        }
    }

    /// The stream with this key, unless it was dropped.
    fn stream(&mut self, key: StreamKey) -> Option<&mut Http2Stream> {
        let stream = self.slots.get_mut(key.slot())?.stream.as_mut();
        stream.filter(|stream| stream.key == key)
    }

    /// All streams.
    fn streams(&mut self) -> impl Iterator<Item = &mut Http2Stream> {
        self.slots
            .iter_mut()
            .filter_map(|slot| slot.stream.as_mut())
    }

    /// A run for the next request.
    fn next_run(link: &Link) -> ExchangeRun {
        ExchangeRun::new(&link.worker, link.facts.clone())
    }
}

impl StreamPlace {
    /// The deadline of its stream.
    fn due_s(&self) -> u32 {
        self.stream
            .as_ref()
            .map_or(Deadlines::NEVER, |stream| stream.due_s)
    }
}

#[cfg(test)]
mod tests;
