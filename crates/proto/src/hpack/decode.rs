//! Header blocks to field lines.

use std::ops::Range;

use super::dynamic_table::DynamicTable;
use super::{FieldLine, HpackError, huffman, static_table};

/// Decodes the header blocks that a peer sends on one connection.
#[derive(Debug)]
pub struct HpackDecoder {
    table: DynamicTable,
    /// What our SETTINGS allow the table to take.
    table_bytes_max: u32,
    /// What is known of the line at hand and is not in the block as it is.
    text: Vec<u8>,
}

impl HpackDecoder {
    /// A decoder at the beginning of a connection. `table_bytes_max` is our SETTINGS_HEADER_TABLE_SIZE, 4,096 if we do
    /// not send it.
    pub fn new(table_bytes_max: u32) -> HpackDecoder {
        HpackDecoder {
            table: DynamicTable::new(table_bytes_max),
            table_bytes_max,
            text: Vec::new(),
        }
    }

    /// The peer has acknowledged this SETTINGS_HEADER_TABLE_SIZE of ours. If its table is larger, its next block has
    /// to say that it makes it smaller.
    pub fn set_table_bytes_max(&mut self, table_bytes_max: u32) {
        self.table_bytes_max = table_bytes_max;
    }

    /// Decodes one whole header block. Calls `take` for each field line in order. All of a block has to be decoded, also
    /// that of a request that is refused: the next block builds on it.
    ///
    /// # Errors
    /// The block is not valid. The connection is over (COMPRESSION_ERROR); lines in front of the fault were taken.
    pub fn decode(
        &mut self,
        block: &[u8],
        take: &mut dyn FnMut(FieldLine<'_>),
    ) -> Result<(), HpackError> {
        let decoded = self.lines(block, take);
        if self.text.capacity() > TEXT_BYTES_KEPT {
            self.text = Vec::new();
        }
        decoded
    }

    fn lines(
        &mut self,
        block: &[u8],
        take: &mut dyn FnMut(FieldLine<'_>),
    ) -> Result<(), HpackError> {
        let mut rest = Rest { bytes: block };
        self.table_size_updates(&mut rest)?;
        while let Some(first) = rest.first() {
            match first {
                0x80.. => {
                    let index = rest.integer(0x7f)?;
                    let (name, value) = self.entry(index)?;
                    take(FieldLine {
                        name,
                        value,
                        is_sensitive: false,
                    });
                }
                0x40.. => {
                    let (name, value) = self.literal(&mut rest, 0x3f)?;
                    let (name, value) = (name.bytes(&self.text), value.bytes(&self.text));
                    take(FieldLine {
                        name,
                        value,
                        is_sensitive: false,
                    });
                    self.table.add(name, value, 0);
                }
                0x20.. => return Err(HpackError::TableSizeMisplaced),
                _ => {
                    let (name, value) = self.literal(&mut rest, 0x0f)?;
                    take(FieldLine {
                        name: name.bytes(&self.text),
                        value: value.bytes(&self.text),
                        is_sensitive: first & NEVER_INDEXED != 0,
                    });
                }
            }
        }
        Ok(())
    }

    /// Gives back the memory that Huffman codes took, and what the table does not need: for a connection that has nothing to
    /// do. The next blocks take it again.
    pub fn release_memory(&mut self) {
        self.text = Vec::new();
        self.table.release_memory();
    }

    /// What is kept of that behind a block, for tests.
    #[cfg(test)]
    pub(crate) fn text_capacity(&self) -> usize {
        self.text.capacity()
    }

    /// The table, for tests: from the newest entry to the oldest, and what they take.
    #[cfg(test)]
    pub(super) fn table(&mut self) -> &mut DynamicTable {
        &mut self.table
    }

    /// What a block says of the size of the table before its first field line.
    fn table_size_updates(&mut self, rest: &mut Rest<'_>) -> Result<(), HpackError> {
        let mut updates = 0;
        while let Some(0x20..0x40) = rest.first() {
            let size = rest.integer(0x1f)?;
            // The smallest size since the last block, and the one it has now (RFC 7541 4.2).
            updates += 1;
            if updates > 2 {
                return Err(HpackError::TableSizeMisplaced);
            }
            if size > self.table_bytes_max {
                return Err(HpackError::TableSize);
            }
            self.table.set_size_max(size);
        }
        match self.table.size_max() > self.table_bytes_max {
            true => Err(HpackError::TableSizeMissing),
            false => Ok(()),
        }
    }

    #[inline]
    fn entry(&mut self, index: u32) -> Result<(&[u8], &[u8]), HpackError> {
        let index = index as usize;
        match static_table::entry(index) {
            Some(entry) => Ok(entry),
            None => index
                .checked_sub(static_table::LENGTH + 1)
                .and_then(|index| self.table.entry(index))
                .ok_or(HpackError::Index),
        }
    }

    /// A field line whose value, and perhaps whose name, is spelled out. `mask` is of the bits of its first byte that
    /// are the index of a name.
    #[inline]
    fn literal<'b>(
        &mut self,
        rest: &mut Rest<'b>,
        mask: u8,
    ) -> Result<(Text<'b>, Text<'b>), HpackError> {
        self.text.clear();
        let index = rest.integer(mask)?;
        let name = match static_table::entry(index as usize) {
            Some((name, _)) => Text::Given(name),
            None if index == 0 => rest.string(&mut self.text)?,
            None => {
                // Copied, because it may have to leave the table for the entry that is made of it (RFC 7541 4.4).
                let mut text = std::mem::take(&mut self.text);
                let name = self
                    .entry(index)
                    .map(|(name, _)| text.extend_from_slice(name));
                self.text = text;
                name?;
                Text::Made(0..self.text.len())
            }
        };
        let value = rest.string(&mut self.text)?;
        Ok((name, value))
    }
}

/// A name or a value.
enum Text<'b> {
    /// In the block, or in the static table.
    Given(&'b [u8]),
    /// In the decoder's [`HpackDecoder::text`].
    Made(Range<usize>),
}

impl<'b> Text<'b> {
    #[inline]
    fn bytes<'t>(&self, made: &'t [u8]) -> &'t [u8]
    where
        'b: 't,
    {
        match self {
            Text::Given(bytes) => bytes,
            Text::Made(range) => made.get(range.clone()).unwrap_or_default(),
        }
    }
}

/// What is left of a block.
pub(super) struct Rest<'b> {
    pub(super) bytes: &'b [u8],
}

impl<'b> Rest<'b> {
    #[inline]
    fn first(&self) -> Option<u8> {
        self.bytes.first().copied()
    }

    /// A number that begins in the bits `mask` of the next byte (RFC 7541 5.1).
    #[inline]
    pub(super) fn integer(&mut self, mask: u8) -> Result<u32, HpackError> {
        let (&first, bytes) = self.bytes.split_first().ok_or(HpackError::Truncated)?;
        self.bytes = bytes;
        match first & mask {
            all if all == mask => self.long_integer(mask),
            number => Ok(u32::from(number)),
        }
    }

    /// The bytes behind the first one of a number that begins with `first`.
    fn long_integer(&mut self, first: u8) -> Result<u32, HpackError> {
        let mut number = u64::from(first);
        for shift in [0, 7, 14, 21, 28] {
            let (&byte, bytes) = self.bytes.split_first().ok_or(HpackError::Truncated)?;
            self.bytes = bytes;
            number += u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return u32::try_from(number).map_err(|_| HpackError::Integer);
            }
        }
        Err(HpackError::Integer)
    }

    /// A string (RFC 7541 5.2). What is in Huffman code is appended to `made`.
    #[inline]
    fn string(&mut self, made: &mut Vec<u8>) -> Result<Text<'b>, HpackError> {
        let is_huffman = self.first().is_some_and(|first| first & HUFFMAN != 0);
        let length = self.integer(0x7f)? as usize;
        let (bytes, behind) = self
            .bytes
            .split_at_checked(length)
            .ok_or(HpackError::Truncated)?;
        self.bytes = behind;
        if !is_huffman {
            return Ok(Text::Given(bytes));
        }
        let start = made.len();
        huffman::decode(bytes, made)?;
        Ok(Text::Made(start..made.len()))
    }
}

/// What is kept behind a block of the memory that Huffman codes took.
const TEXT_BYTES_KEPT: usize = 4096;

/// The bit of a literal's first byte that says it is never to be indexed.
const NEVER_INDEXED: u8 = 0x10;

/// The bit of a string's first byte that says it is in Huffman code.
const HUFFMAN: u8 = 0x80;
