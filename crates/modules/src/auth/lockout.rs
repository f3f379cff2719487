//! Counts wrong passwords and locks out users and addresses that have too many (`auth.lockout`).
//!
//! Three things are counted, for all workers together: wrong passwords for one user from one address, for one
//! user from all addresses, and for all users from one address. The count of an IPv6 address is that of its
//! /64 network. A client that comes by a unix socket has no address, so only its user is counted.
//! [`attempt`](super::attempt) does not ask this module about remembered log-ins.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use petrel_engine::Exchange;
use petrel_engine::config::{Diagnostic, Element};
use petrel_engine::settings::Values;
use petrel_engine::shared::{Shared, lock};

use super::failure_table::{FailureTable, LockRule};

/// What one set of settings says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lockout {
    /// Each subject that can be locked out, with its rule.
    rules: Vec<(Subject, LockRule)>,
}

/// What wrong passwords are counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Subject {
    /// One user, from one address.
    Login,
    /// One user, from all addresses.
    User,
    /// One address, for all users.
    Address,
}

/// A user and a password that a client has tried.
pub(super) struct Guess<'a> {
    pub(super) realm: &'a str,
    pub(super) user: &'a [u8],
    /// `None`: the client uses Digest, where each proof is another one.
    pub(super) password: Option<u64>,
}

/// The address and the time of a log-in.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoginOrigin {
    /// The key of the client's address; `None`: it comes by a unix socket.
    address: Option<u64>,
    now_s: u32,
}

impl LoginOrigin {
    /// The client of `exchange`, now.
    pub(super) fn of(exchange: &Exchange) -> LoginOrigin {
        LoginOrigin {
            address: address_key(exchange),
            now_s: exchange.worker.clock().seconds(),
        }
    }
}

/// A lock-out that a wrong password has begun.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BegunLockout {
    subject: Subject,
    rule: LockRule,
}

impl Lockout {
    /// Reads `auth.lockout`; `None`: no client is ever locked out.
    ///
    /// # Errors
    /// A key or a value is wrong.
    pub(super) fn read(values: &Values<'_>) -> Result<Option<Lockout>, Diagnostic> {
        let Some(options) = values.array(DIRECTIVE).filter(|map| map.iter().len() > 0) else {
            return Ok(None);
        };
        let mut numbers = DEFAULTS;
        for option in options.iter() {
            let key = option.key().unwrap_or_default();
            let Some(known) = numbers.iter_mut().find(|(name, _)| *name == key) else {
                let names = DEFAULTS.map(|(name, _)| name).join(", ");
                let message = format!("{DIRECTIVE}: {key:?} is none of {names}");
                return Err(Diagnostic::error(message, option.span));
            };
            known.1 = number(option)?;
        }
        let [
            (_, login),
            (_, user),
            (_, address),
            (_, within_s),
            (_, for_s),
        ] = numbers;
        if within_s == 0 || for_s == 0 {
            let message = format!("{DIRECTIVE}: within and for are seconds, 1 at least");
            let hint = format!("{DIRECTIVE} = () locks out no client");
            return Err(values.error(DIRECTIVE, message).with_hint(hint));
        }
        let rule = |failures_max| LockRule {
            failures_max,
            within_s,
            for_s,
        };
        let rules = [
            (Subject::Login, rule(login)),
            (Subject::User, rule(user)),
            (Subject::Address, rule(address)),
        ];
        let rules = rules
            .into_iter()
            .filter(|(_, rule)| rule.failures_max > 0)
            .collect();
        Ok(Some(Lockout { rules }))
    }

    /// How many seconds the lock-out of this user or address still lasts; `None`: there is none.
    pub(super) fn locked_s(
        &self,
        failures: &Failures,
        origin: LoginOrigin,
        guess: &Guess<'_>,
    ) -> Option<u32> {
        let table = lock(&failures.table);
        let keys = self.keys(failures, origin, guess);
        keys.filter_map(|(key, ..)| table.locked_s(key, origin.now_s))
            .max()
    }

    /// Counts a wrong password. Answers the lock-outs that begin with it.
    pub(super) fn failed(
        &self,
        failures: &Failures,
        origin: LoginOrigin,
        guess: &Guess<'_>,
    ) -> Vec<BegunLockout> {
        failures.counted.fetch_add(1, Relaxed);
        let mut table = lock(&failures.table);
        let keys = self.keys(failures, origin, guess);
        let begun = keys.filter_map(|(key, subject, rule)| {
            let begins = table.count(key, guess.password, origin.now_s, rule);
            begins.then_some(BegunLockout { subject, rule })
        });
        let begun: Vec<_> = begun.collect();
        failures.begun.fetch_add(begun.len() as u64, Relaxed);
        begun
    }

    /// Forgets the wrong passwords for the user from this address, after a right one. Wrong passwords from
    /// other addresses and for other users still count.
    pub(super) fn succeeded(&self, failures: &Failures, origin: LoginOrigin, guess: &Guess<'_>) {
        let mut table = lock(&failures.table);
        for (key, subject, _) in self.keys(failures, origin, guess) {
            if subject == Subject::Login {
                table.forget(key);
            }
        }
    }

    /// The keys that such a log-in is counted under.
    fn keys(
        &self,
        failures: &Failures,
        origin: LoginOrigin,
        guess: &Guess<'_>,
    ) -> impl Iterator<Item = (u64, Subject, LockRule)> {
        let address = origin.address;
        let user = (guess.realm, guess.user);
        self.rules.iter().filter_map(move |(subject, rule)| {
            let (address, user) = match subject {
                Subject::Login => (Some(address?), Some(user)),
                Subject::User => (None, Some(user)),
                Subject::Address => (Some(address?), None),
            };
            let key = failures.hasher.hash_one((subject, address, user));
            Some((key, *subject, *rule))
        })
    }
}

/// The key of the client's address; `None`: it comes by a unix socket.
pub(super) fn address_key(exchange: &Exchange) -> Option<u64> {
    let connection = &exchange.connection;
    connection.peer.ip().map(|_| connection.client_key())
}

fn number(option: &Element) -> Result<u32, Diagnostic> {
    let number = option.value.as_integer();
    let number = number.and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| {
        let key = option.key().unwrap_or_default();
        let message = format!("{DIRECTIVE}: {key} is a number");
        Diagnostic::error(message, option.span)
    })
}

impl BegunLockout {
    /// The log line about it. The caller has made `user` fit for a log.
    pub(super) fn line(&self, user: &str, address: &str) -> String {
        let LockRule {
            failures_max,
            for_s,
            ..
        } = self.rule;
        let subject = match self.subject {
            Subject::Login => "this user from this address",
            Subject::User => "this user from all addresses",
            Subject::Address => "all users from this address",
        };
        format!(
            "locked out for {for_s} s after {failures_max} wrong passwords: {subject}: username: {user} IP: {address}"
        )
    }
}

/// The counts of all workers.
#[derive(Default)]
pub(super) struct Failures {
    /// Its keys are random, so that no client can choose names that push other entries out of the table.
    hasher: RandomState,
    table: Mutex<FailureTable>,
    counted: AtomicU64,
    begun: AtomicU64,
    refused: AtomicU64,
}

impl Failures {
    /// The counts of this server process.
    pub(super) fn of(shared: &Shared) -> Arc<Failures> {
        shared.belonging(Failures::default)
    }

    /// Counts a request that was answered 429.
    pub(super) fn count_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// A number that stands for a password; equal ones have equal numbers.
    pub(super) fn number_of(&self, user: &[u8], password: &[u8]) -> u64 {
        self.hasher.hash_one((user, password))
    }
}

/// Adds what `auth.lockout` has counted to `counters`.
pub(crate) fn read_counters(shared: &Shared, counters: &mut BTreeMap<String, u64>) {
    let failures = Failures::of(shared);
    for (name, count) in [
        ("auth.lockout.failures", failures.counted.load(Relaxed)),
        ("auth.lockout.begun", failures.begun.load(Relaxed)),
        ("auth.lockout.refused", failures.refused.load(Relaxed)),
        ("auth.lockout.forgotten", lock(&failures.table).forgotten()),
    ] {
        counters.insert(name.to_owned(), count);
    }
}

const DIRECTIVE: &str = "auth.lockout";

/// The value of each key that is left out.
const DEFAULTS: [(&str, u32); 5] = [
    ("failures", 10),
    // With a limit here ten addresses could lock out any user whose name they know.
    ("user-failures", 0),
    ("address-failures", 100),
    ("within", 600),
    ("for", 300),
];
