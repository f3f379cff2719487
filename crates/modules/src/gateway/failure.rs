//! What can go wrong between this server and a backend, and which status the client gets for it.

use std::fmt;
use std::io;

use petrel_engine::cause::{CauseCode, CausedError, ErrorCause};
use petrel_engine::cold_files::cause_of_error;
use petrel_engine::ledger::Stage;

use super::health;
use super::protocol::ReplyError;
use super::protocol::fastcgi::OVERLOADED;
use super::stream::{HandshakeFailure, is_own_shortage};

/// Why a request got no reply, or only a part of one.
#[derive(Debug)]
pub(super) enum Failure {
    /// No connection could be made.
    Connect(io::Error),
    /// The backend and this server cannot agree on TLS.
    Handshake(io::Error),
    /// This server has no descriptor, memory or port left for a connection.
    OwnShortage(io::Error),
    /// No connection could be made in time.
    ConnectTimeout,
    /// The queue of the backend's unix socket stayed full until `connect-timeout`.
    Overloaded,
    /// The request could not be written.
    Write(io::Error),
    /// The backend took none of the request for too long.
    WriteTimeout,
    /// The connection broke before the reply was complete.
    Read(io::Error),
    /// The backend was silent for too long.
    ReadTimeout,
    /// The application refused the request because it is full (FCGI_OVERLOADED), without working on it or
    /// sending anything else.
    Refused,
    /// The backend violates its protocol; how.
    Protocol(&'static str),
    /// The part of the reply that has to be buffered could not be written to disk.
    Spool(io::Error),
    /// The request body could not be read from where it is buffered.
    Body(io::Error),
}

impl Failure {
    /// Why no connection could be made.
    pub(super) fn of_connect(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::TimedOut if error.raw_os_error().is_none() => Failure::ConnectTimeout,
            _ if is_own_shortage(&error) => Failure::OwnShortage(error),
            _ if HandshakeFailure::is(&error) => Failure::Handshake(error),
            _ => Failure::Connect(error),
        }
    }

    /// The same failure of a connection, for another request that waited for it.
    pub(super) fn again(&self) -> Failure {
        let copy = |error: &io::Error| match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        match self {
            Failure::OwnShortage(error) => Failure::OwnShortage(copy(error)),
            Failure::Handshake(error) => Failure::Handshake(copy(error)),
            Failure::Connect(error) => Failure::Connect(copy(error)),
            _ => Failure::ConnectTimeout,
        }
    }

    /// No process listens at the backend's address. One that is restarted comes back.
    pub(super) fn is_gone(&self) -> bool {
        let Failure::Connect(error) = self else {
            return false;
        };
        let kind = error.kind();
        matches!(
            kind,
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
        )
    }

    /// Why the client gets an error, and which.
    pub(super) fn cause(&self) -> ErrorCause {
        let (code, error) = match self {
            Failure::Connect(error) => (code_of_connect(error), Some(error)),
            Failure::OwnShortage(error) => (CauseCode::GwOwnShortage, Some(error)),
            Failure::Overloaded => (CauseCode::GwListenQueueFull, None),
            Failure::Refused => (CauseCode::GwOverloaded, None),
            Failure::ConnectTimeout => (CauseCode::GwConnectTimeout, None),
            Failure::WriteTimeout => (CauseCode::GwSendTimeout, None),
            Failure::ReadTimeout => (CauseCode::GwReplyTimeout, None),
            Failure::Handshake(error) => (CauseCode::GwTlsFailed, Some(error)),
            Failure::Write(error) => (CauseCode::GwSendFailed, Some(error)),
            Failure::Read(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                (CauseCode::GwClosed, None)
            }
            Failure::Read(error) => (CauseCode::GwReplyBroken, Some(error)),
            Failure::Protocol(_) => (CauseCode::GwReplyInvalid, None),
            Failure::Spool(error) | Failure::Body(error) => return cause_of_error(error),
        };
        let cause = ErrorCause::from(code);
        error.map_or(cause, |error| cause.with_error(error))
    }

    /// The stage that the log line names.
    pub(super) fn stage(&self) -> Stage {
        match self {
            Failure::Connect(_)
            | Failure::Handshake(_)
            | Failure::OwnShortage(_)
            | Failure::ConnectTimeout
            | Failure::Overloaded => Stage::BackendConnect,
            Failure::Write(_) | Failure::WriteTimeout => Stage::BackendSend,
            _ => Stage::BackendBody,
        }
    }

    /// What this says about the backend's health; `None` if the backend is not at fault.
    pub(crate) fn of_backend(&self) -> Option<health::BackendFault> {
        match self {
            Failure::Connect(_) | Failure::Handshake(_) | Failure::ConnectTimeout => {
                Some(health::BackendFault::Unreachable)
            }
            Failure::Overloaded | Failure::Refused => Some(health::BackendFault::Overloaded),
            Failure::OwnShortage(_) | Failure::Spool(_) | Failure::Body(_) => None,
            _ => Some(health::BackendFault::NoReply),
        }
    }

    /// The error that ends a body which cannot be completed because the backend `name` failed.
    pub(crate) fn of_body(&self, name: &str) -> io::Error {
        let kind = match self.is_timeout() {
            true => io::ErrorKind::TimedOut,
            false => io::ErrorKind::InvalidData,
        };
        CausedError::io(kind, self.cause(), format!("{self} backend={name}"))
    }

    /// Whether a timeout expired. The backend may be working on the request, so it is not sent again.
    pub(super) fn is_timeout(&self) -> bool {
        matches!(self, Failure::ReadTimeout | Failure::WriteTimeout)
    }
}

fn code_of_connect(error: &io::Error) -> CauseCode {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => CauseCode::GwConnectRefused,
        io::ErrorKind::NotFound => CauseCode::GwSocketMissing,
        io::ErrorKind::PermissionDenied => CauseCode::GwSocketDenied,
        _ => CauseCode::GwUnreachable,
    }
}

impl From<ReplyError> for Failure {
    fn from(error: ReplyError) -> Failure {
        match error {
            OVERLOADED => Failure::Refused,
            ReplyError(why) => Failure::Protocol(why),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Connect(error) => write!(f, "cannot connect: {error}"),
            Failure::Handshake(error) => write!(f, "the TLS handshake failed: {error}"),
            Failure::OwnShortage(error) => {
                write!(
                    f,
                    "this server, not the backend, has no descriptors, memory or ports left: {error}"
                )
            }
            Failure::ConnectTimeout => f.write_str("connecting timed out"),
            Failure::Overloaded => f.write_str("the listen queue of the backend is full"),
            Failure::Write(error) => write!(f, "the request cannot be sent: {error}"),
            Failure::WriteTimeout => f.write_str("the backend reads no more of the request"),
            Failure::Read(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the backend closed the connection before its reply was complete")
            }
            Failure::Read(error) => write!(f, "the reply broke off: {error}"),
            Failure::ReadTimeout => f.write_str("the backend did not answer in time"),
            Failure::Refused => f.write_str("the backend is overloaded and refused the request"),
            Failure::Protocol(why) => write!(f, "its reply is invalid: {why}"),
            Failure::Spool(error) => write!(f, "the reply cannot be buffered: {error}"),
            Failure::Body(error) => write!(f, "the buffered request body cannot be read: {error}"),
        }
    }
}
