//! Content from scripts: strings, numbers, and parts of files.

use std::collections::VecDeque;
use std::fmt;

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_engine::body::Piece;
use petrel_engine::cause::{CauseCode, ErrorCause};
use petrel_engine::cold_files::cause_of_failure;
use petrel_engine::file_cache::{FileKind, Symlinks};
use petrel_lua::mlua::{self, Table, Value};
use rustix::io::Errno;

/// The meaning of `length` in a part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lengths {
    /// The position where the part ends, from the beginning of the file (`lighty.content`).
    AreEnds,
    /// The length of the part (`resp_body`, `req_body`).
    AreLengths,
}

/// A file that a script wants to be sent but that cannot be.
#[derive(Debug)]
pub(super) struct MissingFile {
    path: String,
    kind: FileKind,
}

impl MissingFile {
    /// Why the client gets an error.
    pub(crate) fn cause(&self) -> ErrorCause {
        match self.kind {
            FileKind::Missing | FileKind::NotADirectory => CauseCode::LuaFileMissing.into(),
            FileKind::Failed(errno) => cause_of_failure(errno),
            _ => CauseCode::LuaFileDenied.into(),
        }
    }
}

impl fmt::Display for MissingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.kind {
            FileKind::Missing | FileKind::NotADirectory => "is not there",
            FileKind::Denied => "may not be read",
            FileKind::Failed(_) => "cannot be read",
            _ => "is no regular file",
        };
        write!(f, "{:?}, which the script wants to send, {why}", self.path)
    }
}

/// The parts of a list, up to the first `nil`. Their files [have been looked up](are_known). At a part that is
/// neither text nor a file, which is logged, the list ends, as in lighttpd.
///
/// # Errors
/// No memory is left. The inner error: a file is missing.
pub(super) fn pieces(
    exchange: &Exchange,
    parts: &Table,
    lengths: Lengths,
) -> mlua::Result<Result<VecDeque<Piece>, MissingFile>> {
    let mut pieces = VecDeque::new();
    // Consecutive short texts become one piece.
    let mut text: Vec<u8> = Vec::new();
    for number in 1.. {
        match parts.raw_get(number)? {
            Value::Nil => break,
            Value::Table(part) => match file_part(exchange, &part, lengths)? {
                Ok(Some(piece)) => {
                    flush(&mut text, &mut pieces);
                    pieces.push_back(piece);
                }
                Ok(None) => {
                    wrong_part(exchange, number);
                    break;
                }
                Err(missing) => return Ok(Err(missing)),
            },
            value => match text_of(&value) {
                Some(part) => text.extend_from_slice(&part),
                None => {
                    wrong_part(exchange, number);
                    break;
                }
            },
        }
    }
    flush(&mut text, &mut pieces);
    Ok(Ok(pieces))
}

fn flush(text: &mut Vec<u8>, pieces: &mut VecDeque<Piece>) {
    if !text.is_empty() {
        pieces.push_back(Piece::Bytes(Bytes::from(std::mem::take(text))));
    }
}

fn wrong_part(exchange: &Exchange, number: i32) {
    exchange.log_error(
        "lua",
        format_args!("content[{number}] is neither a string nor a table with a filename"),
    );
}

/// A string or number as text.
pub(super) fn text_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        Value::Number(_) => value.to_string().ok().map(String::into_bytes),
        _ => None,
    }
}

/// Reads `{ filename = ..., offset = ..., length = ... }`; `None` if it names no file.
fn file_part(
    exchange: &Exchange,
    part: &Table,
    lengths: Lengths,
) -> mlua::Result<Result<Option<Piece>, MissingFile>> {
    let Some(path) = text_of(&part.raw_get::<Value>("filename")?) else {
        return Ok(Ok(None));
    };
    let number = |name: &str| -> mlua::Result<Option<u64>> {
        let number: Option<f64> = part.raw_get(name)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it saturates"
        )]
        Ok(number.map(|number| number as u64))
    };
    let offset = number("offset")?.unwrap_or(0);
    let length = number("length")?;
    let absolute = absolute(&path);
    let file = absolute
        .as_ref()
        .and_then(|path| exchange.look_up(path, Symlinks::Follow));
    let kind = match (&file, &absolute) {
        (Some(file), _) => file.kind(),
        // The file was known a moment ago, but the kernel has dropped it from its caches.
        (None, Some(_)) => FileKind::Failed(Errno::AGAIN),
        (None, None) => FileKind::Missing,
    };
    if let FileKind::Failed(errno) = kind {
        exchange.fail_on_file(cause_of_failure(errno));
    }
    let Some(file) = file.filter(|_| kind == FileKind::Regular) else {
        let path = String::from_utf8_lossy(&path).into_owned();
        return Ok(Err(MissingFile { path, kind }));
    };
    let size = file.stat().size;
    let end = match (length, lengths) {
        (None, _) => size,
        (Some(end), Lengths::AreEnds) => end,
        (Some(length), Lengths::AreLengths) => offset.saturating_add(length),
    };
    let range = offset.min(size)..end.min(size).max(offset.min(size));
    Ok(Ok(Some(Piece::File { file, range })))
}

/// Whether all files of a list have been looked up. If not, a disk thread is doing it. All files are checked
/// each time: the file cache may have dropped one, while results from the disk stay.
pub(super) fn are_known(exchange: &Exchange, files: &[Vec<u8>]) -> bool {
    let mut files = files.iter();
    files.all(|path| exchange.look_up(path, Symlinks::Follow).is_some())
}

/// The paths of the files in a list, without those that no file can have.
///
/// # Errors
/// No memory is left.
pub(super) fn files(parts: &Table) -> mlua::Result<Vec<Vec<u8>>> {
    let mut files = Vec::new();
    for number in 1.. {
        match parts.raw_get(number)? {
            Value::Nil => break,
            Value::Table(part) => {
                let name = text_of(&part.raw_get::<Value>("filename")?);
                files.extend(name.and_then(|name| absolute(&name)));
            }
            _ => {}
        }
    }
    Ok(files)
}

/// Makes `path` absolute, relative to the server's working directory. `None`: no file can have such a name.
pub(super) fn absolute(path: &[u8]) -> Option<Vec<u8>> {
    if path.is_empty() || memchr::memchr(0, path).is_some() {
        return None;
    }
    if path.first() == Some(&b'/') {
        return Some(path.to_vec());
    }
    let here = std::env::current_dir().ok()?.into_os_string();
    Some([here.as_encoded_bytes(), b"/", path].concat())
}
