//! Forwarded (RFC 7239) and X-Forwarded-For: the proxies that a request passed through.
//!
//! Both fields list the client first and the nearest proxy last, because each proxy appends the address it
//! got the request from. Clients can forge the beginning of such a field. The caller decides which proxies to
//! trust, going from the last element to the first.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// One element of Forwarded: what one proxy says about the request that it received. Values are unquoted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hop<'a> {
    /// `for`: the peer that sent the request to the proxy.
    pub for_: Option<Cow<'a, [u8]>>,
    /// `by`: the address at which the proxy received the request.
    pub by: Option<Cow<'a, [u8]>>,
    /// `host`: the requested host.
    pub host: Option<Cow<'a, [u8]>>,
    /// `proto`: the scheme of the request.
    pub proto: Option<Cow<'a, [u8]>>,
    /// `remote_user`: an extension of lighttpd, the user name of the client.
    pub remote_user: Option<Cow<'a, [u8]>>,
}

/// The peer in a `for` or `by` parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// An address, with port 0 if none was given.
    Address(SocketAddr),
    /// `unknown`, an identifier that hides the address, or an invalid value.
    Hidden,
}

/// Why a Forwarded field is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForwardedError {
    /// It violates the grammar.
    Malformed,
    /// An element has the same parameter twice, which RFC 7239 4 forbids.
    Repeated,
    /// It has more than [`HOPS_MAX`] elements.
    TooMany,
}

/// The most elements of a Forwarded field. Real requests pass through a handful of proxies.
pub const HOPS_MAX: usize = 64;

/// Parses a Forwarded field; several fields are joined by commas first. Empty elements are skipped, and
/// unknown parameters are dropped. A value may hold colons and brackets without being quoted, because many
/// senders forget to quote it.
///
/// # Errors
/// The field is malformed.
pub fn parse(field: &[u8]) -> Result<Vec<Hop<'_>>, ForwardedError> {
    let mut hops = Vec::new();
    let mut hop = Hop::default();
    let mut is_empty = true;
    let mut rest = field;
    loop {
        rest = rest.trim_ascii_start();
        match rest.split_first() {
            Some((b';', after)) => rest = after,
            Some((b',', _)) | None => {
                if !std::mem::replace(&mut is_empty, true) {
                    if hops.len() == HOPS_MAX {
                        return Err(ForwardedError::TooMany);
                    }
                    hops.push(std::mem::take(&mut hop));
                }
                match rest.split_first() {
                    Some((_, after)) => rest = after,
                    None => return Ok(hops),
                }
            }
            Some(_) => {
                rest = hop.parameter(rest)?;
                is_empty = false;
            }
        }
    }
}

/// The addresses of an X-Forwarded-For field, the farthest one first. Empty ones are skipped.
pub fn addresses(field: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    field
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|address| !address.is_empty())
}

impl Node {
    /// Parses a node identifier (RFC 7239 6): an address with or without a port. An IPv6 address may lack its
    /// brackets. An IPv4-mapped address becomes an IPv4 one.
    pub fn parse(text: &[u8]) -> Node {
        match std::str::from_utf8(text).ok().and_then(address) {
            Some((ip, port)) => Node::Address(SocketAddr::new(ip.to_canonical(), port)),
            None => Node::Hidden,
        }
    }
}

fn address(text: &str) -> Option<(IpAddr, u16)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (ip, after) = rest.split_once(']')?;
        let ip: Ipv6Addr = ip.parse().ok()?;
        let port = match after.strip_prefix(':') {
            Some(digits) => port(digits)?,
            None if after.is_empty() => 0,
            None => return None,
        };
        return Some((IpAddr::V6(ip), port));
    }
    if let Ok(ip) = text.parse() {
        return Some((ip, 0));
    }
    let (ip, digits) = text.split_once(':')?;
    Some((IpAddr::V4(ip.parse().ok()?), port(digits)?))
}

/// Parses a port. A hidden one (`_obfuscated`) counts as 0.
fn port(text: &str) -> Option<u16> {
    if text.starts_with('_') {
        return Some(0);
    }
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok())?
}

impl<'a> Hop<'a> {
    /// Reads `name=value` at the beginning of `text`. Returns the rest, which is empty or begins with a
    /// separator.
    fn parameter(&mut self, text: &'a [u8]) -> Result<&'a [u8], ForwardedError> {
        let equals = text
            .iter()
            .position(|byte| !is_name(*byte))
            .unwrap_or(text.len());
        let (name, rest) = text.split_at(equals);
        let Some((b'=', rest)) = rest.split_first() else {
            return Err(ForwardedError::Malformed);
        };
        let (value, rest) = match rest.split_first() {
            Some((b'"', inner)) => quoted(inner)?,
            _ => plain(rest)?,
        };
        let rest = rest.trim_ascii_start();
        let is_end = matches!(rest.first(), None | Some(b';' | b','));
        if name.is_empty() || !is_end {
            return Err(ForwardedError::Malformed);
        }
        if let Some(place) = self.place(name)
            && place.replace(value).is_some()
        {
            return Err(ForwardedError::Repeated);
        }
        Ok(rest)
    }

    fn place(&mut self, name: &[u8]) -> Option<&mut Option<Cow<'a, [u8]>>> {
        let named = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        match name.len() {
            2 if named("by") => Some(&mut self.by),
            3 if named("for") => Some(&mut self.for_),
            4 if named("host") => Some(&mut self.host),
            5 if named("proto") => Some(&mut self.proto),
            11 if named("remote_user") => Some(&mut self.remote_user),
            _ => None,
        }
    }
}

fn is_name(byte: u8) -> bool {
    crate::syntax::is_token(&[byte])
}

/// Reads a quoted string after its opening quotation mark. Returns it and the rest after the closing one.
fn quoted(text: &[u8]) -> Result<(Cow<'_, [u8]>, &[u8]), ForwardedError> {
    let special = text
        .iter()
        .position(|byte| matches!(byte, b'"' | b'\\'))
        .ok_or(ForwardedError::Malformed)?;
    let (start, mut rest) = text.split_at(special);
    if let Some((b'"', after)) = rest.split_first() {
        return Ok((Cow::Borrowed(start), after));
    }
    let mut value = start.to_vec();
    loop {
        let (byte, after) = match rest {
            [b'"', after @ ..] => return Ok((Cow::Owned(value), after)),
            [b'\\', escaped, after @ ..] => (*escaped, after),
            [b'\\'] | [] => return Err(ForwardedError::Malformed),
            [byte, after @ ..] => (*byte, after),
        };
        value.push(byte);
        rest = after;
    }
}

/// Reads an unquoted value, which must not be empty. Returns it and the rest.
fn plain(text: &[u8]) -> Result<(Cow<'_, [u8]>, &[u8]), ForwardedError> {
    let is_value = |byte: &u8| is_name(*byte) || matches!(byte, b':' | b'[' | b']' | b'/' | b'@');
    let length = text.iter().take_while(|byte| is_value(byte)).count();
    match text.split_at(length) {
        ([], _) => Err(ForwardedError::Malformed),
        (value, rest) => Ok((Cow::Borrowed(value), rest)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `for|by|host|proto|remote_user` of each hop.
    fn read(field: &str) -> Result<Vec<String>, ForwardedError> {
        let shown = |value: Option<Cow<'_, [u8]>>| match value {
            Some(value) => String::from_utf8_lossy(&value).into_owned(),
            None => "-".to_owned(),
        };
        let hops = parse(field.as_bytes())?.into_iter();
        Ok(hops
            .map(|hop| {
                [hop.for_, hop.by, hop.host, hop.proto, hop.remote_user]
                    .map(shown)
                    .join("|")
            })
            .collect())
    }

    #[test]
    fn hops_are_read_with_all_their_parameters() {
        for (field, expected) in [
            ("", &[][..]),
            (" , ;, ", &[]),
            (
                "for=192.0.2.60;proto=http;by=203.0.113.43",
                &["192.0.2.60|203.0.113.43|-|http|-"],
            ),
            (
                "for=192.0.2.43, for=198.51.100.17",
                &["192.0.2.43|-|-|-|-", "198.51.100.17|-|-|-|-"],
            ),
            (
                "For=\"[2001:db8::1]:4711\"",
                &["[2001:db8::1]:4711|-|-|-|-"],
            ),
            (
                "for=[::1]:80;HOST=a.example:81",
                &["[::1]:80|-|a.example:81|-|-"],
            ),
            (
                "for=_hidden ; ; other=x;host=\"a\\\"b\\\\c\" ,",
                &["_hidden|-|a\"b\\c|-|-"],
            ),
            ("remote_user=\"a, b;c=d\";for=\"\"", &["|-|-|-|a, b;c=d"]),
        ] {
            let expected: Vec<_> = expected.iter().map(|&hop| hop.to_owned()).collect();
            assert_eq!(read(field), Ok(expected), "{field:?}");
        }
    }

    #[test]
    fn what_breaks_the_grammar_is_refused() {
        for field in [
            "for",
            "for=",
            "=x",
            "for=;",
            "for=\"",
            "for=\"a",
            "for=\"a\\",
            "for=\"a\\\"",
            "for=\"a\"b",
            "for = x",
            "for=a b=c",
            "for=a\u{e4}",
            "f r=a",
            "for=\"a\" \"b\"",
        ] {
            assert_eq!(read(field), Err(ForwardedError::Malformed), "{field:?}");
        }
        assert_eq!(read("for=a;for=b"), Err(ForwardedError::Repeated));
        assert_eq!(read("other=a;other=b"), Ok(vec!["-|-|-|-|-".to_owned()]));
        let many = |count: usize| "for=a,".repeat(count);
        assert_eq!(read(&many(HOPS_MAX)).map(|hops| hops.len()), Ok(HOPS_MAX));
        assert_eq!(read(&many(HOPS_MAX + 1)), Err(ForwardedError::TooMany));
    }

    #[test]
    fn nodes_are_addresses_or_hidden() {
        for (text, expected) in [
            ("192.0.2.1", "192.0.2.1:0"),
            ("192.0.2.1:80", "192.0.2.1:80"),
            ("192.0.2.1:_port", "192.0.2.1:0"),
            ("2001:db8::1", "[2001:db8::1]:0"),
            ("[2001:db8::1]", "[2001:db8::1]:0"),
            ("[2001:db8::1]:443", "[2001:db8::1]:443"),
            ("::ffff:192.0.2.1", "192.0.2.1:0"),
        ] {
            let expected = expected.parse().expect("an address");
            assert_eq!(
                Node::parse(text.as_bytes()),
                Node::Address(expected),
                "{text}"
            );
        }
        for text in [
            "",
            "unknown",
            "_hidden",
            "192.0.2.256",
            "192.0.2.1:",
            "192.0.2.1:65536",
            "192.0.2.1:+8",
            "[192.0.2.1]",
            "[::1",
            "[::1]80",
            "[::1]:",
            "::1]",
            "a.example",
            "192.0.2.1 ",
            "\u{e4}",
        ] {
            assert_eq!(Node::parse(text.as_bytes()), Node::Hidden, "{text:?}");
        }
    }

    #[test]
    fn addresses_come_without_white_space() {
        let list: Vec<_> = addresses(b" a ,, b,\tc ").collect();
        assert_eq!(list, [&b"a"[..], b"b", b"c"]);
        assert_eq!(addresses(b" , ").next(), None);
    }

    proptest! {
        #[test]
        fn any_field_is_survived(field: Vec<u8>) {
            let _ = parse(&field);
            for address in addresses(&field) {
                let _ = Node::parse(address);
            }
        }

        #[test]
        fn a_quoted_value_comes_out_as_it_went_in(value in "[ -~]{0,20}") {
            let quoted = value.replace('\\', "\\\\").replace('"', "\\\"");
            let field = format!("for=\"{quoted}\", for=x");
            let hops = parse(field.as_bytes());
            let first = hops.as_ref().ok().and_then(|hops| hops.first());
            prop_assert_eq!(first.and_then(|hop| hop.for_.as_deref()), Some(value.as_bytes()));
        }
    }
}
