//! The requested host: checked and normalised, so that it can be compared.
//!
//! The rules are host-strict and host-normalize of lighttpd 1.4.

use std::io::Write;
use std::net::Ipv6Addr;

use super::HeadOptions;

/// Remembers the last host. A client asks for the same one again and again, and comparing is cheaper than
/// checking (for 15 bytes of address and port by 1,000 instructions).
#[derive(Clone, Debug)]
pub(super) struct Memo {
    raw: Vec<u8>,
    normalised: Vec<u8>,
    options: Option<HeadOptions>,
}

impl Memo {
    pub(super) const fn new() -> Memo {
        Memo {
            raw: Vec::new(),
            normalised: Vec::new(),
            options: None,
        }
    }

    /// As [`normalise`], but uses the remembered result if the host is the same.
    #[inline]
    pub(super) fn normalise(
        &mut self,
        out: &mut Vec<u8>,
        host: &[u8],
        options: &HeadOptions,
    ) -> Option<()> {
        if self.raw != host || self.options.as_ref() != Some(options) {
            self.options = None;
            self.normalised.clear();
            normalise(&mut self.normalised, host, options)?;
            self.raw.clear();
            self.raw.extend_from_slice(host);
            self.options = Some(*options);
        }
        out.extend_from_slice(&self.normalised);
        Some(())
    }
}

/// Appends the normalised form of `host` (a Host value or an authority) to the empty `out`: always in lower
/// case, with further steps by the options. `None` if it is not acceptable.
#[inline]
pub(super) fn normalise(out: &mut Vec<u8>, host: &[u8], options: &HeadOptions) -> Option<()> {
    if is_plain_name(host) {
        out.extend(host.iter().map(u8::to_ascii_lowercase));
        return Some(());
    }
    normalise_other(out, host, options)
}

/// Whether it is the usual case, which needs no change under any options: a name of letters, digits, hyphens
/// and single inner dots, whose labels begin with a letter, without a port.
fn is_plain_name(host: &[u8]) -> bool {
    let mut previous = b'.';
    for &byte in host {
        let fits = match byte {
            b'a'..=b'z' | b'A'..=b'Z' => true,
            b'0'..=b'9' | b'-' => previous != b'.',
            b'.' => previous != b'.',
            _ => false,
        };
        if !fits {
            return false;
        }
        previous = byte;
    }
    previous != b'.'
}

fn normalise_other(out: &mut Vec<u8>, host: &[u8], options: &HeadOptions) -> Option<()> {
    let (name, port) = split_port(host);
    if name.is_empty()
        || options.host_strict && !is_strict(name)
        || !options.host_strict && !is_safe(name)
    {
        return None;
    }
    if !(options.host_strict || options.host_normalize) {
        out.extend(host.iter().map(u8::to_ascii_lowercase));
        return (!host.contains(&b'/')).then_some(());
    }
    write_name(out, name, options)?;
    let port = read_port(port)?.filter(|&port| port != options.default_port);
    if let Some(port) = port {
        out.push(b':');
        out.extend_from_slice(itoa::Buffer::new().format(port).as_bytes());
    }
    Some(())
}

fn write_name(out: &mut Vec<u8>, name: &[u8], options: &HeadOptions) -> Option<()> {
    if let Some(address) = name.strip_prefix(b"[") {
        let address = address.strip_suffix(b"]")?;
        let address: Ipv6Addr = std::str::from_utf8(address).ok()?.parse().ok()?;
        return write!(out, "[{address}]").ok();
    }
    let without_dot = name.strip_suffix(b".").filter(|_| options.host_strict);
    out.extend(
        without_dot
            .unwrap_or(name)
            .iter()
            .map(u8::to_ascii_lowercase),
    );
    Some(())
}

/// `host` without its port; an IPv6 address keeps its brackets.
pub(super) fn without_port(host: &[u8]) -> &[u8] {
    split_port(host).0
}

/// Splits before the colon of the port. The second part is empty or begins with that colon or, after a
/// bracket, with something that is no port.
fn split_port(host: &[u8]) -> (&[u8], &[u8]) {
    let end = match host.first() {
        Some(b'[') => memchr::memchr(b']', host).map_or(host.len(), |bracket| bracket + 1),
        // Most hosts are so short that a search by vectors costs more.
        _ if host.len() <= SHORT_HOST_BYTES => {
            let colon = host.iter().position(|byte| *byte == b':');
            colon.unwrap_or(host.len())
        }
        _ => memchr::memchr(b':', host).unwrap_or(host.len()),
    };
    host.split_at(end)
}

const SHORT_HOST_BYTES: usize = 32;

/// Parses the second part of [`split_port`]. An empty port is no port (RFC 3986 3.2.3); `None` is an invalid
/// one.
fn read_port(port: &[u8]) -> Option<Option<u16>> {
    match port {
        [] | [b':'] => Some(None),
        [b':', digits @ ..] if digits[0] != b'0' && digits.iter().all(u8::is_ascii_digit) => {
            std::str::from_utf8(digits).ok()?.parse().ok().map(Some)
        }
        _ => None,
    }
}

/// Dotted labels of letters, digits and inner hyphens, with one trailing dot allowed; if the last label is
/// all digits, there must be four of those; or an address in brackets.
fn is_strict(name: &[u8]) -> bool {
    if name.starts_with(b"[") {
        return true; // Reading the address is the check.
    }
    let name = name.strip_suffix(b".").unwrap_or(name);
    let labels = || name.split(|&byte| byte == b'.');
    let is_label = |label: &[u8]| {
        label.first().is_some_and(u8::is_ascii_alphanumeric)
            && label
                .iter()
                .all(|&byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let is_number = |label: &[u8]| label.iter().all(u8::is_ascii_digit);
    let ends_in_number = labels().next_back().is_some_and(is_number);
    labels().all(is_label) && (!ends_in_number || labels().count() == 4 && labels().all(is_number))
}

/// The check without host-strict: a name that cannot lead out of a directory, since virtual-host modules use
/// it in paths.
fn is_safe(name: &[u8]) -> bool {
    !name.contains(&b'/') && name.iter().any(|&byte| byte != b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalised(host: &str, host_strict: bool, host_normalize: bool) -> Option<String> {
        let options = HeadOptions {
            host_strict,
            host_normalize,
            ..HeadOptions::default()
        };
        let mut out = Vec::new();
        normalise(&mut out, host.as_bytes(), &options)?;
        Some(String::from_utf8(out).expect("the input was UTF-8"))
    }

    #[test]
    fn strict_hosts_are_brought_to_one_form() {
        // What lighttpd 1.4.69 answers.
        for (host, expected) in [
            ("A.B", "a.b"),
            ("a:", "a"),
            ("a:80", "a"),
            ("a:443", "a:443"),
            ("a.", "a"),
            ("A.b.:80", "a.b"),
            ("a-.b-", "a-.b-"),
            ("1.a", "1.a"),
            ("a.1a", "a.1a"),
            ("1a", "1a"),
            ("01.2.3.4", "01.2.3.4"),
            ("256.1.1.1:81", "256.1.1.1:81"),
            ("[::0:1]", "[::1]"),
            ("[::FFFF]:80", "[::ffff]"),
        ] {
            assert_eq!(
                normalised(host, true, false).as_deref(),
                Some(expected),
                "{host}"
            );
        }
    }

    #[test]
    fn the_memo_never_answers_for_another_host_or_other_options() {
        let mut memo = Memo::new();
        let lax = HeadOptions {
            host_strict: false,
            host_normalize: false,
            ..HeadOptions::default()
        };
        let mut ask = |host: &str, options: &HeadOptions| {
            let mut out = Vec::new();
            memo.normalise(&mut out, host.as_bytes(), options)?;
            Some(String::from_utf8(out).expect("the input was UTF-8"))
        };
        let strict = HeadOptions::default();
        assert_eq!(ask("A:80", &strict).as_deref(), Some("a"));
        assert_eq!(ask("A:80", &strict).as_deref(), Some("a"));
        assert_eq!(ask("A:80", &lax).as_deref(), Some("a:80"));
        assert_eq!(ask("a_b", &strict), None);
        assert_eq!(ask("a_b", &strict), None);
        assert_eq!(ask("a_b", &lax).as_deref(), Some("a_b"));
        assert_eq!(ask("B", &strict).as_deref(), Some("b"));
    }

    #[test]
    fn strict_refuses_what_is_not_a_host() {
        for host in [
            "",
            " ",
            ".",
            "..",
            ".a",
            "a..",
            "a..b",
            "a.-b",
            "-a",
            "a_b",
            "a/b",
            "a b",
            "../x",
            "a\\b",
            "a@b",
            "a,b",
            "a?b",
            "a#b",
            "a\tb",
            "\u{e4}",
            "1",
            "1.2",
            "1.2.3",
            "1.2.3.4.5",
            "a.1",
            "a.b.c.1",
            "::1",
            "[::1",
            "[::g]",
            "[1:2:3]",
            "[::1%25eth0]",
            "[::1]x",
            ":80",
            "a:b",
            "a:1:2",
            "a:080",
            "a:0",
            "a:65536",
            "a:+1",
        ] {
            assert_eq!(normalised(host, true, false), None, "{host}");
        }
    }

    #[test]
    fn without_strictness_names_are_free_but_never_paths() {
        for host in ["a_b", "a..", "1.2", "\u{e4}", "a@b", "a:b"] {
            assert_eq!(normalised(host, false, false).as_deref(), Some(host));
        }
        assert_eq!(
            normalised("A_B:80", false, false).as_deref(),
            Some("a_b:80")
        );
        assert_eq!(normalised("A_b.:80", false, true).as_deref(), Some("a_b."));
        for host in ["", "..", "..:80", "../x", "a/b", "a:/../x"] {
            assert_eq!(normalised(host, false, false), None, "{host}");
        }
        assert_eq!(normalised("a:b", false, true), None);
    }

    #[test]
    fn the_port_is_split_off() {
        for (host, expected) in [("a:80", "a"), ("a", "a"), ("[::1]:80", "[::1]"), ("", "")] {
            assert_eq!(without_port(host.as_bytes()), expected.as_bytes());
        }
    }
}
