//! The data after the addresses in a header of version 2: a sequence of type, length and value.

use crc::{CRC_32_ISCSI, Crc, NoTable};

use super::HeaderError;

/// The data of a header of version 2 besides the addresses. Unknown types are skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// The host name that the client asked for (PP2_TYPE_AUTHORITY, usually from SNI). It may hold any bytes.
    pub authority: Option<Vec<u8>>,
    /// The TLS connection between client and proxy (PP2_TYPE_SSL).
    pub tls: Option<Tls>,
}

/// The TLS connection between client and proxy. Texts may hold any bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Whether the client used TLS.
    pub is_used: bool,
    /// Whether the client presented a certificate, in this connection or earlier in its session.
    pub has_certificate: bool,
    /// Whether the proxy verified the certificate. Has no meaning without a certificate.
    pub is_verified: bool,
    /// The version, such as `TLSv1.3`.
    pub version: Option<Vec<u8>>,
    /// The common name of the certificate's subject.
    pub common_name: Option<Vec<u8>>,
    /// The cipher.
    pub cipher: Option<Vec<u8>>,
    /// The algorithm with which the server's certificate is signed.
    pub signature_algorithm: Option<Vec<u8>>,
    /// The algorithm of the server's key.
    pub key_algorithm: Option<Vec<u8>>,
}

const TYPE_AUTHORITY: u8 = 0x02;
const TYPE_CHECKSUM: u8 = 0x03;
const TYPE_TLS: u8 = 0x20;
const TLS_VERSION: u8 = 0x21;
const TLS_COMMON_NAME: u8 = 0x22;
const TLS_CIPHER: u8 = 0x23;
const TLS_SIGNATURE: u8 = 0x24;
const TLS_KEY: u8 = 0x25;
const CLIENT_TLS: u8 = 0x01;
const CLIENT_CERTIFICATE: u8 = 0x02 | 0x04;

impl Extras {
    /// Reads the data that begins at `start` of the whole header.
    pub(super) fn read(header: &[u8], start: usize) -> Result<Extras, HeaderError> {
        let mut extras = Extras::default();
        for extra in Values::new(header, start) {
            let (kind, value, at) = extra?;
            match kind {
                TYPE_AUTHORITY => extras.authority = Some(value.to_vec()),
                TYPE_TLS => extras.tls = Some(Tls::read(value)?),
                TYPE_CHECKSUM => check(header, at, value)?,
                _ => {}
            }
        }
        Ok(extras)
    }
}

impl Tls {
    fn read(value: &[u8]) -> Result<Tls, HeaderError> {
        let (&[client, verify @ ..], _) =
            value.split_first_chunk::<5>().ok_or(HeaderError::Extras)?;
        let mut tls = Tls {
            is_used: client & CLIENT_TLS != 0,
            has_certificate: client & CLIENT_CERTIFICATE != 0,
            is_verified: verify == [0; 4],
            ..Tls::default()
        };
        for extra in Values::new(value, 5) {
            let (kind, text, _) = extra?;
            let place = match kind {
                TLS_VERSION => &mut tls.version,
                TLS_COMMON_NAME => &mut tls.common_name,
                TLS_CIPHER => &mut tls.cipher,
                TLS_SIGNATURE => &mut tls.signature_algorithm,
                TLS_KEY => &mut tls.key_algorithm,
                _ => continue,
            };
            *place = Some(text.to_vec());
        }
        Ok(tls)
    }
}

/// Iterates over the values: type, value, and where the value begins.
struct Values<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Values<'a> {
    fn new(bytes: &'a [u8], at: usize) -> Values<'a> {
        Values { bytes, at }
    }
}

impl<'a> Iterator for Values<'a> {
    type Item = Result<(u8, &'a [u8], usize), HeaderError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if rest.is_empty() {
            return None;
        }
        let found = rest.split_first_chunk::<3>().and_then(|(head, rest)| {
            let [kind, high, low] = *head;
            let length = usize::from(u16::from_be_bytes([high, low]));
            Some((kind, rest.get(..length)?, self.at + 3))
        });
        self.at = match &found {
            Some((_, value, start)) => start + value.len(),
            // After an error the iterator ends.
            None => self.bytes.len(),
        };
        Some(found.ok_or(HeaderError::Extras))
    }
}

/// Checks the checksum of the header, which is computed with zeros in place of the checksum itself.
fn check(header: &[u8], at: usize, value: &[u8]) -> Result<(), HeaderError> {
    let sent: [u8; 4] = value.try_into().map_err(|_| HeaderError::Extras)?;
    let (before, rest) = header.split_at_checked(at).ok_or(HeaderError::Extras)?;
    let mut digest = CRC_32C.digest();
    for part in [before, &[0; 4], rest.get(sent.len()..).unwrap_or_default()] {
        digest.update(part);
    }
    match digest.finalize() == u32::from_be_bytes(sent) {
        true => Ok(()),
        false => Err(HeaderError::Checksum),
    }
}

/// RFC 9260 appendix A. It uses no table, because headers with a checksum are rare and short.
const CRC_32C: Crc<u32, NoTable> = Crc::<u32, NoTable>::new(&CRC_32_ISCSI);
