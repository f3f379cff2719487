//! How much memory an idle TLS session takes, and what a request allocates. A program of its own, because the
//! test counts the allocations of the whole process.

use std::io::IoSlice;
use std::io::Write;
use std::sync::Arc;

use petrel_engine::tls::{TlsBuffers, TlsSession};
use petrel_proto::client_hello::ClientHello;
use petrel_sys::counting_allocator::{CountingAllocator, allocations, bytes_in_use, this_thread};
use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::version::TLS12;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const SESSIONS: usize = 50;
/// All that belongs to one session: the session itself, rustls's connection, keys.
const IDLE_BYTES_MAX: usize = 3 * 1024;
/// A session whose client does not answer also holds the state of the handshake.
const HALF_OPEN_BYTES_MAX: usize = 8 * 1024;
/// rustls allocates one buffer for decryption and one for encryption.
const ALLOCATIONS_PER_REQUEST: u64 = 2;

struct Worker {
    buffers: TlsBuffers,
    plain: Vec<u8>,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Worker {
    fn new() -> Worker {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["www.example.org".to_owned()]).unwrap();
        let certificate: CertificateDer<'static> = params.self_signed(&key).unwrap().into();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let server = builder
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key.into());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let client = builder.with_root_certificates(roots).with_no_client_auth();
        let mut server = server.unwrap();
        server.ticketer = aws_lc_rs::Ticketer::new().unwrap();
        Worker {
            buffers: TlsBuffers::default(),
            plain: vec![0; 65_536],
            server: Arc::new(server),
            client: Arc::new(client),
        }
    }

    fn client(&self) -> ClientConnection {
        let name = ServerName::try_from("www.example.org").unwrap();
        ClientConnection::new(Arc::clone(&self.client), name).unwrap()
    }

    fn receive(&mut self, session: &mut TlsSession, bytes: &[u8]) -> usize {
        session.read_room(&mut self.buffers)[..bytes.len()].copy_from_slice(bytes);
        let choose = |_: &ClientHello| Ok(Arc::clone(&self.server));
        let buffers = &mut self.buffers;
        let received = session.receive(bytes.len(), buffers, &mut self.plain, &choose);
        received.unwrap().bytes
    }

    fn write_all(&mut self, session: &mut TlsSession, mut to: impl FnMut(&[u8])) {
        let outgoing = session.outgoing(&mut self.buffers);
        to(outgoing.bytes());
        let count = outgoing.bytes().len();
        outgoing.wrote(count);
    }

    /// Moves bytes between client and session until both have nothing left to send.
    fn shake_hands(&mut self, session: &mut TlsSession, client: &mut ClientConnection) {
        loop {
            let said = said_by(client);
            self.receive(session, &said);
            let mut is_silent = said.is_empty();
            self.write_all(session, |mut bytes| {
                is_silent &= bytes.is_empty();
                while !bytes.is_empty() {
                    client.read_tls(&mut bytes).unwrap();
                    client.process_new_packets().unwrap();
                }
            });
            if is_silent {
                assert!(session.is_established());
                return;
            }
        }
    }

    fn answer(&mut self, session: &mut TlsSession, request: &[u8]) {
        assert_eq!(self.receive(session, request), 300);
        let (head, body) = ([b'h'; 250], [b'b'; 4096]);
        let buffers = &mut self.buffers;
        let outgoing = session
            .encrypt(
                &[IoSlice::new(&head), IoSlice::new(&body)],
                usize::MAX,
                1000,
                buffers,
            )
            .unwrap();
        assert_eq!(outgoing.taken(), head.len() + body.len());
        let count = outgoing.bytes().len();
        outgoing.wrote(count);
    }
}

fn said_by(client: &mut ClientConnection) -> Vec<u8> {
    let mut said = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut said).unwrap();
    }
    said
}

fn requests(client: &mut ClientConnection, count: usize) -> Vec<Vec<u8>> {
    let mut request = || {
        client.writer().write_all(&[b'r'; 300]).unwrap();
        said_by(client)
    };
    (0..count).map(|_| request()).collect()
}

/// How many bytes dropping one of `dropped` frees.
fn bytes_of<T>(dropped: Vec<T>) -> usize {
    let before = bytes_in_use();
    let count = dropped.len();
    drop(dropped);
    usize::try_from(before - bytes_in_use()).unwrap() / count
}

#[test]
fn a_session_that_waits_holds_no_buffers_and_a_request_makes_two() {
    let mut worker = Worker::new();
    let mut clients: Vec<ClientConnection> = (0..SESSIONS).map(|_| worker.client()).collect();

    let mut half_open = Vec::with_capacity(SESSIONS);
    for client in &mut clients {
        let mut session = TlsSession::default();
        worker.receive(&mut session, &said_by(client));
        worker.write_all(&mut session, |_| {});
        half_open.push(session);
    }
    let bytes = bytes_of(half_open);
    assert!(
        bytes <= HALF_OPEN_BYTES_MAX,
        "{bytes} bytes of one half-open"
    );

    let mut sessions = Vec::with_capacity(SESSIONS);
    for client in &mut clients {
        *client = worker.client();
        let mut session = TlsSession::default();
        worker.shake_hands(&mut session, client);
        for request in requests(client, 2) {
            worker.answer(&mut session, &request);
        }
        sessions.push(session);
    }

    let asked = requests(&mut clients[0], 100);
    let before = allocations()[this_thread()];
    for request in &asked {
        worker.answer(&mut sessions[0], request);
    }
    let allocated = allocations()[this_thread()] - before;
    assert_eq!(allocated, ALLOCATIONS_PER_REQUEST * asked.len() as u64);

    // The memory of a large response is freed while the client takes it.
    let begin = bytes_in_use();
    let buffers = &mut worker.buffers;
    let body = [b'b'; 60_000];
    drop(sessions[0].encrypt(&[IoSlice::new(&body)], usize::MAX, 1000, buffers));
    let kept = bytes_in_use() - begin;
    assert!((60_000..70_000).contains(&kept), "{kept} bytes");
    let count = sessions[0].outgoing(buffers).bytes().len();
    sessions[0].outgoing(buffers).wrote(count - 1000);
    let kept = bytes_in_use() - begin;
    assert!(kept <= 1000, "{kept} bytes");
    sessions[0].outgoing(buffers).wrote(1000);
    assert!(bytes_in_use() <= begin);

    let bytes = bytes_of(sessions);
    assert!(bytes <= IDLE_BYTES_MAX, "{bytes} bytes of one that is idle");

    bytes_behind_a_record_are_not_moved_with_it(&mut worker);
}

/// The client's message arrives in two records, the second one byte by byte.
fn bytes_behind_a_record_are_not_moved_with_it(worker: &mut Worker) {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let builder = builder.with_protocol_versions(&[&TLS12]).unwrap();
    let client = builder.with_root_certificates(RootCertStore::empty());
    worker.client = Arc::new(client.with_no_client_auth());
    let mut session = TlsSession::default();
    let hello = said_by(&mut worker.client());
    worker.receive(&mut session, &hello);
    worker.write_all(&mut session, |_| {});
    // The beginning of a ClientKeyExchange with 8,000 bytes.
    let first = [&[22, 3, 3, 0, 104, 16, 0, 0x1f, 0x40][..], &[0; 100]].concat();
    worker.receive(&mut session, &first);
    worker.receive(&mut session, &[22, 3, 3, 0x10, 0]);
    let before = allocations()[this_thread()];
    for _ in 0..4000 {
        worker.receive(&mut session, &[0]);
    }
    let allocated = allocations()[this_thread()] - before;
    assert!(allocated < 20, "{allocated} allocations");
}
