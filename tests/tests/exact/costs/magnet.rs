//! A warm run of a script makes no system call.

use std::time::Instant;

use petrel_tests::{Calls, Server, Tracer};

use crate::alone;

const REQUESTS: u64 = 500;

/// All system calls apart from those that receive and send, and those that the server makes once a second.
fn calls_beside(server: &Server, target: &str) -> Calls {
    let mut client = server.client();
    let mut calls = Calls::default();
    // Repeats until LuaJIT has compiled the script; when that is depends on chance.
    for _ in 0..ROUNDS_MAX {
        for _ in 0..1000 {
            assert_eq!(client.get(target).status, 200);
        }
        let tracer = Tracer::attach(server);
        let begun = Instant::now();
        for _ in 0..REQUESTS {
            client.get(target);
        }
        let seconds = begun.elapsed().as_secs();
        calls = tracer.stop().without_waits();
        // What the worker does once a second may need a page.
        if calls.count("mprotect") <= 2 + seconds {
            calls.0.remove("mprotect");
            break;
        }
    }
    let moved: u64 = TRANSFERS.iter().map(|name| calls.count(name)).sum();
    assert!(moved >= 2 * REQUESTS, "{calls:?}");
    for name in TRANSFERS.iter().chain(OF_SECONDS) {
        calls.0.remove(*name);
    }
    calls
}

/// After this many rounds nothing is left to compile.
const ROUNDS_MAX: u32 = 20;

/// Calls that receive requests and send responses.
const TRANSFERS: &[&str] = &["recvfrom", "read", "sendto", "write", "writev", "sendmsg"];

/// Calls of the scripts' watchdog and of the clock, independent of requests.
const OF_SECONDS: &[&str] = &[
    "clock_nanosleep",
    "clock_gettime",
    "preadv",
    "fstat",
    "newfstatat",
    "statx",
];

#[test]
fn a_warm_script_asks_the_kernel_for_nothing() {
    let _alone = alone();
    let plain = "lighty.header['X-A'] = lighty.r.req_attr['uri.path'] lighty.content = { '123' } return 200";
    let file = "local path = lighty.env['physical.doc-root'] or '/' local s = lighty.stat(DIR .. '/www/a.txt')
        if s.is_file then lighty.content = { { filename = DIR .. '/www/a.txt' } } return 200 end";
    let server = Server::build()
        .file("www/a.txt", "0123456789")
        .file("plain.lua", plain)
        .file("file.lua", "return 404")
        .config("server.modules = (\"mod_indexfile\", \"mod_magnet\", \"mod_staticfile\")")
        .config("mimetype.assign = (\".txt\" => \"text/plain\")")
        .config("$HTTP[\"url\"] =^ \"/plain\" { magnet.attract-raw-url-to = (var.dir + \"/plain.lua\") }")
        .config("$HTTP[\"url\"] =^ \"/file\" { magnet.attract-raw-url-to = (var.dir + \"/file.lua\") }")
        .config("server.max-worker = 1\nserver.max-keep-alive-requests = 65535\nlua.max-run-time = 2000")
        .start();
    let directory = format!("{:?}", server.tree().root().to_string_lossy());
    server
        .tree()
        .write("file.lua", file.replace("DIR", &directory));
    assert!(petrel_tests::eventually(
        || server.get("/file").status == 200
    ));
    for target in ["/plain", "/file"] {
        let rest = calls_beside(&server, target);
        let count: u64 = rest.0.values().sum();
        assert!(count < REQUESTS / 10, "{target}: {rest:?}");
    }
}
