//! A tree of files in a temporary directory of its own.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// A temporary directory, which is removed with its content when this is dropped. Paths for its methods are
/// relative to it.
///
/// # Panics
/// Every method panics if the file system reports an error: a test cannot continue without its files.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    /// An empty directory.
    #[expect(
        clippy::new_without_default,
        reason = "it makes a directory, which a default should not"
    )]
    pub fn new() -> Tree {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("petrel-test-{}-{number}", std::process::id());
        let base = std::env::temp_dir()
            .canonicalize()
            .expect("there is a temporary directory");
        let root = base.join(name);
        // A directory that an earlier process with the same id left behind.
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).expect("a temporary directory");
        // The server may run as another user.
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).expect("it is ours");
        Tree { root }
    }

    /// The path of the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The absolute path of `path`.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Writes a file, in place if it exists, and creates its directories.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) -> &Tree {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("it is below the root")).expect("directories");
        fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self
    }

    /// Replaces `path` by a new file, by rename(2).
    pub fn replace(&self, path: &str, content: impl AsRef<[u8]>) -> &Tree {
        let new = format!("{path}.new");
        self.write(&new, content).rename(&new, path)
    }

    /// Copies a file, or the content of a directory, to `to`. Links are replaced by their targets.
    pub fn copy(&self, from: impl AsRef<Path>, to: &str) -> &Tree {
        self.copy_by("--dereference", from.as_ref(), to)
    }

    /// The same, with symbolic links as they are.
    pub fn copy_with_links(&self, from: impl AsRef<Path>, to: &str) -> &Tree {
        self.copy_by("--no-dereference", from.as_ref(), to)
    }

    fn copy_by(&self, links: &str, from: &Path, to: &str) -> &Tree {
        let to = self.path(to);
        fs::create_dir_all(to.parent().expect("it is below the root")).expect("directories");
        let copied = Command::new("cp")
            .args(["--recursive", links, "--no-target-directory"])
            .arg(from)
            .arg(to)
            .status();
        let is_done = copied.is_ok_and(|status| status.success());
        assert!(is_done, "cp {}", from.display());
        self
    }

    /// Creates a directory and those above it.
    pub fn directory(&self, path: &str) -> &Tree {
        fs::create_dir_all(self.path(path)).expect("a directory");
        self
    }

    /// Renames a file, symlink or directory, replacing what has the new name.
    pub fn rename(&self, from: &str, to: &str) -> &Tree {
        fs::rename(self.path(from), self.path(to)).expect("rename");
        self
    }

    /// Removes a file or symlink.
    pub fn remove(&self, path: &str) -> &Tree {
        fs::remove_file(self.path(path)).expect("remove");
        self
    }

    /// Creates a symlink at `path` with exactly this `target`.
    pub fn symlink(&self, target: impl AsRef<Path>, path: &str) -> &Tree {
        symlink(target, self.path(path)).expect("symlink");
        self
    }

    /// Sets the permission bits.
    pub fn mode(&self, path: &str, mode: u32) -> &Tree {
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).expect("chmod");
        self
    }

    /// Truncates a file, or extends it with zeros.
    pub fn set_length(&self, path: &str, bytes: u64) -> &Tree {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(self.path(path))
            .expect("open");
        file.set_len(bytes).expect("truncate");
        self
    }

    /// Sets the modification time of a file or directory, in seconds since the epoch.
    pub fn modified(&self, path: &str, seconds: u64) -> &Tree {
        let file = fs::File::open(self.path(path)).expect("open");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        file.set_modified(time).expect("utimes");
        self
    }

    /// The names in a directory, sorted.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).expect("a directory");
        let mut names: Vec<String> = entries
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    }

    /// The content of a file.
    pub fn read(&self, path: &str) -> Vec<u8> {
        fs::read(self.path(path)).expect("read")
    }

    /// The content of a file as text; empty if it does not exist.
    pub fn text(&self, path: &str) -> String {
        let content = fs::read(self.path(path)).unwrap_or_default();
        String::from_utf8_lossy(&content).into_owned()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // If this fails, only files in the temporary directory are left behind.
        let _ = fs::remove_dir_all(&self.root);
    }
}
