//! One attempt to log in: looks whether it is remembered or locked out, and counts its result.

use std::rc::Rc;
use std::sync::Arc;

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::module::Outcome;

use super::accounts::Groups;
use super::guard::{Guard, shown};
use super::lockout::{Failures, Guess, LoginOrigin, address_key};
use super::logins::{KnownLogin, LoginHash};
use super::rules::Rule;

/// An attempt of a client to log in under a rule.
pub(super) struct LoginAttempt {
    pub(super) rule: Rc<Rule>,
    pub(super) user: Vec<u8>,
    /// The name that wrong passwords are counted under if it is not `user`: an LDAP server and PAM know one
    /// user by several names.
    pub(super) counted_as: Option<Vec<u8>>,
    pub(super) groups: Arc<Groups>,
    /// The user's line in the file that the password is compared with; see [`KnownLogin::stored`].
    pub(super) stored: Vec<u8>,
    /// The key that a good log-in is to be remembered under.
    pub(super) hash: Option<LoginHash>,
    /// The log-in is remembered already. Lock-outs do not apply to it.
    pub(super) is_remembered: bool,
    /// A number that stands for the password; see [`Guess`].
    pub(super) password: Option<u64>,
    /// The second before which a wrong password is not answered.
    pub(super) refused_at_s: u32,
}

impl LoginAttempt {
    /// The attempt of `user`, which begins now. The pause before the answer to a wrong password begins here. If
    /// it began with the verdict, the time would tell which names do not exist: a server looks those up faster.
    pub(super) fn new(
        exchange: &Exchange,
        rule: &Rc<Rule>,
        groups: Arc<Groups>,
        user: Vec<u8>,
    ) -> LoginAttempt {
        LoginAttempt {
            rule: Rc::clone(rule),
            user,
            counted_as: None,
            groups,
            stored: Vec::new(),
            hash: None,
            is_remembered: false,
            password: None,
            refused_at_s: exchange.worker.clock().after(DELAY_S),
        }
    }

    fn guess(&self) -> Guess<'_> {
        Guess {
            realm: &self.rule.realm,
            user: self.counted_as.as_deref().unwrap_or(&self.user),
            password: self.password,
        }
    }
}

/// As in lighttpd.
const DELAY_S: u32 = 1;

/// One spelling for all names that many directories take for the same user: lower case, without spaces.
pub(super) fn one_spelling(user: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(user).to_lowercase();
    text.split_whitespace().collect::<String>().into_bytes()
}

/// What [`Guard::recall`] has found.
#[derive(Default)]
pub(super) struct Recalled {
    /// The key that a good log-in is to be remembered under. `None`: log-ins are not remembered.
    pub(super) hash: Option<LoginHash>,
    /// The log-in that is remembered under it.
    pub(super) known: Option<KnownLogin>,
}

impl Recalled {
    /// Whether the log-in is remembered, and the key if it is still to be.
    pub(super) fn for_attempt(self) -> (Option<LoginHash>, bool) {
        let is_remembered = self.known.is_some();
        (self.hash.filter(|_| !is_remembered), is_remembered)
    }
}

impl Guard {
    /// Looks whether the log-in by what the client has `sent` is remembered (`auth.cache`). `kind` tells what
    /// it was checked against.
    ///
    /// A remembered log-in passes a lock-out. So where `auth.lockout` is set, the key has the client's
    /// address in it: a client at another address that guesses the password during a lock-out still gets 429.
    pub(super) fn recall(&self, exchange: &Exchange, sent: &[u8], kind: &[u8]) -> Recalled {
        if self.max_age_s.is_none() {
            return Recalled::default();
        }
        let logins = self.logins(exchange);
        let hash = match self.lockout {
            Some(_) => {
                let address = address_key(exchange).unwrap_or_default();
                logins.hash(&[sent, kind, &address.to_ne_bytes()])
            }
            None => logins.hash(&[sent, kind]),
        };
        let now_s = exchange.worker.clock().seconds();
        let known = hash.and_then(|hash| logins.find(&hash, now_s));
        Recalled { hash, known }
    }

    /// Remembers a good log-in.
    pub(super) fn remember(&self, exchange: &Exchange, login: &LoginAttempt) {
        if let (Some(hash), Some(max_age_s)) = (login.hash, self.max_age_s) {
            let now_s = exchange.worker.clock().seconds();
            let logins = self.logins(exchange);
            let known = KnownLogin {
                user: login.user.as_slice().into(),
                stored: login.stored.as_slice().into(),
            };
            logins.add(hash, known, now_s, now_s.saturating_add(max_age_s));
        }
    }

    /// A number that stands for the password; `None`: wrong passwords are not counted.
    pub(super) fn number_of(
        &self,
        exchange: &Exchange,
        user: &[u8],
        password: &[u8],
    ) -> Option<u64> {
        self.lockout.as_ref()?;
        Some(self.failures(exchange).number_of(user, password))
    }

    fn failures(&self, exchange: &Exchange) -> &Failures {
        let find = || Failures::of(exchange.worker.shared());
        self.failures.get_or_init(find)
    }

    /// The answer 429 if the user or the address is locked out, whichever password the client has sent.
    pub(super) fn locked_out(
        &self,
        exchange: &mut Exchange,
        login: &LoginAttempt,
    ) -> Option<Outcome> {
        let lockout = self.lockout.as_ref().filter(|_| !login.is_remembered)?;
        let failures = self.failures(exchange);
        let locked_s = lockout.locked_s(failures, LoginOrigin::of(exchange), &login.guess())?;
        failures.count_refused();
        let outcome = exchange.fail(CauseCode::AuthLockedOut);
        let seconds = locked_s.to_string();
        exchange.response.set("Retry-After", seconds.as_bytes());
        Some(outcome)
    }

    /// A function that says whether a name is locked out. An LDAP log-in calls it when the server has found
    /// the entry; it has no exchange then.
    pub(super) fn lock_check(
        self: &Rc<Guard>,
        exchange: &Exchange,
        rule: &Rc<Rule>,
    ) -> impl Fn(&[u8]) -> bool + 'static {
        let (guard, rule) = (Rc::clone(self), Rc::clone(rule));
        let origin = LoginOrigin::of(exchange);
        self.failures(exchange);
        move |counted_as| {
            let guess = Guess {
                realm: &rule.realm,
                user: counted_as,
                password: None,
            };
            let lockout = guard.lockout.as_ref().zip(guard.failures.get());
            lockout.is_some_and(|(lockout, failures)| {
                lockout.locked_s(failures, origin, &guess).is_some()
            })
        }
    }

    /// Counts a wrong password, or forgets the count after a right one.
    pub(super) fn count(&self, exchange: &Exchange, login: &LoginAttempt, is_right: bool) {
        let Some(lockout) = self.lockout.as_ref().filter(|_| !login.is_remembered) else {
            return;
        };
        let (failures, guess) = (self.failures(exchange), login.guess());
        let origin = LoginOrigin::of(exchange);
        if is_right {
            return lockout.succeeded(failures, origin, &guess);
        }
        let address = exchange.connection.peer.address_text();
        for begun in lockout.failed(failures, origin, &guess) {
            let line = begun.line(&shown(&login.user), &address);
            exchange.log_error("authorize", format_args!("{line}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::one_spelling;

    #[test]
    fn letter_case_and_spaces_make_no_other_user() {
        for user in ["Anna Ärmel", " aNNA  ÄRMEL ", "anna\u{a0}ärmel"] {
            assert_eq!(one_spelling(user.as_bytes()), "annaärmel".as_bytes());
        }
        assert_ne!(one_spelling(b"anna"), one_spelling(b"bob"));
    }
}
