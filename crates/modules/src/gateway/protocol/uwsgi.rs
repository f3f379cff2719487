//! uwsgi: the variables in a packet, the body as it is, and a reply that ends when the connection closes. The
//! reply begins with a CGI head or with an HTTP status line.

use petrel_engine::proto::uwsgi::{UwsgiEncoder, VariablesTooLong};

use super::until_close::UntilCloseConversation;
use super::{Outgoing, RequestError};
use crate::gateway::environment;

/// A conversation for a new connection.
pub fn conversation() -> UntilCloseConversation {
    UntilCloseConversation::new(encode_head)
}

fn encode_head(request: &Outgoing<'_>, out: &mut Vec<u8>) -> Result<(), RequestError> {
    let mut head = UwsgiEncoder::new(out);
    environment::build_rewritten(
        request.exchange,
        request.host,
        request.body,
        &request.extras.rewriting,
        &mut |name, value| head.add(name, value),
    );
    head.finish()
        .map_err(|VariablesTooLong| RequestError("the request is too long for a uwsgi packet"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::options::{Extras, Protocol};
    use crate::gateway::protocol::testing::{get, host, reply, request, sent};
    use crate::gateway::protocol::{BodyLength, Conversation};

    fn ready() -> Box<dyn Conversation> {
        let mut conversation = super::conversation();
        sent(&mut conversation, &get(), &host(Protocol::Uwsgi), b"");
        Box::new(conversation)
    }

    #[test]
    fn a_request_is_a_packet_and_its_body() {
        let mut conversation = super::conversation();
        let answer = request("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
        let wire = sent(&mut conversation, &answer, &host(Protocol::Uwsgi), b"body");
        let packet = wire.strip_suffix(b"body").expect("a packet and a body");
        let [low, high] = (packet.len() as u16 - 4).to_le_bytes();
        assert_eq!(packet[..4], [0, low, high, 0]);
        let has = |variable: &[u8]| packet.windows(variable.len()).any(|part| part == variable);
        assert!(has(b"\x0e\0CONTENT_LENGTH\x01\x004"));
        assert!(has(b"\x0e\0REQUEST_METHOD\x04\0POST"));
    }

    #[test]
    fn a_request_that_is_too_long_cannot_be_sent() {
        let answer = get();
        let host = host(Protocol::Uwsgi);
        let mut exchange = answer;
        let long = "x".repeat(70_000);
        exchange
            .exchange_mut()
            .environment
            .set("LONG", long.as_bytes());
        let outgoing = Outgoing {
            exchange: exchange.exchange(),
            host: &host,
            extras: &Extras::default(),
            body: BodyLength::None,
        };
        let mut out = Vec::new();
        let refused = conversation().encode_head(&outgoing, &mut out);
        let too_long = RequestError("the request is too long for a uwsgi packet");
        assert_eq!((refused, out.len()), (Err(too_long), 0));
    }

    #[test]
    fn a_reply_may_begin_with_a_status_line() {
        let found = reply(&ready, b"HTTP/1.1 404 Not Found\r\nA: b\r\n\r\nbody");
        assert_eq!((found.status, found.body.as_str()), (404, "body"));
        assert_eq!((found.fields.len(), found.reusable), (1, Some(false)));
        let found = reply(&ready, b"Status: 200\n\nbody");
        assert_eq!((found.status, found.body.as_str()), (200, "body"));
    }
}
