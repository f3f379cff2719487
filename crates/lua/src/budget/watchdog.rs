//! The watchdog thread, which notices scripts that run for long.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use super::{Budget, stop};

/// How often the watchdog looks while a script runs that it has seen at its last look.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// The processor time from which on a script is slow.
pub const SLOW: Duration = Duration::from_millis(10);

/// How often it looks at least while scripts start and end. A script may make its state grow unseen meanwhile.
const PAUSE_MAX: Duration = Duration::from_micros(2500);

/// After this long without any script the watchdog sleeps until one starts.
const IDLE: Duration = Duration::from_secs(1);

/// A thread that runs Lua.
pub(super) struct Slot {
    /// Odd while Lua runs. Each run has its own number.
    pub(crate) sequence: AtomicU64,
    /// What it may use.
    pub(crate) budget: Budget,
    /// The sequence number of the run whose time is up, as the watchdog has found.
    pub(crate) out_of_time: AtomicU64,
    /// That of the last run that has used [`SLOW`].
    pub(crate) slow: AtomicU64,
    /// The most bytes that the state may have in this run.
    pub(crate) memory_max: AtomicUsize,
    thread: stop::ThreadId,
}

/// What the watchdog saw at its last look at a slot.
struct Watched {
    slot: Arc<Slot>,
    sequence: u64,
    /// The thread's processor time when the watchdog first saw the current run.
    since: Duration,
    /// The thread's processor time when the watchdog first found the time of the current run used up.
    used_up_at: Option<Duration>,
}

/// What a look at a slot has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It has run no Lua since the last look.
    Nothing,
    /// Scripts have started or ended since then.
    Changes,
    /// The same script runs as at the last look.
    LongRun,
}

struct Watchdog {
    watched: Mutex<Vec<Watched>>,
    thread: Thread,
    sleeps: AtomicBool,
}

static WATCHDOG: OnceLock<Watchdog> = OnceLock::new();
static START: Mutex<()> = Mutex::new(());

/// Registers the calling thread. The first call starts the watchdog.
pub(super) fn register(budget: Budget) -> io::Result<Arc<Slot>> {
    let slot = Arc::new(Slot {
        sequence: AtomicU64::new(0),
        budget,
        // A number that no run has.
        out_of_time: AtomicU64::new(u64::MAX),
        slow: AtomicU64::new(u64::MAX),
        memory_max: AtomicUsize::new(usize::MAX),
        thread: stop::ThreadId::current()?,
    });
    lock(&started()?.watched).push(Watched {
        slot: Arc::clone(&slot),
        sequence: 0,
        since: Duration::ZERO,
        used_up_at: None,
    });
    Ok(slot)
}

/// Unregisters a thread that is about to end, or to run no more Lua.
pub(super) fn forget(slot: &Arc<Slot>) {
    if let Some(watchdog) = WATCHDOG.get() {
        lock(&watchdog.watched).retain(|watched| !Arc::ptr_eq(&watched.slot, slot));
    }
}

/// Notes that a script starts in `slot`: its sequence number becomes odd. Unless the watchdog sleeps, this
/// costs one load in addition.
///
/// This function writes the number before it reads `sleeps`. The watchdog writes `sleeps` before it reads the
/// numbers once more. All of these are `SeqCst`, so at least one of the two sees the other's write, and no
/// script runs unwatched.
#[inline]
pub(super) fn begin(slot: &Slot) {
    slot.sequence.fetch_add(1, Ordering::SeqCst);
    if let Some(watchdog) = WATCHDOG.get() {
        watchdog.wake();
    }
}

/// Notes that the script has ended or waits.
#[inline]
pub(super) fn end(slot: &Slot) {
    slot.sequence.fetch_add(1, Ordering::Release);
}

fn started() -> io::Result<&'static Watchdog> {
    let _one = lock(&START);
    if let Some(watchdog) = WATCHDOG.get() {
        return Ok(watchdog);
    }
    let thread = std::thread::Builder::new()
        .name("lua-watchdog".into())
        .spawn(|| {
            // `started` sets it right after it has created this thread.
            let watchdog = WATCHDOG.wait();
            watch(watchdog);
        })?;
    Ok(WATCHDOG.get_or_init(|| Watchdog {
        watched: Mutex::default(),
        thread: thread.thread().clone(),
        sleeps: AtomicBool::new(false),
    }))
}

fn watch(watchdog: &Watchdog) {
    let mut idle = Duration::ZERO;
    let mut pause = TICK;
    loop {
        std::thread::sleep(pause);
        let mut is_idle = true;
        let mut is_long = false;
        let mut shortest = Duration::MAX;
        for watched in lock(&watchdog.watched).iter_mut() {
            let seen = look(watched);
            is_idle &= seen == Seen::Nothing;
            is_long |= seen == Seen::LongRun;
            shortest = shortest.min(watched.slot.budget.time);
        }
        idle = if is_idle {
            idle + pause
        } else {
            Duration::ZERO
        };
        pause = pause_before_look(shortest, is_long);
        if idle > IDLE {
            watchdog.sleep_until_one_starts();
            idle = Duration::ZERO;
        }
    }
}

/// How long to sleep before the next look. Each look takes the processor from a worker, so while all scripts
/// are short a quarter of the `shortest` budget does.
fn pause_before_look(shortest: Duration, is_long: bool) -> Duration {
    match is_long {
        true => TICK,
        false => (shortest / 4).clamp(TICK, PAUSE_MAX),
    }
}

impl Watchdog {
    #[inline]
    fn wake(&self) {
        if self.sleeps.load(Ordering::SeqCst) && self.sleeps.swap(false, Ordering::SeqCst) {
            self.thread.unpark();
        }
    }

    /// Called on the watchdog's thread: sleeps until a script starts.
    fn sleep_until_one_starts(&self) {
        self.sleeps.store(true, Ordering::SeqCst);
        // A script that started since the last look did not see `sleeps` set, and so did not wake this
        // thread.
        if lock(&self.watched)
            .iter()
            .all(|watched| !has_started(watched))
        {
            std::thread::park();
        }
        self.sleeps.store(false, Ordering::SeqCst);
    }
}

/// Whether a script has started in this slot since the last look.
fn has_started(watched: &Watched) -> bool {
    watched.slot.sequence.load(Ordering::SeqCst) != watched.sequence
}

/// Looks at one thread, and sends it the signal if it still runs the same script.
fn look(watched: &mut Watched) -> Seen {
    let slot = &watched.slot;
    let sequence = slot.sequence.load(Ordering::Acquire);
    let runs = sequence % 2 == 1;
    if sequence != watched.sequence {
        watched.sequence = sequence;
        watched.used_up_at = None;
        if runs {
            watched.since = slot.thread.processor_time();
        }
        return Seen::Changes;
    }
    if !runs {
        return Seen::Nothing;
    }
    let now = slot.thread.processor_time();
    let used = now.saturating_sub(watched.since);
    if used >= SLOW {
        slot.slow.store(sequence, Ordering::Relaxed);
    }
    if used >= slot.budget.time {
        // A hypervisor that takes the processor away for a while makes the clock of the thread jump. So the script
        // must be seen to run on.
        let at = *watched.used_up_at.get_or_insert(now);
        if now >= at + TICK {
            slot.out_of_time.store(sequence, Ordering::Release);
        }
    }
    slot.thread.interrupt();
    Seen::LongRun
}

/// A panic cannot leave the guarded data half changed, so a poisoned lock is still usable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_looks_seldom_while_scripts_are_short() {
        let ms = Duration::from_millis;
        assert_eq!(pause_before_look(ms(10), false), ms(5) / 2);
        assert_eq!(pause_before_look(ms(60_000), false), PAUSE_MAX);
        assert_eq!(pause_before_look(ms(1), false), TICK);
        assert_eq!(pause_before_look(ms(60_000), true), TICK);
        assert_eq!(pause_before_look(Duration::MAX, false), PAUSE_MAX);
    }

    #[test]
    fn a_script_that_runs_on_is_looked_at_each_tick() {
        let (watchdog, slot) = watchdog(Duration::from_secs(10));
        let see = || look(&mut lock(&watchdog.watched)[0]);
        assert_eq!(see(), Seen::Nothing);
        slot.sequence.fetch_add(1, Ordering::SeqCst);
        assert_eq!(
            (see(), see(), see()),
            (Seen::Changes, Seen::LongRun, Seen::LongRun)
        );
        slot.sequence.fetch_add(2, Ordering::SeqCst);
        assert_eq!(see(), Seen::Changes, "it is another script");
    }

    #[test]
    fn a_budget_is_of_processor_time_that_is_seen_twice() {
        let budget = Duration::from_millis(1);
        let (watchdog, slot) = watchdog_of_one_that_waits(budget);
        let out_of_time = || slot.out_of_time.load(Ordering::SeqCst);
        assert_eq!(out_of_time(), u64::MAX, "it has waited all the time");
        let work = |time: Duration| {
            let begun = slot.thread.processor_time();
            while slot.thread.processor_time() < begun + time {
                std::hint::spin_loop();
            }
            look(&mut lock(&watchdog.watched)[0]);
        };
        work(20 * TICK);
        assert_eq!(out_of_time(), u64::MAX, "the clock may have jumped");
        assert_eq!(slot.slow.load(Ordering::SeqCst), 1);
        work(TICK);
        assert_eq!(out_of_time(), 1);
    }

    /// Makes a watchdog that has looked at this thread while it waited for longer than the budget, and used
    /// less than half of it. Waiting itself takes some processor time, on a busy machine more than half the
    /// budget; then it tries again.
    fn watchdog_of_one_that_waits(budget: Duration) -> (Watchdog, Arc<Slot>) {
        for _ in 0..10_000 {
            let (watchdog, slot) = watchdog(budget);
            slot.sequence.fetch_add(1, Ordering::SeqCst);
            let begun = slot.thread.processor_time();
            for _ in 0..5 {
                look(&mut lock(&watchdog.watched)[0]);
                std::thread::sleep(TICK);
            }
            if slot.thread.processor_time() < begun + budget / 2 {
                return (watchdog, slot);
            }
        }
        panic!("it takes too much time to do nothing");
    }

    /// A watchdog whose thread is this one, and the slot that it watches.
    fn watchdog(time: Duration) -> (Watchdog, Arc<Slot>) {
        let slot = Arc::new(Slot {
            sequence: AtomicU64::new(0),
            budget: Budget {
                time,
                growth_bytes: 1 << 20,
            },
            out_of_time: AtomicU64::new(u64::MAX),
            slow: AtomicU64::new(u64::MAX),
            memory_max: AtomicUsize::new(usize::MAX),
            thread: stop::ThreadId::current().expect("a thread"),
        });
        let watched = Watched {
            slot: Arc::clone(&slot),
            sequence: 0,
            since: Duration::ZERO,
            used_up_at: None,
        };
        let watchdog = Watchdog {
            watched: Mutex::new(vec![watched]),
            thread: std::thread::current(),
            sleeps: AtomicBool::new(false),
        };
        (watchdog, slot)
    }

    /// A wake-up could get lost right between the last look and the sleep, when the script sees that the
    /// watchdog does not sleep yet.
    #[test]
    fn a_script_that_starts_while_the_watchdog_falls_asleep_is_seen() {
        let (watchdog, slot) = watchdog(Duration::from_millis(10));
        slot.sequence.fetch_add(1, Ordering::SeqCst);
        watchdog.wake();
        // If the script were missed, this call would never return.
        watchdog.sleep_until_one_starts();
        assert!(!watchdog.sleeps.load(Ordering::SeqCst));
        assert_eq!(look(&mut lock(&watchdog.watched)[0]), Seen::Changes);
    }

    #[test]
    fn one_that_starts_later_wakes_it() {
        let (watchdog, slot) = watchdog(Duration::from_millis(10));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !watchdog.sleeps.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                slot.sequence.fetch_add(1, Ordering::SeqCst);
                watchdog.wake();
            });
            watchdog.sleep_until_one_starts();
        });
        assert_eq!(look(&mut lock(&watchdog.watched)[0]), Seen::Changes);
    }
}
