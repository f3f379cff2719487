//! TLS: certificates, clients that trust them, and a program that terminates TLS for a [`Backend`].

use std::fs::File;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::{Backend, Tree, eventually, free_port};

/// TLS on a client's socket.
pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Issues certificates. Dropping it removes its files.
pub struct Authority {
    tree: Tree,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// The files of a certificate and its key.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: PathBuf,
    /// The key.
    pub key: PathBuf,
}

impl Authority {
    /// A new authority, which no program trusts yet.
    #[expect(clippy::new_without_default, reason = "each one is another")]
    pub fn new() -> Authority {
        let tree = Tree::new();
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = format!("authority in {}", tree.root().display());
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        tree.write("ca.pem", issuer.pem());
        Authority { tree, issuer }
    }

    /// The path of its certificate.
    pub fn file(&self) -> PathBuf {
        self.tree.path("ca.pem")
    }

    /// A certificate for the host `name`.
    pub fn identity(&self, name: &str) -> Identity {
        self.issue(name, name, 4000)
    }

    /// An expired certificate for the host `name`.
    pub fn expired_identity(&self, name: &str) -> Identity {
        self.issue(&format!("expired {name}"), name, 2002)
    }

    /// The configuration of a client that trusts the authority and speaks these protocols (ALPN).
    pub fn client_config(&self, protocols: &[&str]) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("it is sound");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.expect("the provider has ciphers of both versions");
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = protocols
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        config
    }

    /// A client that trusts the authority, speaks these protocols (ALPN), and expects the host `name`. The
    /// handshake begins when the first byte is written.
    pub fn connect(&self, name: &str, protocols: &[&str], stream: TcpStream) -> TlsStream {
        let config = Arc::new(self.client_config(protocols));
        let name = ServerName::try_from(name.to_owned()).expect("the name of a host");
        let session = ClientConnection::new(config, name).expect("random numbers");
        StreamOwned::new(session, stream)
    }

    fn issue(&self, file: &str, name: &str, until: i32) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        let (certificate_name, key_name) = (format!("{file}.pem"), format!("{file}.key"));
        self.tree.write(&certificate_name, certificate.pem());
        self.tree.write(&key_name, key.serialize_pem());
        Identity {
            certificate: self.tree.path(&certificate_name),
            key: self.tree.path(&key_name),
        }
    }
}

impl Identity {
    /// Configuration lines that make a server present this certificate.
    pub fn directives(&self) -> String {
        format!(
            "ssl.pemfile = \"{}\"\nssl.privkey = \"{}\"\n",
            self.certificate.display(),
            self.key.display()
        )
    }
}

/// How a [`TlsFront`] behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// As usual.
    #[default]
    Usual,
    /// Without TLS 1.3.
    Tls12,
    /// Closes connections without a close_notify alert.
    Abrupt,
    /// Expects a line of the PROXY protocol before TLS.
    Proxy,
}

/// A program with OpenSSL in front of a [`Backend`]. Dropping it kills the program.
pub struct TlsFront {
    child: Child,
    tree: Tree,
    port: u16,
}

impl TlsFront {
    /// Starts it on a port of 127.0.0.1.
    pub fn start(backend: &Backend, identity: &Identity) -> TlsFront {
        TlsFront::start_as(backend, identity, TlsMode::Usual, None, free_port())
    }

    /// Starts it in a `mode`. With a `client_ca`, it accepts only clients with a certificate of that
    /// authority.
    ///
    /// # Panics
    /// It does not listen.
    pub fn start_as(
        backend: &Backend,
        identity: &Identity,
        mode: TlsMode,
        client_ca: Option<&Authority>,
        port: u16,
    ) -> TlsFront {
        let tree = Tree::new();
        tree.write("front.py", include_str!("tls_front.py"));
        let mode = match mode {
            TlsMode::Usual => "",
            TlsMode::Tls12 => "tls1.2",
            TlsMode::Abrupt => "abrupt",
            TlsMode::Proxy => "proxy",
        };
        let client_ca = client_ca.map_or_else(PathBuf::new, Authority::file);
        // Paths here have no character that JSON would have to escape.
        let options = format!(
            r#"{{"certificate": "{}", "key": "{}", "mode": "{mode}", "client_ca": "{}", "log": "{}",
                "port": {port}, "socket": "{}", "backend": "{}"}}"#,
            identity.certificate.display(),
            identity.key.display(),
            client_ca.display(),
            tree.path("log").display(),
            tree.path("front.sock").display(),
            backend.name(),
        );
        let options = match port {
            0 => options,
            _ => options.replace("\"socket\"", "\"unused\""),
        };
        let output = File::create(tree.path("output")).expect("a file");
        let child = Command::new("python3")
            .arg(tree.path("front.py"))
            .arg(options)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a descriptor"))
            .stderr(output)
            .spawn()
            .expect("python3 is installed");
        let front = TlsFront { child, tree, port };
        let is_ready = eventually(|| !front.lines().is_empty());
        assert!(is_ready, "{}", front.tree.text("output"));
        front
    }

    /// Its address as options of a host.
    pub fn host(&self) -> String {
        match self.port {
            0 => format!("\"socket\" => \"{}\"", self.socket().display()),
            port => format!("\"host\" => \"127.0.0.1\", \"port\" => {port}"),
        }
    }

    /// Its unix socket, if it listens on one.
    pub fn socket(&self) -> PathBuf {
        self.tree.path("front.sock")
    }

    /// Its port; 0 if it listens on a unix socket.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// One line per handshake: full or resumed, the version, the requested name (SNI), the protocol (ALPN),
    /// the subject of the client's certificate or the line of the PROXY protocol. Or that it failed, and why.
    pub fn handshakes(&self) -> Vec<String> {
        self.lines().split_off(1)
    }

    fn lines(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.tree.path("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!(
                "--- TLS front\n{:?}\n{}\n---",
                self.lines(),
                self.tree.text("output")
            );
        }
    }
}
