//! Responses of HTTP/1 servers: bytes to a [`ReplyHead`] and the pieces of a body.
//!
//! [`ResponseDecoder`] is the other side of [`RequestHead`](crate::request_head::RequestHead) and
//! [`BodyDecoder`]: it reads what a backend answers. It sees all bytes received and not consumed
//! yet, hands out ranges of them, and says whether another request may follow. Nothing is guessed:
//! a response that two readers could understand differently is an error, and then its
//! connection is of no use any more. What to tell the client about it is the gateway's business.
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

/// Reads one response after the other from a connection. Warm, it allocates nothing.
#[derive(Debug)]
pub struct ResponseDecoder {
    head: ReplyHead,
    limits: ResponseLimits,
    asked: Asked,
    state: ResponseState,
    keep_alive: bool,
    /// Connection names fields, which must not go on from the trailers either.
    names_fields: bool,
    interim_count: u32,
    /// Bytes of an incomplete head that were searched for its end.
    searched: usize,
    /// Bytes of an incomplete head that were last parsed.
    attempted: usize,
}

/// How much of a response is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseLimits {
    /// The longest head in bytes, its empty line included; each interim response has its own.
    pub head_bytes_max: usize,
    /// Fields of a head; never more than 1024.
    pub fields_max: usize,
    /// Interim responses before the final one, 100 (Continue) included.
    pub interim_max: u32,
    /// The longest trailer section in bytes.
    pub trailer_bytes_max: usize,
}

impl Default for ResponseLimits {
    /// 64 KiB of head as in lighttpd, 256 fields, 16 interim responses, 8 KiB of trailers.
    fn default() -> ResponseLimits {
        ResponseLimits {
            head_bytes_max: 65536,
            fields_max: 256,
            interim_max: 16,
            trailer_bytes_max: 8192,
        }
    }
}

/// What a response answers, as far as its framing depends on that (RFC 9112 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The method that was sent.
    pub method: Method,
    /// Another protocol was offered by Upgrade, so 101 is a possible answer.
    pub upgrade: bool,
}

/// One step of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseDecoded {
    /// Input bytes that are done with, those of a body range included. May be more than 0 with
    /// every event.
    pub consumed: usize,
    /// What came out.
    pub event: ResponseEvent,
}

/// What one step of decoding found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseEvent {
    /// More input is needed, or the end of the input.
    NeedMore,
    /// An interim response other than 100 and 101; its head is there until the next call.
    Interim,
    /// The head of the final response. After 101 all that follows is body.
    Head,
    /// Body bytes: this range of the input, never empty.
    Body(Range<usize>),
    /// The response is complete.
    End {
        /// Another request may be sent on this connection.
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
    /// A body that tells its end.
    Body(BodyDecoder),
    /// Bytes without an end of their own: an old-fashioned body, or another protocol.
    UntilClose,
    /// Nothing of this response.
    End,
    /// Nothing: asking again gives the same answer.
    Refused(ResponseError),
}

impl ResponseDecoder {
    /// A decoder for the response to a GET request; [`ResponseDecoder::begin`] says otherwise.
    pub fn new(limits: ResponseLimits) -> ResponseDecoder {
        ResponseDecoder {
            head: ReplyHead::new(),
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

    /// Makes ready for the response to another request. Buffers stay.
    pub fn begin(&mut self, asked: Asked) {
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        *self = ResponseDecoder {
            head,
            asked,
            ..ResponseDecoder::new(self.limits)
        };
    }

    /// Takes the next step. `input` is everything received and not consumed so far. To be called
    /// until it says [`ResponseEvent::NeedMore`] or [`ResponseEvent::End`].
    ///
    /// # Errors
    /// The response cannot be used; asking again gives the same error.
    pub fn decode(&mut self, input: &[u8]) -> Result<ResponseDecoded, ResponseError> {
        let decoded = self.step(input);
        if let Err(error) = decoded {
            self.state = ResponseState::Refused(error);
        }
        decoded
    }

    /// The backend closed the connection, and all input is consumed that could be.
    ///
    /// # Errors
    /// The response is cut off.
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

    /// Status and end-to-end fields of the response, or of the interim one just reported. Fields
    /// about the connection are left out (RFC 9110 7.6.1), except Upgrade with the statuses 101 and
    /// 426. Content-Length is there at most once; with HEAD and 304 it is about the body that
    /// was not sent.
    pub fn head(&self) -> &ReplyHead {
        &self.head
    }

    /// Takes the trailers of a response that is complete, as far as they may go on. Those of a response whose Connection
    /// field names others are dropped.
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

    /// Body bytes still to come, if the response told before: not for chunks, not until close.
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

    /// The end of the response, behind which `surplus` bytes were received that were not asked for. The decoder of its
    /// body stays: it has the trailers.
    fn end(&mut self, surplus: usize) -> ResponseEvent {
        self.keep_alive &= surplus == 0;
        ResponseEvent::End {
            reusable: self.keep_alive,
        }
    }

    /// Reads heads until one is to be told of.
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

    /// Parses a head at the beginning of `input`, if it can be complete. A head that comes in many
    /// pieces is searched for its end once, and parsed only then or when it has doubled.
    fn read_head(&mut self, input: &[u8]) -> Result<Option<Head>, ResponseError> {
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

    /// What follows from a head. `None`: 100 (Continue), of which nobody needs to know.
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

fn need_more(consumed: usize) -> ResponseDecoded {
    ResponseDecoded {
        consumed,
        event: ResponseEvent::NeedMore,
    }
}

#[cfg(test)]
mod tests;
