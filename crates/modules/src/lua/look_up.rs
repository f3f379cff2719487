//! Functions of scripts that look at files: at once if the answer is known, otherwise the script waits.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::cold_files::ColdWait;
use petrel_engine::file_cache::{FileEntry, Symlinks};
use petrel_lua::Lent;
use petrel_lua::mlua::{self, Function, IntoLuaMulti, LuaString, MultiValue};

use super::State;

/// From what a script calls a file to its absolute path; `None` if no file can have such a name.
pub(crate) type PathOf = fn(&Exchange, &[u8]) -> Option<Vec<u8>>;

/// What a function comes to, of what is at the path; of nothing if no file can have such a name. The name is
/// as the script has it.
pub(crate) type Answer<R> = fn(&mut Exchange, Option<Rc<FileEntry>>, &[u8]) -> R;

/// A Lua function of a name. It waits for the file system at most `server.max-file-wait`; then the script
/// has an error.
///
/// # Errors
/// There is no memory.
pub(crate) fn of_file<R: IntoLuaMulti + 'static>(
    state: &Rc<State>,
    path_of: PathOf,
    answer: Answer<R>,
) -> mlua::Result<Function> {
    let lua = state.machine().lua();
    let lent = Rc::clone(state.lent());
    let now = lua.create_function(move |lua, name: LuaString| {
        let name = name.as_bytes();
        let found = lend(&lent, |exchange| {
            let path = path_of(exchange, &name);
            let file = path.map(|path| exchange.look_up(&path, SYMLINKS));
            match file {
                Some(None) => None,
                found => Some(answer(exchange, found.flatten(), &name)),
            }
        })?;
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
        Ok(waiting_for(lent, move |exchange| {
            let file = match path_of(exchange, &name) {
                Some(path) => {
                    let file = exchange.look_up(&path, SYMLINKS)?;
                    exchange.forget_look_up(&path);
                    Some(file)
                }
                None => None,
            };
            Some(answer(exchange, file, &name))
        }))
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
                if ready!(wait.poll_in_time(exchange, context)).is_err() {
                    return Poll::Ready(Err(late()));
                }
            }
        });
        polled.unwrap_or_else(|error| Poll::Ready(Err(error)))
    })
}

fn lend<R>(lent: &Lent<Exchange>, with: impl FnOnce(&mut Exchange) -> R) -> mlua::Result<R> {
    lent.with(with)
        .ok_or_else(|| mlua::Error::runtime("there is no request any more: its answer has begun"))
}

fn late() -> mlua::Error {
    mlua::Error::runtime("the file system has not answered in time (server.max-file-wait)")
}

/// Scripts are the administrator's: rules about symlinks are about what URLs name.
const SYMLINKS: Symlinks = Symlinks::Follow;
