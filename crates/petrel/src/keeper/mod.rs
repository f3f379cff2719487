//! The keeper: the process that was started. It keeps root privileges, listeners and logs. It starts the
//! server process, restarts it after a crash, and replaces it at a reload. It also runs the backend programs
//! of the configuration.
//!
//! It has one thread with one loop on poll(2), which watches signals, a socket pair for each server process,
//! and the control socket. It serves no requests and reads nothing that comes from the network. A child
//! process watches the files of TLS.
//!
//! A server process is forked without exec, so it has exactly the configuration that was checked. A child
//! leaves the loop with a [`KeeperExit`], which drops everything that belongs to the keeper: descriptors are
//! closed, and values that remove a file when dropped do so only in the process that made the file.
#![expect(clippy::disallowed_methods, reason = "the keeper has no worker")]

pub(crate) mod backends;
mod backoff;
pub(crate) mod command_socket;
mod commands;
mod crash;
pub(crate) mod daemon;
mod generation;
pub(crate) mod pam_helper;
mod pid_file;
mod process;
mod program;
mod recorder;
mod reload;
pub(crate) mod signals;
pub(crate) mod tls_reader;
mod trial;

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use config::Diagnostics;
use engine::log::{LogRegistry, LogTarget, Rotations};
use engine::worker::Cut;
use modules::auth::PamDoor;
use modules::openssl::{self, TlsChange};
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sd_notify::NotifyState;

use crate::control::News;
use crate::listen::ListenerSet;
use crate::load::{Loaded, Origin};
use crate::server::{Handover, configure_logs};
use crate::terminal::{self, EXIT_FAILURE};
use crate::tls_files::now_s;
use crate::{load, summary};
use backends::Backends;
use backoff::Backoff;
use command_socket::Commands;
use commands::{Replaced, Waiting};
use daemon::Launch;
use generation::Generation;
use pam_helper::{PamAsking, PamHelper, StartedPamHelper};
use pid_file::PidFile;
use process::{ServerProcess, ServerStage, StartedServer, describe};
use program::Program;
use recorder::KeptRecorder;
use signals::{Received, Signals};
use tls_reader::{StartedTlsReader, TlsReader, TlsReading};
use trial::Trial;

/// What the keeper needs besides the configuration.
pub(crate) struct KeeperOptions {
    /// Where the configuration comes from, for a reload.
    pub(crate) origin: Origin,
    /// `-i`: exit after this time without a connection.
    pub(crate) idle: Option<Duration>,
    /// Lines to print on standard output once the server runs.
    pub(crate) announcement: Vec<String>,
    /// Reports to the process that the user started, if this one is in the background.
    pub(crate) launch: Option<Launch>,
    /// The sockets that the service manager passed.
    pub(crate) inherited: ListenerSet,
}

/// How a process leaves the keeper's loop.
pub(crate) enum KeeperExit {
    /// The keeper exits with this code.
    Exit(u8),
    /// This is a new server process, which goes on to serve.
    Server(Box<Handover>),
    /// This is the child that watches the files of TLS.
    TlsReader(Box<TlsReading>),
    /// This is the process that asks PAM about passwords.
    PamHelper(Box<PamAsking>),
}

/// Runs the server until it is stopped.
pub(crate) fn run(options: KeeperOptions, loaded: Loaded) -> KeeperExit {
    let is_generated = matches!(options.origin, Origin::Text { .. });
    modules::auth::prepare();
    match Keeper::open(options, loaded) {
        Ok(keeper) => keeper.run(),
        Err(mut errors) => {
            if is_generated {
                // The text was generated, so showing lines of it would not help the user.
                errors.list.iter_mut().for_each(|error| error.span = None);
            }
            load::print_errors(&errors);
            KeeperExit::Exit(EXIT_FAILURE)
        }
    }
}

struct Keeper {
    origin: Origin,
    idle: Option<Duration>,
    announcement: Vec<String>,
    launch: Option<Launch>,
    /// Standard output and standard error are closed, or will be once the server runs.
    detached: bool,
    signals: Signals,
    logs: LogRegistry,
    rotations: Rotations,
    inherited: ListenerSet,
    pid_file: Option<PidFile>,
    commands: Commands,
    /// Commands that wait for their reply.
    waiting: Vec<Waiting>,
    started: Instant,
    program: Program,
    /// How many configurations were opened.
    generations: u64,
    processes: Vec<ServerProcess>,
    backends: Backends,
    /// The generation that is served.
    current: Rc<Generation>,
    /// The trial run of a new configuration.
    trial: TrialState,
    /// The generation that a reload has opened and that will replace `current`.
    next: Option<Rc<Generation>>,
    /// How many reloads were begun.
    reloads: u64,
    /// Whether the current reload aborts the requests of older configurations at once.
    reload_cuts: bool,
    /// The messages of the current reload.
    reload_says: Vec<String>,
    /// A successful reload whose reply waits for the old server processes to stop accepting.
    replaced: Option<Replaced>,
    /// Another reload was requested during the current one.
    reload_again: Option<Again>,
    /// When to start a server process for `current`.
    start_at: Option<Instant>,
    backoff: Backoff,
    /// Whether a server process has ever served.
    has_served: bool,
    /// The child that watches the files of TLS, and earlier ones that have not ended yet.
    tls_readers: Vec<TlsReader>,
    /// No new one is started before this time.
    tls_reader_at: Instant,
    /// When to look next at the secrets of session tickets, and at changes that could not be sent.
    tls_tend_at: Instant,
    /// What asks PAM about passwords, from the first configuration on that needs it.
    pam: Option<PamHelper>,
    /// The memory of counters and records.
    recorder: KeptRecorder,
    stopping: Option<Stopping>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopping {
    Gracefully,
    AtOnce,
}

/// A further reload that was requested.
struct Again {
    /// Whether it aborts the requests of older configurations at once.
    cuts: bool,
}

/// The state of the trial run of a new configuration.
enum TrialState {
    None,
    Wanted,
    Reading(Trial),
}

type Step = ControlFlow<KeeperExit>;

impl Keeper {
    fn open(options: KeeperOptions, loaded: Loaded) -> Result<Keeper, Diagnostics> {
        let fails = |what: &str, error: io::Error| {
            generation::refuse(&loaded, format!("{what}: {error}"), None)
        };
        let signals = Signals::open().map_err(|error| fails("signals", error))?;
        let logs = LogRegistry::open([]).map_err(|error| fails("logs", error))?;
        let mut backends = Backends::new(options.launch.is_some());
        let (before, inherited) = (ListenerSet::default(), &options.inherited);
        let opened = Generation::open(1, loaded, &before, None, inherited, &logs, &mut backends)?;
        let current = Rc::new(opened.generation);
        for warning in &opened.diagnostics {
            load::print_diagnostic(warning, &current.loaded);
        }
        for warning in opened.warnings {
            terminal::complain(format_args!("petrel: warning: {warning}"));
        }
        let recorder = KeptRecorder::open(&current.loaded.process, &logs);
        let mut keeper = Keeper {
            origin: options.origin,
            idle: options.idle,
            announcement: options.announcement,
            detached: options.launch.is_some(),
            launch: options.launch,
            signals,
            logs,
            rotations: Rotations::new(Instant::now()),
            inherited: options.inherited,
            pid_file: None,
            commands: Commands::default(),
            waiting: Vec::new(),
            started: Instant::now(),
            program: Program::running(),
            generations: 1,
            processes: Vec::new(),
            backends,
            current,
            trial: TrialState::None,
            next: None,
            reloads: 0,
            reload_cuts: false,
            reload_says: Vec::new(),
            replaced: None,
            reload_again: None,
            start_at: Some(Instant::now()),
            backoff: Backoff::default(),
            has_served: false,
            tls_readers: Vec::new(),
            tls_reader_at: Instant::now(),
            tls_tend_at: Instant::now() + TLS_TEND_EVERY,
            pam: None,
            recorder,
            stopping: None,
        };
        if let Some(warning) = keeper.open_command_socket()? {
            terminal::complain(format_args!("petrel: warning: {warning}"));
        }
        // The control socket comes first: if another server holds it, this start fails and that server's pid
        // file must stay.
        keeper.pid_file = reload::write_pid_file(&keeper.current)?;
        configure_logs(&keeper.logs, &keeper.current.loaded);
        keeper.log_start();
        for line in summary::lines(&keeper.current.loaded) {
            keeper.logs.error(format_args!("{line}"));
        }
        Ok(keeper)
    }

    /// The first line of the log, for operators: what is about to serve.
    fn log_start(&self) {
        let listeners = self.current.listeners.borrow();
        let addresses: Vec<&str> = listeners.addresses().collect();
        let workers = self.current.loaded.process.workers.get();
        self.logs.error(format_args!(
            "Petrel {} starts: configuration {}; addresses {}; {workers} {}; user {}",
            env!("CARGO_PKG_VERSION"),
            self.origin,
            addresses.join(", "),
            if workers == 1 { "worker" } else { "workers" },
            self.current.identity.user_name(),
        ));
    }

    fn run(mut self) -> KeeperExit {
        loop {
            if let ControlFlow::Break(end) = self.turn() {
                return end;
            }
        }
    }

    /// One turn of the loop: starts what is due, waits, and acts on what has arrived.
    fn turn(&mut self) -> Step {
        self.start_what_is_due()?;
        self.wait();
        for index in 0..self.processes.len() {
            self.hear(index);
        }
        while let Some(received) = self.signals.next() {
            self.signal(received);
        }
        self.bury()?;
        self.look_after_trial();
        let now = Instant::now();
        for process in &mut self.processes {
            process.check_deadline(now);
        }
        self.tend_logs();
        self.follow_rotations(now);
        self.hear_tls_readers(now);
        self.tend_tls(now);
        self.tend_pam_helper();
        self.hear_recorder(now);
        self.tend_backends(now);
        self.tend_commands(now);
        match self.stopping {
            Some(_) if self.has_ended() && self.backends.is_empty() => self.stopped(),
            _ => ControlFlow::Continue(()),
        }
    }

    fn start_what_is_due(&mut self) -> Step {
        // Also while the server stops: requests that are under way may need it.
        self.start_pam_helper()?;
        self.dump_recorder()?;
        if self.stopping.is_some() {
            return ControlFlow::Continue(());
        }
        if self.start_at.is_some_and(|at| at <= Instant::now()) {
            self.start_at = None;
            let generation = Rc::clone(&self.current);
            self.start(&generation)?;
        }
        if matches!(self.trial, TrialState::Wanted) {
            self.start_trial()?;
        }
        self.start_tls_reader()?;
        match self.next.clone() {
            Some(next) if !self.is_started(&next) => self.start(&next),
            _ => ControlFlow::Continue(()),
        }
    }

    fn is_started(&self, generation: &Rc<Generation>) -> bool {
        self.processes
            .iter()
            .any(|process| Rc::ptr_eq(&process.generation, generation))
    }

    fn start(&mut self, generation: &Rc<Generation>) -> Step {
        if let Err(why) = self.backends.start(&generation.backends, &self.logs) {
            return self.could_not_start(generation, &why);
        }
        let pam = match self.pam_door(generation) {
            Ok(pam) => pam,
            Err(error) => return self.could_not_start(generation, &error.to_string()),
        };
        let memory = self.recorder.memory_beside(&self.processes);
        let (idle, detached) = (self.idle, self.detached);
        match ServerProcess::start(generation, &self.logs, idle, detached, pam, memory) {
            Ok(StartedServer::Server(handover)) => {
                return ControlFlow::Break(KeeperExit::Server(handover));
            }
            Ok(StartedServer::Keeper(process)) => self.processes.push(process),
            Err(error) => self.could_not_start(generation, &error.to_string())?,
        }
        ControlFlow::Continue(())
    }

    /// Waits until a signal or a message arrives, or something is due.
    fn wait(&self) {
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![self.signals.as_fd()];
        descriptors.extend(
            self.processes
                .iter()
                .filter_map(|process| Some(process.control()?.as_fd())),
        );
        descriptors.extend(self.rotations.descriptor());
        if let TrialState::Reading(trial) = &self.trial {
            descriptors.extend(trial.says());
        }
        descriptors.extend(self.tls_readers.iter().filter_map(TlsReader::tells));
        descriptors.extend(self.recorder.says());
        let readable = descriptors.into_iter().map(|known| (known, PollFlags::IN));
        let watched: Vec<_> = readable.chain(self.commands.polled()).collect();
        let mut polled: Vec<PollFd<'_>> = watched
            .iter()
            .map(|(descriptor, flags)| PollFd::new(descriptor, *flags))
            .collect();
        let limit = self.next_deadline().map(|at| {
            // A millisecond more, so that the deadline has passed when poll returns.
            let time = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec {
                tv_sec: time.as_secs() as i64,
                tv_nsec: time.subsec_nanos().into(),
            }
        });
        // An interrupted call only causes a turn without work.
        let _ = poll(&mut polled, limit.as_ref());
    }

    fn next_deadline(&self) -> Option<Instant> {
        let tends = self.has_log_commands() || self.logs.has_waiting();
        let tending = tends.then(|| Instant::now() + TEND_EVERY);
        let processes = self.processes.iter().filter_map(|process| process.deadline);
        let trial = match &self.trial {
            TrialState::Reading(trial) => trial.deadline,
            TrialState::None | TrialState::Wanted => None,
        };
        processes
            .chain(self.start_at)
            .chain(tending)
            .chain(trial)
            .chain([self.rotations.deadline(Instant::now())])
            .chain(self.current.tls.is_some().then_some(self.tls_tend_at))
            .chain(self.wants_tls_reader().then_some(self.tls_reader_at))
            .chain(self.pam.as_ref().and_then(PamHelper::start_at))
            .chain(self.backends.deadline(Instant::now()))
            .chain(self.recorder.deadline())
            .chain(self.commands.deadline())
            .chain(self.commands_due())
            .min()
    }

    fn signal(&mut self, received: Received) {
        match received.signal {
            Signal::SIGTERM => self.stop_at_once(&sender(received)),
            Signal::SIGINT if self.stopping.is_some() => self.stop_at_once(&sender(received)),
            Signal::SIGINT => self.stop_gracefully(&format!("by {}", sender(received))),
            Signal::SIGHUP => drop(self.reopen_logs()),
            Signal::SIGUSR1 => drop(self.reload(false)),
            Signal::SIGUSR2 => self.recorder.wants_dump = true,
            // SIGCHLD needs no action here, because `bury` looks at every process in each turn.
            _ => {}
        }
    }

    fn stop_at_once(&mut self, sender: &str) {
        if self.stopping != Some(Stopping::AtOnce) {
            self.logs
                .error(format_args!("server is stopped by {sender}"));
        }
        self.begin_to_stop(Stopping::AtOnce);
        for process in &mut self.processes {
            process.stop(Cut::StopNow);
        }
    }

    fn stop_gracefully(&mut self, why: &str) {
        self.logs
            .error(format_args!("graceful shutdown started {why}"));
        self.begin_to_stop(Stopping::Gracefully);
        let time = reload::time_of(self.current.loaded.process.drain.stop_s);
        for process in &mut self.processes {
            match process.stage {
                // A process that is starting may have connections already. One that drains was given more
                // time by its reload than a stop allows.
                ServerStage::Starting | ServerStage::Serving | ServerStage::Draining => {
                    process.finish(time)
                }
                ServerStage::Preparing => process.stop(Cut::StopNow),
                ServerStage::Stopping => {}
            }
        }
    }

    fn begin_to_stop(&mut self, how: Stopping) {
        self.stopping = Some(how);
        self.next = None;
        self.start_at = None;
        if let TrialState::Reading(trial) = &mut self.trial {
            trial.kill();
        }
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
        // The addresses are free once the server processes have closed these sockets, too.
        for process in &self.processes {
            process.generation.listeners.take();
        }
        self.current.listeners.take();
        self.inherited = ListenerSet::default();
        // Another server can start now and have its control socket at that path.
        if let Some(socket) = &mut self.commands.socket {
            socket.remove_name();
        }
    }

    /// Whether a server process is still finishing requests of an earlier configuration.
    fn has_draining(&self) -> bool {
        let mut processes = self.processes.iter();
        processes.any(|process| process.stage == ServerStage::Draining)
    }

    /// Whether no server process is left, apart from those that even SIGKILL does not end.
    fn has_ended(&self) -> bool {
        let mut processes = self.processes.iter();
        processes.all(ServerProcess::is_beyond_killing)
    }

    fn stopped(&mut self) -> Step {
        for process in &self.processes {
            self.logs.error(format_args!(
                "server process {} was killed and is still there: a thread of it hangs in the kernel, most \
                likely for a file system that does not answer",
                process.id()
            ));
        }
        self.logs.error(format_args!("server stopped"));
        self.pid_file = None;
        for lost in self.logs.shut_down(LOG_TIME) {
            terminal::complain(format_args!("petrel: {lost}"));
        }
        self.answer_stops();
        ControlFlow::Break(KeeperExit::Exit(0))
    }

    /// Acts on all messages from the process with number `index`.
    fn hear(&mut self, index: usize) {
        while let Some(news) = self.processes.get_mut(index).and_then(ServerProcess::news) {
            self.news(index, news);
        }
    }

    fn news(&mut self, index: usize, news: News) {
        let Some(process) = self.processes.get_mut(index) else {
            return;
        };
        match news {
            News::Prepared if process.stage == ServerStage::Preparing => {
                let listening = process.generation.listeners.borrow().listen();
                match listening {
                    Ok(()) => process.go(),
                    Err(error) => {
                        process.reason = Some(error.to_string());
                        process.stop(Cut::StopNow);
                    }
                }
            }
            News::Ready if process.stage == ServerStage::Starting => self.ready(index),
            News::Failed(why) => process.reason = Some(why),
            News::LinesLost(what) => {
                let id = process.id();
                self.logs
                    .error(format_args!("server process {id} has ended: {what}"));
            }
            News::Left => process.has_left = true,
            News::Open {
                connections,
                requests,
            } => process.counted(connections, requests),
            News::Overloaded(number) => {
                let backends = &process.generation.backends;
                if let Some(id) = backends.get(usize::from(number)) {
                    self.backends.overload(*id, Instant::now());
                }
            }
            News::Idle if self.stopping.is_none() && !self.has_draining() => {
                self.stop_gracefully("after the time without a connection that -i allows");
            }
            // `Idle` may arrive when an older server process is still busy, or just after an order to stop.
            News::Prepared | News::Ready | News::Idle => {}
        }
    }

    /// A server process is ready: it starts to serve, and older ones are told to finish.
    fn ready(&mut self, index: usize) {
        let generation = Rc::clone(&self.processes[index].generation);
        let is_next = self
            .next
            .as_ref()
            .is_some_and(|next| Rc::ptr_eq(next, &generation));
        if is_next {
            // Before it serves, because the connections that it makes must reach the new programs.
            self.backends.publish(&generation.backends, &self.logs);
        }
        if !self.processes[index].serve() {
            return;
        }
        if is_next {
            self.adopt_next(generation, index);
        }
        if !self.has_served {
            self.has_served = true;
            self.first_ready();
        }
    }

    fn first_ready(&mut self) {
        let version = env!("CARGO_PKG_VERSION");
        self.logs
            .error(format_args!("server started (petrel/{version})"));
        for line in std::mem::take(&mut self.announcement) {
            terminal::say(format_args!("{line}"));
        }
        if let Some(launch) = self.launch.take()
            && let Err(error) = launch.succeeded()
        {
            self.logs
                .error(format_args!("letting go of the terminal failed: {error}"));
        }
        let _ = sd_notify::notify(&[NotifyState::Ready]);
    }

    /// Stops the backend programs that are no longer needed, and tends to the others. Server processes that
    /// drain still need theirs.
    fn tend_backends(&mut self, now: Instant) {
        let mut generations: Vec<&Generation> = self
            .processes
            .iter()
            .map(|process| &*process.generation)
            .collect();
        if self.stopping.is_none() {
            generations.push(&self.current);
            generations.extend(self.next.as_deref());
        }
        let is_needed = |id| {
            generations
                .iter()
                .any(|generation| generation.backends.contains(&id))
        };
        self.backends.retain(is_needed, now);
        self.backends.tend(&self.logs, now);
    }

    /// Reopens all logs, for all server processes.
    ///
    /// # Errors
    /// A log could not be opened. It continues in the old file, and the error log says so.
    fn reopen_logs(&mut self) -> io::Result<()> {
        let reopened = self.logs.reopen_all(self.current.identity.file_owner());
        match self.logs.descriptors() {
            Ok(descriptors) => {
                let files = descriptors
                    .iter()
                    .filter(|(target, _)| matches!(target, LogTarget::File(_)));
                for (target, descriptor) in files {
                    self.renew_log(target, descriptor);
                }
                self.logs.error(format_args!("logs reopened"));
            }
            Err(error) => {
                self.logs
                    .error(format_args!("the logs were not reopened: {error}"));
                return Err(error);
            }
        }
        reopened
    }

    /// Reopens the logs whose files were renamed or removed.
    fn follow_rotations(&mut self, now: Instant) {
        let owner = self.current.identity.file_owner();
        for (target, descriptor) in self.rotations.look(&self.logs, owner, now) {
            self.renew_log(&target, &descriptor);
        }
    }

    /// What a server process for `generation` sends questions to PAM into, if the configuration has some.
    fn pam_door(&mut self, generation: &Generation) -> io::Result<Option<PamDoor>> {
        let services = generation.loaded.pam_services();
        if services.is_empty() {
            return Ok(None);
        }
        let mut pam = match self.pam.take() {
            Some(pam) => pam,
            None => PamHelper::open()?,
        };
        pam.serve(services);
        self.pam.insert(pam).door().map(Some)
    }

    fn start_pam_helper(&mut self) -> Step {
        let now = Instant::now();
        let due = |pam: &&mut PamHelper| pam.start_at().is_some_and(|at| at <= now);
        let Some(pam) = self.pam.as_mut().filter(due) else {
            return ControlFlow::Continue(());
        };
        match pam.start() {
            Ok(StartedPamHelper::Helper(asking)) => {
                return ControlFlow::Break(KeeperExit::PamHelper(asking));
            }
            Ok(StartedPamHelper::Keeper) => {}
            Err(error) => self.logs.error(format_args!(
                "PAM: passwords cannot be checked, it is tried again: {error}"
            )),
        }
        ControlFlow::Continue(())
    }

    /// Sees the end of the process that asks PAM, and ends it when no configuration in use needs it.
    fn tend_pam_helper(&mut self) {
        let Some(pam) = &mut self.pam else { return };
        if let Some(status) = pam.wait() {
            self.logs.error(format_args!(
                "PAM: the process that checks passwords {}; another one is started",
                describe(status)
            ));
        }
        let served = self.processes.iter().map(|process| &process.generation);
        let mut in_use = served.chain([&self.current]).chain(&self.next);
        if !in_use.any(|generation| !generation.loaded.pam_services().is_empty()) {
            pam.end();
            if !pam.runs() {
                self.pam = None;
            }
        }
    }

    /// Whether a child that watches the files of TLS is missing.
    fn wants_tls_reader(&self) -> bool {
        let is_current = |reader: &TlsReader| self.looks_at_current(reader);
        let is_wanted = self.stopping.is_none() && self.current.tls.is_some();
        is_wanted && !self.tls_readers.iter().any(is_current)
    }

    fn looks_at_current(&self, reader: &TlsReader) -> bool {
        reader.generation == self.current.number && !reader.is_killed
    }

    fn start_tls_reader(&mut self) -> Step {
        let now = Instant::now();
        let current = Rc::clone(&self.current);
        if now < self.tls_reader_at || !self.wants_tls_reader() {
            return ControlFlow::Continue(());
        }
        let Some(files) = &current.tls else {
            return ControlFlow::Continue(());
        };
        match TlsReader::start(files, current.number) {
            Ok(StartedTlsReader::Reader(reading)) => {
                return ControlFlow::Break(KeeperExit::TlsReader(reading));
            }
            Ok(StartedTlsReader::Keeper(reader)) => self.tls_readers.push(reader),
            Err(error) => {
                self.tls_reader_at = now + TLS_READER_PAUSE;
                self.logs.error(format_args!(
                    "TLS: the process that reads changed certificates cannot be started: {error}; trying again in {} s",
                    TLS_READER_PAUSE.as_secs()
                ));
            }
        }
        ControlFlow::Continue(())
    }

    /// Takes changes from the child that watches the files of TLS, and kills the children of earlier
    /// configurations.
    fn hear_tls_readers(&mut self, now: Instant) {
        let mut readers = std::mem::take(&mut self.tls_readers);
        for reader in &mut readers {
            if self.stopping.is_none() && self.looks_at_current(reader) {
                while let Some(change) = reader.next() {
                    self.take_tls(change);
                }
            } else if !reader.is_killed {
                // Its changes are dropped, because they refer to files by their place in the configuration
                // that it was started for. The next child compares with what was read when the new
                // configuration was opened.
                reader.kill();
            }
        }
        readers.retain(|reader| {
            let ended = reader.wait();
            if let Some(status) = ended
                && !reader.is_killed
            {
                self.tls_reader_at = now + TLS_READER_PAUSE;
                self.logs.error(format_args!(
                    "TLS: the process that reads changed certificates {}; starting another one in {} s",
                    describe(status),
                    TLS_READER_PAUSE.as_secs()
                ));
            }
            ended.is_none()
        });
        self.tls_readers = readers;
    }

    /// Sends changed TLS files to the server processes of the current configuration. Those of earlier ones
    /// make no new handshakes.
    fn take_tls(&self, change: TlsChange) {
        for line in change.lines {
            self.logs.error(format_args!("{line}"));
        }
        let Some(files) = &self.current.tls else {
            return;
        };
        // Server processes that are forked later inherit it.
        if let Err(error) = openssl::adopt(&files.store, &change.handed) {
            self.logs.error(format_args!(
                "TLS: changed files cannot be used, the old ones stay: {error}"
            ));
        }
        self.hand_tls(&change.handed);
    }

    fn hand_tls(&self, handed: &[u8]) {
        let handed = (!handed.is_empty()).then(|| Rc::from(handed));
        let theirs = |process: &&ServerProcess| Rc::ptr_eq(&process.generation, &self.current);
        for process in self.processes.iter().filter(theirs) {
            if let Err(error) = process.renew_tls(handed.as_ref()) {
                self.logs.error(format_args!(
                    "TLS: changed files cannot be sent to server process {}: {error}; trying again",
                    process.id()
                ));
            }
        }
    }

    /// Renews the secret of session tickets when it is time, and retries changes that could not be sent.
    fn tend_tls(&mut self, now: Instant) {
        if now < self.tls_tend_at {
            return;
        }
        self.tls_tend_at = now + TLS_TEND_EVERY;
        let Some(files) = &self.current.tls else {
            return;
        };
        let change = openssl::turn_tickets(&files.store, now_s());
        for line in change.lines {
            self.logs.error(format_args!("{line}"));
        }
        self.hand_tls(&change.handed);
    }

    /// Closes the logs that no server process writes to any more. A process that drains writes to the logs of
    /// its own configuration.
    fn close_unused_logs(&mut self) {
        let processes = self.processes.iter().map(|process| &process.generation);
        let used = processes.chain([&self.current]).chain(&self.next);
        let used = used
            .flat_map(|generation| &generation.log_targets)
            .collect();
        self.logs.retain(&used, Duration::from_millis(100));
        self.rotations.logs_changed(Instant::now());
    }

    fn renew_log(&self, target: &LogTarget, descriptor: &impl AsFd) {
        for process in &self.processes {
            process.renew_log(target, descriptor);
        }
    }

    fn has_log_commands(&self) -> bool {
        self.logs
            .targets()
            .iter()
            .any(|target| matches!(target, LogTarget::Pipe(_)))
    }

    /// Restarts log commands (`|program`) that have ended, and writes lines that a full disk has refused.
    fn tend_logs(&mut self) {
        for (target, descriptor) in self.logs.tend() {
            self.renew_log(&target, &descriptor);
        }
    }
}

fn sender(received: Received) -> String {
    format!("UID = {} PID = {}", received.sender_user, received.sender)
}

/// How often log commands are checked, and lines that wait are tried again.
const TEND_EVERY: Duration = Duration::from_millis(500);
/// How often secrets of session tickets are checked, and failed changes are retried.
const TLS_TEND_EVERY: Duration = Duration::from_secs(10);
/// The pause before a new child watches the files of TLS, after one has ended by itself.
const TLS_READER_PAUSE: Duration = Duration::from_secs(10);
/// How long the logs may take at the end to write what is queued.
const LOG_TIME: Duration = Duration::from_secs(1);
