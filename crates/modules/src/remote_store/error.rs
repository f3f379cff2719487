//! What can go wrong between us and a store.

use std::fmt;
use std::rc::Rc;

use super::limits;

/// An operation failed. One line of text, with the server's name and how far it got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreError {
    /// The server, as it was configured, with what it is: `redis 127.0.0.1:6379`.
    pub peer: Rc<str>,
    /// How far it got.
    pub stage: OperationStage,
    /// What went wrong, a sentence without its full stop.
    pub text: String,
    /// What kind of failure it is.
    pub kind: Kind,
}

/// How far an operation got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OperationStage {
    /// Nothing was sent: the request itself is not one that can be.
    Request,
    /// It waited for a connection.
    Queue,
    /// It was connecting.
    Connect,
    /// It was connected and told who we are, or which database.
    Login,
    /// The commands were being sent.
    Write,
    /// The reply was waited for, or half there.
    Read,
}

/// What kind of failure it is, for those who do more than tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// The operation cannot be made: a key that is too long, a command that no shared connection can
    /// have. It fails each time.
    Refused,
    /// The server is down and was not even tried; an operation before was told why.
    Down,
    /// Too many wait for a connection already, or this server has no descriptor or memory left for one.
    Busy,
    /// The server could not be connected to.
    Unreachable,
    /// The time was up.
    TimedOut,
    /// The connection was lost. Whether the server has done what it was told is not known.
    Lost,
    /// What the server says is not its protocol.
    Protocol,
    /// The server answers that it did not do it.
    Said,
}

impl StoreError {
    pub(super) fn new(
        peer: &Rc<str>,
        stage: OperationStage,
        kind: Kind,
        text: impl Into<String>,
    ) -> StoreError {
        StoreError {
            peer: Rc::clone(peer),
            stage,
            text: text.into(),
            kind,
        }
    }

    /// The request itself is wrong.
    pub(super) fn refused(peer: &Rc<str>, text: impl Into<String>) -> StoreError {
        StoreError::new(peer, OperationStage::Request, Kind::Refused, text)
    }

    /// The server says this instead of doing it.
    pub(super) fn said(peer: &Rc<str>, stage: OperationStage, text: &[u8]) -> StoreError {
        StoreError::new(peer, stage, Kind::Said, readable(text))
    }

    /// Whether another request has been told the same a moment ago, so that one line in the log is
    /// enough.
    pub(crate) fn is_repeated(&self) -> bool {
        self.kind == Kind::Down
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.peer, self.stage, self.text)
    }
}

impl std::error::Error for StoreError {}

impl fmt::Display for OperationStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OperationStage::Request => "request",
            OperationStage::Queue => "queue",
            OperationStage::Connect => "connect",
            OperationStage::Login => "login",
            OperationStage::Write => "write",
            OperationStage::Read => "read",
        })
    }
}

/// What a server sends, fit for one line of a log.
pub(super) fn readable(text: &[u8]) -> String {
    let text = text.get(..limits::ERROR_TEXT_BYTES_MAX).unwrap_or(text);
    let text = String::from_utf8_lossy(text);
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line() {
        let peer = Rc::from("redis 127.0.0.1:6379");
        let error = StoreError::said(&peer, OperationStage::Read, b"ERR a\r\nb \xff");
        assert_eq!(
            error.to_string(),
            "redis 127.0.0.1:6379: read: ERR a  b \u{fffd}"
        );
        let long = StoreError::said(&peer, OperationStage::Read, &[b'a'; 10_000]);
        assert_eq!(long.text.len(), limits::ERROR_TEXT_BYTES_MAX);
    }
}
