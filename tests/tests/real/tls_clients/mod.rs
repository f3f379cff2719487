//! TLS and HTTP/2 with what others wrote: test suites, clients, a browser.
//!
//! A test whose program is missing skips, and says so. `cargo xtask test` gets those programs.

mod browser;
mod clients;
mod h2_crate;
mod suites;

use std::time::{Duration, SystemTime};

use petrel_tests::{Builder, Server};

/// A server for `localhost` by TLS, whose certificate is in `server.pem` with its key, and alone in `trusted.pem`.
fn over_tls() -> Builder {
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    // Less than a year, as Mozilla recommends.
    params.not_after = SystemTime::now().into();
    params.not_after += Duration::from_secs(90 * 24 * 60 * 60);
    params.not_before = params.not_after - Duration::from_secs(91 * 24 * 60 * 60);
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    site()
        .file("server.pem", certificate.clone() + &key.serialize_pem())
        .file("trusted.pem", certificate)
        .config(
            "server.modules += (\"mod_openssl\")\nssl.engine = \"enable\"\nssl.pemfile = var.dir + \"/server.pem\"",
        )
}

/// A server that speaks HTTP/2 in the clear.
fn in_the_clear() -> Builder {
    site().config("server.h2c = \"enable\"")
}

fn site() -> Builder {
    Server::build()
        .file("www/index.html", "hello")
        .file("www/4k.bin", vec![b'x'; 4096])
        .file("www/1m.bin", content(1 << 20))
        .config("server.modules = ()\nserver.max-keep-alive-requests = 65535")
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

/// `https://localhost:PORT/PATH`.
fn https(server: &Server, path: &str) -> String {
    format!("https://localhost:{}{path}", server.port())
}

/// The file with the certificate that clients are to trust.
fn trusted(server: &Server) -> String {
    server.tree().path("trusted.pem").display().to_string()
}
