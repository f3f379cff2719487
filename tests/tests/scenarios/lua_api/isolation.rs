//! What a script can access, and that no other request sees its changes.

use std::collections::BTreeSet;

use petrel_tests::Server;

use crate::lua_api::{ask, lua_lines, says, site, site_with_budgets};

/// Visits everything that is reachable from a script's globals: tables, metatables, environments.
const WALK: &str = r#"
local seen, order, functions = {}, {}, {}
local function visit(value, name, depth)
  local kind = type(value)
  if kind ~= "table" and kind ~= "function" and kind ~= "userdata" and kind ~= "thread" then return end
  if seen[value] or depth > 8 then return end
  seen[value] = name
  order[#order + 1] = name .. ":" .. kind
  if kind == "table" then
    for k, v in pairs(value) do
      visit(k, name .. "[" .. tostring(k):gsub("0x%x+", "*") .. "]", depth + 1)
      visit(v, name .. "." .. tostring(k):gsub("0x%x+", "*"), depth + 1)
    end
    local k, v = next(value)
    while k ~= nil do visit(v, name .. ".raw." .. tostring(k):gsub("0x%x+", "*"), depth + 1) k, v = next(value, k) end
  end
  if kind == "function" then functions[#functions + 1] = value end
  local meta = getmetatable(value)
  if type(meta) == "table" then visit(meta, name .. "@meta", depth + 1) end
end
-- What shows through the globals is not listed by them.
for name in ([[_VERSION arg assert bit bit32 collectgarbage coroutine debug dofile error ffi gcinfo getfenv getmetatable io
  ipairs jit lighty load loadfile loadstring math module newproxy next os pairs pcall petrel print rawequal rawget
  rawlen rawset require select setfenv setmetatable string table tonumber tostring type unpack utf8 warn xpcall package]]):gmatch("%S+") do
  visit(_G[name], "_G." .. name, 0)
end
visit(_G, "_G", 0)
for _, f in ipairs(functions) do
  local ok, env = pcall(getfenv, f)
  if ok then visit(env, "env of " .. seen[f], 0) end
end
visit(getmetatable(""), "strings", 0)
for level = 0, 20 do
  local ok, env = pcall(getfenv, level)
  if ok then visit(env, "getfenv(" .. level .. ")", 0) end
end
visit(coroutine.running(), "running", 0)
visit(package.loaded, "loaded", 0)
visit(package.preload, "preload", 0)
visit(io.stdout, "stdout", 0)
"#;

/// Names that must not be reachable.
const FORBIDDEN: &[&str] = &[
    ".ffi",
    ".jit",
    ".getregistry",
    ".sethook",
    ".setlocal",
    ".getlocal",
    ".getupvalue",
    ".setupvalue",
    ".upvaluejoin",
    ".setmetatable:function@debug",
    ".exit",
    ".loadlib",
    ".newproxy",
    ".cpath.",
    ".loaders",
    ".searchers",
    ".upvalueid",
    ".setuservalue",
    ".getuservalue",
    ".gcinfo",
    "@env.debug.getregistry",
];

#[test]
fn nothing_dangerous_can_be_reached() {
    let walk = format!("{WALK}\nlighty.content = {{ table.concat(order, \"\\n\") }} return 200");
    let server = site_with_budgets(&[], &[("walk", &walk)])
        .config("lua.max-run-time = 2000")
        .start();
    let text = ask(&server, "/walk");
    let found: BTreeSet<&str> = text.lines().collect();
    assert!(found.len() > 250, "{} things", found.len());
    for name in [
        "_G.string.format:function",
        "_G.petrel:table",
        "_G.lighty:table",
    ] {
        assert!(found.contains(name), "{name}: {text}");
    }
    for line in &found {
        for name in FORBIDDEN {
            let end = line.split(':').next().unwrap_or_default();
            assert!(
                !end.ends_with(name) && !end.contains(&format!("{name}.")),
                "{line}"
            );
        }
    }
    let debug: Vec<&&str> = found
        .iter()
        .filter(|line| line.starts_with("_G.debug."))
        .collect();
    assert_eq!(
        debug,
        [&"_G.debug.getinfo:function", &"_G.debug.traceback:function"]
    );
}

/// Attacks, none of which may succeed.
const ATTEMPTS: &[(&str, &str)] = &[
    ("require ffi", "return require(\"ffi\") == nil"),
    ("require jit", "return require(\"jit\") == nil"),
    ("require jit.opt", "return require(\"jit.opt\") == nil"),
    (
        "require string.buffer",
        "return require(\"string.buffer\") == nil",
    ),
    (
        "package.loaded",
        "return package.loaded.ffi == nil and package.loaded.jit == nil and package.loaded._G == nil and package.preload.ffi == nil",
    ),
    ("binary", "return load(string.dump(function() end)) == nil"),
    (
        "binary mode",
        "return load(\"\\27LJ\\2\", \"x\", \"b\") == nil",
    ),
    ("exit", "os.exit(1)"),
    ("registry", "debug.getregistry()"),
    ("hook", "debug.sethook(print, \"c\")"),
    ("upvalues", "debug.getupvalue(require, 1)"),
    (
        "getinfo of a function",
        "return debug.getinfo(print) == nil or debug.getinfo(print).func == nil",
    ),
    (
        "getinfo of a level",
        "local i = debug.getinfo(1, \"nSlufL\") return i.func == nil and i.activelines == nil",
    ),
    ("newproxy", "newproxy(true)"),
    ("environment of the program", "setfenv(0, {})"),
    ("environment of a library", "setfenv(require, {})"),
    ("environment of Lua's own", "setfenv(print, {})"),
    ("raw write", "rawset(string, \"x\", 1)"),
    ("insert", "table.insert(string, 1)"),
    ("metatable of a library", "setmetatable(string, {})"),
    ("metatable of petrel", "setmetatable(petrel, nil)"),
    ("metatable of lighty.r", "setmetatable(lighty.r, {})"),
    (
        "metatable of files",
        "getmetatable(io.stdout).__index.close = 1",
    ),
    ("__gc of strings", "getmetatable(\"\").__gc = print"),
    (
        "__metatable of strings",
        "getmetatable(\"\").__metatable = nil",
    ),
    (
        "locale",
        "return os.setlocale(\"de_DE.UTF-8\") == nil and os.setlocale(\"C.UTF-8\") == nil and tostring(1.5) == \"1.5\"",
    ),
    (
        "stop the collector",
        "collectgarbage(\"stop\") collectgarbage(\"setpause\", 100000) return collectgarbage(\"isrunning\")",
    ),
    (
        "resume the run",
        "local main = coroutine.running() return coroutine.wrap(function() return not coroutine.resume(main) end)()",
    ),
    (
        "close the run",
        "local main = coroutine.running() coroutine.wrap(function() coroutine.close(main) end)()",
    ),
    (
        "close standard output",
        "local ok = io.stdout:close() return not ok",
    ),
    (
        "raw environment",
        "return rawget(_G, \"string\") == nil and getmetatable(_G) == false",
    ),
    ("raw library", "return next(string) == nil"),
];

#[test]
fn attempts_at_the_server_come_to_nothing() {
    let mut tries = String::new();
    for (name, source) in ATTEMPTS {
        tries.push_str(&format!("add({name:?}, function()\n{source}\nend)\n"));
    }
    let script = format!(
        "local bad = {{}}\n\
         local function add(name, try)\n local ok, value = pcall(try)\n\
         if ok and value ~= true then bad[#bad + 1] = name .. \": \" .. tostring(value) end\nend\n\
         {tries}\nlighty.content = {{ table.concat(bad, \"\\n\"), \"|\" }} return 200"
    );
    let server = site_with_budgets(&[], &[("try", &script)])
        .config("lua.max-run-time = 500")
        .start();
    for _ in 0..3 {
        assert_eq!(ask(&server, "/try"), "|");
    }
}

#[test]
fn what_is_allowed_is_there() {
    let script = says(
        "return require(\"ffi\").sizeof(\"int\"), type(debug.getregistry), type(os.exit), type(io.popen), type(jit)",
    );
    let by_default = site(
        &[],
        &[("programs", &says("return type(os.execute), type(io.popen)"))],
    );
    assert_eq!(ask(&by_default.start(), "/programs"), "function function");
    let none = site(
        &[],
        &[("programs", &says("return type(os.execute), type(io.popen)"))],
    );
    let none = none.config("lua.allow = ()").start();
    assert_eq!(ask(&none, "/programs"), "nil nil");
    let server = site(&[], &[("allowed", &script)])
        .config("lua.allow = (\"ffi\", \"debug\", \"os.exit\", \"io.popen\", \"jit\")")
        .start();
    assert_eq!(
        ask(&server, "/allowed"),
        "4 function function function table"
    );
}

/// Writes to everything that a script can write to.
const WRITES: &str = r#"
leak, _G.leak2 = "leaked", "leaked"
local function try(f, ...) pcall(f, ...) end
string.leak = function() return "leaked" end
table.leak, math.leak, os.leak, io.leak, coroutine.leak = "l", "l", "l", "l", "l"
string.format = function() return "leaked" end
math.pi, table.concat_old = 3, table.concat
tostring, pcall, type, pairs, error = print, print, print, print, print
for _, name in ipairs { "petrel", "lighty", "package", "debug", "bit", "utf8", "bit32" } do
  local t = _G[name]
  if t then try(function() t.leak = "leaked" end) try(function() t[1] = "leaked" end) end
end
for _, f in ipairs {
  function() petrel.json.leak = 1 end, function() petrel.json.null.leak = 1 end, function() petrel.file.leak = 1 end,
  function() petrel.dict("d").leak = 1 end, function() petrel.sleep = nil end, function() petrel.json.encode = nil end,
  function() lighty.r.leak = 1 end, function() lighty.c.leak = 1 end, function() lighty.server.leak = 1 end,
  function() lighty.c.md = nil end, function() lighty.stat = nil end, function() lighty.RESTART_REQUEST = 1 end,
  function() package.path = "/leaked" end, function() package.loaded.string = "leaked" end,
  function() package.loaded.leak = "leaked" end, function() package.preload.leak = print end,
  function() getmetatable("").__index = { leak = 1 } end, function() getmetatable("").__add = print end,
  function() getmetatable("").leak = 1 end, function() getmetatable("").__tostring = print end,
  function() io.output("/dev/null") end, function() io.stdout:setvbuf("no") end,
  function() math.randomseed(1) end, function() collectgarbage("stop") end,
  function() setfenv(1, {}) end, function() warn("@off") end, function() os.setlocale("C.UTF-8") end,
  function() lighty.header["X-Leak"] = "leaked" end, function() lighty.r.req_env["LEAK"] = "leaked" end,
  function() table.insert(_G, "leaked") end, function() rawset(_G, "print", nil) end,
} do try(f) end
"#;

/// Checks that would fail if those writes had an effect.
const CHECKS: &str = r#"
local bad = {}
local function expect(name, is) if not is then bad[#bad + 1] = name end end
expect("globals", leak == nil and leak2 == nil and rawget(_G, 1) == nil and type(print) == "function")
expect("functions", type(1) == "number" and tostring(1) == "1" and pcall(type, 1) and select(2, pcall(error, "x", 0)) == "x")
for _, name in ipairs { "string", "table", "math", "os", "io", "coroutine", "petrel", "lighty", "package", "debug", "bit" } do
  expect(name, _G[name].leak == nil and _G[name][1] == nil)
end
expect("format", string.format("%d", 5) == "5" and ("%d"):format(6) == "6" and math.pi > 3.1)
expect("strings", ("x").leak == nil and not pcall(function() return "x" + {} end) and getmetatable("").__tostring == nil)
expect("json", petrel.json.leak == nil and petrel.json.encode({ 1 }) == "[1]" and petrel.file.leak == nil)
expect("null", tostring(petrel.json.null):find("leak") == nil and petrel.json.encode(petrel.json.null) == "null")
expect("petrel", type(petrel.sleep) == "function" and petrel.dict("d").leak == nil)
expect("lighty", lighty.r.leak == nil and lighty.c.leak == nil and type(lighty.c.md) == "function" and type(lighty.stat) == "function")
expect("restart", lighty.RESTART_REQUEST == 99)
expect("package", package.path ~= "/leaked" and package.loaded.leak == nil and package.preload.leak == nil and package.loaded.string == string)
expect("files", io.output() == io.stdout)
expect("header", next(lighty.header) == nil and lighty.r.req_env["LEAK"] == nil)
local a, b = math.random(), math.random()
lighty.content = { #bad == 0 and "clean" or table.concat(bad, " "), " ", a .. "" }
return 200
"#;

fn isolation_server(config: &str) -> Server {
    let slow =
        format!("{WRITES}\npetrel.sleep(1)\nlighty.content = {{ leak, string.leak() }} return 200");
    let writes = format!("{WRITES}\nlighty.content = {{ \"written\" }} return 200");
    site_with_budgets(
        &[],
        &[
            ("writes", &writes),
            ("slow", &slow),
            ("fails", &format!("{WRITES}\nlocal x = nil + 1")),
            ("loops", &format!("{WRITES}\nwhile true do end")),
            ("checks", CHECKS),
        ],
    )
    .config("server.max-worker = 1")
    .config(config)
    .start()
}

fn check(server: &Server, after: &str) -> String {
    let text = ask(server, "/checks");
    let (verdict, random) = text.rsplit_once(' ').expect("two words");
    assert_eq!(verdict, "clean", "after {after}");
    random.to_owned()
}

#[test]
fn nothing_of_a_request_is_seen_by_the_next() {
    let server = isolation_server("");
    check(&server, "nothing");
    let mut numbers = BTreeSet::new();
    for _ in 0..5 {
        let response = server.get("/writes");
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, "written")
        );
        numbers.insert(check(&server, "a script that writes"));
        assert_eq!(server.get("/fails").status, 500);
        check(&server, "one that fails");
        assert_eq!(server.get("/loops").status, 500);
        check(&server, "one that is stopped");
    }
    println!("{} random numbers of 5", numbers.len());
    // Two lines per round, which the log may have combined.
    assert!(!lua_lines(&server).is_empty());
}

#[test]
fn nothing_of_a_request_that_waits_is_seen_by_others() {
    let server = isolation_server("");
    let mut waiting = server.client();
    waiting.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    std::thread::sleep(std::time::Duration::from_millis(200));
    for _ in 0..20 {
        check(&server, "one that waits");
        ask(&server, "/writes");
    }
    // The waiting script finds what it wrote.
    assert_eq!(waiting.response().text(), "leakedleaked");
    check(&server, "all");
}
