//! `petrel reload`, `stop`, `reopen`, `status` and `top`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use petrel_tests::{Finished, PATIENCE, Server, eventually, petrel, run};
use rustix::process::Signal;

use crate::reload::{application, download, echo, in_front_of, reload, server_processes, tunnel};

/// Runs `petrel` with `words` and the server's configuration.
fn command(server: &Server, words: &[&str]) -> Finished {
    let mut command = Command::new(petrel());
    command
        .args(words)
        .arg("-f")
        .arg(server.tree().path("petrel.conf"));
    run(&mut command, PATIENCE)
}

/// The same, returning the output of a successful command.
#[track_caller]
fn says(server: &Server, words: &[&str]) -> String {
    let finished = command(server, words);
    assert_eq!(finished.code(), 0, "{words:?}: {}", finished.errors);
    finished.text()
}

/// A command that starts another server with the configuration of this one.
fn start_again(server: &Server) -> Command {
    let mut command = Command::new(petrel());
    command
        .arg("-D")
        .arg("-f")
        .arg(server.tree().path("petrel.conf"));
    command
}

#[test]
fn a_reload_is_done_when_the_command_returns() {
    let server = Server::start("server.tag = \"old\"");
    for round in 0..3 {
        let tag = format!("round {round}");
        server.write_configuration(&format!("server.tag = \"{tag}\""));
        let said = says(&server, &["reload"]);
        assert!(said.contains("configuration reloaded"), "{said}");
        assert_eq!(server.get("/").field("Server"), Some(tag.as_str()));
    }
}

#[test]
fn a_mistake_is_shown_and_changes_nothing() {
    let server = Server::start("server.tag = \"old\"");
    server.write_configuration("server.tag = \"new\"\nserver.max-keep-alive-idle = {");
    let finished = command(&server, &["reload"]);
    assert_eq!(finished.code(), 255);
    assert!(
        finished.errors.contains("petrel.conf"),
        "{}",
        finished.errors
    );
    // The server can still be asked.
    let mut by_socket = Command::new(petrel());
    by_socket
        .arg("reload")
        .arg("--socket")
        .arg(server.tree().path("control"));
    let finished = run(&mut by_socket, PATIENCE);
    assert_eq!(finished.code(), 255);
    assert!(
        finished.errors.contains("petrel.conf:"),
        "{}",
        finished.errors
    );
    server.expect_log("reload failed, the old configuration stays");
    assert_eq!(server.get("/").field("Server"), Some("old"));

    let taken = Server::start("");
    server.write_configuration(&format!(
        "server.tag = \"new\"\n$SERVER[\"socket\"] == \"127.0.0.1:{}\" {{ }}",
        taken.port()
    ));
    let finished = command(&server, &["reload"]);
    assert_eq!(finished.code(), 255);
    assert!(
        finished.errors.contains(&taken.port().to_string()),
        "{}",
        finished.errors
    );
    assert_eq!(server.get("/").field("Server"), Some("old"));

    server.write_configuration("server.tag = \"new\"");
    says(&server, &["reload"]);
    assert_eq!(server.get("/").field("Server"), Some("new"));
}

#[test]
fn a_reload_now_ends_what_the_old_configuration_let_in() {
    let backend = application();
    let server = in_front_of(&backend, "").start();
    let mut oldest = tunnel(&server, "oldest");
    reload(&server, "second");
    let mut open = tunnel(&server, "tunnel");
    let mut loading = download(&server);
    let mut waiting = server.client();
    waiting.send("GET /app/hang HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
    assert!(eventually(|| backend.open_connections() == 3));
    // An invalid new configuration must not abort any request.
    server.write_configuration("server.max-keep-alive-idle = {");
    assert_eq!(command(&server, &["reload", "--now"]).code(), 255);
    echo(&mut open);
    echo(&mut oldest);

    server.write_configuration(&format!("server.tag = \"new\"\n{}", server.configuration()));
    says(&server, &["reload", "--now"]);
    assert_eq!(server.get("/").field("Server"), Some("new"));
    open.expect_close();
    oldest.expect_close();
    assert_eq!(waiting.response().status, 503);
    loading.read_to_end();
    assert!(eventually(|| server_processes(&server) == 1));
    for request in [
        "GET /app/oldest",
        "GET /app/tunnel",
        "GET /big.bin",
        "GET /app/hang",
    ] {
        let is_told = || {
            let log = server.log();
            let mut lines = log.lines().filter(|line| line.contains(request));
            lines.any(|line| line.contains("a reload was told to end"))
        };
        assert!(eventually(is_told), "{request}:\n{}", server.log());
    }
    let accesses = server.tree().text("access.log");
    for line in [
        "101 /app/oldest",
        "101 /app/tunnel",
        "200 /big.bin",
        "503 /app/hang",
    ] {
        assert_eq!(accesses.matches(line).count(), 1, "{line}\n{accesses}");
    }
}

#[test]
fn status_shows_every_generation_with_what_is_open() {
    let backend = application();
    let server = in_front_of(&backend, "").start();
    assert_eq!(server.get("/").status, 200);
    let open = tunnel(&server, "tunnel");
    reload(&server, "new");
    let has = |words: &[&str]| {
        let status = says(&server, &["status"]);
        let mut lines = status.lines();
        lines.any(|line| {
            words
                .iter()
                .all(|word| line.split(' ').any(|known| known == *word))
        })
    };
    let keeper = format!("pid={}", server.pid());
    assert!(has(&["keeper", &keeper, "state=running"]));
    assert!(eventually(|| has(&[
        "generation=1",
        "state=draining",
        "connections=1",
        "requests=1"
    ])));
    assert!(eventually(|| has(&[
        "generation=2",
        "state=serving",
        "connections=0",
        "requests=0"
    ])));
    let idle = {
        let mut client = server.client();
        client.get("/");
        client
    };
    assert!(eventually(|| has(&[
        "generation=2",
        "connections=1",
        "requests=0"
    ])));
    drop((open, idle));
    assert!(eventually(
        || says(&server, &["status"]).lines().count() == 2
    ));
}

#[test]
fn a_stop_is_done_when_the_command_returns() {
    let backend = application();
    for (words, cut) in [(&["stop"][..], 0), (&["stop", "--now"], 1)] {
        let mut server = in_front_of(&backend, "").start();
        let open = tunnel(&server, "tunnel");
        let socket = server.tree().path("control");
        if cut == 0 {
            drop(open);
        }
        assert_eq!(says(&server, words), "server stopped\n");
        assert!(petrel_tests::Client::try_connect(server.address()).is_err());
        assert!(!socket.exists());
        let status = server.wait(PATIENCE).expect("it ends");
        assert_eq!(status.code(), Some(0));
        assert_eq!(server.log().matches("told to stop at once").count(), cut);
        let finished = command(&server, &["status"]);
        assert_eq!(finished.code(), 255);
        assert!(
            finished.errors.contains("no server listens"),
            "{}",
            finished.errors
        );
    }
}

#[test]
fn reopen_opens_the_logs_again() {
    let server = Server::start("");
    server.tree().rename("error.log", "error.log.1");
    assert_eq!(says(&server, &["reopen"]), "logs reopened\n");
    assert!(server.tree().path("error.log").exists());
}

#[test]
fn the_socket_is_the_owners_beside_the_pid_file_and_moves_with_it() {
    let own = "server.control-socket = \"\"\n";
    let server = Server::start(&format!("{own}server.pid-file = var.dir + \"/petrel.pid\""));
    let path = server.tree().path("petrel.control");
    // A server accepts connections before the keeper has made its socket.
    assert!(eventually(|| path.exists()));
    let data = fs::metadata(&path).expect("it is there");
    assert!(data.file_type().is_socket());
    assert_eq!(data.permissions().mode() & 0o777, 0o600);
    says(&server, &["status"]);
    server.write_configuration("server.control-socket = var.dir + \"/other\"");
    server.signal(Signal::USR1);
    assert!(eventually(|| server.tree().path("other").exists()));
    assert!(eventually(|| !path.exists()));
    says(&server, &["status"]);
}

#[test]
fn a_stale_socket_is_replaced_and_a_file_is_not() {
    let mut server = Server::start("");
    let socket = server.tree().path("control");
    server.signal(Signal::KILL);
    server.wait(PATIENCE).expect("it is killed");
    assert!(socket.exists());
    let again = || start_again(&server);
    let mut second = again().spawn().expect("it starts");
    assert!(eventually(|| command(&server, &["status"]).code() == 0));
    // A third server can have neither the port nor the socket.
    assert_eq!(run(&mut again(), PATIENCE).code(), 255);
    assert!(eventually(|| command(&server, &["status"]).code() == 0));
    says(&server, &["stop"]);
    second.wait().expect("it ends");

    server.tree().write("control", "precious");
    let finished = run(&mut again(), PATIENCE);
    assert_eq!(finished.code(), 255);
    assert!(finished.errors.contains("no socket"), "{}", finished.errors);
    assert_eq!(server.tree().text("control"), "precious");
}

#[test]
fn a_server_starts_while_another_one_of_the_same_configuration_stops() {
    let backend = application();
    let config = "server.feature-flags = ( \"server.graceful-shutdown-timeout\" => 0 )\n\
                  server.pid-file = var.dir + \"/petrel.pid\"";
    for control_socket in ["", "server.control-socket = \"\"\n"] {
        let mut server = in_front_of(&backend, &format!("{control_socket}{config}")).start();
        let mut open = tunnel(&server, "tunnel");
        server.signal(Signal::INT);
        assert!(eventually(|| petrel_tests::Client::try_connect(
            server.address()
        )
        .is_err()));
        let mut second = start_again(&server).spawn().expect("it starts");
        let pid = second.id();
        let is_there = |server: &Server| {
            let keeper = format!("keeper pid={pid} state=running");
            command(server, &["status"]).text().contains(&keeper)
        };
        assert!(eventually(|| is_there(&server)));
        echo(&mut open);
        drop(open);
        server
            .wait(PATIENCE)
            .expect("it ends with its last request");
        assert!(is_there(&server));
        let pid_file = server.tree().path("petrel.pid");
        let written = fs::read_to_string(&pid_file).expect("the second server's");
        assert_eq!(written, format!("{pid}\n"));
        assert_eq!(says(&server, &["stop"]), "server stopped\n");
        second.wait().expect("it ends");
        assert!(!pid_file.exists());
    }
}

#[test]
fn a_command_reaches_the_server_although_the_file_has_changed() {
    let mut server = Server::start("");
    let mistake = "server.max-keep-alive-idle = {";
    server.write_configuration(mistake);
    says(&server, &["status"]);
    says(&server, &["reopen"]);
    assert_eq!(command(&server, &["reload"]).code(), 255);

    server.write_configuration("server.control-socket = var.dir + \"/other\"");
    let finished = command(&server, &["reload"]);
    assert_eq!(finished.code(), 255);
    assert!(finished.errors.contains("--socket"), "{}", finished.errors);
    let mut by_socket = Command::new(petrel());
    by_socket
        .args(["reload", "--socket"])
        .arg(server.tree().path("control"));
    assert_eq!(run(&mut by_socket, PATIENCE).code(), 0);
    says(&server, &["status"]);

    server.write_configuration(&format!(
        "server.control-socket = var.dir + \"/other\"\n{mistake}"
    ));
    assert_eq!(says(&server, &["stop"]), "server stopped\n");
    server.wait(PATIENCE).expect("it ends");
}

#[test]
fn clients_that_say_nothing_hold_no_command_up() {
    let server = Server::start("");
    let path = server.tree().path("control");
    let silent: Vec<_> = (0..8)
        .map(|_| UnixStream::connect(&path).expect("taken"))
        .collect();
    server.write_configuration("server.tag = \"new\"");
    says(&server, &["reload"]);
    assert_eq!(server.get("/").field("Server"), Some("new"));
    let finished = command(&server, &["status"]);
    assert_eq!(finished.code(), 0);
    drop(silent);
    let mut stream = UnixStream::connect(&path).expect("taken");
    std::io::Write::write_all(&mut stream, b"fly\n").expect("sent");
    let answer = std::io::read_to_string(stream).expect("an answer");
    assert!(
        answer.ends_with("exit 255\n") && answer.contains("fly"),
        "{answer}"
    );
}

#[test]
fn it_works_with_a_chroot_and_another_user() {
    if !rustix::process::geteuid().is_root() {
        return petrel_tests::skip("it_works_with_a_chroot_and_another_user", "only root can");
    }
    let config = "server.username = \"www-data\"\nserver.groupname = \"www-data\"\n\
                  server.chroot = var.dir\nserver.document-root = \"/www\"\nserver.errorlog = \"/error.log\"";
    let server = Server::build()
        .tree(|tree| {
            tree.write("www/index.html", "hello").mode("", 0o755);
        })
        .config(config)
        .start();
    assert!(says(&server, &["status"]).contains("generation=1"));
    says(&server, &["reload"]);
    assert_eq!(server.get("/").text(), "hello");
    assert_eq!(
        fs::metadata(server.tree().path("control"))
            .expect("there")
            .permissions()
            .mode()
            & 0o777,
        0o600
    );
    says(&server, &["stop"]);
}

#[test]
fn top_prints_what_the_server_does() {
    let server = Server::start("");
    server.get("/none");
    // Counts of workers are a second old at most.
    let has_counted = || {
        let text = says(&server, &["top", "--once"]);
        text.contains("no-module") && text.contains("WORKER")
    };
    assert!(eventually(has_counted), "{}", says(&server, &["top"]));
    // A reload changes the process that answers.
    reload(&server, "new");
    let text = says(&server, &["top"]);
    assert!(text.contains("configuration 2"), "{text}");

    let mut elsewhere = Command::new(petrel());
    elsewhere.args(["top", "--once", "--socket", "/nonexistent/control"]);
    let finished = run(&mut elsewhere, PATIENCE);
    assert_eq!(finished.code(), 255);
    assert!(
        finished.errors.contains("no server listens"),
        "{}",
        finished.errors
    );
}

#[test]
fn a_reader_of_top_that_does_not_read_holds_nothing_up() {
    let server = Server::start("");
    let idle: Vec<UnixStream> = (0..20)
        .map(|_| {
            let path = server.tree().path("control");
            let mut stream = UnixStream::connect(path).expect("the server listens");
            stream
                .write_all(b"snapshot\n")
                .expect("the command is sent");
            stream
        })
        .collect();
    assert_eq!(says(&server, &["status"]).lines().count(), 2);
    drop(idle);
    assert!(eventually(|| command(&server, &["top"]).code() == 0));
    assert_eq!(server.get("/none").status, 404);
}

/// Runs `petrel top` in a terminal that `script` makes, with `keys` as its input, and returns what it wrote.
/// Afterwards the terminal must be as before.
fn in_terminal(server: &Server, wrapped: &str, keys: &str) -> String {
    let tree = server.tree();
    let text = format!(
        "stty rows 30 cols 100\nstty -a > before\n{wrapped}\necho \"ended with $?\"\nstty -a > after\n"
    );
    tree.write("terminal.sh", text);
    let shell = format!(
        "cd '{}'; (sleep 2; printf '{keys}'; sleep 2) | script -qec 'sh terminal.sh' typescript",
        tree.root().display()
    );
    let mut command = Command::new("sh");
    command
        .args(["-c", &shell])
        .env("TERM", "xterm")
        .env("PETREL", petrel());
    run(&mut command, PATIENCE);
    assert_eq!(tree.text("before"), tree.text("after"));
    let written = tree.read("typescript");
    String::from_utf8_lossy(&written).into_owned()
}

/// It takes so long because `top` runs twice, and each time the terminal stays for four seconds.
#[test]
fn top_leaves_the_terminal_as_it_was() {
    let server = Server::start("");
    let top = "\"$PETREL\" top -f petrel.conf";
    let written = in_terminal(&server, top, "\\t\\tq");
    // It has shown three views on the other screen, and has left that.
    for text in [
        "\u{1b}[?1049h",
        "No backends",
        "slow requests were kept yet",
        "ended with 0",
    ] {
        assert!(written.contains(text), "{text:?} in {written:?}");
    }
    assert!(written.contains("\u{1b}[?1049l"), "{written:?}");
    let killed =
        format!("(sleep 3; kill -TERM \"$(cat pid)\") &\nsh -c 'echo $$ > pid; exec {top}'");
    let written = in_terminal(&server, &killed, "");
    assert!(written.contains("\u{1b}[?1049l"), "{written:?}");
}

#[test]
fn top_ends_with_its_terminal() {
    let server = Server::start("");
    let tree = server.tree();
    let top = "sh -c 'echo $$ > pid; exec \"$PETREL\" top -f petrel.conf'";
    let mut script = Command::new("script")
        .args(["-qefc", top, "typescript"])
        .current_dir(tree.root())
        .env("TERM", "xterm")
        .env("PETREL", petrel())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("there is `script`");
    assert!(eventually(|| tree.path("typescript").exists()
        && String::from_utf8_lossy(&tree.read("typescript"))
            .contains("\u{1b}[?1049h")));
    script.kill().expect("it is our child");
    script.wait().expect("it is our child");
    let process = format!("/proc/{}", tree.text("pid").trim());
    assert!(eventually(|| !Path::new(&process).exists()));
}
