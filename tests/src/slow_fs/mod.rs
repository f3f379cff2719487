//! A file system that waits, or fails, when a test tells it to.
//!
//! Mounted on a directory it shows what that held before, and everything can be read and written as
//! before, until the test says [`hang`](SlowFs::hang) or [`fail`](SlowFs::fail): for all operations, some
//! kinds of them, or what lies below a path. Operations that hang hold no thread of ours; they are answered
//! when the test says [`release`](SlowFs::release). The kernel keeps no names and attributes of it, so that
//! every look-up arrives here and is counted, unless the test says [`keep_names`](SlowFs::keep_names); it keeps contents that were read, until the file is opened anew.
//!
//! It is served by a thread of the test's own process, so no other thread of the test may touch the mounted
//! directory while it hangs, or a test that is killed never ends: programs may, and
//! [`beneath`](SlowFs::beneath) is the way round it. The handle is to be dropped before the
//! directory is removed, so declare it behind the [`Tree`](crate::Tree) or the server. It needs `/dev/fuse`
//! and the right to mount, which usually means root.

mod mirror;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{BackgroundSession, Config, Errno, MountOption, SessionACL};
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;

use crate::{eventually, skip};
use mirror::Mirror;

/// The handle of a mounted file system. Dropped, it lets everything go on and unmounts, also while
/// files of it are open.
#[derive(Debug)]
pub struct SlowFs {
    gate: Arc<Gate>,
    at: PathBuf,
    beneath: PathBuf,
    /// Its thread ends when the last file is closed.
    _session: BackgroundSession,
}

/// What a program does with a file system, as it arrives there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// A name in a directory is looked up: a step of every path.
    Lookup,
    /// fstat(2); stat(2) is this or a look-up.
    Stat,
    /// chmod(2), chown(2), truncate(2) and utimensat(2).
    Change,
    /// readlink(2), and symlinks in paths.
    ReadLink,
    /// open(2) of a file that exists.
    Open,
    /// open(2) that makes a file.
    Create,
    /// A read of contents that the kernel does not have.
    Read,
    /// write(2).
    Write,
    /// close(2), which waits for the answer.
    Close,
    /// open(2) of a directory.
    OpenDirectory,
    /// getdents(2).
    ReadDirectory,
    /// getxattr(2).
    ReadAttribute,
    /// mkdir(2).
    MakeDirectory,
    /// unlink(2) and rmdir(2).
    Remove,
    /// rename(2).
    Rename,
}

impl SlowFs {
    /// Mounts it on `directory`.
    ///
    /// # Errors
    /// `/dev/fuse` is missing, or this process may not mount.
    pub fn mount(directory: &Path) -> io::Result<SlowFs> {
        unmount_leftovers();
        let at = directory.canonicalize()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&at, flags, Mode::empty())?;
        // The directory itself, not what will be mounted on it.
        let beneath = PathBuf::from(format!("/proc/self/fd/{}/", directory.as_raw_fd()));
        let gate = Arc::new(Gate::default());
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(format!("{SOURCE}{}", std::process::id())),
            MountOption::DefaultPermissions,
        ];
        // The server may run as another user.
        config.acl = SessionACL::All;
        let files = Mirror::new(directory, beneath.clone(), Arc::clone(&gate));
        let session = fuser::spawn_mount(files, &at, &config)?;
        Ok(SlowFs {
            gate,
            at,
            beneath,
            _session: session,
        })
    }

    /// [`mount`](SlowFs::mount), or a word on standard output why `test` is skipped.
    pub fn mount_or_skip(test: &str, directory: &Path) -> Option<SlowFs> {
        match SlowFs::mount(directory) {
            Ok(slow) => Some(slow),
            Err(error) => {
                skip(
                    test,
                    &format!("no FUSE file system can be mounted: {error}"),
                );
                None
            }
        }
    }

    /// From now on the kernel keeps names and attributes, and need not ask for them again.
    pub fn keep_names(&self) {
        self.gate.keeps_names.store(true, Ordering::SeqCst);
    }

    /// From now on no operation is answered.
    pub fn hang(&self) {
        self.trouble(Trouble::on(What::Hang));
    }

    /// From now on no operation of these kinds is answered.
    pub fn hang_on(&self, operations: &[Operation]) {
        self.trouble(Trouble {
            operations: Some(operations.to_vec()),
            ..Trouble::on(What::Hang)
        });
    }

    /// From now on no operation is answered on `path` and what lies below it. The path is relative to
    /// the mounted directory.
    pub fn hang_below(&self, path: &str) {
        self.trouble(Trouble {
            below: PathBuf::from(path),
            ..Trouble::on(What::Hang)
        });
    }

    /// From now on all operations fail, those that hang as well. `errno` is one of
    /// [`rustix::io::Errno`], such as `IO`.
    pub fn fail(&self, errno: rustix::io::Errno) {
        self.trouble(Trouble::on(What::Fail(errno)));
    }

    /// From now on operations of these kinds fail, and others are answered.
    pub fn fail_on(&self, operations: &[Operation], errno: rustix::io::Errno) {
        self.trouble(Trouble {
            operations: Some(operations.to_vec()),
            ..Trouble::on(What::Fail(errno))
        });
    }

    /// From now on everything is answered, what hangs first.
    pub fn release(&self) {
        self.gate.set(None);
    }

    /// How often such an operation has arrived.
    pub fn count(&self, operation: Operation) -> u64 {
        let state = self.gate.lock();
        state.counts.get(&operation).copied().unwrap_or(0)
    }

    /// How many operations have arrived.
    pub fn total(&self) -> u64 {
        self.gate.lock().counts.values().sum()
    }

    /// How many operations hang now.
    pub fn hanging(&self) -> usize {
        self.gate.lock().held.len()
    }

    /// Waits until `count` operations hang at least.
    ///
    /// # Panics
    /// They do not.
    #[track_caller]
    pub fn expect_hanging(&self, count: usize) {
        if !eventually(|| self.hanging() >= count) {
            panic!("{} operations hang, not {count}: {self:?}", self.hanging());
        }
    }

    /// The directory as it would be without the mount, for this process alone: whatever is done there
    /// never hangs, fails or counts, and the kernel does not tell those who watch the mounted one.
    pub fn beneath(&self) -> &Path {
        &self.beneath
    }

    fn trouble(&self, trouble: Trouble) {
        self.gate.set(Some(trouble));
    }
}

impl Drop for SlowFs {
    fn drop(&mut self) {
        self.release();
        // Nothing can be done about a mount that stays.
        let _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH);
    }
}

/// What the sources of our mounts begin with; the id of the process that serves it follows.
const SOURCE: &str = "petrel-slow-";

/// Unmounts those of test programs that were killed.
fn unmount_leftovers() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for mount in mounts.lines() {
        let mut fields = mount.split(' ');
        let pid = fields.next().and_then(|source| source.strip_prefix(SOURCE));
        let (Some(pid), Some(at)) = (pid, fields.next()) else {
            continue;
        };
        if !Path::new("/proc").join(pid).exists() {
            // Another test program may have done it just now.
            let _ = rustix::mount::unmount(at, UnmountFlags::DETACH);
        }
    }
}

/// What operations pass on their way to the files.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    keeps_names: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    trouble: Option<Trouble>,
    held: Vec<Held>,
    counts: BTreeMap<Operation, u64>,
}

#[derive(Clone, Debug)]
struct Trouble {
    what: What,
    /// `None`: all.
    operations: Option<Vec<Operation>>,
    below: PathBuf,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Hang,
    Fail(rustix::io::Errno),
}

/// An operation that may wait.
struct Held {
    operation: Operation,
    path: PathBuf,
    work: Box<dyn FnOnce(Result<(), Errno>) + Send>,
}

impl Gate {
    /// Lets an operation on `path` through, now or later. `work` does and answers it, or answers with
    /// the error.
    fn pass(
        &self,
        operation: Operation,
        path: PathBuf,
        work: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        *self.lock().counts.entry(operation).or_default() += 1;
        self.decide(Held {
            operation,
            path,
            work: Box::new(work),
        });
    }

    fn set(&self, trouble: Option<Trouble>) {
        let mut state = self.lock();
        state.trouble = trouble;
        let held = mem::take(&mut state.held);
        drop(state);
        for one in held {
            self.decide(one);
        }
    }

    fn decide(&self, one: Held) {
        let mut state = self.lock();
        let concerned = state.trouble.as_ref().filter(|trouble| trouble.hits(&one));
        match concerned.map(|trouble| trouble.what) {
            Some(What::Hang) => state.held.push(one),
            Some(What::Fail(errno)) => {
                drop(state);
                (one.work)(Err(Errno::from_i32(errno.raw_os_error())));
            }
            None => {
                drop(state);
                (one.work)(Ok(()));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trouble {
    fn on(what: What) -> Trouble {
        Trouble {
            what,
            operations: None,
            below: PathBuf::new(),
        }
    }

    fn hits(&self, one: &Held) -> bool {
        let kind = self.operations.as_ref();
        kind.is_none_or(|kinds| kinds.contains(&one.operation)) && one.path.starts_with(&self.below)
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.operation, self.path)
    }
}

#[cfg(test)]
mod tests;
