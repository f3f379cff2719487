//! The container's side of AJP 1.3.

use std::io;

use super::dialect::{Dialect, Params, find, nonsense, text};
use super::wire::Wire;

#[derive(Default)]
pub(super) struct Ajp13 {
    /// Bytes of the body that are still to come; `None`: until an empty packet.
    left: Option<u64>,
    /// Whether the next packet must be asked for. The first packet of a body comes unasked.
    asks: bool,
    at_end: bool,
}

const FORWARD_REQUEST: u8 = 2;
const SEND_BODY_CHUNK: u8 = 3;
const SEND_HEADERS: u8 = 4;
const END_RESPONSE: u8 = 5;
const GET_BODY_CHUNK: u8 = 6;
const CPING: u8 = 10;
/// The largest piece of a body that fits into a packet of 8,192 bytes.
const STRETCH: usize = 8186;

const METHODS: [&str; 10] = [
    "",
    "OPTIONS",
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "TRACE",
    "PROPFIND",
    "PROPPATCH",
];

/// Names of header fields that have a number, which begin at 0xA001.
const FIELDS: [&str; 14] = [
    "Accept",
    "Accept-Charset",
    "Accept-Encoding",
    "Accept-Language",
    "Authorization",
    "Connection",
    "Content-Type",
    "Content-Length",
    "Cookie",
    "Cookie2",
    "Host",
    "Pragma",
    "Referer",
    "User-Agent",
];

/// Names of attributes, whose numbers begin at 1. Number 10 is followed by a name.
const ATTRIBUTES: [&str; 13] = [
    "(context)",
    "SERVLET_PATH",
    "REMOTE_USER",
    "AUTH_TYPE",
    "QUERY_STRING",
    "JVM_ROUTE",
    "SSL_CERT",
    "SSL_CIPHER",
    "SSL_SESSION",
    "",
    "SSL_KEY_SIZE",
    "SECRET",
    "STORED_METHOD",
];

/// A packet from the container to the server.
fn packet(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len() + 1).expect("packets are small");
    let mut bytes = b"AB".to_vec();
    bytes.extend(length.to_be_bytes());
    bytes.push(kind);
    bytes.extend_from_slice(content);
    bytes
}

fn string(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).expect("strings are short");
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes.push(0);
    bytes
}

fn read_packet(wire: &mut Wire) -> io::Result<Vec<u8>> {
    let head = wire.take(4)?;
    if head[..2] != [0x12, 0x34] {
        return Err(nonsense("AJP13 magic"));
    }
    wire.take(u16::from_be_bytes([head[2], head[3]]).into())
}

impl Dialect for Ajp13 {
    fn read_head(&mut self, wire: &mut Wire) -> io::Result<Params> {
        let packet = loop {
            let packet = read_packet(wire)?;
            match packet.first() {
                Some(&CPING) => wire.send(b"AB\0\x01\x09")?,
                _ => break packet,
            }
        };
        let params = Reader(&packet)
            .forward_request()
            .ok_or_else(|| nonsense("FORWARD_REQUEST"))?;
        let length = find(&params, "Content-Length").and_then(|length| length.parse().ok());
        self.left = length;
        let is_chunked = find(&params, "Transfer-Encoding").is_some();
        self.at_end = length.unwrap_or(0) == 0 && !is_chunked;
        self.asks = false;
        Ok(params)
    }

    fn read_body(&mut self, wire: &mut Wire) -> io::Result<Option<Vec<u8>>> {
        if self.at_end || self.left == Some(0) {
            return Ok(None);
        }
        if self.asks {
            let wanted = u16::try_from(STRETCH).expect("8,186").to_be_bytes();
            wire.send(&packet(GET_BODY_CHUNK, &wanted))?;
        }
        self.asks = true;
        let packet = read_packet(wire)?;
        let bytes = match packet.split_first_chunk::<2>() {
            Some((length, bytes)) if usize::from(u16::from_be_bytes(*length)) == bytes.len() => {
                bytes.to_vec()
            }
            None if packet.is_empty() => Vec::new(),
            _ => return Err(nonsense("body packet")),
        };
        if let Some(left) = &mut self.left {
            *left = left
                .checked_sub(bytes.len() as u64)
                .ok_or_else(|| nonsense("more than Content-Length"))?;
        }
        if bytes.is_empty() {
            self.at_end = true;
            return Ok(None);
        }
        Ok(Some(bytes))
    }

    fn write_head(&mut self, out: &mut Vec<u8>, status: u16, fields: &[(&str, &str)]) {
        let mut content = status.to_be_bytes().to_vec();
        content.extend(string("Backend"));
        let count = u16::try_from(fields.len()).expect("few fields");
        content.extend(count.to_be_bytes());
        for (name, value) in fields {
            content.extend(string(name));
            content.extend(string(value));
        }
        out.extend(packet(SEND_HEADERS, &content));
    }

    fn write_body(&mut self, out: &mut Vec<u8>, bytes: &[u8]) {
        for stretch in bytes.chunks(STRETCH) {
            let length = u16::try_from(stretch.len()).expect("a stretch is short");
            let mut content = length.to_be_bytes().to_vec();
            content.extend_from_slice(stretch);
            content.push(0);
            out.extend(packet(SEND_BODY_CHUNK, &content));
        }
    }

    fn write_end(&mut self, out: &mut Vec<u8>) -> bool {
        out.extend(packet(END_RESPONSE, &[1]));
        true
    }
}

/// The undecoded rest of a packet.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u16> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*first))
    }

    fn string(&mut self) -> Option<String> {
        match self.number()? {
            0xffff => Some(String::new()),
            length => self.string_of(length),
        }
    }

    fn string_of(&mut self, length: u16) -> Option<String> {
        let (string, rest) = self.0.split_at_checked(length.into())?;
        let (end, rest) = rest.split_first()?;
        self.0 = rest;
        (*end == 0).then(|| text(string))
    }

    fn forward_request(mut self) -> Option<Params> {
        if self.byte()? != FORWARD_REQUEST {
            return None;
        }
        let method = METHODS
            .get(usize::from(self.byte()?))
            .copied()
            .unwrap_or("?");
        let mut params: Params = vec![("REQUEST_METHOD".to_owned(), method.to_owned())];
        for name in [
            "SERVER_PROTOCOL",
            "REQUEST_URI",
            "REMOTE_ADDR",
            "REMOTE_HOST",
            "SERVER_NAME",
        ] {
            params.push((name.to_owned(), self.string()?));
        }
        params.push(("SERVER_PORT".to_owned(), self.number()?.to_string()));
        params.push(("HTTPS".to_owned(), self.byte()?.to_string()));
        for _ in 0..self.number()? {
            let name = match self.number()? {
                code if code >> 8 == 0xa0 => {
                    let at = usize::from(code & 0xff).checked_sub(1)?;
                    (*FIELDS.get(at)?).to_owned()
                }
                length => self.string_of(length)?,
            };
            params.push((name, self.string()?));
        }
        loop {
            let (name, value) = match self.byte()? {
                0xff => return Some(params),
                10 => (self.string()?, self.string()?),
                11 => ("SSL_KEY_SIZE".to_owned(), self.number()?.to_string()),
                code => {
                    let at = usize::from(code).checked_sub(1)?;
                    ((*ATTRIBUTES.get(at)?).to_owned(), self.string()?)
                }
            };
            params.push((name, value));
        }
    }
}
