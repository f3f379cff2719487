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

/// A thread that was joined may still be listed for a moment, so a second one is looked at more than once.
fn make_sure_of_one_thread() -> io::Result<()> {
    for _ in 0..LOOKS {
        let tasks = fs::read_dir("/proc/self/task").and_then(|tasks| {
            tasks
                .take(2)
                .try_fold(0, |count, task| task.map(|_| count + 1))
        });
        match tasks {
            Ok(1) => return Ok(()),
            Ok(_) => thread::sleep(PAUSE),
            Err(error) => {
                return Err(refused(&format!("/proc/self/task cannot be read: {error}")));
            }
        }
    }
    Err(refused("the process has more than one thread"))
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
        // The test harness runs this in a thread beside its main one.
        let error = fork().expect_err("two threads");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }
}
