//! Noting what held a request up allocates nothing, so that an overloaded worker, whose requests all wait,
//! gets no more to do: counted, with the server in this process and its worker kept busy by a script.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use petrel_tests::{PATIENCE, Tree};
use sys::counting_allocator::{allocations, by_others};

use crate::alone;
use crate::in_process::start;

/// Requests of a round.
const REQUESTS: usize = 5;

const ROUNDS: usize = 20;

/// A request that waits for so long in the kernel has a note about that.
const NOTED: Duration = Duration::from_millis(5);

/// Longer than the time from which a wait is noted.
const BUSY: &str = "local ends = os.clock() + 0.015\n\
    while os.clock() < ends do end\n\
    lighty.content = { \"busy\" }\nreturn 200";

#[test]
fn a_request_that_lagged_allocates_nothing_for_its_note() {
    let _alone = alone();
    let tree = Tree::new();
    tree.write("small.txt", "x".repeat(100))
        .write("busy.lua", BUSY);
    let (server, address) = start(&format!(
        "var.dir = \"{}\"\nserver.document-root = var.dir\nserver.max-worker = 1\n\
         server.max-keep-alive-requests = 65535\nserver.max-keep-alive-idle = 600\nserver.modules += ( \"mod_magnet\" )\nlua.max-run-time = 5000\n\
         $HTTP[\"url\"] == \"/busy\" {{ magnet.attract-raw-url-to = ( var.dir + \"/busy.lua\" ) }}",
        tree.root().display()
    ));
    server.serve();
    let (mut busy, mut small) = (Client::to(address), Client::to(address));
    small.ask("/small.txt");
    let of_scripts = least_of_rounds(|| (0..REQUESTS).for_each(|_| busy.ask("/busy")));
    let mut noted = 0;
    let of_both = least_of_rounds(|| {
        for _ in 0..REQUESTS {
            busy.send("/busy");
            sleep(Duration::from_millis(2));
            let begun = Instant::now();
            small.ask("/small.txt");
            noted += usize::from(begun.elapsed() > NOTED);
            busy.receive();
        }
    });
    assert_eq!(of_both, of_scripts);
    assert!(noted > REQUESTS * ROUNDS / 4, "only {noted} had to wait");
    server.cut_off(engine::worker::Cut::StopNow);
    assert!(server.join(), "a worker panicked");
}

/// How often the other threads allocate in a round. Once a second a worker does maintenance, which
/// allocates; most rounds are between two of these.
fn least_of_rounds(mut round: impl FnMut()) -> u64 {
    let mut count = || {
        let before = allocations();
        round();
        by_others(&before, &allocations())
    };
    let counts = (0..ROUNDS).map(|_| count());
    counts.min().unwrap_or_default()
}

struct Client(TcpStream);

impl Client {
    fn to(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("a TCP socket");
        Client(stream)
    }

    fn ask(&mut self, target: &str) {
        self.send(target);
        self.receive();
    }

    fn send(&mut self, target: &str) {
        let request = format!("GET {target} HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
        self.0.write_all(request.as_bytes()).expect("send");
    }

    /// Receives the response, which is short: it comes as a whole.
    fn receive(&mut self) {
        let mut buffer = [0; 4096];
        let count = self.0.read(&mut buffer).expect("an answer");
        let answer = String::from_utf8_lossy(&buffer[..count]);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}
