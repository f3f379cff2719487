//! What the tests of conversations share: requests to encode, and replies in pieces of any size.

use petrel_engine::Exchange;
use petrel_engine::exchange::{Peer, Scheme};
use petrel_engine::testing::{Answer, Site};

use super::{BodyLength, Conversation, Outgoing, ReplyError, ReplyEvent};
use crate::gateway::limits;
use crate::gateway::options::{BackendHost, Extras, HostAddress, Protocol};

/// What the gateway made of a reply.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Reply {
    /// Statuses of the interim responses.
    pub(super) interim: Vec<u16>,
    /// The status; 0 before the head.
    pub(super) status: u16,
    pub(super) fields: Vec<(String, String)>,
    pub(super) body: String,
    pub(super) log: String,
    pub(super) trailers: String,
    /// Whether the connection can be used again; `None` if the reply has no end.
    pub(super) reusable: Option<bool>,
    pub(super) error: Option<&'static str>,
}

/// A backend with this `protocol`.
pub(super) fn host(protocol: Protocol) -> BackendHost {
    BackendHost::plain("test", HostAddress::Unix(b"/nowhere".to_vec()), protocol)
}

/// A request that has gone through the phases. `text` includes the empty line after the head.
pub(super) fn request(text: &str) -> Answer {
    site().request(text)
}

fn site() -> Site {
    Site::new("server.document-root = \"/nonexistent\"", &[])
}

/// Requests of one worker with these heads, and further ones like the first, which differ in one thing each.
pub(super) fn various(heads: &[&str]) -> Vec<Answer> {
    let site = site();
    let first = || site.request(heads[0]);
    let with = |change: &dyn Fn(&mut Exchange)| {
        let mut answer = first();
        change(answer.exchange_mut());
        answer
    };
    let other = Peer::Ip(([192, 0, 2, 7], 1234).into());
    let mut all: Vec<Answer> = heads.iter().map(|head| site.request(head)).collect();
    all.extend([
        with(&|exchange| exchange.request.head.set_field("X-A", b"3")),
        with(&|exchange| exchange.request.head.remove_field("X-A")),
        with(&|exchange| exchange.request.head.set_host(b"c")),
        with(&|exchange| exchange.set_client(other, Scheme::Http)),
        with(&|exchange| exchange.set_client(exchange.connection.peer, Scheme::Https)),
        with(&|exchange| exchange.physical.server_name = b"d".to_vec()),
    ]);
    // Connections that have the same place.
    for id in [1, 1 + limits::CLIENT_PARTS as u64] {
        all.push(with(&|exchange| {
            exchange.set_client(other, Scheme::Http);
            exchange.connection.id = id;
        }));
    }
    all
}

pub(super) fn get() -> Answer {
    request("GET /a.php?b=c HTTP/1.1\r\nHost: a.example\r\n\r\n")
}

/// All of a request as it is sent. Afterwards `conversation` is ready for the reply.
pub(super) fn sent(
    conversation: &mut dyn Conversation,
    answer: &Answer,
    host: &BackendHost,
    body: &[u8],
) -> Vec<u8> {
    let mut out = Vec::new();
    send(conversation, answer, host, body, &mut out);
    out
}

/// As [`sent`], appended to `out`.
pub(super) fn send(
    conversation: &mut dyn Conversation,
    answer: &Answer,
    host: &BackendHost,
    body: &[u8],
    out: &mut Vec<u8>,
) {
    let outgoing = Outgoing {
        exchange: answer.exchange(),
        host,
        extras: &Extras::default(),
        body: match body.len() {
            0 => BodyLength::None,
            length => BodyLength::Known(length as u64),
        },
    };
    conversation.begin();
    let encoded = conversation.encode_head(&outgoing, out);
    assert_eq!(encoded, Ok(()));
    if !body.is_empty() {
        conversation.encode_body(body, out);
    }
    conversation.encode_end(out);
}

/// Feeds `wire` to a conversation made by `ready`, `step` bytes at a time, and then closes the connection.
pub(super) fn reply_in_steps(
    ready: &dyn Fn() -> Box<dyn Conversation>,
    wire: &[u8],
    step: usize,
) -> Reply {
    let mut conversation = ready();
    let mut reply = Reply::default();
    reply.error = feed(&mut *conversation, wire, step, &mut reply)
        .err()
        .map(|error| error.0);
    reply
}

/// As [`reply_in_steps`], with every step size up to 40; all must give the same reply.
pub(super) fn reply(ready: &dyn Fn() -> Box<dyn Conversation>, wire: &[u8]) -> Reply {
    let whole = reply_in_steps(ready, wire, wire.len().max(1));
    for step in 1..wire.len().min(40) {
        let mut stepped = reply_in_steps(ready, wire, step);
        if whole.reusable == Some(false) {
            // Bytes after the end are only noticed if they have arrived together with the end.
            stepped.reusable = stepped.reusable.map(|_| false);
        }
        assert_eq!(stepped, whole, "{step}");
    }
    whole
}

/// Reads each of `wires` with a conversation that has read another one of them before, and expects what a new
/// conversation makes of it. `answer` is the request that is sent for each of them.
pub(super) fn assert_independent_replies(
    new: &dyn Fn() -> Box<dyn Conversation>,
    answer: &Answer,
    host: &BackendHost,
    wires: &[Vec<u8>],
) {
    let read = |conversation: &mut dyn Conversation, wire: &[u8], step: usize| {
        sent(conversation, answer, host, b"");
        let mut reply = Reply::default();
        let fed = feed(conversation, wire, step, &mut reply);
        reply.error = fed.err().map(|error| error.0);
        reply
    };
    for (before, wire) in wires
        .iter()
        .flat_map(|one| wires.iter().map(move |other| (one, other)))
    {
        let expected = read(&mut *new(), wire, wire.len());
        for step in [3, wire.len()] {
            let mut conversation = new();
            read(&mut *conversation, before, before.len());
            let found = read(&mut *conversation, wire, step);
            let texts = [before, wire].map(|wire| String::from_utf8_lossy(wire));
            assert_eq!(found, expected, "{texts:?}");
        }
    }
}

fn feed(
    conversation: &mut dyn Conversation,
    wire: &[u8],
    step: usize,
    reply: &mut Reply,
) -> Result<(), ReplyError> {
    let (mut position, mut arrived) = (0, 0);
    loop {
        let given = &wire[position..arrived];
        let remaining = conversation.remaining();
        let decoded = conversation.decode(given)?;
        assert!(decoded.consumed <= given.len());
        position += decoded.consumed;
        let event = match decoded.event {
            ReplyEvent::NeedMore if arrived == wire.len() => conversation.end_of_input()?,
            event => event,
        };
        match event {
            ReplyEvent::NeedMore => arrived = (arrived + step).min(wire.len()),
            ReplyEvent::Interim => reply.interim.push(conversation.head().status().0),
            ReplyEvent::Head => {
                let head = conversation.head();
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                reply.status = head.status().0;
                reply.fields = head
                    .fields()
                    .map(|(name, value)| (name.to_owned(), text(value)))
                    .collect();
            }
            ReplyEvent::Body(range) => {
                assert!(!range.is_empty() && range.end <= decoded.consumed);
                if let (Some(before), Some(after)) = (remaining, conversation.remaining()) {
                    assert_eq!(before - after, range.len() as u64);
                }
                let text = std::str::from_utf8(&given[range]).expect("the test sends text");
                reply.body.push_str(text);
            }
            ReplyEvent::Log(range) => {
                assert!(!range.is_empty() && range.end <= decoded.consumed);
                reply.log.push_str(&String::from_utf8_lossy(&given[range]));
            }
            ReplyEvent::WantsBody => {}
            ReplyEvent::End { reusable } => {
                reply.reusable = Some(reusable);
                let trailers = conversation.take_trailers();
                reply.trailers = String::from_utf8_lossy(trailers.as_bytes()).into_owned();
                return Ok(());
            }
        }
    }
}
