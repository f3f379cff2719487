//! `lighty.stat` and `lighty.c.stat`: information about a path, through the worker's file cache.
//!
//! A path that the cache knows costs no system call, except for owner and times of access and change, which
//! the cache does not keep. While a script waits for the disk, others run. A path that cannot be examined is
//! an error of the script, and not `nil`, which means that nothing is there.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::blocking;
use petrel_engine::file_cache::{FileEntry, FileKind};
use petrel_engine::proto::status::Status;
use petrel_lua::mlua::{self, LuaString, Table, Value, Variadic};

use super::content::absolute;
use super::environment::lend;
use crate::lua::{FilePatience, State, of_file};
use crate::static_file;

/// Mode, size, inode, and the time of modification in seconds and nanoseconds.
type KnownStat = (u32, f64, f64, f64, u32);

/// Adds the functions.
///
/// # Errors
/// No memory is left.
pub(super) fn open(state: &Rc<State>, host: &Table) -> mlua::Result<()> {
    let lua = state.machine().lua();
    let path_of = |_: &Exchange, name: &[u8]| absolute(name);
    let stat = of_file(state, path_of, |_, file, _| {
        let known = file.map_or(Seen::Nothing, |file| known(&file));
        known.values()
    })?;
    host.set("stat", stat)?;
    let waits = FilePatience::of(state);
    let waiting = waits.clone();
    let unopened = state.machine().waiting(move |_, path: LuaString| {
        let path = PathBuf::from(OsStr::from_bytes(&path.as_bytes()));
        let waits = waiting.clone();
        Ok(async move {
            let found = waits
                .wait_for_there(&path, blocking::stat(&path, waits.client()))
                .await?;
            Ok(found
                .map_or(Seen::Nothing, |found| of_metadata(&found))
                .values())
        })
    })?;
    host.set("stat_unopened", unopened)?;
    let rest = state.machine().waiting(move |_, path: LuaString| {
        let path = PathBuf::from(OsStr::from_bytes(&path.as_bytes()));
        let waits = waits.clone();
        Ok(async move {
            let found = waits
                .wait_for_there(&path, blocking::stat(&path, waits.client()))
                .await?;
            Ok(Variadic::from_iter(rest(found)))
        })
    })?;
    host.set("stat_rest", rest)?;
    let etag = of_file(state, path_of, |exchange, file, _| {
        file.and_then(|file| static_file::etag_of(&file, &exchange.settings.core))
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
    let send = of_file(state, path_of, |exchange, file, path| {
        send_file(exchange, file, path).0
    })?;
    host.set("stat_send_file", send)
}

/// What is at a path.
enum Seen {
    Nothing,
    /// Something that cannot be opened or is not served, such as a socket. Only stat(2) tells more.
    Unopened,
    Known(KnownStat),
}

impl Seen {
    /// The values for environment.lua: no mode means nothing is there, false means something that is not
    /// opened.
    fn values(self) -> (Value, f64, f64, f64, u32) {
        match self {
            Seen::Nothing => (Value::Nil, 0.0, 0.0, 0.0, 0),
            Seen::Unopened => (Value::Boolean(false), 0.0, 0.0, 0.0, 0),
            Seen::Known((mode, size, inode, s, ns)) => {
                (Value::Number(mode.into()), size, inode, s, ns)
            }
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of scripts are like that"
)]
fn known(file: &FileEntry) -> Seen {
    match file.kind() {
        FileKind::Regular | FileKind::Directory => {
            let stat = file.stat();
            let (size, inode, modified_s) = (stat.size, stat.inode, stat.modified_s);
            Seen::Known((
                stat.mode,
                size as f64,
                inode as f64,
                modified_s as f64,
                stat.modified_ns,
            ))
        }
        FileKind::Denied | FileKind::Special => Seen::Unopened,
        FileKind::Missing | FileKind::NotADirectory | FileKind::Failed(_) => Seen::Nothing,
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of scripts are like that"
)]
fn of_metadata(stat: &Metadata) -> Seen {
    let modified_ns = u32::try_from(stat.mtime_nsec()).unwrap_or_default();
    let (size, inode) = (stat.len() as f64, stat.ino() as f64);
    Seen::Known((stat.mode(), size, inode, stat.mtime() as f64, modified_ns))
}

/// Owner, group, and times of access and change with nanoseconds; zeros if the file has gone.
#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of scripts are like that"
)]
fn rest(stat: Option<Metadata>) -> [f64; 6] {
    let Some(stat) = stat else {
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

/// Makes a file the answer, with the fields of a static file and subject to the conditions of the request.
fn send_file(exchange: &mut Exchange, file: Option<Rc<FileEntry>>, path: &[u8]) -> Status {
    let Some(file) = file else {
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
