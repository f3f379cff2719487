use super::{Told, Version, site_with, slow_backend};

#[test]
fn a_backend_that_works() {
    let backend = slow_backend();
    for version in Version::BOTH {
        let server = site_with(&backend, "").start();
        version.ask(&server, "/b/late", &[]);
        let words = format!("{} worked on the request", backend.name());
        Told::about(&server, "/b/late").expect(&server, "backend-first-byte", &words);
    }
}
