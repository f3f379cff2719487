//! Reading files: what is in the page cache, or as far as it takes.

use std::io;
use std::os::fd::AsFd;

use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use super::FileEntry;
use crate::mounts::Storage;

/// Reads what is there without anybody waiting, from `offset` on; 0 is the end of the file. `None`: it has to be
/// waited for.
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

/// Fills `buffer` from `offset` on; fewer bytes only at the end of the file. May wait for the disk.
pub(crate) fn read_full(file: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut filled = 0;
    while let Some(room @ [_, ..]) = buffer.get_mut(filled..) {
        match pread(&file, room, offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(filled)
}

/// Reads what is in the page cache from `offset` on, and waits for nothing. `EAGAIN` if the first byte is
/// not there, `EOPNOTSUPP` if the file system cannot tell (overlayfs, FUSE, tmpfs; RWF_NOWAIT is of
/// Linux 4.14).
pub(crate) fn read_cached(file: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let slices = &mut [std::io::IoSliceMut::new(buffer)];
    loop {
        match preadv2(&file, slices, offset, ReadWriteFlags::NOWAIT) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
