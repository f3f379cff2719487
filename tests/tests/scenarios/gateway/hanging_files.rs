//! Backends name files on a disk that hangs: only requests for such files wait and get an error.

use std::time::Duration;

use petrel_tests::{Backend, Client, Operation, Server, SlowFs, Speaks, eventually};

use crate::gateway::{COUNTERS, in_flight, in_front_of_with};

/// A backend that replies with the field and value in the query.
fn offloading() -> Backend {
    Backend::start(Speaks::Scgi, |exchange| {
        let target = exchange.target().to_owned();
        let (_, query) = target.split_once('?').unwrap_or_default();
        let (field, value) = query.split_once('=').unwrap_or_default();
        let value = value.replace("%20", " ");
        exchange.answer(200, &[(field, &value), ("X-Own", "1")], "inline");
    })
}

/// A server whose directory for such files is on a file system that hangs when a test asks for it. It has the
/// directory `named`, and the symlink `way` leads there. Drop the last part of the tuple first.
fn site(test: &str, backend: &Backend, config: &str) -> Option<(Server, SlowFs)> {
    let options =
        "\"x-sendfile\" => \"enable\", \"x-sendfile-docroot\" => ( var.dir + \"/slow\" ), ";
    let mut slow = None;
    let server = in_front_of_with(backend, options)
        .file("slow/named/a.txt", "content")
        .tree(|tree| {
            tree.symlink("named", "slow/way");
            slow = SlowFs::mount_or_skip(test, &tree.path("slow"));
        })
        .config("server.upload-dirs = ( var.dir + \"/slow/named\" )")
        .config(config);
    let slow = slow?;
    Some((server.start(), slow))
}

/// Requests of [`ask`] wait one second, all others a minute.
const IMPATIENT: &str = "$HTTP[\"host\"] == \"a\" { server.max-file-wait = 1 }";

/// Requests the file that the field names.
fn ask(server: &Server, field: &str, name: &str, range: &str) -> Client {
    let path = server.tree().path("slow").join(name);
    let mut client = server.client();
    client.send(format!(
        "GET /app/?{field}={}{range} HTTP/1.1\r\nHost: a\r\n\r\n",
        path.display()
    ));
    client
}

/// Expects that the only worker serves other requests, including those that need the backend.
#[track_caller]
fn expect_others_served(server: &Server) {
    for _ in 0..3 {
        assert_eq!(server.get("/").text(), "hello");
        assert_eq!(server.get("/app/?X-Other=1").text(), "inline");
    }
}

const FIELDS: [(&str, &str); 3] = [
    ("X-Sendfile", ""),
    ("X-LIGHTTPD-send-file", ""),
    ("X-Sendfile2", "%200-2"),
];

/// It takes so long because the server waits for the disk four times, one to two seconds each.
#[test]
fn who_asks_for_a_file_on_a_disk_that_hangs_is_told_in_time() {
    let backend = offloading();
    let test = "who_asks_for_a_file_on_a_disk_that_hangs_is_told_in_time";
    let Some((server, slow)) = site(test, &backend, IMPATIENT) else {
        return;
    };
    for (field, range) in FIELDS.into_iter().chain([("X-LIGHTTPD-send-tempfile", "")]) {
        slow.hang();
        let mut client = ask(&server, field, "named/a.txt", range);
        slow.expect_hanging(1);
        expect_others_served(&server);
        backend.expect_open_connections(0);
        let answer = client.response();
        assert_eq!(answer.status, 504, "{field}: {answer}");
        assert_eq!(answer.field("X-Own"), None, "{answer}");
        server.expect_log("server.max-file-wait");
        server.expect_log("slow/named/a.txt");
        slow.release();
    }
    // The temporary file is removed although its client has left.
    let named = slow.beneath().join("named");
    assert!(eventually(|| !named.join("a.txt").exists()));
}

#[test]
fn a_disk_that_answers_late_is_waited_for() {
    let backend = offloading();
    let test = "a_disk_that_answers_late_is_waited_for";
    let Some((server, slow)) = site(test, &backend, "server.stat-cache-engine = \"disable\"")
    else {
        return;
    };
    // The target of the symlink needs a lookup of its own.
    for (operation, name) in [
        (Operation::Lookup, "named/a.txt"),
        (Operation::ReadLink, "way/a.txt"),
        (Operation::Open, "way/a.txt"),
    ] {
        for (field, range) in FIELDS {
            slow.hang_on(&[operation]);
            let mut client = ask(&server, field, name, range);
            slow.expect_hanging(1);
            expect_others_served(&server);
            slow.release();
            let answer = client.response();
            let expected = if range.is_empty() { "content" } else { "con" };
            assert_eq!(
                (answer.status, answer.text().as_str()),
                (200, expected),
                "{operation:?} {field}: {answer}"
            );
            assert_eq!(answer.field("X-Own"), Some("1"), "{answer}");
        }
    }
}

#[test]
fn a_temporary_file_has_lost_its_name_before_it_is_sent() {
    let backend = offloading();
    let test = "a_temporary_file_has_lost_its_name_before_it_is_sent";
    let Some((server, slow)) = site(test, &backend, "") else {
        return;
    };
    slow.hang_on(&[Operation::Remove]);
    let mut client = ask(&server, "X-LIGHTTPD-send-tempfile", "named/a.txt", "");
    slow.expect_hanging(1);
    expect_others_served(&server);
    client.expect_silence(Duration::from_millis(100));
    slow.release();
    assert_eq!(client.response().text(), "content");
    assert!(!slow.beneath().join("named/a.txt").exists());
    // A temporary file for which no client waits any more is removed, too.
    std::fs::write(slow.beneath().join("named/b.txt"), "b").expect("it can be written");
    // The close of the previous file must not hang.
    slow.hang_on(&[Operation::Lookup, Operation::Open]);
    let client = ask(&server, "X-LIGHTTPD-send-tempfile", "named/b.txt", "");
    slow.expect_hanging(1);
    client.abort();
    expect_others_served(&server);
    slow.release();
    let left = slow.beneath().join("named/b.txt");
    assert!(eventually(|| !left.exists()));
}

#[test]
fn a_temporary_file_behind_a_symlink_counts_where_it_is() {
    let backend = offloading();
    let test = "a_temporary_file_behind_a_symlink_counts_where_it_is";
    let config = format!("server.upload-dirs += ( var.dir + \"/linked\" )\n{COUNTERS}");
    let Some((server, slow)) = site(test, &backend, &config) else {
        return;
    };
    server.tree().symlink("slow/named", "linked");
    let path = server.tree().path("linked/a.txt");
    let in_flight = in_flight(&server, "slow");
    slow.hang();
    let mut client = server.client();
    client.send(format!(
        "GET /app/?X-LIGHTTPD-send-tempfile={} HTTP/1.1\r\nHost: a\r\n\r\n",
        path.display()
    ));
    slow.expect_hanging(1);
    expect_others_served(&server);
    assert_eq!(in_flight(), 1);
    slow.release();
    assert_eq!(client.response().text(), "content");
}

#[test]
fn a_disk_that_fails_is_an_error_of_that_answer() {
    let backend = offloading();
    let test = "a_disk_that_fails_is_an_error_of_that_answer";
    let Some((server, slow)) = site(test, &backend, "server.stat-cache-engine = \"disable\"")
    else {
        return;
    };
    for (errno, status) in [
        (rustix::io::Errno::IO, 500),
        (rustix::io::Errno::NOMEM, 503),
        (rustix::io::Errno::ACCESS, 403),
    ] {
        slow.fail_on(&[Operation::Lookup], errno);
        let answer = ask(&server, "X-Sendfile", "named/a.txt", "").response();
        assert_eq!(answer.status, status, "{errno}: {answer}");
        slow.release();
    }
    let answer = ask(&server, "X-Sendfile", "named/a.txt", "").response();
    assert_eq!(answer.text(), "content");
}
