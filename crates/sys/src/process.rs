//! fork(2) for a process that has one thread.

use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

/// Which of the two processes this is.
#[derive(Debug)]
pub enum Forked {
    /// The old process; the id is that of the new one.
    Parent(i32),
    /// The new process.
    Child,
}

/// Splits the process in two.
///
/// # Errors
/// `Unsupported` when the process has more than one thread, or /proc, which tells, is not there;
/// else those of fork(2).
pub fn fork() -> io::Result<Forked> {
    make_sure_of_one_thread()?;
    // SAFETY: what makes fork dangerous is other threads: they are missing in the child, where
    // locks they held stay locked. There is exactly one thread, the one that runs this function
    // (it was counted just now), and only this one could have started another since.
    let id = unsafe { libc::fork() };
    match id {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        id => Ok(Forked::Parent(id)),
    }
}

/// A thread that was joined may still be counted for a moment, so a second one is looked at more than once.
fn make_sure_of_one_thread() -> io::Result<()> {
    for _ in 0..LOOKS {
        if threads()? == 1 {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    Err(refused("the process has more than one thread"))
}

/// The kernel's own count. Listing /proc/self/task is no count: the list ends early where a thread
/// ends while it is read.
fn threads() -> io::Result<u32> {
    let status = fs::read_to_string("/proc/self/status")
        .map_err(|error| refused(&format!("/proc/self/status cannot be read: {error}")))?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Threads:"))
        .and_then(|count| count.trim().parse().ok())
        .ok_or_else(|| refused("/proc/self/status tells no number of threads"))
}

fn refused(why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        format!("cannot start a process: {why}"),
    )
}

/// How often a second thread is looked at before it is believed.
const LOOKS: u32 = 20;
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_refused() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let second = thread::spawn(move || ended.recv());
        let error = fork().expect_err("two threads");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        drop(end);
        assert!(second.join().is_ok());
    }
}
