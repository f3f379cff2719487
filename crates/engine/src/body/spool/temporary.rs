//! The temporary files of spools; disk threads do the work.
//!
//! Such a file never has a name (O_TMPFILE) or loses it at once, so nothing is left behind if the process
//! ends. A job that finds the queue full is tried again. After [`limits::SPOOL_JOB_S_MAX`] a job is given up.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use crate::blocking::{self, Class, NotDone, Origin};
use crate::file_cache::read::{read_at_once, read_full};
use crate::file_cache::{FileEntry, SharedDescriptor, Uncached};
use crate::limits;
use crate::socket::is_own_shortage;

/// Which file a block is written to.
pub(super) enum Target {
    /// A new file, in the first of these directories that takes one.
    New(Arc<[PathBuf]>),
    /// This file, with the origin for its jobs.
    Open(SharedDescriptor, Origin),
}

/// Writes `bytes` at `offset` of `target`, in the turn of `client`. Returns the file if it is a new one. The
/// caller keeps `bytes` until this is done. The job has only a weak reference, so that a job behind a file
/// system that hangs holds no memory of requests that are gone.
pub(super) async fn write(
    target: Target,
    bytes: Weak<Vec<u8>>,
    offset: u64,
    client: u64,
) -> io::Result<Option<Uncached>> {
    let directories = match target {
        Target::Open(file, origin) => {
            let write = move |bytes: &[u8]| write_all(&*file, bytes, offset);
            return write_at(origin, bytes, write).await.map(|()| None);
        }
        Target::New(directories) => directories,
    };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for directory in &*directories {
        // The job for each directory waits for the directory's own file system, which is the one that
        // symlinks lead to.
        let origin = Origin::of_path(directory).for_client(client);
        let path = directory.clone();
        let write = move |bytes: &[u8]| {
            let made = unnamed_file(&path);
            let written = made.map(|file| write_all(&file, bytes, offset).map(|()| file));
            // An error of the open is no failure yet: the next directory is tried.
            written.map_or_else(|error| Ok(Err(error)), |written| written.map(Ok))
        };
        match write_at(origin, Weak::clone(&bytes), write).await? {
            Ok(file) => return Ok(Some(file)),
            Err(error) => {
                let message = format!("a temporary file in {}: {error}", directory.display());
                let kind = match is_own_shortage(&error) {
                    // Without the errno, the response will have status 503.
                    true => io::ErrorKind::ResourceBusy,
                    false => error.kind(),
                };
                last = io::Error::new(kind, message);
            }
        }
    }
    Err(last)
}

/// Lets a disk thread write `bytes`.
async fn write_at<T: Send + 'static>(
    origin: Origin,
    bytes: Weak<Vec<u8>>,
    write: impl FnOnce(&[u8]) -> io::Result<T> + Clone + Send + 'static,
) -> io::Result<T> {
    #[cfg(test)]
    let gate = super::tests::gate::current();
    let origin = origin.with_bytes(bytes.upgrade().map_or(0, |bytes| bytes.len()));
    elsewhere(Class::Write, origin, move || {
        #[cfg(test)]
        gate.as_ref().map_or(Ok(()), |gate| gate.pass())?;
        let bytes = bytes.upgrade().ok_or(io::ErrorKind::NotFound)?;
        write(&bytes)
    })
    .await
}

/// Reads from `offset` of `file` into `buffer`, in the turn of `client`: at once if that does not wait for
/// the disk. Returns what was read.
pub(super) async fn read(
    file: Rc<FileEntry>,
    offset: u64,
    mut buffer: Vec<u8>,
    client: u64,
) -> io::Result<Vec<u8>> {
    if let Some(count) = read_at_once(&file, &mut buffer, offset)? {
        buffer.truncate(count);
        return Ok(buffer);
    }
    let length = buffer.len();
    drop(buffer);
    let descriptor = file.share_descriptor().ok_or(io::ErrorKind::NotFound)?;
    elsewhere(Class::Read, file.origin(client, length), move || {
        let mut buffer = vec![0; length];
        let count = read_full(&*descriptor, &mut buffer, offset)?;
        buffer.truncate(count);
        Ok(buffer)
    })
    .await
}

/// Lets a disk thread run `job`. Tries again while the queue is full.
async fn elsewhere<T: Send + 'static>(
    class: Class,
    origin: Origin,
    job: impl FnOnce() -> io::Result<T> + Clone + Send + 'static,
) -> io::Result<T> {
    let done = async {
        loop {
            match blocking::run_for(class, origin, job.clone()).await {
                Ok(done) => return done,
                Err(NotDone::QueueFull) => {
                    let pause = Duration::from_millis(limits::SPOOL_QUEUE_FULL_PAUSE_MS);
                    tokio::time::sleep(pause).await;
                }
                Err(NotDone::Lost) => return Err(NotDone::Lost.into()),
            }
        }
    };
    let limit = Duration::from_secs(limits::SPOOL_JOB_S_MAX);
    tokio::time::timeout(limit, done).await.unwrap_or_else(|_| {
        let seconds = limits::SPOOL_JOB_S_MAX;
        let message = format!("the disk has not answered for {seconds} seconds");
        Err(io::Error::new(io::ErrorKind::TimedOut, message))
    })
}

/// Creates a file without a name in `directory`.
fn unnamed_file(directory: &Path) -> io::Result<Uncached> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    match openat(CWD, directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Uncached::new(file, directory.as_os_str().as_bytes()),
        // Some file systems (old overlayfs, NFS) do not have O_TMPFILE.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => named_and_removed(directory),
        Err(error) => Err(error.into()),
    }
}

/// Creates a file and removes its name.
fn named_and_removed(directory: &Path) -> io::Result<Uncached> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    for attempt in 0..NAMES_TRIED_MAX {
        let name = format!(".petrel-{}-{:x}-{attempt}", std::process::id(), unique());
        let path = directory.join(name);
        match openat(CWD, &path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => {
                // Some file systems (FUSE) look files up by name, so read the metadata before the name is
                // gone.
                let file = Uncached::new(file, path.as_os_str().as_bytes());
                std::fs::remove_file(&path)?;
                return file;
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// A number that no other call in this process returns.
fn unique() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

fn write_all(file: impl AsFd, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(&file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = bytes.get(count..).unwrap_or_default();
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// How many names are tried; the first one nearly always works.
const NAMES_TRIED_MAX: u32 = 16;
