//! SCGI, and uWSGI's binary protocol, which encodes the variables differently. A connection carries one
//! request and ends with the response.

use std::io;

use super::dialect::{Dialect, Params, cgi_head, find, nonsense, text};
use super::wire::Wire;

pub(super) struct Scgi {
    read_params: fn(&mut Wire) -> io::Result<Params>,
    /// Bytes of the body that are still to come.
    left: usize,
}

impl Scgi {
    pub(super) fn with_netstrings() -> Scgi {
        Scgi {
            read_params: scgi_params,
            left: 0,
        }
    }

    pub(super) fn with_binary_lengths() -> Scgi {
        Scgi {
            read_params: uwsgi_params,
            left: 0,
        }
    }
}

/// Reads a netstring of names and values, each followed by a NUL. The first one is CONTENT_LENGTH.
fn scgi_params(wire: &mut Wire) -> io::Result<Params> {
    let length = text(&wire.take_through(b":")?);
    let length = length
        .trim_end_matches(':')
        .parse()
        .map_err(|_| nonsense("length of a netstring"))?;
    let bytes = wire.take(length)?;
    if wire.take(1)? != b"," || !bytes.starts_with(b"CONTENT_LENGTH\0") {
        return Err(nonsense("netstring"));
    }
    let parts: Vec<String> = bytes.split(|byte| *byte == 0).map(text).collect();
    // The part after the last NUL is empty.
    let pairs = parts.chunks_exact(2);
    let params: Params = pairs
        .map(|pair| (pair[0].clone(), pair[1].clone()))
        .collect();
    match find(&params, "SCGI") {
        Some("1") => Ok(params),
        _ => Err(nonsense("SCGI is not 1")),
    }
}

/// Reads modifier, length in 16 bits, modifier; then strings with their lengths in front, little-endian.
fn uwsgi_params(wire: &mut Wire) -> io::Result<Params> {
    let head = wire.take(4)?;
    if (head[0], head[3]) != (0, 0) {
        return Err(nonsense("modifiers"));
    }
    let bytes = wire.take(u16::from_le_bytes([head[1], head[2]]).into())?;
    let mut rest = bytes.as_slice();
    let mut next = || -> Option<String> {
        let (length, behind) = rest.split_first_chunk::<2>()?;
        let (string, behind) = behind.split_at_checked(u16::from_le_bytes(*length).into())?;
        rest = behind;
        Some(text(string))
    };
    let mut params = Params::new();
    while let Some(name) = next() {
        let value = next().ok_or_else(|| nonsense("a name without a value"))?;
        params.push((name, value));
    }
    Ok(params)
}

impl Dialect for Scgi {
    fn read_head(&mut self, wire: &mut Wire) -> io::Result<Params> {
        let params = (self.read_params)(wire)?;
        let length = find(&params, "CONTENT_LENGTH").unwrap_or("0");
        self.left = match length {
            "" => 0,
            _ => length.parse().map_err(|_| nonsense("CONTENT_LENGTH"))?,
        };
        Ok(params)
    }

    fn read_body(&mut self, wire: &mut Wire) -> io::Result<Option<Vec<u8>>> {
        if self.left == 0 {
            return Ok(None);
        }
        let bytes = wire.take_some(self.left)?;
        self.left -= bytes.len();
        Ok(Some(bytes))
    }

    fn write_head(&mut self, out: &mut Vec<u8>, status: u16, fields: &[(&str, &str)]) {
        out.extend(cgi_head(status, fields));
    }

    fn write_body(&mut self, out: &mut Vec<u8>, bytes: &[u8]) {
        out.extend_from_slice(bytes);
    }

    fn write_end(&mut self, _out: &mut Vec<u8>) -> bool {
        false
    }
}
