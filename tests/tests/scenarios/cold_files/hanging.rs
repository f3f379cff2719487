//! A file system that does not answer: requests for it get 504, and other requests are no slower.

use std::time::Duration;

use petrel_tests::{Client, Operation, Server, SlowFs, eventually};
use rustix::mount::UnmountFlags;

use super::failures::{LARGE, begun, expect_named};
use super::{
    asking, content, expect_holdings, expect_others_served, impatient, reading_elsewhere, site,
    threads,
};

/// Seconds in which even a slow machine begins all allowed jobs, and sends the beginning of a body.
pub(super) const WAIT_S: u32 = 5;

#[track_caller]
fn expect_504(clients: Vec<Client>) {
    for mut client in clients {
        let response = client.response();
        assert_eq!(response.status, 504, "{response}");
    }
}

/// It takes so long because three servers start, and each waits one to two seconds for the disk.
#[test]
fn a_path_that_hangs_is_504_and_delays_no_other_request() {
    let test = "a_path_that_hangs_is_504_and_delays_no_other_request";
    for operation in [Operation::Lookup, Operation::Open, Operation::Read] {
        let Some((server, slow)) = site(test, &[("one.txt", b"1")], &impatient(1)) else {
            return;
        };
        slow.hang_on(&[operation]);
        let clients = vec![
            asking(&server, "/slow/one.txt"),
            asking(&server, "/slow/one.txt"),
        ];
        slow.expect_hanging(1);
        for _ in 0..5 {
            expect_others_served(&server);
        }
        expect_504(clients);
        server.expect_log("server.max-file-wait");
        let log = server.log();
        let line = log
            .lines()
            .find(|line| line.contains("server.max-file-wait"));
        assert!(
            line.is_some_and(|line| line.contains("www/slow/one.txt\"")),
            "{log}"
        );
        expect_others_served(&server);
        slow.release();
        assert_eq!(server.get("/slow/one.txt").text(), "1", "{operation:?}");
    }
}

/// It takes so long because each of six network backends waits five seconds for the disk, behind a pause of two.
#[test]
fn a_body_that_hangs_is_broken_off() {
    let test = "a_body_that_hangs_is_broken_off";
    for backend in reading_elsewhere() {
        let config = impatient(WAIT_S) + &format!("server.network-backend = \"{backend}\"");
        let Some((server, slow)) = site(test, &[("large.bin", &content(LARGE))], &config) else {
            return;
        };
        // Now everything that the backend needs has been looked up.
        assert!(server.get("/slow/large.bin").body == content(LARGE));
        // After this the server's cache has forgotten the file.
        std::thread::sleep(std::time::Duration::from_millis(2100));
        expect_others_served(&server);
        let before = server.holdings();
        let cut = begun(&server);
        slow.hang_on(&[Operation::Read]);
        cut.expect_cut_short(backend);
        expect_named(&server, "large.bin");
        expect_others_served(&server);
        slow.release();
        expect_holdings(&server, &before, |_| false, backend);
    }
}

/// It takes so long because the server waits for the disk twice, five seconds each.
#[test]
fn what_is_compressed_from_a_file_that_hangs_is_given_up_in_time() {
    let test = "what_is_compressed_from_a_file_that_hangs_is_given_up_in_time";
    let (large, medium) = (content(LARGE), content(400_000));
    let files: [(&str, &[u8]); 2] = [("large.txt", &large), ("medium.txt", &medium)];
    let config = "server.modules += ( \"mod_deflate\" )\n\
        deflate.mimetypes = ( \"text/plain\" )\n\
        deflate.allowed-encodings = ( \"gzip\" )\n";
    let config = format!("{config}{}", impatient(WAIT_S));
    let Some((server, slow)) = site(test, &files, &config) else {
        return;
    };
    let ask = |name: &str| {
        let mut client = server.client().with_receive_buffer(64 * 1024);
        client.send(format!(
            "GET /slow/{name} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n"
        ));
        client
    };
    // It is compressed while it is sent, and breaks off.
    let mut client = ask("large.txt");
    let begin = client.read_bytes(100_000);
    let begin = String::from_utf8_lossy(&begin);
    assert!(begin.contains("Content-Encoding: gzip\r\n"), "{begin}");
    slow.hang_on(&[Operation::Read]);
    client.read_to_end();
    server.expect_log("server.max-file-wait");
    let log = server.log();
    let line = log.lines().find(|line| line.contains("max-file-wait"));
    assert!(
        line.is_some_and(|line| line.contains("www/slow/large.txt\"")),
        "{log}"
    );
    expect_others_served(&server);
    slow.release();
    // It is sent after it was compressed, so there is still time for an error status. Whether its existence
    // and its first bytes are known, or that hangs as well, depends on the time.
    assert_eq!(server.get("/slow/medium.txt").status, 200);
    drop(std::fs::File::open(
        server.tree().path("www/slow/medium.txt"),
    ));
    slow.hang_on(&[Operation::Read]);
    let response = ask("medium.txt").response();
    assert_eq!(response.status, 504, "{response}");
    slow.release();
}

/// Many files, to make all jobs hang that may run on their file system.
fn crowd() -> Vec<String> {
    (0..200).map(|number| format!("{number}.txt")).collect()
}

fn crowded_site(test: &str, config: &str) -> Option<(Server, SlowFs)> {
    let names = crowd();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"1"[..])).collect();
    site(test, &files, config)
}

/// It takes the five seconds that the server waits for a disk that hangs.
#[test]
fn many_paths_that_hang_leave_room_for_other_file_systems() {
    let test = "many_paths_that_hang_leave_room_for_other_file_systems";
    let Some((server, slow)) = crowded_site(test, &impatient(WAIT_S)) else {
        return;
    };
    let other = server.tree().path("www/other");
    server.tree().write("www/other/b.txt", "b");
    let Some(other) = SlowFs::mount_or_skip(test, &other) else {
        return;
    };
    expect_others_served(&server);
    let before = threads(&server);
    slow.hang();
    let ask = |name: &String| asking(&server, &format!("/slow/{name}"));
    let clients: Vec<Client> = crowd().iter().map(ask).collect();
    slow.expect_hanging(16);
    expect_others_served(&server);
    assert_eq!(server.get("/other/b.txt").text(), "b");
    assert!(other.total() > 0);
    let hanging = slow.hanging();
    let added = threads(&server).saturating_sub(before);
    // server.max-stat-threads, and one thread for each file that is read.
    assert!(
        hanging <= 16 && added <= 80,
        "{hanging} hang, {added} threads"
    );
    expect_504(clients);
    expect_others_served(&server);
    slow.release();
    assert_eq!(server.get("/slow/7.txt").text(), "1");
}

/// It takes so long because clients wait for the disk three times, five seconds each.
#[test]
fn symlinks_into_a_file_system_that_hangs_are_told_from_the_local_one() {
    let test = "symlinks_into_a_file_system_that_hangs_are_told_from_the_local_one";
    let Some((server, slow)) = crowded_site(test, &impatient(WAIT_S)) else {
        return;
    };
    let tree = server.tree();
    tree.directory("www/slow/inner");
    for name in crowd() {
        tree.write(&format!("www/slow/inner/{name}"), "inner");
        tree.symlink(format!("slow/{name}"), &format!("www/link-{name}"));
    }
    tree.symlink("slow", "www/whole")
        .symlink("slow/inner", "www/inner");
    for (way, expected) in [("/link-", "1"), ("/whole/", "1"), ("/inner/", "inner")] {
        assert_eq!(server.get(&format!("{way}199.txt")).text(), expected);
        // Not on `Close`: when another test mounts something, the server forgets its files and closes them.
        slow.hang_on(&[Operation::Lookup, Operation::ReadLink, Operation::Open]);
        let ask = |name: &String| asking(&server, &format!("{way}{name}"));
        let clients: Vec<Client> = crowd().iter().take(199).map(ask).collect();
        slow.expect_hanging(1);
        // What the kernel does not have cached of the local file system must not wait behind the hanging
        // jobs.
        for _ in 0..3 {
            expect_others_served(&server);
            expect_uncached_served(&server);
        }
        assert!(slow.hanging() <= 17, "{way}: {} hang", slow.hanging());
        expect_504(clients);
        slow.release();
        assert!(eventually(
            || server.get(&format!("{way}5.txt")).text() == expected
        ));
    }
}

#[test]
fn symlinks_within_a_file_system_that_hangs_are_not_read_by_the_worker() {
    let test = "symlinks_within_a_file_system_that_hangs_are_not_read_by_the_worker";
    let files: [(&str, &[u8]); 1] = [("app/release/one.txt", b"1")];
    let Some((server, slow)) = site(test, &files, &impatient(1)) else {
        return;
    };
    let link = slow.beneath().join("app/current");
    std::os::unix::fs::symlink("release", link).expect("symlink");
    server.tree().symlink("slow/app", "www/app");
    slow.keep_names();
    // The kernel now knows the path, except for the symlink's target, which it reads each time.
    assert_eq!(server.get("/app/current/one.txt").text(), "1");
    slow.hang_on(&[Operation::ReadLink]);
    let clients = vec![
        asking(&server, "/app/current/two.txt"),
        asking(&server, "/app/current/three.txt"),
    ];
    slow.expect_hanging(1);
    for _ in 0..3 {
        expect_others_served(&server);
        expect_uncached_served(&server);
    }
    expect_504(clients);
    slow.release();
    assert_eq!(server.get("/app/current/one.txt").text(), "1");
}

/// Expects that a file is served which was never looked up. The kernel does not have it cached, so it needs a
/// thread.
#[track_caller]
fn expect_uncached_served(server: &Server) {
    let number = server.tree().names("www").len();
    assert_eq!(server.get(&format!("/none-{number}")).status, 404);
}

/// It takes so long because the server must forget the files three times, which takes two seconds each.
#[test]
fn closing_a_file_of_a_file_system_that_hangs_delays_no_request() {
    let test = "closing_a_file_of_a_file_system_that_hangs_delays_no_request";
    let large = content(100_000);
    let Some((server, slow)) = site(test, &[("a.bin", &large), ("b.bin", &large)], "") else {
        return;
    };
    for round in 0..3 {
        // When the file is looked up again, the old descriptor is closed.
        slow.hang_on(&[Operation::Close]);
        assert!(server.get("/slow/a.bin").body == large, "{round}");
        assert!(server.get("/slow/b.bin").body == large, "{round}");
        expect_others_served(&server);
        std::thread::sleep(std::time::Duration::from_millis(2100));
    }
    slow.expect_hanging(2);
    expect_others_served(&server);
    slow.release();
    assert!(server.get("/slow/a.bin").body == large);
}

/// It takes so long because each of twenty rounds waits until the server holds the same for a moment.
#[test]
fn coming_and_going_takes_one_thread_of_a_path_that_hangs() {
    let test = "coming_and_going_takes_one_thread_of_a_path_that_hangs";
    let files: [(&str, &[u8]); 2] = [("one.txt", b"1"), ("other.txt", b"2")];
    let Some((server, slow)) = site(test, &files, "") else {
        return;
    };
    expect_others_served(&server);
    let sockets = || server.holdings().descriptors.get("socket").copied();
    let (before, threads_before) = (sockets(), threads(&server));
    slow.hang_below("one.txt");
    // More rounds than there may be jobs for this file system. They may take ten seconds, after which a
    // second job is begun, but no third one.
    for round in 0..20 {
        let client = asking(&server, "/slow/one.txt");
        assert!(eventually(|| slow.hanging() >= 1), "{round}: {slow:?}");
        assert_eq!(server.get("/hot.txt").text(), "hot");
        client.abort();
        assert!(eventually(|| sockets() == before), "{round}");
    }
    let added = threads(&server).saturating_sub(threads_before);
    assert_eq!(server.get("/slow/other.txt").text(), "2");
    assert!(
        slow.hanging() <= 2 && added <= 2,
        "{added} threads: {slow:?}"
    );
    let mut last = asking(&server, "/slow/one.txt");
    expect_others_served(&server);
    slow.release();
    assert_eq!(last.response().text(), "1");
}

#[test]
fn a_path_recovers_when_another_file_system_is_mounted() {
    let test = "a_path_recovers_when_another_file_system_is_mounted";
    let Some((server, slow)) = site(test, &[("one.txt", b"1")], "") else {
        return;
    };
    expect_others_served(&server);
    slow.hang();
    let stuck = asking(&server, "/slow/one.txt");
    slow.expect_hanging(1);
    let directory = server.tree().path("www/slow");
    rustix::mount::unmount(&directory, UnmountFlags::DETACH).expect("it was mounted");
    let Some(_replacement) = SlowFs::mount_or_skip(test, &directory) else {
        return;
    };
    // There is always a client that waits for the first job.
    let mut waiting = vec![stuck];
    let is_answered = eventually(|| {
        let mut client = asking(&server, "/slow/one.txt").with_patience(Duration::from_millis(200));
        match client.try_response() {
            Ok(response) => {
                assert_eq!(response.text(), "1");
                true
            }
            Err(_) => {
                waiting.push(client);
                false
            }
        }
    });
    assert!(is_answered, "{} wait: {slow:?}", waiting.len());
    assert_eq!(slow.hanging(), 1);
    expect_others_served(&server);
    slow.release();
}
