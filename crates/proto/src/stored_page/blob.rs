//! Stored answers as bytes, for files and for stores that several machines share.
//!
//! A blob is a mark with the format's version, a checksum of the rest, and the parts of a [`CachedPage`],
//! each with its length in front. It contains the whole key, so that a reader can tell whether it is the
//! right page; times are those of the wall clock. A page that depends on Vary is found in two steps: under
//! the key alone there is a [`Blob::Vary`] with the field names, and under the key with the fields' values
//! the page.
//!
//! Bytes from outside may be anything: each length is checked against the bytes that are there before
//! anything is allocated.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::key;
use super::page::{CachedPage, TAGS_MAX, Times, VARY_NAMES_MAX};
use super::vary::{self, Varying};
use crate::header_block::HeaderBlock;
use crate::request_head::RequestHead;
use crate::status::Status;

/// What a blob contains.
#[derive(Clone, Debug)]
pub enum Blob {
    /// A stored answer, and the millisecond of the wall clock in which it was requested.
    Page {
        /// The answer.
        page: Box<CachedPage>,
        /// When it was requested.
        stored_ms: u64,
    },
    /// The answers under this key depend on these request fields.
    Vary {
        /// The whole key.
        key: Box<[u8]>,
        /// Names of the fields in lower case.
        names: Vec<Box<str>>,
    },
}

/// The bytes are damaged, or no blob of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

/// The name of a blob. Its first half depends only on the page's base, so that a whole base can be purged.
pub type BlobName = [u8; 2 * HALF_BYTES];

/// Bytes of each half of a [`BlobName`]: two pages have the same half with a probability of 2^-128.
pub const HALF_BYTES: usize = 16;

/// The first half of the names of all blobs with this base.
pub fn base_name(base: &[u8]) -> [u8; HALF_BYTES] {
    half(&[base])
}

/// The name of the blob for `key`, or for `key` with these values of request fields.
pub fn name(key: &[u8], vary: &[Varying]) -> BlobName {
    let mut parts: Vec<&[u8]> = vec![key];
    for varying in vary {
        parts.push(varying.name.as_bytes());
        // Tells a missing field from an empty one.
        parts.push(match varying.value {
            Some(_) => b"=",
            None => b"-",
        });
        parts.push(varying.value.as_deref().unwrap_or_default());
    }
    let mut name = [0; 2 * HALF_BYTES];
    let (base, rest) = name.split_at_mut(HALF_BYTES);
    base.copy_from_slice(&base_name(key::base(key)));
    rest.copy_from_slice(&half(&parts));
    name
}

fn half(parts: &[&[u8]]) -> [u8; HALF_BYTES] {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let digest = digest.finalize();
    let mut half = [0; HALF_BYTES];
    half.copy_from_slice(&digest[..HALF_BYTES]);
    half
}

/// Encodes `page`.
pub fn encode_page(page: &CachedPage, stored_ms: u64) -> Vec<u8> {
    let mut out = begin(KIND_PAGE, page.body.len() + page.fields.len() + 512);
    put(&mut out, &page.key);
    out.extend_from_slice(&stored_ms.to_le_bytes());
    out.extend_from_slice(&page.status.0.to_le_bytes());
    out.extend_from_slice(&page.date);
    out.extend_from_slice(&page.took_ms.to_le_bytes());
    let times = &page.times;
    out.extend_from_slice(&times.received_s.to_le_bytes());
    for number in [
        times.age_s,
        times.lifetime_s,
        times.stale_while_revalidate_s,
        times.stale_if_error_s,
    ] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.push(times.is_shareable.into());
    put_optional(&mut out, page.server.as_deref());
    put_count(&mut out, page.vary.len());
    for varying in &page.vary {
        put(&mut out, varying.name.as_bytes());
        put_optional(&mut out, varying.value.as_deref());
    }
    put_count(&mut out, page.tags.len());
    for tag in &page.tags {
        put(&mut out, tag);
    }
    put(&mut out, &page.fields);
    put(&mut out, &page.body);
    finish(out)
}

/// Encodes the names of the request fields that the answers under `key` depend on.
pub fn encode_vary(key: &[u8], vary: &[Varying]) -> Vec<u8> {
    let mut out = begin(KIND_VARY, 256);
    put(&mut out, key);
    put_count(&mut out, vary.len());
    for varying in vary {
        put(&mut out, varying.name.as_bytes());
    }
    finish(out)
}

/// Decodes a blob.
///
/// # Errors
/// It is damaged, or of another version.
pub fn decode(bytes: &Bytes) -> Result<Blob, Damaged> {
    let rest = bytes.strip_prefix(MARK).ok_or(Damaged)?;
    let (sum, rest) = rest.split_at_checked(SUM_BYTES).ok_or(Damaged)?;
    if checksum(rest) != sum {
        return Err(Damaged);
    }
    let mut reader = BlobReader(rest);
    let blob = match reader.byte()? {
        KIND_PAGE => page(&mut reader, bytes)?,
        KIND_VARY => vary_of(&mut reader)?,
        _ => return Err(Damaged),
    };
    match reader.0.is_empty() {
        true => Ok(blob),
        false => Err(Damaged),
    }
}

/// Whether a page answers a request with this key and head. Blobs are found by hashes. Two pages with the
/// same hash are not expected, but would be told apart here.
pub fn is_for(page: &CachedPage, key: &[u8], head: &RequestHead) -> bool {
    *page.key == *key && vary::matches(&page.vary, head)
}

fn page(reader: &mut BlobReader<'_>, bytes: &Bytes) -> Result<Blob, Damaged> {
    let key = reader.part()?;
    let stored_ms = reader.number_64()?;
    let status = Status(u16::from_le_bytes(reader.array()?));
    let date = reader.array()?;
    let took_ms = reader.number()?;
    let times = Times {
        received_s: reader.number_64()?,
        age_s: reader.number()?,
        lifetime_s: reader.number()?,
        stale_while_revalidate_s: reader.number()?,
        stale_if_error_s: reader.number()?,
        is_shareable: reader.byte()? != 0,
    };
    let server = reader.optional()?.map(Box::from);
    let mut vary = Vec::new();
    for _ in 0..reader.count(VARY_NAMES_MAX)? {
        vary.push(Varying {
            name: reader.text()?,
            value: reader.optional()?.map(Box::from),
        });
    }
    let mut tags: Vec<Box<[u8]>> = Vec::new();
    for _ in 0..reader.count(TAGS_MAX)? {
        tags.push(reader.part()?.into());
    }
    let fields = sound_fields(reader.part()?)?;
    let body = reader.part()?;
    if !(200..600).contains(&status.0) {
        return Err(Damaged);
    }
    let page = CachedPage {
        key: key.into(),
        vary: vary.into(),
        status,
        fields,
        date: sound_date(date)?,
        server,
        // A part of the bytes that were read; not copied.
        body: bytes.slice_ref(body),
        times,
        tags: tags.into(),
        took_ms,
    };
    Ok(Blob::Page {
        page: Box::new(page),
        stored_ms,
    })
}

fn vary_of(reader: &mut BlobReader<'_>) -> Result<Blob, Damaged> {
    let key = reader.part()?.into();
    let mut names = Vec::new();
    for _ in 0..reader.count(VARY_NAMES_MAX)? {
        names.push(reader.text()?);
    }
    Ok(Blob::Vary { key, names })
}

/// Fields from outside are checked like those of backends, so that none of them can end the head early.
fn sound_fields(bytes: &[u8]) -> Result<Box<[u8]>, Damaged> {
    let mut block = HeaderBlock::new();
    if !bytes.is_empty() && !bytes.ends_with(b"\r\n") {
        return Err(Damaged);
    }
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r\n").ok_or(Damaged)?;
        let colon = memchr::memchr(b':', line).ok_or(Damaged)?;
        let (name, value) = line.split_at_checked(colon).ok_or(Damaged)?;
        let name = std::str::from_utf8(name).map_err(|_| Damaged)?;
        let value = value.get(1..).unwrap_or_default();
        if NEVER_WRITTEN
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
        {
            return Err(Damaged);
        }
        block.append(name, value.trim_ascii());
    }
    match block.as_bytes() == bytes {
        true => Ok(bytes.into()),
        false => Err(Damaged),
    }
}

/// Fields that this server never writes into a blob. They would contradict the framing that it writes itself,
/// come twice, or belong to a single client.
const NEVER_WRITTEN: [&str; 8] = [
    "content-length",
    "transfer-encoding",
    "connection",
    "date",
    "server",
    "age",
    "set-cookie",
    "set-cookie2",
];

fn sound_date(date: [u8; 29]) -> Result<[u8; 29], Damaged> {
    match date.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        true => Ok(date),
        false => Err(Damaged),
    }
}

/// The part of a blob that is not read yet.
struct BlobReader<'a>(&'a [u8]);

impl<'a> BlobReader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Damaged> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], Damaged> {
        self.take(LENGTH)?.try_into().map_err(|_| Damaged)
    }

    fn byte(&mut self) -> Result<u8, Damaged> {
        Ok(self.array::<1>()?[0])
    }

    fn number(&mut self) -> Result<u32, Damaged> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn number_64(&mut self) -> Result<u64, Damaged> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn part(&mut self) -> Result<&'a [u8], Damaged> {
        let length = usize::try_from(self.number()?).map_err(|_| Damaged)?;
        self.take(length)
    }

    fn optional(&mut self) -> Result<Option<&'a [u8]>, Damaged> {
        match self.byte()? {
            0 => Ok(None),
            1 => self.part().map(Some),
            _ => Err(Damaged),
        }
    }

    fn count(&mut self, max: usize) -> Result<usize, Damaged> {
        let count = usize::try_from(self.number()?).map_err(|_| Damaged)?;
        (count <= max).then_some(count).ok_or(Damaged)
    }

    fn text(&mut self) -> Result<Box<str>, Damaged> {
        let text = std::str::from_utf8(self.part()?).map_err(|_| Damaged)?;
        Ok(text.into())
    }
}

fn begin(kind: u8, capacity: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(capacity + MARK.len() + SUM_BYTES);
    out.extend_from_slice(MARK);
    out.extend_from_slice(&[0; SUM_BYTES]);
    out.push(kind);
    out
}

fn finish(mut out: Vec<u8>) -> Vec<u8> {
    let begin = MARK.len() + SUM_BYTES;
    let sum = checksum(out.get(begin..).unwrap_or_default());
    if let Some(place) = out.get_mut(MARK.len()..begin) {
        place.copy_from_slice(&sum);
    }
    out
}

fn checksum(bytes: &[u8]) -> [u8; SUM_BYTES] {
    let digest = Sha256::digest(bytes);
    let mut sum = [0; SUM_BYTES];
    sum.copy_from_slice(&digest[..SUM_BYTES]);
    sum
}

fn put(out: &mut Vec<u8>, part: &[u8]) {
    put_count(out, part.len());
    out.extend_from_slice(part);
}

fn put_optional(out: &mut Vec<u8>, part: Option<&[u8]>) {
    out.push(part.is_some().into());
    if let Some(part) = part {
        put(out, part);
    }
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    // Never larger: keys, fields and bodies have limits of their own.
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

/// The beginning of every blob. The last byte before the line end is the format's version.
const MARK: &[u8] = b"petrel page 1\n";
const SUM_BYTES: usize = 16;
const KIND_PAGE: u8 = 1;
const KIND_VARY: u8 = 2;

#[cfg(test)]
mod tests {
    use super::super::page::tests::page;
    use super::*;

    fn key_of(base: &[u8]) -> Vec<u8> {
        let mut key = Vec::new();
        key::component(&mut key, 3, base);
        key.push(key::END_OF_BASE);
        key
    }

    fn varied() -> CachedPage {
        let mut page = page(b"key", "the body", 1000, 60);
        page.server = Some(b"php"[..].into());
        page.tags = Box::new([b"a"[..].into(), b"b"[..].into()]);
        page.times.is_shareable = true;
        page.times.stale_if_error_s = 7;
        page.vary = Box::new([
            Varying {
                name: "accept".into(),
                value: Some(b"x"[..].into()),
            },
            Varying {
                name: "origin".into(),
                value: None,
            },
        ]);
        page
    }

    #[test]
    fn a_page_comes_out_as_it_went_in() {
        let page = varied();
        let bytes = Bytes::from(encode_page(&page, 5));
        let Ok(Blob::Page {
            page: read,
            stored_ms,
        }) = decode(&bytes)
        else {
            panic!("it is a page");
        };
        assert_eq!(stored_ms, 5);
        assert_eq!(format!("{read:?}"), format!("{page:?}"));
        let bytes = Bytes::from(encode_vary(b"key", &page.vary));
        let Ok(Blob::Vary { key, names }) = decode(&bytes) else {
            panic!("it names fields");
        };
        assert_eq!(
            (&*key, names),
            (&b"key"[..], vec!["accept".into(), "origin".into()])
        );
    }

    #[test]
    fn every_cut_and_every_change_is_noticed() {
        let whole = encode_page(&varied(), 5);
        for length in 0..whole.len() {
            let cut = Bytes::copy_from_slice(&whole[..length]);
            assert!(decode(&cut).is_err(), "{length}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x41;
            assert!(decode(&Bytes::from(changed)).is_err(), "{at}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(decode(&Bytes::from(longer)).is_err());
    }

    /// A checksum is no signature: an attacker who can write to the store can compute it.
    #[test]
    fn a_right_checksum_does_not_make_nonsense_sound() {
        for fields in [
            &b"A: b"[..],
            b"A: b\r\n\r\nC: d\r\n",
            b"A b\r\n",
            b"A: b\nC: d\r\n",
            b"\r\n",
            b"Content-Length: 3\r\n",
            b"A: b\r\ntransfer-encoding: chunked\r\n",
            b"Set-Cookie: session=1\r\n",
        ] {
            let page = CachedPage {
                fields: fields.into(),
                ..varied()
            };
            assert!(
                decode(&Bytes::from(encode_page(&page, 5))).is_err(),
                "{fields:?}"
            );
        }
        for status in [0, 100, 600] {
            let page = CachedPage {
                status: Status(status),
                ..varied()
            };
            assert!(
                decode(&Bytes::from(encode_page(&page, 5))).is_err(),
                "{status}"
            );
        }
        let page = CachedPage {
            date: *b"Sun, 06 Nov 1994 08:49:37\r\n\r\n",
            ..varied()
        };
        assert!(decode(&Bytes::from(encode_page(&page, 5))).is_err());
        let mut endless = begin(KIND_VARY, 0);
        put(&mut endless, b"key");
        put_count(&mut endless, usize::MAX);
        assert!(decode(&Bytes::from(finish(endless))).is_err());
    }

    #[test]
    fn names_differ_where_pages_do() {
        let page = varied();
        let key = key_of(b"a");
        let other = key_of(b"b");
        let mut none = page.vary.clone();
        none[0].value = None;
        let mut empty = page.vary.clone();
        empty[0].value = Some(b""[..].into());
        let names = [
            name(&key, &[]),
            name(&key, &page.vary),
            name(&key, &none),
            name(&key, &empty),
            name(&other, &[]),
        ];
        for (at, one) in names.iter().enumerate() {
            assert!(names.iter().skip(at + 1).all(|other| other != one), "{at}");
        }
        assert_eq!(names[0][..HALF_BYTES], base_name(&key));
        assert_eq!(names[1][..HALF_BYTES], base_name(&key));
        assert_ne!(names[4][..HALF_BYTES], base_name(&key));
    }
}
