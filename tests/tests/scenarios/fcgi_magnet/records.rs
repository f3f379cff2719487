//! The protocol: persistent connections, several requests at the same time, everything a web server may ask.

use std::time::{Duration, Instant};

use petrel_tests::fastcgi::{
    ABORT_REQUEST, GET_VALUES, GET_VALUES_RESULT, UNKNOWN_TYPE, begin, params_of, stdin,
};
use petrel_tests::{Magnet, SOON, fastcgi_record};

const SCRIPTS: &[(&str, &str)] = &[
    ("id.lua", "print(env.N)"),
    ("slow.lua", "petrel.sleep(tonumber(env.N)) print(env.N)"),
    (
        "twice.lua",
        "print(1) flush() while not petrel.dict('d'):get('seen') do petrel.sleep(0.01) end print(2)",
    ),
    ("seen.lua", "petrel.dict('d'):set('seen', 1) print('seen')"),
];

#[test]
fn a_connection_is_kept_only_when_asked_for() {
    let magnet = Magnet::start(SCRIPTS, &[]);
    let mut peer = magnet.connect();
    for number in 1..=100 {
        let text = number.to_string();
        peer.send(&magnet.request(number, "id.lua", &[("N", &text)], b""));
        assert_eq!(peer.reply(number).body(), text);
    }
    let file = magnet.path("www/id.lua");
    let params = params_of(1, &[("SCRIPT_FILENAME", &file), ("N", "x")]);
    peer.send(&[begin(1, 1, 0), params, stdin(1, b"")].concat());
    assert_eq!(peer.reply(1).body(), "x");
    assert!(peer.is_closed());
}

#[test]
fn requests_on_one_connection_do_not_wait_for_each_other() {
    let magnet = Magnet::start(SCRIPTS, &[]);
    let mut peer = magnet.connect();
    let begin = Instant::now();
    let mut records = Vec::new();
    for (id, time) in [(1, "4"), (2, "2"), (3, "0")] {
        records.extend(magnet.request(id, "slow.lua", &[("N", time)], b""));
    }
    peer.send(&records);
    let replies = peer.replies(&[1, 2, 3]);
    let order: Vec<u16> = replies.iter().map(|(_, id)| *id).collect();
    assert_eq!(order, [3, 2, 1]);
    let took = begin.elapsed();
    assert!(
        took >= Duration::from_millis(3_990) && took < SOON,
        "{took:?}"
    );
    let bodies: Vec<String> = replies.iter().map(|(reply, _)| reply.body()).collect();
    assert_eq!(bodies, ["0", "2", "4"]);
}

#[test]
fn records_may_come_in_any_pieces() {
    let magnet = Magnet::start(SCRIPTS, &[]);
    let mut peer = magnet.connect();
    let all = [
        magnet.request(1, "id.lua", &[("N", "one")], b"body"),
        fastcgi_record(GET_VALUES, 0, b"\x0f\0FCGI_MPXS_CONNS"),
        magnet.request(2, "id.lua", &[("N", "two")], b""),
    ]
    .concat();
    for byte in all {
        peer.send(&[byte]);
    }
    let mut replies = peer.replies(&[1, 2]);
    replies.sort_by_key(|(_, id)| *id);
    let bodies: Vec<String> = replies.iter().map(|(reply, _)| reply.body()).collect();
    assert_eq!(bodies, ["one", "two"]);
    let values = &peer.management[0];
    assert_eq!(values.kind, GET_VALUES_RESULT);
    assert_eq!(values.content, b"\x0f\x01FCGI_MPXS_CONNS1");
}

#[test]
fn answers_are_sent_as_they_are_flushed() {
    let magnet = Magnet::start(SCRIPTS, &[]);
    let mut peer = magnet.connect();
    peer.send(&magnet.request(1, "twice.lua", &[], b""));
    let first = peer.record().expect("a record");
    assert!(first.content.ends_with(b"\r\n\r\n1"), "{first:?}");
    assert_eq!(magnet.get("seen.lua").body(), "seen");
    let second = peer.record().expect("another");
    assert_eq!(second.content, b"2");
}

#[test]
fn an_abort_ends_the_script() {
    let magnet = Magnet::start(
        &[
            (
                "wait.lua",
                "petrel.sleep(3) petrel.dict('d'):set('done', 1)",
            ),
            ("done.lua", "print(petrel.dict('d'):get('done'))"),
            ("id.lua", "print('x')"),
        ],
        &[],
    );
    let mut peer = magnet.connect();
    peer.send(&magnet.request(1, "wait.lua", &[], b""));
    peer.send(&magnet.request(2, "id.lua", &[], b""));
    assert_eq!(peer.reply(2).body(), "x");
    peer.send(&fastcgi_record(ABORT_REQUEST, 1, b""));
    let reply = peer.reply(1);
    assert_eq!(
        (reply.end, reply.output.as_slice()),
        (Some((0, 0)), &b""[..])
    );
    // The id can be used again, and an abort of an unknown request is ignored.
    peer.send(&fastcgi_record(ABORT_REQUEST, 7, b""));
    peer.send(&magnet.request(1, "id.lua", &[], b""));
    assert_eq!(peer.reply(1).body(), "x");
    std::thread::sleep(Duration::from_millis(3200));
    assert_eq!(magnet.get("done.lua").body(), "nil");
}

#[test]
fn a_web_server_that_goes_ends_its_scripts() {
    let magnet = Magnet::start(
        &[
            (
                "wait.lua",
                "petrel.sleep(3) petrel.dict('d'):set('done', 1)",
            ),
            ("done.lua", "print(petrel.dict('d'):get('done'))"),
        ],
        &[],
    );
    let mut peer = magnet.connect();
    peer.send(&magnet.request(1, "wait.lua", &[], b""));
    std::thread::sleep(Duration::from_millis(100));
    drop(peer);
    std::thread::sleep(Duration::from_millis(3200));
    assert_eq!(magnet.get("done.lua").body(), "nil");
}

#[test]
fn values_are_told() {
    let magnet = Magnet::start(SCRIPTS, &["--workers", "2"]);
    let mut peer = magnet.connect();
    let asked = b"\x0e\0FCGI_MAX_CONNS\x0d\0FCGI_MAX_REQS\x05\0OTHER";
    peer.send(&fastcgi_record(GET_VALUES, 0, asked));
    let values = peer.record().expect("a record");
    let expected = b"\x0e\x04FCGI_MAX_CONNS2048\x0d\x04FCGI_MAX_REQS8192";
    assert_eq!(
        (values.kind, values.content.as_slice()),
        (GET_VALUES_RESULT, &expected[..])
    );
    peer.send(&fastcgi_record(99, 0, b"?"));
    let unknown = peer.record().expect("a record");
    assert_eq!((unknown.kind, unknown.content[0]), (UNKNOWN_TYPE, 99));
}

#[test]
fn other_roles_are_refused() {
    let magnet = Magnet::start(SCRIPTS, &[]);
    for role in [0, 2, 3, 500] {
        let mut peer = magnet.connect();
        peer.send(&[begin(1, role, 1), params_of(1, &[]), stdin(1, b"")].concat());
        let reply = peer.reply(1);
        assert_eq!((reply.end, reply.output.len()), (Some((0, 3)), 0), "{role}");
        peer.send(&magnet.request(2, "id.lua", &[("N", "x")], b""));
        assert_eq!(peer.reply(2).body(), "x");
    }
}

#[test]
fn too_many_requests_are_told_so() {
    let magnet = Magnet::start(SCRIPTS, &[]);
    let mut peer = magnet.connect();
    for id in 1..=129 {
        peer.send(&magnet.request(id, "slow.lua", &[("N", "3")], b""));
    }
    let ids: Vec<u16> = (1..=129).collect();
    let replies = peer.replies(&ids);
    let (refused, id) = &replies[0];
    assert_eq!((refused.end, *id), (Some((0, 2)), 129));
    assert!(replies[1..].iter().all(|(reply, _)| reply.body() == "3"));
}
