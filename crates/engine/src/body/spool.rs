//! Bytes that are kept until somebody takes them: in memory first, then in a temporary file.
//!
//! A body that must be whole before it goes on, or whose taker is slower than its maker, is pushed
//! in at the end and read from the front. The temporary file has no name from the beginning
//! (O_TMPFILE), so nothing is left behind whatever happens. Knows nothing of sockets; the request
//! body and the replies of backends are kept in it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

use super::{Body, Piece};
use crate::file_cache::FileEntry;
use crate::limits;

/// A queue of bytes with a place in memory and, beyond it, one on disk.
#[derive(Default)]
pub struct Spool {
    place: Place,
    /// Offset of the first byte that is still held; all before were released.
    begin: u64,
    /// Bytes that were pushed in all.
    end: u64,
}

enum Place {
    /// Everything that is held; the first byte is that at `begin`.
    Memory(Vec<u8>),
    /// Byte 0 of the file is that at `base`.
    File { file: Rc<FileEntry>, base: u64 },
}

impl Default for Place {
    fn default() -> Place {
        Place::Memory(Vec::new())
    }
}

impl Spool {
    /// Forgets everything. Memory for small bodies stays, a file does not.
    pub fn clear(&mut self) {
        match &mut self.place {
            Place::Memory(bytes) => {
                bytes.clear();
                bytes.shrink_to(limits::POOLED_BUFFER_BYTES_MAX);
            }
            Place::File { .. } => self.place = Place::default(),
        }
        self.begin = 0;
        self.end = 0;
    }

    /// Appends `bytes`. Beyond [`limits::SPOOL_MEMORY_BYTES_MAX`] a file in one of `directories` is
    /// used, the first in which one can be made.
    ///
    /// # Errors
    /// Those of open(2) and pwrite(2): `StorageFull` above all.
    pub fn push(&mut self, bytes: &[u8], directories: &[PathBuf]) -> io::Result<()> {
        if let Place::Memory(held) = &self.place
            && held.len() + bytes.len() > limits::SPOOL_MEMORY_BYTES_MAX
        {
            let file = temporary_file(directories)?;
            write_all(&file, held, 0)?;
            self.place = Place::File {
                file: FileEntry::from_file(file)?,
                base: self.begin,
            };
        }
        match &mut self.place {
            // Most bodies come at once: what has exactly their size becomes a piece as it is.
            Place::Memory(held) if held.capacity() == 0 => *held = bytes.to_vec(),
            Place::Memory(held) => held.extend_from_slice(bytes),
            Place::File { file, base } => {
                let descriptor = file.descriptor().ok_or(io::ErrorKind::NotFound)?;
                write_all(descriptor, bytes, self.end - *base)?;
            }
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Bytes pushed since the last [`Spool::clear`].
    pub fn pushed(&self) -> u64 {
        self.end
    }

    /// Bytes that are held.
    pub fn held(&self) -> u64 {
        self.end - self.begin
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Whether memory was not enough.
    pub fn is_on_disk(&self) -> bool {
        matches!(self.place, Place::File { .. })
    }

    /// The bytes from `offset` on, if they are in memory; otherwise nothing.
    pub fn in_memory(&self, offset: u64) -> Option<&[u8]> {
        let Place::Memory(held) = &self.place else {
            return None;
        };
        let skipped = usize::try_from(offset.checked_sub(self.begin)?).ok()?;
        held.get(skipped..)
    }

    /// Reads bytes from `offset` on; fewer than asked for only at the end of what is there, 0 when
    /// nothing is there yet.
    ///
    /// # Errors
    /// Those of pread(2); `InvalidInput` for bytes that were released.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset < self.begin {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let there = usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX);
        let wanted = there.min(buffer.len());
        let buffer = &mut buffer[..wanted];
        match &self.place {
            Place::Memory(_) => {
                let bytes = self.in_memory(offset).unwrap_or_default();
                buffer.copy_from_slice(&bytes[..wanted]);
                Ok(wanted)
            }
            Place::File { file, base } => read_full(file, buffer, offset - base),
        }
    }

    /// Gives up the bytes in front of `offset`.
    pub fn release(&mut self, offset: u64) {
        let offset = offset.clamp(self.begin, self.end);
        if let Place::Memory(held) = &mut self.place {
            let count = usize::try_from(offset - self.begin).unwrap_or(held.len());
            held.drain(..count.min(held.len()));
        }
        self.begin = offset;
        if self.is_empty() && self.is_on_disk() {
            self.place = Place::default();
        }
    }

    /// Takes the next stretch off the front: a piece of memory, or of the file, of at most
    /// [`limits::SPOOL_PIECE_BYTES_MAX`].
    pub fn take(&mut self) -> Option<Piece> {
        if self.is_empty() {
            return None;
        }
        let piece = match &mut self.place {
            Place::Memory(held) => Piece::Bytes(Bytes::from(std::mem::take(held))),
            Place::File { file, base } => {
                let length = (self.end - self.begin).min(limits::SPOOL_PIECE_BYTES_MAX);
                let start = self.begin - *base;
                Piece::File {
                    file: Rc::clone(file),
                    range: start..start + length,
                }
            }
        };
        self.begin += piece.length();
        if self.is_empty() && self.is_on_disk() {
            self.place = Place::default();
        }
        Some(piece)
    }

    /// Everything that is held, as a body.
    pub fn into_body(self) -> Body {
        match self.place {
            Place::Memory(held) => Body::from(held),
            Place::File { file, base } => Body::Piece(Piece::File {
                range: self.begin - base..self.end - base,
                file,
            }),
        }
    }
}

/// A file without a name in the first of `directories` that takes one.
fn temporary_file(directories: &[PathBuf]) -> io::Result<File> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for directory in directories {
        match unnamed_file(directory) {
            Ok(file) => return Ok(file),
            Err(error) => {
                let message = format!("a temporary file in {}: {error}", directory.display());
                last = io::Error::new(error.kind(), message);
            }
        }
    }
    Err(last)
}

fn unnamed_file(directory: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    match openat(CWD, directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(File::from(file)),
        // Some file systems (old overlayfs, NFS) have no O_TMPFILE.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => named_and_removed(directory),
        Err(error) => Err(error.into()),
    }
}

/// The same in two steps.
fn named_and_removed(directory: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    for attempt in 0..NAMES_TRIED_MAX {
        let name = format!(".petrel-{}-{:x}-{attempt}", std::process::id(), unique());
        let path = directory.join(name);
        match openat(CWD, &path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(File::from(file));
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// A number no other call of this process gets.
fn unique() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

fn write_all(file: impl std::os::fd::AsFd, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(&file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = bytes.get(count..).unwrap_or_default();
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn read_full(file: &FileEntry, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled: Range<usize> = 0..0;
    while filled.end < buffer.len() {
        match file.read_at(&mut buffer[filled.end..], offset + filled.end as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled.end += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled.end)
}

/// Names tried before giving up; one is nearly always enough.
const NAMES_TRIED_MAX: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn directories() -> Vec<PathBuf> {
        vec![std::env::temp_dir()]
    }

    fn taken(spool: &mut Spool) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(mut piece) = spool.take() {
            let mut buffer = vec![0; 100_000];
            while piece.length() > 0 {
                let count = piece.read(&mut buffer).expect("it is there");
                all.extend_from_slice(&buffer[..count]);
            }
        }
        all
    }

    #[test]
    fn small_amounts_stay_in_memory() {
        let mut spool = Spool::default();
        spool.push(b"hello ", &[]).expect("no file is needed");
        spool.push(b"world", &[]).expect("no file is needed");
        assert_eq!(spool.in_memory(6), Some(&b"world"[..]));
        let mut buffer = [0; 4];
        assert_eq!(spool.read_at(&mut buffer, 9).expect("memory"), 2);
        assert_eq!(&buffer[..2], b"ld");
        spool.release(6);
        assert!(spool.read_at(&mut buffer, 0).is_err());
        assert_eq!(taken(&mut spool), b"world");
        assert!(spool.is_empty());
    }

    #[test]
    fn large_amounts_go_to_a_file_and_come_back_in_order() {
        let mut spool = Spool::default();
        let data: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
        for part in data.chunks(10_007) {
            spool.push(part, &directories()).expect("a temporary file");
        }
        assert!(spool.is_on_disk());
        let mut buffer = [0; 1000];
        assert_eq!(spool.read_at(&mut buffer, 150_000).expect("disk"), 1000);
        assert_eq!(buffer[..], data[150_000..151_000]);
        spool.release(1);
        assert_eq!(taken(&mut spool), &data[1..]);
        assert!(!spool.is_on_disk(), "the file is given back");
        spool.push(b"again", &[]).expect("memory again");
        assert_eq!(taken(&mut spool), b"again");
    }

    #[test]
    fn taking_and_pushing_alternate_in_both_places() {
        let mut spool = Spool::default();
        let part = vec![7; limits::SPOOL_MEMORY_BYTES_MAX];
        let mut count = 0;
        for _ in 0..5 {
            spool.push(&part, &directories()).expect("pushed");
            spool.push(b"x", &directories()).expect("pushed");
            count += taken(&mut spool).len();
        }
        assert_eq!(count, 5 * (part.len() + 1));
        assert_eq!(spool.pushed(), count as u64);
    }

    #[test]
    fn without_a_directory_the_failure_is_told() {
        let mut spool = Spool::default();
        let much = vec![0; limits::SPOOL_MEMORY_BYTES_MAX + 1];
        let error = spool.push(&much, &["/nonexistent".into()]).expect_err("no");
        assert!(error.to_string().contains("/nonexistent"), "{error}");
    }

    #[test]
    fn a_body_made_of_it_has_its_length() {
        let mut spool = Spool::default();
        let much = vec![1; limits::SPOOL_MEMORY_BYTES_MAX * 3];
        spool.push(&much, &directories()).expect("pushed");
        spool.release(10);
        assert_eq!(spool.into_body().length(), Some(much.len() as u64 - 10));
    }
}
