//! Decides whether an answer may be stored, and for how long: RFC 9111 sections 3 and 4, RFC 5861.
//!
//! Works on the head of the answer, a few facts about the request, and the time. Has no side effects.

use petrel_engine::proto::date;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::status::Status;
use petrel_engine::proto::stored_page::{Times, VARY_NAMES_MAX, vary};

use super::cache_control::{self, ResponseDirectives};
use super::options::CacheOptions;

/// The facts about a request that the decision depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestFacts {
    /// It had Authorization, or the identity of its client is known (RFC 9111 3.5).
    pub(crate) is_authorized: bool,
    /// It had `no-store`.
    pub(crate) no_store: bool,
    /// Second at which it was sent to the backend.
    pub(crate) at_s: u64,
    /// Second of the wall clock at which the answer arrived. The backend's dates are compared with it.
    pub(crate) answered_s: u64,
}

/// The decision about an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreVerdict {
    /// It may be stored, without these fields (in lower case).
    Store {
        /// Until when it may be used, and how.
        times: Times,
        /// Fields that are not stored.
        withheld: Vec<Box<str>>,
    },
    /// It may not be stored.
    Not(Why),
}

macro_rules! reasons {
    ($($variant:ident $word:literal $doc:literal,)*) => {
        /// Why an answer is not stored.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Why {
            $(#[doc = $doc] $variant,)*
        }

        impl Why {
            /// The value of `detail` in Cache-Status.
            pub(crate) const fn word(self) -> &'static str {
                match self { $(Why::$variant => $word,)* }
            }
        }
    };
}

reasons! {
    Status "status" "Its status is none of `page-cache.status`.",
    NoStore "no-store" "`no-store`, of the answer or of the request.",
    Private "private" "`private`.",
    Authorized "authorization" "The request had Authorization, and nothing allows to share the answer.",
    SetCookie "set-cookie" "It sets a cookie.",
    Vary "vary" "`Vary: *`, or more names than there may be.",
    NoLifetime "no-lifetime" "Nothing says how long it may be kept.",
    Expired "expired" "It is stale already, and nothing to validate it by.",
    TooLarge "too-large" "It is larger than `page-cache.max-object-size`.",
    Switched "upgrade" "The connection became a tunnel.",
    Partial "partial" "It is a part of something.",
    File "file" "It is a file, which needs no cache.",
    Script "script" "Fields that a script has given to this request alone are among its own.",
}

/// Decides about an answer that arrived in second `now_s` of the clock that does not jump.
pub(crate) fn decide(
    status: Status,
    fields: &HeaderBlock,
    asked: &RequestFacts,
    options: &CacheOptions,
    now_s: u64,
) -> StoreVerdict {
    let directives = ResponseDirectives::of(fields);
    if let Some(why) = forbidden(status, fields, &directives, asked, options) {
        return StoreVerdict::Not(why);
    }
    let Some(lifetime) = lifetime(status, fields, &directives, options, asked.answered_s) else {
        return StoreVerdict::Not(Why::NoLifetime);
    };
    let mut times = Times {
        received_s: now_s,
        age_s: initial_age(fields, asked, now_s),
        lifetime_s: lifetime,
        is_shareable: directives.allows_authorized(),
        ..Times::default()
    };
    if !directives.forbids_stale() {
        let or = |own: Option<u32>, default: u32| own.unwrap_or(default);
        times.stale_while_revalidate_s = or(
            directives.stale_while_revalidate_s,
            options.stale_while_revalidate_s,
        );
        times.stale_if_error_s = or(directives.stale_if_error_s, options.stale_if_error_s);
    }
    let is_of_use = lifetime > times.age_s
        || times.stale_while_revalidate_s > 0
        || times.stale_if_error_s > 0
        || has_validator(fields);
    if !is_of_use {
        return StoreVerdict::Not(Why::Expired);
    }
    let mut withheld = directives.withheld;
    withheld.extend(NOT_STORED.map(Box::from));
    StoreVerdict::Store { times, withheld }
}

/// Fields that are never stored: those about one connection, one client or this cache, and those about
/// trailers, which stored answers do not have.
const NOT_STORED: [&str; 7] = [
    "set-cookie",
    "set-cookie2",
    "age",
    "date",
    "server",
    "proxy-authenticate",
    "trailer",
];

/// Whether the answer has a validator (RFC 9110 8.8).
fn has_validator(fields: &HeaderBlock) -> bool {
    fields.contains("ETag") || fields.contains("Last-Modified")
}

/// Why the answer must not be stored, if it must not (RFC 9111 3).
fn forbidden(
    status: Status,
    fields: &HeaderBlock,
    directives: &ResponseDirectives,
    asked: &RequestFacts,
    options: &CacheOptions,
) -> Option<Why> {
    if status == Status::PARTIAL_CONTENT || fields.contains("Content-Range") {
        return Some(Why::Partial);
    }
    if status == Status::SWITCHING_PROTOCOLS {
        return Some(Why::Switched);
    }
    if !options.statuses.contains(&status.0) {
        return Some(Why::Status);
    }
    // 5.2.2.3: a cache that understands the status may ignore no-store. The statuses in the list are
    // understood.
    if asked.no_store || directives.no_store && !directives.must_understand {
        return Some(Why::NoStore);
    }
    if directives.private {
        return Some(Why::Private);
    }
    if asked.is_authorized && !options.stores_authorized && !directives.allows_authorized() {
        return Some(Why::Authorized);
    }
    let is_withheld = |name: &str| directives.withheld.iter().any(|known| **known == *name);
    if fields.contains("Set-Cookie") && !options.stores_set_cookie && !is_withheld("set-cookie") {
        return Some(Why::SetCookie);
    }
    let names = vary::names(fields);
    match names {
        Some(names) if names.len() <= VARY_NAMES_MAX => None,
        _ => Some(Why::Vary),
    }
}

/// For how many seconds the answer is fresh after it was made (RFC 9111 4.2.1). `None`: the answer does not
/// say, and no default applies.
fn lifetime(
    status: Status,
    fields: &HeaderBlock,
    directives: &ResponseDirectives,
    options: &CacheOptions,
    now_s: u64,
) -> Option<u32> {
    if directives.no_cache {
        return Some(0);
    }
    let has_pragma = !fields.contains("Cache-Control")
        && fields
            .get("Pragma")
            .is_some_and(|value| value.eq_ignore_ascii_case(b"no-cache"));
    let stated = accel_expires(fields, now_s)
        .or(directives.shared_max_age_s)
        .or(directives.max_age_s)
        .or_else(|| has_pragma.then_some(0))
        .or_else(|| expires(fields, now_s));
    let default = || {
        let is_heuristic = HEURISTIC.contains(&status.0) || directives.public;
        (options.default_ttl_s > 0 && is_heuristic).then_some(options.default_ttl_s)
    };
    let lifetime = stated.or_else(default)?;
    Some(match options.max_ttl_s {
        0 => lifetime,
        max => lifetime.min(max),
    })
}

/// X-Accel-Expires as in nginx: seconds from now, or `@` and a second since 1970. It overrides everything
/// else; 0 means that the answer is not stored.
fn accel_expires(fields: &HeaderBlock, now_s: u64) -> Option<u32> {
    let value = fields.get(ACCEL_EXPIRES)?;
    match value.strip_prefix(b"@") {
        Some(second) => {
            let second: u64 = std::str::from_utf8(second).ok()?.parse().ok()?;
            Some(u32::try_from(second.saturating_sub(now_s)).unwrap_or(u32::MAX))
        }
        None => cache_control::seconds(value),
    }
}

/// The field that [`accel_expires`] reads.
pub(crate) const ACCEL_EXPIRES: &str = "X-Accel-Expires";

/// Expires in seconds. An invalid date is in the past (RFC 9111 5.3).
fn expires(fields: &HeaderBlock, now_s: u64) -> Option<u32> {
    let expires_s = date::parse(fields.get("Expires")?).unwrap_or(0);
    let made_s = fields.get("Date").and_then(date::parse).unwrap_or(now_s);
    Some(u32::try_from(expires_s.saturating_sub(made_s)).unwrap_or(u32::MAX))
}

/// The age of the answer when it arrived (RFC 9111 4.2.3).
fn initial_age(fields: &HeaderBlock, asked: &RequestFacts, now_s: u64) -> u32 {
    let made_s = fields.get("Date").and_then(date::parse);
    let apparent = made_s.map_or(0, |made_s| asked.answered_s.saturating_sub(made_s));
    let stated = fields.get("Age").and_then(cache_control::seconds);
    let took = now_s.saturating_sub(asked.at_s);
    let corrected = u64::from(stated.unwrap_or(0)).saturating_add(took);
    u32::try_from(apparent.max(corrected)).unwrap_or(u32::MAX)
}

/// The statuses that are cacheable by default (RFC 9110 15.1), without 206.
const HEURISTIC: [u16; 11] = [200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501];

/// The default of `page-cache.status`: the same, and redirects that state how long they are valid.
pub(crate) const STATUSES: [u16; 13] = [
    200, 203, 204, 300, 301, 302, 307, 308, 404, 405, 410, 414, 501,
];

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 784_111_777;
    const NOW_TEXT: &str = "Date: Sun, 06 Nov 1994 08:49:37 GMT";

    fn verdict_of(
        status: u16,
        fields: &str,
        asked: &RequestFacts,
        options: &CacheOptions,
    ) -> StoreVerdict {
        let mut block = HeaderBlock::new();
        for line in fields.split('|').filter(|line| !line.trim().is_empty()) {
            let (name, value) = line.split_once(':').expect("a field");
            block.append(name.trim(), value.trim().as_bytes());
        }
        decide(Status(status), &block, asked, options, NOW)
    }

    fn asked() -> RequestFacts {
        RequestFacts {
            at_s: NOW,
            answered_s: NOW,
            ..RequestFacts::default()
        }
    }

    fn plain(status: u16, fields: &str) -> StoreVerdict {
        verdict_of(status, fields, &asked(), &CacheOptions::default())
    }

    fn times(verdict: StoreVerdict) -> Times {
        match verdict {
            StoreVerdict::Store { times, .. } => times,
            StoreVerdict::Not(why) => panic!("not stored: {why:?}"),
        }
    }

    #[test]
    fn rfc_9111_section_3_what_may_be_stored() {
        for (status, fields, expected) in [
            (200, "Cache-Control: max-age=60", None),
            (404, "Cache-Control: max-age=60", None),
            (302, "Cache-Control: max-age=60", None),
            (200, "Expires: Sun, 06 Nov 1994 08:49:38 GMT", None),
            (200, "Cache-Control: public", Some(Why::NoLifetime)),
            (200, "", Some(Why::NoLifetime)),
            (
                200,
                "Last-Modified: Sun, 06 Nov 1994 08:00:00 GMT",
                Some(Why::NoLifetime),
            ),
            (
                200,
                "Cache-Control: no-store, max-age=60",
                Some(Why::NoStore),
            ),
            (
                200,
                "Cache-Control: no-store, must-understand, max-age=60",
                None,
            ),
            (
                200,
                "Cache-Control: private, max-age=60",
                Some(Why::Private),
            ),
            (200, "Cache-Control: private=\"x-a\", max-age=60", None),
            (206, "Cache-Control: max-age=60", Some(Why::Partial)),
            (
                200,
                "Cache-Control: max-age=60|Content-Range: bytes 0-1/2",
                Some(Why::Partial),
            ),
            (304, "Cache-Control: max-age=60", Some(Why::Status)),
            (500, "Cache-Control: max-age=60", Some(Why::Status)),
            (101, "Cache-Control: max-age=60", Some(Why::Switched)),
            (200, "Cache-Control: max-age=60|Vary: *", Some(Why::Vary)),
            (200, "Cache-Control: max-age=60|Vary: a, *", Some(Why::Vary)),
            (200, "Cache-Control: max-age=60|Vary: Accept-Encoding", None),
            (
                200,
                "Cache-Control: max-age=60|Set-Cookie: a=b",
                Some(Why::SetCookie),
            ),
            (
                200,
                "Cache-Control: max-age=60, private=\"set-cookie\"|Set-Cookie: a=b",
                None,
            ),
            (200, "Cache-Control: max-age=0", Some(Why::Expired)),
            (200, "Cache-Control: max-age=0|ETag: \"a\"", None),
            (200, "Cache-Control: no-cache", Some(Why::Expired)),
            (200, "Cache-Control: no-cache, max-age=60|ETag: \"a\"", None),
            (200, "Cache-Control: max-age=5|Age: 9", Some(Why::Expired)),
            (
                200,
                "Cache-Control: max-age=60|X-Accel-Expires: 0",
                Some(Why::Expired),
            ),
        ] {
            let why = match plain(status, fields) {
                StoreVerdict::Store { .. } => None,
                StoreVerdict::Not(why) => Some(why),
            };
            assert_eq!(why, expected, "{status} {fields}");
        }
    }

    #[test]
    fn rfc_9111_section_3_5_answers_to_authorized_requests() {
        let asked = RequestFacts {
            is_authorized: true,
            ..asked()
        };
        let options = CacheOptions::default();
        let why = |control: &str, options: &CacheOptions| {
            let fields = format!("Cache-Control: {control}");
            matches!(
                verdict_of(200, &fields, &asked, options),
                StoreVerdict::Not(Why::Authorized)
            )
        };
        assert!(why("max-age=60", &options));
        for control in [
            "max-age=60, public",
            "s-maxage=60",
            "max-age=60, must-revalidate",
        ] {
            assert!(!why(control, &options), "{control}");
        }
        let told = CacheOptions {
            stores_authorized: true,
            ..CacheOptions::default()
        };
        assert!(!why("max-age=60", &told));
    }

    #[test]
    fn rfc_9111_section_4_2_1_which_lifetime_counts() {
        for (fields, expected) in [
            ("Cache-Control: max-age=60", 60),
            ("Cache-Control: max-age=60, s-maxage=20", 20),
            (
                "Cache-Control: max-age=60|Expires: Sun, 06 Nov 1994 08:49:38 GMT",
                60,
            ),
            (
                "Date: Sun, 06 Nov 1994 08:49:30 GMT|Expires: Sun, 06 Nov 1994 08:49:50 GMT",
                20,
            ),
            ("Expires: Sun, 06 Nov 1994 08:50:37 GMT", 60),
            ("Cache-Control: max-age=60|X-Accel-Expires: 7", 7),
            ("X-Accel-Expires: @784111787", 10),
            ("X-Accel-Expires: @1|ETag: x", 0),
            ("X-Accel-Expires: soon|Cache-Control: max-age=60", 60),
            ("Expires: 0|ETag: \"a\"", 0),
            (
                "Pragma: no-cache|ETag: \"a\"|Expires: Sun, 06 Nov 1994 08:50:37 GMT",
                0,
            ),
            ("Pragma: no-cache|Cache-Control: max-age=60", 60),
        ] {
            assert_eq!(times(plain(200, fields)).lifetime_s, expected, "{fields}");
        }
    }

    #[test]
    fn rfc_9111_section_4_2_3_how_old_it_was() {
        for (fields, asked_s, expected) in [
            (NOW_TEXT, NOW, 0),
            ("Date: Sun, 06 Nov 1994 08:49:30 GMT", NOW, 7),
            ("Age: 30", NOW, 30),
            ("Age: 30", NOW - 4, 34),
            ("Age: 3|Date: Sun, 06 Nov 1994 08:49:00 GMT", NOW, 37),
            ("Date: Sun, 06 Nov 2094 08:49:37 GMT", NOW, 0),
            ("Age: x", NOW, 0),
        ] {
            let asked = RequestFacts {
                at_s: asked_s,
                answered_s: NOW,
                ..RequestFacts::default()
            };
            let fields = format!("{fields}|Cache-Control: max-age=100");
            let verdict = verdict_of(200, &fields, &asked, &CacheOptions::default());
            assert_eq!(times(verdict).age_s, expected, "{fields}");
        }
    }

    #[test]
    fn a_default_counts_where_nothing_is_said_and_a_limit_everywhere() {
        let options = CacheOptions {
            default_ttl_s: 10,
            max_ttl_s: 50,
            ..CacheOptions::default()
        };
        let of = |status: u16, fields: &str| match verdict_of(status, fields, &asked(), &options) {
            StoreVerdict::Store { times, .. } => Some(times.lifetime_s),
            StoreVerdict::Not(_) => None,
        };
        assert_eq!(of(200, ""), Some(10));
        assert_eq!(of(404, ""), Some(10));
        assert_eq!(of(302, ""), None);
        assert_eq!(of(302, "Cache-Control: public"), Some(10));
        assert_eq!(of(200, "Cache-Control: max-age=0"), None);
        assert_eq!(of(200, "Cache-Control: max-age=500"), Some(50));
        assert_eq!(of(200, "Cache-Control: private"), None);
    }

    #[test]
    fn rfc_5861_windows_are_the_answers_own_or_the_defaults() {
        let options = CacheOptions {
            stale_while_revalidate_s: 3,
            stale_if_error_s: 4,
            ..CacheOptions::default()
        };
        for (control, expected) in [
            ("max-age=1", (3, 4)),
            ("max-age=1, stale-while-revalidate=30", (30, 4)),
            ("max-age=1, stale-if-error=0", (3, 0)),
            ("max-age=1, must-revalidate, stale-if-error=9", (0, 0)),
            ("s-maxage=1", (0, 0)),
        ] {
            let fields = format!("Cache-Control: {control}");
            let times = times(verdict_of(200, &fields, &asked(), &options));
            let windows = (times.stale_while_revalidate_s, times.stale_if_error_s);
            assert_eq!(windows, expected, "{control}");
        }
    }

    #[test]
    fn cookies_are_never_stored() {
        let options = CacheOptions {
            stores_set_cookie: true,
            ..CacheOptions::default()
        };
        let fields = "Cache-Control: max-age=60|Set-Cookie: a=b";
        match verdict_of(200, fields, &asked(), &options) {
            StoreVerdict::Store { withheld, .. } => {
                assert!(withheld.iter().any(|name| **name == *"set-cookie"));
            }
            StoreVerdict::Not(why) => panic!("{why:?}"),
        }
    }
}
