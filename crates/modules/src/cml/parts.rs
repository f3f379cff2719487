//! Opens the parts that a script names, within the directories that it may use.
//!
//! A file has to be below the document root, below the directory of an alias, or below one of
//! `cml.include-directories`. The path is compared as text, after `..` is resolved. `server.follow-symlink`
//! decides whether symlinks on the way are followed, as for files that a URL names.

use std::rc::Rc;

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_engine::body::Piece;
use petrel_engine::cold_files::cause_of_failure;
use petrel_engine::file_cache::{FileEntry, FileKind};

use super::files::absolute;
use super::options::CmlOptions;
use super::verdict::PagePart;

/// A part that was found.
pub(super) enum FoundPart {
    /// A file that can be sent.
    File(Rc<FileEntry>),
    /// Bytes.
    Text(Bytes),
}

/// Why there is no page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// A file is missing, so the application has to make the page.
    Missing(String),
    /// A file must not or cannot be sent: a sentence for the log.
    Refused(String),
    /// A disk has to be waited for.
    Cold,
}

impl FoundPart {
    /// The part as a piece of a body.
    pub(crate) fn piece(&self) -> Piece {
        match self {
            FoundPart::File(file) => Piece::File {
                file: Rc::clone(file),
                range: 0..file.stat().size,
            },
            FoundPart::Text(bytes) => Piece::Bytes(bytes.clone()),
        }
    }
}

/// Finds `part`.
///
/// # Errors
/// See [`Lack`].
pub(super) fn find(
    exchange: &Exchange,
    options: &CmlOptions,
    part: &PagePart,
) -> Result<FoundPart, Lack> {
    match part {
        PagePart::File(path) => find_file(exchange, options, path).map(FoundPart::File),
        PagePart::Text(bytes) => Ok(FoundPart::Text(bytes.clone())),
        // Fragments were replaced by texts before.
        PagePart::Fragment(source) => {
            let url = String::from_utf8_lossy(&source.url).into_owned();
            Err(Lack::Missing(url))
        }
    }
}

fn find_file(
    exchange: &Exchange,
    options: &CmlOptions,
    name: &[u8],
) -> Result<Rc<FileEntry>, Lack> {
    let shown = || String::from_utf8_lossy(name).into_owned();
    let path = simplified(&absolute(exchange, name))
        .filter(|path| is_within_reach(exchange, options, path));
    let Some(path) = path else {
        let sentence =
            "output_include: it is outside the document root and cml.include-directories";
        return Err(Lack::Refused(format!("{sentence} path={:?}", shown())));
    };
    let file = exchange.look_up(&path, exchange.settings.core.symlinks);
    let file = file.ok_or(Lack::Cold)?;
    let refused = |why: &str| {
        Err(Lack::Refused(format!(
            "output_include: {why} path={:?}",
            shown()
        )))
    };
    match file.kind() {
        FileKind::Regular => Ok(file),
        FileKind::Missing | FileKind::NotADirectory => Err(Lack::Missing(shown())),
        FileKind::Denied => refused("it may not be read, or a symlink leads there"),
        FileKind::Directory | FileKind::Special => refused("it is no file"),
        FileKind::Failed(errno) => {
            exchange.fail_on_file(cause_of_failure(errno));
            refused(&errno.to_string())
        }
    }
}

fn is_within_reach(exchange: &Exchange, options: &CmlOptions, path: &[u8]) -> bool {
    let physical = &exchange.physical;
    let own = [&*physical.document_root, &*physical.base];
    // An empty base belongs to an alias for a single file.
    let own = own.into_iter().filter(|root| !root.is_empty());
    own.chain(options.include_directories.iter().map(|root| &**root))
        .any(|root| is_below(path, root))
}

/// Whether `path` is below the directory `root`.
fn is_below(path: &[u8], root: &[u8]) -> bool {
    let root = root.strip_suffix(b"/").unwrap_or(root);
    path.strip_prefix(root)
        .is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// An absolute path without `.`, `..` and empty segments. `None` if it leads above the root of the file
/// system, or no file can have this path.
pub(super) fn simplified(path: &[u8]) -> Option<Vec<u8>> {
    if path.contains(&0) || path.len() > PATH_BYTES_MAX {
        return None;
    }
    let mut out = Vec::with_capacity(path.len());
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                let end = memchr::memrchr(b'/', &out)?;
                out.truncate(end);
            }
            part => {
                out.push(b'/');
                out.extend_from_slice(part);
            }
        }
    }
    Some(out)
}

/// PATH_MAX.
const PATH_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_resolved_as_text() {
        for (path, expected) in [
            ("/srv/www/a", Some("/srv/www/a")),
            ("/srv//www/./a/", Some("/srv/www/a")),
            ("/srv/www/../x", Some("/srv/x")),
            ("/..", None),
            ("/a/../../b", None),
            ("/a\0b", None),
        ] {
            let expected = expected.map(|path| path.as_bytes().to_vec());
            assert_eq!(simplified(path.as_bytes()), expected, "{path:?}");
        }
    }

    #[test]
    fn a_name_that_goes_on_is_not_below() {
        for (path, root, is) in [
            ("/srv/www/a", "/srv/www", true),
            ("/srv/www/a", "/srv/www/", true),
            ("/srv/www2/a", "/srv/www", false),
            ("/srv/www", "/srv/www", false),
            ("/a", "/", true),
        ] {
            assert_eq!(
                is_below(path.as_bytes(), root.as_bytes()),
                is,
                "{path} {root}"
            );
        }
    }
}
