//! Files for Digest, which have the hash of `user:realm:password`.

use super::accounts::Accounts;
use super::digest::HashFunction;
use super::password::are_equal;

/// Whether `password` is the user's.
pub(super) fn is_right(accounts: &Accounts, user: &[u8], realm: &str, password: &[u8]) -> bool {
    [HashFunction::Md5, HashFunction::Sha256]
        .into_iter()
        .any(|hash| {
            let known = secret(accounts, hash, user, realm);
            let sent = hash.of(&[user, realm.as_bytes(), password]);
            known.is_some_and(|known| are_equal(&sent, &known))
        })
}

/// The hash that the file has for `user`, if it is one of this function.
pub(super) fn secret(
    accounts: &Accounts,
    hash: HashFunction,
    user: &[u8],
    realm: &str,
) -> Option<Vec<u8>> {
    let name = [user, b":", realm.as_bytes()].concat();
    let mut known = accounts.find(&name);
    let stored = known.find(|stored| stored.len() == hash.digits())?;
    Some(stored.to_ascii_lowercase())
}

/// Hexadecimal digits, small letters.
pub(super) fn hex(bytes: &[u8]) -> Vec<u8> {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| DIGITS[usize::from(digit)]).collect()
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";
