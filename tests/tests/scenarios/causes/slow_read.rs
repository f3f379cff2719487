use std::thread;

use petrel_tests::{Operation, SlowFs};

use super::{PAUSE, Told, Version, site};

#[test]
fn a_slow_read() {
    for version in Version::BOTH {
        let mut slow = None;
        let server = site()
            .file("www/slow/big.txt", vec![b'x'; 300_000])
            .tree(|tree| slow = SlowFs::mount_or_skip("read", &tree.path("www/slow")))
            .start();
        let Some(slow) = slow else {
            return;
        };
        slow.hang_on(&[Operation::Read]);
        thread::scope(|scope| {
            let asked = scope.spawn(|| version.ask(&server, "/slow/big.txt", &[]));
            slow.expect_hanging(1);
            thread::sleep(PAUSE);
            slow.release();
            asked.join().expect("it is answered");
        });
        Told::about(&server, "/slow/big.txt").expect(&server, "read-file", "/slow (fuse");
    }
}
