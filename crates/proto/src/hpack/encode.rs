//! Encodes field lines into header blocks.

use super::dynamic_table::DynamicTable;
use super::prepared::{PreparedForm, PreparedLines};
use super::repeated::RepeatedParts;
use super::{ENTRY_OVERHEAD_BYTES, Indexing, TABLE_BYTES, huffman, static_table};
use crate::request_head::KnownField;
use crate::status::Status;

/// Encodes the header blocks that go to a peer on one connection.
///
/// The caller begins each block with [`begin`](HpackEncoder::begin), then calls
/// [`status`](HpackEncoder::status) and [`field`](HpackEncoder::field). All encoded blocks must be sent, in
/// this order.
#[derive(Debug)]
pub struct HpackEncoder {
    table: DynamicTable,
    /// A change of the table's size that the next block must announce.
    announced: Option<SizeChange>,
    repeated: RepeatedParts,
    /// Lines that were encoded before. Encoders can share them: the owner lends them to the one that is at
    /// work.
    pub lines: PreparedLines,
}

/// How the size of the table has changed since the last block.
#[derive(Clone, Copy, Debug)]
struct SizeChange {
    /// The smallest size since the last block: the peer must evict the same entries as this side.
    smallest: u32,
    /// The size before.
    before: u32,
}

impl HpackEncoder {
    /// An encoder for a new connection, with a table of 4,096 bytes.
    pub fn new() -> HpackEncoder {
        HpackEncoder {
            table: DynamicTable::new(TABLE_BYTES),
            announced: None,
            repeated: RepeatedParts::default(),
            lines: PreparedLines::default(),
        }
    }

    /// The peer allows a table of this size (SETTINGS_HEADER_TABLE_SIZE). Ours is never larger than 4,096
    /// bytes. The next block announces a change.
    pub fn set_table_bytes_max(&mut self, peer_bytes_max: u32) {
        let size = peer_bytes_max.min(TABLE_BYTES);
        let before = self.table.size_max();
        if size != before {
            let change = self.announced.get_or_insert(SizeChange {
                smallest: before,
                before,
            });
            change.smallest = change.smallest.min(size);
            self.table.set_size_max(size);
        }
    }

    /// Frees memory that is not needed to encode correctly. For idle connections.
    pub fn release_memory(&mut self) {
        self.table.release_memory();
        self.repeated.release_memory();
    }

    /// Begins a block, and announces a change of the table's size.
    #[inline]
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some(change) = self.announced.take() {
            let size = self.table.size_max();
            if change.smallest < size && change.smallest < change.before {
                write_integer(out, 0x20, 0x1f, change.smallest as usize);
            }
            write_integer(out, 0x20, 0x1f, size as usize);
        }
    }

    /// Appends `:status`.
    #[inline]
    pub fn status(&mut self, out: &mut Vec<u8>, status: Status) {
        match status {
            Status::OK => out.push(INDEXED | static_table::STATUS as u8),
            Status(code) => {
                let mut digits = itoa::Buffer::new();
                let digits = digits.format(code).as_bytes();
                self.indexed(out, Some(static_table::STATUS), b":status", digits);
            }
        }
    }

    /// Appends a field, with its name in lower case.
    pub fn field(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8], indexing: Indexing) {
        with_lower(name, |name| {
            let known = static_table::index_of_name(name);
            self.lower_field(out, known, name, value, indexing);
        });
    }

    /// Appends Content-Length, without Huffman code: that would save one byte of most lengths and cost more
    /// CPU than all the rest.
    pub fn content_length(&mut self, out: &mut Vec<u8>, length: u64) {
        let mut digits = itoa::Buffer::new();
        let value = digits.format(length).as_bytes();
        write_integer(out, 0, 0x0f, static_table::CONTENT_LENGTH);
        write_integer(out, 0, 0x7f, value.len());
        out.extend_from_slice(value);
    }

    /// The same as [`HpackEncoder::lines`], for a part of a head that is often equal to that of the last
    /// head. Each part has a number from 0 on. `is_dropped` must be the same function in all calls for one
    /// number.
    #[inline]
    pub fn part(
        &mut self,
        out: &mut Vec<u8>,
        part: usize,
        lines: &[u8],
        is_dropped: impl Fn(KnownField) -> bool,
    ) {
        let changes = self.table.changes();
        if let Some(code) = self.repeated.code(part, lines, changes) {
            return out.extend_from_slice(code);
        }
        let start = out.len();
        self.lines(out, lines, is_dropped);
        // A code that adds an entry to the table is not kept: repeating it would add the entry again.
        if self.table.changes() == changes {
            self.repeated.keep(part, lines, &out[start..], changes);
        }
    }

    /// Appends lines in HTTP/1 form, each `Name: value` and CR LF; see [`HpackEncoder::line`].
    pub fn lines(
        &mut self,
        out: &mut Vec<u8>,
        lines: &[u8],
        is_dropped: impl Fn(KnownField) -> bool,
    ) {
        let mut rest = lines;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after_line) = (&rest[..end], &rest[end + 1..]);
            rest = after_line;
            self.line(out, line.strip_suffix(b"\r").unwrap_or(line), &is_dropped);
        }
    }

    /// Appends a line in HTTP/1 form, `Name: value` without a line end, with the usual indexing of its name
    /// ([`Indexing`]). Appends nothing if `is_dropped` says so of its name, or if the line has no name.
    #[inline]
    pub fn line(
        &mut self,
        out: &mut Vec<u8>,
        line: &[u8],
        is_dropped: impl Fn(KnownField) -> bool,
    ) {
        let Some(prepared) = self.lines.find(line) else {
            return self.new_line(out, line, is_dropped);
        };
        if prepared.field.is_some_and(is_dropped) {
            return;
        }
        match prepared.form {
            PreparedForm::Code => out.extend_from_slice(prepared.code()),
            PreparedForm::Static(index) => write_integer(out, INDEXED, 0x7f, index),
            PreparedForm::Table { hash, name } => {
                let (text, value) = (prepared.name(), prepared.value());
                HpackEncoder::by_table(&mut self.table, out, name, text, value, hash);
            }
        }
    }

    /// The same for a line that is not in [`HpackEncoder::lines`].
    #[cold]
    fn new_line(
        &mut self,
        out: &mut Vec<u8>,
        line: &[u8],
        is_dropped: impl Fn(KnownField) -> bool,
    ) {
        if let Some(colon) = memchr::memchr(b':', line) {
            let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            if KnownField::from_name_if(name, is_dropped).is_none() {
                self.usual_field(out, name, value);
            }
        }
    }

    /// Appends a field with its name in lower case, and with the usual indexing of that name ([`Indexing`]).
    pub fn usual_field(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        with_lower(name, |name| {
            let known = static_table::index_of_name(name);
            self.lower_field(out, known, name, value, Indexing::usual(known, value));
        });
    }

    /// The parts of the last head, for tests.
    #[cfg(test)]
    pub(super) fn repeated(&self) -> &RepeatedParts {
        &self.repeated
    }

    /// The table, for tests.
    #[cfg(test)]
    pub(super) fn table(&mut self) -> &mut DynamicTable {
        &mut self.table
    }

    /// Appends a field whose name is in lower case and has the first index `known` in the static table.
    #[inline]
    fn lower_field(
        &mut self,
        out: &mut Vec<u8>,
        known: Option<usize>,
        name: &[u8],
        value: &[u8],
        indexing: Indexing,
    ) {
        match indexing {
            Indexing::Indexed => self.indexed(out, known, name, value),
            Indexing::NotIndexed => literal(out, 0, 0x0f, known, name, value),
            Indexing::Never => literal(out, 0x10, 0x0f, known, name, value),
        }
    }

    #[inline]
    fn indexed(&mut self, out: &mut Vec<u8>, known: Option<usize>, name: &[u8], value: &[u8]) {
        if let Some(index) = known.and_then(|first| static_table::index_of_field(first, value)) {
            return write_integer(out, INDEXED, 0x7f, index);
        }
        let hash = hash(known, name, value);
        HpackEncoder::by_table(&mut self.table, out, known, name, value, hash);
    }

    /// Appends a field that is not in the static table and has this hash, by an index of the dynamic table if
    /// it is there.
    fn by_table(
        table: &mut DynamicTable,
        out: &mut Vec<u8>,
        known: Option<usize>,
        name: &[u8],
        value: &[u8],
        hash: u32,
    ) {
        if let Some(index) = table.index_of_field(name, value, hash) {
            return write_integer(out, INDEXED, 0x7f, static_table::LENGTH + 1 + index);
        }
        // A field that takes more than half of the table would evict the fields that repeat.
        let size = name.len() + value.len() + ENTRY_OVERHEAD_BYTES as usize;
        if size > table.size_max() as usize / 2 {
            return literal(out, 0, 0x0f, known, name, value);
        }
        let index = known.or_else(|| {
            let index = table.index_of_name(name)?;
            Some(static_table::LENGTH + 1 + index)
        });
        literal(out, 0x40, 0x3f, index, name, value);
        table.add(name, value, hash);
    }
}

impl Default for HpackEncoder {
    fn default() -> HpackEncoder {
        HpackEncoder::new()
    }
}

/// Appends a field as [`Indexing::NotIndexed`] does. The bytes are the same on every connection and in every
/// block, so a caller may keep them and copy them into other blocks.
pub fn write_literal(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    with_lower(name, |name| {
        literal(out, 0, 0x0f, static_table::index_of_name(name), name, value);
    });
}

/// Calls `function` with the name in lower case.
#[inline]
fn with_lower(name: &[u8], function: impl FnOnce(&[u8])) {
    let mut room = [0; LOWER_BYTES];
    match room.get_mut(..name.len()) {
        Some(lower) => {
            lower.copy_from_slice(name);
            lower.make_ascii_lowercase();
            function(lower);
        }
        None => function(&name.to_ascii_lowercase()),
    }
}

/// Appends a literal. Its first byte has the bits `form`, and in the bits `mask` the index of the name, if it
/// has one.
#[inline]
pub(super) fn literal(
    out: &mut Vec<u8>,
    form: u8,
    mask: u8,
    index: Option<usize>,
    name: &[u8],
    value: &[u8],
) {
    match index {
        Some(index) => write_integer(out, form, mask, index),
        None => {
            out.push(form);
            write_string(out, name);
        }
    }
    write_string(out, value);
}

/// Appends a string, in Huffman code if that is shorter.
fn write_string(out: &mut Vec<u8>, text: &[u8]) {
    let start = out.len();
    if text.len() < 0x7f {
        // Room for the length: if the code is shorter than the text, its length fits into one byte.
        out.push(0);
        huffman::encode(text, out);
        let length = out.len() - start - 1;
        if length < text.len() {
            out[start] = HUFFMAN | length as u8;
            return;
        }
        out.truncate(start);
    } else {
        let length = huffman::encoded_length(text);
        if length < text.len() {
            write_integer(out, HUFFMAN, 0x7f, length);
            return huffman::encode(text, out);
        }
    }
    write_integer(out, 0, 0x7f, text.len());
    out.extend_from_slice(text);
}

/// Appends a number that begins in the bits `mask` of a byte, whose other bits are `form` (RFC 7541 5.1).
#[inline]
pub(super) fn write_integer(out: &mut Vec<u8>, form: u8, mask: u8, number: usize) {
    let Some(mut more) = number.checked_sub(usize::from(mask)) else {
        return out.push(form | number as u8);
    };
    out.push(form | mask);
    while more >= 0x80 {
        out.push(more as u8 | 0x80);
        more >>= 7;
    }
    out.push(more as u8);
}

/// A hash of a field.
#[inline]
pub(super) fn hash(known: Option<usize>, name: &[u8], value: &[u8]) -> u32 {
    let seed = match known {
        Some(index) => index as u64,
        None => mix(0, name),
    };
    let hash = mix(seed, value);
    (hash ^ hash >> 32) as u32
}

/// Hashes `text`, eight bytes a step. The last step may take some bytes a second time.
#[inline]
pub(super) fn mix(seed: u64, text: &[u8]) -> u64 {
    let step = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    let (words, tail) = text.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let hash = words.fold(seed ^ (text.len() as u64) << 32, step);
    let last = match (
        text.last_chunk::<8>(),
        tail.first_chunk::<4>(),
        tail.last_chunk::<4>(),
    ) {
        (Some(last), _, _) => u64::from_le_bytes(*last),
        (_, Some(first), Some(last)) => {
            u64::from(u32::from_le_bytes(*first)) << 32 | u64::from(u32::from_le_bytes(*last))
        }
        _ => tail
            .iter()
            .fold(0, |word, &byte| word << 8 | u64::from(byte)),
    };
    step(hash, last)
}

/// The first bit of an indexed field line.
const INDEXED: u8 = 0x80;

/// The bit of a string's first byte that marks it as Huffman code.
const HUFFMAN: u8 = 0x80;

/// Names up to this length are lower-cased on the stack. Real ones are shorter.
const LOWER_BYTES: usize = 64;

/// The golden ratio in 64 bits, odd.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
