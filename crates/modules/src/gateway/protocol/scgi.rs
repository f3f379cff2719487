//! SCGI: the variables in a netstring, the body as it is, and a CGI reply that ends when the connection
//! closes.

use petrel_engine::proto::scgi::ScgiEncoder;

use super::until_close::UntilCloseConversation;
use super::{BodyLength, Outgoing, RequestError};
use crate::gateway::environment;

/// A conversation for a new connection.
pub fn conversation() -> UntilCloseConversation {
    UntilCloseConversation::new(encode_head)
}

fn encode_head(request: &Outgoing<'_>, out: &mut Vec<u8>) -> Result<(), RequestError> {
    let length = match request.body {
        BodyLength::Known(length) => length,
        BodyLength::None | BodyLength::Unknown => 0,
    };
    let mut head = ScgiEncoder::new(out, length);
    environment::build_rewritten(
        request.exchange,
        request.host,
        request.body,
        &request.extras.rewriting,
        &mut |name, value| head.add(name, value),
    );
    head.finish();
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::gateway::options::Protocol;
    use crate::gateway::protocol::testing::{Reply, get, host, reply, request, sent};
    use crate::gateway::protocol::{Conversation, ReplyEvent};

    fn ready() -> Box<dyn Conversation> {
        let mut conversation = super::conversation();
        sent(&mut conversation, &get(), &host(Protocol::Scgi), b"");
        Box::new(conversation)
    }

    #[test]
    fn a_request_is_a_netstring_and_its_body() {
        let mut conversation = super::conversation();
        let answer = request("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
        let wire = sent(&mut conversation, &answer, &host(Protocol::Scgi), b"body");
        let head = wire.strip_suffix(b",body").expect("a netstring and a body");
        let parts: Vec<&[u8]> = head.split(|byte| *byte == 0).collect();
        let found: Vec<_> = parts.chunks_exact(2).collect();
        assert!(found[0][0].ends_with(b":CONTENT_LENGTH"));
        assert_eq!(found[0][1], b"4");
        assert!(!found[1..].iter().any(|pair| pair[0] == b"CONTENT_LENGTH"));
        assert!(found.contains(&&[&b"REQUEST_METHOD"[..], b"POST"][..]));
    }

    #[test]
    fn a_reply_ends_with_its_connection() {
        let found = reply(&ready, b"Status: 404\r\nA: b\r\n\r\nbody");
        let expected = Reply {
            status: 404,
            fields: vec![("A".to_owned(), "b".to_owned())],
            body: "body".to_owned(),
            reusable: Some(false),
            ..Reply::default()
        };
        assert_eq!(found, expected);
        for (wire, error) in [
            (&b""[..], "the backend sent no reply"),
            (b"A: b\r\n", "the reply ends before its head is complete"),
            (
                b"Content-Length: 5\n\nbody",
                "the reply is shorter than its Content-Length",
            ),
            (b"hello\n", "the reply does not begin with header fields"),
        ] {
            assert_eq!(reply(&ready, wire).error, Some(error));
        }
    }

    #[test]
    fn a_reply_with_a_length_does_not_wait_for_the_close() {
        let mut conversation = ready();
        let wire = b"Content-Length: 3\n\nbody";
        let events: Vec<_> = std::iter::from_fn({
            let mut position = 0;
            move || {
                let decoded = conversation.decode(&wire[position..]).expect("it is sound");
                position += decoded.consumed;
                Some(decoded.event)
            }
        })
        .take(3)
        .collect();
        let end = ReplyEvent::End { reusable: false };
        assert_eq!(events, [ReplyEvent::Head, ReplyEvent::Body(0..3), end]);
    }
}
