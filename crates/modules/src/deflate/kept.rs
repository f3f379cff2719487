//! Compressed files and stored pages that a worker keeps in memory, so that a hot one is compressed only
//! once. That a file does not become smaller is remembered as well.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use petrel_engine::body::Piece;
use petrel_engine::proto::accept::Coding;
use petrel_engine::worker::Worker;

use super::params::CodingParams;
use crate::byte_cache::ByteCache;

/// What the compressed bytes depend on: the file as it is now, the coding, and the parameters. More precise
/// than the ETag, which can be configured to depend on less.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct CompressedKey {
    device: u64,
    inode: u64,
    size: u64,
    modified: (u64, u32),
    /// The number of content that is not a file; 0 for files.
    content: u64,
    coding: Coding,
    params: CodingParams,
}

impl CompressedKey {
    /// The key for content in memory that keeps this number.
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

/// The result of compressing a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// The compressed content.
    Smaller(Bytes),
    /// It would not be smaller, so the file is sent as it is.
    NotSmaller,
}

/// What mod_deflate keeps for a worker.
pub(super) struct OfWorker {
    files: RefCell<ByteCache<CompressedKey, Made>>,
    /// The load average: the second in which it was read, and its value.
    pub(crate) load: Cell<(Option<u32>, f64)>,
    /// Whether it was logged that files cannot be kept in `deflate.cache-dir`.
    pub(crate) has_complained: Cell<bool>,
}

impl OfWorker {
    /// The object of `worker`.
    pub(crate) fn of(worker: &Worker) -> Rc<OfWorker> {
        worker.belonging(|| OfWorker {
            files: RefCell::new(ByteCache::new(KEPT_BYTES_MAX)),
            load: Cell::new((None, 0.0)),
            has_complained: Cell::new(false),
        })
    }

    /// The remembered result for a file.
    pub(crate) fn find(&self, key: &CompressedKey) -> Option<Made> {
        self.files.borrow_mut().get(key).cloned()
    }

    /// Remembers the result for a file.
    pub(crate) fn keep(&self, key: CompressedKey, made: Made) {
        let bytes = match &made {
            Made::Smaller(bytes) => bytes.len(),
            Made::NotSmaller => 0,
        };
        let mut files = self.files.borrow_mut();
        files.insert(key, made, bytes + ENTRY_BYTES);
    }

    /// How many results are kept.
    #[cfg(test)]
    pub(crate) fn files(&self) -> usize {
        self.files.borrow().len()
    }
}

/// Bytes of compressed files that a worker keeps in memory.
const KEPT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Files up to this size, before compression, are compressed as a whole and kept.
pub(super) const SOURCE_BYTES_MAX: u64 = 1024 * 1024;

/// The memory that an entry takes in addition to its bytes, roughly.
const ENTRY_BYTES: usize = 160;
