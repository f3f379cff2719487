//! Backends during a reload and a stop, and programs that the server runs.

use std::time::Duration;

use petrel_tests::{Backend, Load, PATIENCE, Server, Speaks, eventually, free_port};
use rustix::process::Signal;

use crate::gateway::{in_front_of, name};

#[test]
fn row_45_a_reload_under_load_fails_no_request() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        exchange.pause(Duration::from_millis(1));
        exchange.say("fine");
    });
    let server = in_front_of(&backend).start();
    let load = Load::start(server.address(), "/app/x", 4, 4);
    for _ in 0..3 {
        load.wait_for(100);
        server.signal(Signal::USR1);
        std::thread::sleep(Duration::from_millis(300));
    }
    load.wait_for(100);
    let result = load.stop();
    assert_eq!(result.failures, Vec::<String>::new());
    // The connections of the replaced server processes are closed.
    assert!(eventually(|| backend.open_connections() <= 8));
}

#[test]
fn row_46_a_graceful_stop_waits_for_the_backend() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.pause(Duration::from_millis(500));
        exchange.say("late");
    });
    let mut server = in_front_of(&backend).start();
    let mut client = server.client();
    client.send("GET /app/x HTTP/1.1\r\nHost: a\r\n\r\n");
    backend.expect_requests(1);
    server.signal(Signal::INT);
    assert_eq!(client.response().text(), "late");
    let status = server.wait(PATIENCE).expect("it stops");
    assert!(status.success(), "{status}");
    backend.expect_open_connections(0);
}

/// A FastCGI program that replies with its process id. It is in Perl, so that it starts at once.
const PROGRAM: &str = r#"#!/usr/bin/perl
use FCGI;
my $request = FCGI::Request();
while ($request->Accept() >= 0) {
    exit 1 if $ENV{REQUEST_URI} =~ /die/;
    print "Content-Type: text/plain\r\n\r\n$$";
}
"#;

fn with_program(options: &str) -> Server {
    Server::build()
        .file("program.pl", PROGRAM)
        .tree(|tree| {
            tree.mode("program.pl", 0o755);
        })
        .config("server.modules += ( \"mod_fastcgi\" )")
        .config(&format!(
            "fastcgi.server = ( \"/app\" => (( \"bin-path\" => var.dir + \"/program.pl\", \
             \"socket\" => var.dir + \"/program.sock\", {options} \
             \"check-local\" => \"disable\" )) )"
        ))
        .start()
}

#[test]
fn programs_that_die_are_started_again_and_no_get_is_lost() {
    let server = with_program("\"max-procs\" => 2,");
    let load = Load::start(server.address(), "/app/x", 3, 1);
    load.wait_for(100);
    for _ in 0..5 {
        let pid: i32 = server.get("/app/pid").text().parse().expect("a number");
        let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
        // It may be the process that has just died.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
        load.wait_for(30);
    }
    let result = load.stop();
    assert_eq!(result.failures, Vec::<String>::new());
}

#[test]
fn a_program_that_dies_of_a_request_is_an_error_for_that_request_only() {
    let server = with_program("\"max-procs\" => 2,");
    for _ in 0..3 {
        assert_eq!(server.get("/app/die").status, 502);
        assert!(eventually(|| server.get("/app/x").status == 200));
    }
    let count = || server.processes().pids.len();
    let before = count();
    assert!(eventually(|| count() >= before));
}

/// It takes so long because a request waits for the first restarts, and the pauses before the next ones grow.
#[test]
fn a_program_that_dies_at_once_is_an_error_and_no_wait() {
    const DIES: &str = "#!/bin/sh\nexit 1\n";
    for address in [
        "\"socket\" => var.dir + \"/program.sock\"",
        "\"port\" => @PORT@",
    ] {
        let port = free_port().to_string();
        let server = Server::build()
            .file("program", DIES)
            .tree(|tree| {
                tree.mode("program", 0o755);
            })
            .config("server.modules += ( \"mod_fastcgi\" )")
            .config(&format!(
                "fastcgi.server = ( \"/app\" => (( \"bin-path\" => var.dir + \"/program\", {}, \
                 \"max-procs\" => 2, \"disable-time\" => 1, \"check-local\" => \"disable\" )) )",
                address.replace("@PORT@", &port)
            ))
            .start();
        for _ in 0..2 {
            let response = server.get("/app/x");
            assert_eq!(response.status, 503, "{address}: {response}");
        }
        server.expect_log("requests are refused until the next start");
        server.tree().write("program", PROGRAM);
        assert!(
            eventually(|| server.get("/app/x").status == 200),
            "{address}"
        );
    }
}

#[test]
fn programs_outlive_a_reload_and_end_with_the_server() {
    let mut server = with_program("\"max-procs\" => 1,");
    let pid = server.get("/app/x").text();
    server.signal(Signal::USR1);
    std::thread::sleep(Duration::from_millis(700));
    assert!(eventually(|| server.get("/app/x").status == 200));
    let pids = server.processes().pids;
    server.signal(Signal::INT);
    assert!(server.wait(PATIENCE).is_some(), "it stops");
    let lives = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    assert!(eventually(|| !pids.iter().any(lives)), "{pid} {pids:?}");
}

#[test]
fn an_authorizer_decides_and_tells_variables() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        assert_eq!(exchange.param("(role)"), "2");
        match name(exchange) {
            "denied.txt" => exchange.answer(403, &[("X-Why", "no")], "not you"),
            _ => exchange.answer(200, &[("Variable-AUTH_GROUP", "staff")], ""),
        }
    });
    let server = Server::build()
        .file("www/app/file.txt", "for staff")
        .file("www/app/denied.txt", "secret")
        .config(&backend.directive(
            "/app",
            "\"mode\" => \"authorizer\", \"docroot\" => var.dir + \"/www\", \
             \"check-local\" => \"disable\"",
        ))
        .start();
    let allowed = server.get("/app/file.txt");
    assert_eq!(
        (allowed.status, allowed.text().as_str()),
        (200, "for staff"),
        "{allowed}"
    );
    assert_eq!(allowed.field("Variable-AUTH_GROUP"), None);
    let denied = server.get("/app/denied.txt");
    assert_eq!(
        (denied.status, denied.text().as_str()),
        (403, "not you"),
        "{denied}"
    );
    assert_eq!(backend.requests().len(), 2);
}
