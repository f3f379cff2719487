//! Message bodies: where they end, and which input bytes belong to them.
//!
//! [`BodyDecoder`] takes input as it arrives and hands out ranges of it, without a copy. It consumes no byte
//! after the end of the body, so pipelined requests stay in the input. Limits are arguments. The connection
//! decides how to answer a refused body, and closes.
//!
//! ```text
//!              ┌────────────────────── CR LF ──────────────────────┐
//!              v                                                    │
//!   Chunked: Size ─;─> Extension ─LF─> Data ─────> DataEnd ─────────┘
//!              └──LF, size 0──> Trailer ──empty line──> End
//!   Length:  Data ──────────────────────────────────> End
//! ```

use std::ops::Range;

use crate::reasons::reasons;
use crate::request_head::BodyFraming;
use crate::syntax::is_token;

/// Limits on a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimits {
    /// server.max-request-size: the longest body in bytes, without chunk framing; `None` for no limit. Beyond
    /// it: 413.
    pub body_bytes_max: Option<u64>,
    /// The longest trailer section in bytes, line ends included. Beyond it: 431.
    pub trailer_bytes_max: usize,
    /// The longest chunk extension in bytes, for each chunk. Beyond it: 400.
    pub chunk_extension_bytes_max: usize,
}

impl Default for BodyLimits {
    /// No limit for the body, 8 KiB of trailers, 1 KiB of extensions per chunk.
    fn default() -> BodyLimits {
        BodyLimits {
            body_bytes_max: None,
            trailer_bytes_max: 8192,
            chunk_extension_bytes_max: 1024,
        }
    }
}

/// One step of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedPiece {
    /// How many bytes of the input were used, including those of the piece.
    pub consumed: usize,
    /// What was found.
    pub piece: Piece,
}

/// What one step of decoding found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Body bytes: this range of the input, never empty. Call again with the input after `consumed`.
    Data(Range<usize>),
    /// All input is consumed, and the body is incomplete.
    NeedMore,
    /// The body is complete; the next message begins after `consumed`. Further calls consume nothing and
    /// return `End` again.
    End,
}

reasons! {
    /// Why a body is refused. The connection must be closed after the answer, because the beginning of the
    /// next request is unknown.
    BodyError {
        BodyTooLarge CONTENT_TOO_LARGE
            "The request body is longer than server.max-request-size allows.",
        ChunkSize BAD_REQUEST
            "A chunk size is not a hexadecimal number of at most 63 bits.",
        ChunkExtensionTooLong BAD_REQUEST
            "A chunk extension is too long.",
        ChunkExtension BAD_REQUEST
            "A chunk size is followed by something that is no extension (RFC 9112 7.1.1).",
        ChunkLineEnd BAD_REQUEST
            "A chunk size line or a chunk does not end in CR LF.",
        TrailerTooLarge REQUEST_HEADER_FIELDS_TOO_LARGE
            "The trailer section is too long.",
        Trailer BAD_REQUEST
            "The trailer section is not a list of header fields.",
    }
}

/// Decodes one body. Allocates only if there are trailers.
#[derive(Clone, Debug)]
pub struct BodyDecoder {
    state: ChunkedState,
    limits: BodyLimits,
    bytes_received: u64,
    is_reply: bool,
    /// The trailer section as received. Its lines end in CR LF.
    trailer: Vec<u8>,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkedState {
    /// This many body bytes of those that Content-Length announced; never 0.
    Length { remaining: u64 },
    /// A chunk size, of which `digits` digits were read.
    Size { size: u64, digits: u32 },
    /// A chunk extension, of which this many bytes were read.
    Extension {
        size: u64,
        length: usize,
        part: ExtensionPart,
    },
    /// The LF of a chunk size line.
    SizeLineFeed { size: u64 },
    /// This many bytes of chunk data; never 0.
    Chunk { remaining: u64 },
    /// The CR after chunk data.
    DataReturn,
    /// The LF after chunk data.
    DataLineFeed,
    /// The trailer section, up to and including its empty line.
    Trailer,
    /// The body is complete.
    End,
    /// The body was refused. Further calls return the same error.
    Refused(BodyError),
}

/// The position within `*( BWS ";" BWS name [ BWS "=" BWS value ] )`, a chunk extension (RFC 9112 7.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExtensionPart {
    /// After white space that follows the chunk size or a value: a semicolon must come.
    BeforeSemicolon,
    BeforeName,
    Name,
    /// After white space that follows a name.
    BehindName,
    BeforeValue,
    /// In a value that is a token.
    Value,
    /// In a quoted value.
    Quoted,
    /// After a backslash in a quoted value.
    Escaped,
    /// After the closing quotation mark.
    BehindQuoted,
    /// Anything but control characters, as backends send it.
    Anything,
}

impl ExtensionPart {
    /// The position after `byte`. `None` if `byte` is not allowed here.
    fn next(self, byte: u8) -> Option<ExtensionPart> {
        use ExtensionPart::{
            Anything, BeforeName, BeforeSemicolon, BeforeValue, BehindName, BehindQuoted, Escaped,
            Name, Quoted, Value,
        };
        let is_token = is_token(&[byte]);
        let is_control = byte.is_ascii_control() && byte != b'\t';
        Some(match (self, byte) {
            (_, _) if is_control => return None,
            (Anything, _) => Anything,
            (Quoted, b'"') => BehindQuoted,
            (Quoted, b'\\') => Escaped,
            (Quoted | Escaped, _) => Quoted,
            (BeforeSemicolon | BeforeName | BehindName | BeforeValue, b' ' | b'\t') => self,
            (Name, b' ' | b'\t') => BehindName,
            (Value | BehindQuoted, b' ' | b'\t') => BeforeSemicolon,
            (BeforeSemicolon | Name | BehindName | Value | BehindQuoted, b';') => BeforeName,
            (Name | BehindName, b'=') => BeforeValue,
            (BeforeName | Name, _) if is_token => Name,
            (BeforeValue, b'"') => Quoted,
            (BeforeValue | Value, _) if is_token => Value,
            _ => return None,
        })
    }

    /// Whether the line may end here.
    fn may_end(self) -> bool {
        use ExtensionPart::{Anything, BehindQuoted, Name, Value};
        matches!(self, Name | Value | BehindQuoted | Anything)
    }
}

impl BodyDecoder {
    /// A decoder for the body of a backend's reply. A chunk size may be followed by white space, which some
    /// backends pad it with, or by anything else except control characters.
    pub fn of_reply(framing: BodyFraming, limits: BodyLimits) -> BodyDecoder {
        BodyDecoder {
            is_reply: true,
            ..BodyDecoder::new(framing, limits)
        }
    }

    /// A decoder for the body of a request. If Content-Length exceeds the limit, the first call of
    /// [`BodyDecoder::decode`] returns that error, even without input.
    pub fn new(framing: BodyFraming, limits: BodyLimits) -> BodyDecoder {
        let state = match framing {
            BodyFraming::None | BodyFraming::Length(0) => ChunkedState::End,
            BodyFraming::Length(length) if exceeds(length, &limits) => {
                ChunkedState::Refused(BodyError::BodyTooLarge)
            }
            BodyFraming::Length(remaining) => ChunkedState::Length { remaining },
            BodyFraming::Chunked => ChunkedState::Size { size: 0, digits: 0 },
        };
        BodyDecoder {
            state,
            limits,
            bytes_received: 0,
            is_reply: false,
            trailer: Vec::new(),
        }
    }

    /// Takes the next step. `input` begins where the last step's `consumed` ended. One call hands out at most
    /// one piece. After an error all further calls return the same error.
    pub fn decode(&mut self, input: &[u8]) -> Result<DecodedPiece, BodyError> {
        let mut consumed = 0;
        loop {
            let rest = &input[consumed..];
            match self.state {
                ChunkedState::End => {
                    return Ok(DecodedPiece {
                        consumed,
                        piece: Piece::End,
                    });
                }
                ChunkedState::Refused(error) => return Err(error),
                _ if rest.is_empty() => {
                    return Ok(DecodedPiece {
                        consumed,
                        piece: Piece::NeedMore,
                    });
                }
                ChunkedState::Length { remaining } => {
                    let taken = self.take(remaining, rest.len());
                    self.state = match remaining - taken as u64 {
                        0 => ChunkedState::End,
                        remaining => ChunkedState::Length { remaining },
                    };
                    return Ok(data(consumed, taken));
                }
                ChunkedState::Chunk { remaining } => {
                    let taken = self.take(remaining, rest.len());
                    self.state = match remaining - taken as u64 {
                        0 => ChunkedState::DataReturn,
                        remaining => ChunkedState::Chunk { remaining },
                    };
                    return Ok(data(consumed, taken));
                }
                ChunkedState::Trailer => {
                    consumed += self.trailer(rest).map_err(|error| self.refuse(error))?
                }
                framing => {
                    self.state = self
                        .framing_byte(framing, rest[0])
                        .map_err(|error| self.refuse(error))?;
                    consumed += 1;
                }
            }
        }
    }

    /// Whether the body is complete.
    pub fn is_end(&self) -> bool {
        self.state == ChunkedState::End
    }

    /// The lines of the trailer section, each with its CR LF, once the body is complete. They are not
    /// filtered: [`trailers`](crate::trailers) decides which are passed on.
    pub fn trailer_lines(&self) -> &[u8] {
        match self.is_end() {
            true => &self.trailer,
            false => b"",
        }
    }

    /// How many body bytes are still to come. `None` for a chunked body that has not ended.
    pub fn remaining(&self) -> Option<u64> {
        match self.state {
            ChunkedState::Length { remaining } => Some(remaining),
            ChunkedState::End => Some(0),
            _ => None,
        }
    }

    /// Counts as many of `remaining` bytes as are `available`.
    fn take(&mut self, remaining: u64, available: usize) -> usize {
        let taken = usize::try_from(remaining)
            .unwrap_or(usize::MAX)
            .min(available);
        self.bytes_received += taken as u64;
        taken
    }

    fn refuse(&mut self, error: BodyError) -> BodyError {
        self.state = ChunkedState::Refused(error);
        error
    }

    /// Reads one byte of chunk framing (RFC 9112 7.1).
    fn framing_byte(&self, state: ChunkedState, byte: u8) -> Result<ChunkedState, BodyError> {
        match (state, byte) {
            (ChunkedState::Size { size, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                self.size_digit(size, digits, byte)
            }
            (ChunkedState::Size { digits: 0, .. }, _) => Err(BodyError::ChunkSize),
            (ChunkedState::Size { size, .. }, b'\r') => Ok(ChunkedState::SizeLineFeed { size }),
            (ChunkedState::Size { size, .. }, b';' | b' ' | b'\t') => Ok(ChunkedState::Extension {
                size,
                length: 1,
                part: match byte {
                    _ if self.is_reply => ExtensionPart::Anything,
                    b';' => ExtensionPart::BeforeName,
                    _ => ExtensionPart::BeforeSemicolon,
                },
            }),
            (ChunkedState::Size { .. }, _) => Err(BodyError::ChunkSize),
            (ChunkedState::Extension { size, part, .. }, b'\r') if part.may_end() => {
                Ok(ChunkedState::SizeLineFeed { size })
            }
            (ChunkedState::Extension { size, length, part }, _) => {
                self.extension_byte(size, length, part, byte)
            }
            (ChunkedState::SizeLineFeed { size: 0 }, b'\n') => Ok(ChunkedState::Trailer),
            (ChunkedState::SizeLineFeed { size }, b'\n') => {
                Ok(ChunkedState::Chunk { remaining: size })
            }
            (ChunkedState::DataReturn, b'\r') => Ok(ChunkedState::DataLineFeed),
            (ChunkedState::DataLineFeed, b'\n') => Ok(ChunkedState::Size { size: 0, digits: 0 }),
            _ => Err(BodyError::ChunkLineEnd),
        }
    }

    fn size_digit(&self, size: u64, digits: u32, byte: u8) -> Result<ChunkedState, BodyError> {
        let digit = char::from(byte).to_digit(16).ok_or(BodyError::ChunkSize)?;
        let size = size << 4 | u64::from(digit);
        // Leading zeros count: a size may have at most sixteen digits.
        if digits >= 16 || size > i64::MAX as u64 {
            return Err(BodyError::ChunkSize);
        }
        // The limit is checked after each digit, so that a client which sends one digit too many and then
        // waits gets its error.
        if exceeds(self.bytes_received.saturating_add(size), &self.limits) {
            return Err(BodyError::BodyTooLarge);
        }
        Ok(ChunkedState::Size {
            size,
            digits: digits + 1,
        })
    }

    fn extension_byte(
        &self,
        size: u64,
        length: usize,
        part: ExtensionPart,
        byte: u8,
    ) -> Result<ChunkedState, BodyError> {
        if byte == b'\n' {
            return Err(BodyError::ChunkLineEnd);
        }
        let part = part.next(byte).ok_or(BodyError::ChunkExtension)?;
        if length >= self.limits.chunk_extension_bytes_max {
            return Err(BodyError::ChunkExtensionTooLong);
        }
        Ok(ChunkedState::Extension {
            size,
            length: length + 1,
            part,
        })
    }

    /// Takes the part of `rest` that belongs to the trailer section: one line, or as much of it as there is.
    fn trailer(&mut self, rest: &[u8]) -> Result<usize, BodyError> {
        let line_end = memchr::memchr(b'\n', rest);
        let length = line_end.map_or(rest.len(), |position| position + 1);
        // The empty line does not count, so that a body without trailers is within any limit.
        if (self.trailer.len() + length).saturating_sub(2) > self.limits.trailer_bytes_max {
            return Err(BodyError::TrailerTooLarge);
        }
        let line_start = memchr::memrchr(b'\n', &self.trailer).map_or(0, |position| position + 1);
        self.trailer.extend_from_slice(&rest[..length]);
        if line_end.is_some() {
            match &self.trailer[line_start..] {
                b"\r\n" => {
                    self.trailer.truncate(line_start);
                    self.state = ChunkedState::End;
                }
                line => check_trailer_line(line)?,
            }
        }
        Ok(length)
    }
}

fn data(start: usize, length: usize) -> DecodedPiece {
    DecodedPiece {
        consumed: start + length,
        piece: Piece::Data(start..start + length),
    }
}

fn exceeds(body_bytes: u64, limits: &BodyLimits) -> bool {
    limits.body_bytes_max.is_some_and(|max| body_bytes > max)
}

/// Checks a trailer line: a token, a colon, a value without control characters.
fn check_trailer_line(line: &[u8]) -> Result<(), BodyError> {
    let text = line.strip_suffix(b"\r\n").ok_or(BodyError::Trailer)?;
    let colon = memchr::memchr(b':', text).ok_or(BodyError::Trailer)?;
    let (name, value) = text.split_at(colon);
    let is_clean = value
        .iter()
        .all(|&byte| byte == b'\t' || !byte.is_ascii_control());
    if is_token(name) && is_clean {
        Ok(())
    } else {
        Err(BodyError::Trailer)
    }
}

#[cfg(test)]
mod tests;
