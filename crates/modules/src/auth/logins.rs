//! Log-ins that were good a short while ago (`auth.cache`), for all workers.
//!
//! What is kept is a keyed hash of user, password and what the file has for that user: no password can be had from it,
//! and a changed entry of the file is another hash.

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

/// See the module's documentation.
pub(super) struct Logins {
    /// There are none if the system has no random numbers; then nothing is remembered.
    keys: Option<[[u64; 2]; 2]>,
    /// Until when each is good, in seconds of the workers' clocks.
    good: Mutex<HashMap<LoginHash, u32, foldhash::fast::RandomState>>,
}

/// What a log-in is known by: SipHash-2-4 by two keys. It is made for short messages, and no client sees or chooses a
/// key, so that a guess has one chance in 2^128 to be taken for a log-in. HMAC-SHA256 took 8,000 instructions, half of
/// what a log-in cost.
pub(super) type LoginHash = [u64; 2];

impl Logins {
    /// Those of the process.
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

    /// What the log-in of `user` by `password` is known by; the rest is what makes it another log-in, such as the user's
    /// line in a file.
    pub(super) fn hash(&self, user: &[u8], password: &[u8], rest: [&[u8]; 2]) -> Option<LoginHash> {
        let [kind, more] = rest;
        self.sign(&[user, password, kind, more])
    }

    /// A number that is always the same for `user`, and that no client can tell.
    pub(super) fn number_of(&self, user: &[u8]) -> u64 {
        self.sign(&[user]).map_or(0, |[number, _]| number)
    }

    /// Whether it is good at `now_s`.
    pub(super) fn has(&self, login: &LoginHash, now_s: u32) -> bool {
        lock(&self.good)
            .get(login)
            .is_some_and(|until_s| now_s < *until_s)
    }

    /// It is good from `now_s` until `until_s`.
    pub(super) fn add(&self, login: LoginHash, now_s: u32, until_s: u32) {
        let mut good = lock(&self.good);
        if good.len() >= LOGINS_MAX {
            good.retain(|_, until_s| now_s < *until_s);
        }
        if good.len() >= LOGINS_MAX {
            // Which of them go does not matter: their users are asked of the file once more.
            let mut number = 0_usize;
            good.retain(|_, _| {
                number += 1;
                number.is_multiple_of(2)
            });
        }
        good.insert(login, until_s);
    }

    /// The lengths stand in front, so that no two lists of parts are the same bytes.
    #[expect(deprecated, reason = "see above")]
    fn sign(&self, parts: &[&[u8]]) -> Option<LoginHash> {
        let keys = self.keys.as_ref()?;
        // In one piece: SipHash takes five times as long for pieces that are no words.
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

/// 20 bytes each.
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
