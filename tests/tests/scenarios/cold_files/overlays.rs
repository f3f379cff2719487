//! Overlayfs over a file system that hangs.

use petrel_tests::{Server, SlowFs, skip};

use super::{Mounted, asking, expect_others_served, impatient};

#[test]
fn an_overlay_hangs_as_the_file_system_below_it_does() {
    let test = "an_overlay_hangs_as_the_file_system_below_it_does";
    let server = Server::build()
        .file("www/hot.txt", "hot")
        .file("below/one.txt", "1")
        .file("below/d/two.txt", "2")
        .tree(|tree| {
            tree.directory("www/merged");
        })
        .config(&format!("server.max-worker = 1\n{}", impatient(1)))
        .start();
    let tree = server.tree();
    let Some(slow) = SlowFs::mount_or_skip(test, &tree.path("below")) else {
        return;
    };
    // The lower one of the two layers is a directory of this machine.
    tree.directory("other");
    let layers = format!(
        "lowerdir={}:{}",
        tree.path("below").display(),
        tree.path("other").display()
    );
    let merged = match Mounted::new("overlay", tree.path("www/merged"), &layers) {
        Ok(merged) => merged,
        Err(errno) => return skip(test, &format!("no overlayfs can be mounted: {errno}")),
    };
    slow.keep_names();
    for name in ["one.txt", "d/two.txt"] {
        let path = tree.path("www/merged").join(name);
        std::fs::metadata(path).expect("it is there");
    }
    // The kernel knows the path now, but still asks the lower layer when a file is opened.
    slow.hang();
    let mut clients = [
        asking(&server, "/merged/one.txt"),
        asking(&server, "/merged/d/two.txt"),
    ];
    slow.expect_hanging(1);
    for _ in 0..3 {
        expect_others_served(&server);
    }
    for client in &mut clients {
        assert_eq!(client.response().status, 504);
    }
    slow.release();
    assert_eq!(server.get("/merged/one.txt").text(), "1");
    drop(merged);
}
