//! The server's side of an HTTP/2 connection, with a client that sends anything, in any pieces, and an owner
//! that does anything that the interface allows.
//!
//! The input is a list of operations: each is a byte, followed by its operands.

use std::collections::BTreeMap;

use petrel_proto::header_block::HeaderBlock;
use petrel_proto::hpack::HpackDecoder;
use petrel_proto::http2::{
    AfterFrame, ErrorCode, FRAME_HEADER_BYTES, Http2Connection, Http2Error, Http2Event,
    Http2Limits, Http2Options, Lent, PREFACE, Priority, StreamKey, Written, kind,
    write_frame_header,
};
use petrel_proto::request_head::{HeadOptions, RequestHead};
use petrel_proto::status::Status;

pub fn http2_connection(input: &[u8]) {
    let sent = client_bytes(input);
    let whole = told(&sent, usize::MAX);
    for step in [1, 13] {
        assert_eq!(told(&sent, step), whole);
    }
    let mut side = Side::new();
    side.receive(PREFACE, usize::MAX);
    side.receive(&frame(kind::SETTINGS, 0, 0, &[]), usize::MAX);
    let mut operations = Operations(input);
    while let Some(operation) = operations.byte() {
        side.operate(operation, &mut operations);
        side.check();
    }
    side.end();
}

/// The input as operations.
struct Operations<'i>(&'i [u8]);

impl<'i> Operations<'i> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn number(&mut self) -> u32 {
        let (low, high) = (self.byte().unwrap_or(0), self.byte().unwrap_or(0));
        // Large numbers occur as well.
        u32::from(low) << (high % 25)
    }

    /// A short piece.
    fn bytes(&mut self) -> &'i [u8] {
        let length = usize::from(self.byte().unwrap_or(0)).min(self.0.len());
        let (piece, rest) = self.0.split_at(length);
        self.0 = rest;
        piece
    }

    /// A stream that a client could have opened.
    fn stream(&mut self) -> u32 {
        u32::from(self.byte().unwrap_or(0) % 32)
    }

    /// A frame of any kind.
    fn frame(&mut self) -> Vec<u8> {
        let what = self.byte().unwrap_or(0);
        let (flags, stream) = (self.byte().unwrap_or(0), self.stream());
        match what % 14 {
            0 => frame(kind::HEADERS, flags, stream, self.bytes()),
            1 => frame(kind::HEADERS, 0x5, stream | 1, GET),
            2 => frame(kind::HEADERS, 0x4, stream | 1, GET),
            3 => frame(kind::DATA, flags & 1, stream, self.bytes()),
            4 => frame(
                kind::DATA,
                0,
                stream,
                &vec![0; self.number() as usize % 17_000],
            ),
            5 => frame(kind::RST_STREAM, 0, stream, &self.number().to_be_bytes()),
            6 => frame(kind::WINDOW_UPDATE, 0, stream, &self.number().to_be_bytes()),
            7 => frame(kind::WINDOW_UPDATE, 0, 0, &self.number().to_be_bytes()),
            8 => {
                let number = u16::from(flags % 10).to_be_bytes();
                let value = self.number().to_be_bytes();
                frame(kind::SETTINGS, 0, 0, &[&number[..], &value].concat())
            }
            9 => frame(kind::SETTINGS, 1, 0, &[]),
            10 => frame(kind::PING, flags & 1, 0, &[flags; 8]),
            11 => frame(kind::CONTINUATION, flags, stream, self.bytes()),
            12 => {
                let payload = [&stream.to_be_bytes(), self.bytes()].concat();
                frame(kind::PRIORITY_UPDATE, 0, 0, &payload)
            }
            _ => frame(flags % 20, flags, stream, self.bytes()),
        }
    }
}

/// A header block of static entries: GET / with a host.
const GET: &[u8] = b"\x82\x87\x84\x41\x01a";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_frame_header(&mut bytes, payload.len() as u32, kind, flags, stream);
    bytes.extend_from_slice(payload);
    bytes
}

/// All bytes that a client sends for the input.
fn client_bytes(input: &[u8]) -> Vec<u8> {
    let mut bytes = [&PREFACE[..], &frame(kind::SETTINGS, 0, 0, &[])].concat();
    let mut operations = Operations(input);
    while !operations.0.is_empty() {
        bytes.extend(operations.frame());
    }
    bytes
}

/// Events, independent of how the input was cut, and the final error.
type Story = (Vec<(String, Vec<u8>)>, Option<Http2Error>);

fn told(input: &[u8], step: usize) -> Story {
    let mut side = Side::new();
    side.receive(input, step);
    let Side {
        mut story, error, ..
    } = side;
    // If a frame is too long, how much of it is reported before the error depends on the pieces.
    let whats = story
        .iter()
        .filter_map(|(what, _)| what.strip_prefix("end "));
    let ended: Vec<String> = whats.map(|stream| format!("data {stream}")).collect();
    story.retain(|(what, _)| !what.starts_with("data ") || ended.contains(what));
    (story, error)
}

/// What the owner knows of a stream.
struct Known {
    key: StreamKey,
    unconsumed: u32,
}

struct Side {
    connection: Http2Connection,
    head: RequestHead,
    head_options: HeadOptions,
    trailers: HeaderBlock,
    story: Vec<(String, Vec<u8>)>,
    error: Option<Http2Error>,
    known: BTreeMap<u32, Known>,
    highest: u32,
    now_s: u32,
    out: Vec<u8>,
    decoder: HpackDecoder,
    /// Bytes of DATA sent to the client, and the most that its windows allowed.
    sent: u64,
    allowed: u64,
}

const LIMITS: fn() -> Http2Limits = || Http2Limits {
    streams_max: 8,
    ..Http2Limits::default()
};

impl Side {
    fn new() -> Side {
        Side {
            connection: Http2Connection::new(Http2Options {
                stream_window: 40_000,
                connection_window: 80_000,
                limits: LIMITS(),
                ..Http2Options::default()
            }),
            head: RequestHead::new(),
            head_options: HeadOptions::default(),
            trailers: HeaderBlock::new(),
            story: Vec::new(),
            error: None,
            known: BTreeMap::new(),
            highest: 0,
            now_s: 0,
            out: Vec::new(),
            decoder: HpackDecoder::new(4096),
            sent: 0,
            allowed: 65_535,
        }
    }

    /// Feeds `input`, which arrives `step` bytes at a time.
    fn receive(&mut self, input: &[u8], step: usize) {
        let mut rest = input;
        while !rest.is_empty() && self.error.is_none() {
            let (mut given, behind) = rest.split_at(step.min(rest.len()));
            rest = behind;
            loop {
                let mut lent = Lent {
                    head: &mut self.head,
                    head_options: &self.head_options,
                    trailers: &mut self.trailers,
                    now_s: self.now_s,
                };
                match self.connection.step(given, &mut lent) {
                    Err(error) => {
                        assert_eq!(self.connection.step(given, &mut lent), Err(error));
                        self.error = Some(error);
                        return;
                    }
                    Ok(decoded) if decoded.event == Http2Event::NeedMore => {
                        assert_eq!(decoded.consumed, given.len());
                        break;
                    }
                    Ok(decoded) => {
                        self.tell(decoded.event, given);
                        given = &given[decoded.consumed..];
                    }
                }
            }
        }
    }

    fn tell(&mut self, event: Http2Event, given: &[u8]) {
        let what = match &event {
            Http2Event::Request { stream, .. } | Http2Event::Refused { stream, .. } => {
                assert!(stream.id() > self.highest && stream.id() % 2 == 1);
                self.highest = stream.id();
                let is_complete = self.head.head_bytes().ends_with(b"\r\n\r\n");
                assert!(is_complete || matches!(event, Http2Event::Refused { .. }));
                let slots: Vec<_> = self.known.values().map(|known| known.key.slot()).collect();
                assert!(!slots.contains(&stream.slot()));
                let known = Known {
                    key: *stream,
                    unconsumed: 0,
                };
                self.known.insert(stream.id(), known);
                format!("{event:?}")
            }
            Http2Event::Data {
                stream,
                range,
                after,
            } => {
                let known = self.known.get_mut(&stream.id()).expect("it is known");
                known.unconsumed += range.len() as u32;
                assert!(known.unconsumed <= 65_535);
                let bytes = &given[range.clone()];
                let what = format!("data {stream:?}");
                match self.story.last_mut() {
                    Some((last, known)) if *last == what => known.extend_from_slice(bytes),
                    _ => self.story.push((what, bytes.to_vec())),
                }
                if *after == AfterFrame::More {
                    return;
                }
                format!("end {stream:?}")
            }
            Http2Event::Trailers { stream } | Http2Event::Reset { stream, .. } => {
                assert!(self.known.contains_key(&stream.id()));
                format!("{event:?} {:?}", self.trailers.as_bytes())
            }
            event => format!("{event:?}"),
        };
        self.story.push((what, Vec::new()));
    }

    fn operate(&mut self, operation: u8, operations: &mut Operations<'_>) {
        let stream = self.known.values().nth(usize::from(operation >> 4) % 8);
        let Some(key) = stream.map(|known| known.key) else {
            return self.send_as_client(operation, operations);
        };
        let connection = &mut self.connection;
        let out = &mut self.out;
        let after = match operations.0.first() {
            Some(byte) if byte % 2 == 0 => AfterFrame::EndOfStream,
            _ => AfterFrame::More,
        };
        match operation & 0xf {
            0 => {
                let _ = connection.write_head(key, Status::OK, &[FIELDS], Some(9), after, out);
            }
            1 => {
                let _ = connection.write_interim(key, Status::EARLY_HINTS, FIELDS, out);
            }
            2 => {
                let _ = connection.write_trailers(key, FIELDS, out);
            }
            3 => connection.mark_ready(key, u64::from(operations.number())),
            4 => connection.mark_waiting(key),
            5 => {
                let length = operations.number() % 20_000;
                let room = connection.send_room(key);
                let written = connection.write_data_header(key, length, after, out);
                if written == Written::Yes {
                    assert!(length <= room);
                    out.resize(out.len() + length as usize, 0);
                    self.sent += u64::from(length);
                }
            }
            6 => connection.reset(key, ErrorCode::Cancel),
            7 => {
                connection.release(key);
                self.known.remove(&key.id());
            }
            8 => {
                let bytes = operations.number();
                let known = self.known.get_mut(&key.id()).expect("it is known");
                connection.consumed(key, bytes);
                known.unconsumed -= bytes.min(known.unconsumed);
            }
            9 => {
                let urgency = operations.byte().unwrap_or(0);
                connection.set_priority(key, Priority::new(urgency % 8, urgency > 100));
            }
            10 => connection.go_away(),
            11 => connection.shrink(),
            12 => self.now_s += 20,
            _ => self.send_as_client(operation, operations),
        }
    }

    fn send_as_client(&mut self, operation: u8, operations: &mut Operations<'_>) {
        let frame = operations.frame();
        if let [_, _, _, kind::WINDOW_UPDATE, _, 0, 0, 0, 0, increment @ ..] = &frame[..]
            && let Some(&increment) = increment.first_chunk()
        {
            self.allowed += u64::from(u32::from_be_bytes(increment));
        }
        self.receive(&frame, usize::from(operation) + 1);
    }

    fn check(&mut self) {
        assert_eq!(self.connection.stream_count(), self.known.len());
        assert!(self.known.len() <= 2 * 8);
        assert!(self.sent <= self.allowed);
        if let Some(key) = self.connection.next_to_send() {
            assert!(self.known.contains_key(&key.id()));
            assert!(self.connection.send_room(key) > 0);
        }
        self.connection.write_control(&mut self.out);
        let mut rest = &self.out[..];
        while let Some((header, behind)) = rest.split_at_checked(FRAME_HEADER_BYTES) {
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            let (payload, behind) = behind.split_at(length);
            if header[3] == kind::HEADERS {
                assert_eq!(header[4] & 4, 4, "short heads are in one frame");
                assert_eq!(self.decoder.decode(payload, &mut |_| {}), Ok(()));
            }
            rest = behind;
        }
        assert!(rest.is_empty());
        self.out.clear();
    }

    /// Ends all streams.
    fn end(&mut self) {
        for known in std::mem::take(&mut self.known).into_values() {
            self.connection.release(known.key);
        }
        self.check();
        assert_eq!(self.connection.next_to_send(), None);
    }
}

const FIELDS: &[u8] =
    b"Server: petrel\r\nConnection: close\r\nX-Long: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n";
