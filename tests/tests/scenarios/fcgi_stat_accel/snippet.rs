//! The configuration from the article about accelerating small files, unchanged, with its command.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use petrel_tests::{Server, Tree, curl, free_port, petrel};

use crate::fcgi_stat_accel::accelerator::Accelerator;
use crate::fcgi_stat_accel::fronts;

/// From the article.
const SEEK_BOUND: &str = r#"
$SERVER["socket"] == ":1025" {
  $HTTP["url"] =~ "^/seek-bound/" {
    proxy-core.protocol = "fastcgi"
    proxy-core.backends = ( "127.0.0.1:1029" )
    proxy-core.allow-x-sendfile = "enable"
    proxy-core.max-pool-size = 20
  }
}
"#;

/// The article's port, or another one if that is in use.
fn port(article: u16) -> u16 {
    match TcpListener::bind((Ipv4Addr::UNSPECIFIED, article)) {
        Ok(_) => article,
        Err(_) => free_port(),
    }
}

#[test]
fn the_snippet_of_the_article_runs_as_it_stands() {
    let (front, backend) = (port(1025), port(1029));
    // "$ ./build/spawn-fcgi -f ./build/fcgi-stat-accel -p 1029 -C 1", in the foreground and for this
    // machine only.
    let tree = Tree::new();
    tree.directory("build");
    for name in ["spawn-fcgi", "fcgi-stat-accel"] {
        tree.symlink(petrel(), &format!("build/{name}"));
    }
    let backend_text = backend.to_string();
    let mut command = Command::new("./build/spawn-fcgi");
    command.args(["-n", "-a", "127.0.0.1", "-f", "./build/fcgi-stat-accel"]);
    command.args(["-p", &backend_text, "-C", "1"]);
    let accelerator = Accelerator::run(command, tree);
    accelerator.expect_port(backend);
    let config = SEEK_BOUND
        .replace("1025", &front.to_string())
        .replace("1029", &backend_text);
    let server = Server::build()
        .tree(fronts::write_files)
        .config("server.modules += ( \"mod_proxy_core\", \"mod_proxy_backend_fastcgi\" )")
        .config(&config)
        .start();
    let url = format!("http://127.0.0.1:{front}");
    fronts::works(&url, server.tree());
    fronts::a_crowd_is_served(front, server.tree());
    // Other URLs, and the other port, serve files as usual.
    for url in [format!("{url}/plain.txt"), server.url("/seek-bound/1.txt")] {
        let page = curl(&["-i", &url]).text();
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    }
    let before = accelerator.child.id();
    drop(accelerator);
    let page = curl(&["-i", &format!("{url}/seek-bound/1.txt")]).text();
    let is_told = ["502 ", "503 "]
        .iter()
        .any(|code| page.starts_with(&format!("HTTP/1.1 {code}")));
    assert!(is_told, "{page}");
    let again = Accelerator::start_on(backend);
    assert_ne!(again.child.id(), before);
    let is_back = || curl(&[&format!("{url}/seek-bound/1.txt")]).text() == "text 1\n";
    assert!(petrel_tests::eventually(is_back), "{}", server.log());
}

#[test]
fn the_snippet_runs_over_a_unix_socket() {
    let accelerator = Accelerator::start(&[]);
    let front = free_port();
    let socket = format!("unix:{}", accelerator.tree.path("s").display());
    let config = SEEK_BOUND
        .replace("1025", &front.to_string())
        .replace("127.0.0.1:1029", &socket);
    let server = Server::build()
        .tree(fronts::write_files)
        .config("server.modules += ( \"mod_proxy_core\", \"mod_proxy_backend_fastcgi\" )")
        .config("server.http-parseopts = ( \"url-invalid-utf8-reject\" => \"disable\" )")
        .config(&config)
        .start();
    let url = format!("http://127.0.0.1:{front}");
    fronts::works(&url, server.tree());
    fronts::a_name_that_is_not_utf_8_works(&url, server.tree());
    fronts::a_crowd_is_served(front, server.tree());
    // The program's messages are in the server's log.
    std::os::unix::fs::symlink("/etc/passwd", server.tree().path("www/seek-bound/out"))
        .expect("made");
    let page = curl(&["-i", &format!("{url}/seek-bound/out")]).text();
    assert!(page.starts_with("HTTP/1.1 403 "), "{page}");
    server.expect_log("it leads out of the document root: ");
}
