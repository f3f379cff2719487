//! Reload and stop while files hang.

use std::time::Duration;

use petrel_tests::{Client, Operation, PATIENCE, eventually};
use rustix::process::Signal;

use super::failures::{LARGE, begun};
use super::{asking, content, expect_others_served, site};

/// Expects that connections are refused. A thread that waits in the kernel for a FUSE file system can be
/// released only by that file system, and its process stays with it. That process must not keep listening.
#[track_caller]
fn expect_refused(server: &petrel_tests::Server, within: &str) {
    let refused = || Client::try_connect(server.address()).is_err();
    assert!(eventually(refused), "{within}: it still accepts");
}

/// It takes so long because a process that waits for the disk cannot end, and the keeper waits some seconds for it.
#[test]
fn a_stop_does_not_wait_for_a_disk() {
    let test = "a_stop_does_not_wait_for_a_disk";
    for (signal, timeout) in [(Signal::TERM, 60), (Signal::INT, 2)] {
        let config =
            format!("server.feature-flags = (\"server.graceful-shutdown-timeout\" => {timeout})");
        let large = content(LARGE);
        let files: [(&str, &[u8]); 2] = [("one.txt", b"1"), ("large.bin", &large)];
        let Some((mut server, slow)) = site(test, &files, &config) else {
            return;
        };
        let body = begun(&server);
        slow.hang_on(&[Operation::Lookup, Operation::Read]);
        let mut client = asking(&server, "/slow/one.txt");
        slow.expect_hanging(1);
        expect_others_served(&server);
        server.signal(signal);
        expect_refused(&server, &format!("{signal:?}"));
        // The client gets an answer or the end of the connection, without the disk.
        let answer = client.try_response();
        assert!(
            answer.as_ref().map_or(true, |answer| answer.status >= 500),
            "{answer:?}"
        );
        drop(body);
        let ended = server.wait(PATIENCE);
        slow.release();
        assert!(
            ended.is_some_and(|status| status.success()),
            "{signal:?}: {ended:?}"
        );
    }
}

#[test]
fn a_graceful_stop_answers_a_request_once_its_disk_does() {
    let test = "a_graceful_stop_answers_a_request_once_its_disk_does";
    let Some((mut server, slow)) = site(test, &[("one.txt", b"1")], "") else {
        return;
    };
    slow.hang();
    let mut client = asking(&server, "/slow/one.txt");
    slow.expect_hanging(1);
    server.signal(Signal::INT);
    expect_refused(&server, "graceful");
    slow.release();
    // A graceful stop answers requests that arrived before.
    assert_eq!(client.response().text(), "1");
    let ended = server.wait(PATIENCE);
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

#[test]
fn a_reload_does_not_wait_for_a_disk() {
    let test = "a_reload_does_not_wait_for_a_disk";
    let config = "server.max-file-wait = 300";
    let Some((server, slow)) = site(test, &[("one.txt", b"1")], config) else {
        return;
    };
    slow.hang();
    let mut client = asking(&server, "/slow/one.txt");
    slow.expect_hanging(1);
    for round in 0..3 {
        server.write_configuration(&format!("server.max-worker = 1\nserver.tag = \"{round}\""));
        server.signal(Signal::USR1);
        let tag = round.to_string();
        assert!(eventually(
            || server.get("/hot.txt").field("Server") == Some(&tag)
        ));
        expect_others_served(&server);
    }
    slow.release();
    assert_eq!(client.response().text(), "1");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.get("/slow/one.txt").text(), "1");
}
