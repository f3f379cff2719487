//! Clients that take their answers slowly are told from a server that sends slowly, over both versions of HTTP.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread;

use petrel_tests::http2::{
    END_HEADERS, END_STREAM, HEADERS, Http2Client, PREFACE, SETTINGS, WINDOW_UPDATE, block, frame,
};
use petrel_tests::{Builder, Server};

use super::{PAUSE, expect_holder, get, site, started};

/// Larger than what the kernel takes for a client that reads nothing.
const LARGE: usize = 24 << 20;

const SLOW_CLIENT: &[&str] = &["the client took ", "B a second"];

fn site_with_file(name: &str) -> Builder {
    site()
        .file(&format!("www/{name}"), vec![b'x'; LARGE])
        .config("server.h2c = \"enable\"")
}

fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(("127.0.0.1", server.port())).expect("it listens")
}

/// A connection whose client pauses before its first read.
struct Late {
    stream: TcpStream,
    has_paused: bool,
}

impl Read for Late {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !std::mem::replace(&mut self.has_paused, true) {
            thread::sleep(PAUSE);
        }
        self.stream.read(buffer)
    }
}

impl Write for Late {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[test]
fn a_client_that_pauses_is_named_over_http_1() {
    let server = started(site_with_file("one"));
    let mut stream = connect(&server);
    let request = get("/one").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    thread::sleep(PAUSE);
    let read = io::copy(&mut stream, &mut io::sink()).expect("it sends");
    assert!(read > LARGE as u64);
    expect_holder(&server, "/one", "client-drain", SLOW_CLIENT);
}

#[test]
fn a_client_that_pauses_is_named_over_http_2() {
    let server = started(site_with_file("two"));
    let late = Late {
        stream: connect(&server),
        has_paused: false,
    };
    assert_eq!(
        Http2Client::begin(late, "http").get("/two", 1).body_bytes,
        LARGE
    );
    expect_holder(&server, "/two", "client-drain", SLOW_CLIENT);
}

/// A connection whose client has asked for a file, and opens no window.
fn with_closed_window(server: &Server, path: &str) -> TcpStream {
    let head = block(&[
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "petrel.test"),
        (":path", path),
    ]);
    let begin = [
        PREFACE,
        &frame(SETTINGS, 0, 0, b""),
        &frame(HEADERS, END_STREAM | END_HEADERS, 1, &head),
    ];
    let mut stream = connect(server);
    stream.write_all(&begin.concat()).expect("it reads");
    stream
}

#[test]
fn a_client_that_opens_its_windows_late_is_named() {
    let server = started(site_with_file("window"));
    let mut stream = with_closed_window(&server, "/window");
    thread::sleep(PAUSE);
    let wider = (1_u32 << 30).to_be_bytes();
    let updates = [0, 1].map(|id| frame(WINDOW_UPDATE, 0, id, &wider));
    stream.write_all(&updates.concat()).expect("it reads");
    let mut rest = stream.take(LARGE as u64);
    let read = io::copy(&mut rest, &mut io::sink()).expect("it sends");
    assert_eq!(read, LARGE as u64);
    // The last frames are still on their way.
    expect_holder(&server, "/window", "client-drain", SLOW_CLIENT);
}

#[test]
fn a_client_that_leaves_in_the_middle_is_named() {
    let server = started(site_with_file("left"));
    let stream = with_closed_window(&server, "/left");
    thread::sleep(PAUSE);
    drop(stream);
    expect_holder(&server, "/left", "client-drain", SLOW_CLIENT);
}
