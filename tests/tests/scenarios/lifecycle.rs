//! Rows 45 and 46 of the list of bad input and faults, and the life of a process: start, reload, stop.

use std::time::{Duration, Instant};

use petrel_tests::{Load, PATIENCE, SOON, Server, eventually, run, skip};
use rustix::process::Signal;

#[test]
fn a_syntax_error_ends_the_start_with_255_and_its_place() {
    let finished = Server::build()
        .config("server.tag = \"unfinished")
        .check(&["-D"]);
    assert_eq!(finished.code(), 255, "{}", finished.errors);
    assert!(
        finished.errors.contains("petrel.conf"),
        "{}",
        finished.errors
    );
}

#[test]
fn an_unknown_directive_is_a_warning_with_the_nearest_name() {
    let finished = Server::build().config("server.tagg = \"x\"").check(&["-t"]);
    assert_eq!(finished.code(), 0, "{}", finished.errors);
    let said = finished.text() + &finished.errors;
    assert!(
        said.contains("server.tagg") && said.contains("server.tag"),
        "{said}"
    );
}

#[test]
fn a_port_that_is_taken_is_an_error() {
    let server = Server::start("");
    let config = format!("server.port = {}", server.port());
    let finished = Server::build()
        .file("www/x", "")
        .config(&config)
        .check(&["-D"]);
    assert_eq!(finished.code(), 255, "{}", finished.errors);
    let said = finished.text() + &finished.errors;
    assert!(said.contains(&server.port().to_string()), "{said}");
    assert_eq!(server.get("/").text(), "hello", "the first one goes on");
}

#[test]
fn row_45_a_reload_under_load_fails_no_request() {
    let server = Server::start("");
    let load = Load::start(server.address(), "/", 4, 2);
    load.wait_for(200);
    for round in 0..5 {
        server.write_configuration(&format!("server.tag = \"round {round}\""));
        server.signal(Signal::USR1);
        let tag = format!("round {round}");
        let is_new = || server.get("/").field("Server") == Some(tag.as_str());
        assert!(eventually(is_new), "the new configuration does not count");
        load.wait_for(200);
    }
    let result = load.stop();
    assert!(result.failures.is_empty(), "{:?}", result.failures);
    assert!(result.answered > 1000, "only {} requests", result.answered);
}

#[test]
fn row_45_what_is_under_way_ends_under_the_old_configuration() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .file("www/big.bin", vec![b'x'; 32 << 20])
        .start();
    let mut client = server.client().with_receive_buffer(64 * 1024);
    client.send("GET /big.bin HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
    client.read_bytes(100_000);
    server.write_configuration("server.tag = \"new\"");
    server.signal(Signal::USR1);
    assert!(eventually(|| server.get("/").field("Server") == Some("new")));
    let rest = client.read_bytes((32 << 20) - 100_000);
    assert!(rest.iter().all(|byte| *byte == b'x'));
}

#[test]
fn row_45_a_bad_configuration_keeps_the_old_one_and_says_why() {
    let server = Server::start("server.tag = \"old\"");
    let load = Load::start(server.address(), "/", 2, 1);
    server.write_configuration("server.tag = \"new\"\nserver.max-keep-alive-idle = {");
    server.signal(Signal::USR1);
    server.expect_log("petrel.conf");
    load.wait_for(100);
    assert_eq!(server.get("/").field("Server"), Some("old"));
    let result = load.stop();
    assert!(result.failures.is_empty(), "{:?}", result.failures);

    server.write_configuration("server.tag = \"newer\"");
    server.signal(Signal::USR1);
    assert!(
        eventually(|| server.get("/").field("Server") == Some("newer")),
        "the next one counts"
    );
}

#[test]
fn row_45_reloads_leave_nothing_behind() {
    let server = Server::start("server.max-keep-alive-idle = 1");
    let reload = |tag: &str| {
        server.write_configuration(&format!(
            "server.tag = \"{tag}\"\nserver.max-keep-alive-idle = 1"
        ));
        server.signal(Signal::USR1);
        assert!(eventually(|| server.get("/").field("Server") == Some(tag)));
    };
    reload("first");
    // The old process ends when its last connection does.
    let count = || server.processes().pids.len();
    assert!(eventually(|| count() == 2), "{} processes", count());
    let before = server.holdings();
    for round in 0..5 {
        reload(&format!("round {round}"));
    }
    server.expect_holdings(&before);
}

#[test]
fn row_45_a_reload_opens_and_closes_listeners() {
    let server = Server::start("");
    let other = petrel_tests::free_port();
    let address = petrel_tests::Address::Ip(([127, 0, 0, 1], other).into());
    server.write_configuration(&format!(
        "$SERVER[\"socket\"] == \"127.0.0.1:{other}\" {{ }}"
    ));
    server.signal(Signal::USR1);
    let is_open = || petrel_tests::Client::try_connect(&address).is_ok();
    assert!(eventually(is_open), "the new listener is not there");
    assert_eq!(
        petrel_tests::Client::connect(&address).get("/").text(),
        "hello"
    );
    server.write_configuration("");
    server.signal(Signal::USR1);
    assert!(eventually(|| !is_open()), "the old listener stays");
    assert_eq!(server.get("/").text(), "hello");
}

#[test]
fn row_46_sigint_under_load_drains_and_exits_0() {
    let mut server = Server::build()
        .file("www/index.html", "hello")
        .file("www/big.bin", vec![b'x'; 16 << 20])
        .start();
    let mut slow = server.client().with_receive_buffer(64 * 1024);
    slow.send("GET /big.bin HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
    slow.read_bytes(100_000);
    let mut idle = server.client();
    assert_eq!(idle.get("/").status, 200);

    let begin = Instant::now();
    server.signal(Signal::INT);
    idle.expect_close();
    let refused = || petrel_tests::Client::try_connect(server.address()).is_err();
    assert!(eventually(refused), "it still accepts");
    let rest = slow.read_to_end();
    let head = rest.len() + 100_000 - (16 << 20);
    assert!(
        (100..1000).contains(&head),
        "the transfer was cut: {} bytes",
        rest.len()
    );
    let status = server.wait(PATIENCE).expect("it ends");
    assert_eq!(status.code(), Some(0));
    assert!(begin.elapsed() < SOON, "took {:?}", begin.elapsed());
}

#[test]
fn row_46_sigint_waits_no_longer_than_its_deadline() {
    let mut server = Server::build()
        .file("www/big.bin", vec![b'x'; 32 << 20])
        .config("server.feature-flags = (\"server.graceful-shutdown-timeout\" => 1)")
        .start();
    let mut stuck = server.client().with_receive_buffer(16 * 1024);
    stuck.send("GET /big.bin HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
    stuck.read_bytes(1000);
    let begin = Instant::now();
    server.signal(Signal::INT);
    let status = server.wait(PATIENCE).expect("it ends");
    assert_eq!(status.code(), Some(0));
    let took = begin.elapsed();
    assert!(took > Duration::from_millis(700) && took < SOON, "{took:?}");
}

#[test]
fn row_46_sigterm_and_a_second_sigint_end_it_at_once() {
    for signals in [&[Signal::TERM][..], &[Signal::INT, Signal::INT]] {
        let mut server = Server::build()
            .file("www/big.bin", vec![b'x'; 32 << 20])
            .start();
        let mut stuck = server.client().with_receive_buffer(16 * 1024);
        stuck.send("GET /big.bin HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
        stuck.read_bytes(1000);
        let children = server.processes().pids;
        let begin = Instant::now();
        server.signal(signals[0]);
        if let Some(second) = signals.get(1) {
            // If two signals arrive at once, the kernel delivers one.
            server.expect_log("graceful");
            server.signal(*second);
        }
        let status = server.wait(PATIENCE).expect("it ends");
        assert_eq!(status.code(), Some(0), "{signals:?}");
        assert!(begin.elapsed() < SOON, "took {:?}", begin.elapsed());
        for pid in children {
            let gone = || !std::path::Path::new(&format!("/proc/{pid}")).exists();
            assert!(eventually(gone), "process {pid} is left behind");
        }
    }
}

#[test]
fn sighup_opens_the_logs_anew() {
    let server = Server::start("debug.log-file-not-found = \"enable\"");
    assert_eq!(server.get("/first").status, 404);
    assert!(eventually(|| server
        .tree()
        .text("error.log")
        .contains("first")));
    server.tree().rename("error.log", "error.log.1");
    server.signal(Signal::HUP);
    let new = server.tree().path("error.log");
    let has_it = |pid: &u32| {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
        descriptors
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .any(|open| open == new)
    };
    assert!(
        eventually(|| server.processes().pids.iter().all(has_it)),
        "no new log"
    );
    assert_eq!(server.get("/second").status, 404);
    assert!(eventually(|| server
        .tree()
        .text("error.log")
        .contains("second")));
    assert!(!server.tree().text("error.log.1").contains("second"));
}

#[test]
fn a_crashed_server_process_is_back_soon() {
    let server = Server::start("server.max-keep-alive-idle = 30");
    // A connection is possible before the server process is ready. If a process ends before it is ready, the
    // whole server ends.
    assert_eq!(server.get("/").status, 200);
    let victim = server.processes().busiest();
    if victim == server.pid() {
        panic!("the process that was started serves by itself");
    }
    let kill = format!("kill -KILL {victim}");
    let killed = run(
        std::process::Command::new("sh").args(["-c", &kill]),
        PATIENCE,
    );
    assert_eq!(killed.code(), 0, "{}", killed.errors);
    let begin = Instant::now();
    assert!(eventually(|| {
        let mut client = server.client().with_patience(Duration::from_secs(5));
        client.send("GET / HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
        client
            .try_response()
            .is_ok_and(|response| response.status == 200)
    }));
    assert!(begin.elapsed() < SOON, "took {:?}", begin.elapsed());
    server.expect_log("killed by SIGKILL");
}

// systemd stops a unit by sending SIGTERM to all of its processes at once.
#[test]
fn sigterm_to_all_processes_loses_no_line_of_the_log() {
    const REQUESTS: usize = 3000;
    let config = "server.modules += (\"mod_accesslog\")\naccesslog.filename = var.dir + \"/access.log\"\n\
                  accesslog.format = \"%s\"\nserver.max-keep-alive-requests = 100000";
    let mut server = Server::start(config);
    let mut client = server.client();
    for _ in 0..REQUESTS {
        assert_eq!(client.get("/").status, 200);
    }
    let pids: Vec<String> = server
        .processes()
        .pids
        .iter()
        .map(ToString::to_string)
        .collect();
    let kill = format!("kill -TERM {}", pids.join(" "));
    let killed = run(
        std::process::Command::new("sh").args(["-c", &kill]),
        PATIENCE,
    );
    assert_eq!(killed.code(), 0, "{}", killed.errors);
    let status = server.wait(PATIENCE).expect("it ends");
    assert_eq!(status.code(), Some(0));
    assert_eq!(server.tree().text("access.log").lines().count(), REQUESTS);
    assert!(!server.log().contains("killed"), "{}", server.log());
}

#[test]
fn the_pid_file_holds_the_pid_while_it_runs() {
    let mut server = Server::start("server.pid-file = var.dir + \"/pid\"");
    assert_eq!(server.tree().text("pid").trim(), server.pid().to_string());
    server.signal(Signal::TERM);
    server.wait(PATIENCE).expect("it ends");
    assert!(
        !server.tree().path("pid").exists(),
        "the pid file is left behind"
    );
}

#[test]
fn each_start_and_reload_says_what_is_missing_and_what_is_lowered() {
    let server = Server::start(
        "server.max-fds = 1000\nserver.max-connections = 900
        $HTTP[\"host\"] == \"x\" { server.document-root = var.dir + \"/none\" }",
    );
    let told = [
        "/none is missing",
        "server.max-connections is lowered from 900 to 500, half of the 1000 files that may be open",
    ];
    let times = |text: &str| server.log().matches(text).count();
    for text in told {
        assert_eq!(times(text), 1, "{}", server.log());
    }
    server.signal(Signal::USR1);
    for text in told {
        assert!(eventually(|| times(text) == 2), "{}", server.log());
    }
}

/// A site in a home directory that only its owner may enter is the commonest first mistake.
#[test]
fn a_document_root_that_the_servers_user_may_not_enter_is_told() {
    if !rustix::process::geteuid().is_root() {
        return skip("a server of another user", "this is not root");
    }
    let build = || {
        Server::build()
            .file("www/index.html", "hello")
            .tree(|tree| {
                tree.mode("www", 0o700).mode("", 0o755);
            })
            .config("server.username = \"nobody\"\nserver.groupname = \"nogroup\"")
    };
    let told = "server.document-root: user \"nobody\" may not enter ";
    let checked = build().check(&["-tt"]);
    assert!(checked.errors.contains(told), "{}", checked.errors);
    let server = build().start();
    let log = server.log();
    assert!(
        log.contains(told) && log.contains("/www (mode 700, owner 0)"),
        "{log}"
    );
    assert_eq!(server.get("/index.html").status, 403);
    server.expect_log("(map) a file may not be opened below ");
}

#[test]
fn mistakes_of_the_first_hour_are_told() {
    let told = |config: &str, words: &[&str]| {
        let checked = Server::build().config(config).check(&["-tt"]);
        for word in words {
            assert!(checked.errors.contains(word), "{word}: {}", checked.errors);
        }
        checked
    };
    let modules = "server.modules += ( \"mod_alias\", \"mod_deflate\", \"mod_proxy\" )\n";
    for (config, words) in [
        (
            "alias.url = ( \"/a/\" => \"/nonexistent/\" )",
            &["alias.url: /nonexistent/ is missing"][..],
        ),
        (
            "alias.url = ( \"/a/\" => \"/usr\" )",
            &["\"/a/a.txt\" becomes \"/usra.txt\""],
        ),
        (
            "deflate.cache-dir = \"/nonexistent/cache\"",
            &["may not write to /nonexistent/cache", "in memory only"],
        ),
        (
            "$HTTP[\"host\"] == \"https://a.example\" { server.tag = \"a\" }",
            &["a host has no scheme", "$HTTP[\"scheme\"]"],
        ),
        (
            "proxy.server = ( \"/p\" => (( \"host\" => \"127.0.0.1:3000\" )) )",
            &["has a port in its name", "\"port\" => 3000"],
        ),
    ] {
        let checked = told(&format!("{modules}{config}"), words);
        assert_eq!(checked.code(), 0, "{}", checked.errors);
    }
    for (config, words) in [
        (
            "server {\n    listen 80;\n}",
            &["this is written for nginx", "docs/from-nginx.md"][..],
        ),
        (
            "<VirtualHost *:80>\n</VirtualHost>",
            &["this is written for Apache", "docs/from-apache.md"],
        ),
    ] {
        let checked = told(config, words);
        assert_eq!(
            checked.errors.matches("Error: ").count(),
            1,
            "{}",
            checked.errors
        );
    }
    if rustix::process::geteuid().is_root() {
        told(
            "server.username = \"no-such-user\"",
            &["there is no user \"no-such-user\"", "petrel.conf:"],
        );
    }
}
