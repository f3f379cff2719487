//! `auth.backend = "ldap"`: an LDAP server says whose password is right (mod_authn_ldap).
//!
//! The worker searches the user as the service, binds with the name of the entry and the client's password,
//! and looks for groups if the rule names some. [`options`] reads the directives, [`log_in`] asks the server,
//! this file waits for the answer. When no server answers, the client gets 503 and the log a line.

mod log_in;
mod options;

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::module::{Outcome, Pending};
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::waits::{self, HolderText};

use super::accounts::Groups;
use super::attempt::{LoginAttempt, one_spelling};
use super::basic::{self, BasicField};
use super::guard::{Guard, RETRY_AFTER_S, challenge};
use super::rules::Rule;

use log_in::{LdapQuestion, LdapVerdict};

pub use options::load_authorities;
pub(super) use options::{LdapUsers, has_short_timeout};

impl Guard {
    /// Checks a Basic log-in by asking an LDAP server.
    pub(super) fn ldap(
        self: &Rc<Guard>,
        exchange: &mut Exchange,
        rule: &Rc<Rule>,
        users: &Rc<LdapUsers>,
    ) -> Outcome {
        let sent = match basic::read(exchange.request.head.field(KnownField::Authorization)) {
            BasicField::Credentials(sent) => sent,
            BasicField::Absent => return challenge(exchange, rule, CauseCode::AuthRequired),
            BasicField::Malformed => return exchange.fail(CauseCode::AuthMalformed),
        };
        let recalled = self.recall(exchange, sent.pair(), &users.kind(rule));
        let (hash, is_remembered) = recalled.for_attempt();
        let password = sent.password().to_vec();
        let user = sent.into_user();
        let spelling = one_spelling(&user);
        let mut login = LoginAttempt {
            hash,
            is_remembered,
            password: self.number_of(exchange, &spelling, &password),
            counted_as: Some(spelling),
            ..LoginAttempt::new(exchange, rule, Arc::default(), user)
        };
        // A server takes a bind without a password for an anonymous one, and accepts it (RFC 4513 section
        // 5.1.2).
        let is_empty = password.is_empty() && !users.allows_empty_passwords();
        // Names in LDAP are UTF-8, so no other name is a user's.
        let is_text = str::from_utf8(&login.user).is_ok();
        if is_empty || login.user.is_empty() || !is_text {
            return self.conclude(exchange, &login, false);
        }
        if login.is_remembered {
            // The key has the rule in it, so the groups were looked up for the same rule.
            login.groups = Arc::new(Groups::of(&rule.who.groups, &login.user));
            return self.conclude(exchange, &login, true);
        }
        if let Some(outcome) = self.locked_out(exchange, &login) {
            return outcome;
        }
        let servers = match users.servers(exchange) {
            Ok(servers) => servers,
            Err(why) => return unavailable(exchange, &why),
        };
        let question = LdapQuestion {
            users: Rc::clone(users),
            servers,
            rule: Rc::clone(rule),
            user: login.user.clone(),
            password,
            is_locked: Box::new(self.lock_check(exchange, rule)),
        };
        Outcome::Later(Box::new(LdapLogin {
            guard: Rc::clone(self),
            login,
            verdict: question.verdict().boxed_local(),
        }))
    }
}

/// A request that waits for an LDAP server.
struct LdapLogin {
    guard: Rc<Guard>,
    login: LoginAttempt,
    verdict: LocalBoxFuture<'static, Result<LdapVerdict, String>>,
}

impl Pending for LdapLogin {
    fn waits_in(&self) -> Option<Stage> {
        Some(Stage::Authorize)
    }

    fn holder(&self, _: &Exchange, since: Nanos, text: &mut HolderText<'_>) {
        waits::with_slow_peer(since, 2, |peer| {
            text.write_str(peer.unwrap_or("the LDAP server"));
        });
    }

    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let verdict = match ready!(self.verdict.poll_unpin(context)) {
            Ok(verdict) => verdict,
            Err(why) => return Poll::Ready(unavailable(exchange, &why)),
        };
        if let Some(note) = &verdict.note {
            exchange.log_common_error("authorize", format_args!("{note}"));
        }
        if let Some(group) = verdict.group {
            self.login.groups = Arc::new(Groups::of(&[group], &self.login.user));
        }
        // Wrong passwords for one entry are counted together, also where clients use several names for it.
        if let Some(entry) = verdict.entry {
            self.login.counted_as = Some(entry);
        }
        if verdict.is_locked {
            let locked_out = self.guard.locked_out(exchange, &self.login);
            // The lock-out may have ended in this second, but the server has not seen the password.
            return Poll::Ready(
                locked_out.unwrap_or_else(|| exchange.fail(CauseCode::AuthLockedOut)),
            );
        }
        let outcome = self.guard.conclude(exchange, &self.login, verdict.is_right);
        Poll::Ready(outcome)
    }
}

fn unavailable(exchange: &mut Exchange, why: &str) -> Outcome {
    let cause = format_args!("users cannot be looked up: {why}");
    let outcome = exchange.fail(CauseCode::AuthLdapAway);
    exchange.log_common_error("authorize", cause);
    exchange.response.set("Retry-After", RETRY_AFTER_S);
    outcome
}
