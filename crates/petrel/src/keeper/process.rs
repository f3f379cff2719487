//! A server process, as the keeper sees it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::limits;
use engine::log::{LogRegistry, LogTarget};
use engine::recorder::SharedMemory;
use engine::worker::Cut;
use modules::auth::PamDoor;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use sys::process::{Forked, fork};

use super::generation::Generation;
use crate::control::{Control, News, Order};
use crate::server::Handover;
use crate::tls_files;

/// The stage of a server process's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerStage {
    /// It gives up its privileges and reads files.
    Preparing,
    /// Its sockets listen, and it starts its workers.
    Starting,
    /// It serves.
    Serving,
    /// It finishes its open requests.
    Draining,
    /// It was ordered to exit at once.
    Stopping,
}

/// A server process.
pub(crate) struct ServerProcess {
    pid: Pid,
    control: Control,
    /// The configuration that it serves.
    pub(crate) generation: Rc<Generation>,
    /// How far it is.
    pub(crate) stage: ServerStage,
    /// When the keeper forces the next step: an order to stop if the process is still starting or draining,
    /// SIGKILL after that.
    pub(crate) deadline: Option<Instant>,
    /// When it was started.
    pub(crate) started: Instant,
    /// If it drains: when it aborts the requests that are still open.
    pub(crate) drains_until: Option<Instant>,
    open: Open,
    /// It has stopped accepting connections.
    pub(crate) has_left: bool,
    /// The reason that it gave for failing.
    pub(crate) reason: Option<String>,
    /// The process has closed its end of the socket pair, so no more messages will come.
    silent: bool,
    killed: Killed,
    /// Contents of TLS files that could not be sent to it yet, oldest first.
    tls_waiting: RefCell<VecDeque<Rc<[u8]>>>,
}

/// What the keeper knows of its open connections and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Unknown,
    Asked,
    Told(u32, u32),
}

/// What SIGKILL has achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    No,
    JustNow,
    /// The process is still there: one of its threads waits in the kernel for a file system that does not
    /// answer.
    InVain,
}

/// The result of starting a process, in the parent and in the child.
pub(crate) enum StartedServer {
    /// In the keeper.
    Keeper(ServerProcess),
    /// In the new process.
    Server(Box<Handover>),
}

impl ServerProcess {
    /// Forks a server process for `generation`.
    ///
    /// # Errors
    /// The system has no processes, descriptors or memory left.
    pub(crate) fn start(
        generation: &Rc<Generation>,
        logs: &LogRegistry,
        idle: Option<Duration>,
        detached: bool,
        pam: Option<PamDoor>,
        memory: SharedMemory,
    ) -> io::Result<StartedServer> {
        let keeper = std::process::id();
        let listeners = generation.listeners.borrow().copies()?;
        let mut descriptors = logs.descriptors()?;
        descriptors.retain(|(target, _)| generation.log_targets.contains(target));
        let (ours, theirs) = Control::pair()?;
        match fork()? {
            Forked::Child => Ok(StartedServer::Server(Box::new(Handover {
                loaded: generation.loaded.clone(),
                listeners,
                logs: descriptors,
                log_targets: generation.log_targets.clone(),
                control: theirs,
                identity: generation.identity.clone(),
                idle,
                keeper,
                detached,
                tls: generation.tls.as_ref().map(|tls| Arc::clone(&tls.store)),
                pam,
                generation: generation.number,
                memory,
            }))),
            Forked::Parent(id) => Ok(StartedServer::Keeper(ServerProcess {
                pid: Pid::from_raw(id).expect("fork answers the id of a process"),
                control: ours,
                generation: Rc::clone(generation),
                stage: ServerStage::Preparing,
                deadline: Some(Instant::now() + START_TIME),
                started: Instant::now(),
                drains_until: None,
                open: Open::Unknown,
                has_left: false,
                reason: None,
                silent: false,
                killed: Killed::No,
                tls_waiting: RefCell::default(),
            })),
        }
    }

    /// The process id.
    pub(crate) fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// The socket to poll; `None` once the process has closed its end.
    pub(crate) fn control(&self) -> Option<&Control> {
        (!self.silent).then_some(&self.control)
    }

    /// The next message from the process.
    pub(crate) fn news(&mut self) -> Option<News> {
        if self.silent {
            return None;
        }
        match self.control.next_news() {
            Ok(news) => news,
            Err(_) => {
                self.silent = true;
                None
            }
        }
    }

    /// Hands a connection of the control socket to the process, which replies with its status.
    ///
    /// # Errors
    /// The process is gone, or does not read its orders.
    pub(crate) fn pass_on(&self, connection: OwnedFd) -> io::Result<()> {
        self.control.order(&Order::Snapshot(connection))
    }

    /// Asks how many connections and requests are open.
    pub(crate) fn count(&mut self) {
        if matches!(self.stage, ServerStage::Serving | ServerStage::Draining) {
            self.order(&Order::Count);
            self.open = Open::Asked;
        }
    }

    /// Notes the counts that the process has reported.
    pub(crate) fn counted(&mut self, connections: u32, requests: u32) {
        self.open = Open::Told(connections, requests);
    }

    /// Whether the process was asked for its counts and has not replied yet.
    pub(crate) fn is_counting(&self) -> bool {
        self.open == Open::Asked
    }

    /// The counts of connections and requests that the process last reported.
    pub(crate) fn open(&self) -> Option<(u32, u32)> {
        match self.open {
            Open::Told(connections, requests) => Some((connections, requests)),
            Open::Unknown | Open::Asked => None,
        }
    }

    /// Orders the process to start its workers.
    pub(crate) fn go(&mut self) {
        self.order(&Order::Go);
        self.stage = ServerStage::Starting;
    }

    /// Orders the workers to accept connections. Returns false if that failed; the process is then told to
    /// exit.
    pub(crate) fn serve(&mut self) -> bool {
        if let Err(error) = self.control.order(&Order::Serve) {
            self.reason = Some(format!("it cannot be told to serve: {error}"));
            self.stop(Cut::StopNow);
            return false;
        }
        self.stage = ServerStage::Serving;
        self.deadline = None;
        true
    }

    /// Orders the process to finish its open requests, since a new one serves.
    pub(crate) fn succeed(&mut self, time: Duration) {
        self.order(&Order::Succeeded(time));
        self.drain_until(time);
    }

    /// Orders the process to finish its open requests, since the server stops.
    pub(crate) fn finish(&mut self, time: Duration) {
        self.order(&Order::Finish(time));
        self.drain_until(time);
    }

    /// Orders the process to abort its open requests and exit.
    pub(crate) fn stop(&mut self, why: Cut) {
        self.order(&Order::Stop(why));
        self.stage = ServerStage::Stopping;
        self.deadline = Some(Instant::now() + STOP_TIME);
    }

    /// Sends the new descriptor of a log, if the process writes to that log.
    pub(crate) fn renew_log(&self, target: &LogTarget, descriptor: &impl std::os::fd::AsFd) {
        let number = self.generation.log_targets.get_index_of(target);
        let Some(number) = number.and_then(|number| u16::try_from(number).ok()) else {
            return;
        };
        if let Ok(descriptor) = descriptor.as_fd().try_clone_to_owned() {
            self.order(&Order::Log(number, descriptor));
        }
    }

    /// Sends changed contents of TLS files, `handed`, after those that could not be sent before.
    ///
    /// # Errors
    /// They could not be sent. The next call tries again; only the first failure in a row returns the error.
    pub(crate) fn renew_tls(&self, handed: Option<&Rc<[u8]>>) -> io::Result<()> {
        let mut waiting = self.tls_waiting.borrow_mut();
        let is_known = !waiting.is_empty();
        waiting.extend(handed.map(Rc::clone));
        while let Some(next) = waiting.front() {
            let file = tls_files::in_memory(next);
            if let Err(error) = file.and_then(|file| self.control.order(&Order::Tls(file))) {
                return if is_known { Ok(()) } else { Err(error) };
            }
            waiting.pop_front();
        }
        Ok(())
    }

    /// Forces the next step when the deadline has passed.
    pub(crate) fn check_deadline(&mut self, now: Instant) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.stage {
            ServerStage::Preparing | ServerStage::Starting => {
                self.reason
                    .get_or_insert_with(|| "it took too long to start".to_owned());
                self.stop(Cut::StopNow);
            }
            ServerStage::Serving => self.deadline = None,
            ServerStage::Draining => self.stop(Cut::DrainTimeOver),
            ServerStage::Stopping if self.killed == Killed::No => {
                // The keeper has not reaped the process yet, so its id cannot belong to another one.
                let _ = kill_process(self.pid, Signal::KILL);
                self.killed = Killed::JustNow;
                self.deadline = Some(now + KILL_TIME);
            }
            ServerStage::Stopping => {
                self.killed = Killed::InVain;
                self.deadline = None;
            }
        }
    }

    /// Whether even SIGKILL does not end the process. It serves no clients and has no listeners any more, but
    /// one of its threads hangs in the kernel.
    pub(crate) fn is_beyond_killing(&self) -> bool {
        self.killed == Killed::InVain
    }

    /// How it ended, once it has.
    pub(crate) fn wait(&mut self) -> Option<WaitStatus> {
        let waited = waitpid(Some(self.pid), WaitOptions::NOHANG).ok().flatten();
        waited.map(|(_, status)| status)
    }

    fn drain_until(&mut self, time: Duration) {
        self.stage = ServerStage::Draining;
        // The process exits by itself at that time. If it does not, the keeper ends it a little later.
        let until = Instant::now() + time;
        self.drains_until = Some(until);
        self.deadline = Some(until + STOP_TIME);
    }

    /// Sends an order. If that fails, the process has ended, or its deadline takes care of it.
    fn order(&self, order: &Order) {
        let _ = self.control.order(order);
    }
}

/// Describes in words how a process ended.
pub(crate) fn describe(status: WaitStatus) -> String {
    describe_end(status.terminating_signal(), status.exit_status())
}

/// Describes in words how a process ended: by a signal, or with an exit code.
pub(crate) fn describe_end(signal: Option<i32>, code: Option<i32>) -> String {
    match (signal, code) {
        (Some(signal), _) => match nix::sys::signal::Signal::try_from(signal) {
            Ok(known) => format!("was killed by {known}"),
            Err(_) => format!("was killed by signal {signal}"),
        },
        (None, Some(code)) => format!("ended with code {code}"),
        (None, None) => "ended".to_owned(),
    }
}

/// How long a server process may take to start.
const START_TIME: Duration = Duration::from_secs(60);
/// How long the kernel may take to end it after SIGKILL.
const KILL_TIME: Duration = Duration::from_millis(1500);
/// How long it may take to exit when ordered to: it aborts requests, then writes its logs.
const STOP_TIME: Duration = Duration::from_millis(limits::CUT_MS + 1500);
