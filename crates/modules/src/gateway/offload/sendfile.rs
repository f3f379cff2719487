//! X-Sendfile, X-LIGHTTPD-send-file and X-Sendfile2: the backend names files that this server sends, from
//! directories that the configuration allows.
//!
//! The files come from the file cache, so a cached file costs no system call. The cache follows symlinks
//! anywhere, so each entry is checked once for lying in an allowed directory ([`beneath`]), and again after
//! the cache has refreshed it. What neither the cache nor the kernel has in memory is looked up by threads;
//! the functions here are then called again, with the results in [`OpeningFacts`].

use std::ops::Range;
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::body::{Body, Piece};
use petrel_engine::cause::{CauseCode, ErrorCause};
use petrel_engine::cold_files::cause_of_failure;
use petrel_engine::file_cache::{FileEntry, FileKind, Symlinks};
use petrel_engine::limits::PATH_BYTES_MAX;
use petrel_engine::module::Outcome;
use petrel_engine::proto::escape::percent_decode;

use super::opening::{OpeningFacts, OpeningWait, Step};
use super::{BackendHost, beneath};
use crate::gateway::limits::SENDFILE2_PARTS_MAX;
use crate::static_file;

/// Answers with the file that `value` names, or with the range of it that the client asked for.
pub(super) fn send(
    exchange: &mut Exchange,
    host: &BackendHost,
    value: &[u8],
    known: &mut OpeningFacts,
) -> Result<Step, &'static str> {
    let (file, path) = match find(exchange, host, value, known)? {
        SendfileTarget::File(file, path) => (file, path),
        SendfileTarget::Nothing(cause) => return Ok(Step::Done(exchange.fail(cause))),
        SendfileTarget::Later(wait) => return Ok(Step::Wait(wait)),
    };
    static_file::answer_for_backend(exchange, file, &path);
    Ok(Step::Done(Outcome::Answer))
}

/// Answers with ranges of files, one after the other: `path first-last`, or `path first-` up to the end of
/// the file, separated by commas. Only the backend knows which Content-Range they make, so the head stays as
/// it is.
pub(super) fn send_ranges(
    exchange: &mut Exchange,
    host: &BackendHost,
    value: &[u8],
    known: &mut OpeningFacts,
) -> Result<Step, &'static str> {
    for part in value.split(|byte| *byte == b',').skip(known.pieces.len()) {
        let mut words = part
            .split(|byte| *byte == b' ')
            .filter(|word| !word.is_empty());
        let (Some(path), Some(range), None) = (words.next(), words.next(), words.next()) else {
            return Err("a part is not a path and a range;");
        };
        if known.pieces.len() >= SENDFILE2_PARTS_MAX {
            return Err("it has too many parts;");
        }
        let file = match find(exchange, host, path, known)? {
            SendfileTarget::File(file, _) => file,
            SendfileTarget::Nothing(cause) => return Ok(Step::Done(exchange.fail(cause))),
            SendfileTarget::Later(wait) => return Ok(Step::Wait(wait)),
        };
        let range = range_in(range, file.stat().size).ok_or("a range is not in its file;")?;
        known.pieces.push_back(Piece::File { file, range });
    }
    exchange.response.body = Body::Pieces(std::mem::take(&mut known.pieces));
    exchange.response.is_final = true;
    Ok(Step::Done(Outcome::Answer))
}

/// Parses `first-last` or `first-` for a file of `size` bytes. An empty range right after the last byte is
/// allowed.
fn range_in(text: &[u8], size: u64) -> Option<Range<u64>> {
    let text = std::str::from_utf8(text).ok()?;
    let (first, last) = text.split_once('-')?;
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<u64>().ok()).flatten()
    };
    let begin = number(first)?;
    let end = match last {
        "" => size,
        last => number(last)?.checked_add(1)?,
    };
    (begin <= end && end <= size).then_some(begin..end)
}

/// What an allowed name leads to.
enum SendfileTarget {
    /// A regular file, and its path.
    File(Rc<FileEntry>, Vec<u8>),
    /// The error to answer with instead: the file does not exist or cannot be opened.
    Nothing(ErrorCause),
    /// A disk has to be waited for.
    Later(OpeningWait),
}

/// The file that a backend names, if it is in one of the directories of `host`, or in the document root if
/// none is configured.
fn find(
    exchange: &Exchange,
    host: &BackendHost,
    value: &[u8],
    known: &mut OpeningFacts,
) -> Result<SendfileTarget, &'static str> {
    let path = path_of(value)?;
    let root = std::slice::from_ref(&exchange.physical.document_root);
    let directories = match host.x_sendfile_docroot.as_slice() {
        [] if root.iter().all(Vec::is_empty) => return Err("there is no document root;"),
        [] => root,
        directories => directories,
    };
    let candidates: Vec<&[u8]> = directories
        .iter()
        .map(|directory| without_slash(directory))
        .filter(|directory| relative(&path, directory).is_some())
        .collect();
    let Some(first) = candidates.first() else {
        return Err(OUTSIDE);
    };
    let path = in_lower_case(exchange, path, first.len());
    let symlinks = exchange.settings.core.symlinks;
    let looked_up = known.file.take();
    let Some(file) = looked_up.or_else(|| exchange.look_up(&path, symlinks)) else {
        return Ok(SendfileTarget::Later(OpeningWait::LookUp));
    };
    match file.kind() {
        FileKind::Regular => {}
        FileKind::Missing | FileKind::NotADirectory => {
            return Ok(SendfileTarget::Nothing(CauseCode::GwFileMissing.into()));
        }
        FileKind::Denied | FileKind::Directory | FileKind::Special => {
            return Ok(SendfileTarget::Nothing(CauseCode::GwFileDenied.into()));
        }
        FileKind::Failed(errno) => {
            let cause = cause_of_failure(errno);
            exchange.log_failure("content", cause, format_args!("X-Sendfile: {errno};"));
            return Ok(SendfileTarget::Nothing(cause));
        }
    }
    // If symlinks are refused, the path as text is enough to decide.
    let is_inside = match known.is_inside.take() {
        None if symlinks == Symlinks::Refuse => Some(true),
        None => candidates
            .iter()
            .any(|directory| {
                relative(&path, directory).is_some_and(|below| {
                    beneath::is_known_beneath(&exchange.worker, &file, directory, below)
                })
            })
            .then_some(true),
        told => told,
    };
    match is_inside {
        Some(true) => Ok(SendfileTarget::File(file, path)),
        Some(false) => Err("a symlink leads out of the directories it may be in;"),
        None => {
            let origin = file.origin(exchange.connection.client_key(), 0);
            let job = beneath::ask(origin, &file, &path, &candidates);
            known.file = Some(file);
            Ok(SendfileTarget::Later(OpeningWait::Inside { job, path }))
        }
    }
}

/// The path that a backend names: absolute, percent-decoded once as in lighttpd, without empty and `.`
/// segments.
pub(super) fn path_of(value: &[u8]) -> Result<Vec<u8>, &'static str> {
    let decoded = percent_decode(value.trim_ascii());
    if decoded.first() != Some(&b'/') {
        return Err("the path is not absolute;");
    }
    let mut path = Vec::with_capacity(decoded.len());
    for part in decoded.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("the path holds `..`;"),
            part => {
                path.push(b'/');
                path.extend_from_slice(part);
            }
        }
    }
    if decoded.ends_with(b"/") {
        // The slash stays at the end, so that a directory is refused instead of being opened as a file.
        path.push(b'/');
    }
    if path.contains(&0) || path.len() > PATH_BYTES_MAX {
        return Err("no file can have that name;");
    }
    Ok(path)
}

/// The part of `path` below `directory`, which has no slash at its end.
pub(super) fn relative<'p>(path: &'p [u8], directory: &[u8]) -> Option<&'p [u8]> {
    path.strip_prefix(directory)?.strip_prefix(b"/")
}

pub(super) fn without_slash(directory: &[u8]) -> &[u8] {
    let mut directory = directory;
    while let Some(shorter) = directory.strip_suffix(b"/") {
        directory = shorter;
    }
    directory
}

/// The reason for refusing a path that is in no allowed directory.
pub(super) const OUTSIDE: &str = "it is outside the directories it may be in;";

/// Applies `server.force-lowercase-filenames` to the part of the path below the directory.
fn in_lower_case(exchange: &Exchange, mut path: Vec<u8>, directory_length: usize) -> Vec<u8> {
    if exchange.settings.core.force_lowercase
        && let Some(below) = path.get_mut(directory_length..)
    {
        below.make_ascii_lowercase();
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded_once_and_plain() {
        for (value, expected) in [
            ("/a/b", Ok("/a/b")),
            (" //a/./b%20c%2525 ", Ok("/a/b c%25")),
            ("/100%/%zz", Ok("/100%/%zz")),
            ("/a/", Ok("/a/")),
            ("a", Err("the path is not absolute;")),
            ("", Err("the path is not absolute;")),
            ("/a/../b", Err("the path holds `..`;")),
            ("/a/%2e%2E/b", Err("the path holds `..`;")),
            ("/a%00b", Err("no file can have that name;")),
        ] {
            let path = path_of(value.as_bytes());
            let expected = expected.map(|path| path.as_bytes().to_vec());
            assert_eq!(path, expected, "{value}");
        }
        let long = [b"/".as_slice(), &[b'a'; PATH_BYTES_MAX]].concat();
        assert!(path_of(&long).is_err());
    }

    #[test]
    fn below_means_behind_a_slash() {
        assert_eq!(relative(b"/srv/a", b"/srv"), Some(&b"a"[..]));
        assert_eq!(relative(b"/srv2/a", b"/srv"), None);
        assert_eq!(relative(b"/srv", b"/srv"), None);
        assert_eq!(relative(b"/x", without_slash(b"/")), Some(&b"x"[..]));
    }

    #[test]
    fn ranges_must_be_in_their_file() {
        for (text, expected) in [
            ("0-9", Some(0..10)),
            ("3-", Some(3..10)),
            ("10-", Some(10..10)),
            ("4-4", Some(4..5)),
            ("0-10", None),
            ("11-", None),
            ("5-3", None),
            ("-3", None),
            ("+1-2", None),
            ("1", None),
            ("0-18446744073709551615", None),
        ] {
            assert_eq!(range_in(text.as_bytes(), 10), expected, "{text}");
        }
    }
}
