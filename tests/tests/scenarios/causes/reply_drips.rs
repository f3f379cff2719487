use petrel_tests::{Backend, Speaks};

use super::{PAUSE, Told, Version, site_with};

#[test]
fn a_reply_that_comes_in_pieces() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.read_body();
        exchange.head(200, &[]);
        exchange.body("first");
        exchange.pause(2 * PAUSE);
        exchange.body("second");
        exchange.end();
    });
    for version in Version::BOTH {
        let server = site_with(&backend, "").start();
        version.ask(&server, "/b/drips", &[]);
        let words = format!("{} sent its reply", backend.name());
        Told::about(&server, "/b/drips").expect(&server, "backend-body", &words);
    }
}
