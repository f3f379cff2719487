//! Many clients, and clients that leave before their file is there.

use std::net::Ipv4Addr;

use petrel_tests::{Client, Operation, eventually, raise_descriptor_limit};

use super::failures::{LARGE, begun};
use super::hanging::WAIT_S;
use super::{
    asking, content, expect_holdings, expect_others_served, impatient, reading_elsewhere, site,
    threads, was_there,
};
use crate::crowd;

/// It takes so long because ten thousand clients connect, and ask twice.
#[test]
fn ten_thousand_clients_on_one_path_that_hangs_are_one_job() {
    let test = "ten_thousand_clients_on_one_path_that_hangs_are_one_job";
    let _crowd = crowd();
    // Each client takes one descriptor here and one in the server, but other tests run in this process, too.
    let limit = usize::try_from(raise_descriptor_limit()).unwrap_or(usize::MAX);
    // The server uses half of its descriptors for connections.
    let count = (limit / 2).saturating_sub(20).min(10_000);
    let config = format!(
        "server.max-fds = {limit}\nserver.max-connections = {}\nserver.max-keep-alive-idle = 600
        server.max-read-idle = 600\nserver.max-file-wait = 600
        $HTTP[\"url\"] == \"/slow/two.txt\" {{ server.max-file-wait = 1 }}",
        limit / 2
    );
    let files: [(&str, &[u8]); 2] = [("one.txt", b"1"), ("two.txt", b"2")];
    let Some((server, slow)) = site(test, &files, &config) else {
        return;
    };
    let mut clients: Vec<Client> = (0..count).map(|_| server.client()).collect();
    expect_others_served(&server);
    let (before, bytes_before) = (threads(&server), server.processes().private_dirty_bytes());
    let asked = slow.total();
    slow.hang();
    send_all(&mut clients, "one.txt");
    assert!(eventually(|| slow.hanging() >= 1), "{slow:?}");
    expect_others_served(&server);
    let bytes = server.processes().private_dirty_bytes() - bytes_before;
    assert!(
        bytes / (count as u64) < 16 * 1024,
        "{bytes} bytes for {count} clients"
    );
    // After ten seconds a second lookup is begun, but never a third one.
    let looks = (slow.hanging(), slow.total() - asked);
    assert!(looks.0 <= 2 && looks.1 <= 2, "{looks:?}");
    // The threads for the jobs, and one for the lookup of a new local file.
    let added = threads(&server).saturating_sub(before);
    assert!(added <= 3, "{added} threads");
    slow.release();
    for client in &mut clients {
        assert_eq!(client.response().text(), "1");
    }
    // All clients give up at once.
    slow.hang();
    send_all(&mut clients, "two.txt");
    for client in &mut clients {
        assert_eq!(client.response().status, 504);
    }
    slow.release();
    let mut last = clients.pop().expect("one of them");
    assert_eq!(last.get("/slow/one.txt").text(), "1");
}

/// All clients request the same file.
fn send_all(clients: &mut [Client], name: &str) {
    for client in clients {
        client.send(format!("GET /slow/{name} HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
}

#[test]
fn clients_that_leave_take_their_jobs_with_them() {
    let test = "clients_that_leave_take_their_jobs_with_them";
    let names: Vec<String> = (0..100).map(|number| format!("{number}.bin")).collect();
    let large = content(100_000);
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &*large)).collect();
    for operation in [Operation::Lookup, Operation::Open, Operation::Read] {
        let Some((server, slow)) = site(test, &files, "") else {
            return;
        };
        expect_others_served(&server);
        let before = server.holdings();
        slow.hang_on(&[operation]);
        let ask = |name: &String| asking(&server, &format!("/slow/{name}"));
        let clients: Vec<Client> = names.iter().map(ask).collect();
        slow.expect_hanging(2);
        if operation == Operation::Read {
            // All files are looked up while the first ones are read.
            let are_looked_up = || slow.count(Operation::Lookup) >= names.len() as u64;
            assert!(eventually(are_looked_up), "{slow:?}");
        }
        clients.into_iter().for_each(Client::abort);
        let asked = slow.count(Operation::Lookup);
        expect_others_served(&server);
        // The server notices that the clients have left although nothing else happens.
        assert!(
            eventually(
                || server.holdings().descriptors.get("socket") == before.descriptors.get("socket")
            ),
            "{operation:?}: {:#?}",
            server.holdings()
        );
        slow.release();
        expect_holdings(&server, &before, was_there, &format!("{operation:?}"));
        // Jobs that were queued after those that hung were skipped.
        let later = slow.count(Operation::Lookup) - asked;
        assert!(later <= 20, "{operation:?}: {later} more look-ups");
        assert!(server.get("/slow/5.bin").body == large);
    }
}

#[test]
fn who_has_many_connections_gets_no_more_than_who_has_one() {
    let test = "who_has_many_connections_gets_no_more_than_who_has_one";
    let names: Vec<String> = (0..80).map(|number| format!("many/{number}.txt")).collect();
    let first = (0..16).map(|number| format!("first/{number}.txt"));
    let first: Vec<String> = first.collect();
    let files = names.iter().chain(&first).map(String::as_str);
    let files: Vec<(&str, &[u8])> = files
        .chain(["one/picture.txt"])
        .map(|name| (name, &b"1"[..]))
        .collect();
    let config = "server.modules += ( \"mod_status\" )\nstatus.statistics-url = \"/counters\"";
    let Some((server, slow)) = site(test, &files, config) else {
        return;
    };
    assert_eq!(server.get("/counters").status, 200);
    let ask = |number: u8, name: &String| {
        let from = Ipv4Addr::new(127, 0, 0, number);
        let mut client = Client::connect_from(from, server.address());
        client.send(format!("GET /slow/{name} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client
    };
    let are_queued = |count: usize| {
        let line = format!("server.io.stat.queued: {count}\n");
        assert!(
            eventually(|| server.get("/counters").text().contains(&line)),
            "{count} {}",
            server.get("/counters").text()
        );
    };
    slow.hang();
    let first: Vec<Client> = first.iter().map(|name| ask(2, name)).collect();
    slow.expect_hanging(16);
    let many: Vec<Client> = names.iter().map(|name| ask(2, name)).collect();
    are_queued(80);
    let mut modest = ask(3, &"one/picture.txt".to_owned());
    are_queued(81);
    // The first jobs are done, and later ones hang, except the one for the picture.
    slow.hang_below("many");
    assert_eq!(modest.response().text(), "1");
    are_queued(64);
    slow.release();
    for mut client in first.into_iter().chain(many) {
        assert_eq!(client.response().text(), "1");
    }
}

#[test]
fn look_ups_that_need_no_contents_do_not_wait_behind_reads() {
    let test = "look_ups_that_need_no_contents_do_not_wait_behind_reads";
    let names: Vec<String> = (0..40).map(|number| format!("{number}.txt")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"1"[..])).collect();
    let config = "server.modules += ( \"mod_status\" )\nstatus.statistics-url = \"/counters\"";
    let Some((server, slow)) = site(test, &files, config) else {
        return;
    };
    slow.hang_on(&[Operation::Read]);
    let ask = |name: &String| asking(&server, &format!("/slow/{name}"));
    let reading: Vec<Client> = names.iter().map(ask).collect();
    slow.expect_hanging(16);
    let waiting = || server.get("/counters").text();
    assert!(
        eventually(|| waiting().contains("server.io.first-read.queued: 24\n")),
        "{}",
        waiting()
    );
    // All come from one address, and need the same file system.
    for number in 0..20 {
        let missing = server.get(&format!("/slow/missing-{number}.txt"));
        assert_eq!(missing.status, 404);
    }
    assert!(waiting().contains("server.io.first-read.queued: 24\n"));
    slow.release();
    for mut client in reading {
        assert_eq!(client.response().text(), "1");
    }
}

/// It takes so long because the server waits five seconds for the disk, and its threads end ten seconds later.
#[test]
fn threads_go_when_nothing_hangs_any_more() {
    let test = "threads_go_when_nothing_hangs_any_more";
    let names: Vec<String> = (0..40).map(|number| format!("{number}.txt")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (&**name, &b"1"[..])).collect();
    let Some((server, slow)) = site(test, &files, &impatient(WAIT_S)) else {
        return;
    };
    expect_others_served(&server);
    let before = threads(&server);
    slow.hang();
    let ask = |name: &String| asking(&server, &format!("/slow/{name}"));
    let clients: Vec<Client> = names.iter().map(ask).collect();
    slow.expect_hanging(16);
    for mut client in clients {
        assert_eq!(client.response().status, 504);
    }
    // One thread per hanging job. The server's start may have left one of them, and the new file another one.
    assert!(threads(&server) >= before + 14);
    slow.release();
    // Threads end after ten seconds without work.
    assert!(
        eventually(|| threads(&server) <= before),
        "{}",
        threads(&server)
    );
}

/// It takes so long because a server of each of six network backends sends 24 MiB from a FUSE file system.
#[test]
fn clients_that_leave_within_a_body_take_its_reads_with_them() {
    let test = "clients_that_leave_within_a_body_take_its_reads_with_them";
    for backend in reading_elsewhere() {
        let config = format!("server.network-backend = \"{backend}\"");
        let Some((server, slow)) = site(test, &[("large.bin", &content(LARGE))], &config) else {
            return;
        };
        expect_others_served(&server);
        let before = server.holdings();
        let half = begun(&server);
        slow.hang_on(&[Operation::Read]);
        let other = begun_waiting(&server);
        slow.expect_hanging(1);
        drop((half, other));
        expect_others_served(&server);
        slow.release();
        let sockets = || server.holdings().descriptors.get("socket").copied();
        assert!(
            eventually(|| sockets() == before.descriptors.get("socket").copied()),
            "{backend}: {before:#?} {:#?}",
            server.holdings()
        );
        assert!(server.get("/slow/large.bin").body == content(LARGE));
    }
}

/// A client of a part of the file that was never read.
fn begun_waiting(server: &petrel_tests::Server) -> Client {
    let mut client = server.client();
    client.send(format!(
        "GET /slow/large.bin HTTP/1.1\r\nHost: a\r\nRange: bytes={}-\r\n\r\n",
        LARGE - 400_000
    ));
    client
}
