//! Request bodies on their way to a backend: buffered until complete, or passed on as they arrive.

use std::process::Command;
use std::time::{Duration, Instant};

use petrel_tests::{Address, Backend, Builder, SOON, Server, Speaks, Tree, eventually, skip};

use crate::gateway::{in_front_of, post};

/// A backend that returns how many bytes arrived.
fn counting(speaks: Speaks) -> Backend {
    Backend::start(speaks, |exchange| {
        exchange.read_body();
        let count = exchange.request().body_bytes.to_string();
        exchange.say(&count);
    })
}

fn with_mode(backend: &Backend, mode: u8) -> Builder {
    in_front_of(backend)
        .tree(|tree| {
            tree.directory("upload");
        })
        .config("server.upload-dirs = ( var.dir + \"/upload\" )")
        .config(&format!("server.stream-request-body = {mode}"))
}

#[test]
fn a_slow_uploader_does_not_hold_a_backend() {
    for speaks in Speaks::ALL {
        let backend = counting(speaks);
        let server = with_mode(&backend, 0).start();
        let mut client = server.client();
        // One body stays in memory, the other one goes to a file.
        for size in [1000, 300_000] {
            let request = post("/app/", &"x".repeat(size));
            let before = backend.requests().len();
            client.send(&request[..request.len() - 10]);
            std::thread::sleep(Duration::from_millis(60));
            assert_eq!(backend.requests().len(), before, "{speaks:?}, {size}");
            client.send(&request[request.len() - 10..]);
            assert_eq!(client.response().text(), size.to_string(), "{speaks:?}");
        }
        assert_eq!(server.tree().names("upload"), Vec::<String>::new());
    }
}

#[test]
fn a_body_that_is_streamed_arrives_as_it_comes() {
    for speaks in Speaks::ALL {
        let backend = counting(speaks);
        for mode in [1, 2] {
            let server = with_mode(&backend, mode).start();
            let request = post("/app/", &"x".repeat(100_000));
            let before = backend.requests().len();
            let mut client = server.client();
            client.send(&request[..60_000]);
            backend.expect_requests(before + 1);
            let came = || backend.last().body_bytes > 40_000;
            assert!(
                eventually(came),
                "{speaks:?}, {mode}: {}",
                backend.last().body_bytes
            );
            client.send(&request[60_000..]);
            assert_eq!(client.response().text(), "100000", "{speaks:?}, {mode}");
        }
    }
}

#[test]
fn a_chunked_body_gets_the_length_that_a_protocol_needs() {
    let chunks = "5;ext=1\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: x\r\n\r\n";
    let request =
        format!("POST /app/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
    for speaks in Speaks::ALL {
        let backend = Backend::start(speaks, |exchange| {
            let body = exchange.read_body();
            exchange.answer(200, &[], body);
        });
        for mode in 0..3 {
            let server = with_mode(&backend, mode).start();
            let mut client = server.client();
            let (first, second) = request.split_at(request.len() - 20);
            client.send(first);
            std::thread::sleep(Duration::from_millis(10));
            client.send(second);
            let response = client.response();
            assert_eq!(
                response.text(),
                "hello world",
                "{speaks:?}, {mode}: {response}"
            );
            let asked = backend.last();
            if !matches!(speaks, Speaks::Http | Speaks::Ajp13) {
                assert_eq!(asked.param("CONTENT_LENGTH"), Some("11"), "{speaks:?}");
                assert_eq!(asked.param("HTTP_TRANSFER_ENCODING"), None, "{speaks:?}");
            }
            assert_eq!(asked.param("Trailer"), None, "trailers are dropped");
        }
    }
}

#[test]
fn who_expects_100_continue_gets_it() {
    for mode in 0..3 {
        let backend = counting(Speaks::FastCgi);
        let server = with_mode(&backend, mode)
            .config("server.max-request-size = 100")
            .start();
        let mut client = server.client();
        client.send(
            "POST /app/ HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        );
        let expected = "HTTP/1.1 100 Continue\r\n\r\n";
        assert_eq!(client.read_bytes(expected.len()), expected.as_bytes());
        client.send("hello");
        assert_eq!(client.response().text(), "5");
        assert_eq!(backend.last().param("HTTP_EXPECT"), None);
        // A body larger than max-request-size gets no 100, and the backend receives nothing.
        client.send(
            "POST /app/ HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\
             Content-Length: 500000\r\n\r\n",
        );
        let refused = client.response();
        assert_eq!((refused.status, refused.interim.len()), (413, 0));
        assert_eq!(backend.requests().len(), 1);
    }
}

#[test]
fn a_chunked_body_above_the_limit_is_413() {
    for mode in 0..3 {
        let backend = counting(Speaks::Scgi);
        let server = with_mode(&backend, mode)
            .config("server.max-request-size = 100")
            .start();
        let mut client = server.client();
        client.send("POST /app/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
        for _ in 0..8 {
            client.send(&chunk);
        }
        assert_eq!(client.response().status, 413);
        assert_eq!(server.tree().names("upload"), Vec::<String>::new());
        assert_eq!(backend.requests().len(), 0, "it would need a length");
    }
}

/// Sends a body until no bytes were accepted for `limit`. Returns how many were accepted.
fn push(server: &Server, total: u64, limit: Duration) -> u64 {
    let Address::Ip(address) = server.address() else {
        panic!("the main listener is TCP");
    };
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    stream.set_write_timeout(Some(limit)).expect("not zero");
    let head = format!("POST /app/ HTTP/1.1\r\nHost: a\r\nContent-Length: {total}\r\n\r\n");
    std::io::Write::write_all(&mut stream, head.as_bytes()).expect("a head fits");
    let piece = vec![b'x'; 1 << 16];
    let mut pushed = 0;
    while pushed < total {
        match std::io::Write::write(&mut stream, &piece) {
            Ok(count) => pushed += count as u64,
            Err(_) => break,
        }
    }
    pushed
}

/// It takes so long because clients push as much as they can, once for a second with each of three protocols.
#[test]
fn a_backend_that_does_not_read_slows_the_client_with_stream_request_body_2() {
    const TOTAL: u64 = 64 << 20;
    for speaks in [Speaks::FastCgi, Speaks::Http, Speaks::Scgi] {
        let backend = Backend::start(speaks, |exchange| {
            exchange.pause(SOON);
        });
        let server = with_mode(&backend, 2).start();
        let pushed = push(&server, TOTAL, Duration::from_secs(1));
        assert!(pushed < TOTAL / 2, "{speaks:?}: {pushed} bytes were taken");
        assert_eq!(server.tree().names("upload"), Vec::<String>::new());
        // With 1 the server accepts all of it.
        let server = with_mode(&backend, 1).start();
        assert!(push(&server, TOTAL, SOON) >= TOTAL, "{speaks:?}");
        drop(server);
    }
}

#[test]
fn row_42_a_full_disk_is_an_error_for_one_request_only() {
    let Some(small) = SmallDisk::mount() else {
        return;
    };
    let backend = counting(Speaks::FastCgi);
    let server = in_front_of(&backend)
        .config(&format!(
            "server.upload-dirs = ( \"{}\" )",
            small.tree.path("disk").display()
        ))
        .start();
    let mut other = server.client();
    for _ in 0..3 {
        let response = server.exchange(post("/app/", &"x".repeat(8 << 20)));
        assert!(matches!(response.status, 500 | 507), "{response}");
        assert_eq!(small.tree.names("disk"), Vec::<String>::new());
        assert_eq!(other.get("/").text(), "hello");
    }
    server.expect_log("No space left on device");
    assert_eq!(backend.requests().len(), 0);
    // A body that fits is accepted.
    let response = server.exchange(post("/app/", &"x".repeat(500_000)));
    assert_eq!(response.text(), "500000");
}

/// A mount with room for one mebibyte.
struct SmallDisk {
    tree: Tree,
}

impl SmallDisk {
    /// Returns `None` and prints a message if it cannot be mounted.
    fn mount() -> Option<SmallDisk> {
        let tree = Tree::new();
        tree.directory("disk");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(tree.path("disk"))
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(SmallDisk { tree });
        }
        skip(
            "row_42_a_full_disk_is_an_error_for_one_request_only",
            "a small disk cannot be mounted; that takes root",
        );
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The server may still have a file on it open for a moment.
        let path = self.tree.path("disk");
        let _ = Command::new("umount").arg("--lazy").arg(path).status();
    }
}

const TWO_GIB: u64 = 2 << 30;

/// Runs curl. Returns its output, and by how many bytes the server's memory grew at most meanwhile.
fn curl_and_memory(server: &Server, arguments: &[&str]) -> (String, u64) {
    let processes = server.processes();
    let before = processes.private_dirty_bytes();
    let mut child = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "600"])
        .args(arguments)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("curl is installed");
    let begin = Instant::now();
    let mut most = before;
    while child.try_wait().expect("it is our child").is_none() {
        most = most.max(processes.private_dirty_bytes());
        assert!(begin.elapsed() < Duration::from_secs(620), "curl hangs");
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("it has ended");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (text, most.saturating_sub(before))
}

/// The memory that a transfer of any size may take: two chunks of up to 6 MiB, and other work of the server.
const FLAT: u64 = 24 << 20;

/// It takes so long because two gigabytes pass twice through a program that is not optimised.
#[test]
fn an_upload_of_two_gib_keeps_memory_flat() {
    let backend = counting(Speaks::FastCgi);
    for mode in [0, 2] {
        let server = with_mode(&backend, mode)
            .file("source", "")
            .tree(|tree| {
                tree.set_length("source", TWO_GIB);
            })
            .config("server.max-request-size = 0")
            .start();
        let source = server.tree().path("source").display().to_string();
        let url = server.url("/app/");
        let arguments = ["-X", "POST", "-H", "Expect:", "-T", &source, &url];
        let (answer, grown) = curl_and_memory(&server, &arguments);
        assert_eq!(answer, TWO_GIB.to_string(), "{mode}");
        assert!(grown < FLAT, "{mode}: {grown} bytes more");
    }
}

/// It takes so long because two gigabytes pass twice through a program that is not optimised.
#[test]
fn a_download_of_two_gib_keeps_memory_flat() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        exchange.head(200, &[]);
        let piece = vec![b'x'; 65_528];
        let mut left = TWO_GIB;
        while left > 0 {
            let size = left.min(piece.len() as u64);
            exchange.body(&piece[..size as usize]);
            left -= size;
        }
        exchange.end();
    });
    for mode in [0, 2] {
        let server = with_mode(&backend, 0)
            .config(&format!("server.stream-response-body = {mode}"))
            .start();
        let url = server.url("/app/");
        let arguments = [
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %{size_download}",
            &url,
        ];
        let (answer, grown) = curl_and_memory(&server, &arguments);
        assert_eq!(answer, format!("200 {TWO_GIB}"), "{mode}");
        assert!(grown < FLAT, "{mode}: {grown} bytes more");
    }
}

/// It takes so long because 256 MiB go through files in both directions.
#[test]
fn what_is_held_is_in_files_and_not_in_memory() {
    let backend = Backend::start(Speaks::Scgi, |exchange| {
        let mut bytes = 0;
        while let Some(piece) = exchange.read_some() {
            bytes += piece.len();
        }
        exchange.head(200, &[("Content-Length", &bytes.to_string())]);
        let piece = vec![b'x'; 1 << 16];
        for _ in 0..bytes >> 16 {
            exchange.body(&piece);
        }
        exchange.end();
    });
    let server = with_mode(&backend, 0)
        .file("source", "")
        .tree(|tree| {
            tree.set_length("source", 256 << 20);
        })
        .start();
    let source = server.tree().path("source").display().to_string();
    let url = server.url("/app/");
    let arguments = [
        "-X",
        "POST",
        "-T",
        &source,
        "-o",
        "/dev/null",
        "-w",
        "%{size_download}",
        &url,
    ];
    let (answer, grown) = curl_and_memory(&server, &arguments);
    assert_eq!(answer, (256 << 20).to_string());
    assert!(grown < FLAT, "{grown} bytes more");
    assert!(eventually(|| server.tree().names("upload").is_empty()));
}
