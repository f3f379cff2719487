//! One log-in that a client tries: whether it is remembered, locked out, or counted.

use std::rc::Rc;
use std::sync::Arc;

use petrel_engine::Exchange;
use petrel_engine::module::Outcome;
use petrel_engine::proto::status::Status;

use super::accounts::Groups;
use super::guard::{Guard, shown};
use super::lockout::{Failures, Guess, LoginOrigin, address_key};
use super::logins::LoginHash;
use super::rules::Rule;

/// A client asks to be let in under a rule.
pub(super) struct LoginAttempt {
    pub(super) rule: Rc<Rule>,
    pub(super) user: Vec<u8>,
    /// What failures are counted under where one user may be named in several ways: the entry that a server has found,
    /// or one spelling for all.
    pub(super) counted_as: Option<Vec<u8>>,
    pub(super) groups: Arc<Groups>,
    /// What the log-in is to be remembered by.
    pub(super) hash: Option<LoginHash>,
    /// It is remembered already, so that no lock-out is about it.
    pub(super) is_remembered: bool,
    /// A number for the password; see [`Guess`].
    pub(super) password: Option<u64>,
}

impl LoginAttempt {
    fn guess(&self) -> Guess<'_> {
        Guess {
            realm: &self.rule.realm,
            user: self.counted_as.as_deref().unwrap_or(&self.user),
            password: self.password,
        }
    }
}

/// The name that services take `user` for: to most of them letter case and spaces make no difference.
pub(super) fn one_spelling(user: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(user).to_lowercase();
    text.split_whitespace().collect::<String>().into_bytes()
}

impl Guard {
    /// Looks whether a log-in by `secret` was good a short while ago; if not, it is to be remembered once it is.
    ///
    /// A log-in that is remembered passes a lock-out. So where clients can be locked out, it is remembered for its address
    /// alone: a client elsewhere that guesses the password does not learn so.
    pub(super) fn recall(
        &self,
        exchange: &Exchange,
        login: &mut LoginAttempt,
        secret: &[u8],
        kind: &[u8],
    ) {
        (login.hash, login.is_remembered) = self.recalled(exchange, &login.user, secret, kind);
    }

    /// The same for a `user`: what the log-in is to be remembered by, and whether it is already.
    pub(super) fn recalled(
        &self,
        exchange: &Exchange,
        user: &[u8],
        secret: &[u8],
        kind: &[u8],
    ) -> (Option<LoginHash>, bool) {
        if self.max_age_s.is_none() {
            return (None, false);
        }
        let logins = self.logins(exchange);
        let now_s = exchange.worker.clock().seconds();
        let address = address_key(exchange).unwrap_or_default().to_ne_bytes();
        let address = match self.lockout {
            Some(_) => &address[..],
            None => &[],
        };
        let hash = logins.hash(user, secret, [kind, address]);
        let is_remembered = hash.is_some_and(|hash| logins.has(&hash, now_s));
        (hash.filter(|_| !is_remembered), is_remembered)
    }

    /// Remembers a log-in that was good.
    pub(super) fn remember(&self, exchange: &Exchange, login: &LoginAttempt) {
        if let (Some(hash), Some(max_age_s)) = (login.hash, self.max_age_s) {
            let now_s = exchange.worker.clock().seconds();
            let logins = self.logins(exchange);
            logins.add(hash, now_s, now_s.saturating_add(max_age_s));
        }
    }

    /// A number for the password, if wrong ones are counted.
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

    /// What a client is answered whose log-ins are locked out, whatever the password.
    pub(super) fn locked_out(
        &self,
        exchange: &mut Exchange,
        login: &LoginAttempt,
    ) -> Option<Outcome> {
        let lockout = self.lockout.as_ref().filter(|_| !login.is_remembered)?;
        let failures = self.failures(exchange);
        let locked_s = lockout.locked_s(failures, LoginOrigin::of(exchange), &login.guess())?;
        failures.count_refused();
        let outcome = exchange.answer(Status::TOO_MANY_REQUESTS);
        let seconds = locked_s.to_string();
        exchange.response.set("Retry-After", seconds.as_bytes());
        Some(outcome)
    }

    /// Says later, when a server has found the user, whether log-ins that are counted as that are locked out.
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

    /// Counts what the password has come to.
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
