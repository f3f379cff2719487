//! `petrel costs` on a file, a backend, a script and a missing page, beside a live server that it leaves alone.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use petrel_tests::{Backend, Finished, PATIENCE, Server, Speaks, petrel, run, skip};

use crate::alone;

/// Runs the command on the configuration of `server`. `None`: this system does not allow tracing.
fn costs(server: &Server, arguments: &[&str]) -> Option<Finished> {
    let mut command = Command::new(petrel());
    let temporary = server.tree().path("tmp");
    command
        .arg("costs")
        .arg("-f")
        .arg(server.tree().path("petrel.conf"))
        .args(arguments)
        .env("TMPDIR", &temporary);
    let finished = run(&mut command, PATIENCE);
    let left = std::fs::read_dir(&temporary).expect("a directory").count();
    assert_eq!(left, 0, "files of the private instance are left");
    if finished.code() == 1 && finished.errors.contains("(ptrace)") {
        skip("petrel costs", "this system does not allow ptrace");
        return None;
    }
    Some(finished)
}

fn server(config: &str) -> Server {
    Server::build()
        .tree(|tree| {
            tree.directory("tmp");
        })
        .file("www/small.txt", "x".repeat(100))
        .file("hello.lua", "lighty.content = { \"hello\" } return 200")
        .config(&format!(
            "server.modules = ( \"mod_accesslog\" )\naccesslog.filename = var.dir + \"/access.log\"\n{config}"
        ))
        .start()
}

/// The part of `text` behind `from`, up to `to`.
fn part<'t>(text: &'t str, from: &str, to: &str) -> &'t str {
    let (_, behind) = text
        .split_once(from)
        .unwrap_or_else(|| panic!("no {from:?}: {text}"));
    behind.split_once(to).map_or(behind, |(part, _)| part)
}

/// The stages of the run called `run`, each with its system calls.
fn stages<'t>(json: &'t str, run: &str) -> Vec<(&'t str, Vec<&'t str>)> {
    let run = part(json, &format!("\"{run}\":{{"), "}]}]}");
    let stages = run.split("{\"name\":\"").skip(1);
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for piece in stages {
        let name = piece.split('"').next().unwrap_or_default();
        match (piece.contains("\"waits\":"), found.last_mut()) {
            (true, Some((_, calls))) => calls.push(name),
            _ => found.push((name, Vec::new())),
        }
    }
    found
}

fn calls_of<'t>(stages: &[(&'t str, Vec<&'t str>)], stage: &str) -> Vec<&'t str> {
    let of = stages.iter().filter(|(name, _)| *name == stage);
    of.flat_map(|(_, calls)| calls.clone()).collect()
}

#[test]
fn a_file_is_looked_up_once_and_then_sent_from_memory() {
    let _alone = alone();
    let server = server("");
    let url = server.url("/small.txt");
    let Some(finished) = costs(&server, &["--json", &url]) else {
        return;
    };
    assert_eq!(finished.code(), 0, "{}", finished.errors);
    let json = finished.text();
    assert!(json.contains("\"status\":200,\"body_bytes\":100"), "{json}");
    let cold = stages(&json, "cold");
    assert!(
        calls_of(&cold, "(arrival)").contains(&"accept4"),
        "{cold:?}"
    );
    let opened = cold.iter().any(|(_, calls)| calls.contains(&"openat2"));
    assert!(opened && json.contains("small.txt\""), "{json}");
    let warm = stages(&json, "warm");
    assert_eq!(calls_of(&warm, "(arrival)"), ["recvfrom"], "{json}");
    assert_eq!(calls_of(&warm, "send"), ["sendto"], "{json}");
    // Afterwards the report is written, for which the worker's memory may grow (mprotect).
    let stages = warm.iter().filter(|(stage, _)| *stage != "(afterwards)");
    let calls = stages.map(|(_, calls)| calls.len()).sum::<usize>();
    assert_eq!(calls, 2, "{json}");
    assert!(json.contains("\"object\":\"client\""), "{json}");
    assert!(json.contains("\"route\":\"warm static file\""), "{json}");
}

#[test]
fn the_live_server_gets_no_request_and_keeps_its_socket() {
    let _alone = alone();
    let backend = Backend::start(Speaks::FastCgi, |exchange| exchange.say("at once"));
    let server = server(&backend.directive("/app", "\"check-local\" => \"disable\""));
    assert_eq!(server.get("/app/live").status, 200);
    let url = server.url("/app/private");
    let Some(finished) = costs(&server, &["--json", &url]) else {
        return;
    };
    assert_eq!(finished.code(), 0, "{}", finished.errors);
    let json = finished.text();
    let cold = stages(&json, "cold");
    assert!(
        calls_of(&cold, "backend-accept").contains(&"connect"),
        "{json}"
    );
    let warm = stages(&json, "warm");
    let of_backend = calls_of(&warm, "backend-first-byte");
    assert!(
        of_backend.contains(&"sendto") && of_backend.contains(&"recvfrom"),
        "{json}"
    );
    assert!(json.contains("\"route\":\"virtual URL\""), "{json}");
    assert_eq!(server.get("/app/live").status, 200);
    let targets: Vec<String> = backend
        .requests()
        .iter()
        .map(|request| request.param("REQUEST_URI").unwrap_or_default().to_owned())
        .collect();
    assert!(
        targets.iter().any(|target| target == "/app/private"),
        "{targets:?}"
    );
    for request in backend.requests() {
        let token = request.param("HTTP_PETREL_COSTS");
        assert!(token.is_none(), "the backend sees the token");
    }
    let log = server.log() + &server.tree().text("access.log");
    assert!(
        log.contains("/app/live") && !log.contains("/app/private"),
        "{log}"
    );
}

#[test]
fn other_clients_of_the_private_instance_get_403() {
    let _alone = alone();
    static TEMPORARY: OnceLock<PathBuf> = OnceLock::new();
    static ANSWERS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    // While the backend works on the request of the command, another program asks the private instance.
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        let other = TEMPORARY
            .get()
            .and_then(|temporary| ask_first_found(temporary));
        ANSWERS.lock().expect("not poisoned").extend(other);
        exchange.say("at once");
    });
    let server = server(&format!(
        "{}\n$SERVER[\"socket\"] == var.dir + \"/live.sock\" {{ }}\n",
        backend.directive("/app", "\"check-local\" => \"disable\"")
    ));
    TEMPORARY.set(server.tree().path("tmp")).expect("set once");
    let Some(finished) = costs(&server, &["--json", &server.url("/app/private")]) else {
        return;
    };
    assert_eq!(finished.code(), 0, "{}", finished.errors);
    assert!(
        finished.text().contains("\"status\":200"),
        "{}",
        finished.text()
    );
    let answers = ANSWERS.lock().expect("not poisoned");
    assert!(!answers.is_empty(), "no other client has found the socket");
    for answer in answers.iter() {
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(answer.contains("private instance"), "{answer}");
    }
}

/// What the unix socket of a private instance in `temporary` answers to another client.
fn ask_first_found(temporary: &Path) -> Option<String> {
    let directory = std::fs::read_dir(temporary).ok()?.next()?.ok()?.path();
    let mut stream = UnixStream::connect(directory.join("listener-1")).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let request = b"GET /small.txt HTTP/1.1\r\nHost: a\r\nPetrel-Costs: guessed\r\n\r\n";
    stream.write_all(request).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn a_request_with_a_head_that_the_server_refuses_is_reported() {
    let _alone = alone();
    let server = server("");
    let Some(finished) = costs(&server, &["/small.txt", "-HContent-Length: x"]) else {
        return;
    };
    assert_eq!(finished.code(), 0, "{}", finished.errors);
    let text = finished.text();
    assert!(text.starts_with("GET /small.txt  400, "), "{text}");
}

#[test]
fn a_program_of_the_configuration_runs_once_more_on_a_socket_of_its_own() {
    let _alone = alone();
    let server = server(&format!(
        "server.modules += ( \"mod_fastcgi\" )\n\
         fastcgi.server = ( \"/run\" => (( \"socket\" => var.dir + \"/live\", \"check-local\" => \"disable\",\n\
         \"bin-path\" => \"{} fcgi-magnet\", \"max-procs\" => 1 )) )",
        petrel().display()
    ));
    let live = server.tree().path("live-0");
    assert!(live.exists());
    let Some(finished) = costs(&server, &["--json", "/run"]) else {
        return;
    };
    assert_eq!(finished.code(), 0, "{}", finished.errors);
    let json = finished.text();
    assert!(json.contains("/program-0-0\""), "{json}");
    assert!(!json.contains(&format!("{}\"", live.display())), "{json}");
    assert!(live.exists(), "the live socket was removed");
}

#[test]
fn a_script_and_a_missing_page_have_rows_of_the_budget() {
    let _alone = alone();
    let server = server(
        "server.modules += ( \"mod_magnet\" )\n\
         $HTTP[\"url\"] == \"/script\" { magnet.attract-raw-url-to = ( var.dir + \"/hello.lua\" ) }",
    );
    let picture = server.tree().path("picture.svg");
    let picture_name = picture.display().to_string();
    let arguments = ["/script", "--compare", "/missing", "--svg", &picture_name];
    let Some(finished) = costs(&server, &arguments) else {
        return;
    };
    assert_eq!(finished.code(), 0, "{}", finished.errors);
    let text = finished.text();
    for expected in [
        "GET /script  200, 5 bytes",
        "GET /missing  404, ",
        "budget  Lua\n",
        "budget  404\n",
        "B / A",
    ] {
        assert!(text.contains(expected), "no {expected:?}: {text}");
    }
    assert!(!text.contains('\u{1b}'), "colours without a terminal");
    let wide = text.lines().filter(|line| line.chars().count() > 100);
    assert_eq!(wide.count(), 0, "{text}");
    let svg = server.tree().text("picture.svg");
    assert!(
        svg.starts_with("<svg ") && svg.contains("GET /missing"),
        "{svg}"
    );
}

#[test]
fn what_cannot_be_measured_is_said() {
    let _alone = alone();
    let server = server("");
    for (arguments, words) in [
        (["no url", "--json"], "is no URL"),
        (["/", "-XA B"], "-X is a word"),
        (["/", "-Hx"], "is no field"),
    ] {
        let finished = costs(&server, &arguments).expect("nothing was traced");
        assert_eq!(finished.code(), 1, "{}", finished.errors);
        assert!(finished.errors.contains(words), "{}", finished.errors);
    }
    let mut command = Command::new(petrel());
    command.args(["costs", "-f", "/nonexistent", "/"]);
    let finished = run(&mut command, PATIENCE);
    assert_eq!(finished.code(), 1);
    assert!(
        finished.errors.contains("/nonexistent"),
        "{}",
        finished.errors
    );
}

#[test]
fn where_tracing_is_not_allowed_it_says_so() {
    let _alone = alone();
    let server = server("");
    let mut command = Command::new("strace");
    // strace traces the private instance before the command can, and the kernel allows one tracer.
    command
        .args(["-f", "-o", "/dev/null"])
        .arg(petrel())
        .args(["costs", "/small.txt", "-f"])
        .arg(server.tree().path("petrel.conf"));
    let finished = run(&mut command, PATIENCE);
    assert_eq!(finished.code(), 1, "{}", finished.text());
    assert!(finished.errors.contains("(ptrace)"), "{}", finished.errors);
}

/// A site that sends clients without TLS away is measured as clients with TLS see it.
#[test]
fn conditions_see_the_scheme_of_the_url() {
    let _alone = alone();
    let server = server(
        "server.modules += ( \"mod_redirect\" )\n\
         $HTTP[\"scheme\"] == \"http\" { url.redirect = ( \"\" => \"https://a.test/\" ) }",
    );
    let url = server.url("/small.txt");
    for (url, status) in [(url.replace("http:", "https:"), 200), (url, 301)] {
        let Some(finished) = costs(&server, &["--json", &url]) else {
            return;
        };
        let json = finished.text();
        assert!(json.contains(&format!("\"status\":{status},")), "{json}");
    }
}
