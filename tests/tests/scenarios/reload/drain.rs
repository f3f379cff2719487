//! What happens to a server process that a reload has replaced.

use std::fs::File;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use petrel_tests::{Backend, Client, PATIENCE, Server, Speaks, eventually, petrel, skip};
use rustix::process::{Pid, Signal, kill_process};

use crate::cold_files::Mounted;
use crate::reload::{
    ACCESS_LOG, BIG, HANDSHAKE, application, download, echo, in_front_of, reload, route_to,
    server_processes, tunnel,
};

/// The lines of the access log for `url`.
fn accesses(server: &Server, url: &str) -> Vec<String> {
    let text = server.tree().text("access.log");
    let lines = text.lines().filter(|line| line.ends_with(url));
    lines.map(str::to_owned).collect()
}

#[test]
fn each_request_that_is_cut_is_in_both_logs_with_its_reason() {
    let backend = application();
    let server = in_front_of(&backend, "server.drain-timeout = 1").start();
    let mut loading = download(&server);
    let mut open = tunnel(&server, "tunnel");
    let mut waiting = server.client();
    waiting.send("GET /app/hang HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
    // The tunnel's request and this one.
    assert!(eventually(|| backend.requests().len() == 2));
    reload(&server, "new");

    let refused = waiting.response();
    assert_eq!(refused.status, 503);
    assert!(refused.closes());
    open.expect_close();
    let rest = loading.read_to_end();
    assert!(rest.len() + 100_000 < BIG, "it came as a whole");
    assert!(eventually(|| server_processes(&server) == 1));
    for (url, line) in [
        ("/big.bin", "200 /big.bin"),
        ("/app/tunnel", "101 /app/tunnel"),
        ("/app/hang", "503 /app/hang"),
    ] {
        let is_told = || {
            let log = server.log();
            let mut lines = log.lines().filter(|line| line.contains(url));
            lines.any(|line| line.contains("server.drain-timeout") && line.contains("client="))
        };
        assert!(eventually(is_told), "{url}:\n{}", server.log());
        assert!(eventually(|| accesses(&server, url) == [line]), "{url}");
    }
}

/// A tunnel of the server process with this tag. The one before may accept connections for another moment.
fn tunnel_of(server: &Server, name: &str, tag: Option<&str>) -> Client {
    let mut client = None;
    let is_there = eventually(|| {
        let mut candidate = server.client();
        candidate.send(HANDSHAKE.replace("TARGET", name));
        let response = candidate.response();
        assert_eq!(response.status, 101);
        client = Some(candidate);
        tag.is_none_or(|tag| response.field("Server") == Some(tag))
    });
    assert!(is_there, "{tag:?} accepts no connection");
    client.expect("it is there")
}

#[test]
fn the_fifth_old_generation_ends_the_oldest() {
    let backend = application();
    let server = in_front_of(&backend, "").start();
    let (mut tunnels, mut tag) = (Vec::new(), None);
    for generation in 0..5 {
        tunnels.push(tunnel_of(
            &server,
            &format!("of-{generation}"),
            tag.as_deref(),
        ));
        tunnels.iter_mut().for_each(echo);
        let next = format!("generation {generation}");
        reload(&server, &next);
        tag = Some(next);
    }
    tunnels.remove(0).expect_close();
    server.expect_log("server.drain-generations");
    assert!(eventually(
        || accesses(&server, "/app/of-0") == ["101 /app/of-0"]
    ));
    tunnels.iter_mut().for_each(echo);
    assert!(eventually(|| server_processes(&server) == 5));
    drop(tunnels);
    assert!(eventually(|| server_processes(&server) == 1));
}

#[test]
fn a_stop_leaves_the_same_time_to_all_generations() {
    let backend = application();
    let config = "server.feature-flags = ( \"server.graceful-shutdown-timeout\" => 1 )\n\
                  server.drain-timeout = 3600";
    let mut server = in_front_of(&backend, config).start();
    let mut tunnels = Vec::new();
    for generation in 0..3 {
        tunnels.push(tunnel(&server, &format!("of-{generation}")));
        if generation < 2 {
            reload(&server, &format!("generation {generation}"));
        }
    }
    tunnels.iter_mut().for_each(echo);
    let begin = Instant::now();
    server.signal(Signal::INT);
    tunnels.iter_mut().for_each(|tunnel| tunnel.expect_close());
    // The log says below that all of them had this time.
    let lasted = begin.elapsed();
    assert!(lasted >= Duration::from_millis(900), "{lasted:?}");
    let status = server.wait(PATIENCE).expect("it ends");
    assert_eq!(status.code(), Some(0));
    let log = server.log();
    let cut = log
        .lines()
        .filter(|line| line.contains("graceful-shutdown-timeout"));
    assert_eq!(cut.count(), 3, "{log}");
    assert_eq!(
        server
            .tree()
            .text("access.log")
            .matches("101 /app/of-")
            .count(),
        3
    );
}

#[test]
fn a_stop_at_once_ends_all_generations_and_logs_what_it_cuts() {
    let backend = application();
    let mut server = in_front_of(&backend, "").start();
    let mut tunnels = Vec::new();
    for generation in 0..2 {
        tunnels.push(tunnel(&server, &format!("of-{generation}")));
        reload(&server, &format!("generation {generation}"));
    }
    let mut loading = download(&server);
    server.signal(Signal::TERM);
    let status = server.wait(PATIENCE).expect("it ends");
    assert_eq!(status.code(), Some(0));
    tunnels.iter_mut().for_each(|tunnel| tunnel.expect_close());
    assert!(loading.read_to_end().len() < BIG);
    let log = server.log();
    let cut = log
        .lines()
        .filter(|line| line.contains("told to stop at once"));
    assert_eq!(cut.count(), 3, "{log}");
    let accesses = server.tree().text("access.log");
    assert_eq!(accesses.matches("101 /app/of-").count(), 2);
    assert_eq!(accesses.matches("200 /big.bin").count(), 1);
}

/// It takes so long because the old server process waits seconds for idle clients, and again for their ends.
#[test]
fn idle_clients_end_soon_and_one_that_asks_meanwhile_is_answered() {
    let server = Server::start(ACCESS_LOG);
    let mut asks = server.client();
    assert!(!asks.get("/").closes());
    let mut idle = server.client();
    idle.get("/");
    reload(&server, "new");
    // The old server process either answers, or has closed the connection without a byte and without a reset.
    asks.send("GET / HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
    match asks.try_response() {
        Ok(answer) => assert!(answer.status == 200 && answer.closes(), "{answer}"),
        Err(error) => assert_eq!(error, petrel_tests::ClientError::Closed),
    }
    idle.expect_close();
    // The default idle time of these servers is a minute.
    assert!(eventually(|| server_processes(&server) == 1));
}

#[test]
fn idle_connections_to_backends_end_at_once() {
    let fastcgi = Backend::start(Speaks::FastCgi, |exchange| {
        let target = exchange.target().to_owned();
        exchange.say(&target);
    });
    let application = application();
    let config = format!(
        "server.max-worker = 1\n{}",
        fastcgi.directive("/php", "\"check-local\" => \"disable\"")
    );
    let server = in_front_of(&application, &config).start();
    let mut open = tunnel(&server, "tunnel");
    assert_eq!(server.get("/php/1").text(), "/php/1");
    assert_eq!(server.get("/app/1").text(), "/app/1");
    fastcgi.expect_open_connections(1);
    application.expect_open_connections(2);
    reload(&server, "new");
    fastcgi.expect_open_connections(0);
    application.expect_open_connections(1);
    echo(&mut open);
}

#[test]
fn health_checks_of_an_old_configuration_end() {
    let checked = Backend::start(Speaks::Http, |exchange| exchange.say("well"));
    let backend = application();
    let options = "\"check-local\" => \"disable\", \"health-check-path\" => \"/health\", \
                   \"health-check-interval\" => 1";
    let server = in_front_of(
        &backend,
        &checked
            .directive("/checked", options)
            .replace("proxy.server =", "proxy.server +="),
    )
    .start();
    let mut open = tunnel(&server, "tunnel");
    server.get("/checked/");
    let checks = || {
        let requests = checked.requests();
        requests
            .iter()
            .filter(|request| request.param("REQUEST_URI") == Some("/health"))
            .count()
    };
    assert!(eventually(|| checks() > 0));
    // A configuration without the backend.
    server.write_configuration(&format!("server.tag = \"new\"\n{}", route_to(&backend)));
    server.signal(Signal::USR1);
    assert!(eventually(|| server.get("/").field("Server") == Some("new")));
    let has_ended = || {
        let before = checks();
        std::thread::sleep(Duration::from_millis(2500));
        checks() == before
    };
    assert!(eventually(has_ended));
    echo(&mut open);
}

#[test]
fn logs_of_an_old_configuration_are_reopened_as_long_as_it_has_requests() {
    let backend = application();
    let server = in_front_of(&backend, "").start();
    let open = tunnel(&server, "tunnel");
    // The new configuration has no access log.
    server.write_configuration(&format!("server.tag = \"new\"\n{}", route_to(&backend)));
    server.signal(Signal::USR1);
    assert!(eventually(|| server.get("/").field("Server") == Some("new")));
    server.tree().rename("access.log", "access.log.1");
    server.signal(Signal::HUP);
    server.expect_log("logs reopened");
    assert!(eventually(|| server.tree().path("access.log").exists()));
    drop(open);
    assert!(eventually(|| server_processes(&server) == 1));
    assert_eq!(accesses(&server, "/app/tunnel"), ["101 /app/tunnel"]);
}

#[test]
fn an_old_server_process_that_crashes_is_not_started_again() {
    let backend = application();
    let server = in_front_of(&backend, "").start();
    assert_eq!(server.get("/").status, 200);
    let mut open = tunnel(&server, "tunnel");
    let old = server.processes().pids[1];
    reload(&server, "new");
    let old = i32::try_from(old)
        .ok()
        .and_then(Pid::from_raw)
        .expect("a process");
    kill_process(old, Signal::KILL).expect("it runs");
    open.expect_close();
    server.expect_log("while it was ending");
    assert_eq!(server.get("/").field("Server"), Some("new"));
    assert_eq!(server_processes(&server), 1);
}

#[test]
fn a_server_whose_old_process_has_a_tunnel_is_not_idle() {
    let backend = application();
    let mut command = Command::new(petrel());
    command.args(["-D", "-i", "1"]);
    let mut server = in_front_of(&backend, "").start_as(command);
    let mut open = tunnel(&server, "tunnel");
    reload(&server, "new");
    assert!(eventually(|| server_processes(&server) == 2));
    std::thread::sleep(Duration::from_millis(3500));
    echo(&mut open);
    drop(open);
    let status = server.wait(PATIENCE).expect("it ends");
    assert_eq!(status.code(), Some(0));
}

/// It takes the second in which the old process tries to write its lines.
#[test]
fn lines_that_a_full_disk_has_refused_are_counted_in_the_log_afterwards() {
    let test = "lines_that_a_full_disk_has_refused_are_counted_in_the_log_afterwards";
    let mut disk = None;
    let builder = Server::build()
        .file("www/index.html", "hello")
        .tree(|tree| {
            tree.directory("logs");
            disk = Mounted::new("tmpfs", tree.path("logs"), "size=64k").ok();
        });
    let Some(_disk) = disk else {
        return skip(test, "a small disk cannot be mounted; that takes root");
    };
    let server = builder
        .config("server.errorlog = var.dir + \"/logs/error.log\"")
        .config("debug.log-file-not-found = \"enable\"")
        .start();
    let tree = server.tree();
    let mut filler = File::create(tree.path("logs/filler")).expect("a file");
    while filler.write_all(&[0; 4096]).is_ok() {}
    // Some go into the page that the log has already.
    for number in 0..16 {
        let path = format!("{}/{number}", "/missing".repeat(100));
        assert_eq!(server.get(&path).status, 404);
    }
    reload(&server, "new");
    assert!(eventually(|| server_processes(&server) == 1));
    tree.remove("logs/filler");
    drop(filler);
    let log = || tree.text("logs/error.log");
    let is_told = || {
        log().lines().any(|line| {
            line.contains("has ended: ") && line.ends_with("error.log were dropped: disk full")
        })
    };
    assert!(eventually(is_told), "{}", log());
}
