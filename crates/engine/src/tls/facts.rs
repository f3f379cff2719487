//! What is known of a session after its handshake.

use rustls::pki_types::CertificateDer;
use rustls::{CipherSuite, ProtocolVersion};

/// What client and server have agreed on, and who the client is.
#[derive(Clone, Copy, Debug)]
pub struct TlsFacts<'a> {
    /// The version of TLS.
    pub version: TlsVersion,
    /// The cipher by the name that OpenSSL has for it, as in `SSL_CIPHER`.
    pub cipher: &'static str,
    /// Bits of its key.
    pub cipher_bits: u16,
    /// The group of the key exchange by its IANA name. `None` for a resumed session of TLS 1.2, which has none.
    pub group: Option<&'a str>,
    /// The protocol that was agreed on.
    pub alpn: Option<&'a [u8]>,
    /// The host the client asked for, in lower case.
    pub server_name: Option<&'a str>,
    /// The client's certificate and those above it, in DER. Empty: it has shown none. They were verified by the rules
    /// of the configuration; those of a resumed session when it began, by the rules of the configuration that made the
    /// ticket ([`ChooseConfig`](super::ChooseConfig)).
    pub client_certificates: &'a [CertificateDer<'static>],
    /// The handshake was abbreviated by a ticket.
    pub is_resumed: bool,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl TlsVersion {
    /// As in `SSL_PROTOCOL`.
    pub const fn as_str(self) -> &'static str {
        match self {
            TlsVersion::Tls12 => "TLSv1.2",
            TlsVersion::Tls13 => "TLSv1.3",
        }
    }

    pub(super) fn of(version: ProtocolVersion) -> Option<TlsVersion> {
        match version {
            ProtocolVersion::TLSv1_2 => Some(TlsVersion::Tls12),
            ProtocolVersion::TLSv1_3 => Some(TlsVersion::Tls13),
            _ => None,
        }
    }
}

/// The name that OpenSSL has for `suite`, and the bits of its key. Those that rustls has.
pub(super) fn cipher(suite: CipherSuite) -> (&'static str, u16) {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => ("TLS_AES_128_GCM_SHA256", 128),
        CipherSuite::TLS13_AES_256_GCM_SHA384 => ("TLS_AES_256_GCM_SHA384", 256),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => ("TLS_CHACHA20_POLY1305_SHA256", 256),
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => {
            ("ECDHE-ECDSA-AES128-GCM-SHA256", 128)
        }
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => {
            ("ECDHE-ECDSA-AES256-GCM-SHA384", 256)
        }
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => {
            ("ECDHE-ECDSA-CHACHA20-POLY1305", 256)
        }
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => ("ECDHE-RSA-AES128-GCM-SHA256", 128),
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => ("ECDHE-RSA-AES256-GCM-SHA384", 256),
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => {
            ("ECDHE-RSA-CHACHA20-POLY1305", 256)
        }
        _ => ("", 0),
    }
}
