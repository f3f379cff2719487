use std::thread;

use petrel_tests::{Backend, Operation, SlowFs, Speaks};

use super::{PAUSE, Told, Version, site_with};

/// The backend names a file, which lies on a slow file system.
#[test]
fn a_slow_file_that_a_backend_names() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        let (_, file) = exchange.target().split_once('?').expect("a file");
        let file = file.to_owned();
        exchange.answer(200, &[("X-Sendfile", &file)], "");
    });
    for version in Version::BOTH {
        let mut slow = None;
        let server = site_with(&backend, "\"x-sendfile\" => \"enable\", ")
            .file("www/slow/big.txt", vec![b'x'; 300_000])
            .tree(|tree| slow = SlowFs::mount_or_skip("sent file", &tree.path("www/slow")))
            .start();
        let Some(slow) = slow else {
            return;
        };
        let file = server.tree().path("www/slow/big.txt");
        slow.hang_on(&[Operation::Read]);
        let target = format!("/b/file?{}", file.display());
        thread::scope(|scope| {
            let asked = scope.spawn(|| version.ask(&server, &target, &[]));
            slow.expect_hanging(1);
            thread::sleep(PAUSE);
            slow.release();
            asked.join().expect("it is answered");
        });
        Told::about(&server, "/b/file").expect(&server, "read-file", "/slow (fuse");
    }
}
