//! Writes response heads and chunks.
//!
//! Everything is appended to the caller's buffer, and nothing is allocated except to grow it.

use crate::header_block::HeaderBlock;
use crate::request_head::Version;
use crate::status::Status;

/// `100 Continue`, complete.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What follows the data of a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// Appends the status line with its CR LF. A status outside 100–999 is written as 500.
///
/// An HTTP/1.0 client gets `HTTP/1.0` in it, as from lighttpd; all others get the server's own version.
#[inline]
pub fn write_status_line(out: &mut Vec<u8>, version: Version, status: Status) {
    let start = out.len();
    match status.line_http11() {
        Some(line) => out.extend_from_slice(line.as_bytes()),
        None => write_uncommon_status_line(out, status),
    }
    if version == Version::Http10 {
        out[start + 7] = b'0';
    }
}

#[cold]
fn write_uncommon_status_line(out: &mut Vec<u8>, status: Status) {
    let code = if (100..=999).contains(&status.0) {
        status.0
    } else {
        500
    };
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(itoa::Buffer::new().format(code).as_bytes());
    out.extend_from_slice(b" ");
    out.extend_from_slice(Status(code).reason().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends an interim (1xx) response: its status line, `fields` and the empty line.
///
/// The caller makes sure that the client does not use HTTP/1.0, which does not allow it (RFC 9110 15.2).
pub fn write_interim(out: &mut Vec<u8>, status: Status, fields: &HeaderBlock) {
    write_status_line(out, Version::Http11, status);
    out.extend_from_slice(fields.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends `Content-Length: N` with its CR LF.
#[inline]
pub fn write_content_length(out: &mut Vec<u8>, length: u64) {
    out.extend_from_slice(b"Content-Length: ");
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends the header of a chunk of `length` bytes: the length in hexadecimal and CR LF. The chunk's data,
/// which may come from elsewhere, such as a file, and [`CHUNK_END`] follow.
///
/// `length` must not be 0, since an empty chunk ends the body.
#[inline]
pub fn write_chunk_header(out: &mut Vec<u8>, length: u64) {
    debug_assert_ne!(length, 0, "a chunk without data would end the body");
    let digits = (16 - length.leading_zeros() / 4).max(1);
    for position in (0..digits).rev() {
        let digit = (length >> (4 * position)) & 0xf;
        out.push(b"0123456789abcdef"[digit as usize]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the last chunk of a body, followed by `trailers`.
pub fn write_last_chunk(out: &mut Vec<u8>, trailers: &HeaderBlock) {
    out.extend_from_slice(b"0\r\n");
    out.extend_from_slice(trailers.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends `data` as one chunk; nothing if it is empty.
pub fn write_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if !data.is_empty() {
        write_chunk_header(out, data.len() as u64);
        out.extend_from_slice(data);
        out.extend_from_slice(CHUNK_END);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("heads are ASCII here")
    }

    #[test]
    fn status_lines_follow_the_version() {
        let line = |version, code| written(|out| write_status_line(out, version, Status(code)));
        assert_eq!(line(Version::Http11, 200), "HTTP/1.1 200 OK\r\n");
        assert_eq!(line(Version::Http10, 404), "HTTP/1.0 404 Not Found\r\n");
        assert_eq!(line(Version::Http10, 299), "HTTP/1.0 299 \r\n");
        assert_eq!(
            line(Version::Http11, 7),
            "HTTP/1.1 500 Internal Server Error\r\n"
        );
    }

    #[test]
    fn an_interim_response_ends_in_an_empty_line() {
        let mut fields = HeaderBlock::new();
        fields.append("Link", b"</a.css>");
        let head = written(|out| write_interim(out, Status::EARLY_HINTS, &fields));
        assert_eq!(head, "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n");
    }

    #[test]
    fn chunk_headers_are_hexadecimal() {
        for (length, expected) in [
            (1, "1\r\n"),
            (15, "f\r\n"),
            (16, "10\r\n"),
            (0xabc0, "abc0\r\n"),
        ] {
            assert_eq!(written(|out| write_chunk_header(out, length)), expected);
        }
        assert_eq!(
            written(|out| write_chunk_header(out, u64::MAX)),
            "ffffffffffffffff\r\n"
        );
    }

    #[test]
    fn an_empty_piece_does_not_end_the_body() {
        assert_eq!(written(|out| write_chunk(out, b"")), "");
        assert_eq!(written(|out| write_chunk(out, b"abc")), "3\r\nabc\r\n");
    }

    #[test]
    fn trailers_stand_behind_the_last_chunk() {
        let mut trailers = HeaderBlock::new();
        assert_eq!(written(|out| write_last_chunk(out, &trailers)), "0\r\n\r\n");
        trailers.append("A", b"1");
        assert_eq!(
            written(|out| write_last_chunk(out, &trailers)),
            "0\r\nA: 1\r\n\r\n"
        );
    }

    #[test]
    fn content_length_is_decimal() {
        assert_eq!(
            written(|out| write_content_length(out, 0)),
            "Content-Length: 0\r\n"
        );
        assert_eq!(
            written(|out| write_content_length(out, u64::MAX)),
            "Content-Length: 18446744073709551615\r\n"
        );
    }
}
