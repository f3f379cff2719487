//! Options, their output and exit codes: those of lighttpd 1.4 where it has them.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use crate::harness::{Server, Site, fetch, free_port, full, header, petrel, run};
use rustix::process::Signal;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn version_features_and_help() {
    let version = run(&["-v"]);
    assert_eq!(version.status.code(), Some(0));
    assert!(text(&version.stdout).starts_with("petrel/"));
    let features = run(&["-V"]);
    assert_eq!(features.status.code(), Some(0));
    assert!(text(&features.stdout).contains("\n\t+ PCRE support\n"));
    assert!(text(&features.stdout).contains("\n\t- MySQL support\n"));
    let help = run(&["-h"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(text(&help.stdout).contains("serve"));
}

#[test]
fn each_name_does_what_it_says_or_says_no() {
    let site = Site::new();
    // What the program prints on standard error, and its exit code, when it is started through a link of that
    // name.
    let started_as = |name: &str, arguments: &[&str]| {
        let link = site.path(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_petrel"), &link).expect("a link");
        let output = std::process::Command::new(&link)
            .args(arguments)
            .stdin(std::process::Stdio::null())
            .output()
            .expect("petrel is there");
        fs::remove_file(&link).expect("it is ours");
        let said = text(&output.stderr) + &text(&output.stdout);
        (output.status.code(), said)
    };
    for (name, arguments, code, words) in [
        ("fcgi-stat-accel", &[][..], 255, "name a place by --port"),
        ("fcgi-stat-accel", &["--port", "0"], 255, "0 is not in"),
        ("fcgi-magnet", &[], 255, "name a place by"),
        ("spawn-fcgi", &["-v"], 0, "spawn-fcgi (petrel/"),
        ("lighttpd", &["-v"], 0, "petrel/"),
        ("lighttpd", &[], 255, "no configuration: name a file by -f"),
        ("petrel-new", &["-v"], 0, "petrel/"),
        ("lighttpd-angel", &[], 255, "started as lighttpd-angel"),
        ("lighttpd-angel", &["-v"], 255, "started as lighttpd-angel"),
    ] {
        let (ended, said) = started_as(name, arguments);
        assert_eq!(ended, Some(code), "{name} {arguments:?}: {said}");
        assert!(said.contains(words), "{name} {arguments:?}: {said}");
    }
}

#[test]
fn the_bundled_site_takes_no_socket_of_a_fastcgi_program() {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    let output = petrel()
        .stdin(std::os::fd::OwnedFd::from(socket))
        .output()
        .expect("petrel is there");
    assert_eq!(output.status.code(), Some(255));
    let said = text(&output.stderr);
    assert!(
        said.contains("standard input is a listening socket"),
        "{said}"
    );
}

#[test]
fn generated_pages() {
    let bash = run(&["completions", "bash"]);
    assert!(bash.status.success() && text(&bash.stdout).contains("_petrel"));
    let manual = run(&["man"]);
    assert!(manual.status.success() && text(&manual.stdout).contains(".TH petrel"));
}

#[test]
fn wrong_usage_ends_with_255() {
    for arguments in [
        &["-x"][..],
        &["-f"],
        &["-D"],
        &["-t"],
        &["-1"],
        &["-i", "abc", "-t"],
        &["-i", "-5"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(255), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_file_that_is_not_there() {
    let output = run(&["-D", "-f", "/nonexistent/petrel.conf"]);
    assert_eq!(output.status.code(), Some(255));
    assert!(text(&output.stderr).contains("/nonexistent/petrel.conf"));
}

#[test]
fn the_syntax_is_checked() {
    let site = Site::new();
    let file = site.configure("");
    let file = file.to_str().expect("a plain path");
    let output = run(&["-t", "-f", file, "-m", "/usr/lib/lighttpd"]);
    assert_eq!(
        (output.status.code(), text(&output.stdout)),
        (Some(0), "Syntax OK\n".to_owned())
    );
    assert_eq!(run(&["-tt", "-f", file]).status.code(), Some(0));
    let port = site.port;
    site.configure("server.port = ");
    for option in ["-t", "-tt", "-p", "-D"] {
        let output = run(&[option, "-f", file]);
        assert_eq!(output.status.code(), Some(255), "{option}");
        assert!(
            text(&output.stderr).contains("petrel.conf:6:"),
            "{}",
            text(&output.stderr)
        );
    }
    assert!(
        TcpListener::bind(("127.0.0.1", port)).is_ok(),
        "nothing was started"
    );
}

#[test]
fn an_unknown_directive_is_a_warning() {
    let site = Site::new();
    let file = site.configure("server.documnt-root = \"x\"");
    let output = run(&["-t", "-f", file.to_str().expect("a plain path")]);
    assert_eq!(output.status.code(), Some(0));
    let message = text(&output.stderr);
    assert!(
        message.contains("server.document-root"),
        "names the nearest: {message}"
    );
}

#[test]
fn the_preflight_finds_what_start_up_would() {
    let site = Site::new();
    for (line, word) in [
        ("server.username = \"no-such-user\"", "no-such-user"),
        ("server.chroot = \"/nonexistent\"", "server.chroot"),
        ("server.pid-file = \"/nonexistent/pid\"", "server.pid-file"),
        (
            "$SERVER[\"socket\"] == \"192.0.2.1:8001\" {}",
            "192.0.2.1:8001",
        ),
        (
            "$HTTP[\"host\"] == \"a\" { server.errorlog = \"/nonexistent/log\" }",
            "/nonexistent/log",
        ),
    ] {
        if line.contains("username") && !crate::harness::is_root() {
            continue;
        }
        let file = site.configure(line);
        let file = file.to_str().expect("a plain path");
        assert_eq!(run(&["-t", "-f", file]).status.code(), Some(0), "{line}");
        let output = run(&["-tt", "-f", file]);
        assert_eq!(output.status.code(), Some(255), "{line}");
        assert!(
            text(&output.stderr).contains(word),
            "{}",
            text(&output.stderr)
        );
    }
}

#[test]
fn a_port_in_use_does_not_fail_the_preflight_of_a_running_server() {
    let site = Site::new();
    let _server = site.start("");
    let file = site.path("petrel.conf");
    assert_eq!(
        run(&["-tt", "-f", file.to_str().expect("a plain path")])
            .status
            .code(),
        Some(0)
    );
}

#[test]
fn the_preflight_tells_what_a_start_does_not_need() {
    let site = Site::new();
    fs::write(site.path("root/.env"), "secret").expect("written");
    let _other = TcpListener::bind(("127.0.0.1", site.port)).expect("a port");
    let file = site.configure(
        "server.modules = ( \"mod_fastcgi\" )\n\
         fastcgi.server = ( \".php\" => (( \"socket\" => \"/nonexistent/php.sock\" )) )\n\
         $HTTP[\"host\"] == \"a\" { server.document-root = \"/nonexistent/www\" }",
    );
    let output = run(&["-tt", "-f", file.to_str().expect("a plain path")]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    let holder = format!(
        "(process {}) listens on 127.0.0.1:{}",
        std::process::id(),
        site.port
    );
    for words in [
        "directory /nonexistent/www is missing",
        "the socket /nonexistent/php.sock of this backend is not there",
        "clients can get .env, as from lighttpd",
        holder.as_str(),
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let dots = "$HTTP[\"url\"] =~ \"/\\.(?!well-known(/|$))\" { url.access-deny = ( \"\" ) }";
    let file = site.configure(&format!("server.modules = ( \"mod_access\" )\n{dots}"));
    let output = run(&["-tt", "-f", file.to_str().expect("a plain path")]);
    assert!(
        !text(&output.stderr).contains(".env"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn the_preflight_tries_logs_as_the_user_who_writes_them() {
    let site = Site::new();
    fs::create_dir(site.path("logs")).expect("a directory");
    for (log, words) in [
        ("logs", "is a directory"),
        ("root/hello.txt/log", "is no directory"),
        ("none/log", "directory "),
    ] {
        let path = site.path(log);
        let file = site.configure(&format!("server.breakagelog = \"{}\"", path.display()));
        let output = run(&["-tt", "-f", file.to_str().expect("a plain path")]);
        assert_eq!(output.status.code(), Some(255), "{log}");
        let told = text(&output.stderr);
        assert!(
            told.contains("server.breakagelog: ") && told.contains(words),
            "{told}"
        );
    }
    if !crate::harness::is_root() {
        return;
    }
    fs::set_permissions(site.path("."), fs::Permissions::from_mode(0o755)).expect("ours");
    let file = site.configure(&format!(
        "server.breakagelog = \"{}/x\"",
        site.path("logs").display()
    ));
    assert_eq!(
        run(&["-tt", "-f", file.to_str().expect("plain")])
            .status
            .code(),
        Some(0)
    );
    let mut other = petrel();
    other.args(["-tt", "-f"]).arg(&file);
    std::os::unix::process::CommandExt::uid(&mut other, 65_534);
    let output = other.output().expect("the program starts");
    assert_eq!(output.status.code(), Some(255));
    assert!(
        text(&output.stderr).contains("Permission denied"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn status_says_when_another_program_is_on_the_disk() {
    let site = Site::new();
    let program = site.path("petrel");
    fs::copy(petrel().get_program(), &program).expect("copied");
    let file = site.configure(&format!(
        "server.pid-file = \"{}\"",
        site.path("pid").display()
    ));
    let server = Server::spawn(
        std::process::Command::new(&program)
            .args(["-D", "-f"])
            .arg(&file),
    );
    server.wait_for("a first answer", || fetch(site.port, "/hello.txt").is_ok());
    let status = || run(&["status", "-f", file.to_str().expect("a plain path")]);
    assert_eq!(text(&status().stderr), "");
    fs::copy(&program, site.path("petrel.new")).expect("copied");
    fs::rename(site.path("petrel.new"), &program).expect("replaced");
    let told = text(&status().stderr);
    assert!(
        told.contains(&format!("{} is newer", program.display())),
        "{told}"
    );
}

#[test]
fn the_sample_of_the_welcome_page_starts_as_it_is() {
    let site = Site::new();
    let sample = include_str!("../../src/site/files/sample.conf.txt");
    assert!(sample.contains("\nserver.port          = 8000\n"));
    // Another test may have the port.
    let sample = sample.replace("= 8000", &format!("= {}", site.port));
    fs::write(site.path("sample.conf"), sample).expect("written");
    let mut check = petrel();
    check
        .args(["-tt", "-f", "../sample.conf"])
        .current_dir(site.path("root"));
    let output = check.output().expect("the program starts");
    // Root is warned that the server would stay root.
    let told = text(&output.stderr);
    let told: Vec<&str> = told
        .lines()
        .filter(|line| !line.contains("runs as root"))
        .collect();
    assert_eq!((output.status.code(), told), (Some(0), Vec::new()));
    let server = Server::spawn(
        petrel()
            .args(["-D", "-f", "../sample.conf"])
            .current_dir(site.path("root")),
    );
    server.wait_for("an answer", || fetch(site.port, "/hello.txt").is_ok());
}

#[test]
fn the_version_has_two_names() {
    let short = run(&["-v"]);
    let long = run(&["--version"]);
    assert!(text(&short.stdout).starts_with("petrel/"));
    assert_eq!((long.status.code(), long.stdout), (Some(0), short.stdout));
}

#[test]
fn the_printed_configuration_is_one() {
    let site = Site::new();
    let file = site.configure("$HTTP[\"host\"] =~ \"^a\\.\" { server.tag = \"x\" }");
    let printed = run(&["-p", "-f", file.to_str().expect("a plain path")]);
    assert_eq!(printed.status.code(), Some(0));
    let again = site.path("again.conf");
    fs::write(&again, &printed.stdout).expect("written");
    let twice = run(&["-p", "-f", again.to_str().expect("a plain path")]);
    assert_eq!(text(&printed.stdout), text(&twice.stdout));
    assert!(text(&printed.stdout).contains("server.tag"));
}

#[test]
fn a_configuration_that_would_not_start_is_printed() {
    let site = Site::new();
    let file = site.configure("Server.Max-FDs = var.pid + \"x\"");
    let printed = run(&["-p", "-f", file.to_str().expect("a plain path")]);
    assert_eq!(printed.status.code(), Some(0));
    assert!(text(&printed.stdout).contains("server.max-fds = \""));
    assert!(text(&printed.stderr).contains("server.max-fds"));
    let file = site.configure("server.tag = nothing");
    let printed = run(&["-p", "-f", file.to_str().expect("a plain path")]);
    assert_eq!(printed.status.code(), Some(255), "it cannot be read");
    assert_eq!(text(&printed.stdout), "");
}

#[test]
fn a_directory_is_served_without_a_file() {
    let site = Site::new();
    let port = free_port().to_string();
    fs::write(site.path("root/.secret"), "x").expect("written");
    let mut server = Server::spawn(
        petrel()
            .arg("serve")
            .arg(site.path("root"))
            .args(["--port", &port]),
    );
    let line = server.first_line();
    assert!(
        line.contains(&format!("http://127.0.0.1:{port}/")),
        "{line}"
    );
    let port = port.parse().expect("a number");
    let (head, body) = fetch(port, "/hello.txt").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(
        header(&head, "content-type").map(|kind| kind.starts_with("text/plain")),
        Some(true)
    );
    assert_eq!(body, b"hello\n");
    let taken = run(&["serve", "/", "--port", &port.to_string()]);
    assert_eq!(taken.status.code(), Some(255));
    assert!(
        text(&taken.stderr).ends_with("something listens there\n"),
        "{}",
        text(&taken.stderr)
    );
    let (head, _) = fetch(port, "/.secret").expect("an answer");
    assert!(!head.starts_with("HTTP/1.1 200 "), "{head}");
    server.signal(Signal::INT);
    assert_eq!(server.end().0, Some(0));
    let output = run(&["serve", "/nonexistent"]);
    assert_eq!(output.status.code(), Some(255));
}

#[test]
fn output_that_cannot_be_written_ends_no_process() {
    let site = Site::new();
    let port = free_port();
    let mut command = petrel();
    command.arg("serve").arg(site.path("root"));
    command.args(["--port", &port.to_string()]);
    let mut server = Server::spawn_saying(&mut command, full(), full());
    server.wait_for("a first answer", || fetch(port, "/hello.txt").is_ok());
    server.signal(Signal::INT);
    assert_eq!(server.code(), Some(0));
    let mut refused = Server::spawn_saying(petrel().args(["serve", "/none"]), full(), full());
    assert_eq!(refused.code(), Some(255));
}

#[test]
fn without_a_document_root_the_syntax_is_right_and_nothing_starts() {
    let site = Site::new();
    let file = site.path("petrel.conf");
    fs::write(&file, "server.bind = \"127.0.0.1\"\nserver.port = 8001\n").expect("written");
    let file = file.to_str().expect("a plain path");
    assert_eq!(run(&["-t", "-f", file]).status.code(), Some(0));
    for option in ["-tt", "-D"] {
        let output = run(&[option, "-f", file]);
        assert_eq!(output.status.code(), Some(255), "{option}");
        assert!(text(&output.stderr).contains("server.document-root is not set"));
    }
}
