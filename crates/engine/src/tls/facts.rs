//! The results of a handshake.

use rustls::pki_types::CertificateDer;
use rustls::{CipherSuite, ProtocolVersion};

/// What client and server have agreed on, and the client's certificates.
#[derive(Clone, Copy, Debug)]
pub struct TlsFacts<'a> {
    /// The version of TLS.
    pub version: TlsVersion,
    /// OpenSSL's name of the cipher suite, for `SSL_CIPHER`.
    pub cipher: &'static str,
    /// Bits of the cipher's key.
    pub cipher_bits: u16,
    /// The IANA name of the key exchange group. `None` for a resumed TLS 1.2 session, which has no key
    /// exchange.
    pub group: Option<&'a str>,
    /// The ALPN protocol, if client and server agreed on one.
    pub alpn: Option<&'a [u8]>,
    /// The host that the client asked for (SNI), in lower case.
    pub server_name: Option<&'a str>,
    /// The client's certificate and its issuers, in DER; empty if the client has sent none. In a full
    /// handshake the configuration's verifier has checked them. In a resumed one they are those of the
    /// session that the ticket is from, checked when that session began
    /// ([`ChooseConfig`](super::ChooseConfig)).
    pub client_certificates: &'a [CertificateDer<'static>],
    /// The client resumed a session with a ticket.
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
    /// The value of `SSL_PROTOCOL`.
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

/// OpenSSL's name for a cipher suite of rustls, and the bits of its key.
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
