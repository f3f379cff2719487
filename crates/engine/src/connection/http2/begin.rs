//! How a connection becomes one of HTTP/2: by what the client begins with, by Upgrade, or by what TLS has agreed on.

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

/// The part of the preface that looks like a request of HTTP/1.
const PREFACE_HEAD: usize = 18;

impl Http2 {
    /// Whether the first bytes of a connection are those of a client that speaks HTTP/2 without having asked. Pending: more
    /// of them tell.
    pub(in crate::connection) fn poll_begins_with(input: &[u8], link: &Link) -> Poll<bool> {
        let head = &PREFACE[..PREFACE_HEAD];
        match Http2::may_begin(link) {
            true if input.len() < head.len() && head.starts_with(input) => Poll::Pending,
            true => Poll::Ready(input.starts_with(head)),
            false => Poll::Ready(false),
        }
    }

    /// Whether the client may still begin with HTTP/2.
    pub(in crate::connection) fn may_begin(link: &Link) -> bool {
        link.takes_http2_in_clear() && link.facts.request_number <= 1
    }

    /// The client speaks HTTP/2 from here on; `input` is what has come of it.
    pub(in crate::connection) fn begin(link: &mut Link, input: Vec<u8>) -> ConnectionState {
        link.facts.request_number = 0;
        let protocol = Http2Connection::new(Http2Options::default());
        ConnectionState::Http2(Box::new(Http2::new(protocol, link, input)))
    }

    /// Whether a request asks for the change to HTTP/2 in the clear, in a way that can be followed (RFC 7540 3.2): the
    /// settings that it brings. One with a body is answered in HTTP/1.1.
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

    /// The connection goes on in HTTP/2 behind the head of `serving`, which becomes its first stream, unless what the client
    /// said of its settings is not sound.
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
            sending_last: Default::default(),
            discarded: Vec::new(),
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

/// What a client is told that asks for the change.
const SWITCHING: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n";
