//! `gthread-aio`: disk threads read, and the worker sends. `auto` does this with what is not in the page
//! cache.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use super::steps::read_chunk;
use super::{ChunkReader, ChunkReading, NetworkBackend};
use crate::blocking::{self, Class};
use crate::file_accounts::FileAccounts;
use crate::file_cache::FileEntry;
use crate::mounts::Storage;

/// Reads by the disk threads.
pub(super) struct GthreadAio(pub(crate) Arc<FileAccounts>);

impl ChunkReader for GthreadAio {
    fn read(&self, file: &Rc<FileEntry>, offset: u64, length: usize, client: u64) -> ChunkReading {
        let descriptor = file.share_descriptor();
        let origin = file.origin(client, length);
        let is_local = file.storage() == Storage::Disk;
        let accounts = Arc::clone(&self.0);
        let running = blocking::run_for(Class::Read, origin, move || {
            let descriptor = descriptor.ok_or(io::ErrorKind::NotFound)?;
            let length = accounts.within_memory(length);
            read_chunk(&accounts, &descriptor, offset, length, is_local)
        });
        let accounts = Arc::clone(&self.0);
        Box::pin(async move {
            let chunk = running.await??;
            accounts.count_async(NetworkBackend::GthreadAio, chunk.bytes.len());
            Ok(chunk)
        })
    }
}
