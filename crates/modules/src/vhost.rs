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

/// The answer when a host's directory cannot be looked at.
pub(crate) fn failed(exchange: &mut Exchange, path: &[u8], errno: Errno) -> Outcome {
    let path = String::from_utf8_lossy(path);
    exchange.log_error("map", format_args!("{errno} path={path:?}"));
    exchange.answer(status_of_failure(errno))
}
