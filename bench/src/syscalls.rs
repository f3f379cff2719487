//! Counts a server's system calls by name, in a separate run, because counting slows the server.
//!
//! `perf stat` counts the kernel's tracepoints and disturbs least. If it is not allowed to (no tracefs, no
//! permission), `strace -c` is used: it stops the server twice per call, so that more requests queue up
//! meanwhile, and the server waits less often per request than it would. The report says which one was used.

use crate::peers::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Calls by name.
pub type Counts = BTreeMap<String, u64>;

/// The program that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tracer {
    /// `perf stat`.
    Perf,
    /// `strace -c`.
    Strace,
}

/// A tracer attached to a server. Dropping it detaches.
pub struct Counting {
    tracer: Tracer,
    child: Child,
    output: PathBuf,
}

impl Counting {
    /// Attaches to `processes`. The tracer's files go to `directory`.
    pub fn start(processes: &[Process], directory: &Path) -> Result<Self, String> {
        Self::perf(processes, directory).or_else(|perf| {
            Self::strace(processes, &["-f", "-q", "-c"], directory)
                .map_err(|strace| format!("{perf}; {strace}"))
        })
    }

    /// The program that counts.
    pub fn tracer(&self) -> Tracer {
        self.tracer
    }

    /// Detaches. Returns the calls since the start.
    pub fn finish(self) -> Result<Counts, String> {
        let tracer = self.tracer;
        let text = self.output()?;
        Ok(match tracer {
            Tracer::Perf => parse_perf(&text),
            Tracer::Strace => parse_strace(&text),
        })
    }

    /// Detaches. Returns what the tracer has written.
    fn output(mut self) -> Result<String, String> {
        interrupt(&self.child);
        self.child
            .wait()
            .map_err(|error| format!("{:?}: {error}", self.tracer))?;
        fs::read_to_string(&self.output).map_err(|error| error.to_string())
    }

    /// Starts with counters off and switches them on through a fifo: perf's acknowledgement is the only sign
    /// that it has attached.
    fn perf(processes: &[Process], directory: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("perf stat: {error}");
        let output = directory.join("perf.csv");
        let control = Fifo::make(&directory.join("perf.control")).map_err(failed)?;
        let answer = Fifo::make(&directory.join("perf.answer")).map_err(failed)?;
        let fifos = format!("fifo:{},{}", control.path.display(), answer.path.display());
        let mut command = Command::new("perf");
        command.args([
            "stat",
            "--field-separator",
            ",",
            "--delay",
            "-1",
            "--control",
            &fifos,
        ]);
        command.args(["--event", &perf_events(), "--pid", &join(processes, ",")]);
        command.arg("--output").arg(&output);
        let child = quiet(command).map_err(failed)?;
        let mut counting = Self {
            tracer: Tracer::Perf,
            child,
            output,
        };
        (&control.file).write_all(b"enable\n").map_err(failed)?;
        let attached = || answer.has_words();
        counting
            .wait_for(attached)
            .map_err(|why| format!("perf stat {why}"))?;
        Ok(counting)
    }

    fn strace(processes: &[Process], options: &[&str], directory: &Path) -> Result<Self, String> {
        let output = directory.join("strace.txt");
        let mut command = Command::new("strace");
        command
            .args(options)
            .args(["-p", &join(processes, ",")])
            .arg("-o")
            .arg(&output);
        let child = quiet(command).map_err(|error| format!("strace: {error}"))?;
        let mut counting = Self {
            tracer: Tracer::Strace,
            child,
            output,
        };
        let attached = || processes.iter().all(|process| is_traced(process.pid));
        counting
            .wait_for(attached)
            .map_err(|why| format!("strace {why}"))?;
        Ok(counting)
    }

    fn wait_for(&mut self, attached: impl Fn() -> bool) -> Result<(), String> {
        let give_up = Instant::now() + ATTACH_TIME_MAX;
        while Instant::now() < give_up {
            if attached() {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("ended ({status})"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err("did not attach".to_owned())
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            interrupt(&self.child);
            let _status = self.child.wait();
        }
    }
}

/// strace attached to processes, listing their calls in order. Dropping it detaches.
pub struct Tracing(Counting);

impl Tracing {
    /// Attaches to `processes`. The tracer's files go to `directory`.
    pub fn start(processes: &[Process], directory: &Path) -> Result<Self, String> {
        let options = ["-f", "-q", "-ttt", "-s", "24", "-e", "signal=none"];
        Counting::strace(processes, &options, directory).map(Self)
    }

    /// Detaches. Returns a line per call.
    pub fn finish(self) -> Result<String, String> {
        self.0.output()
    }
}

/// A named pipe, open in both directions so that neither side waits for the other.
struct Fifo {
    path: PathBuf,
    file: File,
}

impl Fifo {
    fn make(path: &Path) -> io::Result<Self> {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let _absent = fs::remove_file(path);
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Reads what was written to it. Returns whether there was anything.
    fn has_words(&self) -> bool {
        let mut poll = [PollFd::new(&self.file, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let ready = rustix::event::poll(&mut poll, Some(&at_once)).is_ok_and(|ready| ready > 0);
        ready && (&self.file).read(&mut [0; 64]).is_ok_and(|count| count > 0)
    }
}

fn quiet(mut command: Command) -> io::Result<Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// Both tracers write their counts on SIGINT.
fn interrupt(child: &Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::INT);
    }
}

fn join(processes: &[Process], separator: &str) -> String {
    processes
        .iter()
        .map(|process| process.pid.to_string())
        .collect::<Vec<_>>()
        .join(separator)
}

/// Whether every thread of a process has a tracer.
fn is_traced(pid: i32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let statuses = tasks.map(|task| fs::read_to_string(task.path().join("status")));
    let traced = |status: &str| {
        let tracer = status
            .lines()
            .find_map(|line| line.strip_prefix("TracerPid:"));
        tracer.is_some_and(|pid| pid.trim() != "0")
    };
    statuses.flatten().all(|status| traced(&status))
}

fn perf_events() -> String {
    let named = CALLS
        .iter()
        .map(|name| format!("syscalls:sys_enter_{name}"));
    std::iter::once(ALL.to_owned())
        .chain(named)
        .collect::<Vec<_>>()
        .join(",")
}

/// Parses lines of `perf stat -x,`: `12,,syscalls:sys_enter_read,...`. Calls that are in the total but under
/// none of the names are `other`.
fn parse_perf(text: &str) -> Counts {
    let mut counts = Counts::new();
    let mut total = 0;
    for line in text.lines() {
        let mut fields = line.split(',');
        let (Some(count), Some(event)) = (fields.next(), fields.nth(1)) else {
            continue;
        };
        let count: u64 = count.parse().unwrap_or(0);
        if event == ALL {
            total = count;
        } else if let Some(name) = event.strip_prefix("syscalls:sys_enter_") {
            counts.insert(short(name).to_owned(), count);
        }
    }
    counts.insert("other".to_owned(), total - total.min(counts.values().sum()));
    counts.retain(|_, count| *count > 0);
    counts
}

/// Parses lines of `strace -c`: share, seconds, µs per call, calls, perhaps errors, name.
fn parse_strace(text: &str) -> Counts {
    let mut counts = Counts::new();
    for line in text.lines() {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (Some(share), Some(calls), Some(name)) = (fields.first(), fields.get(3), fields.last())
        else {
            continue;
        };
        if let (Ok(_), Ok(calls), false) = (share.parse::<f64>(), calls.parse(), *name == "total") {
            counts.insert(short(name).to_owned(), calls);
        }
    }
    counts
}

/// The usual names: the kernel says `newfstat` for fstat and `sendfile64` for sendfile.
fn short(name: &str) -> &str {
    match name {
        "newfstat" => "fstat",
        "newstat" => "stat",
        "newlstat" => "lstat",
        "sendfile64" => "sendfile",
        other => other,
    }
}

/// All system calls together.
const ALL: &str = "raw_syscalls:sys_enter";
/// Calls that servers make often. Not all of the kernel's 350, because each is one more counter in every
/// thread, and takes the kernel tens of milliseconds to release.
const CALLS: &[&str] = &[
    "accept4",
    "close",
    "connect",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_wait",
    "fcntl",
    "futex",
    "getsockname",
    "getsockopt",
    "io_uring_enter",
    "ioctl",
    "mmap",
    "munmap",
    "nanosleep",
    "newfstat",
    "newfstatat",
    "openat",
    "openat2",
    "pread64",
    "preadv2",
    "pwrite64",
    "read",
    "readv",
    "recvfrom",
    "recvmsg",
    "sendfile64",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
    "socket",
    "splice",
    "statx",
    "write",
    "writev",
];
/// A tracer that has not attached by then never will.
const ATTACH_TIME_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perfs_lines_are_read_and_the_rest_is_other() {
        let text = "# started on a day\n\n50,,raw_syscalls:sys_enter,1,100.00,,\n\
                    30,,syscalls:sys_enter_recvfrom,1,100.00,,\n\
                    15,,syscalls:sys_enter_sendfile64,1,100.00,,\n\
                    <not counted>,,syscalls:sys_enter_poll,0,100.00,,\n";
        let expected = [("other", 5), ("recvfrom", 30), ("sendfile", 15)];
        assert_eq!(
            parse_perf(text),
            expected.map(|(name, n)| (name.to_owned(), n)).into()
        );
    }

    #[test]
    fn straces_table_is_read() {
        let text = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000600           6       100           sendto
 40.00    0.000400           4        90        12 recvfrom
------ ----------- ----------- --------- --------- ----------------
100.00    0.001000           5       190        12 total
";
        let expected = [("recvfrom", 90), ("sendto", 100)];
        assert_eq!(
            parse_strace(text),
            expected.map(|(name, n)| (name.to_owned(), n)).into()
        );
    }
}
