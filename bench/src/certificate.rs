//! The certificate of all servers under comparison: ECDSA P-256, self-signed, generated for each run.

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A certificate and its file.
pub struct Certificate {
    /// Certificate and key in one file, which every server can read.
    pub pem: PathBuf,
    /// The certificate as it is sent in a handshake.
    pub der: Vec<u8>,
}

impl Certificate {
    /// Makes a certificate for [`HOST`] in `directory`.
    pub fn new(directory: &Path) -> io::Result<Self> {
        let made = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).and_then(|key| {
            let certificate = CertificateParams::new(vec![HOST.to_owned()])?.self_signed(&key)?;
            Ok((certificate, key))
        });
        let (certificate, key) = made.map_err(io::Error::other)?;
        let pem = directory.join("server.pem");
        fs::write(&pem, certificate.pem() + &key.serialize_pem())?;
        Ok(Self {
            pem,
            der: certificate.der().to_vec(),
        })
    }
}

/// The host name that clients use with TLS and HTTP/2.
pub const HOST: &str = "localhost";
