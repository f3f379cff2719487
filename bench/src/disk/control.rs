//! The messages between the two processes of a disk: a line of JSON in each direction.
//!
//! The process with the bytes and the spindles never touches the mounted volume, so it can always reply. A
//! thread that waited for its own process's disk could not be killed, and neither could the process.

use super::counters::{SPINDLES, Spindle};
use super::plan::Expected;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Write};

/// Orders from the benchmark to the disk's process.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Take the time that the model says, or no time.
    Model(Pace),
    /// Fail these blocks from now on.
    Errors {
        /// Path and length of the file.
        path: String,
        /// Length of the file.
        bytes: u64,
        /// Only data at or after this offset.
        from: u64,
    },
    /// Answer nothing.
    Hang,
    /// Neither fail nor hang.
    Mend,
    /// Return the counters.
    Counters,
    /// Return what is stored.
    Contents,
}

/// How fast the disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pace {
    /// As modelled.
    Modelled,
    /// As fast as possible.
    Quick,
}

/// Replies of the disk's process.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The disk is mounted, or the order was carried out.
    Done,
    /// How many blocks fail from now on.
    Failing(usize),
    /// The counters.
    Counters([Spindle; SPINDLES]),
    /// The stored contents.
    Contents(Contents),
}

/// What a disk stores.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Contents {
    /// Stored bytes, without the zeros at the end of each block.
    pub stored: u64,
    /// How many blocks that are not zero are on each spindle: of files one in eight.
    pub blocks: [u64; SPINDLES],
}

impl Order {
    /// An order that makes reads of a file fail.
    pub fn errors(file: Expected, from: u64) -> Self {
        let Expected { path, bytes } = file;
        Self::Errors { path, bytes, from }
    }
}

/// Sends one message.
pub fn send(message: &impl Serialize, to: &mut impl Write) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Receives one message; `None` if the other side is gone.
pub fn receive<T: serde::de::DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = String::new();
    match from.read_line(&mut line)? {
        0 => Ok(None),
        _ => Ok(Some(serde_json::from_str(&line)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_lines() {
        let mut wire = Vec::new();
        send(&Order::Model(Pace::Modelled), &mut wire).expect("to memory");
        send(&Order::Hang, &mut wire).expect("to memory");
        assert_eq!(wire.iter().filter(|byte| **byte == b'\n').count(), 2);
        let mut wire = wire.as_slice();
        let first = receive(&mut wire).expect("valid");
        assert!(matches!(first, Some(Order::Model(Pace::Modelled))));
        assert!(matches!(
            receive(&mut wire).expect("valid"),
            Some(Order::Hang)
        ));
        assert!(receive::<Order>(&mut wire).expect("the end").is_none());
        assert!(receive::<Order>(&mut &b"nonsense\n"[..]).is_err());
    }
}
