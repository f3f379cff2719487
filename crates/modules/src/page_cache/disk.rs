//! Stored answers in files, also over a restart.
//!
//! Below `page-cache.disk-path` stands a directory for each first byte of a name, and in it a file for each
//! blob. Files are written beside their place and renamed, so that a file is whole or not there; what is
//! damaged all the same is removed when it is read. Nothing below the directory is followed that is a
//! symlink, and nothing is readable for others. What is there is known by an index in memory, which is made
//! anew in the background when the server starts: until it is complete the disk is not asked.
//!
//! Everything that waits for the disk runs on the threads of [`blocking`]. All functions here that do are
//! marked so, and are called there.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Relaxed},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use petrel_engine::blocking::{self, Class, Origin};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};

use super::blob::{self, Blob, HALF_BYTES, Name};
use super::limits;
use super::sieve::Sieve;
use super::tag_purges::TagPurges;

/// The files of one server process.
#[derive(Debug)]
pub struct Disk {
    root: OwnedFd,
    /// As it was configured, for the log.
    path: String,
    origin: Origin,
    index: Mutex<Index>,
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

#[derive(Debug, Default)]
struct Index {
    /// In order, so that everything with one base is found without looking at all there is.
    numbers: BTreeMap<Name, usize>,
    queue: Sieve<Place>,
    bytes: u64,
    /// Bases that were purged while files of earlier processes are looked for; `None` when these are known.
    purged: Option<HashSet<[u8; HALF_BYTES]>>,
    /// More were purged than are remembered: nothing of earlier processes counts.
    is_all_purged: bool,
}

#[derive(Debug)]
struct Place {
    name: Name,
    bytes: u64,
    was_used: AtomicBool,
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
            index: Mutex::new(Index {
                purged: Some(HashSet::new()),
                ..Index::default()
            }),
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

    /// Entries and bytes that are known, and errors so far.
    pub fn sizes(&self) -> (u64, u64, u64) {
        let index = self.index();
        (
            index.queue.len() as u64,
            index.bytes,
            self.errors.load(Relaxed),
        )
    }

    /// Whether something stands under `name`, as far as is known.
    pub fn has(&self, name: &Name) -> bool {
        self.is_ready.load(Relaxed) && self.index().numbers.contains_key(name)
    }

    /// Whether it is known what is there, and nothing waits to be written.
    #[cfg(test)]
    pub fn is_at_rest(&self) -> bool {
        self.is_ready.load(Relaxed) && self.pending.load(Relaxed) == 0
    }

    /// Makes the index from what is there, in the background, and reads which tags were purged.
    pub fn load(self: &Arc<Disk>, tag_purges: Arc<TagPurges>) -> blocking::Running<()> {
        let disk = Arc::clone(self);
        blocking::run_in_any_case(self.origin, move || {
            disk.read_note(&tag_purges);
            disk.scan();
            disk.index().purged = None;
            disk.is_ready.store(true, Relaxed);
        })
    }

    /// Reads what stands under `name`, of at most `bytes_max` bytes. What is damaged, or no file, is removed.
    pub fn read(self: &Arc<Disk>, name: Name, bytes_max: usize) -> blocking::Running<Option<Blob>> {
        let disk = Arc::clone(self);
        blocking::run_for(Class::Read, self.origin, move || {
            let blob = match disk.read_file(&name, bytes_max) {
                Ok(bytes) => blob::decode(&Bytes::from(bytes)).ok(),
                Err(error) if is_passing(&error) => {
                    disk.errors.fetch_add(1, Relaxed);
                    return None;
                }
                Err(_) => None,
            };
            match blob {
                Some(_) => disk.touch(&name),
                None => {
                    disk.errors.fetch_add(1, Relaxed);
                    disk.remove(&[name]);
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
        make: impl FnOnce() -> Vec<(Name, Vec<u8>)> + Send + 'static,
        is_purged: impl Fn() -> bool + Send + 'static,
    ) -> Option<blocking::Running<bool>> {
        if self.pending.fetch_add(1, Relaxed) >= limits::WRITES_MAX {
            self.pending.fetch_sub(1, Relaxed);
            return None;
        }
        let disk = Arc::clone(self);
        let job = Pending(disk);
        Some(blocking::run(self.origin, move || {
            let disk = &job.0;
            if is_purged() {
                return false;
            }
            let written = make().into_iter().all(|(name, bytes)| {
                let written = disk.write_file(&name, &bytes);
                if written.is_err() {
                    disk.errors.fetch_add(1, Relaxed);
                }
                let is_gone = is_purged();
                if is_gone {
                    disk.remove(&[name]);
                }
                written.is_ok() && !is_gone
            });
            disk.make_room();
            written
        }))
    }

    /// Writes which tags were purged. Those that are noted already stay: an earlier process has purged them, whose
    /// note was not read yet, or one that still serves.
    /// `None`: a job will that has been begun before.
    pub fn write_note(
        self: &Arc<Disk>,
        tag_purges: Arc<TagPurges>,
    ) -> Option<blocking::Running<()>> {
        if self.is_note_due.swap(true, AcqRel) {
            return None;
        }
        let disk = Arc::clone(self);
        Some(blocking::run_in_any_case(self.origin, move || {
            // One after the other, so that the last one has all of them.
            let _turn = disk.note.lock().unwrap_or_else(PoisonError::into_inner);
            disk.is_note_due.swap(false, AcqRel);
            disk.read_note(&tag_purges);
            let bytes = tag_purges.to_bytes();
            if disk.write_at(&disk.root, NOTE, &bytes).is_err() {
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
    ) -> (usize, Option<blocking::Running<()>>) {
        let names: Vec<Name> = {
            let mut index = self.index();
            index.note_purge(base);
            let mut first: Name = [0; 2 * HALF_BYTES];
            first[..HALF_BYTES].copy_from_slice(&base);
            let names = index.numbers.range(first..).map(|(name, _)| *name);
            let names: Vec<Name> = names.take_while(|name| name.starts_with(&base)).collect();
            for name in &names {
                index.forget(name);
            }
            names
        };
        let (count, disk) = (names.len(), Arc::clone(self));
        let job = (count > 0)
            .then(|| blocking::run_in_any_case(self.origin, move || disk.unlink(&names)));
        (count, job)
    }

    /// The same for one name. As long as files of earlier processes are looked for, those with its base are
    /// not taken in: which of them are variants that stay is not known.
    pub fn remove_elsewhere(self: &Arc<Disk>, name: Name) -> Option<blocking::Running<()>> {
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

    /// Waits for the disk: forgets these and removes their files.
    pub fn remove(&self, names: &[Name]) {
        for name in names {
            self.index().forget(name);
        }
        self.unlink(names);
    }

    fn unlink(&self, names: &[Name]) {
        for name in names {
            if let Ok(directory) = self.directory(name) {
                // One that is gone already is as good.
                let _ = rustix::fs::unlinkat(directory, file_name(name), AtFlags::empty());
            }
        }
    }

    fn touch(&self, name: &Name) {
        let index = self.index();
        let place = index.numbers.get(name).and_then(|at| index.queue.get(*at));
        if let Some(place) = place {
            place.was_used.store(true, Relaxed);
        }
    }

    fn read_file(&self, name: &Name, bytes_max: usize) -> io::Result<Vec<u8>> {
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

    fn write_file(&self, name: &Name, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 > self.bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.write_at(&self.make_directory(name)?, &file_name(name), bytes)?;
        self.index().insert(*name, bytes.len() as u64);
        Ok(())
    }

    fn write_at(&self, directory: &OwnedFd, name: &str, bytes: &[u8]) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Relaxed);
        let unfinished = format!("{UNFINISHED}{}-{count}", std::process::id());
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, &*unfinished, flags, OWNER_FILE)?;
        let written = File::from(file).write_all(bytes).and_then(|()| {
            Ok(rustix::fs::renameat(
                directory,
                &*unfinished,
                directory,
                name,
            )?)
        });
        if written.is_err() {
            // The first error is the one that counts.
            let _ = rustix::fs::unlinkat(directory, &*unfinished, AtFlags::empty());
        }
        written
    }

    fn make_room(&self) {
        let mut gone = Vec::new();
        {
            let mut index = self.index();
            while index.bytes > self.bytes_max {
                let was_used = |place: &Place| place.was_used.swap(false, Relaxed);
                // Two rounds: in the second nothing is marked, but for what is used just now.
                let place = index.queue.evict(was_used);
                let Some(place) = place.or_else(|| index.queue.evict(was_used)) else {
                    break;
                };
                index.numbers.remove(&place.name);
                index.bytes -= place.bytes;
                gone.push(place.name);
            }
        }
        self.unlink(&gone);
    }

    /// The directory of a name. It is none if it is a symlink.
    fn directory(&self, name: &Name) -> io::Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory = format!("{:02x}", name.first().copied().unwrap_or(0));
        Ok(rustix::fs::openat(
            &self.root,
            directory,
            flags,
            Mode::empty(),
        )?)
    }

    fn make_directory(&self, name: &Name) -> io::Result<OwnedFd> {
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
    fn take_in(&self, directory: &OwnedFd, name: Name) -> io::Result<()> {
        let file = file_name(&name);
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
        } else if !index.numbers.contains_key(&name) {
            index.insert(name, bytes);
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
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index {
    fn insert(&mut self, name: Name, bytes: u64) {
        self.forget(&name);
        let place = Place {
            name,
            bytes,
            was_used: AtomicBool::new(false),
        };
        let number = self.queue.insert(place);
        self.numbers.insert(name, number);
        self.bytes += bytes;
    }

    /// What an earlier process has stored under this base does not count, if it is not known yet.
    fn note_purge(&mut self, base: [u8; HALF_BYTES]) {
        let Some(purged) = &mut self.purged else {
            return;
        };
        if purged.len() >= limits::PURGES_WHILE_LOADING_MAX {
            self.is_all_purged = true;
        } else {
            purged.insert(base);
        }
    }

    /// Whether a file that was found now, and is not in the index, was purged before.
    fn was_purged(&self, name: &Name) -> bool {
        let is_purged = |purged: &HashSet<[u8; HALF_BYTES]>| {
            name.first_chunk().is_some_and(|base| purged.contains(base))
        };
        !self.numbers.contains_key(name)
            && (self.is_all_purged || self.purged.as_ref().is_some_and(is_purged))
    }

    /// Whether it was known.
    fn forget(&mut self, name: &Name) -> bool {
        let number = self.numbers.remove(name);
        let place = number.and_then(|number| self.queue.remove(number));
        if let Some(place) = &place {
            self.bytes -= place.bytes;
        }
        place.is_some()
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
fn file_name(name: &Name) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 * name.len());
    for byte in name {
        write!(text, "{byte:02x}").expect("writing to a string");
    }
    text
}

fn parse_name(text: &[u8]) -> Option<Name> {
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

/// What the names of files begin with that are being written.
const UNFINISHED: &str = ".new-";

/// Everything in a blob but the body is shorter.
const BLOB_HEAD_BYTES_MAX: usize = 512 * 1024;

const OWNER_DIRECTORY: Mode = Mode::RWXU;
const OWNER_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::super::entry::tests::page;
    use super::super::key::testing::key_of;
    use super::*;
    use crate::testing::Tree;

    async fn open(tree: &Tree, bytes_max: u64) -> Arc<Disk> {
        let disk = Disk::open(&tree.path("cache"), bytes_max).expect("the tree is ours");
        disk.load(Arc::default()).await.expect("it can be read");
        disk
    }

    async fn write(disk: &Arc<Disk>, name: &str, body: &str) -> Name {
        let page = page(&key_of(name), body, 0, 60);
        let name = blob::name(&page.key, &page.vary);
        let job = disk.write(move || vec![(name, blob::encode_page(&page, 1))], || false);
        assert!(job.expect("nothing waits").await.expect("it is done"));
        name
    }

    async fn body(disk: &Arc<Disk>, name: Name) -> Option<Bytes> {
        match disk.read(name, 1 << 20).await.expect("it is done") {
            Some(Blob::Page { page, .. }) => Some(page.body),
            _ => None,
        }
    }

    #[tokio::test(flavor = "local")]
    async fn what_was_written_is_there_after_a_restart() {
        let tree = Tree::new(&[]);
        let disk = open(&tree, 1 << 20).await;
        let name = write(&disk, "a", "one").await;
        assert_eq!(body(&disk, name).await.as_deref(), Some(&b"one"[..]));
        write(&disk, "a", "two").await;
        drop(disk);
        let again = Disk::open(&tree.path("cache"), 1 << 20).expect("it is there");
        assert!(!again.has(&name), "nothing is known yet");
        again.load(Arc::default()).await.expect("it can be read");
        assert!(again.has(&name));
        assert_eq!(body(&again, name).await.as_deref(), Some(&b"two"[..]));
        assert_eq!(again.sizes().0, 1);
    }

    #[tokio::test(flavor = "local")]
    async fn files_are_for_nobody_else_and_symlinks_lead_nowhere() {
        let tree = Tree::new(&[("secret", "x")]);
        let disk = open(&tree, 1 << 20).await;
        let name = write(&disk, "a", "one").await;
        let directory = tree.path(&format!("cache/{:02x}", name[0]));
        let file = format!("{directory}/{}", file_name(&name));
        let mode = |path: &str| std::fs::metadata(path).expect("it is there").mode() & 0o777;
        let modes = [&tree.path("cache"), &directory, &file].map(|path| mode(path));
        assert_eq!(modes, [0o700, 0o700, 0o600]);
        std::fs::rename(&file, tree.path("moved")).expect("the tree is ours");
        symlink(tree.path("moved"), &file).expect("the tree is ours");
        assert_eq!(body(&disk, name).await, None);
        let other = write(&disk, "b", "one").await;
        let directory = tree.path(&format!("cache/{:02x}", other[0]));
        std::fs::rename(&directory, tree.path("elsewhere")).expect("the tree is ours");
        symlink(tree.path("elsewhere"), &directory).expect("the tree is ours");
        assert_eq!(body(&disk, other).await, None);
    }

    #[tokio::test(flavor = "local")]
    async fn what_is_damaged_is_removed() {
        let tree = Tree::new(&[]);
        let disk = open(&tree, 1 << 20).await;
        let name = write(&disk, "a", "one").await;
        let file = tree.path(&format!("cache/{:02x}/{}", name[0], file_name(&name)));
        let mut bytes = std::fs::read(&file).expect("it is there");
        *bytes.last_mut().expect("it is not empty") ^= 1;
        std::fs::write(&file, bytes).expect("the tree is ours");
        assert_eq!(body(&disk, name).await, None);
        assert!(!disk.has(&name) && !std::path::Path::new(&file).exists());
        assert_eq!(disk.sizes(), (0, 0, 1));
    }

    #[tokio::test(flavor = "local")]
    async fn what_cannot_be_read_now_is_kept() {
        let tree = Tree::new(&[]);
        let disk = open(&tree, 4 << 20).await;
        let long = "x".repeat(2 * BLOB_HEAD_BYTES_MAX);
        let name = write(&disk, "a", &long).await;
        let read = disk.read(name, 1000).await;
        assert!(read.expect("it is done").is_none());
        assert!(body(&disk, name).await.is_some());
        for (error, is_kept) in [
            (rustix::io::Errno::MFILE, true),
            (rustix::io::Errno::NOMEM, true),
            (rustix::io::Errno::IO, true),
            (rustix::io::Errno::NOENT, false),
        ] {
            assert_eq!(is_passing(&error.into()), is_kept, "{error}");
        }
    }

    #[tokio::test(flavor = "local")]
    async fn the_disk_is_bounded_and_what_is_used_stays() {
        let tree = Tree::new(&[]);
        let disk = open(&tree, 20_000).await;
        let hot = write(&disk, "hot", "x").await;
        for number in 0..100 {
            assert!(body(&disk, hot).await.is_some(), "{number}");
            write(&disk, &number.to_string(), &"x".repeat(1000)).await;
            assert!(disk.sizes().1 <= 20_000);
        }
        let on_disk: u64 = std::fs::read_dir(tree.path("cache"))
            .expect("it is there")
            .flat_map(|entry| std::fs::read_dir(entry.expect("it is there").path()))
            .flatten()
            .map(|entry| {
                entry
                    .and_then(|entry| entry.metadata())
                    .map_or(0, |it| it.len())
            })
            .sum();
        assert_eq!(on_disk, disk.sizes().1);
    }

    #[tokio::test(flavor = "local")]
    async fn what_is_purged_before_it_is_written_does_not_stay() {
        let tree = Tree::new(&[]);
        let disk = open(&tree, 1 << 20).await;
        let page = page(&key_of("a"), "one", 0, 60);
        let name = blob::name(&page.key, &page.vary);
        for purged_at in [0, 1] {
            let (page, asked) = (page.clone(), AtomicUsize::new(0));
            let is_purged = move || asked.fetch_add(1, Relaxed) >= purged_at;
            let make = move || vec![(name, blob::encode_page(&page, 1))];
            let job = disk.write(make, is_purged).expect("nothing waits");
            assert!(!job.await.expect("it is done"));
            assert_eq!((disk.has(&name), body(&disk, name).await), (false, None));
        }
    }

    #[tokio::test(flavor = "local")]
    async fn what_is_purged_before_it_is_found_is_not_found() {
        let tree = Tree::new(&[]);
        let disk = open(&tree, 1 << 20).await;
        let gone = write(&disk, "a", "one").await;
        let stays = write(&disk, "b", "two").await;
        drop(disk);
        let again = Disk::open(&tree.path("cache"), 1 << 20).expect("it is there");
        let base = blob::base_name(&key_of("a"));
        assert!(again.purge(base).1.is_none(), "nothing is known of it yet");
        // What comes after the purge counts.
        let newer = {
            again.purge(blob::base_name(&key_of("c")));
            write(&again, "c", "three").await
        };
        again.load(Arc::default()).await.expect("it can be read");
        let there = [gone, stays, newer].map(|name| again.has(&name));
        assert_eq!(there, [false, true, true]);
        let file = tree.path(&format!("cache/{:02x}/{}", gone[0], file_name(&gone)));
        assert!(!std::path::Path::new(&file).exists());
        // It is only remembered as long as it matters.
        let (_, job) = again.purge(blob::base_name(&key_of("b")));
        job.expect("there is a file").await.expect("it is done");
        let back = write(&again, "b", "four").await;
        assert!(again.has(&back) && again.index().purged.is_none());
    }

    #[tokio::test(flavor = "local")]
    async fn what_is_removed_before_it_is_found_is_not_found() {
        let tree = Tree::new(&[]);
        let disk = open(&tree, 1 << 20).await;
        let old = write(&disk, "a", "one").await;
        drop(disk);
        let again = Disk::open(&tree.path("cache"), 1 << 20).expect("it is there");
        assert!(again.remove_elsewhere(old).is_none(), "nothing is known");
        let new = write(&again, "b", "two").await;
        let job = again.remove_elsewhere(new).expect("it is known");
        assert_eq!(again.sizes().0, 0);
        job.await.expect("it is done");
        again.load(Arc::default()).await.expect("it can be read");
        assert_eq!(again.sizes().0, 0);
        for name in [old, new] {
            let file = tree.path(&format!("cache/{:02x}/{}", name[0], file_name(&name)));
            assert!(!std::path::Path::new(&file).exists());
        }
    }

    #[tokio::test(flavor = "local")]
    async fn what_is_removed_while_it_is_found_is_no_error() {
        let tree = Tree::new(&[]);
        let disk = open(&tree, 1 << 20).await;
        let name = write(&disk, "a", "one").await;
        let directory = disk.directory(&name).expect("it is there");
        disk.remove(&[name]);
        let taken_in = disk.take_in(&directory, name);
        assert!(taken_in.is_ok(), "{taken_in:?}");
        assert_eq!(disk.sizes(), (0, 0, 0));
    }

    #[tokio::test(flavor = "local")]
    async fn a_purge_removes_all_with_one_base() {
        let tree = Tree::new(&[]);
        let disk = open(&tree, 1 << 20).await;
        let (gone, stays) = (
            write(&disk, "a", "one").await,
            write(&disk, "b", "two").await,
        );
        let (count, job) = disk.purge(blob::base_name(&key_of("a")));
        assert_eq!(count, 1);
        assert!(!disk.has(&gone) && disk.has(&stays));
        job.expect("there is a file").await.expect("it is done");
        let file = tree.path(&format!("cache/{:02x}/{}", gone[0], file_name(&gone)));
        assert!(!std::path::Path::new(&file).exists());
    }

    #[tokio::test(flavor = "local")]
    async fn tags_that_are_purged_before_the_note_is_read_are_added_to_it() {
        let tree = Tree::new(&[]);
        let path = tree.path("cache");
        for tag in ["a", "b"] {
            let disk = Disk::open(&path, 1 << 20).expect("the tree is ours");
            let purges = Arc::new(TagPurges::default());
            purges.add(tag.as_bytes(), 100);
            let noted = disk.write_note(purges).expect("no other is due");
            noted.await.expect("it is done");
        }
        let (disk, purges) = (Disk::open(&path, 1 << 20), Arc::default());
        let disk = disk.expect("it is there");
        let loaded = disk.load(Arc::clone(&purges)).await;
        loaded.expect("it can be read");
        for tag in ["a", "b"] {
            assert!(purges.concern(&[tag.as_bytes().into()], 100), "{tag}");
        }
        assert_eq!(disk.sizes().2, 0);
    }

    #[tokio::test(flavor = "local")]
    async fn what_others_have_left_does_no_harm() {
        let tree = Tree::new(&[
            ("cache/00/.new-1999999999-3", "half"),
            ("cache/00/readme", "mine"),
            ("cache/zz/x", "mine"),
        ]);
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(tree.path("cache"), mode).expect("the tree is ours");
        let disk = open(&tree, 1 << 20).await;
        assert_eq!(disk.sizes(), (0, 0, 0));
        let is_there = |path: &str| std::path::Path::new(&tree.path(path)).exists();
        assert!(!is_there("cache/00/.new-1999999999-3"));
        assert!(is_there("cache/00/readme") && is_there("cache/zz/x"));
        assert!(Disk::open(&tree.path("none/cache"), 1).is_err());
    }
}
