//! Reads files that directives and options name, without blocking on what is no regular file.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// The contents of the file at `path`, if it has at most `bytes_max` bytes.
///
/// # Errors
/// As open(2) and read(2); or it is no regular file, or too long.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_opened(&open(path, OFlags::empty())?, bytes_max)
}

/// As [`read`], for a file in a directory that another user may write to: `path` may be no link, and the file
/// must be that user's or root's. So that user has read of no file that is not the user's own.
///
/// # Errors
/// As [`read`]; or it is a link, or another user's.
pub(crate) fn read_of_directory(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = open(path, OFlags::NOFOLLOW)?;
    let owner = path.parent().map(Path::metadata).transpose()?;
    let owner = owner.map_or(0, |directory| directory.uid());
    let data = file.metadata()?;
    // A second name of another user's file (link(2)) would not tell by its owner alone.
    if data.uid() != owner && (data.uid() != 0 || data.nlink() > 1) {
        return Err(io::Error::other(
            "it belongs to another user than its directory",
        ));
    }
    read_opened(&file, bytes_max)
}

fn open(path: &Path, more: OFlags) -> io::Result<File> {
    // Without O_NONBLOCK, opening a pipe waits for a writer.
    let flags = (OFlags::NONBLOCK | more).bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(path)
}

fn read_opened(file: &File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let data = file.metadata()?;
    if data.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !data.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(io::Error::other(format!(
            "it is longer than {bytes_max} bytes"
        ))),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn what_is_no_file_or_too_long_is_refused_at_once() {
        let tree = Tree::new(&[]);
        let path = |name: &str| tree.path(name);
        tree.write("file", "four");
        let read = |name: &str, bytes_max| {
            read(path(name).as_ref(), bytes_max).map_err(|error| error.to_string())
        };
        assert_eq!(read("file", 4).as_deref(), Ok(&b"four"[..]));
        assert_eq!(read("file", 3), Err("it is longer than 3 bytes".to_owned()));
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("pipe").as_str(),
            rustix::fs::FileType::Fifo,
            mode,
            0,
        )
        .expect("made");
        assert_eq!(read("pipe", 4), Err("it is no regular file".to_owned()));
        assert!(read(".", 4).is_err() && read("missing", 4).is_err());
    }
    #[test]
    fn links_and_files_of_others_are_not_read_in_a_directory_of_another_user() {
        let tree = Tree::new(&[]);
        tree.write("secret", "root's");
        std::fs::create_dir(tree.path("acme")).expect("made");
        tree.write("acme/own", "own");
        tree.write("acme/of-root", "root's");
        let path = |name: &str| tree.path(&format!("acme/{name}"));
        std::os::unix::fs::symlink(tree.path("secret"), path("link")).expect("made");
        std::fs::hard_link(tree.path("secret"), path("second-name")).expect("made");
        let read = |name: &str| read_of_directory(path(name).as_ref(), 10).ok();
        assert_eq!(read("own").as_deref(), Some(&b"own"[..]));
        assert_eq!(read("link"), None);
        // Only root can give files to others.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        for name in ["", "own"] {
            std::os::unix::fs::chown(path(name), Some(65534), None).expect("root may");
        }
        assert_eq!(read("own").as_deref(), Some(&b"own"[..]));
        assert_eq!(read("of-root").as_deref(), Some(&b"root's"[..]));
        assert_eq!(read("second-name"), None);
        std::os::unix::fs::chown(path("own"), Some(1), None).expect("root may");
        assert_eq!(read("own"), None);
    }
}
