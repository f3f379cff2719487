//! The private instance: a server process with the configuration of another, which it does not touch.
//!
//! It is forked without an exec, as the keeper does it, from a process that stays to trace it and to run the
//! backend programs. Its listeners are on the loopback interface, and requests see the configured addresses.
//! It speaks no TLS, so it asks no client for a certificate: only requests that show its token are served.
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
use rustix::fs::{AtFlags, CWD, Mode, OFlags, chownat, fchmod, fchown, lstat, mkdirat, openat};
use rustix::process::{Pid as Process, Signal, geteuid, kill_process};
use sys::process::{Forked, fork};
use sys::ptrace;

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
    /// What a request must show: other clients that find the port get 403.
    pub(super) token: String,
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
        // Before mod_rewrite: its rules may ask for the scheme.
        loaded.modules.insert(0, &reporter::MODULE);
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
        let token = new_token().map_err(|error| format!("/dev/urandom: {error}"))?;
        let (process, reports, alive, entrances) =
            begin(&loaded, &identity, &directory, &token).map_err(|error| error.to_string())?;
        Ok(PrivateInstance {
            loaded,
            process: Some(process),
            reports: BufReader::new(reports),
            alive: Some(alive),
            token,
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
        if let Some(id) = self.process
            && let Some(process) = Process::from_raw(id)
        {
            // It was not waited for, so its id still means this process.
            let _ = kill_process(process, Signal::KILL);
            // Threads that were seized are waited for one by one; the process ends after the last of them.
            while let Ok(Some(_)) = ptrace::wait_for_group(id) {}
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
    token: &str,
) -> io::Result<BegunInstance> {
    let (listeners, entrances) = open_listeners(loaded, directory)?;
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
            let pipe = Arc::new(ReportPipe {
                pipe: report,
                token: token.to_owned(),
            });
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

/// A temporary directory, which belongs to the user who runs the command. The server's user can pass through
/// it and change nothing in it: root gives away files below it. Dropping the value removes it.
struct PrivateDirectory {
    /// Its path for this process.
    outside: PathBuf,
    /// Its path for the server process, which may be in a chroot.
    inside: PathBuf,
}

impl PrivateDirectory {
    fn new(chroot: Option<&Path>, identity: &Identity) -> io::Result<PrivateDirectory> {
        let (parent, root) = match chroot {
            Some(root) => (root.join("tmp").canonicalize()?, root.canonicalize()?),
            None => (std::env::temp_dir().canonicalize()?, PathBuf::from("/")),
        };
        let Ok(below) = parent.strip_prefix(&root) else {
            let message = format!("{} is outside of server.chroot", parent.display());
            return Err(io::Error::other(message));
        };
        if geteuid().is_root() {
            refuse_if_replaceable(&parent)?;
        }
        let outside = nix::unistd::mkdtemp(&parent.join("petrel-costs-XXXXXX"))?;
        let name = outside.file_name().unwrap_or_default();
        let inside = Path::new("/").join(below).join(name);
        let directory = PrivateDirectory { outside, inside };
        if let Some(group) = identity.group() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(CWD, &directory.outside, flags, Mode::empty())?;
            let group = rustix::fs::Gid::from_raw(group.as_raw());
            fchown(&file, None, Some(group))?;
            fchmod(&file, Mode::RWXU | Mode::XGRP)?;
        }
        Ok(directory)
    }

    /// Makes directories in it that belong to the server's user, given by their paths for the server process.
    fn add(&self, paths: &[PathBuf], identity: &Identity) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(CWD, &self.outside, flags, Mode::empty())?;
        for path in paths {
            let name = path.file_name().unwrap_or_default();
            mkdirat(&directory, name, Mode::RWXU)?;
            let made = openat(&directory, name, flags, Mode::empty())?;
            let user = identity.user().map(|user| user.as_raw());
            let group = identity.group().map(|group| group.as_raw());
            chownat(
                &made,
                "",
                user.map(rustix::fs::Uid::from_raw),
                group.map(rustix::fs::Gid::from_raw),
                AtFlags::EMPTY_PATH,
            )?;
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

/// Refuses a directory in which a user other than root could put something else in place of what root makes
/// there: one that others own or may write to without the sticky bit, or that is below such a one.
fn refuse_if_replaceable(directory: &Path) -> io::Result<()> {
    for directory in directory.ancestors() {
        let stat = lstat(directory)?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        let is_writable = mode.intersects(Mode::WGRP | Mode::WOTH) && !mode.contains(Mode::SVTX);
        if stat.st_uid != 0 || is_writable {
            let message = format!(
                "{}: users other than root can replace what is in it (set TMPDIR to another directory; with \
                 server.chroot, make it and tmp in it root's)",
                directory.display()
            );
            return Err(io::Error::other(message));
        }
    }
    Ok(())
}

/// A random text that is a field's value.
fn new_token() -> io::Result<String> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// What the instance says when it serves.
const READY: &str = "ready";
/// How long it may take to start.
const START_TIME: Duration = Duration::from_secs(30);
/// How long its logs may take at the end.
const LOG_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::{Gid, Uid};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own directory");
    }

    #[test]
    fn the_private_directory_stays_with_root_and_what_is_in_it_goes_to_the_server() {
        if !geteuid().is_root() {
            return;
        }
        let identity = Identity::unnamed(Uid::from_raw(65_533), Gid::from_raw(65_532));
        let root = tempfile::tempdir().expect("a directory");
        fs::create_dir(root.path().join("tmp")).expect("a directory");
        let directory = PrivateDirectory::new(Some(root.path()), &identity).expect("made");
        let cache = directory.inside.join("deflate.cache-dir");
        directory.add(&[cache], &identity).expect("made");
        let facts = |path: &Path| {
            let metadata = fs::symlink_metadata(path).expect("there");
            (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
        };
        assert_eq!(facts(&directory.outside), (0, 65_532, 0o710));
        let cache = directory.outside.join("deflate.cache-dir");
        assert_eq!(facts(&cache), (65_533, 65_532, 0o700));
        assert_eq!(directory.inside.parent(), Some(Path::new("/tmp")));
        let outside = directory.outside.clone();
        drop(directory);
        assert!(!outside.exists());
    }

    #[test]
    fn a_directory_that_others_can_swap_is_refused() {
        if !geteuid().is_root() {
            return;
        }
        let (root, other) = (tempfile::tempdir(), tempfile::tempdir());
        let (root, other) = (root.expect("a directory"), other.expect("a directory"));
        let temporary = root.path().join("tmp");
        fs::create_dir(&temporary).expect("a directory");
        let make = || PrivateDirectory::new(Some(root.path()), &Identity::unchanged()).map(drop);
        for (mode, is_sound) in [
            (0o755, true),
            (0o1777, true),
            (0o777, false),
            (0o775, false),
        ] {
            set_mode(&temporary, mode);
            assert_eq!(make().is_ok(), is_sound, "{mode:o}");
        }
        set_mode(&temporary, 0o755);
        std::os::unix::fs::chown(root.path(), Some(65_533), None).expect("given away");
        assert!(make().is_err(), "the root directory is the user's");
        std::os::unix::fs::chown(root.path(), Some(0), None).expect("taken back");
        fs::remove_dir(&temporary).expect("empty");
        std::os::unix::fs::symlink(other.path(), &temporary).expect("a link");
        let error = make().expect_err("a link out of the chroot").to_string();
        assert!(error.contains("outside of server.chroot"), "{error}");
    }
}
