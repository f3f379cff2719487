//! Asks for every request whether its URL is guarded, and lets in who may have it.
//!
//! Rules are asked twice: for the URL path before anything is looked up, and for what is about to be opened, when an
//! index file is chosen. The second time comes behind all other modules, so that nothing leads around a rule. A client
//! that has proved who it is under a rule is not asked again.

use std::cell::OnceCell;
use std::rc::Rc;
use std::fmt::Arguments;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use petrel_engine::Exchange;
use petrel_engine::blocking::{self, Class, Origin};
use petrel_engine::module::{Configure, Hook, Outcome, Pending, Phase};
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::proto::status::Status;

use super::accounts::{Accounts, Groups};
use super::basic::{self, BasicField, Credentials};
use super::digest::{self, Algorithm, DigestField, DigestOptions};
use super::htdigest;
use super::logins::{LoginHash, Logins};
use super::nonce::{NonceAge, Nonces};
use super::password::{self, HashForm, UnusableHash};
use super::rules::{Method, Rule};
use super::shared_hashing::{HashWaiter, SharedHashing};
use super::users::{FileForm, NoFile, UserFiles, Users};

/// The rules of one set of settings.
pub(super) struct Guard {
    pub(super) rules: Vec<Rc<Rule>>,
    pub(super) users: Users,
    /// How long good log-ins are remembered.
    pub(super) max_age_s: Option<u32>,
    /// `auth.extern-authn`.
    pub(super) accepts_extern: bool,
    /// Files are opened whatever the letter case of their URL.
    pub(super) ignores_case: bool,
    /// Also who was let in.
    pub(super) logs_all: bool,
    pub(super) logins: OnceCell<Arc<Logins>>,
}

struct UrlGuard(Rc<Guard>);
struct FileGuard(Rc<Guard>);

/// A client was let in under this rule.
struct AdmittedUnder(Rc<Rule>);

/// A client asks to be let in under a rule.
struct LoginAttempt {
    rule: Rc<Rule>,
    user: Vec<u8>,
    groups: Arc<Groups>,
    /// What the log-in is remembered by.
    hash: Option<LoginHash>,
}

impl Hook for UrlGuard {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let rule = self.0.rule_for(exchange.request.url.path());
        rule.map_or(Outcome::Next, |rule| self.0.admit(exchange, rule))
    }
}

impl Hook for FileGuard {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let by_url = self.0.rule_for(exchange.request.url.path());
        let by_path = self.0.rule_for(&exchange.physical.relative);
        for rule in [by_url, by_path].into_iter().flatten() {
            match self.0.admit(exchange, rule) {
                Outcome::Next => {}
                outcome => return outcome,
            }
        }
        Outcome::Next
    }
}

impl Guard {
    /// Has every request asked.
    pub(super) fn add_to(self, configure: &mut Configure<'_>) {
        let guard = Rc::new(self);
        configure.add(Phase::Authorize, UrlGuard(Rc::clone(&guard)));
        configure.add_last(Phase::Resolved, FileGuard(guard));
    }

    /// The first rule that `path` is guarded by, as in lighttpd.
    fn rule_for(&self, path: &[u8]) -> Option<&Rc<Rule>> {
        self.rules
            .iter()
            .find(|rule| rule.covers(path, self.ignores_case))
    }

    fn admit(self: &Rc<Guard>, exchange: &mut Exchange, rule: &Rc<Rule>) -> Outcome {
        let admission = exchange.kept::<AdmittedUnder>(NAME);
        if admission.is_some_and(|admission| Rc::ptr_eq(&admission.0, rule)) {
            return Outcome::Next;
        }
        if (self.accepts_extern || rule.method == Method::Extern)
            && let Some(user) = exchange.environment.get("REMOTE_USER")
            && rule.who.includes(user, |_| false)
        {
            return Outcome::Next;
        }
        match (&rule.method, &self.users) {
            (Method::Extern, _) => exchange.answer(Status::UNAUTHORIZED),
            (_, Users::Nowhere(why)) => {
                exchange.log_common_error(
                    "authorize",
                    format_args!("{why}, so what auth.require guards is answered 503"),
                );
                exchange.answer(Status::SERVICE_UNAVAILABLE)
            }
            (Method::Basic, Users::Files(files)) => self.basic(exchange, rule, files),
            (Method::Digest(options), Users::Files(files)) if files.form != FileForm::Htpasswd => {
                self.digest(exchange, rule, options, files)
            }
            (Method::Digest(_), Users::Files(_)) => {
                exchange.log_common_error(
                    "authorize",
                    format_args!(
                        "digest cannot be had with auth.backend = \"htpasswd\", so what it guards is answered 503"
                    ),
                );
                exchange.answer(Status::SERVICE_UNAVAILABLE)
            }
        }
    }

    /// Asks a file whether the password is the user's.
    fn basic(
        self: &Rc<Guard>,
        exchange: &mut Exchange,
        rule: &Rc<Rule>,
        files: &UserFiles,
    ) -> Outcome {
        let Credentials { user, password } =
            match basic::read(exchange.request.head.field(KnownField::Authorization)) {
                BasicField::Credentials(credentials) => credentials,
                BasicField::Absent => return challenge(exchange, rule, Staleness::New),
                BasicField::Malformed => return exchange.answer(Status::BAD_REQUEST),
            };
        let (accounts, groups) = match self.files(exchange, rule, files) {
            Ok(found) => found,
            Err(outcome) => return outcome,
        };
        let login = LoginAttempt {
            rule: Rc::clone(rule),
            user,
            groups,
            hash: None,
        };
        match files.form {
            FileForm::Plain => {
                let stored = accounts.find(&login.user).next();
                let is_right = stored.is_some_and(|stored| password::is_same(stored, &password));
                self.conclude(exchange, &login, is_right)
            }
            FileForm::Htdigest => {
                let is_right = htdigest::is_right(&accounts, &login.user, &rule.realm, &password);
                self.conclude(exchange, &login, is_right)
            }
            FileForm::Htpasswd => self.hashed(exchange, login, &accounts, password),
        }
    }

    /// Asks a file whether the client has mixed the user's password into its answer.
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
            DigestField::Absent => return challenge(exchange, rule, Staleness::New),
            DigestField::Malformed => return exchange.answer(Status::BAD_REQUEST),
        };
        // A subrequest bears the field of its client's request, whose target is another one.
        if !exchange.is_subrequest() && !is_target(&sent.uri, &exchange.request.original_target) {
            let cause = "digest: auth failed: uri mismatch";
            let (uri, address) = (shown(&sent.uri), exchange.connection.peer.address_text());
            exchange.log_error("authorize", format_args!("{cause} ({uri}) IP: {address}"));
            return exchange.answer(Status::BAD_REQUEST);
        }
        let algorithm = sent
            .algorithm
            .filter(|wanted| options.algorithms.contains(wanted));
        let Some(algorithm) = algorithm.filter(|_| *sent.realm == *rule.realm.as_bytes()) else {
            return challenge(exchange, rule, Staleness::New);
        };
        let now_s = exchange.worker.clock().wall_seconds();
        let nonces = Nonces::new(options.secret.as_deref(), &rule.realm);
        let age = nonces
            .as_ref()
            .map_or(NonceAge::Stale, |nonces| nonces.age(&sent.nonce, now_s));
        if age == NonceAge::Stale {
            // Nothing is hashed for a nonce that the client may have made up.
            return challenge(exchange, rule, Staleness::Stale);
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
        let secret = user.as_ref().and_then(|user| match files.form {
            FileForm::Htdigest => htdigest::secret(&accounts, hash, user, &rule.realm),
            FileForm::Plain | FileForm::Htpasswd => {
                let password = accounts.find(user).next()?;
                Some(hash.of(&[user, rule.realm.as_bytes(), password]))
            }
        });
        // An unknown user takes the time of one that is known.
        let unknown = hash.of(&[b""]);
        let method = exchange.request.head.method().as_str();
        let proves = sent.proves(algorithm, secret.as_ref().unwrap_or(&unknown), method);
        let login = LoginAttempt {
            rule: Rc::clone(rule),
            user: user.unwrap_or_else(|| sent.user.to_vec()),
            groups,
            hash: None,
        };
        let is_right = secret.is_some() && proves;
        let outcome = self.conclude(exchange, &login, is_right);
        if is_right
            && age == NonceAge::Ending
            && matches!(outcome, Outcome::Next)
            && let Some(nonce) = nonces.and_then(|nonces| nonces.make(now_s))
        {
            let next = format!("nextnonce=\"{nonce}\"");
            exchange
                .response
                .carry("Authentication-Info", next.as_bytes());
        }
        outcome
    }

    /// The users and groups there are now.
    ///
    /// # Errors
    /// What the hook says instead.
    fn files(
        &self,
        exchange: &mut Exchange,
        rule: &Rule,
        files: &UserFiles,
    ) -> Result<(Arc<Accounts>, Arc<Groups>), Outcome> {
        let found = files.accounts(exchange).and_then(|accounts| {
            let groups = match rule.who.groups.is_empty() {
                true => Arc::default(),
                false => files.groups(exchange)?,
            };
            Ok((accounts, groups))
        });
        found.map_err(|missing| match missing {
            NoFile::Cold => Outcome::Cold,
            NoFile::Failed(status) => exchange.answer(status),
        })
    }

    /// Has a thread hash the password, unless that was done a short while ago.
    fn hashed(
        self: &Rc<Guard>,
        exchange: &mut Exchange,
        mut login: LoginAttempt,
        accounts: &Accounts,
        password: Vec<u8>,
    ) -> Outcome {
        let logins = self.logins.get_or_init(|| Logins::of(exchange));
        let known = accounts.find(&login.user).next();
        // An unknown user takes the time of one that is known.
        let other = || accounts.any(logins.number_of(&login.user));
        let Some(stored) = known.or_else(other) else {
            return self.conclude(exchange, &login, false);
        };
        let is_known = known.is_some();
        let hash = logins.hash(&login.user, &password, stored);
        if is_known && self.max_age_s.is_some() {
            login.hash = hash;
            let now_s = exchange.worker.clock().seconds();
            if login.hash.is_some_and(|hash| logins.has(&hash, now_s)) {
                login.hash = None;
                return self.conclude(exchange, &login, true);
            }
        }
        if HashForm::of(stored).is_none_or(|form| !form.takes_long()) {
            let verified = password::verify(stored, &password);
            return self.verified(exchange, &login, is_known, verified);
        }
        let stored = stored.to_vec();
        let origin = Origin::PROCESSOR
            .for_client(exchange.connection.client_key())
            NoFile::Parsing(pending) => Outcome::Later(pending),
            .with_bytes(password::memory_bytes(&stored));
        let begin = || {
            blocking::run_for(Class::Compute, origin, move || {
                password::verify(&stored, &password)
            })
        };
        let job = exchange
            .worker
            .belonging(SharedHashing::default)
            .join(hash, begin);
        Outcome::Later(Box::new(Hashing {
            guard: Rc::clone(self),
            login,
            is_known,
            job,
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

    /// Lets the user in, or answers 401.
    fn conclude(&self, exchange: &mut Exchange, login: &LoginAttempt, is_right: bool) -> Outcome {
        let LoginAttempt {
            rule, user, groups, ..
        } = login;
        if !is_right || !rule.who.includes(user, |group| groups.has(group, user)) {
            return refuse(exchange, login);
        }
        if let (Some(hash), Some(max_age_s)) = (login.hash, self.max_age_s) {
            let now_s = exchange.worker.clock().seconds();
            let logins = self.logins.get_or_init(|| Logins::of(exchange));
            logins.add(hash, now_s, now_s.saturating_add(max_age_s));
        }
        if self.logs_all {
            let (user, path) = (shown(user), shown(exchange.request.url.path()));
            exchange.log_error("authorize", format_args!("{user} may have {path}"));
        }
        exchange.environment.set("REMOTE_USER", user);
        exchange
            .environment
            due_s: exchange.worker.clock().after(HASH_WAIT_S),
            .set("AUTH_TYPE", rule.method.name().as_bytes());
        exchange.keep(NAME, Rc::new(AdmittedUnder(Rc::clone(rule))));
        Outcome::Next
    }
}

/// A password that a thread hashes.
struct Hashing {
    guard: Rc<Guard>,
    login: LoginAttempt,
    /// Otherwise it is compared for the sake of the time that takes.
    is_known: bool,
    job: HashWaiter,
}

impl Pending for Hashing {
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
        };
        Poll::Ready(outcome)
    }
}

/// The log has been told; the client is, a second later.
struct Refusal {
    rule: Rc<Rule>,
    at_s: u32,
}

impl Pending for Refusal {
    fn poll(&mut self, exchange: &mut Exchange, _: &mut Context<'_>) -> Poll<Outcome> {
        if exchange.worker.clock().seconds() < self.at_s {
            exchange.wake_at(self.at_s);
            return Poll::Pending;
        }
        Poll::Ready(challenge(exchange, &self.rule, Staleness::New))
    }
}

/// In lighttpd's words, which programs that watch logs know.
fn refuse(exchange: &mut Exchange, login: &LoginAttempt) -> Outcome {
    let (path, user) = (shown(exchange.request.url.path()), shown(&login.user));
    let address = exchange.connection.peer.address_text();
    exchange.log_error(
        "authorize",
        format_args!("password doesn't match for {path} username: {user} IP: {address}"),
    );
    if !exchange.worker.process().features.delay_invalid_creds {
        return challenge(exchange, &login.rule, Staleness::New);
    }
    Outcome::Later(Box::new(Refusal {
        rule: Rc::clone(&login.rule),
        at_s: exchange.worker.clock().after(DELAY_S),
    }))
}

    /// The second in which the request has waited too long.
    due_s: u32,
/// Whether the answer of the client was right.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Staleness {
    /// It was not, or there was none.
    New,
    /// It was, for a nonce that is too old. The client answers again without asking its user.
    Stale,
}

/// Asks the client who it is.
fn challenge(exchange: &mut Exchange, rule: &Rule, staleness: Staleness) -> Outcome {
    let outcome = exchange.answer(Status::UNAUTHORIZED);
    let mut realm = b" realm=".to_vec();
    write_quoted(rule.realm.as_bytes(), &mut realm);
    realm.extend_from_slice(b", charset=\"UTF-8\"");
    let mut add = |challenge: &[u8]| exchange.response.append("WWW-Authenticate", challenge);
    match &rule.method {
        Method::Extern => {}
        Method::Basic => add(&[b"Basic", &*realm].concat()),
        Method::Digest(options) => {
            let now_s = exchange.worker.clock().wall_seconds();
/// There are more passwords than processors have time for.
fn busy(exchange: &mut Exchange, cause: Arguments<'_>) -> Outcome {
    exchange.log_common_error("authorize", cause);
    let outcome = exchange.answer(Status::SERVICE_UNAVAILABLE);
    exchange.response.set("Retry-After", RETRY_AFTER_S);
    outcome
}

            let nonces = Nonces::new(options.secret.as_deref(), &rule.realm);
            let Some(nonce) = nonces.and_then(|nonces| nonces.make(now_s)) else {
                return exchange.answer(Status::SERVICE_UNAVAILABLE);
            };
            for algorithm in &options.algorithms {
                let name = algorithm.name();
                let mut rest = format!(", algorithm={name}, nonce=\"{nonce}\", qop=\"auth\"");
                if options.has_userhash {
                    rest.push_str(", userhash=true");
                }
                if staleness == Staleness::Stale {
                    rest.push_str(", stale=true");
                }
                add(&[b"Digest", &*realm, rest.as_bytes()].concat());
            }
        }
    }
    outcome
}

/// Whether `uri` is the target that was asked for. Clients of proxies ask for whole URLs and may name the path.
fn is_target(uri: &[u8], target: &[u8]) -> bool {
    let path_of = |target: &[u8]| {
        let authority = memchr::memmem::find(target, b"://")? + 3;
        let slash = memchr::memchr(b'/', target.get(authority..)?)?;
        Some(target.get(authority + slash..)?.to_vec())
    };
    let is_absolute = !target.starts_with(b"/");
    uri == target || is_absolute && path_of(target).is_some_and(|path| path == uri)
}

/// The user whose name and `realm` have this hash.
fn by_userhash(
    accounts: &Accounts,
    form: FileForm,
    algorithm: Algorithm,
    userhash: &[u8],
    realm: &str,
) -> Option<Vec<u8>> {
    let realm_part = [b":", realm.as_bytes()].concat();
    let users = accounts.names().filter_map(|name| match form {
        FileForm::Htdigest => name.strip_suffix(&*realm_part),
        FileForm::Plain | FileForm::Htpasswd => Some(name),
    });
    let mut users = users.take(USERHASHES_MAX);
    let userhash = userhash.to_ascii_lowercase();
    let found = users.find(|user| algorithm.hash.of(&[user, realm.as_bytes()]) == userhash)?;
    Some(found.to_vec())
}

/// Names that are hashed for one request; users behind them have to send theirs in the clear.
const USERHASHES_MAX: usize = 1000;

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

/// What a client has sent, for a log line.
fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text).escape_debug().to_string()
}

const NAME: &str = "mod_auth";

/// As lighttpd.
const DELAY_S: u32 = 1;

const RETRY_AFTER_S: &[u8] = b"2";

/// Seconds that a request waits for its password to be hashed. Its client is hardly there any longer.
const HASH_WAIT_S: u32 = 30;
