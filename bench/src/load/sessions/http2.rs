//! Enough HTTP/2 for a load: decodes replies and encodes requests.
//!
//! Knows nothing of sockets. Header blocks are prepared. Of a reply's block only the status is read, which
//! every server puts first, as one byte of the static table. Windows are so large that no server ever waits
//! for one.

use super::super::reply::{Expected, Wrong};
use super::super::{Error, Refused};
use std::time::Instant;

/// One connection's state.
pub struct Session {
    frames: Frames,
    streams: Vec<Stream>,
    streams_max: usize,
    /// The most streams that the workload uses.
    streams_wanted: usize,
    next_stream: u32,
    /// Bytes of DATA for which the connection's window was not opened again.
    consumed: u32,
    /// The server accepts no more streams, or there are no more stream ids.
    is_ending: bool,
    /// Bytes to send.
    output: Vec<u8>,
    /// The bodies of replies, if they are wanted.
    bodies: Option<Vec<u8>>,
    /// Length of the last header block.
    pub head_bytes: usize,
}

/// An open request.
struct Stream {
    id: u32,
    due: Instant,
    has_head: bool,
    body_bytes: u64,
}

/// The header blocks of a request.
pub struct Request {
    /// On a new connection.
    first: Vec<u8>,
    /// When the server's table has the fields that do not change.
    next: Vec<u8>,
}

impl Request {
    /// A GET without a body. Fields that do not change are added to the server's table, as browsers and
    /// h2load do.
    pub fn new(scheme: &str, authority: &str, path: &str) -> Self {
        let scheme = if scheme == "https" { 0x87 } else { 0x86 };
        let mut next = vec![0x82, scheme];
        // :path, without indexing.
        next.push(0x04);
        string(&mut next, path);
        let mut first = next.clone();
        let remembered = [(0x41, authority), (0x7a, "petrel-bench"), (0x53, "*/*")];
        for (name, value) in remembered {
            first.push(name);
            string(&mut first, value);
        }
        // The last field added is the first in the table.
        next.extend([0xc0, 0xbf, 0xbe]);
        Self { first, next }
    }
}

impl Session {
    /// A new connection for this many concurrent requests. Its first bytes wait to be sent.
    pub fn new(streams: u16) -> Self {
        let mut output = PREFACE.to_vec();
        let settings = [
            (SETTINGS_ENABLE_PUSH, 0),
            (SETTINGS_INITIAL_WINDOW_SIZE, WINDOW),
        ];
        frame(&mut output, SETTINGS, 0, 0, &settings_payload(&settings));
        let more = WINDOW - WINDOW_AT_FIRST;
        frame(&mut output, WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
        Self {
            frames: Frames::default(),
            streams: Vec::new(),
            // Until the server announces its limit.
            streams_max: 1,
            streams_wanted: streams.into(),
            next_stream: 1,
            consumed: 0,
            is_ending: false,
            output,
            bodies: None,
            head_bytes: 0,
        }
    }

    /// The same for one request at a time, with its body.
    pub fn with_one_stream() -> Self {
        Self {
            bodies: Some(Vec::new()),
            ..Self::new(1)
        }
    }

    /// The bodies so far, if they are wanted.
    pub fn take_body(&mut self) -> Vec<u8> {
        self.bodies.take().unwrap_or_default()
    }

    /// Whether another request may be sent.
    pub fn has_room(&self) -> bool {
        !self.is_ending && self.streams.len() < self.streams_max
    }

    /// Begins a request whose latency counts from `due`.
    pub fn request(&mut self, request: &Request, due: Instant) {
        let block = if self.next_stream == 1 {
            &request.first
        } else {
            &request.next
        };
        let id = self.next_stream;
        frame(
            &mut self.output,
            HEADERS,
            END_STREAM | END_HEADERS,
            id,
            block,
        );
        self.streams.push(Stream {
            id,
            due,
            has_head: false,
            body_bytes: 0,
        });
        self.next_stream += 2;
        self.is_ending |= self.next_stream > STREAM_MAX;
    }

    /// Takes what has arrived. For each complete reply, adds to `replies` when its request was due.
    pub fn take(
        &mut self,
        mut bytes: &[u8],
        expected: &Expected,
        replies: &mut Vec<Instant>,
    ) -> Result<(), Error> {
        while let Some(part) = self.frames.next(&mut bytes) {
            match part {
                Part::Body(frame, body) => self.body(frame, body, expected, replies)?,
                Part::Frame(frame, payload) => self.frame(frame, &payload, expected, replies)?,
            }
        }
        Ok(())
    }

    /// Takes the bytes to send.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Whether the server accepts no more streams and has finished all that it accepted.
    pub fn has_ended(&self) -> bool {
        self.is_ending && self.streams.is_empty()
    }

    /// When the requests without a reply were due.
    pub fn unanswered(&self) -> impl Iterator<Item = Instant> {
        self.streams.iter().map(|stream| stream.due)
    }

    /// Whether the server has announced that it will close the connection.
    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    fn frame(
        &mut self,
        Header {
            kind,
            flags,
            stream,
            ..
        }: Header,
        payload: &[u8],
        expected: &Expected,
        replies: &mut Vec<Instant>,
    ) -> Result<(), Error> {
        match kind {
            HEADERS => {
                let block = block_of(flags, payload)?;
                self.head_bytes = block.len();
                let found = self.stream(stream)?;
                // A second block is a trailer section.
                if !found.has_head {
                    check_status(block, expected)?;
                    found.has_head = true;
                }
                self.ended(flags, expected, replies, stream)
            }
            SETTINGS if flags & ACK == 0 => {
                self.settings(payload);
                frame(&mut self.output, SETTINGS, ACK, 0, &[]);
                Ok(())
            }
            PING if flags & ACK == 0 => {
                frame(&mut self.output, PING, ACK, 0, payload);
                Ok(())
            }
            RST_STREAM => Err(Refused::Stream(code(payload, 0)).into()),
            GOAWAY if code(payload, 4) != 0 => Err(Refused::Connection(code(payload, 4)).into()),
            GOAWAY => {
                self.is_ending = true;
                Ok(())
            }
            CONTINUATION => Err(Wrong::Malformed.into()),
            _ => Ok(()),
        }
    }

    /// A piece of a DATA frame; the last one may be empty. Padding would count as body, but no server sends
    /// any.
    fn body(
        &mut self,
        Header {
            flags,
            stream,
            left,
            ..
        }: Header,
        body: &[u8],
        expected: &Expected,
        replies: &mut Vec<Instant>,
    ) -> Result<(), Error> {
        if let Some(bodies) = &mut self.bodies {
            bodies.extend_from_slice(body);
        }
        self.consumed += body.len() as u32;
        if self.consumed > WINDOW / 2 {
            let opened = std::mem::take(&mut self.consumed);
            frame(&mut self.output, WINDOW_UPDATE, 0, 0, &opened.to_be_bytes());
        }
        let found = self.stream(stream)?;
        found.body_bytes += body.len() as u64;
        if left == 0 {
            return self.ended(flags, expected, replies, stream);
        }
        Ok(())
    }

    /// If the frame has the flag END_STREAM, the stream is complete.
    fn ended(
        &mut self,
        flags: u8,
        expected: &Expected,
        replies: &mut Vec<Instant>,
        id: u32,
    ) -> Result<(), Error> {
        if flags & END_STREAM == 0 {
            return Ok(());
        }
        let place = self.streams.iter().position(|stream| stream.id == id);
        let stream = self.streams.swap_remove(place.ok_or(Wrong::Malformed)?);
        if !stream.has_head {
            return Err(Wrong::Malformed.into());
        }
        match expected.body_bytes {
            Some(wanted) if wanted != stream.body_bytes => {
                Err(Wrong::Length(stream.body_bytes, wanted).into())
            }
            _ => {
                replies.push(stream.due);
                Ok(())
            }
        }
    }

    fn stream(&mut self, id: u32) -> Result<&mut Stream, Error> {
        let mut streams = self.streams.iter_mut();
        let found = streams.find(|stream| stream.id == id);
        found.ok_or(Error::Reply(Wrong::Malformed))
    }

    fn settings(&mut self, payload: &[u8]) {
        self.streams_max = self.streams_wanted;
        for setting in payload.chunks_exact(6) {
            let value = code(setting, 2);
            if setting[..2] == SETTINGS_MAX_CONCURRENT_STREAMS.to_be_bytes() {
                self.streams_max = self.streams_wanted.min(value as usize);
            }
        }
    }
}

/// The first nine bytes of a frame.
#[derive(Clone, Copy)]
struct Header {
    kind: u8,
    flags: u8,
    stream: u32,
    /// Bytes of the payload still to come.
    left: usize,
}

/// Splits what arrives into frames. Bodies are passed on as they arrive, all other frames when they are
/// complete.
#[derive(Default)]
struct Frames {
    /// The first bytes of the current frame, or its payload.
    gathered: Vec<u8>,
    header: Option<Header>,
}

/// A frame, or a piece of a body.
enum Part<'a> {
    Body(Header, &'a [u8]),
    Frame(Header, Vec<u8>),
}

impl Frames {
    fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Part<'a>> {
        let mut header = match self.header {
            Some(header) => header,
            None => {
                let missing = (HEADER_BYTES - self.gathered.len()).min(bytes.len());
                self.gathered.extend(take(bytes, missing));
                let header = Header::parse(self.gathered.first_chunk()?);
                self.gathered.clear();
                *self.header.insert(header)
            }
        };
        let came = take(bytes, header.left.min(bytes.len()));
        header.left -= came.len();
        self.header = Some(header).filter(|header| header.left > 0);
        if header.kind == DATA {
            let is_piece = !came.is_empty() || header.left == 0;
            return is_piece.then_some(Part::Body(header, came));
        }
        self.gathered.extend_from_slice(came);
        (header.left == 0).then(|| Part::Frame(header, std::mem::take(&mut self.gathered)))
    }
}

impl Header {
    fn parse(bytes: &[u8; HEADER_BYTES]) -> Self {
        let [a, b, c, kind, flags, stream @ ..] = *bytes;
        Self {
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & STREAM_MAX,
            left: u32::from_be_bytes([0, a, b, c]) as usize,
        }
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

/// The header block in the payload of a HEADERS frame.
fn block_of(flags: u8, payload: &[u8]) -> Result<&[u8], Error> {
    let (padding, before) = match (flags & PADDED, flags & PRIORITY) {
        (0, 0) => (0, 0),
        (0, _) => (0, 5),
        (_, 0) => (payload.first().copied().unwrap_or(0), 1),
        _ => (payload.first().copied().unwrap_or(0), 6),
    };
    let end = payload.len().saturating_sub(padding.into());
    let block = payload.get(before..end);
    block
        .filter(|_| flags & END_HEADERS != 0)
        .ok_or(Error::Reply(Wrong::Malformed))
}

/// The status comes first, after changes of the table's size.
fn check_status(block: &[u8], expected: &Expected) -> Result<(), Error> {
    let mut rest = block;
    while let [size @ 0x20..=0x3f, after @ ..] = rest {
        rest = after;
        // A number that does not fit continues while the highest bit is set.
        let mut goes_on = *size == 0x3f;
        while let (true, [byte, after @ ..]) = (goes_on, rest) {
            goes_on = byte & 0x80 != 0;
            rest = after;
        }
    }
    let status = match rest.first() {
        Some(index @ 0x88..=0x8e) => STATUSES[usize::from(index - 0x88)],
        _ => return Err(Wrong::Malformed.into()),
    };
    if status == expected.status {
        Ok(())
    } else {
        Err(Wrong::Status(status, expected.status).into())
    }
}

/// A string of HPACK without Huffman coding.
fn string(block: &mut Vec<u8>, text: &str) {
    let mut length = text.len();
    if length < 0x7f {
        block.push(length as u8);
    } else {
        block.push(0x7f);
        length -= 0x7f;
        while length >= 0x80 {
            block.push(length as u8 | 0x80);
            length >>= 7;
        }
        block.push(length as u8);
    }
    block.extend_from_slice(text.as_bytes());
}

fn frame(output: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    output.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    output.extend([kind, flags]);
    output.extend(stream.to_be_bytes());
    output.extend_from_slice(payload);
}

fn settings_payload(settings: &[(u16, u32)]) -> Vec<u8> {
    let one = |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    settings.iter().flat_map(one).collect()
}

/// Four bytes of a payload as a number.
fn code(payload: &[u8], at: usize) -> u32 {
    let bytes = payload.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADER_BYTES: usize = 9;

// RFC 9113, section 6.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

const SETTINGS_ENABLE_PUSH: u16 = 2;
const SETTINGS_MAX_CONCURRENT_STREAMS: u16 = 3;
const SETTINGS_INITIAL_WINDOW_SIZE: u16 = 4;

const WINDOW_AT_FIRST: u32 = 65_535;
const WINDOW: u32 = 0x7fff_ffff;
const STREAM_MAX: u32 = 0x7fff_ffff;

/// The statuses in HPACK's static table, from its eighth entry on.
const STATUSES: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expected = Expected {
        status: 200,
        body_bytes: Some(5),
    };

    fn with_one_request() -> Session {
        let mut session = Session::new(16);
        let request = Request::new("https", "localhost:1", "/a");
        session.request(&request, Instant::now());
        session
    }

    fn reply(status: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame(&mut bytes, SETTINGS, 0, 0, &settings_payload(&[(3, 8)]));
        frame(&mut bytes, HEADERS, END_HEADERS, 1, &[0x20, status, 0x61]);
        frame(&mut bytes, DATA, 0, 1, &body[..2]);
        frame(&mut bytes, DATA, END_STREAM, 1, &body[2..]);
        bytes
    }

    #[test]
    fn a_reply_is_whole_however_it_is_cut() {
        let bytes = reply(0x88, b"hello");
        for size in 1..bytes.len() {
            let (mut session, mut replies) = (with_one_request(), Vec::new());
            session.bodies = Some(Vec::new());
            assert!(!session.has_room(), "one until the server's settings");
            for piece in bytes.chunks(size) {
                assert!(replies.is_empty());
                session.take(piece, &EXPECTED, &mut replies).unwrap();
            }
            assert_eq!(replies.len(), 1);
            assert_eq!(session.bodies.as_deref(), Some(&b"hello"[..]));
            assert_eq!(session.streams_max, 8);
        }
    }

    #[test]
    fn wrong_replies_are_errors() {
        let error = |bytes: &[u8]| {
            let taken = with_one_request().take(bytes, &EXPECTED, &mut Vec::new());
            taken.err().unwrap().to_string()
        };
        assert_eq!(error(&reply(0x8d, b"hello")), "status 404 instead of 200");
        assert_eq!(error(&reply(0x88, b"hell")), "body of 4 bytes instead of 5");
        let mut reset = Vec::new();
        frame(&mut reset, RST_STREAM, 0, 1, &7_u32.to_be_bytes());
        assert_eq!(error(&reset), "the server reset a stream (7)");
    }

    #[test]
    fn a_server_that_says_goodbye_gets_no_further_request() {
        let (mut session, mut replies) = (with_one_request(), Vec::new());
        let mut goodbye = Vec::new();
        frame(&mut goodbye, GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
        session.take(&goodbye, &EXPECTED, &mut replies).unwrap();
        assert!(!session.has_room() && !session.has_ended());
        session
            .take(&reply(0x88, b"hello"), &EXPECTED, &mut replies)
            .unwrap();
        assert!(session.has_ended());
    }

    /// The examples of RFC 7541 show the same indices.
    #[test]
    fn unchanging_fields_are_sent_once() {
        let request = Request::new("http", "www.example.com", "/");
        assert_eq!(request.first[..5], [0x82, 0x86, 0x04, 1, b'/']);
        assert_eq!(request.first[5..7], [0x41, 15]);
        assert_eq!(request.next, [0x82, 0x86, 0x04, 1, b'/', 0xc0, 0xbf, 0xbe]);
    }
}
