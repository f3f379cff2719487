//! Abuses of HTTP/2 that cost a client little and a server much. Each ends with a GOAWAY, a counter and a
//! line in the log, and costs the server process little time and memory.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use petrel_tests::http2::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, frame,
};
use petrel_tests::{PATIENCE, Server, eventually};

/// GET or POST for `/big`, of the host `a`.
const GET: &[u8] = b"\x82\x86\x04\x04/big\x41\x01a";
const POST: &[u8] = b"\x83\x86\x04\x04/big\x41\x01a";

/// CANCEL.
const CANCEL: &[u8] = &[0, 0, 0, 8];

/// One kind of abuse: what is sent first, and what is sent repeatedly, given its number.
struct Abuse {
    /// The counter below `server.http2.ended.`
    counter: &'static str,
    first: Vec<u8>,
    again: fn(u32) -> Vec<u8>,
}

/// A header list of 12,000 fields, each of which is the same table entry of 3,900 bytes.
fn bomb() -> Vec<u8> {
    let mut block = GET.to_vec();
    // With indexing: a name of one byte, and a value of 3,900 = 127 + 3,773 bytes.
    block.extend(b"\x40\x01x\x7f\xbd\x1d");
    block.extend([b'v'; 3900]);
    block.extend([0xbe; 12_000]);
    block
}

fn all() -> Vec<Abuse> {
    let of = |counter, first, again| Abuse {
        counter,
        first,
        again,
    };
    vec![
        of("rapid-reset", Vec::new(), |number| {
            let stream = 2 * number + 1;
            let head = frame(HEADERS, END_HEADERS | END_STREAM, stream, GET);
            [head, frame(RST_STREAM, 0, stream, CANCEL)].concat()
        }),
        of(
            "continuation-flood",
            frame(HEADERS, END_STREAM, 1, GET),
            |_| frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b"),
        ),
        of("empty-frames", frame(HEADERS, END_HEADERS, 1, POST), |_| {
            frame(DATA, 0, 1, b"")
        }),
        of("small-frames", frame(HEADERS, END_HEADERS, 1, POST), |_| {
            frame(DATA, 0, 1, b"x")
        }),
        of("settings-flood", Vec::new(), |_| {
            frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])
        }),
        of("ping-flood", Vec::new(), |number| {
            frame(PING, 0, 0, &u64::from(number).to_be_bytes())
        }),
        // Windows of streams start at 0 and are opened by one byte at a time.
        of(
            "window-trickle",
            [
                frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]),
                frame(HEADERS, END_HEADERS | END_STREAM, 1, GET),
            ]
            .concat(),
            |_| frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]),
        ),
        of("header-bomb", Vec::new(), |number| {
            let block = bomb();
            match number {
                0 => frame(HEADERS, END_HEADERS | END_STREAM, 1, &block),
                _ => Vec::new(),
            }
        }),
        of("idle-frames", Vec::new(), |number| {
            // PRIORITY for an unknown stream, as in RFC 7540.
            frame(2, 0, 2 * (number % 1000) + 1, &[0, 0, 0, 0, 7])
        }),
    ]
}

/// Commits `abuse` until the server ends the connection. Returns the code of its GOAWAY.
fn commit(server: &Server, abuse: &Abuse) -> Option<u32> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    stream.set_write_timeout(Some(PATIENCE)).expect("a time");
    let mut reader = stream.try_clone().expect("a second handle");
    reader.set_read_timeout(Some(PATIENCE)).expect("a time");
    let read = thread::spawn(move || {
        let mut bytes = Vec::new();
        // A reset may follow the last frame.
        let _ = reader.read_to_end(&mut bytes);
        bytes
    });
    let mut begin = PREFACE.to_vec();
    begin.extend(frame(SETTINGS, 0, 0, b""));
    begin.extend(&abuse.first);
    stream.write_all(&begin).expect("it reads");
    for round in 0..2000 {
        let frames: Vec<u8> = (round * 50..(round + 1) * 50)
            .flat_map(abuse.again)
            .collect();
        if frames.is_empty() || stream.write_all(&frames).is_err() {
            break;
        }
    }
    let ended = eventually(|| read.is_finished());
    let _ = stream.shutdown(Shutdown::Both);
    assert!(ended, "{}: the connection goes on", abuse.counter);
    let bytes = read.join().expect("it reads");
    let mut rest = &bytes[..];
    while let [a, b, c, kind, _, _, _, _, _, behind @ ..] = rest {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let payload = behind.get(..length)?;
        if *kind == GOAWAY && payload[4..8] != [0; 4] {
            return Some(u32::from_be_bytes([
                payload[4], payload[5], payload[6], payload[7],
            ]));
        }
        rest = &behind[length..];
    }
    None
}

fn count(server: &Server, counter: &str) -> u64 {
    let text = String::from_utf8(server.get("/counters").body).expect("text");
    let name = format!("server.http2.ended.{counter}: ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    line.and_then(|count| count.parse().ok())
        .expect("a counter")
}

#[test]
fn abuse_of_http2_is_ended_told_and_cheap() {
    let server = Server::build()
        .file("www/big", vec![7; 3_000_000])
        .config(
            r#"
            server.h2c = "enable"
            server.modules += ( "mod_status" )
            status.statistics-url = "/counters"
            "#,
        )
        .start();
    assert_eq!(server.get("/big").status, 200);
    for abuse in all() {
        let name = abuse.counter;
        let (cpu, memory) = (
            server.processes().cpu_time(),
            server.processes().resident_bytes(),
        );
        let code = commit(&server, &abuse);
        assert_eq!(count(&server, name), 1, "{name}");
        let more_cpu = server.processes().cpu_time() - cpu;
        let more_memory = server.processes().resident_bytes().saturating_sub(memory);
        // ENHANCE_YOUR_CALM, unless the reset that followed it discarded it.
        assert!(matches!(code, Some(11) | None), "{name}: {code:?}");
        assert!(more_cpu < Duration::from_secs(2), "{name}: {more_cpu:?}");
        assert!(more_memory < 16 << 20, "{name}: {more_memory}");
        assert_eq!(server.get("/big").status, 200, "{name}");
    }
    let log = server.log();
    assert!(
        log.matches("(read-head) the client ").count() >= all().len(),
        "{log}"
    );
}

#[test]
fn a_request_of_ten_thousand_fields_is_refused() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .config("server.h2c = \"enable\"")
        .start();
    let mut block = b"\x82\x86\x84\x41\x01a".to_vec();
    for _ in 0..10_000 {
        block.extend(b"\x00\x01a\x01b");
    }
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, b""));
    let pieces: Vec<&[u8]> = block.chunks(16_000).collect();
    for (index, piece) in pieces.iter().enumerate() {
        let last = if index + 1 == pieces.len() {
            END_HEADERS
        } else {
            0
        };
        bytes.extend(match index {
            0 => frame(HEADERS, last | END_STREAM, 1, piece),
            _ => frame(CONTINUATION, last, 1, piece),
        });
    }
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    stream.write_all(&bytes).expect("it reads");
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    // The stream gets a 431. Its status is a literal, since the static table has no such `:status`.
    while !seen.windows(3).any(|three| three == b"431") {
        let count = stream.read(&mut buffer).expect("an answer");
        assert!(count > 0, "{seen:?}");
        seen.extend_from_slice(&buffer[..count]);
    }
    assert_eq!(server.get("/").status, 200);
}
