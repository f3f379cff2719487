//! Measures what a request to a backend and its reply cost without I/O: encoding and decoding.
//!
//! `cargo run --profile dist -p petrel-modules --example gateway_cost` prints nanoseconds for each protocol,
//! the best of several rounds. For comparisons between two versions of the code on one machine.

use std::hint::black_box;
use std::rc::Rc;
use std::time::Instant;

use petrel_engine::Exchange;
use petrel_engine::config::{BlockId, LoadOptions, parse_str};
use petrel_engine::settings::Values;
use petrel_engine::testing::Site;
use petrel_modules::gateway::options::{Gateway, Protocol, gateway};
use petrel_modules::gateway::protocol::{
    BodyLength, Conversation, Outgoing, ReplyEvent, conversation,
};

const REQUEST: &str = "GET /dir/script.php?a=b&c=d HTTP/1.1\r\nHost: www.example.org\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
    Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
    Connection: keep-alive\r\n\r\n";

const CGI: &[u8] = b"Content-Type: text/html; charset=UTF-8\r\nX-Powered-By: PHP/8.2\r\n\
    Content-Length: 3\r\n\r\n123";

fn main() {
    let answer = Site::new("server.document-root = \"/nonexistent\"", &[]).request(REQUEST);
    println!(
        "{:<8} {:>10} {:>10} {:>10}",
        "", "head bytes", "encode ns", "decode ns"
    );
    for (name, protocol, reply) in [
        ("FastCGI", Protocol::FastCgi, fastcgi_reply()),
        ("SCGI", Protocol::Scgi, CGI.to_vec()),
        ("uwsgi", Protocol::Uwsgi, CGI.to_vec()),
        ("AJP13", Protocol::Ajp13, ajp13_reply()),
        ("HTTP", Protocol::Http, http_reply()),
    ] {
        measure(name, protocol, answer.exchange(), &reply);
    }
}

fn measure(name: &str, protocol: Protocol, exchange: &Exchange, reply: &[u8]) {
    let gateway = backend();
    let mut conversation = conversation(protocol, &Rc::default());
    let mut out = Vec::new();
    let encode = best_of_rounds(|| {
        out.clear();
        send(&mut *conversation, &gateway, black_box(exchange), &mut out);
    });
    let both = best_of_rounds(|| {
        out.clear();
        send(&mut *conversation, &gateway, black_box(exchange), &mut out);
        receive(&mut *conversation, black_box(reply));
    });
    let decode = both - encode;
    println!("{name:<8} {:>10} {encode:>10.0} {decode:>10.0}", out.len());
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
            event => drop(black_box(event)),
        }
    }
}

/// The best of 20 rounds, in nanoseconds per call.
fn best_of_rounds(mut call: impl FnMut()) -> f64 {
    const CALLS: u32 = 20_000;
    let round = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        for _ in 0..CALLS {
            call();
        }
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..20)
        .map(|_| round(&mut call))
        .fold(f64::INFINITY, f64::min)
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

fn ajp13_reply() -> Vec<u8> {
    let head = b"\0\xc8\0\x02OK\0\0\x02\xa0\x01\0\x09text/html\0\xa0\x03\0\x013\0";
    let length = u8::try_from(head.len() + 1).expect("it is short");
    let body = b"AB\0\x07\x03\0\x03123\0AB\0\x02\x05\x01";
    [&[b'A', b'B', 0, length, 4][..], head, body].concat()
}

fn http_reply() -> Vec<u8> {
    [b"HTTP/1.1 200 OK\r\n", CGI].concat()
}
