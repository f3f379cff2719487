//! The Lua states of a worker.

use std::any::Any;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use petrel_engine::Exchange;
use petrel_engine::file_cache::FileEntry;
use petrel_engine::worker::Worker;
use petrel_lua::budget::SLOW;
use petrel_lua::mlua;
use petrel_lua::{GlobalsMaker, Lent, Machine, Progress, Results, Run, Script, ScriptError};

use super::file_threads::DiskThreads;
use super::load::{self, LoadFailure, Loaded};
use super::programs::Programs;
use super::{FilePatience, LuaOptions};

/// Everything about Lua in one worker.
pub struct LuaHost {
    options: LuaOptions,
    open: Opens,
    state: RefCell<Option<Rc<State>>>,
    lent: Rc<Lent<Exchange>>,
}

/// Adds functions to a new state.
pub(super) type Opens = fn(&Rc<State>) -> mlua::Result<()>;

/// A Lua state, with what modules have made in it.
pub struct State {
    machine: Rc<Machine>,
    loaded: Loaded,
    lent: Rc<Lent<Exchange>>,
    worker: Weak<Worker>,
    extensions: RefCell<Vec<Rc<dyn Any>>>,
}

impl LuaHost {
    /// A host whose states get what `open` adds to the table `petrel`.
    pub fn new(options: &LuaOptions, open: Opens) -> LuaHost {
        LuaHost {
            options: options.clone(),
            open,
            state: RefCell::default(),
            lent: Rc::default(),
        }
    }

    /// The state for the next script. If the last state is worn out, this is a new one; runs that wait in the
    /// old one go on there.
    ///
    /// # Errors
    /// There is no memory for a state, or its watchdog thread cannot be started.
    pub fn state(&self, worker: &Rc<Worker>) -> mlua::Result<Rc<State>> {
        if let Some(state) = &*self.state.borrow()
            && !state.machine.is_worn_out()
        {
            return Ok(Rc::clone(state));
        }
        let state = Rc::new(State {
            machine: Machine::new(self.options.machine.clone())?,
            loaded: Loaded::default(),
            lent: Rc::clone(&self.lent),
            worker: Rc::downgrade(worker),
            extensions: RefCell::default(),
        });
        let patience = FilePatience::of(&state);
        let programs = Programs::of(worker.shared(), self.options.program_time_max);
        let threads = Rc::new(DiskThreads { patience, programs });
        state.machine.use_threads(threads)?;
        (self.open)(&state)?;
        self.state.replace(Some(Rc::clone(&state)));
        Ok(state)
    }
}

impl State {
    /// The Lua interpreter.
    pub fn machine(&self) -> &Rc<Machine> {
        &self.machine
    }

    /// Where functions that scripts call find the request. It is set while a script runs and while a future
    /// that the script waits for is polled, but not for scripts that go on after their answer has begun.
    pub(crate) fn lent(&self) -> &Rc<Lent<Exchange>> {
        &self.lent
    }

    /// The worker that the state belongs to. Weak, so that functions do not keep it alive.
    pub fn worker(&self) -> &Weak<Worker> {
        &self.worker
    }

    /// What a module keeps for this state; created on the first call.
    ///
    /// # Errors
    /// The errors of `make`.
    pub fn extension<T: Any>(
        self: &Rc<State>,
        make: impl FnOnce(&Rc<State>) -> mlua::Result<T>,
    ) -> mlua::Result<Rc<T>> {
        let find = || {
            let extensions = self.extensions.borrow();
            let mut known = extensions.iter().map(Rc::clone);
            known.find_map(|known| known.downcast::<T>().ok())
        };
        if let Some(known) = find() {
            return Ok(known);
        }
        let made = Rc::new(make(self)?);
        let kept = Rc::clone(&made) as Rc<dyn Any>;
        self.extensions.borrow_mut().push(kept);
        Ok(made)
    }

    /// The script in the file `path`, which is absolute. Compiled again when the file has changed.
    ///
    /// # Errors
    /// There is no such file, or the script is invalid.
    pub fn script(&self, exchange: &Exchange, path: &[u8]) -> Result<Rc<Script>, LoadFailure> {
        self.script_and_file(exchange, path)
            .map(|(_, script)| script)
    }

    /// As [`State::script`], with the file that it was read from.
    ///
    /// # Errors
    /// As [`State::script`].
    pub(crate) fn script_and_file(
        &self,
        exchange: &Exchange,
        path: &[u8],
    ) -> Result<(Rc<FileEntry>, Rc<Script>), LoadFailure> {
        load::find(&self.loaded, &self.machine, exchange, path)
    }

    /// Runs `script` for `exchange` until it ends or waits, with the globals that `maker` makes.
    ///
    /// # Errors
    /// The script has failed or was stopped.
    pub fn start(
        &self,
        exchange: &mut Exchange,
        script: &Rc<Script>,
        maker: &GlobalsMaker,
    ) -> Result<Progress, ScriptError> {
        let start = || Run::start(&self.machine, script, maker);
        let progress = self.lent.lend(exchange, start);
        self.tell_if_slow(exchange, script.name());
        progress
    }

    /// Continues a run that waits.
    pub fn poll(
        &self,
        exchange: &mut Exchange,
        run: &mut Run,
        context: &mut Context<'_>,
    ) -> Poll<Result<Results, ScriptError>> {
        let polled = self.lent.lend(exchange, || run.poll(context));
        self.tell_if_slow(exchange, run.name());
        polled
    }

    fn tell_if_slow(&self, exchange: &Exchange, script: &str) {
        if self.machine.take_slow() {
            let most = SLOW.as_millis();
            exchange.log_common_error(
                "lua",
                format_args!("{script}: used more than {most} ms of processor time without a wait"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing::RUNS;
    use super::*;
    use crate::testing::Tree;

    async fn run(script: &str) -> (u16, String) {
        let tree = Tree::new(&[("script.lua", script), ("a.txt", "file")]);
        let site = tree.site("", &[&RUNS]);
        let answer = site.get_async("/script.lua").await;
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        (answer.status(), text)
    }

    #[test]
    fn a_script_runs_and_is_compiled_anew_when_it_changes() {
        let tree = Tree::new(&[("script.lua", "return 'one'")]);
        let site = tree.site("", &[&RUNS]);
        assert_eq!(site.get("/script.lua").body(), b"one");
        assert_eq!(site.get("/script.lua").body(), b"one");
        tree.write("script.lua", "return 'two'");
        site.worker().files().flush();
        assert_eq!(site.get("/script.lua").body(), b"two");
        tree.write("script.lua", "return 'half");
        site.worker().files().flush();
        let answer = site.get("/script.lua");
        assert_eq!(answer.status(), 500);
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        assert!(text.contains("script.lua:1: unfinished string"), "{text}");
    }

    #[test]
    fn a_script_that_is_stopped_costs_its_own_request_alone() {
        let script = "if stop then while true do end end return tostring(petrel ~= nil)";
        let tree = Tree::new(&[("script.lua", &script.replace("stop", "true"))]);
        let site = tree.site("lua.max-run-time = 5", &[&super::super::MODULE, &RUNS]);
        let answer = site.get("/script.lua");
        assert_eq!(answer.status(), 500);
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        assert!(text.contains("more than 5 ms"), "{text}");
        tree.write("script.lua", script);
        site.worker().files().flush();
        assert_eq!(site.get("/script.lua").body(), b"true");
    }

    /// Otherwise each script that is stopped would leak a state.
    #[tokio::test(flavor = "local")]
    async fn a_state_that_is_worn_out_goes() {
        let script = "petrel.stream(print) petrel.redis() petrel.dict('d') pcall(petrel.fragment, 'k', 1, print)
            local ok = pcall(string.gsub, 'x', 'x', petrel.sleep, 1)
            while true do end";
        let tree = Tree::new(&[("script.lua", script)]);
        let site = tree.site("", &[&super::super::MODULE, &RUNS]);
        assert_eq!(site.get_async("/script.lua").await.status(), 500);
        let options = LuaOptions {
            machine: petrel_lua::MachineOptions::default(),
            program_time_max: Duration::from_secs(1),
            dictionaries: Vec::new(),
        };
        let host = crate::lua_api::host(site.worker(), &options);
        let old = host.state.borrow().as_ref().map(|state| {
            assert!(state.machine.is_worn_out());
            (Rc::downgrade(state), state.machine.lua().weak())
        });
        let (state, lua) = old.expect("the script ran in it");
        let _new = host.state(site.worker()).expect("a state");
        assert!(state.upgrade().is_none(), "the state");
        assert!(lua.try_upgrade().is_none(), "what Lua has of it");
    }

    #[tokio::test(flavor = "local")]
    async fn waiting_functions_wait() {
        let (status, text) =
            run("local t = petrel.now() petrel.sleep(0) return petrel.now() >= t").await;
        assert_eq!((status, text.as_str()), (200, "true"));
        let (status, text) = run("petrel.sleep('x')").await;
        assert_eq!(status, 500);
        assert!(text.contains("a number of seconds"), "{text}");
    }

    #[test]
    fn directives_are_checked() {
        for (config, says) in [
            ("lua.max-run-time = 0", "1 to 60000"),
            ("lua.max-run-memory = 3", "1024 at least"),
            ("lua.dictionaries = ( \"a\" => 0 )", "a name and a size"),
            ("lua.max-program-time = 0", "1 to 86400"),
            ("lua.dictionaries = ( 7 )", "takes a map"),
            ("lua.allow = ( \"fifi\" )", "\"fifi\" is not a part of Lua"),
        ] {
            let refusal = crate::testing::refusal(config, &[&super::super::MODULE]);
            assert!(refusal.contains(says), "{config}: {refusal}");
        }
    }
}
