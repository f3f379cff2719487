//! Scripts that wait: many at the same time, and clients that do not wait for them.

use std::time::{Duration, Instant};

use petrel_tests::{SOON, raise_descriptor_limit};

use crate::lua_api::{ask, expect_flat_memory, says, site};

const SLEEPERS: usize = 1000;

const REQUEST: &str = "GET /sleeps HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn a_thousand_scripts_sleep_while_files_are_answered() {
    raise_descriptor_limit();
    let sleeps = says("local t = petrel.now() petrel.sleep(4) return petrel.now() - t >= 3.99");
    let server = site(&[], &[("sleeps", &sleeps)])
        .config("server.max-worker = 1\nserver.max-fds = 8192\nserver.max-connections = 4096\nserver.max-keep-alive-requests = 65535")
        .start();
    ask(&server, "/index.html");
    let mut clients: Vec<_> = (0..SLEEPERS).map(|_| server.client()).collect();
    let begin = Instant::now();
    for client in &mut clients {
        client.send(REQUEST);
    }
    // A worker that blocked in a waiting script would answer one file, after four seconds.
    let mut files = 0;
    let mut kept = server.client();
    while begin.elapsed() < Duration::from_millis(3900) {
        assert_eq!(kept.get("/").status, 200);
        files += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    println!("{files} files while {SLEEPERS} scripts slept");
    assert!(files > 1, "{files}");
    for client in &mut clients {
        assert_eq!(client.response().text(), "true");
    }
    let took = begin.elapsed();
    println!("{SLEEPERS} sleeps of 4 s took {took:?}");
    assert!(took < SOON, "{took:?}");
}

#[test]
fn waiting_works_wherever_a_script_is() {
    let server = site(
        &[],
        &[(
            "everywhere",
            &says(
                "local log = {}\n\
                 local function wait(x) petrel.sleep(0) log[#log + 1] = x return x end\n\
                 pcall(wait, 1)\n\
                 coroutine.wrap(function() wait(2) coroutine.yield() end)()\n\
                 local t = { 3, 1, 2 }\n\
                 table.sort(t, function(a, b) petrel.sleep(0) return a < b end)\n\
                 local s = (\"ab\"):gsub(\".\", function(c) petrel.sleep(0) return c:upper() end)\n\
                 local _, handled = xpcall(function() wait(3) error(\"x\", 0) end, function(m) wait(4) return m .. \"y\" end)\n\
                 local m = setmetatable({}, { __index = function(_, k) wait(5) return k end })\n\
                 local indexed = m.z\n\
                 for _, x in (function() return function(_, n) petrel.sleep(0) if not n then return 1, 6 end end end)() do wait(x) end\n\
                 local loaded = load(\"petrel.sleep(0) return 7\")()\n\
                 return table.concat(log, \",\"), table.concat(t, \"\"), s, handled, indexed, loaded",
            ),
        )],
    )
    .start();
    for _ in 0..3 {
        assert_eq!(ask(&server, "/everywhere"), "1,2,3,4,5,6 123 AB xy z 7");
    }
}

#[test]
fn clients_that_leave_while_their_script_waits_leave_nothing() {
    let slow = says(
        "local t = {} for i = 1, 100 do t[i] = (\"x\"):rep(100) .. i end petrel.sleep(60) return #t",
    );
    let inner = says("return petrel.subrequest(\"/slow\").body");
    let server = site(&[], &[("slow", &slow), ("inner", &inner)])
        .config("server.max-worker = 1")
        .start();
    ask(&server, "/index.html");
    let round = || {
        for target in ["/slow", "/inner"] {
            let mut clients: Vec<_> = (0..100).map(|_| server.client()).collect();
            for client in &mut clients {
                client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
            }
            std::thread::sleep(Duration::from_millis(50));
            // A plain close would only mean that the clients send nothing more, but still want their
            // responses.
            clients.into_iter().for_each(petrel_tests::Client::abort);
        }
        ask(&server, "/index.html");
    };
    round();
    let before = server.holdings();
    round();
    server.expect_holdings(&before);
    expect_flat_memory(&server, 12, 512 << 10, round);
    server.expect_holdings(&before);
}
