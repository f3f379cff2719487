//! What a warm request costs: one read and one write.

use petrel_tests::{Tracer, eventually};

use crate::magnet::Magnet;

const REQUESTS: u64 = 500;

#[test]
fn a_warm_request_takes_one_receive_and_one_send() {
    let magnet = Magnet::start(&[("a.lua", "print('123')")], &[]);
    let mut peer = magnet.connect();
    let mut ask = |times: u64| {
        for _ in 0..times {
            peer.send(&magnet.request(1, "a.lua", &[("HTTP_HOST", "petrel.test")], b""));
            assert_eq!(peer.reply(1).body(), "123");
        }
    };
    // A file that was just written is read again for each request.
    std::thread::sleep(std::time::Duration::from_millis(100));
    ask(2);
    let tracer = Tracer::attach_to(magnet.child.id());
    ask(REQUESTS);
    let calls = tracer.stop().without_waits();
    assert_eq!(calls.count("recvfrom"), REQUESTS, "{calls:?}");
    assert_eq!(calls.count("sendto"), REQUESTS, "{calls:?}");
    let looks = calls.count("openat") + calls.count("statx") + calls.count("fstat");
    assert!(looks < 100, "a look a second: {calls:?}");
}

#[test]
fn workers_share_what_comes() {
    let script = "print(petrel.dict('d'):incr(tostring(env), 1, 0)) petrel.sleep(0.05)";
    let magnet = Magnet::start(&[("a.lua", script)], &["--workers", "4"]);
    let mut peers: Vec<_> = (0..16).map(|_| magnet.connect()).collect();
    for peer in &mut peers {
        peer.send(&magnet.request(1, "a.lua", &[], b""));
    }
    assert!(peers.iter_mut().all(|peer| peer.reply(1).body() == "1"));
    let threads = || std::fs::read_dir(format!("/proc/{}/task", magnet.child.id()));
    // The workers, the thread that waits for signals, the one that writes the log, and the watchdog.
    assert!(eventually(
        || threads().is_ok_and(|threads| threads.count() == 7)
    ));
}
