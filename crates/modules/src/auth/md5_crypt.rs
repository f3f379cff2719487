//! The hashes `$1$` of crypt(3) and `$apr1$` of Apache's htpasswd: a thousand rounds of MD5, which
//! Poul-Henning Kamp made for FreeBSD. No maintained library has them, so they are computed here; MD5 is from
//! a library.

use md5::{Digest, Md5};

/// Computes the part behind the last `$`. `magic` is `$1$` or `$apr1$`; only the first 8 bytes of `salt`
/// count.
pub(super) fn hash(password: &[u8], magic: &[u8], salt: &[u8]) -> [u8; 22] {
    let salt = salt.get(..SALT_BYTES_MAX).unwrap_or(salt);
    let inner = digest(&[password, salt, password]);
    let mut first = Md5::new();
    first.update([password, magic, salt].concat());
    for part in password.chunks(inner.len()) {
        first.update(inner.get(..part.len()).unwrap_or(&inner));
    }
    let mut bits = password.len();
    while bits > 0 {
        match bits & 1 {
            1 => first.update([0]),
            _ => first.update(password.get(..1).unwrap_or_default()),
        }
        bits >>= 1;
    }
    let mut hashed: [u8; 16] = first.finalize().into();
    for round in 0..ROUNDS {
        let is_odd = round % 2 == 1;
        let salt = if round % 3 == 0 { &b""[..] } else { salt };
        let again = if round % 7 == 0 { &b""[..] } else { password };
        hashed = match is_odd {
            true => digest(&[password, salt, again, &hashed]),
            false => digest(&[&hashed, salt, again, password]),
        };
    }
    encode(&hashed)
}

fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut md5 = Md5::new();
    for part in parts {
        md5.update(part);
    }
    md5.finalize().into()
}

/// Six bits a character, in the order that crypt(3) has.
fn encode(hashed: &[u8; 16]) -> [u8; 22] {
    let mut text = [0; 22];
    let mut characters = text.iter_mut();
    for (high, middle, low) in ORDER {
        let [high, middle, low] = [high, middle, low].map(|at| u32::from(hashed[at]));
        let bits = high << 16 | middle << 8 | low;
        for (character, shift) in characters.by_ref().take(4).zip([0, 6, 12, 18]) {
            *character = ALPHABET[(bits >> shift) as usize & 63];
        }
    }
    for (character, shift) in characters.zip([0, 6]) {
        *character = ALPHABET[usize::from(hashed[11]) >> shift & 63];
    }
    text
}

const SALT_BYTES_MAX: usize = 8;
const ROUNDS: u32 = 1000;
const ALPHABET: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const ORDER: [(usize, usize, usize); 5] =
    [(0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5)];
