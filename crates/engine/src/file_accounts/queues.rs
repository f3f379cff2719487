//! Counts the reads in the queues of all workers, for `server.io.BACKEND.*` and `server.io.device.*`.
//!
//! Each read owns a [`CountedRead`], whose drop ends the count. So no count is left over however the read
//! ends, even if it ends with its worker.

use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{FileAccounts, NetworkBackend};
use crate::blocking::{Counts, DeviceLoad};
use crate::clock::Clock;
use crate::ledger::Nanos;

impl FileAccounts {
    /// The counts of the queues of `backend`. They have no threads. Reads that a queue declines are counted
    /// by the disk threads.
    pub(crate) fn queue_counts(&self, backend: NetworkBackend) -> Counts {
        self.queues.lock().of[backend as usize]
    }

    /// The file systems with reads in queues, in no order.
    pub(crate) fn queue_loads(&self) -> Vec<DeviceLoad> {
        self.queues.lock().devices.clone()
    }
}

/// A read for a queue, until it has ended or was given up.
pub(crate) struct CountedRead {
    accounts: Arc<FileAccounts>,
    clock: Rc<Clock>,
    backend: NetworkBackend,
    device: u64,
    is_running: bool,
    /// When the read began to wait or to run.
    since: Nanos,
}

impl CountedRead {
    /// A read that begins to wait.
    pub(crate) fn new(
        accounts: &Arc<FileAccounts>,
        clock: &Rc<Clock>,
        backend: NetworkBackend,
        device: u64,
    ) -> CountedRead {
        let mut all = accounts.queues.lock();
        all.of[backend as usize].queued += 1;
        all.load(device).waiting += 1;
        drop(all);
        CountedRead {
            accounts: Arc::clone(accounts),
            clock: Rc::clone(clock),
            backend,
            device,
            is_running: false,
            since: clock.now(),
        }
    }

    /// The read begins to run.
    pub(crate) fn begin(&mut self) {
        if std::mem::replace(&mut self.is_running, true) {
            return;
        }
        let now = self.clock.now();
        let waited = microseconds(self.since, now);
        self.since = now;
        let mut all = self.accounts.queues.lock();
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

impl Drop for CountedRead {
    fn drop(&mut self) {
        let mut all = self.accounts.queues.lock();
        let counts = &mut all.of[self.backend as usize];
        if self.is_running {
            let ran = microseconds(self.since, self.clock.now());
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

/// Locked for a few instructions, several times for each read from a disk.
#[derive(Default)]
pub(super) struct Queues(Mutex<All>);

impl Queues {
    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct All {
    of: [Counts; NetworkBackend::ALL.len()],
    /// The file systems that have reads.
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

fn microseconds(since: Nanos, now: Nanos) -> u64 {
    now.saturating_sub(since) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_counted_until_they_end_whichever_way() {
        const BACKEND: NetworkBackend = NetworkBackend::Write;
        let accounts = Arc::<FileAccounts>::default();
        let (clock, device) = (Rc::default(), 4095 << 32 | 99);
        let seen = || {
            let loads = accounts.queue_loads();
            let load = loads.iter().find(|load| load.device == device);
            let load = load.map(|load| (load.waiting, load.running));
            let counts = accounts.queue_counts(BACKEND);
            (load, counts.queued, counts.running, counts.jobs)
        };
        assert_eq!(seen(), (None, 0, 0, 0));
        let mut first = CountedRead::new(&accounts, &clock, BACKEND, device);
        let second = CountedRead::new(&accounts, &clock, BACKEND, device);
        assert_eq!(seen(), (Some((2, 0)), 2, 0, 0));
        first.begin();
        first.begin();
        assert_eq!(seen(), (Some((1, 1)), 1, 1, 0));
        // Its client is gone.
        drop(second);
        assert_eq!(seen(), (Some((0, 1)), 0, 1, 0));
        std::thread::sleep(std::time::Duration::from_millis(2));
        drop(first);
        assert_eq!(seen(), (None, 0, 0, 1));
        let counts = accounts.queue_counts(BACKEND);
        assert!(counts.run_us >= 2000 && counts.run_us_max == counts.run_us);
    }
}
