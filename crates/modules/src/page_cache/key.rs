//! The key of a stored answer.
//!
//! A key is a sequence of components, each with a mark and its length in front, so that different requests
//! never have the same key. It begins with the *base*, which names the page: scheme, host, path and query, as
//! far as `page-cache.key` has them. A page is purged by its base. After the base come the components that
//! distinguish requests for one page before Vary is known.
//!
//! The path is that of the request line, because applications see it as REQUEST_URI, even if a rewrite rule
//! has changed the target. In that case the new target is in the key as well; so are path and file if a
//! script has changed only those.

use petrel_engine::Exchange;
use petrel_engine::exchange::Scheme;
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::proto::stored_page::key::{END_OF_BASE, component};

use super::limits;
use super::options::{CacheOptions, NamePattern, fold};
use crate::cookies::cookies_of;

/// A part of `page-cache.key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// `scheme`
    Scheme,
    /// `host`: in lower case, with the port unless it is the scheme's own.
    Host,
    /// `path`
    Path,
    /// `query`
    Query,
    /// `cookie:NAME`
    Cookie(Box<str>),
    /// `header:NAME`
    Header(Box<str>),
    /// `env:NAME`: a variable that modules or the configuration set for backends.
    Environment(Box<str>),
}

impl KeyPart {
    /// The part with this name in the configuration.
    pub fn parse(text: &str) -> Option<KeyPart> {
        Some(match text {
            "scheme" => KeyPart::Scheme,
            "host" => KeyPart::Host,
            "path" => KeyPart::Path,
            "query" => KeyPart::Query,
            _ => {
                let (kind, name) = text.split_once(':').filter(|(_, name)| !name.is_empty())?;
                match kind {
                    "cookie" => KeyPart::Cookie(name.into()),
                    "header" => KeyPart::Header(name.into()),
                    "env" => KeyPart::Environment(name.into()),
                    _ => return None,
                }
            }
        })
    }
}

/// Marks, which say what a component is.
mod mark {
    pub(crate) const SCHEME: u8 = 1;
    pub(crate) const HOST: u8 = 2;
    pub(super) const PATH: u8 = 3;
    pub(crate) const QUERY: u8 = 4;
    pub(crate) const COOKIE: u8 = 0x80;
    pub(super) const HEADER: u8 = 0x81;
    pub(crate) const ENVIRONMENT: u8 = 0x82;
    pub(crate) const REWRITTEN: u8 = 0x83;
    pub(crate) const CONTEXT: u8 = 0x84;
    pub(super) const TRUSTED: u8 = 0x85;
    pub(crate) const DECODED: u8 = 0x86;
    pub(super) const FILE: u8 = 0x87;
    pub(crate) const ABSENT: u8 = 0xff;
}

/// The key would be too long, so the request is not looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Writes the key of the request into `out`, which is cleared first. `has_trusted_fields`: the request has
/// fields for which it would bypass the cache, but they come from a trusted proxy.
///
/// # Errors
/// The key is longer than [`limits::KEY_BYTES_MAX`].
pub fn write(
    out: &mut Vec<u8>,
    exchange: &Exchange,
    options: &CacheOptions,
    has_trusted_fields: bool,
) -> Result<(), TooLong> {
    write_base(out, exchange, options);
    for part in &options.key.values {
        write_part(out, exchange, part);
    }
    if let Some(context) = &options.context {
        component(out, mark::CONTEXT, context);
    }
    write_rewritten(out, exchange, options);
    write_led_elsewhere(out, exchange);
    write_environment(out, exchange, options);
    if has_trusted_fields {
        for (name, value) in exchange.request.head.iter() {
            if options.bypass_headers.contain(name) {
                component(out, mark::TRUSTED, name);
                // The same spelling for all names that mean the same.
                let start = out.len() - name.len();
                out.iter_mut()
                    .skip(start)
                    .for_each(|byte| *byte = fold(*byte));
                component(out, mark::TRUSTED, value);
            }
        }
    }
    match out.len() <= limits::KEY_BYTES_MAX {
        true => Ok(()),
        false => Err(TooLong),
    }
}

/// Writes only the base of the request's key, by which all its variants can be purged.
pub(crate) fn write_base(out: &mut Vec<u8>, exchange: &Exchange, options: &CacheOptions) {
    let (path, query) = target(exchange);
    write_base_of(out, exchange, options, path, query);
}

/// As [`write_base`], for another path and query of the same host.
pub(crate) fn write_base_of(
    out: &mut Vec<u8>,
    exchange: &Exchange,
    options: &CacheOptions,
    path: &[u8],
    query: Option<&[u8]>,
) {
    out.clear();
    if options.key.scheme {
        component(out, mark::SCHEME, exchange.scheme().as_str().as_bytes());
    }
    if options.key.host {
        component(out, mark::HOST, host(exchange));
    }
    component(out, mark::PATH, path);
    if options.key.query
        && let Some(query) = query
    {
        write_query(out, mark::QUERY, query, &options.query_ignore);
    }
    out.push(END_OF_BASE);
}

/// The host, without the port if it is the default port of the scheme.
fn host(exchange: &Exchange) -> &[u8] {
    let host = exchange.request.head.host();
    let port: &[u8] = match exchange.scheme() {
        Scheme::Http => b":80",
        Scheme::Https => b":443",
    };
    host.strip_suffix(port).unwrap_or(host)
}

/// Path and query of the request line.
fn target(exchange: &Exchange) -> (&[u8], Option<&[u8]>) {
    split(without_origin(exchange.request.original_target()))
}

/// The part of an absolute target after scheme and host (RFC 9112 3.2.2).
pub(crate) fn without_origin(target: &[u8]) -> &[u8] {
    if target.starts_with(b"/") {
        return target;
    }
    let Some(at) = memchr::memmem::find(target, b"://") else {
        return target;
    };
    let rest = target.get(at + 3..).unwrap_or_default();
    match memchr::memchr2(b'/', b'?', rest) {
        Some(at) if rest.get(at) == Some(&b'/') => rest.get(at..).unwrap_or_default(),
        _ => b"/",
    }
}

/// Splits into path and query. A fragment belongs to neither.
pub fn split(target: &[u8]) -> (&[u8], Option<&[u8]>) {
    let end = memchr::memchr(b'#', target).unwrap_or(target.len());
    let target = target.get(..end).unwrap_or_default();
    match memchr::memchr(b'?', target) {
        Some(at) => (target.get(..at).unwrap_or_default(), target.get(at + 1..)),
        None => (target, None),
    }
}

fn optional(out: &mut Vec<u8>, mark: u8, value: Option<&[u8]>) {
    match value {
        Some(value) => component(out, mark, value),
        None => component(out, mark::ABSENT, b""),
    }
}

/// Writes the query without ignored parameters. If none is left, there is no query.
///
/// Percent-encoded separators (`%26`, `%3B`) do not separate: backends split the query before they decode it.
/// An encoded parameter name is not the ignored name, so the parameter stays.
fn write_query(out: &mut Vec<u8>, mark: u8, query: &[u8], ignored: &[NamePattern]) {
    // Some backends take a semicolon for a separator. What looks like the value of an ignored parameter could
    // then be another parameter that changes the page, so nothing is ignored.
    if ignored.is_empty() || query.contains(&b';') {
        return component(out, mark, query);
    }
    let start = out.len();
    component(out, mark, b"");
    let content = out.len();
    let mut is_first = true;
    for parameter in query.split(|byte| *byte == b'&') {
        let name = parameter.split(|byte| *byte == b'=').next();
        let name = name.unwrap_or_default();
        if !name.is_empty() && ignored.iter().any(|known| known.is(name)) {
            continue;
        }
        if !std::mem::replace(&mut is_first, false) {
            out.push(b'&');
        }
        out.extend_from_slice(parameter);
    }
    if is_first {
        return out.truncate(start);
    }
    let length = u32::try_from(out.len() - content).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(start + 1..content) {
        place.copy_from_slice(&length.to_le_bytes());
    }
}

/// Writes a part that does not belong to the base.
fn write_part(out: &mut Vec<u8>, exchange: &Exchange, part: &KeyPart) {
    let head = &exchange.request.head;
    match part {
        KeyPart::Scheme | KeyPart::Host | KeyPart::Path | KeyPart::Query => {}
        KeyPart::Cookie(name) => {
            let cookies = head.field(KnownField::Cookie).unwrap_or_default();
            let mut named = cookies_of(cookies).filter(|(found, _)| *found == name.as_bytes());
            optional(out, mark::COOKIE, named.next().map(|(_, value)| value));
        }
        KeyPart::Header(name) => {
            for value in head.fields_named(name) {
                component(out, mark::HEADER, value);
            }
            component(out, mark::ABSENT, b"");
        }
        KeyPart::Environment(name) => {
            optional(out, mark::ENVIRONMENT, exchange.environment.get(name));
        }
    }
}

/// Writes the target as a rewrite rule or a script has changed it, if one has.
fn write_rewritten(out: &mut Vec<u8>, exchange: &Exchange, options: &CacheOptions) {
    let now = exchange.request.url.target();
    if now == without_origin(exchange.request.original_target()) {
        return;
    }
    let (path, query) = split(now);
    component(out, mark::REWRITTEN, path);
    if let Some(query) = query {
        write_query(out, mark::REWRITTEN, query, &options.query_ignore);
    }
}

/// Writes the decoded path and the file, if they do not follow from the URL. Scripts can change either
/// without touching the target, and backends are told both. Otherwise they follow from the URL and the
/// configuration and would add nothing.
fn write_led_elsewhere(out: &mut Vec<u8>, exchange: &Exchange) {
    let (url, physical) = (&exchange.request.url, &exchange.physical);
    if url.path() != url.path_raw() {
        component(out, mark::DECODED, url.path());
    }
    let below = physical.path.strip_prefix(&*physical.document_root);
    if below != Some(url.path()) {
        component(out, mark::FILE, &physical.path);
        component(out, mark::FILE, &physical.document_root);
        component(out, mark::FILE, &physical.path_info);
    }
}

/// Writes the environment: backends get these variables and may answer accordingly.
fn write_environment(out: &mut Vec<u8>, exchange: &Exchange, options: &CacheOptions) {
    for (name, value) in exchange.environment.iter() {
        let is_known =
            |part: &KeyPart| matches!(part, KeyPart::Environment(known) if **known == *name);
        if !NEUTRAL.contains(&name) && !options.key.values.iter().any(is_known) {
            component(out, mark::ENVIRONMENT, name.as_bytes());
            component(out, mark::ENVIRONMENT, value);
        }
    }
}

/// Variables about the connection, or with another value for each request; a page that depended on them could
/// not be shared at all. These are whole names: an authorizer that sets REMOTE_USER_ID means the user.
const NEUTRAL: [&str; 12] = [
    "_L_EXTFORWARD_ACTUAL_FOR",
    "_L_EXTFORWARD_ACTUAL_HOST",
    "_L_EXTFORWARD_ACTUAL_PROTO",
    "AUTH_TYPE",
    "HTTPS",
    "REMOTE_USER",
    "REQUEST_ID",
    "SSL_CIPHER",
    "SSL_PROTOCOL",
    "SSL_SERVER_A_KEY",
    "SSL_SERVER_A_SIG",
    "UNIQUE_ID",
];

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// The key of a page with this name; it consists of a base only.
    pub(crate) fn key_of(name: &str) -> Vec<u8> {
        let mut key = Vec::new();
        component(&mut key, mark::PATH, name.as_bytes());
        key.push(END_OF_BASE);
        key
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::Key;
    use petrel_engine::proto::stored_page::key;

    use super::*;
    use crate::testing::Tree;

    fn key(request: &str, options: &CacheOptions) -> Vec<u8> {
        let tree = Tree::new(&[]);
        let site = tree.site("", &[]);
        let answer = site.request(request);
        let mut out = Vec::new();
        write(&mut out, answer.exchange(), options, false).expect("it is short");
        out
    }

    fn get(target: &str, fields: &str, options: &CacheOptions) -> Vec<u8> {
        key(&format!("GET {target} HTTP/1.1\r\n{fields}\r\n"), options)
    }

    fn of(target: &str) -> Vec<u8> {
        get(target, "Host: a.example\r\n", &CacheOptions::default())
    }

    #[test]
    fn different_requests_have_different_keys() {
        let targets = [
            "/", "/?", "/?a", "/a", "/A", "/a?b", "/a?b&c", "/a%3fb", "/a/", "/a?b=/a",
        ];
        let keys: std::collections::HashSet<_> = targets.iter().map(|target| of(target)).collect();
        assert_eq!(keys.len(), targets.len());
        let other_host = get("/", "Host: b.example\r\n", &CacheOptions::default());
        assert!(!keys.contains(&other_host));
        let port = get("/", "Host: a.example:8080\r\n", &CacheOptions::default());
        assert!(!keys.contains(&port));
    }

    #[test]
    fn one_host_has_one_spelling() {
        let options = CacheOptions::default();
        let plain = of("/x");
        for fields in ["Host: A.Example\r\n", "Host: a.example:80\r\n"] {
            assert_eq!(get("/x", fields, &options), plain, "{fields}");
        }
        let absolute = get("http://a.example/x", "Host: other\r\n", &options);
        assert_eq!(absolute, plain);
        let bare = get("http://a.example", "Host: a.example\r\n", &options);
        assert_eq!(bare, of("/"));
    }

    #[test]
    fn parameters_that_are_ignored_are_left_out() {
        let options = CacheOptions {
            query_ignore: vec![
                NamePattern::Beginning(b"utm_"[..].into()),
                NamePattern::Exactly(b"x"[..].into()),
            ],
            ..CacheOptions::default()
        };
        let of = |target: &str| get(target, "Host: a\r\n", &options);
        assert_eq!(of("/a?utm_source=1&b=2&utm_m=3"), of("/a?b=2"));
        assert_eq!(of("/a?x=1"), of("/a"));
        assert_ne!(of("/a?xy=1"), of("/a"));
        assert_ne!(of("/a?b=2&c=3"), of("/a?c=3&b=2"));
        // All parameters of the ignored name, and no others: an encoded or empty name is another parameter.
        assert_eq!(of("/a?x=1&b=2&x=3&x"), of("/a?b=2"));
        for other in [
            "&b=2",
            "b=2&",
            "b=2&&",
            "%78=1&b=2",
            "=x&b=2",
            "x%3D1&b=2",
            "b=1&b=2",
            "b=2&b=2",
        ] {
            assert_ne!(of(&format!("/a?{other}")), of("/a?b=2"), "{other}");
        }
        // An encoded separator is part of the value.
        for value in ["1%26b=3", "1%3Bb=3", "1+b=3", "1%23", "1=2=3", ""] {
            assert_eq!(of(&format!("/a?x={value}&b=2")), of("/a?b=2"), "{value}");
        }
        assert_ne!(of("/a?"), of("/a"));
    }

    #[test]
    fn a_query_with_a_semicolon_counts_whole() {
        let options = CacheOptions {
            query_ignore: vec![NamePattern::Beginning(b"utm_"[..].into())],
            ..CacheOptions::default()
        };
        let of = |target: &str| get(target, "Host: a\r\n", &options);
        let plain = of("/a?b=2");
        let poisons = [
            "utm_x=1;cb=evil&b=2",
            "b=2&utm_x=1;cb=evil",
            "utm_;cb=evil&b=2",
            "utm_x=1&amp;cb=evil&b=2",
            ";utm_x=1&b=2",
        ];
        for query in poisons {
            let poison = of(&format!("/a?{query}"));
            assert_ne!(poison, plain, "{query}");
            assert_ne!(poison, of("/a"), "{query}");
        }
        assert_ne!(of("/a?utm_x=1;cb=evil"), of("/a?utm_x=1;cb=other"));
    }

    #[test]
    fn variables_count_unless_they_are_neutral_by_their_whole_name() {
        let tree = Tree::new(&[]);
        let key = |variable: &str| {
            let config = match variable {
                "" => String::new(),
                name => format!("setenv.add-environment = (\"{name}\" => \"1\")"),
            };
            let site = tree.site(&config, &[&crate::setenv::MODULE]);
            let answer = site.get("/");
            let mut out = Vec::new();
            write(&mut out, answer.exchange(), &CacheOptions::default(), false)
                .expect("it is short");
            out
        };
        let plain = key("");
        for name in NEUTRAL {
            assert_eq!(key(name), plain, "{name}");
            for other in [format!("{name}_ID"), name.to_ascii_lowercase()] {
                assert_ne!(key(&other), plain, "{other}");
            }
        }
        for name in ["SSL_CLIENT_S_DN_CN", "SSL_SESSION_ID", "HTTPS_TENANT"] {
            assert_ne!(key(name), plain, "{name}");
        }
    }

    #[test]
    fn cookies_and_fields_count_where_they_are_named() {
        let options = CacheOptions {
            key: Key::new(
                ["path", "cookie:lang", "header:x-d"]
                    .iter()
                    .filter_map(|text| KeyPart::parse(text))
                    .collect(),
            ),
            ..CacheOptions::default()
        };
        let of = |fields: &str| get("/", &format!("Host: a\r\n{fields}"), &options);
        assert_eq!(
            of("Cookie: a=1; lang=de\r\n"),
            of("Cookie: lang=de; b=2\r\n")
        );
        assert_ne!(of("Cookie: lang=de\r\n"), of("Cookie: lang=en\r\n"));
        assert_ne!(of("Cookie: lang=\r\n"), of(""));
        assert_ne!(of("X-D: 1\r\n"), of(""));
        assert_ne!(of("X-D: 1\r\nX-D: 2\r\n"), of("X-D: 1\r\n"));
        assert_eq!(of("X-E: 1\r\n"), of(""));
    }

    #[test]
    fn the_base_is_the_beginning_of_the_key() {
        let tree = Tree::new(&[]);
        let answer = tree.site("", &[]).get("/a?b");
        let options = CacheOptions {
            key: Key::new(vec![
                KeyPart::Path,
                KeyPart::Query,
                KeyPart::Cookie("c".into()),
            ]),
            ..CacheOptions::default()
        };
        let (mut base, mut whole) = (Vec::new(), Vec::new());
        write_base(&mut base, answer.exchange(), &options);
        write(&mut whole, answer.exchange(), &options, false).expect("it is short");
        assert!(whole.starts_with(&base) && whole.len() > base.len());
        assert_eq!(key::base(&whole), base);
        assert_eq!(
            key::base(&whole[..base.len() - 1]),
            &whole[..base.len() - 1]
        );
        let mut shorter = Vec::new();
        write_base_of(&mut shorter, answer.exchange(), &options, b"/a", None);
        assert!(
            !whole.starts_with(&shorter),
            "a base is no beginning of another"
        );
    }

    #[test]
    fn a_key_that_is_too_long_is_none() {
        let tree = Tree::new(&[]);
        let config = "server.max-request-field-size = 65536";
        let answer = tree
            .site(config, &[])
            .get(&format!("/{}", "a".repeat(20_000)));
        let mut out = Vec::new();
        let written = write(&mut out, answer.exchange(), &CacheOptions::default(), false);
        assert_eq!(written, Err(TooLong));
    }

    #[test]
    fn targets_are_split_where_rfc_9112_says() {
        for (target, expected) in [
            ("/a?b", "/a?b"),
            ("http://h", "/"),
            ("http://h?q", "/"),
            ("http://h/a?b=://c", "/a?b=://c"),
            ("/x://y/z", "/x://y/z"),
            ("*", "*"),
        ] {
            let found = without_origin(target.as_bytes());
            assert_eq!(found, expected.as_bytes(), "{target}");
        }
        assert_eq!(split(b"/a?b#c"), (&b"/a"[..], Some(&b"b"[..])));
        assert_eq!(split(b"/a"), (&b"/a"[..], None));
    }
}
