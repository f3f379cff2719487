use std::thread;

use petrel_tests::{Operation, SlowFs};

use super::{PAUSE, Told, Version, site};

/// The only disk thread is busy on a slow file system.
#[test]
fn no_disk_thread_is_free() {
    for version in Version::BOTH {
        let (mut slow, mut other) = (None, None);
        let server = site()
            .file("www/slow/a.txt", "a")
            .file("www/other/b.txt", "b")
            .tree(|tree| {
                slow = SlowFs::mount_or_skip("disk threads", &tree.path("www/slow"));
                other = SlowFs::mount_or_skip("disk threads", &tree.path("www/other"));
            })
            .config("server.max-stat-threads = 1")
            .start();
        let (Some(slow), Some(_other)) = (slow, other) else {
            return;
        };
        slow.hang_on(&[Operation::Lookup]);
        let mut first = server.client();
        first.send("GET /slow/a.txt HTTP/1.1\r\nHost: a\r\n\r\n");
        slow.expect_hanging(1);
        thread::scope(|scope| {
            let second = scope.spawn(|| version.ask(&server, "/other/b.txt", &[]));
            // The client has to start first.
            thread::sleep(4 * PAUSE);
            slow.release();
            second.join().expect("it is answered");
        });
        first.response();
        Told::about(&server, "/other/b.txt").expect(
            &server,
            "disk-queue",
            "no disk thread was free for ",
        );
    }
}
