//! Scripts with a real redis-server and a real memcached.

use std::path::Path;
use std::process::Command;

use petrel_tests::{Component, Listens, Server, Tree, can_run, free_port};

use crate::lua_api::{ask, expect_lua_lines, says, site};

/// A redis-server on `redis.sock` of `tree`.
fn redis(tree: Tree) -> Component {
    let socket = tree.path("redis.sock");
    redis_at(tree, &socket)
}

/// A redis-server on `socket`, with its files in `tree`.
fn redis_at(tree: Tree, socket: &Path) -> Component {
    // It has no port to wait for, and the socket may be outside the tree; this symlink leads to it.
    if !socket.starts_with(tree.root()) {
        tree.symlink(socket, "redis.sock");
    }
    let mut command = Command::new("redis-server");
    command
        .args([
            "--port",
            "0",
            "--save",
            "",
            "--appendonly",
            "no",
            "--unixsocket",
        ])
        .arg(socket);
    Component::start(tree, &mut command, &Listens::Unix("redis.sock"))
}

/// A memcached, and its port.
fn memcached() -> (Component, u16) {
    let port = free_port();
    let mut command = Command::new("memcached");
    command.args([
        "-l",
        "127.0.0.1",
        "-u",
        "nobody",
        "-U",
        "0",
        "-p",
        &port.to_string(),
    ]);
    (
        Component::start(Tree::new(), &mut command, &Listens::Port(port)),
        port,
    )
}

fn with_redis(redis: &Component, body: &str) -> String {
    says(&format!(
        "local r = petrel.redis(\"unix:{}\")\n{body}",
        redis.path("redis.sock")
    ))
}

#[test]
fn redis_keeps_what_scripts_give_it() {
    if !can_run(
        "lua_api::redis_keeps_what_scripts_give_it",
        &["redis-server"],
    ) {
        return;
    }
    let redis = redis(Tree::new());
    let commands = with_redis(
        &redis,
        "local all = {}\n\
         local function add(value) all[#all + 1] = petrel.json.encode(value) end\n\
         add(r:set(\"a\", \"one\\0two\")) add(#r:get(\"a\")) add(r:get(\"none\") == nil)\n\
         add(r:incr(\"n\")) add(r:incrby(\"n\", 41)) add(r:rpush(\"l\", 1, \"two\", 3.5)) add(r:lrange(\"l\", 0, -1))\n\
         add(r:mget(\"a\", \"none\", \"n\")[2]) add(r:hset(\"h\", \"f\", \"v\")) add(r:hgetall(\"h\"))\n\
         add(r:setex(\"t\", 60, \"x\")) add(r:ttl(\"t\") > 50) add(r:command(\"ECHO\", \"x\"))\n\
         local no, why = r:lpush(\"a\", 1)\n\
         add(no == nil and why:match(\"WRONGTYPE\") or why)\n\
         local answers = r:pipeline { { \"incr\", \"n\" }, { \"lpush\", \"a\", 1 }, { \"get\", \"n\" }, { \"get\", \"none\" } }\n\
         add(answers[1]) add(answers[2].err ~= nil) add(answers[3]) add(answers[4])\n\
         add(r:eval(\"return { 1, false, 'x', { 2 } }\", 0))\n\
         return table.concat(all, \" \")",
    );
    let large = with_redis(
        &redis,
        "local text = (\"x\"):rep(3 * 1024 * 1024)\nassert(r:set(\"large\", text))\nreturn r:get(\"large\") == text",
    );
    let wrong = with_redis(&redis, "return r:set(\"a\", {})");
    let server = site(
        &[],
        &[
            ("commands", &commands),
            ("large", &large),
            ("wrong", &wrong),
        ],
    )
    .start();
    assert_eq!(
        ask(&server, "/commands"),
        "\"OK\" 7 true 1 42 3 [\"1\",\"two\",\"3.5\"] false 1 [\"f\",\"v\"] \"OK\" true \"x\" \"WRONGTYPE\" \
         43 true \"43\" false [1,false,\"x\",[2]]"
    );
    assert_eq!(ask(&server, "/large"), "true");
    // A mistake of the script is an error of the script.
    assert_eq!(server.get("/wrong").status, 500);
    let line = expect_lua_lines(&server, 1).remove(0);
    assert!(line.contains("wrong.lua"), "{line}");
}

#[test]
fn many_requests_share_few_connections() {
    if !can_run(
        "lua_api::many_requests_share_few_connections",
        &["redis-server"],
    ) {
        return;
    }
    let redis = redis(Tree::new());
    let script = with_redis(
        &redis,
        "for i = 1, 10 do assert(r:incr(\"all\")) end\nreturn assert(r:get(\"all\"))",
    );
    let connections = with_redis(
        &redis,
        "return r:info(\"stats\"):match(\"total_connections_received:(%d+)\")",
    );
    let server = site(&[], &[("counts", &script), ("connections", &connections)])
        .config("server.max-worker = 1")
        .start();
    for _ in 0..5 {
        let mut clients: Vec<_> = (0..20).map(|_| server.client()).collect();
        for client in &mut clients {
            client.send("GET /counts HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        for client in &mut clients {
            assert_eq!(client.response().status, 200);
        }
    }
    let redis_says = ask(&server, "/counts");
    assert_eq!(redis_says, "1010");
    let made: usize = ask(&server, "/connections").parse().expect("a number");
    assert!(made <= 30, "{made} connections for 1010 commands");
}

#[test]
fn memcached_keeps_what_scripts_give_it() {
    if !can_run(
        "lua_api::memcached_keeps_what_scripts_give_it",
        &["memcached"],
    ) {
        return;
    }
    let ((_one, first), (_two, second)) = (memcached(), memcached());
    let script = says(&format!(
        "local m = petrel.memcached{{ servers = {{ \"127.0.0.1:{first}\", \"127.0.0.1:{second}\" }}, prefix = \"p:\" }}\n\
         local all = {{}}\n\
         local function add(value) all[#all + 1] = petrel.json.encode(value) end\n\
         add(m:set(\"a\", \"one\", 60, 7)) add({{ m:get(\"a\") }}) add(m:get(\"none\") == nil) add(m:add(\"a\", \"x\"))\n\
         add(m:set(\"n\", 5)) add(m:incr(\"n\", 3)) add(m:decr(\"n\")) add(m:incr(\"none\") == nil)\n\
         add(m:append(\"a\", \"!\")) add((m:get(\"a\"))) add(m:replace(\"none\", 1)) add(m:touch(\"a\", 60))\n\
         local _, _, cas = m:gets(\"a\")\n\
         add(m:cas(\"a\", \"two\", cas)) add((m:cas(\"a\", \"three\", cas)))\n\
         for i = 1, 50 do m:set(\"k\" .. i, i) end\n\
         local keys = {{}} for i = 1, 60 do keys[i] = \"k\" .. i end\n\
         local found, count = m:get_many(keys), 0\n\
         for k, v in pairs(found) do assert(k == \"k\" .. v) count = count + 1 end\n\
         add(count) add(m:delete(\"a\")) add(m:delete(\"a\"))\n\
         return table.concat(all, \" \")"
    ));
    let server = site(&[], &[("commands", &script)]).start();
    let said = ask(&server, "/commands");
    assert!(
        said.starts_with("true [\"one\",7")
            && said.contains(" true false true 8 7 true true \"one!\" false true "),
        "{said}"
    );
    assert!(said.ends_with(" 50 true false"), "{said}");
}

/// A redis-server ends and starts again while the server uses it.
#[test]
fn redis_goes_away_and_comes_back() {
    if !can_run("lua_api::redis_goes_away_and_comes_back", &["redis-server"]) {
        return;
    }
    let place = Tree::new();
    let script = says(&format!(
        "local r = petrel.redis{{ socket = \"{}\", timeout = 0.5 }}\n\
         local n, why = r:incr(\"n\")\nreturn n or \"away: \" .. why",
        place.path("redis.sock").display()
    ));
    let server: Server = site(&[], &[("counts", &script)])
        .config("server.max-worker = 1")
        .start();
    let away = ask(&server, "/counts");
    assert!(away.starts_with("away: "), "{away}");
    for _ in 0..2 {
        let running = redis_at(Tree::new(), &place.path("redis.sock"));
        assert!(
            petrel_tests::eventually(|| ask(&server, "/counts") == "1"),
            "it is not found again"
        );
        assert_eq!(ask(&server, "/counts"), "2");
        drop(running);
        let away = ask(&server, "/counts");
        assert!(away.starts_with("away: "), "{away}");
    }
    assert!(crate::lua_api::lua_lines(&server).is_empty());
}
