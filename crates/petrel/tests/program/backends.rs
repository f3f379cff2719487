//! The keeper starts, restarts and stops programs of the configuration (`bin-path`). The programs are php-cgi
//! and Perl scripts. Where Perl or PHP is missing, the tests print that they are skipped.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use rustix::process::Signal;

use crate::harness::{
    SOON, Server, Site, fetch, free_port, header, is_alive, is_root_or_skip, open_to_all, petrel,
    proc_text, signal_to, skip, wait_until,
};

/// Replies with its process id, after as many milliseconds as the query says. It creates a file `asked`
/// beside itself as soon as it has received a request.
const RESPONDER: &str = "#!/usr/bin/perl
use FCGI;
my $request = FCGI::Request();
while ($request->Accept() >= 0) {
    if ($ENV{QUERY_STRING}) {
        open(my $asked, '>', \"$ENV{DOCUMENT_ROOT}/../asked\");
        select(undef, undef, undef, $ENV{QUERY_STRING} / 1000);
    }
    print \"Content-Type: text/plain\\r\\n\\r\\n$$\";
}
";

fn has_perl() -> bool {
    let mut perl = Command::new("perl");
    perl.args(["-MFCGI", "-e", "1"]).stderr(Stdio::null());
    let has = perl.status().is_ok_and(|status| status.success());
    if !has {
        skip("a test with Perl's FCGI", "it is not installed");
    }
    has
}

/// A site with the script `app`, which every user may run.
fn site_with_app(script: &str) -> Site {
    let site = Site::new();
    open_to_all(&site);
    add_app(&site, "app", script);
    fs::write(site.path("root/x.app"), "source\n").expect("a file");
    site
}

fn add_app(site: &Site, name: &str, script: &str) {
    fs::write(site.path(name), script).expect("a file");
    fs::set_permissions(site.path(name), fs::Permissions::from_mode(0o755)).expect("ours");
}

/// The configuration of the script `app` behind a unix socket.
fn app(site: &Site, more: &str) -> String {
    format!(
        "server.modules = ( \"mod_fastcgi\" )\nfastcgi.server = ( \".app\" => (( \
         \"bin-path\" => \"{}\", \"socket\" => \"{}\", {more} )) )",
        site.path("app").display(),
        site.path("sock").display(),
    )
}

const ONE: &str = "\"min-procs\" => 1, \"max-procs\" => 1";

/// The process ids of the backends that run a script of this name.
fn backends(server: &Server, name: &str) -> Vec<i32> {
    let is_it = |id: &i32| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        is_alive(*id) && words.any(|word| word.ends_with(format!("/{name}").as_bytes()))
    };
    server.children().into_iter().filter(is_it).collect()
}

fn only_backend(server: &Server) -> i32 {
    match backends(server, "app")[..] {
        [one] => one,
        ref others => panic!("one backend, not {others:?}"),
    }
}

/// The server process: the child that runs the same program as its keeper.
fn server_process(server: &Server) -> i32 {
    let of = |id: i32| fs::read_link(format!("/proc/{id}/exe")).ok();
    let ours = of(server.pid());
    let found = server.children().into_iter().find(|id| of(*id) == ours);
    found.expect("a server process")
}

fn ask(site: &Site, query: &str) -> Result<i32, String> {
    let (head, body) = fetch(site.port, &format!("/x.app{query}")).map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&body).into_owned();
    text.parse().map_err(|_| format!("{head}{text}"))
}

fn stop(server: Server) {
    server.signal(Signal::TERM);
    assert_eq!(server.end().0, Some(0));
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("there").flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn has_socket(site: &Site) -> bool {
    names(&site.path(""))
        .iter()
        .any(|name| name.starts_with("sock"))
}

#[test]
fn a_program_gets_three_descriptors_a_session_and_its_environment() {
    if !has_perl() {
        return;
    }
    let site = site_with_app(RESPONDER);
    let server = site.start(&app(
        &site,
        &format!(
            "{ONE}, \"bin-environment\" => ( \"APP_MODE\" => \"test\" ), \
             \"bin-copy-environment\" => ( \"PATH\", \"NOT_SET\" )"
        ),
    ));
    let backend = only_backend(&server);
    assert_eq!(ask(&site, ""), Ok(backend));
    let mut open = names(Path::new(&format!("/proc/{backend}/fd")));
    open.sort();
    // The connections that it has accepted, and keeps open, are its own.
    let accepted = open.split_off(3).len();
    assert!(accepted <= 1, "{accepted} more");
    assert_eq!(open, ["0", "1", "2"]);
    let link = |name: &str| fs::read_link(format!("/proc/{backend}/{name}")).expect("alive");
    assert!(link("fd/0").to_string_lossy().starts_with("socket:"));
    assert_eq!(link("fd/1"), Path::new("/dev/null"));
    assert_eq!(link("fd/2"), site.path("error.log"));
    assert_eq!(link("cwd"), site.path("").canonicalize().expect("there"));
    let environment = proc_text(backend, "environ");
    let mut environment: Vec<&str> = environment.split_terminator('\0').collect();
    environment.retain(|variable| !variable.starts_with("PATH="));
    assert_eq!(environment, ["APP_MODE=test", "PHP_FCGI_CHILDREN=1"]);
    let status = proc_text(backend, "status");
    assert!(status.contains("SigBlk:\t0000000000000000\n"), "{status}");
    let session = proc_text(backend, "stat");
    let fields: Vec<&str> = session
        .rsplit(')')
        .next()
        .expect("a line")
        .split_whitespace()
        .collect();
    let id = backend.to_string();
    assert_eq!(
        [fields[2], fields[3]],
        [&id, &id],
        "leads its group and session"
    );
}

#[test]
fn output_goes_to_the_breakage_log() {
    let site = site_with_app("#!/bin/sh\necho broken >&2\nexec sleep 100\n");
    let log = site.path("breakage.log");
    let more = format!("server.breakagelog = \"{}\"", log.display());
    let _server = site.start(&format!("{}\n{more}", app(&site, ONE)));
    wait_until("the output", &mut || {
        fs::read_to_string(&log).is_ok_and(|text| text == "broken\n")
    });
}

#[test]
fn a_killed_backend_is_started_again_and_no_client_is_refused() {
    if !has_perl() {
        return;
    }
    let site = site_with_app(RESPONDER);
    let server = site.start(&app(&site, ONE));
    let before = ask(&site, "").expect("an answer");
    let server_id = server_process(&server);
    signal_to(before, Signal::KILL);
    // The socket is still open: the request waits there for the next process.
    let after = ask(&site, "").expect("an answer after the crash");
    assert_ne!(after, before);
    let log = site.error_log();
    let line = log
        .lines()
        .find(|line| line.contains("SIGKILL"))
        .expect("a word about it");
    for word in [
        "app",
        &format!("process {before}"),
        "starting another one in 100 ms",
    ] {
        assert!(line.contains(word), "{line}");
    }
    assert_eq!(server_process(&server), server_id);
}

#[test]
fn a_crash_of_the_server_process_does_not_touch_backends() {
    if !has_perl() {
        return;
    }
    let site = site_with_app(RESPONDER);
    let server = site.start(&app(&site, ONE));
    let backend = ask(&site, "").expect("an answer");
    signal_to(server_process(&server), Signal::KILL);
    wait_until("an answer after the crash", &mut || {
        ask(&site, "") == Ok(backend)
    });
}

#[test]
fn a_program_that_dies_at_once_does_not_keep_the_server_busy() {
    let site = site_with_app("#!/bin/sh\nexit 3\n");
    let server = site.start(&app(&site, ONE));
    wait_until("a longer pause", &mut || {
        site.error_log().contains("in 400 ms")
    });
    let log = site.error_log();
    let deaths = log
        .lines()
        .filter(|line| line.contains("ended with code 3"));
    for (death, pause) in deaths.zip(["100", "200", "400"]) {
        assert!(death.contains(&format!(" in {pause} ms")), "{log}");
    }
    fetch(site.port, "/hello.txt").expect("the rest is served");
    server.signal(Signal::TERM);
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn stopping_leaves_no_process_and_no_socket() {
    if !has_perl() {
        return;
    }
    for signal in [Signal::TERM, Signal::INT] {
        let site = site_with_app(RESPONDER);
        let server = site.start(&app(&site, "\"min-procs\" => 2, \"max-procs\" => 2"));
        ask(&site, "").expect("an answer");
        let ids = backends(&server, "app");
        assert_eq!(ids.len(), 2);
        assert!(has_socket(&site));
        let asked = Instant::now();
        server.signal(signal);
        assert_eq!(server.end().0, Some(0));
        assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
        assert!(ids.iter().all(|id| !is_alive(*id)), "{signal:?}");
        assert!(!has_socket(&site), "{signal:?}");
    }
}

#[test]
fn a_graceful_stop_lets_a_request_finish() {
    if !has_perl() {
        return;
    }
    let site = site_with_app(RESPONDER);
    let server = site.start(&app(&site, ONE));
    let backend = only_backend(&server);
    let port = site.port;
    let client = thread::spawn(move || fetch(port, "/x.app?700"));
    wait_until("the request", &mut || site.path("asked").exists());
    server.signal(Signal::INT);
    let (_, body) = client.join().expect("no panic").expect("an answer");
    assert_eq!(body, backend.to_string().into_bytes());
    assert_eq!(server.end().0, Some(0));
    assert!(!is_alive(backend));
}

#[test]
fn backends_do_not_outlive_a_killed_keeper() {
    if !has_perl() {
        return;
    }
    let site = site_with_app(RESPONDER);
    let server = site.start(&app(&site, "\"min-procs\" => 3, \"max-procs\" => 3"));
    assert_eq!(backends(&server, "app").len(), 3);
    let ids = server.children();
    server.signal(Signal::KILL);
    wait_until("their end", &mut || ids.iter().all(|id| !is_alive(*id)));
    // A thread of the server process may hold the port a little longer.
    wait_until("a free port", &mut || {
        std::net::TcpStream::connect(("127.0.0.1", site.port)).is_err()
    });
    // The programs' socket file stays behind and must not be in the way of the next start.
    drop(server);
    let server = site.start(&app(&site, ONE));
    assert_eq!(ask(&site, ""), Ok(only_backend(&server)));
}

/// It takes the five seconds that a program has to end before it is killed.
#[test]
fn a_program_that_ignores_its_signal_is_killed_with_its_children() {
    let site =
        site_with_app("#!/bin/sh\ntrap '' TERM\nsleep 1000 &\necho $! > child\nwait\nsleep 1000\n");
    let server = site.start(&app(&site, ONE));
    let backend = only_backend(&server);
    let mut child = 0;
    wait_until("its child", &mut || {
        let text = fs::read_to_string(site.path("child")).unwrap_or_default();
        child = text.trim().parse().unwrap_or(0);
        child != 0
    });
    server.signal(Signal::TERM);
    assert_eq!(server.end().0, Some(0));
    assert!(!is_alive(backend) && !is_alive(child));
}

#[test]
fn a_reload_keeps_changes_and_ends_programs() {
    if !has_perl() {
        return;
    }
    let site = site_with_app(RESPONDER);
    let server = site.start(&app(&site, ONE));
    let first = ask(&site, "").expect("an answer");
    let reload = |more: &str| {
        let before = site.error_log().matches("configuration reloaded").count();
        site.configure(more);
        server.signal(Signal::USR1);
        wait_until("a reload", &mut || {
            site.error_log().matches("configuration reloaded").count() > before
        });
    };
    reload(&app(&site, ONE));
    assert_eq!(ask(&site, ""), Ok(first), "unchanged");
    assert_eq!(only_backend(&server), first);

    reload(&app(
        &site,
        &format!("{ONE}, \"bin-environment\" => ( \"A\" => \"b\" )"),
    ));
    // The old server process may still answer some requests.
    let mut second = first;
    wait_until("the changed one", &mut || {
        second = ask(&site, "").expect("an answer");
        second != first
    });
    wait_until("the end of the old one", &mut || !is_alive(first));
    assert_eq!(ask(&site, ""), Ok(second));
    assert!(site.path("sock-0").exists() && !site.path("sock-0.next").exists());

    // A program that cannot be run leaves the running configuration as it is.
    site.configure(&app(&site, ONE).replace("/app\"", "/not-there\""));
    server.signal(Signal::USR1);
    wait_until("a refusal", &mut || {
        let log = site.error_log();
        log.contains("reload failed") && log.contains("not-there")
    });
    add_app(&site, "odd", "#!/nonexistent/interpreter\n");
    site.configure(&app(&site, ONE).replace("/app\"", "/odd\""));
    server.signal(Signal::USR1);
    wait_until("a refusal", &mut || {
        site.error_log().contains("odd does not start")
    });
    assert_eq!(ask(&site, ""), Ok(second));
    assert!(!site.path("sock-0.next").exists());

    reload("");
    wait_until("the end of the last one", &mut || {
        !is_alive(second) && !has_socket(&site)
    });
    fetch(site.port, "/hello.txt").expect("served");
}

#[test]
fn a_reload_never_asks_the_old_program() {
    if !has_perl() {
        return;
    }
    let script = RESPONDER.replace("$$", "$step");
    let site = site_with_app(&script.replace("use FCGI;", "use FCGI;\nmy $step = $ENV{STEP};"));
    let configure = |step: u32| {
        let more = format!("{ONE}, \"bin-environment\" => ( \"STEP\" => \"{step}\" )");
        format!("server.tag = \"{step}\"\n{}", app(&site, &more))
    };
    let server = site.start(&configure(0));
    let is_over = AtomicBool::new(false);
    // Returns which configuration answered, and from which program.
    let answer = || {
        let (head, body) = fetch(site.port, "/x.app").ok()?;
        let number = |text: &str| text.trim().parse::<u32>().ok();
        let step = number(header(&head, "server")?)?;
        Some((step, number(std::str::from_utf8(&body).ok()?)))
    };
    let ask_on = || {
        let mut wrong = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            // An old server process that drains may already reach the new program through its name.
            wrong.extend(answer().filter(|(step, program)| program.is_none_or(|at| at < *step)));
        }
        wrong
    };
    let wrong: Vec<_> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..3).map(|_| scope.spawn(ask_on)).collect();
        for step in 1..=3 {
            site.configure(&configure(step));
            server.signal(Signal::USR1);
            wait_until("a reload", &mut || {
                answer().is_some_and(|(now, _)| now == step)
            });
        }
        is_over.store(true, Ordering::Relaxed);
        let answers = asking.into_iter().map(|thread| thread.join());
        let wrong = answers.flat_map(|wrong| wrong.expect("it ends"));
        wrong.take(10).collect()
    });
    assert_eq!(wrong, []);
}

#[test]
fn a_program_that_cannot_be_run_keeps_the_server_from_starting() {
    let site = site_with_app("#!/nonexistent/interpreter\n");
    let (code, _, message) = site.launch(&app(&site, ONE)).end();
    assert_eq!(code, Some(255));
    assert!(
        message.contains("bin-path") && message.contains("No such file"),
        "{message}"
    );
    assert!(!has_socket(&site), "nothing is left");

    let good = app(&site, ONE);
    for (program, problem) in [
        ("/nonexistent/app", "No such file"),
        ("/etc/passwd", "not executable"),
    ] {
        let text = good.replace(&site.path("app").display().to_string(), program);
        let file = site.configure(&text);
        for option in ["-tt", "-D"] {
            let output = petrel()
                .arg(option)
                .arg("-f")
                .arg(&file)
                .output()
                .expect("started");
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(255), "{option}: {message}");
            for word in ["petrel.conf:7:", "bin-path", program, problem] {
                assert!(message.contains(word), "{option} {word}: {message}");
            }
        }
    }
}

#[test]
fn a_socket_in_no_directory_is_found_by_the_check() {
    let site = site_with_app("#!/bin/sh\n");
    let socket = format!("{:?}", site.path("sock"));
    let text = app(&site, ONE).replace(&socket, "\"/nonexistent/sock\"");
    let file = site.configure(&text);
    let output = petrel().arg("-tt").arg("-f").arg(&file).output();
    let output = output.expect("started");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(255), "{message}");
    assert!(message.contains("/nonexistent: No such file"), "{message}");
}

#[test]
fn programs_end_when_the_server_cannot_start() {
    let site = site_with_app("#!/bin/sh\necho $$ > pid\nexec sleep 1000\n");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let more = format!("$SERVER[\"socket\"] == \"127.0.0.1:{port}\" {{}}");
    let (code, ..) = site.launch(&format!("{}\n{more}", app(&site, ONE))).end();
    assert_eq!(code, Some(255));
    assert!(!has_socket(&site));
    if let Ok(id) = fs::read_to_string(site.path("pid")) {
        assert!(!is_alive(id.trim().parse().expect("an id")));
    }
}

/// It takes so long because three processes answer twelve requests, one and a half seconds each.
#[test]
fn more_processes_come_with_load_and_go_without() {
    if !has_perl() {
        return;
    }
    let site = site_with_app(RESPONDER);
    let server = site.start(&app(
        &site,
        // Each process serves one request at a time, so the server knows when there are too few.
        "\"min-procs\" => 1, \"max-procs\" => 3, \"idle-timeout\" => 1, \
         \"bin-environment\" => ( \"PHP_FCGI_CHILDREN\" => \"1\" )",
    ));
    assert_eq!(backends(&server, "app").len(), 1);
    let port = site.port;
    let clients: Vec<_> = (0..12)
        .map(|_| thread::spawn(move || fetch(port, "/x.app?1500").map(|(head, _)| head)))
        .collect();
    wait_until("two more processes", &mut || {
        backends(&server, "app").len() == 3
    });
    for client in clients {
        let head = client.join().expect("no panic").expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
    wait_until("the end of those", &mut || {
        backends(&server, "app").len() == 1
    });
    ask(&site, "").expect("an answer");
}

#[test]
fn a_program_may_listen_on_tcp() {
    if !has_perl() {
        return;
    }
    let site = site_with_app(RESPONDER);
    let more = app(&site, ONE).replace(
        &format!("\"socket\" => \"{}\"", site.path("sock").display()),
        &format!("\"host\" => \"127.0.0.1\", \"port\" => {}", free_port()),
    );
    let server = site.start(&more);
    let first = ask(&site, "").expect("an answer");
    site.configure(&more.replace(
        "( \".app\"",
        "( \".other\" => (( \"host\" => \"127.0.0.1\", \"port\" => 9 )), \".app\"",
    ));
    server.signal(Signal::USR1);
    wait_until("a reload", &mut || {
        site.error_log().contains("configuration reloaded")
    });
    assert_eq!(ask(&site, ""), Ok(first), "an address of TCP is kept");
    site.configure(&more.replace(
        ONE,
        &format!("{ONE}, \"bin-environment\" => ( \"A\" => \"b\" )"),
    ));
    server.signal(Signal::USR1);
    wait_until("another process", &mut || {
        site.error_log().matches("configuration reloaded").count() == 2 && !is_alive(first)
    });
    let second = ask(&site, "").expect("an answer");
    assert_ne!(second, first);
}

#[test]
fn php_runs_with_and_without_children_of_its_own() {
    if !Path::new("/usr/bin/php-cgi").exists() {
        let test = "php_runs_with_and_without_children_of_its_own";
        return skip(test, "php-cgi is not installed");
    }
    for (environment, children) in [("", 1), ("\"PHP_FCGI_CHILDREN\" => \"3\"", 3)] {
        let site = site_with_app("");
        fs::write(site.path("root/a.php"), "<?php echo getmypid();").expect("a file");
        let server = site.start(&format!(
            "server.modules = ( \"mod_fastcgi\" )\nfastcgi.server = ( \".php\" => (( {ONE}, \
             \"bin-path\" => \"/usr/bin/php-cgi\", \"socket\" => \"{}\", \
             \"bin-environment\" => ( {environment} ) )) )",
            site.path("sock").display(),
        ));
        let masters = backends(&server, "php-cgi");
        assert_eq!(masters.len(), 1);
        let master = masters[0];
        let of = |id: i32| {
            let text = proc_text(id, &format!("task/{id}/children"));
            let ids = text.split_whitespace().map(|id| id.parse().expect("an id"));
            ids.collect::<Vec<i32>>()
        };
        wait_until("its children", &mut || of(master).len() == children);
        let before = of(master);
        let (_, body) = fetch(site.port, "/a.php").expect("an answer");
        let answered: i32 = String::from_utf8_lossy(&body).parse().expect("an id");
        assert!(before.contains(&answered), "{answered} of {before:?}");
        // The children of a killed master must not stay beside those of the next one.
        signal_to(master, Signal::KILL);
        wait_until("another master", &mut || {
            backends(&server, "php-cgi").iter().any(|id| *id != master)
        });
        wait_until("the end of its children", &mut || {
            before.iter().all(|id| !is_alive(*id))
        });
        fetch(site.port, "/a.php").expect("an answer");
        let after = of(backends(&server, "php-cgi")[0]);
        let asked = Instant::now();
        server.signal(Signal::TERM);
        assert_eq!(server.end().0, Some(0));
        assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
        assert!(after.iter().all(|id| !is_alive(*id)));
        assert!(!has_socket(&site));
    }
}

#[test]
fn programs_of_root_run_as_the_server_s_user() {
    if !is_root_or_skip("programs_of_root_run_as_the_server_s_user") || !has_perl() {
        return;
    }
    let site = site_with_app(RESPONDER);
    let server = site.start(&format!(
        "server.username = \"www-data\"\nserver.groupname = \"www-data\"\n{}",
        app(&site, ONE)
    ));
    let user = nix::unistd::User::from_name("www-data")
        .expect("looked up")
        .expect("a Debian user");
    let backend = ask(&site, "").expect("an answer");
    let status = proc_text(backend, "status");
    let ids = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.expect("a field")
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(ids("Uid:"), vec![user.uid.to_string(); 4]);
    assert_eq!(ids("Gid:"), vec![user.gid.to_string(); 4]);
    assert!(!ids("Groups:").contains(&"0".to_owned()));
    assert_eq!(ids("CapEff:"), ["0000000000000000"]);
    let socket = fs::metadata(site.path("sock-0")).expect("there");
    assert!(socket.file_type().is_socket());
    assert_eq!(
        (socket.uid(), socket.gid()),
        (user.uid.as_raw(), user.gid.as_raw())
    );
    assert_eq!(socket.mode() & 0o022, 0, "only its user connects");
    stop(server);

    let server = site.start(&format!(
        "server.username = \"www-data\"\n{}",
        app(&site, &format!("{ONE}, \"user\" => \"nobody\""))
    ));
    let other = nix::unistd::User::from_name("nobody")
        .expect("looked up")
        .expect("always there");
    let backend = ask(&site, "").expect("the server reaches a program of another user");
    let owner = fs::metadata(format!("/proc/{backend}")).expect("alive");
    assert_eq!(
        (owner.uid(), owner.gid()),
        (other.uid.as_raw(), other.gid.as_raw())
    );
    stop(server);

    let root = app(&site, &format!("{ONE}, \"user\" => \"root\""));
    let (code, _, message) = site.launch(&root).end();
    assert_eq!(code, Some(255));
    assert!(
        message.contains("as root") && message.contains("petrel.conf:7:"),
        "{message}"
    );
}

#[test]
fn programs_are_in_the_chroot_too() {
    if !is_root_or_skip("programs_are_in_the_chroot_too") {
        return;
    }
    let site = site_with_app("");
    let listing = Command::new("ldd")
        .arg("/bin/sleep")
        .output()
        .expect("ldd is there");
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    let libraries = listing
        .split_whitespace()
        .filter(|word| word.starts_with('/'));
    for path in libraries.chain(["/bin/sleep"]) {
        let to = site.path("root").join(path.trim_start_matches('/'));
        fs::create_dir_all(to.parent().expect("absolute")).expect("a directory");
        fs::copy(path, &to).expect("a copy");
    }
    fs::create_dir(site.path("root/run")).expect("a directory");
    let root = site.path("root").display().to_string();
    let text = format!(
        "server.chroot = \"{root}\"\nserver.username = \"www-data\"\nserver.modules = ( \"mod_fastcgi\" )\n\
         fastcgi.server = ( \".app\" => (( \"bin-path\" => \"/bin/sleep 1000\", {ONE}, \
         \"socket\" => \"/run/s\" )) )\n"
    );
    let file = site.configure(&text);
    let text = fs::read_to_string(&file).expect("written");
    let text = text.replace(
        &format!("server.document-root = \"{root}\""),
        "server.document-root = \"/\"",
    );
    fs::write(
        &file,
        text.replace(&site.path("error.log").display().to_string(), "/error.log"),
    )
    .expect("written");
    let server = Server::spawn(petrel().args(["-D", "-f"]).arg(&file));
    server.wait_for("an answer", || fetch(site.port, "/hello.txt").is_ok());
    assert!(site.path("root/run/s-0").exists());
    let backend = backends(&server, "sleep")[0];
    let seen = fs::read_link(format!("/proc/{backend}/root")).expect("alive");
    assert_eq!(seen, site.path("root").canonicalize().expect("there"));
    server.signal(Signal::TERM);
    assert_eq!(server.end().0, Some(0));
    assert!(!site.path("root/run/s-0").exists());
}
