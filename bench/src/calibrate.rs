//! How fast the machine is right now: a fixed piece of work, timed beside each run.
//!
//! Virtual machines change speed by ten percent and more from one minute to the next. The work is
//! of the kind that is measured: 100 bytes sent and received over a loopback TCP connection, again
//! and again, and a stretch of pure computation. Its CPU time relative to the median over the
//! whole comparison is by how much a run was slowed down, and what its figures are divided by.

use crate::measure::own_cpu;
use serde::Serialize;
use std::hint::black_box;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

/// The connection to send over, kept for the whole comparison.
pub struct Calibrator {
    from: TcpStream,
    to: TcpStream,
}

/// CPU time of the fixed work, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// [`EXCHANGES`] sends and receives.
    pub network_ns: f64,
    /// [`STEPS`] steps of computation.
    pub computing_ns: f64,
}

impl Calibrator {
    /// Opens the connection.
    pub fn new() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let from = TcpStream::connect(listener.local_addr()?)?;
        from.set_nodelay(true)?;
        let (to, _) = listener.accept()?;
        to.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(Self { from, to })
    }

    /// Does the work once.
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
        Ok(Sample { network_ns, computing_ns: (own_cpu() - between).as_nanos() as f64 })
    }
}

impl Sample {
    /// The mean of two, one from before a run and one from after it.
    pub fn mean(self, other: Self) -> Self {
        Self {
            network_ns: (self.network_ns + other.network_ns) / 2.0,
            computing_ns: (self.computing_ns + other.computing_ns) / 2.0,
        }
    }

    /// How many times slower than `usual` the machine was.
    pub fn slowness(self, usual: Self) -> f64 {
        NETWORK_SHARE * (self.network_ns / usual.network_ns)
            + (1.0 - NETWORK_SHARE) * (self.computing_ns / usual.computing_ns)
    }
}

/// Mixes numbers over 16 KiB, which stay in the first cache.
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
/// File servers spend about four fifths of their time in the kernel's TCP.
const NETWORK_SHARE: f64 = 0.8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_takes_time_and_leaves_nothing_behind() {
        let mut calibrator = Calibrator::new().unwrap();
        for _ in 0..2 {
            let sample = calibrator.sample().unwrap();
            assert!(sample.network_ns > 1e6 && sample.computing_ns > 1e5, "{sample:?}");
        }
    }

    #[test]
    fn twice_the_time_is_twice_as_slow() {
        let usual = Sample { network_ns: 40.0, computing_ns: 10.0 };
        let slow = Sample { network_ns: 80.0, computing_ns: 20.0 };
        assert!((slow.slowness(usual) - 2.0).abs() < 1e-9);
        assert!((usual.mean(slow).slowness(usual) - 1.5).abs() < 1e-9);
    }
}
