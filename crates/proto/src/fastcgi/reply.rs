//! Decodes the reply to one request.

use std::ops::Range;

use super::records::{PartialRecord, RecordError, Stream};
use super::request::VALUES_BYTES_MAX;
use super::{ProtocolStatus, kind};

/// Decodes the reply to one request, on a connection that carries one request at a time.
///
/// ```text
///            ┌───────────── record taken ─────────────┐
///            v                                         │
///   Header ──┴─ STDOUT, STDERR ──> Stream ─────────────┤
///            ├─ management, unknown kinds ──> Skipped ─┘
///            └─ END_REQUEST ──> End
/// ```
///
/// Management records (request id 0) and records of unknown kinds are skipped. Records of other requests are
/// an error, so that no client gets the reply to another client's request.
#[derive(Clone, Debug)]
pub struct FastCgiDecoder {
    id: u16,
    state: RecordState,
    record: PartialRecord,
    stdout: StreamState,
    stderr: StreamState,
    refused: Option<RecordError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordState {
    /// A header comes next.
    Header,
    /// The rest of a record of this stream comes next.
    Stream(Stream),
    /// The rest of a record that is skipped comes next.
    Skipped,
    /// The reply is complete.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamState {
    Open,
    Ended,
}

/// One step of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyDecoded {
    /// How many bytes of the input were used, including those of the event.
    pub consumed: usize,
    /// What was found.
    pub event: FastCgiEvent,
}

/// What one step of decoding found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FastCgiEvent {
    /// More input is needed.
    NeedMore,
    /// Bytes of a stream: this range of the input. It is never empty and ends at `consumed`.
    Data(Stream, Range<usize>),
    /// The end of the request. Calls after this are errors until [`FastCgiDecoder::begin`].
    End {
        /// The application's exit status.
        app_status: u32,
        /// How the request ended.
        protocol_status: ProtocolStatus,
    },
}

/// A reply that has arrived as a whole, in its simplest form. Positions are those in the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeReply {
    /// All of STDOUT; not empty.
    pub stdout: Range<usize>,
    /// Where the reply ends.
    pub end: usize,
}

/// The reply to request `id` at the beginning of `input`, if it is a single record of STDOUT, perhaps the empty
/// record that ends STDOUT, and END_REQUEST that reports no problem. Most replies that fit into a record are
/// like that. `None`: it is another one or incomplete, and a [`FastCgiDecoder`] has to decode it.
#[inline]
pub fn whole_reply(input: &[u8], id: u16) -> Option<WholeReply> {
    let record_at = |position: usize| {
        let record = PartialRecord::read(input.get(position..)?).ok()??;
        (record.id == id).then_some(record)
    };
    let first =
        record_at(0).filter(|first| first.kind == kind::STDOUT && first.content_left > 0)?;
    let stdout = super::HEADER_BYTES..super::HEADER_BYTES + first.content_left;
    let mut position = stdout.end + first.padding_left;
    let mut record = record_at(position)?;
    if record.kind == kind::STDOUT && record.content_left == 0 {
        position += super::HEADER_BYTES + record.padding_left;
        record = record_at(position)?;
    }
    if record.kind != kind::END_REQUEST || record.content_left != END_REQUEST_BYTES {
        return None;
    }
    position += super::HEADER_BYTES;
    let end = position + END_REQUEST_BYTES + record.padding_left;
    let status = *input.get(position..end)?.get(STATUS_POSITION)?;
    let is_sound = ProtocolStatus::from_number(status) == Some(ProtocolStatus::RequestComplete);
    is_sound.then_some(WholeReply { stdout, end })
}

/// The length of the answer to GET_VALUES at the beginning of `input`; `None` if it has not arrived as a whole. An
/// application that does not know GET_VALUES may answer with UNKNOWN_TYPE.
///
/// # Errors
/// Something else is there, or an answer with more than [`VALUES_BYTES_MAX`] bytes.
pub fn values_answer(input: &[u8]) -> Result<Option<usize>, RecordError> {
    let Some(record) = PartialRecord::read(input)? else {
        return Ok(None);
    };
    if record.id != 0 {
        return Err(RecordError::RequestId);
    }
    if !matches!(record.kind, kind::GET_VALUES_RESULT | kind::UNKNOWN_TYPE) {
        return Err(RecordError::Kind);
    }
    if record.content_left > VALUES_BYTES_MAX {
        return Err(RecordError::Length);
    }
    let length = super::HEADER_BYTES + record.content_left + record.padding_left;
    Ok((input.len() >= length).then_some(length))
}

impl FastCgiDecoder {
    /// A decoder for the reply to request `id`.
    pub const fn new(id: u16) -> FastCgiDecoder {
        FastCgiDecoder {
            id,
            state: RecordState::Header,
            record: PartialRecord {
                kind: 0,
                id: 0,
                content_left: 0,
                padding_left: 0,
            },
            stdout: StreamState::Open,
            stderr: StreamState::Open,
            refused: None,
        }
    }

    /// Resets the decoder for another request with the same id.
    #[inline]
    pub fn begin(&mut self) {
        *self = FastCgiDecoder::new(self.id);
    }

    /// Takes the next step. `input` begins where the last step's `consumed` ended; it may end at any byte.
    ///
    /// # Errors
    /// The application violates the protocol. All further calls return the same error.
    #[inline]
    pub fn decode(&mut self, input: &[u8]) -> Result<ReplyDecoded, RecordError> {
        match self.refused {
            Some(error) => Err(error),
            None => self
                .step(input)
                .inspect_err(|&error| self.refused = Some(error)),
        }
    }

    /// Whether the record that ends STDOUT has arrived. Some applications leave it out and end the request.
    pub fn is_stdout_ended(&self) -> bool {
        self.stdout == StreamState::Ended
    }

    /// Returns the last `length` bytes of the range that the last step handed out, for a caller that could
    /// not use all of it: the next input begins that much before `consumed`.
    #[inline]
    pub fn give_back(&mut self, length: usize) {
        match self.state {
            RecordState::Stream(_) => self.record.content_left += length,
            _ => debug_assert_eq!(length, 0, "no range was handed out"),
        }
    }

    #[inline]
    fn step(&mut self, input: &[u8]) -> Result<ReplyDecoded, RecordError> {
        let mut position = 0;
        loop {
            let rest = &input[position..];
            match self.state {
                RecordState::End => return Err(RecordError::BehindEndOfRequest),
                RecordState::Header => {
                    let Some(record) = PartialRecord::read(rest)? else {
                        return Ok(need_more(position));
                    };
                    if record.kind == kind::END_REQUEST && record.id == self.id {
                        return self.end_request(record, position, rest);
                    }
                    self.state = self.after_header(&record)?;
                    self.record = record;
                    position += super::HEADER_BYTES;
                }
                RecordState::Stream(stream) if self.record.content_left > 0 => {
                    let taken = self.record.take_content(rest);
                    if taken == 0 {
                        return Ok(need_more(position));
                    }
                    let range = position..position + taken;
                    return Ok(ReplyDecoded {
                        consumed: range.end,
                        event: FastCgiEvent::Data(stream, range),
                    });
                }
                RecordState::Stream(_) | RecordState::Skipped => {
                    position += self.record.skip(rest);
                    if !self.record.is_over() {
                        return Ok(need_more(position));
                    }
                    self.state = RecordState::Header;
                }
            }
        }
    }

    /// The next state after a header of any kind but END_REQUEST.
    #[inline]
    fn after_header(&mut self, record: &PartialRecord) -> Result<RecordState, RecordError> {
        if record.id == 0 {
            return match record.kind {
                kind::GET_VALUES_RESULT | kind::UNKNOWN_TYPE => Ok(RecordState::Skipped),
                kind::BEGIN_REQUEST..=kind::DATA => Err(RecordError::RequestId),
                kind::GET_VALUES => Err(RecordError::Kind),
                _ => Ok(RecordState::Skipped),
            };
        }
        if record.id != self.id {
            return Err(RecordError::RequestId);
        }
        match record.kind {
            kind::STDOUT => stream_goes_on(&mut self.stdout, record)?,
            kind::STDERR => stream_goes_on(&mut self.stderr, record)?,
            // Kinds that only a web server sends, or that only belong to a connection.
            kind::BEGIN_REQUEST..=kind::UNKNOWN_TYPE => return Err(RecordError::Kind),
            _ => return Ok(RecordState::Skipped),
        }
        Ok(RecordState::Stream(match record.kind {
            kind::STDERR => Stream::Stderr,
            _ => Stream::Stdout,
        }))
    }

    /// Decodes END_REQUEST, whose header is at the beginning of `rest` and at `position` of the input. It is
    /// taken as a whole, with its padding.
    fn end_request(
        &mut self,
        record: PartialRecord,
        position: usize,
        rest: &[u8],
    ) -> Result<ReplyDecoded, RecordError> {
        if record.content_left != END_REQUEST_BYTES {
            return Err(RecordError::Length);
        }
        let length = super::HEADER_BYTES + END_REQUEST_BYTES + record.padding_left;
        if rest.len() < length {
            return Ok(need_more(position));
        }
        let Some(&[a, b, c, d, status, _, _, _]) =
            rest[super::HEADER_BYTES..].first_chunk::<END_REQUEST_BYTES>()
        else {
            return Err(RecordError::Length);
        };
        self.state = RecordState::End;
        Ok(ReplyDecoded {
            consumed: position + length,
            event: FastCgiEvent::End {
                app_status: u32::from_be_bytes([a, b, c, d]),
                protocol_status: ProtocolStatus::from_number(status).ok_or(RecordError::Kind)?,
            },
        })
    }
}

/// Checks that no content follows the empty record that ends a stream. A second empty one is allowed.
fn stream_goes_on(stream: &mut StreamState, record: &PartialRecord) -> Result<(), RecordError> {
    match (*stream, record.content_left) {
        (_, 0) => *stream = StreamState::Ended,
        (StreamState::Open, _) => {}
        (StreamState::Ended, _) => return Err(RecordError::BehindEndOfStream),
    }
    Ok(())
}

fn need_more(consumed: usize) -> ReplyDecoded {
    ReplyDecoded {
        consumed,
        event: FastCgiEvent::NeedMore,
    }
}

const END_REQUEST_BYTES: usize = 8;

/// Where the status is in END_REQUEST.
const STATUS_POSITION: usize = 4;
