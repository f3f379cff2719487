use super::{Told, Version, site};

#[test]
fn a_bandwidth_limit() {
    for version in Version::BOTH {
        let server = site()
            .file("www/limited.bin", vec![b'x'; 200_000])
            .config("connection.kbytes-per-second = 100")
            .start();
        version.ask(&server, "/limited.bin", &[]);
        Told::about(&server, "/limited.bin").expect(&server, "throttle", "a bandwidth limit");
    }
}
