//! Compiled comparisons of conditions.
//!
//! A [`Matcher`] compares one value. The engine knows whose value that is and when it changes. Where lighttpd
//! compares texts that stand for something else (addresses, hosts with a port), the matcher compares what
//! they stand for.

use std::net::IpAddr;

use crate::address::AddressRange;
use crate::captures::Captures;
use crate::condition::{Op, Subject};
use crate::listen::{ListenAddress, ListenDefaults};
use crate::pattern::Pattern;

/// A compiled comparison.
#[derive(Clone, Debug)]
pub struct Matcher {
    negated: bool,
    test: Test,
}

#[derive(Clone, Debug)]
enum Test {
    Equal(Vec<u8>),
    Prefix(Vec<u8>),
    Suffix(Vec<u8>),
    Host(Vec<u8>),
    Address(AddressRange),
    Regex(Pattern),
}

/// Why the pattern of a condition is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatcherError {
    /// What is wrong, in a sentence without a full stop.
    pub message: String,
    /// The byte offset in the pattern, if it is known.
    pub offset: Option<usize>,
    /// What would be valid.
    pub hint: Option<&'static str>,
}

impl Matcher {
    /// Compiles the comparison of `subject` by `op` with `pattern`.
    ///
    /// `listen` completes socket patterns without a port or a host.
    ///
    /// # Errors
    /// A regular expression does not compile, or an address is not valid.
    pub fn compile(
        subject: &Subject,
        op: Op,
        pattern: &str,
        listen: ListenDefaults,
    ) -> Result<Matcher, MatcherError> {
        let test = match (op, subject) {
            (Op::Match | Op::NotMatch, _) => Test::Regex(regex(pattern)?),
            (Op::Prefix, _) => Test::Prefix(pattern.into()),
            (Op::Suffix, _) => Test::Suffix(pattern.into()),
            (Op::Eq | Op::Ne, Subject::SocketAddress) => {
                Test::Equal(socket(pattern, listen)?.into_bytes())
            }
            (Op::Eq | Op::Ne, Subject::RemoteIp) => remote_address(pattern)?,
            (Op::Eq | Op::Ne, Subject::Host) => Test::Host(pattern.into()),
            (Op::Eq | Op::Ne, _) => Test::Equal(pattern.into()),
        };
        Ok(Matcher {
            negated: matches!(op, Op::Ne | Op::NotMatch),
            test,
        })
    }

    /// Whether the condition holds for `value`, which is empty if the request has none.
    ///
    /// For a socket, the value is the [canonical form](ListenAddress) of the listener's address; for a host,
    /// what the client sent, in lower case; for an address, its text.
    #[must_use]
    pub fn matches(&self, value: &[u8]) -> bool {
        let yes = match &self.test {
            Test::Equal(text) => text == value,
            Test::Prefix(text) => value.starts_with(text),
            Test::Suffix(text) => value.ends_with(text),
            Test::Host(host) => hosts_equal(host, value),
            Test::Address(range) => {
                text_address(value).is_some_and(|address| range.contains(address))
            }
            Test::Regex(pattern) => pattern.is_match(value),
        };
        yes != self.negated
    }

    /// Like [`Matcher::matches`], for an address in binary form ([`Subject::RemoteIp`]). Formats it as text
    /// only if the comparison needs that.
    #[must_use]
    pub fn matches_ip(&self, address: IpAddr) -> bool {
        match &self.test {
            Test::Address(range) => range.contains(address) != self.negated,
            _ => self.matches(address.to_canonical().to_string().as_bytes()),
        }
    }

    /// Whether the condition holds; stores its captures (`%0` to `%9`) in `out`. Only `=~` has groups. For
    /// `==`, `=^` and `=$`, `%0` is the compared text. Negated operators have no captures.
    pub fn captures(&self, value: &[u8], out: &mut Captures) -> bool {
        if let (Test::Regex(pattern), false) = (&self.test, self.negated) {
            return pattern.captures(value, out);
        }
        out.clear();
        let holds = self.matches(value);
        if holds && !self.negated {
            match &self.test {
                Test::Prefix(text) => out.push(0, text.len()),
                Test::Suffix(text) => out.push(value.len() - text.len(), value.len()),
                // At most one of the two has a port.
                Test::Host(text) => out.push(0, text.len().min(value.len())),
                Test::Equal(_) | Test::Address(_) | Test::Regex(_) => out.push(0, value.len()),
            }
        }
        holds
    }
}

fn regex(pattern: &str) -> Result<Pattern, MatcherError> {
    Pattern::compile(pattern).map_err(|error| MatcherError {
        message: format!("the regular expression does not compile: {}", error.message),
        offset: error.offset,
        hint: None,
    })
}

fn socket(pattern: &str, listen: ListenDefaults) -> Result<String, MatcherError> {
    match ListenAddress::parse(pattern, listen) {
        Ok(address) => Ok(address.to_string()),
        Err(error) => Err(MatcherError {
            message: error.message,
            offset: None,
            hint: Some(
                "write \":81\", \"127.0.0.1:81\", \"[::1]:81\", \"name:81\" or \"/path/of/socket\"",
            ),
        }),
    }
}

/// An empty pattern is no range, but compares whether there is an address at all.
fn remote_address(pattern: &str) -> Result<Test, MatcherError> {
    if pattern.is_empty() {
        return Ok(Test::Equal(Vec::new()));
    }
    // The address of a client on a unix socket is the path of the socket.
    if pattern.starts_with('/') {
        return Ok(Test::Equal(pattern.into()));
    }
    AddressRange::parse(pattern)
        .map(Test::Address)
        .map_err(|message| MatcherError {
            message,
            offset: None,
            hint: Some("write \"10.0.0.1\", \"10.0.0.0/8\", \"2001:db8::1\" or \"2001:db8::/32\""),
        })
}

fn text_address(value: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// As in lighttpd, the ports are compared only if both sides have one.
fn hosts_equal(pattern: &[u8], value: &[u8]) -> bool {
    if pattern.eq_ignore_ascii_case(value) {
        return true;
    }
    let (pattern_host, pattern_port) = split_port(pattern);
    let (value_host, value_port) = split_port(value);
    pattern_port.is_some() != value_port.is_some()
        && !pattern_host.is_empty()
        && pattern_host.eq_ignore_ascii_case(value_host)
}

/// Splits `host:port`. Colons in brackets belong to the address.
fn split_port(authority: &[u8]) -> (&[u8], Option<&[u8]>) {
    let Some(colon) = memchr::memrchr(b':', authority) else {
        return (authority, None);
    };
    let (host, port) = authority.split_at(colon);
    let port = port.get(1..).unwrap_or(b"");
    if port.is_empty() || !port.iter().all(u8::is_ascii_digit) {
        return (authority, None);
    }
    (host, Some(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTEN: ListenDefaults = ListenDefaults {
        port: 80,
        ipv6: false,
    };

    fn matches(subject: Subject, op: Op, pattern: &str, value: &str) -> bool {
        Matcher::compile(&subject, op, pattern, LISTEN)
            .expect("the pattern is sound")
            .matches(value.as_bytes())
    }

    #[test]
    fn a_port_of_a_host_counts_only_when_both_sides_have_one() {
        let host = |pattern, value| matches(Subject::Host, Op::Eq, pattern, value);
        assert!(host("a.example", "a.example"));
        assert!(host("a.example", "a.example:8080"));
        assert!(host("a.example:8080", "a.example"));
        assert!(host("a.example:8080", "a.example:8080"));
        assert!(!host("a.example:8080", "a.example:81"));
        assert!(host("[::1]", "[::1]:8080"));
        assert!(!host("[::1]", "[::2]:8080"));
        assert!(host("A.Example", "a.example"));
        assert!(host("", ""));
        assert!(!host("", ":80"));
        assert!(!matches(
            Subject::Host,
            Op::Ne,
            "a.example",
            "a.example:8080"
        ));
    }

    #[test]
    fn a_host_s_text_is_matched_as_it_is() {
        assert!(!matches(
            Subject::Host,
            Op::Match,
            r"^a\.example$",
            "a.example:8080"
        ));
        assert!(!matches(
            Subject::Host,
            Op::Suffix,
            "example",
            "a.example:8080"
        ));
        assert!(matches(Subject::Host, Op::Prefix, "a.ex", "a.example:8080"));
    }

    #[test]
    fn a_missing_value_is_an_empty_one() {
        assert!(matches(Subject::Referer, Op::Eq, "", ""));
        assert!(matches(Subject::Referer, Op::Ne, "x", ""));
        assert!(matches(Subject::Referer, Op::Match, "^$", ""));
        assert!(matches(Subject::Referer, Op::NotMatch, "x", ""));
    }

    #[test]
    fn addresses_are_compared_as_addresses() {
        let is = |pattern: &str, value: &str| matches(Subject::RemoteIp, Op::Eq, pattern, value);
        assert!(is("10.0.0.0/8", "10.255.0.1"));
        assert!(!is("10.0.0.0/8", "11.0.0.1"));
        assert!(is("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(is("2001:db8::/32", "2001:db8:1::5"));
        assert!(is("2001:DB8::1", "2001:db8:0:0::1"));
        assert!(!matches(
            Subject::RemoteIp,
            Op::Ne,
            "127.0.0.0/8",
            "127.0.0.1"
        ));
        assert!(matches(
            Subject::RemoteIp,
            Op::Match,
            r"^127\.0\.0\.1$|^::1$",
            "::1"
        ));
        let matcher =
            Matcher::compile(&Subject::RemoteIp, Op::Match, r"^10\.", LISTEN).expect("sound");
        assert!(matcher.matches_ip("::ffff:10.0.0.1".parse().expect("an address")));
    }

    #[test]
    fn socket_patterns_are_completed() {
        let is =
            |pattern: &str, value: &str| matches(Subject::SocketAddress, Op::Eq, pattern, value);
        assert!(is(":81", "0.0.0.0:81"));
        assert!(is("127.0.0.1", "127.0.0.1:80"));
        assert!(is("[::]:81", "[::]:81"));
        assert!(is("[0:0::1]:81", "[::1]:81"));
        assert!(!is("[::]:81", "0.0.0.0:81"));
        assert!(is("/run/s.sock", "/run/s.sock"));
    }

    #[test]
    fn only_positive_conditions_have_captures() {
        let mut captures = Captures::new();
        let compile = |op| Matcher::compile(&Subject::Host, op, "^(a)b", LISTEN).expect("sound");
        assert!(compile(Op::Match).captures(b"ab", &mut captures));
        assert_eq!(captures.group(1, b"ab"), b"a");
        assert!(!compile(Op::NotMatch).captures(b"ab", &mut captures));
        assert_eq!(captures, Captures::new());
        assert!(compile(Op::Ne).captures(b"ab", &mut captures));
        assert_eq!(captures, Captures::new());
        for (op, whole) in [(Op::Prefix, "a.b"), (Op::Suffix, "b.c"), (Op::Eq, "a.b.c")] {
            let matcher = Matcher::compile(&Subject::Host, op, whole, LISTEN).expect("sound");
            assert!(matcher.captures(b"a.b.c", &mut captures));
            assert_eq!(captures.group(0, b"a.b.c"), whole.as_bytes());
            assert_eq!(captures.group(1, b"a.b.c"), b"");
        }
        let host = Matcher::compile(&Subject::Host, Op::Eq, "a.b", LISTEN).expect("sound");
        assert!(host.captures(b"a.b:81", &mut captures));
        assert_eq!(captures.group(0, b"a.b:81"), b"a.b");
    }

    #[test]
    fn patterns_that_are_no_good_say_why() {
        let error = |subject, op, pattern| {
            Matcher::compile(&subject, op, pattern, LISTEN).expect_err("no good")
        };
        assert_eq!(error(Subject::Url, Op::Match, "(a").offset, Some(2));
        assert!(
            error(Subject::RemoteIp, Op::Eq, "foo")
                .message
                .contains("\"foo\" is no IP address")
        );
        assert!(
            error(Subject::RemoteIp, Op::Eq, "1.2.3.4/33")
                .message
                .contains("/33")
        );
        assert!(
            error(Subject::SocketAddress, Op::Eq, ":99999")
                .message
                .contains("99999")
        );
    }
}
