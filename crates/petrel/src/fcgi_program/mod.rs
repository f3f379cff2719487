//! A program that answers FastCGI requests: what `petrel fcgi-magnet` and `petrel fcgi-stat-accel` have in
//! common.
//!
//! [`serve`] finds the listening socket ([`place`]), starts the workers, each a thread that accepts
//! ([`listen`]) and drives its connections ([`connection`]), and ends them when a signal says so. What a
//! request is answered with is a [`FcgiProgram`]'s, which makes a [`FcgiRequest`] for each. What there is to be said is
//! written by a further thread ([`log`]).
//!
//! Knows the protocol and nothing of scripts and files.
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

/// What the requests of one worker are answered by. It never leaves the worker's thread.
pub(crate) trait FcgiProgram: Sized + 'static {
    /// A request of it.
    type FcgiRequest: FcgiRequest;

    /// What connections keep with it.
    fn common(&self) -> &Common;

    /// A request that begins. `None`: there are too many.
    fn begin(self: &Rc<Self>, now: Instant) -> Option<Self::FcgiRequest>;

    /// How many requests this worker takes at a time.
    fn requests_max(&self) -> usize;

    /// Whether no request is worked on.
    fn is_idle(&self) -> bool;
}

/// One request on its way through a connection: from BEGIN_REQUEST to END_REQUEST. Dropped, it is given
/// up: the web server has aborted it, or the connection is over.
pub(crate) trait FcgiRequest {
    /// When [`FcgiRequest::expire`] is to be called.
    fn deadline(&self) -> Instant;

    /// Puts the deadline off: the answer waits for the connection to take it.
    fn put_off(&mut self, deadline: Instant);

    /// Takes bytes of the name-value pairs.
    fn add_params(&mut self, bytes: &[u8]);

    /// All name-value pairs are there. False: they are not sound.
    fn end_params(&mut self) -> bool;

    /// Takes bytes of the body.
    fn add_body(&mut self, bytes: &[u8]);

    /// The body is complete.
    fn end_body(&mut self);

    /// Does what can be done without waiting.
    fn work(&mut self, context: &mut Context<'_>) -> Effort;

    /// The deadline has passed.
    fn expire(&mut self, now: Instant);

    /// Appends to `out` what can be sent by now, END_REQUEST included. The request has this `id` on its connection.
    fn deliver(&mut self, id: u16, out: &mut Vec<u8>) -> Delivery;
}

/// How far the answer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Nothing new, more comes.
    Waits,
    /// Something was appended to what is to be sent, more comes.
    Moved,
    /// The request has ended.
    Ended,
    /// The answer ends in the middle, without END_REQUEST.
    CutShort,
}

/// Whether the thread should look after others before it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Nothing was done.
    None,
    /// What a request usually takes.
    Usual,
    /// More than others should wait for.
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

    /// Writes a line to standard error, if that is not the web server's: started by one, a program says
    /// by FCGI_STDERR what there is to be said.
    pub(crate) fn log(&self, words: &str) {
        if self.logs_itself {
            self.complain(words);
        }
    }

    /// The same for what no request can be told with: whoever has started the program reads standard error.
    pub(crate) fn complain(&self, words: &str) {
        self.log.line(words);
    }

    /// The buffer for whatever is read. To be given back before anything else is polled.
    fn receive_buffer(&self) -> &RefCell<Box<[u8]>> {
        &self.receive_buffer
    }

    /// A connection has something to send, or no longer.
    fn count_unsent(&self, before: bool, after: bool) {
        let count = self.unsent.get() + usize::from(after);
        self.unsent.set(count - usize::from(before));
    }
}

/// How a program is run.
pub(crate) struct Setup {
    /// The name of the command, for messages.
    pub(crate) name: &'static str,
    /// Where it listens.
    pub(crate) place: SocketPlace,
    /// Threads that serve connections.
    pub(crate) workers: usize,
}

/// Serves until a signal ends it. Each worker makes its program by `make`.
///
/// # Errors
/// It cannot listen, a program cannot be made, or accepting fails for good.
pub(crate) fn serve<P: FcgiProgram>(
    setup: Setup,
    make: impl Fn(Common) -> io::Result<Rc<P>> + Send + Sync + 'static,
) -> Result<(), String> {
    end_with_panics();
    // Before there are threads: they inherit what is blocked.
    let signals = signals().map_err(|error| format!("signals: {error}"))?;
    // Its name goes when this function ends.
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
    let mask = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1]);
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
