//! OCSP responses: what an authority says about a certificate's revocation, sent along in the handshake (RFC
//! 6960, RFC 6066 section 8).
//!
//! The client verifies the signature. Petrel reads only which certificates a response is about and until when
//! it is valid.

use x509_parser::asn1_rs::{Any, FromDer, GeneralizedTime};
use x509_parser::pem::parse_x509_pem;

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Staple {
    /// In DER.
    pub(super) response: Vec<u8>,
    serials: Vec<Vec<u8>>,
    /// The earliest nextUpdate in seconds since 1970: from then on the response is not valid.
    next_update_s: Option<u64>,
}

impl Staple {
    /// A response in DER, or the same in PEM.
    ///
    /// # Errors
    /// The file is no OCSP response, or one that says that the authority could not answer.
    pub(super) fn parse(file: &[u8]) -> Result<Staple, &'static str> {
        let response = match from_pem(file) {
            Some(response) => response,
            None => file.to_vec(),
        };
        let Some((serials, next_update_s)) = read(&response) else {
            return Err("it is no successful OCSP response");
        };
        Ok(Staple {
            response,
            serials,
            next_update_s,
        })
    }

    /// Whether the response is about the certificate with this serial number.
    pub(super) fn is_about(&self, serial: &[u8]) -> bool {
        self.serials.iter().any(|known| known == serial)
    }

    /// The time from which on the response is not valid, in seconds since 1970.
    pub(super) fn next_update_s(&self) -> Option<u64> {
        self.next_update_s
    }

    /// Whether the response is valid at `now_s`.
    pub(super) fn holds(&self, now_s: u64) -> bool {
        self.next_update_s.is_none_or(|until_s| now_s < until_s)
    }
}

/// The serial numbers that a response is about, and its earliest nextUpdate.
fn read(response: &[u8]) -> Option<(Vec<Vec<u8>>, Option<u64>)> {
    let mut response = Fields::inside(response, SEQUENCE)?;
    if response.next_is(ENUMERATED)? != [SUCCESSFUL] {
        return None;
    }
    // [0] { responseType, response }: an OCTET STRING with a BasicOCSPResponse in it.
    let mut bytes = Fields(Fields(response.next_is(CONTEXT_0)?).next_is(SEQUENCE)?);
    bytes.next()?;
    let mut data =
        Fields(Fields::inside(bytes.next_is(OCTET_STRING)?, SEQUENCE)?.next_is(SEQUENCE)?);
    // Version (optional), responder, time of the response; behind them the list.
    let mut responses = loop {
        match data.next()? {
            (SEQUENCE, list) => break Fields(list),
            (CONTEXT_0 | CONTEXT_1 | CONTEXT_2 | GENERALIZED_TIME, _) => {}
            _ => return None,
        }
    };
    let mut serials = Vec::new();
    let mut next_update_s: Option<u64> = None;
    while let Some((SEQUENCE, single)) = responses.next() {
        let mut single = Fields(single);
        // Algorithm, digests of name and key of the authority, serial number.
        let mut id = Fields(single.next_is(SEQUENCE)?);
        for _ in 0..3 {
            id.next()?;
        }
        serials.push(id.next_is(INTEGER)?.to_vec());
        // State, time of the state.
        for _ in 0..2 {
            single.next()?;
        }
        if let Some((CONTEXT_0, time)) = single.next() {
            let time = time_of(time)?;
            next_update_s = Some(next_update_s.map_or(time, |before| before.min(time)));
        }
    }
    (!serials.is_empty()).then_some((serials, next_update_s))
}

fn from_pem(file: &[u8]) -> Option<Vec<u8>> {
    let (_, pem) = parse_x509_pem(file).ok()?;
    (pem.label == "OCSP RESPONSE").then_some(pem.contents)
}

/// The seconds since 1970 of a GeneralizedTime.
fn time_of(encoded: &[u8]) -> Option<u64> {
    let (_, time) = GeneralizedTime::from_der(encoded).ok()?;
    u64::try_from(time.utc_datetime().ok()?.unix_timestamp()).ok()
}

/// A sequence of DER values.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The values inside the first value of `encoded`, if that has the tag `tag`.
    fn inside(encoded: &'a [u8], tag: u8) -> Option<Fields<'a>> {
        Fields(encoded).next_is(tag).map(Fields)
    }

    fn next_is(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next()
            .filter(|(found, _)| *found == tag)
            .map(|(_, data)| data)
    }

    /// The next value: its tag and its contents.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let tag = *self.0.first()?;
        let (rest, value) = Any::from_der(self.0).ok()?;
        self.0 = rest;
        Some((tag, value.data))
    }
}

const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const ENUMERATED: u8 = 0x0a;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const CONTEXT_0: u8 = 0xa0;
const CONTEXT_1: u8 = 0xa1;
const CONTEXT_2: u8 = 0xa2;
/// The responseStatus "successful".
const SUCCESSFUL: u8 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    const SERIAL: &[u8] = &[0x12, 0x34];
    /// 1 January 2030.
    const NEXT_UPDATE_S: u64 = 1_893_456_000;

    /// A value in DER.
    fn value(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let length = u8::try_from(content.len()).expect("a short response");
        match length {
            0..0x80 => [&[tag, length][..], &content].concat(),
            _ => [&[tag, 0x81, length][..], &content].concat(),
        }
    }

    /// A response about the certificate with the number [`SERIAL`], without a signature.
    fn response() -> Vec<u8> {
        let time = |text: &str| value(GENERALIZED_TIME, &[text.as_bytes()]);
        let digest = value(OCTET_STRING, &[&[7; 20]]);
        let id = value(
            SEQUENCE,
            &[
                &value(SEQUENCE, &[]),
                &digest,
                &digest,
                &value(INTEGER, &[SERIAL]),
            ],
        );
        let next = value(CONTEXT_0, &[&time("20300101000000Z")]);
        let single = value(
            SEQUENCE,
            &[&id, &value(0x80, &[]), &time("20200101000000Z"), &next],
        );
        let responder = value(CONTEXT_2, &[&digest]);
        let list = value(SEQUENCE, &[&single]);
        let data = value(SEQUENCE, &[&responder, &time("20200101000000Z"), &list]);
        let basic = value(OCTET_STRING, &[&value(SEQUENCE, &[&data])]);
        let kind = value(0x06, &[&[0x2b, 6, 1, 5, 5, 7, 48, 1, 1]]);
        let bytes = value(CONTEXT_0, &[&value(SEQUENCE, &[&kind, &basic])]);
        value(SEQUENCE, &[&value(ENUMERATED, &[&[SUCCESSFUL]]), &bytes])
    }

    #[test]
    fn a_response_says_what_it_is_about_and_until_when() {
        let staple = Staple::parse(&response()).expect("sound");
        assert!(staple.is_about(SERIAL) && !staple.is_about(&[0x12]));
        assert_eq!(staple.next_update_s(), Some(NEXT_UPDATE_S));
        assert!(staple.holds(NEXT_UPDATE_S - 1) && !staple.holds(NEXT_UPDATE_S));
    }

    #[test]
    fn what_is_cut_short_is_none_and_changed_bytes_do_no_harm() {
        let sound = response();
        for end in 0..sound.len() {
            assert!(Staple::parse(&sound[..end]).is_err(), "{end}");
        }
        for position in 0..sound.len() {
            for byte in 0..=u8::MAX {
                let mut changed = sound.clone();
                changed[position] = byte;
                // The result does not matter, only that parsing does not panic.
                let _ = Staple::parse(&changed);
            }
        }
        let endless = [&[SEQUENCE, 0x84, 0xff, 0xff, 0xff, 0xff][..], &sound].concat();
        assert!(Staple::parse(&endless).is_err());
    }
}
