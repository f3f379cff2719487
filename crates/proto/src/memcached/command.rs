//! The commands of memcached.

use crate::reasons::reasons;

/// A key that is valid in a command: none of its bytes can be taken for the end of the key or of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key<'a>(&'a [u8]);

reasons! {
    /// Why bytes are not a valid key.
    KeyError {
        Empty "the key is empty",
        TooLong "the key has more than 250 bytes",
        Character "the key has a space or a control character",
    }
}

/// A command. memcached defines what it does to existing and missing keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// The values of these keys, of which there is at least one.
    Get {
        /// The keys.
        keys: &'a [Key<'a>],
        /// Whether to ask for the numbers that [`Write::Cas`] needs. The binary protocol always returns them.
        with_cas: bool,
    },
    /// Writes a value.
    Store {
        /// The condition for writing.
        how: Write,
        /// The key.
        key: Key<'a>,
        /// A number that is stored and returned with the value.
        flags: u32,
        /// Seconds to live: 0 for ever; above 30 days, the Unix time of the end.
        expiry_s: u32,
        /// The value.
        data: &'a [u8],
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: Key<'a>,
    },
    /// Changes a value that is a decimal number.
    Count {
        /// Up or down.
        direction: Direction,
        /// The key.
        key: Key<'a>,
        /// The amount.
        by: u64,
    },
    /// Changes the time to live of a key.
    Touch {
        /// The key.
        key: Key<'a>,
        /// As in [`Command::Store`].
        expiry_s: u32,
    },
    /// Removes everything.
    FlushAll {
        /// After this many seconds.
        delay_s: u32,
    },
    /// Asks for the server's version.
    Version,
}

/// The condition for writing a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Always.
    Set,
    /// If the key does not exist.
    Add,
    /// If the key exists.
    Replace,
    /// Appends to the existing value.
    Append,
    /// Prepends to the existing value.
    Prepend,
    /// If the value has not been written since [`super::Item::cas`] had this number.
    Cas(u64),
}

/// Whether to increment or decrement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Beyond 2⁶⁴ - 1 the value wraps around to 0.
    Up,
    /// The value does not go below 0.
    Down,
}

impl<'a> Key<'a> {
    /// The longest key, in bytes.
    pub const BYTES_MAX: usize = 250;

    /// A key of these bytes.
    ///
    /// # Errors
    /// They are not a valid key.
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
