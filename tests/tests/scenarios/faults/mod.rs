//! Faults of every kind, injected one at a time: the access log, the status page and `petrel why` name what held the
//! request up.
//!
//! The stages themselves are tested in `http/stages.rs`; here the holder is what counts. Each test makes one
//! fault, sends a request that suffers from it, and looks for the words that would help an administrator.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use petrel_tests::{
    Backend, Builder, Client, Deaf, ProcessTree, Server, SlowFs, Speaks, Tree, eventually,
    expect_note_everywhere, is_installed, skip,
};
use rustix::process::Signal;

mod name_server;
mod networks;
mod slow_readers;

/// How long a fault lasts: much longer than a wait that is worth a note, which is 10 ms.
const PAUSE: Duration = Duration::from_millis(200);

fn site() -> Builder {
    site_with_log("/access.log", "%U")
}

/// A site whose access log is `var.dir` and `log`, and whose lines begin with `first`.
fn site_with_log(log: &str, first: &str) -> Builder {
    Server::build()
        .file("www/a.txt", "a")
        .config("server.max-worker = 1")
        .config("server.modules = (\"mod_accesslog\", \"mod_status\")")
        .config("status.status-url = \"/status\"")
        .config(&format!("accesslog.filename = var.dir + \"{log}\""))
        .config(&format!(
            "accesslog.format = \"{first} %{{request-id}}x %{{waits}}x\""
        ))
}

/// Starts the site, and waits until its worker answers: the keeper accepts connections earlier.
fn started(site: Builder) -> Server {
    let server = site.start();
    server.get("/");
    server
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// A client that has sent a request for `target` and has no answer yet.
fn asking(server: &Server, target: &str) -> Client {
    let mut client = server.client();
    client.send(get(target));
    client
}

/// The access log has a line about `path` in which a note about `stage` contains all of `words`. The status page and
/// `petrel why` have the same note about the same request.
#[track_caller]
fn expect_holder(server: &Server, path: &str, stage: &str, words: &[&str]) {
    let log = server.tree().path("access.log");
    let prefix = format!("{path} ");
    let find = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        line.map(str::to_owned)
    };
    assert!(eventually(|| find().is_some()), "no line about {path}");
    let line = find().unwrap_or_default();
    let (id, notes) = line.split_once(' ').unwrap_or_default();
    let is_it = |note: &str| {
        note.starts_with(&format!("{stage} ")) && words.iter().all(|word| note.contains(word))
    };
    let note = notes.split("; ").find(|note| is_it(note));
    let note = note.unwrap_or_else(|| panic!("no {stage} with {words:?}: {line}"));
    expect_note_everywhere(server, id, note);
}

#[test]
fn a_mount_that_hangs_is_named_with_its_oldest_job() {
    let mut slow = None;
    let server = started(
        site()
            .file("www/slow/a.txt", "a")
            .tree(|tree| slow = SlowFs::mount_or_skip("a_mount_that_hangs", &tree.path("www/slow")))
            .config("server.max-file-wait = 1"),
    );
    let Some(slow) = slow else { return };
    slow.hang();
    assert_eq!(asking(&server, "/slow/a.txt").response().status, 504);
    let words = ["/slow/a.txt on ", "/www/slow (fuse", "the oldest for "];
    expect_holder(&server, "/slow/a.txt", "open", &words);
}

/// Each step of the path takes a while, and more of them are made to find out which file system the name would be on.
#[test]
fn a_disk_that_answers_late_is_told_from_a_worker_that_is_late() {
    let mut slow = None;
    let server = started(site().file("www/slow/a.txt", "a").tree(|tree| {
        slow = SlowFs::mount_or_skip("a_disk_that_answers_late", &tree.path("www/slow"))
    }));
    let Some(slow) = slow else { return };
    slow.delay(PAUSE / 2);
    let begun = std::time::Instant::now();
    for (path, status) in [("/slow/none", 404), ("/slow/a.txt", 200)] {
        assert_eq!(asking(&server, path).response().status, status);
        expect_holder(&server, path, "open", &[path, "/www/slow (fuse"]);
    }
    let took = begun.elapsed();
    slow.release();
    // On a busy machine the worker is late as well.
    let log = server.tree().text("access.log");
    let notes = log.split(" ms").filter_map(|text| text.rsplit_once("lag "));
    let lags: u64 = notes.filter_map(|(_, lag)| lag.parse::<u64>().ok()).sum();
    assert!(
        Duration::from_millis(lags) < took / 8,
        "{lags} ms of {took:?}: {log}"
    );
}

#[test]
fn a_backend_that_accepts_no_connection_is_named() {
    let deaf = Deaf::new();
    let host = deaf.host();
    let server = started(
        site()
            .config("server.modules += (\"mod_proxy\")")
            .config(&format!(
                "proxy.server = (\"/b/\" => (( {host}, \"connect-timeout\" => 1 )))"
            )),
    );
    assert_eq!(asking(&server, "/b/x").response().status, 504);
    expect_holder(
        &server,
        "/b/x",
        "backend-connect",
        &["accepted no connection"],
    );
}

#[test]
fn a_backend_that_takes_the_request_slowly_is_named() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.pause(PAUSE);
        exchange.read_body();
        exchange.answer(200, &[], "read");
    });
    let server = started(site().config(&backend.directive("/b/", "")));
    let mut client = server.client();
    let body = vec![b'x'; 8 << 20];
    client.send(format!(
        "POST /b/large HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    client.send(body);
    assert_eq!(client.response().text(), "read");
    expect_holder(
        &server,
        "/b/large",
        "backend-send",
        &["did not take the request"],
    );
}

#[test]
fn a_backend_that_works_and_one_that_sends_slowly_are_told_apart() {
    let backend = Backend::start(Speaks::Http, |exchange| match exchange.target() {
        "/b/works" => {
            exchange.pause(PAUSE);
            exchange.answer(200, &[], "late");
        }
        _ => {
            exchange.head(200, &[]);
            exchange.body("a");
            exchange.pause(PAUSE);
            exchange.body("b");
            exchange.end();
        }
    });
    let server = started(site().config(&backend.directive("/b/", "")));
    assert_eq!(server.get("/b/works").text(), "late");
    assert_eq!(server.get("/b/sends").text(), "ab");
    let name = backend.name();
    let words = [name.as_str(), "worked on the request"];
    expect_holder(&server, "/b/works", "backend-first-byte", &words);
    expect_holder(
        &server,
        "/b/sends",
        "backend-body",
        &[&name, "sent its reply"],
    );
}

/// All pages of many sites are one script for the server.
#[test]
fn requests_are_named_by_the_paths_that_clients_asked_for() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.pause(PAUSE);
        exchange.answer(200, &[], "page");
    });
    let server = started(
        site_with_log("/access.log", "%{path}e")
            .config("server.modules += (\"mod_rewrite\", \"mod_setenv\")")
            .config("url.rewrite-once = (\"^/page/\" => \"/b/index\")")
            .config("$HTTP[\"request-method\"] == \"PUT\" { setenv.set-environment = (\"path\" => \"second\") }")
            .config(&backend.directive("/b/", "\"max-connections\" => 1")),
    );
    let mut first = asking(&server, "/page/first");
    thread::sleep(PAUSE / 4);
    let mut second = server.client();
    second.send("PUT /page/second HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(first.response().text(), "page");
    assert_eq!(second.response().text(), "page");
    expect_holder(&server, "second", "backend-queue", &["1x /page/first"]);
    let shown = server.get("/status?json").text();
    assert!(
        shown.contains("/page/first") && !shown.contains("/b/index"),
        "{shown}"
    );
}

/// An application with one process: while that works on a request, the next one waits in the kernel's queue. On a
/// machine that is so busy that Petrel has not looked meanwhile, this is tried again.
#[test]
fn a_process_that_another_request_has_is_named() {
    let tree = Tree::new();
    let socket = tree.path("one.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let ((begins, has_begun), (go_on, may_go_on)) = (channel(), channel());
    // The thread ends with the test.
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            // The head is short and comes in one piece.
            let read = stream.read(&mut [0; 4096]);
            if read.is_err() || begins.send(()).is_err() || may_go_on.recv().is_err() {
                return;
            }
            let reply = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
            stream.write_all(reply.as_bytes()).expect("Petrel waits");
        }
    });
    let server = started(
        site()
            .config("server.modules += (\"mod_proxy\")")
            .config(&format!(
                "proxy.server = (\"/b/\" => (( \"socket\" => \"{}\" )))",
                socket.display()
            )),
    );
    let log = server.tree().path("access.log");
    let mut round = 0;
    let is_named = eventually(|| {
        round += 1;
        let mut first = asking(&server, &format!("/b/first-{round}"));
        has_begun.recv().expect("the first request");
        let mut second = asking(&server, &format!("/b/second-{round}"));
        thread::sleep(PAUSE);
        go_on.send(()).expect("the process");
        has_begun.recv().expect("the second request");
        // The work for the second request is no part of the age of the first one.
        thread::sleep(6 * PAUSE);
        go_on.send(()).expect("the process");
        assert_eq!(first.response().text(), "ok");
        assert_eq!(second.response().text(), "ok");
        let line = || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let prefix = format!("/b/second-{round} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
            line.map(str::to_owned)
        };
        assert!(eventually(|| line().is_some()));
        let line = line().unwrap_or_default();
        let holder = format!(" has 1 of 1 processes busy: 1x /b/first-{round}, oldest ");
        let note = line.split("; ").find(|note| note.contains(&holder));
        note.is_some_and(|note| note.contains("backend-accept ") && note.contains(" ms, client "))
    });
    assert!(
        is_named,
        "{}",
        std::fs::read_to_string(&log).unwrap_or_default()
    );
    let words = ["processes busy: 1x /b/first-"];
    expect_holder(
        &server,
        &format!("/b/second-{round}"),
        "backend-accept",
        &words,
    );
}

#[test]
fn a_client_that_sends_slowly_is_named() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.read_body();
        exchange.answer(200, &[], "read");
    });
    let server = started(site().config(&backend.directive("/b/", "")));
    let head = "POST /b/slow HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n";
    let (begin, rest) = head.split_at(20);
    let mut client = server.client();
    for part in [begin, rest, "ab", "cd"] {
        client.send(part);
        thread::sleep(PAUSE);
    }
    assert_eq!(client.response().text(), "read");
    expect_holder(
        &server,
        "/b/slow",
        "read-head",
        &["the client sent the head in pieces"],
    );
    expect_holder(
        &server,
        "/b/slow",
        "request-body",
        &["the client had sent 4 bytes"],
    );
}

/// A site with a script for each of these URLs.
fn with_scripts(scripts: &[(&str, &str)]) -> Builder {
    let mut site = site().config("server.modules += (\"mod_magnet\")\nlua.max-run-time = 5000");
    for (name, script) in scripts {
        site = site.file(&format!("{name}.lua"), script).config(&format!(
            "$HTTP[\"url\"] == \"/{name}\" {{ magnet.attract-raw-url-to = (var.dir + \"/{name}.lua\") }}"
        ));
    }
    site
}

#[test]
fn a_script_whose_collector_runs_for_long_is_named() {
    let garbage = "local all = {}\nfor i = 1, 400000 do all[i] = { i } end\n\
        for i = 1, 10 do collectgarbage(\"collect\") end\nreturn 204";
    let server =
        started(with_scripts(&[("garbage", garbage)]).config("lua.max-memory = 256000000"));
    assert_eq!(asking(&server, "/garbage").response().status, 204);
    expect_holder(
        &server,
        "/garbage",
        "lua",
        &["/garbage.lua kept the worker busy"],
    );
}

#[test]
fn a_worker_without_a_processor_is_told_from_a_busy_one() {
    let busy = "local begin = os.clock()\nwhile os.clock() - begin < 0.3 do end\nreturn 204";
    let server = started(with_scripts(&[("busy", busy)]));
    // The process that serves is a child of the keeper.
    let keeper = server.pid();
    let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
    let children = children.expect("the keeper runs");
    let worker: i32 = children.trim().parse().expect("it has one child");
    let serving = ProcessTree {
        pids: vec![worker.cast_unsigned()],
    };
    let before = serving.cpu_time();
    let mut client = asking(&server, "/busy");
    let is_under_way = || serving.cpu_time() - before >= Duration::from_millis(50);
    assert!(eventually(is_under_way), "the script does not run");
    let pid = rustix::process::Pid::from_raw(worker).expect("a process");
    rustix::process::kill_process(pid, Signal::STOP).expect("it runs");
    thread::sleep(12 * PAUSE);
    rustix::process::kill_process(pid, Signal::CONT).expect("it runs");
    assert_eq!(client.response().status, 204);
    expect_holder(&server, "/busy", "lua", &["had a processor for at most "]);
}

#[test]
fn a_redis_that_is_away_is_named() {
    let deaf = Deaf::new();
    let port = deaf
        .host()
        .rsplit(' ')
        .next()
        .unwrap_or_default()
        .to_owned();
    let script = format!(
        "local r = petrel.redis{{ host = \"127.0.0.1\", port = {port}, timeout = 0.2 }}\n\
         local value = r:get(\"key\")\nreturn 204"
    );
    let server = started(with_scripts(&[("asks", &script)]));
    assert_eq!(asking(&server, "/asks").response().status, 204);
    let peer = format!("127.0.0.1:{port} gave no answer for ");
    expect_holder(&server, "/asks", "lua", &["/asks.lua waited", &peer]);
}

#[test]
fn a_request_that_waits_for_a_page_of_the_cache_says_so() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        exchange.read_body();
        exchange.pause(PAUSE);
        exchange.answer(200, &[("Cache-Control", "max-age=60")], "page");
    });
    let server = started(
        site_with_log("/access.log", "%{X-Who}i")
            .config("server.modules += (\"mod_page_cache\")")
            .config("page-cache.enable = \"enable\"")
            .config(&backend.directive("/app", "\"check-local\" => \"disable\"")),
    );
    let ask = |who: &str| {
        let mut client = server.client();
        client.send(format!(
            "GET /app/page HTTP/1.1\r\nHost: a\r\nX-Who: {who}\r\n\r\n"
        ));
        client
    };
    let mut first = ask("first");
    assert!(
        eventually(|| backend.requests().len() == 1),
        "it has no request"
    );
    let mut second = ask("second");
    assert_eq!(first.response().text(), "page");
    assert_eq!(second.response().text(), "page");
    expect_holder(
        &server,
        "second",
        "cache",
        &[" fetched /app/page for the cache"],
    );
}

#[test]
fn a_password_that_is_hashed_says_so() {
    // Cost 12: a fourth of a second of a processor.
    let user = "anna:$2y$12$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";
    let server = started(site()
        .file("users", user)
        .config("server.modules += (\"mod_auth\", \"mod_authn_file\")")
        .config(
            "auth.backend = \"htpasswd\"\nauth.backend.htpasswd.userfile = var.dir + \"/users\"",
        )
        .config(
            "auth.require = ( \"/a.txt\" => ( \"method\" => \"basic\", \"realm\" => \"r\", \
             \"require\" => \"valid-user\" ) )",
        )
        );
    let mut client = server.client();
    // anna:wrong
    client.send("GET /a.txt HTTP/1.1\r\nHost: a\r\nAuthorization: Basic YW5uYTp3cm9uZw==\r\n\r\n");
    assert_eq!(client.response().status, 401);
    expect_holder(
        &server,
        "/a.txt",
        "authorize",
        &["a thread hashed the password"],
    );
}

#[test]
fn a_cgi_program_that_works_is_named() {
    let server = started(
        site()
            .file(
                "www/p.sh",
                "sleep 0.2\nprintf 'Content-Type: text/plain\\r\\n\\r\\nc'\n",
            )
            .config("server.modules += (\"mod_cgi\")\ncgi.assign = (\".sh\" => \"/bin/sh\")"),
    );
    assert_eq!(server.get("/p.sh").text(), "c");
    expect_holder(
        &server,
        "/p.sh",
        "backend-first-byte",
        &["worked on the request"],
    );
}

/// The lines of the access log go through a pipe to a program that reads none. No request waits for it.
#[test]
fn a_log_that_takes_no_lines_holds_up_no_request() {
    let server = Server::build()
        .file("www/a.txt", "a")
        .config("server.modules = (\"mod_accesslog\")")
        .config("accesslog.filename = \"|sleep 60\"")
        .config("accesslog.format = \"%r\"")
        .config("ledger.log-slower-than = 1000")
        .start();
    let mut client = server.client();
    let long = "x".repeat(2_000);
    for _ in 0..500 {
        client.send(get(&format!("/a.txt?{long}")));
        assert_eq!(client.response().text(), "a");
    }
    assert!(!server.log().contains("(slow)"), "{}", server.log());
}

/// Whether the programs are there that a test needs, and the test is root.
fn can_isolate(test: &str, programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| !is_installed(program));
    match missing {
        Some(program) => skip(test, &format!("{program} is not installed")),
        None if !rustix::process::geteuid().is_root() => skip(test, "it needs root"),
        None => return true,
    }
    false
}
