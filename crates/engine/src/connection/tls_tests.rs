//! Connections that speak TLS, with clients of rustls in a thread.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream as ClientStream;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use petrel_config::Diagnostic;
use petrel_config::schema::DirectiveSpec;
use petrel_proto::hpack::{HpackDecoder, HpackEncoder, write_literal};
use petrel_proto::http2::{
    AfterFrame, FRAME_HEADER_BYTES, PREFACE, Setting, kind, write_headers, write_settings,
    write_window_update,
};
use petrel_proto::status::Status;
use rcgen::{CertificateParams, KeyPair};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use tokio::net::UnixStream;

use super::*;
use crate::body::Body;
use crate::exchange::Exchange;
use crate::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use crate::testing::Site;
use crate::tls::{RefuseClient, TlsHost};

/// Two hosts with their own certificates, one that shares the first certificate, and one that requires client
/// certificates.
const CONFIG: &str = r#"
server.tag = "a.example"
$HTTP["host"] == "b.example" { server.tag = "b.example" }
$HTTP["host"] == "strict.example" { server.tag = "strict.example" }
"#;

static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_tls_of_a_test",
    doc: "For tests.",
    loaded: Loaded::Always,
    directives: &[] as &[DirectiveSpec],
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let tag = configure.values.string("server.tag").unwrap_or("a.example");
    let is_strict = tag == "strict.example";
    let name = if is_strict { "a.example" } else { tag };
    let config = server_config(name);
    configure.speak_tls(Rc::new(TlsHost {
        choose: Box::new(move |_| Ok(Arc::clone(&config))),
        certificate_id: name.len() as u64 + u64::from(name.as_bytes()[0]),
        client_rule_id: u64::from(is_strict),
        refuse_client: is_strict.then(|| {
            let refuse: Box<RefuseClient> = Box::new(|shown| match shown {
                [] => Err("it has no certificate"),
                _ => Ok(()),
            });
            refuse
        }),
    }));
    configure.add(Phase::Translate, Echo);
    Ok(())
}

/// Answers `/` with the scheme of the request and the name from the ClientHello, and `/N` with N bytes.
struct Echo;

impl Hook for Echo {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if !exchange.request.body.is_complete() {
            return Outcome::NeedBody;
        }
        let path = String::from_utf8_lossy(exchange.request.url.path()).into_owned();
        let body = match path[1..].parse::<usize>() {
            Ok(length) => (0..length).map(|index| index as u8).collect(),
            Err(_) => {
                let tls = exchange.tls().expect("it is TLS");
                let name = tls.server_name.as_deref().unwrap_or("-");
                let sent = exchange.request.body.bytes().unwrap_or_default().len();
                format!("{} {name} {sent}", exchange.scheme().as_str()).into_bytes()
            }
        };
        exchange.response.answer(Status::OK);
        exchange.response.body = Body::from(body);
        Outcome::Answer
    }
}

struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: Vec<u8>,
}

fn identity(name: &str) -> &'static Identity {
    static IDENTITIES: OnceLock<[Identity; 2]> = OnceLock::new();
    let identities = IDENTITIES.get_or_init(|| {
        ["a.example", "b.example"].map(|name| {
            let key = KeyPair::generate().expect("a key");
            let names = [
                name.to_owned(),
                "other.example".to_owned(),
                "strict.example".to_owned(),
            ];
            let params = CertificateParams::new(names).expect("names");
            let certificate = params.self_signed(&key).expect("a certificate");
            Identity {
                chain: vec![certificate.der().clone()],
                key: key.serialize_der(),
            }
        })
    });
    &identities[usize::from(name == "b.example")]
}

fn server_config(name: &str) -> Arc<ServerConfig> {
    let Identity { chain, key } = identity(name);
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(&[&TLS13, &TLS12]);
    let builder = builder.expect("versions").with_no_client_auth();
    let key = PrivatePkcs8KeyDer::from(key.clone());
    let mut config = builder
        .with_single_cert(chain.clone(), key.into())
        .expect("they belong together");
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = aws_lc_rs::Ticketer::new().expect("a ticketer");
    Arc::new(config)
}

type Client = StreamOwned<ClientConnection, ClientStream>;

fn client(
    socket: ClientStream,
    name: &str,
    version: &'static rustls::SupportedProtocolVersion,
) -> Client {
    client_of(socket, name, version, &[])
}

fn client_of(
    socket: ClientStream,
    name: &str,
    version: &'static rustls::SupportedProtocolVersion,
    protocols: &[&[u8]],
) -> Client {
    let mut roots = RootCertStore::empty();
    for name in ["a.example", "b.example"] {
        roots.add(identity(name).chain[0].clone()).expect("a root");
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_webpki_verifier(verifier.build().expect("roots"))
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a configuration");
    StreamOwned::new(connection, socket)
}

/// Runs `client` in a thread with a socket to a connection of a site. Ends when both have ended.
async fn serve<T: Send + 'static>(client: impl FnOnce(ClientStream) -> T + Send + 'static) -> T {
    let site = Site::new(CONFIG, &[&MODULE]);
    let worker = site.worker();
    worker.shared().take_permit_over_limit();
    let (ours, theirs) = ClientStream::pair().expect("two sockets");
    theirs
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("a time");
    ours.set_nonblocking(true).expect("it can");
    let socket = ClientSocket::unix(UnixStream::from_std(ours).expect("registered"));
    let listener = Rc::new(ListenerFacts::new("/test.sock".to_owned(), 0));
    let connection = Connection::new(worker, socket, Peer::Unix, &listener);
    let served = tokio::task::spawn_local(connection);
    let client = thread::spawn(move || client(theirs));
    let in_time = tokio::time::timeout(Duration::from_secs(60), served).await;
    in_time
        .expect("the connection ends")
        .expect("it does not panic");
    assert_eq!(worker.handshakes.get(), 0);
    let counts = worker.shared().tls_counts().all();
    assert_eq!(counts[0].1 + counts[2].1, 1, "{counts:?}");
    client.join().expect("the client is content")
}

/// Reads a response: its head, and its body by Content-Length.
fn answer(client: &mut impl Read) -> (String, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("text");
    let length = head.split("Content-Length: ").nth(1).expect("a length");
    let length = length
        .split("\r\n")
        .next()
        .and_then(|length| length.parse().ok());
    let mut body = vec![0; length.expect("a number")];
    client.read_exact(&mut body).expect("a body");
    (head, body)
}

fn get(client: &mut Client, path: &str, host: &str, more: &str) -> (String, Vec<u8>) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n");
    client.write_all(request.as_bytes()).expect("it reads");
    answer(client)
}

#[tokio::test(flavor = "local")]
async fn requests_are_answered_one_after_the_other_and_the_end_is_said() {
    for version in [&TLS13, &TLS12] {
        serve(move |socket| {
            let mut client = client(socket, "b.example", version);
            let (head, body) = get(&mut client, "/", "b.example", "");
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            assert_eq!(body, b"https b.example 0");
            for length in [1, 4096, 100_000, 3_000_000] {
                let (_, body) = get(&mut client, &format!("/{length}"), "b.example", "");
                assert!(
                    body.len() == length
                        && body
                            .iter()
                            .zip(0..)
                            .all(|(byte, index)| *byte == index as u8)
                );
            }
            get(&mut client, "/5", "b.example", "Connection: close\r\n");
            // Without close_notify this read would return an error.
            assert_eq!(client.read(&mut [0]).expect("an end in good order"), 0);
        })
        .await;
    }
}

/// RFC 8446 section 6.1: each side says its end, also the one that was told first.
#[tokio::test(flavor = "local")]
async fn the_end_of_a_persistent_connection_is_answered_with_an_end() {
    for version in [&TLS13, &TLS12] {
        serve(move |socket| {
            let mut client = client(socket, "b.example", version);
            get(&mut client, "/5", "b.example", "");
            client.conn.send_close_notify();
            client.flush().expect("it reads");
            assert_eq!(client.read(&mut [0]).expect("an end in good order"), 0);
        })
        .await;
    }
}

#[tokio::test(flavor = "local")]
async fn request_bodies_of_many_records_come_whole() {
    for version in [&TLS13, &TLS12] {
        serve(move |socket| {
            let mut client = client(socket, "a.example", version);
            for length in [1_usize, 16_384, 700_000] {
                let head = format!(
                    "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {length}\r\n\r\n"
                );
                client.write_all(head.as_bytes()).expect("it reads");
                for piece in vec![7; length].chunks(3000) {
                    client.write_all(piece).expect("it reads");
                }
                let (_, body) = answer(&mut client);
                assert_eq!(body, format!("https a.example {length}").into_bytes());
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "local")]
async fn a_request_for_another_host_gets_421_if_its_certificates_are_others() {
    let statuses = serve(|socket| {
        let mut client = client(socket, "a.example", &TLS13);
        let mut status = |host: &str| {
            let (head, _) = get(&mut client, "/", host, "");
            head[9..12].to_owned()
        };
        ["a.example", "other.example", "b.example"].map(&mut status)
    })
    .await;
    assert_eq!(statuses, ["200", "200", "421"]);
}

#[tokio::test(flavor = "local")]
async fn a_rule_for_clients_is_not_got_round_by_another_name() {
    let status = serve(|socket| {
        let mut client = client(socket, "a.example", &TLS13);
        get(&mut client, "/", "strict.example", "").0
    })
    .await;
    assert!(status.starts_with("HTTP/1.1 421 "), "{status}");
}

#[tokio::test(flavor = "local")]
async fn a_session_without_the_certificate_that_is_required_is_closed() {
    serve(|socket| {
        let mut client = client(socket, "strict.example", &TLS13);
        let sent = client.write_all(b"GET / HTTP/1.1\r\nHost: strict.example\r\n\r\n");
        assert!(sent.is_err() || client.read(&mut [0]).is_err());
    })
    .await;
}

#[tokio::test(flavor = "local")]
async fn plain_http_to_a_tls_port_gets_400_in_the_clear() {
    let said = serve(|mut socket| {
        socket
            .write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
            .expect("it reads");
        let mut said = String::new();
        socket.read_to_string(&mut said).expect("an answer");
        said
    })
    .await;
    assert!(said.starts_with("HTTP/1.1 400 "), "{said}");
}

#[tokio::test(flavor = "local")]
async fn what_is_neither_tls_nor_http_ends_the_connection() {
    for bytes in [
        &b"\0\0\0\0\0\0\0\0\0\0"[..],
        b"\x16\x03\x01\0\x05\x02\0\0\0\0",
    ] {
        serve(move |mut socket| {
            socket.write_all(bytes).expect("it reads");
            let mut said = Vec::new();
            socket.read_to_end(&mut said).expect("an end");
            assert!(said.len() <= 7, "{said:?}");
        })
        .await;
    }
}

#[tokio::test(flavor = "local")]
async fn a_client_may_send_its_hello_a_byte_at_a_time() {
    serve(|socket| {
        let mut client = client(socket, "a.example", &TLS13);
        let mut hello = Vec::new();
        client.conn.write_tls(&mut hello).expect("memory takes it");
        for byte in hello {
            client.sock.write_all(&[byte]).expect("it reads");
        }
        let (_, body) = get(&mut client, "/", "a.example", "");
        assert_eq!(body, b"https a.example 0");
    })
    .await;
}

#[tokio::test(flavor = "local")]
async fn a_client_that_leaves_in_the_middle_is_let_go() {
    for version in [&TLS13, &TLS12] {
        serve(|mut socket| {
            socket.write_all(b"\x16\x03").expect("it reads");
        })
        .await;
        serve(move |socket| {
            let mut client = client(socket, "a.example", version);
            client
                .write_all(b"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 9\r\n\r\nabc")
                .expect("it reads");
            client.flush().expect("it reads");
        })
        .await;
    }
}

/// The status of the HTTP/2 response to a GET for `host` on stream `id`.
fn status_by_http2(client: &mut Client, id: u32, host: &str) -> String {
    let mut out = Vec::new();
    if id == 1 {
        out.extend_from_slice(PREFACE);
        write_settings(&mut out, &[]);
    }
    let (mut encoder, mut block) = (HpackEncoder::new(), Vec::new());
    encoder.begin(&mut block);
    for (name, value) in [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", host),
        (":path", "/"),
    ] {
        write_literal(&mut block, name.as_bytes(), value.as_bytes());
    }
    write_headers(&mut out, id, &block, AfterFrame::EndOfStream, 16_384);
    client.write_all(&out).expect("it reads");
    loop {
        let mut header = [0; FRAME_HEADER_BYTES];
        client.read_exact(&mut header).expect("a frame");
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let mut payload = vec![0; length as usize];
        client.read_exact(&mut payload).expect("all of it");
        let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
        if header[3] == kind::HEADERS && stream == id {
            let mut status = String::new();
            // Statuses without a static index may refer to the dynamic table; those of the first heads do
            // not.
            let _ = HpackDecoder::new(4096).decode(&payload, &mut |line| {
                if line.name == b":status" {
                    status = String::from_utf8_lossy(line.value).into_owned();
                }
            });
            return status;
        }
    }
}

/// Requests `length` bytes by HTTP/2, and reads the response only when `begins` says so. Returns the received
/// frames.
fn read_late(client: &mut Client, length: usize, begins: &Receiver<()>) -> Vec<u8> {
    let mut out = PREFACE.to_vec();
    write_settings(&mut out, &[Setting::InitialWindowSize(1 << 20)]);
    write_window_update(&mut out, 0, 1 << 20);
    let (mut encoder, mut block) = (HpackEncoder::new(), Vec::new());
    encoder.begin(&mut block);
    let path = format!("/{length}");
    for (name, value) in [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a.example"),
        (":path", &path),
    ] {
        write_literal(&mut block, name.as_bytes(), value.as_bytes());
    }
    write_headers(&mut out, 1, &block, AfterFrame::EndOfStream, 16_384);
    client.write_all(&out).expect("it reads");
    begins.recv().expect("it begins");
    let mut said = Vec::new();
    // The server cuts the connection.
    let _ = client.read_to_end(&mut said);
    said
}

/// The number of DATA bytes in `frames`.
fn data_bytes(mut frames: &[u8]) -> usize {
    let mut bytes = 0;
    while let Some(header) = frames.first_chunk::<FRAME_HEADER_BYTES>() {
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        if header[3] == kind::DATA {
            bytes += length;
        }
        let end = (FRAME_HEADER_BYTES + length).min(frames.len());
        frames = &frames[end..];
    }
    bytes
}

#[tokio::test(flavor = "local")]
async fn a_stream_is_complete_when_the_kernel_has_all_of_its_records() {
    let (mut is_first, mut incomplete) = (true, 0);
    // The first response fits into the socket. After it come responses whose last bytes wait in the TLS
    // session.
    for length in (120_000..800_000).step_by(12_000) {
        let site = Site::new(CONFIG, &[&MODULE]);
        let worker = site.worker();
        worker.shared().take_permit_over_limit();
        let (ours, theirs) = ClientStream::pair().expect("two sockets");
        ours.set_nonblocking(true).expect("it can");
        let socket = ClientSocket::unix(UnixStream::from_std(ours).expect("registered"));
        let listener = Rc::new(ListenerFacts::new("/test.sock".to_owned(), 0));
        let connection = Connection::new(worker, socket, Peer::Unix, &listener);
        let served = tokio::task::spawn_local(connection);
        let (begin, begins) = mpsc::channel();
        let client = thread::spawn(move || {
            let mut client = client_of(theirs, "a.example", &TLS13, &[b"h2"]);
            read_late(&mut client, length, &begins)
        });
        while worker.handshakes.get() > 0 || worker.shared().tls_counts().all()[0].1 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        let count = || {
            worker.publish_counts();
            worker.shared().requests()
        };
        while std::mem::take(&mut is_first) && count() == 0 {
            is_first = true;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let is_complete = count() == 1;
        served.abort();
        let _ = served.await;
        begin.send(()).expect("it waits");
        let said = client.join().expect("it reads");
        match is_complete {
            true => assert_eq!(data_bytes(&said), length),
            false => incomplete += 1,
        }
        if incomplete == 8 {
            return;
        }
    }
    panic!("the socket takes all");
}

#[tokio::test(flavor = "local")]
async fn http2_is_spoken_if_that_was_agreed_on_and_each_stream_is_for_the_host_of_the_connection() {
    for version in [&TLS13, &TLS12] {
        serve(move |socket| {
            let mut client = client_of(socket, "a.example", version, &[b"h2"]);
            assert_eq!(status_by_http2(&mut client, 1, "a.example"), "200");
        })
        .await;
        for host in ["strict.example", "b.example"] {
            serve(move |socket| {
                let mut client = client_of(socket, "a.example", version, &[b"h2"]);
                assert_eq!(status_by_http2(&mut client, 1, host), "421", "{host}");
            })
            .await;
        }
    }
}
