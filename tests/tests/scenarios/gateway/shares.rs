//! mod_limit: no key gets more than its share of a backend.

use std::fs;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use petrel_tests::{Client, Server, eventually};

use crate::gateway::crowds::held;
use crate::gateway::{COUNTERS, in_front_of_with};

const RULES: &str = "server.modules += ( \"mod_limit\" )
server.max-worker := 2
limit.rules = ( \"php\" => ( \"ipv4-prefix\" => 30, \"pool-share\" => 50 ) )";

/// A client with this address whose request goes to the backend.
fn ask(server: &Server, last_byte: u8) -> Client {
    let mut client = Client::connect_from([127, 0, 0, last_byte].into(), server.address());
    client.send("GET /app/x HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
    client
}

fn counter(server: &Server, name: &str) -> u64 {
    let counters = server.get("/counters").text();
    let line = counters.lines().find_map(|line| line.strip_prefix(name));
    let count = line.and_then(|rest| rest.strip_prefix(": ")?.parse().ok());
    count.unwrap_or_else(|| panic!("no {name} in {counters}"))
}

#[test]
fn a_network_of_clients_gets_its_share_and_no_more() {
    let (backend, go_on) = held();
    let server = in_front_of_with(&backend, "\"max-connections\" => 4, ")
        .config(COUNTERS)
        .config(RULES)
        .start();
    // 127.0.0.4 to 127.0.0.7 are one network. Its first request may wait, because another network has all 4
    // connections.
    let mut greedy: Vec<Client> = (4..8).map(|last_byte| ask(&server, last_byte)).collect();
    let refused = "limit.php.refused-pool-share";
    assert!(eventually(|| counter(&server, refused) == 2));
    let mut others: Vec<Client> = [8, 12].map(|last_byte| ask(&server, last_byte)).into();
    // A request from a third network waits for a connection, and that counts, too.
    others.push(ask(&server, 16));
    let load = || counter(&server, "gw.active-requests");
    assert!(eventually(|| load() == 5), "{}", load());
    go_on.store(true, Ordering::SeqCst);
    let mut statuses: Vec<u16> = greedy
        .iter_mut()
        .map(|client| client.response().status)
        .collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 429, 429]);
    for client in &mut others {
        assert_eq!(client.response().status, 200);
    }
    // Connections that were released are available again.
    assert!(eventually(|| load() == 0));
    for client in &mut greedy {
        assert_eq!(client.get("/app/x").status, 200);
    }
    assert_eq!(counter(&server, refused), 2);
    let told = "(backend-queue) answered 429: limit.rules: \"php\" allows each key 2 connections (50 %) to backend=";
    server.expect_log(told);
    server.expect_log(" key=127.0.0.4/30 client=127.0.0.");
}

/// Otherwise a client that connects and disconnects could take all processes.
#[test]
fn a_client_that_has_gone_has_its_share_until_the_backend_is_done() {
    let (backend, go_on) = held();
    // The share is one connection.
    let server = in_front_of_with(&backend, "\"max-connections\" => 2, ")
        .config(COUNTERS)
        .config(RULES)
        .start();
    let gone = ask(&server, 4);
    backend.expect_requests(1);
    let load = || counter(&server, "gw.active-requests");
    assert!(eventually(|| load() == 1));
    gone.abort();
    assert!(eventually(|| load() == 0));
    assert_eq!(ask(&server, 5).response().status, 429);
    let mut other = ask(&server, 8);
    go_on.store(true, Ordering::SeqCst);
    assert_eq!(other.response().status, 200);
    assert!(eventually(|| ask(&server, 6).response().status == 200));
}

/// A refused request never reaches the backend, so it cannot find out whether the backend is back.
#[test]
fn a_refusal_leaves_the_probe_of_a_backend_that_was_down_to_the_next_request() {
    let (backend, go_on) = held();
    // A share of one.
    let server = in_front_of_with(
        &backend,
        "\"max-connections\" => 2, \"disable-time\" => 1, ",
    )
    .config(RULES)
    .start();
    let mut under_way = ask(&server, 4);
    backend.expect_requests(1);
    let name = backend.name();
    let socket = name.strip_prefix("unix:").expect("a unix socket");
    let elsewhere = format!("{socket}.elsewhere");
    fs::rename(socket, &elsewhere).expect("the socket is there");
    let unreachable = ask(&server, 8).response().status;
    assert!(unreachable >= 500, "{unreachable}");
    fs::rename(&elsewhere, socket).expect("the socket is there");
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(ask(&server, 5).response().status, 429);
    let mut probe = ask(&server, 8);
    go_on.store(true, Ordering::SeqCst);
    assert_eq!(probe.response().status, 200);
    assert_eq!(under_way.response().status, 200);
}

#[test]
fn files_and_unknown_sizes_are_not_limited() {
    let (backend, go_on) = held();
    let server = in_front_of_with(&backend, "")
        .config(COUNTERS)
        .config(RULES)
        .start();
    let mut clients: Vec<Client> = (4..8).map(|last_byte| ask(&server, last_byte)).collect();
    assert!(eventually(|| counter(&server, "gw.active-requests") == 4));
    assert_eq!(server.get("/").status, 200);
    go_on.store(true, Ordering::SeqCst);
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
}
