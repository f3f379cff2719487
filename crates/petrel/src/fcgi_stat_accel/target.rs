//! Determines from a request's pairs which file it is about, and on which file system that is. Never waits.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use engine::blocking::Origin;
use proto::status::Status;

use super::Refusal;
use super::limits::PATH_BYTES_MAX;
use crate::fcgi_program::params::Params;

/// A file below a directory. Requests with equal targets share one look.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// The directory that the path must not leave, without a trailing slash; empty for `/`.
    pub(crate) root: Box<[u8]>,
    /// The path below the directory.
    pub(crate) relative: Box<[u8]>,
}

impl Target {
    /// The file that a request is about. It must be below one of `roots` or, if there are none, below the
    /// DOCUMENT_ROOT that the request names.
    ///
    /// # Errors
    /// The request names no file, or one outside these directories.
    pub(crate) fn of(params: &Params, roots: &[Box<[u8]>]) -> Result<Target, Refusal> {
        let document_root = given(params, b"DOCUMENT_ROOT");
        let path = path_of(params, document_root)
            .ok_or_else(|| forbidden("no file is named: there is no SCRIPT_FILENAME"))?;
        check(&path)?;
        let own: Vec<&[u8]> = match roots {
            [] => document_root.into_iter().collect(),
            roots => roots.iter().map(|root| &**root).collect(),
        };
        if own.is_empty() {
            return Err(forbidden(
                "the web server passes no DOCUMENT_ROOT, and there is no --document-root",
            ));
        }
        let within = own.into_iter().map(without_slash).find_map(|root| {
            let relative = relative(&path, root)?;
            Some(Target {
                root: root.into(),
                relative: relative.into(),
            })
        });
        let outside = || forbidden(&format!("outside the document root: {}", shown(&path)));
        // A relative path would depend on the directory in which this program was started.
        within
            .filter(|target| matches!(target.root.first(), None | Some(b'/')))
            .ok_or_else(outside)
    }

    /// The device number of the file's file system, as far as the kernel can tell it without waiting for a
    /// disk.
    pub(crate) fn device(&self) -> u64 {
        Origin::of_path(Path::new(OsStr::from_bytes(&self.path()))).device
    }

    /// The path of the file.
    pub(crate) fn path(&self) -> Vec<u8> {
        [&self.root, &b"/"[..], &self.relative].concat()
    }
}

/// A path for the log, on one line.
pub(crate) fn shown(path: &[u8]) -> String {
    format!("\"{}\"", path.escape_ascii())
}

/// `directory` without trailing slashes.
pub(crate) fn without_slash(directory: &[u8]) -> &[u8] {
    let mut directory = directory;
    while let Some(shorter) = directory.strip_suffix(b"/") {
        directory = shorter;
    }
    directory
}

/// The value of a pair, unless it is empty.
fn given<'p>(params: &'p Params, name: &[u8]) -> Option<&'p [u8]> {
    params.get(name).filter(|value| !value.is_empty())
}

/// The path of the file that the web server means.
///
/// With a prefix such as `/seek-bound/` some web servers pass the part after the next slash as PATH_INFO,
/// although it belongs to the file's name. So both are joined.
fn path_of(params: &Params, document_root: Option<&[u8]>) -> Option<Vec<u8>> {
    let [name, info] =
        [&b"SCRIPT_NAME"[..], b"PATH_INFO"].map(|part| given(params, part).unwrap_or_default());
    let whole = [name, info].concat();
    if let Some(file) = given(params, b"SCRIPT_FILENAME") {
        // Some web servers append PATH_INFO to the file name themselves (`broken-scriptfilename`).
        let is_whole = file.ends_with(&whole);
        let info = if is_whole { b"" } else { info };
        return Some([file, info].concat());
    }
    if let Some(translated) = given(params, b"PATH_TRANSLATED") {
        return Some(translated.to_vec());
    }
    let root = document_root.filter(|_| !whole.is_empty())?;
    Some([without_slash(root), &whole].concat())
}

/// Checks that a file can have this path, and that the path has no `.` or `..` that would change its meaning.
fn check(path: &[u8]) -> Result<(), Refusal> {
    if path.contains(&0) || path.len() > PATH_BYTES_MAX {
        return Err(Refusal::silent(Status::NOT_FOUND));
    }
    if path.first() != Some(&b'/') {
        return Err(forbidden(&format!("not absolute: {}", shown(path))));
    }
    if path.ends_with(b"/") {
        return Err(Refusal::silent(Status::FORBIDDEN));
    }
    let mut parts = path.split(|byte| *byte == b'/');
    match parts.any(|part| part == b"..") {
        true => Err(forbidden(&format!("with `..` in it: {}", shown(path)))),
        false => Ok(()),
    }
}

/// The part of `path` below `root`, without leading slashes.
fn relative<'p>(path: &'p [u8], root: &[u8]) -> Option<&'p [u8]> {
    let mut below = path.strip_prefix(root)?.strip_prefix(b"/")?;
    while let Some(shorter) = below.strip_prefix(b"/") {
        below = shorter;
    }
    (!below.is_empty()).then_some(below)
}

fn forbidden(words: &str) -> Refusal {
    Refusal::new(Status::FORBIDDEN, format!("refused: {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fcgi_program::params::testing;

    fn path(pairs: &[(&str, &[u8])], roots: &[&[u8]]) -> Result<String, u16> {
        let roots: Vec<Box<[u8]>> = roots.iter().map(|root| (*root).into()).collect();
        let target = Target::of(&testing::params(pairs), &roots);
        target
            .map(|target| {
                let [root, relative] = [&target.root, &target.relative]
                    .map(|part| String::from_utf8_lossy(part).into_owned());
                format!("{root}|{relative}")
            })
            .map_err(|refusal| refusal.status.0)
    }

    const ROOT: (&str, &[u8]) = ("DOCUMENT_ROOT", b"/srv/www");

    #[test]
    fn the_file_is_what_the_web_server_names() {
        let file: (&str, &[u8]) = ("SCRIPT_FILENAME", b"/srv/www/a/b");
        let translated: (&str, &[u8]) = ("PATH_TRANSLATED", b"/srv/www/c");
        let name: (&str, &[u8]) = ("SCRIPT_NAME", b"/d");
        let info: (&str, &[u8]) = ("PATH_INFO", b"/e");
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(
            path(&[ROOT, file, translated, name], &[]),
            ok("/srv/www|a/b")
        );
        assert_eq!(path(&[ROOT, translated, name], &[]), ok("/srv/www|c"));
        assert_eq!(
            path(&[ROOT, ("SCRIPT_FILENAME", b""), name, info], &[]),
            ok("/srv/www|d/e")
        );
        assert_eq!(path(&[ROOT, info], &[]), ok("/srv/www|e"));
        // The prefix ends in the middle of a path.
        let parts = |file: &'static [u8], name: &'static [u8], info: &'static [u8]| {
            path(
                &[
                    ROOT,
                    ("SCRIPT_FILENAME", file),
                    ("SCRIPT_NAME", name),
                    ("PATH_INFO", info),
                ],
                &[],
            )
        };
        assert_eq!(parts(b"/srv/www/p/a", b"/p/a", b"/b"), ok("/srv/www|p/a/b"));
        assert_eq!(parts(b"/srv/www/p/a", b"/p/a", b"/a"), ok("/srv/www|p/a/a"));
        assert_eq!(
            parts(b"/srv/www/p/a/a", b"/p/a", b"/a"),
            ok("/srv/www|p/a/a")
        );
        assert_eq!(parts(b"/srv/www/x", b"/p", b"/../y"), Err(403));
        assert_eq!(path(&[ROOT], &[]), Err(403));
        assert_eq!(path(&[name], &[]), Err(403));
    }

    #[test]
    fn only_what_is_below_a_root_is_named() {
        for (root, file, expected) in [
            (&b"/srv/www"[..], &b"/srv/www/a"[..], Ok("/srv/www|a")),
            (b"/srv/www//", b"/srv/www//a//b", Ok("/srv/www|a//b")),
            (b"/", b"/a", Ok("|a")),
            (b"/srv/www", b"/srv/www", Err(403)),
            (b"/srv/www", b"/srv/www/", Err(403)),
            (b"/srv/www", b"/srv/www/a/", Err(403)),
            (b"/srv/www", b"/srv/wwwa", Err(403)),
            (b"/srv/www", b"/srv/www/../a", Err(403)),
            (b"/srv/www", b"/srv/www/a/..", Err(403)),
            (b"/srv/www", b"srv/www/a", Err(403)),
            (b"srv/www", b"/srv/www/a", Err(403)),
            (b"/srv/www", b"/srv/www/..a", Ok("/srv/www|..a")),
            (b"/srv/www", b"/srv/www/a\0b", Err(404)),
            (b"", b"/a", Err(403)),
        ] {
            let named = path(&[("DOCUMENT_ROOT", root), ("SCRIPT_FILENAME", file)], &[]);
            assert_eq!(
                named,
                expected.map(str::to_owned),
                "{}",
                file.escape_ascii()
            );
        }
        let long = [&b"/srv/www/"[..], &[b'a'; PATH_BYTES_MAX]].concat();
        assert_eq!(path(&[ROOT, ("SCRIPT_FILENAME", &long)], &[]), Err(404));
    }

    #[test]
    fn roots_of_the_command_line_are_instead_of_those_of_requests() {
        let roots: &[&[u8]] = &[b"/one", b"/two"];
        let named = |file: &[u8]| path(&[ROOT, ("SCRIPT_FILENAME", file)], roots);
        assert_eq!(named(b"/two/x"), Ok("/two|x".to_owned()));
        assert_eq!(named(b"/srv/www/x"), Err(403));
        assert_eq!(
            path(&[("SCRIPT_FILENAME", b"/one/x")], roots),
            Ok("/one|x".to_owned())
        );
        assert_eq!(path(&[("SCRIPT_FILENAME", b"/one/x")], &[]), Err(403));
    }
}
