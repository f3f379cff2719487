//! fork(2) for a process with one thread.

use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

/// Which of the two processes this is.
#[derive(Debug)]
pub enum Forked {
    /// The parent, with the process id of the child.
    Parent(i32),
    /// The child.
    Child,
}

/// Forks the process.
///
/// # Errors
/// `Unsupported` if the process has more than one thread, or if there is no /proc to count them; otherwise
/// those of fork(2).
pub fn fork() -> io::Result<Forked> {
    make_sure_of_one_thread()?;
    // SAFETY: fork is dangerous because of other threads: they do not exist in the child, where their locks
    // stay locked. There is exactly one thread, the one that runs this function (they were counted just now),
    // and only this thread could have started another one since.
    let id = unsafe { libc::fork() };
    match id {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        id => Ok(Forked::Parent(id)),
    }
}

/// The kernel may still count a thread that was just joined, so a second thread is checked several times.
pub(crate) fn make_sure_of_one_thread() -> io::Result<()> {
    for _ in 0..LOOKS {
        if threads()? == 1 {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    Err(refused("the process has more than one thread"))
}

/// The kernel's own count of threads. Listing /proc/self/task is not reliable: the list ends early if a
/// thread ends meanwhile.
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

/// How often a second thread is checked before the fork is refused.
const LOOKS: u32 = 20;
/// The pause between two checks.
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
