//! What TLS is for the requests of one set of settings.

use std::any::Any;
use std::cell::OnceCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use petrel_proto::client_hello::ClientHello;
use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, ServerConfig};

use super::facts::{TlsFacts, TlsVersion};

/// Certificates and rules for the clients of a host, made by the module that reads `ssl.*`.
///
/// Settings without one are served in the clear. The one of a connection is chosen by its listener and the name that
/// its ClientHello asks for.
pub struct TlsHost {
    /// The configuration for a client that greets like this, or the alert to refuse it with. See
    /// [`ChooseConfig`](super::ChooseConfig) for what a configuration must heed. Called on the worker's thread.
    pub choose: Box<ChooseForHost>,
    /// Equal for hosts that show the same certificates.
    pub certificate_id: u64,
    /// Equal for hosts that ask their clients for certificates by the same rules; 0: they ask for none.
    pub client_rule_id: u64,
    /// Where clients need a good certificate: why one with these is refused. Asked once more for a resumed session, whose
    /// certificates were verified when it began, and may have expired or been revoked since. `None`: all are served.
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

/// What is known of a connection's TLS for as long as it lasts, also while no session is at hand.
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
    /// The client's certificate and those above it, in DER; verified. Empty: it has shown none.
    pub client_certificates: Box<[CertificateDer<'static>]>,
    /// The session goes on with an earlier one.
    pub is_resumed: bool,
    /// [`TlsHost::certificate_id`] of the host that the connection was begun for.
    pub certificate_id: u64,
    /// [`TlsHost::client_rule_id`] of the same.
    pub client_rule_id: u64,
    /// What the module that made the host has found out about the client.
    pub kept: OnceCell<Rc<dyn Any>>,
}

impl TlsConnectionFacts {
    /// What is known once the handshake for `host` is done.
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
            kept: OnceCell::new(),
        }
    }

    /// Whether requests for `host` may come by this connection: those of another host with rules of its own for clients,
    /// and those for a name whose certificates are others than the client was shown for the name it asked for, get 421
    /// (RFC 9110 15.5.20). A client that asked for no name was shown what there is for all. One that asked for `name`, the
    /// request's host without its port, would be shown the same again: conditions that end behind the name are true for
    /// the handshake alone if the port is another than 443.
    pub(crate) fn is_for(&self, host: &TlsHost, name: &[u8]) -> bool {
        let is_same_name = |asked: &str| asked.as_bytes().eq_ignore_ascii_case(name);
        self.client_rule_id == host.client_rule_id
            && (self.certificate_id == host.certificate_id
                || self.server_name.as_deref().is_none_or(is_same_name))
    }
}
