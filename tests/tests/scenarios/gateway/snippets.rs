//! Published configurations, with backends.

use std::fmt::Write;

use petrel_tests::{Backend, Server, Speaks, free_port};

/// From the article about accelerating small files, with the test's ports: a gateway of 1.5 in front of
/// fcgi-stat-accel.
const SEEK_BOUND: &str = r#"
$SERVER["socket"] == ":PORT" {
  $HTTP["url"] =~ "^/seek-bound/" {
    proxy-core.protocol = "fastcgi"
    proxy-core.backends = ( "BACKEND" )
    proxy-core.allow-x-sendfile = "enable"
    proxy-core.max-pool-size = 20
  }
}
"#;

/// A backend that reads the file, so that it is in memory, and names it in its reply.
fn stat_accel() -> Backend {
    Backend::start_on_tcp(Speaks::FastCgi, |exchange| {
        let file = exchange.param("SCRIPT_FILENAME").to_owned();
        match std::fs::File::open(&file) {
            _ if file.is_empty() || file.ends_with('/') => exchange.answer(403, &[], ""),
            Ok(_) => exchange.answer(200, &[("X-LIGHTTPD-send-file", &file)], ""),
            Err(_) => exchange.answer(404, &[], ""),
        }
    })
}

#[test]
fn the_gateway_of_the_small_files_runs_as_it_stands() {
    let backend = stat_accel();
    let port = free_port();
    let config = SEEK_BOUND
        .replace("PORT", &port.to_string())
        .replace("BACKEND", &backend.name());
    let server = Server::build()
        .file("www/seek-bound/1.bin", "small file")
        .config("server.modules += ( \"mod_proxy_core\", \"mod_proxy_backend_fastcgi\" )")
        .config(&config)
        .start();
    let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
    let fetch =
        |path: &str| petrel_tests::curl(&["--write-out", " %{http_code}", &url(path)]).text();
    assert_eq!(fetch("/seek-bound/1.bin"), "small file 200");
    assert!(fetch("/seek-bound/missing.bin").ends_with(" 404"));
    for _ in 0..20 {
        assert_eq!(fetch("/seek-bound/1.bin"), "small file 200");
    }
    // Each worker keeps one for requests and one or two that ask, and more when the machine is slow.
    assert!(
        backend.connections() <= 11,
        "{} connections",
        backend.connections()
    );
    // Other URLs serve files as usual.
    assert_eq!(server.get("/seek-bound/1.bin").text(), "small file");
    assert_eq!(backend.requests().len(), 22);
}

#[test]
fn every_protocol_of_1_5_leads_to_its_backend() {
    for (speaks, protocol) in [
        (Speaks::FastCgi, "fastcgi"),
        (Speaks::Scgi, "scgi"),
        (Speaks::Http, "http"),
        (Speaks::Ajp13, "ajp13"),
    ] {
        let backends: Vec<Backend> = (0..3)
            .map(|_| Backend::start_on_tcp(speaks, |exchange| exchange.say("core")))
            .collect();
        for balancer in ["sqf", "carp", "round-robin", "static"] {
            let mut config = String::new();
            let names: Vec<String> = backends
                .iter()
                .map(|backend| format!("\"{}\"", backend.name()))
                .collect();
            let _ = write!(
                config,
                "server.modules += ( \"mod_proxy_core\", \"mod_proxy_backend_{protocol}\" )\n\
                 proxy-core.protocol = \"{protocol}\"\nproxy-core.balancer = \"{balancer}\"\n\
                 proxy-core.backends = ( {} )",
                names.join(", ")
            );
            let server = Server::build().config(&config).start();
            let before: Vec<usize> = backends.iter().map(|one| one.requests().len()).collect();
            for number in 0..12 {
                let response = server.get(&format!("/{number}"));
                assert_eq!(response.text(), "core", "{protocol} {balancer}: {response}");
            }
            let came: Vec<usize> = backends
                .iter()
                .zip(before)
                .map(|(one, before)| one.requests().len() - before)
                .collect();
            match balancer {
                "static" => assert_eq!(came, [12, 0, 0], "{protocol}"),
                "carp" => assert!(came.iter().filter(|count| **count > 0).count() > 1),
                _ => assert_eq!(came.iter().sum::<usize>(), 12),
            }
        }
    }
}

#[test]
fn debian_s_own_configuration_of_php_runs() {
    // conf-available/15-fastcgi-php-fpm.conf with another socket.
    let backend = Backend::start(Speaks::FastCgi, |exchange| exchange.say("php"));
    let config = r#"
server.modules += ( "mod_fastcgi" )
fastcgi.server += ( ".php" =>
	((
		"socket" => "SOCKET",
		"broken-scriptfilename" => "enable"
	))
)
"#
    .replace("SOCKET", backend.name().trim_start_matches("unix:"));
    let server = Server::build()
        .file("www/index.php", "<?php")
        .config("index-file.names = ( \"index.php\" )")
        .config(&config)
        .start();
    for target in ["/", "/index.php", "/index.php/a?b"] {
        assert_eq!(server.get(target).text(), "php", "{target}");
    }
    assert_eq!(server.get("/missing.php").status, 404);
    let request = backend.last();
    assert_eq!(request.param("PATH_INFO"), Some("/a"));
}

#[test]
fn a_script_is_its_backend_s_wherever_mod_staticfile_is_listed() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| exchange.say("php"));
    for excluded in ["static-file.exclude-extensions = ( \".php\" )", ""] {
        let server = Server::build()
            .file("www/index.php", "<?php the source")
            .file("www/page.html", "the page")
            .config("server.modules = ( \"mod_staticfile\", \"mod_fastcgi\" )")
            .config(
                "fastcgi.server = ( \".php\" => (( \"socket\" => \"SOCKET\" )) )"
                    .replace("SOCKET", backend.name().trim_start_matches("unix:"))
                    .as_str(),
            )
            .config(excluded)
            .start();
        let response = server.get("/index.php");
        assert_eq!(response.text(), "php", "{excluded}: {response}");
        assert_eq!(server.get("/page.html").text(), "the page");
    }
}
