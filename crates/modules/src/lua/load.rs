//! Finds the compiled script for a path by way of the worker's file cache: usually with two look-ups in
//! tables and without a system call.

use std::fmt;
use std::io::{self, ErrorKind};
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::cold_files::cause_of_error;
use petrel_engine::file_cache::{FileEntry, FileKind, Symlinks};
use petrel_lua::{Machine, Script, ScriptError, Scripts};

/// The administrator chooses the scripts. The rules about symlinks are for files that URLs name.
const SYMLINKS: Symlinks = Symlinks::Follow;

/// The largest script.
const SOURCE_BYTES_MAX: usize = 16 << 20;

/// Why there is no script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadFailure {
    /// There is no such file.
    Missing,
    /// This process may not read it.
    Denied,
    /// It is a directory or something else that is not a file, or it is larger than 16 MiB.
    NoScript,
    /// It could not be examined or read, for this reason. [`Exchange::file_failure`] has the cause for the
    /// client.
    Unreadable(String),
    /// It has to be read from disk. To be called again after a
    /// [`ColdWait`](petrel_engine::cold_files::ColdWait).
    Cold,
    /// LuaJIT cannot compile it.
    Wrong(ScriptError),
    /// The state has no memory left for what the script needs.
    Unusable(String),
}

/// The compiled scripts of one state, or why they could not be compiled.
pub(super) type Loaded = Scripts<Rc<FileEntry>, Result<Rc<Script>, LoadFailure>>;

/// The script at `path`, which is absolute, and its file.
pub(super) fn find(
    loaded: &Loaded,
    machine: &Machine,
    exchange: &Exchange,
    path: &[u8],
) -> Result<(Rc<FileEntry>, Rc<Script>), LoadFailure> {
    let Some(file) = exchange.look_up(path, SYMLINKS) else {
        return Err(LoadFailure::Cold);
    };
    if let Some(known) = loaded.get(path, |known| Rc::ptr_eq(known, &file)) {
        return known.map(|script| (file, script));
    }
    let script = load(machine, exchange, path, &file);
    // An error of the disk may be over with the next request, so it is not remembered.
    if !matches!(script, Err(LoadFailure::Cold | LoadFailure::Unreadable(_))) {
        loaded.put(path, Rc::clone(&file), script.clone());
    }
    script.map(|script| (file, script))
}

fn load(
    machine: &Machine,
    exchange: &Exchange,
    path: &[u8],
    file: &Rc<FileEntry>,
) -> Result<Rc<Script>, LoadFailure> {
    match file.kind() {
        FileKind::Regular => {}
        FileKind::Denied => return Err(LoadFailure::Denied),
        FileKind::Missing | FileKind::NotADirectory => return Err(LoadFailure::Missing),
        FileKind::Directory | FileKind::Special => return Err(LoadFailure::NoScript),
        FileKind::Failed(errno) => return Err(unreadable(exchange, &errno.into())),
    }
    let source = match exchange.read_whole(path, SYMLINKS, file, SOURCE_BYTES_MAX) {
        Ok(Some(source)) => source,
        Ok(None) => return Err(LoadFailure::Cold),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => return Err(LoadFailure::NoScript),
        Err(error) => return Err(unreadable(exchange, &error)),
    };
    machine
        .compile(&String::from_utf8_lossy(path), &source)
        .map_err(LoadFailure::Wrong)
}

fn unreadable(exchange: &Exchange, error: &io::Error) -> LoadFailure {
    exchange.fail_on_file(cause_of_error(error));
    LoadFailure::Unreadable(error.to_string())
}

impl fmt::Display for LoadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadFailure::Cold => f.write_str("the script is still being read"),
            LoadFailure::Missing => f.write_str("there is no such script"),
            LoadFailure::Denied => f.write_str("the script may not be read"),
            LoadFailure::NoScript => f.write_str("it is not a regular file, or larger than 16 MiB"),
            LoadFailure::Unreadable(why) => write!(f, "the script cannot be read: {why}"),
            LoadFailure::Wrong(error) => write!(f, "{error}"),
            LoadFailure::Unusable(error) => f.write_str(error),
        }
    }
}
