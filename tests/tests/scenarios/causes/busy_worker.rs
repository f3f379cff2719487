use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use petrel_tests::{Backend, Speaks, eventually};

use super::{Told, Version, site_with};

const BUSY: &str =
    "print('is busy')\nlocal begin = os.clock()\nwhile os.clock() - begin < 0.6 do end\n";

/// The reply of a backend lies in the kernel while the worker runs a script.
#[test]
fn a_worker_that_is_busy_when_a_reply_comes() {
    let may_reply = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&may_reply);
    let backend = Backend::start(Speaks::Http, move |exchange| {
        exchange.read_body();
        while !told.load(Ordering::SeqCst) {
            exchange.pause(Duration::from_millis(2));
        }
        exchange.say("early");
    });
    for version in Version::BOTH {
        may_reply.store(false, Ordering::SeqCst);
        let server = site_with(&backend, "")
            .file("busy.lua", BUSY)
            .config("server.modules += (\"mod_magnet\")\nlua.max-run-time = 5000")
            .config(
                "$HTTP[\"url\"] =^ \"/busy\" { magnet.attract-raw-url-to = (var.dir + \"/busy.lua\") }",
            )
            .start();
        let mut busy = server.client();
        assert_eq!(busy.get("/a.txt").text(), "a");
        let before = backend.requests().len();
        thread::scope(|scope| {
            scope.spawn(|| version.ask(&server, "/b/early", &[]));
            backend.expect_requests(before + 1);
            busy.send("GET /busy HTTP/1.1\r\nHost: a\r\n\r\n");
            assert!(eventually(|| server
                .tree()
                .text("error.log")
                .contains("is busy")));
            may_reply.store(true, Ordering::SeqCst);
            busy.response();
        });
        Told::about(&server, "/b/early").expect(&server, "lag", "busy.lua ran ");
    }
}
