//! Stored responses of the page cache. They come from files, and from stores that several machines share.
//! Whatever is stored there, what is read is within its limits, cannot end a head or set where the body ends,
//! and is written as it was read.
//!
//! The input is what follows the checksum of a blob, which a client of the store that may write can forge.

use std::sync::LazyLock;

use bytes::Bytes;
use petrel_proto::request_head::RequestHead;
use petrel_proto::stored_page::blob::{self, Blob};
use petrel_proto::stored_page::vary::Varying;
use petrel_proto::stored_page::{CachedPage, TAGS_MAX, VARY_NAMES_MAX};
use sha2::{Digest, Sha256};

const SUM_BYTES: usize = 16;

pub fn stored_page(input: &[u8]) {
    let _ = blob::decode(&Bytes::copy_from_slice(input));
    let sealed = sealed(input);
    match blob::decode(&sealed) {
        Err(_) => {}
        Ok(Blob::Page { page, stored_ms }) => {
            is_sound(&page, sealed.len());
            let again = written(blob::encode_page(&page, stored_ms));
            let Blob::Page {
                page: again,
                stored_ms: again_ms,
            } = again
            else {
                panic!("it is a page");
            };
            assert_eq!(
                format!("{again:?} {again_ms}"),
                format!("{page:?} {stored_ms}")
            );
        }
        Ok(Blob::Vary { key, names }) => {
            assert!(names.len() <= VARY_NAMES_MAX);
            let with_value = |name| Varying { name, value: None };
            let vary: Vec<Varying> = names.iter().cloned().map(with_value).collect();
            let Blob::Vary {
                key: again,
                names: same,
            } = written(blob::encode_vary(&key, &vary))
            else {
                panic!("it names fields");
            };
            assert_eq!((again, same), (key, names));
        }
    }
}

/// `rest` with the mark and the right checksum in front.
fn sealed(rest: &[u8]) -> Bytes {
    static MARK: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let made = blob::encode_vary(b"key", &[]);
        let end = made.iter().position(|byte| *byte == b'\n');
        let mark = &made[..=end.expect("the mark is a line")];
        // If the format has changed, nothing after the checksum would be tested.
        let rest = &made[mark.len() + SUM_BYTES..];
        assert_eq!(with_sum(mark, rest), made);
        mark.to_vec()
    });
    with_sum(&MARK, rest).into()
}

fn with_sum(mark: &[u8], rest: &[u8]) -> Vec<u8> {
    let sum = Sha256::digest(rest);
    [mark, &sum[..SUM_BYTES], rest].concat()
}

/// Reads what was just written.
fn written(bytes: Vec<u8>) -> Blob {
    blob::decode(&bytes.into()).expect("it was written from what was read")
}

fn is_sound(page: &CachedPage, bytes: usize) {
    assert!((200..600).contains(&page.status.0));
    assert!(page.vary.len() <= VARY_NAMES_MAX && page.tags.len() <= TAGS_MAX);
    assert!(page.key.len() + page.fields.len() + page.body.len() <= bytes);
    for now_s in [0, page.times.received_s, u64::MAX] {
        let _ = page.times.freshness(now_s);
        let _ = page.times.serves_while_revalidating(now_s);
        let _ = page.times.serves_on_error(now_s);
    }
    assert!(page.times.useful_until_s() >= page.times.received_s);
    let _ = blob::name(&page.key, &page.vary);
    assert!(!blob::is_for(page, b"no key", &RequestHead::new()) || *page.key == *b"no key");
    head_is_one(&page.wire());
}

/// Checks that each line is a field, and that none is one that the server writes itself.
fn head_is_one(wire: &[u8]) {
    assert!(wire.ends_with(b"\r\n"));
    let mut names = Vec::new();
    for line in wire.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r\n").expect("a whole line");
        assert!(!line.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
        let colon = line.iter().position(|byte| *byte == b':');
        let name = &line[..colon.expect("a field")];
        assert!(!name.is_empty() && name.iter().all(u8::is_ascii_graphic));
        names.push(name.to_ascii_lowercase());
    }
    let count = |name: &str| {
        names
            .iter()
            .filter(|known| **known == *name.as_bytes())
            .count()
    };
    assert_eq!(count("date"), 1);
    assert!(count("server") <= 1);
    for name in [
        "content-length",
        "transfer-encoding",
        "connection",
        "age",
        "set-cookie",
    ] {
        assert_eq!(count(name), 0, "{name}");
    }
}
