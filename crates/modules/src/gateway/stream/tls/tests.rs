//! A stream, and a server of rustls in a thread.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use petrel_engine::rustls::crypto::aws_lc_rs;
use petrel_engine::rustls::pki_types::PrivatePkcs8KeyDer;
use petrel_engine::rustls::version::{TLS12, TLS13};
use petrel_engine::rustls::{
    ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion,
};
use petrel_engine::socket::Socket;
use petrel_engine::tls::{TlsName, TlsTrust};
use rcgen::{CertificateParams, KeyPair};

use super::*;
use crate::pem::root_store;

const HOST: &str = "app.example.org";
const EACH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

type Server = StreamOwned<ServerConnection, UnixStream>;

/// A certificate of its own, and what trusts it.
fn server_config(version: &'static SupportedProtocolVersion) -> (Arc<ServerConfig>, TlsServer) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new([HOST.to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("known")
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        );
    let (roots, _) = root_store(&[certificate.der().clone()]);
    let trust = TlsTrust::new(Some(Arc::new(roots)), None).expect("no key can be wrong");
    let name = TlsName::parse(HOST).expect("a name");
    (Arc::new(config.expect("a key")), trust.server(&name, None))
}

/// Connects to a thread that does with its end what `serve` says.
async fn connect<T: Send + 'static>(
    version: &'static SupportedProtocolVersion,
    serve: impl FnOnce(Server) -> T + Send + 'static,
) -> (io::Result<BackendStream>, JoinHandle<T>) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let (config, server) = server_config(version);
    let thread = std::thread::spawn(move || {
        let connection = ServerConnection::new(config).expect("a server");
        let mut stream = StreamOwned::new(connection, theirs);
        stream
            .conn
            .complete_io(&mut stream.sock)
            .expect("a handshake");
        serve(stream)
    });
    let socket = BackendStream::Unix(Socket::watched(ours.into()).expect("a socket"));
    let stream = TlsStream::connect(socket, &server, Vec::new()).await;
    (
        stream.map(|stream| BackendStream::Tls(Box::new(stream))),
        thread,
    )
}

async fn read(stream: &mut BackendStream) -> io::Result<Vec<u8>> {
    let mut buffer = [0; 1000];
    let count = poll_fn(|context| stream.poll_read(context, &mut buffer)).await?;
    Ok(buffer[..count].to_vec())
}

async fn write(stream: &mut BackendStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = poll_fn(|context| stream.poll_write(context, bytes)).await?;
        bytes = &bytes[count..];
    }
    poll_fn(|context| stream.poll_flush(context)).await
}

/// Until the worker's event loop has told of what the server did.
async fn until_stale(stream: &mut BackendStream) {
    for _ in 0..2000 {
        if stream.is_stale() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it has not been heard of");
}

/// Does what the test says, one thing after the other, and says when it is done.
fn on_command(commands: Receiver<&'static str>, done: Sender<()>) -> impl FnOnce(Server) + Send {
    move |mut server| {
        for command in commands {
            match command {
                "read" => server.read_exact(&mut [0; 3]).expect("three bytes"),
                "ticket" => {
                    server.conn.refresh_traffic_keys().expect("it is open");
                    server.flush().expect("the client reads");
                }
                "close" => {
                    server.conn.send_close_notify();
                    server.flush().expect("the client reads");
                }
                text => server.write_all(text.as_bytes()).expect("the client reads"),
            }
            done.send(()).expect("the test goes on");
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_kept_connection_survives_what_is_meant_for_tls_alone() {
    for (last, asks_kernel) in [
        ("close", true),
        ("unasked", true),
        ("close", false),
        ("unasked", false),
        ("", true),
        ("", false),
    ] {
        let (commands, receiver) = channel();
        let (sender, done) = channel();
        let (stream, server) = connect(&TLS13, on_command(receiver, sender)).await;
        let mut stream = stream.expect("a handshake");
        let tell = |command| {
            commands.send(command).expect("it listens");
            done.recv().expect("it is done");
        };
        write(&mut stream, b"ask").await.expect("it reads");
        tell("read");
        tell("answer");
        assert_eq!(read(&mut stream).await.expect("an answer"), b"answer");
        tell("ticket");
        // It has arrived, and only the kernel knows.
        assert!(!stream.is_stale_now());
        tell("ticket");
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!stream.is_stale() && !stream.is_stale_now());
        match last {
            "" => {
                drop(commands);
                server.join().expect("no panic");
            }
            last => tell(last),
        }
        match asks_kernel {
            true => assert!(stream.is_stale_now(), "{last}"),
            false => until_stale(&mut stream).await,
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_kept_connection_with_more_than_the_answer_is_stale() {
    let (stream, server) = connect(&TLS13, |mut server| {
        server.write_all(b"answer and more").expect("it reads");
        server
    })
    .await;
    let mut stream = stream.expect("a handshake");
    let mut buffer = [0; 6];
    let count = poll_fn(|context| stream.poll_read(context, &mut buffer)).await;
    assert_eq!(count.expect("an answer"), 6);
    assert!(stream.is_stale());
    drop(server.join().expect("no panic"));
}

#[tokio::test(flavor = "current_thread")]
async fn a_full_socket_is_waited_for_and_loses_nothing() {
    for version in EACH {
        let much: Vec<u8> = (0..3_000_000).map(|number| (number % 251) as u8).collect();
        let expected = much.clone();
        let (full, is_full) = channel::<()>();
        let (stream, server) = connect(version, move |mut server| {
            assert!(is_full.recv().is_err(), "the sender is dropped");
            let mut all = vec![0; 3_000_000];
            server.read_exact(&mut all).expect("all of it");
            server.write_all(b"heard").expect("it reads");
            all
        })
        .await;
        let mut stream = stream.expect("a handshake");
        let (mut taken, mut full) = (0, Some(full));
        while taken < much.len() {
            taken += poll_fn(|context| {
                let polled = stream.poll_write(context, &much[taken..]);
                if polled.is_pending() {
                    full = None;
                    assert!(stream.unsent() > 0);
                }
                polled
            })
            .await
            .expect("it reads");
        }
        // The rest is sent while the answer is read.
        assert_eq!(read(&mut stream).await.expect("an answer"), b"heard");
        assert_eq!(stream.unsent(), 0);
        assert!(server.join().expect("no panic") == expected);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn an_end_is_one_only_if_it_is_announced() {
    for version in EACH {
        for is_announced in [true, false] {
            let (stream, server) = connect(version, move |mut server| {
                server.write_all(b"half").expect("it reads");
                if is_announced {
                    server.conn.send_close_notify();
                    server.flush().expect("it reads");
                }
            })
            .await;
            let mut stream = stream.expect("a handshake");
            assert_eq!(read(&mut stream).await.expect("a half"), b"half");
            server.join().expect("no panic");
            match read(&mut stream).await {
                Ok(end) => assert!(end.is_empty() && is_announced),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
                    assert!(!is_announced);
                }
            }
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn the_server_is_told_of_the_end() {
    for version in EACH {
        for half in [true, false] {
            let (stream, server) = connect(version, |mut server| {
                server.write_all(b"hi").expect("it reads");
                let mut all = String::new();
                server.read_to_string(&mut all).map(|_| all)
            })
            .await;
            let mut stream = stream.expect("a handshake");
            assert_eq!(read(&mut stream).await.expect("a greeting"), b"hi");
            write(&mut stream, b"all").await.expect("it reads");
            if half {
                stream.shutdown_write();
            } else {
                drop(stream);
            }
            let heard = server.join().expect("no panic");
            assert_eq!(heard.expect("an announced end"), "all");
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_server_that_breaks_the_handshake_off_is_told() {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair");
    let (_, server) = server_config(&TLS13);
    let thread = std::thread::spawn(move || theirs.read(&mut [0; 4000]).map(drop));
    let socket = BackendStream::Unix(Socket::watched(ours.into()).expect("a socket"));
    let failed = TlsStream::connect(socket, &server, Vec::new()).await;
    let error = failed.expect_err("no handshake");
    assert!(HandshakeFailure::is(&error));
    thread.join().expect("no panic").expect("a greeting");
    let text = error.to_string();
    assert!(
        text == "it closed the connection" || text.contains("reset"),
        "{text}"
    );
}
