//! File systems that come and go below the document root of a running server.

use petrel_tests::{Server, eventually, skip};
use rustix::mount::{UnmountFlags, unmount};

use super::Mounted;

/// A server that has looked into `www/disk`, and a file system that was mounted there afterwards, with one file.
fn with_disk(test: &str) -> Option<(Server, Mounted)> {
    let server = Server::build().start();
    server.tree().directory("www/disk");
    for _ in 0..4 {
        assert_eq!(server.get("/disk/a.txt").status, 404);
    }
    match Mounted::new("tmpfs", server.tree().path("www/disk"), "size=1m") {
        Ok(disk) => {
            server.tree().write("www/disk/a.txt", "on the disk");
            Some((server, disk))
        }
        Err(error) => {
            skip(test, &format!("mount: {error}"));
            None
        }
    }
}

#[track_caller]
fn expect_served(server: &Server, status: u16) {
    assert!(eventually(|| server.get("/disk/a.txt").status == status));
    // Each worker has a cache of its own.
    assert!(eventually(
        || (0..8).all(|_| server.get("/disk/a.txt").status == status)
    ));
}

/// It takes so long because the server lets go of a file after three to six seconds without a request.
#[test]
fn a_disk_can_be_mounted_and_unmounted_while_the_server_runs() {
    let test = "a_disk_can_be_mounted_and_unmounted_while_the_server_runs";
    let Some((server, disk)) = with_disk(test) else {
        return;
    };
    expect_served(&server, 200);
    // The kernel refuses this while a file is open.
    assert!(eventually(
        || unmount(&disk.0, UnmountFlags::empty()).is_ok()
    ));
    expect_served(&server, 404);
}

#[test]
fn a_file_of_a_disk_that_was_detached_is_not_served() {
    let test = "a_file_of_a_disk_that_was_detached_is_not_served";
    let Some((server, disk)) = with_disk(test) else {
        return;
    };
    expect_served(&server, 200);
    drop(disk);
    expect_served(&server, 404);
}
