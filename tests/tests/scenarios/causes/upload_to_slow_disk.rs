use std::thread;

use petrel_tests::{Backend, Operation, SlowFs, Speaks};

use super::{PAUSE, Told, Version, site_with};

/// A request body is kept in a file until it is complete, and the disk takes it slowly.
#[test]
fn an_upload_that_the_disk_takes_slowly() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.read_body();
        exchange.say("stored");
    });
    for version in Version::BOTH {
        let mut slow = None;
        let server = site_with(&backend, "")
            .tree(|tree| {
                tree.directory("upload");
                tree.write("body", vec![b'x'; 2 << 20]);
                slow = SlowFs::mount_or_skip("upload", &tree.path("upload"));
            })
            .config("server.upload-dirs = (var.dir + \"/upload\")")
            .start();
        let Some(slow) = slow else {
            return;
        };
        slow.hang_on(&[Operation::Write]);
        let body = format!("@{}", server.tree().path("body").display());
        thread::scope(|scope| {
            let asked = scope.spawn(|| version.ask(&server, "/b/up", &["--data-binary", &body]));
            slow.expect_hanging(1);
            thread::sleep(PAUSE);
            slow.release();
            asked.join().expect("it is answered");
        });
        Told::about(&server, "/b/up").expect(&server, "request-body", "a temporary file in ");
    }
}
