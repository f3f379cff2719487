//! What a warm request costs `petrel fcgi-magnet`: one read and one write.

use petrel_tests::{Magnet, Tracer};

use crate::alone;

const REQUESTS: u64 = 500;

#[test]
fn a_warm_request_takes_one_receive_and_one_send() {
    let _alone = alone();
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
