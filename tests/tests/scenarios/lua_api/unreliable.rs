//! Stores that die in the middle of a reply, hang, lie or are down: the script gets an error in time, and the
//! next script finds them in their state at that time.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use petrel_tests::{SOON, Server, free_port};

use crate::lua_api::{ask, expect_flat_memory, lua_lines, says, site};

/// What a store does with a connection on which a command has arrived.
type Manner = fn(&mut TcpStream);

/// A store that treats each connection by the next of `manners`, and repeats the last one.
struct Store {
    port: u16,
    accepted: Arc<AtomicUsize>,
}

impl Store {
    fn start(manners: &'static [Manner]) -> Store {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let port = listener.local_addr().expect("an address").port();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        // The thread lives as long as the test program, so it is not joined.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let index = count.fetch_add(1, Ordering::SeqCst);
                let manner = manners[index.min(manners.len() - 1)];
                std::thread::spawn(move || manner(&mut stream));
            }
        });
        Store { port, accepted }
    }
}

/// Answers each command with `reply`, until the client disconnects.
fn answer(stream: &mut TcpStream, reply: &[u8]) {
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).is_ok_and(|count| count > 0) {
        if stream.write_all(reply).is_err() {
            return;
        }
    }
}

fn once(stream: &mut TcpStream, reply: &[u8]) {
    let mut buffer = [0; 4096];
    // The result does not matter, only what the client receives.
    let _ = stream.read(&mut buffer);
    let _ = stream.write_all(reply);
}

fn good(stream: &mut TcpStream) {
    answer(stream, b"$4\r\ngood\r\n");
}

fn dies_in_a_reply(stream: &mut TcpStream) {
    once(stream, b"$100\r\nonly this");
}

fn dies_at_once(_: &mut TcpStream) {}

fn dies_unasked(stream: &mut TcpStream) {
    once(stream, b"");
}

fn hangs(stream: &mut TcpStream) {
    answer(stream, b"");
}

fn hangs_in_a_reply(stream: &mut TcpStream) {
    answer(stream, b"$100\r\nonly this");
}

fn lies(stream: &mut TcpStream) {
    answer(stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
}

fn promises_much(stream: &mut TcpStream) {
    answer(stream, b"*1000000000\r\n");
}

fn sends_without_end(stream: &mut TcpStream) {
    let mut buffer = [0; 4096];
    let _ = stream.read(&mut buffer);
    if stream.write_all(b"$900000000\r\n").is_ok() {
        while stream.write_all(&[b'x'; 65536]).is_ok() {}
    }
}

fn nests(stream: &mut TcpStream) {
    once(stream, "*1\r\n".repeat(100_000).as_bytes());
}

fn asks(port: u16) -> String {
    says(&format!(
        "local r = petrel.redis{{ host = \"127.0.0.1\", port = {port}, timeout = 2, connect_timeout = 2 }}\n\
         local value, why = r:get(\"x\")\n\
         if value then return value end\n\
         assert(value == nil and type(why) == \"string\" and #why > 5, tostring(why))\n\
         return \"failed: \" .. why"
    ))
}

fn server_for(port: u16) -> Server {
    site(&[], &[("asks", &asks(port))])
        .config("server.max-worker = 1")
        .start()
}

/// It takes so long because scripts wait two seconds for each store that hangs.
#[test]
fn each_failure_is_nil_and_a_message_in_time() {
    for (name, manners) in [
        (
            "dies in a reply",
            &[dies_in_a_reply as Manner, dies_in_a_reply, good] as &[Manner],
        ),
        ("dies at once", &[dies_at_once, dies_at_once, good]),
        ("dies unasked", &[dies_unasked, dies_unasked, good]),
        ("hangs", &[hangs, good]),
        ("hangs in a reply", &[hangs_in_a_reply, good]),
        ("lies", &[lies, good]),
        ("promises much", &[promises_much, good]),
        ("sends without end", &[sends_without_end, good]),
        ("nests", &[nests, good]),
    ] {
        // Leaked, because the store's threads live as long as the program.
        let store = Store::start(manners.to_vec().leak());
        let server = server_for(store.port);
        ask(&server, "/index.html");
        let begin = Instant::now();
        let mut said = Vec::new();
        while said.last().is_none_or(|last| last != "good") {
            let one = Instant::now();
            said.push(ask(&server, "/asks"));
            assert!(one.elapsed() < SOON, "{name}: {:?}", one.elapsed());
            assert!(begin.elapsed() < 2 * SOON, "{name}: {said:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        println!(
            "{name}: {said:?}, {} connections",
            store.accepted.load(Ordering::SeqCst)
        );
        if name != "dies at once" && name != "dies unasked" {
            assert!(said[0].starts_with("failed: "), "{name}: {said:?}");
        }
        assert!(said.len() <= 30, "{name}: {said:?}");
        assert_eq!(ask(&server, "/asks"), "good");
        assert!(lua_lines(&server).is_empty());
    }
}

#[test]
fn a_store_that_is_away_costs_no_time() {
    let server = server_for(free_port());
    assert!(ask(&server, "/asks").starts_with("failed: "));
    let begin = Instant::now();
    for _ in 0..100 {
        assert!(ask(&server, "/asks").starts_with("failed: "));
    }
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

#[test]
fn a_store_that_hangs_costs_others_nothing_and_leaves_nothing() {
    let store = Store::start(&[hangs]);
    let server = server_for(store.port);
    ask(&server, "/index.html");
    let mut shortest = Duration::MAX;
    let mut round = || {
        let mut clients: Vec<_> = (0..50).map(|_| server.client()).collect();
        for client in &mut clients {
            client.send("GET /asks HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        let begin = Instant::now();
        ask(&server, "/index.html");
        shortest = shortest.min(begin.elapsed());
        for client in &mut clients {
            assert!(client.response().text().starts_with("failed: "));
        }
    };
    round();
    expect_flat_memory(&server, 8, 512 << 10, round);
    // Half of the time limit of the other requests.
    assert!(shortest < Duration::from_secs(1), "{shortest:?}");
}
