//! Log-ins that were good a short while ago (`auth.cache`), for all workers.
//!
//! What is kept is a keyed hash of user, password and what the file has for that user: no password can be had from it,
//! and a changed entry of the file is another hash.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use petrel_engine::Exchange;
use petrel_engine::shared::lock;
use petrel_lua::library::random;

/// See the module's documentation.
pub(super) struct Logins {
    /// There is none if the system has no random numbers; then nothing is remembered.
    key: Option<hmac::Key>,
    /// Until when each is good, in seconds of the workers' clocks.
    good: Mutex<HashMap<LoginHash, u32>>,
}

/// What a log-in is known by.
pub(super) type LoginHash = [u8; 32];

impl Logins {
    /// Those of the process.
    pub(super) fn of(exchange: &Exchange) -> Arc<Logins> {
        exchange.worker.shared().belonging(Logins::new)
    }

    fn new() -> Logins {
        let mut key = [0; 32];
        let drawn = random::fill(&mut key);
        Logins {
            key: drawn.ok().map(|()| hmac::Key::new(HMAC_SHA256, &key)),
            good: Mutex::default(),
        }
    }

    /// What the log-in of `user` by `password` is known by where `stored` is what the file has.
    pub(super) fn hash(&self, user: &[u8], password: &[u8], stored: &[u8]) -> Option<LoginHash> {
        self.sign(&[user, password, stored])
    }

    /// A number that is always the same for `user`, and that no client can tell.
    pub(super) fn number_of(&self, user: &[u8]) -> u64 {
        let hash = self.sign(&[user]).unwrap_or_default();
        hash.iter()
            .take(8)
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
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
    fn sign(&self, parts: &[&[u8]]) -> Option<LoginHash> {
        let mut context = hmac::Context::with_key(self.key.as_ref()?);
        for part in parts {
            context.update(&part.len().to_ne_bytes());
            context.update(part);
        }
        context.sign().as_ref().try_into().ok()
    }
}

/// 40 bytes each.
const LOGINS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_good_until_its_time_is_over() {
        let logins = Logins::new();
        let login = logins
            .hash(b"anna", b"pw", b"$hash")
            .expect("random numbers");
        assert!(!logins.has(&login, 1));
        logins.add(login, 1, 5);
        assert!(logins.has(&login, 4) && !logins.has(&login, 5));
        for (user, password, stored) in [
            (&b"anna"[..], &b"pw"[..], &b"$other"[..]),
            (b"anna", b"p", b"w$hash"),
            (b"ann", b"apw", b"$hash"),
            (b"bob", b"pw", b"$hash"),
        ] {
            let other = logins.hash(user, password, stored).expect("random numbers");
            assert!(!logins.has(&other, 1));
        }
        let elsewhere = Logins::new().hash(b"anna", b"pw", b"$hash");
        assert_ne!(elsewhere, Some(login));
    }

    #[test]
    fn their_number_has_an_end() {
        let logins = Logins::new();
        for number in 0..=LOGINS_MAX {
            let mut login = [0; 32];
            login[..8].copy_from_slice(&number.to_ne_bytes());
            logins.add(login, 0, 10);
        }
        assert!(lock(&logins.good).len() <= LOGINS_MAX / 2 + 1);
        logins.add([1; 32], 10, 20);
        assert!(logins.has(&[1; 32], 10));
    }
}
