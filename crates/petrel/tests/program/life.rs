//! Start, crash, signals, stop.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{
    Client, SOON, Server, Site, as_stdin, fetch, is_alive, petrel, signal_to, wait_until,
};

#[test]
fn term_stops_at_once_and_the_pid_file_goes() {
    let site = Site::new();
    let pid_file = site.path("petrel.pid");
    let server = site.start(&format!("server.pid-file = \"{}\"", pid_file.display()));
    let written = fs::read_to_string(&pid_file).expect("written");
    assert_eq!(written, format!("{}\n", server.pid()));
    let child = server.only_child();
    let mut idle = Client::connect(site.port).expect("taken");
    idle.request("/hello.txt", "keep-alive").expect("an answer");
    let asked = Instant::now();
    server.signal(Signal::TERM);
    assert_eq!(server.end().0, Some(0));
    assert!(asked.elapsed() < SOON, "an open connection does not matter");
    assert!(!pid_file.exists());
    assert!(!is_alive(child));
    let log = site.error_log();
    assert!(
        log.contains("server started") && log.contains("server stopped"),
        "{log}"
    );
}

#[test]
fn the_first_line_of_the_log_says_what_serves() {
    let site = Site::new();
    let socket = site.path("web.sock");
    let more = format!("$SERVER[\"socket\"] == \"{}\" {{ }}", socket.display());
    let _server = site.start(&more);
    let log = site.error_log();
    let first = log.lines().next().unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    let file = site.path("petrel.conf");
    let (file, socket, port) = (file.display(), socket.display(), site.port);
    let expected = format!(
        ": Petrel {version} starts: configuration {file}; addresses 127.0.0.1:{port}, {socket}; 2 workers; user "
    );
    assert!(first.contains(&expected), "{first}\n{expected}");
}

#[test]
fn a_second_instance_is_refused_and_harms_nothing() {
    let site = Site::new();
    let pid_file = site.path("petrel.pid");
    let more = format!("server.pid-file = \"{}\"", pid_file.display());
    let server = site.start(&more);
    let (code, _, message) = site.launch(&more).end();
    assert_eq!(code, Some(255));
    assert!(
        message.contains(&format!("127.0.0.1:{}", site.port)),
        "{message}"
    );
    assert!(message.contains("something listens there"), "{message}");
    assert_eq!(
        fs::read_to_string(&pid_file).expect("there"),
        format!("{}\n", server.pid())
    );
    fetch(site.port, "/hello.txt").expect("the first one serves");
}

#[test]
fn a_crashed_server_process_is_back_in_a_second() {
    let site = Site::new();
    let server = site.start("");
    for _ in 0..2 {
        let before = server.only_child();
        // SIGABRT is how a panic ends the process. (std's handler takes a SIGSEGV from outside for a stack
        // overflow, and ignores the first one.)
        signal_to(before, Signal::ABORT);
        let crashed = Instant::now();
        server.wait_for("another process", || {
            server.children().iter().any(|id| *id != before)
                && fetch(site.port, "/hello.txt").is_ok()
        });
        assert!(crashed.elapsed() < SOON, "{:?}", crashed.elapsed());
    }
    server.wait_for("a word about it", || {
        site.error_log().contains("was killed by SIGABRT")
    });
}

#[test]
fn connections_made_between_two_processes_are_answered_after_the_restart() {
    let site = Site::new();
    let server = site.start("");
    signal_to(server.only_child(), Signal::KILL);
    let answers: Vec<_> = (0..10).map(|_| fetch(site.port, "/hello.txt")).collect();
    // Requests that met the dying process itself may have failed, but a later one must not.
    assert!(answers.last().expect("ten").is_ok(), "{answers:?}");
}

#[test]
fn the_server_process_does_not_outlive_its_keeper() {
    let site = Site::new();
    let server = site.start("");
    let child = server.only_child();
    server.signal(Signal::KILL);
    wait_until("the end of the server process", &mut || !is_alive(child));
}

#[test]
fn a_graceful_stop_lets_a_slow_download_finish() {
    let site = Site::new();
    let size = 24 * 1024 * 1024;
    fs::write(site.path("root/big"), vec![b'x'; size]).expect("a file");
    let server = site.start("");
    let mut slow = Client::connect(site.port).expect("taken");
    slow.send("/big", "keep-alive").expect("sent");
    let mut first = [0; 1000];
    slow.stream().read_exact(&mut first).expect("it has begun");
    let mut idle = Client::connect(site.port).expect("taken");
    idle.request("/hello.txt", "keep-alive").expect("an answer");
    server.signal(Signal::INT);
    wait_until("the port to be free", &mut || {
        Client::connect(site.port).is_err()
    });
    assert_eq!(
        idle.stream().read(&mut [0]).expect("closed in order"),
        0,
        "idle ones end"
    );
    let mut rest = Vec::new();
    slow.stream().read_to_end(&mut rest).expect("all of it");
    let text = String::from_utf8_lossy(&first);
    let head = text.find("\r\n\r\n").expect("a head") + 4;
    assert_eq!(
        first.len() - head + rest.len(),
        size,
        "{}",
        site.error_log()
    );
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn a_graceful_stop_has_a_deadline_and_a_second_signal_ends_it() {
    let site = Site::new();
    fs::write(site.path("root/big"), vec![b'x'; 24 * 1024 * 1024]).expect("a file");
    let more = "server.feature-flags = ( \"server.graceful-shutdown-timeout\" => 1 )";
    for (more, signals) in [(more, 1), ("", 2)] {
        let server = site.start(more);
        let mut stalled = Client::connect(site.port).expect("taken");
        stalled.send("/big", "close").expect("sent");
        stalled
            .stream()
            .read_exact(&mut [0; 100])
            .expect("it has begun");
        let noted = || site.error_log().matches("graceful").count();
        let (begun, before) = (Instant::now(), noted());
        server.signal(Signal::INT);
        if signals == 2 {
            // If two signals arrive at once, the kernel delivers one.
            server.wait_for("the first to be noted", || noted() > before);
            server.signal(Signal::INT);
        }
        assert_eq!(server.end().0, Some(0));
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    }
}

#[test]
fn hup_reopens_the_log() {
    let site = Site::new();
    let server = site.start("");
    let child = server.only_child();
    fs::rename(site.path("error.log"), site.path("error.log.1")).expect("rotated");
    server.signal(Signal::HUP);
    server.wait_for("the new file", || {
        site.error_log().contains("logs reopened")
    });
    let open = || {
        let descriptors = fs::read_dir(format!("/proc/{child}/fd")).expect("alive");
        let names = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        names
            .filter(|name| name.to_string_lossy().contains("error.log"))
            .collect::<Vec<_>>()
    };
    server.wait_for("the server process to have it", || {
        open() == [site.path("error.log")]
    });
    assert_eq!(
        server.only_child(),
        child,
        "nothing but the logs has changed"
    );
}

#[test]
fn a_unix_socket_is_served_with_its_mode_and_removed() {
    let site = Site::new();
    let path = site.path("socket");
    let more = format!(
        "$SERVER[\"socket\"] == \"{}\" {{ server.socket-perms = \"0600\" }}",
        path.display()
    );
    let server = site.start(&more);
    assert_eq!(
        fs::metadata(&path).expect("there").permissions().mode() & 0o777,
        0o600
    );
    let mut stream = UnixStream::connect(&path).expect("taken");
    stream
        .write_all(b"GET /hello.txt HTTP/1.0\r\n\r\n")
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.ends_with("\r\n\r\nhello\n"), "{answer}");
    server.signal(Signal::TERM);
    assert_eq!(server.end().0, Some(0));
    assert!(!path.exists());
}

#[test]
fn sockets_of_the_service_manager_are_used() {
    let site = Site::new();
    let passed = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = passed.local_addr().expect("bound").port();
    let file = site.configure("server.systemd-socket-activation = \"enable\"");
    // The shell moves the socket to descriptor 3 and keeps its process id over exec.
    let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" -D -f \"$1\"";
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", script])
        .arg(petrel().get_program())
        .arg(file)
        .stdin(as_stdin(passed))
        .stderr(fs::File::create(site.path("stderr")).expect("a file"));
    let mut child = command.spawn().expect("a shell");
    let pid = child.id().cast_signed();
    wait_until("an answer", &mut || fetch(port, "/hello.txt").is_ok());
    let told = fs::read_to_string(site.path("stderr")).expect("written");
    let words = format!(
        "listens on 127.0.0.1:{port} and not on 127.0.0.1:{}",
        site.port
    );
    assert!(told.contains(&words), "{told}");
    assert!(
        Client::connect(site.port).is_err(),
        "it stands in for the main address"
    );
    signal_to(pid, Signal::TERM);
    assert_eq!(child.wait().expect("our child").code(), Some(0));
}

#[test]
fn the_background_process_is_ready_when_the_command_returns() {
    let site = Site::new();
    let pid_file = site.path("petrel.pid");
    let file = site.configure(&format!("server.pid-file = \"{}\"", pid_file.display()));
    let status = petrel()
        .arg("-f")
        .arg(&file)
        .status()
        .expect("the program starts");
    assert_eq!(status.code(), Some(0));
    let pid = fs::read_to_string(&pid_file)
        .expect("written")
        .trim()
        .parse()
        .expect("a number");
    fetch(site.port, "/hello.txt").expect("it serves already");
    let again = petrel()
        .arg("-f")
        .arg(&file)
        .output()
        .expect("the program starts");
    assert_eq!(
        again.status.code(),
        Some(255),
        "the launcher hears of the failure"
    );
    signal_to(pid, Signal::TERM);
    wait_until("the end", &mut || !is_alive(pid));
    assert!(!pid_file.exists());
}

#[test]
fn an_idle_server_ends_by_itself_when_asked_to() {
    let site = Site::new();
    let file = site.configure("");
    // The test sends no request: on a busy machine the second might be over before the response arrives.
    let server = Server::spawn(petrel().args(["-D", "-i", "1", "-f"]).arg(file));
    let (code, ..) = server.end();
    assert_eq!(code, Some(0));
}

/// It takes so long because the transfer lasts more than twice the two seconds after which an idle server ends.
#[test]
fn a_server_with_one_long_transfer_is_not_idle() {
    let site = Site::new();
    fs::write(site.path("root/big"), vec![b'x'; 24 * 1024 * 1024]).expect("a file");
    let file = site.configure("");
    let server = Server::spawn(petrel().args(["-D", "-i", "2", "-f"]).arg(file));
    server.wait_for("an answer", || fetch(site.port, "/hello.txt").is_ok());
    let mut slow = Client::connect(site.port).expect("taken");
    slow.send("/big", "close").expect("sent");
    slow.stream()
        .read_exact(&mut [0; 100])
        .expect("it has begun");
    std::thread::sleep(Duration::from_millis(4500));
    assert!(
        !site.error_log().contains("graceful"),
        "{}",
        site.error_log()
    );
    drop(slow);
    assert_eq!(server.end().0, Some(0));
}

/// It takes so long because the client pauses three times, for three and a half seconds each.
#[test]
fn a_slow_head_does_not_shorten_the_time_for_the_body() {
    let site = Site::new();
    let _server = site.start("server.max-read-idle = 6");
    let slow = Client::connect(site.port).expect("taken");
    let head =
        "POST /hello.txt HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1\r\n\r\n";
    let (first, second) = head.split_at(20);
    for part in [first, second, "x"] {
        slow.stream().write_all(part.as_bytes()).expect("sent");
        std::thread::sleep(Duration::from_millis(3500));
    }
    let mut answer = String::new();
    slow.stream()
        .read_to_string(&mut answer)
        .expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn readiness_is_told_when_it_is_true() {
    let site = Site::new();
    let path = site.path("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).expect("a socket");
    let file = site.configure("");
    let server = Server::spawn(
        petrel()
            .env("NOTIFY_SOCKET", &path)
            .args(["-D", "-f"])
            .arg(file),
    );
    let mut heard = String::new();
    let mut hear = |word: &str| {
        manager
            .set_read_timeout(Some(crate::harness::PATIENCE))
            .expect("a socket");
        while !heard.contains(word) {
            let mut buffer = [0; 256];
            let length = manager
                .recv(&mut buffer)
                .unwrap_or_else(|error| panic!("{word}: {error}"));
            heard += &String::from_utf8_lossy(&buffer[..length]);
        }
        heard.clear();
    };
    hear("READY=1");
    fetch(site.port, "/hello.txt").expect("it serves already");
    server.signal(Signal::USR1);
    hear("RELOADING=1");
    hear("READY=1");
    server.signal(Signal::TERM);
    hear("STOPPING=1");
}

#[test]
fn a_log_command_is_the_keepers_and_survives_a_crash() {
    let site = Site::new();
    let file = site.path("piped.log");
    let more = format!("server.errorlog := \"|cat >> {}\"", file.display());
    let server = site.start(&more);
    let text = || fs::read_to_string(&file).unwrap_or_default();
    server.wait_for("a first line", || text().contains("server started"));
    let child = server
        .children()
        .into_iter()
        .find(|id| is_petrel(*id))
        .expect("a server process");
    signal_to(child, Signal::KILL);
    server.wait_for("a line about it", || {
        text().contains("was killed by SIGKILL")
    });
    server.wait_for("another process", || fetch(site.port, "/hello.txt").is_ok());
    server.signal(Signal::INT);
    assert_eq!(server.end().0, Some(0));
    // The log command may write later than the keeper ends, which waits one second for it.
    wait_until("the last line", &mut || {
        text().ends_with("server stopped\n")
    });
}

fn is_petrel(pid: i32) -> bool {
    crate::harness::proc_text(pid, "comm").trim() == "petrel"
}
