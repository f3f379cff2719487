//! The theoretical limit: closed loops of clients on the model, without a machine.
//!
//! Files are where `volume` puts them: directories are spread evenly over ext4's block groups; each group
//! begins with its inodes and directories, followed by the data of their files. Uses only [`super::model`].

use super::counters::SPINDLES;
use super::model::{BYTES_PER_SECOND, Operation, Random, Spindle};
use super::volume::GROUP;

/// What all spindles together can read without any seek.
pub const SEQUENTIAL_MB_PER_SECOND: f64 = BYTES_PER_SECOND * SPINDLES as f64 / 1e6;

/// The load of the clients.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// How many clients there are. Each has one operation in progress.
    pub depth: u32,
    /// Operations per fetch. One is for data, the others for metadata: with 2.5, every second fetch has one
    /// and every other has two for metadata.
    pub operations: f64,
    /// Bytes of the operation for data.
    pub bytes: u64,
    /// How many such operations a fetch has. Each begins where the previous one ended.
    pub pieces: u32,
}

/// The theoretical limit for files of one read, in fetches per second. `depth` clients request the next file
/// as soon as they have one. A file takes `operations` reads, the last of them of `bytes`, the others of a
/// block of metadata. Reads that begin where the previous one ended are nearly free: do not count them.
pub fn fetches(depth: u32, operations: f64, bytes: u64, seed: u64) -> f64 {
    let load = Load {
        depth,
        operations,
        bytes,
        pieces: 1,
    };
    run(load, seed)
}

/// The most fetches per second that the disk can do.
pub fn run(load: Load, seed: u64) -> f64 {
    Simulation::new(load, seed).run()
}

/// Length of a read of metadata.
const BLOCK: u64 = 4096;
/// Block groups per spindle, as on the published disk.
const GROUPS: u64 = 55;
/// The start of each group: bitmaps, inodes and directories, as on the published disk.
const METADATA: u64 = 75 * BLOCK;
/// Bytes of a spindle.
const CAPACITY: u64 = GROUPS * GROUP;
/// Fetches in a simulation: enough for three digits.
const FETCHES: u64 = 20_000;
/// Fetches per client before counting starts.
const WARM_UP: u64 = 20;

struct Simulation {
    load: Load,
    spindles: [Spindle<u32>; SPINDLES],
    /// What each spindle is doing, and until when.
    working: [Option<(u32, u64)>; SPINDLES],
    clients: Vec<Client>,
    random: Random,
}

/// A client during a fetch.
#[derive(Clone, Copy, Default)]
struct Client {
    metadata_left: u32,
    pieces_left: u32,
    /// The spindle of the next piece.
    spindle: usize,
    at: u64,
}

impl Simulation {
    fn new(load: Load, seed: u64) -> Self {
        let spindle = |n: usize| Spindle::new(CAPACITY, seed.wrapping_add(n as u64));
        Self {
            load,
            spindles: std::array::from_fn(spindle),
            working: [None; SPINDLES],
            clients: vec![Client::default(); load.depth.max(1) as usize],
            random: Random::new(!seed),
        }
    }

    fn run(mut self) -> f64 {
        let warm_up = WARM_UP * self.clients.len() as u64;
        for client in 0..self.clients.len() as u32 {
            self.ask(client, 0);
        }
        let (mut done, mut started, mut now) = (0, 0, 0);
        while done < warm_up + FETCHES {
            let ends = self.working.iter().enumerate();
            let ends = ends.filter_map(|(n, work)| work.map(|(client, end)| (end, n, client)));
            let Some((end, spindle, client)) = ends.min() else {
                break;
            };
            now = end;
            self.working[spindle] = None;
            done += u64::from(self.fetched(client));
            if done == warm_up {
                started = now;
            }
            self.ask(client, now);
            self.go_on(spindle);
        }
        (done - warm_up) as f64 * 1e9 / now.saturating_sub(started).max(1) as f64
    }

    /// Whether the client's fetch is complete. If so, the next one begins.
    fn fetched(&mut self, client: u32) -> bool {
        let bytes = self.load.bytes;
        let client = &mut self.clients[client as usize];
        if client.metadata_left > 0 {
            client.metadata_left -= 1;
            return false;
        }
        client.pieces_left = client.pieces_left.saturating_sub(1);
        client.at += bytes;
        client.pieces_left == 0
    }

    /// Puts the client's next operation into its spindle's queue.
    fn ask(&mut self, number: u32, now: u64) {
        if self.clients[number as usize].pieces_left == 0 {
            self.clients[number as usize] = self.fetch();
        }
        let client = self.clients[number as usize];
        let (at, bytes) = if client.metadata_left > 0 {
            let group = client.at / GROUP * GROUP;
            (group + self.random.below(METADATA / BLOCK) * BLOCK, BLOCK)
        } else {
            (client.at, self.load.bytes)
        };
        self.spindles[client.spindle].push(Operation {
            at,
            bytes,
            arrived: now,
            tag: number,
        });
        self.go_on(client.spindle);
    }

    /// A fetch of a random file.
    fn fetch(&mut self) -> Client {
        let metadata = (self.load.operations - 1.0).max(0.0);
        let one_more = self.random.unit() < metadata.fract();
        let group = self.random.below(GROUPS) * GROUP;
        let within = METADATA + self.random.below((GROUP - METADATA) / BLOCK) * BLOCK;
        Client {
            metadata_left: metadata as u32 + u32::from(one_more),
            pieces_left: self.load.pieces.max(1),
            spindle: self.random.below(SPINDLES as u64) as usize,
            at: group + within,
        }
    }

    /// Starts the next operation of an idle spindle.
    fn go_on(&mut self, spindle: usize) {
        if self.working[spindle].is_none() {
            let next = self.spindles[spindle].next();
            self.working[spindle] = next.map(|served| (served.operation.tag, served.end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(value: f64, expected: f64) -> bool {
        (value / expected - 1.0).abs() < 0.02
    }

    #[test]
    fn one_client_waits_for_every_part_of_its_read() {
        // Half of the reads are on the other spindle, whose head is at another position: the mean seek is 1 +
        // 8 * 8/15 ms.
        let ms = 1.0 + 8.0 * 8.0 / 15.0 + 8.33 / 2.0 + 100_000.0 / 60e3;
        let rate = fetches(1, 1.0, 100_000, 1);
        assert!(about(rate, 1000.0 / ms), "{rate}");
    }

    #[test]
    fn deeper_queues_shorten_the_way() {
        let rates: Vec<_> = [1, 2, 16, 64]
            .map(|depth| fetches(depth, 1.0, 100_000, 1))
            .into();
        assert!(rates.is_sorted(), "{rates:?}");
        let deep = fetches(100, 1.0, 100_000, 1);
        assert!(about(deep, 258.0), "{deep}");
    }

    #[test]
    fn metadata_counts() {
        let three = fetches(100, 3.0, 100_000, 1);
        let two = fetches(100, 2.0, 100_000, 1);
        let between = fetches(100, 2.5, 100_000, 1);
        assert!(three < between && between < two, "{three} {between} {two}");
    }

    #[test]
    fn long_files_come_at_the_speed_of_the_disk() {
        let load = Load {
            depth: 16,
            operations: 1.0,
            bytes: 125_000,
            pieces: 80,
        };
        let rate = run(load, 1) * 10.0;
        assert!((100.0..120.0).contains(&rate), "{rate}");
    }
}
