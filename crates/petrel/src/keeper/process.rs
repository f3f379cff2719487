//! A server process, as its keeper sees it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::limits;
use engine::log::{LogRegistry, LogTarget};
use engine::worker::Cut;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use sys::process::{Forked, fork};

use super::generation::Generation;
use crate::control::{Control, News, Order};
use crate::server::Handover;
use crate::tls_files;

/// How far a server process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerStage {
    /// It gives up privileges and reads files.
    Preparing,
    /// The sockets listen and it starts its workers.
    Starting,
    /// It serves.
    Serving,
    /// It finishes what is under way.
    Draining,
    /// It was told to end at once.
    Stopping,
}

/// A server process.
pub(crate) struct ServerProcess {
    pid: Pid,
    control: Control,
    /// What it serves.
    pub(crate) generation: Rc<Generation>,
    /// How far it is.
    pub(crate) stage: ServerStage,
    /// When it is pushed on: from starting or draining to an order to stop, from there to SIGKILL.
    pub(crate) deadline: Option<Instant>,
    /// When it was started.
    pub(crate) started: Instant,
    /// When it cuts the requests it still has, if it drains.
    pub(crate) drains_until: Option<Instant>,
    open: Open,
    /// It takes no connections any more.
    pub(crate) has_left: bool,
    /// The reason it gave for failing.
    pub(crate) reason: Option<String>,
    /// Its end of the control socket is closed: nothing more to hear.
    silent: bool,
    killed: Killed,
    /// What the files of TLS contain, in the order of its changes: it could not be given that yet.
    tls_waiting: RefCell<VecDeque<Rc<[u8]>>>,
}

/// What is known of its open connections and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Unknown,
    Asked,
    Told(u32, u32),
}

/// What SIGKILL has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    No,
    JustNow,
    /// It is still there: the kernel keeps a thread of it, for a file system that does not answer.
    InVain,
}

/// What comes of starting a process, in each of the two.
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
    /// Processes, descriptors or memory have run out.
    pub(crate) fn start(
        generation: &Rc<Generation>,
        logs: &LogRegistry,
        idle: Option<Duration>,
        detached: bool,
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

    /// What to wait on; none once its end is closed.
    pub(crate) fn control(&self) -> Option<&Control> {
        (!self.silent).then_some(&self.control)
    }

    /// The next thing it has to say.
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

    /// Asks how many connections and requests are open.
    pub(crate) fn count(&mut self) {
        if matches!(self.stage, ServerStage::Serving | ServerStage::Draining) {
            self.order(&Order::Count);
            self.open = Open::Asked;
        }
    }

    /// It has told how many.
    pub(crate) fn counted(&mut self, connections: u32, requests: u32) {
        self.open = Open::Told(connections, requests);
    }

    /// Whether it was asked, and has not told yet.
    pub(crate) fn is_counting(&self) -> bool {
        self.open == Open::Asked
    }

    /// The open connections and requests that it told of when it was last asked.
    pub(crate) fn open(&self) -> Option<(u32, u32)> {
        match self.open {
            Open::Told(connections, requests) => Some((connections, requests)),
            Open::Unknown | Open::Asked => None,
        }
    }

    /// Lets it start its workers.
    pub(crate) fn go(&mut self) {
        self.order(&Order::Go);
        self.stage = ServerStage::Starting;
    }

    /// Lets its workers take connections. False when it cannot be told so: it has to end.
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

    /// Lets it finish what is under way: a successor serves.
    pub(crate) fn succeed(&mut self, time: Duration) {
        self.order(&Order::Succeeded(time));
        self.drain_until(time);
    }

    /// Lets it finish what is under way: nobody comes after.
    pub(crate) fn finish(&mut self, time: Duration) {
        self.order(&Order::Finish(time));
        self.drain_until(time);
    }

    /// Ends it at once; what is under way is cut.
    pub(crate) fn stop(&mut self, why: Cut) {
        self.order(&Order::Stop(why));
        self.stage = ServerStage::Stopping;
        self.deadline = Some(Instant::now() + STOP_TIME);
    }

    /// Gives it a log's new descriptor, if it writes that log.
    pub(crate) fn renew_log(&self, target: &LogTarget, descriptor: &impl std::os::fd::AsFd) {
        let number = self
            .generation
            .log_targets
            .iter()
            .position(|known| known == target);
        let Some(number) = number.and_then(|number| u16::try_from(number).ok()) else {
            return;
        };
        if let Ok(descriptor) = descriptor.as_fd().try_clone_to_owned() {
            self.order(&Order::Log(number, descriptor));
        }
    }

    /// Gives it what the files of TLS contain now, `handed`, behind what it could not be given before.
    ///
    /// # Errors
    /// It could not be given. It is tried again the next time; one message tells of it.
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

    /// Pushes it on when its time is up.
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
                // It exists until it is waited for, so this cannot hit another process.
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

    /// Whether nothing ends it: it serves nobody any more and has no listeners, but a thread of it hangs in the
    /// kernel.
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
        // The process ends by itself at that time; a little later it is made to.
        let until = Instant::now() + time;
        self.drains_until = Some(until);
        self.deadline = Some(until + STOP_TIME);
    }

    /// A process that cannot be told anything has ended, or is dealt with at its deadline.
    fn order(&self, order: &Order) {
        let _ = self.control.order(order);
    }
}

/// How a process ended, in words.
pub(crate) fn describe(status: WaitStatus) -> String {
    describe_end(status.terminating_signal(), status.exit_status())
}

/// How a process ended, in words: by a signal, or with a code.
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
/// How long it may take to end when the kernel ends it.
const KILL_TIME: Duration = Duration::from_millis(1500);
/// How long it may take to end when told to: requests are cut, then the logs are written.
const STOP_TIME: Duration = Duration::from_millis(limits::CUT_MS + 1500);
