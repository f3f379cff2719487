//! The server's certificates and their keys.
//!
//! A PEM file with certificates and one with keys make up a [`CertificateSet`]: for each key the certificate
//! that it belongs to, followed by its issuers in order. With an RSA and an ECDSA key the set has two
//! certificates for the same names.

use std::sync::Arc;

use petrel_engine::rustls::crypto::aws_lc_rs;
use petrel_engine::rustls::pki_types::CertificateDer;
use petrel_engine::rustls::sign::{CertifiedKey, SigningKey};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::staple::Staple;
use crate::pem;

/// Certificates for the same names, of different kinds.
#[derive(Debug)]
pub(super) struct CertificateSet {
    pub(super) members: Vec<Certificate>,
}

/// A certificate of the server.
#[derive(Debug)]
pub(super) struct Certificate {
    /// The certificate, and its issuers as far as the file has them.
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: Arc<dyn SigningKey>,
    pub(super) facts: LeafFacts,
}

/// What Petrel reads from a server certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeafFacts {
    /// In seconds since 1970.
    pub(super) not_before_s: i64,
    pub(super) not_after_s: i64,
    /// The bytes of the serial number, as the certificate has them.
    pub(super) serial: Vec<u8>,
    /// The certificate is must-staple: clients refuse it without an OCSP response (RFC 7633).
    pub(super) must_staple: bool,
}

/// Why certificates and keys cannot be used, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetError {
    pub(super) message: String,
    pub(super) hint: Option<&'static str>,
    /// The fault is in the file with the key.
    pub(super) in_key: bool,
}

impl CertificateSet {
    /// Parses two PEM files, which may be the same: `certificates` and `keys`.
    ///
    /// # Errors
    /// A file cannot be used, or a key belongs to no certificate.
    pub(super) fn parse(certificates: &[u8], keys: &[u8]) -> Result<CertificateSet, SetError> {
        let all = pem::certificates(certificates).map_err(|error| from_pem(&error, false))?;
        let keys = pem::private_keys(keys).map_err(|error| from_pem(&error, true))?;
        let mut members = Vec::new();
        for key in keys {
            let key = aws_lc_rs::sign::any_supported_type(&key).map_err(|error| SetError {
                message: format!("the key is of no kind that can be used: {error}"),
                hint: Some(
                    "RSA of 2048 bits or more, ECDSA on P-256, P-384 or P-521, and Ed25519 can be",
                ),
                in_key: true,
            })?;
            members.push(Certificate::find(key, &all)?);
        }
        Ok(CertificateSet { members })
    }
}

impl Certificate {
    fn find(
        key: Arc<dyn SigningKey>,
        all: &[CertificateDer<'static>],
    ) -> Result<Certificate, SetError> {
        let mut damaged = None;
        for leaf in all {
            let candidate = CertifiedKey::new(vec![leaf.clone()], Arc::clone(&key));
            match candidate.keys_match() {
                Ok(()) => {
                    let facts = LeafFacts::of(leaf).ok_or_else(|| cannot_be_read(None))?;
                    let chain = chain(leaf, all);
                    return Ok(Certificate { chain, key, facts });
                }
                Err(petrel_engine::rustls::Error::InvalidCertificate(error)) => {
                    damaged = Some(error)
                }
                Err(_) => {}
            }
        }
        Err(match damaged {
            Some(error) if all.len() == 1 => cannot_be_read(Some(format!("{error:?}"))),
            _ => SetError {
                message: "the key does not belong to the certificate".to_owned(),
                hint: Some(
                    "openssl x509 -pubkey -noout and openssl pkey -pubout show the same for two that belong together",
                ),
                in_key: true,
            },
        })
    }

    /// The certificate in rustls's terms. If the file has no issuers, those found in `authorities` are sent
    /// along, as OpenSSL does with ssl.ca-file. `staple` is the OCSP response to send along.
    pub(super) fn shown(
        &self,
        authorities: &[CertificateDer<'static>],
        staple: Option<&Staple>,
    ) -> CertifiedKey {
        let mut shown = self.chain.clone();
        if let [leaf] = shown.as_slice() {
            let leaf = leaf.clone();
            shown = chain(&leaf, authorities);
        }
        let mut key = CertifiedKey::new(shown, Arc::clone(&self.key));
        key.ocsp = staple
            .filter(|staple| staple.is_about(&self.facts.serial))
            .map(|staple| staple.response.clone());
        key
    }
}

impl LeafFacts {
    fn of(leaf: &CertificateDer<'_>) -> Option<LeafFacts> {
        let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
        let validity = certificate.validity();
        let extensions = certificate.extensions().iter();
        let mut features =
            extensions.filter(|extension| extension.oid.to_id_string() == TLS_FEATURE);
        Some(LeafFacts {
            not_before_s: validity.not_before.timestamp(),
            not_after_s: validity.not_after.timestamp(),
            serial: certificate.raw_serial().to_vec(),
            must_staple: features.any(|extension| extension.value == STATUS_REQUEST_FEATURE),
        })
    }
}

/// The chain to send: `leaf`, then its issuers in order as far as `all` has them, without self-signed
/// authorities. Behind these come cross-signed certificates, which have the same subject and another issuer:
/// some clients need them.
fn chain(
    leaf: &CertificateDer<'static>,
    all: &[CertificateDer<'static>],
) -> Vec<CertificateDer<'static>> {
    let parsed: Vec<Names<'_>> = all.iter().filter_map(Names::of).collect();
    let mut chain = vec![leaf.clone()];
    let mut above: Vec<&Names<'_>> = Vec::new();
    let Some(mut current) = Names::of(leaf) else {
        return chain;
    };
    let is_usable = |candidate: &&Names<'_>| {
        candidate.certificate != leaf && candidate.subject != candidate.issuer
    };
    while let Some(next) = parsed.iter().filter(is_usable).find(|candidate| {
        candidate.subject == current.issuer
            && above
                .iter()
                .all(|there| there.certificate != candidate.certificate)
    }) {
        above.push(next);
        current = *next;
    }
    let extras: Vec<_> = parsed
        .iter()
        .filter(is_usable)
        .filter(|candidate| above.iter().any(|there| there.subject == candidate.subject))
        .filter(|candidate| {
            above
                .iter()
                .all(|there| there.certificate != candidate.certificate)
        })
        .collect();
    chain.extend(
        above
            .into_iter()
            .chain(extras)
            .map(|names| names.certificate.clone()),
    );
    chain
}

/// Subject and issuer of a certificate.
#[derive(Clone, Copy)]
struct Names<'a> {
    certificate: &'a CertificateDer<'static>,
    subject: &'a [u8],
    issuer: &'a [u8],
}

impl Names<'_> {
    fn of<'a>(certificate: &'a CertificateDer<'static>) -> Option<Names<'a>> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        Some(Names {
            certificate,
            subject: parsed.tbs_certificate.subject.as_raw(),
            issuer: parsed.tbs_certificate.issuer.as_raw(),
        })
    }
}

fn from_pem(error: &pem::PemError, in_key: bool) -> SetError {
    SetError {
        message: error.to_string(),
        hint: error.hint(),
        in_key,
    }
}

fn cannot_be_read(why: Option<String>) -> SetError {
    SetError {
        message: match why {
            Some(why) => format!("its certificate cannot be read: {why}"),
            None => "its certificate cannot be read".to_owned(),
        },
        hint: None,
        in_key: false,
    }
}

/// The extension of RFC 7633, which lists TLS features that the server must use with this certificate.
const TLS_FEATURE: &str = "1.3.6.1.5.5.7.1.24";
/// The value of that extension for must-staple: a list with the number of status_request.
const STATUS_REQUEST_FEATURE: [u8; 5] = [0x30, 3, 2, 1, 5];
