//! A directory in which modules keep what they made, to be served as files later.
//!
//! Files appear whole or not at all: they are written under a name of their own and renamed. Other
//! workers, and other servers on the same directory, may do the same at the same time; the last
//! one wins, and all of them wrote the same. Below the root no symlink is followed, so that who
//! may write into the directory cannot point the server elsewhere. Nothing is ever deleted here:
//! that is the operator's cron job, as with lighttpd. Called by mod_deflate and mod_dirlisting.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use petrel_engine::blocking::{self, Class, Origin};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, futimens, mkdirat,
    openat, openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;

/// A directory for files that were made here.
#[derive(Debug)]
pub(crate) struct CacheDir {
    root: OwnedFd,
    path: Vec<u8>,
    origin: Origin,
}

impl CacheDir {
    /// The directory at `path`, opened once a worker: a thousand hosts that share one do not hold
    /// a thousand descriptors. Its last part is created if it is not there.
    ///
    /// # Errors
    /// Those of mkdir(2), open(2) and realpath(3).
    pub fn shared(path: &str) -> io::Result<Arc<CacheDir>> {
        OPEN.with_borrow_mut(|open| {
            if let Some(directory) = open.get(path).and_then(Weak::upgrade) {
                return Ok(directory);
            }
            let directory = Arc::new(CacheDir::open(path)?);
            open.retain(|_, directory| directory.strong_count() > 0);
            open.insert(path.to_owned(), Arc::downgrade(&directory));
            Ok(directory)
        })
    }

    fn open(path: &str) -> io::Result<CacheDir> {
        match std::fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // The configured path may lead through symlinks (/var/run); below it none are followed.
        let real = std::fs::canonicalize(path)?;
        let root = openat(CWD, &real, DIRECTORY, Mode::empty())?;
        Ok(CacheDir {
            origin: Origin::of_descriptor(&root),
            root,
            path: real.as_os_str().as_bytes().to_vec(),
        })
    }

    /// The absolute path of `name`, for looking it up; `None` if no such file can be kept.
    pub fn path_of(&self, name: &[u8]) -> Option<Vec<u8>> {
        is_plain(name).then(|| [&self.path, &b"/"[..], name].concat())
    }

    /// Whom a job waits for that writes `bytes`.
    pub fn origin(&self, bytes: usize) -> Origin {
        self.origin.with_bytes(bytes)
    }

    /// Writes a file that is called `name`, in the background. It is left out if this worker is writing
    /// such a file already, or [`WRITTEN_BYTES_MAX`] bytes of others. `failed` is told what went wrong.
    ///
    /// # Panics
    /// Outside a tokio runtime with tasks that stay on their thread.
    pub fn keep(
        self: &Arc<CacheDir>,
        name: Vec<u8>,
        bytes: Bytes,
        failed: impl FnOnce(io::Error) + 'static,
    ) {
        let Some(turn) = self.turn(&name, bytes.len()) else {
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

    /// The right to write the file `name`, which this worker gives to one at a time; `bytes` of it are
    /// held in memory. `None` also if [`WRITTEN_BYTES_MAX`] bytes of other files are.
    pub fn turn(&self, name: &[u8], bytes: usize) -> Option<Turn> {
        Turn::take([&self.path, &b"/"[..], name].concat(), bytes)
    }

    /// Begins a file that will be called `name`, with the directories it needs. Waits for the disk.
    ///
    /// # Errors
    /// `InvalidInput` for a name that cannot be kept, and what the file system says.
    pub fn create(&self, name: &[u8]) -> io::Result<NewFile> {
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
        let unfinished = Unfinished {
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

    fn directory(&self, parents: &[u8]) -> io::Result<OwnedFd> {
        if parents.is_empty() {
            return Ok(openat(&self.root, c".", DIRECTORY, Mode::empty())?);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match openat2(&self.root, parents, DIRECTORY, Mode::empty(), resolve) {
            Err(Errno::NOENT) => self.make_directory(parents),
            opened => Ok(opened?),
        }
    }

    fn make_directory(&self, parents: &[u8]) -> io::Result<OwnedFd> {
        let mut directory = openat(&self.root, c".", DIRECTORY, Mode::empty())?;
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

/// A file that is being written. Dropped before [`NewFile::publish`], it was never there: a thread that may wait
/// removes it, whoever drops it.
#[derive(Debug)]
pub(crate) struct NewFile {
    /// There until it is published or dropped.
    unfinished: Option<Unfinished>,
    name: Vec<u8>,
    origin: Origin,
}

/// A file under a name of its own.
#[derive(Debug)]
struct Unfinished {
    file: std::fs::File,
    directory: OwnedFd,
    temporary: String,
    is_published: bool,
}

impl NewFile {
    /// Adds `bytes` to the end. Waits for the disk.
    ///
    /// # Errors
    /// Those of write(2): above all, that the disk is full.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let unfinished = self.unfinished.as_mut().ok_or(io::ErrorKind::NotFound)?;
        io::Write::write_all(&mut unfinished.file, bytes)
    }

    /// Gives the file its modification time and its name, and hands it out to be read. Waits for the
    /// disk.
    ///
    /// # Errors
    /// Those of futimens(2) and rename(2). `IsADirectory` if something else has the name.
    pub fn publish(mut self, modified: Option<(u64, u32)>) -> io::Result<std::fs::File> {
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

impl Unfinished {
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
        // Renaming over a symlink would replace the link, which is right; over a directory fails.
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

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_published {
            let _ = unlinkat(&self.directory, &*self.temporary, AtFlags::empty());
        }
    }
}

/// The right to write a file. Dropped, it is free for others.
pub(crate) struct Turn(Vec<u8>);

impl Turn {
    fn take(path: Vec<u8>, bytes: usize) -> Option<Turn> {
        WRITING.with_borrow_mut(|writing| {
            let before: usize = writing.values().sum();
            if writing.contains_key(&path) || before + bytes > WRITTEN_BYTES_MAX {
                return None;
            }
            writing.insert(path.clone(), bytes);
            Some(Turn(path))
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // The thread may be at its end.
        let _ = WRITING.try_with(|writing| writing.borrow_mut().remove(&self.0));
    }
}

thread_local! {
    /// Files that this worker is writing in the background, and how long they are.
    static WRITING: RefCell<HashMap<Vec<u8>, usize>> = RefCell::default();
}

thread_local! {
    /// The directories this worker has open, by the path of the configuration.
    static OPEN: RefCell<HashMap<String, Weak<CacheDir>>> = RefCell::default();
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Whether `name` is a relative path of ordinary parts that the file system can take.
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

/// Unique among all processes that use the directory now; EXCL catches what a crash left behind.
fn temporary_name() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    format!(".petrel-{}-{}-{number}", std::process::id(), now.as_nanos())
}

/// NAME_MAX of all file systems that matter.
const PART_BYTES_MAX: usize = 255;

/// Bytes of files that a worker is writing in the background at the same time.
const WRITTEN_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Leaves room for the root in the longest path the file cache looks up.
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
    fn a_directory_is_opened_once_while_it_is_in_use() {
        let tree = Tree::new("shared");
        let path = tree.0.join("cache");
        let path = path.to_str().expect("UTF-8");
        let first = CacheDir::shared(path).expect("open");
        let second = CacheDir::shared(path).expect("open");
        assert!(Arc::ptr_eq(&first, &second));
        let before = Arc::downgrade(&first);
        drop((first, second));
        assert!(before.upgrade().is_none());
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
