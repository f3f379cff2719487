//! A server's side of a connection, and a client that writes frames by hand.

mod answers;
mod conformance;
mod honest;
mod limits;
mod memory;
mod random;
mod repeated;
mod requests;
mod splits;

use super::*;
use crate::header_block::HeaderBlock;
use crate::hpack::HpackDecoder;
use crate::request_head::{HeadOptions, RequestHead};
use crate::status::Status;

use kind::{
    CONTINUATION, DATA, GOAWAY as GO_AWAY, HEADERS, PING, PRIORITY, PRIORITY_UPDATE,
    PUSH_PROMISE as PUSH, RST_STREAM as RESET, SETTINGS, WINDOW_UPDATE as WINDOW,
};

/// Flags, and what tests often say.
pub(super) mod flag {
    pub(crate) use super::super::flag::*;

    pub(crate) const NONE: u8 = 0;
    pub(crate) const END: u8 = END_STREAM;
    /// A whole head that nothing follows.
    pub(crate) const ALL: u8 = END | END_HEADERS;
}

/// A frame, as it stands on the wire.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

pub(super) fn setting(number: u16, value: u32) -> Vec<u8> {
    [&number.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

pub(super) fn window(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW, flag::NONE, stream, &increment.to_be_bytes())
}

pub(super) fn reset(stream: u32, code: ErrorCode) -> Vec<u8> {
    frame(RESET, flag::NONE, stream, &code.number().to_be_bytes())
}

pub(super) fn ping() -> Vec<u8> {
    frame(PING, flag::NONE, 0, b"12345678")
}

/// A header block that changes no table.
pub(super) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        literal(&mut block, name);
        literal(&mut block, value);
    }
    block
}

/// A string as it is, without Huffman codes (RFC 7541 5.2).
pub(super) fn literal(block: &mut Vec<u8>, text: &str) {
    match text.len() {
        length @ 0..127 => block.push(length as u8),
        length => {
            let mut rest = length - 127;
            block.push(127);
            while rest >= 128 {
                block.push((rest % 128) as u8 | 128);
                rest /= 128;
            }
            block.push(rest as u8);
        }
    }
    block.extend_from_slice(text.as_bytes());
}

/// What every request has.
pub(super) const PSEUDO: [(&str, &str); 4] = [
    (":method", "POST"),
    (":scheme", "https"),
    (":authority", "a.example"),
    (":path", "/"),
];

/// The block of a POST with these fields.
pub(super) fn post(fields: &[(&str, &str)]) -> Vec<u8> {
    block(&[&PSEUDO, fields].concat())
}

/// The frame of a request without a body.
pub(super) fn get(stream: u32) -> Vec<u8> {
    let block = block(&[
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a.example"),
        (":path", "/"),
    ]);
    frame(HEADERS, flag::ALL, stream, &block)
}

/// The frame of a request whose body follows.
pub(super) fn upload(stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flag::END_HEADERS, stream, &post(fields))
}

pub(super) fn data(stream: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, flags, stream, bytes)
}

/// A frame that the server sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

/// Takes whole frames from the front of `bytes`.
pub(super) fn frames(bytes: &mut Vec<u8>) -> Vec<Sent> {
    let mut frames = Vec::new();
    let mut position = 0;
    while let Some(header) = bytes.get(position..position + FRAME_HEADER_BYTES) {
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let start = position + FRAME_HEADER_BYTES;
        let Some(payload) = bytes.get(start..start + length) else {
            break;
        };
        frames.push(Sent {
            kind: header[3],
            flags: header[4],
            stream: u32::from_be_bytes([header[5], header[6], header[7], header[8]]),
            payload: payload.to_vec(),
        });
        position = start + length;
    }
    bytes.drain(..position);
    frames
}

impl Sent {
    /// The last four bytes, which are the code or increment of most frames.
    pub(super) fn number(&self) -> u32 {
        let start = match self.kind {
            GO_AWAY => 4,
            _ => 0,
        };
        let bytes = self.payload[start..start + 4].try_into();
        u32::from_be_bytes(bytes.expect("four bytes"))
    }
}

/// What an event tells, with the bytes of bodies; those of one body are told together.
pub(super) type Story = Vec<(String, Vec<u8>)>;

/// The server's side, with all that it is lent.
pub(super) struct Server {
    pub(super) connection: Http2Connection,
    pub(super) head: RequestHead,
    pub(super) head_options: HeadOptions,
    pub(super) trailers: HeaderBlock,
    pub(super) now_s: u32,
    pub(super) out: Vec<u8>,
    pub(super) story: Story,
    /// Streams that the owner was told of and has not released.
    pub(super) keys: Vec<StreamKey>,
}

impl Server {
    /// At the very beginning.
    pub(super) fn new(options: Http2Options) -> Server {
        Server {
            connection: Http2Connection::new(options),
            head: RequestHead::new(),
            head_options: HeadOptions {
                default_port: 443,
                ..HeadOptions::default()
            },
            trailers: HeaderBlock::new(),
            now_s: 1000,
            out: Vec::new(),
            story: Story::new(),
            keys: Vec::new(),
        }
    }

    /// Behind the first SETTINGS of both sides.
    pub(super) fn settled() -> Server {
        Server::settled_with(Http2Options::default(), &[])
    }

    /// The same, with these SETTINGS of the client.
    pub(super) fn settled_with(options: Http2Options, settings: &[u8]) -> Server {
        let mut server = Server::new(options);
        server.takes(PREFACE);
        server.takes(&frame(SETTINGS, flag::NONE, 0, settings));
        server.takes(&frame(SETTINGS, flag::ACK, 0, b""));
        server.sent();
        server
    }

    pub(super) fn key(&self, id: u32) -> StreamKey {
        let found = self.keys.iter().find(|key| key.id() == id);
        *found.expect("the owner was told of it")
    }

    /// Takes bytes, and keeps what is told about them.
    pub(super) fn receive(&mut self, input: &[u8]) -> Result<(), Http2Error> {
        let mut position = 0;
        loop {
            let given = &input[position..];
            let mut lent = Lent {
                head: &mut self.head,
                head_options: &self.head_options,
                trailers: &mut self.trailers,
                now_s: self.now_s,
            };
            let decoded = self.connection.step(given, &mut lent)?;
            assert!(decoded.consumed <= given.len());
            position += decoded.consumed;
            if decoded.event == Http2Event::NeedMore {
                assert_eq!(position, input.len(), "all is consumed");
                return Ok(());
            }
            self.tell(decoded.event, given);
        }
    }

    /// Takes bytes with which nothing is wrong.
    pub(super) fn takes(&mut self, input: &[u8]) {
        if let Err(error) = self.receive(input) {
            panic!("{error}");
        }
    }

    /// Takes bytes, and tells about them in short.
    pub(super) fn told(&mut self, input: &[u8]) -> Vec<String> {
        self.takes(input);
        let story = std::mem::take(&mut self.story);
        story.into_iter().map(|(what, _)| what).collect()
    }

    /// Takes bytes that end the connection, with this GOAWAY.
    pub(super) fn fails(&mut self, input: &[u8], code: ErrorCode) -> Http2Error {
        let error = self.receive(input).expect_err("something is wrong");
        assert_eq!(error.code(), code, "{error}");
        let last = self.sent().pop().expect("GOAWAY");
        assert_eq!((last.kind, last.number()), (GO_AWAY, code.number()));
        assert_eq!(self.receive(b""), Err(error), "it is final");
        assert!(self.sent().is_empty());
        error
    }

    /// Takes bytes that cost this stream.
    pub(super) fn loses(&mut self, input: &[u8], stream: u32, code: ErrorCode) {
        self.takes(input);
        let sent = self.sent();
        let is_reset = |sent: &Sent| (sent.kind, sent.stream, sent.flags) == (RESET, stream, 0);
        let reset = sent.iter().find(|sent| is_reset(sent));
        let reset = reset.expect("RST_STREAM");
        assert_eq!(reset.number(), code.number());
        let (last, _) = self.story.last().expect("the owner is told");
        assert!(last.starts_with(&format!("error {stream} ")), "{last}");
    }

    /// The frames that were written since the last call.
    pub(super) fn sent(&mut self) -> Vec<Sent> {
        self.connection.write_control(&mut self.out);
        let sent = frames(&mut self.out);
        assert!(self.out.is_empty(), "whole frames only");
        sent
    }

    pub(super) fn release(&mut self, id: u32) {
        self.connection.release(self.key(id));
        self.keys.retain(|key| key.id() != id);
    }

    /// Answers a stream with a head and `length` bytes, as far as windows allow; what was sent of the body.
    pub(super) fn answer(&mut self, id: u32, length: u32) -> u32 {
        let key = self.key(id);
        let head = self.connection.write_head(
            key,
            Status::OK,
            &[b"Server: petrel\r\n"],
            Some(u64::from(length)),
            AfterFrame::More,
            &mut self.out,
        );
        assert_eq!(head, Written::Yes);
        self.send(id, length)
    }

    /// Sends up to `length` bytes that end the answer.
    pub(super) fn send(&mut self, id: u32, length: u32) -> u32 {
        let key = self.key(id);
        let mut sent = 0;
        while sent < length {
            let part = self.connection.send_room(key).min(length - sent);
            if part == 0 {
                break;
            }
            sent += part;
            let after = match sent == length {
                true => AfterFrame::EndOfStream,
                false => AfterFrame::More,
            };
            let out = &mut self.out;
            let written = self.connection.write_data_header(key, part, after, out);
            assert_eq!(written, Written::Yes);
            out.resize(out.len() + part as usize, b'x');
        }
        sent
    }

    /// Sends a DATA frame of `length` bytes, behind which the answer goes on.
    pub(super) fn send_part(&mut self, id: u32, length: u32) {
        let (key, more) = (self.key(id), AfterFrame::More);
        let out = &mut self.out;
        let written = self.connection.write_data_header(key, length, more, out);
        assert_eq!(written, Written::Yes);
        out.resize(out.len() + length as usize, b'x');
    }

    fn tell(&mut self, event: Http2Event, given: &[u8]) {
        let end = |after: AfterFrame| match after {
            AfterFrame::More => "more",
            AfterFrame::EndOfStream => "end",
        };
        let what = match event {
            Http2Event::NeedMore => return,
            Http2Event::Request { stream, body } => {
                self.keys.push(stream);
                let method = String::from_utf8_lossy(self.head.method_bytes()).into_owned();
                let target = String::from_utf8_lossy(self.head.target()).into_owned();
                format!("request {} {method} {target} {}", stream.id(), end(body))
            }
            Http2Event::Refused {
                stream,
                error,
                body,
            } => {
                self.keys.push(stream);
                format!("refused {} {error:?} {}", stream.id(), end(body))
            }
            Http2Event::Data {
                stream,
                range,
                after,
            } => {
                let what = format!("data {}", stream.id());
                let bytes = &given[range];
                match self.story.last_mut() {
                    Some((last, known)) if *last == what => known.extend_from_slice(bytes),
                    _ => self.story.push((what, bytes.to_vec())),
                }
                if after == AfterFrame::More {
                    return;
                }
                format!("end {}", stream.id())
            }
            Http2Event::Trailers { stream } => {
                let fields = String::from_utf8_lossy(self.trailers.as_bytes()).into_owned();
                format!("trailers {} {}", stream.id(), fields.trim_end())
            }
            Http2Event::Reset { stream, code } => format!("reset {} {}", stream.id(), code.name()),
            Http2Event::StreamError { id, stream, error } => {
                assert!(stream.is_none_or(|stream| stream.id() == id));
                format!("error {id} {error:?}")
            }
            Http2Event::PingAnswered => "pong".to_owned(),
            Http2Event::GoAway { code } => format!("go away {}", code.name()),
        };
        self.story.push((what, Vec::new()));
    }
}

/// The fields of a header block, as a client reads it.
pub(super) fn fields(decoder: &mut HpackDecoder, block: &[u8]) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let decoded = decoder.decode(block, &mut |line| {
        fields.push((text(line.name), text(line.value)));
    });
    assert_eq!(decoded, Ok(()));
    fields
}
