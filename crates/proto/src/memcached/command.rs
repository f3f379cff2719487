//! What a memcached can be asked.

use crate::reasons::reasons;

/// A key that can stand in a command: no byte of it could be taken for the end of the key or of the
/// command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key<'a>(&'a [u8]);

reasons! {
    /// Why bytes are no key.
    KeyError {
        Empty "the key is empty",
        TooLong "the key has more than 250 bytes",
        Character "the key has a space or a control character",
    }
}

/// A command. What it does to a key that is there or is not is memcached's to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// The values of these keys, of which there is at least one.
    Get {
        /// Which.
        keys: &'a [Key<'a>],
        /// Whether each comes with the number that [`Write::Cas`] wants; binary they always do.
        with_cas: bool,
    },
    /// Writes a value.
    Store {
        /// Under which condition.
        how: Write,
        /// Where to.
        key: Key<'a>,
        /// Comes back with the value.
        flags: u32,
        /// Seconds to live: 0 for ever, above 30 days the Unix time of the end.
        expiry_s: u32,
        /// The value.
        data: &'a [u8],
    },
    /// Removes a key.
    Delete {
        /// Which.
        key: Key<'a>,
    },
    /// Changes a value that is a decimal number.
    Count {
        /// Up or down.
        direction: Direction,
        /// Which.
        key: Key<'a>,
        /// By how much.
        by: u64,
    },
    /// Gives a key another time to live.
    Touch {
        /// Which.
        key: Key<'a>,
        /// As in [`Command::Store`].
        expiry_s: u32,
    },
    /// Removes everything.
    FlushAll {
        /// In so many seconds.
        delay_s: u32,
    },
    /// Asks which release it is.
    Version,
}

/// When a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Always.
    Set,
    /// If there is none.
    Add,
    /// If there is one.
    Replace,
    /// Behind the one that is there.
    Append,
    /// In front of the one that is there.
    Prepend,
    /// If nobody has written it since [`super::Item::cas`] was this number.
    Cas(u64),
}

/// Which way a number goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Beyond 2⁶⁴ - 1 it begins at 0 again.
    Up,
    /// Not below 0.
    Down,
}

impl<'a> Key<'a> {
    /// The longest key.
    pub const BYTES_MAX: usize = 250;

    /// Takes `bytes` for a key.
    ///
    /// # Errors
    /// They are none.
    pub fn new(bytes: &'a [u8]) -> Result<Key<'a>, KeyError> {
        if bytes.is_empty() {
            return Err(KeyError::Empty);
        }
        if bytes.len() > Key::BYTES_MAX {
            return Err(KeyError::TooLong);
        }
        match bytes.iter().any(|&byte| byte <= b' ' || byte == 0x7f) {
            true => Err(KeyError::Character),
            false => Ok(Key(bytes)),
        }
    }

    /// The bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}
