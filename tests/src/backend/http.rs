//! The origin server's side of HTTP/1.1.

use std::io;

use super::dialect::{Dialect, Params, find, nonsense, text};
use super::wire::Wire;

#[derive(Default)]
pub(super) struct Http {
    body: Body,
    /// Whether the client asked to close, or uses version 1.0.
    closes: bool,
    /// Whether the response is chunked.
    chunked: bool,
}

/// What is still to come of a request body.
#[derive(Clone, Copy, Default)]
enum Body {
    #[default]
    End,
    Length(usize),
    Chunks,
}

impl Dialect for Http {
    fn read_head(&mut self, wire: &mut Wire) -> io::Result<Params> {
        let head = text(&wire.take_through(b"\r\n\r\n")?);
        let mut lines = head.trim_end_matches("\r\n").split("\r\n");
        let mut words = lines.next().unwrap_or_default().splitn(3, ' ');
        let mut params = Params::new();
        for name in ["REQUEST_METHOD", "REQUEST_URI", "SERVER_PROTOCOL"] {
            let word = words.next().ok_or_else(|| nonsense("request line"))?;
            params.push((name.to_owned(), word.to_owned()));
        }
        for line in lines {
            let (name, value) = line.split_once(": ").ok_or_else(|| nonsense("field"))?;
            params.push((name.to_owned(), value.to_owned()));
        }
        self.closes = find(&params, "Connection").is_some_and(|value| value.contains("close"))
            || find(&params, "SERVER_PROTOCOL") != Some("HTTP/1.1");
        let length = find(&params, "Content-Length").map(str::parse);
        self.body = match (length, find(&params, "Transfer-Encoding")) {
            (None, None) => Body::End,
            (None, Some("chunked")) => Body::Chunks,
            (Some(Ok(length)), None) => Body::Length(length),
            _ => return Err(nonsense("framing")),
        };
        Ok(params)
    }

    fn read_body(&mut self, wire: &mut Wire) -> io::Result<Option<Vec<u8>>> {
        match self.body {
            Body::End | Body::Length(0) => Ok(None),
            Body::Length(left) => {
                let bytes = wire.take_some(left)?;
                self.body = Body::Length(left - bytes.len());
                Ok(Some(bytes))
            }
            Body::Chunks => {
                let size = text(&wire.take_through(b"\r\n")?);
                let size = usize::from_str_radix(size.trim_end(), 16)
                    .map_err(|_| nonsense("chunk size"))?;
                let bytes = wire.take(size)?;
                if wire.take(2)? != b"\r\n" {
                    return Err(nonsense("end of a chunk"));
                }
                if size == 0 {
                    self.body = Body::End;
                    return Ok(None);
                }
                Ok(Some(bytes))
            }
        }
    }

    fn write_head(&mut self, out: &mut Vec<u8>, status: u16, fields: &[(&str, &str)]) {
        let has = |wanted: &str| {
            fields
                .iter()
                .any(|(name, _)| name.eq_ignore_ascii_case(wanted))
        };
        let has_body = !matches!(status, 100..=199 | 204 | 304);
        self.chunked = has_body && !has("Content-Length");
        let mut head = format!("HTTP/1.1 {status} Backend\r\n");
        for (name, value) in fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if self.chunked {
            head.push_str("Transfer-Encoding: chunked\r\n");
        }
        out.extend((head + "\r\n").into_bytes());
    }

    fn write_body(&mut self, out: &mut Vec<u8>, bytes: &[u8]) {
        if self.chunked {
            out.extend(format!("{:x}\r\n", bytes.len()).into_bytes());
        }
        out.extend_from_slice(bytes);
        if self.chunked {
            out.extend(b"\r\n");
        }
    }

    fn write_end(&mut self, out: &mut Vec<u8>) -> bool {
        if self.chunked {
            out.extend(b"0\r\n\r\n");
        }
        !self.closes
    }
}
