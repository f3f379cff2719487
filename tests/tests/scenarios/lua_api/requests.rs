//! `petrel.http` and `petrel.subrequest`: other servers, this one, and php-fpm behind it.

use std::process::Command;
use std::time::{Duration, Instant};

use petrel_tests::{
    Authority, Backend, Component, Listens, SOON, Server, Speaks, TlsFront, TlsMode, Tree, can_run,
};

use crate::lua_api::{ask, expect_lua_lines, says, site};

fn fetch(backend: &Backend, path: &str, more: &str) -> String {
    says(&format!(
        "local url = \"http://{}{path}\" .. (lighty.r.req_attr[\"uri.query\"] or \"\")\n\
         local ok, r = pcall(petrel.http, {{ url = url {more} }})\n\
         if not ok then return \"failed: \" .. tostring(r) end\n\
         return r.status, r.headers[\"x-seen\"] or \"-\", #r.body, r.body:sub(1, 40)",
        backend.name()
    ))
}

#[test]
fn another_server_is_asked_on_one_connection() {
    let backend = Backend::start_on_tcp(Speaks::Http, |exchange| {
        let body = exchange.read_body();
        let text = format!("{} {}", exchange.target(), body.len());
        exchange.answer(201, &[("X-Seen", "yes")], text);
    });
    let server = site(
        &[],
        &[
            ("get", &fetch(&backend, "/a?", "")),
            ("post", &fetch(&backend, "/b?", ", method = \"POST\", body = (\"x\"):rep(100000), headers = { [\"X-A\"] = \"b\" }")),
        ],
    )
    .config("server.max-worker = 1")
    .start();
    for number in 0..20 {
        assert_eq!(
            ask(&server, &format!("/get?{number}")),
            format!("201 yes {} /a?{number} 0", 6 + number / 10)
        );
    }
    assert_eq!(ask(&server, "/post?1"), "201 yes 11 /b?1 100000");
    assert_eq!(backend.connections(), 1);
    let last = backend.last();
    assert_eq!(last.body_bytes, 100_000);
}

#[test]
fn servers_that_misbehave_are_errors_in_time() {
    let backend = Backend::start_on_tcp(Speaks::Http, |exchange| match exchange.target() {
        "/hang" => {
            exchange.hang();
        }
        "/short" => {
            exchange.head(200, &[("Content-Length", "1000")]);
            exchange.raw("begun");
            exchange.close();
        }
        "/nonsense" => {
            exchange.raw("nonsense\r\n\r\n");
            exchange.close();
        }
        "/large" => exchange.answer(200, &[], vec![b'x'; 2 << 20]),
        "/reset" => exchange.reset(),
        _ => exchange.say("good"),
    });
    let server = site(
        &[],
        &[(
            "get",
            &fetch(&backend, "/", ", timeout = 2, max_bytes = 1048576"),
        )],
    )
    .config("server.max-worker = 1")
    .start();
    for name in ["hang", "short", "nonsense", "large", "reset"] {
        let begin = Instant::now();
        let said = ask(&server, &format!("/get?{name}"));
        assert!(
            begin.elapsed() < SOON,
            "{name}: {:?} {said}",
            begin.elapsed()
        );
        assert!(said.starts_with("failed: "), "{name}: {said}");
        assert!(said.contains(&backend.name()), "{name}: {said}");
        assert!(ask(&server, "/get?good").ends_with(" good"), "{name}");
    }
    backend.expect_open_connections(1);
}

#[test]
fn many_wait_for_a_slow_server_at_once() {
    let backend = Backend::start_on_tcp(Speaks::Http, |exchange| {
        exchange.pause(Duration::from_millis(500));
        exchange.say("slow");
    });
    let server = site(&[], &[("get", &fetch(&backend, "/", ""))])
        .config("server.max-worker = 1")
        .start();
    let begin = Instant::now();
    let mut clients: Vec<_> = (0..100).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send("GET /get HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    assert_eq!(ask(&server, "/index.html"), "hello");
    for client in &mut clients {
        let text = client.response().text();
        assert!(text.ends_with(" slow"), "{text}");
    }
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

fn fpm() -> Option<String> {
    let programs = std::fs::read_dir("/usr/sbin").ok()?;
    let mut paths = programs
        .flatten()
        .map(|entry| entry.path().display().to_string());
    paths.find(|path| path.starts_with("/usr/sbin/php-fpm"))
}

/// A php-fpm on `fpm.sock` of its tree.
fn start_fpm(program: &str) -> Component {
    let tree = Tree::new();
    let conf = format!(
        "[global]\nerror_log = {0}/fpm.log\ndaemonize = no\n[www]\nlisten = {0}/fpm.sock\n\
         user = root\ngroup = root\npm = static\npm.max_children = 2\n",
        tree.root().display()
    );
    tree.write("fpm.conf", conf);
    let mut command = Command::new(program);
    command
        .args(["--nodaemonize", "--allow-to-run-as-root", "--fpm-config"])
        .arg(tree.path("fpm.conf"));
    Component::start(tree, &mut command, &Listens::Unix("fpm.sock"))
}

#[test]
fn php_is_asked_by_a_path() {
    let test = "lua_api::php_is_asked_by_a_path";
    let Some(program) = fpm() else {
        let _ = can_run(test, &["php-fpm"]);
        return;
    };
    let fpm = start_fpm(&program);
    let page = says(
        "local menu = petrel.subrequest(\"/menu.php?lang=de\")\n\
         local echo = petrel.http { url = \"/echo.php\", method = \"POST\", body = \"a body\" }\n\
         local missing = petrel.subrequest(\"/missing.php\")\n\
         local file = petrel.http(\"/index.html\")\n\
         local denied = petrel.subrequest(\"/denied/x.txt\")\n\
         return menu.status, menu.body, menu.headers[\"x-php\"], echo.body, missing.status, file.body, denied.status",
    );
    let server = site(&["mod_fastcgi", "mod_access"], &[("page", &page)])
        .file(
            "www/menu.php",
            "<?php header('X-PHP: yes'); print $_GET['lang'] . ' ' . ($_SERVER['HTTP_X_OWN'] ?? 'none');",
        )
        .file("www/echo.php", "<?php print strtoupper(file_get_contents('php://input'));")
        .file("www/denied/x.txt", "secret")
        .config(&format!(
            "fastcgi.server = (\".php\" => ((\"socket\" => \"{}\")))\n\
             $HTTP[\"url\"] =~ \"^/denied/\" {{ url.access-deny = (\"\") }}",
            fpm.path("fpm.sock")
        ))
        .start();
    for _ in 0..5 {
        let response = server
            .client()
            .request("GET", "/page", &[("X-Own", "passed on")]);
        assert_eq!(
            response.text(),
            "200 de passed on yes A BODY 404 hello 403",
            "{}",
            server.log()
        );
    }
}

#[test]
fn a_script_that_asks_for_itself_ends() {
    let server = site(
        &[],
        &[(
            "again",
            "local r = petrel.subrequest(\"/again\") lighty.content = { r.body } return r.status",
        )],
    )
    .start();
    let response = server.get("/again");
    assert!(response.status >= 500, "{response}");
    assert_eq!(server.get("/index.html").text(), "hello");
    // A thread of its own writes the log.
    petrel_tests::eventually(|| !crate::lua_api::lua_lines(&server).is_empty());
    let lines = crate::lua_api::lua_lines(&server);
    assert!((1..=20).contains(&lines.len()), "{lines:?}");
}

#[test]
fn https_and_nonsense_are_errors_that_say_so() {
    let scripts = [
        ("https", "petrel.http(\"https://127.0.0.1/\") return 200"),
        ("empty", "petrel.http(\"\") return 200"),
        ("nothing", "petrel.http() return 200"),
        (
            "lines",
            "petrel.http { url = \"http://127.0.0.1:1/\", headers = { a = \"b\\r\\nc: d\" } } return 200",
        ),
        (
            "name",
            "petrel.http { url = \"http://127.0.0.1:1/\", headers = { [\"a b\"] = \"c\" } } return 200",
        ),
        (
            "target",
            "petrel.http(\"http://127.0.0.1:1/a b\\r\\nX: y\") return 200",
        ),
        ("path", "petrel.subrequest(\"/a b\\r\\nX: y\") return 200"),
    ];
    let server: Server = site(&[], &scripts).start();
    for (index, (name, _)) in scripts.iter().enumerate() {
        assert_eq!(server.get(&format!("/{name}")).status, 500, "{name}");
        let line = expect_lua_lines(&server, index + 1).remove(index);
        assert!(line.contains(&format!("{name}.lua:1:")), "{line}");
    }
}

#[test]
fn a_server_is_asked_by_tls_if_the_system_trusts_it() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        let text = exchange.target().to_owned();
        exchange.say(&text);
    });
    let authority = Authority::new();
    let front = TlsFront::start(&backend, &authority.identity("localhost"));
    let by_socket = TlsFront::start_as(
        &backend,
        &authority.identity("localhost"),
        TlsMode::Usual,
        None,
        0,
    );
    let other = TlsFront::start(&backend, &Authority::new().identity("localhost"));
    let fetch = |place: &str| {
        says(&format!(
            "local ok, r = pcall(petrel.http, \"https://{place}/x\")\nreturn ok and r.body or r"
        ))
    };
    let site = || {
        site(
            &[],
            &[
                ("right", &fetch(&format!("localhost:{}", front.port()))),
                ("name", &fetch(&format!("127.0.0.1:{}", front.port()))),
                ("issuer", &fetch(&format!("localhost:{}", other.port()))),
                (
                    "socket",
                    &fetch(&format!("unix:{}:", by_socket.socket().display())),
                ),
            ],
        )
        .config("server.max-worker = 1")
    };
    let server = site()
        .environment("SSL_CERT_FILE", &authority.file().display().to_string())
        .environment("SSL_CERT_DIR", "/nonexistent")
        .start();
    for _ in 0..5 {
        assert_eq!(ask(&server, "/right"), "/x");
    }
    assert_eq!(front.handshakes(), ["full TLSv1.3 localhost http/1.1 "]);
    assert_eq!(ask(&server, "/socket"), "/x");
    let told = ask(&server, "/name");
    assert!(
        told.contains("its certificate is not for \"127.0.0.1\""),
        "{told}"
    );
    let told = ask(&server, "/issuer");
    assert!(
        told.contains("the issuer of its certificate is unknown"),
        "{told}"
    );
    // Scripts that make no TLS requests also run without certificates.
    let server = site()
        .environment("SSL_CERT_FILE", "/nonexistent")
        .environment("SSL_CERT_DIR", "/nonexistent")
        .start();
    let told = ask(&server, "/right");
    assert!(told.contains("the system trusts no certificate"), "{told}");
}
