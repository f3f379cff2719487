//! The receiving side of streams: heads, bodies, trailers.

use std::ops::Range;

use super::connection::{Core, Found, GoingAway, Http2Event, Lent};
use super::error::{ConnectionError, Http2Error, StreamError};
use super::flow::{ReceiveWindow, SendWindow};
use super::frame::AfterFrame;
use super::limits::SMALL_DATA_BYTES;
use super::priority::Priority;
use super::repeated_head::HeadBasis;
use super::streams::{LENGTH_UNKNOWN, Local, Remote, ResetBy, StreamKey, StreamSlot};
use super::turns::Turn;
use super::{write_reset, write_window_update};
use crate::hpack::{FieldLine, HpackError};
use crate::method::Method;
use crate::request_head::{BodyFraming, HeadBuilder, HeadError, KnownField, Version};
use crate::syntax::{is_lower_token, is_value, trimmed};

/// A header block that is not complete, or the properties of a complete one.
#[derive(Debug)]
pub(super) struct OpenBlock {
    pub(super) stream: u32,
    pub(super) after: AfterFrame,
    pub(super) depends_on_itself: bool,
    pub(super) bytes: Vec<u8>,
    continuations: u32,
}

impl OpenBlock {
    pub(super) fn new(stream: u32, after: AfterFrame, depends_on_itself: bool) -> OpenBlock {
        OpenBlock {
            stream,
            after,
            depends_on_itself,
            bytes: Vec::new(),
            continuations: 0,
        }
    }

    /// Adds a part that is not the last one.
    pub(super) fn add(&mut self, part: &[u8], core: &mut Core) -> Result<(), ConnectionError> {
        if part.is_empty() {
            core.counts.empty_frame(&core.options.limits)?;
        }
        self.bytes.extend_from_slice(part);
        match self.bytes.len() > core.options.limits.block_bytes_max as usize {
            true => Err(ConnectionError::BlockTooLong),
            false => Ok(()),
        }
    }

    /// Adds the part in a CONTINUATION frame.
    pub(super) fn add_next(
        &mut self,
        part: &[u8],
        is_last: bool,
        core: &mut Core,
    ) -> Result<(), ConnectionError> {
        self.continuations += 1;
        if self.continuations > core.options.limits.continuations_max {
            return Err(ConnectionError::ContinuationFlood);
        }
        match is_last && part.is_empty() {
            true => Ok(()),
            false => self.add(part, core),
        }
    }
}

/// What a header block is for. All blocks are decoded, because later ones refer to their entries.
enum Use {
    /// It begins a stream.
    Request,
    /// It begins a stream that is refused.
    Refuse(StreamError),
    /// It has the trailers of the stream in this slot.
    Trailers(u16),
    /// It is an error, for which the stream in this slot is reset.
    Lose(u16, StreamError),
    /// It is ignored: the stream was reset, or came after the last one that GOAWAY allows.
    Nothing,
}

/// Header blocks.
impl Core {
    /// Takes a complete header block.
    pub(super) fn block(&mut self, opened: &OpenBlock, block: &[u8], lent: &mut Lent<'_>) -> Found {
        let id = opened.stream;
        match self.use_of(opened)? {
            Use::Request => self.request(opened, block, lent),
            Use::Trailers(slot) => self.trailers(slot, block, lent),
            Use::Refuse(error) => {
                self.decode(block, |_| {})?;
                self.refuse(id, error)
            }
            Use::Lose(slot, error) => {
                self.decode(block, |_| {})?;
                self.lose(slot, error)
            }
            Use::Nothing => {
                self.counts.idle_frame(&self.options.limits)?;
                self.decode(block, |_| {})?;
                Ok(None)
            }
        }
    }

    fn use_of(&mut self, opened: &OpenBlock) -> Result<Use, ConnectionError> {
        let id = opened.stream;
        if id > self.highest_seen {
            if id.is_multiple_of(2) {
                return Err(ConnectionError::StreamIdentifier);
            }
            self.highest_seen = id;
            return Ok(if matches!(self.going_away, GoingAway::Behind(_)) {
                self.expect_late_bytes();
                Use::Nothing
            } else if opened.depends_on_itself {
                Use::Refuse(StreamError::DependsOnItself)
            } else if !self.streams.has_room(self.options.limits.streams_max) {
                Use::Refuse(StreamError::TooMany)
            } else {
                Use::Request
            });
        }
        let Some(slot) = self.streams.find(id) else {
            return if self.is_ignored(id) {
                Ok(Use::Nothing)
            } else if id == self.highest_seen {
                Err(ConnectionError::ClosedStream)
            } else {
                // Identifiers of clients must ascend. This one may have been used, or been left out.
                Err(ConnectionError::StreamIdentifier)
            };
        };
        let stream = self.streams.at(slot);
        match (stream.reset, stream.remote) {
            (Some(ResetBy::Server), _) => Ok(Use::Nothing),
            (Some(ResetBy::Client), _) => Err(ConnectionError::ClosedStream),
            (None, Remote::Ended) if stream.local == Local::Ended => {
                Err(ConnectionError::ClosedStream)
            }
            (None, Remote::Ended) => Ok(Use::Lose(slot, StreamError::HalfClosed)),
            (None, Remote::Open) if opened.depends_on_itself => {
                Ok(Use::Lose(slot, StreamError::DependsOnItself))
            }
            (None, Remote::Open) if stream.is_tunnel => Ok(Use::Lose(slot, StreamError::InTunnel)),
            (None, Remote::Open) if opened.after == AfterFrame::More => {
                Ok(Use::Lose(slot, StreamError::TrailersNotLast))
            }
            (None, Remote::Open) => Ok(Use::Trailers(slot)),
        }
    }

    /// Whether frames of a stream that is released or was not taken are ignored.
    fn is_ignored(&self, id: u32) -> bool {
        let is_behind = matches!(self.going_away, GoingAway::Behind(last) if id > last);
        is_behind || self.reset_streams.contains(id)
    }

    fn decode(
        &mut self,
        block: &[u8],
        mut take: impl FnMut(FieldLine<'_>),
    ) -> Result<(), Http2Error> {
        if block.len() > self.options.limits.block_bytes_max as usize {
            return Err(ConnectionError::BlockTooLong.into());
        }
        let list_bytes_max = self.options.limits.list_bytes_max as usize;
        let decoded = (self.decoder).decode_within(block, list_bytes_max, &mut take);
        decoded.map_err(|error| match error {
            HpackError::ListTooLong => ConnectionError::HeaderBomb.into(),
            error => error.into(),
        })
    }

    fn request(&mut self, opened: &OpenBlock, block: &[u8], lent: &mut Lent<'_>) -> Found {
        let id = opened.stream;
        let basis = HeadBasis {
            table_changes: self.decoder.table_changes(),
            after: opened.after,
            options: *lent.head_options,
        };
        let (finished, priority) = match self.repeated_head.copy(block, &basis, lent.head) {
            Some(priority) => (Ok(()), priority),
            None => {
                let (finished, priority) = self.head(opened.after, block, lent)?;
                // A block that adds an entry to the table adds it each time.
                if finished.is_ok() && self.decoder.table_changes() == basis.table_changes {
                    self.repeated_head.note(block, basis, lent.head, priority);
                }
                (finished, priority)
            }
        };
        if finished.is_err_and(is_malformed) {
            return self.refuse(id, StreamError::Malformed);
        }
        if finished.is_err() {
            self.counts.reset(&self.options.limits)?;
        }
        let stream = self.begin_stream(id, opened.after);
        let told = self.early_priority(id);
        let known = self.streams.at_mut(stream.slot() as u16);
        known.priority = told.or(priority).unwrap_or(Priority::NOT_TOLD);
        known.is_refused = finished.is_err();
        if finished.is_ok() {
            match (lent.head.method(), lent.head.framing()) {
                // A tunnel is incremental: its bytes are of use at once, and it may never end.
                (Method::Connect, _) => {
                    known.is_tunnel = true;
                    known.priority.is_incremental = true;
                }
                (_, BodyFraming::Length(length)) => known.body_left = length,
                (_, BodyFraming::None) if lent.head.field(KnownField::ContentLength).is_some() => {
                    known.body_left = 0;
                }
                // The owner refuses a body that the method does not allow.
                (_, BodyFraming::None | BodyFraming::Chunked) => {}
            }
        }
        let body = opened.after;
        Ok(Some(match finished {
            Ok(()) => Http2Event::Request { stream, body },
            Err(error) => Http2Event::Refused {
                stream,
                error,
                body,
            },
        }))
    }

    /// Decodes the head of a request into [`Lent::head`]. Returns what is wrong with it, and the priority
    /// that it asks for.
    fn head(
        &mut self,
        after: AfterFrame,
        block: &[u8],
        lent: &mut Lent<'_>,
    ) -> Result<(Result<(), HeadError>, Option<Priority>), Http2Error> {
        let takes_protocol = self.options.takes_extended_connect;
        let mut priority: Option<Priority> = None;
        let mut builder = lent.head.build(Version::Http2, lent.head_options);
        let mut refused = None;
        self.decode(block, |line| {
            // A few bytes of a block can stand for a thousand lines. Lines behind an error are skipped, so
            // that they cost little.
            if refused.is_some() {
                return;
            }
            refused = add(&mut builder, &line, takes_protocol).err();
            if refused.is_none() && line.name == b"priority" {
                priority = Some(priority.unwrap_or_default().updated_by(line.value));
            }
        })?;
        let framing = match after {
            AfterFrame::EndOfStream => BodyFraming::None,
            AfterFrame::More => BodyFraming::Chunked,
        };
        let finished = match refused {
            None => builder.finish(framing),
            Some(error) => Err(error),
        };
        Ok((finished, priority))
    }

    /// Adds a new stream.
    pub(super) fn begin_stream(&mut self, id: u32, after: AfterFrame) -> StreamKey {
        self.highest_seen = id;
        self.highest_taken = id;
        self.counts.request();
        self.streams.insert(StreamSlot {
            id,
            remote: match after {
                AfterFrame::EndOfStream => Remote::Ended,
                AfterFrame::More => Remote::Open,
            },
            local: Local::Waiting,
            reset: None,
            priority: Priority::NOT_TOLD,
            is_tunnel: false,
            is_refused: false,
            ready_bytes: 0,
            is_wide: false,
            send_window: SendWindow::new(self.peer_stream_window),
            receive_window: ReceiveWindow::new(self.stream_window),
            unconsumed: 0,
            body_left: LENGTH_UNKNOWN,
            turn: Turn::NONE,
        })
    }

    /// The priority that PRIORITY_UPDATE gave a stream before it began. Forgets the priorities of earlier
    /// streams.
    fn early_priority(&mut self, id: u32) -> Option<Priority> {
        let mut early = self.early_priorities.iter();
        let told = early.find(|&&(other, _)| other == id).map(|early| early.1);
        self.early_priorities.retain(|&(other, _)| other > id);
        told
    }

    /// Refuses a stream without an event of its own.
    fn refuse(&mut self, id: u32, error: StreamError) -> Found {
        self.counts.reset(&self.options.limits)?;
        write_reset(&mut self.control, id, error.code());
        self.reset_streams.add(id);
        self.expect_late_bytes();
        Ok(Some(Http2Event::StreamError {
            id,
            stream: None,
            error,
        }))
    }

    fn trailers(&mut self, slot: u16, block: &[u8], lent: &mut Lent<'_>) -> Found {
        lent.trailers.clear();
        let bytes_max = self.options.limits.trailer_bytes_max as usize;
        let (mut bytes, mut is_sound) = (0, true);
        self.decode(block, |line| {
            bytes += line.list_bytes();
            if bytes > bytes_max || !is_sound {
                return;
            }
            is_sound = is_trailer(&line);
            if is_sound && let Ok(name) = std::str::from_utf8(line.name) {
                lent.trailers.append(name, line.value);
            }
        })?;
        let stream = self.streams.at_mut(slot);
        let is_complete = matches!(stream.body_left, 0 | LENGTH_UNKNOWN);
        if !is_sound {
            return self.lose(slot, StreamError::Trailers);
        }
        if bytes > bytes_max {
            return self.lose(slot, StreamError::TrailersTooLong);
        }
        if !is_complete {
            return self.lose(slot, StreamError::BodyTooShort);
        }
        stream.remote = Remote::Ended;
        self.count_if_over(slot);
        let stream = self.streams.key(slot);
        Ok(Some(Http2Event::Trailers { stream }))
    }
}

/// Bodies.
impl Core {
    /// Counts DATA frames that carry little.
    pub(super) fn note_data(
        &mut self,
        id: u32,
        range: &Range<usize>,
        goes_on: bool,
        is_frame_end: bool,
    ) -> Result<(), ConnectionError> {
        self.frame_bytes += range.len() as u32;
        if !is_frame_end {
            return Ok(());
        }
        match std::mem::take(&mut self.frame_bytes) {
            0 if !goes_on && !self.is_received_on(id) => {
                self.counts.idle_frame(&self.options.limits)
            }
            _ if !goes_on => Ok(()),
            0 => self.counts.empty_frame(&self.options.limits),
            1..SMALL_DATA_BYTES if self.expects_long_data(id) => {
                self.counts.small_frame(&self.options.limits)
            }
            _ => Ok(()),
        }
    }

    /// Whether DATA can change something on a stream.
    fn is_received_on(&self, id: u32) -> bool {
        let slot = self.streams.find(id);
        slot.is_some_and(|slot| self.streams.at(slot).reset.is_none())
    }

    /// Whether the DATA frames of a stream should not be short. Messages in a tunnel may be short, and frames
    /// of reset streams are counted elsewhere.
    fn expects_long_data(&self, id: u32) -> bool {
        let slot = self.streams.find(id);
        let stream = slot.map(|slot| self.streams.at(slot));
        stream.is_some_and(|stream| stream.reset.is_none() && !stream.is_tunnel)
    }

    /// Takes a piece of a DATA frame.
    pub(super) fn data(
        &mut self,
        id: u32,
        range: Range<usize>,
        padding: u32,
        after: AfterFrame,
        is_frame_end: bool,
    ) -> Found {
        // The length fits: a range is part of one frame.
        let bytes = range.len() as u32;
        let known = self.known(id)?;
        if !self.receive_window.take(bytes + padding) {
            return Err(ConnectionError::Window.into());
        }
        // Padding is consumed at once.
        self.give_back(padding);
        let Some(slot) = known else {
            return match self.is_ignored(id) {
                true => self.late_data(bytes, padding, is_frame_end),
                false => Err(ConnectionError::ClosedStream.into()),
            };
        };
        let stream = self.streams.at_mut(slot);
        match (stream.reset, stream.remote) {
            (Some(ResetBy::Server), _) => return self.late_data(bytes, padding, is_frame_end),
            (Some(ResetBy::Client), _) => return Err(ConnectionError::ClosedStream.into()),
            (None, Remote::Ended) if stream.local == Local::Ended => {
                return Err(ConnectionError::ClosedStream.into());
            }
            (None, Remote::Ended) => {
                self.give_back(bytes);
                return self.lose(slot, StreamError::HalfClosed);
            }
            (None, Remote::Open) => {}
        }
        if let Err(error) = stream.receive(bytes, padding, after) {
            self.give_back(bytes);
            return self.lose(slot, error);
        }
        let opened = stream.give_back(padding, self.options.stream_window);
        write_window_update(&mut self.control, id, opened);
        self.count_if_over(slot);
        let stream = self.streams.key(slot);
        let is_event = bytes > 0 || after == AfterFrame::EndOfStream;
        Ok(is_event.then_some(Http2Event::Data {
            stream,
            range,
            after,
        }))
    }

    /// Takes DATA of a reset stream. The client may have sent one window of it before it knew of the reset.
    fn late_data(&mut self, bytes: u32, padding: u32, is_frame_end: bool) -> Found {
        self.give_back(bytes);
        let late = u64::from(bytes + padding);
        self.late_bytes = self.late_bytes.saturating_sub(late);
        if is_frame_end && self.late_bytes == 0 {
            self.counts.idle_frame(&self.options.limits)?;
        }
        Ok(None)
    }

    /// A stream was reset: one window of bytes may still come.
    pub(super) fn expect_late_bytes(&mut self) {
        let window = self.options.stream_window.max(self.stream_window);
        self.late_bytes = self.late_bytes.saturating_add(u64::from(window));
    }

    /// Bytes of the connection's window are consumed.
    pub(super) fn give_back(&mut self, bytes: u32) {
        let size = self.options.connection_window;
        if let Some(increment) = self.receive_window.give_back(bytes, size)
            && self.error.is_none()
        {
            write_window_update(&mut self.control, 0, increment);
        }
    }

    /// Counts the stream as completed if both sides have ended it.
    pub(super) fn count_if_over(&mut self, slot: u16) {
        let stream = self.streams.at(slot);
        if stream.is_over() && !stream.is_refused {
            self.counts.completed();
        }
    }
}

impl StreamSlot {
    /// Accounts for bytes that have come.
    fn receive(&mut self, bytes: u32, padding: u32, after: AfterFrame) -> Result<(), StreamError> {
        if !self.receive_window.take(bytes + padding) {
            return Err(StreamError::Window);
        }
        if self.body_left != LENGTH_UNKNOWN {
            self.body_left = match self.body_left.checked_sub(u64::from(bytes)) {
                Some(left) => left,
                None => return Err(StreamError::BodyTooLong),
            };
        }
        if after == AfterFrame::EndOfStream {
            if !matches!(self.body_left, 0 | LENGTH_UNKNOWN) {
                return Err(StreamError::BodyTooShort);
            }
            self.remote = Remote::Ended;
        }
        self.unconsumed += bytes;
        Ok(())
    }

    /// Bytes of the stream's window are consumed. Returns the increment for WINDOW_UPDATE. 0: none is to be
    /// sent, because it would be too small, because the body has ended, or because the window has room for
    /// the rest of the body.
    pub(super) fn give_back(&mut self, bytes: u32, size: u32) -> u32 {
        if self.remote == Remote::Ended {
            return 0;
        }
        // The credit is kept in any case: padding, or SETTINGS that the client applies late, may take the
        // room for the rest.
        self.receive_window.owe(bytes);
        match self.body_left != LENGTH_UNKNOWN && self.receive_window.has(self.body_left) {
            true => 0,
            false => self.receive_window.give_back(0, size).unwrap_or(0),
        }
    }
}

/// Adds a field line to a head.
fn add(
    builder: &mut HeadBuilder<'_>,
    line: &FieldLine<'_>,
    takes_protocol: bool,
) -> Result<(), HeadError> {
    match line.name.strip_prefix(b":") {
        Some(b"protocol") if !takes_protocol => Err(HeadError::PseudoField),
        Some(name) => builder.pseudo_field(name, line.value),
        None => builder.field(line.name, line.value),
    }
}

/// Whether a request with this error is malformed (RFC 9113 8.1.1): its stream is reset instead of answered.
fn is_malformed(error: HeadError) -> bool {
    matches!(
        error,
        HeadError::PseudoField
            | HeadError::FieldOfConnection
            | HeadError::FieldName
            | HeadError::FieldValue
            | HeadError::RequestTarget
            | HeadError::ContentLengthInvalid
            | HeadError::ContentLengthRepeated
    )
}

/// Whether a field may stand in trailers: no pseudo-field, no field about the connection or the end of the
/// message.
fn is_trailer(line: &FieldLine<'_>) -> bool {
    let is_of_message = |known: KnownField| {
        known.is_hop_by_hop() || matches!(known, KnownField::ContentLength | KnownField::Host)
    };
    is_lower_token(line.name)
        && is_value(line.value)
        && trimmed(line.value).len() == line.value.len()
        && !KnownField::from_lower_name(line.name).is_some_and(is_of_message)
}
