//! Configurations from the articles about lighttpd 1.5, which are still in use.

use std::net::TcpListener;

use petrel_tests::{Finished, Server};

/// From the article about accelerating small files: a gateway of 1.5, and its port. `PORT` and `BACKEND` were
/// 1025 and 1029.
const SEEK_BOUND: &str = r#"
$SERVER["socket"] == ":PORT" {
  $HTTP["url"] =~ "^/seek-bound/" {
    proxy-core.protocol = "fastcgi"
    proxy-core.backends = ( "127.0.0.1:BACKEND" )
    proxy-core.allow-x-sendfile = "enable"
    proxy-core.max-pool-size = 20
  }
}
"#;

/// From the article about threads that starve.
const THREADS: &str = r#"
server.max-stat-threads = 4
server.max-write-threads = 8
server.network-backend = "gthread-aio"
"#;

/// From the articles about asynchronous reading.
const BACKENDS: [&str; 2] = ["posix-aio", "linux-aio-sendfile"];

fn check(config: &str) -> Finished {
    Server::build()
        .file("www/index.html", "hello")
        .config(config)
        .check(&["-tt"])
}

/// Lines that begin a warning.
fn warnings(finished: &Finished) -> Vec<&str> {
    finished
        .errors
        .lines()
        .filter(|line| line.starts_with("Warning: "))
        .collect()
}

#[test]
fn a_gateway_of_1_5_is_accepted() {
    let port = petrel_tests::free_port();
    // A port in use, as on the author's machine.
    let backend = TcpListener::bind("127.0.0.1:0").expect("a port");
    let backend = backend.local_addr().expect("it is bound").port();
    let config = SEEK_BOUND
        .replace("PORT", &port.to_string())
        .replace("BACKEND", &backend.to_string());
    let modules = "server.modules += ( \"mod_proxy_core\", \"mod_proxy_backend_fastcgi\" )\n";
    let finished = check(&format!("{modules}{config}"));
    assert_eq!(finished.code(), 0, "{}", finished.errors);
    assert_eq!(warnings(&finished), Vec::<&str>::new());
    // The article's text, without the list of modules.
    let finished = check(&config);
    assert_eq!(finished.code(), 0, "{}", finished.errors);
    assert_eq!(warnings(&finished), Vec::<&str>::new());
}

#[test]
fn thread_options_of_1_5_are_known() {
    let finished = check(THREADS);
    assert_eq!(finished.code(), 0, "{}", finished.errors);
    assert!(!finished.errors.contains("unknown"), "{}", finished.errors);
    for warning in warnings(&finished) {
        let about = [
            "server.max-stat-threads",
            "server.max-write-threads",
            "gthread-aio",
        ];
        assert!(about.iter().any(|name| warning.contains(name)), "{warning}");
    }
}

#[test]
fn network_backends_of_1_5_are_known() {
    for backend in BACKENDS {
        let finished = check(&format!("server.network-backend = \"{backend}\"\n"));
        assert_eq!(finished.code(), 0, "{backend}: {}", finished.errors);
        assert!(!finished.errors.contains("unknown"), "{}", finished.errors);
    }
    assert_eq!(
        check("server.network-backend = \"carrier-pigeon\"\n").code(),
        255
    );
}
