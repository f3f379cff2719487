//! Records that a web server must not send.

use petrel_tests::fastcgi::{PARAMS, STDIN, begin, params_of, stdin};
use petrel_tests::{Magnet, eventually, fastcgi_record};

fn magnet() -> Magnet {
    Magnet::start(
        &[("a.lua", "print('x')"), ("wait.lua", "petrel.sleep(30)")],
        &[],
    )
}

#[test]
fn nonsense_closes_the_connection_and_nothing_else() {
    let magnet = magnet();
    let begun = begin(1, 1, 1);
    let cases: [(&str, Vec<u8>); 10] = [
        ("HTTP", b"GET / HTTP/1.0\r\n\r\n".to_vec()),
        ("another version", [&[2u8], &begun[1..]].concat()),
        ("a short BEGIN_REQUEST", fastcgi_record(1, 1, b"\0\x01\x01")),
        ("request 0", fastcgi_record(1, 0, &[0, 1, 1, 0, 0, 0, 0, 0])),
        (
            "an id twice",
            [magnet.request(1, "wait.lua", &[], b""), begun.clone()].concat(),
        ),
        (
            "half a pair",
            [
                begun.clone(),
                fastcgi_record(PARAMS, 1, b"\x05\x05abc"),
                fastcgi_record(PARAMS, 1, b""),
            ]
            .concat(),
        ),
        (
            "a pair of 2 GiB",
            [
                begun.clone(),
                fastcgi_record(PARAMS, 1, b"\xff\xff\xff\xff\xff\xff\xff\xffabc"),
                fastcgi_record(PARAMS, 1, b""),
            ]
            .concat(),
        ),
        ("an application's record", fastcgi_record(6, 1, b"x")),
        ("a long management record", fastcgi_record(9, 0, &[0; 5000])),
        (
            "a management record of an unknown kind and too long",
            fastcgi_record(77, 0, &[0; 5000]),
        ),
    ];
    for (what, bytes) in cases {
        let mut peer = magnet.connect();
        peer.send(&bytes);
        assert!(peer.is_closed(), "{what}");
        assert_eq!(magnet.get("a.lua").body(), "x", "{what}");
    }
    let is_told = || magnet.log().contains("unknown version");
    assert!(eventually(is_told), "{}", magnet.log());
}

#[test]
fn records_of_requests_that_are_not_there_are_ignored() {
    let magnet = magnet();
    let mut peer = magnet.connect();
    peer.send(&fastcgi_record(STDIN, 5, b"body"));
    peer.send(&fastcgi_record(PARAMS, 6, b"\x01\x01ab"));
    peer.send(&fastcgi_record(8, 5, b"data"));
    peer.send(&magnet.request(1, "a.lua", &[], b""));
    assert_eq!(peer.reply(1).body(), "x");
    // Records that follow a reply belong to no request.
    peer.send(&[stdin(1, b"late"), params_of(1, &[("N", "late")])].concat());
    peer.send(&magnet.request(1, "a.lua", &[], b""));
    assert_eq!(peer.reply(1).body(), "x");
}

#[test]
fn too_many_parameters_are_refused() {
    let magnet = magnet();
    let mut peer = magnet.connect();
    let long = "x".repeat(60_000);
    let many: Vec<(&str, &str)> = (0..6).map(|_| ("LONG", long.as_str())).collect();
    peer.send(&magnet.request(1, "a.lua", &many, b""));
    let reply = peer.reply(1);
    assert_eq!(reply.status(), 431);
    assert!(reply.log.contains("too many parameters"), "{}", reply.log);
    peer.send(&magnet.request(2, "a.lua", &many[..3], b""));
    assert_eq!(peer.reply(2).body(), "x");
}

#[test]
fn questions_without_end_are_not_answered_without_end() {
    let magnet = magnet();
    let mut peer = magnet.connect();
    let question = fastcgi_record(9, 0, b"\x0f\0FCGI_MPXS_CONNS").repeat(1000);
    peer.stream
        .set_write_timeout(Some(std::time::Duration::from_millis(500)))
        .expect("set");
    let sent = (0..10_000).take_while(|_| {
        use std::io::Write;
        peer.stream.write_all(&question).is_ok()
    });
    assert!(sent.count() < 1000, "the program keeps all the answers");
    assert_eq!(magnet.get("a.lua").body(), "x");
}

#[test]
fn half_a_request_and_silence_delays_no_other_request() {
    let magnet = magnet();
    let _silent: Vec<_> = (0..50)
        .map(|_| {
            let mut peer = magnet.connect();
            peer.send(&begin(1, 1, 1)[..5]);
            peer
        })
        .collect();
    assert_eq!(magnet.get("a.lua").body(), "x");
}
