//! Recognises the forms of password hashes in files, and compares a password with a hash.
//!
//! It knows no file and no client. A comparison takes the same time wherever two hashes differ.

use std::fmt;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordVerifier as _};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha_crypt::ShaCrypt;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use yescrypt::{Mode, Params, Yescrypt};

use super::md5_crypt;

/// The form of a hash in a htpasswd file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HashForm {
    Bcrypt,
    Yescrypt,
    Argon2,
    /// SHA-256 and SHA-512 of crypt(3).
    ShaCrypt,
    /// `$1$` or `$apr1$`.
    Md5Crypt,
    /// `{SHA}`, without salt.
    Sha1,
}

/// A form that is not known, or a hash that is damaged or asks for too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnusableHash;

impl fmt::Display for UnusableHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the hash of the password is damaged, or of a form that is not supported")
    }
}

impl HashForm {
    /// The form of `stored`; `None`: it has no known form.
    pub(super) fn of(stored: &[u8]) -> Option<HashForm> {
        let known = FORMS
            .iter()
            .find(|(prefix, _)| stored.starts_with(prefix))?;
        Some(known.1)
    }

    /// Whether a hash of this form takes long, so that a thread has to compute it.
    pub(super) fn takes_long(self) -> bool {
        self != HashForm::Sha1
    }
}

/// Whether `password` is the one whose hash is `stored`.
///
/// # Errors
/// The form is unknown, or the hash is damaged or asks for too much.
pub(super) fn verify(stored: &[u8], password: &[u8]) -> Result<bool, UnusableHash> {
    let form = HashForm::of(stored).ok_or(UnusableHash)?;
    #[cfg(test)]
    tests::count(form, password);
    if password.len() > PASSWORD_BYTES_MAX {
        return Ok(false);
    }
    let text = str::from_utf8(stored).map_err(|_| UnusableHash)?;
    if stored.len() > STORED_BYTES_MAX || !is_affordable(form, text).unwrap_or(false) {
        return Err(UnusableHash);
    }
    match form {
        HashForm::Bcrypt => bcrypt::verify(password, text).map_err(|_| UnusableHash),
        // Without this check only the beginning of a shorter hash would be compared.
        HashForm::Yescrypt if !ends_with_hash(text, YESCRYPT_CHARACTERS) => Err(UnusableHash),
        HashForm::Yescrypt => told(Yescrypt::default().verify_password(password, text)),
        HashForm::ShaCrypt => told(ShaCrypt::default().verify_password(password, text)),
        HashForm::Argon2 => {
            let hash = PasswordHash::new(text).map_err(|_| UnusableHash)?;
            told(Argon2::default().verify_password(password, &hash))
        }
        HashForm::Md5Crypt => verify_md5_crypt(stored, password).ok_or(UnusableHash),
        HashForm::Sha1 => {
            let known = STANDARD.decode(&stored[SHA1.len()..]);
            let known = known.map_err(|_| UnusableHash)?;
            Ok(are_equal(&Sha1::digest(password), &known))
        }
    }
}

/// Whether `password` is `stored`, which is no hash.
pub(super) fn is_same(stored: &[u8], password: &[u8]) -> bool {
    // The hashes are compared and not the texts, because all hashes have the same length.
    are_equal(&Sha256::digest(stored), &Sha256::digest(password))
}

/// Whether the two are equal. The time depends on their lengths alone.
pub(super) fn are_equal(one: &[u8], other: &[u8]) -> bool {
    verify_slices_are_equal(one, other).is_ok()
}

fn told(verified: Result<(), sha_crypt::password_hash::Error>) -> Result<bool, UnusableHash> {
    match verified {
        Ok(()) => Ok(true),
        Err(sha_crypt::password_hash::Error::PasswordInvalid) => Ok(false),
        Err(_) => Err(UnusableHash),
    }
}

/// Whether the part behind the last `$` has so many characters.
fn ends_with_hash(text: &str, characters: usize) -> bool {
    text.rsplit('$')
        .next()
        .is_some_and(|hash| hash.len() == characters)
}

/// Whether computing `stored` takes no more time and memory than a log-in may take. `None`: its parameters
/// cannot be read.
fn is_affordable(form: HashForm, stored: &str) -> Option<bool> {
    let mut fields = stored.split('$').skip(2);
    match form {
        HashForm::Bcrypt => {
            let cost: u32 = fields.next()?.parse().ok()?;
            Some(cost <= BCRYPT_COST_MAX)
        }
        HashForm::ShaCrypt => {
            let Some(rounds) = fields.next()?.strip_prefix("rounds=") else {
                return Some(true);
            };
            Some(rounds.parse::<u32>().ok()? <= SHA_CRYPT_ROUNDS_MAX)
        }
        HashForm::Yescrypt => {
            let params = yescrypt_params(stored)?;
            let (n, r, p) = (params.n(), params.r(), params.p());
            // crypt(3) makes no hashes that take longer for the memory they use (t).
            let is_usual = |mode| Params::new(mode, n, r, p) == Ok(params);
            let modes = [Mode::Classic, Mode::Worm, Mode::Rw];
            Some(modes.into_iter().any(is_usual) && yescrypt_bytes(&params)? <= BYTES_MAX)
        }
        HashForm::Argon2 => {
            let hash = PasswordHash::new(stored).ok()?;
            let passes = hash.params.get_decimal("t").unwrap_or_default();
            let bytes = argon2_bytes(&hash);
            let hashed = bytes.checked_mul(u64::from(passes))?;
            Some(bytes <= BYTES_MAX && hashed <= ARGON2_HASHED_BYTES_MAX)
        }
        HashForm::Md5Crypt | HashForm::Sha1 => Some(true),
    }
}

/// How many bytes of memory [`verify`] takes for `stored`; 0 for forms that take little.
pub(super) fn memory_bytes(stored: &[u8]) -> usize {
    let text = str::from_utf8(stored).unwrap_or_default();
    let bytes = match HashForm::of(stored) {
        Some(HashForm::Yescrypt) => {
            yescrypt_params(text).and_then(|params| yescrypt_bytes(&params))
        }
        Some(HashForm::Argon2) => PasswordHash::new(text).ok().map(|hash| argon2_bytes(&hash)),
        _ => None,
    };
    // With more it is refused.
    let bytes = bytes.filter(|bytes| *bytes <= BYTES_MAX);
    bytes
        .and_then(|bytes| usize::try_from(bytes).ok())
        .unwrap_or_default()
}

fn yescrypt_params(stored: &str) -> Option<Params> {
    let text = stored.split('$').nth(2)?;
    let is_short = text.len() <= YESCRYPT_PARAMETERS;
    text.parse().ok().filter(|_| is_short)
}

fn yescrypt_bytes(params: &Params) -> Option<u64> {
    [u64::from(params.r()), u64::from(params.p())]
        .into_iter()
        .try_fold(params.n().checked_mul(128)?, u64::checked_mul)
}

/// What is not told is small by default.
fn argon2_bytes(hash: &PasswordHash) -> u64 {
    u64::from(hash.params.get_decimal("m").unwrap_or_default()) << 10
}

/// `$1$salt$hash`, `$apr1$salt$hash`.
fn verify_md5_crypt(stored: &[u8], password: &[u8]) -> Option<bool> {
    let magic = [&b"$1$"[..], b"$apr1$"]
        .into_iter()
        .find(|magic| stored.starts_with(magic))?;
    let rest = stored.get(magic.len()..)?;
    let end = memchr::memchr(b'$', rest)?;
    let (salt, known) = (rest.get(..end)?, rest.get(end + 1..)?);
    let hashed = md5_crypt::hash(password, magic, salt);
    Some(are_equal(&hashed, known))
}

const SHA1: &[u8] = b"{SHA}";

const FORMS: &[(&[u8], HashForm)] = &[
    (b"$2a$", HashForm::Bcrypt),
    (b"$2b$", HashForm::Bcrypt),
    (b"$2y$", HashForm::Bcrypt),
    (b"$y$", HashForm::Yescrypt),
    (b"$argon2", HashForm::Argon2),
    (b"$5$", HashForm::ShaCrypt),
    (b"$6$", HashForm::ShaCrypt),
    (b"$apr1$", HashForm::Md5Crypt),
    (b"$1$", HashForm::Md5Crypt),
    (SHA1, HashForm::Sha1),
];

/// The longest password that is hashed: the time grows with the length. crypt(3) has the same limit.
const PASSWORD_BYTES_MAX: usize = 512;

/// 32 bytes, six bits a character.
const YESCRYPT_CHARACTERS: usize = 43;

/// The longest form has some 200.
const STORED_BYTES_MAX: usize = 512;

/// What a hash may ask for is bounded so that none takes much longer than ten seconds. This is 2 to the power
/// of it.
const BCRYPT_COST_MAX: u32 = 17;

const SHA_CRYPT_ROUNDS_MAX: u32 = 10_000_000;

/// Characters of its parameters. More have numbers that are too large.
const YESCRYPT_PARAMETERS: usize = 6;

/// Memory that a hash may ask for.
const BYTES_MAX: u64 = 1 << 30;

/// Memory, as many times as it is gone through.
const ARGON2_HASHED_BYTES_MAX: u64 = 8 << 30;

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Made by htpasswd 2.4, openssl 3.0 and crypt(3) of libxcrypt 4.4; the password is `secret`.
    const VECTORS: &[&str] = &[
        "$2y$04$kjHP4II9H1IH3JNVAW5Iz.enwJ.CU1AqI7yxWgopqudDdNuBP2kPW",
        "$apr1$5LPTBWS5$9d9N.kvIoYsrT/f.4F2qn1",
        "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
        "$6$xcmAh5WmSZOzU401$YfrNM2LWOfMbT4tw.UlRHeiJjJnDVA54gd3mwp9eeaqDaCa8s2XCgUhFONOwC4KTigsStkWWuZA56zsscZQN3/",
        "$5$fdALCXMT1H7jjTX2$SHOFzDt6V3scaXy3YQNwF3HZ8ewoNi.4QXubgAgFUi3",
        "$1$abcdefgh$cHJi5PXp/ki/ktXzqlk6I1",
        "$6$KomzvHLAwqm5.C4I$/8qVY00aTlHWs6azo9pZzMXLkq0LfdsTfPKT3vaTokHpWGnTYVRl7f9ecHa5qChwyJdlYFP3Pv6RU6sySt7Ad.",
        "$5$short$jNBWuyRRt570O5bSllou1aaAY7HMStZbxDBT2Z8DQw3",
        "$y$j75$abcdefghijklmnop$vZlXu1XtxOBWRxjOpQqONp1WYfMO0dN.H4xeSMU2ZvC",
        "$y$j75$k2XAnEHBqQ1Ct2aMXFKNa/$Tg4ZRR7tz/WRlmYbADZh9OJYakPewgSPQqW55EXAJ14",
        "$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW",
        "$2a$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW",
        "$6$rounds=1000$saltsalt$LAV5VE5Y7w1d73x1mFNspYWUpazfmwv2SoepNXNKJ/otop/Zok96Hr8Q13LEv0DRY/x8v0/crpIjl8NJSAqXV/",
        "$5$rounds=1234$saltsalt$ydMhzY0spDIF5JTHfydtpfMQUy9duW6XO2Sh4O5PfV1",
    ];

    /// What was verified by all tests of the process.
    static VERIFIED: Mutex<Vec<(HashForm, Vec<u8>)>> = Mutex::new(Vec::new());

    pub(super) fn count(form: HashForm, password: &[u8]) {
        let mut verified = VERIFIED.lock().expect("no test fails with it");
        verified.push((form, password.to_vec()));
    }

    /// The forms that `password`, which one test alone uses, was hashed in.
    pub(in crate::auth) fn forms_hashed(password: &[u8]) -> Vec<HashForm> {
        let verified = VERIFIED.lock().expect("no test fails with it");
        let of_test = verified.iter().filter(|(_, known)| known == password);
        of_test.map(|(form, _)| *form).collect()
    }

    #[test]
    fn memory_is_known_before_it_is_taken() {
        let rest = "$abcdefghijklmnop$vZlXu1XtxOBWRxjOpQqONp1WYfMO0dN.H4xeSMU2ZvC";
        for (stored, bytes) in [
            (
                "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$AAAAAAAAAAAAAAAAAAAAAA",
                64 << 20,
            ),
            (
                "$argon2id$v=19$m=4194304,t=1,p=1$c29tZXNhbHQ$AAAAAAAAAAAAAAAAAAAAAA",
                0,
            ),
            (&format!("$y$j9T{rest}"), 16 << 20),
            (&format!("$y$j75{rest}"), 1 << 20),
            (VECTORS[0], 0),
            ("$argon2", 0),
            ("$y$", 0),
            ("", 0),
        ] {
            assert_eq!(memory_bytes(stored.as_bytes()), bytes, "{stored}");
        }
    }

    #[test]
    fn every_form_knows_its_password() {
        for stored in VECTORS {
            assert_eq!(verify(stored.as_bytes(), b"secret"), Ok(true), "{stored}");
            for wrong in [&b"Secret"[..], b"secret ", b"", b"secre"] {
                assert_eq!(verify(stored.as_bytes(), wrong), Ok(false), "{stored}");
            }
        }
    }

    /// Those of the reference implementation.
    #[test]
    fn argon2_knows_its_password() {
        for stored in [
            "$argon2i$v=19$m=256,t=2,p=1$c29tZXNhbHQ$iekCn0Y3spW+sCcFanM2xBT63UP2sghkUoHLIUpWRS8",
            "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
        ] {
            assert_eq!(verify(stored.as_bytes(), b"password"), Ok(true), "{stored}");
            assert_eq!(verify(stored.as_bytes(), b"differentpassword"), Ok(false));
        }
    }

    #[test]
    fn long_passwords_are_hashed_whole() {
        let password = b"a password of more than sixteen bytes, in which every one counts";
        let stored = b"$apr1$abcdefgh$fjpgyJ62jUBdTTjYbp29c/";
        assert_eq!(verify(stored, password), Ok(true));
        assert_eq!(verify(stored, &password[..password.len() - 1]), Ok(false));
        assert_eq!(verify(stored, &[b'x'; PASSWORD_BYTES_MAX + 1]), Ok(false));
    }

    #[test]
    fn other_forms_are_told_and_never_match() {
        for stored in [
            "",
            "secret",
            "h0GjlpCBXl2ls",
            "$3$$abc",
            "$7$abc",
            "{SSHA}abc",
            "*",
            "!",
        ] {
            assert_eq!(
                verify(stored.as_bytes(), b"secret"),
                Err(UnusableHash),
                "{stored}"
            );
        }
        let much = "$argon2id$v=19$m=4194304,t=1,p=1$c29tZXNhbHQ$AAAAAAAAAAAAAAAAAAAAAA";
        assert_eq!(verify(much.as_bytes(), b"secret"), Err(UnusableHash));
    }

    #[test]
    fn what_asks_for_too_much_is_never_hashed() {
        let yescrypt = |parameters: &str| {
            let rest = "$abcdefghijklmnop$vZlXu1XtxOBWRxjOpQqONp1WYfMO0dN.H4xeSMU2ZvC";
            format!("$y${parameters}{rest}")
        };
        let mut stored = ["jcT", "jIT", "jzz", "j95//z", "j951z", "j75zzzzzzzz"]
            .map(yescrypt)
            .to_vec();
        stored.extend(
            [
                "$2y$31$kjHP4II9H1IH3JNVAW5Iz.enwJ.CU1AqI7yxWgopqudDdNuBP2kPW",
                "$2y$18$kjHP4II9H1IH3JNVAW5Iz.enwJ.CU1AqI7yxWgopqudDdNuBP2kPW",
                "$6$rounds=999999999$saltsalt$LAV5VE5Y7w1d73x1mFNspYWUpazfmwv2SoepNXNKJ/otop/Zok96Hr8Q13LEv0DRY/x8v0/crpIjl8NJSAqXV/",
                "$5$rounds=10000001$saltsalt$ydMhzY0spDIF5JTHfydtpfMQUy9duW6XO2Sh4O5PfV1",
                "$argon2id$v=19$m=8,t=4294967295,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
            ]
            .map(str::to_owned),
        );
        stored.push(format!("$6${}$x", "s".repeat(STORED_BYTES_MAX)));
        for stored in stored {
            let verified = verify(stored.as_bytes(), b"secret");
            assert_eq!(verified, Err(UnusableHash), "{stored}");
        }
    }

    #[test]
    fn damaged_hashes_never_match() {
        for stored in VECTORS.iter().map(|stored| stored.as_bytes()) {
            for length in (0..16).chain(stored.len() - 3..stored.len()) {
                assert_ne!(verify(&stored[..length], b"secret"), Ok(true));
            }
        }
    }

    #[test]
    fn plain_passwords_are_compared_whole() {
        assert!(is_same(b"pw", b"pw") && is_same(b"", b""));
        assert!(!is_same(b"pw", b"p") && !is_same(b"pw", b"pw "));
    }
}
