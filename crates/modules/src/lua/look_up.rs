//! Functions of scripts that examine files: at once if the answer is in memory, otherwise the script waits;
//! and functions whose work is done by disk threads.

use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::task::{Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::blocking::FileDeadline;
use petrel_engine::cold_files::{ColdWait, cause_of_error, note_file_of_script};
use petrel_engine::file_cache::{FileEntry, FileKind, Symlinks};
use petrel_engine::worker::Worker;
use petrel_lua::Lent;
use petrel_lua::mlua::{self, Function, IntoLuaMulti, LuaString, MultiValue};
use rustix::io::Errno;

use super::State;

/// Turns the name that a script uses for a file into an absolute path; `None` if no file can have such a
/// name.
pub(crate) type PathOf = fn(&Exchange, &[u8]) -> Option<Vec<u8>>;

/// Makes the result of a function from the file at the path; `None` if no file can have such a name. The name
/// is the one that the script used.
pub(crate) type LookUpAnswer<R> = fn(&mut Exchange, Option<Rc<FileEntry>>, &[u8]) -> R;

/// A Lua function that takes the name of a file. It waits for the file system for at most
/// `server.max-file-wait`; then the script gets an error. It also gets an error if the file system fails,
/// because it must not be told that a file is missing when that is not known.
///
/// # Errors
/// No memory is left.
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

/// The file that was found at `path`.
///
/// # Errors
/// The file system has failed, so it is not known what is there.
fn looked_at(exchange: &Exchange, path: &[u8], file: Rc<FileEntry>) -> mlua::Result<Rc<FileEntry>> {
    match file.kind() {
        FileKind::Failed(errno) => Err(failure(exchange, path, &errno.into())),
        _ => Ok(file),
    }
}

/// The script's error for a failure of the file system.
fn failure(exchange: &Exchange, path: &[u8], error: &io::Error) -> mlua::Error {
    exchange.fail_on_file(cause_of_error(error));
    let path = String::from_utf8_lossy(path);
    mlua::Error::runtime(format_args!("{path}: {error}"))
}

/// The result of `look`, which is called again as long as it returns `None`, because [`Exchange::look_up`]
/// did not have the answer in memory. For functions that wait.
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

/// Lets functions wait for disk threads, for at most `server.max-file-wait`. Then the script gets an error,
/// and its request gets 504 unless the answer has begun.
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
    /// It is not finished in time.
    pub(crate) fn wait<W: Future>(
        &self,
        path: &Path,
        work: W,
    ) -> impl Future<Output = mlua::Result<W::Output>> + use<W> {
        let (lent, path) = (Rc::clone(&self.lent), path.to_owned());
        let deadline = self.deadline();
        let worker = self.worker.upgrade();
        let clock = worker.map(|worker| Rc::clone(worker.clock()));
        async move {
            let (Some(deadline), Some(clock)) = (deadline, clock) else {
                return Err(mlua::Error::runtime("the worker has ended"));
            };
            let begun = clock.now();
            let done = deadline.wait_for(work).await;
            note_file_of_script(&path, begun, clock.now());
            done.map_err(|_| {
                let path = path.as_os_str().as_bytes();
                // A script that produces its answer while that is sent has no request any more.
                lent.with(|exchange| exchange.give_up_on_file("lua", path));
                let path = String::from_utf8_lossy(path);
                mlua::Error::runtime(format_args!("{path}: {LATE}"))
            })
        }
    }

    /// As [`Self::wait`], for a file that may be missing: that is `None`.
    ///
    /// # Errors
    /// The work is not finished in time, or the file system has failed.
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

    /// The client in whose turn the work is done. Without a request it is the server's own turn.
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

/// Whether an error says that nothing is at the path, or nothing that this process may use. After other
/// errors it is not known what is there.
fn is_about_what_is_there(error: &io::Error) -> bool {
    match Errno::from_io_error(error) {
        // The path is no symlink.
        Some(Errno::INVAL) => true,
        Some(errno) => !matches!(FileKind::of_error(errno), FileKind::Failed(_)),
        // The path contains a NUL byte, or the directory has too many names.
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

/// The administrator chooses the scripts. The rules about symlinks are for files that URLs name.
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
