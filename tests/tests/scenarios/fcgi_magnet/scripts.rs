//! What scripts can read, and the effect of what they do.

use std::time::Instant;

use petrel_tests::fastcgi::{begin, params_of, stdin};
use petrel_tests::{Magnet, SOON, eventually};

#[test]
fn the_scripts_of_the_article_print_123() {
    let magnet = Magnet::start(
        &[
            ("print.lua", "print \"123\""),
            (
                "head.lua",
                "print(\"Content-Type: text/plain\\r\\n\\r\\n123\")",
            ),
        ],
        &[],
    );
    let reply = magnet.get("print.lua");
    assert_eq!(
        reply.text(),
        "Content-Type: text/html\r\nContent-Length: 3\r\n\r\n123"
    );
    assert_eq!(reply.end, Some((0, 0)));
    assert_eq!(reply.log, "");
    let reply = magnet.get("head.lua");
    assert_eq!(reply.text(), "Content-Type: text/plain\r\n\r\n123");
}

#[test]
fn print_adds_nothing() {
    let script = "print(1, ' ', nil, true, '\\n') write('a', 1.5) io.write('b') print()";
    let magnet = Magnet::start(&[("a.lua", script)], &[]);
    assert_eq!(magnet.get("a.lua").body(), "1 niltrue\na1.5b");
}

#[test]
fn status_and_fields() {
    let script = "status(404) header('X-Two', 2) header('Content-Type', 'text/plain') \
                  header('Set-Cookie', 'a=1') header('Set-Cookie', 'b=2') print('gone')";
    let magnet = Magnet::start(
        &[
            ("a.lua", script),
            (
                "split.lua",
                "local ok, why = pcall(header, 'X', 'a\\r\\nSet-Cookie: evil') print(ok, ' ', why)",
            ),
            ("status.lua", "status(1000)"),
            ("late.lua", "print('x') flush() status(500)"),
        ],
        &[],
    );
    let reply = magnet.get("a.lua");
    assert_eq!(
        reply.text(),
        "Status: 404 Not Found\r\nX-Two: 2\r\nContent-Type: text/plain\r\nSet-Cookie: a=1\r\n\
         Set-Cookie: b=2\r\nContent-Length: 4\r\n\r\ngone"
    );
    let reply = magnet.get("split.lua");
    assert!(reply.body().starts_with("false "), "{}", reply.text());
    assert!(!reply.text().contains("evil"), "{}", reply.text());
    let reply = magnet.get("status.lua");
    assert_eq!(reply.status(), 500);
    assert!(reply.log.contains("status.lua:1:"), "{}", reply.log);
    assert!(reply.log.contains("from 200 to 599"), "{}", reply.log);
    let reply = magnet.get("late.lua");
    assert!(reply.text().ends_with("\r\n\r\nx"), "{}", reply.text());
    assert!(reply.log.contains("sent already"), "{}", reply.log);
    assert_eq!(
        reply.end, None,
        "half an answer does not end as a whole one"
    );
}

#[test]
fn the_request_is_there() {
    let script = "print(env.REQUEST_METHOD, '|', env.NOTHING, '|', request['accept-LANGUAGE'], '|', \
                  request['Content-Type'], '|', get.a, '|', get.b, '|', cookie.c, '|', post.p, '|', \
                  read_body()) for k, v in pairs(request) do write('\\n', k, '=', v) end";
    let magnet = Magnet::start(&[("a.lua", script)], &[]);
    let params = [
        ("REQUEST_METHOD", "POST"),
        ("HTTP_ACCEPT_LANGUAGE", "de"),
        (
            "CONTENT_TYPE",
            "application/x-www-form-urlencoded; charset=utf-8",
        ),
        ("QUERY_STRING", "a=1+2%21&b=&a=3"),
        ("HTTP_COOKIE", "x=1; c=%20y"),
        ("CONTENT_LENGTH", "5"),
    ];
    let body = magnet.ask("a.lua", &params, b"p=%41").body();
    let (first, fields) = body.split_once('\n').expect("lines");
    let expected = "POST|nil|de|application/x-www-form-urlencoded; charset=utf-8|3||%20y|A|p=%41";
    assert_eq!(first, expected);
    let mut fields: Vec<&str> = fields.lines().collect();
    fields.sort_unstable();
    assert_eq!(fields.len(), 4, "{fields:?}");
    assert_eq!(fields[0], "Accept-Language=de");
}

#[test]
fn globals_do_not_leak() {
    let script = "print(tostring(leak), tostring(string.leak), tostring(env.leak)) \
                  leak = 1 string.leak = 2 env.leak = 3";
    let magnet = Magnet::start(&[("a.lua", script)], &[]);
    let mut peer = magnet.connect();
    for _ in 0..3 {
        peer.send(&magnet.request(1, "a.lua", &[], b""));
        assert_eq!(peer.reply(1).body(), "nilnilnil");
    }
}

#[test]
fn scripts_are_replaced_when_they_change() {
    let magnet = Magnet::start(&[("a.lua", "print(1)")], &[]);
    assert_eq!(magnet.get("a.lua").body(), "1");
    magnet.tree.write("www/a.lua", "print(2)");
    let begin = Instant::now();
    assert!(eventually(|| magnet.get("a.lua").body() == "2"));
    assert!(begin.elapsed() < SOON);
    magnet.tree.write("www/a.lua", "print(");
    assert!(eventually(|| magnet.get("a.lua").status() == 500));
    magnet.tree.replace("www/a.lua", "print(3)");
    assert!(eventually(|| magnet.get("a.lua").body() == "3"));
    std::fs::remove_file(magnet.tree.path("www/a.lua")).expect("removed");
    assert!(eventually(|| magnet.get("a.lua").status() == 404));
}

#[test]
fn what_cannot_be_run_has_a_status() {
    let magnet = Magnet::start(&[("a.lua", "print(1)")], &["--root", "www"]);
    magnet.tree.write("secret.lua", "print('secret')");
    assert_eq!(magnet.get("a.lua").body(), "1");
    for (script, status) in [
        ("missing.lua", 404),
        ("", 403),
        ("../secret.lua", 403),
        ("a.lua/x", 404),
    ] {
        let reply = magnet.get(script);
        assert_eq!(reply.status(), status, "{script}");
        assert!(!reply.log.is_empty(), "{script}");
    }
    let mut peer = magnet.connect();
    peer.send(&[begin(1, 1, 1), params_of(1, &[]), stdin(1, b"")].concat());
    assert_eq!(peer.reply(1).status(), 404);
}

#[test]
fn errors_are_told_with_file_line_and_stack() {
    let script = "local function f() error('oh') end\nprint('half')\nf() return 1";
    let magnet = Magnet::start(&[("a.lua", script), ("syntax.lua", "x = = 1")], &[]);
    let reply = magnet.get("a.lua");
    assert_eq!(reply.status(), 500);
    assert_eq!(reply.end, Some((0, 0)));
    assert!(!reply.text().contains("half") && !reply.text().contains("oh"));
    assert!(eventually(|| magnet.log().contains(&reply.log)));
    for log in [reply.log.clone(), magnet.log()] {
        assert!(log.contains("www/a.lua:1: oh\n"), "{log}");
        assert!(log.contains("www/a.lua:3: in"), "{log}");
    }
    let reply = magnet.get("syntax.lua");
    assert_eq!(reply.status(), 500);
    assert!(reply.log.contains("syntax.lua:1:"), "{}", reply.log);
}

#[test]
fn scripts_log_and_share_dictionaries() {
    let script = "log('one', 2) print(petrel.dict('d'):incr('n', 1, 0), \
                  petrel.json.encode({ a = 1 }), petrel.base64.encode('x'))";
    let magnet = Magnet::start(&[("a.lua", script)], &["--workers", "3"]);
    for number in 1..=5 {
        let reply = magnet.get("a.lua");
        assert_eq!(reply.log, "one\t2\n");
        assert_eq!(reply.body(), format!("{number}{{\"a\":1}}eA=="));
    }
}

#[test]
fn bodies_come_when_they_are_asked_for() {
    let script = "local body, why = read_body() print(body and #body, ' ', why or 'sound')";
    let magnet = Magnet::start(
        &[("a.lua", script), ("other.lua", "print('other')")],
        &["--max-body", "1"],
    );
    let mut peer = magnet.connect();
    let file = magnet.path("www/a.lua");
    peer.send(&[begin(1, 1, 1), params_of(1, &[("SCRIPT_FILENAME", &file)])].concat());
    peer.send(&magnet.request(2, "other.lua", &[], b""));
    assert_eq!(
        peer.reply(2).body(),
        "other",
        "the first one waits for its body"
    );
    peer.send(&stdin(1, &[b'x'; 200_000]));
    assert_eq!(peer.reply(1).body(), "200000 sound");
    peer.send(&magnet.request(3, "a.lua", &[], &vec![b'x'; (1 << 20) + 1]));
    assert_eq!(
        peer.reply(3).body(),
        "nil the body of the request is too long"
    );
    let announced = [("CONTENT_LENGTH", "1048577")];
    peer.send(
        &[
            begin(4, 1, 1),
            params_of(4, &[("SCRIPT_FILENAME", &file), announced[0]]),
        ]
        .concat(),
    );
    assert_eq!(peer.reply(4).status(), 413);
}
