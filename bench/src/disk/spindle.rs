//! A spindle in real time: a thread and a queue.
//!
//! The thread asks [`super::model`] which operation is next and when it ends, sleeps until then, and replies.
//! The model's time is independent of the thread: a late reply delays no other. Of requests it knows only the
//! position, the length and a [`Reply`].

use super::control::Pace;
use super::counters::{LENGTHS, Spindle as Counters};
use super::model::{self, Operation, Served};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::num::NonZeroU64;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A request that waits for bytes of the disk.
pub trait Reply: Send {
    /// Prepares the reply, so that [`Self::send`] is fast.
    fn prepare(&mut self);
    /// Sends the reply.
    fn send(self);
}

/// A queue and the state of its thread.
#[derive(Debug)]
pub struct Spindle<R> {
    state: Mutex<State<R>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<R> {
    model: model::Spindle<R>,
    counters: Counters,
    pace: Pace,
    /// No operation is taken from the queue.
    hangs: bool,
    /// The thread is serving an operation.
    works: bool,
    /// The thread shall end.
    ended: bool,
}

impl<R: Reply> Spindle<R> {
    /// A spindle of this capacity, without its thread.
    pub fn new(capacity: u64, seed: u64) -> Self {
        let state = State {
            model: model::Spindle::new(capacity, seed),
            counters: Counters::default(),
            pace: Pace::Quick,
            hangs: false,
            works: false,
            ended: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Requests `bytes` at `at`. If the disk is quick, the reply is sent at once.
    pub fn ask(&self, at: u64, bytes: u64, mut reply: R) {
        let mut state = self.lock();
        if state.pace == Pace::Quick && !state.hangs {
            drop(state);
            reply.prepare();
            return reply.send();
        }
        state.model.push(Operation {
            at,
            bytes,
            // Under the lock, so that the queue is in the order of arrival.
            arrived: now_ns(),
            tag: reply,
        });
        let depth = state.model.waiting() as u64 + u64::from(state.works);
        state.counters.depth_max = state.counters.depth_max.max(depth);
        drop(state);
        self.changed.notify_one();
    }

    /// The thread's loop, until [`Self::end`].
    pub fn work(&self) {
        // By default the kernel adds up to 50 µs to a sleep, to combine wake-ups. If this fails, replies are
        // a little late.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        while let Some(mut served) = self.next() {
            served.operation.tag.prepare();
            sleep_until(served.end);
            // Before the reply, because its receiver may look at the counters.
            self.count(&served);
            served.operation.tag.send();
            let late_ns = now_ns().saturating_sub(served.end);
            let counters = &mut self.lock().counters;
            counters.late_ns += late_ns;
            counters.late_ns_max = counters.late_ns_max.max(late_ns);
        }
    }

    fn count(&self, served: &Served<R>) {
        let Operation { bytes, arrived, .. } = served.operation;
        let mut state = self.lock();
        state.works = false;
        let counters = &mut state.counters;
        counters.operations += 1;
        counters.sequential += u64::from(served.sequential);
        counters.bytes += bytes;
        if let Some(count) = counters.by_length.get_mut(class(bytes)) {
            *count += 1;
        }
        counters.busy_ns += served.end - served.start;
        counters.waited_ns += served.end.saturating_sub(arrived);
    }

    /// The counters. Resets their maxima.
    pub fn counters(&self) -> Counters {
        let mut state = self.lock();
        let counters = state.counters.clone();
        state.counters.depth_max = 0;
        state.counters.late_ns_max = 0;
        counters
    }

    /// Sets how fast it is from the next operation on.
    pub fn set_pace(&self, pace: Pace) {
        self.lock().pace = pace;
    }

    /// Stops taking operations from the queue, or resumes: then they begin now, as if the disk had been busy.
    pub fn set_hang(&self, hangs: bool) {
        let mut state = self.lock();
        if state.hangs && !hangs {
            state.model.busy_until(now_ns());
        }
        state.hangs = hangs;
        drop(state);
        self.changed.notify_one();
    }

    /// Lets the thread end. Queued operations get no reply; closing the device makes them fail.
    pub fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_one();
    }

    /// Waits for an operation; `None` at the end.
    fn next(&self) -> Option<Served<R>> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return None;
            }
            if !state.hangs
                && let Some(served) = state.model.next()
            {
                state.works = true;
                return Some(served);
            }
            state = (self.changed.wait(state)).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<R>> {
        // A panic cannot leave this state half changed, so a poisoned lock is still usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which of [`LENGTHS`] an operation belongs to.
fn class(bytes: u64) -> usize {
    LENGTHS.partition_point(|length| *length < bytes)
}

/// Nanoseconds of the monotonic clock, which is the same for all processes.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn sleep_until(ns: u64) {
    let until = Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as _,
    };
    let sleep =
        || rustix::thread::clock_nanosleep_absolute(rustix::thread::ClockId::Monotonic, &until);
    while sleep() == Err(rustix::io::Errno::INTR) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    /// Long enough for any machine; a test that passes never waits this long.
    const DEADLINE: Duration = Duration::from_secs(60);

    struct Told(u32, Sender<u32>);

    impl Reply for Told {
        fn prepare(&mut self) {}

        fn send(self) {
            let _ = self.1.send(self.0);
        }
    }

    fn with_spindle(test: impl FnOnce(&Spindle<Told>)) {
        let spindle = Spindle::new(1_000_000, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| spindle.work());
            // Otherwise a failed test would wait for the thread.
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&spindle)));
            spindle.end();
            if let Err(panic) = ended {
                std::panic::resume_unwind(panic);
            }
        });
    }

    #[test]
    fn a_quick_disk_answers_at_once_and_a_modelled_one_in_its_time() {
        with_spindle(|spindle| {
            let (sender, receiver) = channel();
            spindle.ask(5000, 100, Told(1, sender.clone()));
            assert_eq!(receiver.try_recv(), Ok(1));
            spindle.set_pace(Pace::Modelled);
            let before = now_ns();
            for n in 2..5 {
                spindle.ask(u64::from(n) * 100_000, 4096, Told(n, sender.clone()));
            }
            let mut got: Vec<_> = (0..3)
                .flat_map(|_| receiver.recv_timeout(DEADLINE))
                .collect();
            got.sort_unstable();
            assert_eq!(got, [2, 3, 4]);
            // Three seeks of at least 1 ms.
            assert!(now_ns() - before > 3_000_000);
        });
    }

    #[test]
    fn counters_know_every_modelled_operation() {
        with_spindle(|spindle| {
            spindle.set_pace(Pace::Modelled);
            let (sender, receiver) = channel();
            spindle.ask(0, 4096, Told(1, sender.clone()));
            assert_eq!(receiver.recv_timeout(DEADLINE), Ok(1));
            spindle.ask(4096, 100_000, Told(2, sender));
            assert_eq!(receiver.recv_timeout(DEADLINE), Ok(2));
            let counters = spindle.counters();
            // Initially the head is at the start.
            assert_eq!((counters.sequential, counters.bytes), (2, 104_096));
            assert_eq!(counters.by_length, [1, 0, 1, 0, 0]);
            assert!(counters.waited_ns >= counters.busy_ns && counters.busy_ns > 1_600_000);
            assert_eq!(counters.depth_max, 1);
            assert_eq!(spindle.counters().depth_max, 0);
        });
    }

    #[test]
    fn nothing_is_answered_while_it_hangs() {
        with_spindle(|spindle| {
            spindle.set_hang(true);
            let (sender, receiver) = channel();
            spindle.ask(0, 4096, Told(1, sender));
            assert!(receiver.recv_timeout(Duration::from_millis(30)).is_err());
            spindle.set_hang(false);
            assert_eq!(receiver.recv_timeout(DEADLINE), Ok(1));
        });
    }

    #[test]
    fn lengths_have_classes() {
        let classes = [1, 4096, 4097, 128 * 1024, 1 << 20].map(class);
        assert_eq!(classes, [0, 0, 1, 2, 4]);
    }
}
