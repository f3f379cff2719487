use std::thread;

use petrel_tests::{Operation, SlowFs};

use super::{PAUSE, Told, Version, site};

#[test]
fn a_slow_look_up() {
    for version in Version::BOTH {
        let mut slow = None;
        let server = site()
            .file("www/slow/a.txt", "a")
            .tree(|tree| slow = SlowFs::mount_or_skip("look-up", &tree.path("www/slow")))
            .start();
        let Some(slow) = slow else {
            return;
        };
        slow.hang_on(&[Operation::Lookup]);
        thread::scope(|scope| {
            let asked = scope.spawn(|| version.ask(&server, "/slow/a.txt", &[]));
            slow.expect_hanging(1);
            thread::sleep(PAUSE);
            slow.release();
            asked.join().expect("it is answered");
        });
        Told::about(&server, "/slow/a.txt").expect(&server, "open", "/slow (fuse");
    }
}
