//! `petrel.stream`: responses that scripts write piece by piece.

use std::time::Duration;

use petrel_tests::{ClientError, eventually};

use crate::lua_api::{ask, expect_lua_lines, lua_lines, memory, says, site, site_with_budgets};

const MIB: usize = 1 << 20;

const ENDLESS: &str = "\
    local piece = (\"x\"):rep(65536)\n\
    petrel.stream(function(write)\n\
     local d = petrel.dict(\"streams\")\n\
     while true do\n write(piece)\n d:set(\"at\", petrel.now())\n d:incr(\"pieces\", 1, 0)\n end\n\
    end)\nreturn 200";

#[test]
fn a_slow_reader_costs_no_memory_and_its_end_ends_the_script() {
    let server = site(
        &[],
        &[
            ("endless", ENDLESS),
            (
                "pieces",
                &says("return petrel.dict(\"streams\"):get(\"pieces\") or 0"),
            ),
        ],
    )
    .config("server.max-worker = 1")
    .start();
    let pieces = || ask(&server, "/pieces").parse::<u64>().expect("a number");
    assert_eq!(pieces(), 0);
    server.client().request("HEAD", "/endless", &[]);
    let holdings = server.holdings();
    let before = memory(&server);
    let mut clients: Vec<_> = (0..4)
        .map(|_| server.client().with_receive_buffer(64 << 10))
        .collect();
    for client in &mut clients {
        client.send("GET /endless HTTP/1.1\r\nHost: a\r\n\r\n");
        client.read_bytes(100);
    }
    // The clients do not read, so after a while nothing more is written.
    let mut first = pieces();
    let is_still = || {
        std::thread::sleep(Duration::from_millis(500));
        first == std::mem::replace(&mut first, pieces())
    };
    assert!(eventually(is_still), "{first}");
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes");
    // A client that reads gets more than what was already in the kernel's buffers, which hold megabytes.
    for client in &mut clients {
        assert_eq!(client.read_bytes(16 * MIB).len(), 16 * MIB);
    }
    assert!(pieces() > first + 200);
    drop(clients);
    server.expect_holdings(&holdings);
    let last = pieces();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(pieces(), last);
    assert!(lua_lines(&server).is_empty(), "{:?}", lua_lines(&server));
}

#[test]
fn pieces_arrive_when_they_are_written() {
    let server = site(
        &[],
        &[
            (
                "events",
                "lighty.header[\"Content-Type\"] = \"text/event-stream\"\n\
             petrel.stream(function(write)\n local d = petrel.dict(\"streams\")\n\
             for i = 1, 3 do write(\"data: \" .. i .. \"\\n\\n\")\n\
             while (d:get(\"seen\") or 0) < i do petrel.sleep(0.01) end end\n end)\n\
             return 200",
            ),
            (
                "seen",
                &says("return petrel.dict(\"streams\"):incr(\"seen\", 1, 0)"),
            ),
        ],
    )
    .start();
    let mut client = server.client();
    client.send("GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut seen = Vec::new();
    for number in 1..=3 {
        // The script writes the next piece when this one has arrived.
        while !seen.ends_with(format!("data: {number}\n\n").as_bytes()) {
            seen.extend(client.read_bytes(1));
        }
        assert_eq!(ask(&server, "/seen"), number.to_string());
    }
    while !seen.ends_with(b"0\r\n\r\n") {
        seen.extend(client.read_bytes(1));
    }
    let text = String::from_utf8_lossy(&seen).into_owned();
    assert!(text.contains("Content-Type: text/event-stream"), "{text}");
    // The connection can be used again.
    assert_eq!(client.get("/index.html").text(), "hello");
}

#[test]
fn an_error_in_the_middle_cuts_the_answer_off() {
    let server = site_with_budgets(
        &[],
        &[
            (
                "fails",
                "petrel.stream(function(write)\n write(\"begun\")\n petrel.sleep(0.01)\n error(\"half way\")\nend)\nreturn 200",
            ),
            (
                "loops",
                "petrel.stream(function(write)\n write(\"begun\")\n petrel.sleep(0.01)\n while true do end\nend)\nreturn 200",
            ),
            (
                "late",
                "local r = lighty.r\n\
                 petrel.stream(function(write)\n write(\"begun\")\n petrel.sleep(0.01)\n write(r.req_header[\"Host\"])\nend)\nreturn 200",
            ),
        ],
    )
    .start();
    for (index, name) in ["fails", "loops", "late"].iter().enumerate() {
        let mut client = server.client();
        client.send(format!("GET /{name} HTTP/1.1\r\nHost: a\r\n\r\n"));
        match client.try_response() {
            Err(ClientError::Truncated(bytes)) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                assert!(
                    text.contains("begun") && !text.ends_with("0\r\n\r\n"),
                    "{text}"
                );
            }
            other => panic!("{name}: {other:?}"),
        }
        let logged = eventually(|| lua_lines(&server).len() > index);
        assert!(logged, "{name}: {:?}", lua_lines(&server));
        let line = lua_lines(&server).remove(index);
        assert!(
            line.contains(&format!("{name}.lua:4")) || line.contains(&format!("{name}.lua:5")),
            "{line}"
        );
    }
    expect_lua_lines(&server, 3);
}

#[test]
fn an_error_before_the_first_piece_is_an_error_of_the_answer() {
    let fails = "petrel.stream(function(write) error(\"at once\") end)\nreturn 200";
    let server = site(&[], &[("fails", fails)]).start();
    for _ in 0..2 {
        let mut client = server.client();
        client.send("GET /fails HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.response().status, 500);
    }
    assert!(eventually(|| lua_lines(&server).len() == 2));
}

#[test]
fn head_and_http_1_0_work() {
    let server = site(
        &[],
        &[(
            "stream",
            "petrel.stream(function(write) for i = 1, 3 do write(i .. \"\") petrel.sleep(0) end end)\nreturn 200",
        )],
    )
    .start();
    assert_eq!(ask(&server, "/stream"), "123");
    let mut client = server.client();
    assert_eq!(client.request("HEAD", "/stream", &[]).status, 200);
    assert_eq!(client.get("/stream").text(), "123");
    let old = server.exchange("GET /stream HTTP/1.0\r\n\r\n");
    assert_eq!(old.text(), "123");
    assert!(old.closes());
}
