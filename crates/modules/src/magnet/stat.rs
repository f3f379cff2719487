//! `lighty.stat` and `lighty.c.stat`: what the file system has at a path, by the worker's file cache.
//!
//! A path that was asked for before costs no system call, but for owner and times of access and change,
//! which the cache does not keep.

use std::os::unix::fs::MetadataExt;
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::file_cache::FileKind;
use petrel_engine::proto::status::Status;
use petrel_lua::mlua::{self, LuaString, Table, Variadic};

use super::content::look_up;
use super::environment::lend;
use crate::lua::State;
use crate::static_file;

/// Mode, size, inode, and the time of the last change in seconds and nanoseconds.
type Known = (u32, f64, f64, f64, u32);

/// Adds the functions.
///
/// # Errors
/// There is no memory.
pub(super) fn open(state: &Rc<State>, host: &Table) -> mlua::Result<()> {
    let lua = state.machine().lua();
    let lent = Rc::clone(state.lent());
    let stat = lua.create_function(move |_, path: LuaString| {
        lend(&lent, |exchange| known(exchange, &path.as_bytes())).map(|known| {
            known.map_or((None, 0.0, 0.0, 0.0, 0), |(mode, size, inode, s, ns)| {
                (Some(mode), size, inode, s, ns)
            })
        })
    })?;
    host.set("stat", stat)?;
    let rest =
        lua.create_function(|_, path: LuaString| Ok(Variadic::from_iter(rest(&path.as_bytes()))))?;
    host.set("stat_rest", rest)?;
    let lent = Rc::clone(state.lent());
    let etag = lua.create_function(move |_, path: LuaString| {
        lend(&lent, |exchange| {
            let file = look_up(exchange, &path.as_bytes())?;
            static_file::etag_of(&file, &exchange.settings.core)
        })
    })?;
    host.set("stat_etag", etag)?;
    let lent = Rc::clone(state.lent());
    let content_type = lua.create_function(move |lua, path: LuaString| {
        let path = path.as_bytes();
        let found = lend(&lent, |exchange| {
            let types = &exchange.settings.core.mime_types;
            types.content_type_of(&path).map(<[u8]>::to_vec)
        })?;
        found.map(|found| lua.create_string(found)).transpose()
    })?;
    host.set("stat_content_type", content_type)?;
    let lent = Rc::clone(state.lent());
    let send = lua.create_function(move |_, path: LuaString| {
        lend(&lent, |exchange| send_file(exchange, &path.as_bytes()).0)
    })?;
    host.set("stat_send_file", send)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of scripts are like that"
)]
fn known(exchange: &Exchange, path: &[u8]) -> Option<Known> {
    let file = look_up(exchange, path)?;
    match file.kind() {
        FileKind::Regular | FileKind::Directory => {
            let stat = file.stat();
            let (size, inode, modified_s) = (stat.size, stat.inode, stat.modified_s);
            Some((
                stat.mode,
                size as f64,
                inode as f64,
                modified_s as f64,
                stat.modified_ns,
            ))
        }
        // There may be something that cannot be opened, or is not served: a socket, say.
        FileKind::Denied | FileKind::Special => {
            let stat = metadata(path)?;
            let modified_ns = u32::try_from(stat.mtime_nsec()).unwrap_or_default();
            let (size, inode) = (stat.len() as f64, stat.ino() as f64);
            Some((stat.mode(), size, inode, stat.mtime() as f64, modified_ns))
        }
        _ => None,
    }
}

/// Owner, group, times of access and change with their nanoseconds; zeros if the file has gone.
#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of scripts are like that"
)]
fn rest(path: &[u8]) -> [f64; 6] {
    let Some(stat) = metadata(path) else {
        return [0.0; 6];
    };
    let (accessed, changed) = (stat.atime() as f64, stat.ctime() as f64);
    let nanoseconds = (stat.atime_nsec() as f64, stat.ctime_nsec() as f64);
    let owner = (stat.uid().into(), stat.gid().into());
    [
        owner.0,
        owner.1,
        accessed,
        changed,
        nanoseconds.0,
        nanoseconds.1,
    ]
}

fn metadata(path: &[u8]) -> Option<std::fs::Metadata> {
    use std::os::unix::ffi::OsStrExt;
    std::fs::metadata(std::ffi::OsStr::from_bytes(path)).ok()
}

/// Makes a file the answer, with the fields that a static file has and as the conditions of the request
/// allow.
fn send_file(exchange: &mut Exchange, path: &[u8]) -> Status {
    let Some(file) = look_up(exchange, path) else {
        return Status::NOT_FOUND;
    };
    match file.kind() {
        FileKind::Regular => {}
        FileKind::Missing | FileKind::NotADirectory => return Status::NOT_FOUND,
        _ => return Status::FORBIDDEN,
    }
    exchange.response.status = Status::OK;
    static_file::answer_for_backend(exchange, file, path);
    exchange.response.status
}
