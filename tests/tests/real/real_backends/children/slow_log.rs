//! What php-fpm's slow log says of a slow request.

use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use petrel_tests::{Tree, skip};

use crate::real_backends::children::{FpmSocket, can_run_fpm, site_with};

/// php-fpm looks for slow requests about three times a second, and Petrel looks at the log once a second. So the request
/// takes some seconds, and longer if both were too late on a busy machine.
#[test]
fn a_note_says_where_a_slow_script_was() {
    let test = "a_note_says_where_a_slow_script_was";
    if !can_run_fpm(test) {
        return;
    }
    let tree = Tree::new();
    tree.write("slow.log", "").mode("slow.log", 0o640);
    let log = tree.path("slow.log");
    let status = tree.path("status.sock");
    let socket = FpmSocket::in_tree(&tree);
    let fpm = socket.start_fpm(&format!(
        "{}\npm.status_path = /fpm-status\npm.status_listen = {}\n\
         request_slowlog_timeout = 1s\nslowlog = {}",
        super::static_pool(2),
        status.display(),
        log.display()
    ));
    let mode = log.metadata().expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o640, "php-fpm leaves the file as it is");
    let options = format!(
        ", \"status-path\" => \"/fpm-status\", \"status-address\" => \"unix:{}\", \"slowlog\" => \"{}\"",
        status.display(),
        log.display()
    );
    let site = site_with(&socket, 1, &options);
    let mut waits = String::new();
    for (number, seconds) in [4, 8, 16, 32].into_iter().enumerate() {
        let target = format!("/slow.php?until=end{number}");
        let mut client = site.ask(&target);
        thread::sleep(Duration::from_secs(seconds));
        site.end(&format!("end{number}"));
        let pid = client.response().text();
        waits.clone_from(&site.logged(&target, 1)[0].waits);
        let found = format!(" of child {pid}: ");
        if waits.contains(&format!("child {pid} ran ")) && waits.contains(&found) {
            break;
        }
    }
    let written = tree.text("slow.log");
    if written.is_empty() && fpm.tree.text("fpm.log").contains("ptrace") {
        return skip(test, "php-fpm may not use ptrace");
    }
    // The innermost call is that of usleep or file_exists.
    for part in [
        "backend-first-byte",
        "worked on the request: child ",
        ", php-fpm's slow log at ",
        "() at ",
        "wait_for() at ",
        "/slow.php:1",
    ] {
        assert!(waits.contains(part), "{part} in {waits}\n{written}");
    }
}
