//! Decompresses stored pages for clients that do not accept gzip.

use zlib_rs::{Inflate, InflateFlush, Status};

/// The largest page after decompression: a stored megabyte may decompress to far more.
const BYTES_MAX: usize = 16 << 20;

/// How many bytes are produced at a time.
const STEP_BYTES: usize = 64 << 10;

/// Whether `bytes` begin like a gzip stream (RFC 1952 2.3.1).
pub(super) fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b, 8])
}

/// The content of a gzip stream.
///
/// # Errors
/// It is no gzip stream, or cut off, or longer than 16 MiB: a sentence.
pub(super) fn gunzip(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let mut inflate = Inflate::new(true, 31);
    let mut content = Vec::new();
    let mut rest = bytes;
    loop {
        let filled = content.len();
        if filled >= BYTES_MAX {
            return Err(format!("it has more than {BYTES_MAX} bytes"));
        }
        content.resize(filled + STEP_BYTES, 0);
        let (read, written) = (inflate.total_in(), inflate.total_out());
        let room = content.get_mut(filled..).unwrap_or_default();
        let status = inflate
            .decompress(rest, room, InflateFlush::NoFlush)
            .map_err(|error| error.as_str().to_owned())?;
        let read = usize::try_from(inflate.total_in() - read).unwrap_or(usize::MAX);
        let written = usize::try_from(inflate.total_out() - written).unwrap_or_default();
        rest = rest.get(read..).unwrap_or_default();
        content.truncate(filled + written);
        match status {
            Status::StreamEnd => return Ok(content),
            _ if written == 0 && rest.is_empty() => return Err("it is cut short".to_owned()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf hello | gzip -n`.
    const HELLO: &[u8] = &[
        0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xcb, 0x48, 0xcd, 0xc9, 0xc9, 7, 0, 0x86, 0xa6, 0x10,
        0x36, 5, 0, 0, 0,
    ];

    #[test]
    fn whole_streams_are_decompressed_and_others_refused() {
        assert!(is_gzip(HELLO));
        assert_eq!(gunzip(HELLO).expect("it is whole"), b"hello");
        for end in 0..HELLO.len() {
            assert!(gunzip(&HELLO[..end]).is_err(), "{end}");
        }
        let mut wrong = HELLO.to_vec();
        wrong[18] ^= 1;
        assert!(gunzip(&wrong).is_err(), "the check sum is wrong");
    }
}
