//! Networks that are narrow or lose packets, in a network namespace of the test's own.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::thread;

use petrel_tests::eventually;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{can_isolate, expect_holder, get, site, started};

/// A process whose network namespace the test uses.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `test` in a thread with a network of its own, whose loopback device was set up by `rules`.
fn in_network(name: &str, program: &str, rules: &'static str, test: fn()) {
    if !can_isolate(name, &["unshare", "ip", program]) {
        return;
    }
    let inside = thread::spawn(move || {
        let holder = Command::new("unshare")
            .args(["--net", "sleep", "100"])
            .stdin(Stdio::null())
            .spawn();
        let holder = Holder(holder.expect("unshare can be run"));
        let network = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let pid = holder.0.id().to_string();
        let is_apart = || network(&pid).is_some_and(|its| Some(its) != network("self"));
        assert!(eventually(is_apart), "it has no network of its own");
        let file = File::open(format!("/proc/{pid}/ns/net")).expect("the holder runs");
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("root may enter");
        let script = format!("ip link set lo up\n{rules}");
        let done = Command::new("sh").args(["-euc", &script]).status();
        assert!(done.is_ok_and(|status| status.success()), "{script}");
        test();
    });
    assert!(inside.join().is_ok(), "see above");
}

/// Fetches a file of 400 kB over the loopback device of this thread's network.
fn fetch_and_expect(words: &[&str]) {
    let server = started(site().file("www/large.bin", vec![b'x'; 400_000]));
    let mut client = server.client();
    client.send(get("/large.bin"));
    assert_eq!(client.response().body.len(), 400_000);
    expect_holder(&server, "/large.bin", "client-drain", words);
}

#[test]
fn a_narrow_network_is_told_by_the_rate_of_the_client() {
    let rules = "tc qdisc add dev lo root tbf rate 8mbit burst 70kb latency 200ms";
    in_network("a_narrow_network", "tc", rules, || {
        fetch_and_expect(&["the client took ", "kB a second (rtt "]);
    });
}

#[test]
fn a_network_that_loses_packets_is_told_by_the_loss() {
    // Each fifth packet with data is lost, on the narrow device above, so that the kernel cannot take all at
    // once.
    let rules = "tc qdisc add dev lo root tbf rate 8mbit burst 70kb latency 200ms\n\
        nft add table ip t\n\
        nft 'add chain ip t o { type filter hook output priority 0; }'\n\
        nft add rule ip t o ip length gt 200 numgen inc mod 5 == 4 drop";
    in_network("a_network_that_loses", "nft", rules, || {
        fetch_and_expect(&["the client took ", " % lost)"]);
    });
}
