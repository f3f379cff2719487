//! mod_auth: who may have which URL, and how clients prove who they are.
//!
//! [`rules`] reads `auth.require`, [`guard`] looks for the rule of each request, [`basic`] and [`digest`]
//! read the Authorization field. Users are in files ([`accounts`]), on an LDAP server ([`ldap`]) or known to
//! PAM ([`pam`]). [`password`] compares a password with a hash from a file, on a thread if that takes long.
//! [`logins`] remembers good log-ins, and [`lockout`] counts wrong passwords. Where users cannot be looked
//! up, the answer is 503: what a rule guards is never open.

mod accounts;
mod attempt;
mod basic;
mod digest;
mod failure_table;
mod guard;
mod htdigest;
mod ldap;
mod lockout;
mod logins;
mod md5_crypt;
mod nonce;
mod pam;
mod parsed_files;
mod password;
mod rules;
mod shared_hashing;
mod used_counts;
mod users;
mod warnings;

#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::rc::Rc;

use petrel_engine::config::{Diagnostic, Effect};
use petrel_engine::directives;
use petrel_engine::module::{Configure, Loaded, ModuleSpec};
use petrel_engine::settings::Values;
use petrel_engine::settings::directives::Effect::NotYet;

use guard::Guard;
use lockout::Lockout;
use users::Users;

pub use ldap::load_authorities;
pub(crate) use lockout::read_counters;
pub use nonce::prepare;
pub use pam::{
    CHECK_TIME, PamAsker, PamDoor, PamInbox, PamQuestion, PamReply, check_pam, pam_pair,
    pam_services,
};
pub(crate) use warnings::warnings;

/// mod_auth.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_auth",
    doc: "Asks for a user name and a password.",
    loaded: Loaded::Listed,
    directives: directives! {
        "auth.require", Map, Request, "()", Effect::Works,
            "Who may have the URLs that begin with a key: method (basic, digest or extern), realm, require (valid-user, or user=NAME, group=NAME and address=RANGE joined by |; clients in a RANGE such as 10.0.0.0/8 need no password), and for digest algorithm, nonce-secret and userhash. The first key that fits counts.";
        "auth.backend", String, Request, "unset", Effect::Works,
            "Where users are looked up: plain, htpasswd, htdigest, ldap or pam. With gssapi, sasl, dbi or mysql, which are not built, what auth.require guards is answered 503.";
        "auth.extern-authn", Bool, Request, "disable", Effect::Works,
            "Lets a request without a password pass if its REMOTE_USER fits auth.require, for \
             example the name in a verified client certificate.";
        "auth.cache", Map, Request, "off", Effect::Works,
            "How long a good log-in is remembered: max-age in seconds, 600 if it is left out. Passwords are not kept; a changed entry of the file counts at once.";
        "auth.lockout", Map, Request, "()", Effect::Works,
            "Answers 429 to log-ins after too many wrong passwords: failures (10) of one user from one address, user-failures (0, which is no limit) of one user from all addresses, address-failures (100) of all users from one address, within (600) seconds, lock out for (300) seconds. The numbers in brackets count for keys that are left out; 0 failures is no limit. Log-ins in auth.cache go on from their address. Unset, no client is locked out. Petrel's own.";
        "auth.debug", Short, Request, "0", Effect::Works,
            "Other than 0: also logs successful log-ins.";
        "auth.backend.plain.userfile", String, Request, "unset", Effect::Works,
            "A file with lines user:password.";
        "auth.backend.plain.groupfile", String, Request, "unset", Effect::Works,
            "A file with lines group: user user, for group=NAME with every kind of file.";
        "auth.backend.htpasswd.userfile", String, Request, "unset", Effect::Works,
            "A file as htpasswd writes it: user:hash. bcrypt, yescrypt, argon2, SHA-512, SHA-256, apr1, MD5, {SHA}.";
        "auth.backend.htdigest.userfile", String, Request, "unset", Effect::Works,
            "A file as htdigest writes it: user:realm:hash, by MD5 or SHA-256.";
        "auth.backend.mysql.host", String, Request, "unset", NotYet(NOT_BUILT),
            "The MySQL server (older lighttpd).";
        "auth.backend.mysql.port", Short, Request, "unset", NotYet(NOT_BUILT),
            "Its port (older lighttpd).";
        "auth.backend.mysql.socket", String, Request, "unset", NotYet(NOT_BUILT),
            "Its unix socket (older lighttpd).";
        "auth.backend.mysql.user", String, Request, "unset", NotYet(NOT_BUILT),
            "The user there (older lighttpd).";
        "auth.backend.mysql.pass", String, Request, "unset", NotYet(NOT_BUILT),
            "The password there (older lighttpd).";
        "auth.backend.mysql.db", String, Request, "unset", NotYet(NOT_BUILT),
            "The database (older lighttpd).";
        "auth.backend.mysql.users_table", String, Request, "unset", NotYet(NOT_BUILT),
            "The table of users (older lighttpd).";
        "auth.backend.mysql.col_user", String, Request, "unset", NotYet(NOT_BUILT),
            "Its column of names (older lighttpd).";
        "auth.backend.mysql.col_pass", String, Request, "unset", NotYet(NOT_BUILT),
            "Its column of passwords (older lighttpd).";
        "auth.backend.mysql.col_realm", String, Request, "unset", NotYet(NOT_BUILT),
            "Its column of realms (older lighttpd).";
        "auth.backend.dbi", Map, Request, "()", NotYet(NOT_BUILT),
            "A database and the query for a user.";
        "auth.backend.gssapi.keytab", String, Request, "unset", NotYet(NOT_BUILT),
            "The Kerberos key table.";
        "auth.backend.gssapi.principal", String, Request, "unset", NotYet(NOT_BUILT),
            "The Kerberos name of the service.";
        "auth.backend.gssapi.store-creds", Bool, Request, "enable", NotYet(NOT_BUILT),
            "Keeps delegated credentials for backends.";
        "auth.backend.ldap.hostname", String, Request, "unset", Effect::Works,
            "The LDAP server, or several, which are asked in turn until one answers: hosts, ldap://host:port, ldaps://host, ldapi://%2Fpath.";
        "auth.backend.ldap.url", String, Request, "unset", Effect::Works,
            "The same in lighttpd 1.5.";
        "auth.backend.ldap.base-dn", String, Request, "unset", Effect::Works,
            "Where the search for a user begins.";
        "auth.backend.ldap.filter", String, Request, "unset", Effect::Works,
            "The search filter; ? or $ stands for the user. One that begins with a comma is the end of the user's distinguished name, behind uid=USER; then there is no search.";
        "auth.backend.ldap.ca-file", String, Request, "unset", Effect::Works,
            "The certificate authorities that the server is verified by. Unset, those of the system.";
        "auth.backend.ldap.cert", String, Request, "unset", NotYet(NOT_BUILT),
            "The client certificate (lighttpd 1.5).";
        "auth.backend.ldap.key", String, Request, "unset", NotYet(NOT_BUILT),
            "The key of the client certificate (lighttpd 1.5).";
        "auth.backend.ldap.starttls", Bool, Request, "disable", Effect::Works,
            "Encrypts connections to ldap:// by StartTLS.";
        "auth.backend.ldap.bind-dn", String, Request, "unset", Effect::Works,
            "The name to search as. Unset, the search is anonymous.";
        "auth.backend.ldap.bind-pw", String, Request, "unset", Effect::Works,
            "The password of that name.";
        "auth.backend.ldap.allow-empty-pw", Bool, Request, "disable", Effect::Works,
            "Asks the server about empty passwords, too. Many servers take one for an anonymous user, and let in.";
        "auth.backend.ldap.groupmember", String, Request, "memberUid", Effect::Works,
            "The attribute that names members in the entries below group=NAME, which is a distinguished name: member and uniqueMember hold distinguished names, all others users.";
        "auth.backend.ldap.timeout", String, Request, "2000000", Effect::Works,
            "Microseconds that one question to the server may take, as in lighttpd. 100000 at least.";
        "auth.backend.pam.opts", Map, Request, "()", Effect::Works,
            "Options of PAM: service, the name of a file in /etc/pam.d, http if it is left out.";
        "auth.backend.sasl.opts", Map, Request, "()", NotYet(NOT_BUILT),
            "Options of SASL.";
    },
    configure,
};

const NOT_BUILT: &str = "users can be looked up in files, by LDAP and by PAM alone";

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let values = configure.values;
    let users = Users::read(configure)?;
    let max_age_s = max_age_s(values)?;
    let rules = rules::read(values)?;
    let lockout = Lockout::read(values)?;
    if rules.is_empty() {
        return Ok(());
    }
    let ignores_case = values.bool("server.force-lowercase-filenames");
    Guard {
        rules: rules.into_iter().map(Rc::new).collect(),
        users,
        max_age_s,
        accepts_extern: values.bool("auth.extern-authn").unwrap_or(false),
        ignores_case: ignores_case.unwrap_or(false),
        logs_all: values.unsigned("auth.debug", 0) > 0,
        logins: OnceCell::new(),
        lockout,
        failures: OnceCell::new(),
    }
    .add_to(configure);
    Ok(())
}

/// Seconds for which a good log-in is remembered; `None`: it is not remembered.
fn max_age_s(values: &Values<'_>) -> Result<Option<u32>, Diagnostic> {
    let Some(options) = values.array("auth.cache") else {
        return Ok(None);
    };
    let mut max_age_s = MAX_AGE_S;
    for option in options.iter() {
        let error = |message: &str| Diagnostic::error(message, option.span);
        if option.key() != Some("max-age") {
            return Err(error("auth.cache knows max-age alone"));
        }
        max_age_s = option
            .value
            .as_integer()
            .and_then(|seconds| u32::try_from(seconds).ok())
            .ok_or_else(|| error("max-age is a number of seconds"))?;
    }
    Ok((max_age_s > 0).then_some(max_age_s))
}

/// As in lighttpd.
const MAX_AGE_S: u32 = 600;
