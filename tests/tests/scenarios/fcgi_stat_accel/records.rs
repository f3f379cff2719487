//! The protocol: which records are answered, and how.

use petrel_tests::fastcgi::*;
use petrel_tests::{eventually, fastcgi_record};

use crate::fcgi_stat_accel::accelerator::Accelerator;

#[test]
fn a_kept_connection_carries_many_requests() {
    let accelerator = Accelerator::start(&[]);
    let mut peer = accelerator.connect();
    for number in 0..50 {
        let name = format!("{number}.txt");
        accelerator.tree.write(&format!("www/{name}"), "text");
        peer.send(&accelerator.request(1, &name));
        let reply = peer.reply(1);
        assert_eq!(reply.text(), accelerator.naming(&name));
        assert_eq!((reply.log.as_str(), reply.end), ("", Some((0, 0))));
    }
    // Without FCGI_KEEP_CONN the program closes the connection.
    let mut last = accelerator.request(1, "1.txt");
    last[10] = 0;
    peer.send(&last);
    assert_eq!(peer.reply(1).text(), accelerator.naming("1.txt"));
    assert!(peer.is_closed());
}

#[test]
fn many_requests_at_a_time_on_one_connection() {
    let accelerator = Accelerator::start(&["--threads", "3"]);
    let ids: Vec<u16> = (1..=100).collect();
    let mut records = Vec::new();
    for id in &ids {
        let name = format!("{id}.txt");
        if id % 2 == 0 {
            accelerator.tree.write(&format!("www/{name}"), "text");
        }
        records.extend(accelerator.request(*id, &name));
    }
    let mut peer = accelerator.connect();
    // The pieces end anywhere in a record.
    for piece in records.chunks(77) {
        peer.send(piece);
    }
    let replies = peer.replies(&ids);
    assert_eq!(replies.len(), ids.len());
    for (reply, id) in replies {
        match id % 2 {
            0 => assert_eq!(reply.text(), accelerator.naming(&format!("{id}.txt"))),
            _ => assert_eq!(reply.status(), 404),
        }
    }
    assert!(
        accelerator.threads() <= 6,
        "{} threads",
        accelerator.threads()
    );
}

#[test]
fn bodies_are_read_and_dropped() {
    let accelerator = Accelerator::start(&[]);
    accelerator.tree.write("www/a", "text");
    let mut peer = accelerator.connect();
    let mut records = accelerator.request(1, "a");
    // The records lack the end of the body.
    records.truncate(records.len() - 8);
    peer.send(&records);
    for _ in 0..100 {
        peer.send(&fastcgi_record(STDIN, 1, &[b'x'; 60_000]));
    }
    // Another request is answered meanwhile, and this one when its body ends.
    peer.send(&accelerator.request(2, "a"));
    assert_eq!(peer.reply(2).text(), accelerator.naming("a"));
    peer.send(&stdin(1, b""));
    assert_eq!(peer.reply(1).text(), accelerator.naming("a"));
}

#[test]
fn an_abort_ends_a_request_and_its_connection_goes_on() {
    let accelerator = Accelerator::start(&[]);
    accelerator.tree.write("www/a", "text");
    let mut peer = accelerator.connect();
    let mut half = accelerator.request(1, "a");
    half.truncate(half.len() - 8);
    peer.send(&half);
    peer.send(&fastcgi_record(ABORT_REQUEST, 1, b""));
    let reply = peer.reply(1);
    assert_eq!((reply.text().as_str(), reply.end), ("", Some((0, 0))));
    peer.send(&accelerator.request(1, "a"));
    assert_eq!(peer.reply(1).text(), accelerator.naming("a"));
}

#[test]
fn values_and_other_roles_are_answered() {
    let accelerator = Accelerator::start(&[]);
    accelerator.tree.write("www/a", "text");
    let mut peer = accelerator.connect();
    let asked = b"\x0e\x00FCGI_MAX_CONNS\x0d\x00FCGI_MAX_REQS\x0f\x00FCGI_MPXS_CONNS\x01\x00X";
    peer.send(&fastcgi_record(GET_VALUES, 0, asked));
    let told = peer.record().expect("an answer");
    assert_eq!(told.kind, GET_VALUES_RESULT);
    let told = String::from_utf8_lossy(&told.content).into_owned();
    for pair in [
        "FCGI_MAX_CONNS1024",
        "FCGI_MAX_REQS4096",
        "FCGI_MPXS_CONNS1",
    ] {
        assert!(told.contains(pair), "{told:?}");
    }
    peer.send(&fastcgi_record(77, 0, b""));
    assert_eq!(peer.record().expect("an answer").kind, UNKNOWN_TYPE);
    peer.send(&begin(1, 2, 1));
    assert_eq!(peer.reply(1).end, Some((0, 3)));
    peer.send(&accelerator.request(1, "a"));
    assert_eq!(peer.reply(1).text(), accelerator.naming("a"));
}

#[test]
fn methods_that_change_something_are_refused() {
    let accelerator = Accelerator::start(&[]);
    accelerator.tree.write("www/a", "text");
    let file = accelerator.tree.path("www/a").display().to_string();
    for (method, status) in [
        ("GET", 200),
        ("HEAD", 200),
        ("POST", 200),
        ("DELETE", 405),
        ("get", 405),
        ("", 405),
    ] {
        let mut peer = accelerator.connect();
        let pairs = [("REQUEST_METHOD", method), ("SCRIPT_FILENAME", &file)];
        peer.send(&accelerator.request_with(1, &pairs));
        let reply = peer.reply(1);
        assert_eq!(reply.status(), status, "{method}");
        let allows = reply.text().contains("\r\nAllow: GET, HEAD, POST\r\n");
        assert_eq!(allows, status == 405, "{method}");
    }
}

#[test]
fn nonsense_ends_its_connection_and_nothing_else() {
    let accelerator = Accelerator::start(&[]);
    accelerator.tree.write("www/a", "text");
    let mut unsound = begin(1, 1, 1);
    unsound.extend(fastcgi_record(
        PARAMS,
        1,
        b"\xff\xff\xff\xff\xff\xff\xff\xffx",
    ));
    unsound.extend(fastcgi_record(PARAMS, 1, b""));
    let nonsense: [&[u8]; 4] = [b"GET / HTTP/1.1\r\n\r\n", &[0; 64], &[0xff; 64], &unsound];
    for bytes in nonsense {
        let mut peer = accelerator.connect();
        peer.send(bytes);
        assert!(peer.is_closed(), "{}", bytes.escape_ascii());
    }
    // An endless stream of pairs.
    let mut peer = accelerator.connect();
    let mut records = begin(1, 1, 1);
    for _ in 0..8 {
        records.extend(fastcgi_record(PARAMS, 1, &[0; 60_000]));
    }
    peer.send(&records);
    peer.send(&fastcgi_record(PARAMS, 1, b""));
    peer.send(&stdin(1, b""));
    assert_eq!(peer.reply(1).status(), 431);
    // Half a request.
    drop({
        let mut peer = accelerator.connect();
        peer.send(&accelerator.request(1, "a")[..30]);
        peer
    });
    assert_eq!(accelerator.ask("a").text(), accelerator.naming("a"));
    let closed = |line: &&str| line.contains("a connection is closed, the web server sent ");
    let log = || accelerator.log().lines().filter(closed).count();
    assert!(eventually(|| log() >= 4), "{}", accelerator.log());
}
