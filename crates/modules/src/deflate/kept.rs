//! Compressed files and stored pages that a worker keeps in memory, so that a hot one costs no
//! compression: also that one does not become smaller.

use std::cell::RefCell;
use std::collections::HashMap;

use bytes::Bytes;
use petrel_engine::body::Piece;
use petrel_engine::proto::accept::Coding;

use super::params::Params;

/// What the bytes depend on: the file as it is now, the coding, the effort. This is finer than the
/// ETag, which may be configured to look at less.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    device: u64,
    inode: u64,
    size: u64,
    modified: (u64, u32),
    /// The number of content that is no file; 0 for files.
    content: u64,
    coding: Coding,
    params: Params,
}

impl Key {
    /// Of content in memory that stays under this number.
    pub fn of_content(number: u64, coding: Coding, params: &Params) -> Key {
        Key {
            device: 0,
            inode: 0,
            size: 0,
            modified: (0, 0),
            content: number,
            coding,
            params: *params,
        }
    }

    pub fn of(piece: &Piece, coding: Coding, params: &Params) -> Key {
        let stat = match piece {
            Piece::File { file, .. } => *file.stat(),
            Piece::Bytes(_) => Default::default(),
        };
        Key {
            device: stat.device,
            inode: stat.inode,
            size: stat.size,
            modified: (stat.modified_s, stat.modified_ns),
            content: 0,
            coding,
            params: *params,
        }
    }
}

/// What compressing a file came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// The compressed content.
    Smaller(Bytes),
    /// It is not shorter than the file, which is sent as it is instead.
    NotSmaller,
}

/// What compressing the file came to, if that is kept.
pub(super) fn find(key: &Key) -> Option<Made> {
    FILES.with_borrow_mut(|files| {
        let kept = files.by_key.get_mut(key)?;
        kept.was_used = true;
        Some(kept.made.clone())
    })
}

/// Keeps what compressing a file came to.
pub(super) fn keep(key: Key, made: Made) {
    #[cfg(test)]
    KEPT.set(KEPT.get() + 1);
    FILES.with_borrow_mut(|files| files.insert(key, made));
}

#[cfg(test)]
thread_local! {
    /// How often something was made and kept.
    pub(super) static KEPT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

struct Kept {
    made: Made,
    /// Since the last time room was made.
    was_used: bool,
}

impl Kept {
    fn size(&self) -> usize {
        let bytes = match &self.made {
            Made::Smaller(bytes) => bytes.len(),
            Made::NotSmaller => 0,
        };
        bytes + ENTRY_BYTES
    }
}

#[derive(Default)]
struct Files {
    by_key: HashMap<Key, Kept>,
    bytes: usize,
}

impl Files {
    fn insert(&mut self, key: Key, made: Made) {
        let kept = Kept {
            made,
            was_used: false,
        };
        if kept.size() > KEPT_BYTES_MAX / 4 {
            return;
        }
        if self.bytes + kept.size() > KEPT_BYTES_MAX {
            self.make_room();
        }
        self.bytes += kept.size();
        if let Some(old) = self.by_key.insert(key, kept) {
            self.bytes -= old.size();
        }
    }

    /// Drops what was not used since the last time, or all if that is not enough.
    fn make_room(&mut self) {
        self.by_key
            .retain(|_, kept| std::mem::take(&mut kept.was_used));
        self.bytes = self.by_key.values().map(Kept::size).sum();
        if self.bytes > KEPT_BYTES_MAX / 2 {
            self.by_key.clear();
            self.bytes = 0;
        }
    }
}

thread_local! {
    /// A worker is a thread.
    static FILES: RefCell<Files> = RefCell::default();
}

/// Bytes of compressed files a worker keeps in memory.
pub(super) const KEPT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Files up to this size, before compression, are compressed as a whole and kept.
pub(super) const SOURCE_BYTES_MAX: u64 = 1024 * 1024;

/// A rough size of what surrounds the bytes.
const ENTRY_BYTES: usize = 160;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(inode: u64) -> Key {
        let params = Params::default();
        Key {
            device: 1,
            inode,
            size: 1,
            modified: (0, 0),
            content: 0,
            coding: Coding::Gzip,
            params,
        }
    }

    #[test]
    fn the_memory_is_bounded_and_what_is_used_stays() {
        let mut files = Files::default();
        let bytes = Bytes::from(vec![0; 1024 * 1024]);
        for inode in 0..100 {
            files.insert(key(inode), Made::Smaller(bytes.clone()));
            if let Some(hot) = files.by_key.get_mut(&key(0)) {
                hot.was_used = true;
            }
            assert!(files.bytes <= KEPT_BYTES_MAX);
            assert_eq!(
                files.bytes,
                files.by_key.values().map(Kept::size).sum::<usize>()
            );
        }
        assert!(files.by_key.contains_key(&key(0)));
        let long = Bytes::from(vec![0; KEPT_BYTES_MAX / 2]);
        files.insert(key(200), Made::Smaller(long));
        assert!(!files.by_key.contains_key(&key(200)));
    }
}
