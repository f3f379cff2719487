//! Reads files that directives and options name, without blocking on what is no regular file.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The contents of the file at `path`, if it has at most `bytes_max` bytes.
///
/// # Errors
/// As open(2) and read(2); or it is no regular file, or too long.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    // Without O_NONBLOCK, opening a pipe waits for a writer.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
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
}
