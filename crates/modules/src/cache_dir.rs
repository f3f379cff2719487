//! A directory in which modules keep generated files, to be served later.
//!
//! Files appear complete or not at all: they are written under a temporary name and renamed. Other workers,
//! and other servers with the same directory, may write the same file at the same time; the last one wins,
//! and all have written the same content. Symlinks below the root are not followed, so that a user who may
//! write into the directory cannot lead the server elsewhere. Nothing is ever deleted here: that is left to a
//! cron job of the operator, as in lighttpd. mod_deflate and mod_dirlisting use it.
#![expect(
    clippy::disallowed_methods,
    reason = "files have the time of the system"
)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use petrel_engine::beneath::open_without_symlinks;
use petrel_engine::blocking::{self, Class, Origin};
use petrel_engine::file_cache::{Symlinks, open_directory};
use petrel_engine::worker::Worker;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, futimens, mkdirat, openat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;

/// A directory for generated files. It is opened for each file that is written, so that it occupies no
/// descriptor even if a thousand hosts share it.
#[derive(Debug)]
pub(crate) struct CacheDir {
    path: Vec<u8>,
    origin: Origin,
}

impl CacheDir {
    /// The directory at `path`. Its last segment is created if it is missing.
    ///
    /// # Errors
    /// As mkdir(2), open(2) and realpath(3).
    pub(crate) fn open(path: &str) -> io::Result<CacheDir> {
        match std::fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // The configured path may contain symlinks (/var/run). Below it none are followed.
        let path = std::fs::canonicalize(path)?;
        let path = path.into_os_string().into_encoded_bytes();
        Ok(CacheDir {
            origin: Origin::of_descriptor(open_directory(&path, Symlinks::Refuse)?),
            path,
        })
    }

    /// The absolute path of `name`, for looking it up; `None` if a file cannot have that name.
    pub(crate) fn path_of(&self, name: &[u8]) -> Option<Vec<u8>> {
        is_plain(name).then(|| [&self.path, &b"/"[..], name].concat())
    }

    /// The file system that a job waits for, which writes `bytes`.
    pub(crate) fn origin(&self, bytes: usize) -> Origin {
        self.origin.with_bytes(bytes)
    }

    /// Writes the file `name` in the background. Does nothing if this worker is writing the file already, or
    /// [`WRITTEN_BYTES_MAX`] bytes of other files. Errors are passed to `failed`.
    ///
    /// # Panics
    /// Outside a tokio runtime with tasks that stay on their thread.
    pub(crate) fn keep(
        self: &Arc<CacheDir>,
        worker: &Worker,
        name: Vec<u8>,
        bytes: Bytes,
        failed: impl FnOnce(io::Error) + 'static,
    ) {
        let Some(turn) = self.turn(worker, &name, bytes.len()) else {
            return;
        };
        let directory = Arc::clone(self);
        tokio::task::spawn_local(async move {
            let origin = directory.origin(bytes.len());
            let written = blocking::run_io(Class::Write, origin, move || {
                let mut file = directory.create(&name)?;
                file.write(&bytes)?;
                file.publish(None).map(drop)
            });
            if let Err(error) = written.await {
                failed(error);
            }
            drop(turn);
        });
    }

    /// The right to write the file `name`, which `worker` gives to one request at a time; `bytes` of the file
    /// are in memory meanwhile. Also `None` if [`WRITTEN_BYTES_MAX`] bytes of other files are.
    pub(crate) fn turn(&self, worker: &Worker, name: &[u8], bytes: usize) -> Option<WriteTurn> {
        let files = worker.belonging(WritingFiles::default);
        let path = [&self.path, &b"/"[..], name].concat();
        let mut writing = files.0.borrow_mut();
        let before: usize = writing.values().sum();
        if writing.contains_key(&path) || before + bytes > WRITTEN_BYTES_MAX {
            return None;
        }
        writing.insert(path.clone(), bytes);
        drop(writing);
        Some(WriteTurn { path, files })
    }

    /// Creates a file that will get the name `name`, with the directories it needs. Waits for the disk.
    ///
    /// # Errors
    /// `InvalidInput` if a file cannot have that name, or an error of the file system.
    pub(crate) fn create(&self, name: &[u8]) -> io::Result<NewFile> {
        if !is_plain(name) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (parents, last) = match memchr::memrchr(b'/', name) {
            Some(slash) => (&name[..slash], &name[slash + 1..]),
            None => (&b""[..], name),
        };
        let directory = self.directory(parents)?;
        let temporary = temporary_name();
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&directory, &temporary, flags, Mode::RUSR | Mode::WUSR)?;
        let unfinished = UnfinishedFile {
            file: file.into(),
            directory,
            temporary,
            is_published: false,
        };
        Ok(NewFile {
            unfinished: Some(unfinished),
            name: last.to_vec(),
            origin: self.origin,
        })
    }

    /// The directory `parents`, which is created if it is missing.
    fn directory(&self, parents: &[u8]) -> io::Result<OwnedFd> {
        let mut directory = open_directory(&self.path, Symlinks::Refuse)?;
        if parents.is_empty() {
            return Ok(directory);
        }
        match open_without_symlinks(&directory, parents, DIRECTORY) {
            Err(Errno::NOENT) => {}
            opened => return Ok(opened?),
        }
        for part in parents.split(|byte| *byte == b'/') {
            match mkdirat(&directory, part, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            directory = openat(&directory, part, DIRECTORY, Mode::empty())?;
        }
        Ok(directory)
    }
}

/// A file that is being written. If it is dropped before [`NewFile::publish`], a disk thread removes it,
/// whichever thread drops it.
#[derive(Debug)]
pub(crate) struct NewFile {
    /// `Some` until it is published or dropped.
    unfinished: Option<UnfinishedFile>,
    name: Vec<u8>,
    origin: Origin,
}

/// A file under its temporary name.
#[derive(Debug)]
struct UnfinishedFile {
    file: std::fs::File,
    directory: OwnedFd,
    temporary: String,
    is_published: bool,
}

impl NewFile {
    /// Appends `bytes`. Waits for the disk.
    ///
    /// # Errors
    /// As write(2), above all that the disk is full.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let unfinished = self.unfinished.as_mut().ok_or(io::ErrorKind::NotFound)?;
        io::Write::write_all(&mut unfinished.file, bytes)
    }

    /// Sets the modification time, renames the file to its final name, and returns it for reading. Waits for
    /// the disk.
    ///
    /// # Errors
    /// As futimens(2) and rename(2). `IsADirectory` if a directory has that name.
    pub(crate) fn publish(mut self, modified: Option<(u64, u32)>) -> io::Result<std::fs::File> {
        let unfinished = self.unfinished.take().ok_or(io::ErrorKind::NotFound)?;
        unfinished.publish(&self.name, modified)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(unfinished) = self.unfinished.take() {
            blocking::drop_elsewhere(self.origin, unfinished);
        }
    }
}

impl UnfinishedFile {
    fn publish(mut self, name: &[u8], modified: Option<(u64, u32)>) -> io::Result<std::fs::File> {
        if let Some((seconds, nanos)) = modified {
            let time = Timespec {
                tv_sec: seconds.cast_signed(),
                tv_nsec: i64::from(nanos),
            };
            futimens(
                &self.file,
                &Timestamps {
                    last_access: time,
                    last_modification: time,
                },
            )?;
        }
        // Renaming over a symlink replaces the link, as intended; over a directory it would fail.
        if let Ok(there) = statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW)
            && FileType::from_raw_mode(there.st_mode) == FileType::Directory
        {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        renameat(&self.directory, &*self.temporary, &self.directory, name)?;
        self.is_published = true;
        self.file.try_clone()
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if !self.is_published {
            let _ = unlinkat(&self.directory, &*self.temporary, AtFlags::empty());
        }
    }
}

/// The files that a worker is writing in the background, with their lengths.
#[derive(Default)]
struct WritingFiles(RefCell<HashMap<Vec<u8>, usize>>);

/// The right to write a file. Dropping it lets another request write the file.
pub(crate) struct WriteTurn {
    path: Vec<u8>,
    files: Rc<WritingFiles>,
}

impl Drop for WriteTurn {
    fn drop(&mut self) {
        self.files.0.borrow_mut().remove(&self.path);
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Whether `name` is a relative path of ordinary segments that a file can have.
fn is_plain(name: &[u8]) -> bool {
    let is_part = |part: &[u8]| {
        !part.is_empty()
            && part.len() <= PART_BYTES_MAX
            && part != b"."
            && part != b".."
            && !part.contains(&0)
    };
    name.len() <= NAME_BYTES_MAX && name.split(|byte| *byte == b'/').all(is_part)
}

/// A name that is unique among all processes that use the directory now. O_EXCL detects names that a crash
/// has left behind.
fn temporary_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    format!(".petrel-{}-{}-{number}", std::process::id(), now.as_nanos())
}

/// NAME_MAX of all common file systems.
const PART_BYTES_MAX: usize = 255;

/// Bytes of files that a worker may be writing in the background at the same time.
const WRITTEN_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The longest path that the file cache looks up, less room for the root.
const NAME_BYTES_MAX: usize = 3072;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Tree {
            let path = std::env::temp_dir()
                .join(format!("petrel-cache-dir-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).expect("create");
            Tree(path)
        }

        fn open(&self) -> CacheDir {
            CacheDir::open(self.0.join("cache").to_str().expect("UTF-8")).expect("open")
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_appears_when_it_is_published() {
        let tree = Tree::new("publish");
        let cache = tree.open();
        let mut file = cache.create(b"a/b/c-gzip").expect("create");
        file.write(b"hello").expect("write");
        let path = tree.0.join("cache/a/b/c-gzip");
        assert!(!path.exists());
        file.publish(Some((1_000_000_000, 5))).expect("publish");
        assert_eq!(std::fs::read(&path).expect("read"), b"hello");
        let modified = path.metadata().expect("stat").modified().expect("time");
        let modified = modified
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970");
        assert_eq!(modified.as_nanos(), 1_000_000_000_000_000_005);
        assert_eq!(
            std::fs::read_dir(tree.0.join("cache/a/b"))
                .expect("dir")
                .count(),
            1
        );
    }

    #[test]
    fn a_dropped_file_leaves_nothing() {
        let tree = Tree::new("drop");
        let cache = tree.open();
        cache
            .create(b"x")
            .expect("create")
            .write(b"half")
            .expect("write");
        let count = || {
            std::fs::read_dir(tree.0.join("cache"))
                .expect("dir")
                .count()
        };
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while count() > 0 {
            assert!(std::time::Instant::now() < end, "it is still there");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }

    #[test]
    fn symlinks_below_the_root_are_not_followed() {
        let tree = Tree::new("symlink");
        let cache = tree.open();
        std::fs::create_dir(tree.0.join("outside")).expect("mkdir");
        std::os::unix::fs::symlink("../outside", tree.0.join("cache/a")).expect("symlink");
        assert!(cache.create(b"a/x").is_err());
        assert!(cache.create(b"a/new/x").is_err());
        std::fs::write(tree.0.join("outside/victim"), "safe").expect("write");
        std::os::unix::fs::symlink("../outside/victim", tree.0.join("cache/x")).expect("symlink");
        let mut file = cache.create(b"x").expect("create");
        file.write(b"new").expect("write");
        file.publish(None).expect("the link itself is replaced");
        assert_eq!(
            std::fs::read(tree.0.join("outside/victim")).expect("read"),
            b"safe"
        );
    }

    #[test]
    fn names_that_lead_out_are_refused() {
        let tree = Tree::new("names");
        let cache = tree.open();
        let long = vec![b'x'; PART_BYTES_MAX + 1];
        for name in [
            &b""[..],
            b"/a",
            b"../a",
            b"a/../b",
            b"a//b",
            b"a/./b",
            b"a\0b",
            &long,
        ] {
            assert!(cache.path_of(name).is_none(), "{name:?}");
            assert!(cache.create(name).is_err(), "{name:?}");
        }
    }
}
