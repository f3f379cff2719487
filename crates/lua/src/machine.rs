//! A Lua state and what it keeps between runs.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use mlua::state::{GcIncParams, GcMode};
use mlua::{
    FromLuaMulti, Function, IntoLuaMulti, LightUserData, Lua, LuaOptions, MultiValue, StdLib, Table,
};

use crate::arena;
use crate::budget::{Budget, Meter, proof};
use crate::direct::{self, DirectAnswer, DirectArguments, Reply};
use crate::error::ScriptError;
use crate::lent::Lent;
use crate::library::files::{FileThreads, FilesOfState, ProgramsOfRun, refused};
use crate::library::{self, Overlays};
use crate::raw::Coroutine;
use crate::script::{GlobalsMaker, Script};

/// How to make states.
#[derive(Clone, Debug)]
pub struct MachineOptions {
    /// What each stretch of a run may use.
    pub budget: Budget,
    /// The most bytes that a state may have between runs; see [`Machine::is_worn_out`].
    pub state_bytes_max: usize,
    /// The libraries for scripts.
    pub library: library::LibraryOptions,
}

impl Default for MachineOptions {
    fn default() -> MachineOptions {
        MachineOptions {
            budget: Budget {
                time: Duration::from_millis(100),
                growth_bytes: 64 << 20,
            },
            state_bytes_max: 128 << 20,
            library: library::LibraryOptions::default(),
        }
    }
}

/// A Lua state with its libraries, scripts and coroutines. Only the thread that made it can use it.
pub struct Machine {
    lua: Lua,
    meter: Meter,
    options: MachineOptions,
    overlays: Overlays,
    /// Makes the main function of a coroutine that runs a script.
    of_script: Function,
    /// The main function of coroutines that run functions of scripts.
    of_function: Function,
    waiting: Function,
    stack_of: Function,
    petrel: Table,
    /// Whether scripts are compiled.
    is_compiled: bool,
    /// Coroutines for functions, to be reused.
    #[expect(clippy::vec_box, reason = "runs have them in boxes, too")]
    idle: RefCell<Vec<Box<Coroutine>>>,
    /// What the last called function waits for, until its run takes it.
    pub(crate) started: Rc<RefCell<Option<Wait>>>,
    is_spent: Cell<bool>,
    /// The bytes that were in use after the last stretch of a run.
    bytes_used: Cell<usize>,
    /// With more bytes in use garbage is collected between two stretches.
    collects_from: Cell<usize>,
    was_slow: Cell<bool>,
}

/// What a script waits for.
pub(crate) struct Wait {
    /// Resolves to the values that the script's call returns.
    pub(crate) values: Pin<Box<dyn Future<Output = mlua::Result<MultiValue>>>>,
    /// Whether it waits for a file of `io`.
    pub(crate) is_for_file: bool,
}

/// How many bytes of garbage a small state may have before they are collected.
const GARBAGE_BYTES: usize = 8 << 20;
/// How much garbage any state may have, in percent of what is in use.
const PAUSE_PERCENT_MAX: usize = 1000;

/// The most coroutines that are kept for reuse.
const IDLE_MAX: usize = 256;

/// What a coroutine yields when its script has ended.
pub(crate) const DONE: LightUserData = LightUserData(16 as *mut std::ffi::c_void);
/// What a coroutine yields when a function waits.
pub(crate) const WAIT: LightUserData = LightUserData(32 as *mut std::ffi::c_void);

/// The name under which the libraries find [`WAIT`].
const WAIT_NAME: &str = "petrel.wait";

impl Machine {
    /// A state with the libraries of `options`. Only the calling thread may use it.
    ///
    /// # Errors
    /// Memory has run out, or the watchdog's thread cannot be started.
    pub fn new(options: MachineOptions) -> mlua::Result<Rc<Machine>> {
        Machine::with_compiler(options, proof::compiled_loops_stop())
    }

    /// As [`Machine::new`]. If `is_compiled` is false, all code is interpreted.
    pub(crate) fn with_compiler(
        options: MachineOptions,
        is_compiled: bool,
    ) -> mlua::Result<Rc<Machine>> {
        let lua_options = LuaOptions::new();
        // SAFETY: all libraries are loaded, and `library::open` removes the unsafe ones at once: a script
        // gets what may break this process only if the configuration says so.
        let lua = unsafe { Lua::unsafe_new_with(StdLib::ALL, lua_options) };
        arena::install(&lua)?;
        if !is_compiled {
            lua.load("jit.off() jit.flush()").exec()?;
        }
        lua.set_named_registry_value(WAIT_NAME, WAIT)?;
        direct::open(&lua)?;
        let driver: (Function, Function, Function, Function, Function, Function) = lua
            .load(include_str!("run.lua"))
            .set_name("=petrel/run.lua")
            .call((DONE, WAIT))?;
        let (of_script, of_function, waiting, xpcall, shown_stack, stack_of) = driver;
        lua.globals().set("xpcall", xpcall)?;
        let debug: Table = lua.globals().get("debug")?;
        debug.set("traceback", shown_stack)?;
        library::open(&lua, &options.library)?;
        let petrel = open_petrel(&lua, &options.library.limits)?;
        let meter = Meter::new(options.budget).map_err(mlua::Error::external)?;
        let machine = Rc::new(Machine {
            meter,
            options,
            overlays: Overlays::of(&lua).unwrap_or_default(),
            of_script,
            of_function,
            waiting,
            stack_of,
            petrel,
            is_compiled,
            idle: RefCell::default(),
            started: Rc::default(),
            is_spent: Cell::new(false),
            bytes_used: Cell::new(0),
            collects_from: Cell::new(usize::MAX),
            was_slow: Cell::new(false),
            lua,
        });
        machine.collect()?;
        Ok(machine)
    }

    /// The Lua state, to add functions and tables to. [Direct functions](Machine::direct) must not use it.
    pub fn lua(&self) -> &Lua {
        assert!(!direct::is_inside(), "a direct function uses Lua");
        &self.lua
    }

    /// The table `petrel` of scripts, to add functions to. Scripts see it through a proxy and cannot change
    /// it.
    pub fn petrel(&self) -> &Table {
        &self.petrel
    }

    /// The options it was made with.
    pub fn options(&self) -> &MachineOptions {
        &self.options
    }

    /// Lets `threads` do the work that waits for a disk when scripts use `io`, `loadfile` or `require`.
    /// Without them the calling thread does it.
    ///
    /// # Errors
    /// Memory has run out.
    pub fn use_threads(&self, threads: Rc<dyn FileThreads>) -> mlua::Result<()> {
        let (files, table) = {
            let Some(state) = self.lua.app_data_ref::<FilesOfState>() else {
                return Ok(());
            };
            (Rc::clone(&state.files), state.table.clone())
        };
        *files.threads.borrow_mut() = Some(Rc::clone(&threads));
        let run = self.waiting_as(true, move |lua, arguments: MultiValue| {
            let begun = files.begin(arguments)?;
            let begun = begun.map(|(begun, need)| begun.carry_out(need, &*threads));
            let lua = lua.weak();
            Ok(async move {
                let done = match begun {
                    Ok(done) => Ok(done.await?),
                    Err(words) => Err(words),
                };
                // This always succeeds: the state is about to be resumed, so it exists.
                let Some(lua) = lua.try_upgrade() else {
                    return Ok(MultiValue::new());
                };
                match done {
                    Ok((begun, done)) => begun.finish(&lua, done),
                    Err(words) => refused(&lua, words),
                }
            })
        })?;
        table.set("run", run)
    }

    /// Compiles `source`. `name` is its name in messages.
    ///
    /// # Errors
    /// `source` is not text, or not Lua that LuaJIT understands.
    pub fn compile(&self, name: &str, source: &[u8]) -> Result<Rc<Script>, ScriptError> {
        Script::compile(&self.lua, name, source).map(Rc::new)
    }

    /// A Lua function that waits without blocking the thread. It calls `start` with its arguments, and
    /// returns to the script what the future resolves to. The future is polled when the run is polled, with
    /// the same values lent.
    ///
    /// # Errors
    /// Memory has run out.
    pub fn waiting<A, F, R>(
        &self,
        start: impl Fn(&Lua, A) -> mlua::Result<F> + 'static,
    ) -> mlua::Result<Function>
    where
        A: FromLuaMulti,
        F: Future<Output = mlua::Result<R>> + 'static,
        R: IntoLuaMulti,
    {
        self.waiting_as(false, start)
    }

    /// As [`Machine::waiting`]. If it waits for a file of `io`, the wait does not begin a new budget.
    fn waiting_as<A, F, R>(
        &self,
        is_for_file: bool,
        start: impl Fn(&Lua, A) -> mlua::Result<F> + 'static,
    ) -> mlua::Result<Function>
    where
        A: FromLuaMulti,
        F: Future<Output = mlua::Result<R>> + 'static,
        R: IntoLuaMulti,
    {
        let started = Rc::clone(&self.started);
        let start = self.lua.create_function(move |lua, arguments: A| {
            let future = start(lua, arguments)?;
            let weak = lua.weak();
            let values = Box::pin(async move {
                let result = future.await?;
                // This always succeeds: the state is about to be resumed, so it exists.
                let Some(lua) = weak.try_upgrade() else {
                    return Ok(MultiValue::new());
                };
                result.into_lua_multi(&lua)
            });
            *started.borrow_mut() = Some(Wait {
                values,
                is_for_file,
            });
            Ok(())
        })?;
        self.waiting.call(start)
    }

    /// A Lua function that calls `call` directly, with what is lent at that time. If nothing is lent, if the
    /// arguments are no texts and numbers, and if the answer is [`DirectAnswer::UNABLE`], it calls `other` with
    /// the same arguments.
    ///
    /// `call` must not use Lua, not even to drop a Lua state.
    ///
    /// # Errors
    /// Memory has run out.
    pub fn direct<T: 'static>(
        &self,
        lent: &Rc<Lent<T>>,
        call: impl Fn(&mut T, DirectArguments<'_>, &Reply) -> DirectAnswer + 'static,
        other: &Function,
    ) -> mlua::Result<Function> {
        // LuaJIT's interpreter calls by FFI no faster than mlua.
        if !self.is_compiled {
            return Ok(other.clone());
        }
        direct::function(&self.lua, lent, call, other)
    }

    /// Whether a new state should replace this one: a script was stopped in it, or too much memory stays in
    /// use. Runs that are waiting continue in it.
    pub fn is_worn_out(&self) -> bool {
        if !self.is_spent.get() && self.bytes_used.get() > self.options.state_bytes_max {
            // Garbage does not count, so it is collected first.
            let _ = self.collect();
            let used = self.lua.used_memory();
            self.bytes_used.set(used);
            self.is_spent.set(used > self.options.state_bytes_max / 2);
        }
        self.is_spent.get()
    }

    /// Whether runs that have waited must end, because the state has used up its memory: each stretch of a
    /// run may make it grow, and a run may have many stretches.
    pub(crate) fn is_overfull(&self) -> bool {
        if self.lua.used_memory() <= self.overfull_bytes() {
            return false;
        }
        // If collecting fails, the memory is still in use, which the next line finds.
        let _ = self.collect();
        self.lua.used_memory() > self.overfull_bytes()
    }

    /// The most bytes that a state may have when a run continues in it.
    pub(crate) fn overfull_bytes(&self) -> usize {
        self.options.state_bytes_max.saturating_mul(2)
    }

    /// Puts the libraries in place as a run has changed them. For runs that change none, this only checks a
    /// flag.
    pub(crate) fn put_overlay(&self, overlay: Option<Table>) -> Result<(), ScriptError> {
        match overlay {
            None => Ok(()),
            Some(overlay) => self
                .overlays
                .switch(&self.lua, Some(&overlay))
                .map(drop)
                .map_err(|error| ScriptError::of_run(&error)),
        }
    }

    /// Puts the unchanged libraries in place. Returns the run's changes.
    pub(crate) fn take_overlay(&self) -> Result<Option<Table>, ScriptError> {
        self.overlays
            .switch(&self.lua, None)
            .map_err(|error| ScriptError::of_run(&error))
    }

    /// The stack of a coroutine, for the log.
    pub(crate) fn stack_of(&self, thread: &mut Coroutine) -> mlua::Result<String> {
        self.stack_of.call((thread.as_value(), "", 0))
    }

    /// Collects all garbage, and sets how much may accumulate before the next collection: as much as is in
    /// use, or [`GARBAGE_BYTES`] if there is room. Each collection goes through everything that is in use,
    /// and the libraries alone are a megabyte; without this, small scripts would cause a collection every
    /// thousand requests.
    fn collect(&self) -> mlua::Result<()> {
        self.lua.gc_collect()?;
        let used = self.lua.used_memory().max(1);
        let room = GARBAGE_BYTES
            .min(self.options.state_bytes_max / 8)
            .max(used);
        let percent = 100 + (room.saturating_mul(100) / used).min(PAUSE_PERCENT_MAX);
        self.collects_from
            .set(used.saturating_add(room.saturating_mul(2)));
        let pause = c_int::try_from(percent).unwrap_or(200);
        self.lua
            .gc_set_mode(GcMode::Incremental(GcIncParams::default().pause(pause)));
        Ok(())
    }

    /// A stretch of a run is over, and `bytes` are in use. If the collector has not kept up with what runs leave
    /// behind, all garbage goes now, at no run's expense.
    pub(crate) fn note_bytes_used(&self, bytes: usize) {
        self.bytes_used.set(bytes);
        if bytes > self.collects_from.get() && self.collect().is_ok() {
            self.bytes_used.set(self.lua.used_memory());
        }
    }

    /// The stretch that is over was [slow](crate::budget::SLOW).
    pub(crate) fn note_slow(&self) {
        self.was_slow.set(true);
    }

    /// Whether a stretch of a run was [slow](crate::budget::SLOW) since the last call.
    pub fn take_slow(&self) -> bool {
        self.was_slow.take()
    }

    pub(crate) fn wear_out(&self) {
        self.is_spent.set(true);
    }

    /// Adds the programs that were started since the last call to those of a run.
    pub(crate) fn give_programs(&self, run: &mut ProgramsOfRun) {
        if let Some(state) = self.lua.app_data_ref::<FilesOfState>() {
            run.add_new(&state.files);
        }
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// A coroutine that will run `script` with globals of `maker`.
    pub(crate) fn thread_of(
        &self,
        script: &Script,
        maker: &GlobalsMaker,
    ) -> mlua::Result<Box<Coroutine>> {
        if let Some(idle) = script.take_idle(maker) {
            return Ok(idle);
        }
        let parts = (script.function()?, maker.function(), script.is_plain());
        let body: Function = self.of_script.call(parts)?;
        Coroutine::new(&self.lua, body).map(Box::new)
    }

    pub(crate) fn take_thread(&self) -> mlua::Result<Box<Coroutine>> {
        let idle = self.idle.borrow_mut().pop();
        match idle {
            Some(thread) => Ok(thread),
            None => Coroutine::new(&self.lua, self.of_function.clone()).map(Box::new),
        }
    }

    pub(crate) fn give_thread(&self, thread: Box<Coroutine>) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < IDLE_MAX {
            idle.push(thread);
        }
    }
}

/// The part of `petrel` that needs only Lua.
fn open_petrel(lua: &Lua, limits: &library::Limits) -> mlua::Result<Table> {
    let petrel = lua.create_table()?;
    for (name, table) in [
        ("json", library::json::table(lua, limits)?),
        ("base64", library::base64::table(lua)?),
        ("hash", library::hash::table(lua)?),
        ("random", library::random::table(lua)?),
        ("regex", library::regex::table(lua, limits)?),
    ] {
        petrel.set(name, library::protect(lua, &table)?)?;
    }
    lua.globals()
        .set("petrel", library::protect(lua, &petrel)?)?;
    Ok(petrel)
}
