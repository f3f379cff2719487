//! Digests, checksums and message authentication.
//!
//! MD5 and SHA-1 are available for old protocols and for file names; neither resists an attacker.

use hmac::{KeyInit, Mac, SimpleHmac};
use md5::{Digest, Md5};
use mlua::{Lua, LuaString, Result, Table};
use sha1::Sha1;
use sha2::{Sha256, Sha384, Sha512};

/// A digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// 16 bytes (RFC 1321).
    Md5,
    /// 20 bytes (FIPS 180-4).
    Sha1,
    /// 32 bytes (FIPS 180-4).
    Sha256,
    /// 48 bytes (FIPS 180-4).
    Sha384,
    /// 64 bytes (FIPS 180-4).
    Sha512,
}

impl Algorithm {
    /// All algorithms with their names in scripts.
    pub const NAMES: [(&'static str, Algorithm); 5] = [
        ("md5", Algorithm::Md5),
        ("sha1", Algorithm::Sha1),
        ("sha256", Algorithm::Sha256),
        ("sha384", Algorithm::Sha384),
        ("sha512", Algorithm::Sha512),
    ];

    /// The algorithm of this name, in lower case.
    #[must_use]
    pub fn named(name: &[u8]) -> Option<Algorithm> {
        let found = Self::NAMES.iter().find(|entry| entry.0.as_bytes() == name);
        found.map(|entry| entry.1)
    }

    /// The digest of `bytes`.
    #[must_use]
    pub fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Algorithm::Md5 => Md5::digest(bytes).to_vec(),
            Algorithm::Sha1 => Sha1::digest(bytes).to_vec(),
            Algorithm::Sha256 => Sha256::digest(bytes).to_vec(),
            Algorithm::Sha384 => Sha384::digest(bytes).to_vec(),
            Algorithm::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }

    /// The authentication code of `bytes` under `key` (RFC 2104); keys may have any length.
    #[must_use]
    pub fn hmac(self, key: &[u8], bytes: &[u8]) -> Vec<u8> {
        match self {
            Algorithm::Md5 => code::<SimpleHmac<Md5>>(key, bytes),
            Algorithm::Sha1 => code::<SimpleHmac<Sha1>>(key, bytes),
            Algorithm::Sha256 => code::<SimpleHmac<Sha256>>(key, bytes),
            Algorithm::Sha384 => code::<SimpleHmac<Sha384>>(key, bytes),
            Algorithm::Sha512 => code::<SimpleHmac<Sha512>>(key, bytes),
        }
    }
}

fn code<M: Mac + KeyInit>(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut code = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    code.update(bytes);
    code.finalize().into_bytes().to_vec()
}

/// The CRC-32 of `bytes`, as in zip, gzip and Ethernet.
#[must_use]
fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// The letter case of hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// `a` to `f`.
    Lower,
    /// `A` to `F`.
    Upper,
}

/// `bytes` as hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8], case: Case) -> String {
    let digits: &[u8; 16] = match case {
        Case::Lower => b"0123456789abcdef",
        Case::Upper => b"0123456789ABCDEF",
    };
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(char::from(digits[usize::from(byte >> 4)]));
        text.push(char::from(digits[usize::from(byte & 15)]));
    }
    text
}

/// Decodes hexadecimal digits of either case; `None` if their number is odd or another character occurs.
#[must_use]
pub fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    text.chunks_exact(2)
        .map(|pair| match pair {
            [high, low] => Some(value(*high)? << 4 | value(*low)?),
            _ => None,
        })
        .collect()
}

/// Whether two secrets are equal, in a time that depends only on their lengths.
#[must_use]
pub fn is_equal(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |seen, (a, b)| seen | (a ^ b));
    a.len() == b.len() && std::hint::black_box(difference) == 0
}

/// The library as a table.
///
/// `md5(s)`, `sha1(s)`, `sha256(s)`, `sha384(s)`, `sha512(s)`: lower-case hexadecimal digits, or bytes with
/// `"raw"` as the second argument. `hmac(algorithm, key, s [, "raw"])`: the same, with the name of a digest.
/// `crc32(s)`: a number. `hex(s)` and `unhex(s)`, the latter `nil` for what is not hexadecimal. `equal(a, b)`
/// compares secrets.
///
/// # Errors
/// Memory has run out, or the libraries of the state are not open.
pub fn table(lua: &Lua) -> Result<Table> {
    let library = lua.create_table()?;
    for (name, algorithm) in Algorithm::NAMES {
        let digest = move |lua: &Lua, (text, form): (LuaString, Option<LuaString>)| {
            shown(lua, &algorithm.digest(&text.as_bytes()), form)
        };
        library.set(name, lua.create_function(digest)?)?;
    }
    library.set("hmac", lua.create_function(hmac_of)?)?;
    let checksum = |_: &Lua, text: LuaString| Ok(crc32(&text.as_bytes()));
    library.set("crc32", lua.create_function(checksum)?)?;
    let digits = |_: &Lua, text: LuaString| Ok(hex(&text.as_bytes(), Case::Lower));
    library.set("hex", lua.create_function(digits)?)?;
    let bytes = |lua: &Lua, text: LuaString| {
        let bytes = unhex(&text.as_bytes());
        bytes.map(|bytes| lua.create_string(bytes)).transpose()
    };
    library.set("unhex", lua.create_function(bytes)?)?;
    let equal =
        |_: &Lua, (a, b): (LuaString, LuaString)| Ok(is_equal(&a.as_bytes(), &b.as_bytes()));
    library.set("equal", lua.create_function(equal)?)?;
    super::plain_errors(lua, library)
}

type HmacArguments = (LuaString, LuaString, LuaString, Option<LuaString>);

fn hmac_of(lua: &Lua, (name, key, text, form): HmacArguments) -> Result<LuaString> {
    let algorithm = Algorithm::named(&name.as_bytes()).ok_or_else(|| {
        mlua::Error::runtime("hmac: the algorithms are md5, sha1, sha256, sha384 and sha512")
    })?;
    shown(
        lua,
        &algorithm.hmac(&key.as_bytes(), &text.as_bytes()),
        form,
    )
}

fn shown(lua: &Lua, bytes: &[u8], form: Option<LuaString>) -> Result<LuaString> {
    match form {
        Some(form) if form.as_bytes() == b"raw".as_slice() => lua.create_string(bytes),
        Some(form) if form.as_bytes() != b"hex".as_slice() => Err(mlua::Error::runtime(
            "hash: a result is either \"hex\" or \"raw\"",
        )),
        _ => lua.create_string(hex(bytes, Case::Lower)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(algorithm: Algorithm, text: &str) -> String {
        hex(&algorithm.digest(text.as_bytes()), Case::Lower)
    }

    #[test]
    fn published_digests_of_abc() {
        assert_eq!(
            digest(Algorithm::Md5, "abc"),
            "900150983cd24fb0d6963f7d28e17f72"
        );
        assert_eq!(
            digest(Algorithm::Sha1, "abc"),
            "a9993e364706816aba3e25717850c26c9cd0d89d"
        );
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest(Algorithm::Sha256, "abc"), sha256);
        assert!(digest(Algorithm::Sha384, "abc").starts_with("cb00753f45a35e8bb5a03d699ac65007"));
        assert!(digest(Algorithm::Sha512, "abc").starts_with("ddaf35a193617abacc417349ae204131"));
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn codes_of_rfc_2202_and_4231() {
        let key = [0x0B; 20];
        let sha1 = Algorithm::Sha1.hmac(&key, b"Hi There");
        assert_eq!(
            hex(&sha1, Case::Upper),
            "B617318655057264E28BC0B6FB378C8EF146BE00"
        );
        let sha256 = Algorithm::Sha256.hmac(
            &[0xAA; 131],
            b"Test Using Larger Than Block-Size Key - Hash Key First",
        );
        let code = "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54";
        assert_eq!(hex(&sha256, Case::Lower), code);
        let md5 = Algorithm::Md5.hmac(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(hex(&md5, Case::Lower), "750c783e6ab0b503eaa86e310a5db738");
    }

    #[test]
    fn hexadecimal_digits_go_both_ways() {
        assert_eq!(unhex(b"00fFa0").as_deref(), Some([0, 255, 160].as_slice()));
        assert_eq!(unhex(b"0"), None);
        assert_eq!(unhex(b"0g"), None);
        assert_eq!(unhex("0ä".as_bytes()), None);
    }

    #[test]
    fn secrets_are_equal_as_a_whole() {
        assert!(is_equal(b"abc", b"abc"));
        assert!(!is_equal(b"abc", b"abd"));
        assert!(!is_equal(b"abc", b"abcd"));
        assert!(!is_equal(b"", b"a"));
    }
}
