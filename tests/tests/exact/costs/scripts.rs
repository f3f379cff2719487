//! The system calls of a warm request that runs a script: one to receive it, one to send the response.

use std::time::Instant;

use petrel_tests::scripts::{ask, says, site};
use petrel_tests::{Calls, Server, Tracer, can_run};

use crate::alone;

const REQUESTS: u64 = 500;

/// The server's system calls during `REQUESTS` requests on a persistent connection, apart from waits and what
/// it does once a second.
fn count(server: &Server, target: &str, body: &str) -> Calls {
    let mut client = server.client();
    let mut ask_often = |times: u64| {
        for _ in 0..times {
            let response = client.get(target);
            assert_eq!((response.status, response.text().as_str()), (200, body));
        }
    };
    // LuaJIT compiles what is used often until nothing is left to compile. When that is depends on chance.
    for _ in 0..ROUNDS_MAX {
        ask_often(1000);
        let tracer = Tracer::attach(server);
        let begun = Instant::now();
        ask_often(REQUESTS);
        let seconds = begun.elapsed().as_secs();
        let mut calls = tracer.stop().without_waits();
        let memory: u64 = COMPILING.iter().map(|name| calls.count(name)).sum();
        // What the worker does once a second may need a page.
        if memory <= 2 + seconds {
            calls
                .0
                .retain(|name, _| !COMPILING.contains(&name.as_str()));
            return calls;
        }
    }
    panic!("{target}: the compiler is not done after {ROUNDS_MAX} rounds");
}

/// After this many rounds nothing is left to compile.
const ROUNDS_MAX: u32 = 20;

/// The calls of LuaJIT's compiler.
const COMPILING: &[&str] = &["mprotect", "mmap", "munmap"];

#[track_caller]
fn expect_one_receive_and_one_send(server: &Server, target: &str, body: &str) {
    let calls = count(server, target, body);
    let mut rest = calls.clone();
    for names in [["recvfrom", "read"], ["sendto", "writev"]] {
        let sum: u64 = names.iter().map(|name| calls.count(name)).sum();
        assert_eq!(sum, REQUESTS, "{target} {names:?}: {calls:?}");
        rest.0.retain(|name, _| !names.contains(&name.as_str()));
    }
    // One look at files per second, and the watchdog, which looks every millisecond while scripts run.
    rest.0
        .retain(|name, _| !["fstat", "newfstatat", "statx"].contains(&name.as_str()));
    let sleeps = ["clock_nanosleep", "futex"].map(|name| rest.0.remove(name).unwrap_or(0));
    println!("{target}: {sleeps:?} sleeps of the watchdog");
    // It sends a signal and reads a clock if it sees the same run twice, which strace makes likely.
    for name in [
        "tgkill",
        "getpid",
        "gettid",
        "rt_sigreturn",
        "clock_gettime",
        "preadv",
    ] {
        rest.0.remove(name);
    }
    let others: u64 = rest.0.values().sum();
    assert!(
        others <= 8,
        "{target}: nothing else should be called: {rest:?}"
    );
}

const HEADERS: &str = "\
    local r = lighty.r\n\
    local stat = lighty.c.stat(petrel.dict(\"d\"):get(\"root\") .. \"/index.html\")\n\
    r.resp_header[\"Content-Type\"] = \"text/plain\"\n\
    r.resp_header[\"X-Host\"] = r.req_header[\"Host\"]\n\
    lighty.header[\"X-Method\"] = r.req_attr[\"request.method\"]\n\
    lighty.content = { r.req_attr[\"uri.path\"], \" \", tostring(stat and stat.is_file) }\n\
    return 200\n";

/// It takes so long because each of five scripts runs a thousand times or more before strace counts its calls.
#[test]
fn a_warm_script_makes_one_receive_and_one_send() {
    let _alone = alone();
    let server = site(
        &[],
        &[
            ("plain", "lighty.content = { 123 } return 200"),
            ("headers", HEADERS),
            ("passes", "return nil"),
            ("root", &says("petrel.dict(\"d\"):set(\"root\", lighty.r.req_attr[\"uri.query\"]) return 1")),
            (
                "dict",
                "local d = petrel.dict(\"d\") d:set(\"a\", 1) d:incr(\"n\", 1, 0)\n\
                 lighty.content = { tostring(d:get(\"a\")) } return 200",
            ),
            (
                "later",
                "local t = {} for i = 1, 100 do t[i] = i end\n\
                 lighty.content = { petrel.json.encode(t):sub(1, 5), petrel.hash.sha256(\"a\"):sub(1, 4) } return 200",
            ),
        ],
    )
    .file("www/passes", "passed")
    .config("server.max-worker = 1\nserver.max-keep-alive-requests = 65535")
    .start();
    ask(
        &server,
        &format!("/root?{}", server.tree().path("www").display()),
    );
    for (target, body) in [
        ("/plain", "123"),
        ("/headers", "/headers true"),
        ("/passes", "passed"),
        ("/dict", "1"),
        ("/later", "[1,2,ca97"),
    ] {
        expect_one_receive_and_one_send(&server, target, body);
    }
}

#[test]
fn scripts_in_every_hook_make_no_further_call() {
    let _alone = alone();
    let server = site(&[], &[("a.txt", "return nil")])
        .file("www/a.txt", "text")
        .file("lua/path.lua", "lighty.r.req_env[\"A\"] = \"b\" return nil")
        .file(
            "lua/answer.lua",
            "lighty.r.resp_header[\"X-Seen\"] = lighty.r.req_env[\"A\"] return nil",
        )
        .config(
            "magnet.attract-physical-path-to = (var.dir + \"/lua/path.lua\")\n\
             magnet.attract-response-start-to = (var.dir + \"/lua/answer.lua\")\n\
             server.max-worker = 1\nserver.max-keep-alive-requests = 65535",
        )
        .start();
    assert_eq!(server.get("/a.txt").field("X-Seen"), Some("b"));
    expect_one_receive_and_one_send(&server, "/a.txt", "text");
}

#[test]
fn a_warm_cml_page_makes_one_receive_and_one_send() {
    let _alone = alone();
    if !can_run(
        "a_warm_cml_page_makes_one_receive_and_one_send",
        &["strace"],
    ) {
        return;
    }
    let server = site(&["mod_cml"], &[])
        .file("www/page/a.html", "one ")
        .file("www/page/b.html", "two")
        .file(
            "www/page/index.cml",
            "output_contenttype = \"text/plain\"\noutput_include = { \"a.html\", \"b.html\" }\nreturn CACHE_HIT\n",
        )
        .config("index-file.names = (\"index.cml\")\ncml.extension = \".cml\"")
        .config("server.max-worker = 1\nserver.max-keep-alive-requests = 65535")
        .start();
    expect_one_receive_and_one_send(&server, "/page/", "one two");
}
