//! The server's side of one HTTP/2 connection (RFC 9113): what comes, as events; what goes, as bytes.
//!
//! An [`Http2Connection`] knows no socket, clock or setting, and keeps no bytes of bodies. Its owner
//!
//! 1. calls [`Http2Connection::step`] with what the client sends, and does what the events say;
//! 2. writes answers: [`Http2Connection::write_head`], then, for [`Http2Connection::next_to_send`], frames of DATA, each as
//!    a header followed by the owner's bytes;
//! 3. says which bytes of request bodies it is done with ([`Http2Connection::consumed`]), and which streams
//!    ([`Http2Connection::release`], once for each stream that it was told of, however that ended);
//! 4. before it sends, and whenever it has nothing else to send, takes the frames about the connection
//!    ([`Http2Connection::write_control`]); whatever writes an answer takes them along.
//!
//! ```text
//!   bytes ──> step ──> Request, Refused ─────────────> an exchange, which answers
//!                  ──> Data, Trailers ───────────────> its body
//!                  ──> Reset, StreamError ───────────> its end
//!                  ──> Err: GOAWAY is to be sent, then the connection closed
//! ```

use std::ops::Range;

use super::error::{ConnectionError, Http2Error, StreamError};
use super::flow::{ReceiveWindow, SendWindow, WIDER_BYTES, WINDOW_AT_FIRST};
use super::frame::{AfterFrame, ErrorCode, FrameError, FrameEvent, Setting, Settings};
use super::limits::{Counts, Http2Limits};
use super::priority::Priority;
use super::requests::OpenBlock;
use super::streams::{ResetStreams, StreamKey, Streams};
use super::turns::Turns;
use super::{
    FRAME_BYTES_MAX, FrameDecoder, PREFACE, WINDOW_BYTES_MAX, kind, write_frame_header,
    write_go_away, write_ping, write_settings, write_window_update,
};
use crate::header_block::HeaderBlock;
use crate::hpack::{HpackDecoder, HpackEncoder};
use crate::request_head::{HeadError, HeadOptions, RequestHead};

/// The server's side of one connection.
#[derive(Debug)]
pub struct Http2Connection {
    /// Bytes of the client's preface that have come.
    preface_length: u8,
    frames: FrameDecoder,
    pub(super) core: Core,
}

/// What the server tells the client at the beginning, and what it bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Options {
    /// Bytes of a request body that the client may send before the owner has consumed any (SETTINGS_INITIAL_WINDOW_SIZE).
    pub stream_window: u32,
    /// The same for all streams together; at least 65,535. What it has beyond the windows of all streams is lent to streams whose
    /// bodies are consumed, [`WIDER_BYTES`] to each.
    pub connection_window: u32,
    /// Extended CONNECT is understood (RFC 8441).
    pub takes_extended_connect: bool,
    /// SETTINGS_MAX_HEADER_LIST_SIZE: advice for the client, which counts 32 bytes for each field.
    pub header_list_bytes: u32,
    /// What is too much.
    pub limits: Http2Limits,
}

/// A stream waits only for what takes its own body: the connection's window is as wide as those of all streams together, which
/// are the limit. Were it narrower, a few uploads that wait for a backend would hold all of it, and no other could come, not even
/// the one that the backend waits for. nginx does the same, with 128 windows of 64 KiB. A hostile client can have the server hold
/// 8.2 MB for a connection: 100 windows of 64 KiB, and 192 KiB more for each of [`WIDER_STREAMS`]. A buffer that grows by doubling
/// may have room for twice that.
impl Default for Http2Options {
    fn default() -> Http2Options {
        let limits = Http2Limits::default();
        Http2Options {
            stream_window: WINDOW_AT_FIRST,
            connection_window: (u32::from(limits.streams_max) + 1) * WINDOW_AT_FIRST
                + WIDER_STREAMS * WIDER_BYTES,
            takes_extended_connect: true,
            header_list_bytes: 16 << 10,
            limits,
        }
    }
}

/// What the owner lends for one step.
#[derive(Debug)]
pub struct Lent<'l> {
    /// Where the head of a request is built. What it holds is lost, whether or not the step brings a request.
    pub head: &'l mut RequestHead,
    /// What is tolerated in it.
    pub head_options: &'l HeadOptions,
    /// Where the fields of trailers are put, in place of those that are there.
    pub trailers: &'l mut HeaderBlock,
    /// Seconds of any clock that does not go back.
    pub now_s: u32,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http2Decoded {
    /// Input bytes that are done with, those of the event included.
    pub consumed: usize,
    /// What came out.
    pub event: Http2Event,
}

/// What one step found. Ranges are in the input of the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Http2Event {
    /// Nothing more can be said before more bytes come. All of the input is consumed.
    NeedMore,
    /// A request begins: its head is in [`Lent::head`]. Extended CONNECT has the method CONNECT, and
    /// [`RequestHead::protocol`].
    Request {
        /// Its stream.
        stream: StreamKey,
        /// Whether a body follows.
        body: AfterFrame,
    },
    /// A request whose head is refused, for a reason that has a status to answer with. [`Lent::head`] is as far as it was
    /// read, for the log.
    Refused {
        /// Its stream.
        stream: StreamKey,
        /// Why.
        error: HeadError,
        /// Whether a body follows, which is of no interest.
        body: AfterFrame,
    },
    /// Bytes of the body of a request.
    Data {
        /// The stream.
        stream: StreamKey,
        /// The bytes; none if the body ends without any.
        range: Range<usize>,
        /// Whether the body goes on.
        after: AfterFrame,
    },
    /// The body of a request ends with trailers, which are in [`Lent::trailers`].
    Trailers {
        /// The stream.
        stream: StreamKey,
    },
    /// The client has reset a stream. Nothing can be sent on it any more.
    Reset {
        /// The stream.
        stream: StreamKey,
        /// Why.
        code: ErrorCode,
    },
    /// The client has made a mistake that costs it a stream: RST_STREAM waits to be sent.
    StreamError {
        /// The identifier of the stream.
        id: u32,
        /// The stream, if the owner was told of it. Nothing can be sent on it any more.
        stream: Option<StreamKey>,
        /// The mistake.
        error: StreamError,
    },
    /// The client has answered [`Http2Connection::ping`].
    PingAnswered,
    /// The client will close the connection, and begins no more requests. Those that it has begun go on.
    GoAway {
        /// Why.
        code: ErrorCode,
    },
}

/// All but the frame decoder, which lends out the payload of a frame while that is dealt with.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) options: Http2Options,
    pub(super) decoder: HpackDecoder,
    pub(super) encoder: HpackEncoder,
    pub(super) streams: Streams,
    pub(super) turns: Turns,
    pub(super) reset_streams: ResetStreams,
    pub(super) counts: Counts,
    /// Frames about the connection that wait to be sent.
    pub(super) control: Vec<u8>,
    /// The header block that CONTINUATION goes on with.
    pub(super) block: Option<Box<OpenBlock>>,
    /// What PRIORITY_UPDATE said of streams that have not begun, the latest last.
    pub(super) early_priorities: Vec<(u32, Priority)>,
    pub(super) send_window: SendWindow,
    pub(super) receive_window: ReceiveWindow,
    /// What the connection's window has for streams beyond their own windows.
    pub(super) spare_window: u32,
    /// The window in which the client begins streams: that of [`Http2Options`] once it has acknowledged our SETTINGS.
    pub(super) stream_window: u32,
    pub(super) peer_stream_window: u32,
    pub(super) peer_frame_bytes_max: u32,
    /// The highest identifier of a stream that the client has begun.
    pub(super) highest_seen: u32,
    /// The same of streams that were not refused.
    pub(super) highest_taken: u32,
    pub(super) going_away: GoingAway,
    /// The client's first SETTINGS have come.
    pub(super) has_settings: bool,
    /// The client has acknowledged our SETTINGS.
    pub(super) is_acknowledged: bool,
    /// A PING of ours has not been answered.
    pub(super) awaits_ping: bool,
    /// The client has sent GOAWAY.
    pub(super) client_goes: bool,
    /// Bytes that may still come on streams that are reset, because the client did not know.
    pub(super) late_bytes: u64,
    /// Bytes of data that the DATA frame that is coming has had.
    pub(super) frame_bytes: u32,
    pub(super) error: Option<Http2Error>,
}

/// How far the end of the connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoingAway {
    /// Not.
    No,
    /// The client was told to begin no more requests; those that it has begun meanwhile are taken.
    Announced,
    /// Streams above this one are not looked at.
    Behind(u32),
}

/// What a frame leads to: an event, or none.
pub(super) type Found = Result<Option<Http2Event>, Http2Error>;

impl Http2Connection {
    /// A connection at its beginning: our SETTINGS wait to be sent, and the client's preface is expected.
    pub fn new(options: Http2Options) -> Http2Connection {
        let Http2Limits { streams_max, .. } = options.limits;
        let stream_window = options.stream_window.min(WINDOW_BYTES_MAX);
        let connection_window = options
            .connection_window
            .clamp(WINDOW_AT_FIRST, WINDOW_BYTES_MAX);
        // One part more: credit for up to half of it has not been given back.
        let parts = u32::from(streams_max) + 1;
        let spare_window = connection_window.saturating_sub(parts.saturating_mul(stream_window));
        let mut control = Vec::new();
        write_settings(
            &mut control,
            &[
                Setting::MaxConcurrentStreams(u32::from(streams_max)),
                Setting::InitialWindowSize(stream_window),
                Setting::MaxHeaderListSize(options.header_list_bytes),
                Setting::NoRfc7540Priorities(true),
                Setting::EnableConnectProtocol(options.takes_extended_connect),
            ],
        );
        write_window_update(&mut control, 0, connection_window - WINDOW_AT_FIRST);
        Http2Connection {
            preface_length: 0,
            frames: FrameDecoder::new(FRAME_BYTES_MAX),
            core: Core {
                options: Http2Options {
                    stream_window,
                    connection_window,
                    ..options
                },
                decoder: HpackDecoder::new(TABLE_BYTES_MAX),
                encoder: HpackEncoder::new(),
                streams: Streams::default(),
                turns: Turns::default(),
                reset_streams: ResetStreams::default(),
                counts: Counts::default(),
                control,
                block: None,
                early_priorities: Vec::new(),
                send_window: SendWindow::new(WINDOW_AT_FIRST),
                receive_window: ReceiveWindow::new(connection_window),
                spare_window,
                stream_window: WINDOW_AT_FIRST,
                peer_stream_window: WINDOW_AT_FIRST,
                peer_frame_bytes_max: FRAME_BYTES_MAX,
                highest_seen: 0,
                highest_taken: 0,
                going_away: GoingAway::No,
                has_settings: false,
                is_acknowledged: false,
                awaits_ping: false,
                client_goes: false,
                late_bytes: 0,
                frame_bytes: 0,
                error: None,
            },
        }
    }

    /// A connection that goes on behind an HTTP/1 request with `Upgrade: h2c`, which becomes stream 1 and has no body left to
    /// come. `settings` is the payload of HTTP2-Settings. `None`: that is not sound. Both 101 and what this connection writes
    /// go to the client; the preface follows from there.
    pub fn upgraded(
        options: Http2Options,
        settings: &[u8],
    ) -> Option<(Http2Connection, StreamKey)> {
        let mut connection = Http2Connection::new(options);
        let mut frame = Vec::new();
        let length = u32::try_from(settings.len()).ok()?;
        write_frame_header(&mut frame, length, kind::SETTINGS, 0, 0);
        frame.extend_from_slice(settings);
        let decoded = FrameDecoder::new(FRAME_BYTES_MAX).decode(&frame).ok()?;
        if !matches!(decoded.event, FrameEvent::Settings { .. }) {
            return None;
        }
        connection.core.apply(Settings::new(settings)).ok()?;
        let stream = connection.core.begin_stream(1, AfterFrame::EndOfStream);
        Some((connection, stream))
    }

    /// Takes the next step. `input` begins where the last step's `consumed` ended, and may end anywhere.
    ///
    /// # Errors
    /// The connection is over: [`Http2Connection::write_control`] has GOAWAY, and nothing else is to be sent behind it. An
    /// error is final. Streams are released as ever.
    pub fn step(&mut self, input: &[u8], lent: &mut Lent<'_>) -> Result<Http2Decoded, Http2Error> {
        if let Some(error) = self.core.error {
            return Err(error);
        }
        self.core.counts.at(lent.now_s);
        self.find(input, lent)
            .inspect_err(|&error| self.core.fail(error))
    }

    /// Appends the frames about the connection that wait to be sent.
    pub fn write_control(&mut self, out: &mut Vec<u8>) {
        self.core.write_control(out);
    }

    /// Whether there are any.
    pub fn has_control(&self) -> bool {
        !self.core.control.is_empty()
    }

    /// The end of the connection, in two steps (RFC 9113 6.8). The first time, the client is told to begin no more requests;
    /// those that it has begun meanwhile are taken. The second time, which should be a round trip later at least, the client
    /// is told of the last stream that was taken, and can try again elsewhere what it began behind it.
    pub fn go_away(&mut self) {
        let core = &mut self.core;
        let last = match core.going_away {
            _ if core.error.is_some() => return,
            GoingAway::No => {
                core.going_away = GoingAway::Announced;
                WINDOW_BYTES_MAX
            }
            GoingAway::Announced => {
                core.going_away = GoingAway::Behind(core.highest_seen);
                core.highest_taken
            }
            GoingAway::Behind(_) => return,
        };
        write_go_away(&mut core.control, last, ErrorCode::NoError, b"");
    }

    /// Asks the client for a sign of life, which [`Http2Event::PingAnswered`] tells of: what it had sent before has come then.
    pub fn ping(&mut self) {
        if self.core.error.is_none() && !std::mem::replace(&mut self.core.awaits_ping, true) {
            write_ping(&mut self.core.control, PING_PAYLOAD);
        }
    }

    /// Ends the connection for a reason that is the owner's to know, a wait that took too long say: GOAWAY waits to be sent.
    pub fn give_up(&mut self, reason: ConnectionError) {
        if self.core.error.is_none() {
            self.core.fail(reason.into());
        }
    }

    /// Whether the client has acknowledged our SETTINGS.
    pub fn is_acknowledged(&self) -> bool {
        self.core.is_acknowledged
    }

    /// Whether a header block has begun and not ended: no other frame may stand in between, so all streams wait for it.
    pub fn is_in_block(&self) -> bool {
        self.core.block.is_some() || self.frames.is_in_headers()
    }

    /// How many streams are not released.
    pub fn stream_count(&self) -> usize {
        self.core.streams.len()
    }

    /// Gives back memory that the next requests would use again. For a connection that is idle for long.
    pub fn shrink(&mut self) {
        let core = &mut self.core;
        core.streams.shrink();
        core.turns.shrink();
        core.decoder.release_memory();
        core.encoder.release_memory();
        core.early_priorities.shrink_to_fit();
        if core.control.is_empty() {
            core.control = Vec::new();
        }
    }

    fn find(&mut self, input: &[u8], lent: &mut Lent<'_>) -> Result<Http2Decoded, Http2Error> {
        let mut position = self.take_preface(input)?;
        if usize::from(self.preface_length) < PREFACE.len() {
            return Ok(found(position, Http2Event::NeedMore));
        }
        loop {
            let rest = &input[position..];
            let decoded = self.frames.decode(rest)?;
            let core = &mut self.core;
            if !core.has_settings && !is_first(&decoded.event) {
                return Err(ConnectionError::FirstFrame.into());
            }
            let event = match decoded.event {
                FrameEvent::NeedMore => Some(Http2Event::NeedMore),
                FrameEvent::Data {
                    stream,
                    range,
                    padding_consumed,
                    is_frame_end,
                    ends_stream,
                } => {
                    core.note_data(stream, &range, is_frame_end && !ends_stream, is_frame_end)?;
                    let range = range.start + position..range.end + position;
                    let after = after(ends_stream);
                    core.data(stream, range, padding_consumed, after, is_frame_end)?
                }
                FrameEvent::Headers {
                    stream,
                    fragment,
                    ends_stream,
                    ends_headers,
                    priority,
                } => {
                    let block = self.frames.payload(rest, &fragment);
                    let depends_on_itself =
                        priority.is_some_and(|field| field.dependency == stream);
                    let mut opened = OpenBlock::new(stream, after(ends_stream), depends_on_itself);
                    match ends_headers {
                        true => core.block(&opened, block, lent)?,
                        false => {
                            opened.add(block, core)?;
                            core.block = Some(Box::new(opened));
                            None
                        }
                    }
                }
                FrameEvent::Continuation {
                    fragment,
                    ends_headers,
                    ..
                } => {
                    let part = self.frames.payload(rest, &fragment);
                    match core.block.take() {
                        Some(mut open) => {
                            open.add_next(part, ends_headers, core)?;
                            match ends_headers {
                                true => core.block(&open, &open.bytes, lent)?,
                                false => {
                                    core.block = Some(open);
                                    None
                                }
                            }
                        }
                        None => return Err(FrameError::Continuation.into()),
                    }
                }
                FrameEvent::Settings { payload } => {
                    core.settings(Settings::new(self.frames.payload(rest, &payload)))?
                }
                FrameEvent::SettingsAck => core.settings_acknowledged()?,
                FrameEvent::Ping(payload) => core.ping(payload)?,
                FrameEvent::Reset { stream, code } => core.reset_by_client(stream, code)?,
                FrameEvent::WindowUpdate { stream, increment } => {
                    core.window_update(stream, increment)?
                }
                FrameEvent::PriorityUpdate { stream, value } => {
                    core.priority_update(stream, self.frames.payload(rest, &value))?
                }
                FrameEvent::StreamError { stream, error } => core.frame_error(stream, error)?,
                FrameEvent::GoAway { code, .. } => core.client_goes(code)?,
                FrameEvent::PingAck(payload) => core.ping_answered(payload)?,
                FrameEvent::Priority { .. } | FrameEvent::Unknown { .. } => {
                    core.counts.idle_frame(&core.options.limits)?;
                    None
                }
            };
            position += decoded.consumed;
            if core.control.len() > core.options.limits.control_bytes_max as usize {
                return Err(ConnectionError::NotReading.into());
            }
            if let Some(event) = event {
                return Ok(found(position, event));
            }
        }
    }

    /// Takes what comes of the client's preface. Answers how many bytes of the input that were.
    fn take_preface(&mut self, input: &[u8]) -> Result<usize, Http2Error> {
        let expected = &PREFACE[usize::from(self.preface_length)..];
        let length = expected.len().min(input.len());
        if expected[..length] != input[..length] {
            return Err(ConnectionError::Preface.into());
        }
        // Not more than the preface has.
        self.preface_length += length as u8;
        Ok(length)
    }
}

/// What our PING frames carry.
pub(super) const PING_PAYLOAD: [u8; 8] = *b"petrel\0\0";

/// What our SETTINGS_HEADER_TABLE_SIZE would be if we sent one.
const TABLE_BYTES_MAX: u32 = 4096;

/// How many streams at a time have a wider window, unless the owner has other options.
const WIDER_STREAMS: u32 = 8;

fn found(consumed: usize, event: Http2Event) -> Http2Decoded {
    Http2Decoded { consumed, event }
}

fn after(ends_stream: bool) -> AfterFrame {
    match ends_stream {
        true => AfterFrame::EndOfStream,
        false => AfterFrame::More,
    }
}

/// Whether the client may begin with this.
fn is_first(event: &FrameEvent) -> bool {
    matches!(event, FrameEvent::NeedMore | FrameEvent::Settings { .. })
}
