//! Parses the files that `ssl.*` names.

use std::collections::HashMap;
use std::sync::Arc;

use petrel_engine::rustls::DistinguishedName;
use petrel_engine::rustls::pki_types::{CertificateDer, TrustAnchor};
use petrel_engine::rustls::sign::CertifiedKey;
use webpki::{CertRevocationList, OwnedCertRevocationList};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::certificate::{CertificateSet, SetError};
use super::options::{FileKey, FileKind};
use super::staple::Staple;
use super::tickets::TicketSecret;
use crate::pem::{self, PemError};

/// The parsed contents of one [`FileKey`].
#[derive(Debug)]
pub(super) enum FileContent {
    Certificates(CertificateSet),
    Staple(Staple),
    Authorities(Authorities),
    AuthorityNames(Vec<DistinguishedName>),
    RevocationLists(Arc<Vec<CertRevocationList<'static>>>),
    TicketSecret(TicketSecret),
    Challenges(Challenges),
}

/// Authorities that issue client certificates. The server's own chain may take its issuers from them, too.
pub(super) struct Authorities {
    pub(super) certificates: Vec<CertificateDer<'static>>,
    pub(super) anchors: Vec<TrustAnchor<'static>>,
    pub(super) names: Vec<DistinguishedName>,
}

impl std::fmt::Debug for Authorities {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Authorities({})", self.certificates.len())
    }
}

/// Certificates for ACME challenges, by the name that each one proves.
pub(super) type Challenges = HashMap<String, Arc<CertifiedKey>>;

impl FileContent {
    /// Parses `files` as `key` says. For certificates these are the file with the certificates and, if it is
    /// another one, the file with the key; for challenges the name, certificate and key of each.
    ///
    /// # Errors
    /// What is wrong with the files.
    pub(super) fn parse(key: &FileKey, files: &[Vec<u8>]) -> Result<FileContent, SetError> {
        let first = files.first().map(Vec::as_slice).unwrap_or_default();
        let other = |message: String| SetError {
            message,
            hint: None,
            in_key: false,
        };
        let in_pem = |error: PemError| SetError {
            message: error.to_string(),
            hint: error.hint(),
            in_key: false,
        };
        Ok(match key.kind {
            FileKind::Certificates => {
                let keys = files.get(1).map_or(first, Vec::as_slice);
                FileContent::Certificates(CertificateSet::parse(first, keys)?)
            }
            FileKind::Staple => {
                FileContent::Staple(Staple::parse(first).map_err(|error| other(error.to_owned()))?)
            }
            FileKind::Authorities => {
                FileContent::Authorities(Authorities::parse(first).map_err(in_pem)?)
            }
            FileKind::AuthorityNames => {
                FileContent::AuthorityNames(Authorities::parse(first).map_err(in_pem)?.names)
            }
            FileKind::RevocationLists => {
                let lists = pem::revocation_lists(first).map_err(in_pem)?;
                let lists = lists
                    .iter()
                    .map(|list| OwnedCertRevocationList::from_der(list).map(Into::into));
                let lists: Result<_, webpki::Error> = lists.collect();
                FileContent::RevocationLists(Arc::new(lists.map_err(|error| {
                    other(format!("a revocation list cannot be used: {error}"))
                })?))
            }
            FileKind::TicketSecret => FileContent::TicketSecret(
                TicketSecret::from_file(first).map_err(|error| other(error.to_owned()))?,
            ),
            FileKind::Challenges => FileContent::Challenges(challenges(files)),
        })
    }
}

impl Authorities {
    fn parse(file: &[u8]) -> Result<Authorities, PemError> {
        let certificates = pem::certificates(file)?;
        let (store, unusable) = pem::root_store(&certificates);
        if unusable > 0 {
            return Err(PemError::Damaged(format!(
                "{unusable} of its certificates cannot be read"
            )));
        }
        let names = certificates.iter().filter_map(|certificate| {
            let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
            Some(DistinguishedName::from(parsed.subject().as_raw().to_vec()))
        });
        Ok(Authorities {
            names: names.collect(),
            anchors: store.roots,
            certificates,
        })
    }
}

/// The challenges that can be used. Others are left out: the ACME tool writes the files one by one, and may
/// not have finished.
fn challenges(files: &[Vec<u8>]) -> Challenges {
    let named = files.chunks_exact(3).filter_map(|files| {
        let [name, certificate, key] = files else {
            return None;
        };
        let set = CertificateSet::parse(certificate, key).ok()?;
        let shown = set.members.first()?.shown(&[], None);
        Some((String::from_utf8(name.clone()).ok()?, Arc::new(shown)))
    });
    named.collect()
}
