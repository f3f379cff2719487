//! Tests behind mod_fastcgi of Petrel and lighttpd, which also start the program.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::thread;

use petrel_tests::{
    Address, Client, ProcessTree, Server, Tree, curl, eventually, free_port, is_installed, petrel,
    skip,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::fcgi_stat_accel::accelerator::Accelerator;

pub fn write_files(tree: &Tree) {
    for number in 0..100 {
        let name = format!("www/seek-bound/{number}.txt");
        tree.write(&name, format!("text {number}\n"));
    }
    tree.write("www/seek-bound/large.bin", vec![b'l'; 5_000_000]);
    tree.write("www/seek-bound/a b%20c+d.txt", "odd");
    tree.write("www/seek-bound/\u{fc}\u{4e16}.txt", "umlaut");
    tree.write("www/seek-bound/sub/1.txt", "sub");
    tree.write("www/plain.txt", "plain");
}

/// Checks that work behind any web server that may send files.
pub fn works(url: &str, tree: &Tree) {
    let get = |arguments: &[&str], path: &str| {
        let url = format!("{url}/seek-bound/{path}");
        curl(&[arguments, &["-i", &url]].concat()).text()
    };
    let page = get(&[], "1.txt");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    assert!(page.ends_with("\r\n\r\ntext 1\n"), "{page}");
    let lower = page.to_lowercase();
    assert!(
        !lower.contains("sendfile") && !lower.contains("send-file"),
        "{page}"
    );
    let large = curl(&[&format!("{url}/seek-bound/large.bin")]);
    assert!(large.output == vec![b'l'; 5_000_000]);
    for (path, body) in [
        ("a%20b%2520c+d.txt", "odd"),
        ("%c3%bc%e4%b8%96.txt", "umlaut"),
        ("sub/1.txt?query=1", "sub"),
    ] {
        let page = get(&[], path);
        assert!(page.ends_with(&format!("\r\n\r\n{body}")), "{path}: {page}");
    }
    // What the web server decides.
    let page = get(&["--head"], "1.txt");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    assert!(
        page.to_lowercase().contains("\r\ncontent-length: 7\r\n"),
        "{page}"
    );
    let page = get(&["--range", "0-3"], "1.txt");
    assert!(page.starts_with("HTTP/1.1 206 "), "{page}");
    assert!(page.ends_with("\r\n\r\ntext"), "{page}");
    let page = get(
        &[
            "--header",
            "If-Modified-Since: Fri, 31 Dec 2100 00:00:00 GMT",
        ],
        "1.txt",
    );
    let is_spared = page.starts_with("HTTP/1.1 304 ");
    // lighttpd 1.4 ignores a date in the future.
    assert!(is_spared || page.starts_with("HTTP/1.1 200 "), "{page}");
    // What the program decides.
    for (path, status) in [
        ("missing", 404),
        ("sub", 403),
        ("sub/", 403),
        ("1.txt/x", 404),
    ] {
        let page = get(&[], path);
        assert!(
            page.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path}: {page}"
        );
    }
    tree.write("body", vec![b'b'; 300_000]);
    let body = format!("@{}", tree.path("body").display());
    let page = get(&["--data-binary", &body], "1.txt");
    assert!(page.ends_with("\r\n\r\ntext 1\n"), "{page}");
    tree.write("www/seek-bound/goes.txt", "here");
    assert!(get(&[], "goes.txt").ends_with("here"));
    std::fs::remove_file(tree.path("www/seek-bound/goes.txt")).expect("it is there");
    assert!(get(&[], "goes.txt").starts_with("HTTP/1.1 404 "));
}

/// lighttpd 1.4 sends only files whose names are UTF-8.
pub fn a_name_that_is_not_utf_8_works(url: &str, tree: &Tree) {
    let name = OsStr::from_bytes(b"\xff'\".txt");
    std::fs::write(tree.path("www/seek-bound").join(name), "bytes").expect("written");
    let page = curl(&[&format!("{url}/seek-bound/%ff%27%22.txt")]).text();
    assert_eq!(page, "bytes");
}

/// A hundred concurrent clients request twenty files each.
pub fn a_crowd_is_served(port: u16, tree: &Tree) {
    let address = Address::Ip(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let clients: Vec<_> = (0..100)
        .map(|client| {
            let address = address.clone();
            thread::spawn(move || {
                let mut connection = Client::connect(&address);
                for turn in 0..20 {
                    let number = (client * 7 + turn * 13) % 100;
                    let response = connection.get(&format!("/seek-bound/{number}.txt"));
                    assert_eq!(response.status, 200, "{response}");
                    assert_eq!(response.text(), format!("text {number}\n"));
                }
            })
        })
        .collect();
    for client in clients {
        client.join().expect("its answers were right");
    }
    assert!(!tree.text("error.log").contains("seek-bound"));
}

/// A configuration of mod_fastcgi, for Petrel and for lighttpd 1.4.
fn mod_fastcgi(place: &str) -> String {
    format!(
        "server.modules += ( \"mod_fastcgi\" )\n\
         fastcgi.server = ( \"/seek-bound/\" => (( {place}, \"check-local\" => \"disable\", \
         \"x-sendfile\" => \"enable\" )) )"
    )
}

#[derive(Clone, Copy)]
enum Front {
    Petrel,
    Lighttpd,
}

impl Front {
    /// The installed web servers.
    fn all(test: &str) -> Vec<Front> {
        if is_installed("lighttpd") {
            return vec![Front::Petrel, Front::Lighttpd];
        }
        skip(test, "lighttpd is not installed");
        vec![Front::Petrel]
    }

    fn start(self, config: &str) -> Server {
        let builder = Server::build().tree(write_files).config(config);
        match self {
            Front::Petrel => builder.start(),
            Front::Lighttpd => builder.start_lighttpd(),
        }
    }
}

/// It takes so long because Petrel and lighttpd each answer a hundred clients with twenty files.
#[test]
fn behind_mod_fastcgi_over_tcp() {
    let port = free_port();
    let _accelerator = Accelerator::start_on(port);
    let place = format!("\"host\" => \"127.0.0.1\", \"port\" => {port}");
    for front in Front::all("behind_mod_fastcgi_over_tcp") {
        let server = front.start(&mod_fastcgi(&place));
        works(&server.url(""), server.tree());
        a_crowd_is_served(server.port(), server.tree());
    }
}

/// It takes so long because Petrel and lighttpd each answer a hundred clients with twenty files.
#[test]
fn behind_mod_fastcgi_over_a_unix_socket() {
    let accelerator = Accelerator::start(&["--threads", "4"]);
    let place = format!("\"socket\" => \"{}\"", accelerator.tree.path("s").display());
    for front in Front::all("behind_mod_fastcgi_over_a_unix_socket") {
        let server = front.start(&mod_fastcgi(&place));
        works(&server.url(""), server.tree());
        a_crowd_is_served(server.port(), server.tree());
    }
}

#[test]
fn started_by_the_web_server() {
    let place = format!(
        "\"socket\" => var.dir + \"/accel.sock\", \"max-procs\" => 1, \
         \"bin-path\" => \"{} fcgi-stat-accel --threads 8\"",
        petrel().display()
    );
    for front in Front::all("started_by_the_web_server") {
        let server = front.start(&mod_fastcgi(&place));
        works(&server.url(""), server.tree());
        a_crowd_is_served(server.port(), server.tree());
    }
}

#[test]
fn killed_while_it_has_a_request_it_is_started_again() {
    let place = format!(
        "\"socket\" => var.dir + \"/accel.sock\", \"max-procs\" => 1, \
         \"bin-path\" => \"{} fcgi-stat-accel\"",
        petrel().display()
    );
    let server = Front::Petrel.start(&mod_fastcgi(&place));
    assert_eq!(server.get("/seek-bound/1.txt").text(), "text 1\n");
    let before = programs(&server);
    let [program] = before[..] else {
        panic!("{before:?}: one program")
    };
    // The stopped program cannot answer, so it is killed with the request unanswered.
    kill_process(program, Signal::STOP).expect("it runs");
    let mut client = server.client();
    client.send(b"GET /seek-bound/2.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    server.client().get("/plain.txt");
    kill_process(program, Signal::KILL).expect("it runs");
    // The request was either sent to the next program, or the client was told that there is none.
    let response = client.response();
    assert!([200, 502, 503].contains(&response.status), "{response}");
    let is_back = || server.get("/seek-bound/2.txt").text() == "text 2\n";
    assert!(eventually(is_back), "{}", server.log());
    assert_ne!(programs(&server), before);
}

/// The programs that the server has started.
fn programs(server: &Server) -> Vec<Pid> {
    let is_ours = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(15).any(|part| part == b"fcgi-stat-accel")
    };
    let tree = ProcessTree::of(server.pid());
    let pids = tree.pids.into_iter().filter(is_ours);
    pids.filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
        .collect()
}
