//! The private instance: a server process with the configuration of another, which it does not touch.
//!
//! It is forked without an exec, as the keeper does it, from a process that stays to trace it and to run the
//! backend programs. Its listeners are on the loopback interface, and requests see the configured addresses.
//! Its logs go to /dev/null, by the same way as those of a server.

use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use config::ListenAddress;
use engine::handed::Handed;
use engine::log::{LogRegistry, LogTarget};
use engine::server::{BoundListener, Server, ServerPlan};
use engine::worker::Cut;
use modules::openssl;
use nix::unistd::{Pid, setpgid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid as Process, Signal, WaitOptions, kill_process, waitpid};
use sys::process::{Forked, fork};

use super::private_config::make_private;
use super::reporter::{self, ReportPipe};
use crate::keeper::backends::Backends;
use crate::load::{self, Loaded, Origin};
use crate::server::{configure_logs, give_up};
use crate::user::Identity;

/// A private instance that serves. Dropping it ends its backend programs and removes its files.
pub(super) struct PrivateInstance {
    /// Its configuration.
    pub(super) loaded: Loaded,
    /// The id of its process, which leads a process group; `None` once it was waited for.
    pub(super) process: Option<i32>,
    /// What it tells: a line for each request.
    pub(super) reports: BufReader<PipeReader>,
    /// It ends when this is closed.
    pub(super) alive: Option<PipeWriter>,
    /// Where it listens, in the order of the configuration.
    pub(super) entrances: Vec<Entrance>,
    _programs: RunningPrograms,
    _directory: PrivateDirectory,
}

/// An address at which the private instance can be reached.
#[derive(Clone, Debug)]
pub(super) struct Entrance {
    /// The port of the address that the configuration names; 0 for a unix socket.
    pub(super) configured_port: u16,
    /// The address that the private instance listens on.
    pub(super) place: EntrancePlace,
}

/// Where to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EntrancePlace {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl PrivateInstance {
    /// Starts an instance of the configuration in `file`.
    ///
    /// # Errors
    /// What keeps it from serving, for the user.
    pub(super) fn start(file: &Path) -> Result<PrivateInstance, String> {
        let origin = Origin::File(file.to_owned());
        let first = load::load(&origin).map_err(|errors| errors.to_string())?;
        first
            .has_document_root()
            .map_err(|errors| errors.to_string())?;
        let identity = Identity::find(&first.process)?;
        let directory = PrivateDirectory::new(first.process.chroot.as_deref(), &identity)
            .map_err(|error| format!("a private directory: {error}"))?;
        let mut made = Vec::new();
        let loaded = load::load_changed(&origin, |config| {
            made = make_private(config, &directory.inside);
        });
        let mut loaded = loaded.map_err(|errors| errors.to_string())?;
        directory
            .add(&made, &identity)
            .map_err(|error| format!("private directories: {error}"))?;
        loaded.modules.push(&reporter::MODULE);
        if let Some(process) = Arc::get_mut(&mut loaded.process) {
            process.workers = std::num::NonZeroUsize::MIN;
        }
        let mut backends = Backends::new(false);
        let ids = backends
            .open(&loaded)
            .map_err(|list| loaded.diagnostics(list).to_string())?;
        // The programs inherit /dev/null where the live server has a log.
        let logs = silent_logs(&loaded).map_err(|error| format!("/dev/null: {error}"))?;
        let started = backends.start(&ids, &logs);
        let programs = RunningPrograms { backends, logs };
        started?;
        let (process, reports, alive, entrances) =
            begin(&loaded, &identity, &directory).map_err(|error| error.to_string())?;
        Ok(PrivateInstance {
            loaded,
            process: Some(process),
            reports: BufReader::new(reports),
            alive: Some(alive),
            entrances,
            _programs: programs,
            _directory: directory,
        })
    }

    /// Waits until it serves.
    ///
    /// # Errors
    /// It has ended, with what it said about that.
    pub(super) fn wait_until_it_serves(&mut self) -> Result<(), String> {
        let limit = Timespec {
            tv_sec: START_TIME.as_secs() as i64,
            tv_nsec: 0,
        };
        let pipe = self.reports.get_ref().as_fd();
        let mut polled = [PollFd::new(&pipe, PollFlags::IN)];
        match poll(&mut polled, Some(&limit)) {
            Ok(0) => return Err("the private instance does not start".to_owned()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
        let mut line = String::new();
        self.reports
            .read_line(&mut line)
            .map_err(|error| error.to_string())?;
        match line.trim_end() {
            READY => Ok(()),
            "" => Err("the private instance ended while it started".to_owned()),
            why => Err(why.to_owned()),
        }
    }
}

impl Drop for PrivateInstance {
    fn drop(&mut self) {
        if let Some(process) = self.process.and_then(Process::from_raw) {
            // It was not waited for, so its id still means this process.
            let _ = kill_process(process, Signal::KILL);
            let _ = waitpid(Some(process), WaitOptions::empty());
        }
    }
}

/// Backend programs. Dropping the value ends them.
struct RunningPrograms {
    backends: Backends,
    logs: LogRegistry,
}

impl Drop for RunningPrograms {
    fn drop(&mut self) {
        self.backends.finish(&self.logs);
    }
}

type BegunInstance = (i32, PipeReader, PipeWriter, Vec<Entrance>);

/// Opens the listeners and forks the server process, which does not return from here.
fn begin(
    loaded: &Loaded,
    identity: &Identity,
    directory: &PrivateDirectory,
) -> io::Result<BegunInstance> {
    let (listeners, entrances) = open_listeners(loaded, directory, identity)?;
    let (reports, report) = io::pipe()?;
    let (order, alive) = io::pipe()?;
    let parent = std::process::id();
    match fork()? {
        Forked::Parent(process) => {
            let id = Pid::from_raw(process);
            // The child does the same: whichever comes first. It fails only when the child has ended.
            let _ = setpgid(id, id);
            Ok((process, reports, alive, entrances))
        }
        Forked::Child => {
            drop((reports, alive));
            let pipe = Arc::new(ReportPipe(report));
            let served = setpgid(Pid::from_raw(0), Pid::from_raw(0))
                .map_err(io::Error::from)
                .and_then(|()| silent_logs(loaded))
                .and_then(|logs| {
                    give_up(loaded, identity, parent, false)?;
                    serve(loaded, logs, listeners, &pipe, order)
                });
            if let Err(error) = &served {
                pipe.say(&error.to_string());
            }
            // Without dropping anything: files and programs belong to the parent.
            std::process::exit(i32::from(served.is_err()))
        }
    }
}

/// Serves until the parent closes its end of `order`.
fn serve(
    loaded: &Loaded,
    logs: LogRegistry,
    listeners: Vec<BoundListener>,
    pipe: &Arc<ReportPipe>,
    mut order: PipeReader,
) -> io::Result<()> {
    logs.start()?;
    let plan = ServerPlan {
        config: Arc::clone(&loaded.config),
        schema: Arc::clone(&loaded.schema),
        modules: loaded.modules.clone(),
        process: Arc::clone(&loaded.process),
        logs: Arc::new(logs.clone()),
        handed: Handed::default()
            .with(Arc::clone(&loaded.trusts))
            .with(Arc::new(openssl::InTheClear))
            .with(Arc::clone(pipe)),
        memory: engine::recorder::SharedMemory::private(),
    };
    let server = Server::start(plan, listeners)?;
    server.serve();
    pipe.say(READY);
    let _ = order.read(&mut [0]);
    server.cut_off(Cut::StopNow);
    server.join();
    logs.shut_down(LOG_TIME);
    Ok(())
}

/// The logs of the configuration, all of them /dev/null. Called before a chroot, which hides that.
fn silent_logs(loaded: &Loaded) -> io::Result<LogRegistry> {
    let logs = LogRegistry::open([])?;
    let nowhere = fs::OpenOptions::new().write(true).open("/dev/null")?;
    let targets = loaded.log_targets().into_iter();
    let silent: io::Result<Vec<(LogTarget, OwnedFd)>> = targets
        .chain([LogTarget::Stderr])
        .map(|target| Ok((target, nowhere.try_clone()?.into())))
        .collect();
    logs.adopt(silent?);
    configure_logs(&logs, loaded);
    Ok(logs)
}

/// A listener for each one of the configuration, at an address of its own. Conditions compare the configured
/// address.
fn open_listeners(
    loaded: &Loaded,
    directory: &PrivateDirectory,
    identity: &Identity,
) -> io::Result<(Vec<BoundListener>, Vec<Entrance>)> {
    let (mut listeners, mut entrances) = (Vec::new(), Vec::new());
    for (number, wanted) in loaded.process.listeners.iter().enumerate() {
        let configured_port = match &wanted.address {
            ListenAddress::Ip(address) => address.port(),
            ListenAddress::Name { port, .. } => *port,
            ListenAddress::Unix(_) => 0,
        };
        let (socket, place): (OwnedFd, _) = match &wanted.address {
            ListenAddress::Unix(_) => {
                let path = directory.outside.join(format!("listener-{number}"));
                let listener = UnixListener::bind(&path)?;
                give(&path, identity)?;
                listener.set_nonblocking(true)?;
                (listener.into(), EntrancePlace::Unix(path))
            }
            _ => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                (listener.into(), EntrancePlace::Tcp(address))
            }
        };
        listeners.push(BoundListener {
            address: wanted.address.to_string(),
            port: configured_port,
            sockets: vec![socket],
        });
        entrances.push(Entrance {
            configured_port,
            place,
        });
    }
    Ok((listeners, entrances))
}

/// A temporary directory. Dropping the value removes it.
struct PrivateDirectory {
    /// Its path for this process.
    outside: PathBuf,
    /// Its path for the server process, which may be in a chroot.
    inside: PathBuf,
}

impl PrivateDirectory {
    fn new(chroot: Option<&Path>, identity: &Identity) -> io::Result<PrivateDirectory> {
        let name = "petrel-costs-XXXXXX";
        let (template, root) = match chroot {
            Some(root) => (root.join("tmp").join(name), root),
            None => (std::env::temp_dir().join(name), Path::new("/")),
        };
        let outside = nix::unistd::mkdtemp(&template)?;
        let inside = match (chroot, outside.strip_prefix(root)) {
            (Some(_), Ok(below)) => Path::new("/").join(below),
            _ => outside.clone(),
        };
        let directory = PrivateDirectory { outside, inside };
        give(&directory.outside, identity)?;
        Ok(directory)
    }

    /// Makes directories in it, given by their paths for the server process.
    fn add(&self, paths: &[PathBuf], identity: &Identity) -> io::Result<()> {
        for path in paths {
            let below = path.strip_prefix(&self.inside).unwrap_or(path);
            let path = self.outside.join(below);
            fs::create_dir(&path)?;
            give(&path, identity)?;
        }
        Ok(())
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // If this fails, some empty sockets stay in the temporary directory and do no harm.
        let _ = fs::remove_dir_all(&self.outside);
    }
}

/// Gives a file to the user of the server process.
fn give(path: &Path, identity: &Identity) -> io::Result<()> {
    Ok(nix::unistd::chown(path, identity.user(), identity.group())?)
}

/// What the instance says when it serves.
const READY: &str = "ready";
/// How long it may take to start.
const START_TIME: Duration = Duration::from_secs(30);
/// How long its logs may take at the end.
const LOG_TIME: Duration = Duration::from_secs(1);
