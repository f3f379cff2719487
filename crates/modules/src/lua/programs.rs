//! The programs of `os.execute` and `io.popen`. A disk thread starts them, a task of the worker waits for their end,
//! and their pipes are read and written when they are ready: no program makes the worker wait.
//!
//! A program runs as the server's user in a process group of its own, with the server's environment, standard output
//! and standard error. One that runs for too long is ended; so is one whose script has gone, after a moment in which
//! it may end by itself. What a shell has left in the background goes on.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use petrel_engine::blocking::{self, Class, Origin};
use petrel_engine::shared::Shared;
use petrel_lua::library::files::{
    FileDone, FileJob, ProgramExit, ProgramPipe, ProgramToStart, StartedProgram,
};
use petrel_sys::readiness::duplex;
use petrel_sys::spawn::Spawn;
use rustix::process::Signal;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::gateway::cgi::{Child, GRACE, ProgramEnd, RunningPrograms};

/// What a worker knows about the programs of scripts.
#[derive(Clone, Debug)]
pub struct Programs {
    running: Arc<RunningPrograms>,
    time_max: Duration,
}

impl Programs {
    /// Those of the server process. They count among its CGI programs.
    pub(super) fn of(shared: &Shared, time_max: Duration) -> Programs {
        Programs {
            running: RunningPrograms::of(shared),
            time_max,
        }
    }

    /// Those of a program that is no server.
    pub fn alone(time_max: Duration) -> Programs {
        Programs {
            running: Arc::default(),
            time_max,
        }
    }

    /// Has a thread start a program. If the future is dropped, the program is ended.
    ///
    /// # Panics
    /// Outside a tokio runtime with tasks that stay on their thread.
    pub fn start(
        &self,
        program: ProgramToStart,
    ) -> impl Future<Output = io::Result<StartedProgram>> + use<> {
        let running = Arc::clone(&self.running);
        let shell = Origin::of_path(Path::new("/bin/sh"));
        let begun = blocking::run_io(Class::Stat, shell, move || begin(&running, program));
        let (tell, told) = oneshot::channel();
        tokio::task::spawn_local(follow(begun, tell, self.time_max));
        async move { told.await.unwrap_or_else(|_| Err(lost())) }
    }

    /// Reads from the pipe of a program, or writes to it, as soon as that is possible.
    ///
    /// # Errors
    /// Those of read(2) and write(2), and `TimedOut`: another process has kept the pipe for too long.
    pub async fn transfer(&self, mut job: FileJob) -> io::Result<FileDone> {
        let Some((pipe, is_write)) = job.pipe() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let pipe = duplex(pipe.try_clone()?.into())?;
        let done = async {
            loop {
                let mut ready = match is_write {
                    // Closing has nothing to write most of the time.
                    true if job.bytes() == 0 => None,
                    true => Some(pipe.writable().await?),
                    false => Some(pipe.readable().await?),
                };
                match (job.attempt(), &mut ready) {
                    (Some(done), _) => return done,
                    (None, Some(ready)) => ready.clear_ready(),
                    (None, None) => return Err(io::ErrorKind::WouldBlock.into()),
                }
            }
        };
        let done = timeout(self.time_max, done).await;
        done.unwrap_or_else(|_| Err(late(self.time_max)))
    }
}

/// Starts a program. May block.
fn begin(
    running: &Arc<RunningPrograms>,
    program: ProgramToStart,
) -> io::Result<(Child, Option<File>)> {
    let permit = running.take().ok_or(io::ErrorKind::ResourceBusy)?;
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    let (output, error) = (io::stdout(), io::stderr());
    // A server that was started without these descriptors has none for its programs either.
    let own = |stream: BorrowedFd<'_>| {
        let copy = stream.try_clone_to_owned();
        copy.or_else(|_| null.try_clone().map(OwnedFd::from))
    };
    let (output, error) = (own(output.as_fd())?, own(error.as_fd())?);
    let pipe = match program.pipe {
        ProgramPipe::None => None,
        _ => Some(io::pipe()?),
    };
    let descriptors = match (&pipe, program.pipe) {
        (Some((_, writer)), ProgramPipe::Output) => [null.as_fd(), writer.as_fd(), error.as_fd()],
        (Some((reader, _)), _) => [reader.as_fd(), output.as_fd(), error.as_fd()],
        (None, _) => [null.as_fd(), output.as_fd(), error.as_fd()],
    };
    let arguments = [
        CString::from(c"sh"),
        CString::from(c"-c"),
        CString::new(program.command)?,
    ];
    let environment = std::env::vars_os().map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        CString::new(name.into_vec())
    });
    let environment: Result<Vec<_>, _> = environment.collect();
    let id = Spawn {
        path: c"/bin/sh",
        arguments: &arguments,
        environment: &environment?,
        directory: c".",
        descriptors,
    }
    .start()?;
    let child = Child::new(id, permit)?;
    let ours = match (pipe, program.pipe) {
        (Some((reader, _)), ProgramPipe::Output) => Some(OwnedFd::from(reader)),
        (Some((_, writer)), _) => Some(OwnedFd::from(writer)),
        (None, _) => None,
    };
    if let Some(ours) = &ours {
        rustix::io::ioctl_fionbio(ours, true)?;
    }
    Ok((child, ours.map(File::from)))
}

/// Waits until a program was started, reports that, and looks after the program until its end.
async fn follow(
    begun: impl Future<Output = io::Result<(Child, Option<File>)>>,
    tell: oneshot::Sender<io::Result<StartedProgram>>,
    time_max: Duration,
) {
    let (mut child, pipe) = match begun.await {
        Ok(begun) => begun,
        Err(error) => return drop(tell.send(Err(error))),
    };
    let (mut tell_end, end) = oneshot::channel();
    let end = Box::pin(async move { end.await.unwrap_or_else(|_| Err(lost())) });
    // If the script has gone, `end` is dropped, which the next step notices.
    let _ = tell.send(Ok(StartedProgram { pipe, end }));
    let mut program = ProgramEnd::of(child.id());
    let (mut has_ended, is_late) = tokio::select! {
        () = poll_fn(|context| program.poll(context)) => (true, false),
        () = tell_end.closed() => (false, false),
        () = tokio::time::sleep(time_max) => (false, true),
    };
    let mut ends_soon = async || {
        let end = poll_fn(|context| program.poll(context));
        timeout(GRACE, end).await.is_ok()
    };
    if !has_ended && !is_late {
        has_ended = ends_soon().await;
    }
    if !has_ended {
        child.kill(Signal::TERM);
        has_ended = ends_soon().await;
    }
    if !has_ended {
        child.kill(Signal::KILL);
        poll_fn(|context| program.poll(context)).await;
    }
    // The process has ended, so this does not block.
    let status = child.reap();
    let exit = status.map(|status| match status.terminating_signal() {
        Some(signal) => ProgramExit::Signal(signal),
        None => ProgramExit::Code(status.exit_status().unwrap_or(-1)),
    });
    let _ = tell_end.send(match exit {
        _ if is_late => Err(late(time_max)),
        Some(exit) => Ok(exit),
        None => Err(lost()),
    });
}

fn late(time_max: Duration) -> io::Error {
    let words = format!("it took more than {} s", time_max.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, words)
}

fn lost() -> io::Error {
    io::Error::other("the worker stops")
}
