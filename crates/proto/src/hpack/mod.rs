//! HPACK, the header compression of HTTP/2 (RFC 7541): header blocks to field lines and back.
//!
//! One [`HpackDecoder`] reads all header blocks that a peer sends on a connection, in their order, and one
//! [`HpackEncoder`] writes all that go to it: each keeps a dynamic table that its other side keeps as well. A block that
//! one side leaves out, or reads in another order, ends the connection. What the fields mean, how many there may be and
//! which names are sound is the business of the caller ([`crate::request_head`]).
//!
//! ```text
//!   HEADERS and CONTINUATION ──> one block ──> HpackDecoder::decode ──> take(FieldLine) ...
//!   status, field, field ... ──> HpackEncoder ──> one block
//! ```
//!
//! Once its dynamic table has grown to its size, neither of them allocates. Field lines are borrowed: from the block,
//! from a table, or from the room in which Huffman codes are undone.

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

/// One field line of a header block, as the decoder hands it out. Its bytes may be anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLine<'b> {
    /// The name; that of a pseudo-field begins with a colon.
    pub name: &'b [u8],
    /// The value.
    pub value: &'b [u8],
    /// Whether the peer asks that it is never compressed on its way on (a literal that is never indexed).
    pub is_sensitive: bool,
}

impl FieldLine<'_> {
    /// What the line counts towards SETTINGS_MAX_HEADER_LIST_SIZE, and towards the size of a dynamic table: its bytes,
    /// and 32 (RFC 7541 4.1).
    pub const fn list_bytes(&self) -> usize {
        self.name.len() + self.value.len() + ENTRY_OVERHEAD_BYTES as usize
    }
}

/// What becomes of a field in the tables of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// It goes into the dynamic table, unless it is there. The next time it takes a byte or two.
    Indexed,
    /// It stays out of the dynamic table: it will hardly come again on this connection.
    NotIndexed,
    /// It stays out of every table, also of those of proxies on its way: it is a secret, which must not be guessed by
    /// the length of a block (RFC 7541 7.1.3).
    Never,
}

impl Indexing {
    /// What is best for a field of this name, in lower-case, whose first index in the static table is `known`.
    #[inline]
    fn usual(known: Option<usize>, value: &[u8]) -> Indexing {
        match known {
            // A short one can be guessed, a long one hardly.
            Some(static_table::SET_COOKIE) if value.len() < GUESSED_BYTES_MAX => Indexing::Never,
            Some(index) => static_table::indexing(index),
            None => Indexing::Indexed,
        }
    }
}

reasons! {
    /// Why a header block cannot be decoded. The tables of the two sides differ from then on, so the connection ends with
    /// COMPRESSION_ERROR (RFC 9113 4.3).
    HpackError {
        Truncated "a header block ends inside a field line",
        Integer "a number in a header block is too large",
        Index "a header block refers to an entry that no table has",
        Huffman "a Huffman code in a header block is not valid",
        TableSize "a header block sets a table size above the one in SETTINGS",
        TableSizeMisplaced "a header block sets the table size behind a field line, or more than twice",
        TableSizeMissing "a header block does not set the smaller table size that SETTINGS ask for",
    }
}

/// What an entry of a dynamic table takes beside its bytes (RFC 7541 4.1).
const ENTRY_OVERHEAD_BYTES: u32 = 32;

/// The size that the dynamic table of each side has at the beginning.
const TABLE_BYTES: u32 = 4096;

/// Values shorter than this are within the reach of guessing.
const GUESSED_BYTES_MAX: usize = 20;

#[cfg(test)]
mod tests;
