//! AJP13 replies are decoded the same in one piece or in many, and nothing in them can split a response.
//! Requests fit into their packet or are refused.
//!
//! The input is what a container sends. It is also split at its zeros into fields of a request.

use petrel_proto::ajp13::{
    AjpDecoder, AjpEvent, Attribute, PACKET_BYTES_MAX, ReplyError, Request, RequestEncoder,
};
use petrel_proto::cgi::HeadLimits;
use petrel_proto::reply_head::ReplyHead;

const LIMITS: HeadLimits = HeadLimits {
    bytes_max: 65_536,
    fields_max: 8,
};

pub fn ajp13(input: &[u8]) {
    let whole = reply(input, usize::MAX);
    for step in [1, 9] {
        assert_eq!(reply(input, step), whole);
    }
    requests_fit(input);
}

/// Events, independent of how the input was cut, and the final error.
type Story = (Vec<(String, Vec<u8>)>, Option<ReplyError>);

fn reply(input: &[u8], step: usize) -> Story {
    let mut decoder = AjpDecoder::new(LIMITS);
    let mut head = ReplyHead::new();
    let mut story = Story::default();
    let (mut position, mut arrived) = (0, 0);
    loop {
        let given = &input[position..arrived];
        let decoded = match decoder.decode(given, &mut head) {
            Ok(decoded) => decoded,
            Err(error) => {
                story.1 = Some(error);
                return story;
            }
        };
        assert!(decoded.consumed <= given.len());
        position += decoded.consumed;
        match decoded.event {
            AjpEvent::NeedMore => {
                assert!(arrived - position < 65_536 + 4);
                if arrived == input.len() {
                    return story;
                }
                arrived = arrived.saturating_add(step).min(input.len());
            }
            AjpEvent::Body(range) => {
                assert!(!range.is_empty() && range.end == decoded.consumed);
                tell(&mut story, "body".to_owned(), &given[range]);
            }
            AjpEvent::Head | AjpEvent::Interim => {
                assert!((100..=999).contains(&head.status().0));
                assert!(head.len() <= LIMITS.fields_max);
                for (name, value) in head.fields() {
                    assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()));
                    assert!(!value.iter().any(|byte| b"\r\n\0".contains(byte)));
                    tell(&mut story, name.to_owned(), value);
                }
                tell(&mut story, format!("{:?}", head.status()), b"");
                head.clear();
            }
            event => {
                tell(&mut story, format!("{event:?}"), b"");
                if matches!(event, AjpEvent::End { .. }) {
                    return story;
                }
            }
        }
    }
}

/// Adds an event, or appends to the last one if both are pieces of the body.
fn tell(story: &mut Story, what: String, bytes: &[u8]) {
    match story.0.last_mut() {
        Some((last, known)) if last == "body" && what == "body" => known.extend_from_slice(bytes),
        _ => story.0.push((what, bytes.to_vec())),
    }
}

fn requests_fit(input: &[u8]) {
    let mut wire = b"kept".to_vec();
    let request = Request {
        method: b"GET",
        protocol: b"HTTP/1.1",
        uri: input,
        remote_address: b"",
        server_name: b"a",
        server_port: 80,
        is_tls: false,
    };
    let mut fields = RequestEncoder::new(&mut wire, &request);
    for part in input.split(|&byte| byte == 0) {
        let (name, value) = part.split_at(part.len() / 3);
        fields.field(name, value);
    }
    let mut attributes = fields.attributes();
    attributes.add(Attribute::QueryString, input);
    match attributes.finish() {
        Err(_) => assert_eq!(wire, b"kept"),
        Ok(()) => {
            let packet = &wire[4..];
            assert!(packet.len() <= PACKET_BYTES_MAX);
            let length = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
            assert_eq!(length, packet.len() - 4);
        }
    }
}
