//! The directives of the page cache: their table, and the checked values.
//!
//! [`CacheOptions`] are the options of a request, one object for each set of settings. [`Places`] are the
//! options of the whole server: memory, disk, and the store that several machines share.

use std::sync::LazyLock;
use std::time::Duration;

use petrel_engine::config::{AddressRange, Diagnostic, DirectiveSpec};
use petrel_engine::settings::Values;
use petrel_engine::settings::directives::Effect::Works;

use super::context;
use super::key::KeyPart;
use super::policy;
use super::second_tier::{TierStore, is_prefix};

/// The table of directives.
pub(crate) static DIRECTIVES: &[DirectiveSpec] = petrel_engine::directives! {
    "page-cache.enable", Bool, Request, "disable", Works,
        "Store answers of backends and scripts, and send them again (RFC 9111). All of page-cache.* is Petrel's own.";
    "page-cache.key", List, Request, "( \"scheme\", \"host\", \"path\", \"query\" )", Works,
        "What distinguishes stored pages: \"scheme\", \"host\", \"path\", \"query\", and values such as \"cookie:lang\", \"header:X-Device\" or \"env:COUNTRY\". Vary of the answers always counts as well.";
    "page-cache.query-ignore", List, Request, "()", Works,
        "Parameters of the query that are left out of the key, such as \"fbclid\" or \"utm_*\". Backends still get them. A query with a semicolon is never shortened, because some backends take a semicolon for a separator.";
    "page-cache.methods", List, Request, "( \"GET\", \"HEAD\" )", Works,
        "Methods that are answered from the cache: GET, HEAD or both. Only answers to GET are stored.";
    "page-cache.status", Any, Request, "( 200, 203, 204, 300, 301, 302, 307, 308, 404, 405, 410, 414, 501 )", Works,
        "Status codes of answers that may be stored.";
    "page-cache.default-ttl", Int, Request, "0", Works,
        "For how many seconds an answer is fresh that does not say so itself. 0: such answers are not stored.";
    "page-cache.max-ttl", Int, Request, "0", Works,
        "The largest number of seconds for which an answer is fresh, even if it says more. 0: no limit.";
    "page-cache.stale-while-revalidate", Int, Request, "0", Works,
        "For how many seconds after it became stale an answer is still sent while it is refreshed in the background, if the answer itself does not say (RFC 5861).";
    "page-cache.stale-if-error", Int, Request, "0", Works,
        "For how many seconds after it became stale an answer is still sent if the backend fails or answers 500, 502, 503 or 504, if the answer itself does not say (RFC 5861).";
    "page-cache.store-set-cookie", Bool, Request, "disable", Works,
        "Also store answers that set cookies. The cookies are not stored: only the client whose request was sent to the backend gets them.";
    "page-cache.store-authorized", Bool, Request, "disable", Works,
        "Also store answers to requests with Authorization if they do not allow that with public, s-maxage or must-revalidate, and send them to all clients.";
    "page-cache.bypass-cookies", List, Request, "()", Works,
        "Names of cookies, such as \"PHPSESSID\" or \"wordpress_logged_in_*\": a request with one of them goes to the backend, and its answer is not stored.";
    "page-cache.bypass-headers", List, Request, "( \"Forwarded\", \"Forwarded-Host\", \"Front-End-Https\", \"X-Envoy-Original-Path\", \"X-Forwarded-*\", \"X-Host\", \"X-HTTP-Host-Override\", \"X-HTTP-Method\", \"X-HTTP-Method-Override\", \"X-Method-Override\", \"X-Original-*\", \"X-Replaced-Path\", \"X-Rewrite-URL\", \"X-Script-Name\", \"X-URL-Scheme\" )", Works,
        "Request fields that may change an answer without being in its key. A request with one of them that does not come from a trusted proxy goes to the backend, and its answer is not stored. A star at the end makes a name a prefix, which never includes X-Forwarded-For: that has to be named in full. Letter case does not matter, and \".\" and \"_\" are the same as \"-\". Fields named in page-cache.key are ignored here.";
    "page-cache.honour-client-no-cache", Bool, Request, "disable", Works,
        "Lets clients demand a fresh answer with Cache-Control (no-cache, max-age, min-fresh) and Pragma. Every client can then put load on the backends.";
    "page-cache.max-object-size", Int, Request, "1024", Works,
        "The largest body that is stored, in kilobytes.";
    "page-cache.lock-timeout", Int, Request, "5000", Works,
        "How many milliseconds a request waits for an answer that is being fetched for another request; after that it is sent to the backend itself. 0: it never waits.";
    "page-cache.purge", List, Request, "()", Works,
        "Addresses and networks of clients, such as \"127.0.0.1\" or \"10.0.0.0/8\", that may remove stored answers with the method PURGE; \"unix\" stands for clients on unix sockets.";
    "page-cache.tags-header", String, Request, "unset", Works,
        "The field of answers that lists the tags by which they can be purged, such as \"Surrogate-Key\" (separated by spaces) or \"Cache-Tag\" (by commas). Clients do not get it; in a PURGE request it names the tags to purge.";
    "page-cache.memory-size", Int, Server, "64", Works,
        "Memory for stored answers in megabytes, of all workers together.";
    "page-cache.fragments-size", Int, Server, "16", Works,
        "Memory for fragments of pages in megabytes; all scripts share it.";
    "page-cache.disk-path", String, Server, "unset", Works,
        "A directory in which answers are stored as well, so that they survive a restart. Only the cache may use it. It is created if it is missing.";
    "page-cache.disk-size", Int, Server, "1024", Works,
        "The largest size of all files below page-cache.disk-path, in megabytes.";
    "page-cache.second-tier", String, Server, "unset", Works,
        "A store that several machines share: \"redis:host:port\", \"redis:/path/of/socket\", \"memcached:host:port,host:port\". While it is unreachable the cache works without it.";
    "page-cache.second-tier-prefix", String, Server, "petrel:", Works,
        "The prefix of all keys in page-cache.second-tier.";
};

/// The options that apply to a request.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// `page-cache.key`.
    pub key: Key,
    /// `page-cache.query-ignore`.
    pub query_ignore: Vec<NamePattern>,
    /// `page-cache.methods` has GET.
    pub answers_get: bool,
    /// `page-cache.methods` has HEAD.
    pub answers_head: bool,
    /// `page-cache.status`.
    pub statuses: Vec<u16>,
    /// `page-cache.default-ttl`.
    pub default_ttl_s: u32,
    /// `page-cache.max-ttl`; 0 is no limit.
    pub max_ttl_s: u32,
    /// `page-cache.stale-while-revalidate`.
    pub stale_while_revalidate_s: u32,
    /// `page-cache.stale-if-error`.
    pub stale_if_error_s: u32,
    /// `page-cache.store-set-cookie`.
    pub stores_set_cookie: bool,
    /// `page-cache.store-authorized`.
    pub stores_authorized: bool,
    /// `page-cache.bypass-cookies`.
    pub bypass_cookies: Vec<NamePattern>,
    /// `page-cache.bypass-headers` without the fields that are in the key.
    pub bypass_headers: FieldNames,
    /// `page-cache.honour-client-no-cache`.
    pub honours_client: bool,
    /// `page-cache.max-object-size` in bytes.
    pub object_bytes_max: usize,
    /// `page-cache.lock-timeout`.
    pub lock_timeout: Duration,
    /// `page-cache.purge`.
    pub purgers: Purgers,
    /// `page-cache.tags-header`.
    pub tags_header: Option<Box<str>>,
    /// Distinguishes requests for which conditions of the configuration have set different values.
    pub context: Option<[u8; context::BYTES]>,
}

/// The components of a key besides the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// It has the scheme.
    pub scheme: bool,
    /// It has the host.
    pub host: bool,
    /// It has the query.
    pub query: bool,
    /// Cookies, fields and variables, in the order of the configuration.
    pub values: Vec<KeyPart>,
}

impl Key {
    /// A key with these parts and the path.
    pub fn new(mut parts: Vec<KeyPart>) -> Key {
        let (scheme, host) = (
            parts.contains(&KeyPart::Scheme),
            parts.contains(&KeyPart::Host),
        );
        let query = parts.contains(&KeyPart::Query);
        parts.retain(|part| {
            matches!(
                part,
                KeyPart::Cookie(_) | KeyPart::Header(_) | KeyPart::Environment(_)
            )
        });
        Key {
            scheme,
            host,
            query,
            values: parts,
        }
    }
}

/// A name, or a prefix of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamePattern {
    /// Exactly this name.
    Exactly(Box<[u8]>),
    /// All names with this prefix; written with a star at the end.
    Beginning(Box<[u8]>),
}

/// Names of request fields, and prefixes of names.
#[derive(Clone, Debug, Default)]
pub struct FieldNames {
    /// Folded by [`fold`].
    names: Vec<Box<[u8]>>,
    /// Prefixes, folded as well.
    beginnings: Vec<Box<[u8]>>,
    /// Names that do not match in exactly this spelling, in any letter case.
    exempt: Vec<Box<str>>,
    /// Bit n is set if one of `names` is n bytes long. Names of 63 bytes and more share the last bit.
    lengths: u64,
    /// Bit n is set if a name begins with the letter that has this bit. Other characters may share the bit.
    letters: u32,
}

impl FieldNames {
    /// These names; a star at the end makes a name a prefix.
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>) -> FieldNames {
        let mut all = FieldNames::default();
        for name in names {
            let (name, is_beginning) = match name.strip_suffix('*') {
                Some(beginning) => (beginning, true),
                None => (name, false),
            };
            let folded: Box<[u8]> = name.bytes().map(fold).collect();
            // A star alone is a prefix of every name.
            all.letters |= folded.first().map_or(u32::MAX, |_| letter_bit(&folded));
            if is_beginning {
                all.beginnings.push(folded);
            } else {
                all.lengths |= length_bit(folded.len());
                all.names.push(folded);
            }
        }
        all
    }

    /// Exempts a name in exactly this spelling, because it is in the key. A backend may take other spellings
    /// for the same field, so those still match.
    fn exempt(&mut self, name: &str) {
        self.exempt.push(name.into());
    }

    /// Whether `name` matches, or a backend that makes variables of fields could confuse it with a name that
    /// does: in any letter case, with `.` and `_` for `-`. The first letter excludes most names quickly.
    #[inline]
    pub(crate) fn contain(&self, name: &[u8]) -> bool {
        self.letters & letter_bit(name) != 0 && self.find(name)
    }

    fn find(&self, name: &[u8]) -> bool {
        let is_named = self.lengths & length_bit(name.len()) != 0
            && self.names.iter().any(|known| is_same(name, known));
        let begins = || {
            let mut beginnings = self.beginnings.iter();
            beginnings.any(|known| {
                name.get(..known.len())
                    .is_some_and(|beginning| is_same(beginning, known))
            }) && !is_same(name, OF_EVERY_PROXY)
        };
        (is_named || begins()) && {
            let mut exempt = self.exempt.iter();
            !exempt.any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
        }
    }
}

/// Every proxy sends this field, so it matches only if it is listed by its full name.
const OF_EVERY_PROXY: &[u8] = b"x-forwarded-for";

/// Maps characters that are the same for backends that make variables of fields: PHP, CGI, WSGI.
pub fn fold(byte: u8) -> u8 {
    match byte {
        b'_' | b'.' => b'-',
        _ => byte.to_ascii_lowercase(),
    }
}

fn is_same(name: &[u8], folded: &[u8]) -> bool {
    name.len() == folded.len() && name.iter().zip(folded).all(|(a, b)| fold(*a) == *b)
}

fn length_bit(length: usize) -> u64 {
    1 << length.min(63)
}

/// The bit of the first letter, the same for upper and lower case.
fn letter_bit(name: &[u8]) -> u32 {
    1 << (name.first().copied().unwrap_or(0) & 31)
}

/// Which clients may purge.
#[derive(Clone, Debug, Default)]
pub struct Purgers {
    /// Networks of clients.
    pub(crate) ranges: Vec<AddressRange>,
    /// Clients on unix sockets.
    pub(crate) unix: bool,
}

impl Default for CacheOptions {
    fn default() -> CacheOptions {
        CacheOptions {
            key: Key::new(vec![
                KeyPart::Scheme,
                KeyPart::Host,
                KeyPart::Path,
                KeyPart::Query,
            ]),
            query_ignore: Vec::new(),
            answers_get: true,
            answers_head: true,
            statuses: policy::STATUSES.to_vec(),
            default_ttl_s: 0,
            max_ttl_s: 0,
            stale_while_revalidate_s: 0,
            stale_if_error_s: 0,
            stores_set_cookie: false,
            stores_authorized: false,
            bypass_cookies: Vec::new(),
            bypass_headers: BYPASS_HEADERS.clone(),
            honours_client: false,
            object_bytes_max: 1024 * 1024,
            lock_timeout: Duration::from_secs(5),
            purgers: Purgers::default(),
            tags_header: None,
            context: None,
        }
    }
}

impl CacheOptions {
    /// The options of one set of settings; `None` if the cache is not enabled.
    ///
    /// # Errors
    /// A value is invalid.
    pub fn new(values: &Values<'_>) -> Result<Option<CacheOptions>, Diagnostic> {
        if !values.bool("page-cache.enable").unwrap_or(false) {
            return Ok(None);
        }
        let mut options = CacheOptions::default();
        if values.value("page-cache.key").is_some() {
            options.key = Key::new(key(values)?);
        }
        options.read_methods(values)?;
        if values.value("page-cache.status").is_some() {
            options.statuses = statuses(values)?;
        }
        let number = |name| values.unsigned(name, 0);
        options.default_ttl_s = number("page-cache.default-ttl");
        options.max_ttl_s = number("page-cache.max-ttl");
        options.stale_while_revalidate_s = number("page-cache.stale-while-revalidate");
        options.stale_if_error_s = number("page-cache.stale-if-error");
        let switch = |name| values.bool(name).unwrap_or(false);
        options.stores_set_cookie = switch("page-cache.store-set-cookie");
        options.stores_authorized = switch("page-cache.store-authorized");
        options.honours_client = switch("page-cache.honour-client-no-cache");
        options.query_ignore = names(values, "page-cache.query-ignore");
        options.bypass_cookies = names(values, "page-cache.bypass-cookies");
        options.read_bypass_headers(values);
        let kilobytes = values.unsigned("page-cache.max-object-size", 1024);
        options.object_bytes_max =
            usize::try_from(u64::from(kilobytes) * 1024).unwrap_or(usize::MAX);
        let wait = values.unsigned("page-cache.lock-timeout", 5000);
        options.lock_timeout = Duration::from_millis(wait.into());
        options.purgers = purgers(values)?;
        options.tags_header = tags_header(values)?;
        options.context = context::of(values);
        Ok(Some(options))
    }

    fn read_methods(&mut self, values: &Values<'_>) -> Result<(), Diagnostic> {
        let name = "page-cache.methods";
        if values.value(name).is_none() {
            return Ok(());
        }
        let methods = values.strings(name);
        if let Some(other) = methods
            .iter()
            .find(|text| !matches!(**text, "GET" | "HEAD"))
        {
            let error = values.error(name, format!("answers to {other} are not stored"));
            return Err(error.with_hint("it takes \"GET\" and \"HEAD\""));
        }
        self.answers_get = methods.contains(&"GET");
        self.answers_head = methods.contains(&"HEAD");
        Ok(())
    }

    fn read_bypass_headers(&mut self, values: &Values<'_>) {
        let name = "page-cache.bypass-headers";
        if values.value(name).is_some() {
            self.bypass_headers = FieldNames::new(values.strings(name).into_iter());
        }
        for part in &self.key.values {
            if let KeyPart::Header(name) = part {
                self.bypass_headers.exempt(name);
            }
        }
    }
}

impl NamePattern {
    fn parse(text: &str) -> NamePattern {
        match text.strip_suffix('*') {
            Some(beginning) => NamePattern::Beginning(beginning.as_bytes().into()),
            None => NamePattern::Exactly(text.as_bytes().into()),
        }
    }

    /// Whether the pattern matches `name`.
    pub(crate) fn is(&self, name: &[u8]) -> bool {
        match self {
            NamePattern::Exactly(known) => **known == *name,
            NamePattern::Beginning(beginning) => name.starts_with(beginning),
        }
    }
}

impl Purgers {
    /// Whether no client may purge.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty() && !self.unix
    }

    /// Whether a client with this address may purge; `None` is a client on a unix socket.
    pub(crate) fn include(&self, client: Option<std::net::IpAddr>) -> bool {
        match client {
            Some(address) => self.ranges.iter().any(|range| range.contains(address)),
            None => self.unix,
        }
    }
}

/// The options of the whole server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// `page-cache.memory-size` in bytes.
    pub memory_bytes: usize,
    /// `page-cache.fragments-size` in bytes.
    pub fragments_bytes: usize,
    /// `page-cache.disk-path`.
    pub disk_path: Option<String>,
    /// `page-cache.disk-size` in bytes.
    pub disk_bytes: u64,
    /// `page-cache.second-tier`.
    pub second_tier: Option<String>,
    /// `page-cache.second-tier-prefix`.
    pub second_tier_prefix: String,
}

impl Places {
    /// Reads them from the global block, the only place where they can be set.
    pub fn of(config: &petrel_engine::config::Config) -> Places {
        let global = config.global();
        let value = |name| global.entry(name).map(|entry| &entry.value);
        let megabytes = |name, default: u64| {
            let number = value(name).and_then(|value| value.as_integer());
            let number = number.map_or(default, |number| u64::try_from(number).unwrap_or(0));
            number.saturating_mul(1024 * 1024)
        };
        let text = |name| {
            let text = value(name).and_then(|value| value.as_str());
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let of_memory = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Places {
            memory_bytes: of_memory(megabytes("page-cache.memory-size", 64)),
            fragments_bytes: of_memory(megabytes("page-cache.fragments-size", 16)),
            disk_path: text("page-cache.disk-path"),
            disk_bytes: megabytes("page-cache.disk-size", 1024),
            second_tier: text("page-cache.second-tier"),
            second_tier_prefix: value("page-cache.second-tier-prefix")
                .and_then(|value| value.as_str())
                .unwrap_or("petrel:")
                .to_owned(),
        }
    }
}

/// Checks the options of the whole server.
///
/// # Errors
/// A value is invalid.
pub(crate) fn check_places(values: &Values<'_>) -> Result<(), Diagnostic> {
    let name = "page-cache.second-tier";
    if let Some(text) = values.string(name) {
        TierStore::parse(text).map_err(|why| values.error(name, why))?;
    }
    let name = "page-cache.second-tier-prefix";
    if let Some(text) = values.string(name).filter(|text| !is_prefix(text)) {
        let message = format!("{text:?} cannot begin the keys of a store");
        return Err(values
            .error(name, message)
            .with_hint("up to 100 printable characters, no spaces"));
    }
    let name = "page-cache.disk-path";
    if let Some(text) = values.string(name).filter(|text| !text.starts_with('/')) {
        return Err(values.error(name, format!("{text:?} is no absolute path")));
    }
    Ok(())
}

fn key(values: &Values<'_>) -> Result<Vec<KeyPart>, Diagnostic> {
    let name = "page-cache.key";
    let mut parts = Vec::new();
    for text in values.strings(name) {
        let part = KeyPart::parse(text).ok_or_else(|| {
            let error = values.error(name, format!("{text:?} is no part of a key"));
            error.with_hint(
                "there are scheme, host, path, query, cookie:NAME, header:NAME and env:NAME",
            )
        })?;
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    if !parts.contains(&KeyPart::Path) {
        let error = values.error(
            name,
            "a key without \"path\" would give one page for all URLs",
        );
        return Err(error.with_hint("add \"path\""));
    }
    Ok(parts)
}

fn names(values: &Values<'_>, directive: &str) -> Vec<NamePattern> {
    values
        .strings(directive)
        .into_iter()
        .map(NamePattern::parse)
        .collect()
}

fn statuses(values: &Values<'_>) -> Result<Vec<u16>, Diagnostic> {
    let name = "page-cache.status";
    let wrong = || {
        let error = values.error(name, "page-cache.status takes a list of status codes");
        error.with_hint("for example ( 200, 301, 404 ); 206 and 304 are never stored")
    };
    let list = values.array(name).ok_or_else(wrong)?;
    let code = |value: &petrel_engine::config::Value| {
        let code = u16::try_from(value.as_integer()?).ok()?;
        ((200..600).contains(&code) && code != 206 && code != 304).then_some(code)
    };
    list.iter()
        .map(|element| code(&element.value).ok_or_else(wrong))
        .collect()
}

fn purgers(values: &Values<'_>) -> Result<Purgers, Diagnostic> {
    let name = "page-cache.purge";
    let mut purgers = Purgers::default();
    for text in values.strings(name) {
        if text == "unix" {
            purgers.unix = true;
            continue;
        }
        let range = AddressRange::parse(text)
            .map_err(|why| values.error(name, format!("{text:?} is no address: {why}")))?;
        purgers.ranges.push(range);
    }
    Ok(purgers)
}

fn tags_header(values: &Values<'_>) -> Result<Option<Box<str>>, Diagnostic> {
    let name = "page-cache.tags-header";
    let Some(text) = values.string(name) else {
        return Ok(None);
    };
    let is_name = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    match is_name {
        true => Ok(Some(text.into())),
        false => Err(values.error(name, format!("{text:?} is no name of a field"))),
    }
}

/// Fields with which frameworks and application servers can be made to use another host, scheme, path or
/// method than that of the request line. They are in no key.
pub(crate) static BYPASS_HEADERS: LazyLock<FieldNames> =
    LazyLock::new(|| FieldNames::new(BYPASS_NAMES.into_iter()));

/// Their names; stars as in [`FieldNames::new`].
const BYPASS_NAMES: [&str; 15] = [
    "Forwarded",
    "Forwarded-Host",
    "Front-End-Https",
    "X-Envoy-Original-Path",
    "X-Forwarded-*",
    "X-Host",
    "X-HTTP-Host-Override",
    "X-HTTP-Method",
    "X-HTTP-Method-Override",
    "X-Method-Override",
    "X-Original-*",
    "X-Replaced-Path",
    "X-Rewrite-URL",
    "X-Script-Name",
    "X-URL-Scheme",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_cache::MODULE;
    use crate::testing::refusal;

    #[test]
    fn values_that_mean_nothing_are_refused() {
        for (config, says) in [
            (
                "page-cache.key = (\"path\", \"colour\")",
                "no part of a key",
            ),
            ("page-cache.key = (\"host\")", "without \"path\""),
            ("page-cache.methods = (\"POST\")", "POST are not stored"),
            ("page-cache.status = (200, 206)", "list of status codes"),
            ("page-cache.status = \"all\"", "list of status codes"),
            ("page-cache.purge = (\"localhost\")", "is no address"),
            ("page-cache.tags-header = \"a b\"", "no name of a field"),
            (
                "page-cache.second-tier = \"mysql:a\"",
                "begins with neither",
            ),
            (
                "page-cache.second-tier-prefix = \"a b\"",
                "cannot begin the keys",
            ),
            ("page-cache.disk-path = \"cache\"", "no absolute path"),
        ] {
            let config = format!("page-cache.enable = \"enable\"\n{config}");
            let message = refusal(&config, &[&MODULE]);
            assert!(message.contains(says), "{config}: {message}");
        }
    }

    #[test]
    fn names_of_fields_are_found_in_any_case() {
        let long = "x".repeat(100);
        let mut names = FieldNames::new(["X-Host", long.as_str(), "X-A-*"].into_iter());
        for name in ["x-hOST", "X_Host", "x.host", &long, "X-A-", "x_a.b"] {
            assert!(names.contain(name.as_bytes()), "{name}");
        }
        for name in ["x-Most", "x-hosts", "X-A", "", &"x".repeat(101)] {
            assert!(!names.contain(name.as_bytes()), "{name}");
        }
        names.exempt("X-Host");
        assert!(!names.contain(b"x-host"));
        assert!(names.contain(b"X_Host"), "the key has not this one");
        let all = FieldNames::new(["*"].into_iter());
        assert!(all.contain(b"Accept") && !all.contain(b"X-Forwarded-For"));
    }

    #[test]
    fn what_every_proxy_sends_counts_where_it_is_named() {
        let prefix = FieldNames::new(["X-Forwarded-*"].into_iter());
        assert!(prefix.contain(b"X-Forwarded-Foo") && prefix.contain(b"X-Forwarded-For-Original"));
        assert!(!prefix.contain(b"X-Forwarded-For") && !prefix.contain(b"x_forwarded_for"));
        let named = FieldNames::new(["X-Forwarded-*", "x-forwarded-for"].into_iter());
        assert!(named.contain(b"X-Forwarded-For"));
    }

    #[test]
    fn the_reference_names_what_is_done() {
        let spec = DIRECTIVES
            .iter()
            .find(|spec| spec.name == "page-cache.bypass-headers")
            .expect("it is in the table");
        let names = BYPASS_NAMES.map(|name| format!("\"{name}\"")).join(", ");
        assert_eq!(spec.default, format!("( {names} )"));
    }

    #[test]
    fn names_with_a_star_are_beginnings() {
        let utm = NamePattern::parse("utm_*");
        assert!(utm.is(b"utm_source") && utm.is(b"utm_") && !utm.is(b"utm"));
        let exact = NamePattern::parse("id");
        assert!(exact.is(b"id") && !exact.is(b"id2"));
        assert!(NamePattern::parse("*").is(b"anything"));
    }
}
