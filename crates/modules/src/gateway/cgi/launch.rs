//! A request whose CGI program is being started; its hook answers with this until the program runs.
//!
//! It waits for the thread that starts the program as it would wait for a file: for `server.max-file-wait`,
//! then the answer is 504. If it is dropped, because the client has left, the program is given up.

use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::blocking::{FileDeadline, NotDone};
use petrel_engine::cause::{CauseCode, ErrorCause};
use petrel_engine::cold_files::cause_of_error;
use petrel_engine::ledger::Stage;
use petrel_engine::module::{Outcome, Pending};

use super::child::{self, StartError, Started, Starting};
use super::spawn::Program;
use crate::gateway::connection::{BackendConnection, Workbench};
use crate::gateway::options::{BackendHost, Gateway};
use crate::gateway::protocol::BodyLength;
use crate::gateway::request::GatewayRequest;
use crate::gateway::stream::BackendStream;
use crate::gateway::talk::{Peer, Talk};

/// A request that waits for its program to be started.
pub(super) struct Launch {
    gateway: Rc<Gateway>,
    host: Rc<BackendHost>,
    /// The length of the request body, as the program is told.
    body: BodyLength,
    /// The program's path.
    path: PathBuf,
    starting: Starting,
    deadline: FileDeadline,
}

impl Launch {
    /// Has a thread start `program`, whose environment says that the request body is `body`.
    pub(crate) fn begin(
        exchange: &mut Exchange,
        gateway: &Rc<Gateway>,
        host: &Rc<BackendHost>,
        program: Program,
        body: BodyLength,
    ) -> Outcome {
        let path = program.path.clone();
        let client = exchange.connection.client_key();
        match child::start(program, client, &exchange.settings.core.error_log) {
            Ok(starting) => Outcome::Later(Box::new(Launch {
                gateway: Rc::clone(gateway),
                host: Rc::clone(host),
                body,
                path,
                starting,
                deadline: exchange.file_deadline(),
            })),
            Err(error) => refuse(exchange, &error, &path),
        }
    }

    fn talk(&self, exchange: &mut Exchange, started: Started) -> Outcome {
        let now_ms = exchange.worker.clock().latest_ms();
        let stream = BackendStream::Program(started.pipes);
        let workbench = Workbench::of(&exchange.worker);
        let conversation = Box::new(started.conversation);
        let connection = BackendConnection::new(stream, conversation, None, &workbench, now_ms);
        let begun = Talk::begin(
            exchange,
            &self.gateway,
            Peer {
                host: Rc::clone(&self.host),
                backend: None,
            },
            None,
            Box::new(connection),
            self.body,
        );
        let mut talk = match begun {
            Ok(talk) => talk,
            Err(error) => {
                let outcome = exchange.fail(CauseCode::CgiTooLarge);
                exchange.log_error("content", format_args!("cgi: {};", error.0));
                return outcome;
            }
        };
        talk.accompany(Box::new(started.leash));
        let request = GatewayRequest::with_talk(exchange, Rc::clone(&self.gateway), talk);
        Outcome::Later(Box::new(request))
    }
}

impl Pending for Launch {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let polled = Pin::new(&mut self.starting).poll(context);
        let limited = ready!(self.deadline.limit(polled, context));
        exchange.stamp_wait(Stage::BackendConnect, |_, text| {
            text.write_str("the program was started");
        });
        Poll::Ready(match limited {
            Ok(Ok(started)) => self.talk(exchange, started),
            Ok(Err(error)) => refuse(exchange, &error, &self.path),
            Err(_) => {
                let path = self.starting.waits_for().as_os_str().as_bytes();
                exchange.answer_late_file("content", path)
            }
        })
    }
}

/// Answers a request whose program cannot be started.
fn refuse(exchange: &mut Exchange, error: &StartError, program: &Path) -> Outcome {
    let path = program.display();
    let outcome = exchange.fail(cause_of(error));
    exchange.log_error("content", format_args!("cgi: {error} program={path}"));
    outcome
}

fn cause_of(error: &StartError) -> ErrorCause {
    let (code, error) = match error {
        StartError::TooMany | StartError::NotDone(NotDone::QueueFull) => {
            return CauseCode::CgiTooMany.into();
        }
        StartError::NotDone(NotDone::Lost) => return CauseCode::CgiLost.into(),
        StartError::Io(error) => match error.kind() {
            // A variable or an argument contains a NUL byte.
            io::ErrorKind::InvalidInput => (CauseCode::CgiBadVariable, error),
            io::ErrorKind::ArgumentListTooLong => (CauseCode::CgiTooLarge, error),
            io::ErrorKind::PermissionDenied => (CauseCode::CgiNotExecutable, error),
            // The user of this server may not have more processes.
            io::ErrorKind::WouldBlock => (CauseCode::CgiTooMany, error),
            _ => return cause_of_error(error),
        },
    };
    ErrorCause::from(code).with_error(error)
}
