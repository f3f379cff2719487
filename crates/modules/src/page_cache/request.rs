//! What the cache has to do for a request: look it up, let it bypass the cache, or remove what is stored.

use petrel_engine::Exchange;
use petrel_engine::proto::method::Method;
use petrel_engine::proto::request_head::{BodyFraming, KnownField};

use super::cache_control::RequestDirectives;
use super::options::{BYPASS_HEADERS, CacheOptions};
use crate::cookies::cookies_of;
use crate::extforward::ACTUAL_FOR;

/// What to do for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nothing: OPTIONS, PROPFIND and other methods that are safe and never stored.
    Ignored,
    /// If it succeeds, remove what is stored for its URL (RFC 9111 4.4).
    Unsafe,
    /// Send it to the backend, and do not store its answer.
    Bypass(Reason),
    /// Look it up.
    Page(WantedPage),
}

/// Why a request bypasses the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its method is not in `page-cache.methods`.
    Method,
    /// It has one of `page-cache.bypass-cookies`.
    Cookie,
    /// It has one of `page-cache.bypass-headers` and does not come from a trusted proxy, or its Connection
    /// names fields, which are then not sent to the backend.
    Header,
    /// It has a body.
    Body,
    /// It wants to change the protocol.
    Upgrade,
    /// Its key would be too long.
    Key,
}

impl Reason {
    /// The value of `detail` in Cache-Status.
    pub const fn word(self) -> &'static str {
        match self {
            Reason::Method => "method",
            Reason::Cookie => "cookie",
            Reason::Header => "request-field",
            Reason::Body => "request-body",
            Reason::Upgrade => "upgrade",
            Reason::Key => "key-too-long",
        }
    }
}

/// What a request asks of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WantedPage {
    /// It is a HEAD, so its answer is not stored.
    pub is_head: bool,
    /// It has Authorization, or a module has established the client's identity (RFC 9111 3.5).
    pub is_authorized: bool,
    /// It has a Range field.
    pub has_range: bool,
    /// It has conditions that only the backend, or a whole answer, can decide: If-Match, If-Unmodified-Since,
    /// If-Range.
    pub has_hard_conditions: bool,
    /// It has fields for which it would bypass the cache, but they come from a trusted proxy.
    pub has_trusted_fields: bool,
    /// Cache-Control and Pragma.
    pub directives: RequestDirectives,
}

impl WantedPage {
    /// Whether the client refuses an answer of this age that is fresh for so many more seconds.
    pub(crate) fn refuses(&self, age_s: u32, left_s: u32) -> bool {
        let directives = &self.directives;
        directives.no_cache
            || directives.max_age_s.is_some_and(|max| age_s > max)
            || directives.min_fresh_s.is_some_and(|min| left_s < min)
    }
}

/// Classifies a request. Allocates nothing.
pub(crate) fn classify(exchange: &Exchange, options: &CacheOptions) -> Class {
    let head = &exchange.request.head;
    match exchange.request.method {
        Method::Get if options.answers_get => {}
        Method::Head if options.answers_head => {}
        Method::Get | Method::Head => return Class::Bypass(Reason::Method),
        // A tunnel is no page.
        Method::Connect => return Class::Ignored,
        method if method.is_safe() => return Class::Ignored,
        _ => return Class::Unsafe,
    }
    if !matches!(head.framing(), BodyFraming::None | BodyFraming::Length(0)) {
        return Class::Bypass(Reason::Body);
    }
    if head.field(KnownField::Upgrade).is_some() && head.connection_has("upgrade") {
        return Class::Bypass(Reason::Upgrade);
    }
    if has_bypass_cookie(exchange, options) {
        return Class::Bypass(Reason::Cookie);
    }
    let mut names = head.iter().map(|(name, _)| name);
    let has_fields = names.any(|name| options.bypass_headers.contain(name));
    // A backend does not get the fields that Connection names. Its answer may then differ from the one that
    // the key and Vary stand for.
    if has_fields && !is_trusted(exchange) || exchange.request.head.connection_names_fields() {
        return Class::Bypass(Reason::Header);
    }
    let has = |field| head.field(field).is_some();
    Class::Page(WantedPage {
        is_head: exchange.request.method == Method::Head,
        is_authorized: is_authorized(exchange),
        has_range: has(KnownField::Range),
        has_hard_conditions: has(KnownField::IfMatch)
            || has(KnownField::IfUnmodifiedSince)
            || has(KnownField::IfRange),
        has_trusted_fields: has_fields,
        directives: directives(exchange, options),
    })
}

/// Whether the request has Authorization, or a module has established the client's identity (RFC 9111 3.5).
pub(crate) fn is_authorized(exchange: &Exchange) -> bool {
    let known = ["REMOTE_USER", "AUTH_TYPE"];
    exchange
        .request
        .head
        .field(KnownField::Authorization)
        .is_some()
        || known
            .iter()
            .any(|name| exchange.environment.get(name).is_some())
}

/// Whether the answer may differ from the one that other clients get for the same URL, because of fields that
/// are in no key: those of the default of `page-cache.bypass-headers`.
pub(crate) fn is_peculiar(exchange: &Exchange) -> bool {
    let mut names = exchange.request.head.iter().map(|(name, _)| name);
    let is_known = names.any(|name| BYPASS_HEADERS.contain(name));
    // About Connection see [`classify`].
    is_known && !is_trusted(exchange) || exchange.request.head.connection_names_fields()
}

/// Whether the request comes from a trusted proxy, whose fields are believed.
fn is_trusted(exchange: &Exchange) -> bool {
    exchange.environment.get(ACTUAL_FOR).is_some()
}

/// The request's directives. Those that demand a newer answer count only if
/// `page-cache.honour-client-no-cache` is set.
fn directives(exchange: &Exchange, options: &CacheOptions) -> RequestDirectives {
    let all = RequestDirectives::of(&exchange.request.head);
    match options.honours_client {
        true => all,
        false => RequestDirectives {
            no_store: all.no_store,
            only_if_cached: all.only_if_cached,
            ..RequestDirectives::default()
        },
    }
}

fn has_bypass_cookie(exchange: &Exchange, options: &CacheOptions) -> bool {
    if options.bypass_cookies.is_empty() {
        return false;
    }
    let field = exchange.request.head.field(KnownField::Cookie);
    cookies_of(field.unwrap_or_default()).any(|(name, _)| {
        let mut known = options.bypass_cookies.iter();
        known.any(|known| known.is(name))
    })
}

#[cfg(test)]
mod tests {
    use super::super::options::NamePattern;
    use super::*;
    use crate::testing::Tree;
    use crate::{extforward, setenv};

    const TRUSTING: &str = "extforward.forwarder = (\"127.0.0.1\" => \"trust\")";

    fn class(config: &str, request: &str, options: &CacheOptions) -> Class {
        let tree = Tree::new(&[]);
        let site = tree.site(config, &[&extforward::MODULE, &setenv::MODULE]);
        classify(site.request(request).exchange(), options)
    }

    fn get(fields: &str, options: &CacheOptions) -> Class {
        class(
            "",
            &format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"),
            options,
        )
    }

    #[test]
    fn only_plain_requests_are_looked_up() {
        let options = CacheOptions {
            bypass_cookies: vec![NamePattern::Beginning(b"wp_"[..].into())],
            answers_head: false,
            ..CacheOptions::default()
        };
        for (request, expected) in [
            (
                "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                Class::Page(WantedPage::default()),
            ),
            (
                "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
                Class::Bypass(Reason::Method),
            ),
            ("OPTIONS / HTTP/1.1\r\nHost: a\r\n\r\n", Class::Ignored),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
                Class::Unsafe,
            ),
            ("DELETE / HTTP/1.1\r\nHost: a\r\n\r\n", Class::Unsafe),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nCookie: a=1; wp_x=2\r\n\r\n",
                Class::Bypass(Reason::Cookie),
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nCookie: a=wp_x\r\n\r\n",
                Class::Page(WantedPage::default()),
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
                Class::Bypass(Reason::Upgrade),
            ),
        ] {
            assert_eq!(class("", request, &options), expected, "{request}");
        }
        let body = "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx";
        let config = "server.http-parseopts = (\"method-get-body\" => \"enable\")";
        assert_eq!(class(config, body, &options), Class::Bypass(Reason::Body));
    }

    #[test]
    fn fields_that_change_answers_are_believed_of_trusted_proxies_only() {
        let options = CacheOptions::default();
        for field in [
            "X-Forwarded-Host: b",
            "x-original-url: /admin",
            "Forwarded: host=b",
        ] {
            let fields = format!("{field}\r\n");
            assert_eq!(
                get(&fields, &options),
                Class::Bypass(Reason::Header),
                "{field}"
            );
        }
        assert!(matches!(
            get("X-Forwarded-For: 10.1.1.1\r\n", &options),
            Class::Page(_)
        ));
        let request =
            "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.1.1.1\r\nX-Forwarded-Host: b\r\n\r\n";
        let wanted = WantedPage {
            has_trusted_fields: true,
            ..WantedPage::default()
        };
        assert_eq!(class(TRUSTING, request, &options), Class::Page(wanted));
    }

    #[test]
    fn clients_are_heard_where_that_is_configured() {
        let fields = "Cache-Control: no-cache, no-store, only-if-cached, max-age=5\r\n";
        let Class::Page(wanted) = get(fields, &CacheOptions::default()) else {
            panic!("it is looked up");
        };
        assert!(wanted.directives.no_store && wanted.directives.only_if_cached);
        assert!(!wanted.refuses(100, 0));
        let options = CacheOptions {
            honours_client: true,
            ..CacheOptions::default()
        };
        for (fields, refuses) in [
            ("Cache-Control: no-cache\r\n", true),
            ("Pragma: no-cache\r\n", true),
            ("Pragma: no-cache\r\nCache-Control: max-age=20\r\n", false),
            ("Cache-Control: max-age=9\r\n", true),
            ("Cache-Control: max-age=10\r\n", false),
            ("Cache-Control: min-fresh=6\r\n", true),
            ("Cache-Control: min-fresh=5\r\n", false),
            ("Cache-Control: max-stale\r\n", false),
        ] {
            let Class::Page(wanted) = get(fields, &options) else {
                panic!("it is looked up");
            };
            assert_eq!(wanted.refuses(10, 5), refuses, "{fields}");
        }
    }

    #[test]
    fn a_known_client_does_not_get_what_is_stored_for_all() {
        let setenv = "setenv.add-environment = (\"REMOTE_USER\" => \"me\")";
        let authorized = "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic eDp5\r\n\r\n";
        let plain = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        for (config, request, expected) in [
            ("", authorized, true),
            ("", plain, false),
            (setenv, plain, true),
        ] {
            let Class::Page(wanted) = class(config, request, &CacheOptions::default()) else {
                panic!("it is looked up");
            };
            assert_eq!(wanted.is_authorized, expected, "{config} {request}");
        }
    }
}
