//! HPACK, the header compression of HTTP/2 (RFC 7541): header blocks to field lines and back.
//!
//! A connection has one [`HpackDecoder`] for the header blocks from the peer and one [`HpackEncoder`] for
//! those to the peer. Each keeps a dynamic table of which the peer keeps a copy, so all blocks must be
//! decoded, and in the order in which they were encoded. The caller decides what fields mean, how many there
//! may be and which names are valid ([`crate::request_head`]).
//!
//! ```text
//!   HEADERS and CONTINUATION ──> one block ──> HpackDecoder::decode ──> take(FieldLine) ...
//!   status, field, field ... ──> HpackEncoder ──> one block
//! ```
//!
//! Neither allocates once its dynamic table has grown to its full size. Decoded field lines are borrowed from
//! the block, from a table, or from the buffer into which Huffman codes are decoded.

mod decode;
mod dynamic_table;
mod encode;
mod huffman;
mod prepared;
mod repeated;
mod static_table;

pub use decode::HpackDecoder;
pub use encode::{HpackEncoder, write_literal};
pub use prepared::PreparedLines;

use crate::reasons::reasons;

/// One field line of a header block, as the decoder returns it. Its bytes are not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLine<'b> {
    /// The name. The name of a pseudo-field begins with a colon.
    pub name: &'b [u8],
    /// The value.
    pub value: &'b [u8],
    /// Whether the peer has marked the field as never indexed, so that proxies do not compress it either.
    pub is_sensitive: bool,
}

impl FieldLine<'_> {
    /// The size of the line, for SETTINGS_MAX_HEADER_LIST_SIZE and for the dynamic table: its bytes and 32
    /// (RFC 7541 4.1).
    pub const fn list_bytes(&self) -> usize {
        self.name.len() + self.value.len() + ENTRY_OVERHEAD_BYTES as usize
    }
}

/// Whether a field enters the dynamic table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// It enters the dynamic table unless it is there. The next time it takes a byte or two.
    Indexed,
    /// It stays out of the dynamic table, because it is not likely to come again on this connection.
    NotIndexed,
    /// It stays out of every table, also of those of proxies behind: it is a secret, and an attacker could
    /// guess it from the length of compressed blocks (RFC 7541 7.1.3).
    Never,
}

impl Indexing {
    /// The usual choice for a field with this value, whose name has the first index `known` in the static
    /// table.
    #[inline]
    fn usual(known: Option<usize>, value: &[u8]) -> Indexing {
        match known {
            // A short value can be guessed by trying all values.
            Some(static_table::SET_COOKIE) if value.len() < GUESSED_BYTES_MAX => Indexing::Never,
            Some(index) => static_table::indexing(index),
            None => Indexing::Indexed,
        }
    }
}

reasons! {
    /// Why a header block cannot be decoded. The tables of the two sides differ from then on, so the
    /// connection ends with COMPRESSION_ERROR (RFC 9113 4.3).
    HpackError {
        Truncated "a header block ends inside a field line",
        Integer "a number in a header block is too large",
        Index "a header block refers to an entry that no table has",
        Huffman "a Huffman code in a header block is not valid",
        TableSize "a header block sets a table size above the one in SETTINGS",
        TableSizeMisplaced "a header block sets the table size behind a field line, or more than twice",
        ListTooLong "a header block stands for more than the decoder was asked for",
        TableSizeMissing "a header block does not set the smaller table size that SETTINGS ask for",
    }
}

/// The size of an entry of a dynamic table beside its bytes (RFC 7541 4.1).
const ENTRY_OVERHEAD_BYTES: u32 = 32;

/// The size of both dynamic tables at the beginning of a connection.
const TABLE_BYTES: u32 = 4096;

/// Bytes of a value below which it can be guessed.
const GUESSED_BYTES_MAX: usize = 20;

#[cfg(test)]
mod tests;
