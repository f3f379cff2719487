//! A file system that does not answer makes its own requests wait, and no others.

mod kept_files;
mod listings;
mod scripts;

use petrel_tests::{Server, SlowFs};

/// A server with one worker, on which `/slow/` is a file system that hangs when told to, holding `one.txt`
/// and `two.txt`, and `/hot.txt` is not. The server is to be dropped last.
fn site(test: &str, config: &str) -> Option<(Server, SlowFs)> {
    let mut slow = None;
    let server = Server::build()
        .file("www/hot.txt", "hot")
        .file("www/slow/one.txt", "1")
        .file("www/slow/two.txt", "22")
        .tree(|tree| slow = SlowFs::mount_or_skip(test, &tree.path("www/slow")))
        .config(&format!("server.max-worker = 1\n{config}"));
    let slow = slow?;
    let server = server.start();
    Some((server, slow))
}

/// Others are served while something hangs.
#[track_caller]
fn expect_others_served(server: &Server) {
    for _ in 0..3 {
        assert_eq!(server.get("/hot.txt").text(), "hot");
    }
}
