//! Measures how fast the machine is at the moment, by a fixed piece of work that is timed beside each run.
//!
//! The speed of virtual machines changes by ten percent and more from one minute to the next. The work
//! resembles what is measured: it sends and receives 100 bytes over a loopback TCP connection, again and
//! again, and computes for a while. Its CPU time relative to the median of the whole comparison tells how
//! much a run was slowed down. The run's figures are divided by that.
//!
//! Virtual machines also change shape. The host may run two virtual cores on one real core, or on two that
//! share no cache, and move them within a second. A request over loopback touches the same memory from both
//! cores about ten times, so its CPU time triples when they are far apart. That is not a matter of speed and
//! cannot be divided out. So the time of one bounce of a memory word between the cores is measured as well,
//! and only runs at about the same distance are compared.

use crate::measure::own_cpu;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use std::hint::black_box;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The connection for the work, which stays open during the whole comparison.
pub struct Calibrator {
    from: TcpStream,
    to: TcpStream,
    /// The cores for the other end of a bounce. The caller's end runs on the client's core.
    server_cores: CpuSet,
    /// Whether there is only one core, so that nothing can be measured between cores.
    single_core: bool,
}

/// CPU time of the fixed work, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// [`EXCHANGES`] sends and receives.
    pub network_ns: f64,
    /// [`STEPS`] steps of computation.
    pub computing_ns: f64,
    /// One bounce of a memory word between a core of the client and one of the server; 0 if there is only one
    /// core.
    pub distance_ns: f64,
}

/// The distances seen so far.
#[derive(Debug, Default)]
pub struct Distances(Vec<f64>);

impl Calibrator {
    /// Opens the connection. Must be called before the client is pinned to a core.
    pub fn new(server_cores: CpuSet) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let from = TcpStream::connect(listener.local_addr()?)?;
        from.set_nodelay(true)?;
        let (to, _) = listener.accept()?;
        to.set_read_timeout(Some(Duration::from_secs(5)))?;
        let single_core = std::thread::available_parallelism()?.get() == 1;
        Ok(Self {
            from,
            to,
            server_cores,
            single_core,
        })
    }

    /// Does the work once and times it.
    pub fn sample(&mut self) -> io::Result<Sample> {
        let started = own_cpu();
        for _ in 0..EXCHANGES {
            let mut bytes = [0; 100];
            self.from.write_all(&bytes)?;
            self.to.read_exact(&mut bytes)?;
        }
        let between = own_cpu();
        compute();
        let network_ns = (between - started).as_nanos() as f64;
        let computing_ns = (own_cpu() - between).as_nanos() as f64;
        let distance_ns = if self.single_core {
            0.0
        } else {
            distance(&self.server_cores)
        };
        Ok(Sample {
            network_ns,
            computing_ns,
            distance_ns,
        })
    }
}

impl Sample {
    /// The mean of two samples, one from before a run and one from after it.
    pub fn mean(self, other: Self) -> Self {
        Self {
            network_ns: (self.network_ns + other.network_ns) / 2.0,
            computing_ns: (self.computing_ns + other.computing_ns) / 2.0,
            distance_ns: (self.distance_ns + other.distance_ns) / 2.0,
        }
    }

    /// How many times slower than `usual` the machine was.
    pub fn slowness(self, usual: Self) -> f64 {
        NETWORK_SHARE * (self.network_ns / usual.network_ns)
            + (1.0 - NETWORK_SHARE) * (self.computing_ns / usual.computing_ns)
    }
}

impl Distances {
    /// Adds a distance.
    pub fn add(&mut self, distance_ns: f64) {
        let place = self.0.partition_point(|other| *other < distance_ns);
        self.0.insert(place, distance_ns);
    }

    /// The distance at which runs are compared: the upper quartile, since a client on another machine shares
    /// no cache with the server.
    pub fn reference(&self) -> f64 {
        self.0.get(self.0.len() * 3 / 4).copied().unwrap_or(0.0)
    }

    /// Whether `distance_ns` is close to the reference. Near and far differ by a factor of five.
    pub fn is_usual(&self, distance_ns: f64) -> bool {
        let reference = self.reference();
        (reference / 2.0..=reference * 2.0).contains(&distance_ns)
    }
}

/// The duration of one bounce in nanoseconds, from the fastest of [`BOUNCE_SERIES`] series: a series that
/// another program interrupts takes longer.
fn distance(server_cores: &CpuSet) -> f64 {
    let [there, back] = [Word::default(), Word::default()];
    let series = |first: u32| {
        let started = Instant::now();
        for n in first..first + BOUNCES {
            there.0.store(n, Ordering::Release);
            await_number(&back, n);
        }
        started.elapsed().as_nanos() as f64 / f64::from(BOUNCES)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // If this fails, the bounce is measured on the core on which the thread happens to run.
            let _unpinned = sched_setaffinity(None, server_cores);
            for n in 1..=BOUNCES * BOUNCE_SERIES {
                await_number(&there, n);
                back.0.store(n, Ordering::Release);
            }
        });
        let all = (0..BOUNCE_SERIES).map(|number| series(number * BOUNCES + 1));
        all.fold(f64::INFINITY, f64::min)
    })
}

/// A word in a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Word(AtomicU32);

/// Spins until the word has the number, and yields the core now and then, in case the other thread needs it.
fn await_number(word: &Word, number: u32) {
    let mut spins = 0_u32;
    while word.0.load(Ordering::Acquire) != number {
        spins += 1;
        if spins.is_multiple_of(10_000) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

/// Mixes numbers in 16 KiB, which fit into the first-level cache.
fn compute() {
    let mut table = [1_u64; 2048];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..STEPS {
        state = (state ^ (state >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let slot = &mut table[(state >> 53) as usize];
        *slot = slot.wrapping_add(state);
        state = state.wrapping_add(*slot);
    }
    black_box(table);
}

const EXCHANGES: u32 = 10_000;
const STEPS: u32 = 4_000_000;
const BOUNCES: u32 = 500;
const BOUNCE_SERIES: u32 = 10;
/// File servers spend about four fifths of their time in the kernel's TCP.
const NETWORK_SHARE: f64 = 0.8;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::sched_getaffinity;

    #[test]
    fn the_work_takes_time_and_leaves_nothing_behind() {
        let mut calibrator = Calibrator::new(sched_getaffinity(None).unwrap()).unwrap();
        for _ in 0..2 {
            let sample = calibrator.sample().unwrap();
            assert!(
                sample.network_ns > 1e6 && sample.computing_ns > 1e5,
                "{sample:?}"
            );
            // It may be any distance if other programs use the other core.
            assert!(sample.distance_ns.is_finite(), "{sample:?}");
        }
    }

    #[test]
    fn twice_the_time_is_twice_as_slow() {
        let usual = Sample {
            network_ns: 40.0,
            computing_ns: 10.0,
            distance_ns: 1.0,
        };
        let slow = Sample {
            network_ns: 80.0,
            computing_ns: 20.0,
            distance_ns: 1.0,
        };
        assert!((slow.slowness(usual) - 2.0).abs() < 1e-9);
        assert!((usual.mean(slow).slowness(usual) - 1.5).abs() < 1e-9);
    }

    #[test]
    fn the_far_distance_is_the_reference_when_a_good_part_is_far() {
        let mut distances = Distances::default();
        for distance in [100.0, 560.0, 98.0, 102.0, 570.0] {
            distances.add(distance);
        }
        assert!(distances.is_usual(565.0) && !distances.is_usual(100.0));
        assert!(!distances.is_usual(1400.0));
    }

    #[test]
    fn without_a_second_core_everything_is_usual() {
        let mut distances = Distances::default();
        distances.add(0.0);
        assert!(distances.is_usual(0.0));
    }
}
