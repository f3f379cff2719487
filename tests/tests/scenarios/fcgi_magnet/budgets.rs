//! Scripts that do not end, use too much or print too much.

use std::io::Read;
use std::time::{Duration, Instant};

use petrel_tests::fastcgi::STDOUT;
use petrel_tests::{Magnet, ProcessTree, SOON};

const SCRIPTS: &[(&str, &str)] = &[
    (
        "loop.lua",
        "print('x') while true do pcall(function() while true do end end) end",
    ),
    (
        "grow.lua",
        "local t = {} while true do t[#t + 1] = ('x'):rep(1000) .. #t end",
    ),
    ("recursion.lua", "local function f() return 1 + f() end f()"),
    ("tick.lua", "petrel.sleep(0.01) print('tick')"),
    ("sleep.lua", "petrel.sleep(300)"),
    (
        "much.lua",
        "local s = ('x'):rep(65536) for i = 1, 4096 do print(s) end",
    ),
    ("cut.lua", "print(('x'):rep(100000)) flush() error('oh')"),
];

#[test]
fn endless_scripts_are_stopped_and_others_go_on() {
    let magnet = Magnet::start(SCRIPTS, &["--max-run-time", "10"]);
    let mut peer = magnet.connect();
    for round in 0..5 {
        let mut records = magnet.request(1, "tick.lua", &[], b"");
        records.extend(magnet.request(2, "loop.lua", &[], b""));
        records.extend(magnet.request(3, "tick.lua", &[], b""));
        let begin = Instant::now();
        peer.send(&records);
        let replies = peer.replies(&[1, 2, 3]);
        // The script gets 10 ms of processor time, which may take longer on a busy machine.
        assert!(begin.elapsed() < SOON, "round {round}");
        for (reply, id) in replies {
            match id {
                2 => {
                    assert_eq!(reply.status(), 500);
                    let named = reply
                        .log
                        .contains("www/loop.lua: stopped, it ran for more than 10 ms");
                    assert!(named, "{}", reply.log);
                }
                _ => assert_eq!(reply.body(), "tick"),
            }
        }
    }
}

#[test]
fn memory_and_recursion_have_ends() {
    let magnet = Magnet::start(
        SCRIPTS,
        &["--max-run-memory", "16", "--max-run-time", "5000"],
    );
    let reply = magnet.get("grow.lua");
    assert_eq!(reply.status(), 500);
    assert!(reply.log.contains("more than 16 MiB"), "{}", reply.log);
    let reply = magnet.get("recursion.lua");
    assert_eq!(reply.status(), 500);
    assert!(reply.log.contains("stack overflow"), "{}", reply.log);
    assert_eq!(magnet.get("tick.lua").body(), "tick");
}

#[test]
fn requests_have_a_time() {
    let magnet = Magnet::start(SCRIPTS, &["--max-request-time", "1"]);
    let begin = Instant::now();
    let reply = magnet.get("sleep.lua");
    assert_eq!(reply.status(), 504);
    assert!(reply.log.contains("longer than 1 s"), "{}", reply.log);
    assert!(begin.elapsed() < SOON);
}

#[test]
fn what_is_printed_waits_for_the_web_server_to_read() {
    // How long a piece takes depends on the machine's memory, and is not asked here.
    let magnet = Magnet::start(SCRIPTS, &["--max-run-time", "5000"]);
    let mut peer = magnet.connect();
    peer.send(&magnet.request(1, "much.lua", &[], b""));
    std::thread::sleep(Duration::from_millis(500));
    let memory = ProcessTree::of(magnet.child.id()).private_dirty_bytes();
    assert!(memory < 64 << 20, "{memory}");
    let mut length = 0;
    while let Some(record) = peer.record() {
        match record.kind {
            STDOUT => length += record.content.len(),
            _ => break,
        }
    }
    let head = "Content-Type: text/html\r\n\r\n".len();
    assert_eq!(length, head + 65_536 * 4096);
    assert_eq!(magnet.get("tick.lua").body(), "tick");
}

#[test]
fn a_client_that_goes_in_the_middle_of_an_answer_is_forgotten() {
    let magnet = Magnet::start(SCRIPTS, &[]);
    for _ in 0..20 {
        let mut peer = magnet.connect();
        peer.send(&magnet.request(1, "much.lua", &[], b""));
        let mut some = [0; 100_000];
        peer.stream.read_exact(&mut some).expect("it answers");
    }
    let memory = ProcessTree::of(magnet.child.id()).private_dirty_bytes();
    assert!(memory < 64 << 20, "{memory}");
    assert_eq!(magnet.get("tick.lua").body(), "tick");
}

#[test]
fn an_answer_that_ends_in_the_middle_is_told_so() {
    let magnet = Magnet::start(SCRIPTS, &[]);
    let reply = magnet.get("cut.lua");
    assert_eq!(reply.end, None);
    assert!(reply.log.contains("cut.lua:1: oh"), "{}", reply.log);
    let mut peer = magnet.connect();
    let mut records = magnet.request(1, "sleep.lua", &[], b"");
    records.extend(magnet.request(2, "cut.lua", &[], b""));
    peer.send(&records);
    assert_eq!(
        peer.reply(2).end,
        Some((1, 0)),
        "others share the connection"
    );
}
