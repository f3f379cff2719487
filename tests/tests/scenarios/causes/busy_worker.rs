use std::thread;

use petrel_tests::{Backend, Speaks};

use super::{PAUSE, Told, Version, site_with};

/// The reply of a backend lies in the kernel while the worker runs a script.
#[test]
fn a_worker_that_is_busy_when_a_reply_comes() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.read_body();
        exchange.pause(PAUSE / 10);
        exchange.say("early");
    });
    for version in Version::BOTH {
        let server = site_with(&backend, "")
            .file(
                "busy.lua",
                "local begin = os.clock()\nwhile os.clock() - begin < 0.4 do end\n",
            )
            .config("server.modules += (\"mod_magnet\")\nlua.max-run-time = 5000")
            .config("$HTTP[\"url\"] =^ \"/busy\" { magnet.attract-raw-url-to = (var.dir + \"/busy.lua\") }")
            .start();
        let mut busy = server.client();
        assert_eq!(busy.get("/a.txt").text(), "a");
        let before = backend.requests().len();
        thread::scope(|scope| {
            scope.spawn(|| version.ask(&server, "/b/early", &[]));
            backend.expect_requests(before + 1);
            busy.send("GET /busy HTTP/1.1\r\nHost: a\r\n\r\n");
            busy.response();
        });
        Told::about(&server, "/b/early").expect(&server, "lag", "busy.lua ran ");
    }
}
