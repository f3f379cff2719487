//! Responses of HTTP/1 servers, decoded into a [`ReplyHead`] and pieces of a body.
//!
//! [`ResponseDecoder`] is the counterpart of [`RequestHead`](crate::request_head::RequestHead) and
//! [`BodyDecoder`] for what a backend sends. Each call gets all bytes that were received and not consumed
//! yet. The decoder hands out ranges of them, and tells whether the connection may carry another request. It
//! does not guess: a response that two readers could understand differently is an error, after which the
//! connection cannot be used. The gateway decides what the client is told.
//!
//! ```text
//!           ┌── 1xx, not 101 ──┐      ┌─ length or chunks ─> Body ──last byte──┐
//!           v                  │      │                                        v
//! begin ─> Head ───────────────┴──────┼─ no body ────────────────────────────> End
//!                                     │                                        ^
//!                                     └─ neither, or 101 ──> UntilClose ──closed┘
//! ```

use std::ops::Range;

use super::body::{BodyDecoder, BodyError, BodyLimits, Piece};
use super::response_head::{self, Head};
use crate::header_block::HeaderBlock;
use crate::method::Method;
use crate::reasons::reasons;
use crate::reply_head::ReplyHead;
use crate::request_head::BodyFraming;
use crate::status::Status;
use crate::trailers;

/// Decodes the responses of a connection, one after another. Once its buffers have grown, it does not
/// allocate.
#[derive(Debug)]
pub struct ResponseDecoder {
    head: ReplyHead,
    /// What `head` was made from, if the same may come again.
    last: Option<LastHead>,
    /// The buffer of [`LastHead`].
    last_bytes: Vec<u8>,
    limits: ResponseLimits,
    asked: Asked,
    state: ResponseState,
    keep_alive: bool,
    /// The Connection field names other fields, so trailers of those names must not be passed on.
    names_fields: bool,
    interim_count: u32,
    /// How many bytes of an incomplete head were searched for its end.
    searched: usize,
    /// How many bytes of an incomplete head the last parse covered.
    attempted: usize,
}

/// A head that was parsed, and the request it was for: the same bytes in reply to the same mean the same.
#[derive(Debug)]
struct LastHead {
    asked: Asked,
    parsed: Head,
}

/// Limits on a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseLimits {
    /// The longest head in bytes, including its empty line. Each interim response has its own.
    pub head_bytes_max: usize,
    /// The most fields of a head; never more than 1024.
    pub fields_max: usize,
    /// The most interim responses before the final one, including 100 (Continue).
    pub interim_max: u32,
    /// The longest trailer section in bytes.
    pub trailer_bytes_max: usize,
}

impl Default for ResponseLimits {
    /// 64 KiB of head as in lighttpd, 1,024 fields, 16 interim responses, 8 KiB of trailers.
    fn default() -> ResponseLimits {
        ResponseLimits {
            head_bytes_max: 65536,
            fields_max: 1024,
            interim_max: 16,
            trailer_bytes_max: 8192,
        }
    }
}

/// The parts of the request on which the framing of the response depends (RFC 9112 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The method that was sent.
    pub method: Method,
    /// Whether the request offered another protocol by Upgrade, so that 101 is a possible response.
    pub upgrade: bool,
}

/// One step of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseDecoded {
    /// How many bytes of the input were used, including those of a body range. It may be more than 0 with
    /// every event.
    pub consumed: usize,
    /// What was found.
    pub event: ResponseEvent,
}

/// What one step of decoding found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseEvent {
    /// More input is needed, or the end of the input.
    NeedMore,
    /// An interim response other than 100 and 101. Its head is available until the next call.
    Interim,
    /// The head of the final response. After 101 everything that follows is body.
    Head,
    /// Body bytes: this range of the input, never empty.
    Body(Range<usize>),
    /// The response is complete.
    End {
        /// Whether the connection may carry another request.
        reusable: bool,
    },
}

reasons! {
    /// Why a response cannot be used.
    ResponseError {
        NotHttp "the response does not begin with HTTP/1.0 or HTTP/1.1",
        StatusLine "the status line of the response is malformed",
        StatusInvalid "the status of the response is not a number from 100 to 999",
        HeadTooLarge "the head of the response is too long",
        TooManyFields "the response has too many header fields",
        FieldName "a header field name of the response is not a token, or its line is folded",
        FieldValue "a header field value of the response holds a control character",
        LineEnd "a line of the response's head holds a carriage return without a line feed",
        ContentLengthInvalid "the response's Content-Length is not a decimal number of at most 63 bits",
        ContentLengthDiffers "the response carries different values of Content-Length",
        ContentLengthWithTransferEncoding "the response carries Content-Length and Transfer-Encoding",
        TransferEncodingUnknown "the response's Transfer-Encoding is something else than chunked",
        TransferEncodingInHttp10 "an HTTP/1.0 response carries Transfer-Encoding",
        TooManyInterim "the backend sent too many interim responses",
        SwitchedUnasked "the backend switched protocols without being asked to",
        Chunk "the chunked framing of the response is broken",
        Trailer "the trailer section of the response is malformed or too long",
        ClosedBeforeHead "the backend closed the connection without a response",
        ClosedInHead "the backend closed the connection inside the head of the response",
        ClosedInBody "the backend closed the connection inside the body of the response",
    }
}

impl From<BodyError> for ResponseError {
    fn from(error: BodyError) -> ResponseError {
        match error {
            BodyError::Trailer | BodyError::TrailerTooLarge => ResponseError::Trailer,
            _ => ResponseError::Chunk,
        }
    }
}

/// What comes next.
#[derive(Debug)]
enum ResponseState {
    /// A head.
    Head,
    /// A body with a known end.
    Body(BodyDecoder),
    /// Bytes until the connection closes: a body without a length, or another protocol.
    UntilClose,
    /// The response is complete.
    End,
    /// The response was refused. Further calls return the same error.
    Refused(ResponseError),
}

impl ResponseDecoder {
    /// A decoder for the response to a GET request; [`ResponseDecoder::begin`] changes that.
    pub fn new(limits: ResponseLimits) -> ResponseDecoder {
        ResponseDecoder {
            head: ReplyHead::new(),
            last: None,
            last_bytes: Vec::new(),
            limits,
            asked: Asked {
                method: Method::Get,
                upgrade: false,
            },
            state: ResponseState::Head,
            keep_alive: false,
            names_fields: false,
            interim_count: 0,
            searched: 0,
            attempted: 0,
        }
    }

    /// Prepares for the response to another request. Buffers are kept.
    pub fn begin(&mut self, asked: Asked) {
        let ResponseDecoder {
            // They are about the last head, which may come again.
            head: _,
            last: _,
            last_bytes: _,
            limits: _,
            asked: before,
            state,
            keep_alive,
            names_fields,
            interim_count,
            searched,
            attempted,
        } = self;
        *before = asked;
        *state = ResponseState::Head;
        *keep_alive = false;
        *names_fields = false;
        *interim_count = 0;
        *searched = 0;
        *attempted = 0;
    }

    /// Takes the next step. `input` is everything that was received and not consumed so far. Call it until it
    /// returns [`ResponseEvent::NeedMore`] or [`ResponseEvent::End`].
    ///
    /// # Errors
    /// The response cannot be used. All further calls return the same error.
    pub fn decode(&mut self, input: &[u8]) -> Result<ResponseDecoded, ResponseError> {
        let decoded = self.step(input);
        if let Err(error) = decoded {
            self.state = ResponseState::Refused(error);
        }
        decoded
    }

    /// Call this when the backend has closed the connection and [`ResponseDecoder::decode`] needs more input.
    ///
    /// # Errors
    /// The response is cut short.
    pub fn end_of_input(&mut self) -> Result<ResponseEvent, ResponseError> {
        let error = match &self.state {
            ResponseState::End => None,
            ResponseState::UntilClose => None,
            ResponseState::Body(decoder) if decoder.is_end() => None,
            ResponseState::Body(_) => Some(ResponseError::ClosedInBody),
            ResponseState::Head if self.searched == 0 && self.interim_count == 0 => {
                Some(ResponseError::ClosedBeforeHead)
            }
            ResponseState::Head => Some(ResponseError::ClosedInHead),
            ResponseState::Refused(error) => Some(*error),
        };
        match error {
            None => {
                self.state = ResponseState::End;
                self.keep_alive = false;
                Ok(ResponseEvent::End { reusable: false })
            }
            Some(error) => {
                self.state = ResponseState::Refused(error);
                Err(error)
            }
        }
    }

    /// Status and end-to-end fields of the response, or of the interim one just reported. Fields about the
    /// connection are left out (RFC 9110 7.6.1), except Upgrade with the statuses 101 and 426. Content-Length
    /// occurs at most once; with HEAD and 304 it is about the body that was not sent.
    pub fn head(&self) -> &ReplyHead {
        &self.head
    }

    /// Takes the trailers of a complete response, without those that must not be passed on. If the Connection
    /// field named further fields, all trailers are dropped.
    pub fn take_trailers(&mut self) -> HeaderBlock {
        let trailers = match &self.state {
            ResponseState::Body(decoder) if !self.names_fields => {
                trailers::of_reply(decoder.trailer_lines())
            }
            _ => HeaderBlock::new(),
        };
        if matches!(&self.state, ResponseState::Body(decoder) if decoder.is_end()) {
            self.state = ResponseState::End;
        }
        trailers
    }

    /// How many body bytes are still to come, if the head announced it; `None` with chunks or until close.
    pub fn remaining(&self) -> Option<u64> {
        match &self.state {
            ResponseState::Body(decoder) => decoder.remaining(),
            ResponseState::End => Some(0),
            ResponseState::Head | ResponseState::UntilClose | ResponseState::Refused(_) => None,
        }
    }

    fn step(&mut self, input: &[u8]) -> Result<ResponseDecoded, ResponseError> {
        match &mut self.state {
            ResponseState::Head => self.decode_head(input),
            ResponseState::Body(decoder) => {
                let decoded = decoder.decode(input)?;
                let event = match decoded.piece {
                    Piece::Data(range) => ResponseEvent::Body(range),
                    Piece::NeedMore => ResponseEvent::NeedMore,
                    Piece::End => self.end(input.len() - decoded.consumed),
                };
                Ok(ResponseDecoded {
                    consumed: decoded.consumed,
                    event,
                })
            }
            ResponseState::UntilClose if input.is_empty() => Ok(need_more(0)),
            ResponseState::UntilClose => Ok(ResponseDecoded {
                consumed: input.len(),
                event: ResponseEvent::Body(0..input.len()),
            }),
            ResponseState::End => Ok(ResponseDecoded {
                consumed: 0,
                event: self.end(input.len()),
            }),
            ResponseState::Refused(error) => Err(*error),
        }
    }

    /// Ends the response. `surplus` is the number of bytes received after it, which no request asked for. The
    /// decoder of its body is kept, because it holds the trailers.
    fn end(&mut self, surplus: usize) -> ResponseEvent {
        self.keep_alive &= surplus == 0;
        ResponseEvent::End {
            reusable: self.keep_alive,
        }
    }

    /// Reads heads until one must be reported.
    fn decode_head(&mut self, input: &[u8]) -> Result<ResponseDecoded, ResponseError> {
        let mut consumed = 0;
        loop {
            let rest = input.get(consumed..).unwrap_or_default();
            let Some(head) = self.read_head(rest)? else {
                return Ok(need_more(consumed));
            };
            consumed += head.length;
            if let Some(event) = self.take_head(&head)? {
                return Ok(ResponseDecoded { consumed, event });
            }
        }
    }

    /// Reads a head at the beginning of `input`, unless it is still incomplete.
    fn read_head(&mut self, input: &[u8]) -> Result<Option<Head>, ResponseError> {
        if let Some(last) = &self.last
            && last.asked == self.asked
            && input.starts_with(&self.last_bytes)
        {
            return Ok(Some(last.parsed));
        }
        self.last = None;
        let found = self.parse_head(input)?;
        if let Some(parsed) = found
            && parsed.length <= REPEATED_HEAD_BYTES_MAX
            && !self.head.status().is_interim()
        {
            self.last_bytes.clear();
            let bytes = input.get(..parsed.length).unwrap_or_default();
            self.last_bytes.extend_from_slice(bytes);
            let asked = self.asked;
            self.last = Some(LastHead { asked, parsed });
        }
        Ok(found)
    }

    /// Parses a head at the beginning of `input`, unless it is still incomplete. When a head arrives in many
    /// pieces, each byte is searched for its end once, and a parse is tried only when the end was found or
    /// the input has doubled.
    fn parse_head(&mut self, input: &[u8]) -> Result<Option<Head>, ResponseError> {
        // The empty line may begin in bytes that were searched before.
        let unsearched = self.searched.saturating_sub(2).min(input.len());
        let is_worth_it = self.attempted == 0
            || input.len() / 2 >= self.attempted
            || super::parse::has_empty_line(input.get(unsearched..).unwrap_or_default());
        let found = if is_worth_it {
            self.attempted = input.len();
            response_head::parse(input, self.asked, &mut self.head)?
        } else {
            None
        };
        self.searched = input.len();
        let length = found.as_ref().map_or(input.len(), |head| head.length);
        if length > self.limits.head_bytes_max {
            return Err(ResponseError::HeadTooLarge);
        }
        if found
            .as_ref()
            .is_some_and(|head| head.fields > self.limits.fields_max)
        {
            return Err(ResponseError::TooManyFields);
        }
        Ok(found)
    }

    /// Acts on a head. `None` for 100 (Continue), which is not reported.
    fn take_head(&mut self, head: &Head) -> Result<Option<ResponseEvent>, ResponseError> {
        self.forget_search();
        let status = self.head.status();
        if status.is_interim() && status != Status::SWITCHING_PROTOCOLS {
            self.interim_count += 1;
            return match status {
                _ if self.interim_count > self.limits.interim_max => {
                    Err(ResponseError::TooManyInterim)
                }
                Status::CONTINUE => Ok(None),
                _ => Ok(Some(ResponseEvent::Interim)),
            };
        }
        if status == Status::SWITCHING_PROTOCOLS && !self.asked.upgrade {
            return Err(ResponseError::SwitchedUnasked);
        }
        self.keep_alive = head.keep_alive;
        self.names_fields = head.names_fields;
        self.state = match head.framing {
            Some(BodyFraming::None) => ResponseState::End,
            Some(framing) => {
                ResponseState::Body(BodyDecoder::of_reply(framing, self.body_limits()))
            }
            None => ResponseState::UntilClose,
        };
        Ok(Some(ResponseEvent::Head))
    }

    fn body_limits(&self) -> BodyLimits {
        BodyLimits {
            trailer_bytes_max: self.limits.trailer_bytes_max,
            ..BodyLimits::default()
        }
    }

    fn forget_search(&mut self) {
        self.searched = 0;
        self.attempted = 0;
    }
}

/// Bytes of the head of a reply that is compared with the next one instead of being decoded again. Longer heads
/// mostly have cookies and differ.
pub const REPEATED_HEAD_BYTES_MAX: usize = 1024;

fn need_more(consumed: usize) -> ResponseDecoded {
    ResponseDecoded {
        consumed,
        event: ResponseEvent::NeedMore,
    }
}

#[cfg(test)]
mod tests;
