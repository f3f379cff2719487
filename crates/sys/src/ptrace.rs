//! ptrace(2): stops the threads of another process at their system calls.
//!
//! All calls about one process must come from the thread that seized it: the kernel refuses others. Signals
//! are plain numbers here, because a real-time signal must be passed on as well.

use std::io;
use std::ptr;

/// Why a thread has stopped, or that it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It enters or leaves a system call: [`system_call`] says which.
    SystemCall,
    /// A signal is about to be delivered. [`resume`] must pass it on.
    Signal(i32),
    /// The tracer wanted it to stop, it is new, or it has started another thread.
    Event,
    /// It has ended. There is nothing to resume.
    Ended,
}

/// Until when a thread runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The next beginning or end of a system call.
    SystemCall,
    /// The next signal or event.
    Event,
}

/// Where in a system call a thread has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemCallStop {
    /// Before the kernel does it.
    Entry {
        /// The number of the call on this architecture.
        number: u64,
        /// Its arguments, as registers.
        arguments: [u64; 6],
    },
    /// After the kernel has done it.
    Exit {
        /// What it returns; negative: the error's number.
        result: i64,
    },
}

/// Begins to trace one thread without stopping it. Threads that it starts are traced as well. All of them are
/// killed when this process ends.
///
/// # Errors
/// `PermissionDenied` if the kernel does not allow tracing: Yama's ptrace_scope, a container's seccomp filter,
/// or a process of another user.
pub fn seize(thread: i32) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SEIZE, thread, options as usize)
}

/// Makes a traced thread stop, also inside a system call that waits, which the kernel then begins again or
/// ends with EINTR.
///
/// # Errors
/// The thread is not traced, or has ended.
pub fn interrupt(thread: i32) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, thread, 0)
}

/// Lets a stopped thread run, and delivers `signal` to it unless that is 0.
///
/// # Errors
/// The thread is not stopped, or was killed.
pub fn resume(thread: i32, until: Until, signal: i32) -> io::Result<()> {
    let how = match until {
        Until::SystemCall => libc::PTRACE_SYSCALL,
        Until::Event => libc::PTRACE_CONT,
    };
    request(how, thread, usize::try_from(signal).unwrap_or(0))
}

fn request(what: libc::c_uint, thread: i32, data: usize) -> io::Result<()> {
    // SAFETY: these requests take numbers alone: the kernel reads and writes no memory of this process. They
    // act on another process: the kernel refuses threads of the caller's own.
    let result = unsafe { libc::ptrace(what, thread, ptr::null_mut::<libc::c_void>(), data) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// What a thread that has stopped for [`Stop::SystemCall`] is about to do, or has done.
///
/// # Errors
/// The thread was killed meanwhile; `InvalidData` if it has stopped for another reason.
pub fn system_call(thread: i32) -> io::Result<SystemCallStop> {
    // SAFETY: the struct holds numbers alone, for which zeros are a value.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let length = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes at most `length` bytes to the place that the pointer points to, which has that
    // size, and keeps no pointer after the call.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_GET_SYSCALL_INFO,
            thread,
            length,
            (&raw mut info).cast::<libc::c_void>(),
        )
    };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    match info.op {
        libc::PTRACE_SYSCALL_INFO_ENTRY => {
            // SAFETY: `op` says that the kernel has written this variant.
            let entry = unsafe { info.u.entry };
            Ok(SystemCallStop::Entry {
                number: entry.nr,
                arguments: entry.args,
            })
        }
        libc::PTRACE_SYSCALL_INFO_EXIT => {
            // SAFETY: `op` says that the kernel has written this variant.
            let exit = unsafe { info.u.exit };
            Ok(SystemCallStop::Exit { result: exit.sval })
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Waits until a thread of the process group that `leader` leads stops or ends. Returns the thread; `None` if
/// no process of the group is left.
///
/// # Errors
/// Those of waitpid(2); `InvalidInput` for a number that would mean other processes.
pub fn wait_for_group(leader: i32) -> io::Result<Option<(i32, Stop)>> {
    if leader <= 1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut status = 0;
    loop {
        // SAFETY: the kernel writes an int to the place that the pointer points to, and keeps no pointer after
        // the call.
        let thread = unsafe { libc::waitpid(-leader, &raw mut status, libc::__WALL) };
        match thread {
            -1 => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EINTR) => {}
                error if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
                error => return Err(error),
            },
            thread => return Ok(Some((thread, stop_of(status)))),
        }
    }
}

fn stop_of(status: libc::c_int) -> Stop {
    if !libc::WIFSTOPPED(status) {
        return Stop::Ended;
    }
    let signal = libc::WSTOPSIG(status);
    if signal == libc::SIGTRAP | SYSTEM_CALL_MARK {
        Stop::SystemCall
    } else if status >> 16 != 0 {
        Stop::Event
    } else {
        Stop::Signal(signal)
    }
}

/// What PTRACE_O_TRACESYSGOOD adds to the signal of a stop at a system call.
const SYSTEM_CALL_MARK: libc::c_int = 0x80;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn the_calls_of_a_child_are_seen_to_its_end() {
        // It waits in read(2) until it is traced.
        let mut child = Command::new("/bin/cat")
            .process_group(0)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("cat is always there");
        let leader = child.id() as i32;
        match seize(leader) {
            // A container that forbids it. `petrel costs` says so.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                drop(child.stdin.take());
                child.wait().expect("its input has ended");
                return;
            }
            seized => seized.expect("our own child"),
        }
        interrupt(leader).expect("it is traced");
        let mut input = child.stdin.take();
        let (mut read, mut results, mut entries) = (0, Vec::new(), 0);
        while let Some((thread, stop)) = wait_for_group(leader).expect("it is our child") {
            let signal = match stop {
                Stop::Ended => continue,
                Stop::Signal(signal) => signal,
                Stop::Event => {
                    if let Some(mut input) = input.take() {
                        io::Write::write_all(&mut input, b"hello").expect("a pipe");
                    }
                    0
                }
                Stop::SystemCall => {
                    match system_call(thread).expect("it has stopped") {
                        SystemCallStop::Entry { number, arguments } => {
                            entries += 1;
                            if number == libc::SYS_read as u64 && arguments[0] == 0 {
                                read += 1;
                            }
                        }
                        SystemCallStop::Exit { result } => results.push(result),
                    }
                    0
                }
            };
            resume(thread, Until::SystemCall, signal).expect("it has stopped");
        }
        // It was waited for above.
        assert!(child.wait().is_err(), "it was waited for with its group");
        assert!(read >= 1 && entries >= 2, "{read} of {entries}");
        // Five bytes were read and written.
        assert!(
            results.iter().filter(|result| **result == 5).count() >= 1,
            "{results:?}"
        );
    }

    #[test]
    fn states_are_told_apart() {
        assert_eq!(stop_of(0), Stop::Ended);
        assert_eq!(stop_of(9), Stop::Ended);
        assert_eq!(
            stop_of((libc::SIGTRAP | 0x80) << 8 | 0x7f),
            Stop::SystemCall
        );
        assert_eq!(stop_of(40 << 8 | 0x7f), Stop::Signal(40));
        assert_eq!(stop_of(3 << 16 | libc::SIGTRAP << 8 | 0x7f), Stop::Event);
        assert!(wait_for_group(1).is_err() && wait_for_group(-1).is_err());
    }
}
