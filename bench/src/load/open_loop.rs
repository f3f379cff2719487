//! The open loop: requests are due at fixed times, whether earlier ones were answered or not.
//!
//! A latency counts from when the request was due, so a server that pauses is charged for all requests that
//! would have arrived meanwhile. A request for which no connection is free waits for one, and that counts,
//! too.

use super::connection::{self, Progress};
use super::{Client, EVENTS_MAX, Error, LATENCY_NS_MAX, PATIENCE};
use crate::interrupt;
use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use std::time::{Duration, Instant};

impl Client<'_> {
    /// Sends `rate` requests per second for `length`. Returns the latencies in nanoseconds.
    pub fn run_open(&mut self, rate: u32, length: Duration) -> Result<Histogram<u64>, Error> {
        let mut run = OpenRun::new(rate, length, self.connections.len());
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !run.is_over() {
            let now = Instant::now();
            while let Some((index, due)) = run.next(now) {
                self.send(index, due)?;
            }
            run.watch(now)?;
            self.wait_until(run.due(), &mut events)?;
            for event in events.drain(..) {
                let flags = event.flags;
                let ended = flags.intersects(connection::ENDED);
                self.drive_open(event.data.u64() as usize, ended, &mut run)?;
            }
        }
        Ok(run.latency)
    }

    fn drive_open(&mut self, index: usize, ended: bool, run: &mut OpenRun) -> Result<(), Error> {
        let expected = &self.target.expected;
        let sent_at = self.connections[index].sent_at;
        match self.connections[index].receive(expected, &mut self.buffer, ended)? {
            Progress::More => Ok(()),
            Progress::Done => {
                if ended {
                    self.connections[index] = self.open(index)?;
                }
                run.answered(index, sent_at);
                Ok(())
            }
            Progress::Closed => {
                self.connections[index] = self.open(index)?;
                if run.idle.contains(&index) {
                    return Ok(());
                }
                self.send(index, sent_at)
            }
        }
    }

    /// Waits for events, but not beyond `due`. It spends the last millisecond polling, because the kernel's
    /// timers are coarser than what is measured.
    fn wait_until(
        &self,
        due: Option<Instant>,
        events: &mut Vec<epoll::Event>,
    ) -> Result<(), Error> {
        let left = due.map_or(PATIENCE, |due| {
            due.saturating_duration_since(Instant::now())
        });
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_millis()) * 1_000_000,
        };
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(events),
            Some(&timeout),
        ) {
            _ if interrupt::asked() => Err(Error::Interrupted),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::System("epoll_wait", errno)),
        }
    }
}

/// The state of a run.
struct OpenRun {
    started: Instant,
    interval: Duration,
    /// How many requests are due in all.
    requests: u64,
    sent: u64,
    /// Connections without an open request.
    idle: Vec<usize>,
    connections: usize,
    answered_at: Instant,
    latency: Histogram<u64>,
}

impl OpenRun {
    fn new(rate: u32, length: Duration, connections: usize) -> Self {
        let started = Instant::now();
        Self {
            started,
            interval: Duration::from_secs(1) / rate.max(1),
            requests: (length.as_secs_f64() * f64::from(rate)) as u64,
            sent: 0,
            idle: (0..connections).collect(),
            connections,
            answered_at: started,
            latency: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
                .expect("the bounds are in order and three digits are allowed"),
        }
    }

    /// When the next request is due.
    fn due(&self) -> Option<Instant> {
        let since = self.interval.as_nanos() * u128::from(self.sent);
        let since = Duration::from_nanos(u64::try_from(since).unwrap_or(u64::MAX));
        (self.sent < self.requests).then(|| self.started + since)
    }

    /// A connection for the next request, and when that was due, if it is due.
    fn next(&mut self, now: Instant) -> Option<(usize, Instant)> {
        let due = self.due().filter(|due| *due <= now)?;
        let index = self.idle.pop()?;
        self.sent += 1;
        Some((index, due))
    }

    fn answered(&mut self, index: usize, due: Instant) {
        self.answered_at = Instant::now();
        let nanoseconds = self.answered_at.duration_since(due).as_nanos();
        self.latency
            .saturating_record(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        self.idle.push(index);
    }

    /// Fails if the server has stopped answering.
    fn watch(&self, now: Instant) -> Result<(), Error> {
        let somebody_waits = self.idle.len() < self.connections;
        if somebody_waits && now.saturating_duration_since(self.answered_at) > PATIENCE {
            return Err(Error::Stalled);
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.sent == self.requests && self.idle.len() == self.connections
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_finds_no_connection_counts_from_when_it_was_due() {
        let mut run = OpenRun::new(1000, Duration::from_millis(3), 1);
        let begin = run.started;
        let (index, due) = run.next(begin).unwrap();
        assert_eq!((index, due), (0, begin));
        let later = begin + Duration::from_millis(2);
        assert_eq!(run.next(later), None, "its connection is occupied");
        run.answered(0, due);
        assert_eq!(run.next(later), Some((0, begin + Duration::from_millis(1))));
        run.answered(0, later);
        assert!(run.next(later).is_some() && !run.is_over());
        run.answered(0, later);
        assert!(run.is_over() && run.latency.len() == 3);
    }
}
