//! The id of a request: 64 bits, shown as 16 hexadecimal digits. It stands in the lines of the error log and
//! of the access log and on error pages, so that one leads to the others.
//!
//! A server process draws a random number when it starts. From it each worker has a sequence of its own
//! ([`RequestIds`]), so that an id costs one addition: no allocation, no system call, nothing that workers
//! share. Two workers of one process never have the same id. Two processes, for example those before and
//! after a reload or a crash, share one with a probability of about four times the requests of a worker times
//! the number of workers in 2^64: 10^-9 for a billion requests on each of four workers.
//!
//! An id is a name and no secret. It can be computed from another id of the same worker, so nothing may
//! depend on a client not knowing it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

pub use petrel_proto::recording::{NoRequestId, RequestId};

/// The ids that a worker gives to its requests.
pub(crate) struct RequestIds {
    next: Cell<u64>,
}

impl RequestIds {
    /// The next id.
    #[inline]
    pub(crate) fn next(&self) -> RequestId {
        let bits = self.next.get();
        self.next.set(bits.wrapping_add(STEP));
        RequestId::from_bits(bits)
    }
}

/// 2^64 divided by the golden ratio. It is odd, so a sequence returns to its first id only after 2^64 steps;
/// and it makes ids that follow each other differ in all digits, so that no reader takes one for the other.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// How many steps the sequences of two workers are apart: 1.6 times 2^48, so that 20,000 workers have room. It
/// is odd, so that ids of different workers differ in all digits, too.
const WORKER_STEPS: u64 = 0x0001_9e37_79b9_7f4b;

/// The ids of a server process: one random number, and a share for each worker.
pub(crate) struct RequestIdSpace {
    first: u64,
    workers: AtomicU64,
}

impl RequestIdSpace {
    pub(crate) fn new() -> RequestIdSpace {
        RequestIdSpace {
            first: random(),
            workers: AtomicU64::new(0),
        }
    }

    /// The ids of one more worker. Its sequence begins more than 2^48 steps behind that of the worker before.
    pub(crate) fn of_next_worker(&self) -> RequestIds {
        let worker = self.workers.fetch_add(1, Ordering::Relaxed);
        let first = self
            .first
            .wrapping_add(STEP.wrapping_mul(worker.wrapping_mul(WORKER_STEPS)));
        RequestIds {
            next: Cell::new(first),
        }
    }
}

/// A random number of the kernel. The server process is a fork of the keeper: what the standard library has
/// drawn there would be the same in every server process. Should the kernel have none yet, the time and the
/// number of the process have to do.
#[expect(clippy::disallowed_methods, reason = "the server starts")]
fn random() -> u64 {
    let mut drawn = [0; 8];
    if rustix::rand::getrandom(&mut drawn, rustix::rand::GetRandomFlags::NONBLOCK) == Ok(8) {
        return u64::from_ne_bytes(drawn);
    }
    let time = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    (time.as_nanos() as u64).wrapping_mul(STEP) ^ u64::from(std::process::id()) << 40
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_id_is_given_twice() {
        let mut seen = HashSet::new();
        for _ in 0..4 {
            let process = RequestIdSpace::new();
            for _ in 0..8 {
                let worker = process.of_next_worker();
                assert!((0..1000).all(|_| seen.insert(worker.next())));
            }
        }
    }

    #[test]
    fn a_fork_draws_a_number_of_its_own() {
        let (one, other) = (RequestIdSpace::new(), RequestIdSpace::new());
        assert_ne!(one.first, other.first);
    }

    #[test]
    fn ids_that_follow_each_other_look_different() {
        let worker = RequestIdSpace::new().of_next_worker();
        for _ in 0..1000 {
            let (one, other) = (worker.next().digits(), worker.next().digits());
            let same = one.iter().zip(&other).filter(|(one, other)| one == other);
            assert!(same.count() < 12);
        }
        let process = RequestIdSpace::new();
        for _ in 0..100 {
            let ids = [process.of_next_worker(), process.of_next_worker()].map(|ids| ids.next());
            let [one, other] = ids.map(RequestId::digits);
            let same = one.iter().zip(&other).filter(|(one, other)| one == other);
            assert!(same.count() < 12);
        }
    }

    #[test]
    fn every_exchange_has_one() {
        let site = crate::testing::Site::new("", &[]);
        let ids = [0; 3].map(|_| site.get("/").exchange().id);
        assert_ne!(ids[0], ids[1]);
        assert_ne!(ids[1], ids[2]);
        let worker = site.worker();
        let other = crate::testing::Site::new("", &[]);
        assert_ne!(worker.next_request_id(), other.get("/").exchange().id);
    }
}
