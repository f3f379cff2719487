//! A client and a server of rustls in one process.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::{ServerConfig, ServerConnection, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{HandshakeKind, SupportedProtocolVersion};

use super::*;

const HOST: &str = "app.example.org";
const EACH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];

struct Authority {
    roots: Arc<RootCertStore>,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

fn authority() -> Authority {
    authority_named("petrel's test authority")
}

fn authority_named(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
    let mut roots = RootCertStore::empty();
    roots.add(issuer.der().clone()).expect("it is one");
    Authority {
        roots: Arc::new(roots),
        issuer,
    }
}

fn name(text: &str) -> TlsName {
    TlsName::parse(text).expect("a name")
}

impl Authority {
    fn identity(&self, change: impl FnOnce(&mut CertificateParams)) -> ClientIdentity {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([HOST.to_owned()]).expect("a name");
        change(&mut params);
        let issuer: &Issuer<'_, KeyPair> = &self.issuer;
        let certificate = params.signed_by(&key, issuer).expect("signed");
        ClientIdentity {
            certificates: vec![certificate.der().clone()],
            key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        }
    }

    fn server(&self, version: &'static SupportedProtocolVersion) -> Arc<ServerConfig> {
        self.server_with(version, self.identity(|_| {}), false)
    }

    fn server_with(
        &self,
        version: &'static SupportedProtocolVersion,
        identity: ClientIdentity,
        wants_client: bool,
    ) -> Arc<ServerConfig> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_protocol_versions(&[version]).expect("known");
        let roots = Arc::clone(&self.roots);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
        let builder = match wants_client {
            true => builder.with_client_cert_verifier(verifier.build().expect("roots")),
            false => builder.with_no_client_auth(),
        };
        let made = builder.with_single_cert(identity.certificates, identity.key);
        let mut config = made.expect("a certificate and its key");
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.send_tls13_tickets = 2;
        Arc::new(config)
    }

    fn trust(&self) -> TlsTrust {
        TlsTrust::new(Some(Arc::clone(&self.roots)), None).expect("no key can be wrong")
    }

    fn asked(&self) -> TlsServer {
        self.trust().server(&name(HOST), Some(b"http/1.1"))
    }
}

/// A client and a server, and how many bytes the network brings at once.
struct Pair {
    client: TlsClient,
    server: ServerConnection,
    step: usize,
    /// What the client has read.
    read: Vec<u8>,
    /// The client has read an announced end.
    is_end: bool,
}

impl Pair {
    fn new(asked: &TlsServer, config: &Arc<ServerConfig>) -> Pair {
        Pair {
            client: asked.client(Vec::new()).expect("random numbers"),
            server: ServerConnection::new(Arc::clone(config)).expect("a server"),
            step: usize::MAX,
            read: Vec::new(),
            is_end: false,
        }
    }

    /// Until both have nothing to say.
    fn drive(&mut self) -> io::Result<()> {
        loop {
            let mut is_quiet = true;
            while !self.client.unsent().is_empty() {
                is_quiet = false;
                let count = self.client.unsent().len().min(self.step);
                let mut bytes = &self.client.unsent()[..count];
                while !bytes.is_empty() {
                    self.server.read_tls(&mut bytes).expect("there is room");
                    self.server.process_new_packets().expect("a sound client");
                }
                self.client.sent(count);
            }
            let mut bytes = Vec::new();
            while self.server.wants_write() {
                self.server.write_tls(&mut bytes).expect("memory");
            }
            for piece in bytes.chunks(self.step.min(20_000)) {
                is_quiet = false;
                self.client.receive(piece)?;
                self.read()?;
            }
            if is_quiet {
                return Ok(());
            }
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 7000];
        while let Some(count) = self.client.read(&mut buffer)? {
            self.is_end = count == 0;
            if self.is_end {
                return Ok(());
            }
            self.read.extend_from_slice(&buffer[..count]);
        }
        Ok(())
    }

    fn server_sends(&mut self, bytes: &[u8]) {
        self.server.set_buffer_limit(None);
        self.server.writer().write_all(bytes).expect("memory");
    }

    fn server_hears(&mut self, length: usize) -> Vec<u8> {
        let mut heard = vec![0; length];
        self.server.reader().read_exact(&mut heard).expect("heard");
        heard
    }
}

fn numbers(count: usize) -> Vec<u8> {
    (0..count).map(|number| (number % 251) as u8).collect()
}

#[test]
fn bytes_may_come_and_go_in_pieces() {
    let authority = authority();
    for version in EACH {
        let config = authority.server(version);
        for step in [1, 2, 3, 100, 16_000, usize::MAX] {
            let mut pair = Pair::new(&authority.asked(), &config);
            pair.step = step;
            pair.drive().expect("a handshake");
            assert!(!pair.client.is_handshaking(), "{step}");
            assert_eq!(pair.server.alpn_protocol(), Some(&b"http/1.1"[..]));
            assert_eq!(pair.server.server_name(), Some(HOST));
            assert_eq!(pair.client.write(b"GET"), 3);
            pair.drive().expect("sent");
            assert_eq!(pair.server_hears(3), b"GET");
            let reply = numbers(100_000);
            pair.server_sends(&reply);
            pair.server.send_close_notify();
            pair.drive().expect("received");
            assert!(pair.read == reply && pair.is_end, "{step}");
        }
    }
}

#[test]
fn much_is_written_in_parts() {
    let authority = authority();
    let mut pair = Pair::new(&authority.asked(), &authority.server(&TLS13));
    pair.drive().expect("a handshake");
    let much = numbers(200_000);
    let mut written = 0;
    let mut heard = Vec::new();
    while written < much.len() {
        let count = pair.client.write(&much[written..]);
        assert!((1..=65_536).contains(&count), "{count}");
        while !pair.client.unsent().is_empty() {
            let mut bytes = &pair.client.unsent()[..pair.client.unsent().len().min(1000)];
            let count = pair.server.read_tls(&mut bytes).expect("there is room");
            let state = pair.server.process_new_packets().expect("sound");
            heard.extend(pair.server_hears(state.plaintext_bytes_to_read()));
            pair.client.sent(count);
        }
        written += count;
    }
    assert!(heard == much);
    assert!(pair.client.unsent.capacity() <= limits::TLS_RECORD_BYTES_MAX);
}

#[test]
fn a_prefix_goes_in_front() {
    let authority = authority();
    let client = authority.asked().client(b"PROXY\r\n".to_vec());
    let client = client.expect("random numbers");
    assert_eq!(client.unsent()[..8], *b"PROXY\r\n\x16");
}

#[test]
fn the_end_of_the_input_is_an_end_only_if_it_was_announced() {
    let authority = authority();
    for version in EACH {
        let mut pair = Pair::new(&authority.asked(), &authority.server(version));
        pair.drive().expect("a handshake");
        pair.server_sends(b"half");
        pair.drive().expect("received");
        pair.client.end_of_input();
        let error = pair.read().expect_err("it is cut off");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(pair.read, b"half");
    }
}

#[test]
fn what_follows_an_announced_end_does_not_count() {
    let authority = authority();
    let mut pair = Pair::new(&authority.asked(), &authority.server(&TLS13));
    pair.drive().expect("a handshake");
    pair.server.send_close_notify();
    pair.drive().expect("received");
    assert!(pair.is_end);
    pair.client.receive(b"more").expect("it is not looked at");
    pair.client.end_of_input();
    assert_eq!(pair.client.read(&mut [0; 9]).expect("an end"), Some(0));
}

#[test]
fn the_next_connection_resumes_the_session() {
    let authority = authority();
    for version in EACH {
        let config = authority.server(version);
        let asked = authority.asked();
        let kinds = [&asked, &asked, &authority.asked()].map(|asked| {
            let mut pair = Pair::new(asked, &config);
            pair.drive().expect("a handshake");
            pair.client.connection.handshake_kind().expect("it is done")
        });
        let [first, second, other] = kinds;
        assert_eq!(second, HandshakeKind::Resumed);
        for kind in [first, other] {
            assert_ne!(kind, HandshakeKind::Resumed, "{version:?}");
        }
    }
}

#[test]
fn tickets_alone_are_neither_plaintext_nor_an_end() {
    let authority = authority();
    let config = authority.server(&TLS13);
    let mut pair = Pair::new(&authority.asked(), &config);
    pair.drive().expect("a handshake");
    pair.server_sends(b"x");
    pair.drive().expect("received");
    // Servers may send another one at any time.
    pair.server.refresh_traffic_keys().expect("it is open");
    pair.drive().expect("received");
    assert!(pair.read == b"x" && !pair.is_end);
    assert_eq!(pair.client.write(b"y"), 1);
    pair.drive().expect("sent by the new key");
    assert_eq!(pair.server_hears(1), b"y");
}

fn refusal(asked: &TlsServer, config: &Arc<ServerConfig>) -> String {
    let mut pair = Pair::new(asked, config);
    let error = pair.drive().expect_err("it is refused");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(
        !pair.client.unsent().is_empty(),
        "the server is told by an alert"
    );
    error.to_string()
}

#[test]
fn what_is_wrong_with_a_certificate_is_told() {
    let authority = authority();
    let other = authority_named("another authority");
    let asked = authority.asked();
    for version in EACH {
        let config = other.server(version);
        let told = refusal(&asked, &config);
        assert_eq!(told, "the issuer of its certificate is unknown");
        let old = authority.identity(|params| {
            params.not_before = rcgen::date_time_ymd(2001, 1, 1);
            params.not_after = rcgen::date_time_ymd(2002, 1, 1);
        });
        let told = refusal(&asked, &authority.server_with(version, old, false));
        assert_eq!(told, "its certificate has expired");
        let new = authority.identity(|params| params.not_before = rcgen::date_time_ymd(4000, 1, 1));
        let told = refusal(&asked, &authority.server_with(version, new, false));
        assert_eq!(told, "its certificate is not valid yet");
        let issuer = authority.identity(|params| {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        });
        let told = refusal(&asked, &authority.server_with(version, issuer, false));
        assert!(told.ends_with("issues others (CA:TRUE)"), "{told}");
        let elsewhere = authority.trust().server(&name("b.example"), None);
        let told = refusal(&elsewhere, &authority.server(version));
        assert!(told.starts_with("its certificate is not for \"b.example\" but for "));
        assert!(told.contains(HOST), "{told}");
        let address = authority.trust().server(&name("127.0.0.1"), None);
        let told = refusal(&address, &authority.server(version));
        assert!(told.contains("not for \"127.0.0.1\""), "{told}");
    }
}

#[test]
fn without_roots_every_certificate_will_do() {
    let asked = TlsTrust::new(None, None).expect("no key can be wrong");
    let asked = asked.server(&name(HOST), None);
    for version in EACH {
        let config = authority().server(version);
        Pair::new(&asked, &config).drive().expect("a handshake");
    }
}

#[test]
fn a_server_may_demand_a_certificate() {
    let authority = authority();
    for version in EACH {
        let config = authority.server_with(version, authority.identity(|_| {}), true);
        let identity = authority.identity(|_| {});
        let roots = Some(Arc::clone(&authority.roots));
        let trust = TlsTrust::new(roots, Some(identity)).expect("the key fits");
        let asked = trust.server(&name(HOST), None);
        let mut pair = Pair::new(&asked, &config);
        pair.drive().expect("a handshake");
        assert!(pair.server.peer_certificates().is_some());
    }
}

#[test]
fn a_key_has_to_belong_to_its_certificate() {
    let authority = authority();
    let mut identity = authority.identity(|_| {});
    identity.key = authority.identity(|_| {}).key;
    let error = TlsTrust::new(None, Some(identity)).expect_err("another key");
    assert_eq!(error, "the key does not belong to the certificate");
}

#[test]
fn a_server_without_tls_is_told() {
    let mut client = authority().asked().client(Vec::new()).expect("random");
    let error = client.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let told = error.expect_err("no record").to_string();
    assert!(told.starts_with("it does not speak TLS"), "{told}");
}

#[test]
fn names_are_hosts_or_addresses() {
    for name in ["a.example", "127.0.0.1", "::1", "_a.example", "localhost"] {
        assert!(TlsName::parse(name).is_ok(), "{name}");
    }
    for name in ["", "a b", "[::1]", "unix:/x", "a..b"] {
        assert!(TlsName::parse(name).is_err(), "{name}");
    }
}
