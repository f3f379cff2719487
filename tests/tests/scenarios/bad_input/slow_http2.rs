//! Clients of HTTP/2 that send or take little: each stream has the time limits that a connection of HTTP/1 has.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use petrel_tests::http2::{
    DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE, block,
    frame,
};
use petrel_tests::{Backend, PATIENCE, Server, Speaks, eventually};

/// A connection, and the frames that came.
struct Peer {
    stream: TcpStream,
    received: Vec<u8>,
}

/// The type, flags and stream of a frame.
type FrameHead = (u8, u8, u32);

impl Peer {
    /// A client whose streams begin with a window of `window` bytes. Its connection has a large one.
    fn new(server: &Server, window: u32) -> Peer {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
        stream.set_write_timeout(Some(PATIENCE)).expect("a time");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        let mut peer = Peer {
            stream,
            received: Vec::new(),
        };
        peer.send(
            &[
                PREFACE,
                &frame(
                    SETTINGS,
                    0,
                    0,
                    &[&[0, 4][..], &window.to_be_bytes()].concat(),
                ),
                &window_of(0, 1 << 30),
            ]
            .concat(),
        );
        let is_settings = |head: &FrameHead| head.0 == SETTINGS;
        while !peer.read(1024).expect("it answers").iter().any(is_settings) {}
        peer.send(&frame(SETTINGS, END_STREAM, 0, b""));
        peer
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    fn request(&mut self, stream: u32, method: &str, path: &str) {
        let fields = [
            (":method", method),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", path),
        ];
        let end = if method == "GET" { END_STREAM } else { 0 };
        self.send(&frame(HEADERS, END_HEADERS | end, stream, &block(&fields)));
    }

    /// Reads at most `most` bytes, and returns the frames that are complete. `None`: the connection is over.
    fn read(&mut self, most: usize) -> Option<Vec<FrameHead>> {
        let mut bytes = vec![0; most];
        match self.stream.read(&mut bytes) {
            Ok(0) | Err(_) => return None,
            Ok(count) => self.received.extend_from_slice(&bytes[..count]),
        }
        let mut heads = Vec::new();
        let mut rest = &self.received[..];
        while let [a, b, c, kind, flags, s1, s2, s3, s4, behind @ ..] = rest {
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            let Some(after) = behind.get(length..) else {
                break;
            };
            heads.push((*kind, *flags, u32::from_be_bytes([*s1, *s2, *s3, *s4])));
            rest = after;
        }
        self.received = rest.to_vec();
        Some(heads)
    }
}

fn window_of(stream: u32, by: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

/// It takes so long because the time limit of the stream must pass while the client reads the other one.
#[test]
fn a_stream_whose_window_is_closed_ends_while_another_is_sent() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .file("www/big.bin", vec![b'x'; 64 << 20])
        .config("server.h2c = \"enable\"\nserver.max-write-idle = 2\nserver.min-write-rate = 0")
        .start();
    let mut peer = Peer::new(&server, 0);
    peer.request(1, "GET", "/big.bin");
    peer.send(&window_of(1, 1 << 30));
    peer.request(3, "GET", "/index.html");
    loop {
        let heads = peer.read(32 << 10).expect("the connection goes on");
        let is_over = |head: &FrameHead| *head == (DATA, END_STREAM, 1);
        assert!(!heads.iter().any(is_over), "the stream outlives the file");
        if heads
            .iter()
            .any(|(kind, _, id)| (*kind, *id) == (RST_STREAM, 3))
        {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_body_that_trickles_gets_408_as_over_http1() {
    let backend = Backend::start(Speaks::Http, |exchange| exchange.answer(200, &[], "hello"));
    let server = Server::build()
        .config(&format!(
            "server.h2c = \"enable\"\nserver.max-read-idle = 1\nserver.min-read-rate = 100000\n\
             server.modules = (\"mod_accesslog\")\n\
             accesslog.filename = var.dir + \"/access.log\"\naccesslog.format = \"%r %s\"\n{}",
            backend.directive("/b/", ""),
        ))
        .start();
    let mut peer = Peer::new(&server, 65_535);
    peer.request(1, "POST", "/b/");
    let is_refused = || server.tree().text("access.log").contains("HTTP/2.0 408");
    // Each byte renews the other time limit.
    let refused = (0..600).any(|_| {
        peer.send(&frame(DATA, 0, 1, b"x"));
        std::thread::sleep(Duration::from_millis(50));
        is_refused()
    });
    assert!(refused || eventually(is_refused), "{}", server.log());
    server.expect_log("below server.min-read-rate = 100000; client=");
}

#[test]
fn streams_that_cannot_send_hold_nothing_of_their_files() {
    let server = Server::build()
        .file("www/big.bin", vec![b'x'; 4 << 20])
        .config("server.h2c = \"enable\"")
        .start();
    assert_eq!(server.get("/big.bin").status, 200);
    let memory = || server.processes().private_dirty_bytes();
    let before = memory();
    let peers: Vec<Peer> = (0..20)
        .map(|_| {
            let mut peer = Peer::new(&server, 0);
            for number in 0..100 {
                peer.request(2 * number + 1, "GET", "/big.bin");
            }
            let mut answers = 0;
            while answers < 100 {
                let heads = peer.read(64 << 10).expect("the connection goes on");
                answers += heads.iter().filter(|(kind, ..)| *kind == HEADERS).count();
            }
            peer
        })
        .collect();
    let held = memory().saturating_sub(before);
    // 2,000 pieces of 64 KiB would be 128 MB.
    assert!(held < 48 << 20, "{held} bytes");
    drop(peers);
}
