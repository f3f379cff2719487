//! Reads `auth.require`: which URLs are guarded, how clients log in, and which users may have them.

use std::net::IpAddr;

use petrel_engine::config::{AddressRange, Array, Diagnostic, Element, Span};
use petrel_engine::settings::Values;

use super::digest::{Algorithm, DEFAULT_ALGORITHM, DigestOptions};

/// The rule for URLs that begin with a prefix.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) prefix: Box<[u8]>,
    pub(super) method: Method,
    pub(super) realm: Box<str>,
    pub(super) who: Who,
    /// Where its prefix stands.
    pub(super) span: Span,
}

/// How clients log in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// RFC 7617.
    Basic,
    /// RFC 7616.
    Digest(DigestOptions),
    /// Another module has set REMOTE_USER.
    Extern,
}

/// The clients that a rule lets in.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Who {
    /// Every user.
    pub(super) all: bool,
    pub(super) users: Vec<Box<[u8]>>,
    pub(super) groups: Vec<Box<[u8]>>,
    /// Clients at these addresses need no password.
    addresses: Vec<AddressRange>,
}

impl Method {
    /// The value of AUTH_TYPE.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Method::Basic => "Basic",
            Method::Digest(_) => "Digest",
            Method::Extern => "",
        }
    }
}

impl Rule {
    /// Whether this rule guards `path`.
    pub(super) fn covers(&self, path: &[u8], ignores_case: bool) -> bool {
        path.get(..self.prefix.len())
            .is_some_and(|start| match ignores_case {
                true => start.eq_ignore_ascii_case(&self.prefix),
                false => *start == *self.prefix,
            })
    }
}

impl Who {
    /// Whether the rule lets `user` in; `is_member` says whether that user is in a group.
    pub(super) fn includes(&self, user: &[u8], is_member: impl Fn(&[u8]) -> bool) -> bool {
        self.all
            || self.users.iter().any(|name| **name == *user)
            || self.groups.iter().any(|group| is_member(group))
    }

    /// Whether the rule lets a client at `address` in without a password. `None`: the client comes by a unix
    /// socket.
    pub(super) fn needs_no_password(&self, address: Option<IpAddr>) -> bool {
        let mut ranges = self.addresses.iter();
        address.is_some_and(|address| ranges.any(|range| range.contains(address)))
    }

    /// Whether the rule names addresses and no user, so that no password lets a client in.
    pub(super) fn is_of_addresses_alone(&self) -> bool {
        let names_users = self.all || !self.users.is_empty() || !self.groups.is_empty();
        !self.addresses.is_empty() && !names_users
    }

    /// `valid-user`, or rules such as `user=anna|group=staff|address=10.0.0.0/8`.
    fn read(text: &str) -> Result<Who, String> {
        let mut who = Who::default();
        for rule in text.split('|') {
            if rule == "valid-user" {
                who.all = true;
                continue;
            }
            let (kind, name) = match rule.split_once('=') {
                Some((kind, name)) if !name.is_empty() => (kind, name),
                _ => return Err(format!("{rule:?} is neither valid-user nor user=NAME")),
            };
            match kind {
                "user" => who.users.push(name.as_bytes().into()),
                "group" => who.groups.push(name.as_bytes().into()),
                "address" => who.addresses.push(AddressRange::parse(name)?),
                // lighttpd accepts it, and it never matches there.
                "host" => {}
                _ => return Err(format!("{kind:?} is none of user, group and address")),
            }
        }
        Ok(who)
    }
}

/// Reads the rules in their order: the first whose prefix fits counts.
///
/// # Errors
/// A rule is wrong.
pub(super) fn read(values: &Values<'_>) -> Result<Vec<Rule>, Diagnostic> {
    let rules = values
        .array("auth.require")
        .into_iter()
        .flat_map(Array::iter);
    rules.map(rule).collect()
}

fn rule(element: &Element) -> Result<Rule, Diagnostic> {
    let error = |message: String| Diagnostic::error(message, element.span);
    let (Some(prefix), Some(options)) = (element.key(), element.value.as_array()) else {
        let message = "auth.require takes \"/prefix\" => ( \"method\" => ..., \"realm\" => ..., \"require\" => ... )";
        return Err(error(message.to_owned()));
    };
    for option in options.iter() {
        let key = option.key().unwrap_or_default();
        if !KEYS.contains(&key) || option.value.as_str().is_none() {
            let message = format!(
                "{key:?} is none of {}, or its value is no string",
                KEYS.join(", ")
            );
            return Err(Diagnostic::error(message, option.span));
        }
    }
    let text = |key: &str| options.get(key).and_then(|option| option.value.as_str());
    let needed = |key: &str| {
        text(key).ok_or_else(|| error(format!("{key} is missing in auth.require for {prefix:?}")))
    };
    let method = match needed("method")? {
        "basic" => Method::Basic,
        "digest" => Method::Digest(digest_options(&text).map_err(error)?),
        "extern" => Method::Extern,
        other => {
            return Err(error(format!(
                "{other:?} is none of basic, digest and extern"
            )));
        }
    };
    let realm = needed("realm")?;
    if realm.chars().any(char::is_control) {
        return Err(error("a realm has no control characters".to_owned()));
    }
    Ok(Rule {
        prefix: prefix.as_bytes().into(),
        method,
        realm: realm.into(),
        who: Who::read(needed("require")?).map_err(error)?,
        span: element.key.as_ref().map_or(element.span, |key| key.span),
    })
}

/// Reads `algorithm`, `nonce-secret` (or `nonce_secret`) and `userhash`.
fn digest_options<'c>(text: &impl Fn(&str) -> Option<&'c str>) -> Result<DigestOptions, String> {
    let secret = text("nonce-secret").or_else(|| text("nonce_secret"));
    Ok(DigestOptions {
        algorithms: Algorithm::list(text("algorithm").unwrap_or(DEFAULT_ALGORITHM.name()))?,
        secret: secret.filter(|secret| !secret.is_empty()).map(Into::into),
        has_userhash: text("userhash") == Some("enable"),
    })
}

const KEYS: [&str; 7] = [
    "method",
    "realm",
    "require",
    "algorithm",
    "nonce-secret",
    "nonce_secret",
    "userhash",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_let_in() {
        let in_staff = |group: &[u8]| group == b"staff";
        let none = |_: &[u8]| false;
        let valid = Who::read("valid-user").expect("valid");
        assert!(valid.includes(b"x", none));
        let some = Who::read("user=anna|user=bob|group=staff").expect("valid");
        assert!(some.includes(b"anna", none) && some.includes(b"bob", none));
        assert!(!some.includes(b"Anna", none) && !some.includes(b"", none));
        assert!(some.includes(b"carl", in_staff));
        assert!(Who::read("user=x|valid-user").is_ok_and(|who| who.all));
        let hosts = Who::read("host=example.org").expect("taken as lighttpd does");
        assert!(!hosts.includes(b"example.org", none));
    }

    #[test]
    fn clients_at_named_addresses_need_no_password() {
        let address = |text: &str| Some(text.parse().expect("an address"));
        let who = "address=10.0.0.0/8|user=anna|address=2001:db8::/32|address=192.0.2.7";
        let who = Who::read(who).expect("valid");
        for inside in ["10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7", "2001:db8::1"] {
            assert!(who.needs_no_password(address(inside)), "{inside}");
        }
        for outside in ["11.0.0.1", "192.0.2.8", "2001:db9::1", "::1"] {
            assert!(!who.needs_no_password(address(outside)), "{outside}");
        }
        assert!(!who.needs_no_password(None));
        assert!(who.includes(b"anna", |_| false) && !who.includes(b"10.1.2.3", |_| false));
        assert!(!who.is_of_addresses_alone());
        let alone = |text: &str| Who::read(text).is_ok_and(|who| who.is_of_addresses_alone());
        assert!(alone("address=::/0") && alone("address=::1|host=x"));
        assert!(!alone("address=::1|valid-user") && !alone("address=::1|group=g"));
        assert!(!alone("host=x"));
    }

    #[test]
    fn other_words_are_refused() {
        for text in [
            "",
            "address=",
            "address=a.example",
            "address=10.0.0.0/33",
            "address=10.0.0.0/8,::1",
            "anna",
            "user=",
            "=x",
            "owner=x",
            "user=a|",
            "user=a||user=b",
        ] {
            assert!(Who::read(text).is_err(), "{text:?}");
        }
    }
}
