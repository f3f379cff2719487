//! A session and a client of rustls in one process, and `openssl s_client`.

use std::io::{IoSlice, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use petrel_proto::client_hello::ClientHello;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, RootCertStore, ServerConfig,
    SupportedProtocolVersion,
};

use super::*;
use crate::limits;

const HOST: &str = "www.example.org";
const NOW_S: u32 = 1000;
const BOTH: Versions = &[&TLS13, &TLS12];
const ONLY_12: Versions = &[&TLS12];
const ONLY_13: Versions = &[&TLS13];
const EACH: [Versions; 2] = [ONLY_13, ONLY_12];

type Versions = &'static [&'static SupportedProtocolVersion];

struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Identity {
    fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key().into()
    }
}

/// An authority, a server and a client of it.
struct Authority {
    roots: Arc<RootCertStore>,
    server: Identity,
    server_rsa: Identity,
    client: Identity,
}

fn authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(|| {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(issuer.der().clone()).unwrap();
        let identity = |name: &str, key: KeyPair| {
            let params = CertificateParams::new([name.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            Identity {
                chain: vec![certificate.der().clone(), issuer.der().clone()],
                key: PrivatePkcs8KeyDer::from(key.serialize_der()),
            }
        };
        Authority {
            roots: Arc::new(roots),
            server: identity(HOST, KeyPair::generate().unwrap()),
            server_rsa: identity(
                HOST,
                KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap(),
            ),
            client: identity("client.example.org", KeyPair::generate().unwrap()),
        }
    })
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

struct Options {
    versions: Versions,
    wants_client: bool,
    identity: &'static Identity,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            versions: BOTH,
            wants_client: false,
            identity: &authority().server,
        }
    }
}

fn server_config(options: &Options) -> Arc<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(options.versions).unwrap();
    let builder = match options.wants_client {
        true => {
            let roots = Arc::clone(&authority().roots);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
        false => builder.with_no_client_auth(),
    };
    let chain = options.identity.chain.clone();
    let mut config = builder
        .with_single_cert(chain, options.identity.key())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = aws_lc_rs::Ticketer::new().unwrap();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Arc::new(config)
}

fn client_config(versions: Versions, shows_certificate: bool) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(versions).unwrap();
    let roots = Arc::clone(&authority().roots);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
    let builder = builder.with_webpki_verifier(verifier.unwrap());
    let mut config = match shows_certificate {
        true => {
            let client = &authority().client;
            builder.with_client_auth_cert(client.chain.clone(), client.key())
        }
        false => Ok(builder.with_no_client_auth()),
    }
    .unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

/// A session and what its worker has, and how the network treats what it says.
struct Server {
    session: TlsSession,
    buffers: TlsBuffers,
    plain: Vec<u8>,
    config: Arc<ServerConfig>,
    /// Bytes that arrive at once.
    step: usize,
    /// Bytes that the socket takes at once.
    takes: usize,
    received: Vec<u8>,
    is_end: bool,
}

impl Server {
    fn new(config: &Arc<ServerConfig>) -> Server {
        Server {
            session: TlsSession::default(),
            buffers: TlsBuffers::default(),
            plain: vec![0; limits::RECEIVE_BUFFER_BYTES],
            config: Arc::clone(config),
            step: usize::MAX,
            takes: usize::MAX,
            received: Vec::new(),
            is_end: false,
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), TlsError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = self.session.read_room(&mut self.buffers);
            let count = rest.len().min(self.step).min(room.len());
            room[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            let config = Arc::clone(&self.config);
            let choose = |_: &ClientHello| Ok(Arc::clone(&config));
            let (session, buffers) = (&mut self.session, &mut self.buffers);
            let received = session.receive(count, buffers, &mut self.plain, &choose)?;
            self.received
                .extend_from_slice(&self.plain[..received.bytes]);
            self.is_end |= received.is_end;
        }
        Ok(())
    }

    /// What one write after the other takes.
    fn written(&mut self) -> Vec<Vec<u8>> {
        let mut writes = Vec::new();
        loop {
            let outgoing = self.session.outgoing(&mut self.buffers);
            let count = outgoing.bytes().len().min(self.takes);
            if count == 0 {
                return writes;
            }
            writes.push(outgoing.bytes()[..count].to_vec());
            outgoing.wrote(count);
        }
    }

    fn send(&mut self, head: &[u8], body: &[u8]) -> Vec<Vec<u8>> {
        let mut writes = Vec::new();
        let (mut head, mut body) = (head, body);
        while !head.is_empty() || !body.is_empty() {
            let (session, buffers) = (&mut self.session, &mut self.buffers);
            let outgoing = session
                .encrypt(
                    &[IoSlice::new(head), IoSlice::new(body)],
                    usize::MAX,
                    NOW_S,
                    buffers,
                )
                .unwrap();
            let taken = outgoing.taken();
            let count = outgoing.bytes().len().min(self.takes);
            assert!(taken > 0 || count > 0, "it goes on");
            writes.push(outgoing.bytes()[..count].to_vec());
            outgoing.wrote(count);
            let of_head = taken.min(head.len());
            head = &head[of_head..];
            body = &body[taken - of_head..];
        }
        writes.extend(self.written());
        writes
    }
}

struct Pair {
    client: ClientConnection,
    server: Server,
}

impl Pair {
    fn new(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Pair {
        let name = ServerName::try_from(HOST).unwrap();
        Pair {
            client: ClientConnection::new(Arc::clone(client), name).unwrap(),
            server: Server::new(server),
        }
    }

    fn of(versions: Versions) -> Pair {
        let client = Arc::new(client_config(versions, false));
        Pair::new(&client, &server_config(&Options::default()))
    }

    /// Moves bytes until both are silent.
    fn drive(&mut self) -> Result<(), TlsError> {
        loop {
            let mut to_server = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut to_server).unwrap();
            }
            let received = self.server.receive(&to_server);
            let writes = self.server.written();
            self.client_reads(&writes.concat());
            received?;
            if to_server.is_empty() && writes.is_empty() {
                return Ok(());
            }
        }
    }

    fn client_reads(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            self.client.read_tls(&mut rest).unwrap();
            let _ = self.client.process_new_packets();
        }
    }

    /// What the client has of `bytes` after it has read them.
    fn client_takes(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        while !bytes.is_empty() {
            self.client.read_tls(&mut bytes).unwrap();
            self.client.process_new_packets().unwrap();
            let _ = self.client.reader().read_to_end(&mut plain);
        }
        plain
    }

    fn client_says(&mut self, bytes: &[u8]) -> Result<(), TlsError> {
        self.client.writer().write_all(bytes).unwrap();
        self.drive()
    }

    fn facts(&self) -> TlsFacts<'_> {
        self.server.session.facts().expect("the handshake is done")
    }

    /// A request, and an answer of head and body.
    fn exchange(&mut self) {
        self.client_says(REQUEST).unwrap();
        assert_eq!(std::mem::take(&mut self.server.received), REQUEST);
        let body = vec![b'x'; 100_000];
        let writes = self.server.send(b"HTTP/1.1 200 OK\r\n\r\n", &body);
        let answer = self.client_takes(&writes.concat());
        assert_eq!(answer, [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &body].concat());
    }
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: www.example.org\r\n\r\n";

/// The alert that `bytes` are, if they are one in the clear.
fn alert(bytes: &[u8]) -> Option<AlertDescription> {
    match bytes {
        [21, 3, 3, 0, 2, 2, alert] => Some(AlertDescription::from(*alert)),
        _ => None,
    }
}

#[test]
fn versions_and_what_is_known_of_them() {
    for (versions, version, cipher, bits) in [
        (ONLY_13, TlsVersion::Tls13, "TLS_AES_256_GCM_SHA384", 256),
        (
            ONLY_12,
            TlsVersion::Tls12,
            "ECDHE-ECDSA-AES256-GCM-SHA384",
            256,
        ),
    ] {
        let mut pair = Pair::of(versions);
        assert!(pair.server.session.facts().is_none());
        pair.drive().unwrap();
        let facts = pair.facts();
        assert_eq!(
            (facts.version, facts.cipher, facts.cipher_bits),
            (version, cipher, bits)
        );
        assert_eq!(facts.alpn, Some(&b"http/1.1"[..]));
        assert_eq!(facts.server_name, Some(HOST));
        assert!(facts.client_certificates.is_empty() && !facts.is_resumed);
        pair.exchange();
    }
}

#[test]
fn the_key_exchange_is_safe_from_quantum_computers_by_default() {
    let mut pair = Pair::of(BOTH);
    pair.drive().unwrap();
    assert_eq!(pair.facts().group, Some("X25519MLKEM768"));
}

#[test]
fn an_rsa_certificate_works_too() {
    let options = Options {
        identity: &authority().server_rsa,
        ..Options::default()
    };
    let client = Arc::new(client_config(ONLY_12, false));
    let mut pair = Pair::new(&client, &server_config(&options));
    pair.drive().unwrap();
    assert_eq!(pair.facts().cipher, "ECDHE-RSA-AES256-GCM-SHA384");
    pair.exchange();
}

#[test]
fn tickets_resume_a_session_with_its_client() {
    for versions in EACH {
        let options = Options {
            wants_client: true,
            ..Options::default()
        };
        let server = server_config(&options);
        let client = Arc::new(client_config(versions, true));
        for is_resumed in [false, true, true] {
            let mut pair = Pair::new(&client, &server);
            pair.drive().unwrap();
            let facts = pair.facts();
            assert_eq!(facts.is_resumed, is_resumed);
            assert_eq!(facts.client_certificates, authority().client.chain);
            pair.exchange();
        }
        // Another configuration has other keys.
        let mut pair = Pair::new(&client, &server_config(&options));
        pair.drive().unwrap();
        assert!(!pair.facts().is_resumed);
    }
}

#[test]
fn a_client_without_its_certificate_is_refused() {
    for versions in EACH {
        let options = Options {
            wants_client: true,
            ..Options::default()
        };
        let client = Arc::new(client_config(versions, false));
        let mut pair = Pair::new(&client, &server_config(&options));
        let error = pair.drive().unwrap_err();
        let TlsError::Protocol(rustls::Error::NoCertificatesPresented) = error else {
            panic!("{error}");
        };
        assert_eq!(
            pair.client.process_new_packets().unwrap_err(),
            rustls::Error::AlertReceived(AlertDescription::CertificateRequired)
        );
    }
}

#[test]
fn bytes_come_and_go_in_any_pieces() {
    for versions in EACH {
        for wants_client in [false, true] {
            for (step, takes) in [
                (1, usize::MAX),
                (usize::MAX, 1),
                (1, 1),
                (7, 100),
                (1000, 3),
            ] {
                let options = Options {
                    wants_client,
                    ..Options::default()
                };
                let client = Arc::new(client_config(versions, wants_client));
                let mut pair = Pair::new(&client, &server_config(&options));
                (pair.server.step, pair.server.takes) = (step, takes);
                pair.drive().unwrap();
                pair.exchange();
            }
        }
    }
}

#[test]
fn a_handshake_may_be_cut_at_every_byte() {
    let server = server_config(&Options::default());
    for versions in EACH {
        let client = Arc::new(client_config(versions, false));
        let mut split = 0;
        loop {
            let mut pair = Pair::new(&client, &server);
            let mut first = Vec::new();
            pair.client.write_tls(&mut first).unwrap();
            if split > first.len() {
                break;
            }
            pair.server.receive(&first[..split]).unwrap();
            // Here a truncated one would end.
            assert!(!pair.server.session.is_established());
            assert!(pair.server.session.is_cut_off());
            pair.server.receive(&first[split..]).unwrap();
            let writes = pair.server.written().concat();
            pair.client_reads(&writes);
            let mut second = Vec::new();
            pair.client.write_tls(&mut second).unwrap();
            let at = split % second.len();
            pair.server.receive(&second[..at]).unwrap();
            assert!(!pair.server.session.is_established());
            pair.server.receive(&second[at..]).unwrap();
            pair.drive().unwrap();
            assert!(pair.server.session.is_established());
            split += 1;
        }
    }
}

#[test]
fn a_client_hello_in_a_hundred_pieces_or_in_one_byte_records_works() {
    for pieces in [100, usize::MAX] {
        let mut pair = Pair::of(BOTH);
        let mut hello = Vec::new();
        pair.client.write_tls(&mut hello).unwrap();
        let message = &hello[5..];
        let bytes = (message.len() / pieces).max(1);
        for piece in message.chunks(bytes) {
            let length = u16::try_from(piece.len()).unwrap().to_be_bytes();
            let record = [&[22, 3, 1][..], &length, piece].concat();
            pair.server.receive(&record).unwrap();
        }
        let writes = pair.server.written().concat();
        pair.client_reads(&writes);
        pair.drive().unwrap();
        pair.exchange();
    }
}

/// A client whose messages are in many records, with its certificate.
fn fragmenting_client(versions: Versions) -> Arc<ClientConfig> {
    let mut client = client_config(versions, true);
    client.max_fragment_size = Some(64);
    Arc::new(client)
}

#[test]
fn messages_of_the_handshake_come_in_many_records() {
    let options = Options {
        wants_client: true,
        ..Options::default()
    };
    let server = server_config(&options);
    for versions in EACH {
        for step in [1, 50, 100, usize::MAX] {
            let mut pair = Pair::new(&fragmenting_client(versions), &server);
            pair.server.step = step;
            pair.drive().unwrap();
            assert_eq!(pair.facts().client_certificates.len(), 2);
            pair.exchange();
        }
    }
}

/// rustls keeps offsets into the client's bytes that belong to an incomplete message.
/// It takes so long because a handshake begins anew for each byte of the client's message.
#[test]
fn an_error_in_the_middle_of_a_message_ends_the_session() {
    let options = Options {
        wants_client: true,
        ..Options::default()
    };
    let server = server_config(&options);
    for versions in EACH {
        let mut pair = Pair::new(&fragmenting_client(versions), &server);
        let hello = said_by(&mut pair.client);
        pair.server.receive(&hello).unwrap();
        let flight = pair.server.written().concat();
        pair.client_reads(&flight);
        let rest = said_by(&mut pair.client);
        for cut in 0..rest.len() {
            let mut pair = Pair::new(&fragmenting_client(versions), &server);
            let hello = said_by(&mut pair.client);
            pair.server.receive(&hello).unwrap();
            let flight = pair.server.written().concat();
            pair.client_reads(&flight);
            let mut rest = said_by(&mut pair.client);
            rest.truncate(cut);
            pair.server.receive(&rest).unwrap();
            rest.splice(.., [0xff; 300]);
            let result = pair.server.receive(&rest);
            // Behind the header of a record more of it may be waited for.
            if result.is_err() {
                // rustls has no alert for some errors of records.
                pair.server.written();
                pair.server.receive(&rest).unwrap();
                assert!(pair.server.written().is_empty());
            }
        }
    }
}

fn said_by(client: &mut ClientConnection) -> Vec<u8> {
    let mut said = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut said).unwrap();
    }
    said
}

#[test]
fn a_short_answer_is_one_record_and_one_write() {
    for versions in EACH {
        let mut pair = Pair::of(versions);
        pair.drive().unwrap();
        let writes = pair.server.send(&[b'h'; 300], &[b'b'; 4096]);
        let [write] = &writes[..] else {
            panic!("{} writes", writes.len());
        };
        assert_eq!(records(write).len(), 1);
        assert!(write.len() < 300 + 4096 + 40);
        assert_eq!(pair.client_takes(write).len(), 300 + 4096);
    }
}

/// The lengths of the records in `bytes`.
fn records(mut bytes: &[u8]) -> Vec<usize> {
    let mut lengths = Vec::new();
    while let [_, _, _, high, low, rest @ ..] = bytes {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        lengths.push(length);
        bytes = &rest[length..];
    }
    lengths
}

#[test]
fn first_records_fit_a_segment_and_later_ones_are_large() {
    let mut pair = Pair::of(BOTH);
    pair.drive().unwrap();
    let writes = pair.server.send(&[b'h'; 300], &vec![b'b'; 1 << 20]);
    let lengths = records(&writes.concat());
    assert!(lengths[0] + 5 <= 1391, "IPv6 with time stamps over PPPoE");
    assert!(lengths.iter().any(|&length| length > 16_384));
    assert!(writes.len() < 24, "{} writes", writes.len());
    let plain = pair.client_takes(&writes.concat());
    assert_eq!(plain.len(), 300 + (1 << 20));
}

#[test]
fn tickets_and_the_first_answer_are_one_write() {
    let mut pair = Pair::of(ONLY_13);
    let mut hello = Vec::new();
    pair.client.write_tls(&mut hello).unwrap();
    pair.server.receive(&hello).unwrap();
    let flight = pair.server.written();
    assert_eq!(
        flight.len(),
        1,
        "the server's part of the handshake is one write"
    );
    pair.client_reads(&flight.concat());
    pair.client.writer().write_all(REQUEST).unwrap();
    let mut rest = Vec::new();
    while pair.client.wants_write() {
        pair.client.write_tls(&mut rest).unwrap();
    }
    pair.server.receive(&rest).unwrap();
    assert_eq!(pair.server.received, REQUEST);
    let writes = pair.server.send(b"HTTP/1.1 200 OK\r\n\r\n", b"");
    assert_eq!(writes.len(), 1);
    assert_eq!(
        pair.client_takes(&writes.concat()),
        b"HTTP/1.1 200 OK\r\n\r\n"
    );
}

#[test]
fn what_a_socket_does_not_take_is_kept() {
    let mut pair = Pair::of(BOTH);
    pair.drive().unwrap();
    let Server {
        session, buffers, ..
    } = &mut pair.server;
    let first = session
        .encrypt(&[IoSlice::new(b"first ")], usize::MAX, NOW_S, buffers)
        .unwrap();
    assert_eq!(first.taken(), 6);
    let bytes = first.bytes().to_vec();
    drop(first);
    // Another session of the worker.
    let mut other = TlsSession::default();
    assert!(other.outgoing(buffers).bytes().is_empty());
    assert_eq!(session.outgoing(buffers).bytes(), bytes);
    session.outgoing(buffers).wrote(3);
    let both = session
        .encrypt(&[IoSlice::new(b"second")], usize::MAX, NOW_S, buffers)
        .unwrap();
    assert!(both.taken() == 6 && both.bytes().starts_with(&bytes[3..]));
    let rest = both.bytes().to_vec();
    both.wrote(rest.len());
    assert!(session.outgoing(buffers).bytes().is_empty());
    let all = [&bytes[..3], &rest].concat();
    assert_eq!(pair.client_takes(&all), b"first second");
}

#[test]
fn many_requests_come_at_once() {
    let mut pair = Pair::of(BOTH);
    pair.drive().unwrap();
    for _ in 0..200 {
        pair.client.writer().write_all(REQUEST).unwrap();
    }
    pair.drive().unwrap();
    assert_eq!(pair.server.received, REQUEST.repeat(200));
    let upload: Vec<u8> = (0..500_000).map(|index| index as u8).collect();
    pair.server.received.clear();
    for part in upload.chunks(50_000) {
        pair.client_says(part).unwrap();
    }
    assert!(pair.server.received == upload);
}

#[test]
fn keys_change_when_the_client_asks_for_it() {
    let mut pair = Pair::of(ONLY_13);
    pair.drive().unwrap();
    for step in [usize::MAX, 1, 20] {
        pair.server.step = step;
        pair.client.refresh_traffic_keys().unwrap();
        pair.exchange();
    }
}

#[test]
fn both_sides_say_that_they_end() {
    for versions in EACH {
        let mut pair = Pair::of(versions);
        pair.drive().unwrap();
        pair.client.writer().write_all(REQUEST).unwrap();
        pair.client.send_close_notify();
        pair.drive().unwrap();
        assert_eq!(pair.server.received, REQUEST);
        assert!(pair.server.is_end && !pair.server.session.is_cut_off());
        // It still gets its answer.
        let writes = pair.server.send(b"HTTP/1.1 200 OK\r\n\r\n", b"");
        assert_eq!(pair.client_takes(&writes.concat()).len(), 19);
        pair.server.session.say_end();
        pair.server.session.say_end();
        let end = pair.server.written().concat();
        assert_eq!(records(&end).len(), 1);
        let mut bytes = &end[..];
        pair.client.read_tls(&mut bytes).unwrap();
        let state = pair.client.process_new_packets().unwrap();
        assert!(state.peer_has_closed());
        let (session, buffers) = (&mut pair.server.session, &mut pair.server.buffers);
        let outgoing = session
            .encrypt(&[IoSlice::new(b"more")], usize::MAX, NOW_S, buffers)
            .unwrap();
        assert!(outgoing.taken() == 0 && outgoing.bytes().is_empty());
    }
}

/// A record of the client with `bytes`, changed on its way.
fn broken_record(client: &mut ClientConnection, bytes: &[u8]) -> Vec<u8> {
    client.writer().write_all(bytes).unwrap();
    let mut record = said_by(client);
    *record.last_mut().unwrap() ^= 1;
    record
}

#[test]
fn what_comes_after_the_end_is_said_is_dropped() {
    for versions in EACH {
        for step in [usize::MAX, 7] {
            let mut pair = Pair::of(versions);
            pair.drive().unwrap();
            pair.server.step = step;
            pair.client.writer().write_all(REQUEST).unwrap();
            let request = said_by(&mut pair.client);
            let broken = broken_record(&mut pair.client, REQUEST);
            pair.server.receive(&request[..8]).unwrap();
            pair.server.session.say_end();
            assert_eq!(records(&pair.server.written().concat()).len(), 1);
            for bytes in [&request[8..], &broken, &[0xff; 300]] {
                pair.server.receive(bytes).unwrap();
            }
            assert!(pair.server.received.is_empty());
            assert!(pair.server.written().is_empty());
        }
    }
}

#[test]
fn what_comes_before_a_broken_record_is_not_lost() {
    for versions in EACH {
        let mut pair = Pair::of(versions);
        pair.drive().unwrap();
        pair.client.writer().write_all(REQUEST).unwrap();
        let mut bytes = said_by(&mut pair.client);
        bytes.extend(broken_record(&mut pair.client, b"more"));
        pair.server.receive(&bytes).unwrap();
        assert_eq!(pair.server.received, REQUEST);
        let Server {
            session,
            buffers,
            plain,
            ..
        } = &mut pair.server;
        let choose = |_: &ClientHello| unreachable!("it is chosen");
        let error = session.receive(0, buffers, plain, &choose).unwrap_err();
        assert!(
            matches!(error, TlsError::Protocol(rustls::Error::DecryptError)),
            "{error}"
        );
        let silence = session.receive(0, buffers, plain, &choose).unwrap();
        assert!(silence.is_over && silence.bytes == 0);
        let said = pair.server.written().concat();
        assert_eq!(records(&said).len(), 1);
        pair.client_reads(&said);
        assert_eq!(
            pair.client.process_new_packets().unwrap_err(),
            rustls::Error::AlertReceived(AlertDescription::BadRecordMac)
        );
    }
}

#[test]
fn the_end_follows_a_change_of_keys() {
    let mut pair = Pair::of(ONLY_13);
    pair.drive().unwrap();
    pair.client.refresh_traffic_keys().unwrap();
    pair.drive().unwrap();
    pair.server.session.say_end();
    let mut end = &pair.server.written().concat()[..];
    pair.client.read_tls(&mut end).unwrap();
    let state = pair.client.process_new_packets().unwrap();
    assert!(state.peer_has_closed());
}

#[test]
fn a_budget_bounds_what_is_outgoing() {
    for budget in [0, 3000, 16 * 1024] {
        let mut pair = Pair::of(BOTH);
        pair.drive().unwrap();
        let body = vec![b'b'; 300_000];
        let mut rest = &body[..];
        let mut all = Vec::new();
        while !rest.is_empty() {
            let (session, buffers) = (&mut pair.server.session, &mut pair.server.buffers);
            let outgoing = session
                .encrypt(&[IoSlice::new(rest)], budget, NOW_S, buffers)
                .unwrap();
            let count = outgoing.bytes().len().min(1000);
            assert!(outgoing.bytes().len() <= budget.max(1500));
            all.extend_from_slice(&outgoing.bytes()[..count]);
            rest = &rest[outgoing.taken()..];
            outgoing.wrote(count);
        }
        all.extend(pair.server.written().concat());
        assert!(pair.client_takes(&all) == body);
    }
}

#[test]
fn records_stay_large_for_a_client_that_reads_slowly() {
    let mut pair = Pair::of(BOTH);
    pair.drive().unwrap();
    pair.server.send(b"", &[b'b'; 200_000]);
    let (session, buffers) = (&mut pair.server.session, &mut pair.server.buffers);
    let body = [b'b'; 100_000];
    let mut now_s = NOW_S + 1;
    let mut rest = 0;
    let mut sizes = Vec::new();
    for index in 0..10 {
        let budget = 16 * 1024;
        let outgoing = session
            .encrypt(&[IoSlice::new(&body)], budget, now_s, buffers)
            .unwrap();
        sizes.extend(records(&outgoing.bytes()[rest..]));
        let all = outgoing.bytes().len();
        // All of it, or all but a few bytes, in turns.
        rest = 10 * ((index + 1) % 2);
        outgoing.wrote(all - rest);
        // The owner asks again as soon as all is written.
        now_s += limits::TLS_PAUSE_S * u32::from(rest > 0);
    }
    assert!(sizes.len() >= 5);
    assert!(sizes.iter().all(|&size| size > 16_000), "{sizes:?}");
    now_s += limits::TLS_PAUSE_S;
    let outgoing = session.encrypt(&[IoSlice::new(&body)], usize::MAX, now_s, buffers);
    let first = records(outgoing.unwrap().bytes())[0];
    assert!(first < limits::TLS_SMALL_RECORD_BYTES + 40);
}

#[test]
fn a_session_does_not_show_the_records_of_another() {
    let mut pair = Pair::of(BOTH);
    pair.drive().unwrap();
    let (session, buffers) = (&mut pair.server.session, &mut pair.server.buffers);
    let outgoing = session.encrypt(&[IoSlice::new(b"one")], usize::MAX, NOW_S, buffers);
    std::mem::forget(outgoing.unwrap());
    let mut other = TlsSession::default();
    assert!(other.outgoing(buffers).bytes().is_empty());
}

#[test]
fn configurations_that_a_session_cannot_serve_are_refused() {
    let changes: [fn(&mut ServerConfig); 2] = [
        |config| config.max_early_data_size = 1024,
        |config| config.max_fragment_size = Some(512),
    ];
    for change in changes {
        let mut config = Arc::unwrap_or_clone(server_config(&Options::default()));
        change(&mut config);
        let client = Arc::new(client_config(BOTH, false));
        let mut pair = Pair::new(&client, &Arc::new(config));
        let hello = said_by(&mut pair.client);
        let error = pair.server.receive(&hello).unwrap_err();
        assert!(matches!(error, TlsError::Configuration), "{error}");
        let said = pair.server.written().concat();
        assert_eq!(alert(&said), Some(AlertDescription::InternalError));
    }
}

#[test]
fn a_client_hello_has_room_whatever_comes_behind_it() {
    let mut pair = Pair::of(BOTH);
    let mut bytes = said_by(&mut pair.client);
    let room = pair.server.session.read_room(&mut pair.server.buffers);
    assert_eq!(room.len(), limits::RECEIVE_BUFFER_BYTES - 16 * 1024 - 5);
    bytes.resize(room.len(), 0);
    let error = pair.server.receive(&bytes).unwrap_err();
    assert!(matches!(error, TlsError::Protocol(_)), "{error}");
}

#[test]
fn a_message_that_is_too_long_is_an_alert_before_there_are_keys() {
    let options = Options {
        wants_client: true,
        ..Options::default()
    };
    let client = Arc::new(client_config(ONLY_12, true));
    let mut pair = Pair::new(&client, &server_config(&options));
    let hello = said_by(&mut pair.client);
    pair.server.receive(&hello).unwrap();
    pair.server.written();
    // The client's certificates.
    let mut message = vec![11, 0, 0xff, 0xf0];
    message.resize(3 * 16 * 1024, 0);
    let mut result = Ok(());
    for piece in message.chunks(16 * 1024) {
        let record = [&[22, 3, 3, 0x40, 0][..], piece].concat();
        result = result.and_then(|()| pair.server.receive(&record));
    }
    let error = result.unwrap_err();
    assert!(matches!(error, TlsError::TooLong), "{error}");
    let said = pair.server.written().concat();
    assert_eq!(alert(&said), Some(AlertDescription::IllegalParameter));
}

#[test]
fn the_configuration_is_chosen_by_the_client_hello() {
    let server = server_config(&Options::default());
    let mut pair = Pair::of(BOTH);
    let mut hello = Vec::new();
    pair.client.write_tls(&mut hello).unwrap();
    let Server {
        session,
        buffers,
        plain,
        ..
    } = &mut pair.server;
    session.read_room(buffers)[..hello.len()].copy_from_slice(&hello);
    let choose = |hello: &ClientHello| {
        assert_eq!(hello.server_name(), Some(HOST));
        assert!(hello.alpn().eq([&b"http/1.1"[..]]));
        Ok(Arc::clone(&server))
    };
    let received = session.receive(hello.len(), buffers, plain, &choose);
    assert_eq!(received.unwrap(), Received::default());
    pair.drive().unwrap();
    pair.exchange();
}

#[test]
fn the_chooser_may_refuse() {
    let mut pair = Pair::of(BOTH);
    let mut hello = Vec::new();
    pair.client.write_tls(&mut hello).unwrap();
    let Server {
        session,
        buffers,
        plain,
        ..
    } = &mut pair.server;
    session.read_room(buffers)[..hello.len()].copy_from_slice(&hello);
    let choose = |_: &ClientHello| Err(AlertDescription::UnrecognisedName);
    let refused = session.receive(hello.len(), buffers, plain, &choose);
    assert!(matches!(refused, Err(TlsError::Refused(_))));
    let said = pair.server.written().concat();
    assert_eq!(alert(&said), Some(AlertDescription::UnrecognisedName));
}

#[test]
fn nothing_in_common_is_an_alert() {
    let options = Options {
        versions: ONLY_13,
        ..Options::default()
    };
    let client = Arc::new(client_config(ONLY_12, false));
    let mut pair = Pair::new(&client, &server_config(&options));
    let error = pair.drive().unwrap_err();
    assert!(
        matches!(
            error,
            TlsError::Protocol(rustls::Error::PeerIncompatible(_))
        ),
        "{error}"
    );
    let told = pair.client.process_new_packets().unwrap_err();
    assert_eq!(
        told,
        rustls::Error::AlertReceived(AlertDescription::ProtocolVersion)
    );
}

#[test]
fn other_protocols_are_told_apart() {
    let server = server_config(&Options::default());
    for (bytes, expected) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], None),
        (b"\0\0\0\0", None),
        (&[22, 3, 1, 0x40, 1], Some(AlertDescription::RecordOverflow)),
        (
            &[21, 3, 1, 0, 2, 1, 0],
            Some(AlertDescription::UnexpectedMessage),
        ),
        (
            &[22, 3, 1, 0, 4, 1, 0, 0xff, 0xff],
            Some(AlertDescription::IllegalParameter),
        ),
    ] {
        let mut server = Server::new(&server);
        let error = server.receive(bytes).unwrap_err();
        assert!(matches!(error, TlsError::Hello(_)), "{error}");
        let said = server.written().concat();
        assert_eq!(alert(&said), expected);
        assert_eq!(said.is_empty(), expected.is_none());
        // Nothing more happens.
        server.receive(bytes).unwrap();
        assert!(server.written().is_empty());
    }
}

#[test]
fn garbage_ends_a_session_at_every_stage() {
    for versions in EACH {
        // After the server's flight.
        let mut pair = Pair::of(versions);
        let mut hello = Vec::new();
        pair.client.write_tls(&mut hello).unwrap();
        pair.server.receive(&hello).unwrap();
        pair.server.written();
        let error = pair.server.receive(
            &[23, 3, 3, 0, 30]
                .iter()
                .copied()
                .chain([9; 30])
                .collect::<Vec<_>>(),
        );
        assert!(matches!(error, Err(TlsError::Protocol(_))));
        assert!(!pair.server.written().is_empty(), "an alert");

        // When it is established: a record that was changed on its way.
        let mut pair = Pair::of(versions);
        pair.drive().unwrap();
        pair.client.writer().write_all(REQUEST).unwrap();
        let mut record = Vec::new();
        pair.client.write_tls(&mut record).unwrap();
        *record.last_mut().unwrap() ^= 1;
        let error = pair.server.receive(&record).unwrap_err();
        assert!(
            matches!(error, TlsError::Protocol(rustls::Error::DecryptError)),
            "{error}"
        );
        let said = pair.server.written().concat();
        pair.client_reads(&said);
        let told = pair.client.process_new_packets().unwrap_err();
        assert_eq!(
            told,
            rustls::Error::AlertReceived(AlertDescription::BadRecordMac)
        );
    }
}

/// Every byte of the client's part of a handshake is changed, one at a time. Nothing panics, and nothing is
/// established but what the client meant: some bytes are of no meaning.
#[test]
fn changed_bytes_of_a_handshake_do_no_harm() {
    let options = Options {
        wants_client: true,
        ..Options::default()
    };
    let server = server_config(&options);
    for versions in EACH {
        let client = Arc::new(client_config(versions, true));
        let mut position = 0;
        loop {
            let mut pair = Pair::new(&client, &server);
            pair.server.step = 300;
            let mut first = Vec::new();
            pair.client.write_tls(&mut first).unwrap();
            let first_bytes = first.len();
            if let Some(byte) = first.get_mut(position) {
                *byte ^= 1 << (position % 8);
            }
            let mut result = pair.server.receive(&first);
            let said = pair.server.written().concat();
            pair.client_reads(&said);
            let mut second = Vec::new();
            while pair.client.wants_write() {
                pair.client.write_tls(&mut second).unwrap();
            }
            if position >= first_bytes && result.is_ok() {
                let Some(byte) = second.get_mut(position - first_bytes) else {
                    break;
                };
                *byte ^= 1 << (position % 8);
                result = pair.server.receive(&second);
                let said = pair.server.written().concat();
                pair.client_reads(&said);
                if result.is_ok() && pair.server.session.is_established() {
                    // The version in a record's header means nothing.
                    pair.exchange();
                }
            }
            position += 13;
        }
    }
}

#[test]
fn renegotiation_is_refused() {
    // rustls does not ask for it, so the client's keys are taken out of it.
    let mut client = client_config(ONLY_12, false);
    client.enable_secret_extraction = true;
    let mut pair = Pair::new(&Arc::new(client), &server_config(&Options::default()));
    pair.drive().unwrap();
    let Pair { client, mut server } = pair;
    let secrets = client.dangerous_extract_secrets().unwrap();
    let (mut sequence, rustls::ConnectionTrafficSecrets::Aes256Gcm { key, iv }) = secrets.tx else {
        panic!("another cipher");
    };
    let mut seal = |content: u8, plain: &[u8]| {
        tls12_record(key.as_ref(), iv.as_ref(), &mut sequence, content, plain)
    };
    let hello = [
        &[1, 0, 0, 41, 3, 3][..],
        &[7; 32],
        &[0, 0, 2, 0xc0, 0x2c, 1, 0],
    ]
    .concat();
    server.receive(&seal(22, &hello)).unwrap();
    let said = server.written().concat();
    assert_eq!(records(&said).len(), 1, "a warning: no renegotiation");
    assert_eq!(said[0], 21);
    let error = server.receive(&seal(22, &hello)).unwrap_err();
    assert!(
        matches!(error, TlsError::Protocol(rustls::Error::PeerMisbehaved(_))),
        "{error}"
    );
}

/// A record of TLS 1.2 with AES-256-GCM (RFC 5288).
fn tls12_record(key: &[u8], iv: &[u8], sequence: &mut u64, content: u8, plain: &[u8]) -> Vec<u8> {
    use rustls::crypto::cipher::{
        AeadKey, Iv, OutboundChunks, OutboundPlainMessage, Tls12AeadAlgorithm,
    };
    let suite = aws_lc_rs::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384;
    let rustls::SupportedCipherSuite::Tls12(suite) = suite else {
        panic!("it is one of TLS 1.2");
    };
    let algorithm: &dyn Tls12AeadAlgorithm = suite.aead_alg;
    let key: [u8; 32] = key.try_into().unwrap();
    let iv = Iv::copy(iv);
    let explicit: Vec<u8> = iv.as_ref()[4..].to_vec();
    let mut encrypter = algorithm.encrypter(AeadKey::from(key), &iv.as_ref()[..4], &explicit);
    let message = OutboundPlainMessage {
        typ: content.into(),
        version: rustls::ProtocolVersion::TLSv1_2,
        payload: OutboundChunks::Single(plain),
    };
    let record = encrypter.encrypt(message, *sequence).unwrap();
    *sequence += 1;
    record.encode()
}

#[test]
fn openssl_talks_to_a_session() {
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("openssl is not installed: skipped");
        return;
    }
    let server = server_config(&Options::default());
    for (option, version) in [
        ("-tls1_3", TlsVersion::Tls13),
        ("-tls1_2", TlsVersion::Tls12),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut client = Command::new("openssl")
            .args([
                "s_client",
                "-quiet",
                "-connect",
                &address,
                "-servername",
                HOST,
            ])
            .args(["-alpn", "h2,http/1.1", option])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        client.stdin.as_mut().unwrap().write_all(REQUEST).unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        let mut server = Server::new(&server);
        while server.received.len() < REQUEST.len() {
            let mut bytes = [0; 4096];
            let count = socket.read(&mut bytes).unwrap();
            assert_ne!(count, 0);
            server.receive(&bytes[..count]).unwrap();
            socket.write_all(&server.written().concat()).unwrap();
        }
        assert_eq!(server.received, REQUEST);
        let facts = server.session.facts().unwrap();
        assert_eq!((facts.version, facts.alpn), (version, Some(&b"h2"[..])));
        assert_eq!(facts.server_name, Some(HOST));
        let body = vec![b'b'; 200_000];
        let writes = server.send(b"HTTP/1.1 200 OK\r\n\r\n", &body);
        socket.write_all(&writes.concat()).unwrap();
        server.session.say_end();
        socket.write_all(&server.written().concat()).unwrap();
        drop(client.stdin.take());
        let mut answer = Vec::new();
        client
            .stdout
            .take()
            .unwrap()
            .read_to_end(&mut answer)
            .unwrap();
        client.wait().unwrap();
        assert_eq!(answer, [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &body].concat());
    }
}
