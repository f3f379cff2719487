//! PHP: php-fpm with OPcache, and php-cgi that the server starts.

use std::process::Command;

use petrel_tests::fastcgi::{Peer, begin, params_of, stdin};
use petrel_tests::{Component, Listens, Server, Tree, can_run, curl, eventually, skip};
use rustix::process::{Pid, Signal, kill_process};

use crate::real_backends::{numbers, post};

/// A running php-fpm with two children, which listens on `fpm.sock` of its tree.
pub fn start_fpm(tree: Tree) -> Component {
    let conf = format!(
        "[global]\nerror_log = {0}/fpm.log\ndaemonize = no\n[www]\nlisten = {0}/fpm.sock\n\
         user = root\ngroup = root\npm = static\npm.max_children = 2\n\
         pm.status_path = /fpm-status\npm.status_listen = {0}/status.sock\n\
         catch_workers_output = yes\n",
        tree.root().display()
    );
    tree.write("fpm.conf", conf);
    let program = fpm().expect("it was looked for");
    let mut command = Command::new(program);
    command
        .args(["--nodaemonize", "--allow-to-run-as-root", "--fpm-config"])
        .arg(tree.path("fpm.conf"))
        .args(["-d", "opcache.enable=1", "-d", "opcache.revalidate_freq=0"])
        .args(["-d", "upload_max_filesize=64M", "-d", "post_max_size=64M"]);
    Component::start(tree, &mut command, &Listens::Unix("fpm.sock"))
}

/// The path of php-fpm, whose name contains a version.
pub fn fpm() -> Option<std::path::PathBuf> {
    let programs = std::fs::read_dir("/usr/sbin").ok()?;
    let mut paths = programs.flatten().map(|entry| entry.path());
    paths.find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("php-fpm")
    })
}

fn scripts(tree: &Tree) {
    tree.write("www/index.php", "<?php print \"123\";")
        .write(
            "www/echo.php",
            "<?php print file_get_contents('php://input');",
        )
        .write(
            "www/info.php",
            "<?php foreach (['SCRIPT_NAME','SCRIPT_FILENAME','PATH_INFO','PATH_TRANSLATED',\
             'PHP_SELF','DOCUMENT_ROOT','REQUEST_URI','QUERY_STRING','REDIRECT_STATUS','HTTPS'] \
             as $key) print $key . '=' . ($_SERVER[$key] ?? '-') . \"\\n\";",
        )
        .write("www/pid.php", "<?php print getmypid();")
        .write(
            "www/big.php",
            "<?php for ($i = 0; $i < 64; $i++) print str_repeat('p', 65536);",
        )
        .write(
            "www/missing.php",
            "<?php http_response_code(404); print 'no such page';",
        )
        .write("www/fatal.php", "<?php undefined_function();")
        .write(
            "www/session.php",
            "<?php session_save_path(sys_get_temp_dir()); session_start(); \
             $_SESSION['n'] = ($_SESSION['n'] ?? 0) + 1; print $_SESSION['n'];",
        )
        .write(
            "www/upload.php",
            "<?php print $_FILES['f']['size'] . ' ' . md5_file($_FILES['f']['tmp_name']);",
        )
        .write(
            "www/opcache.php",
            "<?php $s = opcache_get_status(false); print $s['opcache_enabled'] ? 'on' : 'off';",
        )
        .write(
            "www/flush.php",
            "<?php print 'first'; ob_flush(); flush(); sleep(2); print 'second';",
        )
        .write(
            "www/sendfile.php",
            "<?php header('X-Sendfile: ' . $_SERVER['DOCUMENT_ROOT'] . '/plain.txt');",
        )
        .write("www/plain.txt", "plain");
}

/// It takes so long because PHP starts, and answers more than two hundred requests.
#[test]
fn php_fpm() {
    let Some(_) = fpm() else {
        return skip("php_fpm", "php-fpm is not installed");
    };
    let fpm = start_fpm(Tree::new());
    let server = Server::build()
        .tree(scripts)
        .config("index-file.names = ( \"index.php\" )")
        .config("server.max-worker = 2")
        .config("server.modules += ( \"mod_fastcgi\", \"mod_status\" )")
        .config("status.statistics-url = \"/counters\"")
        .config(&format!(
            "fastcgi.server = ( \".php\" => (( \"socket\" => \"{0}\", \"x-sendfile\" => \"enable\" )), \
             \"/fpm-status\" => (( \"socket\" => \"{0}\", \"check-local\" => \"disable\" )) )",
            fpm.path("fpm.sock")
        ))
        .start();
    php_works(&server);
    assert_eq!(server.get("/opcache.php").text(), "on");

    assert!(
        server
            .get("/fpm-status")
            .text()
            .contains("active processes:")
    );
    let connected = || {
        let page = server.get("/counters").text();
        let mut lines = page.lines().filter_map(|line| line.split_once(": "));
        let line = lines.find(|(name, _)| name.ends_with("fpm.sock.connected"));
        let count = line.and_then(|(_, value)| value.parse::<u64>().ok());
        count.unwrap_or_else(|| panic!("{page}"))
    };
    let before = connected();
    let mut client = server.client();
    for _ in 0..200 {
        assert_eq!(client.get("/").text(), "123");
    }
    let more = connected() - before;
    assert!(more < 5, "{more} connections for 200 requests");
}

/// Checks that any PHP must pass.
fn php_works(server: &Server) {
    let mut client = server.client();
    let index = client.get("/");
    assert_eq!(
        (index.status, index.text().as_str()),
        (200, "123"),
        "{index}"
    );
    let info = client.get("/info.php/path/info?a=b").text();
    for line in [
        "SCRIPT_NAME=/info.php",
        "PATH_INFO=/path/info",
        "PHP_SELF=/info.php/path/info",
        "REQUEST_URI=/info.php/path/info?a=b",
        "QUERY_STRING=a=b",
        "HTTPS=-",
    ] {
        assert!(info.lines().any(|own| own == line), "{line}\n{info}");
    }
    for count in [1, 2000, 200_000] {
        let body = numbers(count);
        assert!(
            post(server, "/echo.php", &body).text() == body,
            "{} bytes",
            body.len()
        );
    }
    assert_eq!(client.get("/big.php").body.len(), 4 << 20);
    let missing = client.get("/missing.php");
    assert_eq!(
        (missing.status, missing.text().as_str()),
        (404, "no such page")
    );
    assert_eq!(client.get("/fatal.php").status, 500);
    assert_eq!(client.get("/nowhere.php").status, 404);
    let session = client.get("/session.php");
    let cookie = session.field("Set-Cookie").expect("a session").to_owned();
    let cookie = cookie.split(';').next().unwrap_or_default();
    for number in 2..5 {
        let response = client.request("GET", "/session.php", &[("Cookie", cookie)]);
        assert_eq!(response.text(), number.to_string());
    }
    let head = client.request("HEAD", "/", &[]);
    assert_eq!(head.status, 200);
    assert_eq!(client.get("/").text(), "123");

    server.tree().write("upload.bin", numbers(300_000));
    let file = format!("f=@{}", server.tree().path("upload.bin").display());
    let uploaded = curl(&["-F", &file, &server.url("/upload.php")]).text();
    let size = server.tree().read("upload.bin").len();
    assert!(uploaded.starts_with(&format!("{size} ")), "{uploaded}");
    let again = curl(&[
        "-H",
        "Transfer-Encoding: chunked",
        "-F",
        &file,
        &server.url("/upload.php"),
    ]);
    assert_eq!(again.text(), uploaded);
    assert_eq!(server.get("/sendfile.php").text(), "plain");
}

#[test]
fn php_answers_are_streamed_when_asked() {
    if fpm().is_none() {
        return skip(
            "php_answers_are_streamed_when_asked",
            "php-fpm is not installed",
        );
    }
    let fpm = start_fpm(Tree::new());
    let server = Server::build()
        .tree(scripts)
        .config("server.modules += ( \"mod_fastcgi\" )")
        .config("server.stream-response-body = 1")
        .config(&format!(
            "fastcgi.server = ( \".php\" => (( \"socket\" => \"{}\" )) )",
            fpm.path("fpm.sock")
        ))
        .start();
    let mut client = server.client();
    client.send("GET /flush.php HTTP/1.0\r\n\r\n");
    let begin = std::time::Instant::now();
    let mut came = Vec::new();
    while !came.ends_with(b"first") {
        came.extend(client.read_bytes(1));
    }
    let first = begin.elapsed();
    assert_eq!(client.read_to_end(), b"second");
    let pause = begin.elapsed() - first;
    assert!(
        pause.as_millis() > 500,
        "first after {first:?}, the end {pause:?} later"
    );
}

#[test]
fn php_cgi_that_the_server_starts() {
    if !can_run("php_cgi_that_the_server_starts", &["php-cgi"]) {
        return;
    }
    let mut server = Server::build()
        .tree(scripts)
        .config("index-file.names = ( \"index.php\" )")
        .config("server.modules += ( \"mod_fastcgi\" )")
        .config(
            "fastcgi.server = ( \".php\" => (( \"bin-path\" => \"/usr/bin/php-cgi\", \
             \"socket\" => var.dir + \"/php.sock\", \"max-procs\" => 2, \
             \"x-sendfile\" => \"enable\", \
             \"bin-environment\" => ( \"PHP_FCGI_CHILDREN\" => \"2\", \
             \"PHP_FCGI_MAX_REQUESTS\" => \"50\" ) )) )",
        )
        .start();
    php_works(&server);
    // Each child ends after 50 requests, and no client notices.
    let load = petrel_tests::Load::start(server.address(), "/", 4, 2);
    load.wait_for(400);
    // Clients do not notice either when a child is killed.
    for _ in 0..3 {
        let pid: i32 = server.get("/pid.php").text().parse().expect("a number");
        // It may have ended after its fiftieth request.
        let _ = kill_process(Pid::from_raw(pid).expect("a pid"), Signal::KILL);
        load.wait_for(50);
    }
    let result = load.stop();
    assert_eq!(result.failures, Vec::<String>::new());

    let pids = server.processes().pids;
    assert!(pids.len() > 6, "{pids:?}");
    server.signal(Signal::TERM);
    assert!(server.wait(petrel_tests::PATIENCE).is_some());
    // A zombie has ended. It remains where process 1 reaps none, as in some containers.
    let lives = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        let state = stat.ok().and_then(|stat| {
            let (_, fields) = stat.rsplit_once(") ")?;
            fields.chars().next()
        });
        state.is_some_and(|state| state != 'Z')
    };
    assert!(
        eventually(|| !pids.iter().any(lives)),
        "left behind: {:?}",
        pids.iter().filter(|pid| lives(pid)).collect::<Vec<_>>()
    );
}

/// It takes so long because PHP starts, and scripts sleep.
#[test]
fn php_fpm_tells_what_its_children_do_also_for_other_front_ends() {
    let test = "php_fpm_tells_what_its_children_do_also_for_other_front_ends";
    if fpm().is_none() {
        return skip(test, "php-fpm is not installed");
    }
    let fpm = start_fpm(Tree::new());
    let server = Server::build()
        .tree(scripts)
        .file("www/sleep.php", "<?php while (!file_exists(__DIR__ . '/go')) usleep(10000); print 'awake';")
        .config("server.modules += ( \"mod_fastcgi\", \"mod_status\" )")
        .config("status.metrics-url = \"/metrics\"")
        .config(&format!(
            "fastcgi.server = ( \".php\" => (( \"socket\" => \"{0}\", \"status-path\" => \"/fpm-status\", \
             \"status-address\" => \"unix:{1}\" )) )",
            fpm.path("fpm.sock"),
            fpm.path("status.sock")
        ))
        .start();
    assert_ne!(server.get("/pid.php").text(), "");
    let seen = || {
        let json = server.get("/metrics?json").body;
        let json: serde_json::Value = serde_json::from_slice(&json).expect("it is JSON");
        json["backends"][0]["fpm"].clone()
    };
    let expect = |what: &str, is_so: &dyn Fn(&serde_json::Value) -> bool| {
        assert!(
            eventually(|| is_so(&seen())),
            "{what}: {}\n{}",
            seen(),
            server.log()
        );
    };
    expect("nothing works", &|fpm| {
        fpm["pool"]["working"] == 0 && fpm["pool"]["children"] == 2
    });
    let mut other = Peer::connect(fpm.path("fpm.sock").as_ref());
    let script = server.tree().path("www/sleep.php");
    let request = [
        begin(1, 1, 0),
        params_of(
            1,
            &[
                ("REQUEST_METHOD", "GET"),
                ("REQUEST_URI", "/other/page.php"),
                ("SCRIPT_NAME", "/other/page.php"),
                ("SCRIPT_FILENAME", &script.display().to_string()),
            ],
        ),
        stdin(1, b""),
    ];
    other.send(&request.concat());
    expect("one works, for another front end", &|fpm| {
        let script = &fpm["pool"]["scripts"][0];
        fpm["pool"]["working"] == 1
            && script["uri"] == "/other/page.php"
            && script["age_us"].as_u64() > Some(0)
    });
    let mut client = server.client();
    client.send("GET /sleep.php?secret HTTP/1.1\r\nHost: a\r\n\r\n");
    expect("both work, and the status is told", &|fpm| {
        fpm["pool"]["working"] == 2 && fpm["pool"]["scripts"][1]["uri"] == "/sleep.php"
    });
    let mut waits = server.client();
    waits.send("GET /pid.php HTTP/1.1\r\nHost: a\r\n\r\n");
    server.tree().write("www/go", "");
    assert_eq!(client.response().text(), "awake");
    assert_ne!(waits.response().text(), "");
    assert_eq!(other.reply(1).body(), "awake");
    // php-fpm waits for the other side to close the connection.
    drop(other);
    expect("nothing works any more, and memory is known", &|fpm| {
        fpm["pool"]["working"] == 0 && fpm["pool"]["memory_max_bytes"].as_u64() > Some(0)
    });
    assert_eq!(seen()["error"], serde_json::Value::Null);
}
