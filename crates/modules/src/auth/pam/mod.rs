//! `auth.backend = "pam"`: the system's PAM modules say whose password is right (mod_authn_pam).
//!
//! No worker calls libpam: its modules block, many are not made for threads, and the server process may not
//! read /etc/shadow. A worker sends the question to a helper process ([`door`], [`message`]) that the keeper
//! runs; this file asks and waits. A module that fails or hangs is 503 and a line in the log, and never lets
//! in.

mod door;
mod message;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt as _;
use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::config::{Config, Diagnostic, Entry};
use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::module::{Configure, ModuleSpec, Outcome, Pending};
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::settings::Values;
use petrel_engine::waits::HolderText;
use petrel_sys::pam::Pam;

use super::accounts::Groups;
use super::attempt::{LoginAttempt, one_spelling};
use super::basic::{self, BasicField};
use super::guard::{Guard, RETRY_AFTER_S, challenge, no_file};
use super::parsed_files::AccountFile;
use super::rules::Rule;
use super::shared_hashing::{SharedJobs, SharedWaiter};
use super::users::{BACKEND, group_file};

pub use door::{PamAsker, PamDoor, PamInbox, pam_pair};
pub use message::{PamQuestion, PamReply};

/// What one set of settings says.
pub(super) struct PamUsers {
    service: String,
    groups: Option<AccountFile<Groups>>,
    /// The way to the helper; `None` where a configuration is only checked.
    door: Option<Arc<PamDoor>>,
}

impl PamUsers {
    /// What `values` say.
    ///
    /// # Errors
    /// `auth.backend.pam.opts` is not understood.
    pub(super) fn read(configure: &Configure<'_>) -> Result<PamUsers, Diagnostic> {
        let values = configure.values;
        Ok(PamUsers {
            service: service(values)?,
            groups: group_file(values),
            door: configure.handed::<PamDoor>(),
        })
    }
}

fn service(values: &Values<'_>) -> Result<String, Diagnostic> {
    let mut service = SERVICE;
    for option in values.array(OPTS).into_iter().flatten() {
        let error = |message: String| Diagnostic::error(message, option.span);
        let key = option.key().unwrap_or_default();
        if key != "service" {
            return Err(error(format!("{OPTS} knows service alone, not {key:?}")));
        }
        let name = option.value.as_str().unwrap_or_default();
        let is_name = !name.is_empty() && name.len() <= message::SERVICE_BYTES_MAX;
        if !is_name || name.contains(['/', '\0']) {
            let message = "service is the name of a file in /etc/pam.d";
            return Err(error(message.to_owned()));
        }
        service = name;
    }
    Ok(service.to_owned())
}

/// The services that `config` has PAM asked for, if mod_auth is one of the `modules`. No other name of
/// /etc/pam.d is asked for, whatever a server process sends to the helper.
pub fn pam_services(config: &Config, modules: &[&'static ModuleSpec]) -> BTreeSet<Vec<u8>> {
    if backend(config, modules).is_none() {
        return BTreeSet::new();
    }
    let entries = config.blocks.iter().flat_map(|block| &block.entries);
    let options = entries.filter(|entry| entry.name == OPTS);
    let options = options.filter_map(|entry| entry.value.as_array());
    let named = options.flat_map(|options| options.iter().filter_map(|one| one.value.as_str()));
    let named = named.chain([SERVICE]);
    named.map(|name| name.as_bytes().to_vec()).collect()
}

/// Makes sure that libpam can be opened if `config` has PAM asked.
///
/// # Errors
/// It cannot; the place that asks for it.
pub fn check_pam(config: &Config, modules: &[&'static ModuleSpec]) -> Result<(), Diagnostic> {
    let Some(entry) = backend(config, modules) else {
        return Ok(());
    };
    let opened = Pam::open().map(drop);
    opened.map_err(|why| {
        let message = format!("{BACKEND} = \"pam\" needs libpam: {why}");
        let hint = "install the package libpam0g (Debian and Ubuntu) or pam (others)";
        Diagnostic::error(message, entry.value_span).with_hint(hint)
    })
}

fn backend<'c>(config: &'c Config, modules: &[&'static ModuleSpec]) -> Option<&'c Entry> {
    let is_loaded = modules.iter().any(|module| module.name == "mod_auth");
    let mut entries = config.blocks.iter().flat_map(|block| &block.entries);
    entries.find(|entry| is_loaded && entry.name == BACKEND && entry.value.as_str() == Some("pam"))
}

impl Guard {
    /// Asks the helper whether the password is the user's.
    pub(super) fn pam(
        self: &Rc<Guard>,
        exchange: &mut Exchange,
        rule: &Rc<Rule>,
        users: &PamUsers,
    ) -> Outcome {
        let sent = match basic::read(exchange.request.head.field(KnownField::Authorization)) {
            BasicField::Credentials(sent) => sent,
            BasicField::Absent => return challenge(exchange, rule, CauseCode::AuthRequired),
            BasicField::Malformed => return exchange.fail(CauseCode::AuthMalformed),
        };
        let groups = match (&users.groups, rule.who.groups.is_empty()) {
            (Some(file), false) => match file.read(exchange, Groups::parse) {
                Ok(groups) => groups,
                Err(missing) => return no_file(exchange, missing),
            },
            _ => Arc::default(),
        };
        let service = users.service.as_bytes();
        let recalled = self.recall(exchange, sent.pair(), &[b"pam:", service].concat());
        let (hash, is_remembered) = recalled.for_attempt();
        let password = sent.password().to_vec();
        let user = sent.into_user();
        let spelling = one_spelling(&user);
        let login = LoginAttempt {
            hash,
            is_remembered,
            password: self.number_of(exchange, &spelling, &password),
            counted_as: Some(spelling),
            ..LoginAttempt::new(exchange, rule, groups, user)
        };
        if login.is_remembered {
            return self.conclude(exchange, &login, true);
        }
        if let Some(outcome) = self.locked_out(exchange, &login) {
            return outcome;
        }
        let host = exchange.connection.peer.ip();
        let question = PamQuestion {
            service: service.to_vec(),
            user: login.user.clone(),
            password,
            host: host.map_or_else(Vec::new, |host| host.to_string().into_bytes()),
        };
        let bytes = question.to_bytes().filter(|_| !login.user.is_empty());
        let Some(bytes) = bytes else {
            return self.conclude(exchange, &login, false);
        };
        let Some(door) = users.door.clone() else {
            return unavailable(exchange, "no process asks PAM");
        };
        let logins = self.logins(exchange);
        let hash = logins.hash(&[&bytes, b"pam"]);
        let verdict = exchange
            .worker
            .belonging(SharedJobs::default)
            .join(hash, || verdict(door, bytes));
        Outcome::Later(Box::new(PamLogin {
            guard: Rc::clone(self),
            login,
            verdict,
        }))
    }
}

/// What the helper answers, or why it does not.
async fn verdict(door: Arc<PamDoor>, question: Vec<u8>) -> Result<PamReply, String> {
    let socket = door.ask(&question).map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => "too many passwords wait to be checked".to_owned(),
        _ => format!("the question cannot be sent: {error}"),
    })?;
    match tokio::time::timeout(ANSWER_TIME, door::answer(socket)).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(_)) => Err("the process that asks PAM has ended".to_owned()),
        Err(_) => Err(format!("no answer in {} s", ANSWER_TIME.as_secs())),
    }
}

/// A request that waits for the helper.
struct PamLogin {
    guard: Rc<Guard>,
    login: LoginAttempt,
    verdict: SharedWaiter<Result<PamReply, String>>,
}

impl Pending for PamLogin {
    fn waits_in(&self) -> Option<Stage> {
        Some(Stage::Authorize)
    }

    fn holder(&self, _: &Exchange, _: Nanos, text: &mut HolderText<'_>) {
        text.write_str("the PAM helper checked the password");
    }

    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let verdict = ready!(self.verdict.poll_unpin(context));
        let is_right = match verdict {
            Ok(PamReply::Right) => true,
            Ok(PamReply::Refused(why)) => {
                // An account that has expired looks like a wrong password to the client. The log tells them
                // apart.
                exchange.log_common_error("authorize", format_args!("pam: {why}"));
                false
            }
            Ok(PamReply::Unavailable(why)) | Err(why) => {
                return Poll::Ready(unavailable(exchange, &why));
            }
        };
        Poll::Ready(self.guard.conclude(exchange, &self.login, is_right))
    }
}

fn unavailable(exchange: &mut Exchange, why: &str) -> Outcome {
    let cause = format_args!("pam: passwords cannot be checked: {why}");
    let outcome = exchange.fail(CauseCode::AuthPamAway);
    exchange.log_common_error("authorize", cause);
    exchange.response.set("Retry-After", RETRY_AFTER_S);
    outcome
}

const OPTS: &str = "auth.backend.pam.opts";

/// As in lighttpd.
const SERVICE: &str = "http";

/// How long PAM modules may take for one password.
pub const CHECK_TIME: Duration = Duration::from_secs(15);

/// How long a request waits for the answer, the wait for its turn included. Its client is hardly there any
/// longer.
const ANSWER_TIME: Duration = Duration::from_secs(30);
