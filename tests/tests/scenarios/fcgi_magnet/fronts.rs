//! Tests behind Petrel, nginx and lighttpd, with programs started by spawn-fcgi, `petrel spawn` and web
//! servers.

use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};

use petrel_tests::{Magnet, Server, Tree, curl, eventually, free_port, is_installed, petrel, skip};
use rustix::process::{Pid, Signal, kill_process};

const SCRIPTS: &[(&str, &str)] = &[
    ("a.lua", "print \"123\""),
    (
        "echo.lua",
        "header('Content-Type', 'text/plain') print(read_body())",
    ),
    (
        "status.lua",
        "status(403) header('X-Magnet', env.REQUEST_METHOD) print('no')",
    ),
    ("error.lua", "error('oh')"),
    (
        "query.lua",
        "print(get.a, request.host ~= nil, env.SCRIPT_NAME)",
    ),
    (
        "big.lua",
        "local s = ('x'):rep(1000) for i = 1, 5000 do print(s) end",
    ),
    (
        "redirect.lua",
        "print('Status: 302 Found\\nLocation: /there\\n\\n')",
    ),
];

/// Checks that work behind any web server.
fn works(url: &str, tree: &Tree) {
    let get = |path: &str| curl(&["-s", "-i", &format!("{url}{path}")]).text();
    for _ in 0..3 {
        let page = get("/a.lua");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        assert!(page.ends_with("\r\n\r\n123"), "{page}");
    }
    tree.write("body", "b".repeat(300_000));
    let body = format!("@{}", tree.path("body").display());
    let echo = curl(&["-s", "--data-binary", &body, &format!("{url}/echo.lua")]);
    assert_eq!(echo.output.len(), 300_000);
    let page = get("/status.lua");
    assert!(page.starts_with("HTTP/1.1 403 "), "{page}");
    assert!(page.to_lowercase().contains("x-magnet: get"), "{page}");
    assert!(get("/error.lua").starts_with("HTTP/1.1 500 "));
    let page = get("/query.lua?a=b%20c");
    assert!(page.ends_with("b ctrue/query.lua"), "{page}");
    let big = curl(&["-s", &format!("{url}/big.lua")]);
    assert_eq!(big.output.len(), 5_000_000);
    let page = get("/redirect.lua");
    assert!(page.starts_with("HTTP/1.1 302 "), "{page}");
}

fn write_scripts(tree: &Tree) {
    for (name, text) in SCRIPTS {
        tree.write(&format!("www/{name}"), text);
    }
}

/// A program that is ended by its process id.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let ended = eventually(|| self.0.try_wait().is_ok_and(|status| status.is_some()));
        if !ended {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

#[test]
fn behind_petrel() {
    let magnet = Magnet::start(&[], &["--workers", "2"]);
    let server = Server::build()
        .tree(write_scripts)
        .config("server.modules += ( \"mod_fastcgi\" )")
        .config(&format!(
            "fastcgi.server = ( \".lua\" => (( \"socket\" => \"{}\" )) )",
            magnet.path("magnet.sock")
        ))
        .start();
    works(&server.url(""), server.tree());
    server.expect_log("www/error.lua:1: oh");
}

#[test]
fn started_by_petrel() {
    let server = Server::build()
        .tree(write_scripts)
        .config("server.modules += ( \"mod_fastcgi\" )")
        .config(&bin_path(true))
        .start();
    works(&server.url(""), server.tree());
}

/// The configuration, for both servers, of a program that they start.
fn bin_path(relative: bool) -> String {
    let program = petrel().display();
    let socket = match relative {
        true => "var.dir + \"/lua.sock\"",
        false => "var.dir + \"/lua-lighttpd.sock\"",
    };
    format!(
        "fastcgi.server = ( \".lua\" => (( \"socket\" => {socket}, \"max-procs\" => 1, \
         \"bin-path\" => \"{program} fcgi-magnet --root \" + var.dir + \"/www\" )) )"
    )
}

#[test]
fn behind_lighttpd() {
    if !is_installed("lighttpd") {
        return skip("behind_lighttpd", "lighttpd is not installed");
    }
    let magnet = Magnet::start(&[], &[]);
    let server = Server::build()
        .tree(write_scripts)
        .config("server.modules += ( \"mod_fastcgi\" )")
        .config(&format!(
            "fastcgi.server = ( \".lua\" => (( \"socket\" => \"{}\" )) )",
            magnet.path("magnet.sock")
        ))
        .start_lighttpd();
    works(&server.url(""), server.tree());
}

#[test]
fn started_by_lighttpd() {
    if !is_installed("lighttpd") {
        return skip("started_by_lighttpd", "lighttpd is not installed");
    }
    let server = Server::build()
        .tree(write_scripts)
        .config("server.modules += ( \"mod_fastcgi\" )")
        .config(&bin_path(false))
        .start_lighttpd();
    works(&server.url(""), server.tree());
}

#[test]
fn behind_nginx() {
    if !is_installed("nginx") {
        return skip("behind_nginx", "nginx is not installed");
    }
    for keep in ["on", "off"] {
        let magnet = Magnet::start(SCRIPTS, &[]);
        let port = free_port();
        let _nginx = start_nginx(&magnet, port, keep);
        works(&format!("http://127.0.0.1:{port}"), &magnet.tree);
        let log = magnet.tree.text("nginx.log");
        assert!(log.contains("www/error.lua:1: oh"), "{log}");
    }
}

fn start_nginx(magnet: &Magnet, port: u16, keep: &str) -> Running {
    let root = magnet.tree.root().display();
    let params: String = [
        ("SCRIPT_FILENAME", "$document_root$fastcgi_script_name"),
        ("QUERY_STRING", "$query_string"),
        ("REQUEST_METHOD", "$request_method"),
        ("CONTENT_TYPE", "$content_type"),
        ("CONTENT_LENGTH", "$content_length"),
        ("SCRIPT_NAME", "$fastcgi_script_name"),
    ]
    .iter()
    .map(|(name, value)| format!("fastcgi_param {name} {value};\n"))
    .collect();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("{name}_temp_path {root}/nginx-{name};\n"))
        .collect();
    magnet.tree.write(
        "nginx.conf",
        format!(
            "daemon off; master_process off; pid {root}/nginx.pid; error_log {root}/nginx.log;\n\
             events {{ }}\nhttp {{ access_log off; {temporary}\n\
             upstream magnet {{ server unix:{root}/magnet.sock; keepalive 8; }}\n\
             server {{ listen 127.0.0.1:{port}; root {root}/www;\n\
             location / {{ fastcgi_pass magnet; fastcgi_keep_conn {keep};\n{params} }} }} }}\n"
        ),
    );
    let path = std::env::var("PATH").unwrap_or_default();
    let child = Command::new("nginx")
        .env("PATH", format!("{path}:/usr/sbin"))
        .arg("-c")
        .arg(magnet.tree.path("nginx.conf"))
        .arg("-e")
        .arg(magnet.tree.path("nginx.log"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("nginx is there");
    let running = Running(child);
    let listens = eventually(|| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
    assert!(listens, "{}", magnet.tree.text("nginx.log"));
    running
}

#[test]
fn under_spawn_fcgi() {
    // Debian's spawn-fcgi, if it is installed, and Petrel's.
    let ours = [petrel().display().to_string(), "spawn".to_owned()];
    let theirs = ["spawn-fcgi".to_owned()];
    for spawner in [&ours[..], &theirs[..]] {
        if spawner.len() == 1 && !is_installed(&spawner[0]) {
            skip("under_spawn_fcgi", "spawn-fcgi is not installed");
            continue;
        }
        let tree = Tree::new();
        let spawned = Command::new(&spawner[0])
            .args(&spawner[1..])
            .args(["-n", "-s"])
            .arg(tree.path("s"))
            .arg("--")
            .arg(petrel())
            .arg("fcgi-magnet")
            .stdin(Stdio::null())
            .spawn();
        let _running = Running(spawned.expect("it can be started"));
        let server = Server::build()
            .tree(write_scripts)
            .config("server.modules += ( \"mod_fastcgi\" )")
            .config(&format!(
                "fastcgi.server = ( \".lua\" => (( \"socket\" => \"{}\" )) )",
                tree.path("s").display()
            ))
            .start();
        works(&server.url(""), server.tree());
    }
}
