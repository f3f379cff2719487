//! What the modules that make paths of host names share.

use petrel_engine::Exchange;
use petrel_engine::cold_files::status_of_failure;
use petrel_engine::file_cache::FileKind;
use petrel_engine::module::Outcome;
use rustix::io::Errno;

/// Whether `host` can be a part of a path: no slash or NUL, and no label that is empty, so that
/// neither the whole nor a label of it is `.` or `..`.
///
/// `server.http-parseopts` with host-strict ensures more; this holds without it as well.
pub(crate) fn is_safe_host(host: &[u8]) -> bool {
    host.split(|byte| *byte == b'.')
        .all(|label| !label.is_empty())
        && !host.iter().any(|byte| matches!(byte, b'/' | b'\0'))
}

/// Whether what is at a path can be a document root.
///
/// # Errors
/// Nobody knows: then another root would be that of other pages.
pub(crate) fn is_directory(kind: FileKind) -> Result<bool, Errno> {
    match kind {
        // No directory of this file system (vfat, CIFS) can have such a name.
        FileKind::Failed(Errno::INVAL) => Ok(false),
        FileKind::Failed(errno) => Err(errno),
        kind => Ok(kind == FileKind::Directory),
    }
}

/// Has `find` append a document root to what is in its buffer, and say whether there is such a directory; `None`: the
/// disk has to be asked. What another module chose stays if there is none. An error is the answer: the root of another
/// host has other pages.
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

/// The answer when the directory of a host or user cannot be looked at.
pub(crate) fn failed(exchange: &mut Exchange, path: &[u8], errno: Errno) -> Outcome {
    let path = String::from_utf8_lossy(path);
    exchange.log_error("map", format_args!("{errno} path={path:?}"));
    exchange.answer(status_of_failure(errno))
}
