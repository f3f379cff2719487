//! Remembers good log-ins for all workers (`auth.cache`).
//!
//! A log-in is found by a keyed hash of what the client has sent. The password is not kept. With the log-in
//! are its user and the user's line in the file: the caller compares that line with the file as it is now, so
//! that a log-in ends when its line is changed.

use std::collections::HashMap;
use std::hash::Hasher as _;
#[expect(
    deprecated,
    reason = "the only SipHash-2-4 of the standard library; its successor names no algorithm"
)]
use std::hash::SipHasher;
use std::sync::Arc;

use parking_lot::Mutex;
use petrel_engine::Exchange;
use petrel_lua::library::random;

/// The remembered log-ins.
pub(super) struct Logins {
    /// `None`: the system has no random numbers, so no log-in is remembered.
    key: Option<[u64; 2]>,
    /// Each log-in with the second in which it ends, by the workers' clocks.
    good: Mutex<HashMap<LoginHash, (KnownLogin, u32), foldhash::fast::RandomState>>,
}

/// A log-in that was good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownLogin {
    pub(super) user: Arc<[u8]>,
    /// The user's line in the file when the password was compared with it. Empty where there is no file.
    pub(super) stored: Arc<[u8]>,
}

/// The hash of a log-in: SipHash-2-4, which is made for short messages. No client sees the key or chooses it.
/// So a guess has one chance in 2^64 to be taken for one of the remembered log-ins, and a client waits for a
/// real check after each guess that fails. HMAC-SHA256 took 8,000 instructions, half of what a log-in cost.
pub(super) type LoginHash = u64;

impl Logins {
    /// The remembered log-ins of this server process.
    pub(super) fn of(exchange: &Exchange) -> Arc<Logins> {
        exchange.worker.shared().belonging(Logins::new)
    }

    fn new() -> Logins {
        let mut drawn = [0; 16];
        let is_drawn = random::fill(&mut drawn).is_ok();
        let (first, second) = drawn.split_at(8);
        let word = |half: &[u8]| u64::from_ne_bytes(half.try_into().unwrap_or_default());
        Logins {
            key: is_drawn.then(|| [word(first), word(second)]),
            good: Mutex::default(),
        }
    }

    /// A number that is always the same for `user`. No client can compute it.
    pub(super) fn number_of(&self, user: &[u8]) -> u64 {
        self.hash(&[user]).unwrap_or_default()
    }

    /// The log-in with this hash, if it is remembered at `now_s`.
    pub(super) fn find(&self, login: &LoginHash, now_s: u32) -> Option<KnownLogin> {
        let good = self.good.lock();
        let (known, until_s) = good.get(login)?;
        (now_s < *until_s).then(|| known.clone())
    }

    /// Remembers `known` by the hash `login` until `until_s`.
    pub(super) fn add(&self, login: LoginHash, known: KnownLogin, now_s: u32, until_s: u32) {
        let mut good = self.good.lock();
        if good.len() >= LOGINS_MAX {
            good.retain(|_, (_, until_s)| now_s < *until_s);
        }
        if good.len() >= LOGINS_MAX {
            // It does not matter which half goes: the passwords of these users are hashed once more.
            let mut number = 0_usize;
            good.retain(|_, _| {
                number += 1;
                number.is_multiple_of(2)
            });
        }
        good.insert(login, (known, until_s));
    }

    /// The hash of a log-in. `parts` are what the client has sent and what else makes it another log-in. Each
    /// part has its length in front, so that two lists of parts never make the same bytes.
    #[expect(deprecated, reason = "see above")]
    pub(super) fn hash(&self, parts: &[&[u8]]) -> Option<LoginHash> {
        let [first, second] = self.key?;
        // In one piece: with a call for each part the standard library's SipHash takes twice as long.
        let length = parts.iter().map(|part| LENGTH_BYTES + part.len()).sum();
        let (mut few, mut many) = ([0; FEW_BYTES], Vec::new());
        let bytes = match few.get_mut(..length) {
            Some(bytes) => bytes,
            None => {
                many.resize(length, 0);
                &mut many[..]
            }
        };
        let mut rest = &mut *bytes;
        for part in parts {
            let (front, behind) = rest.split_at_mut(LENGTH_BYTES);
            front.copy_from_slice(&part.len().to_ne_bytes());
            let (front, behind) = behind.split_at_mut(part.len());
            front.copy_from_slice(part);
            rest = behind;
        }
        let mut hasher = SipHasher::new_with_keys(first, second);
        hasher.write(bytes);
        Some(hasher.finish())
    }
}

const LENGTH_BYTES: usize = size_of::<usize>();

/// So many bytes are put together without an allocation: enough for most names and passwords.
const FEW_BYTES: usize = 256;

/// How many log-ins are remembered, at about 150 bytes each.
const LOGINS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    fn known(user: &str) -> KnownLogin {
        KnownLogin {
            user: user.as_bytes().into(),
            stored: b"$hash"[..].into(),
        }
    }

    #[test]
    fn a_login_is_good_until_its_time_is_over() {
        let logins = Logins::new();
        let long = [b'x'; 1000];
        for sent in [b"anna:pw", &long[..]] {
            let login = logins.hash(&[sent, b"file"]).expect("random numbers");
            assert_eq!(logins.find(&login, 1), None);
            logins.add(login, known("anna"), 1, 5);
            assert_eq!(logins.find(&login, 4), Some(known("anna")));
            assert_eq!(logins.find(&login, 5), None);
            let elsewhere = Logins::new().hash(&[sent, b"file"]);
            assert_ne!(elsewhere, Some(login));
        }
        for parts in [
            [&b"anna:pw"[..], b"other"],
            [b"anna:pwf", b"ile"],
            [b"anna:p", b"wfile"],
            [b"anna:p", b"file"],
            [b"bob:pw", b"file"],
            [&long[1..], b"file"],
        ] {
            let other = logins.hash(&parts).expect("random numbers");
            assert_eq!(logins.find(&other, 1), None, "{parts:?}");
        }
    }

    #[test]
    fn their_number_has_an_end() {
        let logins = Logins::new();
        for number in 0..=LOGINS_MAX {
            logins.add(number as u64, known("anna"), 0, 10);
        }
        assert!(logins.good.lock().len() <= LOGINS_MAX / 2 + 1);
        logins.add(1, known("bob"), 10, 20);
        assert_eq!(logins.find(&1, 10), Some(known("bob")));
    }
}
