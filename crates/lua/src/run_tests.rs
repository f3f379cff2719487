//! Tests of runs: their results, their waits, and how they are stopped.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use mlua::{Function, Value};

use crate::budget::{Budget, proof};
use crate::library::files::{FileDone, FileJob, FileThreads, FileWait};
use crate::{Cause, GlobalsMaker, Machine, MachineOptions, Progress, Run, ScriptError};

fn machine() -> Rc<Machine> {
    Machine::new(MachineOptions::default()).expect("a state")
}

fn environment(machine: &Machine) -> GlobalsMaker {
    maker(
        machine,
        "local globals = ... return function() return setmetatable({}, { __index = globals }) end",
    )
}

fn maker(machine: &Machine, source: &str) -> GlobalsMaker {
    let function: Function = machine
        .lua()
        .load(source)
        .call(machine.lua().globals())
        .expect("sound");
    function.into()
}

fn run(machine: &Rc<Machine>, source: &str) -> Result<Value, ScriptError> {
    let script = machine.compile("test.lua", source.as_bytes())?;
    match Run::start(machine, &script, &environment(machine))? {
        Progress::Ended(results) => Ok(results.value(1).expect("room")),
        Progress::Waits(mut run) => loop {
            if let Poll::Ready(result) = run.poll(&mut Context::from_waker(Waker::noop())) {
                return result.map(|results| results.value(1).expect("room"));
            }
        },
    }
}

fn cause(source: &str) -> (Cause, String) {
    let error = run(&machine(), source).expect_err("it must fail");
    (error.cause, error.to_string())
}

#[test]
fn scripts_return_a_value_and_leave_no_globals() {
    let machine = machine();
    let five = run(&machine, "x = 2; return x + 3").expect("sound");
    assert_eq!(five.as_i64(), Some(5));
    assert!(run(&machine, "return x").expect("sound").is_nil());
}

#[test]
fn what_a_run_leaves_behind_does_not_stay() {
    let machine = machine();
    for _ in 0..3 {
        run(
            &machine,
            "local text = ('x'):rep(15000000) .. 'a' return #text",
        )
        .expect("sound");
        let used = machine.lua().used_memory();
        assert!(used < 20 << 20, "{used}");
    }
    for _ in 0..20_000 {
        run(&machine, "package.path = '/srv/?.lua;' .. package.path").expect("sound");
        let used = machine.lua().used_memory();
        assert!(used < 20 << 20, "{used}");
    }
}

#[test]
fn a_slow_run_is_told() {
    let budget = Budget {
        time: Duration::from_secs(60),
        ..MachineOptions::default().budget
    };
    let options = MachineOptions {
        budget,
        ..MachineOptions::default()
    };
    let machine = Machine::new(options).expect("a state");
    run(&machine, "return 1").expect("sound");
    assert!(!machine.take_slow());
    // The watchdog may get no processor while the script has one.
    let is_told = (0..1000).any(|_| {
        let script = "local begun = os.clock() while os.clock() - begun < 0.04 do end";
        run(&machine, script).expect("sound");
        machine.take_slow()
    });
    assert!(is_told);
}

/// How often the globals of three runs of `source` are those of the run before.
fn reuses(source: &str) -> i64 {
    let machine = machine();
    let maker = "local globals = ... reuses = 0
        return function(before)
            if before then reuses = reuses + 1 return before end
            return setmetatable({}, { __index = globals })
        end";
    let maker = self::maker(&machine, maker);
    let script = machine
        .compile("test.lua", source.as_bytes())
        .expect("sound");
    for _ in 0..3 {
        let progress = Run::start(&machine, &script, &maker).expect("sound");
        assert!(matches!(progress, Progress::Ended(_)));
    }
    machine.lua().globals().get("reuses").expect("a number")
}

#[test]
fn globals_are_used_again_unless_a_script_may_have_kept_them() {
    assert_eq!(reuses("x = 1 return x"), 2);
    for source in [
        "f = function() end",
        "return _G",
        "load('y = 1')()",
        "return getfenv()",
    ] {
        assert_eq!(reuses(source), 0, "{source}");
    }
}

#[test]
fn errors_name_line_and_stack() {
    let (cause, text) = cause("\nlocal function f()\n error('oh') end\nf() return 1");
    assert_eq!(cause, Cause::Error);
    assert!(text.starts_with("test.lua:3: oh\n"), "{text}");
    assert!(text.contains("test.lua:4: in"), "{text}");
    assert!(!text.contains("petrel/"), "{text}");
}

#[test]
fn source_that_is_not_lua_is_told() {
    for (source, says) in [
        ("return 1 +", "test.lua:1:"),
        ("x = = 2", "test.lua:1:"),
        ("end return function() ", "'<eof>' expected"),
        ("\x1bLJ\x02", "binary chunks"),
    ] {
        let (cause, text) = cause(source);
        assert_eq!(cause, Cause::Syntax, "{source}");
        assert!(text.contains(says), "{source}: {text}");
    }
    assert!(run(&machine(), "#!/usr/bin/lua\nreturn 1 -- end").is_ok());
}

/// Every kind of endless loop, including those in pcall, handlers, coroutines and C functions, which might
/// hide it.
const ENDLESS: &[&str] = &[
    "while true do end",
    "local x = 0 while true do x = x + 1 end",
    "for i = 1, math.huge do end",
    "while true do pcall(function() while true do end end) end",
    "local function f() return f() end f()",
    "local function f() return pcall(f) end while true do f() end",
    "while true do pcall(error) end",
    "xpcall(error, function() while true do end end)",
    "xpcall(error, function() while true do pcall(function() while true do end end) end end)",
    "while true do xpcall(function() while true do end end, function() while true do end end) end",
    "local co = coroutine.wrap(function() while true do end end) while true do co() end",
    "while true do coroutine.wrap(function() while true do coroutine.yield() end end)() end",
    "local s = ('a'):rep(100) while true do s:gsub('.', function() while true do end end) end",
    "table.sort({ 5, 4, 3, 2, 1 }, function() while true do pcall(function() while true do end end) end end)",
    "local t = setmetatable({}, { __index = function() while true do end end }) return t.x",
    "local t = setmetatable({}, { __tostring = function() while true do end end }) return tostring(t)",
    "local t = {} for i = 1, 1e12 do t[i % 100] = {} end",
    "local t = setmetatable({}, { __lt = function() while true do end end }) return t < t",
    "repeat local f = load('while true do end') f() until false",
];

#[test]
fn endless_scripts_are_stopped_in_time() {
    for source in ENDLESS {
        let machine = machine();
        let begun = Instant::now();
        let error = run(&machine, source).expect_err(source);
        assert_eq!(error.cause, Cause::Time, "{source}: {error}");
        assert!(error.message.starts_with("test.lua: stopped"), "{error}");
        // Only processor time counts, since the machine may be busy with other tests.
        assert!(begun.elapsed() < Duration::from_secs(30), "{source}");
        assert!(machine.is_worn_out(), "{source}");
    }
}

#[test]
fn endless_recursion_is_an_error() {
    let (cause, text) = cause("local function f() return 1 + f() end return f()");
    assert_eq!(cause, Cause::Error);
    assert!(text.contains("stack overflow"), "{text}");
}

#[test]
fn a_script_that_is_stopped_within_a_call_of_c_is_named_with_its_line() {
    let machine = Machine::new(MachineOptions {
        budget: Budget {
            time: Duration::from_millis(3),
            ..MachineOptions::default().budget
        },
        ..MachineOptions::default()
    });
    let source =
        "\nlocal p = ('a?'):rep(50) .. ('a'):rep(50)\nlocal x = ('a'):rep(50):find(p)\nreturn x";
    let error = run(&machine.expect("a state"), source).expect_err("it takes too long");
    assert_eq!(error.cause, Cause::Time);
    assert!(error.stack.contains("test.lua:3"), "{error}");
}

#[test]
fn a_yield_outside_a_coroutine_is_named_with_its_line() {
    let (cause, text) = cause("\n\ncoroutine.yield(1)\nreturn 1");
    assert_eq!(cause, Cause::Error);
    assert!(text.starts_with("test.lua: attempt to yield"), "{text}");
    assert!(text.contains("test.lua:3"), "{text}");
}

#[test]
fn memory_that_grows_is_stopped() {
    let options = MachineOptions {
        budget: Budget {
            time: Duration::from_secs(20),
            growth_bytes: 16 << 20,
        },
        ..MachineOptions::default()
    };
    for source in [
        "local t = {} while true do t[#t + 1] = {} end",
        "local s = 'x' while true do s = s .. s end",
        "local t = {} while true do pcall(function() t[#t + 1] = ('x'):rep(1000) .. #t end) end",
    ] {
        let machine = Machine::new(options.clone()).expect("a state");
        let error = run(&machine, source).expect_err(source);
        assert_eq!(error.cause, Cause::Memory, "{source}: {error}");
        assert!(machine.lua().used_memory() < 128 << 20, "{source}");
    }
}

#[test]
fn a_script_that_was_stopped_hurts_no_other_of_the_state() {
    let machine = machine();
    let waits = waiting_run(&machine, "local a = wait(3) return a + 1");
    assert!(run(&machine, "while true do end").is_err());
    let seven = run(
        &machine,
        "local n = 0 for i = 1, 7 do n = n + 1 end return n",
    );
    assert_eq!(seven.expect("sound").as_i64(), Some(7));
    assert_eq!(ended(waits).expect("sound").as_i64(), Some(4));
}

/// A function `wait(n)` that waits for n polls and returns n.
fn add_wait(machine: &Machine) {
    let wait = machine.waiting(|_, polls: u32| {
        let left = Cell::new(polls);
        Ok(std::future::poll_fn(move |_| match left.get() {
            0 => Poll::Ready(if polls == 13 {
                Err(mlua::Error::runtime("thirteen"))
            } else {
                Ok(polls)
            }),
            n => {
                left.set(n - 1);
                Poll::Pending
            }
        }))
    });
    let wait = wait.expect("a function");
    machine.lua().globals().set("wait", wait).expect("room");
}

fn waiting_run(machine: &Rc<Machine>, source: &str) -> Run {
    add_wait(machine);
    let script = machine
        .compile("test.lua", source.as_bytes())
        .expect("sound");
    match Run::start(machine, &script, &environment(machine)).expect("sound") {
        Progress::Waits(run) => run,
        Progress::Ended(_) => panic!("it has not waited: {source}"),
    }
}

fn ended(mut run: Run) -> Result<Value, ScriptError> {
    for _ in 0..100 {
        if let Poll::Ready(result) = run.poll(&mut Context::from_waker(Waker::noop())) {
            return result.map(|results| results.value(1).expect("room"));
        }
    }
    panic!("it never ends");
}

#[test]
fn scripts_wait_and_go_on_also_many_of_one_script() {
    let machine = machine();
    add_wait(&machine);
    let source = b"local n = ... local sum = wait(2) + wait(3) x = (x or 0) + sum return x";
    let script = machine.compile("test.lua", source).expect("sound");
    let environment = environment(&machine);
    let start = || match Run::start(&machine, &script, &environment).expect("sound") {
        Progress::Waits(run) => run,
        Progress::Ended(_) => panic!("it has not waited"),
    };
    let runs: Vec<Run> = (0..10).map(|_| start()).collect();
    for run in runs {
        assert_eq!(ended(run).expect("sound").as_i64(), Some(5));
    }
}

#[test]
fn errors_of_a_wait_are_raised_where_it_was_called() {
    let machine = machine();
    let run = waiting_run(&machine, "\nwait(13)");
    let error = ended(run).expect_err("thirteen");
    assert!(error.message.starts_with("test.lua:2: thirteen"), "{error}");
    let run = waiting_run(
        &machine,
        "local ok, text = pcall(wait, 13) return ok == false and tostring(text)",
    );
    let text = ended(run).expect("caught");
    assert!(format!("{text:?}").contains("thirteen"), "{text:?}");
}

#[test]
fn a_run_may_be_dropped_while_it_waits() {
    let machine = machine();
    drop(waiting_run(&machine, "wait(1000)"));
    assert!(run(&machine, "return wait(1)").is_ok());
}

#[test]
fn yielding_by_oneself_is_an_error() {
    let (cause, text) = cause("coroutine.yield(1)");
    assert_eq!(cause, Cause::Error);
    assert!(text.contains("outside a coroutine"), "{text}");
}

#[test]
fn waiting_where_a_script_cannot_wait_is_an_error_and_forgotten() {
    let machine = machine();
    add_wait(&machine);
    let source = "for k in string.gmatch('a', setmetatable({}, { __tostring = function() wait(1) end })) do end";
    assert!(run(&machine, source).is_err());
    let source = "return load(function() wait(1) return nil end)";
    let _ = run(&machine, source);
    assert!(machine.started.borrow().is_none());
}

/// A function `ready()` whose wait is over at once.
fn add_ready(machine: &Machine) {
    let ready = machine.waiting(|_, ()| Ok(std::future::ready(Ok(()))));
    let globals = machine.lua().globals();
    globals
        .set("ready", ready.expect("a function"))
        .expect("room");
}

#[test]
fn waits_that_are_over_at_once_let_others_have_their_turn() {
    let machine = machine();
    add_ready(&machine);
    let mut run = waiting_run(&machine, "while true do ready() end");
    for _ in 0..3 {
        // If the run did not give up its turn, this call would not return.
        let progress = run.poll(&mut Context::from_waker(Waker::noop()));
        assert!(progress.is_pending());
    }
    let sum = waiting_run(&machine, "for i = 1, 1000 do ready() end return 7");
    assert_eq!(ended(sum).expect("sound").as_i64(), Some(7));
}

#[test]
fn memory_that_grows_from_wait_to_wait_is_stopped() {
    let options = MachineOptions {
        budget: Budget {
            time: Duration::from_secs(20),
            growth_bytes: 64 << 20,
        },
        state_bytes_max: 16 << 20,
        ..MachineOptions::default()
    };
    let machine = Machine::new(options).expect("a state");
    let small = waiting_run(&machine, "wait(1) return 5");
    let source = "local t = {} for i = 1, 50 do t[i] = ('x'):rep(4 * 1024 * 1024) .. i wait(0) end";
    let error = ended(waiting_run(&machine, source)).expect_err("400 MiB");
    assert_eq!(error.cause, Cause::Memory, "{error}");
    assert!(error.message.contains("it waited in"), "{error}");
    assert!(machine.lua().used_memory() < 64 << 20);
    assert!(machine.is_worn_out());
    assert_eq!(ended(small).expect("it has kept nothing").as_i64(), Some(5));
}

#[test]
fn the_stack_of_an_error_is_for_its_own_run() {
    let machine = machine();
    let source =
        "\n\n\n\n\n\nxpcall(error, function() wait(1) return debug.traceback('') end) return 1";
    let waits = waiting_run(&machine, source);
    let stack = run(&machine, "local stack = debug.traceback('') return stack");
    let stack = format!("{:?}", stack.expect("sound"));
    assert!(
        stack.contains("test.lua:1") && !stack.contains("test.lua:7"),
        "{stack}"
    );
    assert!(ended(waits).is_ok());
}

#[test]
fn where_compiled_loops_cannot_be_stopped_nothing_is_compiled() {
    let mut options = MachineOptions::default();
    options.library.jit = true;
    let source = "for _ = 1, 1000 do end return jit.status()";
    // In a build that cannot stop compiled loops, one would never end.
    for is_compiled in [proof::compiled_loops_stop(), false] {
        let machine = Machine::with_compiler(options.clone(), is_compiled).expect("a state");
        let status = run(&machine, source).expect("sound");
        assert_eq!(status.as_boolean(), Some(is_compiled));
        let error = run(&machine, "while true do end").expect_err("it is stopped");
        assert_eq!(error.cause, Cause::Time);
    }
}

/// Performs jobs when a test says so.
#[derive(Default)]
struct Slow {
    asked: Cell<usize>,
    is_ready: Cell<bool>,
    /// How many jobs may be performed although `is_ready` is not set.
    allowed: Cell<usize>,
    left: Cell<usize>,
}

impl Slow {
    fn is_done(&self) -> bool {
        let allowed = self.allowed.get();
        self.allowed.set(allowed.saturating_sub(1));
        self.is_ready.get() || allowed > 0
    }
}

/// A job that is performed when its run ends, if it must be.
struct Held(Option<FileJob>);

impl Drop for Held {
    fn drop(&mut self) {
        if self.0.as_ref().is_some_and(FileJob::is_owed) {
            perform(self.0.take()).expect("it is done");
        }
    }
}

/// The threads of a machine, shared with the test.
struct Shared(Rc<Slow>);

impl FileThreads for Shared {
    fn run(&self, job: FileJob) -> FileWait {
        let slow = Rc::clone(&self.0);
        slow.asked.set(slow.asked.get() + 1);
        let mut held = Held(Some(job));
        Box::pin(std::future::poll_fn(move |_| match slow.is_done() {
            true => Poll::Ready(Ok(perform(held.0.take()))),
            false => Poll::Pending,
        }))
    }

    fn leave(&self, job: FileJob) {
        self.0.left.set(self.0.left.get() + 1);
        perform(Some(job)).expect("it is written");
    }
}

fn perform(job: Option<FileJob>) -> std::io::Result<FileDone> {
    job.expect("it is polled until it is ready").perform()
}

fn machine_with_slow_files() -> (Rc<Machine>, Rc<Slow>) {
    let (machine, slow) = (machine(), Rc::<Slow>::default());
    let threads = Rc::new(Shared(Rc::clone(&slow)));
    machine.use_threads(threads).expect("room");
    (machine, slow)
}

#[test]
fn scripts_wait_for_files_and_keep_no_thread() {
    for source in [
        "return io.open('/dev/urandom'):read(16)",
        "return io.open('/proc/self/stat'):read('*a')",
        "for line in io.lines('/proc/self/stat') do return line end",
        "io.input('/proc/self/stat') return io.read()",
        "return io.open('/dev/null', 'w'):write('x'):close()",
        "local f = io.tmpfile() f:write('x') return f:seek('end')",
        "return select(2, loadfile('/proc/self/stat'))",
        "return select(2, pcall(dofile, '/proc/self/stat'))",
        "package.path = '/proc/self/?' return select(2, pcall(require, 'stat'))",
    ] {
        let (machine, slow) = machine_with_slow_files();
        let script = machine
            .compile("test.lua", source.as_bytes())
            .expect("it is Lua");
        let begun = Run::start(&machine, &script, &environment(&machine)).expect("it begins");
        let Progress::Waits(mut run) = begun else {
            panic!("it has not waited: {source}");
        };
        let mut context = Context::from_waker(Waker::noop());
        assert!(run.poll(&mut context).is_pending(), "{source}");
        assert_eq!(slow.asked.get(), 1, "{source}");
        slow.is_ready.set(true);
        let results = loop {
            if let Poll::Ready(results) = run.poll(&mut context) {
                break results.expect(source);
            }
        };
        assert!(!results.is_nil(1), "{source}");
    }
}

#[test]
fn what_a_script_leaves_open_is_written_by_a_thread() {
    let path = std::env::temp_dir().join(format!("petrel-lua-left-{}", std::process::id()));
    let (machine, slow) = machine_with_slow_files();
    slow.is_ready.set(true);
    let source = format!(
        "io.open('{}', 'w'):write('left behind') return 1",
        path.display()
    );
    run(&machine, &source).expect("sound");
    for _ in 0..2 {
        machine.lua().gc_collect().expect("room");
    }
    let written = std::fs::read_to_string(&path);
    let _ = std::fs::remove_file(&path);
    assert_eq!(
        (written.expect("it is there").as_str(), slow.left.get()),
        ("left behind", 1)
    );
}

#[test]
fn waits_for_files_do_not_begin_a_new_budget() {
    for source in [
        "while true do io.open('/dev/null'):close() end",
        "local f = io.open('/dev/null', 'w') while true do f:write('x') f:flush() end",
    ] {
        let (machine, slow) = machine_with_slow_files();
        slow.is_ready.set(true);
        let error = run(&machine, source).expect_err("it is endless");
        assert_eq!(error.cause, Cause::Time, "{source}: {error}");
    }
}

/// A run that waits for its first file.
fn begun(machine: &Rc<Machine>, source: &str) -> Run {
    let script = machine
        .compile("test.lua", source.as_bytes())
        .expect("it is Lua");
    let begun = Run::start(machine, &script, &environment(machine)).expect("it begins");
    let Progress::Waits(run) = begun else {
        panic!("it has not waited: {source}");
    };
    run
}

/// Has one file job performed for `run`. Returns the script's first value, if it has ended.
fn step(slow: &Slow, run: &mut Run) -> Option<Value> {
    slow.allowed.set(1);
    match run.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(results) => Some(results.expect("sound").value(1).expect("room")),
        Poll::Pending => None,
    }
}

fn stepped_to_its_end(slow: &Slow, run: &mut Run) -> Value {
    (0..100)
        .find_map(|_| step(slow, run))
        .expect("it comes to its end")
}

/// A directory with files, removed when dropped.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &str)]) -> Folder {
        let folder = std::env::temp_dir().join(format!("petrel-lua-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        for (name, text) in files {
            std::fs::write(folder.join(name), text).expect("a file");
        }
        Folder(folder)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).expect("it is there")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_a_run_has_written_is_kept_when_the_run_is_dropped() {
    let folder = Folder::new("kept", &[]);
    for last in ["f:flush()", "f:seek('set')", "f:close()"] {
        let (machine, slow) = machine_with_slow_files();
        let source = format!(
            "local f = io.open('{}/file', 'w') f:write('kept') {last} return 1",
            folder.0.display()
        );
        let mut run = begun(&machine, &source);
        assert!(step(&slow, &mut run).is_none(), "{last}");
        drop(run);
        assert_eq!(folder.read("file"), "kept", "{last}");
    }
}

#[test]
fn runs_write_to_standard_streams_side_by_side() {
    for name in ["stdout", "stderr"] {
        let (machine, slow) = machine_with_slow_files();
        let source = format!("return io.{name}:write('') == io.{name}");
        let dropped = begun(&machine, &source);
        let mut first = begun(&machine, &source);
        let mut second = begun(&machine, &source);
        drop(dropped);
        for run in [&mut second, &mut first] {
            let value = stepped_to_its_end(&slow, run);
            assert_eq!(value.as_boolean(), Some(true), "{name}");
        }
    }
}

#[test]
fn a_dropped_run_leaves_a_shared_file_to_the_others() {
    let folder = Folder::new("shared", &[]);
    let path = folder.0.display();
    let keep = format!("return io.open('{path}/log', 'a')");
    std::fs::write(folder.0.join("keep.lua"), keep).expect("a file");
    let source = format!(
        "package.path = '{path}/?.lua' local f = require('keep') f:write('x') return f:flush()"
    );
    let (machine, slow) = machine_with_slow_files();
    let mut dropped = begun(&machine, &source);
    for _ in 0..3 {
        assert!(step(&slow, &mut dropped).is_none());
    }
    drop(dropped);
    let value = stepped_to_its_end(&slow, &mut begun(&machine, &source));
    assert_eq!(value.as_boolean(), Some(true));
    assert_eq!(folder.read("log"), "xx");
}

#[test]
fn a_shared_file_is_closed_when_a_run_ends_while_it_is_read() {
    let large = "x".repeat(1_000_000);
    let folder = Folder::new("read", &[("data", &large)]);
    let path = folder.0.display();
    let keep = format!("return io.open('{path}/data')");
    std::fs::write(folder.0.join("keep.lua"), keep).expect("a file");
    let source =
        |then: &str| format!("package.path = '{path}/?.lua' local f = require('keep') {then}");
    let (machine, slow) = machine_with_slow_files();
    let loaded = stepped_to_its_end(&slow, &mut begun(&machine, &source("return true")));
    assert_eq!(loaded.as_boolean(), Some(true));
    drop(begun(&machine, &source("return f:read(500000)")));
    let told =
        source("io.open('/proc/self/stat') local _, words = pcall(f.read, f, 1) return words");
    let value = stepped_to_its_end(&slow, &mut begun(&machine, &told));
    let words = value.to_string().expect("words");
    assert!(words.contains("closed file"), "{words}");
}

#[test]
fn a_module_that_loads_is_seen_by_its_own_run_only() {
    let folder = Folder::new(
        "loads",
        &[
            (
                "old.lua",
                "local require = require module('old') value = require('inner').value",
            ),
            (
                "circle.lua",
                "local require = require module('circle') local _ = require('back') value = require('inner').value",
            ),
            (
                "back.lua",
                "local circle = require('circle') return { circle = circle, value = 7 }",
            ),
            ("plain.lua", "return { value = require('inner').value }"),
            ("inner.lua", "return { value = 7 }"),
        ],
    );
    for (name, jobs) in [("old", 4), ("circle", 6), ("plain", 4)] {
        let source = format!(
            "package.path = '{}/?.lua' local value = require('{name}').value
             return '{name}' == 'circle' and require('back').circle.value or value",
            folder.0.display()
        );
        for (steps, is_dropped) in (0..jobs).flat_map(|steps| [(steps, true), (steps, false)]) {
            let (machine, slow) = machine_with_slow_files();
            let mut first = begun(&machine, &source);
            for _ in 0..steps {
                assert!(step(&slow, &mut first).is_none(), "{name} {steps}");
            }
            let mut first = (!is_dropped).then_some(first);
            let mut second = begun(&machine, &source);
            let whole = stepped_to_its_end(&slow, &mut second).as_i64();
            assert_eq!(whole, Some(7), "{name} {steps} {is_dropped}");
            if let Some(first) = &mut first {
                let whole = stepped_to_its_end(&slow, first).as_i64();
                assert_eq!(whole, Some(7), "{name} {steps}");
            }
            let asked = slow.asked.get();
            let third = run(&machine, &source).expect("sound").as_i64();
            assert_eq!(
                (third, slow.asked.get()),
                (Some(7), asked),
                "{name} {steps}"
            );
        }
    }
}
