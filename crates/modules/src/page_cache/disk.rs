//! Stored answers in files, which survive a restart.
//!
//! `page-cache.disk-path` has a directory for each first byte of a name, and in it a file for each blob.
//! Files are written under a temporary name and renamed, so that a file is either complete or missing; a file
//! that is damaged all the same is removed when it is read. Symlinks below the directory are not followed,
//! and other users cannot read the files. An index in memory knows which files there are. It is rebuilt in
//! the background when the server starts; until it is complete, no request looks on disk.
//!
//! Functions that wait for the disk run on threads of the [`blocking`] pool, and say so in their comment.
//! Several may run at the same time. The index is the truth, and the files follow it: a thread renames or
//! removes a file only while it holds the lock for the file's name, and removes it only if the index does not
//! know the name any more. Of two writes of one name the later one counts.

mod index;
#[cfg(test)]
mod tests;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Relaxed},
};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use petrel_engine::blocking::{self, Class, Origin};
use petrel_engine::log::LogHandle;
use petrel_engine::proto::stored_page::blob::{self, Blob, BlobName, HALF_BYTES};
use petrel_engine::shared::lock;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};

use super::limits;
use super::tag_purges::TagPurges;
use index::Index;

/// The files of one server process.
#[derive(Debug)]
pub struct Disk {
    root: OwnedFd,
    /// The configured path, for the log.
    path: String,
    log: LogHandle,
    origin: Origin,
    index: Mutex<Index>,
    /// Locks, each for a part of the names. A thread waits for the disk while it holds one, so workers never
    /// take any. The index may be locked while one is held.
    turns: [Mutex<()>; TURNS],
    /// How many writes there were.
    writes: AtomicU64,
    bytes_max: u64,
    is_ready: AtomicBool,
    /// How many jobs wait or run.
    pending: AtomicUsize,
    /// How many files were damaged or could not be written.
    errors: AtomicU64,
    /// Held by the thread that writes the note about purged tags.
    note: Mutex<()>,
    /// A job is going to write the note and has not collected the purged tags yet.
    is_note_due: AtomicBool,
}

impl Disk {
    /// Opens the directory `path`, and creates it if it is missing.
    ///
    /// # Errors
    /// As mkdir(2) and open(2).
    pub fn open(path: &str, bytes_max: u64, log: LogHandle) -> io::Result<Arc<Disk>> {
        match rustix::fs::mkdirat(CWD, path, OWNER_DIRECTORY) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        Ok(Arc::new(Disk {
            origin: Origin::of_descriptor(&root),
            root,
            path: path.to_owned(),
            log,
            index: Mutex::new(Index::new()),
            turns: Default::default(),
            writes: AtomicU64::new(0),
            bytes_max,
            is_ready: AtomicBool::new(false),
            pending: AtomicUsize::new(0),
            errors: AtomicU64::new(0),
            note: Mutex::default(),
            is_note_due: AtomicBool::new(false),
        }))
    }

    /// The configured directory.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Counts an error, and says in the log what could not be done because of it. The log folds equal lines.
    fn failed(&self, what: &str, error: &io::Error) {
        self.errors.fetch_add(1, Relaxed);
        self.log.error(format_args!(
            "(page-cache) {what} in page-cache.disk-path {:?}: {error}",
            self.path
        ));
    }

    /// Counts a file that was not read in time.
    pub fn is_late(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    /// Entries that can be read (0 until the index is complete), their bytes, and the number of errors.
    pub fn sizes(&self) -> (u64, u64, u64) {
        let (entries, bytes) = self.index().sizes();
        let entries = match self.is_ready.load(Relaxed) {
            true => entries as u64,
            false => 0,
        };
        (entries, bytes, self.errors.load(Relaxed))
    }

    /// Whether the index has an entry `name`.
    pub fn has(&self, name: &BlobName) -> bool {
        self.is_ready.load(Relaxed) && self.index().knows(name)
    }

    /// Whether the index is complete and no job waits.
    #[cfg(test)]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.is_ready.load(Relaxed) && self.pending.load(Relaxed) == 0
    }

    /// Builds the index from the files, in the background, and reads the note about purged tags.
    pub fn load(self: &Arc<Disk>, tag_purges: Arc<TagPurges>) -> blocking::RunningJob<()> {
        let disk = Arc::clone(self);
        blocking::run_in_any_case(self.origin, move || {
            disk.read_note(&tag_purges);
            disk.scan();
            disk.index().complete();
            disk.is_ready.store(true, Relaxed);
        })
    }

    /// Reads the blob `name`, of at most `bytes_max` bytes, in turn with other clients ([`Origin::client`]).
    /// A damaged file, or one that is no regular file, is removed.
    pub fn read(
        self: &Arc<Disk>,
        name: BlobName,
        bytes_max: usize,
        client: u64,
    ) -> blocking::RunningJob<Option<Blob>> {
        let disk = Arc::clone(self);
        let origin = self.origin.for_client(client);
        blocking::run_for(Class::Read, origin, move || {
            let order = disk.index().order_of(&name);
            let blob = match disk.read_file(&name, bytes_max) {
                Ok(bytes) => blob::decode(&Bytes::from(bytes))
                    .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is damaged")),
                Err(error) if is_passing(&error) => {
                    disk.failed("a page cannot be read", &error);
                    return None;
                }
                Err(error) => Err(error),
            };
            match &blob {
                Ok(_) => disk.index().touch(&name),
                Err(error) => {
                    disk.failed("a page cannot be read and is removed", error);
                    disk.remove(name, order.unwrap_or(FOUND));
                }
            }
            blob.ok()
        })
    }

    /// Writes the blobs that `make` returns, unless `is_purged` says that they are outdated. It is called
    /// again after each file is written: a purge first marks the page and then removes files, so one of the
    /// two notices the other. The job's result is false if not all of them are in place. `None`: too many
    /// jobs wait already.
    pub fn write(
        self: &Arc<Disk>,
        make: impl FnOnce() -> Vec<(BlobName, Vec<u8>)> + Send + 'static,
        is_purged: impl Fn() -> bool + Send + 'static,
    ) -> Option<blocking::RunningJob<bool>> {
        if self.pending.fetch_add(1, Relaxed) >= limits::WRITES_MAX {
            self.pending.fetch_sub(1, Relaxed);
            return None;
        }
        let order = self.writes.fetch_add(1, Relaxed) + FOUND + 1;
        let job = Pending(Arc::clone(self));
        Some(blocking::run(self.origin, move || {
            let disk = &job.0;
            if is_purged() {
                return false;
            }
            let written = make().into_iter().all(|(name, bytes)| {
                let written = disk.write_file(&name, &bytes, order);
                if let Err(error) = &written {
                    disk.failed("a page cannot be written", error);
                }
                let is_gone = is_purged();
                if is_gone {
                    disk.remove(name, order);
                }
                written.is_ok_and(|is_latest| is_latest) && !is_gone
            });
            disk.make_room();
            written
        }))
    }

    /// Writes the note about purged tags. Tags in the existing note are kept: they are from an earlier
    /// process whose note was not read yet, or from one that still serves. `None`: a job that was started
    /// before will write these tags as well.
    pub(crate) fn write_note(
        self: &Arc<Disk>,
        tag_purges: Arc<TagPurges>,
    ) -> Option<blocking::RunningJob<()>> {
        if self.is_note_due.swap(true, AcqRel) {
            return None;
        }
        let disk = Arc::clone(self);
        Some(blocking::run_in_any_case(self.origin, move || {
            // One job after the other, so that the last one writes all tags.
            let _turn = lock(&disk.note);
            disk.is_note_due.swap(false, AcqRel);
            disk.read_note(&tag_purges);
            let bytes = tag_purges.to_bytes();
            let unfinished = Unfinished::write(&disk.root, &bytes);
            if let Err(error) = unfinished.and_then(|file| file.rename(NOTE)) {
                disk.failed("purged tags cannot be written", &error);
            }
        }))
    }

    /// Reads the note about purged tags. Waits for the disk.
    fn read_note(&self, tag_purges: &TagPurges) {
        let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the file is damaged");
        let read = self.read_at(&self.root, NOTE, NOTE_BYTES_MAX);
        let understood = read.and_then(|bytes| match tag_purges.read(&bytes) {
            true => Ok(()),
            false => Err(damaged()),
        });
        match understood {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.failed("purged tags cannot be read", &error);
            }
            _ => {}
        }
    }

    /// Removes all entries with this base from the index, at once, and returns how many there were. If there
    /// are any, a job removes the files. Like all jobs here that remove something it runs even if its result
    /// is dropped, because files that stay would be found again at the next start.
    pub fn purge(
        self: &Arc<Disk>,
        base: [u8; HALF_BYTES],
    ) -> (usize, Option<blocking::RunningJob<()>>) {
        let names = self.index().purge(base);
        let (count, disk) = (names.len(), Arc::clone(self));
        let job = (count > 0)
            .then(|| blocking::run_in_any_case(self.origin, move || disk.unlink(&names)));
        (count, job)
    }

    /// As [`Disk::purge`], for one name. While the files of earlier processes are still being indexed, all
    /// files with the same base are left out, because it is not known which of them are variants that should
    /// stay.
    pub(crate) fn remove_elsewhere(
        self: &Arc<Disk>,
        name: BlobName,
    ) -> Option<blocking::RunningJob<()>> {
        let is_known = {
            let mut index = self.index();
            if let Some(base) = name.first_chunk() {
                index.note_purge(*base);
            }
            index.forget(&name)
        };
        let disk = Arc::clone(self);
        is_known.then(|| blocking::run_in_any_case(self.origin, move || disk.unlink(&[name])))
    }

    /// Removes the file that write number `order` made, and its entry. Waits for the disk.
    fn remove(&self, name: BlobName, order: u64) {
        self.index().forget_write(&name, order);
        self.unlink(&[name]);
    }

    /// Removes the files of these names, except those that were written again since. Waits for the disk.
    fn unlink(&self, names: &[BlobName]) {
        for name in names {
            let _turn = self.turn(name);
            if self.index().knows(name) {
                continue;
            }
            if let Ok(directory) = self.directory(name) {
                // The error is ignored: the file may be gone already.
                let _ = rustix::fs::unlinkat(directory, file_name(name), AtFlags::empty());
            }
        }
    }

    /// Locks the right to rename or remove the file `name`.
    fn turn(&self, name: &BlobName) -> MutexGuard<'_, ()> {
        let turn = &self.turns[usize::from(name[0]) % TURNS];
        lock(turn)
    }

    fn read_file(&self, name: &BlobName, bytes_max: usize) -> io::Result<Vec<u8>> {
        let limit = bytes_max.saturating_add(BLOB_HEAD_BYTES_MAX);
        self.read_at(&self.directory(name)?, &file_name(name), limit)
    }

    fn read_at(&self, directory: &OwnedFd, name: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::openat(directory, name, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        let limit = bytes_max as u64;
        if !metadata.is_file() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if metadata.len() > limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// False: a later write has already put its file there.
    fn write_file(&self, name: &BlobName, bytes: &[u8], order: u64) -> io::Result<bool> {
        if bytes.len() as u64 > self.bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let directory = self.make_directory(name)?;
        let unfinished = Unfinished::write(&directory, bytes)?;
        let _turn = self.turn(name);
        if self.index().order_of(name) > Some(order) {
            return Ok(false);
        }
        unfinished.rename(&file_name(name))?;
        self.index().insert(*name, bytes.len() as u64, order);
        Ok(true)
    }

    fn make_room(&self) {
        let gone = self.index().make_room(self.bytes_max);
        self.unlink(&gone);
    }

    /// Opens the directory for a name. Fails if it is a symlink.
    fn directory(&self, name: &BlobName) -> io::Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory = format!("{:02x}", name.first().copied().unwrap_or(0));
        Ok(rustix::fs::openat(
            &self.root,
            directory,
            flags,
            Mode::empty(),
        )?)
    }

    fn make_directory(&self, name: &BlobName) -> io::Result<OwnedFd> {
        let directory = format!("{:02x}", name.first().copied().unwrap_or(0));
        match rustix::fs::mkdirat(&self.root, directory, OWNER_DIRECTORY) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => self.directory(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Indexes the files of earlier processes, and removes files that those did not finish.
    fn scan(&self) {
        for first in 0..=u8::MAX {
            let mut name = [0; 2 * HALF_BYTES];
            name[0] = first;
            let Ok(directory) = self.directory(&name) else {
                continue;
            };
            if let Err(error) = self.scan_directory(&directory, first) {
                self.failed("a directory cannot be read", &error);
            }
        }
        self.make_room();
    }

    fn scan_directory(&self, directory: &OwnedFd, first: u8) -> io::Result<()> {
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let text = entry.file_name().to_bytes();
            if text.starts_with(UNFINISHED.as_bytes()) {
                self.remove_unfinished(directory, text);
                continue;
            }
            let Some(name) = parse_name(text).filter(|name| name[0] == first) else {
                continue;
            };
            // An error with one file says nothing about the others.
            if let Err(error) = self.take_in(directory, name) {
                self.failed("a page of an earlier process cannot be indexed", &error);
            }
        }
        Ok(())
    }

    /// Indexes one file, or removes it if it was purged before it was known. A file that is missing was
    /// removed in the meantime, by this process or by another one that still serves.
    fn take_in(&self, directory: &OwnedFd, name: BlobName) -> io::Result<()> {
        let file = file_name(&name);
        let _turn = self.turn(&name);
        let stat = match rustix::fs::statat(directory, &*file, AtFlags::SYMLINK_NOFOLLOW) {
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            stat => stat?,
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let mut index = self.index();
        if index.was_purged(&name) {
            drop(index);
            let _ = rustix::fs::unlinkat(directory, &*file, AtFlags::empty());
        } else if !index.knows(&name) {
            index.insert(name, bytes, FOUND);
        }
        Ok(())
    }

    /// Removes an unfinished file if the process that wrote it is gone.
    fn remove_unfinished(&self, directory: &OwnedFd, text: &[u8]) {
        let rest = text.get(UNFINISHED.len()..).unwrap_or_default();
        let digits = rest.split(|byte| *byte == b'-').next().unwrap_or_default();
        let process = std::str::from_utf8(digits)
            .ok()
            .and_then(|text| text.parse::<i32>().ok());
        let is_alive = process
            .and_then(rustix::process::Pid::from_raw)
            .is_some_and(|process| {
                rustix::process::test_kill_process(process) != Err(rustix::io::Errno::SRCH)
            });
        if !is_alive {
            let _ = rustix::fs::unlinkat(directory, OsStr::from_bytes(text), AtFlags::empty());
        }
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        lock(&self.index)
    }
}

/// A file under its temporary name. Dropping this removes it unless it was renamed.
struct Unfinished<'a> {
    directory: &'a OwnedFd,
    name: String,
    has_name: bool,
}

impl Unfinished<'_> {
    fn write<'a>(directory: &'a OwnedFd, bytes: &[u8]) -> io::Result<Unfinished<'a>> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Relaxed);
        let name = format!("{UNFINISHED}{}-{count}", std::process::id());
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, &*name, flags, OWNER_FILE)?;
        let unfinished = Unfinished {
            directory,
            name,
            has_name: false,
        };
        File::from(file).write_all(bytes)?;
        Ok(unfinished)
    }

    fn rename(mut self, name: &str) -> io::Result<()> {
        rustix::fs::renameat(self.directory, &*self.name, self.directory, name)?;
        self.has_name = true;
        Ok(())
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.has_name {
            // The error is ignored: the next process removes the file.
            let _ = rustix::fs::unlinkat(self.directory, &*self.name, AtFlags::empty());
        }
    }
}

/// Counts one job, until it is dropped.
struct Pending(Arc<Disk>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Relaxed);
    }
}

/// Whether a file that could not be read may still be intact: no descriptor was free, or it is larger than
/// this request allows. Not so if it is missing, a symlink, or no regular file.
fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let is_none = [Errno::NOENT, Errno::LOOP, Errno::NOTDIR, Errno::NXIO]
        .map(Some)
        .contains(&Errno::from_io_error(error));
    !is_none && error.kind() != io::ErrorKind::InvalidData
}

/// The name as hexadecimal digits.
fn file_name(name: &BlobName) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 * name.len());
    for byte in name {
        write!(text, "{byte:02x}").expect("writing to a string");
    }
    text
}

fn parse_name(text: &[u8]) -> Option<BlobName> {
    let mut name = [0; 2 * HALF_BYTES];
    if text.len() != 2 * name.len() {
        return None;
    }
    for (byte, digits) in name.iter_mut().zip(text.chunks_exact(2)) {
        let digits = std::str::from_utf8(digits).ok()?;
        let is_lower = digits
            .bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        *byte = u8::from_str_radix(digits, 16).ok().filter(|_| is_lower)?;
    }
    Some(name)
}

/// The file that notes purged tags.
const NOTE: &str = "purged-tags";

/// The largest possible note.
const NOTE_BYTES_MAX: usize = 8 + limits::TAG_PURGES_MAX * (HALF_BYTES + 8);

/// How many locks there are for names.
const TURNS: usize = 16;

/// The number of files from earlier processes, lower than that of any write.
const FOUND: u64 = 0;

/// The beginning of temporary names.
const UNFINISHED: &str = ".new-";

/// Everything in a blob but the body is shorter than this.
const BLOB_HEAD_BYTES_MAX: usize = 512 * 1024;

const OWNER_DIRECTORY: Mode = Mode::RWXU;
const OWNER_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
