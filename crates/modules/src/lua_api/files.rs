//! `petrel.file`: reading and writing files without the worker waiting for a disk.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use petrel_engine::blocking;
use petrel_lua::mlua::{self, Lua, LuaString, Table, Value};

use crate::lua::{FilePatience, State};

/// Bytes that `petrel.file.read` reads at most.
const READ_BYTES_MAX: usize = 64 << 20;
/// Names that `petrel.file.list` lists at most.
const ENTRIES_MAX: usize = 65_536;

/// Adds it to `petrel`. What could not be done is `nil` and a message, as with Lua's own functions; what is not
/// done in time ends the script.
pub(super) fn open(state: &Rc<State>, petrel: &Table) -> mlua::Result<()> {
    let machine = state.machine();
    let waits = FilePatience::of(state);
    let file = machine.lua().create_table()?;
    let waiting = waits.clone();
    let read = machine.waiting(move |lua, (path, most): (LuaString, Option<usize>)| {
        let (path, weak, waits) = (path_of(&path), lua.weak(), waiting.clone());
        let most = most.unwrap_or(READ_BYTES_MAX).min(READ_BYTES_MAX);
        Ok(async move {
            let result = waits
                .wait(&path, blocking::read_file(&path, most, waits.client()))
                .await?;
            let lua = weak.upgrade();
            answer(
                &lua,
                &path,
                result.map(|content| lua.create_string(content)),
            )
        })
    })?;
    file.set("read", read)?;
    let waiting = waits.clone();
    let write = machine.waiting(move |lua, (path, content): (LuaString, LuaString)| {
        let (path, weak, waits) = (path_of(&path), lua.weak(), waiting.clone());
        let content = Bytes::copy_from_slice(&content.as_bytes());
        Ok(async move {
            let result = waits
                .wait(
                    &path,
                    blocking::write_file_atomically(&path, content, waits.client()),
                )
                .await?;
            answer(&weak.upgrade(), &path, result.map(|()| Ok(true)))
        })
    })?;
    file.set("write", write)?;
    let waiting = waits.clone();
    let remove = machine.waiting(move |lua, path: LuaString| {
        let (path, weak, waits) = (path_of(&path), lua.weak(), waiting.clone());
        Ok(async move {
            let result = waits
                .wait(&path, blocking::remove_file(&path, waits.client()))
                .await?;
            answer(&weak.upgrade(), &path, result.map(|()| Ok(true)))
        })
    })?;
    file.set("remove", remove)?;
    let waiting = waits.clone();
    let stat = machine.waiting(move |lua, path: LuaString| {
        let (path, weak, waits) = (path_of(&path), lua.weak(), waiting.clone());
        Ok(async move {
            let result = waits
                .wait(&path, blocking::stat(&path, waits.client()))
                .await?;
            let lua = weak.upgrade();
            answer(
                &lua,
                &path,
                result.map(|metadata| stat_table(&lua, &metadata)),
            )
        })
    })?;
    file.set("stat", stat)?;
    let waiting = waits.clone();
    let list = machine.waiting(move |lua, path: LuaString| {
        let (path, weak, waits) = (path_of(&path), lua.weak(), waiting.clone());
        Ok(async move {
            let result = waits
                .wait(
                    &path,
                    blocking::read_directory(&path, ENTRIES_MAX, waits.client()),
                )
                .await?;
            let lua = weak.upgrade();
            let names = result.map(|mut entries| {
                entries.sort_by(|one, other| one.name.cmp(&other.name));
                let names = entries
                    .iter()
                    .map(|entry| lua.create_string(entry.name.as_bytes()));
                lua.create_sequence_from(names.collect::<mlua::Result<Vec<_>>>()?)
            });
            answer(&lua, &path, names)
        })
    })?;
    file.set("list", list)?;
    petrel.set("file", petrel_lua::library::protect(machine.lua(), &file)?)
}

fn path_of(path: &LuaString) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(&path.as_bytes()))
}

/// The value, or `nil` and what was wrong.
fn answer<T: mlua::IntoLua>(
    lua: &Lua,
    path: &std::path::Path,
    result: io::Result<mlua::Result<T>>,
) -> mlua::Result<(Value, Option<String>)> {
    match result {
        Ok(value) => Ok((value?.into_lua(lua)?, None)),
        Err(error) => Ok((Value::Nil, Some(format!("{}: {error}", path.display())))),
    }
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
