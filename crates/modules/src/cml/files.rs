//! Functions about files: `file_mtime`, `file_isreg`, `file_isdir`, `dir_files`, and `md5`.
//!
//! Files are looked up in the worker's file cache, so that a script usually makes no system call for them. A
//! relative path starts from the directory that the request leads to. A script may look at any file; which
//! files may become part of a page is decided in [`super::parts`].

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::rc::Rc;

use md5::{Digest, Md5};
use petrel_engine::Exchange;
use petrel_engine::blocking::{self, Class, Origin};
use petrel_engine::file_cache::{FileEntry, FileKind};
use petrel_lua::library::hash::{Case, hex};
use petrel_lua::mlua::{self, LuaString, Table, Value};

use super::request::directory;
use crate::lua::{FilePatience, State, of_file};

/// Adds the functions.
pub(super) fn add(state: &Rc<State>, native: &Table, functions: &Table) -> mlua::Result<()> {
    let lua = state.machine().lua();
    let look = |answer| of_file(state, path_of, answer);
    let mtime = look(|_, file, _| about(file, modified))?;
    functions.set("file_mtime", mtime)?;
    let is_regular = look(|_, file, _| about(file, |file| is(file, FileKind::Regular)))?;
    functions.set("file_isreg", is_regular)?;
    let is_directory = look(|_, file, _| about(file, |file| is(file, FileKind::Directory)))?;
    functions.set("file_isdir", is_directory)?;
    let lent = Rc::clone(state.lent());
    let waits = FilePatience::of(state);
    let names = state.machine().waiting(move |lua, path: LuaString| {
        let path = lent.with(|exchange| absolute(exchange, &path.as_bytes()));
        let path = PathBuf::from(OsString::from_vec(path.unwrap_or_default()));
        let (lua, waits) = (lua.clone(), waits.clone());
        Ok(async move {
            let read = names_in(path.clone(), waits.client());
            let names = waits.wait_for_there(&path, read).await?;
            let table = lua.create_table()?;
            for name in names.unwrap_or_default() {
                table.raw_push(lua.create_string(name)?)?;
            }
            Ok(table)
        })
    })?;
    native.set("names_in", names)?;
    let digest = lua.create_function(|_, text: LuaString| {
        Ok(hex(&Md5::digest(text.as_bytes()), Case::Lower))
    })?;
    native.set("md5", &digest)?;
    functions.set("md5", digest)
}

/// `path`, relative to the directory that the request leads to.
pub(super) fn absolute(exchange: &Exchange, path: &[u8]) -> Vec<u8> {
    match path.first() {
        Some(b'/') => path.to_vec(),
        _ => [directory(exchange), path].concat(),
    }
}

fn path_of(exchange: &Exchange, name: &[u8]) -> Option<Vec<u8>> {
    let is_name = !name.is_empty() && !name.contains(&0);
    is_name.then(|| absolute(exchange, name))
}

/// What `tell` returns for a file that exists.
fn about(file: Option<Rc<FileEntry>>, tell: fn(&FileEntry) -> Value) -> Value {
    let file = file.filter(|file| file.kind().exists());
    file.map_or(Value::Nil, |file| tell(&file))
}

/// When the content was last changed, in seconds since 1970.
fn modified(file: &FileEntry) -> Value {
    Value::Number(file.stat().modified_s as f64)
}

/// False is 0 as in lighttpd, although 0 is true in Lua.
fn is(file: &FileEntry, kind: FileKind) -> Value {
    match file.kind() == kind {
        true => Value::Integer(1),
        false => Value::Boolean(false),
    }
}

/// The names in a directory in alphabetical order, without `.` and `..`. A disk thread reads the directory
/// each time.
async fn names_in(path: PathBuf, client: u64) -> io::Result<Vec<Vec<u8>>> {
    let origin = Origin::of_path(&path).for_client(client);
    let read = move || {
        let entries = std::fs::read_dir(path)?.take(NAMES_MAX);
        let names = entries.map(|entry| Ok(entry?.file_name().into_vec()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        Ok(names)
    };
    blocking::run_io(Class::Stat, origin, read).await
}

/// The largest number of names that `dir_files` returns.
const NAMES_MAX: usize = 65_536;
