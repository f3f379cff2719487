//! One execution of a script.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use mlua::{Function, IntoLua, IntoLuaMulti, Table, Thread, Value};

use crate::budget::Excess;
use crate::error::{ScriptError, message_of};
use crate::machine::{DONE, Machine, WAIT, Wait};
use crate::script::Script;

/// A script on its way: it has ended, or waits for something and is polled until it ends. Dropping it
/// ends it where it is.
pub struct Run {
    machine: Rc<Machine>,
    what: What,
    thread: Option<Thread>,
    wait: Option<Wait>,
    /// What it has changed in libraries, while it waits.
    overlay: Option<Table>,
    /// Bytes by which the state has grown in its stretches so far; it shrinks, too, when garbage goes.
    grown_bytes: usize,
}

/// Waits of one run that may be over at once before others have their turn.
const STRETCHES_MAX: u32 = 64;

/// Runs that have less than this may go on in a state that is overfull: it is not theirs.
const KEPT_BYTES_MIN: usize = 1 << 20;

/// What runs.
enum What {
    /// A script, by this function of it, until it has ended.
    Script(Rc<Script>, Option<Function>),
    /// A function that a script has made, and what messages call it.
    Function(Rc<str>),
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
    /// The hook's yield, which has no values, or one of the script itself.
    Other,
}

impl Run {
    /// Runs `script` until it ends or waits, in the environment that `environment`, a Lua function, makes
    /// for it. If that returns a second value, it is a function that is called with the third and with what
    /// the script has returned: the run comes to what it makes of it.
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
        let what = What::Script(Rc::clone(script), Some(function.clone()));
        Run::begin(machine, what, thread, (function, environment))
    }

    /// Runs a function of a script with one argument until it ends or waits; `name` is what messages
    /// call it. Its globals are those of the script that made it.
    ///
    /// # Errors
    /// Whatever it did wrong, or its being stopped.
    pub fn call(
        machine: &Rc<Machine>,
        name: &str,
        function: &Function,
        argument: impl IntoLua,
    ) -> Result<(Run, Progress), ScriptError> {
        let thread = machine
            .take_thread()
            .map_err(|error| ScriptError::of_run(&error))?;
        let what = What::Function(name.into());
        Run::begin(machine, what, thread, (function, Value::Nil, argument))
    }

    fn begin(
        machine: &Rc<Machine>,
        what: What,
        thread: Thread,
        arguments: impl IntoLuaMulti,
    ) -> Result<(Run, Progress), ScriptError> {
        let mut run = Run {
            machine: Rc::clone(machine),
            what,
            thread: Some(thread),
            wait: None,
            overlay: None,
            grown_bytes: 0,
        };
        let progress = run.resume(arguments)?;
        Ok((run, progress))
    }

    /// Polls what the script waits for and goes on with the script when that is there. Not to be called
    /// again after it was ready.
    ///
    /// A script whose waits are over at once does not keep its thread from everything else: after
    /// [`STRETCHES_MAX`] of them, or the time of one budget, it asks to be polled again.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Value, ScriptError>> {
        let mut stretches = 0;
        let begun = Instant::now();
        loop {
            let Some(wait) = &mut self.wait else {
                return Poll::Ready(Ok(Value::Nil));
            };
            let Poll::Ready(result) = wait.as_mut().poll(context) else {
                return Poll::Pending;
            };
            self.wait = None;
            if self.grown_bytes > KEPT_BYTES_MIN && self.machine.is_overfull() {
                return Poll::Ready(Err(self.overfull()));
            }
            let progress = match result {
                Ok(values) => self.resume((true, values)),
                Err(error) => self.resume((false, message_of(&error))),
            };
            match progress {
                Ok(Progress::Waits) => {
                    stretches += 1;
                    let time = self.machine.options().budget.time;
                    if stretches >= STRETCHES_MAX || begun.elapsed() >= time {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                Ok(Progress::Ended(value)) => return Poll::Ready(Ok(value)),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// What messages call the script.
    pub fn name(&self) -> &str {
        match &self.what {
            What::Script(script, _) => script.name(),
            What::Function(name) => name,
        }
    }

    /// The state it runs in.
    pub fn machine(&self) -> &Rc<Machine> {
        &self.machine
    }

    fn resume(&mut self, arguments: impl IntoLuaMulti) -> Result<Progress, ScriptError> {
        let Some(thread) = self.thread.take() else {
            return Ok(Progress::Ended(Value::Nil));
        };
        self.machine.put_overlay(self.overlay.take())?;
        let used_before = self.machine.lua().used_memory();
        let (result, excess) = self.machine.meter().measure(thread.state(), || {
            thread.resume::<(Value, Value)>(arguments)
        });
        let overlay = self.machine.take_overlay()?;
        if let Some(excess) = excess {
            return Err(self.stopped(excess, &thread, result.as_ref().err()));
        }
        match result.map(Yielded::new) {
            Ok(Yielded::Done(value)) => {
                self.forget_started();
                self.machine.give_thread(thread);
                if let What::Script(script, function) = &mut self.what
                    && let Some(function) = function.take()
                {
                    script.give_back(function);
                }
                Ok(Progress::Ended(value))
            }
            Ok(Yielded::Wait) => {
                self.wait = self.machine.started.borrow_mut().take();
                self.overlay = overlay;
                let used = self.machine.lua().used_memory();
                self.grown_bytes = (self.grown_bytes + used).saturating_sub(used_before);
                self.thread = Some(thread);
                Ok(Progress::Waits)
            }
            Ok(Yielded::Other) => {
                let stack = self.machine.stack_of(&thread).unwrap_or_default();
                let error = mlua::Error::runtime(format_args!(
                    "{}: attempt to yield from outside a coroutine\n{}",
                    self.name(),
                    stack.trim_start()
                ));
                Err(ScriptError::of_run(&error))
            }
            Err(error) => {
                self.forget_started();
                Err(ScriptError::of_run(&error))
            }
        }
    }

    /// It has waited with much in its variables, in a state that can take no more.
    fn overfull(&mut self) -> ScriptError {
        self.thread = None;
        self.overlay = None;
        self.machine.wear_out();
        ScriptError::overfull(self.machine.overfull_bytes(), self.name())
    }

    /// Drops what a call began that then could not yield.
    fn forget_started(&self) {
        self.machine.started.borrow_mut().take();
    }

    /// `error` is what the script ended with, where it could not be stopped by a yield.
    fn stopped(&self, excess: Excess, thread: &Thread, error: Option<&mlua::Error>) -> ScriptError {
        self.forget_started();
        self.machine.wear_out();
        // Without memory for it the message has to do.
        let stack = self.machine.stack_of(thread).unwrap_or_default();
        let budget = &self.machine.options().budget;
        let mut stopped = ScriptError::stopped(excess, budget, self.name(), &stack);
        // The stack is unwound: the error knows what was on it, or at least its own place.
        if stopped.stack.is_empty()
            && let Some(error) = error
        {
            let error = ScriptError::of_run(error);
            stopped.stack = match error.stack.contains(self.name()) {
                true => error.stack,
                false => error.message,
            };
        }
        stopped
    }
}

impl Yielded {
    /// From the first two values: a list of all of them would be an allocation for each run.
    fn new((mark, value): (Value, Value)) -> Yielded {
        match mark {
            Value::LightUserData(what) if what == DONE => Yielded::Done(value),
            Value::LightUserData(what) if what == WAIT => Yielded::Wait,
            _ => Yielded::Other,
        }
    }
}
