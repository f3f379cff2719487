//! Scripts that use too much: each is stopped, named in the log and answered, without effect on other
//! requests.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use petrel_tests::{Address, Client, SOON, Server, eventually};

use crate::lua_api::{
    ask, expect_flat_memory, expect_lua_lines, is_script_error, lua_lines, says, site_with_budgets,
    threads,
};

/// Scripts that never end by themselves.
const ENDLESS: &[(&str, &str)] = &[
    ("plain", "while true do end"),
    (
        "calls",
        "local function f() return 1 end\nwhile true do f() end",
    ),
    ("tail_calls", "local function f() return f() end\nf()"),
    (
        "in_pcall",
        "while true do\n pcall(function() while true do end end)\nend",
    ),
    (
        "in_coroutine",
        "coroutine.wrap(function()\n while true do end\nend)()",
    ),
    (
        "in_coroutines",
        "while true do\n coroutine.wrap(function()\n  pcall(function() while true do end end)\n end)()\nend",
    ),
    (
        "in_sort",
        "local t = {}\nfor i = 1, 100 do t[i] = i end\ntable.sort(t, function() while true do end end)",
    ),
    (
        "in_gsub",
        "string.gsub(\"abc\", \".\", function()\n while true do end\nend)",
    ),
    (
        "in_handler",
        "while true do\n xpcall(error, function() while true do end end, 1)\nend",
    ),
    (
        "in_index",
        "local t = setmetatable({}, { __index = function() while true do end end })\nreturn t.x",
    ),
    (
        "in_tostring",
        "local t = setmetatable({}, { __tostring = function()\n while true do pcall(function() while true do end end) end\nend })\n\
         while true do pcall(tostring, t) end",
    ),
    (
        "in_compare",
        "local m = {}\nm.__lt = function() while true do end end\n\
         local a, b = setmetatable({}, m), setmetatable({}, m)\nreturn a < b",
    ),
    ("in_reader", "load(function()\n while true do end\nend)"),
    (
        "in_ipairs",
        "local t = setmetatable({}, { __index = function() return 1 end })\nfor _ in ipairs(t) do end",
    ),
    (
        "in_gmatch",
        "for _ in string.gmatch((\" \"):rep(1000), \".\") do\n while true do end\nend",
    ),
    (
        "in_write",
        "lighty.content = setmetatable({}, { __index = function() while true do end end })\n\
         while true do local _ = lighty.content[1] end",
    ),
    ("in_load", "load(\"while true do end\", \"=in_load.lua\")()"),
    ("collecting", "while true do collectgarbage() end"),
    (
        "rewritten_pcall",
        "pcall = function(f, ...) f(...) end\nlocal stop = error\nerror = print\nwhile true do pcall(function() end) end",
    ),
];

/// Calls that need too much work or memory, or never return.
const EXCESSIVE: &[(&str, &str)] = &[
    ("rep", "local s = string.rep(\"x\", 1e10)\nreturn #s"),
    ("rep_of_rep", "return #((\"x\"):rep(1e5):rep(1e5))"),
    (
        "pattern",
        "local p = (\"a?\"):rep(50) .. (\"a\"):rep(50)\nlocal x = string.find((\"a\"):rep(50), p)",
    ),
    (
        "pattern_of_minus",
        "local x = (\"a\"):rep(30000):find(\".-.-.-.-.-b\")",
    ),
    (
        "gsub_of_minus",
        "local x = (\"a\"):rep(30000):gsub(\".-.-.-.-.-b\", \"\")",
    ),
    (
        "concat",
        "local t, piece = {}, (\"x\"):rep(10000)\nfor i = 1, 20000 do t[i] = piece end\nreturn #table.concat(t)",
    ),
    (
        "recursion",
        "local function f(n) return 1 + f(n + 1) end\nlocal x = f(1)",
    ),
    (
        "recursion_by_index",
        "local t = setmetatable({}, {})\ngetmetatable(t).__index = function(t, k) return t[k .. 1] end\nreturn t.x",
    ),
    (
        "recursion_by_gsub",
        "local function f(s) return (s:gsub(\".\", f)) end\nlocal x = f(\"a\")",
    ),
    (
        "recursion_by_coroutine",
        "local function f() coroutine.wrap(f)() end\nf()",
    ),
    (
        "recursion_by_tostring",
        "local m = {}\nlocal t = setmetatable({}, m)\nm.__tostring = function(t) return tostring(t) .. 1 end\nlocal x = tostring(t)",
    ),
    ("doubling", "local s = \"x\"\nwhile true do s = s .. s end"),
    (
        "tables",
        "local t = {}\nwhile true do t[#t + 1] = { #t } end",
    ),
    (
        "coroutines",
        "local t = {}\nwhile true do t[#t + 1] = coroutine.create(print) end",
    ),
    (
        "closures_in_pcall",
        "local t = {}\nwhile true do pcall(function() while true do t[#t + 1] = { {} } end end) end",
    ),
    ("unpack", "return select(\"#\", unpack({}, 1, 1e8))"),
    ("move", "table.move({}, 1, 1e15, 2)\nerror(\"moved\")"),
    (
        "concat_of_index",
        "return #table.concat(setmetatable({}, { __index = function() return \"x\" end }), \"\", 1, 1e15)",
    ),
    (
        "source",
        "local s = \"x = 1 \"\nlocal f = assert(load(s:rep(1e6)))",
    ),
    (
        "parentheses",
        "local f = assert(load(\"return \" .. (\"(\"):rep(1e5) .. \"1\" .. (\")\"):rep(1e5)))",
    ),
    (
        "expression",
        "local x = assert(petrel.regex.match((\"a\"):rep(5000), \"^(a+)+b\"))",
    ),
    (
        "json",
        "local t = {}\nt.t = t\nlocal x = assert(petrel.json.encode(t))",
    ),
    (
        "json_depth",
        "local x = assert(petrel.json.decode((\"[\"):rep(1e6)))",
    ),
    ("random", "local x = assert(petrel.random.bytes(1e15))"),
    ("header", "lighty.header[\"X-A\"] = (\"x\"):rep(1e10)"),
    (
        "error_of_table",
        "error(setmetatable({}, { __tostring = function() error(\"again\") end }))",
    ),
    (
        "error_in_handler",
        "xpcall(error, function() error(\"in the handler\") end, 1)\nerror(\"after\")",
    ),
    ("error_of_nil", "error()"),
    ("yields", "coroutine.yield(1)"),
    ("yields_userdata", "coroutine.yield(io.stdout)"),
];

fn good() -> String {
    says(
        "local t = {} for i = 1, 100 do t[i] = 101 - i end table.sort(t) return t[1], (\"x\"):rep(3), (pcall(error))",
    )
}

fn one_worker(scripts: &[(&str, &str)]) -> Server {
    let good = good();
    let scripts = [scripts, &[("good", good.as_str())]].concat();
    site_with_budgets(&[], &scripts)
        .config("lua.max-run-time = 10")
        .config("server.max-worker = 1")
        .start()
}

/// Runs each script. One line in the log names it, and the next script finds everything in order.
fn each_is_stopped(scripts: &[(&str, &str)]) {
    let server = one_worker(scripts);
    let mut failures = String::new();
    let mut longest = Duration::ZERO;
    for (index, (name, _)) in scripts.iter().enumerate() {
        let begin = Instant::now();
        let response = server.get(&format!("/{name}"));
        let took = begin.elapsed();
        longest = longest.max(took);
        let lines = expect_lua_lines(&server, index + 1);
        let line = lines.last().map_or("", String::as_str);
        let key = format!("{name}.lua:");
        let mut places = line.split(&key).skip(1);
        let has_line = places.any(|place| place.starts_with(|first: char| first.is_ascii_digit()));
        if !is_script_error(&response) || !has_line {
            let _ = writeln!(failures, "{name}: {} {line}", response.status);
        }
        if took > SOON {
            let _ = writeln!(failures, "{name}: took {took:?}");
        }
        assert_eq!(ask(&server, "/good"), "1 xxx false", "after {name}");
    }
    println!("the longest took {longest:?}");
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn endless_scripts_are_stopped_wherever_they_loop() {
    each_is_stopped(ENDLESS);
}

#[test]
fn excessive_calls_are_refused_or_stopped() {
    each_is_stopped(EXCESSIVE);
}

/// Requests a file again and again until told to stop. Returns the longest time that a response took.
fn slowest_answer(address: &Address, stop: &AtomicBool) -> Duration {
    let mut client = Client::connect(address);
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        assert_eq!(client.get("/").status, 200);
        longest = longest.max(begin.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    longest
}

/// It takes so long because each endless script runs twenty times until its budget is spent.
#[test]
fn other_connections_are_answered_meanwhile() {
    let server = one_worker(ENDLESS);
    let costs = ENDLESS.iter().map(|(name, _)| {
        let target = format!("/{name}");
        let before = server.processes().cpu_time();
        // The best of a few rounds, since the machine may be busy with something else.
        let best = (0..5).map(|_| slowest_beside(&server, &target)).min();
        let each = (server.processes().cpu_time() - before) / (5 * STOPPED);
        (*name, best.expect("five rounds"), each)
    });
    let costs: Vec<_> = costs.collect();
    println!("{costs:?}");
    // The plain loop shows what stopping one costs on this machine.
    let (_, _, plain) = costs[0];
    let is_slow =
        |(_, best, each): &&(&str, Duration, Duration)| *best > SOON || *each > 10 * plain;
    let slow: Vec<_> = costs.iter().filter(is_slow).collect();
    assert!(slow.is_empty(), "{slow:?}");
}

/// How many scripts are stopped per round.
const STOPPED: u32 = 4;

/// The longest time that a file took while scripts were stopped.
fn slowest_beside(server: &Server, target: &str) -> Duration {
    let stop = Arc::new(AtomicBool::new(false));
    let others = {
        let (address, stop) = (server.address().clone(), Arc::clone(&stop));
        std::thread::spawn(move || slowest_answer(&address, &stop))
    };
    for _ in 0..STOPPED {
        assert!(is_script_error(&server.get(target)));
    }
    stop.store(true, Ordering::Relaxed);
    others.join().expect("it does not panic")
}

/// It takes so long because hundreds of scripts run until their budgets are spent, one after the other.
#[test]
fn hundreds_of_stopped_scripts_leave_nothing_behind() {
    let server = one_worker(&[
        (
            "loop",
            "local t = {}\nfor i = 1, 1e4 do t[i] = {} end\nwhile true do end",
        ),
        (
            "memory",
            "local t = {}\nwhile true do t[#t + 1] = (\"x\"):rep(1e6) .. #t end",
        ),
        (
            "waits",
            "petrel.sleep(0)\nwhile true do pcall(function() while true do end end) end",
        ),
    ]);
    let round = || {
        for name in ["/loop", "/memory", "/waits"] {
            for _ in 0..25 {
                assert!(is_script_error(&server.get(name)));
            }
        }
        ask(&server, "/good");
    };
    round();
    let before = (threads(&server), server.holdings());
    expect_flat_memory(&server, 12, 1 << 20, round);
    // A lookup thread ends when it has had no work for a while.
    assert!(threads(&server) <= before.0, "{}", threads(&server));
    server.expect_holdings(&before.1);
}

#[test]
fn the_time_can_be_configured() {
    let work =
        says("local begin = os.clock() while os.clock() - begin < 0.4 do end return \"done\"");
    let server = site_with_budgets(&[], &[("work", &work)])
        .config("lua.max-run-time = 5000")
        .start();
    assert_eq!(ask(&server, "/work"), "done");
    // The log names it, if the watchdog had a processor meanwhile.
    assert!(eventually(|| {
        ask(&server, "/work");
        let named = "work.lua: used more than 10 ms of processor time without a wait";
        server.log().contains(named)
    }));
    let server = site_with_budgets(&[], &[("work", &work)]).start();
    assert_eq!(server.get("/work").status, 500);
    let line = expect_lua_lines(&server, 1).remove(0);
    assert!(
        line.contains("100 ms") && line.contains("work.lua:2"),
        "{line}"
    );
}

#[test]
fn the_time_between_two_waits_counts() {
    let work = says(
        "for _ = 1, 20 do local begin = os.clock() while os.clock() - begin < 0.003 do end petrel.sleep(0) end\n\
         return \"done\"",
    );
    let server = site_with_budgets(&[], &[("work", &work)]).start();
    assert_eq!(ask(&server, "/work"), "done");
}

#[test]
fn the_memory_can_be_configured() {
    let fill = |count| {
        says(&format!(
            "local t = {{}} for i = 1, {count} do t[i] = (\"x\"):rep(1e5) .. i end return #t"
        ))
    };
    // The watchdog may be late on a busy machine, so this runs for long enough.
    let server = site_with_budgets(&[], &[("work", &fill(5000))])
        .config("lua.max-run-time = 5000\nlua.max-run-memory = 4096")
        .start();
    assert_eq!(server.get("/work").status, 500);
    let line = expect_lua_lines(&server, 1).remove(0);
    assert!(
        line.contains("4 MiB") && line.contains("work.lua:2"),
        "{line}"
    );
    let server = site_with_budgets(&[], &[("work", &fill(200))])
        .config("lua.max-run-time = 5000")
        .start();
    assert_eq!(ask(&server, "/work"), "200");
}

#[test]
fn a_state_that_is_full_is_replaced_without_a_failed_request() {
    let keep = says(
        "package.path = lighty.r.req_attr[\"uri.query\"] .. \"/?.lua\"\n\
         local kept = require(\"kept\")\nkept[#kept + 1] = (\"x\"):rep(1e5) .. #kept\nreturn #kept",
    );
    let waits = says("local id = tostring({}) petrel.sleep(1) return \"waited\"");
    let server = site_with_budgets(&[], &[("keep", &keep), ("waits", &waits)])
        .file("modules/kept.lua", "return {}")
        .config("server.max-worker = 1\nlua.max-state-memory = 4096\nlua.max-run-time = 200")
        .start();
    let target = format!("/keep?{}", server.tree().path("modules").display());
    let mut waiting = server.client();
    waiting.send("GET /waits HTTP/1.1\r\nHost: a\r\n\r\n");
    std::thread::sleep(Duration::from_millis(50));
    let counts: Vec<usize> = (0..100)
        .map(|_| ask(&server, &target).parse().expect("a number"))
        .collect();
    let replaced = counts.windows(2).filter(|two| two[1] == 1).count();
    assert!((2..=15).contains(&replaced), "{counts:?}");
    let most = counts.iter().max().expect("a hundred");
    assert!((8..=45).contains(most), "{counts:?}");
    assert_eq!(waiting.response().text(), "waited");
    expect_flat_memory(&server, 8, 4 << 20, || {
        for _ in 0..40 {
            ask(&server, &target);
        }
    });
    assert!(lua_lines(&server).is_empty());
}
