//! Log files together with other programs: logrotate, and lighttpd after Petrel.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use petrel_tests::{Server, Tree, eventually, is_installed, skip};
use rustix::process::{Signal, geteuid};

const ACCESS_LOG: &str = "server.modules += ( \"mod_accesslog\" )
accesslog.filename = var.dir + \"/logs/access.log\"
accesslog.format = \"%r\"";

fn make(tree: &Tree, path: &str) {
    std::fs::File::create_new(tree.path(path)).expect("there was none");
}

/// Whether all processes of the server that have a log file of that name open have the current one open.
fn all_write(server: &Server, name: &str) -> bool {
    let wanted = std::fs::metadata(server.tree().path(name)).map(|data| data.ino());
    let is_log = |target: &Path| target.to_string_lossy().contains(name);
    let pids = server.processes().pids;
    let mut open = pids.iter().flat_map(|pid| {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter();
        entries.flatten().flatten().map(|entry| entry.path())
    });
    open.all(|descriptor| {
        !std::fs::read_link(&descriptor).is_ok_and(|target| is_log(&target))
            || std::fs::metadata(&descriptor).ok().map(|data| data.ino())
                == wanted.as_ref().ok().copied()
    })
}

// Debian's logrotate sends its signal to /usr/sbin/lighttpd, which is not running here.
#[test]
fn rotations_without_a_signal_lose_no_line() {
    const ROUNDS: usize = 4;
    let server = Server::build()
        .file("www/index.html", "hello")
        .tree(|tree| {
            tree.directory("logs");
        })
        .config(ACCESS_LOG)
        .config("server.max-keep-alive-requests = 1000000")
        .start();
    let tree = server.tree();
    let mut client = server.client();
    let mut sent = 0;
    for round in 0..ROUNDS {
        let old = format!("logs/access.log.{round}");
        tree.rename("logs/access.log", &old);
        make(tree, "logs/access.log");
        // Requests never stop; sooner or later the new file gets their lines.
        assert!(eventually(|| {
            sent += 1;
            client.get(&format!("/?{sent}")).status == 200
                && std::fs::metadata(tree.path("logs/access.log")).is_ok_and(|data| data.len() > 0)
        }));
        assert!(eventually(|| all_write(&server, "logs/access.log")));
    }
    server.expect_log("access.log: its name leads to another file now");
    let text = || {
        let old = (0..ROUNDS).map(|round| tree.text(&format!("logs/access.log.{round}")));
        old.collect::<String>() + &tree.text("logs/access.log")
    };
    assert!(eventually(|| text().lines().count() >= sent));
    let wanted: Vec<String> = (1..=sent)
        .map(|number| format!("GET /?{number} HTTP/1.1"))
        .collect();
    assert_eq!(text().lines().collect::<Vec<_>>(), wanted);
}

/// It takes the five seconds that the server leaves to logrotate.
#[test]
fn a_name_that_leads_nowhere_is_waited_for_and_then_made() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .tree(|tree| {
            tree.directory("logs");
        })
        .config(ACCESS_LOG)
        .start();
    let tree = server.tree();
    tree.rename("logs/access.log", "logs/access.log.1");
    assert_eq!(server.get("/?old").status, 200);
    assert!(eventually(|| tree
        .text("logs/access.log.1")
        .contains("old")));
    assert!(
        eventually(|| tree.path("logs/access.log").exists()),
        "nothing makes it"
    );
    assert!(eventually(|| all_write(&server, "logs/access.log")));
    assert_eq!(server.get("/?new").status, 200);
    assert!(eventually(|| tree.text("logs/access.log").contains("new")));
    assert_eq!(tree.text("logs/access.log.1").lines().count(), 1);
    assert_eq!(tree.text("logs/access.log").lines().count(), 1);
}

#[test]
fn a_server_process_that_drains_gets_the_new_file() {
    const LENGTH: usize = 32 << 20;
    let server = Server::build()
        .file("www/index.html", "hello")
        .file("www/big.bin", vec![b'x'; LENGTH])
        .tree(|tree| {
            tree.directory("logs");
        })
        .config(ACCESS_LOG)
        .start();
    let mut client = server.client().with_receive_buffer(64 * 1024);
    client.send("GET /big.bin?drained HTTP/1.1\r\nHost: petrel.test\r\nConnection: close\r\n\r\n");
    client.read_bytes(100_000);
    // The new configuration has no such log: only the process that drains writes to it.
    server.write_configuration("server.tag = \"new\"");
    server.signal(Signal::USR1);
    assert!(eventually(|| server.get("/").field("Server") == Some("new")));
    let tree = server.tree();
    tree.rename("logs/access.log", "logs/access.log.1");
    make(tree, "logs/access.log");
    assert!(
        eventually(|| all_write(&server, "logs/access.log")),
        "{}",
        server.log()
    );
    client.read_to_end();
    assert!(eventually(|| tree
        .text("logs/access.log")
        .contains("drained")));
    assert!(!tree.text("logs/access.log.1").contains("drained"));
}

#[test]
fn lighttpd_starts_again_on_the_logs() {
    let test = "lighttpd_starts_again_on_the_logs";
    if !geteuid().is_root() {
        return skip(test, "only root can become another user");
    }
    if !is_installed("lighttpd") {
        return skip(test, "lighttpd is not installed");
    }
    let user = std::fs::read_to_string("/etc/passwd").expect("it is there");
    let number = |name: &str| {
        let line = user.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split(':').nth(2)?.parse::<u32>().ok())
    };
    let nobody = number("nobody").expect("every Debian has that user");
    let config = "server.username = \"nobody\"
server.groupname = \"nogroup\"
server.errorlog = var.dir + \"/logs/error.log\"
server.pid-file = var.dir + \"/logs/pid\"
server.modules += ( \"mod_accesslog\" )
accesslog.filename = var.dir + \"/logs/access.log\"";
    let mut server = Server::build()
        .file("www/index.html", "hello")
        .tree(|tree| {
            let logs = tree.directory("logs").path("logs");
            // As in Debian, the directory belongs to the server's user.
            std::os::unix::fs::chown(logs, Some(nobody), None).expect("root may");
            std::fs::write(tree.path("logs/error.log"), "").expect("a file of root's");
            tree.mode("logs/error.log", 0o666);
        })
        .config(config)
        .start();
    assert_eq!(server.get("/").status, 200);
    let owner = |path: &str| std::fs::metadata(server.tree().path(path)).map(|data| data.uid());
    assert_eq!(owner("logs/access.log").ok(), Some(nobody));
    assert_eq!(
        owner("logs/error.log").ok(),
        Some(0),
        "Petrel did not make that one"
    );
    server.signal(Signal::TERM);
    server.wait(petrel_tests::PATIENCE).expect("it ends");
    let lighttpd = server.start_again_as_lighttpd();
    assert_eq!(lighttpd.get("/").status, 200);
}

#[test]
fn root_is_told_what_it_means() {
    let test = "root_is_told_what_it_means";
    if !geteuid().is_root() {
        return skip(test, "it is about root");
    }
    let server = Server::start("");
    for said in [
        server.log(),
        Server::build().file("www/x", "").check(&["-tt"]).errors,
    ] {
        assert!(
            said.contains("runs as root") && said.contains("server.username"),
            "{said}"
        );
    }
    let config = "server.username = \"nobody\"";
    let checked = Server::build()
        .file("www/x", "")
        .config(config)
        .check(&["-tt"]);
    assert_eq!(checked.errors, "");
}
