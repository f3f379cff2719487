//! The client's TLS: what it offers, which certificate it trusts, and where it keeps tickets.
//!
//! It offers one cipher suite and one key exchange, so that all servers do the same work. It trusts the one
//! certificate that was made for the comparison, and checks no signature: that would take the client as long
//! as signing takes the server.

use crate::certificate::HOST;
use crate::workload::{Handshake, Http, KeyExchange, Tls};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, NamedGroup, SignatureScheme,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The TLS configuration of a workload's connections.
pub fn config(
    tls: Tls,
    http: Http,
    certificate: &[u8],
    tickets: Arc<Tickets>,
) -> Result<Arc<ClientConfig>, Error> {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites = vec![cipher_suite::TLS13_AES_128_GCM_SHA256];
    provider.kx_groups = vec![match tls.key_exchange {
        KeyExchange::X25519 => kx_group::X25519,
        KeyExchange::X25519MlKem768 => kx_group::X25519MLKEM768,
    }];
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(OneCertificate(certificate.to_vec())))
        .with_no_client_auth();
    config.resumption = match tls.handshake {
        Handshake::Full => Resumption::disabled(),
        Handshake::Resumed => Resumption::store(tickets),
    };
    config.alpn_protocols = vec![match http {
        Http::One => b"http/1.1".to_vec(),
        Http::Two { .. } => b"h2".to_vec(),
    }];
    Ok(Arc::new(config))
}

/// The name in SNI.
pub fn server_name() -> ServerName<'static> {
    ServerName::try_from(HOST).expect("a host's name")
}

/// Trusts one certificate and no other.
#[derive(Debug)]
struct OneCertificate(Vec<u8>);

impl ServerCertVerifier for OneCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if **end_entity == *self.0 {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::UnknownIssuer.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// The server's tickets, each for one connection. Some servers issue none to a client that resumes, so many
/// must be collected with full handshakes before resumed ones are measured.
#[derive(Debug, Default)]
pub struct Tickets {
    values: Mutex<Vec<Tls13ClientSessionValue>>,
    /// New connections use no ticket.
    is_collecting: AtomicBool,
}

impl Tickets {
    /// Sets whether new connections use no ticket.
    pub fn collect(&self, is_collecting: bool) {
        self.is_collecting.store(is_collecting, Ordering::Relaxed);
    }

    /// The number of tickets.
    pub fn count(&self) -> usize {
        self.values().len()
    }

    fn values(&self) -> MutexGuard<'_, Vec<Tls13ClientSessionValue>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _server_name: ServerName<'static>, _group: NamedGroup) {}

    fn kx_hint(&self, _server_name: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _name: ServerName<'static>, _value: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _server_name: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _name: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.values().push(value);
    }

    fn take_tls13_ticket(&self, _name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let takes = !self.is_collecting.load(Ordering::Relaxed);
        takes.then(|| self.values().pop())?
    }
}
