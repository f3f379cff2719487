//! Runs commands with a time limit.
//!
//! When its time is up, a command is ended together with everything that it has started, even if it is far
//! removed by now: every process that has inherited a mark in its environment, and all its descendants. This
//! includes daemons and programs with process groups of their own. They get SIGTERM first, so that those with
//! mounts can unmount them, and SIGKILL soon after.
//!
//! `xtask limited SECONDS PROGRAM [ARGUMENT]...` does the same as a program: cargo runs each test program
//! through it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Which of a command's outputs is read; the other one is the terminal's.
#[derive(Clone, Copy, Debug)]
pub enum Reads {
    /// Standard output.
    Output,
    /// Standard error.
    Errors,
}

/// The beginning of a line that says that something was ended. The summary repeats such lines.
pub const ENDED: &str = "ENDED ";

/// How long processes may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// How long the end of the output is waited for when the command has ended: something that it left behind may
/// hold it open for ever.
const LINGER: Duration = Duration::from_secs(5);

/// How often to check whether the command has ended.
const TICK: Duration = Duration::from_millis(20);

/// Runs a command, which messages call `name`, for `limit` at most. Each line that it prints goes to `each`.
///
/// # Errors
/// When it cannot be started, does not succeed, or was ended.
pub fn run(
    name: &str,
    command: &mut Command,
    reads: Reads,
    limit: Duration,
    mut each: impl FnMut(&str),
) -> Result<(), String> {
    let mark = Mark::new();
    command.env(&mark.variable, "1");
    match reads {
        Reads::Output => command.stdout(Stdio::piped()),
        Reads::Errors => command.stderr(Stdio::piped()),
    };
    let told = |error| format!("{name}: {error}");
    let mut child = command.spawn().map_err(told)?;
    let lines = lines_of(&mut child);
    let ended_by_itself = watch(&mut child, &lines, limit, &mut each).map_err(told)?;
    if ended_by_itself.is_none() {
        mark.end(GRACE);
    }
    let deadline = Instant::now() + LINGER;
    let left = || deadline.saturating_duration_since(Instant::now());
    while let Ok(line) = lines.recv_timeout(left()) {
        each(&line);
    }
    // Reaped, unless even being killed has not ended it.
    let _ = child.try_wait();
    match ended_by_itself {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("{name}: {status}")),
        None => Err(format!(
            "{name}: took longer than {} s, so it was ended with all that it had started",
            limit.as_secs()
        )),
    }
}

/// `xtask limited SECONDS PROGRAM [ARGUMENT]...`: says which tests of the program had not ended, if it must be
/// ended.
///
/// # Errors
/// As [`run`], or when the command line is wrong.
pub fn wrap(arguments: &[&str]) -> Result<(), String> {
    let [seconds, program, arguments @ ..] = arguments else {
        return Err("`limited` takes a number of seconds and a program".to_owned());
    };
    let seconds = seconds.parse().map_err(|_| "not a number of seconds")?;
    let mut under_way = BTreeSet::new();
    let begin = Instant::now();
    let limit = Duration::from_secs(seconds);
    let name = Path::new(program).file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    let mut command = Command::new(program);
    command.args(arguments);
    let outcome = run(&name, &mut command, Reads::Output, limit, |line| {
        println!("{line}");
        note(line, &mut under_way);
    });
    if outcome.is_err() && begin.elapsed() >= limit {
        let tests: Vec<_> = under_way.into_iter().collect();
        println!(
            "{ENDED}{name} after {seconds} s; tests that had taken long by then: {}",
            tests.join(", ")
        );
    }
    outcome
}

/// Keeps the names of tests that run for long and have not ended, by what Rust's test programs print.
fn note(line: &str, under_way: &mut BTreeSet<String>) {
    let Some(line) = line.strip_prefix("test ") else {
        return;
    };
    if let Some((name, _)) = line.split_once(" has been running for over ") {
        under_way.insert(name.to_owned());
    } else if let Some((name, _)) = line.split_once(" ... ") {
        under_way.remove(name);
    }
}

/// Passes lines on until the command ends, or until it has taken `limit`: `None`.
fn watch(
    child: &mut Child,
    lines: &Receiver<String>,
    limit: Duration,
    each: &mut impl FnMut(&str),
) -> std::io::Result<Option<ExitStatus>> {
    let begin = Instant::now();
    loop {
        match lines.recv_timeout(TICK) {
            Ok(line) => each(&line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => thread::sleep(TICK),
        }
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begin.elapsed() >= limit {
            return Ok(None);
        }
    }
}

/// The lines of the output that is a pipe, read by a thread: reading cannot be given up.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let output = child.stdout.take().map(|pipe| Box::new(pipe) as Output);
    let errors = child.stderr.take().map(|pipe| Box::new(pipe) as Output);
    let pipe = output.or(errors).expect("one of them is a pipe");
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(pipe).split(b'\n').map_while(Result::ok);
        for line in lines {
            if sender
                .send(String::from_utf8_lossy(&line).into_owned())
                .is_err()
            {
                return;
            }
        }
    });
    lines
}

type Output = Box<dyn Read + Send>;

/// What the processes that a command starts are known by: a variable of their environment that no other has.
struct Mark {
    variable: String,
}

impl Mark {
    fn new() -> Mark {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Mark {
            variable: format!("XTASK_LIMITED_{}_{number}", std::process::id()),
        }
    }

    /// Ends them all: asks, and kills those that are still there after `grace`.
    fn end(&self, grace: Duration) {
        signal("TERM", &self.processes());
        let deadline = Instant::now() + grace;
        while !self.processes().is_empty() && Instant::now() < deadline {
            thread::sleep(TICK);
        }
        // More than once: what is under way may start something meanwhile.
        for _ in 0..10 {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            signal("KILL", &left);
            thread::sleep(TICK);
        }
    }

    /// Those that have the mark, and all that descend from them. Not ourselves, and not the dead.
    fn processes(&self) -> BTreeSet<u32> {
        let all: Vec<Process> = processes();
        let marked = all.iter().filter(|process| process.has(&self.variable));
        let mut found: BTreeSet<u32> = marked.map(|process| process.pid).collect();
        loop {
            let before = found.len();
            let children = all.iter().filter(|process| found.contains(&process.parent));
            let children: Vec<u32> = children.map(|process| process.pid).collect();
            found.extend(children);
            if found.len() == before {
                break;
            }
        }
        found.remove(&std::process::id());
        found
    }
}

/// A process of this system.
struct Process {
    pid: u32,
    parent: u32,
}

impl Process {
    /// `None` if the process has ended, even if its parent has not reaped it yet.
    fn of(pid: u32) -> Option<Process> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // Its name is in parentheses, and may hold more of them.
        let behind_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
        let text = std::str::from_utf8(stat.get(behind_name..)?).ok()?;
        let mut fields = text.split_ascii_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        (state != "Z").then_some(Process { pid, parent })
    }

    fn has(&self, variable: &str) -> bool {
        let environment = fs::read(format!("/proc/{}/environ", self.pid)).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|one| one.strip_prefix(variable.as_bytes()) == Some(b"=1"))
    }
}

fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Process::of).collect()
}

/// By the shell, which every system has; those that have ended meanwhile do not matter.
fn signal(signal: &str, pids: &BTreeSet<u32>) {
    let mut command = Command::new("sh");
    command.args(["-c", "kill -s \"$0\" \"$@\"", signal]);
    command.args(pids.iter().map(u32::to_string));
    let _ = command.stdin(Stdio::null()).stderr(Stdio::null()).status();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn run_for(command: &mut Command, limit: Duration) -> (Vec<String>, Result<(), String>) {
        let mut lines = Vec::new();
        let keep = |line: &str| lines.push(line.to_owned());
        let outcome = run("it", command, Reads::Output, limit, keep);
        (lines, outcome)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn lines_and_the_status_are_passed_on() {
        let (lines, outcome) = run_for(&mut shell("echo one; echo two"), LONG);
        assert_eq!((lines, outcome), (vec!["one".into(), "two".into()], Ok(())));
        let (lines, outcome) = run_for(&mut shell("echo one; exit 3"), LONG);
        assert_eq!(lines, ["one"]);
        assert!(outcome.is_err_and(|message| message.contains("exit status: 3")));
        let mut lines = Vec::new();
        let keep = |line: &str| lines.push(line.to_owned());
        let errors = run(
            "it",
            &mut shell("echo wrong >&2"),
            Reads::Errors,
            LONG,
            keep,
        );
        assert_eq!((lines, errors), (vec!["wrong".into()], Ok(())));
    }

    #[test]
    fn what_takes_too_long_is_ended_with_all_that_it_has_started() {
        // A child; a process in a session of its own, whose parent has gone; and a process without the mark.
        let lengths = [1, 2, 3].map(|number| number * 10_000_000 + std::process::id());
        let [child, orphan, bare] = lengths;
        let script = format!(
            "sleep {child} & (setsid sleep {orphan} &) ; env -i setsid sleep {bare} & echo begun; wait"
        );
        let (lines, outcome) = run_for(&mut shell(&script), Duration::from_secs(5));
        assert_eq!(lines, ["begun"]);
        let message = outcome.expect_err("it was ended");
        assert!(message.contains("took longer than 5 s"), "{message}");
        for length in lengths {
            let sleeps = |process: &Process| {
                let line = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
                line == format!("sleep\0{length}\0").as_bytes()
            };
            assert!(!processes().iter().any(sleeps), "sleep {length}");
        }
    }

    #[test]
    fn who_does_not_want_to_end_is_killed() {
        let mark = Mark::new();
        let mut command = shell("trap '' TERM; echo ready; while :; do sleep 1; done");
        command.env(&mark.variable, "1").stdout(Stdio::piped());
        let mut child = command.spawn().expect("there is a shell");
        let lines = lines_of(&mut child);
        assert_eq!(lines.recv().as_deref(), Ok("ready"));
        mark.end(Duration::from_millis(100));
        assert!(!child.wait().expect("our child").success());
    }

    #[test]
    fn what_holds_the_output_open_holds_up_nobody() {
        let begin = Instant::now();
        let (lines, outcome) = run_for(&mut shell("sleep 100 & echo $!"), LONG);
        assert!(begin.elapsed() < LONG);
        assert_eq!(outcome, Ok(()));
        let pids = lines.iter().map(|pid| pid.parse().expect("a number"));
        signal("KILL", &pids.collect());
    }

    #[test]
    fn tests_that_have_not_ended_are_known() {
        let mut under_way = BTreeSet::new();
        for line in [
            "test a::b has been running for over 60 seconds",
            "test c has been running for over 60 seconds",
            "test c ... ok",
            "testing, testing",
        ] {
            note(line, &mut under_way);
        }
        assert_eq!(under_way.into_iter().collect::<Vec<_>>(), ["a::b"]);
    }

    #[test]
    fn the_command_line_is_checked() {
        for wrong in [&[][..], &["1"], &["soon", "true"]] {
            assert!(wrap(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(wrap(&["60", "true"]), Ok(()));
        assert!(wrap(&["60", "false"]).is_err());
    }
}
