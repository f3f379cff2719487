//! The load generator for cold files: groups of clients in one thread, which request files that were not
//! requested before, or request at fixed times.
//!
//! A closed loop begins the next fetch when the last one is complete, as http_load does. An open loop begins
//! fetches when they are due, and latencies count from then. So a server that pauses is charged for all
//! requests that would have arrived meanwhile. Disk and server need the cores, so this thread sleeps in epoll
//! until there is something to do; a timer descriptor wakes it when a fetch is due.
//!
//! It runs in stretches ([`Client::run`]) and is counted in a part of them ([`Client::count`] to
//! [`Client::stop_counting`]), so that the figures include neither the beginning nor the end of the load. Any
//! incorrect response ends it with an error; an open loop counts requests without a response as lost.

mod figures;
mod flow;
#[cfg(test)]
mod tests;

pub use figures::{Milliseconds, Seen, six_digits};

use crate::load::Wrong;
use crate::workload::Reuse;
use crate::{disk, interrupt};
use flow::{Door, Flow, Progress};
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

/// One thing to fetch.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The file, with its expected content.
    pub file: disk::Expected,
    /// Offset and length of a range; without it the whole file.
    pub range: Option<(u64, u64)>,
}

/// Clients with the same behaviour.
pub struct Group<'a> {
    /// The number of clients.
    pub clients: u16,
    /// When they send requests.
    pub pace: Pace,
    /// Whether connections are persistent.
    pub reuse: Reuse,
    /// Their source addresses.
    pub sources: Sources,
    /// Returns what to fetch next; `None` if nothing is left.
    pub next: Box<dyn FnMut() -> Option<Ask> + 'a>,
}

/// When clients send requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As soon as the previous response is complete.
    Closed,
    /// This many times per second, all clients of the group together.
    Open(u32),
}

/// The source addresses of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// Each client has its own (up to 250, then they are shared).
    Own,
    /// All clients have this one.
    Shared(Ipv4Addr),
}

/// Why [`Client::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The time is over.
    Time,
    /// There is nothing left to fetch for a closed loop.
    Files,
}

/// Why a run is void.
#[derive(Debug)]
pub enum Error {
    /// An answer was not the expected one.
    Reply(String, Wrong),
    /// A response contains another file's content.
    Content(String),
    /// The server closed a connection before or within a response.
    Closed(String),
    /// Bytes arrived that no request asked for.
    Unasked,
    /// A system call failed.
    System(&'static str, Errno),
    /// Not one byte arrived for [`PATIENCE`].
    Stalled,
    /// A signal asked this program to stop.
    Interrupted,
}

/// All clients of a run.
pub struct Client<'a> {
    door: Door,
    crowds: Vec<Crowd<'a>>,
    /// For each client its group and its index there, by the number that epoll returns.
    places: Vec<(usize, usize)>,
    counting: Counting,
    /// When bytes last arrived.
    heard_at: Instant,
    buffer: Vec<u8>,
}

/// Which fetches are counted.
#[derive(Clone, Copy, Debug, Default)]
struct Counting {
    from: Option<Instant>,
    to: Option<Instant>,
}

/// A running group.
struct Crowd<'a> {
    group: Group<'a>,
    flows: Vec<Flow>,
    schedule: Option<Schedule>,
    seen: Seen,
    out_of_files: bool,
}

/// The schedule of an open loop.
struct Schedule {
    timer: OwnedFd,
    started: Instant,
    interval: Duration,
    begun: u64,
    /// The number of fetches that are due in all.
    end: u64,
}

impl<'a> Client<'a> {
    /// Clients of a server on a port of 127.0.0.1. They begin with the first [`Self::run`].
    pub fn new(port: u16, groups: Vec<Group<'a>>) -> Result<Self, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| Error::System("epoll_create", errno))?;
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let door = Door { address, epoll };
        let (mut crowds, mut places) = (Vec::new(), Vec::new());
        for group in groups {
            let mut flows = Vec::new();
            for place in 0..usize::from(group.clients) {
                let index = places.len();
                let source = group.sources.of(index);
                flows.push(Flow::new(index as u64, source, group.reuse));
                places.push((crowds.len(), place));
            }
            let schedule = match group.pace {
                Pace::Closed => None,
                Pace::Open(rate) => Some(Schedule::new(rate, &door.epoll)?),
            };
            crowds.push(Crowd {
                group,
                flows,
                schedule,
                seen: Seen::default(),
                out_of_files: false,
            });
        }
        Ok(Self {
            door,
            crowds,
            places,
            counting: Counting::default(),
            heard_at: Instant::now(),
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    /// Sends requests and reads responses for `length`, or until a closed loop has nothing left to fetch.
    /// Open fetches continue in the next stretch.
    pub fn run(&mut self, length: Duration) -> Result<Ended, Error> {
        let end = Instant::now() + length;
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            let now = Instant::now();
            self.begin_what_is_due(now)?;
            if self.crowds.iter().any(|crowd| crowd.out_of_files) {
                return Ok(Ended::Files);
            }
            if now >= end {
                return Ok(Ended::Time);
            }
            self.wait_and_work(end, &mut events)?;
        }
    }

    /// Starts counting.
    pub fn count(&mut self) {
        for crowd in &mut self.crowds {
            crowd.seen = Seen::default();
        }
        self.counting = Counting {
            from: Some(Instant::now()),
            to: None,
        };
    }

    /// Stops counting, except for fetches of open loops that were due until now. A client that still waits
    /// for a first byte counts with the time it has waited.
    pub fn stop_counting(&mut self) {
        let now = Instant::now();
        self.counting.to = Some(now);
        for crowd in &mut self.crowds {
            if let Some(schedule) = &mut crowd.schedule {
                schedule.end = schedule.due_until(now);
                continue;
            }
            for flow in &crowd.flows {
                let Some(since) = flow.waiting_since() else {
                    continue;
                };
                let waited = now.saturating_duration_since(since);
                crowd.seen.body.at_least(waited);
                if !flow.is_answered() {
                    crowd.seen.first.at_least(waited);
                }
            }
        }
    }

    /// Waits for the responses of open loops, while closed ones continue. A response that has not arrived
    /// after `patience` is lost.
    pub fn drain(&mut self, patience: Duration) -> Result<(), Error> {
        let end = Instant::now() + patience;
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while Instant::now() < end && self.crowds.iter().any(Crowd::is_awaited) {
            self.begin_what_is_due(Instant::now())?;
            self.wait_and_work(end, &mut events)?;
        }
        for crowd in &mut self.crowds {
            let unanswered = crowd.unanswered();
            if unanswered > 0 {
                crowd.seen.lost += unanswered;
                let why = || format!("no answer within {} s", patience.as_secs());
                crowd.seen.lost_because.get_or_insert_with(why);
            }
        }
        Ok(())
    }

    /// What each group measured, in order.
    pub fn seen(self) -> Vec<Seen> {
        self.crowds.into_iter().map(|crowd| crowd.seen).collect()
    }

    fn begin_what_is_due(&mut self, now: Instant) -> Result<(), Error> {
        for crowd in &mut self.crowds {
            crowd.begin_what_is_due(now, &self.door, self.counting)?;
        }
        Ok(())
    }

    fn wait_and_work(&mut self, end: Instant, events: &mut Vec<epoll::Event>) -> Result<(), Error> {
        let left = end.saturating_duration_since(Instant::now()).min(LOOK_UP);
        let timeout = Timespec {
            tv_sec: 0,
            // epoll rounds up to milliseconds; without that, less than a millisecond would be no wait at all.
            tv_nsec: left.subsec_nanos().into(),
        };
        let room = rustix::buffer::spare_capacity(events);
        match epoll::wait(&self.door.epoll, room, Some(&timeout)) {
            _ if interrupt::asked() => return Err(Error::Interrupted),
            Ok(0) if self.heard_at.elapsed() > PATIENCE => return Err(Error::Stalled),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::System("epoll_wait", errno)),
        }
        for event in events.drain(..) {
            let index = event.data.u64();
            if index == TIMER {
                for schedule in self
                    .crowds
                    .iter()
                    .filter_map(|crowd| crowd.schedule.as_ref())
                {
                    schedule.rewind();
                }
                continue;
            }
            self.heard_at = Instant::now();
            let place = usize::try_from(index).ok();
            let Some((crowd, place)) = place.and_then(|at| self.places.get(at)) else {
                continue;
            };
            if let Some(crowd) = self.crowds.get_mut(*crowd) {
                crowd.work(*place, &self.door, &mut self.buffer, self.counting)?;
            }
        }
        Ok(())
    }
}

impl Crowd<'_> {
    /// Begins fetches with idle clients.
    fn begin_what_is_due(
        &mut self,
        now: Instant,
        door: &Door,
        counting: Counting,
    ) -> Result<(), Error> {
        for place in 0..self.flows.len() {
            if !self.flows.get(place).is_some_and(Flow::is_idle) {
                continue;
            }
            let Some(due) = self.begin_next(place, now, door, counting)? else {
                break;
            };
            if counting.has(due) {
                self.seen.late.add(now.saturating_duration_since(due));
            }
        }
        Ok(())
    }

    /// Begins a fetch with an idle client, if one is due. Returns when it was due.
    fn begin_next(
        &mut self,
        place: usize,
        now: Instant,
        door: &Door,
        counting: Counting,
    ) -> Result<Option<Instant>, Error> {
        let due = match &mut self.schedule {
            None => Some(now),
            Some(schedule) => schedule.take(now),
        };
        let (Some(due), Some(flow)) = (due, self.flows.get_mut(place)) else {
            return Ok(None);
        };
        let Some(ask) = (self.group.next)() else {
            self.out_of_files = true;
            return Ok(None);
        };
        let begun = flow.begin(ask, due, door);
        self.or_lost(place, begun, counting)?;
        Ok(Some(due))
    }

    fn work(
        &mut self,
        place: usize,
        door: &Door,
        buffer: &mut [u8],
        counting: Counting,
    ) -> Result<(), Error> {
        let Some(flow) = self.flows.get_mut(place) else {
            return Ok(());
        };
        let counts = match (self.group.pace, flow.due()) {
            (Pace::Closed, _) => counting.is_on(),
            (Pace::Open(_), Some(due)) => counting.has(due),
            (Pace::Open(_), None) => false,
        };
        let mut seen = counts.then_some(&mut self.seen);
        let counted_from = counting.from.unwrap_or_else(Instant::now);
        let progress = flow.work(door, buffer, &mut seen, counted_from);
        match progress {
            Ok(Progress::More) => Ok(()),
            Ok(Progress::Done) => {
                self.begin_next(place, Instant::now(), door, counting)?;
                Ok(())
            }
            Err(error) => self.or_lost(place, Err(error), counting),
        }
    }

    /// In an open loop a missing response is lost. Wrong content is always an error.
    fn or_lost(
        &mut self,
        place: usize,
        done: Result<(), Error>,
        counting: Counting,
    ) -> Result<(), Error> {
        let Err(error) = done else { return Ok(()) };
        let may_be_lost = !matches!(error, Error::Content(_) | Error::Unasked);
        let (true, true, Some(flow)) = (
            self.schedule.is_some(),
            may_be_lost,
            self.flows.get_mut(place),
        ) else {
            return Err(error);
        };
        if flow.due().is_some_and(|due| counting.has(due)) {
            self.seen.lost += 1;
            self.seen.lost_because.get_or_insert(error.to_string());
        }
        flow.abandon();
        Ok(())
    }

    /// Whether responses are still awaited after counting has stopped.
    fn is_awaited(&self) -> bool {
        self.unanswered() > 0
    }

    fn unanswered(&self) -> u64 {
        let Some(schedule) = &self.schedule else {
            return 0;
        };
        let under_way = self.flows.iter().filter(|flow| !flow.is_idle()).count();
        schedule.end.saturating_sub(schedule.begun) + under_way as u64
    }
}

impl Schedule {
    fn new(rate: u32, epoll: &OwnedFd) -> Result<Self, Error> {
        let failed = |errno| Error::System("timerfd", errno);
        let interval = Duration::from_secs(1) / rate.max(1);
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer =
            rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?;
        let every = Timespec {
            tv_sec: interval.as_secs() as i64,
            tv_nsec: interval.subsec_nanos().into(),
        };
        let times = Itimerspec {
            it_interval: every,
            it_value: every,
        };
        // Before the timer starts, so that something is due each time the timer wakes this thread.
        let started = Instant::now();
        rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times)
            .map_err(failed)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(
            epoll,
            timer.as_fd(),
            epoll::EventData::new_u64(TIMER),
            flags,
        )
        .map_err(failed)?;
        Ok(Self {
            timer,
            started,
            interval,
            begun: 0,
            end: u64::MAX,
        })
    }

    /// Reads the timer, without which the kernel does not rearm a periodic one. The clock tells what is due,
    /// so the count is ignored.
    fn rewind(&self) {
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
    }

    /// How many are due until `now`.
    fn due_until(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.started).as_nanos();
        let due = since / self.interval.as_nanos().max(1);
        u64::try_from(due).unwrap_or(u64::MAX)
    }

    /// Takes the next fetch, if it is due. Returns when it was due.
    fn take(&mut self, now: Instant) -> Option<Instant> {
        if self.begun >= self.due_until(now).min(self.end) {
            return None;
        }
        self.begun += 1;
        let since = self.interval.as_nanos() * u128::from(self.begun);
        let since = Duration::from_nanos(u64::try_from(since).unwrap_or(u64::MAX));
        Some(self.started + since)
    }
}

impl Counting {
    fn is_on(self) -> bool {
        self.from.is_some() && self.to.is_none()
    }

    /// Whether a fetch that is due at this time counts.
    fn has(self, due: Instant) -> bool {
        self.from.is_some_and(|from| due >= from) && self.to.is_none_or(|to| due < to)
    }
}

impl Sources {
    /// The source address of the client with this number. The side that closes first keeps address and port
    /// for a minute, so many new connections need many of them.
    fn of(self, index: usize) -> Ipv4Addr {
        match self {
            Self::Own => Ipv4Addr::new(127, 0, 1, u8::try_from(index % 250).unwrap_or(0) + 1),
            Self::Shared(address) => address,
        }
    }
}

impl Ask {
    /// The request's head.
    fn request(&self, address: SocketAddrV4, reuse: Reuse) -> Vec<u8> {
        let path = &self.file.path;
        let mut request = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: petrel-bench\r\nAccept: */*\r\n"
        );
        if let Some((first, bytes)) = self.range {
            let last = first + bytes.saturating_sub(1);
            request += &format!("Range: bytes={first}-{last}\r\n");
        }
        if reuse == Reuse::Close {
            request += "Connection: close\r\n";
        }
        (request + "\r\n").into_bytes()
    }

    /// The URL's path.
    fn path(&self) -> String {
        self.file.path.clone()
    }

    fn status(&self) -> u16 {
        if self.range.is_some() { 206 } else { 200 }
    }

    /// The offset of the body in the file.
    fn offset(&self) -> u64 {
        self.range.map_or(0, |(first, _)| first)
    }

    /// The body's length.
    fn bytes(&self) -> u64 {
        self.range.map_or(self.file.bytes, |(_, bytes)| bytes)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reply(path, wrong) => write!(f, "GET {path}: {wrong}"),
            Self::Content(path) => write!(f, "GET {path}: the body is not that file's"),
            Self::Closed(path) => write!(f, "GET {path}: connection closed within the answer"),
            Self::Unasked => f.write_str("bytes that no request asked for"),
            Self::System(call, errno) => write!(f, "{call}: {errno}"),
            Self::Stalled => write!(f, "not one byte for {} s", PATIENCE.as_secs()),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// A run without a single byte for this long is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often to check for a request to stop.
const LOOK_UP: Duration = Duration::from_millis(200);
/// Events that one wait takes from the kernel.
const EVENTS_MAX: usize = 512;
/// Bytes that one receive takes from a socket.
const BUFFER_BYTES: usize = 256 << 10;
/// What epoll returns for the timer, instead of a client's number.
const TIMER: u64 = u64::MAX;
