//! Resumes a coroutine and reads the values that it yields, without a reference or an allocation for each
//! value: in a warm run most of the cost besides the script itself is here.

use std::ffi::c_int;

use mlua::{Function, IntoLuaMulti, LightUserData, Lua, Thread, Value, ffi};

/// A coroutine and the Lua state it belongs to. mlua's own `Thread` does not keep the state alive, which the
/// calls below rely on.
///
/// Methods that change its stack take `&mut self`, so that no [`Stack`] of it exists meanwhile.
pub(crate) struct Coroutine {
    lua: Lua,
    thread: Thread,
    /// How many values it had on its stack when it was last resumed or cleared. It has not fewer.
    values: usize,
}

/// The result of resuming a coroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resumed {
    /// It has yielded or returned values, which are on its stack.
    Values,
    /// It has raised an error, which is the last value on its stack.
    Error,
    /// It has run out of memory.
    NoMemory,
}

impl Coroutine {
    /// A coroutine that runs `function`, which belongs to `lua`.
    ///
    /// # Errors
    /// Memory has run out.
    pub(crate) fn new(lua: &Lua, function: Function) -> mlua::Result<Coroutine> {
        Ok(Coroutine {
            thread: lua.create_thread(function)?,
            lua: lua.clone(),
            values: 0,
        })
    }

    /// Its own Lua state. That is alive as long as the coroutine, and belongs to this thread of the process:
    /// neither `Lua` nor `Thread` can be sent to another thread.
    pub(crate) fn state(&self) -> *mut ffi::lua_State {
        self.thread.state()
    }

    /// The bytes that are in use in its Lua state, garbage included, to the KiB.
    pub(crate) fn bytes_used(&self) -> usize {
        // SAFETY: the state is alive and belongs to this thread (see `state`).
        unsafe { bytes_used(self.state()) }
    }

    /// The coroutine as a value for a Lua function.
    pub(crate) fn as_value(&mut self) -> Thread {
        self.thread.clone()
    }

    /// Pushes `arguments` for [`Coroutine::resume`] on its stack. Returns their number.
    ///
    /// # Errors
    /// Memory has run out.
    pub(crate) fn push(&mut self, arguments: impl IntoLuaMulti) -> mlua::Result<c_int> {
        let target = self.state();
        let mut count = 0;
        // SAFETY: both states are alive and belong to the same machine, as `new` has made the coroutine with
        // `lua`. mlua has put the arguments, and nothing else, on the stack it calls with, and made room on
        // it. The room on the target is checked.
        unsafe {
            self.lua.exec_raw::<()>(arguments, |state| {
                count = ffi::lua_gettop(state);
                if ffi::lua_checkstack(target, count) == 0 {
                    ffi::luaL_error(state, c"too many values".as_ptr());
                }
                ffi::lua_xmove(state, target, count);
            })?;
        }
        Ok(count)
    }

    /// Resumes it with the topmost `arguments` values of its stack. If there are fewer, or if it has ended,
    /// the result is an error.
    pub(crate) fn resume(&mut self, arguments: c_int) -> Resumed {
        let state = self.state();
        self.values = 0;
        let mut count = 0;
        // SAFETY: the state is alive and belongs to this thread (see `state`). It is suspended and has the
        // values that lua_resume takes off its stack, and below them the function if it has not begun: both
        // are checked first. It does not run: code that runs it borrows the coroutine meanwhile, and a Lua
        // function that got it by `as_value` has returned. lua_resume catches the errors of the coroutine.
        let status = unsafe {
            let below = match ffi::lua_status(state) {
                ffi::LUA_YIELD => 0,
                ffi::LUA_OK => 1,
                _ => return Resumed::Error,
            };
            if arguments < 0 || ffi::lua_gettop(state) < arguments.saturating_add(below) {
                return Resumed::Error;
            }
            ffi::lua_resume(state, std::ptr::null_mut(), arguments, &mut count)
        };
        if !matches!(status, ffi::LUA_OK | ffi::LUA_YIELD) {
            // SAFETY: as above; after an error the state is still there.
            count = unsafe { ffi::lua_gettop(state) };
        }
        self.values = usize::try_from(count).unwrap_or(0);
        match status {
            ffi::LUA_OK | ffi::LUA_YIELD => Resumed::Values,
            ffi::LUA_ERRMEM => Resumed::NoMemory,
            _ => Resumed::Error,
        }
    }

    /// The values on its stack.
    pub(crate) fn stack(&self) -> Stack<'_> {
        Stack {
            state: self.state(),
            coroutine: self,
        }
    }

    /// Removes everything from its stack.
    pub(crate) fn clear(&mut self) {
        // SAFETY: the state is alive, belongs to this thread and does not run (see `resume`). The unique
        // borrow means that nothing refers to values on its stack.
        unsafe { ffi::lua_settop(self.state(), 0) };
        self.values = 0;
    }
}

/// The values on the stack of a suspended coroutine.
#[derive(Clone, Copy)]
pub(crate) struct Stack<'t> {
    state: *mut ffi::lua_State,
    coroutine: &'t Coroutine,
}

impl<'t> Stack<'t> {
    /// The number of values.
    pub(crate) fn len(self) -> usize {
        self.coroutine.values
    }

    /// The mark at `index`, if it is one.
    pub(crate) fn mark(self, index: usize) -> Option<LightUserData> {
        let index = self.place(index)?;
        // SAFETY: the state is alive: it is borrowed. The index is on its stack.
        let pointer = unsafe { ffi::lua_touserdata(self.state, index) };
        // No object has the address of a mark.
        (!pointer.is_null()).then_some(LightUserData(pointer))
    }

    /// The string at `index`, if it is one. It is valid as long as it stays on the stack.
    pub(crate) fn bytes(self, index: usize) -> Option<&'t [u8]> {
        let index = self.place(index)?;
        // SAFETY: as above, and the type is checked first. A string on a stack is neither moved nor freed,
        // and strings never change. What is on the stack stays there until the coroutine is resumed or
        // cleared, for which the borrow must end.
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
    pub(crate) fn number(self, index: usize) -> Option<f64> {
        let index = self.place(index)?;
        // SAFETY: as for `bytes`.
        unsafe {
            (ffi::lua_type(self.state, index) == ffi::LUA_TNUMBER)
                .then(|| ffi::lua_tonumber(self.state, index))
        }
    }

    /// Whether the value at `index` is missing or `nil`.
    pub(crate) fn is_nil(self, index: usize) -> bool {
        let Some(index) = self.place(index) else {
            return true;
        };
        // SAFETY: as for `mark`.
        unsafe { ffi::lua_type(self.state, index) == ffi::LUA_TNIL }
    }

    /// The value at `index`, of any type.
    ///
    /// # Errors
    /// There is no memory for a reference to it.
    pub(crate) fn value(self, index: usize) -> mlua::Result<Value> {
        let Some(index) = self.place(index) else {
            return Ok(Value::Nil);
        };
        // SAFETY: both states are alive and belong to the same machine. The value is copied to the top of the
        // source's stack, which has room for it, and moved to the other.
        unsafe {
            self.coroutine.lua.exec_raw((), |state| {
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

/// The bytes that are in use, garbage included, to the KiB. A signal handler may call this.
///
/// # Safety
/// `state` is alive and belongs to the calling thread.
pub(crate) unsafe fn bytes_used(state: *mut ffi::lua_State) -> usize {
    // SAFETY: by the contract of this function. LUA_GCCOUNT reads a counter and changes nothing.
    let kib = unsafe { ffi::lua_gc(state, ffi::LUA_GCCOUNT, 0) };
    usize::try_from(kib).unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coroutine_is_resumed_only_with_what_is_on_its_stack() {
        let lua = Lua::new();
        let function = lua.load("return coroutine.yield(...)").into_function();
        let mut coroutine = Coroutine::new(&lua, function.expect("sound")).expect("memory");
        drop(lua);
        assert_eq!(
            coroutine.resume(1),
            Resumed::Error,
            "only its function is there"
        );
        assert_eq!(coroutine.resume(-1), Resumed::Error);
        let count = coroutine.push((1, "a")).expect("memory");
        assert_eq!(coroutine.resume(count + 1), Resumed::Error);
        assert_eq!(coroutine.resume(count), Resumed::Values);
        assert_eq!(coroutine.stack().bytes(2), Some(&b"a"[..]));
        assert_eq!(coroutine.resume(3), Resumed::Error, "it has yielded two");
        assert_eq!(coroutine.resume(2), Resumed::Values, "it ends");
        coroutine.clear();
        assert_eq!(coroutine.resume(0), Resumed::Error, "it has ended");
    }
}
