use std::net::TcpListener;

use super::{Told, Version, site};

/// The backend accepts connections and says nothing in the TLS handshake.
#[test]
fn a_backend_that_does_not_complete_the_tls_handshake() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    for version in Version::BOTH {
        let server = site()
            .config("server.modules += (\"mod_proxy\")")
            .config(&format!(
                "proxy.server = (\"/b\" => (( \"host\" => \"127.0.0.1\", \"port\" => {port}, \"tls\" => \"enable\", \
                 \"connect-timeout\" => 1 )))"
            ))
            .start();
        version.ask(&server, "/b/x", &[]);
        Told::about(&server, "/b/x").expect(
            &server,
            "backend-connect",
            "did not complete the TLS handshake",
        );
    }
}
