//! Decodes requests in an application: several at the same time on one connection.

use std::ops::Range;

use super::records::{PartialRecord, RecordError};
use super::{AfterRequest, HEADER_BYTES, Role, kind};

/// Decodes what a web server sends. The caller keeps the requests by their ids. As the specification says, it
/// ignores records with an id that it does not know.
#[derive(Clone, Debug, Default)]
pub struct RequestDecoder {
    record: PartialRecord,
    /// The rest of `record` comes next, not a header.
    is_inside: bool,
    refused: Option<RecordError>,
}

/// One step of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestDecoded {
    /// How many bytes of the input were used, including those of the event.
    pub consumed: usize,
    /// What was found.
    pub event: RequestEvent,
}

/// What one step of decoding found. Ranges refer to the input and are never empty unless the variant says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestEvent {
    /// More input is needed.
    NeedMore,
    /// A request begins.
    Begin {
        /// Its id.
        id: u16,
        /// What the web server wants the application to do. `None` for an unknown role, which is answered
        /// with [`super::ProtocolStatus::UnknownRole`].
        role: Option<Role>,
        /// What happens to the connection afterwards.
        after: AfterRequest,
    },
    /// Bytes of the stream of name-value pairs. When it is complete, [`Pairs`] decodes it.
    Params(u16, Range<usize>),
    /// All pairs have arrived.
    ParamsEnd(u16),
    /// Bytes of the request body.
    Stdin(u16, Range<usize>),
    /// All of the request body has arrived.
    StdinEnd(u16),
    /// The web server does not need the reply any more, but still expects END_REQUEST.
    Abort(u16),
    /// The web server asks for these values: name-value pairs without values. The range may be empty.
    GetValues(Range<usize>),
    /// A management record of this unknown kind. The reply is [`super::write_unknown_type`].
    UnknownManagement(u8),
}

impl RequestDecoder {
    /// A decoder for a new connection.
    pub fn new() -> RequestDecoder {
        RequestDecoder::default()
    }

    /// Takes the next step. `input` begins where the last step's `consumed` ended; it may end at any byte. No
    /// step needs more than [`VALUES_BYTES_MAX`] and a few bytes at once.
    ///
    /// # Errors
    /// The web server violates the protocol. All further calls return the same error.
    pub fn decode(&mut self, input: &[u8]) -> Result<RequestDecoded, RecordError> {
        match self.refused {
            Some(error) => Err(error),
            None => self
                .step(input)
                .inspect_err(|&error| self.refused = Some(error)),
        }
    }

    fn step(&mut self, input: &[u8]) -> Result<RequestDecoded, RecordError> {
        let mut position = 0;
        loop {
            let rest = &input[position..];
            if !self.is_inside {
                let Some(record) = PartialRecord::read(rest)? else {
                    return Ok(found(position, RequestEvent::NeedMore));
                };
                let content = &rest[HEADER_BYTES..];
                let event = match is_short(&record)? {
                    true if content.len() < record.content_left => {
                        return Ok(found(position, RequestEvent::NeedMore));
                    }
                    true => Some(short(&record, content, position + HEADER_BYTES)?),
                    false => end_of_stream(&record),
                };
                self.record = record;
                self.is_inside = true;
                position += HEADER_BYTES;
                if let Some(event) = event {
                    position += self.record.take_content(content);
                    return Ok(found(position, event));
                }
                continue;
            }
            let stream = stream(&self.record);
            let taken = self.record.take_content(rest);
            match stream {
                Some(event) if taken > 0 => {
                    let range = position..position + taken;
                    return Ok(found(range.end, event(self.record.id, range)));
                }
                _ => {}
            }
            position += taken + self.record.take_padding(&rest[taken..]);
            if !self.record.is_over() {
                return Ok(found(position, RequestEvent::NeedMore));
            }
            self.is_inside = false;
        }
    }
}

/// Whether a record is taken as a whole. Such records are short and not part of a stream.
fn is_short(record: &PartialRecord) -> Result<bool, RecordError> {
    let is_management = record.id == 0;
    let lengths = match record.kind {
        kind::BEGIN_REQUEST..=kind::DATA if is_management => return Err(RecordError::RequestId),
        kind::BEGIN_REQUEST => 8..=8,
        kind::ABORT_REQUEST => 0..=VALUES_BYTES_MAX,
        kind::PARAMS | kind::STDIN | kind::DATA => return Ok(false),
        kind::GET_VALUES if is_management => 0..=VALUES_BYTES_MAX,
        _ if is_management => 0..=VALUES_BYTES_MAX,
        // Kinds that only applications send.
        kind::END_REQUEST..=kind::UNKNOWN_TYPE => return Err(RecordError::Kind),
        _ => return Ok(false),
    };
    match lengths.contains(&record.content_left) {
        true => Ok(true),
        false => Err(RecordError::Length),
    }
}

/// The event of a record that is taken as a whole. Its content begins at `position`.
fn short(
    record: &PartialRecord,
    content: &[u8],
    position: usize,
) -> Result<RequestEvent, RecordError> {
    Ok(match record.kind {
        kind::BEGIN_REQUEST => {
            let Some(&[high, low, flags, ..]) = content.first_chunk::<8>() else {
                return Err(RecordError::Length);
            };
            RequestEvent::Begin {
                id: record.id,
                role: Role::from_number(u16::from_be_bytes([high, low])),
                after: match flags & 1 {
                    0 => AfterRequest::Close,
                    _ => AfterRequest::Keep,
                },
            }
        }
        kind::ABORT_REQUEST => RequestEvent::Abort(record.id),
        kind::GET_VALUES => RequestEvent::GetValues(position..position + record.content_left),
        unknown => RequestEvent::UnknownManagement(unknown),
    })
}

/// The event of a record that ends a stream.
fn end_of_stream(record: &PartialRecord) -> Option<RequestEvent> {
    match record.kind {
        _ if record.content_left > 0 => None,
        kind::PARAMS => Some(RequestEvent::ParamsEnd(record.id)),
        kind::STDIN => Some(RequestEvent::StdinEnd(record.id)),
        _ => None,
    }
}

/// The event for bytes of a stream; `None` if they are skipped.
fn stream(record: &PartialRecord) -> Option<fn(u16, Range<usize>) -> RequestEvent> {
    match record.kind {
        kind::PARAMS => Some(RequestEvent::Params),
        kind::STDIN => Some(RequestEvent::Stdin),
        _ => None,
    }
}

fn found(consumed: usize, event: RequestEvent) -> RequestDecoded {
    RequestDecoded { consumed, event }
}

/// Decodes the name-value pairs of a complete stream.
///
/// If the bytes end inside a pair, the last item is an error.
#[derive(Clone, Debug)]
pub struct Pairs<'b> {
    rest: &'b [u8],
}

impl<'b> Pairs<'b> {
    /// The pairs in `bytes`.
    pub fn new(bytes: &'b [u8]) -> Pairs<'b> {
        Pairs { rest: bytes }
    }

    fn pair(&mut self) -> Option<(&'b [u8], &'b [u8])> {
        let (name_length, rest) = length(self.rest)?;
        let (value_length, rest) = length(rest)?;
        let (name, rest) = rest.split_at_checked(name_length)?;
        let (value, rest) = rest.split_at_checked(value_length)?;
        self.rest = rest;
        Some((name, value))
    }
}

impl<'b> Iterator for Pairs<'b> {
    type Item = Result<(&'b [u8], &'b [u8]), RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let pair = self.pair();
        if pair.is_none() {
            self.rest = &[];
        }
        Some(pair.ok_or(RecordError::Pair))
    }
}

/// Reads a length of one byte, or of four with the highest bit set.
fn length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    match bytes {
        [first, rest @ ..] if *first < 128 => Some((usize::from(*first), rest)),
        [first, b, c, d, rest @ ..] => {
            let long = u32::from_be_bytes([first & 0x7f, *b, *c, *d]);
            Some((usize::try_from(long).ok()?, rest))
        }
        _ => None,
    }
}

/// The longest content of a record that is taken as a whole.
pub const VALUES_BYTES_MAX: usize = 4096;
