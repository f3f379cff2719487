//! Programs on a file system that hangs: only requests whose program cannot be started wait and get an error.

use petrel_tests::{Client, Server, SlowFs, eventually};

/// Answers, and keeps running if the query says so.
const SCRIPT: &str = "printf 'A: b\\n\\n'; echo ran; [ \"$QUERY_STRING\" != stay ] || { exec >&-; exec sleep 1000; }";

/// A server with one worker. The programs of `*.cgi` are executed from a file system that hangs when a test
/// asks for it, and so is the directory of `/slow/bin/run.sh`; all other `*.sh` do not need it.
fn site(test: &str) -> Option<(Server, SlowFs)> {
    let mut slow = None;
    let server = Server::build()
        .file("www/index.html", "hello")
        .file("www/run.cgi", SCRIPT)
        .file("www/run.sh", SCRIPT)
        .file("www/slow/bin/run.sh", SCRIPT)
        .tree(|tree| {
            tree.symlink("/bin/sh", "www/slow/sh");
            slow = SlowFs::mount_or_skip(test, &tree.path("www/slow"));
        })
        .config("server.max-worker = 1")
        .config("server.modules += ( \"mod_cgi\", \"mod_status\" )")
        .config("status.statistics-url = \"/counters\"")
        .config("cgi.assign = ( \".cgi\" => var.dir + \"/www/slow/sh\", \".sh\" => \"/bin/sh\" )")
        .config("$HTTP[\"host\"] == \"a\" { server.max-file-wait = 1 }");
    let slow = slow?;
    let server = server.start();
    for target in ["/run.cgi", "/run.sh"] {
        assert_eq!(server.get(target).text(), "ran\n", "{target}");
    }
    expect_programs(&server, 0);
    Some((server, slow))
}

/// Requests a program that keeps running, and waits one second for it.
fn ask(server: &Server, target: &str) -> Client {
    let mut client = server.client();
    client.send(format!("GET {target}?stay HTTP/1.1\r\nHost: a\r\n\r\n"));
    client
}

#[track_caller]
fn expect_programs(server: &Server, count: usize) {
    let counter = format!("cgi.programs: {count}\n");
    let counters = || server.get("/counters").text();
    assert!(
        eventually(|| counters().contains(&counter)),
        "{}",
        counters()
    );
}

/// Expects that the only worker serves other requests, including those that need a program.
#[track_caller]
fn expect_others_served(server: &Server) {
    for _ in 0..3 {
        assert_eq!(server.get("/").text(), "hello");
        assert_eq!(server.get("/run.sh").text(), "ran\n");
    }
}

#[test]
fn whose_program_hangs_is_told_in_time() {
    let Some((server, slow)) = site("whose_program_hangs_is_told_in_time") else {
        return;
    };
    let processes = server.processes().pids.len();
    let mut connected = server.client();
    assert_eq!(connected.get("/").text(), "hello");
    slow.hang();
    let mut client = ask(&server, "/run.cgi");
    slow.expect_hanging(1);
    expect_others_served(&server);
    // The new process has a copy of this connection, which is closed nevertheless.
    let close = [("Connection", "close")];
    assert_eq!(connected.request("GET", "/", &close).text(), "hello");
    connected.expect_close();
    let answer = client.response();
    assert_eq!(answer.status, 504, "{answer}");
    server.expect_log("server.max-file-wait");
    server.expect_log("www/slow/sh\"");
    slow.release();
    // The program is started after all, and ended.
    expect_programs(&server, 0);
    assert!(eventually(|| server.processes().pids.len() == processes));
    assert_eq!(server.get("/run.cgi").text(), "ran\n");
}

#[test]
fn whose_directory_hangs_is_told_in_time() {
    let Some((server, slow)) = site("whose_directory_hangs_is_told_in_time") else {
        return;
    };
    let processes = server.processes().pids.len();
    // What the server knows of the script is valid for one second.
    assert_eq!(server.get("/slow/bin/run.sh").text(), "ran\n");
    slow.hang();
    let mut client = ask(&server, "/slow/bin/run.sh");
    slow.expect_hanging(1);
    // A starting program closes the descriptors of the server that it inherited, and may wait for that.
    for _ in 0..3 {
        assert_eq!(server.get("/").text(), "hello");
    }
    let answer = client.response();
    assert_eq!(answer.status, 504, "{answer}");
    server.expect_log("server.max-file-wait");
    server.expect_log("www/slow/bin/run.sh\"");
    slow.release();
    expect_programs(&server, 0);
    assert!(eventually(|| server.processes().pids.len() == processes));
    assert_eq!(server.get("/slow/bin/run.sh").text(), "ran\n");
}

#[test]
fn a_program_whose_client_has_left_before_it_is_started_is_ended() {
    let test = "a_program_whose_client_has_left_before_it_is_started_is_ended";
    let Some((server, slow)) = site(test) else {
        return;
    };
    let processes = server.processes().pids.len();
    slow.hang();
    let client = ask(&server, "/run.cgi");
    slow.expect_hanging(1);
    expect_programs(&server, 1);
    client.abort();
    expect_others_served(&server);
    slow.release();
    expect_programs(&server, 0);
    assert!(eventually(|| server.processes().pids.len() == processes));
}

#[test]
fn many_programs_that_hang_leave_room_for_others() {
    let Some((server, slow)) = site("many_programs_that_hang_leave_room_for_others") else {
        return;
    };
    let processes = server.processes().pids.len();
    slow.hang();
    let clients: Vec<Client> = (0..100).map(|_| ask(&server, "/run.cgi")).collect();
    // Each of them is there when its process is.
    slow.expect_hanging(16);
    expect_others_served(&server);
    for mut client in clients {
        assert_eq!(client.response().status, 504);
    }
    // As many jobs as a remote file system may have. Those queued after them have not become programs yet.
    expect_programs(&server, 16);
    expect_others_served(&server);
    slow.release();
    expect_programs(&server, 0);
    assert!(eventually(|| server.processes().pids.len() == processes));
    assert_eq!(server.get("/run.cgi").text(), "ran\n");
}
