//! What a script may use up before it is stopped: processor time and memory.
//!
//! Nothing is counted while a script runs. Entering and leaving Lua is a store each; a thread of its own,
//! the watchdog, looks every millisecond at what has been running since it last looked, and sends that
//! thread a signal. The handler sets a hook if the budget is used up, and the hook makes the
//! coroutine yield, so that no pcall of the script catches it. Where it cannot yield, below a C function that calls
//! back, it raises errors until it can.
//!
//! Processor time counts, not time: a script is not stopped because the machine is busy.

pub mod proof;
mod stop;
mod watchdog;

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use crate::raw::{Coroutine, Resumed};
use watchdog::Slot;

/// Why a script was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    /// It ran for longer than its budget without a wait.
    Time,
    /// The state's memory grew by more than one run may use.
    Memory,
}

/// What one stretch of a run, from its start or a wait to the next wait or its end, may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Processor time. It is looked at every [`TICK`](watchdog::TICK), so a script may run for up to two of them longer.
    pub time: Duration,
    /// Bytes by which the memory of the state may grow.
    pub growth_bytes: usize,
}

/// One thread that runs Lua, known to the watchdog.
pub(crate) struct Meter {
    slot: Arc<Slot>,
}

impl Meter {
    /// Makes the calling thread known.
    ///
    /// # Errors
    /// The kernel refuses the watchdog's thread or the signal handler.
    pub(crate) fn new(budget: Budget) -> std::io::Result<Meter> {
        stop::install()?;
        let slot = watchdog::register(budget)?;
        Ok(Meter { slot })
    }

    /// Resumes `coroutine` with the `arguments` values on top of its stack, and tells whether it was stopped for
    /// using too much.
    pub(crate) fn resume(
        &self,
        coroutine: &mut Coroutine,
        arguments: c_int,
    ) -> (Resumed, Option<Excess>) {
        if stop::is_running() {
            // A run within a run of this thread: the outer one's budget holds for both.
            return (coroutine.resume(arguments), None);
        }
        stop::resume_watched(coroutine, arguments, &self.slot)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        watchdog::forget(&self.slot);
    }
}
