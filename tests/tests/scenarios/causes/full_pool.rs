use petrel_tests::eventually;

use super::{Told, Version, site_with, slow_backend};

/// Another request has the only connection.
#[test]
fn a_full_pool() {
    let backend = slow_backend();
    for version in Version::BOTH {
        let server = site_with(&backend, "\"max-connections\" => 1").start();
        let before = backend.requests().len();
        let mut holder = server.client();
        holder.send("GET /b/holder HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(eventually(|| backend.requests().len() > before));
        version.ask(&server, "/b/queued", &[]);
        assert_eq!(holder.response().text(), "late");
        Told::about(&server, "/b/queued").expect(&server, "backend-queue", "/b/holder");
    }
}
