//! The libraries of every script: Lua's own, with limits on their work; functions of later Lua versions; and
//! codecs.
//!
//! [`open`] prepares a fresh LuaJIT state. Three things differ from a plain one:
//!
//! * *Nothing leaks.* All runs of a state share one set of libraries, which scripts cannot reach: they see
//!   proxies, and what a script writes there (`function string.starts(s, p)`) lasts as long as its run. The
//!   driver of the runs uses [`Overlays`] to switch from one run to another. `load` accepts text only, and a
//!   script cannot reach another run's environment.
//! * *No call works for long.* A budget stops a loop by a hook, which C code never reaches. So what may take
//!   long in C is limited ([`Limits`]) or written in Lua.
//! * *Scripts may wait anywhere*, also in comparisons of `table.sort`, replacements of `string.gsub`, and
//!   coroutines of their own: see `lua/coroutine.lua`.
//!
//! The codecs ([`json`], [`base64`], [`hash`], [`regex`], [`random`], [`dict`]) are tables that the server
//! places where it wants them, through [`protect`]. They raise errors as Lua does: [`plain_errors`].
//!
//! Knows nothing of HTTP, configuration, budgets or memory limits: the crate's root adds these.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Function, Lua, Result, Table, Value};

pub(crate) use errors::plain_errors;

pub mod base64;
pub mod dict;
mod errors;
pub mod files;
pub mod hash;
pub mod json;
mod pack;
pub mod pattern;
pub mod random;
pub(crate) mod regex;
mod strings;

/// Which libraries and functions that can break the server a script may use. By default none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LibraryOptions {
    /// `ffi` and `string.buffer`: read and write any memory, call any function of the process.
    pub ffi: bool,
    /// `jit`: controls the compiler of the whole state.
    pub jit: bool,
    /// All of `debug`, which can undo every protection. Without it there are `debug.traceback`, and
    /// `debug.getinfo` for a stack level, without the function.
    pub debug: bool,
    /// `os.exit`, which ends the server.
    pub os_exit: bool,
    /// `io.popen` and `os.execute`: run commands as the server's user.
    pub io_popen: bool,
    /// How much work a single call may do.
    pub limits: Limits,
}

/// Limits on single calls of library functions. Exceeding one is an error that names the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest result in bytes of `string.rep`, `string.gsub` and `table.concat`, and of a replacement by
    /// a regular expression.
    pub(crate) string_bytes_max: usize,
    /// Steps of one match of a Lua pattern. [`pattern::steps_for`] adds more for long subjects. A step takes
    /// two to five nanoseconds.
    pub(crate) pattern_steps_max: u64,
    /// The longest text in bytes that `load` compiles; a mebibyte takes some twenty milliseconds. Files may
    /// have 16 MiB.
    source_bytes_max: usize,
    /// Nesting of arrays and objects in JSON; [`json::DEPTH_MAX`] at most.
    pub(crate) json_depth_max: usize,
    /// The longest JSON text in bytes to read or write; a mebibyte takes some ten milliseconds.
    pub(crate) json_bytes_max: usize,
    /// Match limit of PCRE2 for one match of a regular expression, see [`regex`].
    pub(crate) regex_steps_max: u32,
    /// The longest subject in bytes of a regular expression.
    pub(crate) regex_subject_bytes_max: usize,
    /// Bytes that one call of `file:read` returns, and that all calls together return for a file that is not
    /// a regular one: `/dev/zero` has no end.
    pub(crate) file_bytes_max: usize,
}

impl Default for Limits {
    /// 16 MiB of text, 2 million steps of a pattern (5 to 10 ms), 1 MiB of source, JSON
    /// of 16 MiB and 128 deep, a
    /// million steps of a regular expression over 1 MiB of subject, 64 MiB of a file.
    fn default() -> Limits {
        Limits {
            string_bytes_max: 16 << 20,
            pattern_steps_max: 2_000_000,
            source_bytes_max: 1 << 20,
            json_depth_max: 128,
            json_bytes_max: 16 << 20,
            regex_steps_max: 1_000_000,
            regex_subject_bytes_max: 1 << 20,
            file_bytes_max: 64 << 20,
        }
    }
}

/// Prepares a fresh state for scripts; see the module's documentation.
///
/// The state must have been made with `StdLib::ALL_SAFE` or `StdLib::ALL` (the latter if `ffi` or `debug` is
/// allowed, and for stack traces in `debug.traceback`), and must not have run a script yet. The registry
/// value [`WAIT`] is what a waiting function yields; it is created if it is missing.
///
/// # Errors
/// A library is missing, or memory has run out.
pub fn open(lua: &Lua, options: &LibraryOptions) -> Result<()> {
    let wait = wait_sentinel(lua)?;
    let overlays = Overlays::default();
    let host = host_table(lua, options, wait, &overlays)?;
    let mut last = Value::Nil;
    for (name, source) in SOURCES {
        last = lua.load(*source).set_name(*name).call(&host)?;
    }
    let Value::Table(handles) = last else {
        return Err(mlua::Error::runtime("the libraries did not open"));
    };
    for key in [
        "switch",
        "protect",
        "guard",
        "rawget",
        "environment",
        "plain_errors",
    ] {
        let function: Function = handles.get(key)?;
        lua.set_named_registry_value(&format!("petrel.{key}"), function)?;
    }
    lua.set_app_data(overlays);
    Ok(())
}

/// The name of the registry value that a waiting function yields to the driver of its run.
pub const WAIT: &str = "petrel.wait";

/// A fresh table of global variables for a run. It falls back to the libraries, and keeps what the script
/// sets. `_G` is the table itself.
///
/// # Errors
/// Memory has run out.
pub fn environment(lua: &Lua) -> Result<Table> {
    lua.named_registry_value::<Function>("petrel.environment")?
        .call(())
}

/// The proxy of a library table. A script can use it, and extend it for its own run only.
///
/// `table` itself must not be given to scripts. Its metatable is ignored.
///
/// # Errors
/// Memory has run out.
pub fn protect(lua: &Lua, table: &Table) -> Result<Table> {
    lua.named_registry_value::<Function>("petrel.protect")?
        .call(table)
}

/// A Lua function that protects a table which all runs share against raw access (`rawset`, `table.insert`),
/// and returns the table. The table's metatable decides about all other access.
///
/// # Errors
/// Memory has run out.
pub fn guard(lua: &Lua) -> Result<Function> {
    lua.named_registry_value("petrel.guard")
}

/// LuaJIT's `rawget`, for Lua code of the host. That of scripts looks each table up among the protected ones, for
/// which compiled code has to make a table that it could do without.
///
/// # Errors
/// Memory has run out.
pub fn rawget(lua: &Lua) -> Result<Function> {
    lua.named_registry_value("petrel.rawget")
}

/// What runs have changed in libraries, and whose changes are in place.
///
/// The driver of runs gets one from `Overlays::of`. It calls [`Overlays::switch`] whenever it goes on to
/// another run: `let mine = overlays.switch(&lua, next)?` returns the changes of the last run. A run that
/// changes no library has no overlay, and the call then only checks a flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlays {
    /// Whether an overlay is in place.
    made: Rc<Cell<bool>>,
}

impl Overlays {
    /// The overlays of a state that [`open`] has prepared.
    #[must_use]
    pub(crate) fn of(lua: &Lua) -> Option<Overlays> {
        lua.app_data_ref::<Overlays>()
            .map(|overlays| overlays.clone())
    }

    /// Puts `next` in place; `None` means the unchanged libraries. Returns what was in place before.
    ///
    /// # Errors
    /// Memory has run out; the libraries are then unchanged or those of `next`.
    pub(crate) fn switch(&self, lua: &Lua, next: Option<&Table>) -> Result<Option<Table>> {
        if !self.made.get() && next.is_none() {
            return Ok(None);
        }
        let switch: Function = lua.named_registry_value("petrel.switch")?;
        self.made.set(next.is_some());
        switch.call(next)
    }
}

fn wait_sentinel(lua: &Lua) -> Result<Value> {
    let value: Value = lua.named_registry_value(WAIT)?;
    if !value.is_nil() {
        return Ok(value);
    }
    let sentinel = lua.create_table()?;
    lua.set_named_registry_value(WAIT, &sentinel)?;
    Ok(Value::Table(sentinel))
}

/// What the Lua half of the libraries uses: see the head of each file in `lua/`.
fn host_table(
    lua: &Lua,
    options: &LibraryOptions,
    wait: Value,
    overlays: &Overlays,
) -> Result<Table> {
    let host = lua.create_table()?;
    host.set("globals", lua.globals())?;
    host.set("wait", wait)?;
    host.set("options", options_table(lua, options)?)?;
    host.set("limits", limits_table(lua, &options.limits)?)?;
    let rust = lua.create_table()?;
    strings::add_to(lua, &rust, &options.limits)?;
    pack::add_to(lua, &rust, &options.limits)?;
    let made = Rc::clone(&overlays.made);
    rust.set(
        "overlay_made",
        lua.create_function(move |_, ()| {
            made.set(true);
            Ok(())
        })?,
    )?;
    rust.set("traceback", lua.create_function(traceback)?)?;
    rust.set("words_of", lua.create_function(errors::words_of)?)?;
    rust.set("explain", lua.create_function(explain)?)?;
    let count_jumps =
        |_: &Lua, source: mlua::LuaString| Ok(crate::syntax::count_jumps(&source.as_bytes()));
    rust.set("count_jumps", lua.create_function(count_jumps)?)?;
    rust.set(
        "files",
        files::Files::table(lua, options.limits.file_bytes_max)?,
    )?;
    rust.set("random_seed", lua.create_function(random_seed)?)?;
    host.set("rust", rust)?;
    Ok(host)
}

fn options_table(lua: &Lua, options: &LibraryOptions) -> Result<Table> {
    lua.create_table_from([
        ("ffi", options.ffi),
        ("jit", options.jit),
        ("debug", options.debug),
        ("os_exit", options.os_exit),
        ("io_popen", options.io_popen),
    ])
}

fn limits_table(lua: &Lua, limits: &Limits) -> Result<Table> {
    lua.create_table_from([
        ("string_bytes_max", limits.string_bytes_max),
        ("source_bytes_max", limits.source_bytes_max),
        ("file_bytes_max", limits.file_bytes_max),
        ("plain_steps_max", PLAIN_STEPS_MAX),
        ("jumps_max", JUMPS_MAX),
    ])
}

/// `debug.traceback` of a state without the `debug` library.
fn traceback(lua: &Lua, message: Value) -> Result<Value> {
    match message {
        Value::Nil => Ok(Value::String(lua.traceback(None, 0)?)),
        Value::String(text) => {
            let text = text.to_string_lossy();
            Ok(Value::String(lua.traceback(Some(&text), 0)?))
        }
        other => Ok(other),
    }
}

/// A clearer message for a source text that LuaJIT refused.
fn explain(_: &Lua, source: mlua::LuaString) -> Result<Option<String>> {
    Ok(crate::syntax::explain(&source.as_bytes()).map(|construct| construct.to_string()))
}

/// A seed for `math.random` that cannot be guessed.
fn random_seed(_: &Lua, (): ()) -> Result<f64> {
    let mut bytes = [0; 8];
    random::fill(&mut bytes).map_err(mlua::Error::external)?;
    Ok((u64::from_ne_bytes(bytes) >> 11) as f64)
}

/// The most words in a text for `load` that the compiler turns into jumps. Jumps that belong together take
/// quadratic time: four thousand take some twenty milliseconds, a mebibyte of them minutes.
const JUMPS_MAX: usize = 4096;

/// The most byte comparisons of a plain search in C. A longer search uses a linear algorithm.
const PLAIN_STEPS_MAX: usize = 4_000_000;

/// The Lua half of the libraries, in loading order: `overlay` provides the proxies, `seal` puts them in
/// place, and the others replace functions of the real tables.
const SOURCES: &[(&str, &str)] = &[
    ("=petrel/overlay.lua", include_str!("lua/overlay.lua")),
    ("=petrel/base.lua", include_str!("lua/base.lua")),
    ("=petrel/system.lua", include_str!("lua/system.lua")),
    ("=petrel/coroutine.lua", include_str!("lua/coroutine.lua")),
    ("=petrel/math.lua", include_str!("lua/math.lua")),
    ("=petrel/table.lua", include_str!("lua/table.lua")),
    ("=petrel/string.lua", include_str!("lua/string.lua")),
    ("=petrel/utf8.lua", include_str!("lua/utf8.lua")),
    ("=petrel/bit32.lua", include_str!("lua/bit32.lua")),
    ("=petrel/module.lua", include_str!("lua/module.lua")),
    ("=petrel/errors.lua", include_str!("lua/errors.lua")),
    ("=petrel/seal.lua", include_str!("lua/seal.lua")),
];

#[cfg(test)]
mod tests;
