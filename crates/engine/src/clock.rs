//! The clock of a worker: seconds for deadlines and the Date header, nanoseconds for stamps.
//!
//! The Date line is formatted once a second. Each reading of the clock checks whether the second is over, so
//! the date is right even if the tick comes late because the worker is busy.
#![expect(clippy::disallowed_methods, reason = "this is the clock")]

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use petrel_proto::date;
use rustix::time::{ClockId, clock_gettime};

use crate::ledger::Nanos;
use crate::limits;

/// The clock of one worker.
pub struct Clock {
    latest: Cell<Nanos>,
    /// The time between the last two readings, if both were in the same turn; else 0.
    gap: Cell<Nanos>,
    /// When the present turn began.
    turn: Cell<Nanos>,
    /// For how long the worker was busy in the turn before, without waiting for events.
    earlier_turn: Cell<Nanos>,
    /// See [`Clock::news_since`].
    busy: Cell<(Nanos, Nanos)>,
    /// The longest turn since [`Clock::take_longest_turn`].
    longest_turn: Cell<Nanos>,
    /// The monotonic time until which `wall_s` is right.
    second_ends: Cell<Nanos>,
    wall_s: Cell<u64>,
    /// What the wall clock showed when the monotonic clock was 0, as far as was known when this clock was made.
    begun: Cell<Option<Nanos>>,
    steady_s: Cell<u64>,
    monotonic_s: Cell<u32>,
    date_line: RefCell<[u8; DATE_LINE_BYTES]>,
    #[cfg(test)]
    readings: Cell<u32>,
    /// The monotonic and the wall-clock time at which a test has stopped the clock.
    stopped_at: Cell<Option<(i64, i64)>>,
}

/// Reads the monotonic clock, for threads that have no worker.
pub fn thread_now() -> Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as Nanos * SECOND + now.tv_nsec as Nanos
}

/// For how long this thread has had a processor. A system call.
pub fn thread_processor_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as Nanos * SECOND + time.tv_nsec as Nanos
}

thread_local! {
    /// How many tasks the worker of this thread has run since it asked the kernel for events; with
    /// [`IS_NEW`], it has not read its clock since then. A global of the thread, because the hook of the
    /// runtime, which sets it, belongs to no worker.
    static TURN: Cell<u32> = const { Cell::new(IS_NEW) };
}

/// tokio asks the kernel for events after this number of tasks, even if more tasks are ready
/// (`Builder::event_interval`).
pub(crate) const TURN_POLLS_MAX: u32 = 61;

const IS_NEW: u32 = 1 << 31;

/// The worker of this thread has waited for events: a turn begins.
pub(crate) fn turn_begins() {
    TURN.set(IS_NEW);
}

/// The worker of this thread runs a task. Short tasks of the worker itself are not counted, so a turn can last
/// a few tasks longer here than in the runtime.
#[inline]
pub(crate) fn task_runs() {
    let turn = TURN.get();
    TURN.set(match turn & !IS_NEW < TURN_POLLS_MAX {
        true => turn + 1,
        false => IS_NEW,
    });
}

/// `Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n`
const DATE_LINE_BYTES: usize = 6 + 29 + 2;
/// Whether tests can stop the clock. A request reads it several times, so that the server must not ask each time.
const CAN_STOP: bool = cfg!(debug_assertions);
const SECOND: Nanos = 1_000_000_000;
const MILLI: Nanos = 1_000_000;
/// A worker that asked for events for less than this did not wait for them.
const AT_ONCE: Nanos = 1_000_000;

impl Clock {
    /// A clock that shows the present time.
    pub fn new() -> Clock {
        let clock = Clock {
            latest: Cell::new(0),
            gap: Cell::new(0),
            turn: Cell::new(0),
            earlier_turn: Cell::new(0),
            busy: Cell::new((0, 0)),
            longest_turn: Cell::new(0),
            second_ends: Cell::new(0),
            wall_s: Cell::new(0),
            begun: Cell::new(None),
            steady_s: Cell::new(0),
            monotonic_s: Cell::new(0),
            date_line: RefCell::new(*b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"),
            #[cfg(test)]
            readings: Cell::new(0),
            stopped_at: Cell::new(None),
        };
        clock.now();
        clock
    }

    /// Reads the monotonic clock.
    #[inline]
    pub fn now(&self) -> Nanos {
        let now = self.read(ClockId::Monotonic) as Nanos;
        #[cfg(test)]
        self.readings.update(|readings| readings + 1);
        let before = self.latest.replace(now);
        let turn = TURN.get();
        match turn & IS_NEW != 0 {
            true => {
                TURN.set(turn & !IS_NEW);
                self.begin_turn(before, now);
            }
            false => self.gap.set(now.saturating_sub(before)),
        }
        if now >= self.second_ends.get() {
            self.next_second(now);
        }
        now
    }

    /// The first reading after the worker has waited for events: a turn begins.
    #[inline]
    fn begin_turn(&self, before: Nanos, now: Nanos) {
        self.gap.set(0);
        let began = self.turn.replace(now);
        let took = before.saturating_sub(began);
        self.earlier_turn.set(took);
        // The kernel had events when the worker asked. The worker may have had no processor before it read the clock.
        let asked_for = now.saturating_sub(before);
        let was_busy = took >= limits::NOTED_LAG_NANOS && asked_for < AT_ONCE.max(took / 16);
        self.busy.set(match was_busy {
            true => (began, before),
            false => (now, now),
        });
        if took > self.longest_turn.get() {
            self.longest_turn.set(took);
        }
    }

    /// The longest turn since the last call.
    pub(crate) fn take_longest_turn(&self) -> Nanos {
        self.longest_turn.take()
    }

    /// When the worker last asked the kernel for events: all that is handled now had happened by then. Exact
    /// to the first reading of the clock after it; under full load, to the [`TURN_POLLS_MAX`] tasks that tokio
    /// runs before it asks again.
    #[inline]
    pub fn turn(&self) -> Nanos {
        self.turn.get()
    }

    /// Since when the end of a wait, of which the worker learned in this turn, may have lain in the kernel: the
    /// beginning of the turn before, if that took long, the worker did not wait for events behind it, and the wait had
    /// begun `before` its end. Otherwise [`Clock::turn`].
    #[inline]
    pub fn news_since(&self, before: Nanos) -> Nanos {
        let (since, until) = self.busy.get();
        match before < until {
            true => since,
            false => self.turn.get(),
        }
    }

    /// How long the turn before the present one took. What was read first in this turn may have lain in the
    /// kernel for that long.
    #[inline]
    pub fn earlier_turn(&self) -> Nanos {
        self.earlier_turn.get()
    }

    /// The time between the last two readings of this turn. The task that made the second one has taken it,
    /// or tasks before it that read no clock. 0 for the first reading of a turn.
    #[inline]
    pub fn gap(&self) -> Nanos {
        self.gap.get()
    }

    /// The present time for timers of the runtime.
    pub(crate) fn instant(&self) -> Instant {
        Instant::now()
    }

    /// Advances the clock and stops it there, for tests.
    ///
    /// # Panics
    /// The program was built without debug assertions. Its clock is only read and never asked whether it stands.
    #[doc(hidden)]
    pub fn skip(&self, by: Duration) {
        let after = |clock| self.read(clock) + by.as_nanos() as i64;
        if !CAN_STOP {
            panic!("without debug assertions the clock cannot be stopped");
        }
        let stopped_at = (after(ClockId::Monotonic), after(ClockId::Realtime));
        self.stopped_at.set(Some(stopped_at));
        self.now();
    }

    /// How often the monotonic clock was read.
    #[cfg(test)]
    pub(crate) fn readings(&self) -> u32 {
        self.readings.get()
    }

    /// The result of the last [`Clock::now`]. For times that may be as old as the present poll of the
    /// worker's task.
    #[inline]
    pub fn latest(&self) -> Nanos {
        self.latest.get()
    }

    /// [`Clock::now`] in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.now() / MILLI
    }

    /// [`Clock::latest`] in milliseconds.
    #[inline]
    pub fn latest_ms(&self) -> u64 {
        self.latest() / MILLI
    }

    /// Seconds since the epoch at the last reading.
    pub fn wall_seconds(&self) -> u64 {
        self.wall_s.get()
    }

    /// Seconds since the epoch, by the wall clock as it was when the worker began: they do not jump when the clock
    /// is set.
    pub fn steady_seconds(&self) -> u64 {
        self.steady_s.get()
    }

    /// Monotonic seconds at the last reading. Deadlines use this unit.
    #[inline]
    pub fn seconds(&self) -> u32 {
        self.monotonic_s.get()
    }

    /// The deadline of a wait that may take `seconds`. The clock counts full seconds, as in lighttpd: a
    /// deadline is never early and up to a second late, and 0 is the shortest time.
    #[inline]
    pub fn after(&self, seconds: u32) -> u32 {
        self.seconds().saturating_add(seconds).saturating_add(1)
    }

    /// The wall-clock time at the monotonic time `at`, in nanoseconds since the epoch.
    pub fn wall_nanos_at(&self, at: Nanos) -> u64 {
        let begun = self.second_ends.get().saturating_sub(SECOND);
        let wall = self.wall_s.get() * SECOND;
        if at >= begun {
            wall + (at - begun)
        } else {
            wall.saturating_sub(begun - at)
        }
    }

    /// The `Date` header line.
    #[inline]
    pub(crate) fn date_line(&self) -> [u8; DATE_LINE_BYTES] {
        *self.date_line.borrow()
    }

    /// Appends the `Date` header line.
    #[inline]
    pub(crate) fn write_date_line(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&*self.date_line.borrow());
    }

    /// The time of a clock of the kernel, in nanoseconds.
    #[inline]
    fn read(&self, clock: ClockId) -> i64 {
        if CAN_STOP && let Some((monotonic, wall)) = self.stopped_at.get() {
            return match clock {
                ClockId::Realtime => wall,
                _ => monotonic,
            };
        }
        let time = clock_gettime(clock);
        time.tv_sec * SECOND as i64 + time.tv_nsec
    }

    #[cold]
    fn next_second(&self, now: Nanos) {
        let wall = u64::try_from(self.read(ClockId::Realtime)).unwrap_or(0);
        let seconds = wall / SECOND;
        self.wall_s.set(seconds);
        self.second_ends.set(now + (SECOND - wall % SECOND));
        let begun = self.begun.get().unwrap_or(wall.saturating_sub(now));
        self.begun.set(Some(begun));
        self.steady_s.set(begun.saturating_add(now) / SECOND);
        self.monotonic_s
            .set(u32::try_from(now / SECOND).unwrap_or(u32::MAX));
        let mut line = self.date_line.borrow_mut();
        let mut text = [0u8; 29];
        date::format_imf(seconds, &mut text);
        line[6..35].copy_from_slice(&text);
    }
}

impl Default for Clock {
    fn default() -> Self {
        Clock::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_seconds_go_on_when_the_wall_clock_is_set_back() {
        let clock = Clock::new();
        assert!(clock.wall_seconds().abs_diff(clock.steady_seconds()) <= 1);
        clock.skip(Duration::ZERO);
        let (wall_s, steady_s) = (clock.wall_seconds(), clock.steady_seconds());
        let (monotonic, wall) = clock.stopped_at.get().expect("it is stopped");
        let set_back = wall - 3600 * SECOND as i64;
        clock.stopped_at.set(Some((monotonic, set_back)));
        clock.skip(Duration::from_secs(60));
        assert_eq!(clock.wall_seconds(), wall_s + 60 - 3600);
        assert_eq!(clock.steady_seconds(), steady_s + 60);
    }

    #[test]
    fn the_date_line_is_the_present() {
        let clock = Clock::new();
        let mut line = Vec::new();
        clock.write_date_line(&mut line);
        let text = line
            .strip_prefix(b"Date: ")
            .and_then(|rest| rest.strip_suffix(b"\r\n"));
        let shown = date::parse(text.expect("the line has a name and an end")).expect("a date");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        assert!(now.expect("after 1970").as_secs().abs_diff(shown) <= 1);
    }

    #[test]
    fn wall_time_of_a_stamp_is_close_to_the_wall_clock() {
        let clock = Clock::new();
        let wall = clock.wall_nanos_at(clock.now());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.expect("after 1970").as_nanos() as u64;
        assert!(now.abs_diff(wall) < 100_000_000, "{now} {wall}");
    }
}
