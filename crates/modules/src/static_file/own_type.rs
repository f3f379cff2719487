//! The type in a file's extended attribute (`mimetype.use-xattr`).
//!
//! Reading it may wait for the disk, so a disk thread does it, once for each file as long as the file stays
//! the same: then the type is one of the fields that are kept with the file.

use std::fmt;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt;
use petrel_engine::Exchange;
use petrel_engine::blocking::{FileDeadline, JobWaiter, NotDone, SharedJobs};
use petrel_engine::cause::{CauseCode, ErrorCause};
use petrel_engine::cold_files::{cause_of_failure, tell_holder_of_own_file};
use petrel_engine::file_cache::FileEntry;
use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::module::{Outcome, Pending};
use petrel_engine::mounts::Storage;
use petrel_engine::proto::accept::Coding;
use petrel_engine::settings::CoreSettings;
use petrel_engine::waits::HolderText;
use rustix::io::Errno;

use super::FileFields;

/// The type in the attribute of `file`, if it has one and reading it needs only a disk of this machine. An
/// error counts as no type, because the result is not kept.
pub(super) fn at_once(file: &FileEntry, core: &CoreSettings) -> Option<Vec<u8>> {
    let name = core.mime_xattr.as_ref()?;
    if file.storage() == Storage::Remote {
        return None;
    }
    read(file.descriptor()?, name).ok().flatten()
}

/// Whether the attribute of `file` has to be read before its fields can be made.
pub(super) fn is_to_be_asked_for(file: &FileEntry, core: &CoreSettings) -> bool {
    core.mime_xattr.is_some() && file.descriptor().is_some()
}

/// Sends `file` when its attribute has been read.
pub(super) struct Asking {
    fields: FileFields,
    file: Rc<FileEntry>,
    coding: Option<Coding>,
    /// The key that the fields are kept under.
    key: u64,
    waiter: JobWaiter<Result<OwnType, NotDone>>,
    deadline: FileDeadline,
}

impl Asking {
    /// Starts to read the attribute. `None`: too many files are being read.
    pub(crate) fn begin(
        exchange: &Exchange,
        fields: FileFields,
        file: &Rc<FileEntry>,
        coding: Option<Coding>,
        key: u64,
    ) -> Option<Asking> {
        let name = exchange.settings.core.mime_xattr.as_deref()?.to_owned();
        // A shared descriptor, so that dropping the work on any thread does not close the file.
        let descriptor = file.share_descriptor()?;
        let asked = (file.stat().device, file.stat().inode, name.clone());
        let origin = file.origin(exchange.connection.client_key(), 0);
        let jobs = exchange.worker.belonging(AskedTypes::default);
        let ask = move || read(&*descriptor, &name);
        let waiter = jobs.join_next(asked, FILES_MAX, origin, ask)?;
        Some(Asking {
            fields,
            file: Rc::clone(file),
            coding,
            key,
            waiter,
            deadline: exchange.file_deadline(),
        })
    }
}

impl Pending for Asking {
    fn waits_in(&self) -> Option<Stage> {
        Some(Stage::Stat)
    }

    fn holder(&self, exchange: &Exchange, _: Nanos, text: &mut HolderText<'_>) {
        tell_holder_of_own_file(exchange, text);
    }

    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let polled = self.waiter.poll_unpin(context);
        Poll::Ready(match ready!(self.deadline.limit(polled, context)) {
            Ok(Ok(Ok(own))) => {
                let file = Rc::clone(&self.file);
                self.fields.send(exchange, file, self.coding, self.key, own);
                Outcome::Answer
            }
            // The type by name must not be used instead, because it would be kept for as long as the file
            // stays the same.
            Ok(Ok(Err(errno))) => refuse(exchange, cause_of_failure(errno), &errno),
            Ok(Err(not_done)) => refuse(exchange, CauseCode::DiskShortage.into(), &not_done),
            Err(_) => {
                let path = exchange.physical.path.clone();
                exchange.answer_late_file("content", &path)
            }
        })
    }
}

/// The answer when the attribute of a file cannot be read now.
pub(super) fn refuse(
    exchange: &mut Exchange,
    cause: ErrorCause,
    why: &dyn fmt::Display,
) -> Outcome {
    let outcome = exchange.fail(cause);
    exchange.log_error(
        "content",
        format_args!(
            "the attribute with the type of a file cannot be read: {why} path={:?}",
            String::from_utf8_lossy(&exchange.physical.path)
        ),
    );
    outcome
}

/// The type in the attribute; `None` if the file has none.
type OwnType = Result<Option<Vec<u8>>, Errno>;

fn read(file: impl AsFd, name: &str) -> OwnType {
    let mut value = [0; TYPE_BYTES_MAX];
    match rustix::fs::fgetxattr(file, name, &mut value[..]) {
        Ok(length) => {
            let value = value.get(..length).filter(|value| !value.is_empty());
            Ok(value.map(<[u8]>::to_vec))
        }
        Err(errno) if is_a_failure(errno) => Err(errno),
        Err(_) => Ok(None),
    }
}

/// Whether the file system, or its server, has failed. Any other error means that there is no such attribute,
/// or none that this process may read.
fn is_a_failure(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::IO
            | Errno::TIMEDOUT
            | Errno::STALE
            | Errno::NOMEM
            | Errno::NOTCONN
            | Errno::CONNABORTED
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::INTR
            | Errno::AGAIN
    )
}

/// The files whose attribute is being read: device, inode, and name of the attribute.
type AskedTypes = SharedJobs<(u64, u64, String), OwnType>;

/// How many files a worker has read at the same time. A request for another one gets 503.
const FILES_MAX: usize = 1024;

/// The longest type. A longer one is ignored.
const TYPE_BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use petrel_engine::blocking::Origin;
    use petrel_engine::proto::status::Status;

    use super::*;
    use crate::testing::Tree;

    /// The status of the answer if reading the attribute results in `own`, and whether anything was kept.
    async fn answered(own: OwnType) -> (u16, bool) {
        let tree = Tree::new(&[("a.html", "text")]);
        let path = tree.path("a.html");
        let site = tree.site("", &[]);
        let mut exchange = site.unanswered("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let opened = std::fs::File::open(&path).expect("it was just made");
        let file = FileEntry::from_file(opened, path.as_bytes()).expect("it is a file");
        exchange.response.status = Status::OK;
        let key = (
            file.stat().device,
            file.stat().inode,
            "user.type".to_owned(),
        );
        let waiter = AskedTypes::default().join_next(key, 1, Origin::default(), move || own);
        let mut asking = Asking {
            fields: FileFields { has_etags: true },
            file: Rc::clone(&file),
            coding: None,
            key: 0,
            waiter: waiter.expect("there is room"),
            deadline: exchange.file_deadline(),
        };
        poll_fn(|context| asking.poll(&mut exchange, context)).await;
        (exchange.response.status.0, file.has_prepared(0))
    }

    #[tokio::test(flavor = "local")]
    async fn a_type_that_could_not_be_read_is_not_taken_for_none() {
        assert_eq!(answered(Ok(Some(b"text/x".to_vec()))).await, (200, true));
        assert_eq!(answered(Ok(None)).await, (200, true));
        assert_eq!(answered(Err(Errno::IO)).await, (500, false));
        assert_eq!(answered(Err(Errno::TIMEDOUT)).await, (504, false));
    }

    #[test]
    fn a_file_without_an_attribute_has_no_type() {
        let tree = Tree::new(&[("a", "")]);
        let file = std::fs::File::open(tree.path("a")).expect("it was just made");
        assert_eq!(read(&file, "user.type"), Ok(None));
        // No file system allows this name.
        assert_eq!(read(&file, "x"), Ok(None));
    }
}
