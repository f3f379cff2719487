//! Verifies client certificates, as `ssl.verifyclient.*` says.
//!
//! A [`ClientRule`] decides whether a certificate is good. rustls asks it in the handshake. With
//! `ssl.verifyclient.enforce = "disable"` a bad certificate does not end the handshake; there the request
//! asks again, for the value of SSL_CLIENT_VERIFY.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use petrel_engine::rustls::client::danger::HandshakeSignatureValid;
use petrel_engine::rustls::crypto::{
    WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use petrel_engine::rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use petrel_engine::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use petrel_engine::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, RevocationCheckDepth,
    RevocationOptionsBuilder, UnknownStatusPolicy, VerifiedPath,
};

/// Which client certificates are good, and whether clients without one are refused.
pub(super) struct ClientRule {
    pub(super) anchors: Vec<TrustAnchor<'static>>,
    pub(super) revoked: Arc<Vec<CertRevocationList<'static>>>,
    /// How many issuers may be above the client's certificate, the trusted one included.
    pub(super) depth: u32,
    /// The only names that may have issued the client's certificate; `None` allows every issuer that leads to
    /// `anchors`.
    pub(super) issuers: Option<Vec<DistinguishedName>>,
    /// The names of authorities that the server sends with its request for a certificate.
    pub(super) hints: Vec<DistinguishedName>,
    /// Clients without a good certificate are refused.
    pub(super) enforce: bool,
}

impl ClientRule {
    /// Checks the client's certificate, the first of `certificates`, at the time `now`. The others are its
    /// issuers.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check(
        &self,
        certificates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), ClientFault> {
        let (leaf, intermediates) = certificates.split_first().ok_or(webpki::Error::BadDer)?;
        let leaf = EndEntityCert::try_from(leaf)?;
        let lists: Vec<&CertRevocationList<'_>> = self.revoked.iter().collect();
        let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|options| {
            let options = options.with_depth(RevocationCheckDepth::Chain);
            let options = options.with_status_policy(UnknownStatusPolicy::Deny);
            options
                .with_expiration_policy(ExpirationPolicy::Enforce)
                .build()
        });
        let fault = Cell::new(None);
        let may_be = |path: &VerifiedPath<'_>| {
            self.check_path(path).map_err(|why| {
                fault.set(Some(why));
                webpki::Error::UnknownIssuer
            })
        };
        let verified = leaf.verify_for_usage(
            algorithms().all,
            &self.anchors,
            intermediates,
            now,
            KeyUsage::client_auth(),
            revocation,
            Some(&may_be),
        );
        match verified {
            Ok(_) => Ok(()),
            Err(error) => Err(fault.take().unwrap_or_else(|| error.into())),
        }
    }

    fn check_path(&self, path: &VerifiedPath<'_>) -> Result<(), ClientFault> {
        let above = path.intermediate_certificates().count() + 1;
        if u32::try_from(above).is_ok_and(|above| above > self.depth) {
            return Err(ClientFault::refused(TOO_DEEP));
        }
        let issuer = path.end_entity().issuer();
        match &self.issuers {
            Some(issuers) if !issuers.iter().any(|name| inside(name.as_ref()) == issuer) => {
                Err(ClientFault::refused(REJECTED))
            }
            _ => Ok(()),
        }
    }
}

/// The contents of a name in DER, without its tag and length: webpki has names in this form.
fn inside(name: &[u8]) -> &[u8] {
    use x509_parser::asn1_rs::{Any, FromDer};
    Any::from_der(name).map_or(&[], |(_, name)| name.data)
}

impl fmt::Debug for ClientRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("ClientRule");
        debug
            .field("depth", &self.depth)
            .field("enforce", &self.enforce);
        debug.finish_non_exhaustive()
    }
}

impl ClientCertVerifier for ClientRule {
    fn client_auth_mandatory(&self) -> bool {
        self.enforce
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let mut certificates = vec![end_entity.clone()];
        certificates.extend_from_slice(intermediates);
        match self.check(&certificates, now) {
            Err(fault) if self.enforce => Err(fault.error.into()),
            _ => Ok(ClientCertVerified::assertion()),
        }
    }

    // The client must prove that it has the key even if the server will not require a good certificate.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    aws_lc_rs::default_provider().signature_verification_algorithms
}

/// Why a client's certificate is not good.
#[derive(Clone, Debug)]
pub(super) struct ClientFault {
    /// OpenSSL's words for the fault, which follow `FAILED:` in SSL_CLIENT_VERIFY.
    pub(super) words: &'static str,
    error: CertificateError,
}

impl ClientFault {
    /// A fault that rustls has no error for; the log says `words`.
    fn refused(words: &'static str) -> ClientFault {
        let error = CertificateError::Other(OtherError(Arc::new(Unfit(words))));
        ClientFault { words, error }
    }
}

/// Why a certificate may not be a client's.
#[derive(Debug)]
struct Unfit(&'static str);

impl fmt::Display for Unfit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

impl std::error::Error for Unfit {}

impl From<webpki::Error> for ClientFault {
    fn from(error: webpki::Error) -> ClientFault {
        use webpki::Error as Fault;
        let (error, words) = match error {
            Fault::BadDer | Fault::BadDerTime | Fault::TrailingData(_) => (
                CertificateError::BadEncoding,
                "unable to decode the certificate",
            ),
            Fault::CertExpired { .. } | Fault::InvalidCertValidity => {
                (CertificateError::Expired, "certificate has expired")
            }
            Fault::CertNotValidYet { .. } => (
                CertificateError::NotValidYet,
                "certificate is not yet valid",
            ),
            Fault::UnknownIssuer => (
                CertificateError::UnknownIssuer,
                "unable to get local issuer certificate",
            ),
            Fault::CertRevoked => (CertificateError::Revoked, "certificate revoked"),
            Fault::UnknownRevocationStatus => (
                CertificateError::UnknownRevocationStatus,
                "unable to get certificate CRL",
            ),
            Fault::CrlExpired { .. } => {
                (CertificateError::ExpiredRevocationList, "CRL has expired")
            }
            Fault::InvalidSignatureForPublicKey | Fault::InvalidCrlSignatureForPublicKey => (
                CertificateError::BadSignature,
                "certificate signature failure",
            ),
            Fault::RequiredEkuNotFoundContext(_) | Fault::EmptyEkuExtension => (
                CertificateError::InvalidPurpose,
                "unsuitable certificate purpose",
            ),
            Fault::MaximumPathDepthExceeded | Fault::PathLenConstraintViolated => {
                return ClientFault::refused(TOO_DEEP);
            }
            Fault::UnsupportedCertVersion => return ClientFault::refused(OLD_VERSION),
            Fault::CaUsedAsEndEntity => return ClientFault::refused(IS_AUTHORITY),
            _ => return ClientFault::refused(REJECTED),
        };
        ClientFault { words, error }
    }
}

const TOO_DEEP: &str = "certificate chain too long";
const REJECTED: &str = "certificate rejected";
const OLD_VERSION: &str = "certificate of version 1 (a client needs one of version 3, as openssl x509 makes with -extfile)";
const IS_AUTHORITY: &str = "certificate of an authority (CA:TRUE), which is no client's";
