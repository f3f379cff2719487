//! Where records begin and end: what decoders of requests and of replies have in common.

use super::{HEADER_BYTES, VERSION};
use crate::reasons::reasons;

reasons! {
    /// Why a peer's records are refused. The connection is of no use any more.
    RecordError {
        Version "a FastCGI record of an unknown version",
        RequestId "a FastCGI record for a request that was not made",
        Kind "a FastCGI record of a kind that is not expected",
        Length "a FastCGI record with a wrong length",
        BehindEndOfStream "FastCGI records behind the end of their stream",
        BehindEndOfRequest "FastCGI records behind the end of the request",
        Pair "a FastCGI name-value pair that is cut off",
    }
}

/// The streams of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The reply: a CGI head and a body.
    Stdout,
    /// Messages for the log.
    Stderr,
}

/// The record that is being read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Record {
    pub(super) kind: u8,
    pub(super) id: u16,
    /// Bytes of content that have not been taken yet.
    pub(super) content_left: usize,
    /// Bytes of padding that have not been taken yet.
    pub(super) padding_left: usize,
}

impl Record {
    /// Reads a header from the front of `input`; `None` if it is not all there. The bytes that the
    /// specification reserves are not looked at.
    #[inline]
    pub(super) fn read(input: &[u8]) -> Result<Option<Record>, RecordError> {
        let Some(
            &[
                version,
                kind,
                id_high,
                id_low,
                length_high,
                length_low,
                padding,
                _,
            ],
        ) = input.first_chunk::<HEADER_BYTES>()
        else {
            return match input.first() {
                Some(&version) if version != VERSION => Err(RecordError::Version),
                _ => Ok(None),
            };
        };
        if version != VERSION {
            return Err(RecordError::Version);
        }
        Ok(Some(Record {
            kind,
            id: u16::from_be_bytes([id_high, id_low]),
            content_left: usize::from(u16::from_be_bytes([length_high, length_low])),
            padding_left: usize::from(padding),
        }))
    }

    /// Takes content from the front of `input`: as much as is there.
    #[inline]
    pub(super) fn take_content(&mut self, input: &[u8]) -> usize {
        let taken = self.content_left.min(input.len());
        self.content_left -= taken;
        taken
    }

    /// Takes padding from the front of `input`: as much as is there.
    #[inline]
    pub(super) fn take_padding(&mut self, input: &[u8]) -> usize {
        let taken = self.padding_left.min(input.len());
        self.padding_left -= taken;
        taken
    }

    /// Takes all that is left of the record, as much as is there.
    #[inline]
    pub(super) fn skip(&mut self, input: &[u8]) -> usize {
        let taken = self.take_content(input);
        taken + self.take_padding(&input[taken..])
    }

    pub(super) fn is_over(&self) -> bool {
        self.content_left == 0 && self.padding_left == 0
    }
}
