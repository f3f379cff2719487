//! The boundaries of records, for the decoders of requests and of replies.

use super::{HEADER_BYTES, VERSION};
use crate::reasons::reasons;

reasons! {
    /// Why a peer's records are refused. The connection cannot be used any more.
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
pub(super) struct PartialRecord {
    pub(super) kind: u8,
    pub(super) id: u16,
    /// Bytes of content still to be taken.
    pub(super) content_left: usize,
    /// Bytes of padding still to be taken.
    pub(super) padding_left: usize,
}

impl PartialRecord {
    /// Reads a header from the front of `input`; `None` if it is incomplete. The reserved bytes are ignored.
    #[inline]
    pub(super) fn read(input: &[u8]) -> Result<Option<PartialRecord>, RecordError> {
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
        Ok(Some(PartialRecord {
            kind,
            id: u16::from_be_bytes([id_high, id_low]),
            content_left: usize::from(u16::from_be_bytes([length_high, length_low])),
            padding_left: usize::from(padding),
        }))
    }

    /// Takes as much content as there is at the front of `input`. Returns its length.
    #[inline]
    pub(super) fn take_content(&mut self, input: &[u8]) -> usize {
        let taken = self.content_left.min(input.len());
        self.content_left -= taken;
        taken
    }

    /// Takes as much padding as there is at the front of `input`. Returns its length.
    #[inline]
    pub(super) fn take_padding(&mut self, input: &[u8]) -> usize {
        let taken = self.padding_left.min(input.len());
        self.padding_left -= taken;
        taken
    }

    /// Takes as much of the rest of the record as there is. Returns its length.
    #[inline]
    pub(super) fn skip(&mut self, input: &[u8]) -> usize {
        let taken = self.take_content(input);
        taken + self.take_padding(&input[taken..])
    }

    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.content_left == 0 && self.padding_left == 0
    }
}
