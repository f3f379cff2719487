//! HTTP/2 frames, and a simple client made of them: it sends exactly what a test asks for, always the same
//! bytes.

use std::io::{Read, Write};

/// The type of a DATA frame.
pub const DATA: u8 = 0;
/// The type of a HEADERS frame.
pub const HEADERS: u8 = 1;
/// The type of a RST_STREAM frame.
pub const RST_STREAM: u8 = 3;
/// The type of a SETTINGS frame.
pub const SETTINGS: u8 = 4;
/// The type of a PING frame.
pub const PING: u8 = 6;
/// The type of a GOAWAY frame.
pub const GOAWAY: u8 = 7;
/// The type of a WINDOW_UPDATE frame.
pub const WINDOW_UPDATE: u8 = 8;
/// The type of a CONTINUATION frame.
pub const CONTINUATION: u8 = 9;

/// Marks the last frame of a stream. On SETTINGS and PING the same bit means ACK.
pub const END_STREAM: u8 = 1;
/// Marks the last frame of a header block.
pub const END_HEADERS: u8 = 4;

/// The beginning of a connection.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// One frame.
///
/// # Panics
/// The payload is too long for a frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    assert_eq!(length[0], 0, "too long for a frame");
    let stream = stream.to_be_bytes();
    [&length[1..], &[kind, flags], &stream, payload].concat()
}

/// A header block of literals without indexing.
///
/// # Panics
/// A name or value has more than 126 bytes.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    literals(0, fields)
}

/// A header block of literals that the server adds to its dynamic table.
///
/// # Panics
/// As [`block`].
pub fn indexed_block(fields: &[(&str, &str)]) -> Vec<u8> {
    literals(0x40, fields)
}

fn literals(kind: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(kind);
        for text in [name, value] {
            assert!(text.len() < 127, "{text:?} is too long");
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// A client that requests files from the server under test, on one connection, with windows that never fill
/// up.
#[derive(Debug)]
pub struct Http2Client<S> {
    stream: S,
    scheme: &'static str,
    /// Fields that are part of each header block.
    fields: Vec<u8>,
    next: u32,
    received: Vec<u8>,
}

/// The responses to one batch of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// How many responses are complete.
    pub answers: usize,
    /// How many of them begin with `:status: 200`.
    pub ok: usize,
    /// The bytes of all bodies together.
    pub body_bytes: usize,
}

impl<S: Read + Write> Http2Client<S> {
    /// Begins a connection, without waiting for the server.
    ///
    /// # Panics
    /// The server does not accept the bytes.
    pub fn begin(mut stream: S, scheme: &'static str) -> Http2Client<S> {
        let widest = (i32::MAX as u32).to_be_bytes();
        let more = (i32::MAX as u32 - 65_535).to_be_bytes();
        let begin = [
            PREFACE,
            &frame(SETTINGS, 0, 0, &[&[0, 4][..], &widest].concat()),
            &frame(WINDOW_UPDATE, 0, 0, &more),
        ];
        stream.write_all(&begin.concat()).expect("the server reads");
        Http2Client {
            stream,
            scheme,
            fields: Vec::new(),
            next: 1,
            received: Vec::new(),
        }
    }

    /// Sends `fields` with each request, encoded as by [`indexed_block`].
    pub fn with_fields(mut self, fields: &[(&str, &str)]) -> Http2Client<S> {
        self.fields = indexed_block(fields);
        self
    }

    /// Sends `times` requests for `target` at once, and waits for all responses.
    ///
    /// # Panics
    /// The server ends a stream or the connection.
    pub fn get(&mut self, target: &str, times: usize) -> Batch {
        let mut block = block(&[
            (":method", "GET"),
            (":scheme", self.scheme),
            (":authority", "petrel.test"),
            (":path", target),
        ]);
        block.extend_from_slice(&self.fields);
        let mut requests = Vec::new();
        for _ in 0..times {
            requests.extend(frame(HEADERS, END_STREAM | END_HEADERS, self.next, &block));
            self.next += 2;
        }
        self.stream
            .write_all(&requests)
            .expect("the server reads it");
        let mut batch = Batch::default();
        while batch.answers < times {
            self.receive(&mut batch);
        }
        batch
    }

    fn receive(&mut self, batch: &mut Batch) {
        let mut buffer = [0; 65_536];
        let count = self.stream.read(&mut buffer).expect("an answer");
        assert!(count > 0, "the server has closed: {batch:?}");
        self.received.extend_from_slice(&buffer[..count]);
        let mut position = 0;
        while let Some(header) = self.received.get(position..position + 9) {
            let length =
                usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
            let (kind, flags) = (header[3], header[4]);
            let Some(payload) = self.received.get(position + 9..position + 9 + length) else {
                break;
            };
            match kind {
                HEADERS => batch.ok += usize::from(payload.first() == Some(&STATUS_200)),
                DATA => batch.body_bytes += length,
                RST_STREAM | GOAWAY => panic!("the server ends it: {kind} {payload:?}"),
                _ => {}
            }
            let is_answer = matches!(kind, HEADERS | DATA);
            batch.answers += usize::from(is_answer && flags & END_STREAM != 0);
            if kind == SETTINGS && flags == 0 {
                let acknowledged = frame(SETTINGS, 1, 0, b"");
                self.stream.write_all(&acknowledged).expect("it reads");
            }
            position += 9 + length;
        }
        self.received.drain(..position);
    }
}

/// `:status: 200` in the static table.
const STATUS_200: u8 = 0x88;
