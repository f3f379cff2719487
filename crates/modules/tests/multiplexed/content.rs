//! The content of answers: bytes that show which answer they belong to, and their position in it.

use std::rc::Rc;

/// The length of a line.
const LINE: usize = 16;

/// The expected body.
#[derive(Clone)]
pub enum Content {
    /// The first `length` bytes of the lines of `id`.
    Lines { id: u32, length: usize },
    /// These bytes.
    Bytes(Rc<[u8]>),
}

impl Content {
    pub fn len(&self) -> usize {
        match self {
            Content::Lines { length, .. } => *length,
            Content::Bytes(bytes) => bytes.len(),
        }
    }

    /// Whether `bytes` are the expected ones at `position`.
    pub fn has_at(&self, position: usize, bytes: &[u8]) -> bool {
        let end = position + bytes.len();
        end <= self.len()
            && match self {
                Content::Lines { id, .. } => bytes == part(*id, position, bytes.len()),
                Content::Bytes(all) => &all[position..end] == bytes,
            }
    }
}

/// The first `length` bytes of the lines of `id`.
pub fn lines(id: u32, length: usize) -> Vec<u8> {
    part(id, 0, length)
}

/// `length` bytes of the lines of `id` from `position` on.
pub fn part(id: u32, position: usize, length: usize) -> Vec<u8> {
    let (first, last) = (position / LINE, (position + length).div_ceil(LINE));
    let mut bytes = Vec::with_capacity((last - first) * LINE);
    for number in first..last {
        digits(id as usize, 6, &mut bytes);
        bytes.push(b':');
        digits(number, 8, &mut bytes);
        bytes.push(b'\n');
    }
    bytes.drain(..position % LINE);
    bytes.truncate(length);
    bytes
}

fn digits(number: usize, count: u32, out: &mut Vec<u8>) {
    for position in (0..count).rev() {
        out.push(b'0' + (number / 10_usize.pow(position) % 10) as u8);
    }
}

/// Pseudo-random numbers from a seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn one_of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.below(these.len())]
    }

    pub fn is_once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}
