//! `auth.backend.ldap.*`.

use std::cell::OnceCell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use petrel_engine::Exchange;
use petrel_engine::config::{Config, Diagnostic, Entry};
use petrel_engine::module::ModuleSpec;
use petrel_engine::proto::ldap::{
    EncodedFilter, FilterError, escape_in_filter, escape_in_name, read_filter,
};
use petrel_engine::settings::Values;
use petrel_engine::tls::TlsName;

use super::super::rules::Rule;
use super::super::users::BACKEND;
use crate::gateway::trust::LoadedTrusts;
use crate::remote_store::{Ldap, LdapOptions, LdapTls, StoreAddress, Stores, TlsStart};

/// What one set of settings says.
pub(in crate::auth) struct LdapUsers {
    /// One after the other is asked.
    hosts: Vec<Host>,
    bind_name: Vec<u8>,
    bind_password: Vec<u8>,
    pub(super) base: Vec<u8>,
    lookup: Lookup,
    pub(super) group_member: String,
    allows_empty_passwords: bool,
    pub(super) timeout: Duration,
    servers: OnceCell<Vec<Rc<Ldap>>>,
}

#[derive(Debug)]
struct Host {
    address: StoreAddress,
    tls: Option<LdapTls>,
}

/// How a user becomes a distinguished name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// By a search. The user stands between the parts.
    Filter(Vec<String>),
    /// It is `uid=USER` and this.
    Name(String),
}

impl LdapUsers {
    /// What `values` say; the name of a directive that is missing. Another scope may have it.
    ///
    /// # Errors
    /// They are not understood.
    pub(in crate::auth) fn read(
        values: &Values<'_>,
    ) -> Result<Result<LdapUsers, &'static str>, Diagnostic> {
        let text = |name: &str| values.string(name).unwrap_or_default();
        let starts_tls = values.bool(STARTTLS).unwrap_or(false);
        let ca_file = values.string(CA_FILE).filter(|path| !path.is_empty());
        let ca_file = ca_file.map(PathBuf::from);
        let directive = [HOSTNAME, URL]
            .into_iter()
            .find(|name| !text(name).is_empty());
        let Some(directive) = directive else {
            return Ok(Err(HOSTNAME));
        };
        if text(FILTER).is_empty() {
            return Ok(Err(FILTER));
        }
        let hosts = text(directive)
            .split([' ', '\t', '\r', '\n', ','])
            .filter(|url| !url.is_empty())
            .map(|url| host(url, starts_tls, ca_file.as_ref()));
        let hosts = hosts
            .collect::<Result<Vec<_>, _>>()
            .map_err(|message| values.error(directive, format!("{directive}: {message}")))?;
        let lookup = lookup(text(FILTER)).map_err(|message| {
            let hint = format!("{FILTER} = \"(uid=?)\"");
            let error = values.error(FILTER, format!("{FILTER}: {message}"));
            error.with_hint(hint)
        })?;
        let timeout_us = match values.string(TIMEOUT) {
            None => TIMEOUT_US,
            Some(text) => text.trim().parse().map_err(|_| {
                values.error(TIMEOUT, format!("{TIMEOUT} is a number of microseconds"))
            })?,
        };
        Ok(Ok(LdapUsers {
            hosts,
            bind_name: text("auth.backend.ldap.bind-dn").into(),
            bind_password: text("auth.backend.ldap.bind-pw").into(),
            base: text("auth.backend.ldap.base-dn").into(),
            lookup,
            group_member: values
                .string("auth.backend.ldap.groupmember")
                .filter(|name| !name.is_empty())
                .unwrap_or("memberUid")
                .to_owned(),
            allows_empty_passwords: values
                .bool("auth.backend.ldap.allow-empty-pw")
                .unwrap_or(false),
            timeout: Duration::from_micros(timeout_us).clamp(TIMEOUT_MIN, TIMEOUT_MAX),
            servers: OnceCell::new(),
        }))
    }

    /// Whether users may have none.
    pub(super) fn allows_empty_passwords(&self) -> bool {
        self.allows_empty_passwords
    }

    /// What log-ins are remembered by besides user and password: what was asked, and what for.
    pub(super) fn kind(&self, rule: &Rule) -> Vec<u8> {
        let LdapUsers {
            hosts,
            bind_name,
            base,
            lookup,
            group_member,
            ..
        } = self;
        let asked = (hosts, bind_name, base, lookup, group_member);
        format!("ldap {asked:?} {:?}", rule.who).into_bytes()
    }

    /// The servers, as this worker reaches them.
    ///
    /// # Errors
    /// There are too many of them: a sentence.
    pub(super) fn servers(&self, exchange: &Exchange) -> Result<Vec<Rc<Ldap>>, String> {
        if let Some(servers) = self.servers.get() {
            return Ok(servers.clone());
        }
        let stores = Stores::of(&exchange.worker);
        let trusts = LoadedTrusts::of(&exchange.worker);
        let server = |host: &Host| {
            let tls = host.tls.as_ref();
            let tls = tls.map(|tls| trusts.authorized(tls.ca_file.as_deref(), &tls.name));
            let options = LdapOptions {
                address: host.address.clone(),
                tls: host.tls.clone(),
                bind_name: self.bind_name.clone(),
                bind_password: self.bind_password.clone(),
                timeout: self.timeout,
            };
            let server = stores.ldap(&options, tls.as_ref());
            server.map_err(|error| error.to_string())
        };
        let servers: Vec<_> = self.hosts.iter().map(server).collect::<Result<_, _>>()?;
        Ok(self.servers.get_or_init(|| servers).clone())
    }

    /// How `user` is found.
    pub(super) fn lookup(&self, user: &[u8]) -> Result<Wanted, FilterError> {
        self.lookup.of(user)
    }
}

/// Without the password.
impl fmt::Debug for LdapUsers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("LdapUsers");
        shown.field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// What leads to a distinguished name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A search with this filter.
    Search(EncodedFilter),
    /// Nothing: this is it.
    Name(Vec<u8>),
}

impl Lookup {
    fn of(&self, user: &[u8]) -> Result<Wanted, FilterError> {
        match self {
            Lookup::Name(rest) => {
                let name = [b"uid=", &*escape_in_name(user), rest.as_bytes()].concat();
                Ok(Wanted::Name(name))
            }
            Lookup::Filter(parts) => {
                let parts: Vec<_> = parts.iter().map(|part| part.as_bytes()).collect();
                let filter = parts.join(&*escape_in_filter(user));
                read_filter(&filter).map(Wanted::Search)
            }
        }
    }
}

/// `auth.backend.ldap.filter`, where `?` or `$` stands for the user. One that begins with a comma is the end
/// of a distinguished name.
fn lookup(text: &str) -> Result<Lookup, String> {
    if text.starts_with(',') {
        return Ok(Lookup::Name(text.to_owned()));
    }
    let parts: Vec<_> = text.split(['?', '$']).map(str::to_owned).collect();
    if parts.len() < 2 {
        return Err("it has no ?, which stands for the user".to_owned());
    }
    let lookup = Lookup::Filter(parts);
    let tried = lookup.of(b"user").map_err(|error| error.to_string());
    tried.map(|_| lookup)
}

/// `ldap://host:port`, `ldaps://`, `ldapi://%2Fpath`, or a host.
fn host(url: &str, starts_tls: bool, ca_file: Option<&PathBuf>) -> Result<Host, String> {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
        None => ("ldap".to_owned(), url),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (rest, port, start) = match (&*scheme, starts_tls) {
        ("ldap", false) => (rest.to_owned(), PORT, None),
        ("ldap", true) => (rest.to_owned(), PORT, Some(TlsStart::Agreed)),
        ("ldaps", false) => (rest.to_owned(), TLS_PORT, Some(TlsStart::AtOnce)),
        ("ldaps", true) => {
            return Err(format!(
                "{url:?} speaks TLS at once, so {STARTTLS} is wrong"
            ));
        }
        ("ldapi", _) => {
            let path = percent_encoding::percent_decode_str(rest).decode_utf8_lossy();
            let path = match path.is_empty() {
                true => UNIX_SOCKET.into(),
                false => path,
            };
            (format!("unix:{path}"), 0, None)
        }
        _ => return Err(format!("{url:?} is none of ldap://, ldaps:// and ldapi://")),
    };
    let address = StoreAddress::parse(&rest, port)?;
    let tls = match (start, address.host_and_port()) {
        (Some(start), Some((name, _))) => Some(LdapTls {
            start,
            name: TlsName::parse(name)?,
            ca_file: ca_file.cloned(),
        }),
        (Some(_), None) => return Err(format!("{url:?} is no host that a certificate can be for")),
        (None, _) => None,
    };
    Ok(Host { address, tls })
}

/// Has the certificates read by which the LDAP servers of `config` are verified, if mod_auth is one of the
/// `modules`.
///
/// # Errors
/// A file is missing or of no use, with the place that names it.
pub fn load_authorities(
    config: &Config,
    modules: &[&'static ModuleSpec],
    trusts: &mut LoadedTrusts,
) -> Result<(), Diagnostic> {
    let entries = |name: &'static str| {
        let entries = config.blocks.iter().flat_map(|block| &block.entries);
        entries.filter(move |entry| entry.name == name && entry.value.is_enabling())
    };
    let text = |entry: &Entry| entry.value.as_str().unwrap_or_default().to_owned();
    let is_used = entries(BACKEND).any(|entry| text(entry) == "ldap");
    if !is_used || !modules.iter().any(|module| module.name == "mod_auth") {
        return Ok(());
    }
    let by_scheme = [HOSTNAME, URL].into_iter().flat_map(entries);
    let mut by_scheme = by_scheme.filter(|entry| text(entry).to_lowercase().contains("ldaps:"));
    let Some(first) = entries(STARTTLS).next().or_else(|| by_scheme.next()) else {
        return Ok(());
    };
    let mut has_file = false;
    for entry in entries(CA_FILE) {
        has_file = true;
        let added = trusts.add_authorities(Some(Path::new(&text(entry))));
        added.map_err(|message| {
            Diagnostic::error(format!("{CA_FILE}: {message}"), entry.value_span)
        })?;
    }
    // Where a file is named the system's are not needed, unless another scope has none.
    let added = trusts.add_authorities(None);
    match added {
        Err(message) if !has_file => {
            let hint =
                format!("install the package ca-certificates, set SSL_CERT_FILE, or add {CA_FILE}");
            Err(Diagnostic::error(message, first.name_span).with_hint(hint))
        }
        _ => Ok(()),
    }
}

/// Whether a timeout looks like one in milliseconds.
pub(in crate::auth) fn has_short_timeout(entry: &Entry) -> bool {
    let number = entry
        .value
        .as_str()
        .and_then(|text| text.trim().parse().ok());
    entry.name == TIMEOUT
        && number.is_some_and(|number| Duration::from_micros(number) < TIMEOUT_MIN)
}

const HOSTNAME: &str = "auth.backend.ldap.hostname";
/// lighttpd 1.5's name.
const URL: &str = "auth.backend.ldap.url";
const FILTER: &str = "auth.backend.ldap.filter";
const STARTTLS: &str = "auth.backend.ldap.starttls";
const CA_FILE: &str = "auth.backend.ldap.ca-file";
const TIMEOUT: &str = "auth.backend.ldap.timeout";

const PORT: u16 = 389;
const TLS_PORT: u16 = 636;

/// Where Debian's slapd listens.
const UNIX_SOCKET: &str = "/run/slapd/ldapi";

/// As lighttpd, which has it in microseconds.
const TIMEOUT_US: u64 = 2_000_000;
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str, starts_tls: bool) -> Result<String, String> {
        let host = host(url, starts_tls, None)?;
        let start = host.tls.map(|tls| tls.start);
        Ok(format!("{} {start:?}", host.address))
    }

    #[test]
    fn servers_are_hosts_and_urls() {
        for (url, expected) in [
            ("localhost", "localhost:389 None"),
            ("ldap.example.org:1389", "ldap.example.org:1389 None"),
            ("ldap://[::1]/", "[::1]:389 None"),
            (
                "LDAPS://ldap.example.org",
                "ldap.example.org:636 Some(AtOnce)",
            ),
            ("ldapi://%2Ftmp%2Fldapi", "unix:/tmp/ldapi None"),
            ("ldapi://", "unix:/run/slapd/ldapi None"),
        ] {
            assert_eq!(shown(url, false).as_deref(), Ok(expected));
        }
        let agreed = shown("ldap://ldap.example.org", true);
        assert_eq!(agreed.as_deref(), Ok("ldap.example.org:389 Some(Agreed)"));
        for url in [
            "cldap://a",
            "http://a",
            "ldap://a/o=x",
            "ldap://",
            "ldap://a:b",
        ] {
            assert!(shown(url, false).is_err(), "{url}");
        }
        assert!(shown("ldaps://a", true).is_err());
    }

    #[test]
    fn a_user_means_itself_wherever_it_stands() {
        let filter = lookup("(&(uid=$)(mail=?@example.org))").expect("a filter");
        let expected = read_filter(br"(&(uid=\2a\29)(mail=\2a\29@example.org))").expect("a filter");
        assert_eq!(filter.of(b"*)"), Ok(Wanted::Search(expected)));
        let name = lookup(",ou=people,o=x").expect("the end of a name");
        let expected = br"uid=a\2cou\3db,ou=people,o=x".to_vec();
        assert_eq!(name.of(b"a,ou=b"), Ok(Wanted::Name(expected)));
        for text in ["", "(uid=anna)", "(uid=?", "?)", "(&(uid=?)"] {
            assert!(lookup(text).is_err(), "{text}");
        }
    }
}
