//! Compressed static files in `deflate.cache-dir`.
//!
//! The names are lighttpd's: the path of the file followed by its entity tag in the coding, such as
//! `DIR/var/www/a.css-1f2e-gzip`. A kept file also gets the modification time of its source, so that a file
//! made from other content is not used even if the tag is the same. These files are served by way of the file
//! cache: in one send, or with sendfile. [`keeping`](super::keeping) writes them.

use std::io;
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::body::{Body, Piece};
use petrel_engine::file_cache::{FileEntry, FileKind, Symlinks};
use petrel_engine::proto::accept::Coding;

use super::fields;
use super::kept::OfWorker;
use crate::cache_dir::CacheDir;

/// The compressed file for a `source`.
pub(super) enum StoredFile {
    /// It is there.
    Here(Body),
    /// It is missing.
    Missing,
    /// A disk has to be waited for.
    Cold,
}

/// The compressed file for `source`, if it is kept.
pub(super) fn find(
    exchange: &Exchange,
    directory: &CacheDir,
    source: &Piece,
    coding: Coding,
) -> StoredFile {
    if exchange.gave_up_on_files() {
        // The directory may be what does not answer. Compressing takes less time than another wait.
        return StoredFile::Missing;
    }
    let name = name(exchange, source, coding);
    let Some(path) = name.and_then(|name| directory.path_of(&name)) else {
        return StoredFile::Missing;
    };
    match exchange.look_up(&path, Symlinks::Refuse) {
        Some(file) => body_of(file, source).map_or(StoredFile::Missing, StoredFile::Here),
        None => StoredFile::Cold,
    }
}

/// Logs that files cannot be kept: once, until it works again.
pub(super) fn complain(exchange: &Exchange, error: &io::Error) {
    if !OfWorker::of(&exchange.worker).has_complained.replace(true) {
        exchange.log_error(
            "transform",
            format_args!(
                "deflate.cache-dir: compressed files are not kept until this is fixed: {error}"
            ),
        );
    }
}

/// Files can be kept: the next failure is logged again.
pub(super) fn works(exchange: &Exchange) {
    OfWorker::of(&exchange.worker).has_complained.set(false);
}

/// The name below the directory. `None` if the answer is not the request's own file, or if its entity tag is
/// missing or not usable in a file name.
pub(super) fn name(exchange: &Exchange, source: &Piece, coding: Coding) -> Option<Vec<u8>> {
    let Piece::File { file, .. } = source else {
        return None;
    };
    let own = exchange.physical.file.as_ref()?;
    if !Rc::ptr_eq(own, file) {
        return None;
    }
    let tag = fields::coded_etag(&exchange.response, coding)?;
    let tag = tag.strip_prefix(b"W/").unwrap_or(&tag);
    let tag = tag.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let is_fit = tag
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-._~+=".contains(byte));
    let path = exchange.physical.path.strip_prefix(b"/")?;
    is_fit.then(|| [path, b"-", tag].concat())
}

pub(super) fn body_of(file: Rc<FileEntry>, source: &Piece) -> Option<Body> {
    let stat = file.stat();
    let is_right = file.kind() == FileKind::Regular
        && stat.size > 0
        && modified(source) == Some((stat.modified_s, stat.modified_ns));
    let range = 0..stat.size;
    is_right.then(|| Body::Piece(Piece::File { file, range }))
}

pub(super) fn modified(source: &Piece) -> Option<(u64, u32)> {
    match source {
        Piece::File { file, .. } => Some((file.stat().modified_s, file.stat().modified_ns)),
        Piece::Bytes(_) => None,
    }
}
