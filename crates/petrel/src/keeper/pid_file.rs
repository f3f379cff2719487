//! `server.pid-file`: holds the keeper's process id for as long as the keeper runs.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The pid file of this process. The process that wrote it removes it when it drops the value, but only if
/// the file still holds its number: a server that starts while this one stops may have written its own.
pub(crate) struct PidFile {
    path: PathBuf,
    owner: u32,
}

impl PidFile {
    /// Writes the process id to `path`.
    ///
    /// # Errors
    /// The file cannot be written, or the path is no regular file.
    pub(crate) fn write(path: &Path) -> io::Result<PidFile> {
        // A symbolic link is refused, too: the server's user may be able to write to the directory.
        if fs::symlink_metadata(path).is_ok_and(|data| !data.is_file()) {
            let message = "what is there is no regular file";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        let owner = std::process::id();
        // An absolute path still works if the process changes its directory.
        let path = std::path::absolute(path)?;
        let mut options = File::options();
        options.write(true).create(true).truncate(true);
        let mut file = options.custom_flags(careful()).open(&path)?;
        let file_of_ours = PidFile { path, owner };
        writeln!(file, "{owner}")?;
        Ok(file_of_ours)
    }

    /// The path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn is_ours(&self) -> io::Result<bool> {
        let mut options = File::options();
        let file = options
            .read(true)
            .custom_flags(careful())
            .open(&self.path)?;
        let mut text = String::new();
        file.take(PID_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text.trim_end() == self.owner.to_string())
    }
}

/// The server's user may be able to write to the directory, so links are not followed, and opening a pipe
/// must not block.
fn careful() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if self.owner == std::process::id() && self.is_ours().unwrap_or(false) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// More than a process id and a line end take.
const PID_BYTES_MAX: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_goes_with_the_value_and_directories_and_links_are_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pid");
        let file = PidFile::write(&path).expect("written");
        let text = fs::read_to_string(&path).expect("there");
        assert_eq!(text, format!("{}\n", std::process::id()));
        drop(file);
        assert!(!path.exists());
        let file = PidFile::write(&path).expect("written");
        fs::write(&path, "1\n").expect("another server writes it");
        drop(file);
        assert_eq!(fs::read_to_string(&path).expect("it stays"), "1\n");
        fs::remove_file(&path).expect("there");
        assert!(PidFile::write(directory.path()).is_err());
        fs::write(directory.path().join("precious"), "untouched").expect("a file");
        std::os::unix::fs::symlink("precious", &path).expect("a link");
        assert!(PidFile::write(&path).is_err());
        let text = fs::read_to_string(directory.path().join("precious"));
        assert_eq!(text.expect("there"), "untouched");
    }
}
