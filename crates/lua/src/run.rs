//! One execution of a script.

use std::rc::Rc;
use std::task::{Context, Poll};

use mlua::{FromLuaMulti, Function, IntoLuaMulti, Lua, MultiValue, Thread, Value};

use crate::budget::Excess;
use crate::error::{ScriptError, message_of};
use crate::machine::{DONE, Machine, WAIT, Wait};
use crate::script::Script;

/// A script on its way: it has ended, or waits for something and is polled until it ends. Dropping it
/// ends it where it is.
pub struct Run {
    machine: Rc<Machine>,
    script: Rc<Script>,
    thread: Option<Thread>,
    function: Option<Function>,
    wait: Option<Wait>,
}

/// How far a run has come.
pub enum Progress {
    /// The script has returned this, its first value.
    Ended(Value),
    /// It waits; [`Run::poll`] goes on with it.
    Waits,
}

/// What a coroutine hands out.
enum Yielded {
    Done(Value),
    Wait,
    /// The hook's yield has no values.
    Nothing,
    /// The script yielded by itself.
    Other,
}

impl Run {
    /// Runs `script` until it ends or waits, in the environment that `environment`, a Lua function, makes
    /// for it.
    ///
    /// # Errors
    /// Whatever the script did wrong, or its being stopped.
    pub fn start(
        machine: &Rc<Machine>,
        script: &Rc<Script>,
        environment: &Function,
    ) -> Result<(Run, Progress), ScriptError> {
        let begun = script.function().and_then(|function| {
            let thread = machine.take_thread()?;
            Ok((function, thread))
        });
        let (function, thread) = begun.map_err(|error| ScriptError::of_run(&error))?;
        let mut run = Run {
            machine: Rc::clone(machine),
            script: Rc::clone(script),
            thread: Some(thread),
            function: Some(function.clone()),
            wait: None,
        };
        let progress = run.resume((function, environment))?;
        Ok((run, progress))
    }

    /// Polls what the script waits for and goes on with the script when that is there. Not to be called
    /// again after it was ready.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Value, ScriptError>> {
        loop {
            let Some(wait) = &mut self.wait else {
                return Poll::Ready(Ok(Value::Nil));
            };
            let Poll::Ready(result) = wait.as_mut().poll(context) else {
                return Poll::Pending;
            };
            self.wait = None;
            let progress = match result {
                Ok(values) => self.resume((true, values)),
                Err(error) => self.resume((false, message_of(&error))),
            };
            match progress {
                Ok(Progress::Waits) => {}
                Ok(Progress::Ended(value)) => return Poll::Ready(Ok(value)),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// The script that runs.
    pub fn script(&self) -> &Rc<Script> {
        &self.script
    }

    /// The state it runs in.
    pub fn machine(&self) -> &Rc<Machine> {
        &self.machine
    }

    fn resume(&mut self, arguments: impl IntoLuaMulti) -> Result<Progress, ScriptError> {
        let Some(thread) = self.thread.take() else {
            return Ok(Progress::Ended(Value::Nil));
        };
        let (result, excess) = self
            .machine
            .meter()
            .measure(thread.state(), || thread.resume::<Yielded>(arguments));
        if let Some(excess) = excess {
            return Err(self.stopped(excess, &thread));
        }
        match result {
            Ok(Yielded::Done(value)) => {
                self.forget_started();
                self.machine.give_thread(thread);
                if let Some(function) = self.function.take() {
                    self.script.give_back(function);
                }
                Ok(Progress::Ended(value))
            }
            Ok(Yielded::Wait) => {
                self.wait = self.machine.started.borrow_mut().take();
                self.thread = Some(thread);
                Ok(Progress::Waits)
            }
            Ok(Yielded::Other | Yielded::Nothing) => {
                let error = mlua::Error::runtime(format_args!(
                    "{}: attempt to yield from outside a coroutine",
                    self.script.name()
                ));
                Err(ScriptError::of_run(&error))
            }
            Err(error) => {
                self.forget_started();
                Err(ScriptError::of_run(&error))
            }
        }
    }

    /// Drops what a call began that then could not yield.
    fn forget_started(&self) {
        self.machine.started.borrow_mut().take();
    }

    fn stopped(&self, excess: Excess, thread: &Thread) -> ScriptError {
        self.forget_started();
        self.machine.wear_out();
        // Without memory for it the message has to do.
        let stack = self.machine.stack_of(thread).unwrap_or_default();
        let budget = &self.machine.options().budget;
        ScriptError::stopped(excess, budget, self.script.name(), &stack)
    }
}

impl FromLuaMulti for Yielded {
    fn from_lua_multi(mut values: MultiValue, _: &Lua) -> mlua::Result<Yielded> {
        Ok(match values.pop_front() {
            None => Yielded::Nothing,
            Some(Value::LightUserData(what)) if what == DONE => {
                Yielded::Done(values.pop_front().unwrap_or(Value::Nil))
            }
            Some(Value::LightUserData(what)) if what == WAIT => Yielded::Wait,
            Some(_) => Yielded::Other,
        })
    }
}
