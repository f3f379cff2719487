//! Certificates on a file system that does not answer any more.

use std::os::unix::process::ExitStatusExt;

use petrel_tests::{
    Authority, Finished, Operation, PATIENCE, Server, SlowFs, curl, eventually, free_port, petrel,
    run,
};
use rustix::process::{Pid, Signal, kill_process};

/// What a command of petrel's says to the server.
fn command(server: &Server, word: &str) -> Finished {
    let file = server.tree().path("petrel.conf");
    run(
        std::process::Command::new(petrel())
            .arg(word)
            .arg("-f")
            .arg(file),
        PATIENCE,
    )
}

#[test]
fn certificates_that_cannot_be_looked_at_stop_nothing_else() {
    let test = "certificates_that_cannot_be_looked_at_stop_nothing_else";
    let authority = Authority::new();
    let (one, two) = (
        authority.identity("a.example"),
        authority.identity("b.example"),
    );
    let read = |path| std::fs::read(path).expect("a file of the test");
    let port = free_port();
    let mut slow = None;
    let builder = Server::build()
        .file("www/index.html", "hello")
        .file("slow/host.pem", read(&one.certificate))
        .file("slow/host.key", read(&one.key))
        .tree(|tree| slow = SlowFs::mount_or_skip(test, &tree.path("slow")))
        .config(&format!(
            r#"
            server.modules += ( "mod_openssl" )
            ssl.pemfile = var.dir + "/slow/host.pem"
            ssl.privkey = var.dir + "/slow/host.key"
            $SERVER["socket"] == "127.0.0.1:{port}" {{ ssl.engine = "enable" }}"#
        ));
    let Some(slow) = slow else { return };
    let mut server = builder.start();
    // Behind the server, so that a test that fails lets all that hangs go on before it ends the server.
    let slow = slow;
    let ca = authority.file();
    let is_served = |host: &str| {
        let url = format!("https://{host}:{port}/");
        let resolve = format!("{host}:{port}:127.0.0.1");
        let ca = ca.display().to_string();
        let said = curl(&[
            "--cacert",
            &ca,
            "--resolve",
            &resolve,
            "--max-time",
            "20",
            &url,
        ]);
        said.text() == "hello"
    };
    assert!(is_served("a.example"));
    slow.hang_on(&[Operation::Stat, Operation::Lookup]);
    slow.expect_hanging(1);
    // Nothing of this needs the files: commands, and another server process after a crash.
    assert!(command(&server, "status").text().contains("state=running"));
    let server_process = server.processes().busiest();
    let pid = Pid::from_raw(server_process.cast_signed()).expect("a process");
    kill_process(pid, Signal::KILL).expect("it is there");
    server.expect_log("starting another one");
    assert!(eventually(|| is_served("a.example")));
    // When the file system answers again, a change counts.
    slow.release();
    for (name, path) in [("host.pem", &two.certificate), ("host.key", &two.key)] {
        std::fs::write(slow.beneath().join(name), read(path)).expect("written");
    }
    server.expect_log("has changed, and counts for new connections");
    assert!(eventually(|| is_served("b.example")));
    slow.hang_on(&[Operation::Stat, Operation::Lookup]);
    slow.expect_hanging(1);
    let said = command(&server, "stop");
    let ended = server.wait(PATIENCE);
    slow.release();
    assert_eq!(said.text(), "server stopped\n", "{}", said.errors);
    assert_eq!(ended.and_then(|ended| ended.signal()), None);
    assert!(ended.is_some());
}
