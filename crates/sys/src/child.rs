//! What a process changes before it executes another program, and how to signal a group of such programs.

use std::fs;
use std::io;

/// Marks every descriptor from `first` on as close-on-exec. Otherwise descriptors that this process has
/// inherited without the mark would be inherited by every program that it starts.
///
/// # Errors
/// Those of close_range(2). Before Linux 5.11, /proc is read instead and must exist.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: with CLOSE_RANGE_CLOEXEC the call closes nothing. It sets a flag that has no effect on how this
    // process uses a descriptor. It takes no pointer.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            libc::c_long::from(first),
            libc::c_long::from(u32::MAX),
            libc::c_long::from(libc::CLOSE_RANGE_CLOEXEC),
        )
    };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) => {
            mark_one_by_one(first)
        }
        error => Err(error),
    }
}

fn mark_one_by_one(first: u32) -> io::Result<()> {
    for entry in fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse::<u32>().ok());
        let Some(number) = number.filter(|number| *number >= first) else {
            continue;
        };
        // SAFETY: F_SETFD sets a flag that has no effect on how this process uses a descriptor, and takes no
        // pointer. A number that is not open any more causes an error, which is ignored.
        unsafe { libc::fcntl(number.cast_signed(), libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// Gives every signal its default action. Programs would inherit ignored signals by exec, and do not expect
/// SIGHUP or SIGPIPE to be ignored.
pub fn default_signals() {
    for signal in 1..=SIGNAL_MAX {
        // SAFETY: SIG_DFL installs no code of this program that could run at a bad moment. Signals that
        // cannot be changed (SIGKILL, SIGSTOP, those of the C library) are refused with an error.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Sends `signal` to the process group that `leader` leads. Real-time signals work, too.
///
/// # Errors
/// Those of kill(2); `InvalidInput` for a number that would mean other processes.
pub fn signal_group(leader: i32, signal: i32) -> io::Result<()> {
    if leader <= 1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the call takes two numbers and touches no memory of this process.
    match unsafe { libc::kill(-leader, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The highest signal number of Linux.
const SIGNAL_MAX: libc::c_int = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn is_marked(descriptor: i32) -> bool {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).expect("open");
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = i64::from_str_radix(flags.expect("always told").trim(), 8).expect("octal");
        flags & i64::from(libc::O_CLOEXEC) != 0
    }

    #[test]
    fn descriptors_are_marked_from_the_first_one_on() {
        type Mark = fn(u32) -> io::Result<()>;
        for mark in [close_on_exec_from as Mark, mark_one_by_one] {
            // SAFETY: dup only makes another number for an open descriptor; it is closed below.
            let plain = unsafe { libc::dup(2) };
            assert!(!is_marked(plain));
            mark(plain.cast_unsigned() + 1).expect("marked");
            assert!(!is_marked(plain), "it is before the first one");
            mark(3).expect("marked");
            assert!(is_marked(plain));
            // SAFETY: only this test knows the number.
            unsafe { libc::close(plain) };
        }
        let file = fs::File::open("/dev/null").expect("always there");
        assert!(is_marked(file.as_raw_fd()), "the standard library marks");
    }

    #[test]
    fn only_groups_are_signalled() {
        for leader in [1, 0, -1] {
            let error = signal_group(leader, 0).expect_err("no group of a child");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        let error = signal_group(i32::MAX, 0).expect_err("no such process");
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }
}
