//! Open files and contents of small files that all workers share.
//!
//! Each worker has its own entries, which point to the shared files. Sharing halves the memory for contents
//! on two cores, lets the same limit on descriptors serve twice as many files, and lets one worker do the
//! recheck of a file for all. A worker comes here only when it fills an entry. A warm request only reads its
//! own worker's entry.

use std::hash::BuildHasher;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use hashbrown::HashMap;
use rustix::fs::fstat;

use super::FileStat;
use super::counters::{LookUpCounters, LookUps};
use super::resident::LastLoss;
use crate::blocking::{self, Origin};
use crate::file_accounts::FileAccounts;
use crate::system_calls::made;

/// The open files, by their metadata at the time they were opened.
pub struct Contents {
    hasher: foldhash::fast::RandomState,
    shards: [Mutex<Shard>; SHARDS],
    descriptors_max: usize,
    accounts: Arc<FileAccounts>,
    counters: LookUpCounters,
    last_loss: LastLoss,
}

#[derive(Default)]
struct Shard {
    files: HashMap<FileStat, SharedContent>,
    prune_at: usize,
}

#[derive(Clone, Default)]
struct SharedContent {
    content: Option<Weak<[u8]>>,
    descriptor: Weak<Descriptor>,
    last_check: Weak<LastCheck>,
}

/// An open file.
pub(crate) struct Descriptor {
    /// `None` only while it is being dropped.
    descriptor: Option<OwnedFd>,
    /// The file system for which close(2) has to wait. `None`: closing does not wait.
    closing: Option<Origin>,
}

/// The second in which a worker last found a file unchanged.
#[derive(Default)]
pub(super) struct LastCheck(AtomicU32);

impl LastCheck {
    /// The second in which a worker last found the file unchanged. This worker calls `is_unchanged` if
    /// `life_s` seconds have passed since. `None`: the file has changed.
    pub(crate) fn renew(
        &self,
        now_s: u32,
        life_s: u32,
        is_unchanged: impl FnOnce() -> bool,
    ) -> Option<u32> {
        let last_s = self.0.load(Ordering::Relaxed);
        if now_s < last_s.saturating_add(life_s) {
            return Some(last_s);
        }
        is_unchanged().then(|| {
            self.0.store(now_s, Ordering::Relaxed);
            now_s
        })
    }
}

/// What the cache keeps of a file: the content if the file is small, and the descriptor if there is room for
/// it or the content is not kept.
#[derive(Default)]
pub(super) struct Held {
    pub(crate) content: Option<Arc<[u8]>>,
    pub(crate) descriptor: Option<Arc<Descriptor>>,
    pub(crate) last_check: Arc<LastCheck>,
}

impl Held {
    /// What workers share of a file that has just changed.
    pub(crate) fn rechecks(&self) -> Held {
        Held {
            last_check: Arc::clone(&self.last_check),
            ..Held::default()
        }
    }
}

impl Contents {
    /// An empty store. Each worker keeps at most `descriptors_max` files open; `accounts` counts what jobs
    /// read.
    pub fn new(descriptors_max: usize, accounts: Arc<FileAccounts>) -> Contents {
        Contents {
            hasher: foldhash::fast::RandomState::default(),
            shards: Default::default(),
            descriptors_max,
            accounts,
            counters: LookUpCounters::default(),
            last_loss: LastLoss::default(),
        }
    }

    /// Counts how look-ups of all workers were answered.
    pub(crate) fn look_ups(&self) -> LookUps {
        self.counters.read()
    }

    pub(super) fn counters(&self) -> &LookUpCounters {
        &self.counters
    }

    pub(crate) fn accounts(&self) -> &Arc<FileAccounts> {
        &self.accounts
    }

    pub(crate) fn last_loss(&self) -> &LastLoss {
        &self.last_loss
    }

    /// What other workers keep of the file with this metadata.
    pub(super) fn get(&self, stat: &FileStat) -> Held {
        let shared = self
            .shard(stat, |shard| shard.files.get(stat).cloned())
            .unwrap_or_default();
        Held {
            content: shared.content.and_then(|content| content.upgrade()),
            descriptor: shared.descriptor.upgrade(),
            last_check: shared.last_check.upgrade().unwrap_or_default(),
        }
    }

    /// Lets other workers use what this one keeps of a file.
    pub(super) fn put(&self, stat: &FileStat, held: &Held) {
        let shared = SharedContent {
            content: held.content.as_ref().map(Arc::downgrade),
            descriptor: held
                .descriptor
                .as_ref()
                .map(Arc::downgrade)
                .unwrap_or_default(),
            last_check: Arc::downgrade(&held.last_check),
        };
        self.shard(stat, |shard| {
            // At double size only, so that removing dead entries costs each insertion little.
            if shard.files.len() >= shard.prune_at {
                shard.files.retain(|_, shared| shared.is_held());
                shard.prune_at = (2 * shard.files.len()).max(PRUNE_AT_LEAST);
            }
            shard.files.insert(*stat, shared);
        });
    }

    /// How many files a worker keeps open at most, not counting those that are being sent.
    pub(super) fn descriptors_max(&self) -> usize {
        self.descriptors_max
    }

    fn shard<T>(&self, stat: &FileStat, with: impl FnOnce(&mut Shard) -> T) -> T {
        let index = self.hasher.hash_one(stat) as usize % SHARDS;
        with(
            &mut self.shards[index]
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }
}

impl SharedContent {
    /// Whether an entry uses this: each entry of a file has its last check.
    fn is_held(&self) -> bool {
        self.last_check.strong_count() > 0
    }
}

impl Descriptor {
    /// An open file. On a network file system, or on one that a program answers for, close(2) is a request
    /// to the other side and may wait forever.
    pub(crate) fn new(descriptor: OwnedFd, origin: Origin) -> Descriptor {
        Descriptor {
            descriptor: Some(descriptor),
            closing: origin.is_remote.then_some(origin),
        }
    }

    /// The descriptor, for the caller to close.
    pub(crate) fn into_owned(mut self) -> OwnedFd {
        self.descriptor.take().expect("only dropping takes it")
    }

    /// Whether the metadata of the file is still `stat`. Calls fstat(2).
    pub(crate) fn is_still(&self, stat: &FileStat) -> bool {
        made();
        fstat(self).is_ok_and(|now| FileStat::from(&now) == *stat)
    }

    /// A file that has no name any more. A disk thread closes its last descriptor, because that frees the
    /// pages (8 ms for 200 MB) and the disk blocks, which may wait for the disk.
    pub(crate) fn of_temporary_file(descriptor: OwnedFd, origin: Origin) -> Descriptor {
        let mut descriptor = Descriptor::new(descriptor, origin);
        descriptor.closing = Some(origin);
        descriptor
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let descriptor = self.descriptor.as_ref();
        descriptor.expect("only dropping takes it").as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if let Some(origin) = self.closing
            && let Some(descriptor) = self.descriptor.take()
        {
            blocking::drop_elsewhere(origin, descriptor);
        }
    }
}

const SHARDS: usize = 16;
const PRUNE_AT_LEAST: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn held(content: &[u8]) -> Held {
        Held {
            content: Some(content.into()),
            ..Held::default()
        }
    }

    #[test]
    fn content_is_there_as_long_as_an_entry_holds_it() {
        let contents = Contents::new(10, Arc::default());
        let stat = FileStat {
            size: 3,
            inode: 7,
            ..FileStat::default()
        };
        let mine = held(b"abc");
        contents.put(&stat, &mine);
        assert_eq!(contents.get(&stat).content.as_deref(), Some(&b"abc"[..]));
        assert!(
            contents
                .get(&FileStat { size: 4, ..stat })
                .content
                .is_none()
        );
        drop(mine);
        assert!(contents.get(&stat).content.is_none());
    }

    #[test]
    fn contents_that_no_entry_holds_are_forgotten() {
        let contents = Contents::new(10, Arc::default());
        for inode in 0..100_000 {
            contents.put(
                &FileStat {
                    inode,
                    ..FileStat::default()
                },
                &held(b"x"),
            );
        }
        let known = |shard: &Mutex<Shard>| shard.lock().expect("no thread panicked").files.len();
        assert!(contents.shards.iter().map(known).sum::<usize>() <= SHARDS * PRUNE_AT_LEAST);
    }
}
