//! `gthread-aio`: threads read, the worker sends. What `auto` does with what is not in the page cache.

use std::io;
use std::rc::Rc;

use super::chunk::within_memory;
use super::counters::count_async;
use super::steps::read_chunk;
use super::{Reader, Reading};
use crate::blocking::{self, Class};
use crate::file_cache::FileEntry;
use crate::mounts::Storage;
use crate::settings::core::NetworkBackend;

/// Reads by the threads of the process.
pub(super) struct GthreadAio;

impl Reader for GthreadAio {
    fn read(&self, file: &Rc<FileEntry>, offset: u64, length: usize, client: u64) -> Reading {
        let descriptor = file.share_descriptor();
        let origin = file.origin(client, length);
        let is_local = file.storage() == Storage::Disk;
        let running = blocking::run_for(Class::Read, origin, move || {
            let descriptor = descriptor.ok_or(io::ErrorKind::NotFound)?;
            read_chunk(&descriptor, offset, within_memory(length), is_local)
        });
        Box::pin(async move {
            let chunk = running.await??;
            count_async(NetworkBackend::GthreadAio, chunk.bytes.len());
            Ok(chunk)
        })
    }
}
