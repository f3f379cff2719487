//! What the queues of all workers have to do, for the counters `server.io.BACKEND.*` and `server.io.device.*`.
//!
//! A read is counted by what it holds, a [`Counted`], so that none is left over whichever way it ends: also
//! with its worker.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::blocking::{Counts, DeviceLoad};
use crate::settings::core::NetworkBackend;

/// The counts of the queues of `backend`: of threads they have none, and what they do not take is counted by
/// those who do.
pub(crate) fn queue_counts(backend: NetworkBackend) -> Counts {
    all().of[backend as usize]
}

/// The file systems for which reads of queues are under way or wait, in no order.
pub(crate) fn queue_loads() -> Vec<DeviceLoad> {
    all().devices.clone()
}

/// A read that is wanted from a queue, until it has ended or is given up.
pub(super) struct Counted {
    backend: NetworkBackend,
    device: u64,
    is_running: bool,
    /// When it began to wait, or to be read.
    since: Instant,
}

impl Counted {
    /// It begins to wait.
    pub fn new(backend: NetworkBackend, device: u64) -> Counted {
        let mut all = all();
        all.of[backend as usize].queued += 1;
        all.load(device).waiting += 1;
        Counted {
            backend,
            device,
            is_running: false,
            since: Instant::now(),
        }
    }

    /// The queue has it.
    pub fn begin(&mut self) {
        if std::mem::replace(&mut self.is_running, true) {
            return;
        }
        let now = Instant::now();
        let waited = microseconds(now - self.since);
        self.since = now;
        let mut all = all();
        let counts = &mut all.of[self.backend as usize];
        counts.queued -= 1;
        counts.running += 1;
        counts.wait_us += waited;
        counts.wait_us_max = counts.wait_us_max.max(waited);
        let load = all.load(self.device);
        load.waiting -= 1;
        load.running += 1;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut all = all();
        let counts = &mut all.of[self.backend as usize];
        if self.is_running {
            let ran = microseconds(self.since.elapsed());
            counts.running -= 1;
            counts.jobs += 1;
            counts.run_us += ran;
            counts.run_us_max = counts.run_us_max.max(ran);
        } else {
            counts.queued -= 1;
        }
        let load = all.load(self.device);
        match self.is_running {
            true => load.running -= 1,
            false => load.waiting -= 1,
        }
        all.devices
            .retain(|load| load.running > 0 || load.waiting > 0);
    }
}

#[derive(Default)]
struct All {
    of: [Counts; NetworkBackend::ALL.len()],
    /// Those that have work.
    devices: Vec<DeviceLoad>,
}

impl All {
    fn load(&mut self, device: u64) -> &mut DeviceLoad {
        let known = self.devices.iter().position(|load| load.device == device);
        let place = known.unwrap_or_else(|| {
            self.devices.push(DeviceLoad {
                device,
                ..DeviceLoad::default()
            });
            self.devices.len() - 1
        });
        &mut self.devices[place]
    }
}

/// Held for a few instructions, some times for each read that goes to a disk.
static ALL: LazyLock<Mutex<All>> = LazyLock::new(Mutex::default);

fn all() -> MutexGuard<'static, All> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_counted_until_they_end_whichever_way() {
        const BACKEND: NetworkBackend = NetworkBackend::Write;
        let device = 4095 << 32 | 99;
        let seen = || {
            let loads = queue_loads();
            let load = loads.iter().find(|load| load.device == device);
            let load = load.map(|load| (load.waiting, load.running));
            let counts = queue_counts(BACKEND);
            (load, counts.queued, counts.running, counts.jobs)
        };
        assert_eq!(seen(), (None, 0, 0, 0));
        let mut first = Counted::new(BACKEND, device);
        let second = Counted::new(BACKEND, device);
        assert_eq!(seen(), (Some((2, 0)), 2, 0, 0));
        first.begin();
        first.begin();
        assert_eq!(seen(), (Some((1, 1)), 1, 1, 0));
        // Its client has gone.
        drop(second);
        assert_eq!(seen(), (Some((0, 1)), 0, 1, 0));
        std::thread::sleep(Duration::from_millis(2));
        drop(first);
        assert_eq!(seen(), (None, 0, 0, 1));
        let counts = queue_counts(BACKEND);
        assert!(counts.run_us >= 2000 && counts.run_us_max == counts.run_us);
    }
}
