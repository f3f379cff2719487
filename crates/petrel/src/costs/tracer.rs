//! Records the system calls of the private instance's workers and disk threads, by ptrace(2).
//!
//! A thread stops twice for each call, which takes some microseconds. That is why times of traced requests
//! are longer than they are without; the order of calls and stages is the same. The clock is read as soon as
//! a stop is known, and again nothing else happens to that thread before it goes on: so a call never seems to
//! reach over a stamp that the thread made before or after it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::clock;
use engine::ledger::Nanos;
use rustix::net::{SocketAddrAny, getpeername, getsockname};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use sys::ptrace::{self, Stop, SystemCallStop, Until};

use super::attribution::TracedCall;
use super::calls::{self, ActsOn, KnownCall};

/// A tracer of one process.
pub(super) struct CallTracer<'a> {
    process: i32,
    /// The threads that have begun a call.
    open: HashMap<i32, OpenCall>,
    calls: Vec<TracedCall>,
    /// Set when the calls of further requests are not wanted.
    is_over: &'a AtomicBool,
    /// The pipe of the reports, which are no calls of a server.
    hidden: String,
    descriptors: DescriptorNames,
}

/// A call that has not returned yet.
struct OpenCall {
    call: TracedCall,
    /// The descriptor that it acts on.
    descriptor: Option<u64>,
}

impl<'a> CallTracer<'a> {
    /// Begins to trace the threads of `process` that serve requests, and returns when each has stopped once
    /// and goes on. `hidden` is the name of a descriptor whose calls are left out.
    ///
    /// # Errors
    /// `PermissionDenied` if the kernel does not allow it.
    pub(super) fn begin(
        process: i32,
        listeners: Vec<String>,
        hidden: String,
        is_over: &'a AtomicBool,
    ) -> io::Result<CallTracer<'a>> {
        let mut tracer = CallTracer {
            process,
            open: HashMap::new(),
            calls: Vec::new(),
            is_over,
            hidden,
            descriptors: DescriptorNames {
                process,
                listeners,
                sockets: HashMap::new(),
            },
        };
        let mut waiting = Vec::new();
        for thread in threads(process)? {
            if thread != process && serves_requests(&thread_name(process, thread)) {
                if !is_there(ptrace::seize(thread))? {
                    continue;
                }
                // If it has ended since then, its end is reported, too.
                is_there(ptrace::interrupt(thread))?;
                waiting.push(thread);
            }
        }
        while !waiting.is_empty() {
            match ptrace::wait_for_group(process)? {
                Some((thread, stop)) => {
                    waiting.retain(|known| *known != thread);
                    tracer.act(thread, stop);
                }
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(tracer)
    }

    /// Traces until the process has ended. Returns its calls.
    pub(super) fn run(mut self) -> Vec<TracedCall> {
        while let Ok(Some((thread, stop))) = ptrace::wait_for_group(self.process) {
            self.act(thread, stop);
        }
        self.calls
    }

    fn act(&mut self, thread: i32, stop: Stop) {
        let time = clock::thread_now();
        let signal = match stop {
            Stop::Ended => {
                self.open.remove(&thread);
                return;
            }
            Stop::Signal(signal) => signal,
            Stop::Event => 0,
            Stop::SystemCall => {
                match ptrace::system_call(thread) {
                    Ok(SystemCallStop::Entry { number, arguments }) => {
                        self.enter(thread, number, arguments);
                    }
                    Ok(SystemCallStop::Exit { result }) => self.leave(thread, result, time),
                    // It was killed meanwhile.
                    Err(_) => {}
                }
                0
            }
        };
        let until = match self.is_over.load(Ordering::Relaxed) || self.calls.len() >= CALLS_MAX {
            true => Until::Event,
            false => Until::SystemCall,
        };
        // Fails if the thread was killed meanwhile; its end is reported, too.
        let _ = ptrace::resume(thread, until, signal);
    }

    fn enter(&mut self, thread: i32, number: u64, arguments: [u64; 6]) {
        let known = calls::known(number);
        let acts_on = known.map_or(ActsOn::Nothing, |call| call.acts_on);
        let object = match acts_on {
            ActsOn::Descriptor | ActsOn::Bytes => self.descriptors.name(arguments[0]),
            ActsOn::Path => self.path(arguments[0]),
            ActsOn::PathAt => self.path_at(arguments[0], arguments[1]),
            ActsOn::Nothing | ActsOn::Wait => String::new(),
        };
        let call = TracedCall {
            thread,
            name: known.map_or_else(
                || format!("call-{number}"),
                |call: &KnownCall| call.name.to_owned(),
            ),
            object,
            moves_bytes: acts_on == ActsOn::Bytes,
            is_wait: acts_on == ActsOn::Wait,
            result: 0,
            // After the look at its arguments, which takes longer than most calls.
            entered: clock::thread_now(),
            left: 0,
        };
        let descriptor = matches!(acts_on, ActsOn::Descriptor | ActsOn::Bytes);
        let descriptor = descriptor.then_some(arguments[0]);
        self.open.insert(thread, OpenCall { call, descriptor });
    }

    fn leave(&mut self, thread: i32, result: i64, time: Nanos) {
        // The call in which the thread was found when tracing began is missing here.
        let Some(OpenCall {
            mut call,
            descriptor,
        }) = self.open.remove(&thread)
        else {
            return;
        };
        if call.name == "connect"
            && let Some(descriptor) = descriptor
        {
            // Now the kernel knows to what.
            call.object = self.descriptors.name(descriptor);
        }
        if call.object != self.hidden {
            (call.result, call.left) = (result, time);
            self.calls.push(call);
        }
    }

    /// A path that counts from a directory. An empty one means the descriptor itself.
    fn path_at(&mut self, directory: u64, address: u64) -> String {
        let path = self.path(address);
        if path.starts_with('/') {
            return path;
        }
        // For the working directory (AT_FDCWD) it is empty.
        let base = self.descriptors.name(directory);
        match base.is_empty() || path.is_empty() {
            true => base + &path,
            false => format!("{base}/{path}"),
        }
    }

    /// The text at this address of the process.
    fn path(&self, address: u64) -> String {
        let mut bytes = [0; PATH_BYTES_MAX];
        let memory = File::open(format!("/proc/{}/mem", self.process));
        let read = memory.and_then(|memory| memory.read_at(&mut bytes, address));
        let bytes = bytes.get(..read.unwrap_or(0)).unwrap_or_default();
        let path = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(path).into_owned()
    }
}

/// Whether the thread that was asked for still is there. Disk threads end when they are idle.
fn is_there(asked: io::Result<()>) -> io::Result<bool> {
    match asked {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What descriptors of the process are.
struct DescriptorNames {
    process: i32,
    /// The addresses that the process listens on.
    listeners: Vec<String>,
    /// Sockets that were looked at, by the name that /proc gives them.
    sockets: HashMap<String, String>,
}

impl DescriptorNames {
    fn name(&mut self, descriptor: u64) -> String {
        // Registers are 64 bits wide, descriptors 32.
        let descriptor = descriptor as u32 as i32;
        let link = fs::read_link(format!("/proc/{}/fd/{descriptor}", self.process));
        let link = link.map_or_else(|_| String::new(), |link| link.display().to_string());
        if !link.starts_with("socket:") {
            return link.replace("anon_inode:", "");
        }
        if let Some(known) = self.sockets.get(&link) {
            return known.clone();
        }
        // Unconnected sockets are looked at again.
        match self.socket(descriptor) {
            Some(name) => {
                self.sockets.insert(link, name.clone());
                name
            }
            None => "socket".to_owned(),
        }
    }

    fn socket(&self, descriptor: i32) -> Option<String> {
        let process = pidfd_open(Pid::from_raw(self.process)?, PidfdFlags::empty()).ok()?;
        let socket = pidfd_getfd(process.as_fd(), descriptor, PidfdGetfdFlags::empty()).ok()?;
        let own = address(&getsockname(&socket).ok()?);
        let is_ours = own.as_ref().is_some_and(|own| self.listeners.contains(own));
        match getpeername(&socket) {
            Ok(_) if is_ours => Some("client".to_owned()),
            Ok(peer) => address(&peer?).or(Some("unix socket".to_owned())),
            Err(_) if is_ours => Some("listener".to_owned()),
            Err(_) => None,
        }
    }
}

/// An address as the configuration writes it.
fn address(address: &SocketAddrAny) -> Option<String> {
    if let Ok(address) = std::net::SocketAddr::try_from(address.clone()) {
        return Some(address.to_string());
    }
    let address = rustix::net::SocketAddrUnix::try_from(address.clone()).ok()?;
    Some(String::from_utf8_lossy(address.path_bytes()?).into_owned())
}

/// The threads of a process.
fn threads(process: i32) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(format!("/proc/{process}/task"))?;
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(entries.filter_map(number).collect())
}

/// The names of all threads of a process.
pub(super) fn thread_names(process: i32) -> HashMap<i32, String> {
    let threads = threads(process).unwrap_or_default().into_iter();
    threads
        .map(|thread| (thread, thread_name(process, thread)))
        .collect()
}

fn thread_name(process: i32, thread: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/task/{thread}/comm"));
    name.unwrap_or_default().trim_end().to_owned()
}

/// Whether a thread of this name works for requests, and not beside them.
pub(super) fn serves_requests(name: &str) -> bool {
    let beside = [
        "log",
        "lua-watchdog",
        "petrel-names",
        "petrel-health",
        "petrel-otel",
    ];
    !beside.contains(&name)
}

/// The most calls that are recorded.
const CALLS_MAX: usize = 100_000;
/// The most bytes of a path that are shown.
const PATH_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_ended_is_passed_over() {
        let ended = Err(io::Error::from_raw_os_error(nix::libc::ESRCH));
        assert!(matches!(is_there(ended), Ok(false)));
        let refused = Err(io::ErrorKind::PermissionDenied.into());
        assert!(is_there(refused).is_err() && is_there(Ok(())).is_ok_and(|there| there));
        assert!(!serves_requests("petrel-otel") && serves_requests("worker-0"));
    }
}
