//! The TLS part of the settings of one host.

use crate::ledger::Nanos;
use std::any::Any;
use std::cell::OnceCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use petrel_proto::client_hello::ClientHello;
use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, ServerConfig};

use super::facts::{TlsFacts, TlsVersion};

/// The certificates of a host and its rule for client certificates, made by the module that reads `ssl.*`.
///
/// Settings without a `TlsHost` are served in the clear. For a connection the engine takes the settings of
/// its listener and of the name in its ClientHello.
pub struct TlsHost {
    /// Returns the configuration for a ClientHello, or the alert to refuse the client with. Called on the
    /// worker's thread. See [`ChooseConfig`](super::ChooseConfig) for what a configuration must not do.
    pub choose: Box<ChooseForHost>,
    /// A number that is equal for hosts with the same certificates.
    pub certificate_id: u64,
    /// A number that is equal for hosts with the same rule for client certificates; 0 for hosts that ask for
    /// none.
    pub client_rule_id: u64,
    /// For hosts that require a good client certificate: checks the client's certificates, and returns why
    /// they are refused. The engine calls it for resumed sessions: their certificates were verified when the
    /// session began, and may have expired or been revoked since. `None`: every client is served.
    pub refuse_client: Option<Box<RefuseClient>>,
}

/// See [`TlsHost::refuse_client`].
pub type RefuseClient = dyn Fn(&[CertificateDer<'static>]) -> Result<(), &'static str>;

/// See [`TlsHost::choose`].
pub type ChooseForHost = dyn Fn(&ClientHello) -> Result<Arc<ServerConfig>, AlertDescription>;

impl fmt::Debug for TlsHost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("TlsHost");
        debug.field("certificate_id", &self.certificate_id);
        debug.field("client_rule_id", &self.client_rule_id);
        debug.finish_non_exhaustive()
    }
}

/// The results of a connection's handshake, kept for as long as the connection lasts.
#[derive(Clone, Debug)]
pub struct TlsConnectionFacts {
    /// The version of TLS.
    pub version: TlsVersion,
    /// The cipher by the name that OpenSSL has for it, as in `SSL_CIPHER`.
    pub cipher: &'static str,
    /// Bits of its key.
    pub cipher_bits: u16,
    /// The host the client asked for, in lower case.
    pub server_name: Option<Box<str>>,
    /// The client's certificate and its issuers, in DER; empty if the client has sent none.
    pub client_certificates: Box<[CertificateDer<'static>]>,
    /// The client resumed a session with a ticket.
    pub is_resumed: bool,
    /// [`TlsHost::certificate_id`] of the host that the handshake was made for.
    pub certificate_id: u64,
    /// [`TlsHost::client_rule_id`] of the host that the handshake was made for.
    pub client_rule_id: u64,
    /// From the first bytes of the handshake to its end.
    pub handshake_nanos: Nanos,
    /// Data that the module which made the [`TlsHost`] keeps about the client.
    pub kept: OnceCell<Rc<dyn Any>>,
}

impl TlsConnectionFacts {
    /// The facts of a connection whose handshake for `host` is done.
    pub(crate) fn new(facts: &TlsFacts<'_>, host: &TlsHost) -> TlsConnectionFacts {
        TlsConnectionFacts {
            version: facts.version,
            cipher: facts.cipher,
            cipher_bits: facts.cipher_bits,
            server_name: facts.server_name.map(Into::into),
            client_certificates: facts.client_certificates.into(),
            is_resumed: facts.is_resumed,
            certificate_id: host.certificate_id,
            client_rule_id: host.client_rule_id,
            handshake_nanos: 0,
            kept: OnceCell::new(),
        }
    }

    /// Whether a request for `host` may be answered on this connection; if not, it gets 421 (RFC 9110
    /// 15.5.20). `name` is the request's host without its port.
    ///
    /// The rule for client certificates must be the same. So must the certificates, with two exceptions: a
    /// client that sent no name in its handshake got the certificates for clients without a name, and a
    /// client that asked for `name` would get the same certificates again. The latter matters for conditions
    /// such as `$HTTP["host"] =~ "name$"`: the handshake sees the host without a port, and the request sees
    /// it with its port unless that is 443.
    pub(crate) fn is_for(&self, host: &TlsHost, name: &[u8]) -> bool {
        let is_same_name = |asked: &str| asked.as_bytes().eq_ignore_ascii_case(name);
        self.client_rule_id == host.client_rule_id
            && (self.certificate_id == host.certificate_id
                || self.server_name.as_deref().is_none_or(is_same_name))
    }
}
