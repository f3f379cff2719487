//! Scripts that are replaced, deleted or half written while requests run.

use std::time::{Duration, Instant};

use petrel_tests::{Client, Server, eventually};

use crate::lua_api::{lua_lines, site};

const GOOD: &str = "lighty.content = { \"good\" } return 200";

fn good(answer: &str) -> String {
    format!("lighty.content = {{ \"{answer}\" }} return 200")
}

fn start() -> Server {
    site(&[], &[("script", GOOD)])
        .config("server.max-worker = 1")
        .start()
}

/// How long it takes until `/script` answers with `status` and `text`.
#[track_caller]
fn until(server: &Server, status: u16, text: &str) -> Duration {
    let begin = Instant::now();
    let is_there = || {
        let response = server.get("/script");
        response.status == status && response.text().contains(text)
    };
    assert!(
        eventually(is_there),
        "{status} {text}: {}",
        server.get("/script")
    );
    begin.elapsed()
}

#[test]
fn every_change_is_seen_soon() {
    let server = start();
    let tree = server.tree();
    until(&server, 200, "good");
    let mut times = Vec::new();
    for round in 0..5 {
        tree.replace("lua/script.lua", good(&format!("round {round}")));
        times.push(until(&server, 200, &format!("round {round}")));
        tree.write("lua/script.lua", "lighty.content = { \"half");
        times.push(until(&server, 500, ""));
        tree.write("lua/script.lua", good("whole"));
        times.push(until(&server, 200, "whole"));
        tree.remove("lua/script.lua");
        times.push(until(&server, 500, ""));
        tree.write("lua/script.lua", "\u{1b}LJ\u{2}");
        std::thread::sleep(Duration::from_millis(50));
        until(&server, 500, "");
        tree.write("lua/script.lua", good("back"));
        times.push(until(&server, 200, "back"));
    }
    times.sort_unstable();
    println!("from first to last: {times:?}");
    // At least some are fast, even on a busy machine.
    assert!(times[5] < Duration::from_millis(500), "{times:?}");
    let log = lua_lines(&server).join("\n");
    for words in [
        "script.lua:1: unfinished string",
        "there is no such script",
        "binary chunks",
    ] {
        assert!(log.contains(words), "{words}: {log}");
    }
}

#[test]
fn requests_meanwhile_get_one_whole_script_or_an_error() {
    let server = start();
    until(&server, 200, "good");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = Client::connect(server.address());
                    let mut statuses = [0_usize; 2];
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let response = client.get("/script");
                        match response.status {
                            200 => assert!(
                                ["version ", "good"]
                                    .iter()
                                    .any(|text| response.text().starts_with(text)),
                                "{response}"
                            ),
                            // An empty script answers nothing, and there is no such file.
                            500 | 404 => {}
                            _ => panic!("{response}"),
                        }
                        statuses[usize::from(response.status != 200)] += 1;
                        if response.closes() {
                            client = Client::connect(server.address());
                        }
                    }
                    statuses
                })
            })
            .collect();
        // The clients' first requests may still get the initial text.
        server.tree().replace("lua/script.lua", good("version 0"));
        for round in 1..60 {
            let text = good(&format!("version {round}"));
            match round % 3 {
                // Replacing by rename never causes an error.
                0 => drop(server.tree().replace("lua/script.lua", text)),
                // Writing in place leaves half of it on the disk for a while.
                1 => {
                    server.tree().write("lua/script.lua", &text[..20]);
                    std::thread::sleep(Duration::from_millis(5));
                    server.tree().write("lua/script.lua", text);
                }
                _ => {
                    server.tree().remove("lua/script.lua");
                    std::thread::sleep(Duration::from_millis(5));
                    server.tree().write("lua/script.lua", text);
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for client in clients {
            let [good, errors] = client.join().expect("no nonsense was seen");
            println!("{good} answers, {errors} errors");
            assert!(good > 0);
        }
    });
    until(&server, 200, "version 59");
}

#[test]
fn scripts_replaced_by_rename_never_fail() {
    let server = start();
    until(&server, 200, "good");
    let load = petrel_tests::Load::start(server.address(), "/script", 2, 1);
    for round in 0..40 {
        server
            .tree()
            .replace("lua/script.lua", good(&format!("version {round}")));
        std::thread::sleep(Duration::from_millis(10));
    }
    let result = load.stop();
    assert!(
        result.failures.is_empty(),
        "{:?}\n{}",
        result.failures,
        server.log()
    );
    until(&server, 200, "version 39");
}

/// It takes so long because a script sleeps for three seconds, and the server must notice before that it has changed.
#[test]
fn a_script_that_waits_goes_on_as_it_was() {
    let server = start();
    server.tree().replace(
        "lua/script.lua",
        "petrel.sleep(3) lighty.content = { \"old\" } return 200",
    );
    until(&server, 200, "old");
    let mut client = server.client();
    client.send("GET /script HTTP/1.1\r\nHost: a\r\n\r\n");
    std::thread::sleep(Duration::from_secs(1));
    server.tree().remove("lua/script.lua");
    until(&server, 500, "");
    assert_eq!(client.response().text(), "old");
}
