//! The server's side of one HTTP/2 connection (RFC 9113): turns received bytes into events, and answers into
//! bytes.
//!
//! An [`Http2Connection`] knows no socket, clock or configuration, and keeps no bytes of bodies. Its owner
//!
//! 1. calls [`Http2Connection::step`] with received bytes, and does what the events say;
//! 2. writes answers: [`Http2Connection::write_head`], then DATA frames for the stream of
//!    [`Http2Connection::next_to_send`], each a header followed by bytes of the owner;
//! 3. says which bytes of request bodies it is done with ([`Http2Connection::consumed`]), and releases every
//!    stream of an event once, also after a reset ([`Http2Connection::release`]);
//! 4. takes the control frames before it sends, and also when it has nothing else to send
//!    ([`Http2Connection::write_control`]). Calls that write an answer take them along.
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
use super::repeated_head::RepeatedHead;
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

/// The settings that the server sends, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Options {
    /// Bytes of a request body that the client may send before the owner has consumed any
    /// (SETTINGS_INITIAL_WINDOW_SIZE).
    pub stream_window: u32,
    /// The same for all streams together; at least 65,535. The part beyond the windows of all streams is lent
    /// to streams whose bodies are being consumed, [`WIDER_BYTES`] to each.
    pub connection_window: u32,
    /// Extended CONNECT is allowed (RFC 8441).
    pub takes_extended_connect: bool,
    /// SETTINGS_MAX_HEADER_LIST_SIZE, which is only advice for the client. Each field counts 32 bytes more.
    pub header_list_bytes: u32,
    /// The limits.
    pub limits: Http2Limits,
}

/// The connection's window is as wide as the windows of all allowed streams together. With a narrower one a
/// few uploads that wait for their backends would use it up and block all others, even an upload that a
/// backend waits for. nginx does the same, with 128 windows of 64 KiB. A hostile client can make the server
/// hold 8.2 MB for one connection: 100 windows of 64 KiB, and 192 KiB more for each of [`WIDER_STREAMS`]. A
/// buffer that grows by doubling may have room for twice that.
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

/// Things that the owner lends for one step.
#[derive(Debug)]
pub struct Lent<'l> {
    /// The place for the head of a request. Its contents are lost, also if the step brings no request.
    pub head: &'l mut RequestHead,
    /// What is tolerated in a head.
    pub head_options: &'l HeadOptions,
    /// The place for the fields of trailers. Its contents are lost.
    pub trailers: &'l mut HeaderBlock,
    /// Seconds of a clock that never goes back.
    pub now_s: u32,
}

/// The result of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http2Decoded {
    /// Input bytes that are consumed, those of the event included.
    pub consumed: usize,
    /// The event.
    pub event: Http2Event,
}

/// An event of one step. Ranges are in the input of the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Http2Event {
    /// More bytes are needed. All of the input is consumed.
    NeedMore,
    /// A request begins. Its head is in [`Lent::head`]. Extended CONNECT has the method CONNECT and
    /// [`RequestHead::protocol`].
    Request {
        /// Its stream.
        stream: StreamKey,
        /// Whether a body follows.
        body: AfterFrame,
    },
    /// A request with a head that is to be refused with a status. [`Lent::head`] has the part that was read,
    /// for the log.
    Refused {
        /// Its stream.
        stream: StreamKey,
        /// Why.
        error: HeadError,
        /// Whether a body follows. The owner throws it away.
        body: AfterFrame,
    },
    /// Bytes of the body of a request.
    Data {
        /// The stream.
        stream: StreamKey,
        /// The bytes; an empty range if only the end of the body came.
        range: Range<usize>,
        /// Whether the body goes on.
        after: AfterFrame,
    },
    /// The body of a request ends with the trailers in [`Lent::trailers`].
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
    /// The client has made an error that ends a stream. RST_STREAM waits to be sent.
    StreamError {
        /// The identifier of the stream.
        id: u32,
        /// The stream, if an earlier event has told the owner of it. Nothing can be sent on it any more.
        stream: Option<StreamKey>,
        /// The error.
        error: StreamError,
    },
    /// The client has answered [`Http2Connection::ping`].
    PingAnswered,
    /// The client will close the connection, and begins no more requests. Requests under way go on.
    GoAway {
        /// Why.
        code: ErrorCode,
    },
}

/// Everything but the frame decoder, from which the payload of a frame is borrowed while the frame is
/// handled.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) options: Http2Options,
    pub(super) decoder: HpackDecoder,
    pub(super) encoder: HpackEncoder,
    pub(super) streams: Streams,
    pub(super) turns: Turns,
    pub(super) reset_streams: ResetStreams,
    pub(super) counts: Counts,
    /// Control frames that wait to be sent.
    pub(super) control: Vec<u8>,
    pub(super) repeated_head: RepeatedHead,
    /// The header block that CONTINUATION frames continue.
    pub(super) block: Option<Box<OpenBlock>>,
    /// Priorities by PRIORITY_UPDATE of streams that have not begun, the latest last.
    pub(super) early_priorities: Vec<(u32, Priority)>,
    pub(super) send_window: SendWindow,
    /// The most by which the client has opened that window at once; 0: it has not yet.
    pub(super) widest_step: u32,
    pub(super) receive_window: ReceiveWindow,
    /// The part of the connection's window that can be lent to streams.
    pub(super) spare_window: u32,
    /// The window with which the client begins streams: that of [`Http2Options`] once the client has
    /// acknowledged our SETTINGS.
    pub(super) stream_window: u32,
    pub(super) peer_stream_window: u32,
    pub(super) peer_frame_bytes_max: u32,
    /// The highest identifier of a stream that the client has begun.
    pub(super) highest_seen: u32,
    /// The highest identifier of a stream that was not refused.
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
    /// Bytes that may still come on streams that this side has reset: the client sent them before it knew.
    pub(super) late_bytes: u64,
    /// Bytes of the present DATA frame that have come.
    pub(super) frame_bytes: u32,
    pub(super) error: Option<Http2Error>,
}

/// Which GOAWAY was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoingAway {
    /// None.
    No,
    /// The first one, which tells the client to begin no more requests. Requests that it begins before it
    /// reads this are taken.
    Announced,
    /// The second one. Streams above this one are ignored.
    Behind(u32),
}

/// The result of a frame: an event, or none.
pub(super) type Found = Result<Option<Http2Event>, Http2Error>;

impl Http2Connection {
    /// A new connection: our SETTINGS wait to be sent, and the client's preface is expected.
    pub fn new(options: Http2Options) -> Http2Connection {
        let Http2Limits { streams_max, .. } = options.limits;
        let stream_window = options.stream_window.min(WINDOW_BYTES_MAX);
        let connection_window = options
            .connection_window
            .clamp(WINDOW_AT_FIRST, WINDOW_BYTES_MAX);
        // One window more than streams: credit of up to half the connection's window may not have been given
        // back yet.
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
                repeated_head: RepeatedHead::default(),
                streams: Streams::default(),
                turns: Turns::default(),
                reset_streams: ResetStreams::default(),
                counts: Counts::default(),
                control,
                block: None,
                early_priorities: Vec::new(),
                send_window: SendWindow::new(WINDOW_AT_FIRST),
                widest_step: 0,
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

    /// A connection that begins with an HTTP/1 request with `Upgrade: h2c`. The request becomes stream 1; its
    /// body has come whole. `settings` is the payload of HTTP2-Settings; `None` is returned if it is not
    /// valid. The owner sends 101, then what this connection writes. The client sends its preface next.
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

    /// Takes the next step. `input` begins where the `consumed` of the last step ended, and may end anywhere.
    ///
    /// # Errors
    /// The connection is over. [`Http2Connection::write_control`] has GOAWAY, behind which nothing may be
    /// sent. All further calls return the error. Streams still must be released.
    pub fn step(&mut self, input: &[u8], lent: &mut Lent<'_>) -> Result<Http2Decoded, Http2Error> {
        if let Some(error) = self.core.error {
            return Err(error);
        }
        self.core.counts.at(lent.now_s);
        self.find(input, lent)
            .inspect_err(|&error| self.core.fail(error))
    }

    /// Appends the waiting control frames.
    pub fn write_control(&mut self, out: &mut Vec<u8>) {
        self.core.write_control(out);
    }

    /// Whether control frames wait to be sent.
    pub fn has_control(&self) -> bool {
        !self.core.control.is_empty()
    }

    /// Ends the connection in two steps (RFC 9113 6.8). The first call tells the client to begin no more
    /// requests; requests that it begins before it reads this are taken. The second call, which should come
    /// at least a round trip later, tells the client the last stream that was taken: the client can send
    /// later requests again on another connection.
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

    /// Sends PING. When [`Http2Event::PingAnswered`] comes, the client has read everything sent before the
    /// PING, and everything that it sent before the answer has come.
    pub fn ping(&mut self) {
        if self.core.error.is_none() && !std::mem::replace(&mut self.core.awaits_ping, true) {
            write_ping(&mut self.core.control, PING_PAYLOAD);
        }
    }

    /// Ends the connection for a reason that only the owner sees, such as a wait that took too long. GOAWAY
    /// waits to be sent.
    pub fn give_up(&mut self, reason: ConnectionError) {
        if self.core.error.is_none() {
            self.core.fail(reason.into());
        }
    }

    /// Whether the client has acknowledged our SETTINGS.
    pub fn is_acknowledged(&self) -> bool {
        self.core.is_acknowledged
    }

    /// Whether a header block has begun and not ended. No other frames may stand inside it, so all streams
    /// wait for its end.
    pub fn is_in_block(&self) -> bool {
        self.core.block.is_some() || self.frames.is_in_headers()
    }

    /// The number of streams that are not released.
    pub fn stream_count(&self) -> usize {
        self.core.streams.len()
    }

    /// Frees memory that the next requests would use again. For connections that have been idle for long.
    pub fn shrink(&mut self) {
        let core = &mut self.core;
        core.streams.shrink();
        core.turns.shrink();
        core.decoder.release_memory();
        core.encoder.release_memory();
        core.repeated_head = RepeatedHead::default();
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

    /// Takes bytes of the client's preface from `input`, and returns how many.
    fn take_preface(&mut self, input: &[u8]) -> Result<usize, Http2Error> {
        let expected = &PREFACE[usize::from(self.preface_length)..];
        let length = expected.len().min(input.len());
        if expected[..length] != input[..length] {
            return Err(ConnectionError::Preface.into());
        }
        // The preface has 24 bytes.
        self.preface_length += length as u8;
        Ok(length)
    }
}

/// The payload of our PING frames.
pub(super) const PING_PAYLOAD: [u8; 8] = *b"petrel\0\0";

/// The default of SETTINGS_HEADER_TABLE_SIZE, which the server does not change.
const TABLE_BYTES_MAX: u32 = 4096;

/// By default, the number of streams that can have a wider window at a time.
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

/// Whether the client's first frame may be this one.
fn is_first(event: &FrameEvent) -> bool {
    matches!(event, FrameEvent::NeedMore | FrameEvent::Settings { .. })
}
