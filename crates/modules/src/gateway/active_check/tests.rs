use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::gateway::health::{BackendFault, Usability};

struct Backend {
    health: Health,
}

impl Checked for Backend {
    fn health(&self) -> &Health {
        &self.health
    }
}

fn backend() -> Arc<Backend> {
    let hour = Duration::from_secs(3600);
    let health = Health::new(hour, Duration::ZERO);
    Arc::new(Backend { health })
}

fn target(address: SocketAddress, protocol: Protocol, backend: &Arc<Backend>) -> CheckTarget {
    let weak: Weak<Backend> = Arc::downgrade(backend);
    CheckTarget {
        backend: weak,
        address,
        tls: None,
        protocol,
        check: HealthCheck {
            path: b"/health".to_vec(),
            interval: Duration::from_millis(1),
        },
        host: b"app.test".to_vec(),
        proxy_protocol: 0,
        log: LogHandle::default(),
    }
}

fn listener() -> (TcpListener, SocketAddress) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, SocketAddress::Ip(address))
}

/// A path for a unix socket. Unlike a port, no other process takes it while no test listens there.
fn path(name: &str) -> std::path::PathBuf {
    let name = format!("petrel-check-{}-{name}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path);
    path
}

fn nowhere() -> SocketAddress {
    SocketAddress::Unix(path("nowhere"))
}

/// Accepts one connection, answers it with `reply`, and returns the request.
fn answer_once(listener: TcpListener, reply: &'static [u8]) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut request = vec![0; 1024];
        let length = stream.read(&mut request).expect("a request");
        request.truncate(length);
        stream.write_all(reply).expect("it is read");
        request
    })
}

fn ask_now(target: &CheckTarget) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let limit = Duration::from_secs(60);
    let asked = async { time::timeout(limit, ask(target)).await };
    let asked = runtime.expect("a runtime").block_on(asked);
    let asked = asked.expect("the check ends");
    asked.map_err(|failure| match failure {
        CheckFailure::Backend(sentence) => sentence,
        CheckFailure::OwnShortage(error) => panic!("{error}"),
    })
}

fn ask_http(reply: &'static [u8]) -> (Result<(), String>, Vec<u8>) {
    let (listener, address) = listener();
    let server = answer_once(listener, reply);
    let result = ask_now(&target(address, Protocol::Http, &backend()));
    (result, server.join().expect("the server ends"))
}

fn wait_for(health: &Health, wanted: Usability) {
    wait_until(&format!("{wanted:?}"), || {
        health.usability(now_ms()) == wanted
    });
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn http_backends_are_sent_a_get() {
    let (result, request) = ask_http(b"HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(result, Ok(()));
    let expected = "GET /health HTTP/1.1\r\nHost: app.test\r\n\
        User-Agent: petrel-health-check\r\nConnection: close\r\n\r\n";
    assert_eq!(String::from_utf8_lossy(&request), expected);
}

#[test]
fn what_a_reply_says_is_what_counts() {
    let good: [&[u8]; 3] = [
        b"HTTP/1.0 200 OK\r\n\r\nfine",
        b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    ];
    for reply in good {
        assert_eq!(ask_http(reply).0, Ok(()), "{}", reply.escape_ascii());
    }
    let bad: [(&[u8], &str); 5] = [
        (b"HTTP/1.1 503 Busy\r\n\r\n", "it answers 503"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "it answers 404"),
        (b"", "the backend closed the connection without a response"),
        (
            b"HTTP/1.1 200 OK\r\n",
            "the backend closed the connection inside the head of the response",
        ),
        (
            b"220 mail.test ESMTP\r\n",
            "the response does not begin with HTTP/1.0 or HTTP/1.1",
        ),
    ];
    for (reply, reason) in bad {
        let result = ask_http(reply).0;
        assert_eq!(result, Err(reason.to_owned()), "{}", reply.escape_ascii());
    }
}

#[test]
fn a_head_without_end_is_not_read_for_ever() {
    let (listener, address) = listener();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX: ");
        let piece = [b'x'; 1024];
        let mut sent = 0;
        while stream.write_all(&piece).is_ok() {
            sent += 1;
        }
        sent
    });
    let result = ask_now(&target(address, Protocol::Http, &backend()));
    let reason = "the head of the response is too long";
    assert_eq!(result, Err(reason.to_owned()));
    server.join().expect("it is refused at some point");
}

#[test]
fn ajp13_is_asked_by_its_own_ping() {
    let (listener, address) = listener();
    let server = answer_once(listener, b"AB\0\x01\x09");
    assert_eq!(
        ask_now(&target(address, Protocol::Ajp13, &backend())),
        Ok(())
    );
    assert_eq!(server.join().expect("it ends"), [0x12, 0x34, 0, 1, 10]);
    let (listener, address) = self::listener();
    let server = answer_once(listener, b"HTTP/1.1 400 ");
    let result = ask_now(&target(address, Protocol::Ajp13, &backend()));
    assert!(result.is_err());
    server.join().expect("it ends");
}

#[test]
fn a_check_in_a_proxy_protocol_names_no_client() {
    for (version, prefix) in [
        (1, b"PROXY UNKNOWN\r\nGET ".as_slice()),
        (2, b"\r\n\r\n\0\r\nQUIT\n \0\0\0GET "),
    ] {
        let (listener, address) = listener();
        let server = answer_once(listener, b"HTTP/1.1 200 OK\r\n\r\n");
        let mut target = target(address, Protocol::Http, &backend());
        target.proxy_protocol = version;
        assert_eq!(ask_now(&target), Ok(()));
        let request = server.join().expect("it ends");
        assert!(request.starts_with(prefix), "{}", request.escape_ascii());
    }
}

#[test]
fn for_other_protocols_a_connection_is_enough() {
    let (_listener, address) = listener();
    for protocol in [Protocol::FastCgi, Protocol::Scgi, Protocol::Uwsgi] {
        let there = target(address.clone(), protocol, &backend());
        assert_eq!(ask_now(&there), Ok(()));
        assert!(ask_now(&target(nowhere(), protocol, &backend())).is_err());
    }
}

#[test]
fn a_full_queue_is_no_failure() {
    let path = path("full");
    let listener = UnixListener::bind(&path).expect("a socket");
    rustix::net::listen(&listener, 0).expect("a shorter queue");
    let address = SocketAddress::Unix(path.clone());
    let target = target(address, Protocol::FastCgi, &backend());
    let _first = std::os::unix::net::UnixStream::connect(&path).expect("room for one");
    assert_eq!(ask_now(&target), Ok(()));
    std::fs::remove_file(&path).expect("it was there");
    assert!(ask_now(&target).is_err());
}

#[test]
fn two_failures_take_a_backend_out_and_one_success_brings_it_back() {
    let backend = backend();
    let path = path("late");
    let address = SocketAddress::Unix(path.clone());
    let checker = Checker::start().expect("a thread");
    checker.run(target(address, Protocol::FastCgi, &backend).task());
    wait_for(&backend.health, Usability::Down);
    // The counter is increased after the state has changed.
    wait_until("it is counted", || {
        backend.health.counters(now_ms()).disabled == 1
    });
    let _listener = UnixListener::bind(&path).expect("a socket");
    wait_for(&backend.health, Usability::Ready);
    std::fs::remove_file(&path).expect("it was there");
}

#[test]
fn a_check_brings_back_what_a_request_took_out() {
    let backend = backend();
    let (_listener, address) = listener();
    backend.health.failed(now_ms(), BackendFault::Unreachable);
    let checker = Checker::start().expect("a thread");
    checker.run(target(address, Protocol::FastCgi, &backend).task());
    wait_for(&backend.health, Usability::Ready);
}

#[test]
fn checks_end_with_their_backend() {
    let backend = backend();
    let task = check_on(target(nowhere(), Protocol::FastCgi, &backend));
    drop(backend);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let limit = Duration::from_secs(60);
    let ended = runtime
        .expect("a runtime")
        .block_on(async { time::timeout(limit, task).await });
    assert_eq!(ended, Ok(()));
}

#[test]
fn the_host_field_is_what_a_client_would_send() {
    let tcp = |name: &str, port| HostAddress::Tcp(name.to_owned(), port);
    let expected = [
        (tcp("app.test", 80), "app.test"),
        (tcp("app.test", 8080), "app.test:8080"),
        (tcp("::1", 8080), "[::1]:8080"),
        (tcp("[::1]", 80), "[::1]"),
        (
            HostAddress::Srv("_http._tcp.app.test".to_owned()),
            "app.test",
        ),
        (HostAddress::Unix(b"/run/app".to_vec()), "localhost"),
    ];
    for (address, field) in expected {
        assert_eq!(host_field(&address, false), field);
    }
    assert_eq!(host_field(&tcp("app.test", 443), true), "app.test");
    assert_eq!(host_field(&tcp("app.test", 80), true), "app.test:80");
    assert_eq!(host_field(&tcp("app.test", 443), false), "app.test:443");
}
