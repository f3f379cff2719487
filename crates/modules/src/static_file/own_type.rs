//! The type that a file bears in an extended attribute (`mimetype.use-xattr`).
//!
//! Asking for it may wait for the disk, so a thread does that, once for each file as long as that stays the same:
//! then the type is among the fields that are kept with the file.

use std::fmt;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::{Context, Poll};

use petrel_engine::Exchange;
use petrel_engine::file_cache::FileEntry;
use petrel_engine::module::{Outcome, Pending};
use petrel_engine::mounts::Storage;
use petrel_engine::proto::accept::Coding;
use petrel_engine::proto::status::Status;
use petrel_engine::settings::CoreSettings;

use super::Fields;
use crate::disk_jobs::{Jobs, Waiter};
use crate::file_wait::FileWait;

/// The type of `file`, if it bears one and telling it waits for nobody but a disk of this machine.
pub(super) fn at_once(file: &FileEntry, core: &CoreSettings) -> Option<Vec<u8>> {
    let name = core.mime_xattr.as_ref()?;
    if file.storage() == Storage::Remote {
        return None;
    }
    read(file.descriptor()?, name)
}

/// Whether the type of `file` has to be asked for before its fields can be made.
pub(super) fn is_to_be_asked_for(file: &FileEntry, core: &CoreSettings) -> bool {
    core.mime_xattr.is_some() && file.descriptor().is_some()
}

/// Sends `file` when its type is known.
pub(super) struct Asking {
    fields: Fields,
    file: Rc<FileEntry>,
    coding: Option<Coding>,
    /// What the fields are kept under.
    key: u64,
    waiter: Waiter<Option<Vec<u8>>>,
    wait: FileWait,
}

impl Asking {
    /// Begins to ask. `None`: too many files are being asked for.
    pub fn begin(
        exchange: &Exchange,
        fields: Fields,
        file: &Rc<FileEntry>,
        coding: Option<Coding>,
        key: u64,
    ) -> Option<Asking> {
        let name = exchange.settings.core.mime_xattr.as_deref()?.to_owned();
        // Whoever drops the work, a worker perhaps, closes nothing.
        let descriptor = file.share_descriptor()?;
        let asked = (file.stat().device, file.stat().inode, name.clone());
        let origin = file.origin(exchange.connection.client_key(), 0);
        let waiter =
            ASKED.with(|jobs| jobs.join(asked, origin, move || read(&*descriptor, &name)))?;
        Some(Asking {
            fields,
            file: Rc::clone(file),
            coding,
            key,
            waiter,
            wait: FileWait::new(exchange),
        })
    }
}

impl Pending for Asking {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        Poll::Ready(match self.waiter.poll(context) {
            Poll::Ready(Ok(own)) => {
                let file = Rc::clone(&self.file);
                self.fields.send(exchange, file, self.coding, self.key, own);
                Outcome::Answer
            }
            Poll::Ready(Err(not_done)) => refuse(exchange, &not_done),
            Poll::Pending if self.wait.is_over(exchange) => {
                let path = exchange.physical.path.clone();
                FileWait::give_up(exchange, "content", &path)
            }
            Poll::Pending => return Poll::Pending,
        })
    }
}

/// The answer when a file cannot be asked for its type now.
pub(super) fn refuse(exchange: &mut Exchange, cause: &dyn fmt::Display) -> Outcome {
    exchange.log_error(
        "content",
        format_args!(
            "the type of a file cannot be asked for: {cause} path={:?}",
            String::from_utf8_lossy(&exchange.physical.path)
        ),
    );
    exchange.answer(Status::SERVICE_UNAVAILABLE)
}

fn read(file: impl AsFd, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; TYPE_BYTES_MAX];
    let length = rustix::fs::fgetxattr(file, name, &mut value[..]).ok()?;
    let value = value.get(..length).filter(|value| !value.is_empty());
    value.map(<[u8]>::to_vec)
}

thread_local! {
    /// Files that this worker asks for their types: device, inode and name of the attribute.
    static ASKED: Jobs<(u64, u64, String), Option<Vec<u8>>> = Jobs::new(FILES_MAX);
}

/// Files that a worker asks for their types at the same time. Those who want another one get 503.
const FILES_MAX: usize = 1024;

/// Bytes of a type. A longer one is left aside.
const TYPE_BYTES_MAX: usize = 128;
