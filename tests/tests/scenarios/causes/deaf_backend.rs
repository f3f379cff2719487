use petrel_tests::Deaf;

use super::{Told, Version, site};

/// Connecting hangs, because the queue of the backend is full.
#[test]
fn a_backend_that_accepts_no_connection() {
    let deaf = Deaf::new();
    for version in Version::BOTH {
        let server = site()
            .config("server.modules += (\"mod_proxy\")")
            .config(&format!(
                "proxy.server = (\"/b\" => (( {}, \"connect-timeout\" => 1 )))",
                deaf.host()
            ))
            .start();
        version.ask(&server, "/b/x", &[]);
        Told::about(&server, "/b/x").expect(
            &server,
            "backend-connect",
            "accepted no connection meanwhile",
        );
    }
}
