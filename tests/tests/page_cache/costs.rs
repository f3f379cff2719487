//! The system calls of a cache hit: one receive, one send.

use std::time::Duration;

use petrel_tests::Tracer;

use crate::{Counted, status};

const REQUESTS: u64 = 100;

#[test]
fn a_hit_makes_one_receive_and_one_send() {
    let counted = Counted::fresh(Duration::ZERO);
    let server = counted.cached().start();
    let mut client = server.client();
    for _ in 0..3 {
        client.get("/app/x");
    }
    let tracer = Tracer::attach(&server);
    for _ in 0..REQUESTS {
        assert_eq!(status(&client.get("/app/x")), "petrel; hit");
    }
    let calls = tracer.stop().without_waits();
    let sent = calls.count("sendto") + calls.count("writev") + calls.count("write");
    assert_eq!(sent, REQUESTS, "{calls:?}");
    // At most one more receive, which finds nothing more.
    let received = calls.count("recvfrom") + calls.count("read");
    assert!((REQUESTS..=2 * REQUESTS).contains(&received), "{calls:?}");
    let others: u64 = calls.0.values().sum::<u64>() - sent - received;
    assert!(others <= REQUESTS / 10, "{calls:?}");
    assert_eq!(counted.asked(), 1);
}
