//! The dynamic table of one side of a connection (RFC 7541 2.3.2 and section 4).

use std::collections::VecDeque;

use super::ENTRY_OVERHEAD_BYTES;

/// Entries from the oldest to the newest, in two rings: their bytes, and where those are. Both grow with what is in them,
/// up to the size of the table.
#[derive(Debug)]
pub(super) struct DynamicTable {
    /// Names and values, one behind the other, in a ring. It has no length, or a power of two.
    bytes: Vec<u8>,
    /// The position of the first byte of the ring, modulo 2^32; positions count all bytes that were ever added.
    base: u32,
    /// The position behind the newest entry.
    end: u32,
    /// The oldest is in front.
    entries: VecDeque<Entry>,
    /// What the entries take: at most `size_max`.
    size: u32,
    size_max: u32,
    /// How often entries have come or gone.
    changes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The position of its name. The value follows the name.
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

    /// How often entries have come or gone: as long as that is the same, so is the index of each.
    #[inline]
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// What all entries may take.
    pub(super) fn size_max(&self) -> u32 {
        self.size_max
    }

    /// Changes what all entries may take; what is above it goes, the oldest first.
    pub(super) fn set_size_max(&mut self, size_max: u32) {
        self.changes += 1;
        self.size_max = size_max;
        self.evict(size_max);
    }

    /// Gives back the memory that entries do not need.
    pub(super) fn release_memory(&mut self) {
        if self.entries.is_empty() {
            self.bytes = Vec::new();
            self.base = self.end;
        }
        self.entries.shrink_to_fit();
    }

    /// Bytes of the ring.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// How many entries there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// What the entries take.
    #[cfg(test)]
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// The name and the value of an entry; that of index 0 is the newest.
    #[inline]
    pub(super) fn entry(&mut self, index: usize) -> Option<(&[u8], &[u8])> {
        let newest = self.entries.len().checked_sub(1)?;
        let entry = self.entries.get(newest.checked_sub(index)?)?;
        let (position, name_length) = (entry.start, entry.name_length as usize);
        let length = name_length + entry.value_length as usize;
        let mut start = self.place(position);
        if start + length > self.bytes.len() {
            // The entry goes around the end of the ring. The ring is turned, and none does for a while.
            self.turn(position);
            start = 0;
        }
        let text = self.bytes.get(start..start + length)?;
        Some(text.split_at(name_length))
    }

    /// Adds an entry; as many of the oldest go as have to. One that is larger than the table leaves it empty.
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

    /// The index of this field, which has this hash.
    #[inline]
    pub(super) fn index_of_field(&mut self, name: &[u8], value: &[u8], hash: u32) -> Option<usize> {
        let is_hash = |entry: &Entry| entry.hash == hash;
        let index = self.entries.iter().rev().position(is_hash)?;
        let (known_name, known_value) = self.entry(index)?;
        let is_it = known_value == value && known_name == name;
        is_it.then_some(index)
    }

    /// The index of the newest field of this name.
    pub(super) fn index_of_name(&mut self, name: &[u8]) -> Option<usize> {
        (0..self.entries.len())
            .find(|&index| self.entry(index).is_some_and(|(known, _)| known == name))
    }

    /// Takes out the oldest entries until the others take at most `size`.
    #[inline]
    fn evict(&mut self, size: u32) {
        while self.size > size
            && let Some(oldest) = self.entries.pop_front()
        {
            self.size -= oldest.size();
        }
    }

    /// Appends bytes, for which there is room.
    #[inline]
    fn append(&mut self, text: &[u8]) {
        let start = self.place(self.end);
        let (front, back) = text.split_at(text.len().min(self.bytes.len() - start));
        self.bytes[start..start + front.len()].copy_from_slice(front);
        self.bytes[..back.len()].copy_from_slice(back);
        self.end = self.end.wrapping_add(text.len() as u32);
    }

    /// Makes the ring large enough for `length` bytes more.
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

    /// Turns the ring so that this position is in its first place.
    #[cold]
    fn turn(&mut self, position: u32) {
        let start = self.place(position);
        self.bytes.rotate_left(start);
        self.base = position;
    }

    /// Where a position is in the ring.
    #[inline]
    fn place(&self, position: u32) -> usize {
        position.wrapping_sub(self.base) as usize & self.bytes.len().wrapping_sub(1)
    }
}

/// The first field lines of a browser fit.
const RING_BYTES_MIN: usize = 512;
