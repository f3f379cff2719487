//! A program that answers FastCGI requests: what `petrel fcgi-magnet` and `petrel fcgi-stat-accel` have in
//! common.
//!
//! [`serve`] opens the listening socket ([`place`]) and starts the workers. Each worker is a thread that
//! accepts connections ([`listen`]) and drives them ([`connection`]). A signal ends them. A [`FcgiProgram`]
//! makes a [`FcgiRequest`] for each request, and that makes the reply. A further thread writes log lines
//! ([`log`]).
//!
//! Knows the protocol, but no scripts and no files.
#![expect(clippy::disallowed_methods, reason = "its threads have no worker")]

mod connection;
pub(crate) mod limits;
mod listen;
mod log;
pub(crate) mod params;
mod place;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::watch;

use limits::{LAST_WORDS_MAX, RECEIVE_BYTES};
use listen::{Listener, Load};
use log::Log;
pub(crate) use place::SocketPlace;

/// Makes the replies to one worker's requests. It never leaves the worker's thread.
pub(crate) trait FcgiProgram: Sized + 'static {
    /// One request.
    type FcgiRequest: FcgiRequest;

    /// What all connections of the worker share.
    fn common(&self) -> &Common;

    /// Starts a request. Returns `None` if there are too many.
    fn begin(self: &Rc<Self>, now: Instant) -> Option<Self::FcgiRequest>;

    /// How many requests this worker takes at the same time.
    fn requests_max(&self) -> usize;

    /// Whether no request is open.
    fn is_idle(&self) -> bool;
}

/// One request on a connection, from BEGIN_REQUEST to END_REQUEST. It is dropped early if the web server
/// aborts it or the connection ends.
pub(crate) trait FcgiRequest {
    /// When [`FcgiRequest::expire`] is to be called.
    fn deadline(&self) -> Instant;

    /// Moves the deadline: the request is done but for its reply, which waits until the web server reads.
    fn put_off(&mut self, deadline: Instant);

    /// Takes bytes of the name-value pairs.
    fn add_params(&mut self, bytes: &[u8]);

    /// All name-value pairs have arrived. Returns false if they are malformed.
    fn end_params(&mut self) -> bool;

    /// Takes bytes of the body.
    fn add_body(&mut self, bytes: &[u8]);

    /// The body is complete.
    fn end_body(&mut self);

    /// Does what is possible without waiting.
    fn work(&mut self, context: &mut Context<'_>) -> Effort;

    /// The deadline has passed.
    fn expire(&mut self, now: Instant);

    /// Appends to `out` what can be sent by now, including END_REQUEST. `id` is the request's number on its
    /// connection.
    fn deliver(&mut self, id: u16, out: &mut Vec<u8>) -> Delivery;
}

/// What [`FcgiRequest::deliver`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Nothing was appended; more will follow.
    Waits,
    /// Something was appended; more will follow.
    Moved,
    /// The request has ended.
    Ended,
    /// The reply ends in the middle, without END_REQUEST.
    CutShort,
}

/// How much time work on a request took, which decides whether other connections get their turn first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// There was nothing to do.
    None,
    /// The usual amount.
    Usual,
    /// So much that other connections should get their turn first.
    Great,
}

/// What the connections of one worker share.
pub(crate) struct Common {
    log: Log,
    logs_itself: bool,
    workers: usize,
    receive_buffer: RefCell<Box<[u8]>>,
    unsent: Cell<usize>,
}

impl Common {
    fn new(setup: &Setup, log: Log) -> Common {
        Common {
            log,
            logs_itself: setup.place.is_own(),
            workers: setup.workers,
            receive_buffer: RefCell::new(vec![0; RECEIVE_BYTES].into()),
            unsent: Cell::new(0),
        }
    }

    /// Writes a line to standard error, unless the web server started this program. In that case requests
    /// report by FCGI_STDERR.
    pub(crate) fn log(&self, words: &str) {
        if self.logs_itself {
            self.complain(words);
        }
    }

    /// Writes a line to standard error in any case, for problems that belong to no request: the process or
    /// administrator that started the program reads it.
    pub(crate) fn complain(&self, words: &str) {
        self.log.line(words);
    }

    /// The buffer for reads. Its borrow must end before anything else is polled.
    fn receive_buffer(&self) -> &RefCell<Box<[u8]>> {
        &self.receive_buffer
    }

    /// Counts whether a connection has unsent output.
    fn count_unsent(&self, before: bool, after: bool) {
        let count = self.unsent.get() + usize::from(after);
        self.unsent.set(count - usize::from(before));
    }
}

/// How to run a program.
pub(crate) struct Setup {
    /// The name of the command, for messages.
    pub(crate) name: &'static str,
    /// Where it listens.
    pub(crate) place: SocketPlace,
    /// Threads that serve connections.
    pub(crate) workers: usize,
}

/// Serves until a signal ends the program. Each worker calls `make` for its own program.
///
/// # Errors
/// The program cannot listen, a worker's program cannot be made, or accepting fails for good.
pub(crate) fn serve<P: FcgiProgram>(
    setup: Setup,
    make: impl Fn(Common) -> io::Result<Rc<P>> + Send + Sync + 'static,
) -> Result<(), String> {
    end_with_panics();
    // Signals are blocked before threads start, because threads inherit the mask.
    let signals = signals().map_err(|error| format!("signals: {error}"))?;
    // The name of a unix socket is removed when this function returns.
    let opened = setup.place.open()?;
    let descriptor = opened.descriptor().map_err(|error| error.to_string())?;
    rustix::io::ioctl_fionbio(&descriptor, true).map_err(|error| error.to_string())?;
    let log = Log::start(setup.name, io::stderr()).map_err(|error| format!("a thread: {error}"))?;
    let (stop, stopped) = watch::channel(false);
    let threads = start(setup, &descriptor, Arc::new(make), &stopped, &log)?;
    drop(descriptor);
    let ended = wait(&signals, threads, &stop);
    log.finish(LAST_WORDS_MAX);
    ended
}

/// A panic is a defect: the process ends at once, so that its supervisor starts a new one.
fn end_with_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

type Threads = Vec<JoinHandle<io::Result<()>>>;

/// Starts the workers and waits until they serve.
fn start<P: FcgiProgram>(
    setup: Setup,
    descriptor: &OwnedFd,
    make: Arc<impl Fn(Common) -> io::Result<Rc<P>> + Send + Sync + 'static>,
    stopped: &watch::Receiver<bool>,
    log: &Log,
) -> Result<Threads, String> {
    let web_servers = place::web_servers()?;
    let load = Arc::new(Load::default());
    let setup = Arc::new(setup);
    let (ready, readiness) = std::sync::mpsc::channel();
    let mut threads = Threads::new();
    for number in 0..setup.workers {
        let listener = Listener {
            descriptor: descriptor.try_clone().map_err(|error| error.to_string())?,
            is_tcp: place::is_tcp(descriptor),
            web_servers: web_servers.clone(),
            load: Arc::clone(&load),
        };
        let (setup, make) = (Arc::clone(&setup), Arc::clone(&make));
        let (stopped, ready, log) = (stopped.clone(), ready.clone(), log.clone());
        let thread = std::thread::Builder::new()
            .name(format!("fcgi-{number}"))
            .spawn(move || {
                let make = || make(Common::new(&setup, log));
                listen::run(make, listener, stopped, &ready)
            });
        threads.push(thread.map_err(|error| format!("a thread: {error}"))?);
    }
    // With this sender the loop below would wait for a worker that ends without a report.
    drop(ready);
    let failed = readiness.iter().take(threads.len()).find_map(Result::err);
    match failed {
        Some(error) => Err(error.to_string()),
        None => Ok(threads),
    }
}

/// SIGTERM, SIGINT, and SIGUSR1, which asks FastCGI programs to end once their requests are done.
fn signals() -> io::Result<SignalFd> {
    let mask = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1]);
    mask.thread_block()?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    Ok(SignalFd::with_flags(&mask, flags)?)
}

/// Waits for a signal, and then until the workers have finished their requests. A second signal ends the
/// wait.
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
            // The workers hold their receivers as long as they run, so this fails only when all have ended.
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
