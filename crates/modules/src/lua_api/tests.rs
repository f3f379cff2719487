//! What scripts get from `petrel.*`, called as scripts call it.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use crate::lua::testing::RUNS;
use crate::static_file;
use crate::testing::Tree;

async fn run(script: &str) -> (u16, String) {
    let tree = Tree::new(&[("script.lua", script), ("a.txt", "a file"), ("d/b", "")]);
    let script = script.replace("ROOT", &tree.path(""));
    tree.write("script.lua", &script);
    // A debug build on a slow machine needs more than the default of ten milliseconds.
    let config = "mimetype.assign = ( \".txt\" => \"text/plain\" )\nlua.max-run-time = 1000";
    let site = tree.site(config, &[&RUNS, &static_file::MODULE]);
    let answer = site.get_async("/script.lua").await;
    let text = String::from_utf8_lossy(answer.body()).into_owned();
    (answer.status(), text)
}

async fn returned(script: &str) -> String {
    let (status, text) = run(script).await;
    assert_eq!(status, 200, "{text}");
    text
}

/// A server that accepts one connection and sends these replies, one after each read. The thread returns
/// everything that it has read.
fn server(replies: &'static [&'static str]) -> (u16, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    let served = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a client connects");
        let mut heard = String::new();
        for reply in replies {
            let mut buffer = [0; 4096];
            let count = socket.read(&mut buffer).expect("a request");
            heard.push_str(&String::from_utf8_lossy(&buffer[..count]));
            socket.write_all(reply.as_bytes()).expect("it listens");
        }
        heard
    });
    (port, served)
}

#[tokio::test(flavor = "local")]
async fn subrequests_are_answered_by_the_same_server() {
    let script = "local r = petrel.subrequest('/a.txt')
        return r.status .. ' ' .. r.headers['content-type'] .. ' ' .. r.body";
    assert_eq!(returned(script).await, "200 text/plain a file");
    let script = "return petrel.http('/none').status";
    assert_eq!(returned(script).await, "404");
    let script = "return petrel.subrequest{ url = '/a.txt', method = 'HEAD' }.body == ''";
    assert_eq!(returned(script).await, "true");
    let (status, text) = run("petrel.subrequest('no slash')").await;
    assert_eq!(status, 500);
    assert!(text.contains("no slash"), "{text}");
    let (_, text) = run("return petrel.subrequest{ url = '/', colour = 'red' }").await;
    assert!(text.contains("colour: there is no such option"), "{text}");
}

#[tokio::test(flavor = "local")]
async fn subrequests_of_oneself_come_to_an_end() {
    let script = "local r = petrel.subrequest('/script.lua') return r.status .. r.body";
    let (_, text) = run(script).await;
    assert!(text.contains("500"), "{text}");
}

#[tokio::test(flavor = "local")]
async fn other_servers_are_asked_over_a_kept_connection() {
    let (port, served) = server(&[
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: 1\r\nX-A: 2\r\n\r\nhi",
        "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nnot\r\n0\r\n\r\n",
    ]);
    let script = "local base = 'http://127.0.0.1:PORT'
        local one = petrel.http(base .. '/one?x')
        local two = petrel.http{ url = base .. '/two', method = 'POST', body = 'abc', headers = { ['X-B'] = 7 } }
        return one.status .. one.body .. one.headers['x-a'] .. two.status .. two.body";
    let script = script.replace("PORT", &port.to_string());
    assert_eq!(returned(&script).await, "200hi1, 2404not");
    let heard = served.join().expect("it ends");
    assert!(
        heard.starts_with("GET /one?x HTTP/1.1\r\nHost: 127.0.0.1:"),
        "{heard}"
    );
    assert!(heard.contains("POST /two HTTP/1.1\r\n"), "{heard}");
    assert!(
        heard.ends_with("X-B: 7\r\nContent-Length: 3\r\n\r\nabc"),
        "{heard}"
    );
}

#[tokio::test(flavor = "local")]
async fn servers_that_fail_are_errors_that_name_them() {
    for (replies, says) in [
        (
            &["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"][..],
            "closed",
        ),
        (&["SSH-2.0-x\r\n\r\n"][..], "does not begin with HTTP"),
        (
            &["HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n0123456789"][..],
            "longer than 5",
        ),
    ] {
        let (port, served) = server(replies);
        let script = format!(
            "local ok, why = pcall(petrel.http, {{ url = 'http://127.0.0.1:{port}/', max_bytes = 5 }})
             return tostring(ok) .. tostring(why)"
        );
        let text = returned(&script).await;
        assert!(text.starts_with("false"), "{text}");
        assert!(text.contains(&format!("127.0.0.1:{port}: ")), "{text}");
        assert!(
            text.contains(says) || text.contains("longer than 5"),
            "{text}"
        );
        served.join().expect("it ends");
    }
    let nobody = "local ok, why = pcall(petrel.http, 'http://127.0.0.1:1/') return tostring(why)";
    assert!(returned(nobody).await.contains("refused"));
    let (status, text) = run("petrel.http('https://a.example/')").await;
    assert_eq!(status, 500);
    assert!(text.contains("no certificates were loaded"), "{text}");
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let late = silent.local_addr().expect("it is bound").port();
    let script = format!("petrel.http{{ url = 'http://127.0.0.1:{late}/', timeout = 0.05 }}");
    assert!(run(&script).await.1.contains("after 0.05 s"));
}

#[tokio::test(flavor = "local")]
async fn files_are_read_and_written() {
    let script = "local f = petrel.file
        assert(f.write('ROOTnew', 'content'))
        local there = f.stat('ROOTnew')
        local none, why = f.read('ROOTmissing')
        local text = f.read('ROOTnew') .. there.size .. there.type .. table.concat(f.list('ROOT'), ',')
        assert(f.remove('ROOTnew'))
        return text .. tostring(none) .. tostring(why ~= nil) .. tostring(f.stat('ROOTnew'))";
    let text = returned(script).await;
    assert_eq!(text, "content7filea.txt,d,new,script.luaniltruenil");
}

#[tokio::test(flavor = "local")]
async fn answers_can_be_streamed() {
    let script = "petrel.stream(function(write)
            for i = 1, 3 do write(i .. ',') petrel.sleep(0.001) end
            write('') write('end')
        end)";
    assert_eq!(returned(script).await, "1,2,3,end");
    let script = "petrel.stream(function(write)
            for i = 1, 1000 do write(('x'):rep(1000)) end
        end)";
    assert_eq!(returned(script).await.len(), 1_000_000);
    let script = "petrel.stream(function(write) write('a')
            write(tostring(pcall(petrel.subrequest, '/')))
        end)";
    assert_eq!(returned(script).await, "afalse");
}

#[tokio::test(flavor = "local")]
async fn redis_and_memcached_answer_or_are_nil() {
    let (port, served) = server(&[
        "+OK\r\n",
        "$5\r\nvalue\r\n",
        "*2\r\n:1\r\n$-1\r\n",
        "-ERR no\r\n",
        "$-1\r\n",
    ]);
    let script = format!(
        "local r = petrel.redis{{ host = '127.0.0.1', port = {port} }}
         local a, b, c = r:set('k', 1), r:get('k'), r:mget('a', 'b')
         local d, why = r:bad()
         return a .. b .. c[1] .. tostring(c[2]) .. tostring(d) .. why .. tostring(r:get('none'))"
    );
    let text = returned(&script).await;
    let (begin, end) = ("OKvalue1falsenilredis 127.0.0.1:", "ERR nonil");
    assert!(text.starts_with(begin) && text.ends_with(end), "{text}");
    assert!(
        served
            .join()
            .expect("it ends")
            .contains("$3\r\nSET\r\n$1\r\nk\r\n$1\r\n1\r\n")
    );
    let script =
        "local v, why = petrel.redis('127.0.0.1:1'):get('x') return tostring(v) .. tostring(why)";
    let text = returned(script).await;
    assert!(
        text.starts_with("nil") && text.contains("127.0.0.1:1"),
        "{text}"
    );
    let (port, served) = server(&["STORED\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n", "NOT_FOUND\r\n"]);
    let script = format!(
        "local m = petrel.memcached('127.0.0.1:{port}')
         return tostring(m:set('k', 'v', 60)) .. m:get('k') .. tostring(m:incr('n'))"
    );
    assert_eq!(returned(&script).await, "truevnil");
    assert!(served.join().expect("it ends").starts_with("set k 0 60 1"));
}

#[tokio::test(flavor = "local")]
async fn dictionaries_outlive_runs_and_count() {
    let script = "local d = petrel.dict('visits') return d:incr('n', 1, 0)";
    let tree = Tree::new(&[("script.lua", script)]);
    let config = "lua.dictionaries = ( \"visits\" => 64 )";
    let site = tree.site(config, &[&crate::lua::MODULE, &RUNS]);
    for expected in [&b"1"[..], b"2", b"3"] {
        assert_eq!(site.get("/script.lua").body(), expected);
    }
    let mut counters = std::collections::BTreeMap::new();
    super::read_counters(site.worker().shared(), &mut counters);
    assert_eq!(counters.get("lua.dict.visits.entries"), Some(&1));
}

#[tokio::test(flavor = "local")]
async fn codecs_are_there() {
    let script = "local p = petrel
        return p.json.encode(p.json.decode('{\"a\": [1]}')) .. p.base64.encode('hi') .. #p.random.bytes(8)
            .. p.hash.md5('')";
    let text = returned(script).await;
    assert_eq!(text, "{\"a\":[1]}aGk=8d41d8cd98f00b204e9800998ecf8427e");
}

#[tokio::test(flavor = "local")]
async fn petrel_is_not_for_scripts_to_change() {
    // What a script changes in `petrel` lasts for its own run only.
    let script = "petrel.sleep = 1 return tostring(petrel.sleep)";
    assert_eq!(returned(script).await, "1");
    assert!(
        returned("return tostring(petrel.sleep)")
            .await
            .starts_with("function")
    );
}

#[tokio::test(flavor = "local")]
async fn what_is_streamed_has_no_request_even_below_another_one() {
    let script = "petrel.dict('stream'):incr('depth', 1, 0)
        if petrel.dict('stream'):get('depth') == 1 then
            return petrel.subrequest('/script.lua').body
        end
        petrel.stream(function(write)
            local ok, words = pcall(petrel.subrequest, '/a.txt')
            write(tostring(ok) .. ' ' .. tostring(words))
        end)";
    let text = returned(script).await;
    assert!(text.starts_with("false"), "{text}");
    assert!(text.contains("there is no request"), "{text}");
}

#[tokio::test(flavor = "local")]
async fn metatables_of_options_are_not_asked() {
    let script = "local t t = setmetatable({}, { __index = function() return petrel.redis(t) end })
        return type(petrel.redis(t)) .. type(petrel.memcached(t))";
    assert_eq!(returned(script).await, "tabletable");
}

#[tokio::test(flavor = "local")]
async fn a_stream_of_nothing_leaves_the_worker_to_others() {
    let script = "petrel.stream(function(write) while true do write('') end end)";
    let tree = Tree::new(&[("script.lua", script), ("a.txt", "a file")]);
    let site = tree.site("", &[&RUNS, &static_file::MODULE]);
    let endless = site.get_async("/script.lua");
    let ended = tokio::time::timeout(std::time::Duration::from_millis(200), endless).await;
    assert!(ended.is_err(), "the timer had its turn");
}

#[tokio::test(flavor = "local")]
async fn scripts_wait_wherever_they_are() {
    for script in [
        "local t = { 3, 1, 2 } table.sort(t, function(a, b) petrel.sleep(0) return a < b end)
         return table.concat(t)",
        "return (('132'):gsub('.', function(c) petrel.sleep(0) return c == '3' and '2' or c == '2' and '3' or c end))",
        "local t = setmetatable({}, { __index = function(_, k) petrel.sleep(0) return k end,
             __tostring = function() petrel.sleep(0) return '3' end,
             __call = function(_, v) petrel.sleep(0) return v end })
         return t[1] .. t(2) .. string.format('%s', t)",
        "local function deep(n) if n == 0 then petrel.sleep(0) return '123' end
             return coroutine.wrap(function() return deep(n - 1) end)() end
         return deep(20)",
        "local co = coroutine.create(function()
             local ok, words = pcall(petrel.http, 'http://127.0.0.1:1/')
             coroutine.yield('1' .. (ok and '?' or '2'))
             petrel.http('http://127.0.0.1:1/') end)
         local _, first = coroutine.resume(co)
         local ok = coroutine.resume(co)
         return first .. (ok and '?' or '3')",
        "local ok, words = xpcall(function() petrel.sleep(0) error('1', 0) end,
             function(words) petrel.sleep(0) return words .. '23' end)
         return words",
        "local iterate = coroutine.wrap(function() for i = 1, 3 do petrel.sleep(0) coroutine.yield(i) end end)
         local all = '' for i in iterate do all = all .. i end return all",
    ] {
        assert_eq!(returned(script).await, "123", "{script}");
    }
}

/// Clients leave while scripts wait, in each kind of wait; the state must go on working.
#[tokio::test(flavor = "local")]
async fn what_waits_may_be_dropped() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    for wait in [
        "petrel.sleep(9)",
        "petrel.http('http://127.0.0.1:PORT/')",
        "petrel.redis('127.0.0.1:PORT'):get('k')",
        "petrel.memcached('127.0.0.1:PORT'):get('k')",
        "coroutine.wrap(function() pcall(petrel.sleep, 9) end)()",
        "petrel.subrequest('/script.lua')",
        "petrel.fragment('k', 9, function() petrel.sleep(9) end)",
    ] {
        let script = "if petrel.dict('n'):incr('n', 1, 0) < 3 then WAIT end return 'over'";
        let script = script
            .replace("WAIT", wait)
            .replace("PORT", &port.to_string());
        let tree = Tree::new(&[("script.lua", &script)]);
        let site = tree.site("", &[&RUNS]);
        for _ in 0..2 {
            let asked = site.get_async("/script.lua");
            let time = std::time::Duration::from_millis(30);
            let ended = tokio::time::timeout(time, asked).await;
            assert!(ended.is_err() || wait.contains("subrequest"), "{wait}");
        }
        assert_eq!(
            site.get_async("/script.lua").await.body(),
            b"over",
            "{wait}"
        );
    }
}

/// A line without an end was read in C code forever.
#[tokio::test(flavor = "local")]
async fn a_file_without_an_end_is_an_error_of_its_script() {
    for script in [
        "return io.open('/dev/zero'):read()",
        "for line in io.lines('/dev/zero') do end return 'ended'",
        "return dofile('/dev/zero')",
    ] {
        let (status, text) = run(script).await;
        assert_eq!(status, 500, "{script}");
        assert!(
            text.contains("more than") || text.contains("longer than"),
            "{text}"
        );
    }
    let script = "local f = io.open('/dev/urandom', 'rb') local token = f:read(16) f:close() return tostring(#token)";
    assert_eq!(returned(script).await, "16");
}

#[tokio::test(flavor = "local")]
async fn files_of_io_are_read_and_written_by_disk_threads() {
    let script = "local f = assert(io.open('ROOT/made', 'w')) f:write('one\\n', 2, '\\n') f:close()
        local seen = {} for line in io.lines('ROOT/made') do seen[#seen + 1] = line end
        local a = assert(io.open('ROOT/made', 'a+')) a:write('three') a:seek('set')
        return table.concat(seen, '|') .. ' ' .. a:read('*a')";
    assert_eq!(returned(script).await, "one|2 one\n2\nthree");
    let script = "local f, message = io.open('ROOT/none') return tostring(f) .. message";
    assert!(
        returned(script)
            .await
            .ends_with("none: No such file or directory")
    );
    let script =
        "package.path = 'ROOT/?.lua' io.open('ROOT/m.lua', 'w'):write('return { v = 7 }'):close()
        return tostring(require('m').v)";
    assert_eq!(returned(script).await, "7");
}
