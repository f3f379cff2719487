//! What the modules that turn host names into paths share.

use petrel_engine::Exchange;
use petrel_engine::cold_files::cause_of_failure;
use petrel_engine::file_cache::FileKind;
use petrel_engine::module::Outcome;
use rustix::io::Errno;

/// Whether `host` can be part of a path: it has no slash, NUL byte or empty label, so that neither the whole
/// name nor a label is `.` or `..`.
///
/// With host-strict in `server.http-parseopts` the parser ensures more, but this must hold without it.
pub(crate) fn is_safe_host(host: &[u8]) -> bool {
    host.split(|byte| *byte == b'.')
        .all(|label| !label.is_empty())
        && !host.iter().any(|byte| matches!(byte, b'/' | b'\0'))
}

/// Whether the thing at a path can be a document root.
///
/// # Errors
/// It could not be examined. Another root must not be used then, because it has other pages.
pub(crate) fn is_directory(kind: FileKind) -> Result<bool, Errno> {
    match kind {
        // This file system (vfat, CIFS) does not allow such a name for a directory.
        FileKind::Failed(Errno::INVAL) => Ok(false),
        FileKind::Failed(errno) => Err(errno),
        kind => Ok(kind == FileKind::Directory),
    }
}

/// Lets `find` append a document root to the path in its buffer and say whether that directory exists;
/// `None`: a disk has to be waited for. If it does not exist, the root that another module chose stays. After
/// an error the answer is an error, because the root of another host has other pages.
pub(crate) fn choose_root(
    exchange: &mut Exchange,
    find: impl FnOnce(&Exchange, &mut Vec<u8>) -> Option<Result<bool, Errno>>,
) -> Outcome {
    let mut root = std::mem::take(&mut exchange.physical.document_root);
    let before = root.len();
    let found = find(exchange, &mut root);
    let outcome = match found {
        Some(Ok(_)) => Outcome::Next,
        Some(Err(errno)) => failed(exchange, root.get(before..).unwrap_or_default(), errno),
        None => Outcome::Cold,
    };
    match found {
        Some(Ok(true)) => {
            drop(root.drain(..before));
            exchange.physical.shows_slash = true;
        }
        _ => root.truncate(before),
    }
    exchange.physical.document_root = root;
    outcome
}

/// The answer if the directory of a host or user cannot be examined.
pub(crate) fn failed(exchange: &mut Exchange, path: &[u8], errno: Errno) -> Outcome {
    let path = String::from_utf8_lossy(path);
    let outcome = exchange.fail(cause_of_failure(errno));
    exchange.log_error("map", format_args!("{errno} path={path:?}"));
    outcome
}
