//! In the steady state, a request to a FastCGI backend and its reply allocate nothing in the conversation.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::config::{BlockId, LoadOptions, parse_str};
use petrel_engine::settings::Values;
use petrel_engine::testing::Site;
use petrel_modules::gateway::options::{Gateway, Protocol, gateway};
use petrel_modules::gateway::protocol::{
    BodyLength, Conversation, Outgoing, ReplyEvent, conversation,
};
use petrel_sys::counting_allocator::{allocations, this_thread};

const CGI: &[u8] = b"Content-Type: text/html; charset=UTF-8\r\nX-Powered-By: PHP/8.2\r\n\
    Content-Length: 3\r\n\r\n123";

#[test]
fn a_warm_conversation_allocates_nothing() {
    let request = "GET /a.php?b=c HTTP/1.1\r\nHost: a.example\r\nAccept: */*\r\n\r\n";
    let answer = Site::new("server.document-root = \"/nonexistent\"", &[]).request(request);
    let (gateway, reply) = (backend(), fastcgi_reply());
    let mut conversation = conversation(Protocol::FastCgi, &Rc::default());
    let mut out = Vec::new();
    let mut converse = |count: usize| {
        let before = allocations()[this_thread()];
        for _ in 0..count {
            out.clear();
            send(&mut *conversation, &gateway, answer.exchange(), &mut out);
            receive(&mut *conversation, &reply);
        }
        allocations()[this_thread()] - before
    };
    assert!(converse(1) > 0, "the first one fills its buffers");
    assert_eq!(converse(100), 0);
}

fn send(
    conversation: &mut dyn Conversation,
    gateway: &Gateway,
    exchange: &Exchange,
    out: &mut Vec<u8>,
) {
    let outgoing = Outgoing {
        exchange,
        host: &gateway.routes[0].hosts[0],
        extras: &gateway.extras,
        body: BodyLength::None,
    };
    conversation.begin();
    conversation
        .encode_head(&outgoing, out)
        .expect("the request is short");
    conversation.encode_end(out);
}

fn receive(conversation: &mut dyn Conversation, reply: &[u8]) {
    let mut position = 0;
    loop {
        let decoded = conversation
            .decode(&reply[position..])
            .expect("the reply is sound");
        position += decoded.consumed;
        match decoded.event {
            ReplyEvent::End { .. } => return,
            ReplyEvent::NeedMore => {
                conversation.end_of_input().expect("it is complete");
                return;
            }
            _ => {}
        }
    }
}

/// A gateway with one backend.
fn backend() -> Gateway {
    let text = "fastcgi.server = (\"/\" => ((\"socket\" => \"/nowhere\", \"check-local\" => \"disable\")))";
    let schema = petrel_modules::schema();
    let config = parse_str("example.conf", text, &schema, &LoadOptions::from_process())
        .unwrap_or_else(|errors| panic!("{errors}"));
    let values = Values::merge(&config, &schema, std::iter::once(BlockId::GLOBAL));
    match gateway("mod_fastcgi", &values) {
        Ok(Some(gateway)) => gateway,
        Ok(None) => panic!("there is a backend"),
        Err(error) => panic!("{}", error.message),
    }
}

fn fastcgi_reply() -> Vec<u8> {
    use petrel_engine::proto::fastcgi::{ProtocolStatus, kind, write_end_request, write_stream};
    let mut reply = Vec::new();
    write_stream(&mut reply, kind::STDOUT, 1, CGI);
    write_end_request(&mut reply, 1, 0, ProtocolStatus::RequestComplete);
    reply
}
