//! A file system that hangs or fails when a test asks for it.
//!
//! Mounted on a directory, it shows what the directory held before. Everything can be read and written as
//! before until the test calls [`hang`](SlowFs::hang) or [`fail`](SlowFs::fail): for all operations, some
//! kinds of them, or everything below a path. Operations that hang block no thread of the test; they are
//! answered when the test calls [`release`](SlowFs::release). The kernel caches no names and attributes of
//! it, so that every lookup arrives here and is counted, unless the test calls
//! [`keep_names`](SlowFs::keep_names). It does cache contents that were read, until the file is opened again.
//!
//! A thread of the test's own process serves it. So no other thread of the test may access the mounted
//! directory while it hangs, or a test that is killed never ends. Other programs may, and
//! [`beneath`](SlowFs::beneath) bypasses the mount. The handle must be dropped before the directory is
//! removed, so declare it after the [`Tree`](crate::Tree) or the server. It needs `/dev/fuse` and the right
//! to mount, which usually means root.

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
use std::thread;
use std::time::Duration;

use fuser::{BackgroundSession, Config, Errno, MountOption, SessionACL};
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;

use crate::{eventually, skip};
use mirror::Mirror;

/// The handle of a mounted file system. Dropping it releases everything and unmounts, even while files on it
/// are open.
#[derive(Debug)]
pub struct SlowFs {
    gate: Arc<Gate>,
    at: PathBuf,
    beneath: PathBuf,
    /// Serves the file system; its thread ends when the last file is closed.
    _session: BackgroundSession,
}

/// An operation of a program, as it arrives at the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// The lookup of a name in a directory: a step of every path.
    Lookup,
    /// fstat(2); a stat(2) is this or a lookup.
    Stat,
    /// chmod(2), chown(2), truncate(2) and utimensat(2).
    Change,
    /// readlink(2), and the resolution of symlinks in paths.
    ReadLink,
    /// open(2) of a file that exists.
    Open,
    /// open(2) that creates a file.
    Create,
    /// A read of contents that the kernel has not cached.
    Read,
    /// write(2).
    Write,
    /// close(2), which waits for the reply.
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
        // The directory itself, not the file system that will be mounted on it.
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

    /// As [`mount`](SlowFs::mount). If that fails, prints why `test` is skipped and returns `None`.
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

    /// Lets the kernel cache names and attributes from now on.
    pub fn keep_names(&self) {
        self.gate.keeps_names.store(true, Ordering::SeqCst);
    }

    /// From now on no operation is answered.
    pub fn hang(&self) {
        self.trouble(Trouble::on(What::Hang));
    }

    /// From now on each operation is answered after this time.
    pub fn delay(&self, time: Duration) {
        self.trouble(Trouble::on(What::Delay(time)));
    }

    /// From now on no operation of these kinds is answered.
    pub fn hang_on(&self, operations: &[Operation]) {
        self.trouble(Trouble {
            operations: Some(operations.to_vec()),
            ..Trouble::on(What::Hang)
        });
    }

    /// From now on no operation on `path` and what lies below it is answered. The path is relative to the
    /// mounted directory.
    pub fn hang_below(&self, path: &str) {
        self.trouble(Trouble {
            below: PathBuf::from(path),
            ..Trouble::on(What::Hang)
        });
    }

    /// From now on all operations fail, including those that hang. `errno` is one of [`rustix::io::Errno`],
    /// such as `IO`.
    pub fn fail(&self, errno: rustix::io::Errno) {
        self.trouble(Trouble::on(What::Fail(errno)));
    }

    /// From now on operations of these kinds fail; others are answered.
    pub fn fail_on(&self, operations: &[Operation], errno: rustix::io::Errno) {
        self.trouble(Trouble {
            operations: Some(operations.to_vec()),
            ..Trouble::on(What::Fail(errno))
        });
    }

    /// From now on everything is answered, beginning with the operations that hang.
    pub fn release(&self) {
        self.gate.set(None);
    }

    /// How many operations of this kind have arrived.
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

    /// Waits until at least `count` operations hang.
    ///
    /// # Panics
    /// They do not.
    #[track_caller]
    pub fn expect_hanging(&self, count: usize) {
        if !eventually(|| self.hanging() >= count) {
            panic!("{} operations hang, not {count}: {self:?}", self.hanging());
        }
    }

    /// The directory without the mount, for this process alone. Operations there never hang, fail or count,
    /// and watchers of the mounted directory see none of them.
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
        // There is nothing to be done about a mount that stays.
        let _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH);
    }
}

/// The beginning of the sources of these mounts; the id of the serving process follows.
const SOURCE: &str = "petrel-slow-";

/// Unmounts the file systems of test programs that were killed.
fn unmount_leftovers() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for mount in mounts.lines() {
        let mut fields = mount.split(' ');
        let pid = fields.next().and_then(|source| source.strip_prefix(SOURCE));
        let (Some(pid), Some(at)) = (pid, fields.next()) else {
            continue;
        };
        if !Path::new("/proc").join(pid).exists() {
            // Another test program may have unmounted it just now.
            let _ = rustix::mount::unmount(at, UnmountFlags::DETACH);
        }
    }
}

/// Decides when operations may reach the files.
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
    /// `None` means all.
    operations: Option<Vec<Operation>>,
    below: PathBuf,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Hang,
    Delay(Duration),
    Fail(rustix::io::Errno),
}

/// An operation that may wait.
struct Held {
    operation: Operation,
    path: PathBuf,
    work: Box<dyn FnOnce(Result<(), Errno>) + Send>,
}

impl Gate {
    /// Lets an operation on `path` pass, now or later. `work` performs and answers it, or answers with the
    /// error.
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
            Some(What::Delay(time)) => {
                drop(state);
                thread::spawn(move || {
                    thread::sleep(time);
                    (one.work)(Ok(()));
                });
            }
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
