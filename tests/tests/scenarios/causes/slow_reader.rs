use super::{Told, Version, site};

#[test]
fn a_client_that_reads_slowly() {
    for version in Version::BOTH {
        let server = site().file("www/large.bin", vec![b'x'; 24 << 20]).start();
        version.ask(&server, "/large.bin", &["--limit-rate", "20M"]);
        Told::about(&server, "/large.bin")
            .expect(&server, "client-drain", "the client took ")
            .acquits("send");
    }
}
