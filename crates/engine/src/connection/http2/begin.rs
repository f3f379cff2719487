//! How a connection begins to speak HTTP/2: by the client's preface, by `Upgrade: h2c`, or by ALPN.

use std::task::Poll;

use petrel_proto::http2::{
    AfterFrame, Http2Connection, Http2Options, PREFACE, settings_of_upgrade,
};
use petrel_proto::request_head::{BodyFraming, HeadOptions, KnownField, RequestHead, Version};

use super::end::{Ending, ReaderWatch};
use super::send_queue::SendQueue;
use super::stream::Http2Stream;
use super::woken::SlotSet;
use super::{ConnectionState, Http2};
use crate::connection::link::Link;
use crate::connection::serving::Serving;
use crate::deadlines::Deadlines;

/// Bytes of the preface that look like an HTTP/1 request.
const PREFACE_HEAD: usize = 18;

impl Http2 {
    /// Whether the first bytes of a connection are the HTTP/2 preface. Pending: there are too few bytes to
    /// tell.
    pub(in crate::connection) fn poll_begins_with(input: &[u8], link: &Link) -> Poll<bool> {
        let head = &PREFACE[..PREFACE_HEAD];
        match Http2::may_begin(link) {
            true if input.len() < head.len() && head.starts_with(input) => Poll::Pending,
            true => Poll::Ready(input.starts_with(head)),
            false => Poll::Ready(false),
        }
    }

    /// Whether the client may begin with the preface: this is the beginning of a connection for which HTTP/2
    /// is allowed.
    pub(in crate::connection) fn may_begin(link: &Link) -> bool {
        link.takes_http2_in_clear() && link.facts.request_number <= 1
    }

    /// Changes the connection to HTTP/2. `input` are the bytes that have come, from the preface on.
    pub(in crate::connection) fn begin(link: &mut Link, input: Vec<u8>) -> ConnectionState {
        link.facts.request_number = 0;
        let protocol = Http2Connection::new(Http2Options::default());
        ConnectionState::Http2(Box::new(Http2::new(protocol, link, input)))
    }

    /// The settings of a request with `Upgrade: h2c` (RFC 7540 3.2). `None`: the request asks for no upgrade
    /// or is not valid as one, or it has a body, for which the server stays with HTTP/1.1.
    pub(in crate::connection) fn upgrade_of(head: &RequestHead) -> Option<Vec<u8>> {
        let mut offers = head.items(KnownField::Upgrade);
        let is_offered = offers.any(|offer| offer.eq_ignore_ascii_case(b"h2c"))
            && head.connection_has("upgrade")
            && head.connection_has("http2-settings")
            && head.version() == Version::Http11
            && head.framing() == BodyFraming::None;
        let settings = head.field(KnownField::Http2Settings);
        settings_of_upgrade(settings.filter(|_| is_offered)?)
    }

    /// Changes the connection to HTTP/2 after the head of `serving`, whose request becomes the first stream.
    /// Does not if the client's settings are not valid.
    pub(in crate::connection) fn upgrade(
        link: &Link,
        mut serving: Serving,
        settings: &[u8],
        input: Vec<u8>,
    ) -> ConnectionState {
        let Some((protocol, key)) = Http2Connection::upgraded(Http2Options::default(), settings)
        else {
            serving.wire.input = input;
            return ConnectionState::Walk(serving);
        };
        let mut http2 = Box::new(Http2::new(protocol, link, input));
        http2.queue.bytes.extend_from_slice(SWITCHING);
        http2.upgraded = Some(Http2Stream::new(key, serving.run, AfterFrame::EndOfStream));
        ConnectionState::Http2(http2)
    }

    fn new(protocol: Http2Connection, link: &Link, input: Vec<u8>) -> Http2 {
        let head_options = HeadOptions {
            default_port: link.facts.scheme.default_port(),
            ..link.worker.process().head_options
        };
        Http2 {
            protocol,
            slots: Vec::new(),
            open: 0,
            woken: None,
            due: SlotSet::default(),
            starved: SlotSet::default(),
            queue: SendQueue::default(),
            is_flushed: true,
            is_blocked: false,
            sending_last: Default::default(),
            discarded: Vec::new(),
            asks_if_read: false,
            upgraded: None,
            input,
            head_options,
            trailers: Default::default(),
            block_began: None,
            streams_due_s: Deadlines::NEVER,
            ending: Ending::new(link),
            reader: ReaderWatch::default(),
        }
    }
}

/// The answer to a request with `Upgrade: h2c`.
const SWITCHING: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n";
