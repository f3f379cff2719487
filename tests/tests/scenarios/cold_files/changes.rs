//! Files that change while jobs look them up or read them. Clients get the old bytes or the new ones, but
//! never a mixture that does not fit the head, and never bytes that no file had.

use engine::settings::core::NetworkBackend;
use petrel_tests::{Operation, Server, SlowFs, Tree, eventually};
use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::failures::{LARGE, begun, expect_named};
use super::{asking, content, expect_others_served, reading_elsewhere, site};

/// Where a file is truncated.
const CUT: usize = 200_000;

/// What happens to a file.
type Change = fn(&SlowFs, &str);

/// The same on file systems other than the test's own.
type TreeChange = fn(&Tree) -> &Tree;

fn truncate(slow: &SlowFs, name: &str) {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(slow.beneath().join(name));
    file.and_then(|file| file.set_len(1000)).expect("truncated");
}

fn remove(slow: &SlowFs, name: &str) {
    fs::remove_file(slow.beneath().join(name)).expect("removed");
}

fn replace(slow: &SlowFs, name: &str) {
    let new = slow.beneath().join("replacement");
    fs::write(&new, "replacement").expect("written");
    fs::rename(new, slow.beneath().join(name)).expect("renamed");
}

fn forbid(slow: &SlowFs, name: &str) {
    let mode = fs::Permissions::from_mode(0o000);
    fs::set_permissions(slow.beneath().join(name), mode).expect("chmod");
}

/// Expects the whole old file, or what is left of its beginning, or an error, or the end of the connection.
#[track_caller]
fn expect_sound(client: &mut petrel_tests::Client, what: &str) {
    let whole = content(300_000);
    match client.try_response() {
        Ok(response) if response.status == 200 => {
            let is_new = response.body == b"replacement" || response.body == whole[..1000];
            assert!(is_new || response.body == whole, "{what}: {response}");
        }
        Ok(response) => {
            assert!(
                matches!(response.status, 403 | 404 | 500),
                "{what}: {response}"
            );
        }
        Err(petrel_tests::ClientError::Truncated(begin)) => {
            let head = begin.windows(4).position(|end| end == b"\r\n\r\n");
            let body = &begin[head.expect("a head") + 4..];
            assert!(*body == whole[..body.len()], "{what}: padded");
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

#[test]
fn a_file_may_change_while_it_is_looked_at() {
    let test = "a_file_may_change_while_it_is_looked_at";
    let changes: [(&str, Change); 4] = [
        ("truncate", truncate),
        ("remove", remove),
        ("replace", replace),
        ("forbid", forbid),
    ];
    let names: Vec<String> = (0..12).map(|number| format!("{number}.bin")).collect();
    let file = content(300_000);
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &*file)).collect();
    let Some((server, slow)) = site(test, &files, "") else {
        return;
    };
    let mut names = names.iter();
    for operation in [Operation::Lookup, Operation::Open, Operation::Read] {
        for (what, change) in changes {
            let name = names.next().expect("a file for each");
            slow.hang_on(&[operation]);
            let mut client = asking(&server, &format!("/slow/{name}"));
            slow.expect_hanging(1);
            change(&slow, name);
            expect_others_served(&server);
            slow.release();
            expect_sound(&mut client, &format!("{what} at {operation:?}"));
            expect_others_served(&server);
        }
    }
}

#[test]
fn a_file_that_becomes_shorter_between_two_chunks_breaks_its_answer_off() {
    let test = "a_file_that_becomes_shorter_between_two_chunks_breaks_its_answer_off";
    for backend in NetworkBackend::ALL.map(NetworkBackend::name) {
        let config = format!("server.network-backend = \"{backend}\"");
        let Some((server, slow)) = site(test, &[("large.bin", &content(LARGE))], &config) else {
            return;
        };
        let begun = begun(&server);
        // The file is changed through the mount, because sendfile(2) uses what the kernel has cached.
        server.tree().set_length("www/slow/large.bin", CUT as u64);
        // A read that is in progress there ends early, and the kernel fills the rest of its page with zeros.
        begun.expect_cut_short_and_cleared_from(CUT, backend);
        expect_named(&server, "large.bin");
        expect_others_served(&server);
        drop(slow);
    }
}

#[test]
fn a_local_file_that_becomes_shorter_breaks_its_answer_off() {
    // When a file is truncated, the kernel clears the rest of its last pages, which may be large. sendfile(2)
    // passes them to the socket as they are, and a read that is in progress may copy them.
    for backend in NetworkBackend::ALL.map(NetworkBackend::name) {
        let server = Server::build()
            .file("www/hot.txt", "hot")
            .file("www/slow/large.bin", content(LARGE))
            .config(&format!(
                "server.max-worker = 1\nserver.network-backend = \"{backend}\""
            ))
            .start();
        let begun = begun(&server);
        server.tree().set_length("www/slow/large.bin", CUT as u64);
        begun.expect_cut_short_and_cleared_from(CUT, backend);
        expect_named(&server, "large.bin");
        expect_others_served(&server);
    }
}

/// It takes so long because eighteen servers start, and each sends 24 MiB through a small buffer.
#[test]
fn what_is_under_way_goes_on_with_the_file_it_began_with() {
    let test = "what_is_under_way_goes_on_with_the_file_it_began_with";
    let changes: [(&str, TreeChange); 3] = [
        ("remove", |tree| tree.remove("www/slow/large.bin")),
        ("replace", |tree| tree.replace("www/slow/large.bin", "new")),
        ("forbid", |tree| tree.mode("www/slow/large.bin", 0)),
    ];
    for (what, change) in changes {
        for backend in reading_elsewhere() {
            let server = Server::build()
                .file("www/hot.txt", "hot")
                .file("www/slow/large.bin", content(LARGE))
                .config(&format!(
                    "server.max-worker = 1\nserver.network-backend = \"{backend}\""
                ))
                .start();
            let begun = begun(&server);
            change(server.tree());
            begun.expect_whole(&format!("{what}, {test}, {backend}"));
        }
    }
}

#[test]
fn a_change_without_a_kernel_event_is_seen() {
    let test = "a_change_without_a_kernel_event_is_seen";
    let Some((server, slow)) = site(test, &[("a.txt", b"old")], "") else {
        return;
    };
    assert_eq!(server.get("/slow/a.txt").text(), "old");
    let set = |text: &str| fs::write(slow.beneath().join("a.txt"), text).expect("written");
    for text in ["new", "newer", "n"] {
        set(text);
        assert!(eventually(|| server.get("/slow/a.txt").text() == text));
    }
    fs::remove_file(slow.beneath().join("a.txt")).expect("removed");
    assert!(eventually(|| server.get("/slow/a.txt").status == 404));
    set("back");
    assert!(eventually(|| server.get("/slow/a.txt").text() == "back"));
}
