use petrel_tests::{Backend, Speaks, eventually};

use super::{PAUSE, Told, Version, site_with};

/// The client does not wait for the reply: it resets its connection, or its stream.
#[test]
fn a_client_that_leaves_while_the_backend_works() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.hang();
    });
    for version in Version::BOTH {
        let server = site_with(&backend, "").start();
        if version == Version::Http1 {
            let before = backend.requests().len();
            let mut client = server.client();
            client.send("GET /b/never HTTP/1.1\r\nHost: a\r\n\r\n");
            assert!(eventually(|| backend.requests().len() > before));
            std::thread::sleep(PAUSE);
            client.abort();
        } else {
            let gone = version.ask(&server, "/b/never", &["--max-time", "0.5"]);
            assert_eq!(gone.code(), 28, "curl gives up");
        }
        let words = format!(
            "{} worked on the request, which was given up",
            backend.name()
        );
        Told::about(&server, "/b/never")
            .expect(&server, "backend-first-byte", &words)
            .acquits("content");
    }
}
