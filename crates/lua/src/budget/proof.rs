//! Tests once per process that the watchdog stops a loop that LuaJIT has compiled.
//!
//! Compiled code checks for hooks only if LuaJIT was built with LUAJIT_ENABLE_CHECKHOOK. Without it an
//! endless loop would block its thread for ever, so the states of such a program run without the JIT
//! compiler.

use std::sync::OnceLock;
use std::time::Duration;

use mlua::{Lua, LuaOptions, StdLib, Table};

use super::{Budget, Meter};
use crate::raw::Coroutine;

/// Whether compiled loops can be stopped. The first call takes two or three milliseconds or, if they cannot,
/// as long as [`STEPS`] take.
pub fn compiled_loops_stop() -> bool {
    static STOP: OnceLock<bool> = OnceLock::new();
    *STOP.get_or_init(|| stopped_at().is_ok_and(|step| step < STEPS))
}

/// What the log says if they cannot be stopped.
pub const REMEDY: &str = "the watchdog cannot stop compiled loops of Lua scripts, because LuaJIT was built without \
LUAJIT_ENABLE_CHECKHOOK; scripts run without the JIT compiler, which is slower. Build Petrel with \
HOST_CFLAGS=-DLUAJIT_ENABLE_CHECKHOOK and TARGET_CFLAGS=-DLUAJIT_ENABLE_CHECKHOOK in the environment";

/// The steps of the test loop: they take many times as long as the watchdog needs on a busy machine.
const STEPS: u64 = 500_000_000;

/// The test loop. It stores each step, which shows how far it came.
const SOURCE: &str = "local at, steps = ... for step = 1, steps do at[1] = step end";

/// The step at which the loop was stopped, or the last one.
fn stopped_at() -> mlua::Result<u64> {
    // SAFETY: the only code that runs in this state is SOURCE.
    let lua = unsafe { Lua::unsafe_new_with(StdLib::JIT, LuaOptions::new()) };
    let meter = Meter::new(Budget {
        time: Duration::from_millis(1),
        growth_bytes: usize::MAX,
    })
    .map_err(mlua::Error::external)?;
    let at: Table = lua.create_table()?;
    at.set(1, STEPS)?;
    let function = lua.load(SOURCE).set_name("=petrel/proof").into_function()?;
    let mut coroutine = Coroutine::new(&lua, function)?;
    let count = coroutine.push((&at, STEPS))?;
    meter.resume(&mut coroutine, count, 0);
    at.get(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_build_stops_compiled_loops() {
        assert!(compiled_loops_stop(), "{REMEDY}");
    }
}
