use std::thread;

use petrel_tests::{Operation, SlowFs};

use super::{PAUSE, Told, Version, site};

/// A slow file system is asked for a name that it does not have.
#[test]
fn a_missing_name_on_a_slow_file_system() {
    for version in Version::BOTH {
        let mut slow = None;
        let server = site()
            .file("www/slow/a.txt", "a")
            .tree(|tree| slow = SlowFs::mount_or_skip("missing name", &tree.path("www/slow")))
            .start();
        let Some(slow) = slow else {
            return;
        };
        slow.hang_on(&[Operation::Lookup]);
        thread::scope(|scope| {
            let asked = scope.spawn(|| version.ask(&server, "/slow/none.txt", &[]));
            slow.expect_hanging(1);
            thread::sleep(PAUSE);
            slow.release();
            asked.join().expect("it is answered");
        });
        Told::about(&server, "/slow/none.txt")
            .expect(&server, "open", "/slow (fuse")
            .acquits("lag");
    }
}
