use std::thread;

use petrel_tests::{Operation, SlowFs};

use super::{PAUSE, Told, Version, site};

#[test]
fn a_directory_that_is_read_slowly() {
    for version in Version::BOTH {
        let mut slow = None;
        let server = site()
            .file("www/slow/a.txt", "a")
            .tree(|tree| slow = SlowFs::mount_or_skip("listing", &tree.path("www/slow")))
            .config("server.modules += (\"mod_dirlisting\")\ndir-listing.activate = \"enable\"")
            .start();
        let Some(slow) = slow else {
            return;
        };
        slow.hang_on(&[Operation::ReadDirectory]);
        thread::scope(|scope| {
            let asked = scope.spawn(|| version.ask(&server, "/slow/", &[]));
            slow.expect_hanging(1);
            thread::sleep(PAUSE);
            slow.release();
            asked.join().expect("it is answered");
        });
        Told::about(&server, "/slow/").expect(&server, "read-file", "/slow (fuse");
    }
}
