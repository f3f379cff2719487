//! Nonces of Digest, which the client hashes with its password: the time, random bytes, and a signature of
//! both.
//!
//! All workers sign with one key, also after a reload: the keeper makes the key before it forks the first
//! server process. A nonce with another signature is treated as one that is too old, so a client that knows
//! the password tries once more with a new one.

use std::sync::OnceLock;

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use petrel_lua::library::random;

use super::htdigest::hex;
use super::password::are_equal;

/// Makes the key if there is none. The keeper calls this before it forks server processes.
pub fn prepare() {
    let _ = key();
}

/// The key of this process and of the processes that it forks.
fn key() -> Option<&'static [u8; 32]> {
    static KEY: OnceLock<Option<[u8; 32]>> = OnceLock::new();
    let make = || {
        let mut key = [0; 32];
        random::fill(&mut key).ok().map(|()| key)
    };
    KEY.get_or_init(make).as_ref()
}

/// Makes the nonces of one realm, and recognises them.
pub(super) struct Nonces(hmac::Key);

/// The age of a nonce that a client has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NonceAge {
    /// It may be used.
    Fresh,
    /// It may be used, but not for long: the client gets the next one with the answer.
    Ending,
    /// It is too old, or this server has not made it.
    Stale,
}

impl Nonces {
    /// The nonces of `realm`, signed with `secret` or with the key of the process. `None`: the system has no
    /// random numbers.
    pub(super) fn new(secret: Option<&str>, realm: &str) -> Option<Nonces> {
        let secret = match secret {
            Some(secret) => secret.as_bytes(),
            None => &key()?[..],
        };
        let realm = hmac::sign(&hmac::Key::new(HMAC_SHA256, secret), realm.as_bytes());
        Some(Nonces(hmac::Key::new(HMAC_SHA256, realm.as_ref())))
    }

    /// Makes a nonce. `now_s` is in seconds since 1970.
    pub(super) fn make(&self, now_s: u64) -> Option<String> {
        let mut drawn = [0; 8];
        random::fill(&mut drawn).ok()?;
        let begin = format!("{now_s:x}:{}", String::from_utf8_lossy(&hex(&drawn)));
        let signature = self.sign(begin.as_bytes());
        Some(format!("{begin}:{}", String::from_utf8_lossy(&signature)))
    }

    /// How old `nonce` is at `now_s`.
    pub(super) fn age(&self, nonce: &[u8], now_s: u64) -> NonceAge {
        let read = || {
            let colon = memchr::memrchr(b':', nonce)?;
            let (begin, signature) = (nonce.get(..colon)?, nonce.get(colon + 1..)?);
            if !are_equal(&self.sign(begin), signature) {
                return None;
            }
            let time = begin.split(|byte| *byte == b':').next()?;
            let made_s = u64::from_str_radix(str::from_utf8(time).ok()?, 16).ok()?;
            // Clocks of servers that share a secret differ a little.
            if made_s > now_s + CLOCKS_DIFFER_S {
                return None;
            }
            Some(now_s.saturating_sub(made_s))
        };
        match read() {
            Some(age_s) if age_s <= ENDING_S => NonceAge::Fresh,
            Some(age_s) if age_s <= STALE_S => NonceAge::Ending,
            _ => NonceAge::Stale,
        }
    }

    fn sign(&self, begin: &[u8]) -> Vec<u8> {
        let signature = hmac::sign(&self.0, begin);
        hex(signature.as_ref().get(..16).unwrap_or_default())
    }
}

/// As lighttpd: ten minutes, and a new one is sent along in the last of them.
const STALE_S: u64 = 600;
const ENDING_S: u64 = 540;
const CLOCKS_DIFFER_S: u64 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn nonces(secret: Option<&str>, realm: &str) -> Nonces {
        Nonces::new(secret, realm).expect("random numbers")
    }

    #[test]
    fn nonces_age() {
        let nonces = nonces(None, "R");
        let nonce = nonces.make(1_000_000).expect("random numbers");
        for (now_s, age) in [
            (1_000_000, NonceAge::Fresh),
            (1_000_540, NonceAge::Fresh),
            (1_000_541, NonceAge::Ending),
            (1_000_600, NonceAge::Ending),
            (1_000_601, NonceAge::Stale),
            (999_995, NonceAge::Fresh),
            (999_994, NonceAge::Stale),
            (0, NonceAge::Stale),
        ] {
            assert_eq!(nonces.age(nonce.as_bytes(), now_s), age, "{now_s}");
        }
        assert_ne!(Some(nonce), nonces.make(1_000_000));
    }

    #[test]
    fn those_of_another_secret_realm_or_time_are_stale() {
        let own = nonces(Some("secret"), "R");
        let nonce = own.make(1_000_000).expect("random numbers");
        assert_eq!(
            nonces(Some("secret"), "R").age(nonce.as_bytes(), 1_000_000),
            NonceAge::Fresh
        );
        for other in [
            nonces(Some("other"), "R"),
            nonces(Some("secret"), "S"),
            nonces(None, "R"),
        ] {
            assert_eq!(other.age(nonce.as_bytes(), 1_000_000), NonceAge::Stale);
        }
        let later = nonce.replace("f4240:", "f4241:");
        assert_ne!(later, nonce);
        for damaged in [&later, "", ":", "f4240", &nonce[..nonce.len() - 1]] {
            assert_eq!(
                own.age(damaged.as_bytes(), 1_000_000),
                NonceAge::Stale,
                "{damaged}"
            );
        }
    }
}
