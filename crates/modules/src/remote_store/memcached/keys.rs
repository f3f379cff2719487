//! Turns the keys of callers into the keys that are sent.

use petrel_engine::proto::memcached::{Key, KeyError};

use super::hashing::md5;

/// What to do with a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum KeyForm {
    /// Send it unchanged, or refuse it: if it is longer than 250 bytes with its prefix, or contains a space
    /// or a control character.
    #[default]
    AsGiven,
    /// Send it unchanged; if it would be refused, send its MD5 in hexadecimal.
    HashedIfNeeded,
    /// Always send its MD5 in hexadecimal.
    Hashed,
}

/// The prefixes of keys, and what to do with the keys.
#[derive(Debug)]
pub(super) struct KeyRule {
    form: KeyForm,
    /// Namespace and prefix.
    before: Vec<u8>,
    namespace_bytes: usize,
}

/// A key as it is sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SentKey {
    bytes: Vec<u8>,
    namespace_bytes: usize,
}

impl KeyRule {
    /// `namespace` is put before a key when it is sent, `prefix` before it is assigned to a server.
    pub(crate) fn new(form: KeyForm, namespace: &[u8], prefix: &[u8]) -> Result<KeyRule, KeyError> {
        let rule = KeyRule {
            form,
            before: [namespace, prefix].concat(),
            namespace_bytes: namespace.len(),
        };
        // Checks that the prefixes leave room for the shortest key or for a hash.
        let shortest = match form {
            KeyForm::AsGiven => &b"k"[..],
            _ => &[b'0'; 32],
        };
        Key::new(&[&rule.before, shortest].concat())?;
        Ok(rule)
    }

    /// The key to send for `key`.
    pub(crate) fn apply(&self, key: &[u8]) -> Result<SentKey, KeyError> {
        let sent = |key: &[u8]| SentKey {
            bytes: [&self.before, key].concat(),
            namespace_bytes: self.namespace_bytes,
        };
        if key.is_empty() {
            return Err(KeyError::Empty);
        }
        if self.form != KeyForm::Hashed {
            let as_given = sent(key);
            match Key::new(&as_given.bytes) {
                Ok(_) => return Ok(as_given),
                Err(error) if self.form == KeyForm::AsGiven => return Err(error),
                Err(_) => {}
            }
        }
        let digest = md5(key);
        let digits = digest.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let digits = digits.filter_map(|digit| char::from_digit(digit.into(), 16));
        Ok(sent(digits.collect::<String>().as_bytes()))
    }
}

impl SentKey {
    /// The key for a command.
    pub(crate) fn key(&self) -> Key<'_> {
        Key::new(&self.bytes).expect("the rule has seen that it is a key")
    }

    /// The part of the key that chooses the server.
    pub(crate) fn without_namespace(&self) -> &[u8] {
        self.bytes.get(self.namespace_bytes..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(form: KeyForm) -> KeyRule {
        KeyRule::new(form, b"site:", b"page:").expect("it can be put before keys")
    }

    #[test]
    fn namespace_and_prefix_stand_before_a_key() {
        let key = rule(KeyForm::AsGiven).apply(b"/index").expect("a key");
        assert_eq!(key.key().bytes(), b"site:page:/index");
        assert_eq!(key.without_namespace(), b"page:/index");
    }

    #[test]
    fn keys_that_cannot_be_sent_are_refused_or_hashed() {
        let long = vec![b'k'; 241];
        for (key, error) in [
            (&b"a b"[..], KeyError::Character),
            (b"a\r\nflush_all\r\n", KeyError::Character),
            (&long, KeyError::TooLong),
        ] {
            assert_eq!(rule(KeyForm::AsGiven).apply(key), Err(error));
            let hashed = rule(KeyForm::HashedIfNeeded).apply(key).expect("hashed");
            assert_eq!(hashed.key().bytes().len(), 10 + 32);
        }
        assert!(rule(KeyForm::AsGiven).apply(&long[..240]).is_ok());
        let given = rule(KeyForm::HashedIfNeeded).apply(b"a").expect("as given");
        assert_eq!(given.key().bytes(), b"site:page:a");
        let hashed = rule(KeyForm::Hashed).apply(b"a").expect("hashed");
        let expected = b"site:page:0cc175b9c0f1b6a831c399e269772661";
        assert_eq!(hashed.key().bytes(), expected);
        for form in [KeyForm::AsGiven, KeyForm::HashedIfNeeded, KeyForm::Hashed] {
            assert_eq!(rule(form).apply(b""), Err(KeyError::Empty));
        }
    }

    #[test]
    fn what_leaves_no_room_for_keys_is_refused() {
        for (namespace, prefix) in [
            (&b"a b"[..], &b""[..]),
            (b"", b"a\n"),
            (&[b'a'; 200], &[b'b'; 50]),
        ] {
            assert!(KeyRule::new(KeyForm::AsGiven, namespace, prefix).is_err());
        }
        assert!(KeyRule::new(KeyForm::AsGiven, &[b'a'; 249], b"").is_ok());
        assert!(KeyRule::new(KeyForm::Hashed, &[b'a'; 219], b"").is_err());
    }
}
