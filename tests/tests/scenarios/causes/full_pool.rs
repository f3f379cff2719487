use petrel_tests::{Backend, Speaks, eventually};

use super::{PAUSE, Told, Version, site_with};

/// Another request has the only connection.
#[test]
fn a_full_pool() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.read_body();
        // The client of the second request has to start meanwhile.
        exchange.pause(4 * PAUSE);
        exchange.say("late");
    });
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
