//! Decodes frames.

use super::frame::{FrameDecoded, FrameError, FrameEvent, FramePayload, PayloadPlace};
use super::frame_header::FrameHeader;
use super::{FRAME_HEADER_BYTES, flag, kind};

/// Decodes what a client sends behind the connection preface.
///
/// DATA is returned as it comes, as ranges of the input. Every other frame is returned whole. Its payload is
/// a range of the input or, if it came in pieces, of a buffer that the decoder keeps until the next step.
///
/// ```text
///            ┌──────────── frame taken ───────────┐
///            v                                    │
///   Header ──┴─ DATA ──> Data ────────────────────┤
///            ├─ in pieces ──> Collecting ─────────┤
///            └─ kind not known ──> Skipping ──────┘
/// ```
#[derive(Debug)]
pub struct FrameDecoder {
    frame_bytes_max: u32,
    state: FrameState,
    /// The beginning of a header that came in pieces.
    header: [u8; FRAME_HEADER_BYTES],
    header_length: usize,
    /// The stream whose header block a CONTINUATION frame must continue; 0 if there is none.
    block_of: u32,
    /// The beginning of the payload of a frame that came in pieces.
    collected: Vec<u8>,
    refused: Option<FrameError>,
}

#[derive(Clone, Debug)]
enum FrameState {
    /// The header of a frame comes next, or the rest of it.
    Header,
    /// The rest of a DATA frame comes next.
    Data(DataFrame),
    /// The rest of a frame that is returned whole comes next.
    Collecting(FrameHeader),
    /// So many bytes are skipped.
    Skipping(usize),
}

/// The rest of a DATA frame.
#[derive(Clone, Debug)]
struct DataFrame {
    stream: u32,
    /// The byte with the length of the padding has not come. Until then it counts as data.
    awaits_padding_length: bool,
    data_left: usize,
    padding_left: usize,
    /// Bytes of padding that no event has reported yet.
    padding_untold: u32,
    ends_stream: bool,
}

impl FrameDecoder {
    /// A decoder before the first frame. `frame_bytes_max` is our SETTINGS_MAX_FRAME_SIZE.
    pub const fn new(frame_bytes_max: u32) -> FrameDecoder {
        FrameDecoder {
            frame_bytes_max,
            state: FrameState::Header,
            header: [0; FRAME_HEADER_BYTES],
            header_length: 0,
            block_of: 0,
            collected: Vec::new(),
            refused: None,
        }
    }

    /// Takes the next step. `input` begins where the `consumed` of the last step ended, and may end anywhere.
    /// With [`NeedMore`](super::FrameEvent::NeedMore) all of it is consumed: the caller need not keep any of
    /// it.
    ///
    /// # Errors
    /// The client has broken the protocol, and the connection is over.
    pub fn decode(&mut self, input: &[u8]) -> Result<FrameDecoded, FrameError> {
        match self.refused {
            Some(error) => Err(error),
            None => self
                .step(input)
                .inspect_err(|&error| self.refused = Some(error)),
        }
    }

    /// The bytes of a part of a payload that the last step returned. `input` is the input of that step.
    pub fn payload<'b>(&'b self, input: &'b [u8], piece: &FramePayload) -> &'b [u8] {
        let bytes = match piece.place {
            PayloadPlace::Input => input,
            PayloadPlace::Collected => &self.collected,
        };
        let piece = bytes.get(piece.range.clone());
        debug_assert!(piece.is_some(), "the piece is not of the last step");
        piece.unwrap_or_default()
    }

    /// Whether the next byte begins a frame.
    pub fn is_between_frames(&self) -> bool {
        matches!(self.state, FrameState::Header) && self.header_length == 0
    }

    /// Whether a header block is incomplete.
    pub(super) fn is_in_headers(&self) -> bool {
        let is_part = |kind: u8| matches!(kind, kind::HEADERS | kind::CONTINUATION);
        self.block_of != 0
            || matches!(&self.state, FrameState::Collecting(header) if is_part(header.kind))
    }

    /// Bytes of memory that are kept for frames that come in pieces.
    #[cfg(test)]
    pub(super) fn collected_capacity(&self) -> usize {
        self.collected.capacity()
    }

    fn step(&mut self, input: &[u8]) -> Result<FrameDecoded, FrameError> {
        let mut position = 0;
        loop {
            let rest = &input[position..];
            match &mut self.state {
                FrameState::Header => {
                    self.forget_collected();
                    let Some((header, taken)) = self.take_header(rest) else {
                        return Ok(found(input.len(), FrameEvent::NeedMore));
                    };
                    position += taken;
                    if let Some(event) = self.begin(&header)? {
                        return Ok(found(position, event));
                    }
                    if let FrameState::Collecting(_) = self.state
                        && let Some(payload) = rest[taken..].get(..header.length)
                    {
                        self.state = FrameState::Header;
                        let event = header.event(payload, |range| FramePayload {
                            place: PayloadPlace::Input,
                            range: position + range.start..position + range.end,
                        })?;
                        return Ok(found(position + header.length, event));
                    }
                }
                FrameState::Data(frame) => {
                    let Some((event, taken)) = frame.take(rest, position)? else {
                        return Ok(found(input.len(), FrameEvent::NeedMore));
                    };
                    if frame.is_over() {
                        self.state = FrameState::Header;
                    }
                    return Ok(found(position + taken, event));
                }
                FrameState::Collecting(header) => {
                    let missing = header.length - self.collected.len();
                    let taken = missing.min(rest.len());
                    self.collected.extend_from_slice(&rest[..taken]);
                    if taken < missing {
                        return Ok(found(input.len(), FrameEvent::NeedMore));
                    }
                    let event = header.event(&self.collected, |range| FramePayload {
                        place: PayloadPlace::Collected,
                        range,
                    })?;
                    self.state = FrameState::Header;
                    return Ok(found(position + taken, event));
                }
                FrameState::Skipping(left) => {
                    let taken = rest.len().min(*left);
                    *left -= taken;
                    position += taken;
                    if *left > 0 {
                        return Ok(found(position, FrameEvent::NeedMore));
                    }
                    self.state = FrameState::Header;
                }
            }
        }
    }

    /// The header that the bytes kept before and those at the front of `rest` make up, and how many bytes of
    /// `rest` belong to it.
    #[inline]
    fn take_header(&mut self, rest: &[u8]) -> Option<(FrameHeader, usize)> {
        if self.header_length == 0
            && let Some(header) = rest.first_chunk()
        {
            return Some((FrameHeader::read(header), FRAME_HEADER_BYTES));
        }
        let room = &mut self.header[self.header_length..];
        let taken = room.len().min(rest.len());
        room[..taken].copy_from_slice(&rest[..taken]);
        self.header_length += taken;
        if self.header_length < FRAME_HEADER_BYTES {
            return None;
        }
        self.header_length = 0;
        Some((FrameHeader::read(&self.header), taken))
    }

    /// The state that follows a header and, for a frame whose payload is skipped, its event.
    #[inline]
    fn begin(&mut self, header: &FrameHeader) -> Result<Option<FrameEvent>, FrameError> {
        if header.length > self.frame_bytes_max as usize {
            return Err(FrameError::TooLong);
        }
        self.check_sequence(header)?;
        header.check_stream()?;
        if header.kind == kind::DATA {
            self.state = FrameState::Data(DataFrame::new(header)?);
            return Ok(None);
        }
        let event = match header.has_sound_length() {
            // PRIORITY is the only kind of frame for which a wrong length is a stream error (RFC 9113 6.3).
            false if header.kind == kind::PRIORITY => FrameEvent::StreamError {
                stream: header.stream,
                error: FrameError::Length,
            },
            false => return Err(FrameError::Length),
            true if header.kind <= kind::CONTINUATION || header.kind == kind::PRIORITY_UPDATE => {
                self.state = FrameState::Collecting(*header);
                return Ok(None);
            }
            true => FrameEvent::Unknown {
                kind: header.kind,
                length: header.length as u32,
            },
        };
        self.state = FrameState::Skipping(header.length);
        Ok(Some(event))
    }

    /// No other frame may stand between the frames of a header block, not even one of an unknown kind (RFC
    /// 9113 4.3, 5.5).
    #[inline]
    fn check_sequence(&mut self, header: &FrameHeader) -> Result<(), FrameError> {
        match (header.kind, self.block_of) {
            (kind::CONTINUATION, 0) => return Err(FrameError::Continuation),
            (kind::CONTINUATION, stream) if stream == header.stream => {}
            (_, 0) => {}
            _ => return Err(FrameError::Interrupted),
        }
        if let kind::HEADERS | kind::CONTINUATION = header.kind {
            self.block_of = match header.has(flag::END_HEADERS) {
                true => 0,
                false => header.stream,
            };
        }
        Ok(())
    }

    /// The caller is done with the collected frame.
    #[inline]
    fn forget_collected(&mut self) {
        match self.collected.capacity() > COLLECTED_BYTES_KEPT {
            true => self.collected = Vec::new(),
            false => self.collected.clear(),
        }
    }
}

impl DataFrame {
    #[inline]
    fn new(header: &FrameHeader) -> Result<DataFrame, FrameError> {
        let is_padded = header.has(flag::PADDED);
        if is_padded && header.length == 0 {
            return Err(FrameError::Length);
        }
        Ok(DataFrame {
            stream: header.stream,
            awaits_padding_length: is_padded,
            data_left: header.length,
            padding_left: 0,
            padding_untold: 0,
            ends_stream: header.has(flag::END_STREAM),
        })
    }

    /// Takes bytes of the present frame from the front of `rest`, which begins at `position` of the input.
    /// Returns the event, if there is one, and how many bytes were taken.
    #[inline]
    fn take(
        &mut self,
        rest: &[u8],
        position: usize,
    ) -> Result<Option<(FrameEvent, usize)>, FrameError> {
        let mut taken = 0;
        if self.awaits_padding_length {
            let Some(&padding) = rest.first() else {
                return Ok(None);
            };
            taken = 1;
            self.awaits_padding_length = false;
            self.padding_left = usize::from(padding);
            self.padding_untold = 1;
            self.data_left = (self.data_left - 1)
                .checked_sub(self.padding_left)
                .ok_or(FrameError::Padding)?;
        }
        let data = self.data_left.min(rest.len() - taken);
        let range = position + taken..position + taken + data;
        self.data_left -= data;
        taken += data;
        if self.data_left == 0 {
            let padding = self.padding_left.min(rest.len() - taken);
            self.padding_left -= padding;
            self.padding_untold += padding as u32;
            taken += padding;
        }
        let is_frame_end = self.is_over();
        if range.is_empty() && !is_frame_end {
            return Ok(None);
        }
        let event = FrameEvent::Data {
            stream: self.stream,
            range,
            padding_consumed: std::mem::take(&mut self.padding_untold),
            is_frame_end,
            ends_stream: is_frame_end && self.ends_stream,
        };
        Ok(Some((event, taken)))
    }

    fn is_over(&self) -> bool {
        self.data_left == 0 && self.padding_left == 0
    }
}

#[inline]
fn found(consumed: usize, event: FrameEvent) -> FrameDecoded {
    FrameDecoded { consumed, event }
}

/// Bytes of the largest buffer that is kept for the next frame that comes in pieces.
const COLLECTED_BYTES_KEPT: usize = 256;
