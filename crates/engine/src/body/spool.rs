//! Bytes that are kept until somebody takes them: in memory first, then in a temporary file.
//!
//! A body that must be whole before it goes on, or whose taker is slower than its maker, is pushed
//! in at the end and read from the front. The temporary file has no name from the beginning
//! (O_TMPFILE), so nothing is left behind whatever happens. Knows nothing of sockets; the request
//! body and the replies of backends are kept in it.

use std::cell::Cell;
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
    Memory(Memory),
    /// Byte 0 of the file is that at `base`.
    File { file: Rc<FileEntry>, base: u64 },
}

impl Default for Place {
    fn default() -> Place {
        Place::Memory(Memory::default())
    }
}

impl Spool {
    /// Forgets everything. Memory for small bodies stays, a file does not.
    pub fn clear(&mut self) {
        match &mut self.place {
            Place::Memory(memory) => memory.clear(),
            Place::File { .. } => self.place = Place::default(),
        }
        self.begin = 0;
        self.end = 0;
    }

    /// Appends `bytes`. What memory has no room for goes to a file in one of `directories`, the first in
    /// which one can be made.
    ///
    /// # Errors
    /// Those of open(2) and pwrite(2): `StorageFull` above all.
    pub fn push(&mut self, bytes: &[u8], directories: &[PathBuf]) -> io::Result<()> {
        if let Place::Memory(memory) = &mut self.place
            && !memory.has_room_for(bytes.len())
        {
            let file = temporary_file(directories)?;
            write_all(&file, &memory.bytes, 0)?;
            self.place = Place::File {
                file: FileEntry::from_file(file)?,
                base: self.begin,
            };
        }
        match &mut self.place {
            // Most bodies come at once: what has exactly their size becomes a piece as it is.
            Place::Memory(memory) if memory.bytes.capacity() == 0 => memory.bytes = bytes.to_vec(),
            Place::Memory(memory) => memory.bytes.extend_from_slice(bytes),
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
        let Place::Memory(memory) = &self.place else {
            return None;
        };
        let skipped = usize::try_from(offset.checked_sub(self.begin)?).ok()?;
        memory.bytes.get(skipped..)
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
        if let Place::Memory(memory) = &mut self.place {
            let held = &mut memory.bytes;
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
            Place::Memory(memory) => Piece::Bytes(std::mem::take(memory).into_bytes()),
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
            Place::Memory(memory) if memory.bytes.is_empty() => Body::Empty,
            Place::Memory(memory) => Body::Piece(Piece::Bytes(memory.into_bytes())),
            Place::File { file, base } => Body::Piece(Piece::File {
                range: self.begin - base..self.end - base,
                file,
            }),
        }
    }
}

/// Bytes in memory. What is more than [`limits::SPOOL_MEMORY_BYTES_MAX`] counts for a budget that all
/// spools of a worker share, until it is sent or forgotten.
#[derive(Default)]
struct Memory {
    bytes: Vec<u8>,
    counted: usize,
}

thread_local! {
    /// What this worker's spools have counted.
    static COUNTED: Cell<usize> = const { Cell::new(0) };
}

impl Memory {
    /// Whether `count` more bytes may stay here; counts them.
    fn has_room_for(&mut self, count: usize) -> bool {
        let length = self.bytes.len() + count;
        if length <= limits::SPOOL_MEMORY_BYTES_MAX {
            return true;
        }
        let more = length.saturating_sub(self.counted);
        let all = COUNTED.get() + more;
        let has_room =
            length <= limits::SPOOL_LARGE_BYTES_MAX && all <= limits::SPOOL_BUDGET_BYTES_MAX;
        if has_room {
            COUNTED.set(all);
            self.counted = length;
        }
        has_room
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(limits::POOLED_BUFFER_BYTES_MAX);
        self.give_back();
    }

    fn give_back(&mut self) {
        let counted = std::mem::take(&mut self.counted);
        // Bytes that another thread was given count there: nobody does that, and it would only make
        // the budget wrong.
        COUNTED.set(COUNTED.get().saturating_sub(counted));
    }

    /// The bytes; they count until nobody holds them.
    fn into_bytes(mut self) -> Bytes {
        match self.counted {
            0 => Bytes::from(std::mem::take(&mut self.bytes)),
            _ => Bytes::from_owner(self),
        }
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.give_back();
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
    fn what_is_held_in_memory_counts_until_it_is_gone() {
        let before = COUNTED.get();
        let mut spool = Spool::default();
        let part = vec![1; limits::SPOOL_MEMORY_BYTES_MAX];
        spool.push(&part, &[]).expect("memory");
        assert_eq!(COUNTED.get(), before);
        spool.push(&part, &[]).expect("memory");
        assert_eq!(COUNTED.get(), before + 2 * part.len());
        let piece = spool.take().expect("it was pushed");
        assert_eq!(piece.length(), 2 * part.len() as u64);
        assert_eq!(COUNTED.get(), before + 2 * part.len(), "it is being sent");
        drop(piece);
        assert_eq!(COUNTED.get(), before);
    }

    #[test]
    fn without_a_budget_left_the_disk_is_used() {
        let part = vec![1; limits::SPOOL_LARGE_BYTES_MAX];
        let mut spools: Vec<Spool> = Vec::new();
        while spools.last().is_none_or(|spool| !spool.is_on_disk()) {
            assert!(spools.len() < 1000);
            let mut spool = Spool::default();
            spool.push(&part, &directories()).expect("pushed");
            spools.push(spool);
        }
        let in_memory = spools.len() - 1;
        assert_eq!(in_memory * part.len(), limits::SPOOL_BUDGET_BYTES_MAX);
    }

    #[test]
    fn large_amounts_go_to_a_file_and_come_back_in_order() {
        let mut spool = Spool::default();
        let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
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
        let part = vec![7; limits::SPOOL_LARGE_BYTES_MAX];
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
        let much = vec![0; limits::SPOOL_LARGE_BYTES_MAX + 1];
        let error = spool.push(&much, &["/nonexistent".into()]).expect_err("no");
        assert!(error.to_string().contains("/nonexistent"), "{error}");
    }

    #[test]
    fn a_body_made_of_it_has_its_length() {
        let mut spool = Spool::default();
        let much = vec![1; limits::SPOOL_LARGE_BYTES_MAX * 3];
        spool.push(&much, &directories()).expect("pushed");
        spool.release(10);
        assert_eq!(spool.into_body().length(), Some(much.len() as u64 - 10));
    }
}
