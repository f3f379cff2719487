use super::{Told, Version, site};

#[test]
fn the_bandwidth_limit_of_a_connection() {
    is_named(
        "connection.kbytes-per-second = 400\nserver.kbytes-per-second = 40000",
        "connection.kbytes-per-second (400 KiB a second)",
    );
}

#[test]
fn the_bandwidth_limit_of_a_scope() {
    is_named(
        "server.kbytes-per-second = 400\nconnection.kbytes-per-second = 40000",
        "server.kbytes-per-second (400 KiB a second)",
    );
}

#[test]
fn the_bandwidth_limit_of_a_client() {
    is_named(
        "server.modules += (\"mod_limit\")\nlimit.rules = (\"few\" => (\"kbytes-per-second\" => 400))",
        r#"limit.rules \"few\" (400 KiB a second)"#,
    );
}

#[track_caller]
fn is_named(config: &str, name: &str) {
    for version in Version::BOTH {
        let server = site()
            .file("www/limited.bin", vec![b'x'; 200_000])
            .config(config)
            .start();
        version.ask(&server, "/limited.bin", &[]);
        let words = format!("a bandwidth limit: {name}");
        Told::about(&server, "/limited.bin").expect(&server, "throttle", &words);
    }
}
