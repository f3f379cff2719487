//! `petrel fcgi-magnet`: Lua scripts by FastCGI, the program that the article calls lua-fastcgi-magnet.
//!
//! It does what that does, step by step, with the step in this folder that it is:
//!
//! 1. creates a global Lua environment ([`worker`]);
//! 2. accepts a request ([`listen`], [`connection`]);
//! 3. loads the script from the script cache ([`scripts`]);
//! 4. makes an empty environment for the script (`api.lua`);
//! 5. lets its `print` write into the answer ([`api`], [`answer`]);
//! 6. runs it ([`slot`]);
//! 7. goes on with 2.
//!
//! What is different: many connections and, on each, many requests are served at a time by one thread, as
//! scripts may wait; connections are kept; and a script that does not end is stopped.
//!
//! Knows nothing of HTTP but what a web server says by FastCGI, and nothing of configuration files.

mod answer;
mod api;
mod connection;
mod fields;
mod limits;
mod listen;
mod request;
mod scripts;
mod slot;
mod socket;
mod worker;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use lua::budget::Budget;
use lua::library::dict::Dicts;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{socket_acceptconn, socket_domain};
use tokio::sync::watch;

use crate::cli;
use crate::spawn::{ProgramSocket, UnixPlace};
use listen::{Listener, Load};

/// What was asked for, checked.
pub struct Options {
    /// How Lua states are made.
    machine: lua::Options,
    /// Where scripts must be.
    root: Option<PathBuf>,
    /// Threads.
    workers: usize,
    /// The longest body of a request, in bytes.
    body_bytes_max: usize,
    /// For how long a request may take, waiting included.
    request_time_max: Duration,
    /// Whether errors are written to standard error, besides being sent to the web server.
    logs_itself: bool,
    /// Who may connect by TCP; everybody if it is empty.
    web_servers: Vec<IpAddr>,
    /// The dictionaries of `petrel.dict`, which all threads share.
    dicts: Arc<Dicts>,
}

/// Serves until a signal ends it. The answer is the exit code.
pub fn run(options: &cli::FcgiMagnet) -> u8 {
    match serve(options) {
        Ok(()) => 0,
        Err(message) => crate::fail(&format!("fcgi-magnet: {message}")),
    }
}

fn serve(arguments: &cli::FcgiMagnet) -> Result<(), String> {
    end_with_panics();
    let options = Arc::new(Options::new(arguments)?);
    // Before there are threads: they inherit what is blocked.
    let signals = signals().map_err(|error| format!("signals: {error}"))?;
    // Its name goes when this function ends.
    let socket = open(arguments)?;
    let descriptor = match &socket {
        Some(socket) => socket.as_fd().try_clone_to_owned(),
        None => inherited(),
    };
    let descriptor = descriptor.map_err(|error| error.to_string())?;
    let is_tcp =
        socket_domain(&descriptor).is_ok_and(|domain| domain != rustix::net::AddressFamily::UNIX);
    rustix::io::ioctl_fionbio(&descriptor, true).map_err(|error| error.to_string())?;
    let (stop, stopped) = watch::channel(false);
    let threads = start(&options, &descriptor, is_tcp, &stopped)?;
    drop(descriptor);
    wait(&signals, threads, &stop)
}

impl Options {
    fn new(arguments: &cli::FcgiMagnet) -> Result<Options, String> {
        let mut machine = lua::Options::default();
        machine.budget = Budget {
            time: Duration::from_millis(arguments.max_run_time_ms.into()),
            growth_bytes: mebibytes(arguments.max_run_memory_mib),
        };
        machine.state_bytes_max = machine.state_bytes_max.max(2 * machine.budget.growth_bytes);
        for allowed in &arguments.allow {
            let library = &mut machine.library;
            *match allowed {
                cli::Allowed::Ffi => &mut library.ffi,
                cli::Allowed::Jit => &mut library.jit,
                cli::Allowed::Debug => &mut library.debug,
                cli::Allowed::OsExit => &mut library.os_exit,
                cli::Allowed::IoPopen => &mut library.io_popen,
            } = true;
        }
        Ok(Options {
            machine,
            root: arguments.root.clone(),
            workers: usize::from(arguments.workers),
            body_bytes_max: mebibytes(arguments.max_body_mib),
            request_time_max: Duration::from_secs(arguments.max_request_time_s.into()),
            logs_itself: arguments.socket.is_some() || arguments.listen.is_some(),
            web_servers: web_servers()?,
            dicts: Arc::new(Dicts::new(DICT_BYTES)),
        })
    }
}

fn mebibytes(count: u32) -> usize {
    usize::try_from(count)
        .unwrap_or(usize::MAX)
        .saturating_mul(1 << 20)
}

/// FCGI_WEB_SERVER_ADDRS (section 3.2 of the specification): who may connect by TCP.
fn web_servers() -> Result<Vec<IpAddr>, String> {
    let name = "FCGI_WEB_SERVER_ADDRS";
    let list = match std::env::var(name) {
        Ok(list) => list,
        Err(std::env::VarError::NotPresent) => return Ok(Vec::new()),
        Err(error) => return Err(format!("{name}: {error}")),
    };
    let addresses = list.split(',').map(|address| {
        let parsed = address.trim().parse();
        parsed.map_err(|_| format!("{name}: \"{address}\" is no address"))
    });
    addresses.collect()
}

/// Our own socket, if there is to be one.
fn open(arguments: &cli::FcgiMagnet) -> Result<Option<ProgramSocket>, String> {
    if let Some(path) = &arguments.socket {
        let place = UnixPlace {
            path,
            root: None,
            mode: arguments.mode,
            user: None,
            group: None,
            is_taken: false,
        };
        let socket = ProgramSocket::unix(&place, BACKLOG);
        return match socket {
            Ok(socket) => Ok(Some(socket)),
            Err(error) => Err(format!("{}: {error}", path.display())),
        };
    }
    let Some(address) = arguments.listen else {
        return Ok(None);
    };
    let socket = ProgramSocket::tcp(address, BACKLOG);
    socket
        .map(Some)
        .map_err(|error| format!("{address}: {error}"))
}

/// The socket on descriptor 0, where spawn-fcgi and web servers put it.
fn inherited() -> io::Result<OwnedFd> {
    let stdin = rustix::stdio::stdin();
    if !socket_acceptconn(stdin).unwrap_or(false) {
        return Err(io::Error::other(
            "standard input is no listening socket: start it by a web server or spawn-fcgi, or name \
             a place by --socket or --listen",
        ));
    }
    let socket = stdin.try_clone_to_owned()?;
    // Scripts may read from standard input.
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(socket)
}

/// A panic is a defect: the process ends at once, and whoever looks after it starts it anew.
fn end_with_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

type Threads = Vec<JoinHandle<io::Result<()>>>;

/// Starts the workers, and waits until they serve.
fn start(
    options: &Arc<Options>,
    descriptor: &OwnedFd,
    is_tcp: bool,
    stopped: &watch::Receiver<bool>,
) -> Result<Threads, String> {
    let load = Arc::new(Load::default());
    let (ready, readiness) = std::sync::mpsc::channel();
    let mut threads = Threads::new();
    for number in 0..options.workers {
        let listener = Listener {
            descriptor: descriptor.try_clone().map_err(|error| error.to_string())?,
            is_tcp,
            load: Arc::clone(&load),
        };
        let (options, stopped, ready) = (Arc::clone(options), stopped.clone(), ready.clone());
        let thread = std::thread::Builder::new()
            .name(format!("magnet-{number}"))
            .spawn(move || listen::run(options, listener, stopped, &ready));
        threads.push(thread.map_err(|error| format!("a thread: {error}"))?);
    }
    drop(ready);
    let failed = readiness.iter().take(threads.len()).find_map(Result::err);
    match failed {
        Some(error) => Err(error.to_string()),
        None => Ok(threads),
    }
}

/// SIGTERM, SIGINT, and SIGUSR1, by which FastCGI programs are told to end when nothing is left to
/// be done.
fn signals() -> io::Result<SignalFd> {
    let mut mask = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1] {
        mask.add(signal);
    }
    mask.thread_block()?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    Ok(SignalFd::with_flags(&mask, flags)?)
}

/// Until a signal comes and the workers have finished what they had. A second signal is not waited for.
fn wait(signals: &SignalFd, threads: Threads, stop: &watch::Sender<bool>) -> Result<(), String> {
    let mut is_told = false;
    loop {
        let pause = match is_told {
            true => Duration::from_millis(5),
            false => Duration::from_secs(1),
        };
        let pause = Timespec::try_from(pause).map_err(|error| error.to_string())?;
        let descriptor = signals.as_fd();
        let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
        match poll(&mut polled, Some(&pause)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.to_string()),
        }
        if signals.read_signal().ok().flatten().is_some() {
            if is_told {
                return Ok(());
            }
            is_told = true;
            // They listen as long as they live.
            let _ = stop.send(true);
        }
        if threads.iter().any(JoinHandle::is_finished) && !is_told {
            break;
        }
        if threads.iter().all(JoinHandle::is_finished) {
            break;
        }
    }
    for thread in threads.into_iter().filter(JoinHandle::is_finished) {
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("a worker has panicked".to_owned()),
        }
    }
    Ok(())
}

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 1024;

/// Bytes of a dictionary of `petrel.dict`.
const DICT_BYTES: usize = 1 << 20;
