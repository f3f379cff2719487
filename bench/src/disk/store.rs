//! The bytes of the disk, without zeros.
//!
//! A block stores only what precedes its trailing zeros, so a file that names itself takes no more than its
//! marks. Knows nothing of files, time or FUSE.

use super::plan::Expected;
use std::collections::HashMap;
use std::ops::Range;

/// The block size of the store, the file system and the loop device, so that no block is written in parts.
pub const BLOCK: usize = 4096;

/// All blocks that are not zero, by their number.
#[derive(Debug, Default)]
pub struct Store {
    blocks: HashMap<u64, Box<[u8]>>,
}

impl Store {
    /// Fills `buffer` with what is at `offset`.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) {
        buffer.fill(0);
        for part in parts(offset, buffer.len()) {
            let block = self.blocks.get(&part.block).map_or(&[][..], |block| block);
            let stored = block.get(part.within.start..).unwrap_or_default();
            let length = stored.len().min(part.within.len());
            let target = buffer.get_mut(part.buffer..part.buffer + length);
            if let (Some(target), Some(stored)) = (target, stored.get(..length)) {
                target.copy_from_slice(stored);
            }
        }
    }

    /// Stores `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for part in parts(offset, data.len()) {
            let piece = data.get(part.buffer..part.buffer + part.within.len());
            let piece = piece.unwrap_or_default();
            if piece.len() == BLOCK {
                self.put(part.block, piece);
            } else {
                let mut block = [0; BLOCK];
                self.read(part.block * BLOCK as u64, &mut block);
                if let Some(target) = block.get_mut(part.within) {
                    target.copy_from_slice(piece);
                }
                self.put(part.block, &block);
            }
        }
    }

    /// Makes a range zero.
    pub fn discard(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length);
        let whole = offset.div_ceil(BLOCK as u64)..end / BLOCK as u64;
        self.blocks.retain(|block, _| !whole.contains(block));
        // What is left are at most two partial blocks.
        let zeros = [0; BLOCK];
        for part in [
            offset..(whole.start * BLOCK as u64).min(end),
            (whole.end * BLOCK as u64).max(offset)..end,
        ] {
            let length = part.end.saturating_sub(part.start) as usize;
            if let Some(zeros) = zeros.get(..length) {
                self.write(part.start, zeros);
            }
        }
    }

    /// The blocks in which a file names itself at or after an offset.
    pub fn blocks_of(&self, file: &Expected, from: u64) -> Vec<u64> {
        let lines: std::collections::HashSet<_> = file
            .marks()
            .filter(|(offset, _)| *offset >= from)
            .map(|(_, line)| line.into_bytes())
            .collect();
        let named = |block: &[u8]| lines.contains(block);
        let found = self.blocks.iter().filter(|(_, block)| named(block));
        found.map(|(number, _)| *number).collect()
    }

    /// Numbers of the blocks that are not zero, in any order.
    pub fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.keys().copied()
    }

    /// How many bytes are stored.
    pub fn stored(&self) -> u64 {
        self.blocks.values().map(|block| block.len() as u64).sum()
    }

    fn put(&mut self, number: u64, block: &[u8]) {
        let block = without_last_zeros(block);
        if block.is_empty() {
            self.blocks.remove(&number);
        } else {
            self.blocks.insert(number, block.into());
        }
    }
}

/// The part of a range that lies in one block.
struct Part {
    block: u64,
    within: Range<usize>,
    /// Its start in the caller's buffer.
    buffer: usize,
}

fn parts(offset: u64, length: usize) -> impl Iterator<Item = Part> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset.saturating_add(done as u64);
        let start = (at % BLOCK as u64) as usize;
        let within = start..BLOCK.min(start + (length - done));
        let part = Part {
            block: at / BLOCK as u64,
            buffer: done,
            within,
        };
        done += part.within.len();
        (!part.within.is_empty()).then_some(part)
    })
}

fn without_last_zeros(block: &[u8]) -> &[u8] {
    const CHUNK: usize = 256;
    let mut rest = block;
    // Comparing slices is many times faster than comparing bytes, and nearly everything that is written is
    // zero.
    while let Some((before, last)) = rest.split_last_chunk::<CHUNK>()
        && last == &[0; CHUNK]
    {
        rest = before;
    }
    let end = rest.iter().rposition(|byte| *byte != 0);
    end.map_or(&[], |end| rest.get(..=end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zeros_are_not_kept() {
        let mut store = Store::default();
        store.write(0, &[0; 3 * BLOCK]);
        assert_eq!(store.stored(), 0);
        let mut block = [0; BLOCK];
        block[..5].copy_from_slice(b"hello");
        store.write(BLOCK as u64, &block);
        assert_eq!(store.stored(), 5);
        store.write(BLOCK as u64, &[0; BLOCK]);
        assert_eq!(store.stored(), 0);
    }

    #[test]
    fn blocks_of_a_file_are_found_by_their_marks() {
        let file = Expected {
            path: "/a".to_owned(),
            bytes: 100_000,
        };
        let mut store = Store::default();
        for (offset, line) in file.marks() {
            let mut block = [0; BLOCK];
            block[..line.len()].copy_from_slice(line.as_bytes());
            store.write(40_960 + offset, &block);
        }
        store.write(0, b"/a");
        let mut all = store.blocks_of(&file, 0);
        all.sort_unstable();
        assert_eq!(all, [10, 18, 26, 34]);
        assert_eq!(store.blocks_of(&file, 65_537), [34]);
    }

    proptest! {
        #[test]
        fn it_is_what_a_plain_array_would_be(
            steps in prop::collection::vec((0_usize..20_000, 0_usize..9000, any::<u8>(), any::<bool>()), 1..20),
        ) {
            let (mut store, mut plain) = (Store::default(), vec![0_u8; 30_000]);
            for (offset, length, byte, discard) in steps {
                if discard {
                    store.discard(offset as u64, length as u64);
                    plain[offset..offset + length].fill(0);
                } else {
                    store.write(offset as u64, &vec![byte; length]);
                    plain[offset..offset + length].fill(byte);
                }
                let mut read = vec![1; 30_000];
                store.read(0, &mut read);
                prop_assert_eq!(&read, &plain);
                let mut part = vec![1; length];
                store.read(offset as u64, &mut part);
                prop_assert_eq!(&part, &plain[offset..offset + length]);
            }
        }
    }
}
