//! The TLS handshake of a connection: which host it is for, its deadline, and what happens if it fails.

use std::cell::RefCell;
use std::ops::ControlFlow::{Break, Continue};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use petrel_proto::client_hello::{ClientHello, HelloError};
use rustls::{AlertDescription, ServerConfig};

use super::http2::Http2;
use super::link::Link;
use super::serving::Serving;
use super::{ConnectionState, Step};
use crate::cause::CauseCode;
use crate::exchange::ConnectionFacts;
use crate::ledger::{Nanos, Stage};
use crate::limits;
use crate::settings::ConnectionScope;
use crate::tls::{TlsConnectionFacts, TlsError, TlsHost};
use crate::transport::{HandshakeError, TlsStream};
use crate::worker::{Drain, Worker};

/// A handshake that is under way.
pub(super) struct Handshake {
    worker: Rc<Worker>,
    /// The second in which the handshake must be complete; 0: its time does not run yet.
    due_s: u32,
    /// When its first bytes had come; 0: they have not.
    began: Nanos,
    /// The host that the client named in its ClientHello.
    host: RefCell<Option<Rc<TlsHost>>>,
}

/// The first state of a connection, after the header of the PROXY protocol if there is one. `input` has the
/// bytes that came with that header.
pub(super) fn begin(input: Vec<u8>, link: &mut Link) -> ConnectionState {
    let Some(stream) = link.transport.tls() else {
        return ConnectionState::Idle(input);
    };
    stream.begin(input);
    let worker = Rc::clone(&link.worker);
    worker.handshakes.set(worker.handshakes.get() + 1);
    ConnectionState::Handshake(Box::new(Handshake {
        worker,
        due_s: 0,
        began: 0,
        host: RefCell::default(),
    }))
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let handshakes = &self.worker.handshakes;
        handshakes.set(handshakes.get() - 1);
    }
}

impl Handshake {
    pub(super) fn poll(mut self: Box<Self>, link: &mut Link, context: &mut Context<'_>) -> Step {
        self.set_due(link);
        let (scope, facts) = (&link.scope, &link.facts);
        let choose = |hello: &ClientHello| self.choose(scope, facts, hello);
        let Some(stream) = link.transport.tls() else {
            return Continue(ConnectionState::Over(None));
        };
        // The result is examined after the receive buffer is free again.
        let polled = {
            let mut plain = self.worker.receive_buffer.borrow_mut();
            let polled = stream.poll_handshake(context, &mut plain, &choose);
            polled.map_ok(|count| plain[..count].to_vec())
        };
        match polled {
            Poll::Pending => {
                if self.worker.draining() == Some(Drain::Stop) && !stream.has_begun() {
                    return Continue(ConnectionState::Over(None));
                }
                if self.began == 0 && stream.has_begun() {
                    self.began = self.worker.clock().now();
                }
                Break(ConnectionState::Handshake(self))
            }
            Poll::Ready(Ok(input)) => Continue(self.done(input, link)),
            Poll::Ready(Err(error)) => Continue(Handshake::fail(&error, link)),
        }
    }

    /// Sets the deadline of the whole handshake. It does not move when the client sends something.
    fn set_due(&mut self, link: &Link) {
        if self.due_s > 0 {
            return;
        }
        let are_many = self.worker.handshakes.get() > limits::TLS_HANDSHAKES_AT_EASE;
        if are_many {
            self.worker.logs().error(format_args!(
                "(handshake) a worker has more than {} unfinished TLS handshakes: new ones get {} s",
                limits::TLS_HANDSHAKES_AT_EASE,
                limits::TLS_HURRIED_HANDSHAKE_S
            ));
        }
        self.due_s = self.worker.clock().after(match are_many {
            true => limits::TLS_HURRIED_HANDSHAKE_S,
            false => limits::TLS_HANDSHAKE_S,
        });
        link.set_due(self.due_s);
    }

    fn choose(
        &self,
        scope: &ConnectionScope,
        facts: &ConnectionFacts,
        hello: &ClientHello,
    ) -> Result<Arc<ServerConfig>, AlertDescription> {
        let name = hello.server_name().unwrap_or_default();
        let (listener, peer) = (&facts.listener.address, facts.peer.ip());
        let table = self.worker.settings_table();
        let host = table.tls_host(scope, name.as_bytes(), listener, peer);
        let host = host.ok_or(AlertDescription::InternalError)?;
        let config = (host.choose)(hello)?;
        *self.host.borrow_mut() = Some(host);
        Ok(config)
    }

    /// The handshake is complete. `input` has the first bytes that the client sent after it.
    fn done(self, input: Vec<u8>, link: &mut Link) -> ConnectionState {
        let (Some(stream), Some(host)) = (link.transport.tls(), self.host.take()) else {
            return ConnectionState::Over(None);
        };
        let Some(facts) = stream.facts() else {
            return ConnectionState::Over(None);
        };
        if let Some(refuse) = &host.refuse_client
            && (facts.is_resumed || facts.client_certificates.is_empty())
            && let Err(why) = refuse(facts.client_certificates)
        {
            link.worker.shared().tls_counts().failed_handshake();
            log(link, why);
            return ConnectionState::Over(None);
        }
        if facts.alpn == Some(ACME) {
            link.worker
                .shared()
                .tls_counts()
                .handshake(facts.is_resumed);
            link.stop_speaking();
            return ConnectionState::Linger(None);
        }
        let is_http2 = facts.alpn == Some(HTTP2);
        let mut facts = TlsConnectionFacts::new(&facts, &host);
        if self.began > 0 {
            facts.handshake_nanos = self.worker.clock().now().saturating_sub(self.began);
        }
        link.worker
            .shared()
            .tls_counts()
            .handshake(facts.is_resumed);
        link.facts.late().tls = Some(Rc::new(facts));
        link.set_deadline(link.worker.base_settings().core.read_idle_s);
        match is_http2 {
            true => Http2::begin(link, input),
            false => ConnectionState::Idle(input),
        }
    }

    fn fail(error: &HandshakeError, link: &mut Link) -> ConnectionState {
        let has_begun = link
            .transport
            .tls()
            .is_some_and(|stream| stream.has_begun());
        if has_begun {
            link.worker.shared().tls_counts().failed_handshake();
        }
        let logs_noise = link.worker.base_settings().core.debug.ssl_noise;
        match error {
            HandshakeError::Tls(TlsError::Hello(hello @ HelloError::PlainHttp)) => {
                return answer_in_clear(hello, link);
            }
            // Scanners, and clients that gave up.
            HandshakeError::Left
            | HandshakeError::Socket(_)
            | HandshakeError::Tls(TlsError::Hello(_)) => {
                if logs_noise {
                    log(link, &error.to_string());
                }
            }
            HandshakeError::Tls(error) => log(link, &error.to_string()),
        }
        match error {
            HandshakeError::Left | HandshakeError::Socket(_) => ConnectionState::Over(None),
            // The client must be able to read the alert; closing at once could cause a reset.
            HandshakeError::Tls(_) => {
                link.stop_speaking();
                ConnectionState::Linger(None)
            }
        }
    }
}

/// The ALPN name by which a certificate authority asks for its challenge certificate; it sends no request
/// (RFC 8737).
const ACME: &[u8] = b"acme-tls/1";
/// The ALPN name of HTTP/2.
const HTTP2: &[u8] = b"h2";

/// Answers a client that speaks plain HTTP to a TLS port: with a response without TLS that tells it so.
fn answer_in_clear(error: &HelloError, link: &mut Link) -> ConnectionState {
    let stream = link.transport.tls();
    let input = stream
        .map(TlsStream::end_before_it_began)
        .unwrap_or_default();
    let cause = format_args!("{error}");
    Serving::begin(link).refuse_head(&input, Stage::ReadHead, CauseCode::TlsExpected, cause)
}

fn log(link: &Link, cause: &str) {
    let log = &link.worker.base_settings().core.error_log;
    let client = link.facts.peer.without_port();
    log.error(format_args!("(handshake) {cause} client={client}"));
}
