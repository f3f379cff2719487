//! The server process: starts one worker for each core, and stops the workers.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use petrel_config::{Config, Schema};
use rustix::process::{Resource, getrlimit};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::blocking;
use crate::clock;
use crate::exchange::ListenerFacts;
use crate::handed::Handed;
use crate::limits;
use crate::listener::{self, ListeningSocket};
use crate::log::LogRegistry;
use crate::module::ModuleSpec;
use crate::mounts;
use crate::recorder::SharedMemory;
use crate::settings::{ProcessSettings, SettingsTable};
use crate::shared::Shared;
use crate::tls;
use crate::worker::{self, Cut, Drain, Worker};

/// Everything the workers need.
pub struct ServerPlan {
    /// The checked configuration.
    pub config: Arc<Config>,
    /// The directives it was checked against.
    pub schema: Arc<Schema>,
    /// The loaded modules in the order of their hooks ([`crate::settings::loaded_modules`]).
    pub modules: Vec<&'static ModuleSpec>,
    /// Settings of the process.
    pub process: Arc<ProcessSettings>,
    /// The open logs.
    pub logs: Arc<LogRegistry>,
    /// Objects that modules created while the process had privileges.
    pub handed: Handed,
    /// Memory that outlives this process.
    pub memory: SharedMemory,
}

/// An address with its listening sockets.
pub struct BoundListener {
    /// The canonical form of the address.
    pub address: String,
    /// The TCP port; 0 for a unix socket.
    pub port: u16,
    /// One socket for each worker (SO_REUSEPORT), or one for all. If there are fewer sockets than workers,
    /// the workers share them in turn. Sockets are non-blocking.
    pub sockets: Vec<OwnedFd>,
}

/// A server whose workers wait for [`Server::serve`], and then serve until they are told to stop.
pub struct Server {
    shared: Arc<Shared>,
    commands: Vec<UnboundedSender<Command>>,
    threads: Vec<JoinHandle<()>>,
    /// Every worker holds the other end. End of file means that the last worker has ended.
    ended: PipeReader,
    /// Every listener that accepts connections holds the other end.
    accepting: PipeReader,
}

/// A command for a worker.
#[derive(Clone, Copy, Debug)]
enum Command {
    Serve,
    Drain(Drain, Duration),
    Cut(Cut),
}

impl Server {
    /// Starts the workers. Afterwards they have everything that they need, but accept no connection before
    /// [`Server::serve`]. So the process can report that it works before it serves.
    ///
    /// # Errors
    /// A thread, a runtime or a duplicate of a listening socket could not be made, or a listening socket
    /// cannot be used. Workers that have started end with the process.
    pub fn start(plan: ServerPlan, listeners: Vec<BoundListener>) -> io::Result<Server> {
        let plan = Arc::new(plan);
        blocking::configure(plan.process.threads);
        let workers = plan.process.workers.get();
        let fds = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let shared = Shared::new(
            plan.process.connections_max(fds),
            cached_descriptors_max(fds, workers),
        );
        let shared = Arc::new(shared.with_memory(plan.memory.clone()));
        let (ended, alive) = io::pipe()?;
        let (accepting, accepts) = io::pipe()?;
        let mut server = Server {
            shared,
            commands: Vec::new(),
            threads: Vec::new(),
            ended,
            accepting,
        };
        let (ready, is_ready) = std::sync::mpsc::channel();
        for index in 0..workers {
            let sockets = sockets_of(&listeners, index, workers)?;
            let (commands, inbox) = unbounded_channel();
            let (plan, shared) = (Arc::clone(&plan), Arc::clone(&server.shared));
            let ready = ready.clone();
            let alive = alive.try_clone()?;
            let accepts = accepts.try_clone()?;
            let thread = std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || {
                    run_worker(&plan, &shared, sockets, accepts, inbox, &ready);
                    drop(alive);
                })?;
            server.commands.push(commands);
            server.threads.push(thread);
        }
        drop(ready);
        // All workers must be ready: connections in the queue of a missing one would wait forever.
        for _ in 0..workers {
            is_ready.recv().map_err(|_| io::ErrorKind::BrokenPipe)??;
        }
        Ok(server)
    }

    /// Lets the workers accept connections.
    pub fn serve(&self) {
        self.tell(Command::Serve);
    }

    /// Counters of all workers.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Lets every worker finish its requests. After `deadline` the rest is cut off.
    pub fn drain(&self, how: Drain, deadline: Duration) {
        self.tell(Command::Drain(how, deadline));
    }

    /// Every worker cuts off its requests, logs that, and ends.
    pub fn cut_off(&self, why: Cut) {
        self.tell(Command::Cut(why));
    }

    /// Readable when no worker accepts connections any more.
    pub fn left(&self) -> BorrowedFd<'_> {
        self.accepting.as_fd()
    }

    /// Readable when all workers have ended.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Waits for the workers to end after a command. Returns true if none of them panicked.
    pub fn join(self) -> bool {
        let panicked = self
            .threads
            .into_iter()
            .filter_map(|thread| thread.join().err());
        panicked.count() == 0
    }

    fn tell(&self, command: Command) {
        for commands in &self.commands {
            // A worker that has ended does not read commands.
            let _ = commands.send(command);
        }
    }
}

/// How many files the cache of each worker keeps open. All caches together get a quarter of the descriptors.
/// Connections take at most a third, each of them may be sending a file that has left the cache, and the rest
/// is for logs and backends.
fn cached_descriptors_max(fds: u64, workers: usize) -> usize {
    usize::try_from(fds / 4).unwrap_or(usize::MAX) / workers.max(1)
}

type WorkerSockets = Vec<(String, u16, OwnedFd)>;
type Listeners = Vec<(ListeningSocket, Rc<ListenerFacts>)>;

/// The sockets of worker `index`. If there are more sockets than workers, because a reload has lowered
/// server.max-worker, a worker gets several, so that the queue of every socket is served.
fn sockets_of(
    listeners: &[BoundListener],
    index: usize,
    workers: usize,
) -> io::Result<WorkerSockets> {
    let mut mine = Vec::new();
    for listener in listeners {
        let count = listener.sockets.len();
        for (number, socket) in listener.sockets.iter().enumerate() {
            let is_mine = if count >= workers {
                number % workers == index
            } else {
                number == index % count
            };
            if is_mine {
                mine.push((listener.address.clone(), listener.port, socket.try_clone()?));
            }
        }
    }
    Ok(mine)
}

fn run_worker(
    plan: &ServerPlan,
    shared: &Arc<Shared>,
    sockets: WorkerSockets,
    accepts: PipeWriter,
    inbox: UnboundedReceiver<Command>,
    ready: &Sender<io::Result<()>>,
) {
    // The receiver is gone if another worker has failed; then the process ends anyway.
    let say = |word| drop(ready.send(word));
    let runtime = Builder::new_current_thread()
        .enable_all()
        .event_interval(clock::TURN_POLLS_MAX)
        .on_thread_unpark(clock::turn_begins)
        .build_local(LocalOptions::default());
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return say(Err(error)),
    };
    runtime.block_on(async {
        let table = SettingsTable::new(
            Arc::clone(&plan.config),
            Arc::clone(&plan.schema),
            plan.modules.clone(),
            Arc::clone(&plan.logs),
        )
        .with_handed(plan.handed.clone());
        let worker = Worker::new(
            table,
            Arc::clone(&plan.process),
            Arc::clone(shared),
            Arc::clone(&plan.logs),
        );
        let listeners = match registered(sockets) {
            Ok(listeners) => listeners,
            Err(error) => return say(Err(error)),
        };
        // Done before the listeners are served, so that no client waits for it.
        if listeners.iter().any(|(_, facts)| worker.speaks_tls(facts)) {
            tls::prepare_thread();
        }
        say(Ok(()));
        tokio::task::spawn_local(worker::tick(Rc::clone(&worker)));
        tokio::task::spawn_local(worker::watch_files(Rc::clone(&worker)));
        tokio::task::spawn_local(mounts::watch());
        obey(&worker, listeners, accepts, inbox).await;
    });
    // Open connections end here, when the runtime is dropped.
}

/// Registers the sockets with the event loop of the worker.
fn registered(sockets: WorkerSockets) -> io::Result<Listeners> {
    let mut listeners = Vec::with_capacity(sockets.len());
    for (address, port, socket) in sockets {
        let listener = if address.starts_with('/') {
            ListeningSocket::Unix(tokio::net::UnixListener::from_std(socket.into())?)
        } else {
            ListeningSocket::Tcp(tokio::net::TcpListener::from_std(socket.into())?)
        };
        listeners.push((listener, Rc::new(ListenerFacts::new(address, port))));
    }
    Ok(listeners)
}

/// Obeys commands until the worker has to end or has finished draining.
async fn obey(
    worker: &Rc<Worker>,
    mut listeners: Listeners,
    accepts: PipeWriter,
    mut inbox: UnboundedReceiver<Command>,
) {
    let mut accepts = Some(Rc::new(accepts));
    let mut deadline: Option<(Instant, Cut)> = None;
    loop {
        let time_is_up = async {
            match deadline {
                Some((deadline, why)) => {
                    tokio::time::sleep_until(deadline.into()).await;
                    why
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            command = inbox.recv() => match command {
                Some(Command::Serve) => {
                    let accepts = accepts.take();
                    for (listener, facts) in listeners.drain(..) {
                        let (worker, accepts) = (Rc::clone(worker), accepts.clone());
                        tokio::task::spawn_local(async move {
                            listener::run(worker, listener, facts).await;
                            drop(accepts);
                        });
                    }
                }
                Some(Command::Drain(how, time)) => {
                    worker.drain(how);
                    let why = match how {
                        Drain::Successor => Cut::DrainTimeOver,
                        Drain::Stop => Cut::StopTimeOver,
                    };
                    deadline = Some((worker.clock().instant() + time, why));
                }
                Some(Command::Cut(why)) => deadline = Some((cut_off(worker, why), why)),
                None => return,
            },
            () = worker.drained_and_empty() => return,
            why = time_is_up => match worker.cut() {
                // The remaining connections are dropped with the runtime.
                Some(_) => return,
                None => deadline = Some((cut_off(worker, why), why)),
            },
        }
    }
}

/// Cuts off the requests. Returns until when the worker waits for its connections to end.
fn cut_off(worker: &Rc<Worker>, why: Cut) -> Instant {
    worker.cut_off(why);
    worker.clock().instant() + Duration::from_millis(limits::CUT_MS)
}
