//! Parses certificates, private keys and revocation lists in PEM format.
//!
//! Knows neither the configuration nor the file system: it turns text into the types of rustls. An error is a
//! [`PemError`], a sentence for a message that names the file.

use std::fmt;

use petrel_engine::rustls::RootCertStore;
use petrel_engine::rustls::pki_types::pem::{self, PemObject, SectionKind};
use petrel_engine::rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs1KeyDer,
    PrivatePkcs8KeyDer, PrivateSec1KeyDer,
};

/// What is wrong with a PEM file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PemError {
    /// It is empty, or has only white space.
    Empty,
    /// It has no certificate.
    NoCertificate,
    /// It has no private key.
    NoKey,
    /// It has no revocation list.
    NoRevocationList,
    /// The private key needs a passphrase.
    Encrypted,
    /// It is no PEM file, or damaged.
    Damaged(String),
}

impl fmt::Display for PemError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PemError::Empty => formatter.write_str("it is empty"),
            PemError::NoCertificate => {
                formatter.write_str("it has no certificate (-----BEGIN CERTIFICATE-----)")
            }
            PemError::NoKey => {
                formatter.write_str("it has no private key (-----BEGIN PRIVATE KEY-----)")
            }
            PemError::NoRevocationList => {
                formatter.write_str("it has no revocation list (-----BEGIN X509 CRL-----)")
            }
            PemError::Encrypted => formatter.write_str("its private key needs a passphrase"),
            PemError::Damaged(what) => write!(formatter, "it is no sound PEM file: {what}"),
        }
    }
}

impl PemError {
    /// What to do about it, if that is not obvious.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            PemError::Encrypted => Some(
                "a server that starts by itself cannot be asked for one: write the key without (openssl pkey -in \
                 key.pem -out plain.pem), readable by root alone",
            ),
            _ => None,
        }
    }
}

/// The certificates in `text`, in order; at least one.
///
/// # Errors
/// There is none, or the text is damaged.
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let normalised = with_plain_labels(text);
    let found = sections(&normalised, |kind, der| {
        (kind == SectionKind::Certificate).then(|| der.into())
    })?;
    not_empty(found, text, PemError::NoCertificate)
}

/// The private keys in `text`, in order; at least one. PKCS#8, PKCS#1 (RSA) and SEC1 (EC).
///
/// # Errors
/// There is none, one has a passphrase, or the text is damaged.
pub fn private_keys(text: &[u8]) -> Result<Vec<PrivateKeyDer<'static>>, PemError> {
    if ENCRYPTED.iter().any(|mark| contains(text, mark)) {
        return Err(PemError::Encrypted);
    }
    let found = sections(text, |kind, der| match kind {
        SectionKind::PrivateKey => Some(PrivatePkcs8KeyDer::from(der).into()),
        SectionKind::RsaPrivateKey => Some(PrivatePkcs1KeyDer::from(der).into()),
        SectionKind::EcPrivateKey => Some(PrivateSec1KeyDer::from(der).into()),
        _ => None,
    })?;
    not_empty(found, text, PemError::NoKey)
}

/// The revocation lists in `text`; at least one.
///
/// # Errors
/// There is none, or the text is damaged.
pub fn revocation_lists(
    text: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, PemError> {
    let found = sections(text, |kind, der| {
        (kind == SectionKind::Crl).then(|| der.into())
    })?;
    not_empty(found, text, PemError::NoRevocationList)
}

/// A store of trusted authorities, and the number of certificates that cannot be used in it.
pub fn root_store(certificates: &[CertificateDer<'_>]) -> (RootCertStore, usize) {
    let mut store = RootCertStore::empty();
    let (_, unusable) = store.add_parsable_certificates(certificates.iter().cloned());
    (store, unusable)
}

fn sections<T>(
    text: &[u8],
    wanted: impl Fn(SectionKind, Vec<u8>) -> Option<T>,
) -> Result<Vec<T>, PemError> {
    struct Section(SectionKind, Vec<u8>);
    impl PemObject for Section {
        fn from_pem(kind: SectionKind, der: Vec<u8>) -> Option<Section> {
            Some(Section(kind, der))
        }
    }
    let mut found = Vec::new();
    for section in Section::pem_slice_iter(text) {
        let Section(kind, der) = section.map_err(|error| PemError::Damaged(describe(&error)))?;
        found.extend(wanted(kind, der));
    }
    Ok(found)
}

fn describe(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no end".to_owned(),
        pem::Error::IllegalSectionStart { .. } => "a section begins wrongly".to_owned(),
        pem::Error::Base64Decode(_) => "a section is not base64".to_owned(),
        other => other.to_string(),
    }
}

fn not_empty<T>(found: Vec<T>, text: &[u8], none: PemError) -> Result<Vec<T>, PemError> {
    match found.is_empty() {
        false => Ok(found),
        true if text.trim_ascii().is_empty() => Err(PemError::Empty),
        true => Err(none),
    }
}

/// `text` with the older label for certificates, which OpenSSL accepts as well, replaced by the usual one.
fn with_plain_labels(text: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    if !contains(text, OLD_LABEL) {
        return text.into();
    }
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memmem::find(rest, OLD_LABEL) {
        plain.extend_from_slice(&rest[..at]);
        plain.extend_from_slice(b" CERTIFICATE-----");
        rest = &rest[at + OLD_LABEL.len()..];
    }
    plain.extend_from_slice(rest);
    plain.into()
}

fn contains(text: &[u8], mark: &[u8]) -> bool {
    memchr::memmem::find(text, mark).is_some()
}

/// The marks of a key with a passphrase: of PKCS#8, and of OpenSSL's older format.
const ENCRYPTED: [&[u8]; 2] = [
    b"-----BEGIN ENCRYPTED PRIVATE KEY-----",
    b"Proc-Type: 4,ENCRYPTED",
];
/// The end of the label that old programs give certificates.
const OLD_LABEL: &[u8] = b" X509 CERTIFICATE-----";

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";

    #[test]
    fn what_is_missing_is_told() {
        assert_eq!(certificates(b" \n"), Err(PemError::Empty));
        assert_eq!(certificates(KEY), Err(PemError::NoCertificate));
        assert_eq!(private_keys(b"text").err(), Some(PemError::NoKey));
        assert_eq!(revocation_lists(KEY), Err(PemError::NoRevocationList));
        let cut = b"-----BEGIN CERTIFICATE-----\nMAA=\n";
        assert!(matches!(certificates(cut), Err(PemError::Damaged(_))));
    }

    #[test]
    fn keys_of_all_forms_are_found_among_certificates() {
        let text = b"-----BEGIN EC PARAMETERS-----\nMAA=\n-----END EC PARAMETERS-----\n\
            -----BEGIN EC PRIVATE KEY-----\nMAA=\n-----END EC PRIVATE KEY-----\n\
            -----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n\
            -----BEGIN RSA PRIVATE KEY-----\nMAA=\n-----END RSA PRIVATE KEY-----\n\
            -----BEGIN X509 CERTIFICATE-----\nMAA=\n-----END X509 CERTIFICATE-----\n";
        let text = [&text[..], KEY].concat();
        let keys = private_keys(&text).expect("keys");
        assert!(matches!(
            keys.as_slice(),
            [
                PrivateKeyDer::Sec1(_),
                PrivateKeyDer::Pkcs1(_),
                PrivateKeyDer::Pkcs8(_)
            ]
        ));
        assert_eq!(certificates(&text).expect("certificates").len(), 2);
    }

    #[test]
    fn a_passphrase_is_refused() {
        for text in [
            &b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n"[..],
            b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: A,B\n\nMAA=\n-----END RSA PRIVATE KEY-----\n",
        ] {
            assert_eq!(private_keys(text).err(), Some(PemError::Encrypted));
        }
    }
}
