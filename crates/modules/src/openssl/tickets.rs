//! Session tickets, with which clients resume TLS sessions.
//!
//! The keeper owns the [`TicketSecret`]s. It makes a new one every [`limits::TICKET_SECRET_S`] seconds, or
//! reads them from `ssl.stek-file`, and sends them to all server processes. The key that encrypts a ticket is
//! derived from the secret and from a domain: the listener and the rule for client certificates. A ticket
//! made under one rule cannot be decrypted under another one, so that no client gets around a rule by
//! resuming a session (compare CVE-2025-23419).

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, rand};
use petrel_engine::rustls::server::ProducesTickets;

use super::limits;

/// A secret from which ticket keys are derived, and the time in which it is used.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct TicketSecret {
    /// The name of the secret. Each ticket made with the secret begins with it.
    name: [u8; NAME_BYTES],
    bytes: [u8; SECRET_BYTES],
    /// From this time on it makes tickets; seconds since 1970.
    pub(super) active_s: u64,
    /// From this time on its tickets are not accepted.
    pub(super) expires_s: u64,
}

impl fmt::Debug for TicketSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("TicketSecret");
        debug
            .field("active_s", &self.active_s)
            .field("expires_s", &self.expires_s);
        debug.finish_non_exhaustive()
    }
}

impl TicketSecret {
    /// A random secret that makes tickets from `now_s` on; `None` if the system has no random numbers.
    pub(super) fn random(now_s: u64) -> Option<TicketSecret> {
        let mut secret = TicketSecret {
            name: [0; NAME_BYTES],
            bytes: [0; SECRET_BYTES],
            active_s: now_s,
            expires_s: now_s + 2 * limits::TICKET_SECRET_S,
        };
        rand::fill(&mut secret.name).ok()?;
        rand::fill(&mut secret.bytes).ok()?;
        Some(secret)
    }

    /// Parses a file of `ssl.stek-file`: version 0 and two times, each a number of 4 bytes in the machine's
    /// byte order, then a name of 16 bytes and two keys of 32 bytes.
    ///
    /// # Errors
    /// The file has another form.
    pub(super) fn from_file(file: &[u8]) -> Result<TicketSecret, &'static str> {
        const FORM: &str = "it is no session ticket key: 92 bytes, which begin with the version 0";
        let number = |at: usize| {
            let bytes = file.get(at..at + 4)?.try_into().ok()?;
            Some(u64::from(u32::from_ne_bytes(bytes)))
        };
        let read = || {
            let (version, active_s, expires_s) = (number(0)?, number(4)?, number(8)?);
            let (name, bytes) = file.get(TIMES_BYTES..)?.split_at_checked(NAME_BYTES)?;
            (version == 0).then_some(TicketSecret {
                name: name.try_into().ok()?,
                bytes: bytes.try_into().ok()?,
                active_s,
                expires_s,
            })
        };
        read().ok_or(FORM)
    }

    /// The bytes of a file for `ssl.stek-file`.
    pub(super) fn to_file(&self) -> Vec<u8> {
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX).to_ne_bytes();
        let mut file = [number(0), number(self.active_s), number(self.expires_s)].concat();
        file.extend_from_slice(&self.name);
        file.extend_from_slice(&self.bytes);
        file
    }

    /// The key for tickets of `domain`.
    fn key(&self, domain: &[u8]) -> Option<LessSafeKey> {
        let secret =
            hkdf::Salt::new(hkdf::HKDF_SHA256, b"petrel session tickets").extract(&self.bytes);
        let info = [domain];
        let key = secret.expand(&info, &AES_256_GCM).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(key)))
    }
}

/// The ticket secrets of a process, newest first.
#[derive(Debug, Default)]
pub(super) struct TicketSecrets(Vec<TicketSecret>);

impl TicketSecrets {
    /// Adds a secret and returns true, unless it is already there.
    pub(super) fn add(&mut self, secret: TicketSecret) -> bool {
        let TicketSecrets(secrets) = self;
        if secrets.contains(&secret) {
            return false;
        }
        secrets.insert(0, secret);
        secrets.truncate(limits::TICKET_SECRETS_MAX);
        true
    }

    /// Drops the secrets that have expired at `now_s`.
    pub(super) fn drop_expired(&mut self, now_s: u64) {
        self.0.retain(|secret| now_s < secret.expires_s);
    }

    /// All secrets, oldest first.
    pub(super) fn all(&self) -> impl Iterator<Item = &TicketSecret> {
        self.0.iter().rev()
    }

    /// The keys that make and open tickets for `domain` at `now_s`.
    pub(super) fn keys(&self, domain: &[u8], now_s: u64) -> TicketKeys {
        let TicketSecrets(secrets) = self;
        let usable = secrets.iter().filter(|secret| now_s < secret.expires_s);
        let keys =
            usable.filter_map(|secret| Some((secret.name, secret.active_s, secret.key(domain)?)));
        TicketKeys(
            keys.map(|(name, active_s, key)| TicketKey {
                name,
                key,
                is_active: active_s <= now_s,
            })
            .collect(),
        )
    }
}

/// The ticket keys of one rustls configuration. They do not change: when the secrets do, a new configuration
/// is built.
pub(super) struct TicketKeys(Vec<TicketKey>);

struct TicketKey {
    name: [u8; NAME_BYTES],
    key: LessSafeKey,
    is_active: bool,
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TicketKeys({})", self.0.len())
    }
}

impl ProducesTickets for TicketKeys {
    fn enabled(&self) -> bool {
        self.0.iter().any(|key| key.is_active)
    }

    fn lifetime(&self) -> u32 {
        limits::TICKET_SECRET_S as u32
    }

    /// A ticket is the name of the secret, a nonce, and the encrypted session state.
    fn encrypt(&self, state: &[u8]) -> Option<Vec<u8>> {
        let key = self.0.iter().find(|key| key.is_active)?;
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut sealed = state.to_vec();
        let nonce_of_key = Nonce::assume_unique_for_key(nonce);
        key.key
            .seal_in_place_append_tag(nonce_of_key, Aad::from(key.name), &mut sealed)
            .ok()?;
        Some([&key.name[..], &nonce, &sealed].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let key = self.0.iter().find(|key| key.name == *name)?;
        let mut state = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = key
            .key
            .open_in_place(nonce, Aad::from(name), &mut state)
            .ok()?
            .len();
        state.truncate(length);
        Some(state)
    }
}

const TIMES_BYTES: usize = 12;
const NAME_BYTES: usize = 16;
const SECRET_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_worth_nothing_under_another_rule() {
        let mut secrets = TicketSecrets::default();
        secrets.add(TicketSecret::random(100).expect("random numbers"));
        let ticket = secrets
            .keys(b"one", 100)
            .encrypt(b"state")
            .expect("a ticket");
        assert_eq!(
            secrets.keys(b"one", 100).decrypt(&ticket).as_deref(),
            Some(&b"state"[..])
        );
        assert_eq!(secrets.keys(b"other", 100).decrypt(&ticket), None);
        for cut in 0..ticket.len() {
            assert_eq!(secrets.keys(b"one", 100).decrypt(&ticket[..cut]), None);
        }
    }

    #[test]
    fn an_earlier_secret_opens_tickets_until_it_expires_and_makes_none() {
        let mut secrets = TicketSecrets::default();
        secrets.add(TicketSecret::random(100).expect("random numbers"));
        let old = secrets.keys(b"", 100).encrypt(b"old").expect("a ticket");
        let later_s = 100 + limits::TICKET_SECRET_S;
        secrets.add(TicketSecret::random(later_s).expect("random numbers"));
        let keys = secrets.keys(b"", later_s);
        assert_eq!(keys.decrypt(&old).as_deref(), Some(&b"old"[..]));
        let new = keys.encrypt(b"new").expect("a ticket");
        assert_ne!(new[..NAME_BYTES], old[..NAME_BYTES]);
        let end_s = 100 + 2 * limits::TICKET_SECRET_S;
        assert_eq!(secrets.keys(b"", end_s).decrypt(&old), None);
        secrets.drop_expired(end_s);
        assert_eq!(secrets.all().count(), 1);
    }

    #[test]
    fn a_file_of_lighttpd_is_read() {
        let mut file = Vec::new();
        for number in [0_u32, 500, 900] {
            file.extend_from_slice(&number.to_ne_bytes());
        }
        file.extend(1..=80);
        let secret = TicketSecret::from_file(&file).expect("sound");
        assert_eq!((secret.active_s, secret.expires_s), (500, 900));
        assert_eq!(secret.to_file(), file);
        assert!(TicketSecret::from_file(&file[1..]).is_err());
        assert!(TicketSecret::from_file(&[file.clone(), vec![0]].concat()).is_err());
        file[0] = 1;
        assert!(TicketSecret::from_file(&file).is_err());
        // A secret is known before it becomes active.
        let mut secrets = TicketSecrets::default();
        secrets.add(secret);
        assert!(!secrets.keys(b"", 499).enabled());
        assert!(secrets.keys(b"", 500).enabled());
    }
}
