//! Tests of coroutines, and of functions of later Lua versions.

use mlua::{Function, Value};

use super::super::{WAIT, environment};
use super::{run, show, state};

#[test]
fn coroutines_pass_waits_outwards() {
    let lua = state();
    let wait: Value = lua.named_registry_value(WAIT).expect("a sentinel");
    let wait_function: Function = lua
        .load("local wait = ... return function() return (coroutine.yield(wait)) end")
        .call(wait.clone())
        .expect("sound");
    lua.globals().set("wait", wait_function).expect("set");
    let env = environment(&lua).expect("globals");
    let script = "
        local inner = coroutine.wrap(function()
            local nested = coroutine.create(function() local got = wait() coroutine.yield('n' .. got) return 'end' end)
            local _, first = coroutine.resume(nested)
            coroutine.yield(first .. wait())
            return coroutine.status(nested)
        end)
        return inner(), inner()";
    let body: Function = lua
        .load(script)
        .set_environment(env)
        .into_function()
        .expect("sound");
    let thread = lua.create_thread(body).expect("a thread");
    for value in ["", "1", "2"] {
        let yielded: mlua::Variadic<Value> = thread.resume(value).expect("resumed");
        if value == "2" {
            let shown: Vec<_> = yielded.iter().map(show).collect();
            assert_eq!(shown, ["n12", "suspended"]);
        } else {
            assert_eq!(yielded.first(), Some(&wait), "{value}");
        }
    }
}

#[test]
fn coroutines_of_others_are_not_resumed() {
    let lua = state();
    let script = "local main = coroutine.running() local told
        coroutine.wrap(function() told = { coroutine.resume(main) } end)() return unpack(told)";
    let env = environment(&lua).expect("globals");
    let body: Function = lua
        .load(script)
        .set_environment(env)
        .into_function()
        .expect("sound");
    let thread = lua.create_thread(body).expect("a thread");
    let told: (bool, String) = thread.resume(()).expect("runs");
    assert_eq!(
        told,
        (false, "cannot resume non-suspended coroutine".to_owned())
    );
}

#[test]
fn coroutines_close() {
    let lua = state();
    let script = "local c = coroutine.create(function() coroutine.yield(1) end) coroutine.resume(c)
        local closed = coroutine.close(c)
        return closed, coroutine.status(c), coroutine.resume(c)";
    assert_eq!(
        run(&lua, script),
        "true dead false cannot resume dead coroutine"
    );
    assert_eq!(
        run(
            &lua,
            "return select('#', coroutine.wrap(function() end)()), coroutine.isyieldable()"
        ),
        "0 false"
    );
    assert_eq!(
        run(
            &lua,
            "return pcall(coroutine.wrap(function() error({}, 0) end))"
        )
        .split(' ')
        .next(),
        Some("false")
    );
    assert_eq!(
        run(
            &lua,
            "return pcall(coroutine.wrap(function() error('x', 0) end))"
        ),
        "false x"
    );
}

#[test]
fn later_functions_are_there() {
    let lua = state();
    for (script, answer) in [
        (
            "local t = table.pack(1, nil, 3) return t.n, table.unpack(t, 1, t.n)",
            "3 1 nil 3",
        ),
        (
            "return table.concat(table.move({1, 2, 3}, 2, 3, 1), ',')",
            "2,3,3",
        ),
        (
            "return table.concat(table.move({1, 2, 3}, 1, 3, 2), ',')",
            "1,1,2,3",
        ),
        (
            "return math.type(1), math.type(1.5), math.type('1'), math.type(2^53)",
            "integer float nil float",
        ),
        (
            "return math.tointeger(3), math.tointeger('8'), math.tointeger(3.5)",
            "3 8 nil",
        ),
        (
            "return math.ult(1, 2), math.ult(-1, 2), math.ult(1, -2)",
            "true false true",
        ),
        (
            "return math.maxinteger + 1 > math.maxinteger, math.fmod(-5, 3)",
            "true -2",
        ),
        (
            "return pcall(math.fmod, 1, 0)",
            "false bad argument #2 to 'fmod' (zero)",
        ),
        (
            "return utf8.char(72, 228, 8364, 128512), utf8.len('aä€😀'), utf8.len('\\xff')",
            "Hä€😀 4 nil 1",
        ),
        ("return utf8.codepoint('aä€', 1, -1)", "97 228 8364"),
        (
            "local t = {} for p, c in utf8.codes('aä€') do t[#t + 1] = p .. ':' .. c end return table.concat(t, ' ')",
            "1:97 2:228 4:8364",
        ),
        (
            "return utf8.offset('aä€b', 3), utf8.offset('aä€b', -2), utf8.offset('aä€b', 0, 3)",
            "4 4 2",
        ),
        (
            "local t = {} for c in ('aä€'):gmatch(utf8.charpattern) do t[#t + 1] = c end return #t",
            "3",
        ),
        (
            "return utf8.len('\\xED\\xA0\\x80', 1, -1, true), #utf8.char(0x7FFFFFFF)",
            "1 6",
        ),
        (
            "return bit32.band(0xFF, 0x0F), bit32.bnot(0), bit32.lshift(1, 31), bit32.extract(0xABCD, 4, 8), bit32.replace(0, 5, 4, 4)",
            "15 4294967295 2147483648 188 80",
        ),
        (
            "return bit32.arshift(0x80000000, 4), bit32.rrotate(1, 1), bit32.btest(6, 1), bit32.rshift(256, -1), bit32.lshift(1, 32)",
            "4160749568 2147483648 false 512 0",
        ),
        (
            "return rawlen({1, 2}), rawlen('abc'), select('#', table.unpack({}, 1, 3))",
            "2 3 3",
        ),
        (
            "local t = setmetatable({}, { __index = function(_, i) if i < 4 then return i * i end end }) local s = 0 for _, v in ipairs(t) do s = s + v end return s",
            "14",
        ),
        (
            "local t = setmetatable({}, { __pairs = function() return next, { a = 1 } end }) for k, v in pairs(t) do return k, v end",
            "a 1",
        ),
        (
            "return xpcall(function(a, b) return a + b end, print, 1, 2)",
            "true 3",
        ),
        ("goto done do return 1 end ::done:: return 2", "2"),
        (
            "return ('%q'):format('a\\nb'), ('%s'):format(nil)",
            "\"a\\\nb\" nil",
        ),
        (
            "local t = {1} require('table.clear')(t) return type(require('table.new')(4, 4)), #t",
            "table 0",
        ),
    ] {
        let told = run(&lua, script);
        assert_eq!(told, answer, "{script}");
    }
}

#[test]
fn random_numbers_are_not_steered_by_others() {
    let lua = state();
    let draw = "math.randomseed(42) return math.random(1000000), math.random(1000000)";
    assert_eq!(run(&lua, draw), run(&lua, draw));
    let free = "return math.random(1000000000)";
    assert_ne!(run(&lua, free), run(&lua, free));
    assert_ne!(run(&state(), free), run(&state(), free));
    let bounds = "math.randomseed(1) for i = 1, 1000 do local n = math.random(3, 5) if n < 3 or n > 5 or n % 1 ~= 0 then return n end
        local f = math.random() if f < 0 or f >= 1 then return f end end return 'good'";
    assert_eq!(run(&lua, bounds), "good");
}
