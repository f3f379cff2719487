//! What scripts return and leave in `lighty`.

use super::*;

#[test]
fn content_and_status_are_the_answer() {
    let answer = run("lighty.content = { '123' } return 200");
    assert_eq!((answer.status(), answer.body()), (200, &b"123"[..]));
    // As in lighttpd, there is no Content-Type unless the script sets it.
    assert_eq!(answer.fields(), "");
}

#[test]
fn numbers_say_what_happens() {
    for (value, status) in [
        ("", 404),
        ("nil", 404),
        ("0", 404),
        ("5", 404),
        ("-1", 404),
        ("98", 404),
        ("200", 200),
        ("'200'", 200),
        ("204", 204),
        ("304", 304),
        ("404", 404),
        ("600", 600),
        // No whole numbers: logged, and otherwise ignored.
        ("'x'", 404),
        ("200.5", 404),
        ("true", 404),
        ("{}", 404),
        ("1e300", 404),
        // Numbers that are no HTTP status, or that a script must not use.
        ("1000", 500),
        ("65736", 500),
        ("101", 500),
    ] {
        let answer = run(&format!("do return {value} end"));
        assert_eq!(answer.status(), status, "{value}");
    }
}

#[test]
fn an_error_without_content_has_the_fields_of_the_servers_page() {
    let fields = "local h = lighty.r.resp_header h['X-A'] = '1' h['Content-Encoding'] = 'gzip'
        h['WWW-Authenticate'] = 'Basic' h['Cache-Control'] = 'max-age=9'";
    let answer = run(&format!("{fields} return 401"));
    assert_eq!(answer.field("WWW-Authenticate").as_deref(), Some("Basic"));
    for name in ["X-A", "Content-Encoding", "Cache-Control"] {
        assert_eq!(answer.field(name), None, "{name}");
    }
    let own = run(&format!("{fields} lighty.content = {{ 'x' }} return 404"));
    assert_eq!(own.field("X-A").as_deref(), Some("1"));
}

#[test]
fn of_several_bodies_the_last_one_is_added() {
    for call in ["b:add({'c'},{'d'})", "b.add({'c'},{'d'})", "b:add({'d'})"] {
        let answer = run(&format!(
            "local b = lighty.r.resp_body {call} b.add('e') return 200"
        ));
        assert_eq!(text(&answer), "de", "{call}");
    }
}

#[test]
fn modules_see_lighty() {
    let script = "package.path = 'ROOT/?.lua' local m = require('tool')
        m.write('X', m.path()) lighty.content = { m.seen } return 200";
    let scripts = Scripts::new(&[("raw-url", script)]);
    let module = "local lighty = _G.lighty return { seen = tostring(lighty ~= nil),
        path = function() return lighty.r.req_attr['uri.path'] end,
        write = function(name, value) lighty.header[name] = value end }";
    scripts.write("tool.lua", module);
    for target in ["/one", "/two"] {
        let answer = scripts.get(target);
        assert_eq!(text(&answer), "true");
        assert_eq!(answer.field("X").as_deref(), Some(target));
    }
}

#[test]
fn content_is_a_list_of_texts_numbers_and_files() {
    let script = "local file = 'ROOT/www/a.txt'
        lighty.header['Content-Type'] = 'text/plain'
        lighty.content = { 'a', { filename = file, offset = 2, length = 4 }, '-', { filename = file, offset = 8 },
            { filename = file, length = 300, offset = 9 }, { filename = file, offset = 40 },
            { filename = file, offset = 5, length = 3 }, 5, nil, 'never' }
        return 200";
    let answer = Scripts::new(&[("raw-url", script)]).get("/");
    // In lighty.content `length` is the position where the part ends.
    assert_eq!(text(&answer), "a23-8995");
    assert_eq!(answer.field("Content-Type").as_deref(), Some("text/plain"));
}

#[test]
fn parts_of_content_are_sent_to_those_who_ask() {
    let whole = "lighty.content = { { filename = 'ROOT/www/a.txt' } } return 200";
    for (script, range, status, body) in [
        (whole, "bytes=2-4", 206, "234"),
        (whole, "bytes=-2", 206, "89"),
        (whole, "bytes=20-", 416, ""),
        (
            "lighty.content = { 'abcdef' } return 200",
            "bytes=1-2",
            206,
            "bc",
        ),
        (
            "lighty.content = { 'abcdef' } return 404",
            "bytes=1-2",
            404,
            "abcdef",
        ),
        ("return 200", "bytes=1-2", 200, ""),
    ] {
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\nRange: {range}\r\n\r\n");
        let answer = Scripts::new(&[("raw-url", script)]).site.request(&request);
        assert_eq!(answer.status(), status, "{script} {range}");
        if status != 416 {
            assert_eq!(text(&answer), body, "{script} {range}");
        }
    }
}

#[test]
fn lengths_in_bodies_are_lengths() {
    let script = "local file = 'ROOT/www/a.txt'
        lighty.r.resp_body.set({ { filename = file, offset = 2, length = 3 }, '-', { filename = file, length = 3 } })
        lighty.r.resp_body.add('+') lighty.r.resp_body:add({ 'x', 7 })
        return 200";
    let answer = Scripts::new(&[("raw-url", script)]).get("/");
    assert_eq!(text(&answer), "234-012+x7");
}

#[test]
fn a_part_that_is_nothing_ends_the_content() {
    for content in [
        "{ 'x', {}, true, 'y' }",
        "{ 'x', true, 'y' }",
        "{ 'x', { filename = true }, 'y' }",
    ] {
        for script in ["lighty.content = ", "lighty.r.resp_body.set"] {
            let answer = run(&format!("{script}({content}) return 200"));
            assert_eq!((answer.status(), text(&answer)), (200, "x".to_owned()));
        }
    }
    for content in ["5", "{}", "nil", "function() end"] {
        let answer = run(&format!("lighty.content = {content} return 200"));
        assert_eq!(
            (answer.status(), answer.body().len()),
            (200, 0),
            "{content}"
        );
    }
    // lighttpd sends nothing in this case.
    assert_eq!(text(&run("lighty.content = 'text' return 200")), "text");
}

#[test]
fn a_file_that_is_not_there_is_told_by_the_status() {
    for (path, status) in [
        ("/nonexistent/file", 404),
        ("ROOT/www", 403),
        ("ROOT/www/a.txt\\0", 404),
    ] {
        let script = format!("lighty.content = {{ 'x', {{ filename = '{path}' }} }} return 200");
        let answer = Scripts::new(&[("raw-url", &script)]).get("/");
        assert_eq!(answer.status(), status, "{path}");
    }
}

#[test]
fn errors_without_content_get_a_page_and_those_with_content_keep_it() {
    let answer = run("return 403");
    assert!(text(&answer).contains("403 Forbidden"));
    let answer = run("lighty.content = { 'mine' } return 403");
    assert_eq!((answer.status(), answer.body()), (403, &b"mine"[..]));
}

#[test]
fn headers_are_strings_and_numbers() {
    let answer = run("local h = lighty.header
        h['Location'] = '/x' h['X-Number'] = 5 h['X-Table'] = {} h[1] = 'x' h['X-Split'] = 'a\\r\\nSet-Cookie: b'
        h['Connection'] = 'keep-alive' h['Content-Length'] = '9'
        lighty.r.resp_header['Set-Cookie'] = 'a=1' h['Set-Cookie'] = 'c=3'
        return 302");
    assert_eq!(answer.status(), 302);
    let fields = answer.fields();
    let mut lines: Vec<_> = fields.lines().collect();
    lines.sort_unstable();
    let expected = [
        "Location: /x",
        "Set-Cookie: c=3",
        "X-Number: 5",
        "X-Split: a  Set-Cookie: b",
    ];
    assert_eq!(lines, expected);
}

/// A script that keeps nothing gets the tables of its last run again.
#[test]
fn a_request_has_no_fields_of_the_request_before() {
    let script = "local name = lighty.r.req_attr['uri.query']
        if name == 'Proxy' then lighty.header = lighty.r.req_header
        elseif name == 'Meta' then lighty.header = setmetatable({}, { __newindex = lighty.r.req_env })
        elseif name == 'Text' then lighty.header = 'text'
        elseif name == 'List' then lighty.header[1] = 'x' lighty.header[name] = '1'
        elseif name then lighty.header[name] = '1' lighty.header['X-Number'] = 2 end
        return 200";
    let scripts = Scripts::new(&[("raw-url", script)]);
    let expected = [
        ("/?A", "A: 1, X-Number: 2"),
        ("/?B", "B: 1, X-Number: 2"),
        ("/", ""),
        ("/?Proxy", ""),
        ("/?B", "B: 1, X-Number: 2"),
        ("/?Meta", ""),
        ("/?B", "B: 1, X-Number: 2"),
        ("/?Text", ""),
        ("/?B", "B: 1, X-Number: 2"),
        ("/?List", "List: 1"),
        ("/", ""),
    ];
    // Compiled code has to do the same.
    for (target, expected) in expected.iter().cycle().take(50 * expected.len()) {
        let fields = scripts.get(target).fields();
        let mut lines: Vec<_> = fields.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines.join(", "), *expected, "{target}");
    }
}

#[test]
fn zeros_in_fields_do_not_make_others_of_them() {
    let answer =
        run("lighty.header['X-A'] = 'a\\0Set-Cookie\\0b' lighty.header['X-\\0B'] = '1' return 200");
    assert_eq!(answer.fields(), "X-A: a Set-Cookie b\r\n");
    let answer = run("lighty.header['X-A'] = 'a\\0b' return 200");
    assert_eq!(answer.fields(), "X-A: a b\r\n");
    let answer = run("lighty.header['X-A'] = '\\255' lighty.header['X-B'] = 5 return 200");
    assert!(answer.fields().contains("X-B: 5\r\n"));
    assert!(answer.fields().contains("X-A: "));
}

#[test]
fn headers_of_scripts_that_do_not_answer_go_with_the_answer() {
    let script = "lighty.header['X-Go'] = 'on' lighty.header['Content-Type'] = 'a/b'
        lighty.r.resp_header['Set-Cookie'] = 'c=1' lighty.content = { 'never sent' }";
    let scripts = Scripts::new(&[("raw-url", script)]);
    let answer = scripts.get("/a.txt");
    assert_eq!(
        (answer.status(), text(&answer).as_str()),
        (200, "0123456789")
    );
    assert_eq!(answer.field("X-Go").as_deref(), Some("on"));
    assert_eq!(answer.field("Content-Type").as_deref(), Some("a/b"));
    // On an error page only cookies are kept.
    let answer = scripts.get("/missing");
    assert_eq!(answer.status(), 404);
    assert_eq!(answer.field("Set-Cookie").as_deref(), Some("c=1"));
    assert_eq!(answer.field("X-Go"), None);
}

#[test]
fn later_scripts_see_and_change_what_earlier_ones_gave_to_the_answer() {
    let scripts = Scripts::new(&[
        (
            "raw-url",
            "lighty.header['X-One'] = '1' lighty.header['X-Two'] = '2'",
        ),
        (
            "physical-path",
            "local h = lighty.r.resp_header h['X-Seen'] = h['X-One'] h['X-Two'] = nil",
        ),
    ]);
    let answer = scripts.get("/a.txt");
    assert_eq!(answer.field("X-Seen").as_deref(), Some("1"));
    assert_eq!(answer.field("X-Two"), None);
}

#[test]
fn scripts_of_a_list_run_in_their_order_until_one_answers() {
    let config = "magnet.attract-raw-url-to = (\"ROOT/1.lua\", \"ROOT/2.lua\", \"ROOT/3.lua\")";
    let scripts = Scripts::with(config, &[]);
    scripts.write("1.lua", "lighty.r.req_env['SEEN'] = '1'");
    scripts.write(
        "2.lua",
        "lighty.content = { lighty.r.req_env['SEEN'], lighty.r.req_attr['uri.path'] } \
         if lighty.r.req_attr['uri.path'] == '/two' then return 200 end",
    );
    scripts.write("3.lua", "lighty.content = { 'three' } return 201");
    assert_eq!(text(&scripts.get("/two")), "1/two");
    let answer = scripts.get("/three");
    assert_eq!((answer.status(), text(&answer).as_str()), (201, "three"));
}

#[test]
fn a_restart_begins_with_the_url_as_it_is_now() {
    for change in [
        "lighty.env['request.uri'] = '/a.txt?x=1'",
        "lighty.r.req_attr['uri.path'] = '/a.txt'",
    ] {
        let script = format!(
            "if lighty.env['uri.path'] == '/old' then {change} return lighty.RESTART_REQUEST end"
        );
        let answer = Scripts::new(&[("raw-url", &script)]).get("/old");
        assert_eq!(
            (answer.status(), text(&answer).as_str()),
            (200, "0123456789")
        );
        assert_eq!(answer.exchange().request.original_target(), b"/old");
    }
    for hook in ["raw-url", "physical-path"] {
        assert_eq!(
            Scripts::new(&[(hook, "return 99")]).get("/a.txt").status(),
            500
        );
    }
}

#[test]
fn conditions_are_decided_anew_after_a_restart() {
    let config = "$HTTP[\"host\"] == \"other.example\" { server.name = \"other\" }
        $HTTP[\"url\"] == \"/a.txt\" { mimetype.assign = (\".txt\" => \"x/y\") }";
    let script = "if lighty.env['uri.authority'] ~= 'other.example' then
        lighty.env['uri.authority'] = 'other.example' lighty.env['request.uri'] = '/a.txt' return 99 end";
    let answer = Scripts::with(config, &[("raw-url", script)]).get("/x");
    assert_eq!(answer.field("Content-Type").as_deref(), Some("x/y"));
    assert_eq!(answer.exchange().server_name(), b"other");
}

#[test]
fn errors_are_told_by_the_status_alone() {
    for script in [
        "error('secret')",
        "error({ 1 })",
        "x = = 1",
        "local t = nil + 1",
        "lighty.r.foo = 1",
    ] {
        let answer = run(script);
        assert_eq!(answer.status(), 500, "{script}");
        assert!(
            !text(&answer).contains("lua"),
            "{script}: {}",
            text(&answer)
        );
    }
    assert_eq!(
        Scripts::with("magnet.attract-raw-url-to = (\"/no.lua\")", &[])
            .get("/")
            .status(),
        500
    );
}

#[test]
fn requests_are_refused_when_the_scripts_that_decide_cannot_run() {
    for hook in ["raw-url", "physical-path", "response-start"] {
        let config = "server.modules = (\"mod_staticfile\")";
        let scripts = Scripts::with(config, &[(hook, "return 403")]);
        assert_eq!(scripts.get("/a.txt").status(), 503, "{hook}");
    }
}

/// A script without functions may get the tables of an earlier run.
#[test]
fn tables_that_are_used_again_are_as_new() {
    let show =
        "lighty.content = { tostring(x), tostring(lighty.x), type(lighty.header), type(tostring),
        tostring(lighty.header.A) } return 200";
    for change in [
        "",
        "x = 1",
        "x = 1 x = nil",
        "lighty.x = 1",
        "lighty.header.A = 1",
        "lighty.header = 5",
        "lighty.content = { 'old' }",
        "tostring = print",
        "lighty.r = 1",
        "lighty = nil",
    ] {
        let source =
            format!("if lighty.r.req_attr['uri.query'] == 'c' then {change} return 200 end {show}");
        let scripts = Scripts::new(&[("raw-url", &source)]);
        for _ in 0..2 {
            assert_eq!(scripts.get("/x?c").status(), 200, "{change}");
            let shown = text(&scripts.get("/x?s"));
            assert_eq!(shown, "nilniltablefunctionnil", "{change}");
        }
    }
}

#[test]
fn short_texts_of_several_answers_do_not_mix() {
    let source = "local n = lighty.r.req_attr['uri.query'] lighty.content = { n .. (('x'):rep(n)) } return 200";
    let scripts = Scripts::new(&[("raw-url", source)]);
    let count = |n: usize| n * 37 % 1100;
    // They are held while others are made: more of them than fit into the memory for texts.
    let answers: Vec<_> = (0..100)
        .map(|n| scripts.get(&format!("/?{}", count(n))))
        .collect();
    for (n, answer) in answers.iter().enumerate() {
        let expected = format!("{}{}", count(n), "x".repeat(count(n)));
        assert_eq!(text(answer), expected);
    }
}

#[test]
fn a_script_that_is_changed_is_run_anew() {
    let scripts = Scripts::new(&[("raw-url", "lighty.content = { 'one' } return 200")]);
    assert_eq!(text(&scripts.get("/")), "one");
    assert_eq!(text(&scripts.get("/")), "one");
    scripts.write("raw-url.lua", "lighty.content = { 'two' } return 200");
    scripts.site.worker().files().flush();
    assert_eq!(text(&scripts.get("/")), "two");
}

#[test]
fn globals_do_not_outlive_a_run() {
    let scripts = Scripts::new(&[(
        "raw-url",
        "count = (count or 0) + 1 string.foo = (string.foo or 0) + 1 lighty.mine = (lighty.mine or 0) + 1
         _G.other = (_G.other or 0) + 1
         pcall(rawset, lighty.r, 'leak', 1) pcall(rawset, lighty.r.req_attr, 'leak', 1)
         pcall(table.insert, lighty.r.req_header, 'leak') pcall(rawset, lighty.c, 'leak', 1)
         local seen = tostring(rawget(lighty.r.req_attr, 'leak')) .. tostring(lighty.c.leak) .. tostring(lighty.r.leak)
         lighty.content = { count, string.foo, lighty.mine, other, seen } return 200",
    )]);
    for _ in 0..3 {
        assert_eq!(text(&scripts.get("/")), "1111nilnilnil");
    }
}

#[tokio::test(flavor = "local")]
async fn scripts_of_every_hook_may_wait() {
    let config = "magnet.attract-raw-url-to = (\"ROOT/1.lua\", \"ROOT/2.lua\")";
    let scripts = Scripts::with(
        config,
        &[
            (
                "physical-path",
                "petrel.sleep(0.01) lighty.header['X-Path'] = 'b'",
            ),
            (
                "response-start",
                "petrel.sleep(0.01) lighty.header['X-Start'] = (lighty.r.resp_header['X-Path'] or '') .. 'c'",
            ),
        ],
    );
    scripts.write("1.lua", "petrel.sleep(0.01) lighty.header['X-Url'] = 'a'");
    scripts.write(
        "2.lua",
        "if lighty.env['uri.query'] then petrel.sleep(0.01) lighty.content = { 'q' } return 203 end",
    );
    let answer = scripts.site.get_async("/a.txt").await;
    assert_eq!(
        (answer.status(), text(&answer).as_str()),
        (200, "0123456789")
    );
    assert_eq!(answer.field("X-Url").as_deref(), Some("a"));
    assert_eq!(answer.field("X-Start").as_deref(), Some("bc"));
    let answer = scripts.site.get_async("/a.txt?q").await;
    assert_eq!((answer.status(), text(&answer).as_str()), (203, "q"));
}

#[tokio::test(flavor = "local")]
async fn runs_that_wait_at_the_same_time_keep_apart() {
    let scripts = Scripts::new(&[(
        "raw-url",
        "local mine = lighty.r.req_attr['uri.path'] word = mine
         lighty.header['X-Path'] = mine
         petrel.sleep(mine == '/slow' and 0.05 or 0.01)
         lighty.content = { word, lighty.r.req_attr['uri.path'] } return 200",
    )]);
    let (slow, quick) = tokio::join!(
        scripts.site.get_async("/slow"),
        scripts.site.get_async("/quick")
    );
    assert_eq!(text(&slow), "/slow/slow");
    assert_eq!(slow.field("X-Path").as_deref(), Some("/slow"));
    assert_eq!(text(&quick), "/quick/quick");
    assert_eq!(quick.field("X-Path").as_deref(), Some("/quick"));
}

#[tokio::test(flavor = "local")]
async fn a_streaming_script_reaches_no_request() {
    let scripts = Scripts::new(&[(
        "raw-url",
        "local r = lighty.r petrel.stream(function(write)
           for _, use in ipairs({
             function() return r.req_attr['uri.path'] end, function() r.resp_header.A = '1' end,
             function() return r.req_item.keep_alive end, function() r.resp_body.set('x') end,
           }) do
             local ok, words = pcall(use) write(tostring(ok) .. tostring(words):match(' no request ') .. '\\n')
           end
         end) return 200",
    )]);
    let answer = scripts.site.get_async("/x").await;
    assert_eq!(text(&answer), "false no request \n".repeat(4));
}

#[tokio::test(flavor = "local")]
async fn an_answer_may_be_streamed() {
    let scripts = Scripts::new(&[(
        "raw-url",
        "petrel.stream(function(write) write('a') petrel.sleep(0) write('b') end)
         lighty.header['Content-Type'] = 'text/plain' return 200",
    )]);
    let answer = scripts.site.get_async("/").await;
    assert_eq!((answer.status(), text(&answer).as_str()), (200, "ab"));
}
