//! The sending side of streams: heads, DATA in turns, trailers, resets. And the calls by which the owner says
//! which bytes and streams it is done with.

use super::connection::{Core, Http2Connection};
use super::flow::{USEFUL_BYTES, WIDER_BYTES};
use super::frame::{AfterFrame, ErrorCode};
use super::priority::Priority;
use super::streams::{Local, Remote, StreamKey, StreamSlot};
use super::turns::Turn;
use super::{OpenHeaders, write_data_header, write_window_update};
use crate::hpack::PreparedLines;
use crate::request_head::KnownField;
use crate::status::Status;

/// Whether something was written for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a stream that is gone takes nothing"]
pub enum Written {
    /// The frames were written.
    Yes,
    /// Nothing was written: the connection has failed, the stream is reset or released, its answer has ended,
    /// or, for DATA, the windows are too small.
    No,
}

/// The window that a stream waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowWait {
    /// Its own.
    Stream,
    /// That of the connection, which all streams share.
    Connection,
}

/// Answers. Each of these first appends the waiting control frames to `out`, then its own.
impl Http2Connection {
    /// Appends an interim answer. `fields` are lines as in [`crate::header_block::HeaderBlock::as_bytes`].
    /// HTTP/2 has no 101.
    pub fn write_interim(
        &mut self,
        stream: StreamKey,
        status: Status,
        fields: &[u8],
        out: &mut Vec<u8>,
    ) -> Written {
        match self.core.streams.get(stream) {
            _ if self.core.error.is_some() || status == Status::SWITCHING_PROTOCOLS => Written::No,
            Some(known) if known.is_writable() && !known.is_answered() => {
                let section = FieldSection {
                    status: Some(status),
                    length: None,
                    fields: &[fields],
                };
                self.core
                    .write_section(stream.id(), &section, AfterFrame::More, out);
                Written::Yes
            }
            _ => Written::No,
        }
    }

    /// Appends the head of an answer. `fields` are lines as in
    /// [`crate::header_block::HeaderBlock::as_bytes`], in any number of parts. Fields about an HTTP/1
    /// connection are left out, and so is Content-Length where `length` has it.
    pub fn write_head(
        &mut self,
        stream: StreamKey,
        status: Status,
        fields: &[&[u8]],
        length: Option<u64>,
        after: AfterFrame,
        out: &mut Vec<u8>,
    ) -> Written {
        let core = &mut self.core;
        match core.streams.get_mut(stream) {
            _ if core.error.is_some() => Written::No,
            Some(known) if known.is_writable() && !known.is_answered() => {
                known.local = Local::Begun;
                let section = FieldSection {
                    status: Some(status),
                    length,
                    fields,
                };
                core.write_section(stream.id(), &section, after, out);
                core.place(stream.slot() as u16);
                core.end_if(stream, after);
                Written::Yes
            }
            _ => Written::No,
        }
    }

    /// Appends the trailers of an answer, which end it.
    pub fn write_trailers(
        &mut self,
        stream: StreamKey,
        fields: &[u8],
        out: &mut Vec<u8>,
    ) -> Written {
        let core = &mut self.core;
        match core.streams.get(stream) {
            _ if core.error.is_some() => Written::No,
            Some(known) if known.takes_data() => {
                let section = FieldSection {
                    status: None,
                    length: None,
                    fields: &[fields],
                };
                core.write_section(stream.id(), &section, AfterFrame::EndOfStream, out);
                core.end_if(stream, AfterFrame::EndOfStream);
                Written::Yes
            }
            _ => Written::No,
        }
    }

    /// How long the next DATA frame of a stream may be: limited by both windows and the client's
    /// SETTINGS_MAX_FRAME_SIZE.
    pub fn send_room(&self, stream: StreamKey) -> u32 {
        self.window_room(stream).min(self.core.peer_frame_bytes_max)
    }

    /// How many bytes of DATA both windows allow on a stream.
    pub fn window_room(&self, stream: StreamKey) -> u32 {
        match self.core.streams.get(stream) {
            Some(known) if known.is_writable() && self.core.error.is_none() => {
                known.send_window.room().min(self.core.send_window.room())
            }
            _ => 0,
        }
    }

    /// Appends the header of a DATA frame. The caller must send `length` bytes behind it, at most
    /// [`Http2Connection::send_room`]. An empty frame can end the answer. The head must have been written
    /// before.
    pub fn write_data_header(
        &mut self,
        stream: StreamKey,
        length: u32,
        after: AfterFrame,
        out: &mut Vec<u8>,
    ) -> Written {
        let room = self.send_room(stream);
        let core = &mut self.core;
        let has_failed = core.error.is_some();
        let Some(known) = core.streams.get_mut(stream) else {
            return Written::No;
        };
        if has_failed || !known.takes_data() || length > room {
            return Written::No;
        }
        known.send_window.take(length);
        let turn = known.turn;
        core.send_window.take(length);
        core.counts.data_sent(length, room);
        core.write_control(out);
        write_data_header(out, stream.id(), length, after);
        match after {
            _ if turn == Turn::NONE => {}
            AfterFrame::More => core.has_had_turn(turn),
            // The stream has ended, so it gets no other turn.
            AfterFrame::EndOfStream => core.turns.was_taken(turn),
        }
        core.end_if(stream, after);
        Written::Yes
    }
}

/// Encoded lines, which connections can share.
impl Http2Connection {
    /// Lines of answers that were encoded before. An owner of several connections lends one cache to the
    /// connection that is at work, and takes it back.
    pub fn lines(&mut self) -> &mut PreparedLines {
        &mut self.core.encoder.lines
    }
}

/// Turns.
impl Http2Connection {
    /// The owner has `bytes` of DATA to send on a stream, at least one. Once the head is written,
    /// [`Http2Connection::next_to_send`] may return the stream.
    pub fn mark_ready(&mut self, stream: StreamKey, bytes: u64) {
        let bytes = bytes.clamp(1, u64::from(USEFUL_BYTES));
        self.set_ready(stream, bytes as u16);
    }

    /// The owner has no DATA to send on a stream at the moment.
    pub fn mark_waiting(&mut self, stream: StreamKey) {
        self.set_ready(stream, 0);
    }

    /// The stream whose turn it is to send DATA: it is ready, and both windows have room for what is ready or
    /// for a useful part of it. Its turn lasts until [`Http2Connection::write_data_header`], or until it is
    /// not ready any more.
    pub fn next_to_send(&self) -> Option<StreamKey> {
        if self.core.error.is_some() {
            return None;
        }
        let slot = self.core.turns.next()?.slot();
        let stream = self.core.streams.at(slot);
        self.core
            .has_room_for(stream)
            .then(|| self.core.streams.key(slot))
    }

    /// The window that the client must open before a stream that is ready can send.
    pub fn window_wait(&self, stream: StreamKey) -> Option<WindowWait> {
        let core = &self.core;
        let known = core.streams.get(stream)?;
        if known.ready_bytes == 0 || !known.is_writable() || core.error.is_some() {
            None
        } else if !known.has_useful_room(core.peer_stream_window) {
            Some(WindowWait::Stream)
        } else if !core.has_room_for(known) {
            Some(WindowWait::Connection)
        } else {
            None
        }
    }

    /// The priority of a stream.
    pub fn priority(&self, stream: StreamKey) -> Option<Priority> {
        Some(self.core.streams.get(stream)?.priority)
    }

    /// Overrides the client's priority, for example by the Priority field of the answer.
    pub fn set_priority(&mut self, stream: StreamKey, priority: Priority) {
        if self.core.streams.get(stream).is_some() {
            self.core.set_priority(stream.slot() as u16, priority);
        }
    }

    fn set_ready(&mut self, stream: StreamKey, bytes: u16) {
        if let Some(known) = self.core.streams.get_mut(stream)
            && known.ready_bytes != bytes
        {
            known.ready_bytes = bytes;
            self.core.place(stream.slot() as u16);
        }
    }
}

/// Bytes and streams that the owner is done with.
impl Http2Connection {
    /// The owner is done with so many bytes of [`super::Http2Event::Data`]: the windows are opened for
    /// others.
    pub fn consumed(&mut self, stream: StreamKey, bytes: u32) {
        let core = &mut self.core;
        let size = core.options.stream_window;
        let Some(known) = core.streams.get_mut(stream) else {
            return;
        };
        let bytes = bytes.min(known.unconsumed);
        known.unconsumed -= bytes;
        let mut opened = known.give_back(bytes, size);
        if opened > 0 && !known.is_wide && core.spare_window >= WIDER_BYTES {
            core.spare_window -= WIDER_BYTES;
            known.is_wide = true;
            // The window stays far below 2^31.
            known.receive_window.shift(WIDER_BYTES as i32);
            opened += WIDER_BYTES;
        }
        if core.error.is_none() {
            write_window_update(&mut core.control, stream.id(), opened);
        }
        core.give_back(bytes);
    }

    /// The owner throws so many bytes away. Only the connection's window is opened for others: what else the
    /// client would send on this stream would be thrown away as well.
    pub fn discarded(&mut self, stream: StreamKey, bytes: u32) {
        let core = &mut self.core;
        if let Some(known) = core.streams.get_mut(stream) {
            let bytes = bytes.min(known.unconsumed);
            known.unconsumed -= bytes;
            core.give_back(bytes);
        }
    }

    /// Resets a stream, unless both sides have ended it. The owner must release it all the same.
    pub fn reset(&mut self, stream: StreamKey, code: ErrorCode) {
        if let Some(known) = self.core.streams.get(stream)
            && known.is_alive()
        {
            self.core.reset(stream.slot() as u16, code);
        }
    }

    /// The owner forgets a stream. If its answer is not complete, the stream is reset with INTERNAL_ERROR. If
    /// only its request is not complete, the stream is reset with NO_ERROR, so that the client does not send
    /// the rest (RFC 9113 8.1).
    pub fn release(&mut self, stream: StreamKey) {
        let core = &mut self.core;
        let Some(known) = core.streams.get(stream) else {
            return;
        };
        let unconsumed = known.unconsumed;
        if known.is_wide {
            core.spare_window += WIDER_BYTES;
        }
        let code = match (known.local, known.remote) {
            _ if known.reset.is_some() => None,
            (Local::Ended, Remote::Ended) => None,
            (Local::Ended, Remote::Open) => {
                if !known.is_refused {
                    core.counts.completed();
                }
                Some(ErrorCode::NoError)
            }
            (Local::Waiting | Local::Begun, _) => Some(ErrorCode::InternalError),
        };
        if let Some(code) = code {
            core.reset(stream.slot() as u16, code);
        }
        core.streams.remove(stream);
        core.give_back(unconsumed);
    }
}

/// The fields of a head, or trailers (RFC 9110 5).
struct FieldSection<'h> {
    /// None for trailers.
    status: Option<Status>,
    length: Option<u64>,
    /// Lines, each `Name: value` and CR LF.
    fields: &'h [&'h [u8]],
}

impl Core {
    fn write_section(
        &mut self,
        id: u32,
        section: &FieldSection<'_>,
        after: AfterFrame,
        out: &mut Vec<u8>,
    ) {
        self.write_control(out);
        let frame = OpenHeaders::begin(out);
        self.encoder.begin(out);
        if let Some(status) = section.status {
            self.encoder.status(out, status);
        }
        if let Some(length) = section.length {
            self.encoder.content_length(out, length);
        }
        let is_dropped = |known: KnownField| match known {
            KnownField::ContentLength => section.length.is_some() || section.status.is_none(),
            // Trailer names the fields in the trailers. It is allowed in HTTP/2 as well.
            KnownField::Trailer => false,
            known => known.is_hop_by_hop(),
        };
        let fields = section.fields.iter().enumerate();
        for (part, lines) in fields.filter(|(_, lines)| !lines.is_empty()) {
            match section.status.is_some() && section.length.is_some() {
                true => self.encoder.part(out, part, lines, is_dropped),
                false => self.encoder.lines(out, lines, is_dropped),
            }
        }
        frame.finish(out, id, after, self.peer_frame_bytes_max);
    }

    /// Whether the connection's window has room for a useful part of what is ready on a stream. A client may keep that
    /// window small, though it begins with 65,535 bytes: then half of the steps in which the client opens it is enough.
    fn has_room_for(&self, stream: &StreamSlot) -> bool {
        let ready = u32::from(stream.ready_bytes);
        let useful = match self.widest_step {
            0 => ready,
            step => ready.min(step.div_ceil(2)),
        };
        self.send_window.room() >= useful
    }

    /// The stream has had its turn; an incremental one goes behind the others.
    fn has_had_turn(&mut self, turn: Turn) {
        self.turns.was_taken(turn);
        let slot = turn.slot();
        let stream = self.streams.at_mut(slot);
        if stream.priority.is_incremental() {
            stream.turn = Turn::NONE;
            self.turns.leave(turn);
        }
        self.place(slot);
    }

    /// Ends the answer if `after` says so.
    fn end_if(&mut self, stream: StreamKey, after: AfterFrame) {
        if after == AfterFrame::EndOfStream
            && let Some(known) = self.streams.get_mut(stream)
        {
            known.local = Local::Ended;
            let slot = stream.slot() as u16;
            self.place(slot);
            self.count_if_over(slot);
        }
    }
}
