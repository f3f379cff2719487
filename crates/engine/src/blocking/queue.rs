//! The order in which jobs begin: file systems take turns, and within a file system clients take turns. The
//! number of jobs that run on one file system is limited, and so are the bytes that they move. The queue
//! starts no threads and sets no timers; its owner calls `pop` and `ended`.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::{DeviceLoad, Origin};
use crate::limits;

/// Jobs that have not begun, and how many run on each file system.
pub(crate) struct JobQueue<J> {
    /// How many queues share these file systems, this one included.
    shares: usize,
    devices: Vec<Device<J>>,
    /// The index in `devices` at which `pop` looks first.
    turn: usize,
    waiting: usize,
}

/// A job whose turn has come.
pub(crate) struct Work<J> {
    pub(crate) job: J,
    /// Pass this to [`JobQueue::ended`] when the job is done.
    pub(crate) load: Load,
    pub(crate) queued_at: Instant,
}

/// What a job takes of the capacity of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    device: u64,
    bytes: usize,
}

impl Load {
    pub(crate) fn device(self) -> u64 {
        self.device
    }
}

/// A job that has not begun.
struct QueuedJob<J> {
    job: J,
    bytes: usize,
    queued_at: Instant,
}

/// The jobs that wait for one file system, and how many run on it.
struct Device<J> {
    number: u64,
    running: usize,
    running_max: usize,
    /// How many bytes the running jobs read or write.
    running_bytes: usize,
    running_bytes_max: usize,
    waiting: usize,
    jobs: HashMap<u64, VecDeque<QueuedJob<J>>>,
    /// The clients that have jobs waiting, in the order of their turns.
    clients: VecDeque<u64>,
}

impl<J> JobQueue<J> {
    pub(crate) const fn new() -> JobQueue<J> {
        JobQueue::shared_by(1)
    }

    /// One of `shares` queues that share the file systems; each gets an equal part of a file system's
    /// capacity.
    pub(crate) const fn shared_by(shares: usize) -> JobQueue<J> {
        JobQueue {
            shares,
            devices: Vec::new(),
            turn: 0,
            waiting: 0,
        }
    }

    /// How many jobs wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    /// How many jobs could begin now.
    pub(crate) fn ready(&self) -> usize {
        self.devices.iter().map(Device::ready).sum()
    }

    /// The file systems that have jobs, in no order.
    pub(crate) fn loads(&self) -> impl Iterator<Item = DeviceLoad> {
        self.devices.iter().map(|device| DeviceLoad {
            device: device.number,
            running: device.running,
            waiting: device.waiting,
            oldest: None,
        })
    }

    /// How many jobs wait for one file system.
    pub(crate) fn waiting_for(&self, device: u64) -> usize {
        let known = self.devices.iter().find(|known| known.number == device);
        known.map_or(0, |known| known.waiting)
    }

    /// How many jobs of one client wait for one file system.
    pub(crate) fn waiting_of(&self, origin: Origin) -> usize {
        let known = self
            .devices
            .iter()
            .find(|known| known.number == origin.device);
        let jobs = known.and_then(|device| device.jobs.get(&origin.client));
        jobs.map_or(0, VecDeque::len)
    }

    pub(crate) fn push(&mut self, origin: Origin, job: J) {
        let place = self
            .devices
            .iter()
            .position(|device| device.number == origin.device);
        let place = place.unwrap_or_else(|| {
            self.devices.push(Device::new(origin, self.shares));
            self.devices.len() - 1
        });
        let device = &mut self.devices[place];
        let jobs = device.jobs.entry(origin.client).or_default();
        if jobs.is_empty() {
            device.clients.push_back(origin.client);
        }
        jobs.push_back(QueuedJob {
            job,
            bytes: origin.bytes,
            queued_at: Instant::now(),
        });
        device.waiting += 1;
        self.waiting += 1;
    }

    /// The next job that may begin.
    pub(crate) fn pop(&mut self) -> Option<Work<J>> {
        let count = self.devices.len();
        for step in 0..count {
            let place = (self.turn + step) % count;
            let device = &mut self.devices[place];
            if device.ready() == 0 {
                continue;
            }
            let Some(next) = device.pop() else {
                continue;
            };
            device.running += 1;
            device.running_bytes += next.bytes;
            self.waiting -= 1;
            self.turn = place + 1;
            return Some(Work {
                job: next.job,
                load: Load {
                    device: device.number,
                    bytes: next.bytes,
                },
                queued_at: next.queued_at,
            });
        }
        None
    }

    /// A job that `pop` returned is done.
    pub(crate) fn ended(&mut self, load: Load) {
        let place = self
            .devices
            .iter()
            .position(|known| known.number == load.device);
        let Some(place) = place else { return };
        let known = &mut self.devices[place];
        known.running = known.running.saturating_sub(1);
        known.running_bytes = known.running_bytes.saturating_sub(load.bytes);
        if known.running == 0 && known.waiting == 0 {
            self.devices.swap_remove(place);
        }
    }

    /// Takes out the waiting jobs for which `is_wanted` is false.
    pub(crate) fn purge(&mut self, is_wanted: impl Fn(&J) -> bool) -> Vec<J> {
        let mut unwanted = Vec::new();
        for device in &mut self.devices {
            device.purge(&is_wanted, &mut unwanted);
        }
        self.devices
            .retain(|device| device.running > 0 || device.waiting > 0);
        self.waiting -= unwanted.len();
        unwanted
    }

    /// Takes out all waiting jobs.
    pub(crate) fn clear(&mut self) -> Vec<J> {
        let mut all = Vec::new();
        for device in &mut self.devices {
            while let Some(next) = device.pop() {
                all.push(next.job);
            }
        }
        self.devices.retain(|device| device.running > 0);
        self.waiting = 0;
        all
    }
}

impl<J> Device<J> {
    fn new(origin: Origin, shares: usize) -> Device<J> {
        let running_max = match (origin.device, origin.is_remote) {
            (_, true) => limits::REMOTE_DEVICE_JOBS_MAX,
            (_, false) => limits::DEVICE_JOBS_MAX,
        };
        let bytes_max = match origin.device == Origin::PROCESSOR.device {
            true => limits::COMPUTE_BYTES_MAX,
            false => limits::DEVICE_BYTES_MAX,
        };
        Device {
            number: origin.device,
            running: 0,
            running_max: running_max.div_ceil(shares),
            running_bytes: 0,
            running_bytes_max: bytes_max.div_ceil(shares),
            waiting: 0,
            jobs: HashMap::new(),
            clients: VecDeque::new(),
        }
    }

    /// How many jobs could begin now. While the running jobs move `running_bytes_max` bytes or more, no other
    /// begins: a disk should work through a few large jobs one after the other instead of switching between
    /// all of them.
    fn ready(&self) -> usize {
        let room = self.running_max.saturating_sub(self.running);
        // Device 0 stands for all file systems that are not known: their bytes do not come from one disk.
        match self.running_bytes >= self.running_bytes_max && self.number != 0 {
            true => 0,
            false => self.waiting.min(room),
        }
    }

    fn pop(&mut self) -> Option<QueuedJob<J>> {
        let client = self.clients.pop_front()?;
        let jobs = self.jobs.get_mut(&client)?;
        let next = jobs.pop_front();
        match jobs.is_empty() {
            true => drop(self.jobs.remove(&client)),
            false => self.clients.push_back(client),
        }
        self.waiting -= 1;
        next
    }

    fn purge(&mut self, is_wanted: impl Fn(&J) -> bool, unwanted: &mut Vec<J>) {
        let before = unwanted.len();
        self.jobs.retain(|_, jobs| {
            let (wanted, others) = std::mem::take(jobs)
                .into_iter()
                .partition(|one: &QueuedJob<J>| is_wanted(&one.job));
            *jobs = wanted;
            let others: VecDeque<QueuedJob<J>> = others;
            unwanted.extend(others.into_iter().map(|one| one.job));
            !jobs.is_empty()
        });
        self.clients.retain(|client| self.jobs.contains_key(client));
        self.waiting -= unwanted.len() - before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(device: u64, client: u64) -> Origin {
        Origin {
            device,
            is_remote: false,
            client,
            bytes: 0,
        }
    }

    #[test]
    fn clients_and_devices_take_turns() {
        let mut queue = JobQueue::new();
        for number in 0..4 {
            queue.push(origin(1, 10), ("greedy", number));
        }
        queue.push(origin(1, 11), ("modest", 0));
        queue.push(origin(2, 10), ("elsewhere", 0));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop().map(|work| work.job)).collect();
        assert_eq!(
            order,
            [
                ("greedy", 0),
                ("elsewhere", 0),
                ("modest", 0),
                ("greedy", 1),
                ("greedy", 2),
                ("greedy", 3)
            ]
        );
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn so_many_run_on_a_device_and_others_go_on() {
        let mut queue = JobQueue::new();
        for number in 0..limits::DEVICE_JOBS_MAX + 2 {
            queue.push(origin(1, number as u64), number);
        }
        for _ in 0..limits::DEVICE_JOBS_MAX {
            assert_eq!(queue.pop().map(|work| work.load.device), Some(1));
        }
        assert_eq!((queue.ready(), queue.len()), (0, 2));
        assert!(queue.pop().is_none());
        queue.push(origin(2, 0), 0);
        assert_eq!(queue.pop().map(|work| work.load.device), Some(2));
        let load = |device| Load { device, bytes: 0 };
        queue.ended(load(1));
        assert_eq!(queue.ready(), 1);
        assert!(queue.pop().is_some());
        let mut loads = queue.loads().map(|load| (load.running, load.waiting));
        assert_eq!(loads.next(), Some((limits::DEVICE_JOBS_MAX, 1)));
        assert_eq!((loads.next(), loads.next()), (Some((1, 0)), None));
        drop(loads);
        assert_eq!(queue.clear().len(), 1);
        for _ in 0..limits::DEVICE_JOBS_MAX {
            queue.ended(load(1));
        }
        queue.ended(load(2));
        // The queue forgets file systems without work.
        assert!(queue.devices.is_empty());
    }

    #[test]
    fn what_is_not_wanted_is_taken_out_and_the_rest_keeps_its_order() {
        let mut queue = JobQueue::new();
        for number in 0..6 {
            queue.push(origin(1, number % 3), number);
            queue.push(origin(2, 0), 10 + number);
        }
        let running = queue.pop().expect("there is room");
        assert_eq!(running.job, 0);
        // All jobs of client 1 but none of the others, and none of device 2.
        let mut unwanted = queue.purge(|number| *number < 10 && number % 3 != 1);
        unwanted.sort_unstable();
        assert_eq!(unwanted, [1, 4, 10, 11, 12, 13, 14, 15]);
        assert_eq!((queue.len(), queue.ready()), (3, 3));
        assert_eq!((queue.waiting_for(1), queue.waiting_for(2)), (3, 0));
        assert!(queue.purge(|_| true).is_empty());
        let order: Vec<_> = std::iter::from_fn(|| queue.pop().map(|work| work.job)).collect();
        assert_eq!(order, [2, 3, 5]);
        queue.push(origin(1, 1), 6);
        assert_eq!(queue.purge(|_| false), [6]);
        for _ in 0..4 {
            queue.ended(running.load);
        }
        assert!(queue.devices.is_empty());
    }

    #[test]
    fn hashes_together_take_no_more_than_half_a_gibibyte_and_one_more() {
        let mut queue = JobQueue::new();
        for client in 0..20 {
            let bytes = 64 * 1024 * 1024;
            queue.push(Origin::PROCESSOR.for_client(client).with_bytes(bytes), ());
        }
        let running: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!((running.len(), queue.ready()), (8, 0));
        queue.ended(running[0].load);
        assert!(queue.pop().is_some() && queue.pop().is_none());
    }

    #[test]
    fn large_jobs_take_turns_one_after_the_other() {
        let mut queue = JobQueue::new();
        for client in 0..4 {
            let large = Origin {
                bytes: limits::DEVICE_BYTES_MAX,
                ..origin(1, client)
            };
            queue.push(large, client);
        }
        let first = queue.pop().expect("there is room");
        assert_eq!((first.job, queue.ready()), (0, 0));
        assert!(queue.pop().is_none());
        queue.ended(first.load);
        assert_eq!(queue.pop().map(|work| work.job), Some(1));
    }
}
