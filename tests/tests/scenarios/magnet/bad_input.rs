//! Scripts that misbehave: each gets its status and one line in the log, and the next request is served
//! normally.

use std::time::{Duration, Instant};

use petrel_tests::{SOON, Server, eventually};

use crate::magnet::{ANSWER, URL, with_hasty_scripts, with_scripts};

/// Requests `/bad` and then, on the same connection if it is still open, the script beside it.
#[track_caller]
fn expect_500(server: &Server, says: &[&str]) {
    let response = server.get("/bad");
    assert_eq!(response.status, 500, "{response}");
    assert!(response.text().contains("<h1>500 "), "{response}");
    assert!(!response.text().contains("lua"), "{response}");
    for text in says {
        server.expect_log(text);
    }
    for _ in 0..3 {
        assert_eq!(server.get("/good").text(), "good");
    }
}

const GOOD: &str = "lighty.content = { 'good' } return 200";

fn server(script: &str) -> Server {
    with_scripts(&[("bad", URL, script), ("good", URL, GOOD)])
        .config("server.max-worker = 1")
        .start()
}

/// A server that stops scripts soon.
fn hasty_server(script: &str) -> Server {
    with_hasty_scripts(&[("bad", URL, script), ("good", URL, GOOD)])
        .config("server.max-worker = 1\nlua.max-run-time = 10")
        .start()
}

#[test]
fn an_endless_loop_is_stopped_and_named() {
    for script in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local f f = function() return f() end f()",
        "local t = setmetatable({}, { __index = function(t, k) while true do end end }) return t.x",
    ] {
        let server = hasty_server(script);
        let begin = Instant::now();
        expect_500(
            &server,
            &["(lua) ", "bad.lua: stopped, it ran for more than 10 ms"],
        );
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    }
}

#[test]
fn others_are_served_while_loops_are_stopped() {
    let server = hasty_server("while true do end");
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    assert_eq!(server.get("/bad").status, 500);
                }
            });
        }
        for _ in 0..50 {
            assert_eq!(server.get("/a.txt").status, 200);
        }
    });
    // Twenty loops of 10 ms each, on a machine that may be busy.
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

#[test]
fn recursion_has_an_end() {
    expect_500(
        &server("local function f() return 1 + f() end\nf()"),
        &["bad.lua:1: stack overflow"],
    );
}

#[test]
fn a_string_of_a_gibibyte_is_not_made() {
    for script in [
        "lighty.content = { string.rep('x', 1024 * 1024 * 1024) } return 200",
        "local s = 'x' while true do s = s .. s end",
        "local t = {} for i = 1, 1e9 do t[i] = 'x' .. i end",
    ] {
        expect_500(&server(script), &["(lua) ", "bad.lua"]);
    }
}

#[test]
fn an_error_in_an_error_handler_is_an_error() {
    let script = "local ok, message = xpcall(function() error('one') end, function() error('two') end)\n\
                  error(tostring(ok) .. tostring(message))";
    expect_500(&server(script), &["bad.lua:2: false"]);
}

#[test]
fn an_error_is_told_with_file_line_and_stack() {
    let script = "local function deeper()\n  error('boom')\nend\ndeeper()\nreturn 200";
    let server = server(script);
    expect_500(
        &server,
        &[
            "bad.lua:2: boom",
            "stack=",
            "bad.lua:4:",
            "request=\"GET /bad\"",
        ],
    );
    let lines = server.log();
    let lines: Vec<_> = lines.lines().filter(|line| line.contains("boom")).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn a_script_that_yields_by_itself_is_an_error() {
    expect_500(
        &server("coroutine.yield(1)"),
        &["bad.lua", "outside a coroutine"],
    );
}

#[test]
fn a_wait_where_none_can_be_is_an_error() {
    // A script cannot wait in a finaliser or in a metamethod that the C library calls, but elsewhere it can.
    let script = "local t = setmetatable({}, { __tostring = function() petrel.sleep(0) return 'x' end })\n\
                  lighty.content = { tostring(t) } return 200";
    let server = server(script);
    let response = server.get("/bad");
    let is_served = response.status == 200 && response.text() == "x";
    assert!(is_served || response.status == 500, "{response}");
    assert_eq!(server.get("/good").text(), "good");
}

#[test]
fn a_binary_chunk_is_refused() {
    let server = server("\x1bLJ\x02\x02");
    expect_500(&server, &["bad.lua: binary chunks are not accepted"]);
}

#[test]
fn what_later_versions_of_lua_added_is_named() {
    expect_500(&server("local x <const> = 1\nreturn 200"), &["bad.lua:1:"]);
    expect_500(&server("return 7 // 2"), &["bad.lua:1:"]);
}

#[test]
fn a_script_that_is_not_there_is_500_until_it_is() {
    let server = server("return 200");
    server.tree().remove("bad.lua");
    let gone = || server.get("/bad").status == 500;
    assert!(eventually(gone));
    server.expect_log("bad.lua: there is no such script");
    server
        .tree()
        .write("bad.lua", "lighty.content = { 'back' } return 200");
    assert!(eventually(|| server.get("/bad").text() == "back"));
}

#[test]
fn a_script_that_is_half_written_is_500_until_it_is_whole() {
    let server = server("lighty.content = { 'whole' } return 200");
    assert_eq!(server.get("/bad").text(), "whole");
    server.tree().write("bad.lua", "lighty.content = { 'whole");
    assert!(eventually(|| server.get("/bad").status == 500));
    server.expect_log("bad.lua:1: unfinished string");
    server
        .tree()
        .write("bad.lua", "lighty.content = { 'other' } return 200");
    assert!(eventually(|| server.get("/bad").text() == "other"));
}

#[test]
fn a_script_that_is_deleted_while_it_runs_runs_to_its_end() {
    let server = server("petrel.sleep(3) lighty.content = { 'the old one' } return 200");
    let mut client = server.client();
    client.send("GET /bad HTTP/1.1\r\nHost: h\r\n\r\n");
    std::thread::sleep(Duration::from_secs(1));
    server
        .tree()
        .write("bad.lua", "lighty.content = { 'the new one' } return 200");
    assert!(eventually(|| server.get("/bad").text() == "the new one"));
    server.tree().remove("bad.lua");
    assert_eq!(client.response().text(), "the old one");
}

#[test]
fn content_that_is_not_there_is_told() {
    let server = server("lighty.content = { { filename = '/nonexistent' } } return 200");
    assert_eq!(server.get("/bad").status, 404);
    server.expect_log("\"/nonexistent\", which the script wants to send, is not there");
}

#[test]
fn errors_in_the_last_stage_are_500() {
    let server = with_scripts(&[("bad", ANSWER, "error('late')")])
        .config("server.max-worker = 1")
        .file("www/bad", "a file")
        .start();
    let response = server.get("/bad");
    assert_eq!(response.status, 500, "{response}");
    assert!(response.text().contains("<h1>500 "), "{response}");
    server.expect_log("bad.lua:1: late");
    assert_eq!(server.get("/a.txt").status, 200);
}

#[test]
fn no_script_splits_an_answer_or_the_log() {
    let script = "lighty.header['X-A'] = lighty.c.urldec(lighty.env['uri.query']) .. '\\r\\nX-Evil: 1'\n\
                  print('one\\n2026-01-01 00:00:00: two') lighty.content = { 'x' } return 200";
    let server = server(script);
    let response = server.get("/bad?a%250d%250aX-Evil:%202");
    assert_eq!(response.field("X-Evil"), None, "{response}");
    assert_eq!(response.field("X-A"), Some("a%0d%0aX-Evil: 2  X-Evil: 1"));
    server.expect_log("(lua-print) one");
    assert!(
        !server.log().lines().any(|line| line.ends_with(": two")),
        "{}",
        server.log()
    );
}

#[test]
fn clients_that_leave_while_a_script_waits_are_forgotten() {
    let server = server("petrel.sleep(30) return 200");
    for _ in 0..20 {
        let mut client = server.client();
        client.send("GET /bad HTTP/1.1\r\nHost: h\r\n\r\n");
        client.abort();
    }
    assert_eq!(server.get("/good").text(), "good");
}
