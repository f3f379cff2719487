//! Counts the server's system calls, by strace.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::server::Server;
use crate::tree::Tree;
use crate::{PATIENCE, eventually};

/// How often each system call was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls(pub BTreeMap<String, u64>);

/// strace, attached to all threads of the server process.
#[derive(Debug)]
pub struct Tracer {
    child: Child,
    /// The process id, which is also the id of its first thread.
    pid: u32,
    /// Where strace writes. It is not in the server's tree, where the server would notice.
    files: Tree,
}

impl Tracer {
    /// Attaches to the server, and returns when strace is attached.
    ///
    /// # Panics
    /// strace is missing or may not trace; the tests that count cannot do without.
    pub fn attach(server: &Server) -> Tracer {
        // The server logs about itself some fiftieths of a second after its start, and about its document
        // root after a disk thread has looked at it. These calls must not be counted.
        server.expect_log("files: ");
        std::thread::sleep(Duration::from_millis(300));
        Tracer::attach_to(server.processes().busiest())
    }

    /// Attaches to all threads of another process, and returns when strace is attached.
    ///
    /// # Panics
    /// strace is missing or may not trace.
    pub fn attach_to(pid: u32) -> Tracer {
        let files = Tree::new();
        let child = Command::new("strace")
            .args(["-f", "-y", "-p", &pid.to_string(), "-o"])
            .arg(files.path("calls"))
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(files.path("said")).expect("a file"))
            .spawn()
            .expect("strace is installed; `cargo xtask test` installs what tests need");
        let tracer = Tracer { child, pid, files };
        let attached = eventually(|| tracer.said().contains("attached"));
        assert!(attached, "strace cannot attach: {}", tracer.said());
        tracer
    }

    /// Detaches. Returns the calls since [`Tracer::attach`].
    pub fn stop(mut self) -> Calls {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("strace is running");
        let begin = std::time::Instant::now();
        while self.child.try_wait().expect("it is our child").is_none() {
            assert!(begin.elapsed() < PATIENCE, "strace does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        Calls::parse(&self.files.text("calls"), self.pid)
    }

    fn said(&self) -> String {
        self.files.text("said")
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            // SIGTERM makes strace detach; SIGKILL would leave the server stopped.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

impl Calls {
    /// How often `name` was called.
    pub fn count(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// All calls except waiting for events, and being woken for what the server does once a second.
    pub fn without_waits(&self) -> Calls {
        let is_wait = |name: &str, count: u64| {
            (name.starts_with("epoll_") && name != "epoll_ctl")
                || (name == WAKE_UP && count <= WAKE_UPS_MAX)
        };
        let calls = self
            .0
            .iter()
            .filter(|(name, count)| !is_wait(name, **count));
        Calls(calls.map(|(name, count)| (name.clone(), *count)).collect())
    }

    /// Parses lines of the form `PID name(arguments) = result`. A call that another thread's call interrupts
    /// is begun on one line and `<... name resumed>` on another. The first lines of a thread may be the call
    /// in which strace found it waiting, even more than once. Descriptors are followed by what they are, in
    /// `<>`. The server's first thread, which waits for orders and wakes up once a second, is not counted,
    /// since it serves no clients. Neither is a thread that ends meanwhile: a pool thread that had nothing to
    /// do for a while.
    fn parse(trace: &str, first_thread: u32) -> Calls {
        let first_thread = first_thread.to_string();
        let mut calls = BTreeMap::new();
        let mut found_in = BTreeMap::new();
        let lines = || trace.lines().filter_map(|line| line.split_once(' '));
        let has_ended = |(_, event): &(&str, &str)| event.trim_start().starts_with("+++ exited");
        let ended: BTreeSet<&str> = lines()
            .filter(has_ended)
            .map(|(thread, _)| thread)
            .collect();
        for (thread, call) in lines() {
            let Some((name, _)) = call.trim_start().split_once('(') else {
                continue;
            };
            if thread == first_thread || ended.contains(thread) {
                continue;
            }
            let name = match name == "write" && call.contains("<anon_inode:[eventfd]>") {
                true => WAKE_UP,
                false => name,
            };
            let found = *found_in.entry(thread).or_insert(name);
            if found == name && FOUND_WAITING.contains(&name) {
                continue;
            }
            // The thread works, and its calls count from now on.
            found_in.insert(thread, "");
            // An event of a directory above the tests' files, such as /tmp, which other programs change.
            if name == "read" && call.contains("<anon_inode:inotify>") {
                continue;
            }
            if name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
            {
                *calls.entry(name.to_owned()).or_default() += 1;
            }
        }
        Calls(calls)
    }
}

/// The name under which a write(2) that wakes a thread is counted.
const WAKE_UP: &str = "wake-up";

/// Two workers for half a minute. A server that wakes a worker for each request does so more often.
const WAKE_UPS_MAX: u64 = 60;

/// The calls in which an idle thread may wait.
const FOUND_WAITING: [&str; 6] = [
    "epoll_wait",
    "epoll_pwait",
    "futex",
    "ppoll",
    "recvmsg",
    "restart_syscall",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_once() {
        let trace = "11 recvmsg(4) = -1 EAGAIN\n11 write(5) = 8\n12 futex(3) = ? ERESTARTSYS\n12 futex(3) = 0\n\
                     12 write(5<anon_inode:[eventfd]>, 1) = 8\n12 epoll_wait(3,  <unfinished ...>\n13 recvfrom(9, \"GET (x)\") = 7\n\
                     12 <... epoll_wait resumed>[]) = 0\n14 munmap(0x7f, 4096) = 0\n14 +++ exited with 0 +++\n\
                     13 --- SIGINT {si_signo=SIGINT} ---\n";
        let calls = Calls::parse(trace, 11);
        assert_eq!((calls.count("epoll_wait"), calls.count("recvfrom")), (1, 1));
        assert_eq!(calls.0.len(), 3);
        assert_eq!(calls.without_waits().0.len(), 1);
    }
}
