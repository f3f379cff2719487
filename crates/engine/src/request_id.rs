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
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The id of a request or a subrequest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

impl RequestId {
    /// How many digits it is shown with.
    pub const DIGITS: usize = 16;

    /// The id as a number, for records in memory.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The id that [`RequestId::to_bits`] made a number of.
    pub const fn from_bits(bits: u64) -> RequestId {
        RequestId(bits)
    }

    /// The digits, without an allocation.
    #[inline]
    pub fn digits(self) -> [u8; RequestId::DIGITS] {
        let mut digits = [0; RequestId::DIGITS];
        let (high, low) = digits.split_at_mut(8);
        high.copy_from_slice(&eight_digits((self.0 >> 32) as u32));
        low.copy_from_slice(&eight_digits(self.0 as u32));
        digits
    }
}

/// The hexadecimal digits of `number`: its bits are spread so that each byte of one word has four of them, and
/// all eight bytes become digits at once.
#[inline]
const fn eight_digits(number: u32) -> [u8; 8] {
    let mut nibbles = number as u64;
    nibbles = (nibbles | nibbles << 16) & 0x0000_ffff_0000_ffff;
    nibbles = (nibbles | nibbles << 8) & 0x00ff_00ff_00ff_00ff;
    nibbles = (nibbles | nibbles << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    // One in each byte of 10 or more.
    let letters = (nibbles + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    let digits = nibbles + 0x3030_3030_3030_3030 + letters * (b'a' - b'9' - 1) as u64;
    digits.to_be_bytes()
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The text is not an id: 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRequestId;

impl fmt::Display for NoRequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the id of a request has 16 hexadecimal digits")
    }
}

impl std::error::Error for NoRequestId {}

impl FromStr for RequestId {
    type Err = NoRequestId;

    /// Upper-case digits count as well: an id may have come by telephone.
    fn from_str(text: &str) -> Result<RequestId, NoRequestId> {
        let is_digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if text.len() != RequestId::DIGITS || !is_digits {
            return Err(NoRequestId);
        }
        let bits = u64::from_str_radix(text, 16).map_err(|_| NoRequestId)?;
        Ok(RequestId(bits))
    }
}

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
        RequestId(bits)
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
    fn ids_are_shown_as_16_digits_and_read_from_them() {
        for (bits, shown) in [
            (0, "0000000000000000"),
            (0x0123_4567_89ab_cdef, "0123456789abcdef"),
            (u64::MAX, "ffffffffffffffff"),
        ] {
            let id = RequestId::from_bits(bits);
            assert_eq!(id.to_string(), shown);
            assert_eq!(id.digits(), shown.as_bytes());
            assert_eq!(shown.parse(), Ok(id));
            assert_eq!(shown.to_uppercase().parse(), Ok(id));
        }
    }

    #[test]
    fn other_text_is_no_id() {
        for text in [
            "",
            "0",
            "0123456789abcde",
            "0123456789abcdef0",
            "+123456789abcdef",
            "0x23456789abcdef",
            "0123456789abcdeg",
            " 123456789abcdef",
            "0123456789abcde\n",
            "\u{e9}1234567890abcd",
        ] {
            assert_eq!(text.parse::<RequestId>(), Err(NoRequestId), "{text:?}");
        }
    }

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
