//! Whose passwords are not looked at for a while, because too many were wrong (`auth.lockout`).
//!
//! Three things are counted for all workers: failures of one user from one address, of one user from all addresses, and
//! from one address for all users. An address of IPv6 stands for its network of 64 bits. A client by a unix socket has no
//! address, so that only its user counts. A log-in that is remembered (`auth.cache`) from the same address is none of this
//! module's business.

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
    /// What locks, with its rule.
    rules: Vec<(Subject, LockRule)>,
}

/// Whose failures are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Subject {
    /// One user, from one address.
    Login,
    /// One user, from all addresses.
    User,
    /// One address, for all users.
    Address,
}

/// A name and a password that a client has sent.
pub(super) struct Guess<'a> {
    pub(super) realm: &'a str,
    pub(super) user: &'a [u8],
    /// `None`: the client has sent a proof, and each is another one.
    pub(super) password: Option<u64>,
}

/// Where a log-in comes from, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoginOrigin {
    /// What stands for the client's address; a client by a unix socket has none.
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

/// What a failed log-in has led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BegunLockout {
    subject: Subject,
    rule: LockRule,
}

impl Lockout {
    /// What `auth.lockout` says; `None`: nothing is locked.
    ///
    /// # Errors
    /// It is not understood.
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

    /// For how many more seconds such a log-in is locked out, if it is.
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

    /// Counts a wrong password; what that locks.
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

    /// Forgets wrong passwords of the user from this address: there was a right one. What others have tried still
    /// counts, and so does what was tried for other users.
    pub(super) fn succeeded(&self, failures: &Failures, origin: LoginOrigin, guess: &Guess<'_>) {
        let mut table = lock(&failures.table);
        for (key, subject, _) in self.keys(failures, origin, guess) {
            if subject == Subject::Login {
                table.forget(key);
            }
        }
    }

    /// What such a log-in is counted by.
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

/// What stands for the client's address; `None`: it comes by a unix socket and has none.
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
    /// The line about it. `user` is fit for a log.
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

/// Failed log-ins, for all workers.
#[derive(Default)]
pub(super) struct Failures {
    /// Its keys are drawn by the system: no client can choose names that are forgotten with others.
    hasher: RandomState,
    table: Mutex<FailureTable>,
    counted: AtomicU64,
    begun: AtomicU64,
    refused: AtomicU64,
}

impl Failures {
    /// Those of the process.
    pub(super) fn of(shared: &Shared) -> Arc<Failures> {
        shared.belonging(Failures::default)
    }

    /// A request was answered 429.
    pub(super) fn count_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// A number for a password: the same one has the same number.
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

/// What counts for a key that is left out.
const DEFAULTS: [(&str, u32); 5] = [
    ("failures", 10),
    // Ten addresses could lock out any user.
    ("user-failures", 0),
    ("address-failures", 100),
    ("within", 600),
    ("for", 300),
];
