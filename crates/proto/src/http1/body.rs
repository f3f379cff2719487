//! Message bodies: where they end, and what their bytes are.

use std::ops::Range;

use crate::status::Status;

/// How the end of a request body is found (RFC 9112 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// There is no body.
    None,
    /// That many bytes; never 0, which is `None`.
    Length(u64),
    /// Chunks until the last one.
    Chunked,
}

/// How much of a body is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimits {
    /// The longest body in bytes, chunk framing not counted; `None` is no limit.
    pub body_bytes_max: Option<u64>,
    /// The longest trailer section in bytes.
    pub trailer_bytes_max: usize,
    /// The longest chunk extension in bytes, per chunk.
    pub chunk_extension_bytes_max: usize,
}

/// One step of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Input bytes that are done with, those of the piece included.
    pub consumed: usize,
    /// What came out.
    pub piece: Piece,
}

/// What one step of decoding found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Body bytes: this range of the input.
    Data(Range<usize>),
    /// All input is consumed and the body goes on.
    NeedMore,
    /// The body is complete; the next message begins after `consumed`.
    End,
}

/// A body that is refused. The connection must be closed after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyError {
    /// The status to answer with, if no answer was begun.
    pub status: Status,
    /// What was wrong.
    pub reason: BodyErrorReason,
}

/// The closed set of reasons to refuse a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BodyErrorReason {
    /// The body is longer than the limit.
    TooLarge,
}

/// Decodes one body.
#[derive(Debug)]
pub struct BodyDecoder {}

#[allow(missing_docs, unused_variables)]
impl BodyDecoder {
    pub fn new(framing: BodyFraming, limits: BodyLimits) -> BodyDecoder {
        todo!()
    }
    pub fn decode(&mut self, input: &[u8]) -> Result<Decoded, BodyError> {
        todo!()
    }
    pub fn is_end(&self) -> bool {
        todo!()
    }
    pub fn bytes_received(&self) -> u64 {
        todo!()
    }
    pub fn remaining(&self) -> Option<u64> {
        todo!()
    }
    pub fn trailers(&self) -> impl Iterator<Item = (&[u8], &[u8])> + '_ {
        std::iter::empty()
    }
}
