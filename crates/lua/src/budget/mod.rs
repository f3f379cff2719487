//! The budget of a script: how much processor time and memory it may use before it is stopped.
//!
//! Nothing is counted while a script runs. Entering and leaving Lua costs a store each. A thread of its own,
//! the watchdog, looks every few milliseconds which threads are still running the same script as at its last
//! look, and sends each of these a signal. If the budget is used up, the signal handler sets a hook, and the
//! hook makes the coroutine yield, so that no pcall of the script can catch it. Where the coroutine cannot
//! yield, below a C function that calls back, the hook raises errors until it can.
//!
//! Processor time counts, not elapsed time: a script is not stopped because the machine is busy.

pub mod proof;
mod stop;
mod watchdog;

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::direct;
use crate::raw::{Coroutine, Resumed};
pub use watchdog::SLOW;
use watchdog::Slot;

/// Why a script was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    /// It ran longer than its budget without waiting.
    Time,
    /// The state's memory grew by more than one run may use.
    Memory,
}

/// What one stretch of a run may use. A stretch goes from the start or a wait to the next wait or the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Processor time. The watchdog looks for scripts that run for long several times in this period, and
    /// checks their time every [`TICK`](watchdog::TICK). A script that has used it up is stopped when it is seen
    /// to run on, so it may run up to four of these longer.
    pub time: Duration,
    /// Bytes by which the memory of the state may grow.
    pub growth_bytes: usize,
}

/// Registers a thread that runs Lua with the watchdog, until it is dropped.
pub(crate) struct Meter {
    slot: Arc<Slot>,
}

impl Meter {
    /// Registers the calling thread.
    ///
    /// # Errors
    /// The kernel refuses the watchdog's thread or the signal handler.
    pub(crate) fn new(budget: Budget) -> std::io::Result<Meter> {
        stop::install()?;
        let slot = watchdog::register(budget)?;
        Ok(Meter { slot })
    }

    /// Whether the run that has just ended, or waits now, was slow.
    pub(crate) fn was_slow(&self) -> bool {
        // The end of a run adds one to its number.
        let run = self.slot.sequence.load(Ordering::Relaxed).wrapping_sub(1);
        self.slot.slow.load(Ordering::Relaxed) == run
    }

    /// Resumes `coroutine` with the topmost `arguments` values of its stack, and tells whether it was stopped
    /// because its budget was used up. `bytes_used` are in use in its Lua state.
    pub(crate) fn resume(
        &self,
        coroutine: &mut Coroutine,
        arguments: c_int,
        bytes_used: usize,
    ) -> (Resumed, Option<Excess>) {
        assert!(!direct::is_inside(), "a direct function runs a script");
        if stop::is_running() {
            // A run inside another run of this thread: the outer budget covers both.
            return (coroutine.resume(arguments), None);
        }
        stop::resume_watched(coroutine, arguments, bytes_used, &self.slot)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        watchdog::forget(&self.slot);
    }
}
