//! Finds the rule of each request, and lets the request go on if its client may have the URL.
//!
//! The hooks apply the rules to the URL path before any file is looked up. After all other modules they apply
//! them again: to the URL path, which may be that of an index file now, and to the path that is opened if it
//! is not that of the URL. So rewriting, index files and scripts do not lead around a rule. Path-info counts
//! as part of the URL: if the two paths differ only by it, the second check is left out. A client that has
//! logged in under a rule is not asked again in the same request.

use std::cell::OnceCell;
use std::fmt::Arguments;
use std::iter;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use petrel_engine::Exchange;
use petrel_engine::blocking::{self, Class, NotDone, Origin};
use petrel_engine::cause::CauseCode;
use petrel_engine::exchange::dry_run::Note;
use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::module::{Configure, Hook, Outcome, Pending, Phase};
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::waits::HolderText;

use super::accounts::{Accounts, Groups};
use super::attempt::{LoginAttempt, Recalled};
use super::basic::{self, BasicField};
use super::digest::{self, Algorithm, DigestField, DigestOptions, DigestResponse};
use super::htdigest;
use super::lockout::{Failures, Lockout};
use super::logins::Logins;
use super::nonce::{NonceAge, Nonces};
use super::password::{self, HashForm, UnusableHash};
use super::rules::{Method, Rule};
use super::shared_hashing::{SharedJobs, SharedWaiter};
use super::used_counts::UsedCounts;
use super::users::{FileForm, NoFile, UserFiles, Users};

/// The rules of one set of settings.
pub(super) struct Guard {
    pub(super) rules: Vec<Rc<Rule>>,
    pub(super) users: Users,
    /// Seconds for which good log-ins are remembered.
    pub(super) max_age_s: Option<u32>,
    /// `auth.extern-authn`.
    pub(super) accepts_extern: bool,
    /// Files are opened whatever the letter case of their URL.
    pub(super) ignores_case: bool,
    /// The log also gets a line for each client that is let in.
    pub(super) logs_all: bool,
    pub(super) logins: OnceCell<Arc<Logins>>,
    /// `auth.lockout`.
    pub(super) lockout: Option<Lockout>,
    pub(super) failures: OnceCell<Arc<Failures>>,
}

struct UrlGuard(Rc<Guard>);
struct FileGuard(Rc<Guard>);

/// The result of the log-ins of this request.
struct ProvedUser {
    /// The rule that has let the client in.
    rule: Rc<Rule>,
    /// Earlier log-ins of the same request, under other rules.
    before: Option<Rc<ProvedUser>>,
    /// The user, which is in REMOTE_USER.
    user: Arc<[u8]>,
    /// REMOTE_USER before that: the name in a client certificate, or a name from a script or another module.
    user_from_outside: Option<Vec<u8>>,
}

/// The count of the request's Digest log-in is noted as used.
struct CountedLogin;

impl Hook for UrlGuard {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let rule = self.0.rule_for(exchange.request.url.path());
        rule.map_or(Outcome::Next, |rule| self.0.admit(exchange, rule))
    }

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        let rule = self.0.rule_for(exchange.request.url.path());
        rule.map_or(Outcome::Next, |rule| self.0.admit_dry(exchange, rule))
    }
}

/// A hook of its own, because the engine does not run a hook again after the answer that it waited for.
impl Hook for FileGuard {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let rule = self.0.rule_for_file(exchange);
        rule.map_or(Outcome::Next, |rule| self.0.admit(exchange, rule))
    }

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        let rule = self.0.rule_for_file(exchange);
        rule.map_or(Outcome::Next, |rule| self.0.admit_dry(exchange, rule))
    }
}

impl Guard {
    /// Adds the hooks.
    pub(super) fn add_to(self, configure: &mut Configure<'_>) {
        let guard = Rc::new(self);
        configure.add(Phase::Authorize, UrlGuard(Rc::clone(&guard)));
        configure.add_last(Phase::Resolved, UrlGuard(Rc::clone(&guard)));
        configure.add_last(Phase::Resolved, FileGuard(guard));
    }

    /// The first rule whose prefix fits `path`, as in lighttpd.
    fn rule_for(&self, path: &[u8]) -> Option<&Rc<Rule>> {
        self.rules
            .iter()
            .find(|rule| rule.covers(path, self.ignores_case))
    }

    /// The rule for the path that is opened, if that is not the path of the URL.
    fn rule_for_file(&self, exchange: &Exchange) -> Option<&Rc<Rule>> {
        if self.opens_path_of_url(exchange) {
            return None;
        }
        let physical = &exchange.physical;
        self.rule_for(&[&*physical.relative, &*physical.path_info].concat())
    }

    /// In a dry run the password is taken to be right: it is not looked up, and nothing is hashed.
    fn admit_dry(self: &Rc<Guard>, exchange: &mut Exchange, rule: &Rc<Rule>) -> Outcome {
        exchange.note(|| Note::Rule(rule.span));
        let field = exchange.request.head.field(KnownField::Authorization);
        let has_password = match rule.method {
            Method::Basic => matches!(basic::read(field), BasicField::Credentials(_)),
            Method::Digest(_) => matches!(digest::read(field), DigestField::Response(_)),
            Method::Extern => false,
        };
        if has_password && !matches!(self.users, Users::Nowhere(_)) {
            let sentence = "does not check the password here, and takes it to be right";
            exchange.note(|| Note::Text(sentence.to_owned()));
            return Outcome::Next;
        }
        self.admit(exchange, rule)
    }

    /// Whether the path that is opened is that of the URL, apart from path-info.
    fn opens_path_of_url(&self, exchange: &Exchange) -> bool {
        let (physical, url_path) = (&exchange.physical, exchange.request.url.path());
        let parts = url_path.split_at_checked(physical.relative.len());
        parts.is_some_and(|(path, info)| match self.ignores_case {
            true => {
                path.eq_ignore_ascii_case(&physical.relative)
                    && info.eq_ignore_ascii_case(&physical.path_info)
            }
            false => path == physical.relative && info == physical.path_info,
        })
    }

    fn admit(self: &Rc<Guard>, exchange: &mut Exchange, rule: &Rc<Rule>) -> Outcome {
        let proved = exchange.kept::<ProvedUser>(NAME);
        let mut all = iter::successors(proved.as_deref(), |proved| proved.before.as_deref());
        if all.any(|proved| Rc::ptr_eq(&proved.rule, rule)) {
            return Outcome::Next;
        }
        if rule.who.needs_no_password(exchange.connection.peer.ip()) {
            return Outcome::Next;
        }
        if rule.who.is_of_addresses_alone() {
            return exchange.fail(CauseCode::AuthAddress);
        }
        if (self.accepts_extern || rule.method == Method::Extern)
            && let Some(user) = user_from_outside(exchange)
            && rule.who.includes(&user, |_| false)
        {
            return Outcome::Next;
        }
        match (&rule.method, &self.users) {
            (Method::Extern, _) => exchange.fail(CauseCode::AuthRequired),
            (_, Users::Nowhere(why)) => {
                let outcome = exchange.fail(CauseCode::AuthUnusable);
                exchange.log_common_error(
                    "authorize",
                    format_args!("{why}, so what auth.require guards is answered 503"),
                );
                outcome
            }
            (Method::Basic, Users::Files(files)) => self.basic(exchange, rule, files),
            (Method::Basic, Users::Ldap(users)) => self.ldap(exchange, rule, users),
            (Method::Basic, Users::Pam(users)) => self.pam(exchange, rule, users),
            (Method::Digest(options), Users::Files(files)) if files.form != FileForm::Htpasswd => {
                self.digest(exchange, rule, options, files)
            }
            (Method::Digest(_), Users::Files(_) | Users::Ldap(_) | Users::Pam(_)) => {
                let cause = "digest needs passwords that can be read, which auth.backend does not have: what it guards is answered 503";
                let outcome = exchange.fail(CauseCode::AuthUnusable);
                exchange.log_common_error("authorize", format_args!("{cause}"));
                outcome
            }
        }
    }

    /// Checks a Basic log-in against a file.
    fn basic(
        self: &Rc<Guard>,
        exchange: &mut Exchange,
        rule: &Rc<Rule>,
        files: &UserFiles,
    ) -> Outcome {
        let field = exchange.request.head.field(KnownField::Authorization);
        let recalled = match (files.form, basic::encoded(field)) {
            (FileForm::Htpasswd, Some(encoded)) => self.recall(exchange, encoded, &files.kind),
            _ => Recalled::default(),
        };
        if let Some(known) = recalled.known {
            let (accounts, groups) = match self.files(exchange, rule, files) {
                Ok(found) => found,
                Err(outcome) => return outcome,
            };
            // Otherwise the user's line has changed, and the password is compared again.
            if accounts.find(&known.user).next() == Some(&known.stored) {
                let is_member = |group: &[u8]| groups.has(group, &known.user);
                if rule.who.includes(&known.user, is_member) {
                    return self.let_in(exchange, rule, known.user);
                }
                let login = LoginAttempt::new(exchange, rule, groups, known.user.to_vec());
                return refuse(exchange, &login);
            }
        }
        let sent = match basic::read(exchange.request.head.field(KnownField::Authorization)) {
            BasicField::Credentials(sent) => sent,
            BasicField::Absent => return challenge(exchange, rule, CauseCode::AuthRequired),
            BasicField::Malformed => return exchange.fail(CauseCode::AuthMalformed),
        };
        let (accounts, groups) = match self.files(exchange, rule, files) {
            Ok(found) => found,
            Err(outcome) => return outcome,
        };
        let (user, password) = (sent.user(), sent.password());
        let is_right = match files.form {
            FileForm::Plain => {
                let stored = accounts.find(user).next();
                // An unknown user takes the time of one that is known.
                let is_same = password::is_same(stored.unwrap_or_default(), password);
                stored.is_some() && is_same
            }
            FileForm::Htdigest => htdigest::is_right(&accounts, user, &rule.realm, password),
            FileForm::Htpasswd => {
                let login = LoginAttempt {
                    hash: recalled.hash,
                    password: self.number_of(exchange, user, password),
                    ..LoginAttempt::new(exchange, rule, groups, user.to_vec())
                };
                return self.hashed(exchange, login, &accounts, password);
            }
        };
        let (mut hash, mut is_remembered) = (None, false);
        if is_right && self.lockout.is_some() {
            // The password is compared each time. The log-in is remembered only so that it passes a lock-out.
            let recalled = self.recall(exchange, sent.pair(), &files.kind);
            (hash, is_remembered) = recalled.for_attempt();
        }
        let login = LoginAttempt {
            hash,
            is_remembered,
            password: self.number_of(exchange, user, password),
            ..LoginAttempt::new(exchange, rule, groups, user.to_vec())
        };
        self.conclude(exchange, &login, is_right)
    }

    /// Checks a Digest log-in against a file: whether the client has hashed the user's password.
    fn digest(
        self: &Rc<Guard>,
        exchange: &mut Exchange,
        rule: &Rc<Rule>,
        options: &DigestOptions,
        files: &UserFiles,
    ) -> Outcome {
        let field = exchange.request.head.field(KnownField::Authorization);
        let field = field.map(<[u8]>::to_vec);
        let sent = match digest::read(field.as_deref()) {
            DigestField::Response(sent) => sent,
            DigestField::Absent => return challenge(exchange, rule, CauseCode::AuthRequired),
            DigestField::Malformed => return exchange.fail(CauseCode::AuthMalformed),
        };
        // A subrequest has the Authorization field of its client's request, whose target is another one.
        if !exchange.is_subrequest() && !is_target(&sent.uri, exchange.request.original_target()) {
            // The filter of fail2ban ends the URI at the first parenthesis.
            let uri = shown(&sent.uri).replace(')', "%29");
            exchange.log_login_failure(
                CauseCode::AuthMalformed.into(),
                format_args!("digest: auth failed for {}", shown(&sent.user)),
                format_args!(": uri mismatch ({uri})"),
            );
            return exchange.fail(CauseCode::AuthMalformed);
        }
        let algorithm = sent
            .algorithm
            .filter(|wanted| options.algorithms.contains(wanted));
        let Some(algorithm) = algorithm.filter(|_| *sent.realm == *rule.realm.as_bytes()) else {
            return challenge(exchange, rule, CauseCode::AuthFailed);
        };
        let now_s = exchange.worker.clock().wall_seconds();
        let nonces = Nonces::new(options.secret.as_deref(), &rule.realm);
        let age = nonces
            .as_ref()
            .map_or(NonceAge::Stale, |nonces| nonces.age(&sent.nonce, now_s));
        if age == NonceAge::Stale {
            // The client may have made the nonce up, so the server does not spend a hash on it.
            return challenge(exchange, rule, CauseCode::AuthStale);
        }
        let (accounts, groups) = match self.files(exchange, rule, files) {
            Ok(found) => found,
            Err(outcome) => return outcome,
        };
        let user = match sent.is_userhash && options.has_userhash {
            true => by_userhash(&accounts, files.form, algorithm, &sent.user, &rule.realm),
            false => Some(sent.user.to_vec()),
        };
        let hash = algorithm.hash;
        let is_user = user.is_some();
        let user = user.unwrap_or_else(|| sent.user.to_vec());
        // For an unknown user as much is hashed, so that the time does not tell which users there are.
        let (is_known, secret) = match files.form {
            FileForm::Htdigest => {
                let secret = htdigest::secret(&accounts, hash, &user, &rule.realm);
                let is_known = secret.is_some();
                (
                    is_known,
                    secret.unwrap_or_else(|| vec![b'0'; hash.digits()]),
                )
            }
            FileForm::Plain | FileForm::Htpasswd => {
                let password = accounts.find(&user).next();
                let parts = [&user, rule.realm.as_bytes(), password.unwrap_or_default()];
                (password.is_some(), hash.of(&parts))
            }
        };
        let proves_for = |method: &str| sent.proves(algorithm, &secret, method);
        // The proof in a subrequest was made for the method of its client's request.
        let client_method = exchange.client_method();
        let proves = proves_for(exchange.request.head.method().as_str())
            || client_method.is_some_and(|method| proves_for(method.as_str()));
        let mut login = LoginAttempt::new(exchange, rule, groups, user);
        let is_right = is_user && is_known && proves;
        if is_right && self.lockout.is_some() {
            // The server gave this nonce to this client alone.
            self.recall_digest(exchange, &mut login, &sent.nonce);
        }
        if is_right && let Some(outcome) = self.refuse_replay(exchange, &login, &sent) {
            return outcome;
        }
        let outcome = self.conclude(exchange, &login, is_right);
        if is_right
            && age == NonceAge::Ending
            && matches!(outcome, Outcome::Next)
            && let Some(nonce) = nonces.and_then(|nonces| nonces.make(now_s))
        {
            if self.lockout.is_some() {
                self.recall_digest(exchange, &mut login, nonce.as_bytes());
                self.remember(exchange, &login);
            }
            let next = format!("nextnonce=\"{nonce}\"");
            exchange
                .response
                .carry("Authentication-Info", next.as_bytes());
        }
        outcome
    }

    /// Answers 401 if an earlier request has used the count of the nonce: it may be that request again. An honest
    /// client repeats its own with a new nonce.
    fn refuse_replay(
        &self,
        exchange: &mut Exchange,
        login: &LoginAttempt,
        sent: &DigestResponse<'_>,
    ) -> Option<Outcome> {
        // Rules apply several times to a request, and a subrequest has the field of its client's request.
        if exchange.is_subrequest() || exchange.kept::<CountedLogin>(COUNTED).is_some() {
            return None;
        }
        // During a lock-out no answer tells that a proof is right.
        if let Some(outcome) = self.locked_out(exchange, login) {
            return Some(outcome);
        }
        let counts = UsedCounts::of(exchange.worker.shared());
        let now_s = exchange.worker.clock().seconds();
        if !counts.take(&sent.nonce, sent.count(), now_s) {
            return Some(challenge(exchange, &login.rule, CauseCode::AuthStale));
        }
        exchange.keep(COUNTED, Rc::new(CountedLogin));
        None
    }

    /// Looks whether a log-in by `nonce` is remembered.
    fn recall_digest(&self, exchange: &Exchange, login: &mut LoginAttempt, nonce: &[u8]) {
        let sent = [nonce, b":", &login.user].concat();
        let recalled = self.recall(exchange, &sent, b"digest");
        (login.hash, login.is_remembered) = recalled.for_attempt();
    }

    /// The users, and the groups if the rule names some.
    ///
    /// # Errors
    /// The outcome of the hook while a file cannot be used.
    fn files(
        &self,
        exchange: &mut Exchange,
        rule: &Rule,
        files: &UserFiles,
    ) -> Result<(Arc<Accounts>, Arc<Groups>), Outcome> {
        let found = files.accounts(exchange).and_then(|accounts| {
            let groups = match rule.who.groups.is_empty() {
                true => Arc::clone(&files.no_groups),
                false => files.groups(exchange)?,
            };
            Ok((accounts, groups))
        });
        found.map_err(|missing| no_file(exchange, missing))
    }

    /// The remembered log-ins.
    pub(super) fn logins(&self, exchange: &Exchange) -> &Logins {
        self.logins.get_or_init(|| Logins::of(exchange))
    }

    /// Checks a password against a hash of htpasswd, on a thread if that takes long.
    fn hashed(
        self: &Rc<Guard>,
        exchange: &mut Exchange,
        mut login: LoginAttempt,
        accounts: &Accounts,
        password: &[u8],
    ) -> Outcome {
        let known = accounts.find(&login.user).next();
        let logins = self.logins(exchange);
        // An unknown user takes the time of one that is known.
        let other = || accounts.any(logins.number_of(&login.user));
        let Some(stored) = known.or_else(other) else {
            return self.conclude(exchange, &login, false);
        };
        let is_known = known.is_some();
        login.stored = stored.to_vec();
        if let Some(outcome) = self.locked_out(exchange, &login) {
            return outcome;
        }
        if HashForm::of(stored).is_none_or(|form| !form.takes_long()) {
            let verified = password::verify(stored, password);
            return self.verified(exchange, &login, is_known, verified);
        }
        let hash = logins.hash(&[&login.user, password, stored]);
        let (stored, password) = (stored.to_vec(), password.to_vec());
        let origin = Origin::PROCESSOR
            .for_client(exchange.connection.client_key())
            .with_bytes(password::memory_bytes(&stored));
        let begin = || {
            blocking::run_for(Class::Compute, origin, move || {
                password::verify(&stored, &password)
            })
        };
        let job = exchange
            .worker
            .belonging(SharedJobs::<Hashed>::default)
            .join(hash, begin);
        Outcome::Later(Box::new(Hashing {
            guard: Rc::clone(self),
            login,
            is_known,
            job,
            due_s: exchange.worker.clock().after(HASH_WAIT_S),
        }))
    }

    fn verified(
        &self,
        exchange: &mut Exchange,
        login: &LoginAttempt,
        is_known: bool,
        verified: Result<bool, UnusableHash>,
    ) -> Outcome {
        if let (true, Err(unusable)) = (is_known, verified) {
            let user = shown(&login.user);
            exchange.log_error("authorize", format_args!("{unusable}: username: {user}"));
        }
        self.conclude(exchange, login, is_known && verified == Ok(true))
    }

    /// Lets the user in, or answers 401, or 429 if the user or the address is locked out.
    pub(super) fn conclude(
        &self,
        exchange: &mut Exchange,
        login: &LoginAttempt,
        is_right: bool,
    ) -> Outcome {
        // A lock-out may have begun while a thread hashed the password.
        if let Some(outcome) = self.locked_out(exchange, login) {
            return outcome;
        }
        self.count(exchange, login, is_right);
        let (user, groups) = (&login.user, &login.groups);
        let is_member = |group: &[u8]| groups.has(group, user);
        if !is_right || !login.rule.who.includes(user, is_member) {
            return refuse(exchange, login);
        }
        self.remember(exchange, login);
        self.let_in(exchange, &login.rule, user.as_slice().into())
    }

    /// Lets in a user that `rule` names.
    fn let_in(&self, exchange: &mut Exchange, rule: &Rc<Rule>, user: Arc<[u8]>) -> Outcome {
        if self.logs_all {
            let (user, path) = (shown(&user), shown(exchange.request.url.path()));
            exchange.log_error("authorize", format_args!("{user} may have {path}"));
        }
        note(exchange, rule, user);
        Outcome::Next
    }
}

/// Notes for the rest of the request that `rule` has let `user` in.
fn note(exchange: &mut Exchange, rule: &Rc<Rule>, user: Arc<[u8]>) {
    let user_from_outside = user_from_outside(exchange);
    let environment = &mut exchange.environment;
    environment.set("REMOTE_USER", &user);
    environment.set("AUTH_TYPE", rule.method.name().as_bytes());
    let proved = ProvedUser {
        rule: Rc::clone(rule),
        before: exchange.kept(NAME),
        user,
        user_from_outside,
    };
    exchange.keep(NAME, Rc::new(proved));
}

/// REMOTE_USER as another module has set it. A user whom a rule has let in by a password does not count: a
/// password for one rule opens no other.
fn user_from_outside(exchange: &Exchange) -> Option<Vec<u8>> {
    let user = exchange.environment.get("REMOTE_USER");
    match exchange.kept::<ProvedUser>(NAME) {
        Some(admission) if user == Some(&*admission.user) => admission.user_from_outside.clone(),
        _ => user.map(<[u8]>::to_vec),
    }
}

/// The outcome of a hook while a file cannot be used.
pub(super) fn no_file(exchange: &mut Exchange, missing: NoFile) -> Outcome {
    match missing {
        NoFile::Cold => Outcome::Cold,
        NoFile::Parsing(pending) => Outcome::Later(pending),
        NoFile::Failed(cause) => exchange.fail(cause),
    }
}

/// The result of a thread that hashes a password.
type Hashed = Result<Result<bool, UnusableHash>, NotDone>;

/// A password that a thread hashes.
struct Hashing {
    guard: Rc<Guard>,
    login: LoginAttempt,
    /// There is such a user. If not, the password is hashed all the same, to take as long.
    is_known: bool,
    job: SharedWaiter<Hashed>,
    /// The second in which the request gives up.
    due_s: u32,
}

impl Pending for Hashing {
    fn waits_in(&self) -> Option<Stage> {
        Some(Stage::Authorize)
    }

    fn holder(&self, _: &Exchange, _: Nanos, text: &mut HolderText<'_>) {
        text.write_str("a thread hashed the password");
    }

    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let (guard, is_known) = (&self.guard, self.is_known);
        Poll::Ready(match self.job.poll_unpin(context) {
            Poll::Ready(Ok(verified)) => guard.verified(exchange, &self.login, is_known, verified),
            Poll::Ready(Err(_)) => busy(
                exchange,
                format_args!("too many passwords wait to be hashed"),
            ),
            Poll::Pending if exchange.worker.clock().seconds() >= self.due_s => busy(
                exchange,
                format_args!("the password has waited for {HASH_WAIT_S} s to be hashed"),
            ),
            Poll::Pending => {
                exchange.wake_at(self.due_s);
                return Poll::Pending;
            }
        })
    }
}

/// Answers 503: there are more passwords than the processors have time for.
fn busy(exchange: &mut Exchange, cause: Arguments<'_>) -> Outcome {
    let outcome = exchange.fail(CauseCode::AuthBusy);
    exchange.log_common_error("authorize", cause);
    exchange.response.set("Retry-After", RETRY_AFTER_S);
    outcome
}

/// A wrong password that is already in the log; the client gets its answer later.
struct Refusal {
    rule: Rc<Rule>,
    at_s: u32,
}

impl Pending for Refusal {
    fn waits_in(&self) -> Option<Stage> {
        Some(Stage::Authorize)
    }

    fn holder(&self, _: &Exchange, _: Nanos, text: &mut HolderText<'_>) {
        text.write_str("the answer to a wrong password is delayed");
    }

    fn poll(&mut self, exchange: &mut Exchange, _: &mut Context<'_>) -> Poll<Outcome> {
        if exchange.worker.clock().seconds() < self.at_s {
            exchange.wake_at(self.at_s);
            return Poll::Pending;
        }
        Poll::Ready(challenge(exchange, &self.rule, CauseCode::AuthFailed))
    }
}

/// Refuses a log-in. The log line is lighttpd's, for programs such as fail2ban.
fn refuse(exchange: &mut Exchange, login: &LoginAttempt) -> Outcome {
    let (path, user) = (shown(exchange.request.url.path()), shown(&login.user));
    exchange.log_login_failure(
        CauseCode::AuthFailed.into(),
        format_args!("password doesn't match for {path}"),
        format_args!(" username: {user}"),
    );
    if !exchange.worker.process().features.delay_invalid_creds {
        return challenge(exchange, &login.rule, CauseCode::AuthFailed);
    }
    Outcome::Later(Box::new(Refusal {
        rule: Rc::clone(&login.rule),
        at_s: login.refused_at_s,
    }))
}

/// Answers 401 and asks the client to log in. [`CauseCode::AuthStale`]: its nonce is too old, so it tries
/// again without asking its user.
pub(super) fn challenge(exchange: &mut Exchange, rule: &Rule, why: CauseCode) -> Outcome {
    let outcome = exchange.fail(why);
    let mut realm = b" realm=".to_vec();
    write_quoted(rule.realm.as_bytes(), &mut realm);
    realm.extend_from_slice(b", charset=\"UTF-8\"");
    let mut add = |challenge: &[u8]| exchange.response.append("WWW-Authenticate", challenge);
    match &rule.method {
        Method::Extern => {}
        Method::Basic => add(&[b"Basic", &*realm].concat()),
        Method::Digest(options) => {
            let now_s = exchange.worker.clock().wall_seconds();
            let nonces = Nonces::new(options.secret.as_deref(), &rule.realm);
            let Some(nonce) = nonces.and_then(|nonces| nonces.make(now_s)) else {
                return exchange.fail(CauseCode::AuthNoRandom);
            };
            for algorithm in &options.algorithms {
                let name = algorithm.name();
                let mut rest = format!(", algorithm={name}, nonce=\"{nonce}\", qop=\"auth\"");
                if options.has_userhash {
                    rest.push_str(", userhash=true");
                }
                if why == CauseCode::AuthStale {
                    rest.push_str(", stale=true");
                }
                add(&[b"Digest", &*realm, rest.as_bytes()].concat());
            }
        }
    }
    outcome
}

/// Whether `uri` is the target of the request. A client of a proxy sends a whole URL as target and may sign
/// its path.
fn is_target(uri: &[u8], target: &[u8]) -> bool {
    let path_of = |target: &[u8]| {
        let authority = memchr::memmem::find(target, b"://")? + 3;
        let slash = memchr::memchr(b'/', target.get(authority..)?)?;
        Some(target.get(authority + slash..)?.to_vec())
    };
    let is_absolute = !target.starts_with(b"/");
    uri == target || is_absolute && path_of(target).is_some_and(|path| path == uri)
}

/// Finds the user whose name and `realm` have this hash.
fn by_userhash(
    accounts: &Accounts,
    form: FileForm,
    algorithm: Algorithm,
    userhash: &[u8],
    realm: &str,
) -> Option<Vec<u8>> {
    let realm_part = [b":", realm.as_bytes()].concat();
    accounts.by_userhash(
        algorithm.hash,
        realm.as_bytes(),
        userhash,
        |name| match form {
            FileForm::Htdigest => name.strip_suffix(&*realm_part),
            FileForm::Plain | FileForm::Htpasswd => Some(name),
        },
    )
}

/// Appends `text` as a quoted-string (RFC 9110 section 5.6.4).
fn write_quoted(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

/// Makes bytes of a client fit for a log line.
pub(super) fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text).escape_debug().to_string()
}

const NAME: &str = "mod_auth";
const COUNTED: &str = "mod_auth nc";

pub(super) const RETRY_AFTER_S: &[u8] = b"2";

/// Seconds that a request waits for its password to be hashed. After that its client has most likely gone.
const HASH_WAIT_S: u32 = 30;
