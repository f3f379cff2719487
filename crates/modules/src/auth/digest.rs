//! Digest authentication (RFC 7616): reads what a client has sent, and checks that it knows the password.
//!
//! Knows no file and no clock.

use std::borrow::Cow;

use md5::Md5;
use percent_encoding::percent_decode;
use sha2::{Digest as _, Sha256, Sha512_256};

use super::basic::after_scheme;
use super::htdigest::hex;

/// `algorithm`, `nonce-secret` and `userhash` of a rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DigestOptions {
    /// The strongest first.
    pub(super) algorithms: Vec<Algorithm>,
    /// The key that nonces are signed with, for several servers that accept one another's nonces.
    pub(super) secret: Option<Box<str>>,
    /// Clients may send the hash of the user's name in place of it.
    pub(super) has_userhash: bool,
}

/// A hash function, and whether the algorithm is the `-sess` one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Algorithm {
    pub(super) hash: HashFunction,
    is_session: bool,
}

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum HashFunction {
    Md5,
    Sha256,
    Sha512_256,
}

impl HashFunction {
    /// The hash of `parts` joined by colons, in hexadecimal digits.
    pub(super) fn of(self, parts: &[&[u8]]) -> Vec<u8> {
        let text = parts.join(&b':');
        match self {
            HashFunction::Md5 => hex(&Md5::digest(text)),
            HashFunction::Sha256 => hex(&Sha256::digest(text)),
            HashFunction::Sha512_256 => hex(&Sha512_256::digest(text)),
        }
    }

    /// How many hexadecimal digits a hash has.
    pub(super) fn digits(self) -> usize {
        match self {
            HashFunction::Md5 => 32,
            HashFunction::Sha256 | HashFunction::Sha512_256 => 64,
        }
    }
}

impl Algorithm {
    /// Its name in requests and configurations.
    pub(super) fn name(self) -> &'static str {
        let found = ALGORITHMS.into_iter().find(|(_, known)| *known == self);
        found.map_or("MD5", |(name, _)| name)
    }

    fn named(name: &str) -> Option<Algorithm> {
        let mut known = ALGORITHMS.into_iter();
        let (_, found) = known.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(found)
    }

    /// The algorithms in `list`, joined by `|`, the strongest first.
    ///
    /// # Errors
    /// The name of an algorithm that does not exist.
    pub(super) fn list(list: &str) -> Result<Vec<Algorithm>, String> {
        let named = |name: &str| {
            Algorithm::named(name.trim()).ok_or_else(|| {
                let known = ALGORITHMS.map(|(name, _)| name).join(", ");
                format!("{name:?} is none of {known}")
            })
        };
        let wanted = list.split('|').map(named).collect::<Result<Vec<_>, _>>()?;
        let strongest_first = ALGORITHMS.into_iter().rev().map(|(_, algorithm)| algorithm);
        Ok(strongest_first
            .filter(|algorithm| wanted.contains(algorithm))
            .collect())
    }
}

const fn algorithm(hash: HashFunction, is_session: bool) -> Algorithm {
    Algorithm { hash, is_session }
}

const ALGORITHMS: [(&str, Algorithm); 6] = [
    ("MD5", algorithm(HashFunction::Md5, false)),
    ("MD5-sess", algorithm(HashFunction::Md5, true)),
    ("SHA-256", algorithm(HashFunction::Sha256, false)),
    ("SHA-256-sess", algorithm(HashFunction::Sha256, true)),
    ("SHA-512-256", algorithm(HashFunction::Sha512_256, false)),
    (
        "SHA-512-256-sess",
        algorithm(HashFunction::Sha512_256, true),
    ),
];

/// The algorithm of rules and of clients that name none.
pub(super) const DEFAULT_ALGORITHM: Algorithm = ALGORITHMS[0].1;

/// What a client has sent.
#[derive(Debug, Default)]
pub(super) struct DigestResponse<'f> {
    pub(super) user: Cow<'f, [u8]>,
    /// `user` is the hash of the name.
    pub(super) is_userhash: bool,
    pub(super) realm: Cow<'f, [u8]>,
    pub(super) nonce: Cow<'f, [u8]>,
    pub(super) uri: Cow<'f, [u8]>,
    /// `None`: the client names an unknown algorithm.
    pub(super) algorithm: Option<Algorithm>,
    response: Cow<'f, [u8]>,
    client_nonce: Cow<'f, [u8]>,
    count: Cow<'f, [u8]>,
}

/// The content of an Authorization field.
#[derive(Debug)]
pub(super) enum DigestField<'f> {
    /// There is no field, or it has another scheme.
    Absent,
    /// A parameter is missing, comes twice or is damaged, or `qop` is not `auth`.
    Malformed,
    Response(DigestResponse<'f>),
}

/// Reads the value of Authorization.
pub(super) fn read(field: Option<&[u8]>) -> DigestField<'_> {
    let Some(parameters) = field.and_then(|field| after_scheme(field, b"digest")) else {
        return DigestField::Absent;
    };
    match read_response(parameters) {
        Some(response) => DigestField::Response(response),
        None => DigestField::Malformed,
    }
}

impl DigestResponse<'_> {
    /// How many requests the client has sent with the nonce, this one included, as it says.
    pub(super) fn count(&self) -> u32 {
        // `read_response` takes eight hexadecimal digits alone.
        let digits = str::from_utf8(&self.count).ok();
        let count = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        count.unwrap_or_default()
    }

    /// Whether the client has made it with `secret` (the hash of `user:realm:password`, in hexadecimal
    /// digits) for a request with `method`.
    pub(super) fn proves(&self, algorithm: Algorithm, secret: &[u8], method: &str) -> bool {
        let hash = algorithm.hash;
        let session;
        let secret: &[u8] = match algorithm.is_session {
            true => {
                session = hash.of(&[secret, &self.nonce, &self.client_nonce]);
                &session
            }
            false => secret,
        };
        let request = hash.of(&[method.as_bytes(), &self.uri]);
        let parts: [&[u8]; 6] = [
            secret,
            &self.nonce,
            &self.count,
            &self.client_nonce,
            b"auth",
            &request,
        ];
        let expected = hash.of(&parts);
        super::password::are_equal(&expected, &self.response.to_ascii_lowercase())
    }
}

fn read_response(mut rest: &[u8]) -> Option<DigestResponse<'_>> {
    let mut all: [Option<Cow<'_, [u8]>>; NAMES.len()] = Default::default();
    loop {
        rest = rest.trim_ascii_start();
        let Some(first) = rest.first() else { break };
        if *first == b',' {
            rest = rest.get(1..)?;
            continue;
        }
        let equals = memchr::memchr(b'=', rest)?;
        let name = rest.get(..equals)?.trim_ascii_end();
        let (value, behind) = value(rest.get(equals + 1..)?.trim_ascii_start())?;
        rest = behind.trim_ascii_start();
        if !matches!(rest.first(), None | Some(b',')) {
            return None;
        }
        let place = NAMES
            .iter()
            .position(|known| name.eq_ignore_ascii_case(known.as_bytes()));
        if let Some(place) = place
            && all[place].replace(value).is_some()
        {
            return None;
        }
    }
    let [
        user,
        extended,
        realm,
        nonce,
        uri,
        response,
        algorithm,
        qop,
        count,
        client_nonce,
        userhash,
    ] = all;
    if !qop?.eq_ignore_ascii_case(b"auth") {
        return None;
    }
    let user = match (user, extended) {
        (Some(user), None) => user,
        (None, Some(extended)) => Cow::Owned(read_extended(&extended)?),
        _ => return None,
    };
    let (count, client_nonce) = (count?, client_nonce?);
    let is_count = count.len() == 8 && count.iter().all(u8::is_ascii_hexdigit);
    is_count.then_some(DigestResponse {
        user,
        is_userhash: userhash.is_some_and(|value| value.eq_ignore_ascii_case(b"true")),
        realm: realm?,
        nonce: nonce?,
        uri: uri?,
        algorithm: match algorithm {
            None => Some(DEFAULT_ALGORITHM),
            Some(name) => str::from_utf8(&name).ok().and_then(Algorithm::named),
        },
        response: response?,
        client_nonce,
        count,
    })
}

const NAMES: [&str; 11] = [
    "username",
    "username*",
    "realm",
    "nonce",
    "uri",
    "response",
    "algorithm",
    "qop",
    "nc",
    "cnonce",
    "userhash",
];

/// Splits off a token or a quoted-string.
fn value(text: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let end = memchr::memchr3(b',', b' ', b'\t', text).unwrap_or(text.len());
        let (token, behind) = text.split_at_checked(end)?;
        return (!token.is_empty()).then_some((Cow::Borrowed(token), behind));
    };
    let end = memchr::memchr2(b'"', b'\\', quoted)?;
    if quoted.get(end) == Some(&b'"') {
        return Some((Cow::Borrowed(quoted.get(..end)?), quoted.get(end + 1..)?));
    }
    let mut value = Vec::new();
    let mut bytes = quoted.iter().enumerate();
    while let Some((place, byte)) = bytes.next() {
        match byte {
            b'"' => return Some((Cow::Owned(value), quoted.get(place + 1..)?)),
            b'\\' => value.push(*bytes.next()?.1),
            _ => value.push(*byte),
        }
    }
    None
}

/// `UTF-8''` and the name in percent-encoding (RFC 8187).
fn read_extended(text: &[u8]) -> Option<Vec<u8>> {
    let (charset, encoded) = text.split_at_checked(7)?;
    let decoded: Vec<u8> = percent_decode(encoded).collect();
    charset.eq_ignore_ascii_case(b"utf-8''").then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 7616 section 3.9.1.
    const COMMON: &str = "username=\"Mufasa\", realm=\"http-auth@example.org\", uri=\"/dir/index.html\", \
        nonce=\"7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v\", nc=00000001, \
        cnonce=\"f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ\", qop=auth";

    fn response(field: &str) -> Option<DigestResponse<'_>> {
        match read(Some(field.as_bytes())) {
            DigestField::Response(response) => Some(response),
            DigestField::Absent | DigestField::Malformed => None,
        }
    }

    #[test]
    fn the_examples_of_the_standard_are_right() {
        for (name, hash) in [
            ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
            (
                "SHA-256",
                "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1",
            ),
        ] {
            let field = format!("Digest {COMMON}, algorithm={name}, response=\"{hash}\"");
            let response = response(&field).expect("well formed");
            let algorithm = response.algorithm.expect("known");
            assert_eq!(algorithm.name(), name);
            let secret =
                algorithm
                    .hash
                    .of(&[b"Mufasa", b"http-auth@example.org", b"Circle of Life"]);
            assert!(response.proves(algorithm, &secret, "GET"), "{name}");
            assert!(!response.proves(algorithm, &secret, "POST"));
            let other = algorithm
                .hash
                .of(&[b"Mufasa", b"http-auth@example.org", b"Circle"]);
            assert!(!response.proves(algorithm, &other, "GET"));
        }
    }

    #[test]
    fn what_is_missing_or_damaged_is_malformed() {
        let whole = format!("Digest {COMMON}, response=\"00\"");
        assert!(response(&whole).is_some());
        for (from, to) in [
            ("response=\"00\"", ""),
            ("nc=00000001, ", ""),
            ("nc=00000001", "nc=1"),
            ("qop=auth", "qop=auth-int"),
            ("qop=auth", "opaque=x"),
            ("uri=\"/dir/index.html\"", "uri=\"/dir/index.html"),
            ("realm=\"http-auth@example.org\"", "realm"),
            ("qop=auth", "qop=auth, uri=\"/other\""),
            ("qop=auth", "qop=auth, username*=UTF-8''x"),
            ("qop=auth", "qop=\"auth\"x"),
        ] {
            let field = whole.replace(from, to);
            assert_ne!(field, whole);
            assert!(
                matches!(read(Some(field.as_bytes())), DigestField::Malformed),
                "{field}"
            );
        }
        assert!(matches!(read(Some(b"Basic x")), DigestField::Absent));
        assert!(matches!(read(None), DigestField::Absent));
    }

    #[test]
    fn names_are_unquoted() {
        let field = format!("Digest {COMMON}, response=\"00\"").replace("Mufasa", "a\\\"b\\\\c");
        assert_eq!(
            response(&field).expect("well formed").user.as_ref(),
            b"a\"b\\c"
        );
        let field = format!("Digest {COMMON}, response=00")
            .replace("username=\"Mufasa\"", "username*=UTF-8''J%C3%A4s%C3%B8n");
        assert_eq!(
            response(&field).expect("well formed").user.as_ref(),
            "Jäsøn".as_bytes()
        );
    }

    #[test]
    fn algorithms_are_offered_strongest_first() {
        let names = |list: &str| {
            let list = Algorithm::list(list).expect("known");
            list.into_iter().map(Algorithm::name).collect::<Vec<_>>()
        };
        assert_eq!(names("MD5"), ["MD5"]);
        assert_eq!(names("md5|SHA-256"), ["SHA-256", "MD5"]);
        assert!(Algorithm::list("MD5|SHA-1").is_err() && Algorithm::list("").is_err());
    }
}
