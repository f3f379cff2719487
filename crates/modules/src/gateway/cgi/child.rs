//! A CGI program that was started for one request, until its process is reaped.
//!
//! All of it is asynchronous. A task of the worker waits until a thread has started the program ([`spawn`]),
//! then waits with a pidfd for its end; it writes the program's standard error to the error log, and kills
//! the program if necessary. The task lives until it has reaped the process, so no program becomes a zombie,
//! and until then the program counts toward the limit.
//!
//! Each program runs in a process group of its own, so that the processes which it has started end with it.
//! It has three open descriptors, its own pipes: all others are closed when it is executed.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use petrel_engine::blocking::{NotDone, Origin};
use petrel_engine::log::LogHandle;
use petrel_engine::socket::is_own_shortage;
use petrel_sys::readiness::readable;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, waitid};
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, oneshot};
use tokio::time::Sleep;

use super::pipes::Pipes;
use super::spawn::{self, Begun, Child, Program};
use super::words::Words;
use crate::gateway::limits;
use crate::gateway::protocol::until_close::UntilCloseConversation;

/// A program that is being started. If this is dropped, the program is not started; if it already was, it is
/// ended.
pub(super) struct Starting {
    leash: Rc<Leash>,
    pipes: oneshot::Receiver<Result<Pipes, StartError>>,
    waits_for: PathBuf,
}

/// A running program.
pub(super) struct Started {
    /// Its standard input and output.
    pub pipes: Pipes,
    /// Encodes the request body and decodes the reply.
    pub conversation: UntilCloseConversation,
    /// Keeps the program running; dropped when no more of its reply is needed.
    pub leash: Rc<Leash>,
}

/// Why a program was not started.
#[derive(Debug)]
pub(super) enum StartError {
    /// [`limits::CGI_PROGRAMS_MAX`] programs run already.
    TooMany,
    /// No thread could start it.
    NotDone(NotDone),
    /// The system's error.
    Io(io::Error),
}

/// Keeps a program running. If it is dropped before the reply is complete, the program is ended; otherwise
/// the program has a moment to end by itself.
#[derive(Debug)]
pub(crate) struct Leash {
    state: Rc<LeashState>,
}

/// What the leash and the program's task share.
#[derive(Debug, Default)]
struct LeashState {
    is_over: Rc<Cell<bool>>,
    let_go: Notify,
    end_of_client: Rc<Notify>,
    /// Tells the thread that has not started the program yet that it is not needed any more.
    is_given_up: Arc<AtomicBool>,
}

/// Has a thread start `program` for a client. Each line that the program writes to standard error goes to
/// `log`, with the program's name.
///
/// # Errors
/// Too many programs wait for a thread already.
///
/// # Panics
/// Outside a tokio runtime with tasks that stay on their thread.
pub(super) fn start(
    program: Program,
    client: u64,
    log: &LogHandle,
) -> Result<Starting, StartError> {
    let (path, origin) = program.waits_for();
    let (waits_for, origin) = (path.to_owned(), Origin { client, ..origin });
    let state = Rc::<LeashState>::default();
    let (tell, pipes) = oneshot::channel();
    let plan = Plan {
        name: program.name().display().to_string(),
        signal: program.signal,
        wants_end_of_client: program.wants_end_of_client,
        may_upgrade: program.may_upgrade,
        log: log.clone(),
        state: Rc::clone(&state),
    };
    let begun = spawn::begin(program, origin, &state.is_given_up)?;
    tokio::task::spawn_local(plan.follow(begun, tell));
    Ok(Starting {
        leash: Rc::new(Leash { state }),
        pipes,
        waits_for,
    })
}

impl Starting {
    /// The path that a log line names if starting takes too long.
    pub(crate) fn waits_for(&self) -> &Path {
        &self.waits_for
    }
}

impl Future for Starting {
    type Output = Result<Started, StartError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let told = ready!(Pin::new(&mut self.pipes).poll(context));
        // The sender is dropped without a message only when the worker stops.
        let pipes = told.unwrap_or(Err(StartError::NotDone(NotDone::Lost)));
        Poll::Ready(pipes.map(|pipes| Started {
            pipes,
            conversation: UntilCloseConversation::with_program(Rc::clone(
                &self.leash.state.is_over,
            )),
            leash: Rc::clone(&self.leash),
        }))
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        self.state.is_given_up.store(true, Ordering::Relaxed);
        self.state.let_go.notify_one();
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> StartError {
        StartError::Io(error)
    }
}

impl From<NotDone> for StartError {
    fn from(not_done: NotDone) -> StartError {
        StartError::NotDone(not_done)
    }
}

impl From<std::ffi::NulError> for StartError {
    fn from(error: std::ffi::NulError) -> StartError {
        StartError::Io(error.into())
    }
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StartError::TooMany => {
                write!(f, "{} programs run already", limits::CGI_PROGRAMS_MAX)
            }
            StartError::NotDone(not_done) => not_done.fmt(f),
            StartError::Io(error) if is_own_shortage(error) => {
                write!(
                    f,
                    "this server has no descriptors, memory or processes left: {error}"
                )
            }
            StartError::Io(error) => error.fmt(f),
        }
    }
}

/// What the task has to know about a program before it runs.
struct Plan {
    name: String,
    signal: Signal,
    wants_end_of_client: bool,
    may_upgrade: bool,
    log: LogHandle,
    state: Rc<LeashState>,
}

impl Plan {
    /// Waits until the program was started, reports that, and looks after the program, even if its request is
    /// gone.
    async fn follow(
        self,
        begun: oneshot::Receiver<spawn::StartOutcome>,
        tell: oneshot::Sender<Result<Pipes, StartError>>,
    ) {
        let begun = begun.await.unwrap_or(Err(NotDone::Lost.into()));
        match begun.map(|begun| self.take(begun)) {
            Ok((pipes, words, keeper)) => {
                // If the request is gone the leash was dropped, which ends the program.
                let _ = tell.send(pipes.map_err(StartError::Io));
                keeper.run(words).await;
            }
            Err(error) => drop(tell.send(Err(error))),
        }
    }

    fn take(self, begun: Begun) -> (io::Result<Pipes>, Words, Keeper) {
        let end_of_client = self
            .wants_end_of_client
            .then(|| Rc::clone(&self.state.end_of_client));
        let pipes = Pipes::new(begun.input, begun.output, self.may_upgrade, end_of_client);
        let (pipes, error) = match pipe::Receiver::from_owned_fd(begun.error.into()) {
            Ok(error) => (pipes, Some(error)),
            Err(error) => (pipes.and(Err(error)), None),
        };
        let words = Words::new(error, self.log.clone(), self.name.clone());
        let keeper = Keeper {
            child: begun.child,
            name: self.name,
            signal: self.signal,
            log: self.log,
            state: self.state,
        };
        (pipes, words, keeper)
    }
}

/// Looks after one program until its end.
struct Keeper {
    child: Child,
    name: String,
    signal: Signal,
    log: LogHandle,
    state: Rc<LeashState>,
}

impl Keeper {
    async fn run(mut self, mut words: Words) {
        let mut end = ProgramEnd::of(self.child.id());
        let state = Rc::clone(&self.state);
        let let_go = async {
            loop {
                tokio::select! {
                    () = state.let_go.notified() => return,
                    () = state.end_of_client.notified() => self.child.kill(self.signal),
                }
            }
        };
        let has_ended = until(&mut end, &mut words, let_go).await;
        if !has_ended && self.state.is_over.get() {
            let grace = tokio::time::sleep(GRACE);
            if !until(&mut end, &mut words, grace).await {
                self.child.kill(Signal::TERM);
            }
        } else if !has_ended {
            self.child.kill(self.signal);
        }
        let grace = tokio::time::sleep(GRACE);
        if !has_ended && !until(&mut end, &mut words, grace).await {
            self.child.kill(Signal::KILL);
            until(&mut end, &mut words, std::future::pending()).await;
        }
        words.finish();
        // The process has ended, so this does not block.
        let status = self.child.reap();
        if let Some(signal) = status.and_then(|status| status.terminating_signal()) {
            self.tell_of(signal);
        }
    }

    /// Logs the end of a program by a signal, unless this server sent that signal.
    fn tell_of(&self, signal: i32) {
        let ours = [self.signal, Signal::TERM, Signal::KILL, Signal::PIPE];
        if !ours.iter().any(|known| known.as_raw() == signal) {
            let name = self.name.escape_debug();
            self.log.error(format_args!(
                "(content) cgi: {name} was killed by signal {signal}"
            ));
        }
    }
}

/// Notices the end of a program. That does not reap the process, so its id stays its own.
pub(crate) struct ProgramEnd {
    program: Pid,
    /// Becomes readable when the process ends. Without it (before Linux 5.3, or in a sandbox) the process is
    /// looked at now and then.
    pidfd: Option<AsyncFd<OwnedFd>>,
    pause: Pin<Box<Sleep>>,
}

impl ProgramEnd {
    /// The end of the process `program`, which must not have been reaped.
    pub(crate) fn of(program: Pid) -> ProgramEnd {
        let pidfd = pidfd_open(program, PidfdFlags::empty()).ok();
        ProgramEnd {
            program,
            pidfd: pidfd.and_then(|pidfd| readable(pidfd).ok()),
            pause: Box::pin(tokio::time::sleep(LOOK_PAUSE)),
        }
    }

    /// Ready when the process has ended.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
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

/// Waits until the program ends, or for `other`, and logs its standard error meanwhile. True if the program
/// ended.
async fn until(end: &mut ProgramEnd, words: &mut Words, other: impl Future<Output = ()>) -> bool {
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

/// How long a program has to end by itself, and again after a signal.
pub(crate) const GRACE: Duration = Duration::from_secs(limits::CGI_GRACE_S);

const LOOK_PAUSE: Duration = Duration::from_millis(50);
