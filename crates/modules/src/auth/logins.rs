//! Remembers good log-ins for all workers (`auth.cache`).
//!
//! A log-in is remembered by a keyed hash of the user, the password and the user's line in the file. The
//! password is not kept, and a log-in with a changed line has another hash.

use std::collections::HashMap;
use std::hash::Hasher as _;
#[expect(
    deprecated,
    reason = "the only SipHash-2-4 of the standard library; its successor names no algorithm"
)]
use std::hash::SipHasher;
use std::sync::{Arc, Mutex};

use petrel_engine::Exchange;
use petrel_engine::shared::lock;
use petrel_lua::library::random;

/// The remembered log-ins.
pub(super) struct Logins {
    /// `None`: the system has no random numbers, so no log-in is remembered.
    keys: Option<[[u64; 2]; 2]>,
    /// The second in which each log-in ends, by the workers' clocks.
    good: Mutex<HashMap<LoginHash, u32, foldhash::fast::RandomState>>,
}

/// The hash of a log-in: SipHash-2-4 with each of two keys. It is made for short messages, and no client sees
/// or chooses a key, so that a guess has one chance in 2^128 to be taken for a log-in. HMAC-SHA256 took 8,000
/// instructions, half of what a log-in cost.
pub(super) type LoginHash = [u64; 2];

impl Logins {
    /// The remembered log-ins of this server process.
    pub(super) fn of(exchange: &Exchange) -> Arc<Logins> {
        exchange.worker.shared().belonging(Logins::new)
    }

    fn new() -> Logins {
        let mut drawn = [0; 32];
        let is_drawn = random::fill(&mut drawn).is_ok();
        let word = |index: usize| {
            let bytes = drawn.get(index * 8..).and_then(|rest| rest.first_chunk());
            u64::from_ne_bytes(bytes.copied().unwrap_or_default())
        };
        Logins {
            keys: is_drawn.then(|| [[word(0), word(1)], [word(2), word(3)]]),
            good: Mutex::default(),
        }
    }

    /// The hash of a log-in. `rest` has what also makes it another log-in, such as the user's line in a file.
    pub(super) fn hash(&self, user: &[u8], password: &[u8], rest: [&[u8]; 2]) -> Option<LoginHash> {
        let [kind, more] = rest;
        self.sign(&[user, password, kind, more])
    }

    /// A number that is always the same for `user`. No client can compute it.
    pub(super) fn number_of(&self, user: &[u8]) -> u64 {
        self.sign(&[user]).map_or(0, |[number, _]| number)
    }

    /// Whether `login` is remembered at `now_s`.
    pub(super) fn has(&self, login: &LoginHash, now_s: u32) -> bool {
        lock(&self.good)
            .get(login)
            .is_some_and(|until_s| now_s < *until_s)
    }

    /// Remembers `login` until `until_s`.
    pub(super) fn add(&self, login: LoginHash, now_s: u32, until_s: u32) {
        let mut good = lock(&self.good);
        if good.len() >= LOGINS_MAX {
            good.retain(|_, until_s| now_s < *until_s);
        }
        if good.len() >= LOGINS_MAX {
            // It does not matter which half goes: the passwords of these users are hashed once more.
            let mut number = 0_usize;
            good.retain(|_, _| {
                number += 1;
                number.is_multiple_of(2)
            });
        }
        good.insert(login, until_s);
    }

    /// Each part has its length in front, so that two lists of parts never make the same bytes.
    #[expect(deprecated, reason = "see above")]
    fn sign(&self, parts: &[&[u8]]) -> Option<LoginHash> {
        let keys = self.keys.as_ref()?;
        // In one piece: with a call for each part the standard library's SipHash takes twice as long.
        let mut bytes = Vec::with_capacity(256);
        for part in parts {
            bytes.extend_from_slice(&part.len().to_ne_bytes());
            bytes.extend_from_slice(part);
        }
        Some(keys.map(|[first, second]| {
            let mut hasher = SipHasher::new_with_keys(first, second);
            hasher.write(&bytes);
            hasher.finish()
        }))
    }
}

/// How many log-ins are remembered, at 20 bytes each.
const LOGINS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_good_until_its_time_is_over() {
        let logins = Logins::new();
        let login = logins
            .hash(b"anna", b"pw", [b"$hash", b""])
            .expect("random numbers");
        assert!(!logins.has(&login, 1));
        logins.add(login, 1, 5);
        assert!(logins.has(&login, 4) && !logins.has(&login, 5));
        for (user, password, stored) in [
            (&b"anna"[..], &b"pw"[..], &b"$other"[..]),
            (b"anna", b"p", b"w$hash"),
            (b"ann", b"apw", b"$hash"),
            (b"bob", b"pw", b"$hash"),
            (b"anna", b"pw", b"$has"),
        ] {
            let other = logins
                .hash(user, password, [stored, b""])
                .expect("random numbers");
            assert!(!logins.has(&other, 1));
        }
        let elsewhere = Logins::new().hash(b"anna", b"pw", [b"$hash", b""]);
        assert_ne!(elsewhere, Some(login));
    }

    #[test]
    fn their_number_has_an_end() {
        let logins = Logins::new();
        for number in 0..=LOGINS_MAX {
            logins.add([number as u64, 0], 0, 10);
        }
        assert!(lock(&logins.good).len() <= LOGINS_MAX / 2 + 1);
        logins.add([1; 2], 10, 20);
        assert!(logins.has(&[1; 2], 10));
    }
}
