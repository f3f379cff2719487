//! Header blocks to field lines.

use std::ops::Range;

use super::dynamic_table::DynamicTable;
use super::{FieldLine, HpackError, huffman, static_table};

/// Decodes the header blocks that a peer sends on one connection.
#[derive(Debug)]
pub struct HpackDecoder {
    table: DynamicTable,
    /// The largest table that our SETTINGS allow.
    table_bytes_max: u32,
    /// The parts of the present field line that are not in the block as they are: decoded Huffman code, and
    /// names copied from the table.
    text: Vec<u8>,
}

impl HpackDecoder {
    /// A decoder for a new connection. `table_bytes_max` is our SETTINGS_HEADER_TABLE_SIZE, or 4,096 if we do
    /// not send it.
    pub fn new(table_bytes_max: u32) -> HpackDecoder {
        HpackDecoder {
            table: DynamicTable::new(table_bytes_max),
            table_bytes_max,
            text: Vec::new(),
        }
    }

    /// The peer has acknowledged this SETTINGS_HEADER_TABLE_SIZE of ours. If its table is larger, its next
    /// block must begin with a smaller size.
    pub fn set_table_bytes_max(&mut self, table_bytes_max: u32) {
        self.table_bytes_max = table_bytes_max;
    }

    /// A number that changes with the dynamic table. While it stays the same, equal blocks mean equal lines.
    #[inline]
    pub fn table_changes(&self) -> u64 {
        self.table.changes()
    }

    /// Decodes one whole header block, and calls `take` for each field line in order. The blocks of refused
    /// requests must be decoded as well, because later blocks refer to their entries.
    ///
    /// # Errors
    /// The block is not valid, and the connection ends with COMPRESSION_ERROR. `take` was called for the
    /// lines before the fault.
    pub fn decode(
        &mut self,
        block: &[u8],
        take: &mut dyn FnMut(FieldLine<'_>),
    ) -> Result<(), HpackError> {
        self.decode_within(block, usize::MAX, take)
    }

    /// Like [`HpackDecoder::decode`], for at most `list_bytes_max` by [`FieldLine::list_bytes`]. A few bytes
    /// can stand for kilobytes, so the decoder stops there.
    ///
    /// # Errors
    /// Those of [`HpackDecoder::decode`], and [`HpackError::ListTooLong`].
    pub fn decode_within(
        &mut self,
        block: &[u8],
        list_bytes_max: usize,
        take: &mut dyn FnMut(FieldLine<'_>),
    ) -> Result<(), HpackError> {
        let mut left = list_bytes_max;
        let decoded = self.lines(block, &mut |line| {
            left = left
                .checked_sub(line.list_bytes())
                .ok_or(HpackError::ListTooLong)?;
            take(line);
            Ok(())
        });
        if self.text.capacity() > TEXT_BYTES_KEPT {
            self.text = Vec::new();
        }
        decoded
    }

    fn lines(
        &mut self,
        block: &[u8],
        take: &mut dyn FnMut(FieldLine<'_>) -> Result<(), HpackError>,
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
                    })?;
                }
                0x40.. => {
                    let (name, value) = self.literal(&mut rest, 0x3f)?;
                    let (name, value) = (name.bytes(&self.text), value.bytes(&self.text));
                    take(FieldLine {
                        name,
                        value,
                        is_sensitive: false,
                    })?;
                    self.table.add(name, value, 0);
                }
                0x20.. => return Err(HpackError::TableSizeMisplaced),
                _ => {
                    let (name, value) = self.literal(&mut rest, 0x0f)?;
                    take(FieldLine {
                        name: name.bytes(&self.text),
                        value: value.bytes(&self.text),
                        is_sensitive: first & NEVER_INDEXED != 0,
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Frees the buffer for Huffman codes, and the memory that the table's entries do not use. For idle
    /// connections: the next blocks allocate it again.
    pub fn release_memory(&mut self) {
        self.text = Vec::new();
        self.table.release_memory();
    }

    /// Bytes of that buffer that are kept after a block, for tests.
    #[cfg(test)]
    pub(crate) fn text_capacity(&self) -> usize {
        self.text.capacity()
    }

    /// The entries of the table from the newest to the oldest, and their size, for tests.
    #[cfg(test)]
    pub(super) fn table(&mut self) -> &mut DynamicTable {
        &mut self.table
    }

    /// Takes the changes of the table's size that may stand before the first field line of a block.
    fn table_size_updates(&mut self, rest: &mut Rest<'_>) -> Result<(), HpackError> {
        let mut updates = 0;
        while let Some(0x20..0x40) = rest.first() {
            let size = rest.integer(0x1f)?;
            // At most two: the smallest size since the last block, and the present one (RFC 7541 4.2).
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

    /// Decodes a literal: a field line whose value, and perhaps whose name, is spelled out. `mask` has the
    /// bits of the first byte that are the index of the name.
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
                // The name is copied: adding the new entry may evict the one that the name is borrowed from
                // (RFC 7541 4.4).
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
    /// Borrowed from the block or the static table.
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

/// The rest of a block.
pub(super) struct Rest<'b> {
    pub(super) bytes: &'b [u8],
}

impl<'b> Rest<'b> {
    #[inline]
    fn first(&self) -> Option<u8> {
        self.bytes.first().copied()
    }

    /// Decodes a number that begins in the bits `mask` of the next byte (RFC 7541 5.1).
    #[inline]
    pub(super) fn integer(&mut self, mask: u8) -> Result<u32, HpackError> {
        let (&first, bytes) = self.bytes.split_first().ok_or(HpackError::Truncated)?;
        self.bytes = bytes;
        match first & mask {
            all if all == mask => self.long_integer(mask),
            number => Ok(u32::from(number)),
        }
    }

    /// Decodes the further bytes of a number whose first byte had the value `first`.
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

    /// Decodes a string (RFC 7541 5.2). If it is in Huffman code, its text is appended to `made`.
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

/// Bytes of the buffer for Huffman codes that are kept after a block.
const TEXT_BYTES_KEPT: usize = 4096;

/// The bit of a literal's first byte that marks it as never indexed.
const NEVER_INDEXED: u8 = 0x10;

/// The bit of a string's first byte that marks it as Huffman code.
const HUFFMAN: u8 = 0x80;
