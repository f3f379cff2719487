//! Compressed files and stored pages that a worker keeps in memory, so that a hot one costs no
//! compression: also that one does not become smaller.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use petrel_engine::body::Piece;
use petrel_engine::proto::accept::Coding;
use petrel_engine::worker::Worker;

use super::params::CodingParams;
use crate::byte_cache::ByteCache;

/// What the bytes depend on: the file as it is now, the coding, the effort. This is finer than the
/// ETag, which may be configured to look at less.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CompressedKey {
    device: u64,
    inode: u64,
    size: u64,
    modified: (u64, u32),
    /// The number of content that is no file; 0 for files.
    content: u64,
    coding: Coding,
    params: CodingParams,
}

impl CompressedKey {
    /// Of content in memory that stays under this number.
    pub(crate) fn of_content(number: u64, coding: Coding, params: &CodingParams) -> CompressedKey {
        CompressedKey {
            device: 0,
            inode: 0,
            size: 0,
            modified: (0, 0),
            content: number,
            coding,
            params: *params,
        }
    }

    pub(crate) fn of(piece: &Piece, coding: Coding, params: &CodingParams) -> CompressedKey {
        let stat = match piece {
            Piece::File { file, .. } => *file.stat(),
            Piece::Bytes(_) => Default::default(),
        };
        CompressedKey {
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

/// What mod_deflate of one worker keeps.
pub(super) struct OfWorker {
    files: RefCell<ByteCache<CompressedKey, Made>>,
    /// The load average: when it was read, and what it was.
    pub(crate) load: Cell<(Option<u32>, f64)>,
    /// Whether the log has been told that files cannot be kept in `deflate.cache-dir`.
    pub(crate) has_complained: Cell<bool>,
}

impl OfWorker {
    /// That of `worker`.
    pub(crate) fn of(worker: &Worker) -> Rc<OfWorker> {
        worker.belonging(|| OfWorker {
            files: RefCell::new(ByteCache::new(KEPT_BYTES_MAX)),
            load: Cell::new((None, 0.0)),
            has_complained: Cell::new(false),
        })
    }

    /// What compressing the file came to, if that is kept.
    pub(crate) fn find(&self, key: &CompressedKey) -> Option<Made> {
        self.files.borrow_mut().get(key).cloned()
    }

    /// Keeps what compressing a file came to.
    pub(crate) fn keep(&self, key: CompressedKey, made: Made) {
        let bytes = match &made {
            Made::Smaller(bytes) => bytes.len(),
            Made::NotSmaller => 0,
        };
        let mut files = self.files.borrow_mut();
        files.insert(key, made, bytes + ENTRY_BYTES);
    }

    /// How much is kept.
    #[cfg(test)]
    pub(crate) fn files(&self) -> usize {
        self.files.borrow().len()
    }
}

/// Bytes of compressed files a worker keeps in memory.
const KEPT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Files up to this size, before compression, are compressed as a whole and kept.
pub(super) const SOURCE_BYTES_MAX: u64 = 1024 * 1024;

/// A rough size of what surrounds the bytes.
const ENTRY_BYTES: usize = 160;
