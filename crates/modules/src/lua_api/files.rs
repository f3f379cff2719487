//! `petrel.file`: reads and writes files without blocking the worker.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use petrel_engine::blocking;
use petrel_lua::mlua::{self, FromLua, IntoLua, Lua, LuaString, Table, Value};

use crate::lua::{FilePatience, State};

/// The longest file that `petrel.file.read` reads.
const READ_BYTES_MAX: usize = 64 << 20;
/// The largest number of names that `petrel.file.list` returns.
const ENTRIES_MAX: usize = 65_536;

/// Adds `petrel.file`. A failure is `nil` and a message, as with Lua's own functions. An operation that is
/// not finished in time ends the script.
pub(super) fn open(state: &Rc<State>, petrel: &Table) -> mlua::Result<()> {
    let lua = state.machine().lua();
    let file = lua.create_table()?;
    add(
        state,
        &file,
        "read",
        async |path, most: Option<usize>, client| {
            let most = most.unwrap_or(READ_BYTES_MAX).min(READ_BYTES_MAX);
            blocking::read_file(path, most, client).await
        },
        |lua, content| lua.create_string(content),
    )?;
    add(
        state,
        &file,
        "write",
        async |path, content: LuaString, client| {
            let content = Bytes::copy_from_slice(&content.as_bytes());
            blocking::write_file_atomically(path, content, client).await
        },
        |_, ()| Ok(true),
    )?;
    add(
        state,
        &file,
        "remove",
        async |path, _: Value, client| blocking::remove_file(path, client).await,
        |_, ()| Ok(true),
    )?;
    add(
        state,
        &file,
        "stat",
        async |path, _: Value, client| blocking::stat(path, client).await,
        |lua, metadata| stat_table(lua, &metadata),
    )?;
    add(
        state,
        &file,
        "list",
        async |path, _: Value, client| blocking::read_directory(path, ENTRIES_MAX, client).await,
        |lua, mut entries| {
            entries.sort_by(|one, other| one.name.cmp(&other.name));
            let names = entries
                .iter()
                .map(|entry| lua.create_string(entry.name.as_bytes()));
            lua.create_sequence_from(names.collect::<mlua::Result<Vec<_>>>()?)
        },
    )?;
    petrel.set("file", petrel_lua::library::protect(lua, &file)?)
}

/// Adds a function that takes a path and another argument, and waits for `work` on them in the client's turn.
fn add<A, T, V>(
    state: &Rc<State>,
    file: &Table,
    name: &str,
    work: impl AsyncFn(&Path, A, u64) -> io::Result<T> + Copy + 'static,
    shown: fn(&Lua, T) -> mlua::Result<V>,
) -> mlua::Result<()>
where
    A: FromLua + 'static,
    T: 'static,
    V: IntoLua + 'static,
{
    let waits = FilePatience::of(state);
    let function = state
        .machine()
        .waiting(move |lua, (path, more): (LuaString, A)| {
            let path = PathBuf::from(OsStr::from_bytes(&path.as_bytes()));
            let (weak, waits) = (lua.weak(), waits.clone());
            Ok(async move {
                let work = work(&path, more, waits.client());
                let done = waits.wait(&path, work).await?;
                let lua = weak.upgrade();
                match done {
                    Ok(done) => Ok((shown(&lua, done)?.into_lua(&lua)?, None)),
                    Err(error) => Ok((Value::Nil, Some(format!("{}: {error}", path.display())))),
                }
            })
        })?;
    file.set(name, function)
}

/// `{ size = bytes, mtime = seconds, type = "file" | "directory" | "other" }`.
fn stat_table(lua: &Lua, metadata: &std::fs::Metadata) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.set("size", metadata.len())?;
    let modified = metadata.modified().ok();
    let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    table.set("mtime", since.unwrap_or_default().as_secs_f64())?;
    let kind = match metadata {
        metadata if metadata.is_file() => "file",
        metadata if metadata.is_dir() => "directory",
        _ => "other",
    };
    table.set("type", kind)?;
    Ok(table)
}
