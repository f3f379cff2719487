//! A program that was started for one request, from its start until it is reaped.
//!
//! Everything about it is asynchronous: a task of the worker waits for its end by a pidfd, hands what
//! it says on standard error to the error log, and ends it if it must. No program becomes a zombie,
//! because the task lives until it is reaped; the number of programs is limited until then.
//!
//! A program runs in a process group of its own, so that what it has started ends with it. It has
//! three open descriptors, its own pipes: all others close when a program is executed.

use std::cell::Cell;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use petrel_engine::log::LogHandle;
use petrel_sys::readiness::readable;
use petrel_sys::spawn::Spawn;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::Notify;
use tokio::time::Sleep;

use super::pipes::Pipes;
use super::words::Words;
use crate::gateway::limits;
use crate::gateway::protocol::cgi::CgiConversation;

/// What to run, and how.
#[derive(Debug)]
pub struct Program {
    /// The program: an interpreter, or the script itself.
    pub path: PathBuf,
    /// Its arguments: the script, if the program is an interpreter.
    pub arguments: Vec<PathBuf>,
    /// Where it runs.
    pub directory: PathBuf,
    /// All of its environment.
    pub environment: Vec<(OsString, OsString)>,
    /// What ends it when its client has gone or it takes too long.
    pub signal: Signal,
    /// It gets that signal as well when the client will send nothing more.
    pub wants_end_of_client: bool,
    /// The request may change the protocol: standard input stays open behind the body.
    pub may_upgrade: bool,
}

/// A program that runs.
pub struct Started {
    /// Its standard input and output.
    pub pipes: Pipes,
    /// What is said over them.
    pub conversation: CgiConversation,
    /// To be dropped when nobody wants more of it.
    pub leash: Leash,
}

/// Why a program was not started.
#[derive(Debug)]
pub enum StartError {
    /// There are [`limits::CGI_PROGRAMS_MAX`] of them.
    TooMany,
    /// What the system said.
    Io(io::Error),
}

/// Holds a program. When it is dropped before the reply is complete, the program is ended; else it is
/// given a moment to end by itself.
#[derive(Debug)]
pub struct Leash {
    state: Rc<State>,
}

/// What the holder and the task know of each other.
#[derive(Debug, Default)]
struct State {
    is_over: Rc<Cell<bool>>,
    let_go: Notify,
    end_of_client: Rc<Notify>,
}

/// Starts `program`. What it writes to standard error gets into `log`, each line with its name.
///
/// # Errors
/// Too many programs run, or there is no such program, or it may not be executed.
///
/// # Panics
/// Outside a tokio runtime with tasks that stay on their thread.
pub fn start(program: &Program, log: &LogHandle) -> Result<Started, StartError> {
    let permit = Permit::take().ok_or(StartError::TooMany)?;
    close_others_on_exec();
    let (their_input, our_input) = io::pipe()?;
    let (our_output, their_output) = io::pipe()?;
    let (our_error, their_error) = io::pipe()?;
    let state = Rc::<State>::default();
    let end_of_client = program
        .wants_end_of_client
        .then(|| Rc::clone(&state.end_of_client));
    let pipes = Pipes::new(our_input, our_output, program.may_upgrade, end_of_client)?;
    let error = pipe::Receiver::from_owned_fd(our_error.into())?;
    let descriptors = [
        their_input.as_fd(),
        their_output.as_fd(),
        their_error.as_fd(),
    ];
    let group = program.spawn(descriptors)?;
    let keeper = Keeper {
        group,
        name: program.name(),
        signal: program.signal,
        is_reaped: false,
        log: log.clone(),
        state: Rc::clone(&state),
        _permit: permit,
    };
    tokio::task::spawn_local(keeper.run(error));
    Ok(Started {
        pipes,
        conversation: CgiConversation::new(Rc::clone(&state.is_over)),
        leash: Leash { state },
    })
}

/// Programs that run, of all workers together.
pub fn running() -> usize {
    RUNNING.load(Ordering::Relaxed)
}

impl Program {
    fn spawn(&self, descriptors: [BorrowedFd<'_>; 3]) -> io::Result<Pid> {
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
            arguments: &arguments?,
            environment: &environment?,
            directory: &text(self.directory.as_os_str())?,
            descriptors,
        }
        .start()?;
        Pid::from_raw(id).ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// What logs call it: the script.
    fn name(&self) -> String {
        let script = self.arguments.first().unwrap_or(&self.path);
        Path::display(script).to_string()
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        self.state.let_go.notify_one();
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> StartError {
        StartError::Io(error)
    }
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StartError::TooMany => {
                write!(f, "{} programs run already", limits::CGI_PROGRAMS_MAX)
            }
            StartError::Io(error) => error.fmt(f),
        }
    }
}

/// Looks after one program.
struct Keeper {
    /// Its own id and that of its group. Meaningful until it is reaped.
    group: Pid,
    name: String,
    signal: Signal,
    is_reaped: bool,
    log: LogHandle,
    state: Rc<State>,
    _permit: Permit,
}

impl Keeper {
    async fn run(mut self, error: pipe::Receiver) {
        let mut words = Words::new(error, self.log.clone(), self.name.clone());
        let mut end = End::of(self.group);
        let state = Rc::clone(&self.state);
        let let_go = async {
            loop {
                tokio::select! {
                    () = state.let_go.notified() => return,
                    () = state.end_of_client.notified() => self.kill(self.signal),
                }
            }
        };
        let has_ended = until(&mut end, &mut words, let_go).await;
        if !has_ended && self.state.is_over.get() {
            let grace = tokio::time::sleep(GRACE);
            if !until(&mut end, &mut words, grace).await {
                self.kill(Signal::TERM);
            }
        } else if !has_ended {
            self.kill(self.signal);
        }
        let grace = tokio::time::sleep(GRACE);
        if !has_ended && !until(&mut end, &mut words, grace).await {
            self.kill(Signal::KILL);
            until(&mut end, &mut words, std::future::pending()).await;
        }
        words.finish();
        self.reap();
    }

    fn kill(&self, signal: Signal) {
        if !self.is_reaped {
            // It may have ended already, or have become another user's.
            let _ = kill_process_group(self.group, signal);
        }
    }

    /// Called when it has ended, so this does not wait.
    fn reap(&mut self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::Pid(self.group), options).ok().flatten();
        self.is_reaped = true;
        if let Some(signal) = status.and_then(|status| status.terminating_signal()) {
            self.tell_of(signal);
        }
    }

    /// A program that crashed is told of; one that was ended is not.
    fn tell_of(&self, signal: i32) {
        let ours = [self.signal, Signal::TERM, Signal::KILL, Signal::PIPE];
        if !ours.iter().any(|known| known.as_raw() == signal) {
            let name = self.name.escape_debug();
            self.log.error(format_args!(
                "(content) cgi: {name} was ended by signal {signal}"
            ));
        }
    }
}

impl Drop for Keeper {
    /// The worker stops before the program has: nobody will look after it any more.
    fn drop(&mut self) {
        if !self.is_reaped {
            self.kill(Signal::KILL);
            self.reap();
        }
    }
}

/// The end of a program. It is not reaped by that, so its id stays its own.
struct End {
    program: Pid,
    /// Becomes readable. Without one (before Linux 5.3, or in a sandbox) the program is looked at from
    /// time to time.
    pidfd: Option<AsyncFd<OwnedFd>>,
    pause: Pin<Box<Sleep>>,
}

impl End {
    fn of(program: Pid) -> End {
        let pidfd = pidfd_open(program, PidfdFlags::empty()).ok();
        End {
            program,
            pidfd: pidfd.and_then(|pidfd| readable(pidfd).ok()),
            pause: Box::pin(tokio::time::sleep(LOOK_PAUSE)),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(pidfd) = &self.pidfd {
            return pidfd.poll_read_ready(context).map(drop);
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while let Ok(None) = waitid(WaitId::Pid(self.program), options) {
            std::task::ready!(self.pause.as_mut().poll(context));
            self.pause = Box::pin(tokio::time::sleep(LOOK_PAUSE));
        }
        Poll::Ready(())
    }
}

/// Waits until the program ends, or for `other`, and logs what it says meanwhile. True if it ended.
async fn until(end: &mut End, words: &mut Words, other: impl Future<Output = ()>) -> bool {
    let mut other = std::pin::pin!(other);
    std::future::poll_fn(|context| {
        words.poll(context);
        if end.poll(context).is_ready() {
            return Poll::Ready(true);
        }
        other.as_mut().poll(context).map(|()| false)
    })
    .await
}

/// What this process was itself given by whoever started it must not go on to programs. What it opens
/// is marked when it is opened, so once is enough.
fn close_others_on_exec() {
    static ONCE: Once = Once::new();
    // Without close_range(2) and /proc nothing more can be done.
    ONCE.call_once(|| drop(petrel_sys::child::close_on_exec_from(3)));
}

/// One of the programs that may run.
struct Permit;

impl Permit {
    fn take() -> Option<Permit> {
        let before = RUNNING.fetch_add(1, Ordering::Relaxed);
        let permit = Permit;
        (before < limits::CGI_PROGRAMS_MAX).then_some(permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// What a program gets to end by itself, and again after a signal.
pub(super) const GRACE: Duration = Duration::from_secs(limits::CGI_GRACE_S);

const LOOK_PAUSE: Duration = Duration::from_millis(50);
