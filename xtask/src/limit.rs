//! Commands with a time limit.
//!
//! A command that exceeds its limit is ended together with every process that it has started, daemons and
//! process groups of their own included: all of them have inherited a mark in their environment, or descend
//! from a process that has. Each process gets SIGTERM first, so that it can unmount what it has mounted, and
//! SIGKILL soon after.
//!
//! `xtask limited SECONDS PROGRAM [ARGUMENT]...` is the same as a command line: cargo runs each test program by it
//! ([`wrap`]).

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Which output of a command is read. The other one goes to the terminal.
#[derive(Clone, Copy, Debug)]
pub enum Reads {
    /// Standard output.
    Output,
    /// Standard error.
    Errors,
}

/// The beginning of a line that says that a command was ended. The summary repeats such lines.
pub const ENDED: &str = "ENDED ";

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// How long to wait for the end of the output after the command has ended. A process that it left behind may
/// hold the output open for ever.
const LINGER: Duration = Duration::from_secs(5);

/// Time between two looks whether the command has ended.
const TICK: Duration = Duration::from_millis(20);

/// Runs a command for `limit` at most. Messages call it `name`; each line that it prints goes to `each`.
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
    // Reap it, unless it has survived even SIGKILL.
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

/// `xtask limited SECONDS [--except NAME,...] PROGRAM [ARGUMENT]...`: runs a test program, with the time of each test.
/// When it has to end the program, it names the tests that were running. Programs that are called so, but for the
/// number that cargo adds, are not run.
///
/// # Errors
/// As [`run`], or when the command line is wrong.
pub fn wrap(arguments: &[&str]) -> Result<(), String> {
    let [seconds, arguments @ ..] = arguments else {
        return Err(USAGE.to_owned());
    };
    let seconds = seconds.parse().map_err(|_| "not a number of seconds")?;
    let (except, arguments) = match arguments {
        ["--except", names, arguments @ ..] => (*names, arguments),
        arguments => ("", arguments),
    };
    let [program, arguments @ ..] = arguments else {
        return Err(USAGE.to_owned());
    };
    if is_excepted(program, except) {
        return Ok(());
    }
    let mut under_way = BTreeSet::new();
    let begin = Instant::now();
    let limit = Duration::from_secs(seconds);
    let name = Path::new(program).file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    let mut command =
        match counts_exactly(program) && alone("true").status().is_ok_and(|done| done.success()) {
            // Other tests mount file systems. A server notices that, and asks anew for what it knows of files.
            true => alone(program),
            false => Command::new(program),
        };
    command.args(arguments).args(REPORT_TIMES);
    command.env(ALLOW_UNSTABLE.0, ALLOW_UNSTABLE.1);
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

/// Whether cargo's `program` has one of the names in `except`.
fn is_excepted(program: &str, except: &str) -> bool {
    except
        .split(',')
        .any(|excepted| is_called(program, excepted))
}

/// Runs `program` where it sees no mounts of others, if this process may do so.
fn alone(program: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", program]);
    command
}

/// Whether cargo's `program` is that of the tests that count system calls.
fn counts_exactly(program: &str) -> bool {
    is_called(program, "exact")
}

/// Whether cargo's `program` has this name, but for the number that cargo adds.
fn is_called(program: &str, name: &str) -> bool {
    let file = Path::new(program).file_name().unwrap_or_default();
    let file = file.to_string_lossy();
    file.rsplit_once('-')
        .is_some_and(|(before, _)| before == name)
}

const USAGE: &str = "`limited` takes a number of seconds and a program";

/// Rust's test programs say how long each test took, but have not promised to go on doing so.
const REPORT_TIMES: &[&str] = &["-Zunstable-options", "--report-time"];
const ALLOW_UNSTABLE: (&str, &str) = ("RUSTC_BOOTSTRAP", "1");

/// The names of tests that run for long and have not ended, read from what Rust's test programs print.
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

/// Passes lines on until the command ends. `None`: it has taken longer than `limit`.
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

/// The lines of a piped output. A thread reads them, because a blocking read cannot be given up.
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

/// The mark of the processes that a command starts: an environment variable with a value that is used once.
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

    /// Sends SIGTERM to all marked processes, and SIGKILL to those that are still there after `grace`.
    fn end(&self, grace: Duration) {
        signal("TERM", &self.processes());
        let deadline = Instant::now() + grace;
        while !self.processes().is_empty() && Instant::now() < deadline {
            thread::sleep(TICK);
        }
        // More than once: a process may start another one between the listing and the kill.
        for _ in 0..10 {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            signal("KILL", &left);
            thread::sleep(TICK);
        }
    }

    /// Processes that have the mark, and their descendants, without this process and without zombies.
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

/// A process, as /proc shows it.
struct Process {
    pid: u32,
    parent: u32,
}

impl Process {
    /// `None` if it has ended, zombies included.
    fn of(pid: u32) -> Option<Process> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The name stands in parentheses and may contain parentheses.
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

/// Sends a signal by the shell's `kill`, because std has no call for it. Processes that have ended meanwhile
/// do not matter.
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

    /// It takes the five seconds of its limit.
    #[test]
    fn what_takes_too_long_is_ended_with_all_that_it_has_started() {
        // A child; a process in a session of its own, whose parent has ended; and one without the mark.
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

    /// It takes the five seconds for which the output may stay open.
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
        let except = ["60", "--except", "a,b", "/deps/b-0a1b", "1"];
        for wrong in [&[][..], &["1"], &["soon", "true"], &except[..3]] {
            assert!(wrap(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(wrap(&["60", "true"]), Ok(()));
        assert!(wrap(&["60", "false"]).is_err());
        assert_eq!(wrap(&except), Ok(()));
        for program in ["/deps/b_c-0a1b", "/deps/b", "b-c-1"] {
            assert!(!is_excepted(program, "a,b"), "{program}");
        }
    }
}
