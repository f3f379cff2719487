//! X-LIGHTTPD-send-tempfile: a file that a backend made for one answer, sent whole and removed.
//!
//! It loses its name before the first byte of it is sent; the open descriptor holds what is left of
//! it. So it is removed exactly once, whatever becomes of the client, the answer or this process,
//! and its space is free when the answer is over.

use std::os::fd::OwnedFd;

use petrel_engine::Exchange;
use petrel_engine::body::{Body, Piece};
use petrel_engine::file_cache::FileEntry;
use petrel_engine::module::Outcome;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat};

use super::Host;
use super::beneath;
use super::sendfile::{OUTSIDE, path_of, relative, without_slash};

/// Answers with the temporary file `value` names.
pub(super) fn send(
    exchange: &mut Exchange,
    host: &Host,
    value: &[u8],
) -> Result<Outcome, &'static str> {
    let file = take(host, value)?;
    let file = FileEntry::from_file(file).map_err(|_| NOT_REGULAR)?;
    let range = 0..file.stat().size;
    // Not a lone piece: filters keep what they make of those for the next request.
    exchange.response.body = match range.end {
        0 => Body::Empty,
        _ => Body::Pieces([Piece::File { file, range }].into()),
    };
    exchange.response.is_final = true;
    Ok(Outcome::Answer)
}

/// Opens the file and removes its name. No symlink below the allowed directory is followed, and
/// nothing is removed but a regular file that could be opened.
pub(super) fn take(host: &Host, value: &[u8]) -> Result<OwnedFd, &'static str> {
    let path = path_of(value)?;
    let (directory, below) = host
        .tempfile_dirs
        .iter()
        .map(|directory| without_slash(directory))
        .find_map(|directory| Some((directory, relative(&path, directory)?)))
        .ok_or(OUTSIDE)?;
    let (parent, name) = match memchr::memrchr(b'/', below) {
        Some(slash) => (&below[..slash], &below[slash + 1..]),
        None => (&b""[..], below),
    };
    let place = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = match directory {
        b"" => openat(CWD, c"/", place, Mode::empty()),
        directory => openat(CWD, directory, place, Mode::empty()),
    };
    let directory = directory.map_err(|_| "its directory cannot be opened;")?;
    let parent = match parent {
        b"" => directory,
        parent => beneath::open_without_symlinks(&directory, parent, place)
            .map_err(|_| "its directory cannot be opened;")?,
    };
    let flags =
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = openat(&parent, name, flags, Mode::empty()).map_err(|_| "it cannot be opened;")?;
    if !beneath::is_regular(&file) {
        return Err(NOT_REGULAR);
    }
    // A file that stays would fill the directory, one after the other, unnoticed.
    unlinkat(&parent, name, AtFlags::empty()).map_err(|_| "it cannot be removed;")?;
    Ok(file)
}

const NOT_REGULAR: &str = "it is not a regular file;";
