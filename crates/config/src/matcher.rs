//! Compiled comparisons of conditions.

use std::net::IpAddr;

use crate::pattern::{Captures, Pattern};

/// A comparison ready to be asked.
#[derive(Debug)]
pub struct Matcher {
    negated: bool,
    test: Test,
}

#[derive(Debug)]
enum Test {
    Equal(String),
    Regex(Pattern),
}

impl Matcher {
    /// Whether the condition holds for `value` (empty when the request has none).
    #[must_use]
    pub fn matches(&self, value: &[u8]) -> bool {
        let yes = match &self.test {
            Test::Equal(text) => text.as_bytes() == value,
            Test::Regex(pattern) => pattern.is_match(value),
        };
        yes != self.negated
    }

    /// The same for an address that is there in binary form ([`Subject::RemoteIp`](crate::Subject::RemoteIp)).
    #[must_use]
    pub fn matches_ip(&self, address: IpAddr) -> bool {
        self.matches(address.to_string().as_bytes())
    }

    /// Whether the condition holds, with its captures (`%0` to `%9`) put into `out`.
    /// Only `=~` has captures; for the others `out` is emptied.
    pub fn captures(&self, value: &[u8], out: &mut Captures) -> bool {
        match &self.test {
            Test::Regex(pattern) if !self.negated => pattern.captures(value, out),
            _ => {
                *out = Captures::new();
                self.matches(value)
            }
        }
    }
}
