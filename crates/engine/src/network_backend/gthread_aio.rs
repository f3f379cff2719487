//! `gthread-aio`: threads read, the worker sends. What `auto` does with what is not in the page cache.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use rustix::fs::{Advice, fadvise};

use super::chunk::{Chunk, Memory, within_memory};
use super::counters::count_async;
use super::{Reader, Reading};
use crate::blocking::{self, Class};
use crate::file_cache::FileEntry;
use crate::file_cache::read::read_full;
use crate::limits::READ_AHEAD_STEP_BYTES as READ_AHEAD_STEP;
use crate::settings::core::NetworkBackend;

/// Reads by the threads of the process.
pub(super) struct GthreadAio;

impl Reader for GthreadAio {
    fn read(&self, file: &Rc<FileEntry>, offset: u64, length: usize, client: u64) -> Reading {
        let descriptor = file.share_descriptor();
        let origin = file.origin(client, length);
        let running = blocking::run_for(Class::Read, origin, move || {
            let descriptor = descriptor.ok_or(io::ErrorKind::NotFound)?;
            read_chunk(&*descriptor, offset, within_memory(length))
        });
        Box::pin(async move {
            let chunk = running.await??;
            count_async(NetworkBackend::GthreadAio, chunk.bytes.len());
            Ok(chunk)
        })
    }
}

/// Reads a chunk, however long that takes. The kernel is always asked for the next step before the one before
/// has come, so that the disk goes on where it is; and not for all at once, because a disk that takes the
/// nearest first would then begin a chunk at its end half of the time, and go through it backwards.
pub(super) fn read_chunk(file: impl AsFd, offset: u64, length: usize) -> io::Result<Chunk> {
    let mut memory = Memory::new(length);
    ask_for(&file, offset, length.min(2 * READ_AHEAD_STEP));
    let mut count = 0;
    for step in memory.as_mut().chunks_mut(READ_AHEAD_STEP) {
        let read = read_full(&file, step, offset + count as u64)?;
        count += read;
        if read < step.len() {
            break;
        }
        let next = count + READ_AHEAD_STEP;
        let left = length.saturating_sub(next).min(READ_AHEAD_STEP);
        ask_for(&file, offset + next as u64, left);
    }
    Ok(Chunk::new(offset, memory.into_bytes(count)))
}

/// Tells the kernel what will be read next. By itself it reads ahead in steps of 128 KiB, and between two of
/// them the disk goes elsewhere for somebody else.
pub(super) fn ask_for(file: impl AsFd, offset: u64, length: usize) {
    for step in (0..length).step_by(READ_AHEAD_STEP) {
        let left = (length - step).min(READ_AHEAD_STEP) as u64;
        let (at, left) = (offset + step as u64, std::num::NonZeroU64::new(left));
        // Only a hint: where it is not taken, reading does what it always does.
        let _ = fadvise(&file, at, left, Advice::WillNeed);
    }
}
