//! The client's side of a TLS connection, to a backend or to a server that a script sends a request to.
//!
//! It does no IO. The owner passes in received bytes ([`TlsClient::receive`], [`TlsClient::end_of_input`]),
//! takes plaintext out ([`TlsClient::read`]), puts plaintext in ([`TlsClient::write`]) and sends
//! [`TlsClient::unsent`]. rustls reads the system's clock by itself to verify the server's certificate. Only
//! this file names rustls's client connection types.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, ConfigBuilder,
    DigitallySignedStruct, Error, InconsistentKeys, RootCertStore, SignatureScheme, WantsVerifier,
};

use crate::limits;

/// How servers are verified, and which client certificate they get.
#[derive(Clone, Debug)]
pub struct TlsTrust {
    config: ClientConfig,
}

/// A server to connect to. Later connections resume the sessions of earlier ones.
#[derive(Clone)]
pub struct TlsServer {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// A name that a certificate can be issued for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TlsName(ServerName<'static>);

/// A client certificate with its issuers, and its key.
#[derive(Debug)]
pub struct ClientIdentity {
    /// The client's own certificate first.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The key of the first certificate.
    pub key: PrivateKeyDer<'static>,
}

/// One connection.
#[derive(Debug)]
pub struct TlsClient {
    connection: ClientConnection,
    /// Received bytes that wait until the owner has taken the plaintext before them.
    held: Vec<u8>,
    /// Records to be sent; the socket has taken the first `unsent_from` bytes.
    unsent: Vec<u8>,
    unsent_from: usize,
}

/// Why a connection is over. Its text is a clause about the server, which it calls "it".
#[derive(Debug)]
pub struct TlsClientError(Error);

impl TlsTrust {
    /// Verifies servers by `roots`; `None`: does not verify them. Servers that ask for a certificate get
    /// `identity`.
    ///
    /// # Errors
    /// The identity cannot be used. The text is about its key.
    pub fn new(
        roots: Option<Arc<RootCertStore>>,
        identity: Option<ClientIdentity>,
    ) -> Result<TlsTrust, String> {
        let builder = builder();
        let builder = match roots {
            Some(roots) => builder.with_root_certificates(roots),
            None => {
                let provider = Arc::clone(builder.crypto_provider());
                builder
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(Unverified(provider)))
            }
        };
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder
                .with_client_auth_cert(identity.certificates, identity.key)
                .map_err(|error| match error {
                    Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                        "the key does not belong to the certificate".to_owned()
                    }
                    other => format!("the key cannot be used: {other}"),
                })?,
        };
        Ok(TlsTrust { config })
    }

    /// Trusts no issuer, so that no handshake succeeds.
    pub fn in_none() -> TlsTrust {
        let builder = builder().with_root_certificates(RootCertStore::empty());
        TlsTrust {
            config: builder.with_no_client_auth(),
        }
    }

    /// The server `name`, which is asked for the ALPN protocol `protocol`.
    pub fn server(&self, name: &TlsName, protocol: Option<&[u8]>) -> TlsServer {
        let mut config = self.config.clone();
        config.alpn_protocols = protocol.map(<[u8]>::to_vec).into_iter().collect();
        config.resumption = Resumption::in_memory_sessions(limits::TLS_CLIENT_SESSIONS_MAX);
        TlsServer {
            config: Arc::new(config),
            name: name.0.clone(),
        }
    }
}

fn builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has ciphers of both versions")
}

impl TlsName {
    /// Reads a host name or an address.
    ///
    /// # Errors
    /// The text is neither.
    pub fn parse(text: &str) -> Result<TlsName, String> {
        let parsed = ServerName::try_from(text.to_owned());
        let parsed =
            parsed.map_err(|_| format!("{text:?} is no name that a certificate can be for"));
        parsed.map(TlsName)
    }
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("TlsServer")
            .field(&self.name)
            .finish()
    }
}

impl TlsServer {
    /// Begins a connection. `prefix` is sent in the clear before the first record.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn client(&self, prefix: Vec<u8>) -> Result<TlsClient, TlsClientError> {
        let config = Arc::clone(&self.config);
        let connection =
            ClientConnection::new(config, self.name.clone()).map_err(TlsClientError)?;
        let mut client = TlsClient {
            connection,
            held: Vec::new(),
            unsent: prefix,
            unsent_from: 0,
        };
        client.collect_records();
        Ok(client)
    }
}

impl TlsClient {
    /// Whether the handshake is not done.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Takes received bytes. The owner reads the plaintext before it receives more. After an error only an
    /// alert may be left to be sent.
    ///
    /// # Errors
    /// The connection is over.
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<(), TlsClientError> {
        while !bytes.is_empty() {
            // Reading from a slice cannot fail unless rustls's plaintext buffer is full, which the check
            // below prevents.
            let Ok(count) = self.connection.read_tls(&mut bytes) else {
                break;
            };
            let processed = self.connection.process_new_packets();
            self.collect_records();
            let state = processed.map_err(TlsClientError)?;
            if count == 0 {
                // The server has sent close_notify. Bytes behind it do not count.
                return Ok(());
            }
            if state.plaintext_bytes_to_read() >= limits::TLS_RECORD_BYTES_MAX {
                break;
            }
        }
        self.held.extend_from_slice(bytes);
        Ok(())
    }

    /// The socket has ended.
    pub fn end_of_input(&mut self) {
        // Reading from nothing fails only while rustls's plaintext buffer is full. Then the owner has
        // plaintext to read first.
        let _ = self.connection.read_tls(&mut io::empty());
    }

    /// Reads plaintext into `buffer`. `None`: there is none until more is received. 0: the server has sent
    /// close_notify.
    ///
    /// # Errors
    /// `UnexpectedEof`: the socket has ended without close_notify. `InvalidData`: the connection is over.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.connection.reader().read(buffer) {
                Ok(count) => return Ok(Some(count)),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if self.held.is_empty() => return Ok(None),
                Err(_) => {
                    let held = std::mem::take(&mut self.held);
                    self.receive(&held)?;
                }
            }
        }
    }

    /// Encrypts up to four records of `plaintext`, and returns how many bytes that were.
    pub fn write(&mut self, plaintext: &[u8]) -> usize {
        let end = plaintext.len().min(4 * limits::TLS_RECORD_BYTES_MAX);
        let plaintext = plaintext.get(..end).unwrap_or_default();
        // The writer is a buffer in memory: it takes fewer bytes when it is full, and does not fail.
        let count = self.connection.writer().write(plaintext).unwrap_or(0);
        self.collect_records();
        count
    }

    /// Sends close_notify.
    pub fn close(&mut self) {
        self.connection.send_close_notify();
        self.collect_records();
    }

    /// The bytes to be sent.
    pub fn unsent(&self) -> &[u8] {
        self.unsent.get(self.unsent_from..).unwrap_or_default()
    }

    /// The socket has taken the first `count` bytes of [`TlsClient::unsent`].
    pub fn sent(&mut self, count: usize) {
        self.unsent_from += count;
        if self.unsent_from >= self.unsent.len() {
            self.unsent_from = 0;
            self.unsent.clear();
            self.unsent.shrink_to(limits::TLS_RECORD_BYTES_MAX);
        }
    }

    fn collect_records(&mut self) {
        while self.connection.wants_write() {
            // Writing into a vector does not fail.
            if self.connection.write_tls(&mut self.unsent).is_err() {
                return;
            }
        }
    }
}

impl fmt::Display for TlsClientError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        use CertificateError as Wrong;
        match &self.0 {
            Error::InvalidCertificate(Wrong::Expired | Wrong::ExpiredContext { .. }) => {
                formatter.write_str("its certificate has expired")
            }
            Error::InvalidCertificate(Wrong::NotValidYet | Wrong::NotValidYetContext { .. }) => {
                formatter.write_str("its certificate is not valid yet")
            }
            Error::InvalidCertificate(Wrong::UnknownIssuer) => {
                formatter.write_str("the issuer of its certificate is unknown")
            }
            Error::InvalidCertificate(Wrong::NotValidForNameContext {
                expected,
                presented,
            }) => {
                write!(
                    formatter,
                    "its certificate is not for {:?} but for {}",
                    expected.to_str(),
                    match presented.as_slice() {
                        [] => "no name".to_owned(),
                        names => names.join(", "),
                    }
                )
            }
            Error::InvalidCertificate(Wrong::Other(error))
                if error.to_string().contains("CaUsedAsEndEntity") =>
            {
                formatter.write_str("its certificate is marked as one that issues others (CA:TRUE)")
            }
            Error::InvalidCertificate(error) => {
                write!(formatter, "its certificate cannot be used: {error}")
            }
            Error::AlertReceived(AlertDescription::CertificateRequired) => {
                formatter.write_str("it demands a client's certificate")
            }
            Error::AlertReceived(alert) => write!(formatter, "it has refused: alert {alert:?}"),
            Error::InvalidMessage(error) => write!(formatter, "it does not speak TLS: {error:?}"),
            error => write!(formatter, "TLS: {error}"),
        }
    }
}

impl std::error::Error for TlsClientError {}

impl From<TlsClientError> for io::Error {
    fn from(error: TlsClientError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

/// Accepts every certificate, and checks only that the server has its key.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
