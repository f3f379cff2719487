//! Replies: what a container sends for one request.

use std::ops::Range;

use crate::cgi::{HeadDecoder, HeadError, HeadKind, HeadLimits};
use crate::reply_head::ReplyHead;

/// Decodes what a container sends for one request.
///
/// Body bytes are handed out as they arrive. All other packets are decoded when they are complete; they have
/// at most 64 KiB.
#[derive(Clone, Debug)]
pub struct AjpDecoder {
    state: PacketState,
    /// Checks the fields by the rules for CGI replies.
    fields: HeadDecoder,
    refused: Option<ReplyError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketState {
    /// The final head has not arrived yet. A packet comes next.
    Head,
    /// The final head has arrived. A packet comes next.
    Body,
    /// Inside SEND_BODY_CHUNK: the bytes of the body still to come, and of the rest of the packet, which is
    /// skipped.
    Stretch { left: usize, skipped: usize },
    /// The reply is complete.
    End,
}

/// One step of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedPacket {
    /// How many bytes of the input were used, including those of the event.
    pub consumed: usize,
    /// What was found.
    pub event: AjpEvent,
}

/// What one step of decoding found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AjpEvent {
    /// More input is needed.
    NeedMore,
    /// The final head is complete, in the caller's [`ReplyHead`].
    Head,
    /// An interim head is complete. The caller clears it before the next step.
    Interim,
    /// Bytes of the body: this range of the input. It is never empty and ends at `consumed`.
    Body(Range<usize>),
    /// The container asks for this many more bytes of the request body, in one packet.
    GetBody(u16),
    /// The container replies to a ping.
    Pong,
    /// The reply is complete. Calls after this are errors until [`AjpDecoder::begin`].
    End {
        /// The container keeps the connection open for the next request.
        reuse: bool,
    },
}

/// Why a container's packets are refused. The connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplyError {
    /// The bytes do not begin a packet.
    Magic,
    /// A packet of a kind that containers do not send.
    Kind,
    /// A packet whose length does not fit its kind or its content.
    Length,
    /// The body or the end came before the head, or there was a second head.
    Order,
    /// More packets came after the end of the reply.
    BehindEnd,
    /// The head must not be passed on.
    Head(HeadError),
}

impl ReplyError {
    /// What was wrong, for the log, without a full stop.
    pub const fn sentence(self) -> &'static str {
        match self {
            ReplyError::Magic => "not an AJP13 packet",
            ReplyError::Kind => "an AJP13 packet of a kind that is not expected",
            ReplyError::Length => "an AJP13 packet with a wrong length",
            ReplyError::Order => "AJP13 packets in a wrong order",
            ReplyError::BehindEnd => "AJP13 packets behind the end of the reply",
            ReplyError::Head(error) => error.sentence(),
        }
    }
}

impl std::fmt::Display for ReplyError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.sentence())
    }
}

impl std::error::Error for ReplyError {}

impl From<HeadError> for ReplyError {
    fn from(error: HeadError) -> ReplyError {
        ReplyError::Head(error)
    }
}

impl AjpDecoder {
    /// A decoder for the next reply. A head is at most one packet long, even if [`HeadLimits::bytes_max`] is
    /// larger.
    pub fn new(limits: HeadLimits) -> AjpDecoder {
        AjpDecoder {
            state: PacketState::Head,
            fields: HeadDecoder::new(limits),
            refused: None,
        }
    }

    /// Resets the decoder for the next reply. The caller clears its [`ReplyHead`] as well.
    pub fn begin(&mut self) {
        let AjpDecoder {
            state,
            fields,
            refused,
        } = self;
        *state = PacketState::Head;
        fields.begin();
        *refused = None;
    }

    /// Takes the next step. `input` begins where the last step's `consumed` ended; it may end at any byte.
    /// The head goes into `head`.
    ///
    /// # Errors
    /// The container violates the protocol. All further calls return the same error.
    pub fn decode(
        &mut self,
        input: &[u8],
        head: &mut ReplyHead,
    ) -> Result<DecodedPacket, ReplyError> {
        match self.refused {
            Some(error) => Err(error),
            None => self
                .step(input, head)
                .inspect_err(|&error| self.refused = Some(error)),
        }
    }

    /// Returns the last `length` bytes of the range that the last step handed out, for a caller that could
    /// not use all of it: the next input begins that much before `consumed`.
    pub fn give_back(&mut self, length: usize) {
        match &mut self.state {
            PacketState::Stretch { left, .. } => *left += length,
            _ => debug_assert_eq!(length, 0, "no range was handed out"),
        }
    }

    /// Content-Length, once the head is complete.
    pub fn content_length(&self) -> Option<u64> {
        self.fields.content_length()
    }

    /// Whether the application used chunked framing itself.
    pub fn is_chunked(&self) -> bool {
        self.fields.is_chunked()
    }

    fn step(&mut self, input: &[u8], head: &mut ReplyHead) -> Result<DecodedPacket, ReplyError> {
        let mut position = 0;
        loop {
            let rest = &input[position..];
            match self.state {
                PacketState::End => return Err(ReplyError::BehindEnd),
                PacketState::Stretch { left: 0, skipped } => {
                    let taken = skipped.min(rest.len());
                    position += taken;
                    if taken < skipped {
                        self.state = PacketState::Stretch {
                            left: 0,
                            skipped: skipped - taken,
                        };
                        return Ok(found(position, AjpEvent::NeedMore));
                    }
                    self.state = PacketState::Body;
                }
                PacketState::Stretch { left, skipped } => {
                    let taken = left.min(rest.len());
                    if taken == 0 {
                        return Ok(found(position, AjpEvent::NeedMore));
                    }
                    self.state = PacketState::Stretch {
                        left: left - taken,
                        skipped,
                    };
                    let range = position..position + taken;
                    return Ok(found(range.end, AjpEvent::Body(range)));
                }
                PacketState::Head | PacketState::Body => {
                    let Some((kind, length)) = packet_header(rest)? else {
                        return Ok(found(position, AjpEvent::NeedMore));
                    };
                    if kind == SEND_BODY_CHUNK {
                        if self.state == PacketState::Head {
                            return Err(ReplyError::Order);
                        }
                        let Some(state) = stretch(rest, length)? else {
                            return Ok(found(position, AjpEvent::NeedMore));
                        };
                        self.state = state;
                        position += STRETCH_HEADER_BYTES;
                        continue;
                    }
                    let end = HEADER_BYTES + length;
                    let Some(content) = rest.get(HEADER_BYTES + 1..end) else {
                        return Ok(found(position, AjpEvent::NeedMore));
                    };
                    let event = self.packet(kind, content, head)?;
                    return Ok(found(position + end, event));
                }
            }
        }
    }

    /// Decodes a complete packet.
    fn packet(
        &mut self,
        kind: u8,
        content: &[u8],
        head: &mut ReplyHead,
    ) -> Result<AjpEvent, ReplyError> {
        match (kind, content) {
            (SEND_HEADERS, _) if self.state == PacketState::Body => Err(ReplyError::Order),
            (SEND_HEADERS, content) => self.head(content, head),
            (END_RESPONSE, _) if self.state == PacketState::Head => Err(ReplyError::Order),
            (END_RESPONSE, [reuse]) => {
                self.state = PacketState::End;
                Ok(AjpEvent::End { reuse: *reuse == 1 })
            }
            (GET_BODY_CHUNK, [high, low]) => {
                Ok(AjpEvent::GetBody(u16::from_be_bytes([*high, *low])))
            }
            (PONG, []) => Ok(AjpEvent::Pong),
            (END_RESPONSE | GET_BODY_CHUNK | PONG, _) => Err(ReplyError::Length),
            _ => Err(ReplyError::Kind),
        }
    }

    fn head(&mut self, content: &[u8], head: &mut ReplyHead) -> Result<AjpEvent, ReplyError> {
        let mut reader = Reader(content);
        let status = reader.number()?;
        reader.string()?;
        let count = reader.number()?;
        self.fields.begin();
        self.fields.set_status(status)?;
        for _ in 0..count {
            let name = match reader.number()? {
                number @ 0xa001..=0xafff => field_name(number)?.as_bytes(),
                length => reader.rest_of_string(length)?,
            };
            self.fields.field(name, reader.string()?, head)?;
        }
        if !reader.0.is_empty() {
            return Err(ReplyError::Length);
        }
        Ok(match self.fields.finish(head)? {
            HeadKind::Interim => AjpEvent::Interim,
            HeadKind::Final | HeadKind::LocalRedirect => {
                self.state = PacketState::Body;
                AjpEvent::Head
            }
        })
    }
}

/// The kind of the packet at the front of `input`, and its length without the header.
fn packet_header(input: &[u8]) -> Result<Option<(u8, usize)>, ReplyError> {
    let begin = &input[..input.len().min(MAGIC.len())];
    if !MAGIC.starts_with(begin) {
        return Err(ReplyError::Magic);
    }
    match input {
        [_, _, 0, 0, ..] => Err(ReplyError::Length),
        [_, _, high, low, kind, ..] => {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            Ok(Some((*kind, length)))
        }
        _ => Ok(None),
    }
}

/// Decodes the header of SEND_BODY_CHUNK at the front of `input`. After the bytes of the body there is a NUL,
/// which some containers leave out.
fn stretch(input: &[u8], length: usize) -> Result<Option<PacketState>, ReplyError> {
    let Some(&[.., high, low]) = input.first_chunk::<STRETCH_HEADER_BYTES>() else {
        return match length {
            0..3 => Err(ReplyError::Length),
            _ => Ok(None),
        };
    };
    let left = usize::from(u16::from_be_bytes([high, low]));
    match length.checked_sub(3 + left) {
        Some(skipped @ 0..=1) => Ok(Some(PacketState::Stretch { left, skipped })),
        _ => Err(ReplyError::Length),
    }
}

/// The undecoded rest of a packet.
struct Reader<'p>(&'p [u8]);

impl<'p> Reader<'p> {
    fn number(&mut self) -> Result<u16, ReplyError> {
        let (number, rest) = self.0.split_first_chunk::<2>().ok_or(ReplyError::Length)?;
        self.0 = rest;
        Ok(u16::from_be_bytes(*number))
    }

    fn string(&mut self) -> Result<&'p [u8], ReplyError> {
        let length = self.number()?;
        self.rest_of_string(length)
    }

    /// Reads a string after its length. The length 0xFFFF stands for a null string.
    fn rest_of_string(&mut self, length: u16) -> Result<&'p [u8], ReplyError> {
        if length == 0xffff {
            return Ok(b"");
        }
        let (text, rest) = self
            .0
            .split_at_checked(usize::from(length))
            .ok_or(ReplyError::Length)?;
        match rest {
            [0, rest @ ..] => {
                self.0 = rest;
                Ok(text)
            }
            _ => Err(ReplyError::Length),
        }
    }
}

fn field_name(number: u16) -> Result<&'static str, ReplyError> {
    let position = usize::from(number).wrapping_sub(0xa001);
    let name = FIELDS.get(position).copied();
    name.ok_or(ReplyError::Head(HeadError::FieldName))
}

fn found(consumed: usize, event: AjpEvent) -> DecodedPacket {
    DecodedPacket { consumed, event }
}

/// Names of fields that are sent as a number, from 0xA001 on.
pub(super) const FIELDS: [&str; 11] = [
    "Content-Type",
    "Content-Language",
    "Content-Length",
    "Date",
    "Last-Modified",
    "Location",
    "Set-Cookie",
    "Set-Cookie2",
    "Servlet-Engine",
    "Status",
    "WWW-Authenticate",
];

const MAGIC: &[u8] = b"AB";
const HEADER_BYTES: usize = 4;

/// The packet's header, its kind, and the length of the body bytes.
const STRETCH_HEADER_BYTES: usize = 7;

pub(super) const SEND_BODY_CHUNK: u8 = 3;
pub(super) const SEND_HEADERS: u8 = 4;
pub(super) const END_RESPONSE: u8 = 5;
pub(super) const GET_BODY_CHUNK: u8 = 6;
pub(super) const PONG: u8 = 9;
