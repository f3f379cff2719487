//! `gthread-aio`: threads read, the worker sends. What `auto` does with what is not in the page cache.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use rustix::fs::{Advice, fadvise};

use super::chunk::{Chunk, Memory, count_async};
use super::{Reader, Reading};
use crate::blocking::{self, Class};
use crate::file_cache::FileEntry;
use crate::file_cache::read::read_full;
use crate::limits;
use crate::settings::core::NetworkBackend;

/// Reads by the threads of the process.
pub(super) struct GthreadAio;

impl Reader for GthreadAio {
    fn read(&self, file: &Rc<FileEntry>, offset: u64, length: usize, client: u64) -> Reading {
        let descriptor = file.share_descriptor();
        let origin = file.origin(client, length);
        let running = blocking::run_for(Class::Read, origin, move || {
            let descriptor = descriptor.ok_or(io::ErrorKind::NotFound)?;
            read_chunk(&*descriptor, offset, length)
        });
        Box::pin(async move {
            let chunk = running.await??;
            count_async(NetworkBackend::GthreadAio, chunk.bytes.len());
            Ok(chunk)
        })
    }
}

/// Reads a chunk, however long that takes.
pub(super) fn read_chunk(file: impl AsFd, offset: u64, length: usize) -> io::Result<Chunk> {
    let mut memory = Memory::new(length);
    ask_for(&file, offset, length as u64);
    let count = read_full(&file, memory.as_mut(), offset)?;
    Ok(Chunk::new(offset, memory.into_bytes(count)))
}

/// Tells the kernel all that will be read, before the first byte of it is. By itself it reads ahead in small
/// steps, and between two of them the disk goes elsewhere for somebody else.
pub(super) fn ask_for(file: impl AsFd, offset: u64, length: u64) {
    if length <= limits::CHUNK_BYTES_FIRST as u64 {
        return;
    }
    let steps = (offset..offset + length).step_by(READ_AHEAD_STEP);
    for step in steps {
        let left = (offset + length - step).min(limits::READ_AHEAD_STEP_BYTES);
        // Only a hint: where it is not taken, reading does what it always does.
        let _ = fadvise(
            &file,
            step,
            std::num::NonZeroU64::new(left),
            Advice::WillNeed,
        );
    }
}

const READ_AHEAD_STEP: usize = limits::READ_AHEAD_STEP_BYTES as usize;
