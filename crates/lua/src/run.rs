//! One execution of a script.
#![expect(clippy::disallowed_methods, reason = "it limits the time of one poll")]

use std::ffi::{c_int, c_void};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use mlua::{Function, IntoLua, IntoLuaMulti, Table, Value};
use rustix::time::{ClockId, clock_gettime};

use crate::budget::Excess;
use crate::error::{ScriptError, message_of};
use crate::library::files::ProgramsOfRun;
use crate::machine::{DONE, Machine, WAIT, Wait};
use crate::raw::{Coroutine, Resumed, Stack};
use crate::script::{GlobalsMaker, Script};

/// A started script: it has ended, or it waits for something and is polled until it ends. Dropping it ends
/// the script at once.
pub struct Run {
    machine: Rc<Machine>,
    what: Option<RunSubject>,
    thread: Option<Box<Coroutine>>,
    wait: Option<Wait>,
    /// The run's changes of libraries, while it waits.
    overlay: Option<Table>,
    /// Bytes by which the state has grown in its stretches so far. The sum shrinks when garbage is collected.
    grown_bytes: usize,
    /// Processor time of its stretches since the last wait for something other than a file. Waits for files
    /// do not begin a new budget: a script that reads an endless file waits for nothing else.
    used_between_files: Duration,
    /// Programs that it has started by `io.popen`.
    programs: ProgramsOfRun,
}

/// How many waits of one run may be over at once before other work on the thread gets its turn.
const STRETCHES_MAX: u32 = 64;

/// Runs that have used less than this may continue in an overfull state, since they are not the cause.
const KEPT_BYTES_MIN: usize = 1 << 20;

/// What is run.
enum RunSubject {
    /// A script, and the identity of the function that makes the globals of its coroutine.
    Script(Rc<Script>, *const c_void),
    /// A function that a script has made, and its name in messages.
    Function(Rc<str>),
}

/// How far a run has come.
pub enum Progress {
    /// The script has ended and returned these values.
    Ended(Results),
    /// It waits; [`Run::poll`] continues it.
    Waits(Run),
}

/// The values that a script has returned, or that its environment's handler has made of them. They are
/// numbered from 1.
pub struct Results {
    machine: Rc<Machine>,
    what: Option<RunSubject>,
    thread: Option<Box<Coroutine>>,
}

impl Run {
    /// Runs `script` until it ends or waits, with the globals of `maker`.
    ///
    /// # Errors
    /// The script failed or was stopped.
    pub fn start(
        machine: &Rc<Machine>,
        script: &Rc<Script>,
        maker: &GlobalsMaker,
    ) -> Result<Progress, ScriptError> {
        let thread = machine
            .thread_of(script, maker)
            .map_err(|error| ScriptError::of_run(&error))?;
        let what = RunSubject::Script(Rc::clone(script), maker.identity());
        Run::new(machine, what, thread).begin(0)
    }

    /// Runs a function of a script with one argument until it ends or waits. `name` is its name in messages.
    /// Its globals are those of the script that made it.
    ///
    /// # Errors
    /// The function failed or was stopped.
    pub fn call(
        machine: &Rc<Machine>,
        name: &str,
        function: &Function,
        argument: impl IntoLua,
    ) -> Result<Progress, ScriptError> {
        let mut thread = machine
            .take_thread()
            .map_err(|error| ScriptError::of_run(&error))?;
        let count = thread
            .push((function, argument))
            .map_err(|error| ScriptError::of_run(&error))?;
        Run::new(machine, RunSubject::Function(name.into()), thread).begin(count)
    }

    fn begin(mut self, count: c_int) -> Result<Progress, ScriptError> {
        let results = self.resume(count)?;
        Ok(results.map_or_else(|| Progress::Waits(self), Progress::Ended))
    }

    fn new(machine: &Rc<Machine>, what: RunSubject, thread: Box<Coroutine>) -> Run {
        Run {
            machine: Rc::clone(machine),
            what: Some(what),
            thread: Some(thread),
            wait: None,
            overlay: None,
            grown_bytes: 0,
            used_between_files: Duration::ZERO,
            programs: ProgramsOfRun::default(),
        }
    }

    /// Polls what the script waits for, and continues the script when that is ready. Must not be called again
    /// after it has returned `Ready`.
    ///
    /// A script whose waits are always over at once must not monopolise its thread: after [`STRETCHES_MAX`]
    /// of them, or the time of one budget, the run returns `Pending` and asks to be polled again.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Results, ScriptError>> {
        let mut stretches = 0;
        let begun = Instant::now();
        loop {
            let Some(wait) = &mut self.wait else {
                return Poll::Ready(Ok(self.nothing()));
            };
            let Poll::Ready(result) = wait.values.as_mut().poll(context) else {
                return Poll::Pending;
            };
            let was_for_file = wait.is_for_file;
            self.wait = None;
            if was_for_file {
                self.machine.give_programs(&mut self.programs);
            }
            if self.grown_bytes > KEPT_BYTES_MIN && self.machine.is_overfull() {
                return Poll::Ready(Err(self.overfull()));
            }
            let since = was_for_file.then(processor_time);
            let resumed = match result {
                Ok(values) => self.resume_with((true, values)),
                Err(error) => self.resume_with((false, message_of(&error))),
            };
            self.used_between_files = match since {
                Some(since) => self.used_between_files + processor_time().saturating_sub(since),
                None => Duration::ZERO,
            };
            match resumed {
                Ok(None) => {
                    if self.has_used_all()
                        && let Some(mut thread) = self.thread.take()
                    {
                        self.wait = None;
                        return Poll::Ready(Err(self.stopped(Excess::Time, &mut thread, None)));
                    }
                    stretches += 1;
                    let time = self.machine.options().budget.time;
                    if stretches >= STRETCHES_MAX || begun.elapsed() >= time {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                Ok(Some(results)) => return Poll::Ready(Ok(results)),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn has_used_all(&self) -> bool {
        let waits_for_file = self.wait.as_ref().is_some_and(|wait| wait.is_for_file);
        waits_for_file && self.used_between_files >= self.machine.options().budget.time
    }

    /// The name of the script in messages.
    pub fn name(&self) -> &str {
        match &self.what {
            Some(RunSubject::Script(script, _)) => script.name(),
            Some(RunSubject::Function(name)) => name,
            None => "",
        }
    }

    fn resume_with(
        &mut self,
        arguments: impl IntoLuaMulti,
    ) -> Result<Option<Results>, ScriptError> {
        let Some(thread) = &mut self.thread else {
            return Ok(Some(self.nothing()));
        };
        thread.clear();
        let count = thread
            .push(arguments)
            .map_err(|error| ScriptError::of_run(&error))?;
        self.resume(count)
    }

    /// Resumes the coroutine with the topmost `count` values of its stack. `None`: it waits.
    fn resume(&mut self, count: c_int) -> Result<Option<Results>, ScriptError> {
        let Some(mut thread) = self.thread.take() else {
            return Ok(Some(self.nothing()));
        };
        self.machine.put_overlay(self.overlay.take())?;
        let used_before = thread.bytes_used();
        let meter = self.machine.meter();
        let (resumed, excess) = meter.resume(&mut thread, count, used_before);
        let used = thread.bytes_used();
        self.machine.note_bytes_used(used);
        if excess.is_none() && meter.was_slow() {
            self.machine.note_slow();
        }
        let overlay = self.machine.take_overlay()?;
        if let Some(excess) = excess {
            let error = (resumed != Resumed::Values).then(|| self.error_of(&mut thread, resumed));
            return Err(self.stopped(excess, &mut thread, error.as_ref()));
        }
        if resumed != Resumed::Values {
            self.forget_started();
            return Err(self.error_of(&mut thread, resumed));
        }
        let mark = thread.stack().mark(1);
        if mark == Some(DONE) {
            self.forget_started();
            return Ok(Some(Results {
                machine: Rc::clone(&self.machine),
                what: self.what.take(),
                thread: Some(thread),
            }));
        }
        if mark == Some(WAIT) {
            self.wait = self.machine.started.borrow_mut().take();
            self.overlay = overlay;
            self.grown_bytes = (self.grown_bytes + used).saturating_sub(used_before);
            self.thread = Some(thread);
            return Ok(None);
        }
        let text = format!("{}: attempt to yield from outside a coroutine", self.name());
        Err(self.error_with_stack(&text, &mut thread))
    }

    /// The error on top of the stack of `thread`, which has failed.
    fn error_of(&self, thread: &mut Coroutine, resumed: Resumed) -> ScriptError {
        if resumed == Resumed::NoMemory {
            let error = mlua::Error::MemoryError(format!("{}: not enough memory", self.name()));
            return ScriptError::of_run(&error);
        }
        let stack = thread.stack();
        let text = match stack.bytes(stack.len()) {
            Some(text) => String::from_utf8_lossy(text).into_owned(),
            None => match stack.value(stack.len()) {
                Ok(Value::Error(error)) => return ScriptError::of_run(&error),
                Ok(value @ (Value::Integer(_) | Value::Number(_))) => {
                    value.to_string().unwrap_or_default()
                }
                // Its __tostring would run without any limit.
                Ok(value) => format!("{}: the error is a {}", self.name(), value.type_name()),
                Err(error) => return ScriptError::of_run(&error),
            },
        };
        self.error_with_stack(&text, thread)
    }

    fn error_with_stack(&self, text: &str, thread: &mut Coroutine) -> ScriptError {
        // If memory has run out, the message is shown without a stack.
        let calls = self.machine.stack_of(thread).unwrap_or_default();
        let text = format!("{text}\n{}", calls.trim_start());
        ScriptError::of_run(&mlua::Error::RuntimeError(text))
    }

    /// The results of a run without values.
    fn nothing(&self) -> Results {
        Results {
            machine: Rc::clone(&self.machine),
            what: None,
            thread: None,
        }
    }

    /// Ends a run that has waited with much memory in use, because its state cannot grow any more.
    fn overfull(&mut self) -> ScriptError {
        self.thread = None;
        self.overlay = None;
        self.machine.wear_out();
        ScriptError::overfull(self.machine.overfull_bytes(), self.name())
    }

    /// Drops the wait of a call that could not yield.
    fn forget_started(&self) {
        self.machine.started.borrow_mut().take();
    }

    /// The error of a stopped run. `error` is what the script ended with if it could not be stopped by a
    /// yield.
    fn stopped(
        &self,
        excess: Excess,
        thread: &mut Coroutine,
        error: Option<&ScriptError>,
    ) -> ScriptError {
        self.forget_started();
        self.machine.wear_out();
        // If memory has run out, the message is shown without a stack.
        let stack = self.machine.stack_of(thread).unwrap_or_default();
        let budget = &self.machine.options().budget;
        let mut stopped = ScriptError::stopped(excess, budget, self.name(), &stack);
        // After an error the stack is unwound, but the error has recorded it, or at least its own position.
        if stopped.stack.is_empty()
            && let Some(error) = error
        {
            stopped.stack = match error.stack.contains(self.name()) {
                true => error.stack.clone(),
                false => error.message.clone(),
            };
        }
        stopped
    }
}

/// The processor time of the calling thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

impl Results {
    /// Value `number` as bytes, if it is a string.
    pub fn bytes(&self, number: usize) -> Option<&[u8]> {
        self.stack()?.bytes(number + 1)
    }

    /// Value `number`, if it is a number.
    pub fn number(&self, number: usize) -> Option<f64> {
        self.stack()?.number(number + 1)
    }

    /// Whether value `number` is missing or `nil`.
    pub fn is_nil(&self, number: usize) -> bool {
        self.stack().is_none_or(|stack| stack.is_nil(number + 1))
    }

    /// Value `number`, of any type.
    ///
    /// # Errors
    /// There is no memory for a reference to it.
    pub fn value(&self, number: usize) -> mlua::Result<Value> {
        match self.stack() {
            Some(stack) => stack.value(number + 1),
            None => Ok(Value::Nil),
        }
    }

    fn stack(&self) -> Option<Stack<'_>> {
        self.thread.as_deref().map(Coroutine::stack)
    }
}

impl Drop for Results {
    /// Keeps the coroutine for another run.
    fn drop(&mut self) {
        let Some(mut thread) = self.thread.take() else {
            return;
        };
        thread.clear();
        match self.what.take() {
            Some(RunSubject::Script(script, maker)) => script.give_back(maker, thread),
            _ => self.machine.give_thread(thread),
        }
    }
}
