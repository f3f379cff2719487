use std::os::unix::fs::symlink;
use std::thread;

use petrel_tests::{Operation, SlowFs};

use super::{PAUSE, Told, Version, site};

/// The path of the file is on another file system than the file.
#[test]
fn a_slow_disk_behind_a_symlink() {
    for version in Version::BOTH {
        let mut slow = None;
        let server = site()
            .file("slow/a.txt", "a")
            .tree(|tree| {
                slow = SlowFs::mount_or_skip("symlink", &tree.path("slow"));
                tree.directory("www");
                symlink(tree.path("slow"), tree.path("www/link")).expect("a symlink");
            })
            .start();
        let Some(slow) = slow else {
            return;
        };
        slow.hang_on(&[Operation::Lookup]);
        thread::scope(|scope| {
            let asked = scope.spawn(|| version.ask(&server, "/link/a.txt", &[]));
            slow.expect_hanging(1);
            thread::sleep(PAUSE);
            slow.release();
            asked.join().expect("it is answered");
        });
        Told::about(&server, "/link/a.txt").expect(&server, "open", "/slow (fuse");
    }
}
