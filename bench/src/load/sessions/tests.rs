//! The client with a rustls server in threads of this process.

use super::*;
use crate::workload::{WORKLOADS, Workload};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use std::net::TcpListener;

fn workload(name: &str) -> &'static Workload {
    let found = WORKLOADS.iter().find(|workload| workload.name == name);
    found.expect("it is in the table")
}

/// A server that answers every request with `status` and a body of 100 bytes.
fn server(status: &'static str, tickets: usize) -> (u16, Certificate) {
    let directory = tempfile::tempdir().unwrap();
    let certificate = Certificate::new(directory.path()).unwrap();
    let chain = CertificateDer::pem_file_iter(&certificate.pem).unwrap();
    let key = PrivateKeyDer::from_pem_file(&certificate.pem).unwrap();
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain.map(Result::unwrap).collect(), key)
        .unwrap();
    config.send_tls13_tickets = tickets;
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let tls = ServerConnection::new(config.clone()).unwrap();
            std::thread::spawn(move || answer(StreamOwned::new(tls, socket), status));
        }
    });
    (port, certificate)
}

fn answer(mut stream: StreamOwned<ServerConnection, TcpStream>, status: &str) {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: 100\r\n\r\n");
    let reply = [head.as_bytes(), &[b'x'; 100]].concat();
    while stream.read(&mut [0; 1024]).is_ok_and(|got| got > 0) {
        if stream.write_all(&reply).is_err() {
            return;
        }
    }
}

fn requests(requests: u64) -> Until {
    Until {
        requests,
        ..ONE_REPLY
    }
}

#[test]
fn handshakes_are_of_the_kind_that_is_wanted() {
    let (port, certificate) = server("200 OK", 2);
    for name in ["handshake", "resumed"] {
        let target = Target::new(workload(name), port, &certificate).unwrap();
        let mut client = Client::connect(&target, 2).unwrap();
        client.tickets_wanted = 50;
        client.prepare().unwrap();
        let outcome = client.run(requests(20)).unwrap();
        assert!((20..=21).contains(&outcome.requests), "{name}");
    }
}

#[test]
fn a_server_without_tickets_is_an_error() {
    let (port, certificate) = server("200 OK", 0);
    let target = Target::new(workload("resumed"), port, &certificate).unwrap();
    let error = Client::connect(&target, 2).unwrap().prepare().unwrap_err();
    assert_eq!(error.to_string(), "the server gives no tickets");
}

#[test]
fn a_wrong_reply_is_an_error() {
    for (status, message) in [
        ("404 Not Found", "status 404 instead of 200"),
        ("200 OK", "body of 100 bytes instead of 4096"),
    ] {
        let (port, certificate) = server(status, 2);
        let target = Target::new(workload("tls-4k"), port, &certificate).unwrap();
        let run = Client::connect(&target, 2).unwrap().run(requests(2));
        assert_eq!(run.err().unwrap().to_string(), message);
    }
}

#[test]
fn another_certificate_is_an_error() {
    let (port, _) = server("200 OK", 2);
    let (_, other) = server("200 OK", 2);
    let target = Target::new(workload("handshake"), port, &other).unwrap();
    let run = Client::connect(&target, 1).unwrap().run(requests(1));
    assert!(matches!(run, Err(Error::Tls(_))));
}
