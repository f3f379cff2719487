//! Starts a program, on a thread of the blocking pool.
//!
//! posix_spawn(3) returns only after the new process has changed its directory and executed the program. Both
//! may have to wait for a disk, and wait forever where a file system hangs. So a job of the [blocking
//! pool](petrel_engine::blocking) does it. The job also makes the pipes, so that requests which wait for a
//! hanging file system hold no descriptors and do not count as programs.

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once};

use petrel_engine::blocking::{self, Class, Job, NotDone, Origin};
use petrel_engine::shared::Shared;
use petrel_sys::spawn::Spawn;
use rustix::io::retry_on_intr;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid,
};
use tokio::sync::oneshot;

use super::child::StartError;
use crate::gateway::limits;

/// A program to start, and how.
#[derive(Debug)]
pub(super) struct Program {
    /// The program: an interpreter, or the script itself.
    pub path: PathBuf,
    /// Its arguments: the script, if the program is an interpreter.
    pub arguments: Vec<PathBuf>,
    /// Its working directory.
    pub directory: PathBuf,
    /// Its whole environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The signal that ends it when its client has left or it takes too long.
    pub signal: Signal,
    /// It gets that signal also when the client will send nothing more.
    pub wants_end_of_client: bool,
    /// The request may change the protocol, so standard input stays open after the body.
    pub may_upgrade: bool,
    /// The counter of running programs.
    pub running: Arc<RunningPrograms>,
}

/// A program that has just been started, with this server's ends of its pipes.
#[derive(Debug)]
pub(super) struct Begun {
    pub(crate) child: Child,
    pub(crate) input: PipeWriter,
    pub(crate) output: PipeReader,
    pub(crate) error: PipeReader,
}

/// A process and its group. It is killed if this is dropped before it is reaped.
#[derive(Debug)]
pub(crate) struct Child {
    /// The process id, which is also that of the group. Valid until the process is reaped.
    group: Pid,
    is_reaped: bool,
    _permit: ProgramPermit,
}

/// The result of starting a program.
pub(super) type StartOutcome = Result<Begun, StartError>;

/// Has a thread start `program` for `origin`. Setting `is_given_up` before the thread begins cancels that.
///
/// # Errors
/// The pool takes no more jobs.
pub(super) fn begin(
    program: Program,
    origin: Origin,
    is_given_up: &Arc<AtomicBool>,
) -> Result<oneshot::Receiver<StartOutcome>, NotDone> {
    close_others_on_exec();
    let (outcome, receiver) = oneshot::channel();
    let start = Start {
        program,
        is_given_up: Arc::clone(is_given_up),
        outcome,
    };
    blocking::start(Class::Stat, origin, start)?;
    Ok(receiver)
}

impl Program {
    /// The name for logs: the script.
    pub(super) fn name(&self) -> &Path {
        self.arguments.first().unwrap_or(&self.path)
    }

    /// The path that starting is most likely to wait for, and its file system: the interpreter, if it is on a
    /// network or FUSE file system, otherwise the script.
    pub(crate) fn waits_for(&self) -> (&Path, Origin) {
        let of_program = Origin::of_path(&self.directory.join(&self.path));
        match of_program.is_remote {
            true => (&self.path, of_program),
            false => (self.name(), Origin::of_path(&self.directory)),
        }
    }

    /// Starts it. May block forever.
    fn begin(&self) -> StartOutcome {
        let permit = self.running.take().ok_or(StartError::TooMany)?;
        let (their_input, input) = io::pipe()?;
        let (output, their_output) = io::pipe()?;
        let (error, their_error) = io::pipe()?;
        let text = |text: &OsStr| CString::new(text.as_bytes());
        let path = text(self.path.as_os_str())?;
        let arguments = self
            .arguments
            .iter()
            .map(|argument| text(argument.as_os_str()));
        let arguments: Result<Vec<_>, _> =
            std::iter::once(Ok(path.clone())).chain(arguments).collect();
        let variable = |(name, value): &(OsString, OsString)| {
            CString::new([name.as_bytes(), b"=", value.as_bytes()].concat())
        };
        let environment: Result<Vec<_>, _> = self.environment.iter().map(variable).collect();
        let id = Spawn {
            path: &path,
            arguments: &arguments.map_err(io::Error::from)?,
            environment: &environment.map_err(io::Error::from)?,
            directory: &text(self.directory.as_os_str())?,
            descriptors: [
                their_input.as_fd(),
                their_output.as_fd(),
                their_error.as_fd(),
            ],
        }
        .start()?;
        Ok(Begun {
            child: Child::new(id, permit)?,
            input,
            output,
            error,
        })
    }
}

impl Child {
    /// The process `id`, which leads its group and was counted by `permit`.
    ///
    /// # Errors
    /// No process has this id.
    pub(crate) fn new(id: i32, permit: ProgramPermit) -> io::Result<Child> {
        Ok(Child {
            group: Pid::from_raw(id).ok_or(io::ErrorKind::Other)?,
            is_reaped: false,
            _permit: permit,
        })
    }

    /// The process id, which is not reused until the process is reaped.
    pub(crate) fn id(&self) -> Pid {
        self.group
    }

    /// Sends a signal to the process and its group.
    pub(crate) fn kill(&self, signal: Signal) {
        if !self.is_reaped {
            // The error is ignored: the process may have ended already, or have changed its user.
            let _ = kill_process_group(self.group, signal);
        }
    }

    /// Reaps a process that has ended, and returns how it ended. Never blocks.
    pub(crate) fn reap(&mut self) -> Option<WaitIdStatus> {
        self.wait(WaitIdOptions::NOHANG)
    }

    /// Kills the process and waits for its end.
    fn end(mut self) {
        self.kill(Signal::KILL);
        self.wait(WaitIdOptions::empty());
    }

    fn wait(&mut self, how: WaitIdOptions) -> Option<WaitIdStatus> {
        let options = WaitIdOptions::EXITED | how;
        let status = retry_on_intr(|| waitid(WaitId::Pid(self.group), options));
        self.is_reaped = true;
        status.ok().flatten()
    }
}

impl Drop for Child {
    /// Reached when the worker stops before the program has ended: no task looks after the process any more.
    fn drop(&mut self) {
        if !self.is_reaped {
            self.kill(Signal::KILL);
            self.reap();
        }
    }
}

/// The job of starting a program.
struct Start {
    program: Program,
    is_given_up: Arc<AtomicBool>,
    outcome: oneshot::Sender<StartOutcome>,
}

impl Job for Start {
    fn run(self: Box<Self>) {
        let begun = self.program.begin();
        if let Err(Ok(begun)) = self.outcome.send(begun) {
            // The worker has stopped in the meantime.
            begun.child.end();
        }
    }

    fn is_wanted(&self) -> bool {
        !self.is_given_up.load(Ordering::Relaxed) && !self.outcome.is_closed()
    }
}

/// Descriptors that this process inherited from the program that started it must not be passed on to
/// programs. Those that it opens itself are marked close-on-exec when they are opened, so once is enough.
fn close_others_on_exec() {
    static ONCE: Once = Once::new();
    // Without close_range(2) and /proc there is no other way; the descriptors stay open.
    ONCE.call_once(|| drop(petrel_sys::child::close_on_exec_from(3)));
}

/// Counts the programs of all workers that run or are being started.
#[derive(Debug, Default)]
pub(crate) struct RunningPrograms(AtomicUsize);

impl RunningPrograms {
    /// The counter of the server process.
    pub(crate) fn of(shared: &Shared) -> Arc<RunningPrograms> {
        shared.belonging(RunningPrograms::default)
    }

    /// How many programs there are.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one more. `None`: there are [`limits::CGI_PROGRAMS_MAX`].
    pub(crate) fn take(self: &Arc<RunningPrograms>) -> Option<ProgramPermit> {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        let permit = ProgramPermit(Arc::clone(self));
        (before < limits::CGI_PROGRAMS_MAX).then_some(permit)
    }
}

/// Counts one program, until it is dropped.
#[derive(Debug)]
pub(crate) struct ProgramPermit(Arc<RunningPrograms>);

impl Drop for ProgramPermit {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::test_kill_process;

    use super::*;

    fn script(text: &str) -> Program {
        Program {
            path: "/bin/sh".into(),
            arguments: vec!["-c".into(), text.into()],
            directory: "/".into(),
            environment: Vec::new(),
            signal: Signal::TERM,
            running: Arc::default(),
            wants_end_of_client: false,
            may_upgrade: false,
        }
    }

    #[test]
    fn a_program_whose_worker_has_stopped_is_ended_and_reaped() {
        let begun = script("sleep 1000 & echo; wait").begin();
        let begun = begun.unwrap_or_else(|error| panic!("it starts: {error}"));
        let id = begun.child.id();
        assert!(test_kill_process(id).is_ok());
        begun.child.end();
        assert!(test_kill_process(id).is_err());
    }

    #[test]
    fn a_start_without_a_request_is_not_wanted() {
        let (outcome, receiver) = oneshot::channel();
        let start = Start {
            program: script(""),
            is_given_up: Arc::default(),
            outcome,
        };
        assert!(start.is_wanted());
        start.is_given_up.store(true, Ordering::Relaxed);
        assert!(!start.is_wanted());
        start.is_given_up.store(false, Ordering::Relaxed);
        drop(receiver);
        assert!(!start.is_wanted());
    }

    #[test]
    fn a_local_program_waits_for_its_directory() {
        let mut program = script("");
        assert_eq!(program.name(), Path::new("-c"));
        program.arguments = vec!["/srv/a.cgi".into()];
        let (path, origin) = program.waits_for();
        assert_eq!(path, Path::new("/srv/a.cgi"));
        assert_eq!(origin, Origin::of_path(Path::new("/")));
        program.directory = "/proc".into();
        assert_eq!(program.waits_for().1, Origin::of_path(Path::new("/proc")));
    }
}
