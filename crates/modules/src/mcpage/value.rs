//! The format of a stored page.
//!
//! Applications put only the body into memcached. This module stores a head in front of the body: a line with
//! the URL, the fields of the answer, and an empty line. The URL is compared when the page is read, so that
//! two URLs with the same hashed key are never confused.

use bytes::Bytes;
use petrel_engine::proto::header_block::HeaderBlock;

/// The beginning of a stored page with a head.
const MARK: &[u8] = b"petrel-page 1 ";

/// A stored page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Value {
    /// The fields as names and values; applications store none.
    pub(crate) fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// The body.
    pub(crate) body: Bytes,
}

/// Encodes a page.
pub(super) fn write(url: &[u8], fields: &HeaderBlock, body: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(MARK.len() + url.len() + body.len() + 512);
    value.extend_from_slice(MARK);
    value.extend_from_slice(url);
    value.extend_from_slice(b"\r\n");
    for (name, field) in fields.iter() {
        if !is_withheld(name) {
            value.extend_from_slice(name);
            value.extend_from_slice(b": ");
            value.extend_from_slice(field);
            value.extend_from_slice(b"\r\n");
        }
    }
    value.extend_from_slice(b"\r\n");
    value.extend_from_slice(body);
    value
}

/// Decodes the value stored for `url`. `None`: it is another page, or cut off.
pub(super) fn read(url: &[u8], value: &Bytes) -> Option<Value> {
    let Some(rest) = value.strip_prefix(MARK) else {
        return Some(Value {
            fields: Vec::new(),
            body: value.clone(),
        });
    };
    let mut rest = rest.strip_prefix(url)?.strip_prefix(b"\r\n")?;
    let mut fields = Vec::new();
    loop {
        let end = memchr::memmem::find(rest, b"\r\n")?;
        let (line, behind) = rest.split_at_checked(end)?;
        rest = behind.get(2..)?;
        if line.is_empty() {
            let body = value.slice_ref(rest);
            return Some(Value { fields, body });
        }
        let colon = memchr::memchr(b':', line)?;
        let (name, field) = line.split_at_checked(colon)?;
        fields.push((name.to_vec(), field.get(1..)?.trim_ascii().to_vec()));
    }
}

/// Whether a field is about one connection, one client or one moment, so that it is not stored.
fn is_withheld(name: &[u8]) -> bool {
    const WITHHELD: [&str; 8] = [
        "Set-Cookie",
        "Set-Cookie2",
        "Age",
        "Date",
        "Server",
        "Accept-Ranges",
        "Cache-Status",
        "X-Served-by-memcached",
    ];
    WITHHELD
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let mut fields = HeaderBlock::new();
        fields.append("Content-Type", b"a/b");
        fields.append("Set-Cookie", b"c=d");
        let value = Bytes::from(write(b"http://a/", &fields, b"\r\n\r\nbody"));
        let read_back = read(b"http://a/", &value).expect("it is whole");
        assert_eq!(
            read_back.fields,
            [(b"Content-Type".to_vec(), b"a/b".to_vec())]
        );
        assert_eq!(&read_back.body[..], b"\r\n\r\nbody");
        assert_eq!(read(b"http://a/b", &value), None, "another page");
        for end in MARK.len()..value.len() - 8 {
            assert_eq!(read(b"http://a/", &value.slice(..end)), None, "{end}");
        }
    }

    #[test]
    fn what_applications_store_is_a_body() {
        let value = Bytes::from_static(b"<html>");
        let page = read(b"http://a/", &value).expect("anything is a body");
        assert_eq!((page.fields.len(), page.body), (0, value));
    }
}
