//! Stored answers in files, also over a restart.
//!
//! Below `page-cache.disk-path` stands a directory for each first byte of a name, and in it a file for each
//! blob. Files are written beside their place and renamed, so that a file is whole or not there; what is
//! damaged all the same is removed when it is read. Nothing below the directory is followed that is a
//! symlink, and nothing is readable for others. What is there is known by an index in memory, which is made
//! anew in the background when the server starts: until it is complete the disk is not asked.
//!
//! Everything that waits for the disk runs on the threads of [`blocking`]. All functions here that do are
//! marked so, and are called there. Several are at work at a time, and what is in memory goes ahead of what is
//! on disk: a file is renamed to its name, or removed, by whoever has the turn of that name, and removed only if
//! the index does not know the name any more; of two who write under one name the later one counts.

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
use petrel_engine::shared::lock;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};

use super::blob::{self, Blob, BlobName, HALF_BYTES};
use super::limits;
use super::tag_purges::TagPurges;
use index::Index;

/// The files of one server process.
#[derive(Debug)]
pub struct Disk {
    root: OwnedFd,
    /// As it was configured, for the log.
    path: String,
    origin: Origin,
    index: Mutex<Index>,
    /// Each for some names. Threads wait for the disk while they have one, so workers never take any; the index
    /// is looked at within.
    turns: [Mutex<()>; TURNS],
    /// Writes so far.
    writes: AtomicU64,
    bytes_max: u64,
    is_ready: AtomicBool,
    /// Jobs that wait or run.
    pending: AtomicUsize,
    /// Files that were damaged, or could not be written.
    errors: AtomicU64,
    /// Held by who writes the note about tags.
    note: Mutex<()>,
    /// Somebody is to write it who has not looked yet which tags were purged.
    is_note_due: AtomicBool,
}

impl Disk {
    /// The files below `path`, which is made if it is not there.
    ///
    /// # Errors
    /// Those of mkdir(2) and open(2).
    pub fn open(path: &str, bytes_max: u64) -> io::Result<Arc<Disk>> {
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

    /// The directory, as it was configured.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A file was not there in time.
    pub fn is_late(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    /// Entries that can be asked for, none before the index is complete; bytes that are known, and errors so far.
    pub fn sizes(&self) -> (u64, u64, u64) {
        let (entries, bytes) = self.index().sizes();
        let entries = match self.is_ready.load(Relaxed) {
            true => entries as u64,
            false => 0,
        };
        (entries, bytes, self.errors.load(Relaxed))
    }

    /// Whether something stands under `name`, as far as is known.
    pub fn has(&self, name: &BlobName) -> bool {
        self.is_ready.load(Relaxed) && self.index().knows(name)
    }

    /// Whether it is known what is there, and nothing waits to be written.
    #[cfg(test)]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.is_ready.load(Relaxed) && self.pending.load(Relaxed) == 0
    }

    /// Makes the index from what is there, in the background, and reads which tags were purged.
    pub fn load(self: &Arc<Disk>, tag_purges: Arc<TagPurges>) -> blocking::RunningJob<()> {
        let disk = Arc::clone(self);
        blocking::run_in_any_case(self.origin, move || {
            disk.read_note(&tag_purges);
            disk.scan();
            disk.index().complete();
            disk.is_ready.store(true, Relaxed);
        })
    }

    /// Reads what stands under `name`, of at most `bytes_max` bytes, in the turn of `client`
    /// ([`Origin::client`]). What is damaged, or no file, is removed.
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
                Ok(bytes) => blob::decode(&Bytes::from(bytes)).ok(),
                Err(error) if is_passing(&error) => {
                    disk.errors.fetch_add(1, Relaxed);
                    return None;
                }
                Err(_) => None,
            };
            match blob {
                Some(_) => disk.index().touch(&name),
                None => {
                    disk.errors.fetch_add(1, Relaxed);
                    disk.remove(name, order.unwrap_or(FOUND));
                }
            }
            blob
        })
    }

    /// Writes what `make` makes under their names, unless `is_purged` says that it does not count any more,
    /// which is asked again when it is there: who purges or removes marks first and removes then. False in the result:
    /// nothing was written. `None`: too much is waiting already.
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
                if written.is_err() {
                    disk.errors.fetch_add(1, Relaxed);
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

    /// Writes which tags were purged. Those that are noted already stay: an earlier process has purged them, whose
    /// note was not read yet, or one that still serves.
    /// `None`: a job will that has been begun before.
    pub(crate) fn write_note(
        self: &Arc<Disk>,
        tag_purges: Arc<TagPurges>,
    ) -> Option<blocking::RunningJob<()>> {
        if self.is_note_due.swap(true, AcqRel) {
            return None;
        }
        let disk = Arc::clone(self);
        Some(blocking::run_in_any_case(self.origin, move || {
            // One after the other, so that the last one has all of them.
            let _turn = lock(&disk.note);
            disk.is_note_due.swap(false, AcqRel);
            disk.read_note(&tag_purges);
            let bytes = tag_purges.to_bytes();
            let unfinished = Unfinished::write(&disk.root, &bytes);
            if unfinished.and_then(|file| file.rename(NOTE)).is_err() {
                disk.errors.fetch_add(1, Relaxed);
            }
        }))
    }

    /// Waits for the disk: takes in which tags are noted as purged.
    fn read_note(&self, tag_purges: &TagPurges) {
        let is_understood = match self.read_at(&self.root, NOTE, NOTE_BYTES_MAX) {
            Ok(bytes) => tag_purges.read(&bytes),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if !is_understood {
            self.errors.fetch_add(1, Relaxed);
        }
    }

    /// Forgets everything whose name begins so, at once, and says how many there were. The files are
    /// removed by the job, if there are any; whether or not somebody waits for it, as with all jobs here that remove
    /// something: what stays would be found after the next start.
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

    /// The same for one name. As long as files of earlier processes are looked for, those with its base are
    /// not taken in: which of them are variants that stay is not known.
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

    /// Waits for the disk: forgets what write number `order` has made and removes its file.
    fn remove(&self, name: BlobName, order: u64) {
        self.index().forget_write(&name, order);
        self.unlink(&[name]);
    }

    /// Waits for the disk: removes the files of names that are forgotten. What was written since is not.
    fn unlink(&self, names: &[BlobName]) {
        for name in names {
            let _turn = self.turn(name);
            if self.index().knows(name) {
                continue;
            }
            if let Ok(directory) = self.directory(name) {
                // One that is gone already is as good.
                let _ = rustix::fs::unlinkat(directory, file_name(name), AtFlags::empty());
            }
        }
    }

    /// Waits for whoever renames or removes the file of this name.
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

    /// False: something later stands there already.
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

    /// The directory of a name. It is none if it is a symlink.
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

    /// Takes in what earlier processes have left, and removes what they have left half done.
    fn scan(&self) {
        for first in 0..=u8::MAX {
            let mut name = [0; 2 * HALF_BYTES];
            name[0] = first;
            let Ok(directory) = self.directory(&name) else {
                continue;
            };
            if self.scan_directory(&directory, first).is_err() {
                self.errors.fetch_add(1, Relaxed);
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
            // The others may be whole all the same.
            if self.take_in(directory, name).is_err() {
                self.errors.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }

    /// Takes in one file, or removes it if it was purged while it was not known. One that is gone was removed
    /// after it was found: by a job of this process, or by another process that still serves.
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

    /// Of a process that is gone: others may be at work on theirs.
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

/// A file that has not got its name yet. Removed with the value.
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
            // What cannot be removed now is by the next process.
            let _ = rustix::fs::unlinkat(self.directory, &*self.name, AtFlags::empty());
        }
    }
}

/// One of the jobs that are counted.
struct Pending(Arc<Disk>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Relaxed);
    }
}

/// Whether a file that could not be read may be sound: no descriptor was free, or it is larger than this request may
/// have it. Not if it is gone, a symlink, or no regular file.
fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let is_none = [Errno::NOENT, Errno::LOOP, Errno::NOTDIR, Errno::NXIO]
        .map(Some)
        .contains(&Errno::from_io_error(error));
    !is_none && error.kind() != io::ErrorKind::InvalidData
}

/// In hexadecimal digits.
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

/// The file about tags that were purged.
const NOTE: &str = "purged-tags";

/// Room for all there can be.
const NOTE_BYTES_MAX: usize = 8 + limits::TAG_PURGES_MAX * (HALF_BYTES + 8);

/// Names have one of so many turns.
const TURNS: usize = 16;

/// In the order of writes what an earlier process has left comes first.
const FOUND: u64 = 0;

/// What the names of files begin with that are being written.
const UNFINISHED: &str = ".new-";

/// Everything in a blob but the body is shorter.
const BLOB_HEAD_BYTES_MAX: usize = 512 * 1024;

const OWNER_DIRECTORY: Mode = Mode::RWXU;
const OWNER_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
