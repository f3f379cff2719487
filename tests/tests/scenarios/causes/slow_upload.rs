use super::{Told, Version, site_with, slow_backend};

#[test]
fn a_client_that_sends_slowly() {
    let backend = slow_backend();
    for version in Version::BOTH {
        let server = site_with(&backend, "")
            .file("upload", vec![b'x'; 300_000])
            .start();
        let upload = format!("@{}", server.tree().path("upload").display());
        let arguments = ["--data-binary", upload.as_str(), "--limit-rate", "400K"];
        version.ask(&server, "/b/upload", &arguments);
        Told::about(&server, "/b/upload").expect(&server, "request-body", "the client ");
    }
}
