//! Resuming a coroutine and reading what it hands out, without a reference or an allocation for each value:
//! what a warm run costs beside its script is mostly this.

use std::ffi::c_int;
use std::marker::PhantomData;

use mlua::{IntoLuaMulti, LightUserData, Lua, Thread, Value, ffi};

/// What became of a coroutine that was resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resumed {
    /// It has yielded, or returned; its stack has the values.
    Values,
    /// It raised an error, which is the last value of its stack.
    Error,
    /// The same, for lack of memory.
    NoMemory,
}

/// Puts `arguments` on the stack of `thread`, for [`resume`].
///
/// # Errors
/// There is no memory for them.
pub(crate) fn push(
    lua: &Lua,
    thread: &Thread,
    arguments: impl IntoLuaMulti,
) -> mlua::Result<c_int> {
    let target = thread.state();
    let mut count = 0;
    // SAFETY: both states are alive and of one machine; mlua has put the arguments, and nothing else, on
    // the stack it calls with, and made room on it. The room on the target is checked.
    unsafe {
        lua.exec_raw::<()>(arguments, |state| {
            count = ffi::lua_gettop(state);
            if ffi::lua_checkstack(target, count) == 0 {
                ffi::luaL_error(state, c"too many values".as_ptr());
            }
            ffi::lua_xmove(state, target, count);
        })?;
    }
    Ok(count)
}

/// Resumes `thread`, which is suspended or has not begun, with the `arguments` values on top of its stack.
pub(crate) fn resume(thread: &Thread, arguments: c_int) -> Resumed {
    let mut count = 0;
    // SAFETY: the state is alive as long as `thread` is, and belongs to this thread. Errors of the
    // coroutine are caught by lua_resume. Whoever has the thread from the machine's pool is the only one
    // who resumes it.
    let status =
        unsafe { ffi::lua_resume(thread.state(), std::ptr::null_mut(), arguments, &mut count) };
    match status {
        ffi::LUA_OK | ffi::LUA_YIELD => Resumed::Values,
        ffi::LUA_ERRMEM => Resumed::NoMemory,
        _ => Resumed::Error,
    }
}

/// The values on the stack of a coroutine that does not run.
#[derive(Clone, Copy)]
pub(crate) struct Stack<'t> {
    state: *mut ffi::lua_State,
    thread: PhantomData<&'t Thread>,
}

impl<'t> Stack<'t> {
    /// That of `thread`.
    pub fn of(thread: &'t Thread) -> Stack<'t> {
        Stack {
            state: thread.state(),
            thread: PhantomData,
        }
    }

    /// How many there are.
    pub fn len(self) -> usize {
        // SAFETY: the state is alive: it is borrowed.
        usize::try_from(unsafe { ffi::lua_gettop(self.state) }).unwrap_or(0)
    }

    /// The mark at `index`, if it is one.
    pub fn mark(self, index: usize) -> Option<LightUserData> {
        let index = self.place(index)?;
        // SAFETY: the state is alive, the index is one of its stack, and the type is asked for first.
        unsafe {
            (ffi::lua_type(self.state, index) == ffi::LUA_TLIGHTUSERDATA)
                .then(|| LightUserData(ffi::lua_touserdata(self.state, index)))
        }
    }

    /// The string at `index`, if it is one. Valid as long as it stays on the stack.
    pub fn bytes(self, index: usize) -> Option<&'t [u8]> {
        let index = self.place(index)?;
        // SAFETY: as above. A string is not moved or freed while it is on a stack, and not changed at all;
        // what is on the stack stays there until the thread is resumed or cleared, for which the borrow
        // has to end.
        unsafe {
            if ffi::lua_type(self.state, index) != ffi::LUA_TSTRING {
                return None;
            }
            let mut length = 0;
            let bytes = ffi::lua_tolstring(self.state, index, &mut length);
            (!bytes.is_null()).then(|| std::slice::from_raw_parts(bytes.cast(), length))
        }
    }

    /// The number at `index`, if it is one.
    pub fn number(self, index: usize) -> Option<f64> {
        let index = self.place(index)?;
        // SAFETY: as for `mark`.
        unsafe {
            (ffi::lua_type(self.state, index) == ffi::LUA_TNUMBER)
                .then(|| ffi::lua_tonumber(self.state, index))
        }
    }

    /// Whether there is nothing, or `nil`, at `index`.
    pub fn is_nil(self, index: usize) -> bool {
        let Some(index) = self.place(index) else {
            return true;
        };
        // SAFETY: as for `mark`.
        unsafe { ffi::lua_type(self.state, index) == ffi::LUA_TNIL }
    }

    /// The value at `index` of any type.
    ///
    /// # Errors
    /// There is no memory for a reference to it.
    pub fn value(self, lua: &Lua, index: usize) -> mlua::Result<Value> {
        let Some(index) = self.place(index) else {
            return Ok(Value::Nil);
        };
        // SAFETY: both states are alive and of one machine; a slot is made on the source's stack, which
        // has room for it, and moved to the other.
        unsafe {
            lua.exec_raw((), |state| {
                if ffi::lua_checkstack(self.state, 1) == 0 {
                    ffi::luaL_error(state, c"no room for a value".as_ptr());
                }
                ffi::lua_pushvalue(self.state, index);
                ffi::lua_xmove(self.state, state, 1);
            })
        }
    }

    fn place(self, index: usize) -> Option<c_int> {
        (1..=self.len())
            .contains(&index)
            .then(|| c_int::try_from(index).ok())?
    }
}

/// Takes everything off the stack of `thread`, which is suspended.
pub(crate) fn clear(thread: &mut Thread) {
    // SAFETY: the state is alive, belongs to this thread and does not run; by the unique borrow nobody
    // reads what is on its stack.
    unsafe { ffi::lua_settop(thread.state(), 0) };
}
