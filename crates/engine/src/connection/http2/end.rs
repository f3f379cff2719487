//! How a connection ends: by a deadline, because the worker drains, or after its last request.

use petrel_proto::http2::{ConnectionError, Http2Error, WindowWait};

use super::{Http2, Turned};
use crate::connection::link::Link;
use crate::deadlines::Deadlines;
use crate::limits;
use crate::pace::ClientPace;
use crate::run::ExchangeRun;
use crate::worker::{Cut, Drain};

/// The phase of the connection's end, and the deadlines, in seconds of the worker's clock.
pub(super) struct Ending {
    phase: EndPhase,
    /// The client has sent GOAWAY.
    pub(super) client_goes: bool,
    /// Seconds for which the connection may be without a stream.
    pub(super) idle_s: u32,
    /// The end of that time; [`Deadlines::NEVER`] while there are streams.
    idle_due_s: u32,
    /// The second in which an idle connection frees memory.
    shrink_due_s: u32,
    /// The second in which the client must have acknowledged our SETTINGS.
    settings_due_s: u32,
    /// The second in which an incomplete header block must be complete.
    block_due_s: u32,
    /// The last second in which the client began requests, and how many it began in that second.
    began: (u32, u32),
    /// The last second in which the client began at least [`limits::HTTP2_REQUESTS_CROWDED`] requests.
    crowded_s: Option<u32>,
    /// The second in which a delayed GOAWAY is considered again.
    announce_due_s: u32,
    /// The second in which that GOAWAY is sent in any case.
    announce_by_s: u32,
    /// The second in which the client gets the last GOAWAY, unless it answers PING before.
    last_due_s: u32,
    /// The link's deadline has passed.
    is_due: bool,
    is_cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndPhase {
    /// Requests are taken.
    Open,
    /// The first GOAWAY was sent. Requests that the client begins before it reads this are taken.
    Announced,
    /// The last GOAWAY was sent. The connection ends when all requests are answered.
    Last,
    /// A GOAWAY with an error was sent. Nothing follows it.
    Failed,
}

impl Ending {
    pub(super) fn new(link: &Link) -> Ending {
        let (clock, core) = (link.worker.clock(), &link.worker.base_settings().core);
        Ending {
            phase: EndPhase::Open,
            client_goes: false,
            idle_s: core.keep_alive_idle_s,
            // The time for the first request is that of HTTP/1.
            idle_due_s: clock.after(core.read_idle_s),
            shrink_due_s: Deadlines::NEVER,
            settings_due_s: clock.after(limits::HTTP2_SETTINGS_S),
            block_due_s: Deadlines::NEVER,
            began: (0, 0),
            crowded_s: None,
            announce_due_s: Deadlines::NEVER,
            announce_by_s: Deadlines::NEVER,
            last_due_s: Deadlines::NEVER,
            is_due: false,
            is_cut: false,
        }
    }

    /// Whether the connection takes new requests.
    pub(super) fn is_open(&self) -> bool {
        self.phase == EndPhase::Open
    }

    /// A request begins: the connection is not idle.
    pub(super) fn begins_stream(&mut self, now_s: u32) {
        let requests = match self.began {
            (second_s, before) if second_s == now_s => before + 1,
            _ => 1,
        };
        self.began = (now_s, requests);
        if requests >= limits::HTTP2_REQUESTS_CROWDED {
            self.crowded_s = Some(now_s);
        }
        self.idle_due_s = Deadlines::NEVER;
        self.shrink_due_s = Deadlines::NEVER;
    }

    /// No header block is incomplete.
    pub(super) fn ends_block(&mut self) {
        self.block_due_s = Deadlines::NEVER;
    }

    pub(super) fn fail(&mut self) {
        self.phase = EndPhase::Failed;
        self.settings_due_s = Deadlines::NEVER;
        self.ends_block();
    }

    /// Whether the connection ends because of an error of the client.
    pub(super) fn has_failed(&self) -> bool {
        self.phase == EndPhase::Failed
    }
}

/// Deadlines.
impl Http2 {
    /// The deadline of the link has passed. The next turn finds out which of the deadlines it was.
    pub(in crate::connection) fn time_out(&mut self) {
        self.ending.is_due = true;
    }

    /// Sets the link's deadline to the earliest deadline.
    pub(super) fn set_deadline(&mut self, link: &Link) {
        let clock = link.worker.clock();
        let ending = &mut self.ending;
        if self.open == 0 && ending.idle_due_s == Deadlines::NEVER {
            ending.idle_due_s = clock.after(ending.idle_s);
            ending.shrink_due_s = clock.after(limits::HTTP2_SHRINK_S);
        }
        let is_in_block = self.block_began.is_some() && !ending.has_failed();
        if is_in_block && ending.block_due_s == Deadlines::NEVER {
            ending.block_due_s = clock.after(link.worker.base_settings().core.read_idle_s);
        }
        if self.protocol.is_acknowledged() {
            ending.settings_due_s = Deadlines::NEVER;
        }
        self.watch_windows(clock.seconds());
        let ending = &self.ending;
        let due = [
            ending.idle_due_s,
            ending.shrink_due_s,
            ending.block_due_s,
            ending.settings_due_s,
            ending.announce_due_s,
            ending.last_due_s,
            self.streams_due_s,
            self.reader.due_s,
        ];
        let first = due.into_iter().min();
        link.set_due(first.unwrap_or(Deadlines::NEVER));
    }

    /// Starts the client's time for streams that wait for a window, and stops it for others. While another
    /// stream can send, the client does not hold up those that wait for the connection's window.
    fn watch_windows(&mut self, now_s: u32) {
        let is_sending = self.protocol.next_to_send().is_some() || !self.queue.is_empty();
        let mut due_s = self.streams_due_s;
        for slot in &mut self.slots {
            let Some(stream) = &mut slot.stream else {
                continue;
            };
            match self.protocol.window_wait(stream.key) {
                Some(WindowWait::Connection) if is_sending => {
                    stream.end_window_wait(now_s);
                    stream.waits_for_client();
                }
                Some(_) => {
                    stream.wait_for_window(self.protocol.send_room(stream.key));
                    due_s = due_s.min(stream.due_s);
                }
                None => {
                    stream.end_window_wait(now_s);
                    if self.is_blocked {
                        stream.waits_for_client();
                    }
                }
            }
        }
        self.streams_due_s = due_s;
    }

    /// Handles the deadlines that have passed.
    pub(super) fn look_at_clock(&mut self, link: &mut Link) -> Option<Turned> {
        if !std::mem::take(&mut self.ending.is_due) {
            return None;
        }
        let now_s = link.worker.clock().seconds();
        // `fail` clears both deadlines.
        if self.ending.block_due_s <= now_s {
            link.trace_timeout(None, "the request head came too slowly");
            self.give_up(ConnectionError::BlockTooSlow, link);
        }
        if self.ending.settings_due_s <= now_s {
            link.trace_timeout(None, "the client did not acknowledge SETTINGS");
            self.give_up(ConnectionError::SettingsTimeout, link);
        }
        if self.reader.due_s <= now_s && self.reader.is_late(self.queue.sent_total(), link) {
            link.trace_timeout(None, "the client took no bytes for too long");
            self.leave("the client took no bytes for too long");
            return Some(Turned::Gone);
        }
        if self.ending.shrink_due_s <= now_s && self.open == 0 {
            self.ending.shrink_due_s = Deadlines::NEVER;
            self.shrink();
        }
        if self.ending.announce_due_s <= now_s {
            self.announce(link);
        }
        if self.ending.last_due_s <= now_s {
            self.tell_last();
        }
        if self.ending.idle_due_s <= now_s && self.open == 0 {
            let what = match link.facts.request_number {
                0 => "no request came",
                _ => "no further request came",
            };
            link.trace_timeout(None, what);
            self.announce_now(link);
            self.tell_last();
        }
        if self.streams_due_s <= now_s {
            self.streams_due_s = Deadlines::NEVER;
            self.stop_discarding(now_s);
            let taken_bytes =
                (self.queue.sent_total()).saturating_sub(link.transport.unacknowledged());
            for slot in 0..self.slots.len() {
                let due_s = self.slots[slot].due_s();
                if due_s > now_s {
                    self.streams_due_s = self.streams_due_s.min(due_s);
                    continue;
                }
                self.with_stream(slot, link, |stream, side, context| {
                    stream.time_out(side, context, now_s, taken_bytes)
                });
            }
        }
        None
    }

    /// Resets answered streams whose clients have not ended their requests in time.
    fn stop_discarding(&mut self, now_s: u32) {
        let (protocol, due_s) = (&mut self.protocol, &mut self.streams_due_s);
        self.discarded.retain(|body| {
            let is_due = body.due_s <= now_s;
            match is_due {
                true => protocol.release(body.key),
                false => *due_s = (*due_s).min(body.due_s),
            }
            !is_due
        });
    }

    fn give_up(&mut self, reason: ConnectionError, link: &Link) {
        self.protocol.give_up(reason);
        self.fail(Http2Error::Connection(reason), link);
    }

    /// Frees memory that the next requests would use again.
    fn shrink(&mut self) {
        self.protocol.shrink();
        self.queue.shrink();
        self.slots = Vec::new();
        self.sending_last = Default::default();
        self.trailers = Default::default();
    }
}

/// The orderly end.
impl Http2 {
    /// Sends the first GOAWAY, but not while the client begins many requests. Chromium fails requests that
    /// wait for a free stream when GOAWAY comes (ERR_ABORTED), and requests that it is about to send
    /// (ERR_FAILED), and does not send them again.
    pub(super) fn announce(&mut self, link: &Link) {
        let now_s = link.worker.clock().seconds();
        let ending = &mut self.ending;
        if ending.announce_by_s == Deadlines::NEVER {
            ending.announce_by_s = now_s + limits::HTTP2_CROWDED_S_MAX;
        }
        let is_crowded = ending.crowded_s.is_some_and(|last_s| now_s <= last_s + 1);
        match is_crowded && now_s < ending.announce_by_s && ending.is_open() {
            true => ending.announce_due_s = now_s + 1,
            false => self.announce_now(link),
        }
    }

    /// Sends the first GOAWAY, and PING: the acknowledgement shows that the client has read the GOAWAY.
    fn announce_now(&mut self, link: &Link) {
        self.ending.announce_due_s = Deadlines::NEVER;
        if self.ending.phase == EndPhase::Open {
            self.ending.phase = EndPhase::Announced;
            self.ending.last_due_s = link.worker.clock().after(limits::HTTP2_GO_AWAY_S);
            self.protocol.go_away();
            self.protocol.ping();
        }
    }

    /// The client has acknowledged PING: it has read the first GOAWAY, and the requests that it began before
    /// have come. Or it has read answers, and need not send the rest of their requests.
    pub(super) fn is_heard_of(&mut self) {
        if !std::mem::take(&mut self.asks_if_read) {
            return self.tell_last();
        }
        for body in self.discarded.drain(..) {
            self.protocol.release(body.key);
        }
        if self.ending.phase == EndPhase::Announced {
            // That PING may have gone ahead of GOAWAY.
            self.protocol.ping();
        }
    }

    /// Sends the last GOAWAY, which names the last request.
    fn tell_last(&mut self) {
        self.insert_upgraded();
        self.ending.last_due_s = Deadlines::NEVER;
        if self.ending.phase == EndPhase::Announced {
            self.ending.phase = EndPhase::Last;
            self.protocol.go_away();
        }
    }

    /// Announces the end after `server.max-keep-alive-requests`, or at the first request if there is no
    /// keep-alive.
    pub(super) fn look_at_request_count(&mut self, run: &ExchangeRun, link: &Link) {
        let core = &run.settings.core;
        if link.facts.request_number >= core.keep_alive_requests_max || core.keep_alive_idle_s == 0
        {
            self.announce(link);
        }
    }

    /// Ends the connection if the worker drains, and its requests if the worker cuts them.
    pub(super) fn look_at_drain(&mut self, link: &mut Link) {
        let Some(how) = link.worker.draining() else {
            return;
        };
        self.announce(link);
        // After `Upgrade: h2c` the first request is held back until the client speaks HTTP/2; the connection
        // is not idle then.
        let is_idle = self.open == 0 && self.upgraded.is_none();
        if is_idle && how == Drain::Stop && link.transport.is_silent() {
            self.tell_last();
        }
        if let Some(why) = link.worker.cut() {
            self.cut_off(why, link);
        }
    }

    fn cut_off(&mut self, why: Cut, link: &mut Link) {
        if std::mem::replace(&mut self.ending.is_cut, true) {
            return;
        }
        self.insert_upgraded();
        for slot in 0..self.slots.len() {
            self.with_stream(slot, link, |stream, side, _| stream.cut_off(side, why));
            self.due.insert(slot);
        }
        self.announce_now(link);
        self.tell_last();
    }

    /// Whether the connection is ending and everything is sent.
    pub(super) fn is_said(&self) -> bool {
        let is_ending = match self.ending.phase {
            EndPhase::Open | EndPhase::Announced => self.ending.client_goes,
            EndPhase::Last | EndPhase::Failed => true,
        };
        is_ending
            && self.open == 0
            && self.upgraded.is_none()
            && self.queue.is_empty()
            && self.is_flushed
            && !self.protocol.has_control()
    }

    /// The client has left or is given up: logs all streams as incomplete and drops them.
    pub(super) fn leave(&mut self, cause: &str) {
        if let Some(mut stream) = self.upgraded.take() {
            stream.abort(format_args!("{cause}"));
        }
        for slot in 0..self.slots.len() {
            if let Some(stream) = &mut self.slots[slot].stream {
                stream.abort(format_args!("{cause}"));
            }
            self.forget(slot);
        }
        self.sending_last.clear();
    }

    /// The connection is dropped together with the worker's runtime.
    pub(in crate::connection) fn tell_dropped(mut self, link: &Link) {
        if let Some(why) = link.worker.cut() {
            if let Some(stream) = &mut self.upgraded {
                stream.tell_dropped(why);
            }
            self.streams().for_each(|stream| stream.tell_dropped(why));
        }
    }
}

/// Watches whether a client still reads while the kernel's send buffer is full.
pub(super) struct ReaderWatch {
    pace: ClientPace,
    /// The second in which the client must have taken more; 0: the send buffer is not full.
    write_due_s: u32,
    /// Bytes that the client had acknowledged when the kernel was last asked.
    taken_bytes: Option<u64>,
    /// The second of the next check.
    due_s: u32,
}

impl Default for ReaderWatch {
    fn default() -> ReaderWatch {
        ReaderWatch {
            pace: ClientPace::default(),
            write_due_s: 0,
            taken_bytes: None,
            due_s: Deadlines::NEVER,
        }
    }
}

impl ReaderWatch {
    /// The send buffer is full. The kernel has taken `sent_bytes` in all.
    pub(super) fn waits(&mut self, sent_bytes: u64, link: &Link) {
        let (clock, core) = (link.worker.clock(), &link.worker.base_settings().core);
        if self.write_due_s == 0 {
            self.write_due_s = clock.after(core.write_idle_s);
        }
        if self.taken_bytes.is_none() {
            self.look_what_is_taken(sent_bytes, link);
        }
        let slow_s = self.pace.wait(clock.seconds(), core.write_rate_min);
        self.due_s = self.write_due_s.min(slow_s.unwrap_or(Deadlines::NEVER));
    }

    /// The kernel takes bytes again. Returns whether the connection had to wait for that.
    pub(super) fn takes(&mut self, now_s: u32) -> bool {
        self.pace.stop(now_s);
        self.due_s = Deadlines::NEVER;
        std::mem::take(&mut self.write_due_s) != 0
    }

    /// Whether the client has taken nothing for `server.max-write-idle`, or is slower than
    /// `server.min-write-rate`.
    pub(super) fn is_late(&mut self, sent_bytes: u64, link: &Link) -> bool {
        let now_s = link.worker.clock().seconds();
        let base = link.worker.base_settings();
        let rate = base.core.write_rate_min;
        if self.look_what_is_taken(sent_bytes, link) {
            self.write_due_s = link.worker.clock().after(base.core.write_idle_s);
        }
        let is_slow = self.pace.is_over(now_s, rate);
        if is_slow {
            let told = format!(
                "the client took its answers at {} bytes a second, below server.min-write-rate = {}",
                self.pace.rate(now_s),
                rate.bytes_per_second
            );
            link.log_common("send", &told);
        }
        self.due_s = self.write_due_s;
        is_slow || self.write_due_s <= now_s
    }

    /// Asks the kernel how many bytes the client has acknowledged. Returns whether there are more than the
    /// last time.
    fn look_what_is_taken(&mut self, sent_bytes: u64, link: &Link) -> bool {
        let taken_bytes = sent_bytes.saturating_sub(link.transport.unacknowledged());
        let before = self.taken_bytes.unwrap_or(taken_bytes);
        self.taken_bytes = Some(taken_bytes.max(before));
        let more = taken_bytes.saturating_sub(before);
        self.pace.moved(more);
        more > 0
    }
}
