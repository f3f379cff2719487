//! A FastCGI 1.0 responder, with one request at a time on a connection.

use std::io;

use super::dialect::{Dialect, Params, cgi_head, nonsense, text};
use super::wire::Wire;

#[derive(Default)]
pub(super) struct FastCgi {
    /// The id of the current request.
    id: u16,
    /// Whether FCGI_KEEP_CONN is set.
    keep: bool,
    /// Whether STDIN has ended.
    at_end: bool,
    aborted: bool,
}

const BEGIN_REQUEST: u8 = 1;
const ABORT_REQUEST: u8 = 2;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
const STDERR: u8 = 7;
const GET_VALUES: u8 = 9;
const GET_VALUES_RESULT: u8 = 10;

struct FcgiRecord {
    kind: u8,
    id: u16,
    content: Vec<u8>,
}

/// A record in wire form, for scripts that violate the protocol.
pub fn record(kind: u8, id: u16, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).expect("a record holds 65,535 bytes");
    let mut bytes = vec![1, kind];
    bytes.extend(id.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend_from_slice(content);
    bytes
}

/// The answer to GET_VALUES of an application that takes one request at a time.
fn record_of_values() -> Vec<u8> {
    record(GET_VALUES_RESULT, 0, b"\x0f\x01FCGI_MPXS_CONNS0")
}

fn read_record(wire: &mut Wire) -> io::Result<FcgiRecord> {
    let head = wire.take(8)?;
    if head[0] != 1 {
        return Err(nonsense("FastCGI version"));
    }
    let number = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let content = wire.take(number(4).into())?;
    wire.take(head[6].into())?;
    Ok(FcgiRecord {
        kind: head[1],
        id: number(2),
        content,
    })
}

impl Dialect for FastCgi {
    fn read_head(&mut self, wire: &mut Wire) -> io::Result<Params> {
        // The abort of a request that was already answered may arrive before the next request.
        let begin = loop {
            let record = read_record(wire)?;
            match record.kind {
                ABORT_REQUEST => {}
                GET_VALUES => wire.send(&record_of_values())?,
                _ => break record,
            }
        };
        if begin.kind != BEGIN_REQUEST || begin.content.len() != 8 {
            return Err(nonsense("no FCGI_BEGIN_REQUEST"));
        }
        self.id = begin.id;
        self.keep = begin.content[2] & 1 != 0;
        (self.at_end, self.aborted) = (false, false);
        let role = u16::from_be_bytes([begin.content[0], begin.content[1]]);
        let mut encoded = Vec::new();
        loop {
            let record = read_record(wire)?;
            if record.kind != PARAMS || record.id != self.id {
                return Err(nonsense("no FCGI_PARAMS"));
            }
            if record.content.is_empty() {
                break;
            }
            encoded.extend(record.content);
        }
        let mut params = decode_params(&encoded).ok_or_else(|| nonsense("FCGI_PARAMS"))?;
        params.push(("(role)".to_owned(), role.to_string()));
        params.push(("(id)".to_owned(), self.id.to_string()));
        params.push(("(keep)".to_owned(), self.keep.to_string()));
        Ok(params)
    }

    fn read_body(&mut self, wire: &mut Wire) -> io::Result<Option<Vec<u8>>> {
        if self.at_end {
            return Ok(None);
        }
        let record = read_record(wire)?;
        match record.kind {
            _ if record.id != self.id => Err(nonsense("another request's record")),
            ABORT_REQUEST => {
                (self.at_end, self.aborted) = (true, true);
                Ok(None)
            }
            STDIN if record.content.is_empty() => {
                self.at_end = true;
                Ok(None)
            }
            STDIN => Ok(Some(record.content)),
            _ => Err(nonsense("no FCGI_STDIN")),
        }
    }

    fn write_head(&mut self, out: &mut Vec<u8>, status: u16, fields: &[(&str, &str)]) {
        self.write_body(out, &cgi_head(status, fields));
    }

    fn write_body(&mut self, out: &mut Vec<u8>, bytes: &[u8]) {
        for stretch in bytes.chunks(usize::from(u16::MAX)) {
            out.extend(record(STDOUT, self.id, stretch));
        }
    }

    fn write_end(&mut self, out: &mut Vec<u8>) -> bool {
        out.extend(record(STDOUT, self.id, b""));
        out.extend(record(END_REQUEST, self.id, &[0; 8]));
        self.keep
    }

    fn write_log(&mut self, out: &mut Vec<u8>, bytes: &[u8]) {
        for stretch in bytes.chunks(usize::from(u16::MAX)) {
            out.extend(record(STDERR, self.id, stretch));
        }
    }

    fn was_aborted(&mut self) -> bool {
        std::mem::take(&mut self.aborted)
    }
}

fn decode_params(mut bytes: &[u8]) -> Option<Params> {
    let mut params = Params::new();
    while !bytes.is_empty() {
        let name_length = decode_length(&mut bytes)?;
        let value_length = decode_length(&mut bytes)?;
        let (name, rest) = bytes.split_at_checked(name_length)?;
        let (value, rest) = rest.split_at_checked(value_length)?;
        params.push((text(name), text(value)));
        bytes = rest;
    }
    Some(params)
}

/// One byte, or four with the high bit set in the first.
fn decode_length(bytes: &mut &[u8]) -> Option<usize> {
    let first = *bytes.first()?;
    let (length, size) = match first {
        0..=127 => (usize::from(first), 1),
        _ => {
            let long = bytes.first_chunk::<4>()?;
            ((u32::from_be_bytes(*long) & 0x7fff_ffff) as usize, 4)
        }
    };
    *bytes = &bytes[size..];
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_with_short_and_long_lengths() {
        let mut bytes = b"\x01\x02ABC\x01".to_vec();
        bytes.extend([0x80, 0, 0, 200]);
        bytes.extend(b"K");
        bytes.extend([b'v'; 200]);
        let params = decode_params(&bytes).expect("complete");
        assert_eq!(params[0], ("A".to_owned(), "BC".to_owned()));
        assert_eq!(params[1], ("K".to_owned(), "v".repeat(200)));
        assert_eq!(decode_params(&bytes[..9]), None);
    }
}
