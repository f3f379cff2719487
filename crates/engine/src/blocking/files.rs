//! Reads, writes, lists and removes files without blocking the worker. Each function queues its job under the
//! key of a client ([`Origin::client`]), so that clients take turns.

use std::ffi::OsString;
use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use rustix::fs::{Mode, OFlags};

use super::{Class, Origin, run_io};

/// Reads the whole of a regular file.
///
/// # Errors
/// Those of open(2) and read(2); [`FileTooLarge`](io::ErrorKind::FileTooLarge) if it is longer than
/// `bytes_max`, [`InvalidInput`](io::ErrorKind::InvalidInput) if it is a directory, a device or a pipe;
/// and those of [`run_io`].
pub async fn read_file(path: &Path, bytes_max: usize, client: u64) -> io::Result<Vec<u8>> {
    let (origin, path) = (Origin::of_path(path).for_client(client), path.to_owned());
    run_io(Class::Read, origin, move || read(&path, bytes_max)).await
}

/// Replaces the content of the file with `bytes`. Other programs see the old content or the new one, never a
/// part, also if the process ends meanwhile. Each call creates a new file with the permissions that the umask
/// leaves, and renames it. The file is not synced to the disk: after a power failure its content may be the
/// old one, or empty. If the process ends during the write, a file `.petrel-*.part` may stay beside it.
/// Dropping the future frees the bytes, unless a thread is writing them.
///
/// # Errors
/// Those of open(2), write(2) and rename(2), and of [`run_io`]. The file keeps its old content then.
pub async fn write_file_atomically(path: &Path, bytes: Bytes, client: u64) -> io::Result<()> {
    let origin = Origin::of_path(path)
        .for_client(client)
        .with_bytes(bytes.len());
    let path = path.to_owned();
    // The job may wait long behind a file system that hangs. It holds the bytes weakly, so that they are
    // freed when the request goes.
    let bytes = Arc::new(bytes);
    let to_write = Arc::downgrade(&bytes);
    let written = run_io(Class::Write, origin, move || {
        let bytes = to_write.upgrade().ok_or(io::ErrorKind::NotFound)?;
        replace(&path, &bytes)
    });
    let written = written.await;
    drop(bytes);
    written
}

/// The metadata of the file at `path`; symlinks are followed.
///
/// # Errors
/// Those of stat(2) and of [`run_io`].
pub async fn stat(path: &Path, client: u64) -> io::Result<Metadata> {
    let (origin, path) = (Origin::of_path(path).for_client(client), path.to_owned());
    run_io(Class::Stat, origin, move || fs::metadata(path)).await
}

/// The target of the symlink at `path`, as it is written there.
///
/// # Errors
/// Those of readlink(2) and of [`run_io`].
pub async fn read_link(path: &Path, client: u64) -> io::Result<PathBuf> {
    let (origin, path) = (Origin::of_path(path).for_client(client), path.to_owned());
    run_io(Class::Stat, origin, move || fs::read_link(path)).await
}

/// Removes a file. It is no error if there is none.
///
/// # Errors
/// Those of unlink(2) and of [`run_io`].
pub async fn remove_file(path: &Path, client: u64) -> io::Result<()> {
    let (origin, path) = (Origin::of_path(path).for_client(client), path.to_owned());
    let remove = move || match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    run_io(Class::Write, origin, remove).await
}

/// The entries of a directory, in no order, without `.` and `..`.
///
/// # Errors
/// Those of opendir(3) and readdir(3); [`FileTooLarge`](io::ErrorKind::FileTooLarge) if there are more
/// than `entries_max`; and those of [`run_io`].
pub async fn read_directory(
    path: &Path,
    entries_max: usize,
    client: u64,
) -> io::Result<Vec<DirectoryEntry>> {
    let (origin, path) = (Origin::of_path(path).for_client(client), path.to_owned());
    run_io(Class::Stat, origin, move || list(&path, entries_max)).await
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name: any bytes but `/` and NUL.
    pub name: OsString,
    /// The type of the entry itself; a symlink is not followed.
    pub file_type: FileType,
}

fn read(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    // Without NONBLOCK, opening a pipe would block this thread until a writer comes.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let length = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
    if length > bytes_max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = Vec::with_capacity(length);
    // The file may grow while it is read, and files of /proc report a size of 0.
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = beside(path)?;
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&unfinished)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // The file may not even exist; the caller should see the first error.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// A file name in the same directory that no other write uses.
fn beside(path: &Path) -> io::Result<PathBuf> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!(".petrel-{}-{count}.part", std::process::id());
    Ok(path.with_file_name(name))
}

fn list(path: &Path, entries_max: usize) -> io::Result<Vec<DirectoryEntry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entries.len() >= entries_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        entries.push(DirectoryEntry {
            name: entry.file_name(),
            file_type: entry.file_type()?,
        });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that is removed at the end of the test.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let name = format!("petrel-blocking-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).expect("mkdir");
            Directory(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = list(&self.0, 100).expect("it is ours");
            let name = |entry: DirectoryEntry| entry.name.to_string_lossy().into_owned();
            let mut names: Vec<String> = entries.into_iter().map(name).collect();
            names.sort();
            names
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn kind<T: std::fmt::Debug>(result: io::Result<T>) -> io::ErrorKind {
        result.expect_err("it fails").kind()
    }

    #[tokio::test(flavor = "local")]
    async fn a_file_is_written_read_replaced_and_removed() {
        let directory = Directory::new("files");
        let path = directory.0.join("a.txt");
        for text in ["one", "another", ""] {
            let bytes = Bytes::from_static(text.as_bytes());
            write_file_atomically(&path, bytes, 0)
                .await
                .expect("written");
            let read = read_file(&path, 7, 0).await.expect("read");
            assert_eq!(read, text.as_bytes());
            assert_eq!(
                stat(&path, 0).await.expect("there").len(),
                text.len() as u64
            );
        }
        assert_eq!(directory.names(), ["a.txt"]);
        remove_file(&path, 0).await.expect("removed");
        remove_file(&path, 0).await.expect("gone already");
        assert_eq!(kind(stat(&path, 0).await), io::ErrorKind::NotFound);
    }

    #[tokio::test(flavor = "local")]
    async fn what_fails_leaves_nothing_behind() {
        let directory = Directory::new("fails");
        let inner = directory.0.join("inner");
        fs::create_dir(&inner).expect("mkdir");
        let bytes = Bytes::from_static(b"x");
        // A directory has the name already.
        let in_the_way = write_file_atomically(&inner, bytes.clone(), 0).await;
        assert_eq!(kind(in_the_way), io::ErrorKind::IsADirectory);
        let nowhere = write_file_atomically(&directory.0.join("no/a"), bytes.clone(), 0).await;
        assert_eq!(kind(nowhere), io::ErrorKind::NotFound);
        let no_name = write_file_atomically(Path::new("/.."), bytes, 0).await;
        assert_eq!(kind(no_name), io::ErrorKind::InvalidInput);
        assert_eq!(directory.names(), ["inner"]);
    }

    #[tokio::test(flavor = "local")]
    async fn only_regular_files_within_the_limit_are_read() {
        let directory = Directory::new("limits");
        let path = directory.0.join("four");
        fs::write(&path, "four").expect("written");
        assert_eq!(read_file(&path, 4, 0).await.expect("read"), b"four");
        assert_eq!(
            kind(read_file(&path, 3, 0).await),
            io::ErrorKind::FileTooLarge
        );
        // It reports a size of 0 but is not empty.
        let grows = Path::new("/proc/self/status");
        assert_eq!(
            kind(read_file(grows, 10, 0).await),
            io::ErrorKind::FileTooLarge
        );
        for other in [&directory.0, Path::new("/dev/zero")] {
            assert_eq!(
                kind(read_file(other, 4, 0).await),
                io::ErrorKind::InvalidInput
            );
        }
        let pipe = directory.0.join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .expect("mkfifo");
        assert_eq!(
            kind(read_file(&pipe, 4, 0).await),
            io::ErrorKind::InvalidInput
        );
    }

    #[tokio::test(flavor = "local")]
    async fn a_directory_is_listed_whole_or_not_at_all() {
        let directory = Directory::new("list");
        for name in ["a", "b", ".c"] {
            fs::write(directory.0.join(name), "").expect("written");
        }
        let mut listed = read_directory(&directory.0, 3, 0).await.expect("three");
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        assert!(listed.iter().all(|entry| entry.file_type.is_file()));
        assert_eq!(directory.names(), [".c", "a", "b"]);
        let fewer = read_directory(&directory.0, 2, 0).await;
        assert_eq!(kind(fewer), io::ErrorKind::FileTooLarge);
    }
}
