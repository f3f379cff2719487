//! What can go wrong between this server and a store.

use std::fmt;
use std::rc::Rc;

use super::limits;

/// A failed operation: one line of text, with the server's name and the stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreError {
    /// The server as it was configured, with its kind: `redis 127.0.0.1:6379`.
    pub peer: Rc<str>,
    /// The stage in which it failed.
    pub stage: OperationStage,
    /// What went wrong: a sentence without its full stop.
    pub text: String,
    /// What kind of failure it is.
    pub kind: Kind,
}

/// The stage of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OperationStage {
    /// Before sending: the request itself is invalid.
    Request,
    /// Waiting for a connection.
    Queue,
    /// Connecting.
    Connect,
    /// Logging in, or selecting the database.
    Login,
    /// Sending the commands.
    Write,
    /// Waiting for the reply, or reading it.
    Read,
}

/// The kind of a failure, for callers that do more than log it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// The operation is not allowed: its key is too long, or its command cannot be sent on a shared
    /// connection. It fails each time.
    Refused,
    /// The server is down and was not tried. The error of an earlier operation says why.
    Down,
    /// Too many operations wait for a connection already, or this server has no descriptor or memory for
    /// another one.
    Busy,
    /// The server could not be connected to.
    Unreachable,
    /// The timeout has expired.
    TimedOut,
    /// The connection was lost. It is not known whether the server has carried the operation out.
    Lost,
    /// The server's reply violates its protocol.
    Protocol,
    /// The server has answered with an error.
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

    /// The request itself is invalid.
    pub(super) fn refused(peer: &Rc<str>, text: impl Into<String>) -> StoreError {
        StoreError::new(peer, OperationStage::Request, Kind::Refused, text)
    }

    /// The server has answered with this error.
    pub(super) fn said(peer: &Rc<str>, stage: OperationStage, text: &[u8]) -> StoreError {
        StoreError::new(peer, stage, Kind::Said, readable(text))
    }

    /// Whether another request has already got the reason for this failure a moment ago, so that this one
    /// need not be logged.
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

/// A text from a server, made fit for one line of a log.
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
