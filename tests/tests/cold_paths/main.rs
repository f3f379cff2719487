//! A file system that does not answer makes its own requests wait, and no others.

mod listings;

use petrel_tests::{Server, SlowFs};

/// A server with one worker, on which `/slow/` is a file system that hangs when told to, holding `one.txt`
/// and `two.txt`, and `/hot.txt` is not. What stands in front is to be dropped last.
fn site(test: &str, config: &str) -> Option<(Server, SlowFs)> {
    let server = Server::build()
        .file("www/hot.txt", "hot")
        .file("www/slow/one.txt", "1")
        .file("www/slow/two.txt", "22")
        .config(&format!("server.max-worker = 1\n{config}"))
        .start();
    let slow = SlowFs::mount_or_skip(test, &server.tree().path("www/slow"))?;
    Some((server, slow))
}

/// Others are served while something hangs.
#[track_caller]
fn expect_others_served(server: &Server) {
    for _ in 0..3 {
        assert_eq!(server.get("/hot.txt").text(), "hot");
    }
}
