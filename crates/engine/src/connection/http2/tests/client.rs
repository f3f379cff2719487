//! A client for tests: sends frames, and keeps what it has received on each stream.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use petrel_proto::hpack::{HpackDecoder, HpackEncoder, Indexing};
use petrel_proto::http2::{
    AfterFrame, ErrorCode, FRAME_HEADER_BYTES, PREFACE, Setting, flag, kind, write_data_header,
    write_headers, write_ping_ack, write_reset, write_settings, write_settings_ack,
    write_window_update,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use crate::connection::Connection;
use crate::exchange::{ListenerFacts, Peer};
use crate::testing::Site;
use crate::transport::ClientSocket;

pub(super) struct Client {
    pub(super) socket: UnixStream,
    pub(super) served: JoinHandle<()>,
    encoder: HpackEncoder,
    decoder: HpackDecoder,
    /// Bytes to be sent.
    pub(super) out: Vec<u8>,
    input: Vec<u8>,
    pub(super) answers: BTreeMap<u32, Answer>,
    /// The last stream and the code of each GOAWAY.
    pub(super) goaways: Vec<(u32, u32)>,
    /// Whether the client opens its windows for everything that it receives.
    pub(super) opens_windows: bool,
    pub(super) answers_pings: bool,
    pub(super) is_closed: bool,
    /// The windows for sending to the server, by stream; 0 is the connection.
    pub(super) windows: BTreeMap<u32, i64>,
    /// The window of a stream that begins.
    stream_window: i64,
}

/// What the client has received on a stream.
#[derive(Default)]
pub(super) struct Answer {
    /// The status and the fields of each head, one in a line.
    pub(super) heads: Vec<String>,
    pub(super) body: Vec<u8>,
    /// The fields behind the body, one in a line.
    pub(super) trailers: String,
    pub(super) is_over: bool,
    pub(super) reset: Option<u32>,
}

impl Client {
    /// A client that has sent nothing.
    pub(super) fn silent(site: &Site) -> Client {
        let worker = site.worker();
        worker.shared().take_permit_over_limit();
        let (socket, server) = UnixStream::pair().expect("two sockets");
        let listener = Rc::new(ListenerFacts::new("/test.sock".to_owned(), 0));
        let server = ClientSocket::unix(server);
        let connection = Connection::new(worker, server, Peer::Unix, &listener);
        Client {
            socket,
            served: tokio::task::spawn_local(connection),
            encoder: HpackEncoder::new(),
            decoder: HpackDecoder::new(4096),
            out: Vec::new(),
            input: Vec::new(),
            answers: BTreeMap::new(),
            goaways: Vec::new(),
            opens_windows: true,
            answers_pings: true,
            is_closed: false,
            windows: BTreeMap::from([(0, 65_535)]),
            stream_window: 65_535,
        }
    }

    /// A client with its preface and `settings` in `out`.
    pub(super) fn with_settings(site: &Site, settings: &[Setting]) -> Client {
        let mut client = Client::silent(site);
        client.out.extend_from_slice(PREFACE);
        write_settings(&mut client.out, settings);
        client
    }

    pub(super) fn new(site: &Site) -> Client {
        Client::with_settings(site, &[])
    }

    /// Queues a request.
    pub(super) fn request(&mut self, id: u32, method: &str, path: &str, after: AfterFrame) {
        self.request_with(id, method, path, &[], after);
    }

    pub(super) fn request_with(
        &mut self,
        id: u32,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        after: AfterFrame,
    ) {
        let all = [
            (":method", method),
            (":scheme", "http"),
            (":authority", "a.example"),
            (":path", path),
        ];
        self.headers(id, &[&all, fields].concat(), after);
    }

    /// Queues trailers, which end a request.
    pub(super) fn trailers(&mut self, id: u32, fields: &[(&str, &str)]) {
        self.headers(id, fields, AfterFrame::EndOfStream);
    }

    fn headers(&mut self, id: u32, fields: &[(&str, &str)], after: AfterFrame) {
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        for (name, value) in fields {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            self.encoder
                .field(&mut block, name, value, Indexing::Indexed);
        }
        write_headers(&mut self.out, id, &block, after, 16_384);
    }

    pub(super) fn get(&mut self, id: u32, path: &str) {
        self.request(id, "GET", path, AfterFrame::EndOfStream);
    }

    pub(super) fn data(&mut self, id: u32, bytes: &[u8], after: AfterFrame) {
        write_data_header(&mut self.out, id, bytes.len() as u32, after);
        self.out.extend_from_slice(bytes);
    }

    /// Queues as many bytes of a body as the windows allow, at most `most`, and returns how many.
    pub(super) fn upload(&mut self, id: u32, most: usize) -> usize {
        let of_stream = *self.windows.entry(id).or_insert(self.stream_window);
        let room = of_stream.min(self.windows[&0]).max(0) as usize;
        let length = most.min(room);
        for part in vec![b'u'; length].chunks(16_384) {
            self.data(id, part, AfterFrame::More);
        }
        for id in [0, id] {
            *self.windows.entry(id).or_default() -= length as i64;
        }
        length
    }

    /// Bytes of all answers that have come.
    pub(super) fn received(&self) -> usize {
        self.answers.values().map(|answer| answer.body.len()).sum()
    }

    pub(super) fn reset(&mut self, id: u32) {
        write_reset(&mut self.out, id, ErrorCode::Cancel);
    }

    pub(super) fn open_window(&mut self, id: u32, by: u32) {
        write_window_update(&mut self.out, id, by);
    }

    /// Sends `out`.
    pub(super) async fn flush(&mut self) {
        let out = std::mem::take(&mut self.out);
        // The server may have closed.
        let _ = self.socket.write_all(&out).await;
    }

    /// Sends `out`, and receives until `is_so`.
    pub(super) async fn until(&mut self, is_so: impl Fn(&Client) -> bool) {
        self.flush().await;
        while !is_so(self) {
            assert!(
                !self.is_closed,
                "closed: {:?} {:?}",
                self.answers, self.goaways
            );
            let in_time = tokio::time::timeout(PATIENCE, self.receive());
            assert!(
                in_time.await.is_ok(),
                "{:?} {:?}",
                self.answers,
                self.goaways
            );
        }
    }

    /// Receives until nothing has come for a moment.
    pub(super) async fn settle(&mut self) {
        self.flush().await;
        while tokio::time::timeout(MOMENT, self.receive()).await.is_ok() && !self.is_closed {}
    }

    /// Lets a moment pass, and reads nothing.
    pub(super) async fn settle_in_silence(&mut self) {
        tokio::time::sleep(MOMENT).await;
    }

    /// All bytes until the server closes, without parsing them.
    pub(super) async fn rest(&mut self) -> Vec<u8> {
        let mut said = Vec::new();
        let in_time = tokio::time::timeout(PATIENCE, self.socket.read_to_end(&mut said));
        in_time.await.expect("it closes").expect("in good order");
        said
    }

    /// The answer to a stream, which must be complete.
    pub(super) async fn answer(&mut self, id: u32) -> &Answer {
        self.until(|client| client.answers.get(&id).is_some_and(|answer| answer.is_over))
            .await;
        &self.answers[&id]
    }

    /// Waits until the server has closed.
    pub(super) async fn until_closed(&mut self) {
        self.until(|client| client.is_closed).await;
    }

    async fn receive(&mut self) {
        let mut buffer = [0; 16_384];
        match self.socket.read(&mut buffer).await {
            Ok(0) | Err(_) => self.is_closed = true,
            Ok(count) => {
                self.input.extend_from_slice(&buffer[..count]);
                self.take_frames();
                self.flush().await;
            }
        }
    }

    fn take_frames(&mut self) {
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while let Some(header) = rest.first_chunk::<FRAME_HEADER_BYTES>() {
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            let id = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
            let Some(payload) = rest[FRAME_HEADER_BYTES..].get(..length) else {
                break;
            };
            self.take_frame(header[3], header[4], id, payload);
            rest = &rest[FRAME_HEADER_BYTES + length..];
        }
        self.input = rest.to_vec();
    }

    fn take_frame(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) {
        let ends = flags & flag::END_STREAM != 0;
        let number = |at: usize| {
            let bytes = payload[at..at + 4].try_into().expect("four bytes");
            u32::from_be_bytes(bytes)
        };
        match kind {
            kind::SETTINGS if flags & flag::ACK == 0 => {
                let mut settings = payload.chunks(6);
                let window = settings.find(|setting| setting[..2] == [0, 4]);
                let window = window.map(|setting| [setting[2], setting[3], setting[4], setting[5]]);
                self.stream_window =
                    window.map_or(65_535, |window| u32::from_be_bytes(window).into());
                write_settings_ack(&mut self.out);
            }
            kind::WINDOW_UPDATE => {
                let window = self.windows.entry(id).or_insert(self.stream_window);
                *window += i64::from(number(0));
            }
            kind::PING if flags & flag::ACK == 0 && self.answers_pings => {
                write_ping_ack(&mut self.out, payload.try_into().expect("eight bytes"));
            }
            kind::HEADERS => {
                assert!(flags & flag::END_HEADERS != 0, "heads are short here");
                let mut head = String::new();
                let mut add = |line: petrel_proto::hpack::FieldLine<'_>| {
                    let [name, value] =
                        [line.name, line.value].map(|text| String::from_utf8_lossy(text));
                    head.push_str(&format!("{name}: {value}\n"));
                };
                self.decoder
                    .decode(payload, &mut add)
                    .expect("a header block");
                let answer = self.answers.entry(id).or_default();
                assert!(!answer.is_over);
                match head.starts_with(":status") {
                    true => {
                        assert!(answer.body.is_empty());
                        answer.heads.push(head);
                    }
                    false => {
                        assert!(ends && !answer.heads.is_empty());
                        answer.trailers = head;
                    }
                }
                answer.is_over |= ends;
            }
            kind::DATA => {
                let answer = self.answers.get_mut(&id).expect("a head came first");
                assert!(!answer.is_over && answer.reset.is_none());
                answer.body.extend_from_slice(payload);
                answer.is_over |= ends;
                if self.opens_windows && !payload.is_empty() {
                    self.open_window(id, payload.len() as u32);
                    self.open_window(0, payload.len() as u32);
                }
            }
            kind::RST_STREAM => {
                self.answers.entry(id).or_default().reset = Some(number(0));
            }
            kind::GOAWAY => self.goaways.push((number(0), number(4))),
            _ => {}
        }
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (heads, length, is_over) = (&self.heads, self.body.len(), self.is_over);
        let reset = self.reset;
        write!(
            f,
            "{heads:?} and {length} bytes, over: {is_over}, reset: {reset:?}"
        )
    }
}

impl Answer {
    pub(super) fn status(&self) -> u16 {
        let head = self.heads.last().expect("there is a head");
        let status = head.strip_prefix(":status: ").expect("the status is first");
        status[..3].parse().expect("a number")
    }

    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.heads.last()?.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// The longest time that a test waits for the server.
const PATIENCE: Duration = Duration::from_secs(20);

/// The time of silence after which no more bytes are expected.
const MOMENT: Duration = Duration::from_millis(30);
