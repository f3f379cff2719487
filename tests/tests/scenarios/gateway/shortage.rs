//! A server that has run out of descriptors: it logs that, backends stay healthy, and requests wait or get
//! 503.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Duration;

use petrel_tests::{Backend, Client, Server, Speaks};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::gateway::{in_front_of, in_front_of_with, post};

/// Keeps a server process from opening anything, until it is dropped.
struct Shortage {
    pid: Pid,
    before: Rlimit,
}

impl Shortage {
    fn of(server: &Server) -> Shortage {
        let id = server.processes().busiest();
        let pid = Pid::from_raw(id as i32).expect("it is no zero");
        let mut lowest = lowest_free(id);
        let before = limit(pid, lowest, None);
        let shortage = Shortage { pid, before };
        // Descriptors that the server closed meanwhile could be used again.
        while lowest_free(id) < lowest {
            lowest = lowest_free(id);
            limit(pid, lowest, Some(before));
        }
        shortage
    }
}

impl Drop for Shortage {
    fn drop(&mut self) {
        prlimit(Some(self.pid), Resource::Nofile, self.before).expect("the limit it had");
    }
}

/// Sets the soft limit. The hard limit becomes that of `before`, or stays as it is.
fn limit(pid: Pid, current: u64, before: Option<Rlimit>) -> Rlimit {
    let maximum = match before {
        Some(before) => before.maximum,
        None => hard_limit(pid),
    };
    let current = Some(current);
    let new = Rlimit { current, maximum };
    prlimit(Some(pid), Resource::Nofile, new).expect("it is a process of ours")
}

fn hard_limit(pid: Pid) -> Option<u64> {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    let mut lines = limits.lines();
    let line = lines.find_map(|line| line.strip_prefix("Max open files"));
    let hard = line.and_then(|line| line.split_whitespace().nth(1));
    hard.expect("it has this limit").parse().ok()
}

/// The number that the process's next descriptor would get.
fn lowest_free(id: u32) -> u64 {
    let entries = std::fs::read_dir(format!("/proc/{id}/fd")).expect("it runs");
    let taken: BTreeSet<u64> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let mut free = 0;
    while taken.contains(&free) {
        free += 1;
    }
    free
}

/// Longer than any test, so that a backend that is taken for ill gets no more requests.
const NEVER_AGAIN: &str = "\"disable-time\" => 3600, ";

const WAITS: &str =
    "this server has no descriptors or memory left, so the request waits: Too many open files";

/// A client whose connection a worker has accepted. It asks for no file, because the server closes those that it knows
/// when another test mounts something, and then has a descriptor.
fn connected(server: &Server) -> Client {
    let mut client = server.client();
    assert_eq!(client.get("/none").status, 404);
    client
}

fn backends(speaks: Speaks) -> [Backend; 2] {
    [
        Backend::start(speaks, |exchange| exchange.say("fine")),
        Backend::start_on_tcp(speaks, |exchange| exchange.say("fine")),
    ]
}

#[test]
fn a_request_waits_until_its_connection_can_be_made() {
    for backend in backends(Speaks::FastCgi) {
        let server = in_front_of_with(&backend, NEVER_AGAIN)
            .config("fastcgi.debug = 2")
            .start();
        let mut client = connected(&server);
        let shortage = Shortage::of(&server);
        client.send(post("/app/", "body"));
        server.expect_log(WAITS);
        assert_eq!(backend.connections(), 0);
        drop(shortage);
        assert_eq!(client.response().text(), "fine");
        assert_eq!(server.get("/app/").text(), "fine");
        assert!(
            !server.log().contains("not tried again"),
            "{}",
            server.log()
        );
    }
}

#[test]
fn a_request_that_waits_takes_a_connection_that_becomes_free() {
    let (first, go_on) = mpsc::channel::<()>();
    let go_on = Mutex::new(go_on);
    let backend = Backend::start(Speaks::FastCgi, move |exchange| {
        if exchange.target() == "/app/first" {
            let told = go_on.lock().expect("one at a time").recv();
            told.expect("the test says when");
        }
        exchange.say("fine");
    });
    let server = in_front_of(&backend).config("fastcgi.debug = 2").start();
    // The server knows that a backend keeps connections open when it has answered twice on one. Then a POST
    // may use it.
    for _ in 0..2 {
        assert_eq!(server.get("/app/").text(), "fine");
    }
    let (mut one, mut other) = (connected(&server), connected(&server));
    one.send("GET /app/first HTTP/1.1\r\nHost: a\r\n\r\n");
    backend.expect_requests(3);
    let _shortage = Shortage::of(&server);
    other.send(post("/app/second", "body"));
    server.expect_log(WAITS);
    first.send(()).expect("the backend waits");
    assert_eq!(one.response().text(), "fine");
    assert_eq!(other.response().text(), "fine");
    assert_eq!(backend.connections(), 1);
}

/// It takes so long because a request waits one to two seconds for a connection to each of four backends.
#[test]
fn a_request_that_waits_in_vain_is_503_and_the_backend_keeps_its_health() {
    for speaks in [Speaks::Http, Speaks::FastCgi] {
        for backend in backends(speaks) {
            let options = format!("{NEVER_AGAIN}\"connect-timeout\" => 1, ");
            let server = in_front_of_with(&backend, &options).start();
            let mut client = connected(&server);
            let shortage = Shortage::of(&server);
            client.send("GET /app/ HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(client.response().status, 503);
            server.expect_log("(backend-connect) this server, not the backend, has no descriptors, memory or ports left: Too many open files");
            server.expect_log(&format!("backend={}", backend.name()));
            drop(shortage);
            assert_eq!(server.get("/app/").text(), "fine");
            let log = server.log();
            assert!(
                !log.contains("not tried again") && !log.contains("cannot connect"),
                "{log}"
            );
        }
    }
}

/// It takes so long because two backends are left without health checks for two and a half seconds each.
#[test]
fn a_health_check_that_cannot_connect_says_nothing_about_its_backend() {
    for backend in backends(Speaks::Http) {
        let options = "\"health-check-path\" => \"/\", \"health-check-interval\" => 1, ";
        let server = in_front_of_with(&backend, options).start();
        let mut client = connected(&server);
        assert_eq!(client.get("/app/").text(), "fine");
        let shortage = Shortage::of(&server);
        let are_left_out = "are skipped until one can be made again: this server, not the backend, has no descriptors, memory or ports left";
        server.expect_log(are_left_out);
        // Two failures in a row would disable the backend. On a slow machine there are fewer, and the test
        // passes.
        std::thread::sleep(Duration::from_millis(2500));
        assert_eq!(server.log().matches(are_left_out).count(), 1);
        drop(shortage);
        assert_eq!(server.get("/app/").text(), "fine");
        let log = server.log();
        assert!(!log.contains("fails its health check"), "{log}");
    }
}

#[test]
fn bodies_that_need_a_temporary_file_are_503() {
    let backend = Backend::start(Speaks::Http, |exchange| match exchange.target() {
        "/app/large" => exchange.answer(200, &[], vec![b'x'; 4 << 20]),
        _ => exchange.say("fine"),
    });
    let server = in_front_of_with(&backend, NEVER_AGAIN)
        .config("server.stream-response-body = 0")
        .start();
    let mut client = connected(&server);
    let shortage = Shortage::of(&server);
    client.send(post("/app/", &"x".repeat(4 << 20)));
    assert_eq!(client.response().status, 503);
    server.expect_log("the request body cannot be kept: a temporary file in");
    drop(shortage);
    let mut client = connected(&server);
    assert_eq!(client.get("/app/").text(), "fine");
    let shortage = Shortage::of(&server);
    assert_eq!(client.get("/app/large").status, 503);
    server.expect_log("the reply cannot be buffered: a temporary file in");
    drop(shortage);
    assert_eq!(server.get("/app/large").body.len(), 4 << 20);
}

#[test]
fn a_program_that_gets_no_pipes_is_503() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .file("www/run.cgi", "printf 'A: b\\n\\n'; echo done")
        .config("server.max-worker = 1")
        .config("server.modules += ( \"mod_cgi\" )")
        .config("cgi.assign = ( \".cgi\" => \"/bin/sh\" )")
        .start();
    assert_eq!(server.get("/run.cgi").text(), "done\n");
    let mut client = connected(&server);
    let shortage = Shortage::of(&server);
    assert_eq!(client.get("/run.cgi").status, 503);
    server.expect_log(
        "cgi: this server has no descriptors, memory or processes left: Too many open files",
    );
    drop(shortage);
    assert_eq!(server.get("/run.cgi").text(), "done\n");
}
