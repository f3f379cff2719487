use std::thread;

use petrel_tests::{Operation, SlowFs};

use super::{PAUSE, Told, Version, site};

/// A script reads a file, and the file system is slow.
#[test]
fn a_file_that_a_script_reads() {
    for version in Version::BOTH {
        let mut slow = None;
        let server = site()
            .file("slow/data.txt", "data")
            .file(
                "reads.lua",
                "local root = lighty.env[\"physical.doc-root\"]\n\
                 local file = io.open(root .. \"/../slow/data.txt\")\n\
                 lighty.content = { file:read(\"*a\") }\nfile:close()\nreturn 200\n",
            )
            .tree(|tree| slow = SlowFs::mount_or_skip("file of script", &tree.path("slow")))
            .config("server.modules += (\"mod_magnet\")")
            .config("magnet.attract-physical-path-to = (var.dir + \"/reads.lua\")")
            .start();
        let Some(slow) = slow else {
            return;
        };
        slow.hang_on(&[Operation::Read]);
        thread::scope(|scope| {
            let asked = scope.spawn(|| version.ask(&server, "/a.txt", &[]));
            slow.expect_hanging(1);
            thread::sleep(PAUSE);
            slow.release();
            asked.join().expect("it is answered");
        });
        let told = Told::about(&server, "/a.txt");
        told.expect(&server, "lua", "/reads.lua waited: ")
            .note("lua", "/slow (fuse");
    }
}
