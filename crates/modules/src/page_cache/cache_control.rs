//! Cache-Control of answers and requests (RFC 9111 5.2), parsed into flags and numbers.
//!
//! Knows no clock and no policy. Malformed directives are read cautiously: a lifetime that is no number is
//! zero seconds, and of two different values the shorter one counts (4.2.1).

use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::request_head::{KnownField, RequestHead};

/// The Cache-Control of an answer (RFC 9111 5.2.2, RFC 5861).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResponseDirectives {
    /// `no-store`.
    pub(crate) no_store: bool,
    /// `no-cache` without field names: may only be used after validation.
    pub(crate) no_cache: bool,
    /// `private` without field names.
    pub(crate) private: bool,
    /// `public`.
    pub(crate) public: bool,
    /// `must-revalidate`.
    must_revalidate: bool,
    /// `proxy-revalidate`.
    proxy_revalidate: bool,
    /// `must-understand`.
    pub(crate) must_understand: bool,
    /// `max-age` in seconds.
    pub(crate) max_age_s: Option<u32>,
    /// `s-maxage` in seconds.
    pub(crate) shared_max_age_s: Option<u32>,
    /// `stale-while-revalidate` in seconds.
    pub(crate) stale_while_revalidate_s: Option<u32>,
    /// `stale-if-error` in seconds.
    pub(crate) stale_if_error_s: Option<u32>,
    /// The field names that `private` or `no-cache` list, in lower case: these fields must not be stored.
    pub(crate) withheld: Vec<Box<str>>,
}

/// Cache-Control (RFC 9111 5.2.1) and Pragma (5.4) of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestDirectives {
    /// `no-store`: the answer must not be stored.
    pub(crate) no_store: bool,
    /// `no-cache`, or `Pragma: no-cache` without any Cache-Control.
    pub(crate) no_cache: bool,
    /// `only-if-cached`.
    pub(crate) only_if_cached: bool,
    /// `max-age`: the age in seconds up to which an answer is accepted.
    pub(crate) max_age_s: Option<u32>,
    /// `min-fresh`: for how many seconds the answer must still be fresh.
    pub(crate) min_fresh_s: Option<u32>,
}

impl ResponseDirectives {
    /// Parses all Cache-Control fields of an answer.
    pub(crate) fn of(fields: &HeaderBlock) -> ResponseDirectives {
        let mut directives = ResponseDirectives::default();
        for (name, value) in fields.iter() {
            if name.eq_ignore_ascii_case(b"cache-control") {
                for (name, argument) in Items(value) {
                    directives.add(name, argument);
                }
            }
        }
        directives
    }

    /// Whether a directive allows a shared cache to keep the answer to a request with Authorization
    /// (RFC 9111 3.5).
    pub(crate) fn allows_authorized(&self) -> bool {
        self.public || self.must_revalidate || self.shared_max_age_s.is_some()
    }

    /// Whether a stale answer must not be used without validation (5.2.2.2, 5.2.2.8, 5.2.2.10).
    pub(crate) fn forbids_stale(&self) -> bool {
        self.must_revalidate
            || self.proxy_revalidate
            || self.no_cache
            || self.shared_max_age_s.is_some()
                && self.stale_while_revalidate_s.is_none()
                && self.stale_if_error_s.is_none()
    }

    fn add(&mut self, name: &[u8], argument: Option<&[u8]>) {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("no-store") {
            self.no_store = true;
        } else if is("no-cache") {
            self.add_qualified(argument, |directives| directives.no_cache = true);
        } else if is("private") {
            self.add_qualified(argument, |directives| directives.private = true);
        } else if is("public") {
            self.public = true;
        } else if is("must-revalidate") {
            self.must_revalidate = true;
        } else if is("proxy-revalidate") {
            self.proxy_revalidate = true;
        } else if is("must-understand") {
            self.must_understand = true;
        } else if is("max-age") {
            shorten(&mut self.max_age_s, argument);
        } else if is("s-maxage") {
            shorten(&mut self.shared_max_age_s, argument);
        } else if is("stale-while-revalidate") {
            shorten(&mut self.stale_while_revalidate_s, argument);
        } else if is("stale-if-error") {
            shorten(&mut self.stale_if_error_s, argument);
        }
    }

    /// With field names the directive is about those fields only, without any about the whole answer.
    fn add_qualified(&mut self, argument: Option<&[u8]>, whole: impl FnOnce(&mut Self)) {
        let names = argument.unwrap_or_default().split(|byte| *byte == b',');
        let names = names
            .map(<[u8]>::trim_ascii)
            .filter(|name| !name.is_empty());
        let names: Vec<Box<str>> = names
            .map(|name| String::from_utf8_lossy(name).to_ascii_lowercase().into())
            .collect();
        match names.is_empty() {
            true => whole(self),
            false => self.withheld.extend(names),
        }
    }
}

impl RequestDirectives {
    /// Parses Cache-Control and Pragma of a request.
    pub fn of(head: &RequestHead) -> RequestDirectives {
        let mut directives = RequestDirectives::default();
        let Some(value) = head.field(KnownField::CacheControl) else {
            let pragma = head.field(KnownField::Pragma);
            directives.no_cache = pragma.is_some_and(|value| {
                Items(value).any(|(name, _)| name.eq_ignore_ascii_case(b"no-cache"))
            });
            return directives;
        };
        for (name, argument) in Items(value) {
            let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
            if is("no-store") {
                directives.no_store = true;
            } else if is("no-cache") {
                directives.no_cache = true;
            } else if is("only-if-cached") {
                directives.only_if_cached = true;
            } else if is("max-age") {
                shorten(&mut directives.max_age_s, argument);
            } else if is("min-fresh") {
                directives.min_fresh_s = argument.and_then(seconds);
            }
        }
        directives
    }
}

/// Sets `place`. Of two values the shorter one counts; a value that is no number is zero.
fn shorten(place: &mut Option<u32>, argument: Option<&[u8]>) {
    let value = argument.and_then(seconds).unwrap_or(0);
    *place = Some(place.map_or(value, |known| known.min(value)));
}

/// `delta-seconds` (RFC 9111 1.2.2). A number that is too large becomes [`SECONDS_MAX`].
pub(super) fn seconds(text: &[u8]) -> Option<u32> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = std::str::from_utf8(text).ok()?;
    Some(digits.parse().unwrap_or(SECONDS_MAX).min(SECONDS_MAX))
}

/// The value that RFC 9111 1.2.2 gives numbers that are too large.
const SECONDS_MAX: u32 = 1 << 31;

/// The items `name[=argument]` of a list. The quotation marks around an argument are removed. Escapes in
/// quoted strings are not decoded: no known directive has any.
struct Items<'a>(&'a [u8]);

impl<'a> Iterator for Items<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.0.is_empty() {
                return None;
            }
            let mut is_quoted = false;
            let end = self.0.iter().position(|byte| {
                is_quoted ^= *byte == b'"';
                *byte == b',' && !is_quoted
            });
            let (item, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
            self.0 = rest.get(1..).unwrap_or_default();
            let (name, argument) = match memchr::memchr(b'=', item) {
                Some(at) => (&item[..at], item.get(at + 1..)),
                None => (item, None),
            };
            let name = name.trim_ascii();
            if !name.is_empty() {
                return Some((name, argument.map(|text| unquoted(text.trim_ascii()))));
            }
        }
    }
}

fn unquoted(text: &[u8]) -> &[u8] {
    let inner = text.strip_prefix(b"\"").unwrap_or(text);
    inner.strip_suffix(b"\"").unwrap_or(inner).trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> ResponseDirectives {
        let mut block = HeaderBlock::new();
        for value in values {
            block.append("cache-control", value.as_bytes());
        }
        ResponseDirectives::of(&block)
    }

    #[test]
    fn directives_are_read_in_any_case_and_from_several_fields() {
        let directives = of(&["Public, MAX-AGE=60", "s-maxage=\"30\" , must-revalidate"]);
        assert_eq!(
            directives,
            ResponseDirectives {
                public: true,
                max_age_s: Some(60),
                shared_max_age_s: Some(30),
                must_revalidate: true,
                ..ResponseDirectives::default()
            }
        );
        assert!(directives.allows_authorized() && directives.forbids_stale());
    }

    #[test]
    fn of_two_lifetimes_the_shorter_counts_and_nonsense_is_none() {
        for (text, expected) in [
            ("max-age=5, max-age=9", 5),
            ("max-age=9, max-age=5", 5),
            ("max-age=x", 0),
            ("max-age", 0),
            ("max-age=-1", 0),
            ("max-age=1.5", 0),
            ("max-age=", 0),
            ("max-age=99999999999999999999", SECONDS_MAX),
        ] {
            assert_eq!(of(&[text]).max_age_s, Some(expected), "{text}");
        }
        assert_eq!(of(&["max-agent=5"]).max_age_s, None);
    }

    #[test]
    fn field_names_limit_private_and_no_cache_to_fields() {
        let directives =
            of(&["private=\"X-User, Set-Cookie\", no-cache=\"Set-Cookie2\", max-age=1"]);
        assert!(!directives.private && !directives.no_cache);
        let withheld: Vec<&str> = directives.withheld.iter().map(|name| &**name).collect();
        assert_eq!(withheld, ["x-user", "set-cookie", "set-cookie2"]);
        assert_eq!(directives.max_age_s, Some(1));
        for text in ["private", "private=\"\"", "private=", "private=\" , \""] {
            assert!(of(&[text]).private, "{text}");
        }
    }

    #[test]
    fn a_comma_in_quotes_ends_nothing() {
        let directives = of(&["ext=\"a, no-store, b\", public"]);
        assert!(!directives.no_store && directives.public);
        // The quotation is never closed, so the rest of the field is ignored.
        assert!(!of(&["ext=\"a, no-cache"]).no_cache);
        assert_eq!(of(&[",,=,"]), ResponseDirectives::default());
    }

    #[test]
    fn stale_answers_are_forbidden_by_what_says_so() {
        for (text, forbids) in [
            ("max-age=1", false),
            ("max-age=1, must-revalidate", true),
            ("max-age=1, proxy-revalidate", true),
            ("no-cache", true),
            // RFC 9111 5.2.2.10: s-maxage implies proxy-revalidate, but stale-if-error of RFC 5861 is more
            // specific.
            ("s-maxage=1", true),
            ("s-maxage=1, stale-if-error=5", false),
            (
                "s-maxage=1, stale-while-revalidate=5, must-revalidate",
                true,
            ),
        ] {
            assert_eq!(of(&[text]).forbids_stale(), forbids, "{text}");
        }
    }
}
