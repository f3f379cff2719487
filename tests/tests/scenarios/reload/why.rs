//! `petrel why` and the recorder: what is recorded is there after a reload and after a crash.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use petrel_tests::{Finished, PATIENCE, Server, eventually, petrel, run, skip};
use rustix::process::Signal;

use crate::reload::{application, in_front_of, reload};

fn why(server: &Server, words: &[&str]) -> Finished {
    let mut command = Command::new(petrel());
    command
        .arg("why")
        .args(words)
        .arg("-f")
        .arg(server.tree().path("petrel.conf"));
    run(&mut command, PATIENCE)
}

/// The id of the last request for `path`.
#[track_caller]
fn id_of(server: &Server, path: &str) -> String {
    let listed = why(server, &["--last", "1000"]);
    assert_eq!(listed.code(), 0, "{}", listed.errors);
    let text = listed.text();
    let of_path = |line: &&str| line.contains(&format!("{path} "));
    let line = text
        .lines()
        .rev()
        .find(of_path)
        .unwrap_or_else(|| panic!("{path}: {text}"));
    line.split_whitespace().nth(2).expect("an id").to_owned()
}

#[test]
fn a_request_from_before_a_reload_is_found_after_it() {
    let server = Server::start("");
    assert_eq!(server.get("/before?token=secret").status, 404);
    let id = id_of(&server, "/before");
    for round in 0..3 {
        reload(&server, &format!("round {round}"));
    }
    let found = why(&server, &[&id]);
    assert_eq!(found.code(), 0, "{}", found.errors);
    let text = found.text();
    for part in ["GET", "/before", "404", "unattributed", "127.0.0.1", &id] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("secret"), "{text}");
    let json = why(&server, &[&id, "--json"]).text();
    assert!(
        json.contains("\"path\":\"/before\"") && json.contains("\"status\":404"),
        "{json}"
    );
    let errors = why(&server, &["--errors"]).text();
    assert!(errors.contains(&id), "{errors}");
    let slowest = why(&server, &["--slowest", "petrel.test"]).text();
    assert!(slowest.contains("GET petrel.test/"), "{slowest}");
    assert_eq!(why(&server, &["--slowest", "unknown.test"]).code(), 1);
    let gone = why(&server, &["0123456789abcdef"]);
    assert_eq!(gone.code(), 1);
    assert!(gone.errors.contains("oldest request"), "{}", gone.errors);
}

#[test]
fn after_a_crash_the_log_has_the_last_requests_and_they_are_still_found() {
    let backend = application();
    let server = in_front_of(&backend, "server.max-worker = 1").start();
    assert_eq!(server.get("/gone").status, 404);
    let id = id_of(&server, "/gone");
    let mut client = server.client();
    client.send("GET /app/x?token=secret&hang HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
    client.expect_silence(Duration::from_millis(300));
    let victim = server.processes().busiest();
    let kill = format!("kill -ABRT {victim}");
    run(Command::new("sh").args(["-c", &kill]), PATIENCE);
    server.expect_log("killed by SIGABRT");
    server.expect_log("path=/app/x begun at");
    server.expect_log("which did not end");
    server.expect_log(&format!("{id} 404"));
    assert!(!server.log().contains("token=secret"), "{}", server.log());
    assert!(eventually(|| {
        let mut client = server.client();
        client.send("GET / HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
        client
            .try_response()
            .is_ok_and(|response| response.status == 200)
    }));
    let found = why(&server, &[&id]);
    assert_eq!(found.code(), 0, "{}", found.errors);
}

#[test]
fn sigusr2_writes_all_records_beside_the_error_log() {
    let server = Server::start("");
    server.get("/traced");
    let id = id_of(&server, "/traced");
    server.signal(Signal::USR2);
    server.expect_log("requests written to");
    let log = server.log();
    let line = log
        .lines()
        .find(|line| line.contains("requests written to"));
    let mut words = line.expect("it is there").split_whitespace();
    let files: Vec<_> = words
        .by_ref()
        .filter(|word| word.starts_with('/'))
        .collect();
    let [trace, otlp] = files.as_slice() else {
        panic!("{log}")
    };
    for (file, parts) in [
        (trace, ["\"traceEvents\":[", "GET /traced"]),
        (otlp, ["{\"resourceSpans\":[", "\"/traced\""]),
    ] {
        let text = std::fs::read_to_string(file).expect("it was written");
        assert!(text.contains(&id), "{text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn a_directory_that_is_missing_is_one_line_of_the_log() {
    let server = Server::start("recorder.dump = \"/nonexistent/directory\"");
    server.signal(Signal::USR2);
    server.expect_log("recorder: /nonexistent/directory: ");
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn sigusr2_writes_where_the_server_process_may_not() {
    let test = "sigusr2_writes_where_the_server_process_may_not";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "needs root");
    }
    // Below the server's own tree every user may write.
    let dump = std::env::temp_dir().join(format!("petrel-dumps-{}", std::process::id()));
    fs::create_dir(&dump).expect("a new directory");
    // As the Debian package has it.
    fs::set_permissions(&dump, Permissions::from_mode(0o750)).expect("it is ours");
    let server = Server::start(&format!(
        "server.username = \"nobody\"\nserver.groupname = \"nogroup\"\nrecorder.dump = \"{}\"",
        dump.display()
    ));
    server.get("/traced");
    server.signal(Signal::USR2);
    server.expect_log("requests written to");
    let files: Vec<_> = fs::read_dir(&dump).expect("it is there").collect();
    assert_eq!(files.len(), 2);
    for file in files {
        let text = fs::read_to_string(file.expect("an entry").path()).expect("it was written");
        assert!(text.contains("/traced"), "{text}");
    }
    drop(server);
    fs::remove_dir_all(&dump).expect("it is removed");
}

#[test]
fn a_slow_request_is_on_the_status_page_and_in_top_with_what_held_it_up() {
    let backend = application();
    let more = "server.modules += ( \"mod_status\" )\nstatus.status-url = \"/status\"";
    let server = in_front_of(&backend, more).start();
    assert_eq!(server.get("/").status, 200);
    let mut client = server.client();
    client.send("POST /app/x HTTP/1.1\r\nHost: petrel.test\r\nContent-Length: 4\r\n\r\n");
    client.expect_silence(Duration::from_millis(300));
    client.send("body");
    client.response();
    let id = id_of(&server, "/app/x");
    let shown = why(&server, &[&id, "--json"]).text();
    // On a busy machine there may be shorter notes about the worker.
    let notes = shown.split("\"holder\":\"").skip(1);
    let mut holders = notes.filter_map(|note| Some(note.split_once('"')?.0));
    let holder = holders.find(|holder| holder.contains("the client "));
    let holder = holder.unwrap_or_else(|| panic!("no note about the client: {shown}"));
    // What holds a request up stays after a reload.
    reload(&server, "new");
    // The page is a second old at most.
    let on_page = || {
        server
            .get("/status")
            .text()
            .contains(&format!("<bdi>{holder}</bdi>"))
    };
    assert!(
        eventually(on_page),
        "{holder}: {}",
        server.get("/status").text()
    );
    assert!(server.get("/status").text().contains(&id));
    let json = server.get("/status?json").text();
    assert!(
        json.contains(&format!("\"id\":\"{id}\"")) && json.contains(holder),
        "{json}"
    );
    let mut top = Command::new(petrel());
    top.args(["top", "--once", "-f"])
        .arg(server.tree().path("petrel.conf"));
    let top = run(&mut top, PATIENCE).text();
    assert!(top.contains(&id) && top.contains(holder), "{top}");
}

#[test]
fn without_a_recorder_there_is_nothing_and_nothing_fails() {
    let server = Server::start("recorder.size = 0");
    assert_eq!(server.get("/").status, 200);
    let nothing = why(&server, &["--last", "5"]);
    assert_eq!(nothing.code(), 1, "{}", nothing.errors);
    let gone = why(&server, &["0123456789abcdef"]);
    assert_eq!(gone.code(), 1);
    assert!(gone.errors.contains("recorder.size"), "{}", gone.errors);
}

#[test]
fn a_slow_request_gets_a_line_that_says_why() {
    let backend = application();
    let server = in_front_of(&backend, "ledger.log-slower-than = 100").start();
    assert_eq!(server.get("/").status, 200);
    let mut client = server.client();
    client.send("POST /app/x HTTP/1.1\r\nHost: petrel.test\r\nContent-Length: 4\r\n\r\n");
    client.expect_silence(Duration::from_millis(300));
    client.send("body");
    client.response();
    server.expect_log("ms was request-body: ");
    let log = server.log();
    let slow: Vec<_> = log.lines().filter(|line| line.contains("(slow)")).collect();
    assert!(slow.len() == 1 && slow[0].contains("POST /app/x"), "{log}");
}
