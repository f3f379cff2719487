//! Directory listings.

use petrel_tests::{Client, Operation, Server, SlowFs, eventually};

use super::{expect_holdings, expect_others_served, impatient, was_there};

/// A site with directory listings, in which `/slow/` has two files.
fn site(test: &str, config: &str) -> Option<(Server, SlowFs)> {
    let config = format!("dir-listing.activate = \"enable\"\n{config}");
    super::site(test, &[("one.txt", b"1"), ("two.txt", b"22")], &config)
}

/// Clients that have requested the listing and wait for it.
fn waiting(server: &Server, count: usize) -> Vec<Client> {
    let ask = |_| {
        let mut client = server.client();
        client.send("GET /slow/ HTTP/1.1\r\nHost: a\r\n\r\n");
        client
    };
    (0..count).map(ask).collect()
}

#[test]
fn a_directory_that_is_read_delays_no_other_request() {
    let test = "a_directory_that_is_read_delays_no_other_request";
    let Some((server, slow)) = site(test, "") else {
        return;
    };
    slow.hang_on(&[Operation::ReadDirectory]);
    let mut clients = waiting(&server, 1);
    slow.expect_hanging(1);
    clients.append(&mut waiting(&server, 50));
    expect_others_served(&server);
    // All later clients wait for the first one's job, and take no thread.
    assert_eq!(slow.hanging(), 1);
    slow.release();
    for mut client in clients {
        let page = client.response();
        assert_eq!(page.status, 200);
        assert!(page.text().contains("one.txt") && page.text().contains("two.txt"));
    }
    // Reading a directory takes two operations: the entries, and the end.
    assert!(slow.count(Operation::ReadDirectory) <= 4, "{slow:?}");
}

#[test]
fn a_listing_without_clients_leaves_nothing_behind() {
    let test = "a_listing_without_clients_leaves_nothing_behind";
    let Some((server, slow)) = site(test, "") else {
        return;
    };
    assert_eq!(server.get("/slow/").status, 200);
    expect_others_served(&server);
    let before = server.holdings();
    slow.hang_on(&[Operation::ReadDirectory]);
    let clients = waiting(&server, 20);
    slow.expect_hanging(1);
    drop(clients);
    expect_others_served(&server);
    slow.release();
    expect_holdings(&server, &before, was_there, test);
    assert!(server.get("/slow/").text().contains("one.txt"));
}

#[test]
fn a_directory_that_cannot_be_read_is_an_error_for_its_requests() {
    let test = "a_directory_that_cannot_be_read_is_an_error_for_its_requests";
    let Some((server, slow)) = site(test, "") else {
        return;
    };
    slow.fail_on(&[Operation::ReadDirectory], rustix::io::Errno::IO);
    assert_eq!(server.get("/slow/").status, 500);
    server.expect_log("cannot list");
    slow.release();
    assert!(eventually(|| server.get("/slow/").status == 200));
}

#[test]
fn a_directory_that_does_not_answer_is_504_and_a_line_in_the_log() {
    let test = "a_directory_that_does_not_answer_is_504_and_a_line_in_the_log";
    let Some((server, slow)) = site(test, &impatient(1)) else {
        return;
    };
    slow.hang_on(&[Operation::ReadDirectory]);
    for mut client in waiting(&server, 3) {
        assert_eq!(client.response().status, 504);
    }
    server.expect_log("/www/slow/\"");
    expect_others_served(&server);
    // A new client either shares the job, for which no other client waits any more, or comes too late for it.
    drop(waiting(&server, 1));
    assert!(eventually(|| slow.hanging() == 1));
    slow.release();
    assert_eq!(server.get("/slow/").status, 200);
}
