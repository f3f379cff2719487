//! TLS to backends, which OpenSSL terminates.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use petrel_tests::{
    Authority, Backend, Builder, Deaf, Exchange, Response, Server, Speaks, TlsFront, TlsMode,
    free_port,
};

use crate::gateway::{OPTIONS, name};

const HOST: &str = "app.example.org";

/// A backend that returns what the URL asks for.
fn backend() -> Backend {
    Backend::start(Speaks::Http, answer)
}

fn answer(exchange: &mut Exchange<'_>) {
    match name(exchange) {
        "chunks" => {
            exchange.head(200, &[]);
            for piece in ["first", ", last."] {
                exchange.body(piece);
                exchange.pause(Duration::from_millis(5));
            }
            exchange.end();
        }
        "close" => {
            exchange.raw("HTTP/1.1 200 OK\r\n\r\nuntil the end");
            exchange.close();
        }
        "echo" => {
            let body = exchange.read_body();
            exchange.answer(200, &[], body);
        }
        "socket" => {
            exchange.raw(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nwelcome",
            );
            let came = exchange.receive(5);
            exchange.raw(&came);
            exchange.close();
        }
        _ => exchange.say("page"),
    }
}

/// The options of a host behind `front`, verified by `authority`.
fn options(front: &TlsFront, authority: &Authority) -> String {
    format!(
        "{}, \"tls\" => \"enable\", \"tls-name\" => \"{HOST}\", \"tls-ca-file\" => \"{}\"",
        front.host(),
        authority.file().display()
    )
}

/// A server whose backends have these options.
fn site(hosts: &[String]) -> Builder {
    let hosts: Vec<_> = hosts
        .iter()
        .map(|options| format!("( {options}, {OPTIONS} )"))
        .collect();
    Server::build()
        .file("www/index.html", "hello")
        .config("server.max-worker = 1\nserver.modules += ( \"mod_proxy\" )")
        .config(&format!(
            "proxy.server = ( \"/app\" => ( {} ) )",
            hosts.join(", ")
        ))
}

fn post(server: &Server, body: &str) -> Response {
    let mut client = server.client();
    client.send(format!(
        "POST /app/echo HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    client.response()
}

#[test]
fn every_kind_of_request_goes_through_on_one_connection() {
    let authority = Authority::new();
    let identity = authority.identity(HOST);
    let backend = backend();
    for (mode, version, port) in [
        (TlsMode::Usual, "TLSv1.3", free_port()),
        (TlsMode::Tls12, "TLSv1.2", free_port()),
        (TlsMode::Usual, "TLSv1.3", 0),
    ] {
        let front = TlsFront::start_as(&backend, &identity, mode, None, port);
        let server = site(&[options(&front, &authority)]).start();
        let mut client = server.client();
        for _ in 0..20 {
            let response = client.get("/app/");
            assert_eq!((response.status, response.text().as_str()), (200, "page"));
            let response = client.get("/app/chunks");
            assert_eq!(
                (response.status, response.text().as_str()),
                (200, "first, last.")
            );
        }
        let body: String = (0..120_000).map(|number| format!("{number},")).collect();
        let response = post(&server, &body);
        assert!(
            response.status == 200 && response.text() == body,
            "{version}"
        );
        assert_eq!(post(&server, "short").text(), "short");
        let full = format!("full {version} {HOST} http/1.1 ");
        assert_eq!(front.handshakes(), [full.as_str()], "one for all requests");
        // The next connection resumes the session.
        let response = client.get("/app/close");
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, "until the end")
        );
        assert_eq!(client.get("/app/").text(), "page");
        let resumed = format!("resumed {version} {HOST} http/1.1 ");
        assert_eq!(front.handshakes(), [full, resumed]);
        assert!(!server.log().contains("(backend-"));
    }
}

#[test]
fn an_end_that_was_not_announced_makes_no_reply_complete() {
    let authority = Authority::new();
    let backend = backend();
    let identity = authority.identity(HOST);
    let front = TlsFront::start_as(&backend, &identity, TlsMode::Abrupt, None, free_port());
    let server = site(&[options(&front, &authority)]).start();
    assert_eq!(server.get("/app/close").status, 502);
    server.expect_log("closed the connection before its reply was complete");
    assert_eq!(server.get("/app/").text(), "page", "its length was known");
}

#[test]
fn a_backend_that_is_not_what_it_should_be_gets_no_request() {
    let (authority, other) = (Authority::new(), Authority::new());
    let backend = backend();
    for (identity, cause) in [
        (
            authority.identity("b.example"),
            "its certificate is not for \"app.example.org\" but for DnsName(\"b.example\")",
        ),
        (
            authority.expired_identity(HOST),
            "its certificate has expired",
        ),
        (
            other.identity(HOST),
            "the issuer of its certificate is unknown",
        ),
    ] {
        let front = TlsFront::start(&backend, &identity);
        let server = site(&[options(&front, &authority)]).start();
        assert_eq!(server.get("/app/").status, 502, "{cause}");
        server.expect_log(&format!(
            "the TLS handshake failed: {cause} backend=127.0.0.1:{}",
            front.port()
        ));
        server.expect_log("(backend-connect)");
        server.expect_log("not tried again for");
    }
    let in_the_clear = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = in_the_clear.local_addr().expect("bound").port();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = in_the_clear.accept().expect("the server connects");
        let _ = stream.read(&mut [0; 4096]).expect("a greeting");
        let refusal = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
        stream.write_all(refusal).expect("the server reads");
    });
    let server = site(&[format!(
        "\"host\" => \"127.0.0.1\", \"port\" => {port}, \"tls\" => \"enable\", \"tls-verify\" => \"disable\""
    )])
    .start();
    assert_eq!(server.get("/app/").status, 502);
    serving.join().expect("no panic");
    server.expect_log("the TLS handshake failed: it does not speak TLS");
    assert_eq!(backend.requests().len(), 0);
}

#[test]
fn another_backend_answers_for_one_that_cannot_be_verified() {
    let (authority, other) = (Authority::new(), Authority::new());
    let backend = backend();
    let bad = TlsFront::start(&backend, &other.identity(HOST));
    let good = TlsFront::start(&backend, &authority.identity(HOST));
    let hosts = [options(&bad, &authority), options(&good, &authority)];
    let server = site(&hosts).config("proxy.balance = \"static\"").start();
    assert_eq!(post(&server, "body").text(), "body");
    server.expect_log("issuer of its certificate is unknown");
}

#[test]
fn a_backend_may_demand_a_certificate() {
    let authority = Authority::new();
    let backend = backend();
    for mode in [TlsMode::Usual, TlsMode::Tls12] {
        let identity = authority.identity(HOST);
        let front = TlsFront::start_as(&backend, &identity, mode, Some(&authority), free_port());
        let options = options(&front, &authority);
        let server = site(std::slice::from_ref(&options)).start();
        assert_eq!(server.get("/app/").status, 502);
        server.expect_log(match mode {
            TlsMode::Tls12 => "it has refused: alert HandshakeFailure",
            _ => "it demands a client's certificate",
        });
        let client = authority.identity("client.example");
        let server = site(&[format!(
            "{options}, \"tls-cert\" => \"{}\", \"tls-key\" => \"{}\"",
            client.certificate.display(),
            client.key.display()
        )])
        .start();
        assert_eq!(server.get("/app/").text(), "page");
        let last = front.handshakes().pop().expect("a handshake");
        assert!(last.ends_with("commonName=client.example"), "{last}");
    }
}

#[test]
fn a_backend_may_start_anew() {
    let authority = Authority::new();
    let backend = backend();
    let identity = authority.identity(HOST);
    let front = TlsFront::start(&backend, &identity);
    let port = front.port();
    let server = site(&[options(&front, &authority) + ", \"disable-time\" => 0"]).start();
    let mut client = server.client();
    assert_eq!(client.get("/app/").text(), "page");
    drop(front);
    let front = TlsFront::start_as(&backend, &identity, TlsMode::Usual, None, port);
    assert_eq!(
        client.get("/app/").text(),
        "page",
        "the kept connection is gone"
    );
    assert_eq!(post(&server, "body").text(), "body");
    // The new program does not know the sessions of the previous one.
    assert!(front.handshakes()[0].starts_with("full "));
}

#[test]
fn a_handshake_has_the_time_of_a_connection() {
    let deaf = Deaf::new();
    let server = site(&[format!(
        "{}, \"tls\" => \"enable\", \"tls-name\" => \"a\", \"tls-verify\" => \"disable\", \"connect-timeout\" => 1",
        deaf.host()
    )])
    .start();
    assert_eq!(server.get("/app/").status, 504);
    server.expect_log("(backend-connect) connecting timed out");
}

#[test]
fn tunnels_go_through_tls() {
    let authority = Authority::new();
    let backend = backend();
    let front = TlsFront::start(&backend, &authority.identity(HOST));
    let server = site(&[options(&front, &authority) + ", \"upgrade\" => \"enable\""]).start();
    let mut client = server.client();
    client.send(
        "GET /app/socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    assert_eq!(client.response_to_head().status, 101);
    assert_eq!(client.read_bytes(7), b"welcome");
    client.send("hello");
    assert_eq!(client.read_to_end(), b"hello");
}

/// Requests go to the first of two backends, and the second one is only checked. It begins with a certificate that the
/// server does not trust: while its front is replaced, checks may fail for other reasons, which are not logged then.
#[test]
fn health_checks_speak_tls() {
    let authority = Authority::new();
    let (backend, checked) = (backend(), backend());
    let identity = authority.identity(HOST);
    let front = TlsFront::start(&backend, &identity);
    let unknown = Authority::new();
    let doubtful = TlsFront::start(&checked, &unknown.identity(HOST));
    let port = doubtful.port();
    let health = ", \"health-check-path\" => \"/health\", \"health-check-interval\" => 1";
    let hosts = [
        options(&front, &authority),
        options(&doubtful, &authority) + health,
    ];
    let server = site(&hosts).config("proxy.balance = \"static\"").start();
    assert_eq!(server.get("/app/").text(), "page");
    server.expect_log(
        "gets no requests until it answers: the TLS handshake failed: the issuer of its certificate",
    );
    drop(doubtful);
    let _front = TlsFront::start_as(&checked, &identity, TlsMode::Usual, None, port);
    server.expect_log("answers its health check again");
    let requests = checked.requests();
    let mut targets = requests.iter().map(|request| request.param("REQUEST_URI"));
    assert!(targets.any(|target| target == Some("/health")));
}

#[test]
fn the_header_of_the_proxy_protocol_is_in_front_of_tls() {
    let authority = Authority::new();
    let backend = backend();
    let identity = authority.identity(HOST);
    let front = TlsFront::start_as(&backend, &identity, TlsMode::Proxy, None, free_port());
    let server = site(&[options(&front, &authority) + ", \"proxy-protocol\" => 1"]).start();
    for _ in 0..2 {
        assert_eq!(server.get("/app/").text(), "page");
    }
    let handshakes = front.handshakes();
    assert_eq!(handshakes.len(), 2);
    for handshake in handshakes {
        assert!(
            handshake.contains("PROXY TCP4 127.0.0.1 127.0.0.1 "),
            "{handshake}"
        );
    }
}

#[test]
fn every_protocol_may_be_spoken_by_tls() {
    let authority = Authority::new();
    let identity = authority.identity(HOST);
    for speaks in Speaks::ALL {
        let backend = Backend::start(speaks, |exchange| {
            let body = exchange.read_body();
            exchange.answer(200, &[], body);
        });
        let front = TlsFront::start(&backend, &identity);
        let plain = backend.directive("/app", OPTIONS);
        let by_tls = plain.replace(&backend.host(), &options(&front, &authority));
        assert_ne!(plain, by_tls);
        let server = Server::build().config(&by_tls).start();
        assert_eq!(post(&server, "body").text(), "body", "{speaks:?}");
    }
}

#[test]
fn proxy_core_speaks_tls() {
    let authority = Authority::new();
    let backend = backend();
    let front = TlsFront::start(&backend, &authority.identity(HOST));
    let server = Server::build()
        .config(&format!(
            "proxy-core.protocol = \"http\"\nproxy-core.backends = ( \"127.0.0.1:{}\" )\n\
             proxy-core.tls = ( \"tls\" => \"enable\", \"tls-name\" => \"{HOST}\", \"tls-ca-file\" => \"{}\" )",
            front.port(),
            authority.file().display()
        ))
        .start();
    assert_eq!(server.get("/app/").text(), "page");
}

#[test]
fn a_reload_reads_the_files_again() {
    let (authority, other) = (Authority::new(), Authority::new());
    let backend = backend();
    let front = TlsFront::start(&backend, &authority.identity(HOST));
    let server = site(&[options(&front, &other)]).start();
    assert_eq!(server.get("/app/").status, 502);
    std::fs::copy(authority.file(), other.file()).expect("it is a file");
    server.signal(rustix::process::Signal::USR1);
    assert!(petrel_tests::eventually(
        || server.get("/app/").status == 200
    ));
}

#[test]
fn without_verification_there_is_a_warning() {
    let backend = backend();
    let front = TlsFront::start(&backend, &Authority::new().identity(HOST));
    let server = site(&[format!(
        "{}, \"tls\" => \"enable\", \"tls-verify\" => \"disable\"",
        front.host()
    )])
    .start();
    server.expect_log("NOT VERIFIED");
    assert_eq!(server.get("/app/").text(), "page");
}

/// The message of `-tt` about a backend with these options.
fn refusal(options: &str, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(petrel_tests::petrel());
    command.envs(environment.iter().copied());
    let options = format!("\"host\" => \"127.0.0.1\", \"tls\" => \"enable\", {options}");
    let finished = site(std::slice::from_ref(&options)).check_as(command, &["-tt"]);
    assert_ne!(finished.code(), 0, "{options}");
    finished.errors
}

#[test]
fn files_that_are_of_no_use_are_told_at_the_start() {
    let authority = Authority::new();
    let (one, two) = (authority.identity("one"), authority.identity("two"));
    let [ca, certificate, key, other] = [&authority.file(), &one.certificate, &one.key, &two.key]
        .map(|path| path.display().to_string());
    for (options, message) in [
        (format!("\"tls-ca-file\" => \"{ca}.gone\""), "tls-ca-file: "),
        (format!("\"tls-ca-file\" => \"{key}\""), "no certificate"),
        ("\"tls-ca-file\" => \"/\"".to_owned(), "is a directory"),
        (
            format!("\"tls-cert\" => \"{certificate}\""),
            "no private key",
        ),
        (
            format!("\"tls-cert\" => \"{certificate}\", \"tls-key\" => \"{other}\""),
            "does not belong",
        ),
    ] {
        let told = refusal(&options, &[]);
        let message = message.trim_start_matches("tls-ca-file: ");
        assert!(
            told.contains(message) && told.contains(".conf:"),
            "{options}: {told}"
        );
    }
    let told = refusal(
        "\"weight\" => 1",
        &[
            ("SSL_CERT_FILE", "/nonexistent"),
            ("SSL_CERT_DIR", "/nonexistent"),
        ],
    );
    assert!(
        told.contains("trusts no certificate") && told.contains("ca-certificates"),
        "{told}"
    );
}
