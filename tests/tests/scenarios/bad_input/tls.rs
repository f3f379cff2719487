//! What a TLS port does with other protocols, and what a plain port does with TLS.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use petrel_tests::{
    PATIENCE, SOON, Server, Tree, eventually, free_port, is_installed, raise_descriptor_limit, run,
    skip,
};

use crate::crowd;

const NAME: &str = "petrel.example";

/// A server with a TLS port. Returns `None` and prints that the test is skipped if openssl, which makes the
/// certificate, is missing.
fn server(test: &str) -> Option<(Server, u16)> {
    if !is_installed("openssl") {
        skip(test, "there is no openssl");
        return None;
    }
    let (port, limit) = (free_port(), raise_descriptor_limit());
    let server = Server::build()
        .tree(certificate)
        .file("www/index.html", "hello")
        .config(&format!(
            r#"
            server.modules += ( "mod_openssl" )
            server.max-worker := 1
            server.max-fds = {limit}
            server.max-connections = {limit}
            debug.log-ssl-noise = "enable"
            $SERVER["socket"] == "127.0.0.1:{port}" {{
                ssl.engine = "enable"
                ssl.pemfile = var.dir + "/both.pem"
            }}
            "#
        ))
        .start();
    Some((server, port))
}

fn certificate(tree: &Tree) {
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout both.pem -out crt -days 30";
    let subject = format!("/CN={NAME}");
    let made = run(
        Command::new("openssl")
            .current_dir(tree.root())
            .args(words.split(' '))
            .args(["-subj", &subject]),
        PATIENCE,
    );
    assert!(made.status.success(), "{}", made.text());
    let both = [tree.text("both.pem"), tree.text("crt")].concat();
    tree.write("both.pem", both);
}

/// The first message of `openssl s_client`, in one record.
fn client_hello() -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let mut client = Command::new("openssl")
        .args(["s_client", "-servername", NAME, "-connect", &address])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl starts");
    let (mut stream, _) = listener.accept().expect("it connects");
    let mut hello = vec![0; 5];
    stream.read_exact(&mut hello).expect("a header");
    let length = usize::from(hello[3]) << 8 | usize::from(hello[4]);
    hello.resize(5 + length, 0);
    stream.read_exact(&mut hello[5..]).expect("a message");
    drop(stream);
    client.wait().expect("it ends");
    hello
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    stream.set_nodelay(true).expect("it can");
    stream
}

/// Everything that the server sends until it ends the connection.
fn said(mut stream: &TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    // A reset may follow an alert.
    let _ = stream.read_to_end(&mut said);
    said
}

/// The unencrypted alert that is all the server sends.
#[track_caller]
fn alert(stream: &TcpStream) -> u8 {
    match said(stream)[..] {
        [21, 3, _, 0, 2, 2, alert] => alert,
        ref other => panic!("no alert but {other:?}"),
    }
}

fn curl(port: u16, more: &[&str]) -> String {
    let url = format!("https://{NAME}:{port}/");
    let resolve = format!("{NAME}:{port}:127.0.0.1");
    let mut arguments = vec!["-k", "-s", "-m", "20", "--resolve", &resolve, &url];
    arguments.extend(more);
    petrel_tests::curl(&arguments).text()
}

#[test]
fn each_port_says_so_to_a_client_that_speaks_the_other_language() {
    let Some((server, port)) =
        server("each_port_says_so_to_a_client_that_speaks_the_other_language")
    else {
        return;
    };
    let mut stream = connect(port);
    stream
        .write_all(b"GET /secret HTTP/1.1\r\nHost: petrel.example\r\n\r\n")
        .expect("sent");
    let answer = String::from_utf8_lossy(&said(&stream)).into_owned();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    server.expect_log("the client speaks plain HTTP to a TLS port");
    let mut client = server.client();
    client.send(client_hello());
    assert_eq!(client.response().status, 400);
    server.expect_log("the client speaks TLS to a port without it");
    assert_eq!(curl(port, &[]), "hello");
}

#[test]
fn a_hello_in_pieces_is_one_and_a_byte_a_record_too() {
    let Some((_server, port)) = server("a_hello_in_pieces_is_one_and_a_byte_a_record_too") else {
        return;
    };
    let hello = client_hello();
    let records: Vec<u8> = hello[5..]
        .iter()
        .flat_map(|byte| [22, 3, 1, 0, 1, *byte])
        .collect();
    for (bytes, piece) in [
        (&hello, hello.len().div_ceil(100)),
        (&hello, 1),
        (&records, 600),
    ] {
        let mut stream = connect(port);
        for piece in bytes.chunks(piece) {
            stream.write_all(piece).expect("it reads");
        }
        let mut answer = [0; 6];
        stream.read_exact(&mut answer).expect("a ServerHello");
        assert_eq!((answer[0], answer[5]), (22, 2), "{answer:?}");
    }
}

#[test]
fn a_hello_that_is_none_gets_an_alert() {
    let Some((server, port)) = server("a_hello_that_is_none_gets_an_alert") else {
        return;
    };
    // From now on the worker has the file open.
    assert_eq!(curl(port, &[]), "hello");
    let before = server.holdings();
    let hello = client_hello();
    let at = hello
        .windows(NAME.len())
        .position(|bytes| bytes == NAME.as_bytes());
    let mut nul = hello.clone();
    nul[at.expect("the name is in it") + 6] = 0;
    // 64 KiB of a message, in records of the greatest length.
    let mut long = Vec::new();
    for (index, piece) in [0; 65_536].chunks(16_384).enumerate() {
        long.extend_from_slice(&[22, 3, 1, 0x40, 0]);
        let begin = long.len();
        long.extend_from_slice(piece);
        if index == 0 {
            long[begin..begin + 4].copy_from_slice(&[1, 0, 0xff, 0xf0]);
        }
    }
    let mut too_old = hello.clone();
    too_old[1] = 2;
    for (bytes, expected) in [(&nul, 47), (&long, 47), (&too_old, 70)] {
        let mut stream = connect(port);
        // The server may close before it has received everything.
        let _ = stream.write_all(bytes);
        assert_eq!(alert(&stream), expected);
    }
    // Cut off at many places.
    for length in [0, 1, 4, 5, 6, 60, hello.len() - 1] {
        let mut stream = connect(port);
        stream.write_all(&hello[..length]).expect("it reads");
        stream.shutdown(Shutdown::Write).expect("it can");
        assert_eq!(said(&stream), b"", "{length}");
    }
    assert_eq!(curl(port, &[]), "hello");
    server.expect_holdings(&before);
}

#[test]
fn renegotiation_is_refused() {
    let Some((_server, port)) = server("renegotiation_is_refused") else {
        return;
    };
    let mut client = Command::new("openssl")
        .args([
            "s_client",
            "-tls1_2",
            "-connect",
            &format!("127.0.0.1:{port}"),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl starts");
    let mut input = client.stdin.take().expect("a pipe");
    // The command of s_client for a renegotiation.
    input.write_all(b"R\n").expect("it reads");
    let begin = Instant::now();
    let ended = eventually(|| client.try_wait().expect("it is ours").is_some());
    drop(input);
    assert!(ended && begin.elapsed() < SOON);
    let output = client.wait_with_output().expect("it ended");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("RENEGOTIATING") || !output.status.success(),
        "{said}"
    );
    assert_eq!(curl(port, &["--tls-max", "1.2"]), "hello");
}

/// Far more clients than the server handles at once begin a handshake and then send nothing.
/// It takes the time that the server waits for the end of a handshake.
#[test]
fn thousands_of_handshakes_that_are_not_finished_cost_other_clients_nothing() {
    let _crowd = crowd();
    let Some((server, port)) =
        server("thousands_of_handshakes_that_are_not_finished_cost_other_clients_nothing")
    else {
        return;
    };
    // The server uses half of its descriptors for connections, and other clients need some.
    let count = (raise_descriptor_limit() / 2 - 100).min(HALF_OPEN);
    // From now on the worker has the file open.
    assert_eq!(curl(port, &[]), "hello");
    let before = server.holdings();
    let memory = server.processes().resident_bytes();
    let hello = client_hello();
    let begin = Instant::now();
    let begun: Vec<TcpStream> = (0..count)
        .map(|index| {
            let mut stream = connect(port);
            // Some have sent most of their message, some nothing.
            let length = if index % 3 == 0 { 0 } else { hello.len() - 1 };
            stream.write_all(&hello[..length]).expect("it reads");
            stream
        })
        .collect();
    let mut times: Vec<Duration> = (0..9)
        .map(|_| {
            let asked = Instant::now();
            assert_eq!(curl(port, &[]), "hello");
            asked.elapsed()
        })
        .collect();
    times.sort_unstable();
    let more = server.processes().resident_bytes().saturating_sub(memory);
    println!("{count} half-open, {more} bytes more; others take {times:?}");
    assert!(times[4] < HANDSHAKE * 2 / 3, "{times:?}");
    assert!(more < count * HALF_OPEN_BYTES_MAX, "{more} bytes");
    let mut byte = [0];
    for mut stream in &begun {
        assert!(matches!(stream.read(&mut byte), Ok(0) | Err(_)));
    }
    // The time for a handshake, and some time for the test to notice.
    assert!(begin.elapsed() < HANDSHAKE + SOON);
    drop(begun);
    server.expect_holdings(&before);
}

/// How long the server waits for the end of a handshake. Clients that had to wait for those that never end
/// theirs would be answered after that time.
const HANDSHAKE: Duration = Duration::from_secs(15);

const HALF_OPEN: u64 = 10_000;

/// Memory per connection: its message, and what waits for the rest of it.
const HALF_OPEN_BYTES_MAX: u64 = 6 * 1024;
