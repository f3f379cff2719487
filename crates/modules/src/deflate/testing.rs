//! What the tests of this module share.

use std::io::Read;

use petrel_engine::proto::accept::Coding;
use zlib_rs::{Inflate, InflateFlush, Status};

/// A text that compresses about as well as pages do.
pub(super) fn sample(length: usize) -> Vec<u8> {
    let words = [
        "server",
        "page",
        "<p class=\"note\">",
        "answer",
        "</p>\n",
        "of",
        "the",
        "file",
    ];
    let mut state = 7_u32;
    let mut text = Vec::with_capacity(length + 32);
    while text.len() < length {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        text.extend_from_slice(words[(state >> 24) as usize % words.len()].as_bytes());
        text.extend_from_slice((state >> 20).to_string().as_bytes());
        text.push(b' ');
    }
    text.truncate(length);
    text
}

/// The content of a complete stream.
pub(super) fn decoded(coding: Coding, bytes: &[u8]) -> Vec<u8> {
    match coding {
        Coding::Gzip => inflated(bytes, 31).expect("a whole gzip stream"),
        Coding::Deflate => inflated(bytes, 15).expect("a whole zlib stream"),
        Coding::Brotli => {
            let mut content = Vec::new();
            brotli::Decompressor::new(bytes, 4096)
                .read_to_end(&mut content)
                .expect("brotli");
            content
        }
        Coding::Zstd => zstd::decode_all(bytes).expect("zstd"),
        Coding::Identity => bytes.to_vec(),
    }
}

/// The content of a stream as far as it goes.
pub(super) fn decoded_part(coding: Coding, bytes: &[u8]) -> Vec<u8> {
    let mut content = vec![0; 4096];
    let count = match coding {
        Coding::Gzip => return inflated(bytes, 31).unwrap_or_else(|part| part),
        Coding::Deflate => return inflated(bytes, 15).unwrap_or_else(|part| part),
        Coding::Brotli => brotli::Decompressor::new(bytes, 4096).read(&mut content),
        Coding::Zstd => zstd::Decoder::new(bytes).expect("begin").read(&mut content),
        Coding::Identity => Ok(0),
    };
    content.truncate(count.expect("it is sound so far"));
    content
}

/// The content, or, as an error, the beginning of the content if the stream does not end.
fn inflated(bytes: &[u8], window_bits: u8) -> Result<Vec<u8>, Vec<u8>> {
    let mut inflate = Inflate::new(true, window_bits);
    let mut content = Vec::new();
    let mut rest = bytes;
    loop {
        let start = content.len();
        content.resize(start + 64 * 1024, 0);
        let read = inflate.total_in();
        let written = inflate.total_out();
        let status = inflate.decompress(rest, &mut content[start..], InflateFlush::NoFlush);
        rest = &rest[(inflate.total_in() - read) as usize..];
        content.truncate(start + (inflate.total_out() - written) as usize);
        match status {
            Ok(Status::StreamEnd) => return Ok(content),
            Ok(Status::Ok) if content.len() > start || !rest.is_empty() => {}
            Ok(_) => return Err(content),
            Err(error) => panic!("{error:?}"),
        }
    }
}
