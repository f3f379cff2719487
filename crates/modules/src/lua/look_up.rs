//! Functions of scripts that look at files: at once if the answer is known, otherwise the script waits; and
//! those whose work threads do.

use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::task::{Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::blocking::FileDeadline;
use petrel_engine::cold_files::{ColdWait, status_of_error};
use petrel_engine::file_cache::{FileEntry, FileKind, Symlinks};
use petrel_engine::worker::Worker;
use petrel_lua::Lent;
use petrel_lua::mlua::{self, Function, IntoLuaMulti, LuaString, MultiValue};
use rustix::io::Errno;

use super::State;

/// From what a script calls a file to its absolute path; `None` if no file can have such a name.
pub(crate) type PathOf = fn(&Exchange, &[u8]) -> Option<Vec<u8>>;

/// What a function comes to, of what is at the path; of nothing if no file can have such a name. The name is
/// as the script has it.
pub(crate) type LookUpAnswer<R> = fn(&mut Exchange, Option<Rc<FileEntry>>, &[u8]) -> R;

/// A Lua function of a name. It waits for the file system at most `server.max-file-wait`; then the script
/// has an error, and also if the file system fails: who asks whether something is there must not be told that
/// nothing is.
///
/// # Errors
/// There is no memory.
pub(crate) fn of_file<R: IntoLuaMulti + 'static>(
    state: &Rc<State>,
    path_of: PathOf,
    answer: LookUpAnswer<R>,
) -> mlua::Result<Function> {
    let lua = state.machine().lua();
    let lent = Rc::clone(state.lent());
    let now = lua.create_function(move |lua, name: LuaString| {
        let name = name.as_bytes();
        let found = lend(&lent, |exchange| -> mlua::Result<_> {
            let Some(path) = path_of(exchange, &name) else {
                return Ok(Some(answer(exchange, None, &name)));
            };
            let Some(file) = exchange.look_up(&path, SYMLINKS) else {
                return Ok(None);
            };
            let file = looked_at(exchange, &path, file)?;
            Ok(Some(answer(exchange, Some(file), &name)))
        })??;
        let mut values = match found {
            Some(found) => found.into_lua_multi(lua)?,
            None => return (false,).into_lua_multi(lua),
        };
        values.push_front(mlua::Value::Boolean(true));
        Ok::<MultiValue, mlua::Error>(values)
    })?;
    let lent = Rc::clone(state.lent());
    let wait = state.machine().waiting(move |_, name: LuaString| {
        let (lent, name) = (Rc::clone(&lent), name.as_bytes().to_vec());
        let found = waiting_for(lent, move |exchange| {
            let Some(path) = path_of(exchange, &name) else {
                return Some(Ok(answer(exchange, None, &name)));
            };
            let file = exchange.look_up(&path, SYMLINKS)?;
            exchange.forget_look_up(&path);
            let file = looked_at(exchange, &path, file);
            Some(file.map(|file| answer(exchange, Some(file), &name)))
        });
        Ok(async move { found.await? })
    })?;
    let source = "local now, wait = ...\n\
                  local function done(name, is_known, ...)\n\
                    if is_known then return ... end\n\
                    return wait(name)\n\
                  end\n\
                  return function(name) return done(name, now(name)) end";
    lua.load(source)
        .set_name("=petrel/files.lua")
        .call((now, wait))
}

/// What was found at `path`.
///
/// # Errors
/// Nobody knows what is there.
fn looked_at(exchange: &Exchange, path: &[u8], file: Rc<FileEntry>) -> mlua::Result<Rc<FileEntry>> {
    match file.kind() {
        FileKind::Failed(errno) => Err(failure(exchange, path, &errno.into())),
        _ => Ok(file),
    }
}

/// An error of the script, because the file system has failed.
fn failure(exchange: &Exchange, path: &[u8], error: &io::Error) -> mlua::Error {
    exchange.fail_on_file(status_of_error(error));
    let path = String::from_utf8_lossy(path);
    mlua::Error::runtime(format_args!("{path}: {error}"))
}

/// What `look` comes to, which is called again whenever [`Exchange::look_up`] did not know what it asked for;
/// nothing is that. For functions that wait.
pub(crate) fn waiting_for<R>(
    lent: Rc<Lent<Exchange>>,
    mut look: impl FnMut(&mut Exchange) -> Option<R>,
) -> impl Future<Output = mlua::Result<R>> {
    let mut wait = None;
    poll_fn(move |context| {
        let polled = lend(&lent, |exchange| {
            loop {
                if let Some(found) = look(exchange) {
                    return Poll::Ready(Ok(found));
                }
                let wait = wait.get_or_insert_with(|| ColdWait::new(exchange));
                if let Err(late) = ready!(wait.poll_in_time(exchange, context)) {
                    return Poll::Ready(Err(mlua::Error::runtime(late)));
                }
            }
        });
        polled.unwrap_or_else(|error| Poll::Ready(Err(error)))
    })
}

/// Lets functions wait for what threads do to files, at most `server.max-file-wait`; then the script has an error,
/// and its request is 504 unless the answer has begun.
#[derive(Clone)]
pub(crate) struct FilePatience {
    lent: Rc<Lent<Exchange>>,
    worker: Weak<Worker>,
}

impl FilePatience {
    /// For functions of `state`.
    pub(crate) fn of(state: &State) -> FilePatience {
        FilePatience {
            lent: Rc::clone(state.lent()),
            worker: Weak::clone(state.worker()),
        }
    }

    /// Waits for `work` on `path`.
    ///
    /// # Errors
    /// It is not done in time.
    pub(crate) fn wait<W: Future>(
        &self,
        path: &Path,
        work: W,
    ) -> impl Future<Output = mlua::Result<W::Output>> + use<W> {
        let (lent, path) = (Rc::clone(&self.lent), path.to_owned());
        let deadline = self.deadline();
        async move {
            let deadline = deadline.ok_or_else(|| mlua::Error::runtime("the worker has ended"))?;
            deadline.wait_for(work).await.map_err(|_| {
                let path = path.as_os_str().as_bytes();
                // A script that makes its answer while that is sent has no request any more.
                lent.with(|exchange| exchange.give_up_on_file("lua", path));
                let path = String::from_utf8_lossy(path);
                mlua::Error::runtime(format_args!("{path}: {LATE}"))
            })
        }
    }

    /// The same for what may not be there: that is nothing.
    ///
    /// # Errors
    /// It is not done in time, or the file system has failed.
    pub(crate) fn wait_for_there<T>(
        &self,
        path: &Path,
        work: impl Future<Output = io::Result<T>>,
    ) -> impl Future<Output = mlua::Result<Option<T>>> {
        let (lent, path) = (Rc::clone(&self.lent), path.to_owned());
        let done = self.wait(&path, work);
        async move {
            let error = match done.await? {
                Ok(done) => return Ok(Some(done)),
                Err(error) if is_about_what_is_there(&error) => return Ok(None),
                Err(error) => error,
            };
            let path = path.as_os_str().as_bytes();
            let failed = lent.with(|exchange| failure(exchange, path, &error));
            Err(failed.unwrap_or_else(|| mlua::Error::external(error)))
        }
    }

    /// Whose turn such work takes: the server's own when there is no request any more.
    pub(crate) fn client(&self) -> u64 {
        let client = self.lent.with(|exchange| exchange.connection.client_key());
        client.unwrap_or_default()
    }

    /// `None`: the worker has ended.
    fn deadline(&self) -> Option<FileDeadline> {
        let own = self.lent.with(|exchange| exchange.file_deadline());
        own.or_else(|| {
            let worker = self.worker.upgrade()?;
            Some(worker.file_deadline(worker.base_settings().core.file_wait_s))
        })
    }
}

const LATE: &str = "the file system has not answered in time (server.max-file-wait)";

/// Whether an error says that there is no such thing at a path, or none that this process may have. With others
/// nobody knows.
fn is_about_what_is_there(error: &io::Error) -> bool {
    match Errno::from_io_error(error) {
        // It is no symlink.
        Some(Errno::INVAL) => true,
        Some(errno) => !matches!(FileKind::of_error(errno), FileKind::Failed(_)),
        // There is a NUL in the path; the directory has too many names.
        None => matches!(
            error.kind(),
            io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge
        ),
    }
}

fn lend<R>(lent: &Lent<Exchange>, with: impl FnOnce(&mut Exchange) -> R) -> mlua::Result<R> {
    lent.with(with)
        .ok_or_else(|| mlua::Error::runtime("there is no request any more: its answer has begun"))
}

/// Scripts are the administrator's: rules about symlinks are about what URLs name.
const SYMLINKS: Symlinks = Symlinks::Follow;

#[cfg(test)]
mod tests {
    use petrel_engine::blocking::NotDone;

    use super::*;

    #[test]
    fn failures_do_not_say_what_is_there() {
        let errno = |errno: Errno| io::Error::from(errno);
        for error in [
            errno(Errno::NOENT),
            errno(Errno::NOTDIR),
            errno(Errno::ACCESS),
            errno(Errno::LOOP),
            errno(Errno::INVAL),
            io::ErrorKind::FileTooLarge.into(),
            std::fs::metadata("a\0b").expect_err("no path has a NUL"),
        ] {
            assert!(is_about_what_is_there(&error), "{error}");
        }
        for error in [
            errno(Errno::IO),
            errno(Errno::MFILE),
            errno(Errno::STALE),
            errno(Errno::TIMEDOUT),
            NotDone::QueueFull.into(),
            NotDone::Lost.into(),
        ] {
            assert!(!is_about_what_is_there(&error), "{error}");
        }
    }
}
