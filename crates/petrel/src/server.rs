//! The server process: takes over what the keeper has opened, gives up its privileges, serves.
//!
//! It opens no listening socket and no log file: those come from the keeper. Its main thread waits for the
//! keeper's orders while the engine's workers serve. It ends when the keeper does.
#![expect(clippy::disallowed_methods, reason = "the first thread has no worker")]

mod freed_memory;
mod snapshot;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::handed::Handed;
use engine::log::{LogRegistry, LogTarget};
use engine::mounts;
use engine::recorder::SharedMemory;
use engine::server::{BoundListener, Server, ServerPlan};
use engine::worker::{Cut, Drain};
use engine::{file_report, limits};
use indexmap::IndexSet;
use modules::gateway::options::{addresses, spawn_specs};
use modules::gateway::overload;
use modules::gateway::resolve::{FollowedNames, NameServers};
use modules::gateway::why_acceptance_is_unseen;
use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use modules::auth::PamDoor;
use modules::openssl::TlsStore;

use crate::control::{Control, News, Order};
use crate::load::Loaded;
use crate::stdio;
use crate::tls_files;
use crate::user::Identity;
use freed_memory::FreedMemory;
use snapshot::Snapshots;

/// What the keeper hands to a server process it has just forked.
pub(crate) struct Handover {
    /// The configuration.
    pub(crate) loaded: Loaded,
    /// The bound sockets. They listen when [`Order::Go`] arrives.
    pub(crate) listeners: Vec<BoundListener>,
    /// The open logs.
    pub(crate) logs: Vec<(LogTarget, OwnedFd)>,
    /// The log targets that the numbers in [`Order::Log`] refer to.
    pub(crate) log_targets: IndexSet<LogTarget>,
    /// The server process's end of the socket pair.
    pub(crate) control: Control,
    /// The user and groups to switch to.
    pub(crate) identity: Identity,
    /// Report to the keeper after this time without a connection.
    pub(crate) idle: Option<Duration>,
    /// The keeper's process id.
    pub(crate) keeper: u32,
    /// Whether the process detaches from the terminal.
    pub(crate) detached: bool,
    /// Certificates and keys, if TLS is configured.
    pub(crate) tls: Option<Arc<TlsStore>>,
    /// The way to the process that asks PAM about passwords.
    pub(crate) pam: Option<PamDoor>,
    /// How often the configuration was loaded: 1 at a start, more after reloads.
    pub(crate) generation: u64,
    /// Memory that outlives this process.
    pub(crate) memory: SharedMemory,
}

/// Serves until the keeper orders the process to stop. Returns the exit code.
pub(crate) fn run(handover: Handover) -> u8 {
    let control = Arc::new(handover.control);
    report_panics(&control);
    let logs = open_logs(&handover.loaded, handover.logs);
    let freed_memory = FreedMemory::new();
    let served = logs.and_then(|logs| {
        let name_servers = give_up(
            &handover.loaded,
            &handover.identity,
            handover.keeper,
            handover.detached,
        )?;
        let process = Process {
            control: &control,
            logs,
            name_servers,
            log_targets: &handover.log_targets,
            tls: handover.tls,
            pam: handover.pam,
            generation: handover.generation,
            memory: handover.memory,
        };
        process.serve(
            &handover.loaded,
            handover.listeners,
            handover.idle,
            freed_memory,
        )
    });
    match served {
        Ok(()) => 0,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => KEEPER_GONE,
        Err(error) => {
            // If this fails, the keeper still notices the end of this process.
            let _ = control.tell(&News::Failed(error.to_string()));
            FAILED
        }
    }
}

/// Does what needs privileges, then gives them up. No thread may be running yet. With a chroot, returns the
/// system's name servers, since their configuration is out of reach afterwards.
pub(crate) fn give_up(
    loaded: &Loaded,
    identity: &Identity,
    keeper: u32,
    detached: bool,
) -> io::Result<Option<NameServers>> {
    if detached {
        stdio::let_go()?;
    }
    leave_signals_to_the_keeper()?;
    let process = &loaded.process;
    let mut servers = None;
    if let Some(root) = &process.chroot {
        // The system's list of name servers and its hosts file cannot be read inside the chroot.
        servers = Some(NameServers::of_system());
        enter(root)?;
    }
    identity
        .assume()
        .map_err(|error| told("giving up privileges failed", &error))?;
    // This must follow the change of user, because that change resets both settings.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    if process.core_files {
        nix::sys::prctl::set_dumpable(true)?;
    }
    // If the keeper died before prctl, the kernel will send no signal.
    match std::os::unix::process::parent_id() == keeper {
        true => Ok(servers),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Makes `root` the root directory of the process.
pub(crate) fn enter(root: &Path) -> io::Result<()> {
    // If this fails, the next line reports it.
    let _ = mounts::prepare_for(root);
    // If this fails, the network backend that needs it says so when it is used.
    let _ = sys::read_queue::prepare_direct();
    let entered = nix::unistd::chroot(root).and_then(|()| nix::unistd::chdir("/"));
    entered.map_err(|error| told(&format!("chroot to {}", root.display()), &error.into()))
}

/// Blocks signals that a whole process group may get: systemd, for one, sends SIGTERM to all processes of a
/// unit. The keeper acts on them. If this process ended at the same time, queued log lines would be lost.
fn leave_signals_to_the_keeper() -> io::Result<()> {
    let mask = SigSet::from_iter([
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ]);
    Ok(mask.thread_set_mask()?)
}

/// Called before a chroot, which hides the time zone and the socket of the syslog daemon.
fn open_logs(loaded: &Loaded, logs: Vec<(LogTarget, OwnedFd)>) -> io::Result<LogRegistry> {
    let by_syslog = loaded
        .log_targets()
        .contains(&LogTarget::Syslog)
        .then_some(LogTarget::Syslog);
    let registry = LogRegistry::open(by_syslog)?;
    registry.adopt(logs);
    configure_logs(&registry, loaded);
    Ok(registry)
}

/// Applies a configuration's settings about logs.
pub(crate) fn configure_logs(logs: &LogRegistry, loaded: &Loaded) {
    logs.set_error_log(loaded.process.error_log.clone());
    logs.set_syslog_facility(loaded.process.syslog_facility);
    logs.set_time_precision(loaded.process.features.error_log_precision);
}

/// A panic is a defect: this reports its place to the keeper's log, and the process ends at once instead of
/// continuing with one worker less.
fn report_panics(control: &Arc<Control>) {
    let control = Arc::clone(control);
    std::panic::set_hook(Box::new(move |panic| {
        let _ = control.tell(&News::Failed(panic.to_string()));
        std::process::abort();
    }));
}

/// A server process that has given up its privileges.
struct Process<'a> {
    control: &'a Arc<Control>,
    logs: LogRegistry,
    name_servers: Option<NameServers>,
    log_targets: &'a IndexSet<LogTarget>,
    tls: Option<Arc<TlsStore>>,
    pam: Option<PamDoor>,
    generation: u64,
    memory: SharedMemory,
}

impl Process<'_> {
    fn serve(
        mut self,
        loaded: &Loaded,
        listeners: Vec<BoundListener>,
        idle: Option<Duration>,
        mut freed_memory: FreedMemory,
    ) -> io::Result<()> {
        self.control.tell(&News::Prepared)?;
        if !self.wait_for_go()? {
            return Ok(());
        }
        sys::allocator::give_back_from(limits::LARGE_ALLOCATION_BYTES);
        self.logs.start()?;
        let mut handed = Handed::default().with(Arc::clone(&loaded.trusts));
        if let Some(store) = &self.tls {
            store.set_time(tls_files::now_s());
            handed = handed.with(Arc::clone(store));
        }
        if let Some(pam) = self.pam.take() {
            handed = handed.with(Arc::new(pam));
        }
        let plan = ServerPlan {
            config: Arc::clone(&loaded.config),
            schema: Arc::clone(&loaded.schema),
            modules: loaded.modules.clone(),
            process: Arc::clone(&loaded.process),
            logs: Arc::new(self.logs.clone()),
            handed,
            memory: self.memory.clone(),
        };
        // At a start, and not at a reload.
        if self.generation == 1 {
            file_report::tell(&loaded.config, &loaded.process, &self.logs);
            if !addresses(&loaded.config, modules::MODULES).is_empty()
                && let Some(why) = why_acceptance_is_unseen()
            {
                self.logs.error(format_args!("backends: {why}"));
            }
        }
        if loaded.runs_lua() && !lua::budget::proof::compiled_loops_stop() {
            self.logs
                .error(format_args!("lua: {}", lua::budget::proof::REMEDY));
        }
        let server = Server::start(plan, listeners)?;
        server.shared().metrics().set_generation(self.generation);
        if let Some(servers) = self.name_servers.take() {
            FollowedNames::of(server.shared()).prepare(servers);
        }
        self.pass_reports_on(loaded, &server);
        self.control.tell(&News::Ready)?;
        let mut idleness = idle.map(Idleness::new);
        let result = self.obey(&server, &mut idleness, &mut freed_memory);
        if result.is_err() {
            server.cut_off(Cut::StopNow);
        }
        let exporter = modules::opentelemetry::exporter(server.shared());
        server.join();
        exporter.finish(SPAN_TIME);
        for lost in self.logs.shut_down(LOG_TIME) {
            // If the keeper is gone, there is no log that could have it.
            let _ = self.control.tell(&News::LinesLost(lost));
        }
        result
    }

    /// Passes reports of overloaded backend programs to the keeper, which may start more of their processes.
    fn pass_reports_on(&self, loaded: &Loaded, server: &Server) {
        // This cannot fail: the keeper has parsed the same configuration.
        let specs = spawn_specs(&loaded.config, modules::MODULES).unwrap_or_default();
        let control = Arc::clone(self.control);
        // A report may be lost if the keeper is busy; the next one makes up for it.
        let hear = move |number| drop(control.tell(&News::Overloaded(number)));
        overload::listen(server.shared(), specs, hear);
    }

    /// Waits for [`Order::Go`]. Returns false if the keeper orders the process to end instead.
    fn wait_for_go(&self) -> io::Result<bool> {
        loop {
            self.wait(Duration::from_secs(60), None, None)?;
            match self.control.next_order()? {
                Some(Order::Go) => return Ok(true),
                Some(Order::Log(number, log)) => self.adopt(number, log),
                Some(Order::Tls(handed)) => self.adopt_tls(handed),
                Some(Order::Stop(_) | Order::Finish(_) | Order::Succeeded(_)) => return Ok(false),
                Some(Order::Serve | Order::Count | Order::Snapshot(_)) | None => {}
            }
        }
    }

    /// Acts on orders until the workers have ended.
    fn obey(
        &self,
        server: &Server,
        idleness: &mut Option<Idleness>,
        freed_memory: &mut FreedMemory,
    ) -> io::Result<()> {
        let mut has_left = false;
        let mut is_told = false;
        let snapshots = Snapshots::default();
        loop {
            let left = (!has_left).then(|| server.left());
            match self.wait(LOOK_EVERY, Some(server.ended()), left)? {
                Awaited::End => return Ok(()),
                Awaited::Leaving => has_left = true,
                Awaited::Other => {}
            }
            // The keeper may not have read earlier messages yet. Then the next turn, at most a second later,
            // tries again.
            if has_left && !is_told {
                is_told = self.control.tell_if_there_is_room(&News::Left)?;
            }
            freed_memory.look(server, Instant::now());
            if let Some(store) = &self.tls {
                store.set_time(tls_files::now_s());
            }
            while let Some(order) = self.control.next_order()? {
                match order {
                    Order::Go => continue,
                    Order::Serve => {
                        server.serve();
                        continue;
                    }
                    Order::Log(number, log) => {
                        self.adopt(number, log);
                        continue;
                    }
                    Order::Tls(handed) => {
                        self.adopt_tls(handed);
                        continue;
                    }
                    Order::Count => {
                        self.tell_open(server);
                        continue;
                    }
                    Order::Snapshot(connection) => {
                        snapshots.write(server.shared(), connection);
                        continue;
                    }
                    // `serve` first, so that connections already in the sockets' queues are accepted even
                    // now.
                    Order::Succeeded(time) => {
                        server.serve();
                        modules::drain(server.shared());
                        server.drain(Drain::Successor, time);
                    }
                    Order::Finish(time) => {
                        server.serve();
                        modules::drain(server.shared());
                        server.drain(Drain::Stop, time);
                    }
                    Order::Stop(why) => server.cut_off(why),
                }
                *idleness = None;
                freed_memory.drains();
            }
            if idleness
                .as_mut()
                .is_some_and(|idleness| idleness.is_over(server))
                && self.control.tell_if_there_is_room(&News::Idle)?
            {
                // The keeper ignores this while an old server process is still busy, so the time starts again
                // and it gets another report later.
                *idleness = idleness
                    .take()
                    .map(|idleness| Idleness::new(idleness.limit));
            }
        }
    }

    /// Reports the open connections and requests. A keeper that does not read its messages misses this one.
    fn tell_open(&self, server: &Server) {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let shared = server.shared();
        let _ = self.control.tell(&News::Open {
            connections: number(shared.connections()),
            requests: number(shared.open_requests()),
        });
    }

    fn adopt(&self, number: u16, log: OwnedFd) {
        if let Some(target) = self.log_targets.get_index(usize::from(number)) {
            self.logs.adopt(vec![(target.clone(), log)]);
        }
    }

    fn adopt_tls(&self, handed: OwnedFd) {
        if let Some(store) = &self.tls
            && let Err(error) = tls_files::adopt(store, handed)
        {
            self.logs.error(format_args!(
                "TLS: changed files cannot be used, the old ones stay: {error}"
            ));
        }
    }

    /// Waits for an order, or until `ended` or `left` is readable.
    fn wait(
        &self,
        limit: Duration,
        ended: Option<BorrowedFd<'_>>,
        left: Option<BorrowedFd<'_>>,
    ) -> io::Result<Awaited> {
        let control = self.control.as_fd();
        let limit = Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: limit.subsec_nanos().into(),
        };
        let mut polled = vec![PollFd::new(&control, PollFlags::IN)];
        polled.extend(ended.iter().map(|ended| PollFd::new(ended, PollFlags::IN)));
        polled.extend(left.iter().map(|left| PollFd::new(left, PollFlags::IN)));
        match poll(&mut polled, Some(&limit)) {
            Ok(_) => {
                let is_ready = |index: usize| {
                    let polled = polled.get(index);
                    polled.is_some_and(|polled| !polled.revents().is_empty())
                };
                Ok(match (is_ready(1), is_ready(2)) {
                    (true, _) => Awaited::End,
                    (_, true) => Awaited::Leaving,
                    _ => Awaited::Other,
                })
            }
            Err(rustix::io::Errno::INTR) => Ok(Awaited::Other),
            Err(error) => Err(error.into()),
        }
    }
}

/// What woke the main thread.
enum Awaited {
    /// The workers have ended.
    End,
    /// The workers have stopped accepting connections.
    Leaving,
    /// An order, or the time limit of the wait.
    Other,
}

/// Measures the time without connections, for `-i`.
struct Idleness {
    limit: Duration,
    requests: u64,
    since: Instant,
}

impl Idleness {
    fn new(limit: Duration) -> Idleness {
        Idleness {
            limit,
            requests: 0,
            since: Instant::now(),
        }
    }

    fn is_over(&mut self, server: &Server) -> bool {
        let shared = server.shared();
        let requests = shared.requests();
        if shared.connections() > 0 || requests != self.requests {
            self.requests = requests;
            self.since = Instant::now();
        }
        self.since.elapsed() >= self.limit
    }
}

fn told(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Exit code of a server process that could not serve. It has told the keeper the reason.
const FAILED: u8 = 1;
/// Exit code when the keeper is gone.
const KEEPER_GONE: u8 = 2;
/// How long the logs may take at the end to write what is queued.
const LOG_TIME: Duration = Duration::from_secs(1);
/// How long the collector of traces may take at the end for those that are queued.
const SPAN_TIME: Duration = Duration::from_secs(2);
/// The longest wait of the main thread without an order.
const LOOK_EVERY: Duration = Duration::from_secs(1);
