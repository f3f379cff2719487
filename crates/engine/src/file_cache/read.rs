//! Reads files: either only from the page cache, or also from the disk.

use std::io;
use std::os::fd::AsFd;

use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use super::FileEntry;
use crate::mounts::Storage;
use crate::system_calls::made;

/// Reads from `offset` what can be read without waiting; 0 means the end of the file. `None`: reading would
/// wait.
///
/// # Errors
/// Those of the file; `NotFound` if it is not open.
pub(crate) fn read_at_once(
    file: &FileEntry,
    buffer: &mut [u8],
    offset: u64,
) -> io::Result<Option<usize>> {
    let descriptor = file.descriptor().ok_or(io::ErrorKind::NotFound)?;
    let read = match file.storage() {
        Storage::Remote => return Ok(None),
        Storage::Memory => read_full(descriptor, buffer, offset),
        Storage::Disk => read_cached(descriptor, buffer, offset),
    };
    match read {
        Ok(count) => Ok(Some(count)),
        Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Fills `buffer` from `offset`; returns fewer bytes only at the end of the file. May wait for the disk.
pub(crate) fn read_full(file: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut filled = 0;
    while let Some(room @ [_, ..]) = buffer.get_mut(filled..) {
        made();
        match pread(&file, room, offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(filled)
}

/// Reads what the page cache has from `offset` and never waits. `EAGAIN`: the first byte is not there.
/// `EOPNOTSUPP`: the file system cannot tell (overlayfs, FUSE, tmpfs; RWF_NOWAIT exists since Linux 4.14).
pub(crate) fn read_cached(file: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let slices = &mut [std::io::IoSliceMut::new(buffer)];
    loop {
        made();
        match preadv2(&file, slices, offset, ReadWriteFlags::NOWAIT) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
