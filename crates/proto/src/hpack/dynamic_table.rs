//! The dynamic table of one side of a connection (RFC 7541 2.3.2 and section 4).

use std::collections::VecDeque;

use super::ENTRY_OVERHEAD_BYTES;

/// The entries from the oldest to the newest, in two ring buffers: one for their bytes, one for the places of
/// these bytes. Both grow with their contents, up to the size of the table.
#[derive(Debug)]
pub(super) struct DynamicTable {
    /// The ring buffer with names and values. Its length is 0 or a power of two.
    bytes: Vec<u8>,
    /// The position of the first byte of the ring buffer. Positions count all bytes that were ever added,
    /// modulo 2^32.
    base: u32,
    /// The position behind the newest entry.
    end: u32,
    /// The oldest entry is in front.
    entries: VecDeque<Entry>,
    /// The size of all entries: at most `size_max`.
    size: u32,
    size_max: u32,
    /// How often an entry was added, or the largest size was set.
    changes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The position of the name. The value follows the name.
    start: u32,
    name_length: u32,
    value_length: u32,
    hash: u32,
}

impl Entry {
    fn size(&self) -> u32 {
        self.name_length + self.value_length + ENTRY_OVERHEAD_BYTES
    }
}

impl DynamicTable {
    pub(super) fn new(size_max: u32) -> DynamicTable {
        DynamicTable {
            bytes: Vec::new(),
            base: 0,
            end: 0,
            entries: VecDeque::new(),
            size: 0,
            size_max,
            changes: 0,
        }
    }

    /// A number that changes with the entries. While it stays the same, every entry keeps its index.
    #[inline]
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// The size that all entries together may have.
    pub(super) fn size_max(&self) -> u32 {
        self.size_max
    }

    /// Changes that size, and evicts the oldest entries that no longer fit.
    pub(super) fn set_size_max(&mut self, size_max: u32) {
        self.changes += 1;
        self.size_max = size_max;
        self.evict(size_max);
    }

    /// Frees the memory that the entries do not use.
    pub(super) fn release_memory(&mut self) {
        if self.entries.is_empty() {
            self.bytes = Vec::new();
            self.base = self.end;
        }
        self.entries.shrink_to_fit();
    }

    /// Bytes of the ring buffer.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The number of entries.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The size of all entries.
    #[cfg(test)]
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// Name and value of an entry. Index 0 is the newest one.
    #[inline]
    pub(super) fn entry(&mut self, index: usize) -> Option<(&[u8], &[u8])> {
        let newest = self.entries.len().checked_sub(1)?;
        let entry = self.entries.get(newest.checked_sub(index)?)?;
        let (position, name_length) = (entry.start, entry.name_length as usize);
        let length = name_length + entry.value_length as usize;
        let mut start = self.place(position);
        if start + length > self.bytes.len() {
            // The entry wraps around the end of the ring buffer. The buffer is rotated so that it does not;
            // the next entries will not wrap for a while either.
            self.turn(position);
            start = 0;
        }
        let text = self.bytes.get(start..start + length)?;
        Some(text.split_at(name_length))
    }

    /// Adds an entry, and evicts the oldest ones to make room. An entry that is larger than the table empties
    /// it (RFC 7541 4.4).
    #[inline]
    pub(super) fn add(&mut self, name: &[u8], value: &[u8], hash: u32) {
        self.changes += 1;
        let length = name.len() + value.len();
        let room = match u32::try_from(length) {
            Ok(length) => self
                .size_max
                .checked_sub(length.saturating_add(ENTRY_OVERHEAD_BYTES)),
            Err(_) => None,
        };
        let Some(room) = room else {
            return self.evict(0);
        };
        self.evict(room);
        self.reserve(length);
        let entry = Entry {
            start: self.end,
            name_length: name.len() as u32,
            value_length: value.len() as u32,
            hash,
        };
        self.append(name);
        self.append(value);
        self.size += entry.size();
        self.entries.push_back(entry);
    }

    /// The index of the entry with this name and value, which have this hash.
    #[inline]
    pub(super) fn index_of_field(&mut self, name: &[u8], value: &[u8], hash: u32) -> Option<usize> {
        let is_hash = |entry: &Entry| entry.hash == hash;
        let index = self.entries.iter().rev().position(is_hash)?;
        let (known_name, known_value) = self.entry(index)?;
        let is_it = known_value == value && known_name == name;
        is_it.then_some(index)
    }

    /// The index of the newest entry with this name.
    pub(super) fn index_of_name(&mut self, name: &[u8]) -> Option<usize> {
        (0..self.entries.len())
            .find(|&index| self.entry(index).is_some_and(|(known, _)| known == name))
    }

    /// Removes the oldest entries until the size of the others is at most `size`.
    #[inline]
    fn evict(&mut self, size: u32) {
        while self.size > size
            && let Some(oldest) = self.entries.pop_front()
        {
            self.size -= oldest.size();
        }
    }

    /// Appends bytes to the ring buffer, which has room for them.
    #[inline]
    fn append(&mut self, text: &[u8]) {
        let start = self.place(self.end);
        let (front, back) = text.split_at(text.len().min(self.bytes.len() - start));
        self.bytes[start..start + front.len()].copy_from_slice(front);
        self.bytes[..back.len()].copy_from_slice(back);
        self.end = self.end.wrapping_add(text.len() as u32);
    }

    /// Makes room in the ring buffer for `length` more bytes.
    #[inline]
    fn reserve(&mut self, length: usize) {
        let oldest = self.entries.front().map_or(self.end, |entry| entry.start);
        let wanted = self.end.wrapping_sub(oldest) as usize + length;
        if wanted > self.bytes.len() {
            self.turn(oldest);
            let room = wanted.next_power_of_two().max(RING_BYTES_MIN);
            self.bytes.reserve_exact(room - self.bytes.len());
            self.bytes.resize(room, 0);
        }
    }

    /// Rotates the ring buffer so that this position comes first.
    #[cold]
    fn turn(&mut self, position: u32) {
        let start = self.place(position);
        self.bytes.rotate_left(start);
        self.base = position;
    }

    /// The index of a position in the ring buffer.
    #[inline]
    fn place(&self, position: u32) -> usize {
        position.wrapping_sub(self.base) as usize & self.bytes.len().wrapping_sub(1)
    }
}

/// Bytes of the smallest ring buffer: the fields of a browser's first request fit.
const RING_BYTES_MIN: usize = 512;
