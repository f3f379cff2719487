//! A running server: starts it, finds all of its processes, stops it.

use super::{Chosen, Site};
use crate::backend::Address;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A listening server. Dropping it ends all of its processes.
pub struct Running {
    child: Child,
}

/// A process, distinguishable from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks after boot.
    started: u64,
}

impl Running {
    /// Starts a server for a site.
    pub fn start(chosen: &Chosen, site: &Site<'_>) -> Result<Self, String> {
        let mut command = (chosen.peer.prepare)(&chosen.path, site)
            .map_err(|error| format!("cannot be started: {error}"))?;
        command.stdin(Stdio::null());
        let log = site.directory.join("output.log");
        Self::launch(&mut command, &log, &Address::Tcp(site.port))
    }

    /// Starts a program, whose standard input is already set, and waits until it accepts connections. The
    /// error contains its last output.
    pub fn launch(command: &mut Command, log: &Path, address: &Address) -> Result<Self, String> {
        let child = spawn(command, log).map_err(|error| format!("cannot be started: {error}"))?;
        let mut running = Self { child };
        running.wait_for(address).map_err(|why| {
            let words = fs::read_to_string(log).unwrap_or_default();
            let last: Vec<_> = words.lines().rev().take(3).collect();
            format!(
                "{why}: {}",
                last.into_iter().rev().collect::<Vec<_>>().join(" | ")
            )
        })?;
        Ok(running)
    }

    /// All processes of the server: the one that was started and its descendants, including those that
    /// outlive it.
    pub fn processes(&self) -> Vec<Process> {
        family(self.child.id() as i32, &all_processes())
    }

    fn wait_for(&mut self, address: &Address) -> Result<(), String> {
        let give_up = Instant::now() + START_TIME_MAX;
        while Instant::now() < give_up {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("ended at once ({status})"));
            }
            if address.answers() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(format!(
            "did not listen within {} s",
            START_TIME_MAX.as_secs()
        ))
    }

    /// SIGTERM to the started process, with time to pass it on; then SIGTERM to its descendants; then SIGKILL
    /// to what is left.
    fn stop(&mut self) {
        let processes = self.processes();
        signal(self.child.id() as i32, rustix::process::Signal::TERM);
        self.wait_for_the_end(&processes, PASS_ON_TIME);
        if !processes.first().is_some_and(Process::is_alive) {
            for left in processes.iter().filter(|process| process.is_alive()) {
                signal(left.pid, rustix::process::Signal::TERM);
            }
        }
        self.wait_for_the_end(&processes, STOP_TIME_MAX);
        for left in processes.iter().filter(|process| process.is_alive()) {
            signal(left.pid, rustix::process::Signal::KILL);
        }
        let _status = self.child.wait();
    }

    fn wait_for_the_end(&mut self, processes: &[Process], time_max: Duration) {
        let give_up = Instant::now() + time_max;
        while Instant::now() < give_up && processes.iter().any(Process::is_alive) {
            // Reaps it, so that it does not look alive.
            let _status = self.child.try_wait();
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Process {
    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.started == self.started && stat.state != 'Z')
    }

    /// For tests: a process that need not exist.
    #[cfg(test)]
    pub fn for_test(pid: i32) -> Self {
        Self { pid, started: 0 }
    }
}

/// What is read from `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `Z` and so on.
    pub state: char,
    /// Its parent's process id.
    pub parent: i32,
    /// The number of its process group.
    pub group: i32,
    /// User time in clock ticks, of all threads, including ended ones.
    pub user_ticks: u64,
    /// System time, the same.
    pub system_ticks: u64,
    /// When it started, in clock ticks after boot.
    pub started: u64,
}

impl Stat {
    /// The state of a process; `None` if it is gone.
    pub fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses proc_pid_stat(5): fields are counted from 1; the second is the name in parentheses, which may
    /// contain anything.
    fn parse(text: &str) -> Option<Self> {
        let after_name = &text[text.rfind(')')? + 1..];
        let fields: Vec<_> = after_name.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            state: field(3)?.chars().next()?,
            parent: field(4)?.parse().ok()?,
            group: field(5)?.parse().ok()?,
            user_ticks: field(14)?.parse().ok()?,
            system_ticks: field(15)?.parse().ok()?,
            started: field(22)?.parse().ok()?,
        })
    }
}

/// In a process group of its own, because lighttpd forwards signals to its whole group.
fn spawn(command: &mut Command, log: &Path) -> io::Result<Child> {
    use std::os::unix::process::CommandExt as _;
    let log = File::create(log)?;
    command.process_group(0);
    command.stdout(log.try_clone()?).stderr(log).spawn()
}

fn signal(pid: i32, signal: rustix::process::Signal) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        // It may have ended meanwhile.
        let _gone = rustix::process::kill_process(pid, signal);
    }
}

fn all_processes() -> HashMap<i32, Stat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter_map(|pid| Some((pid, Stat::of(pid)?)))
        .collect()
}

/// The process that leads a group, the rest of the group, and the descendants of all of them.
fn family(root: i32, all: &HashMap<i32, Stat>) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let in_group = all.iter().filter(|(_, stat)| stat.group == root);
    let mut open: Vec<_> = in_group.map(|(pid, _)| *pid).collect();
    open.push(root);
    while let Some(pid) = open.pop() {
        let Some(stat) = all.get(&pid) else { continue };
        let process = Process {
            pid,
            started: stat.started,
        };
        if found.contains(&process) {
            continue;
        }
        found.push(process);
        open.extend(
            all.iter()
                .filter(|(_, other)| other.parent == pid)
                .map(|(child, _)| *child),
        );
    }
    found
}

/// Caddy and Apache take a second on a busy machine.
const START_TIME_MAX: Duration = Duration::from_secs(10);
const STOP_TIME_MAX: Duration = Duration::from_secs(5);
/// A server that still has processes after this time waits for their connections to end, or has forgotten
/// them.
const PASS_ON_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name() {
        let line = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 11 22 33 44 20 0 1 0 555 6 7\n";
        let stat = Stat {
            state: 'S',
            parent: 7,
            group: 42,
            user_ticks: 11,
            system_ticks: 22,
            started: 555,
        };
        assert_eq!(Stat::parse(line), Some(stat));
        assert_eq!(Stat::parse("42 (x) S 7"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn descendants_are_found_over_generations() {
        let stat = |parent| Stat {
            state: 'S',
            parent,
            group: 1,
            user_ticks: 0,
            system_ticks: 0,
            started: 9,
        };
        let all = HashMap::from([(10, stat(1)), (11, stat(10)), (12, stat(11)), (13, stat(1))]);
        let mut pids: Vec<_> = family(10, &all).iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [10, 11, 12]);
    }

    #[test]
    fn orphans_are_found_by_their_group() {
        let stat = |group| Stat {
            state: 'S',
            parent: 1,
            group,
            user_ticks: 0,
            system_ticks: 0,
            started: 9,
        };
        let all = HashMap::from([(11, stat(10)), (12, stat(13))]);
        let orphans: Vec<_> = family(10, &all).iter().map(|one| one.pid).collect();
        assert_eq!(orphans, [11]);
    }

    #[test]
    fn a_process_that_ended_is_not_alive() {
        let mut child = Command::new("true").spawn().unwrap();
        let all = all_processes();
        let process = family(child.id() as i32, &all)[0];
        child.wait().unwrap();
        assert!(!process.is_alive());
    }
}
