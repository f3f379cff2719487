//! Scripts against the opened libraries: what runs share, and what scripts cannot reach.

mod excess;
mod functions;
mod limits;
mod modules;

use mlua::{Lua, LuaOptions, StdLib, Value};

use super::*;

/// A state with the libraries of scripts.
pub(in crate::library) fn state() -> Lua {
    state_with(&LibraryOptions::default())
}

fn state_with(options: &LibraryOptions) -> Lua {
    let settings = LuaOptions::new().catch_rust_panics(false);
    let lua = Lua::new_with(StdLib::ALL_SAFE, settings).expect("a state");
    open(&lua, options).expect("libraries");
    lua
}

/// Runs `source` with fresh globals, as the server does, and returns its results as text.
pub(in crate::library) fn run(lua: &Lua, source: &str) -> String {
    let env = environment(lua).expect("globals");
    let values: mlua::Result<mlua::Variadic<Value>> = lua
        .load(source)
        .set_name("=script")
        .set_environment(env)
        .eval();
    let overlays = Overlays::of(lua).expect("opened");
    overlays.switch(lua, None).expect("unchanged libraries");
    match values {
        Ok(values) => values.iter().map(show).collect::<Vec<_>>().join(" "),
        Err(mlua::Error::RuntimeError(text)) => {
            format!("error: {}", text.lines().next().unwrap_or_default())
        }
        Err(other) => format!("error: {other}"),
    }
}

fn show(value: &Value) -> String {
    value.to_string().unwrap_or_else(|_| "?".to_owned())
}

#[test]
fn additions_to_libraries_last_as_long_as_the_run() {
    let lua = state();
    let script = "
        local before = string.starts
        function string.starts(s, p) return s:sub(1, #p) == p end
        local shown = 0
        for name in pairs(string) do if name == 'starts' then shown = shown + 1 end end
        return before, string.starts('abc', 'ab'), ('xyz'):starts('y'), shown";
    for _ in 0..3 {
        assert_eq!(run(&lua, script), "nil true false 1");
    }
    assert_eq!(run(&lua, "return string.starts, ('x').starts"), "nil nil");
}

#[test]
fn replaced_and_removed_functions_come_back() {
    let lua = state();
    let script = "
        function string.upper(s) return 'mine' end
        math.floor = nil
        return ('a'):upper(), math.floor, math.ceil(1.5)";
    assert_eq!(run(&lua, script), "mine nil 2");
    assert_eq!(run(&lua, "return ('a'):upper(), math.floor(1.5)"), "A 1");
}

#[test]
fn overlays_follow_their_runs() {
    let lua = state();
    let overlays = Overlays::of(&lua).expect("opened");
    let eval = |source: &str| -> String {
        let values: mlua::Variadic<Value> = lua.load(source).eval().expect("sound");
        values.iter().map(show).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(eval("string.who = 'a' return ('x').who"), "a");
    let first = overlays.switch(&lua, None).expect("switched");
    assert_eq!(eval("return ('x').who"), "nil");
    assert_eq!(eval("string.who = 'b' return string.who"), "b");
    let second = overlays.switch(&lua, first.as_ref()).expect("switched");
    assert_eq!(eval("return ('x').who, string.who"), "a a");
    overlays.switch(&lua, second.as_ref()).expect("switched");
    assert_eq!(eval("return ('x').who"), "b");
}

#[test]
fn no_raw_access_reaches_a_library() {
    let lua = state();
    for (attempt, answer) in [
        ("rawset(string, 'x', 1)", "'rawset' cannot change a library"),
        (
            "table.insert(string, 1)",
            "'insert' cannot change a library",
        ),
        (
            "setmetatable(string, {})",
            "cannot change a protected metatable",
        ),
        (
            "setmetatable(getmetatable(''), {})",
            "cannot change a protected metatable",
        ),
        ("getmetatable('').__metatable = 1", "cannot be changed"),
        (
            "rawset(getmetatable(''), '__index', {})",
            "'rawset' cannot change a library",
        ),
        ("getmetatable('').__gc = print", "cannot be changed"),
    ] {
        let told = run(&lua, attempt);
        assert!(told.contains(answer), "{attempt}: {told}");
    }
    assert_eq!(
        run(&lua, "return getmetatable(string), next(string)"),
        "false nil"
    );
    assert_eq!(run(&lua, "return rawget(string, 'len')('abc')"), "3");
    run(
        &lua,
        "getmetatable('').__index.len = 1 getmetatable('').__index = {}",
    );
    run(
        &lua,
        "table.move({1, 2}, 1, 2, 1, string) table.move({1}, 1, 1, 1, table)",
    );
    assert_eq!(
        run(&lua, "return ('abc'):len(), string[1], table[1]"),
        "3 nil nil"
    );
}

#[test]
fn operators_of_strings_last_as_long_as_the_run() {
    let lua = state();
    let script = "
        getmetatable('').__mod = function(text, values) return text:format(unpack(values)) end
        getmetatable('').__index = function(s, k) return type(k) == 'number' and string.sub(s, k, k) or string[k] end
        return '%d-%s' % {1, 'a'}, ('abc')[2], ('abc'):len()";
    assert_eq!(run(&lua, script), "1-a b 3");
    assert!(run(&lua, "return '%d' % {1}").contains("arithmetic"));
    assert_eq!(
        run(
            &lua,
            "return ('abc')[2], ('abc'):len(), getmetatable('').__index == string"
        ),
        "nil 3 true"
    );
}

#[test]
fn files_keep_their_methods() {
    let lua = state();
    run(&lua, "getmetatable(io.stdout).write = 1");
    run(&lua, "io.stdout.__index = 1");
    assert_eq!(
        run(
            &lua,
            "return getmetatable(io.stdout), io.stdout.__index, type(io.stdout.write)"
        ),
        "false nil function"
    );
    assert_eq!(
        run(&lua, "io.output(io.stderr) return io.output() == io.stderr"),
        "true"
    );
    assert_eq!(run(&lua, "return io.output() == io.stdout"), "true");
}

#[test]
fn dangerous_functions_are_absent() {
    let lua = state();
    let script = "return ffi, jit, os.exit, io.popen, os.execute, package.loadlib, newproxy, debug.sethook, debug.getregistry,
        (pcall(require, 'jit.util')), (pcall(require, 'string.buffer')), pcall(require, 'ffi')";
    let told = run(&lua, script);
    assert!(told.starts_with(&"nil ".repeat(9)), "{told}");
    assert!(
        told.contains("nil false false false") && told.contains("module 'ffi' not found"),
        "{told}"
    );
    assert_eq!(
        run(
            &lua,
            "return type(debug.traceback), type(os.time()), type(io.open)"
        ),
        "function number function"
    );
}

#[test]
fn allowed_functions_are_there() {
    let options = LibraryOptions {
        os_exit: true,
        io_popen: true,
        jit: true,
        ..LibraryOptions::default()
    };
    let lua = state_with(&options);
    let script = "return type(jit.version), type(os.exit), type(io.popen), type(os.execute), type(require('jit').on)";
    assert_eq!(
        run(&lua, script),
        "string function function function function"
    );
}

#[test]
fn everything_dangerous_may_be_allowed() {
    let options = LibraryOptions {
        ffi: true,
        debug: true,
        ..LibraryOptions::default()
    };
    // SAFETY: the script below only looks at `ffi`.
    #[allow(unsafe_code, reason = "only such a state has these libraries")]
    let lua = unsafe { Lua::unsafe_new_with(StdLib::ALL, LuaOptions::new()) };
    open(&lua, &options).expect("libraries");
    let script = "return type(require('ffi').new), type(ffi.new), type(debug.sethook)";
    assert_eq!(run(&lua, script), "function function function");
}

#[test]
fn globals_belong_to_the_run() {
    let lua = state();
    assert_eq!(
        run(
            &lua,
            "x = 1 _G.y = 2 return x, y, _G == getfenv(1), _G._G == _G"
        ),
        "1 2 true true"
    );
    assert_eq!(run(&lua, "return x, y, getmetatable(_G)"), "nil nil false");
    let escapes = "
        local function set(env) if type(env) == 'table' then env.leaked = true end end
        set(getfenv(0)) set(getfenv(string.match)) set(getfenv(print)) set(getfenv(require))
        coroutine.wrap(function() set(getfenv(0)) end)()
        set(coroutine.wrap(getfenv)(0))
        set(select(2, pcall(getfenv, 1)))
        set(getfenv(loadstring('return 1')))
        for level = 1, 20 do set(select(2, pcall(getfenv, level))) end
        coroutine.wrap(load)('leaked = true')
        loadstring('leaked = true')()
        pcall(load('leaked = true'))
        pcall(setfenv, string.match, {}) pcall(setfenv, 0, {}) pcall(setfenv, require, {})
        return leaked";
    assert_eq!(run(&lua, escapes), "true");
    assert_eq!(run(&lua, "return leaked"), "nil");
    let real: Value = lua.globals().raw_get("leaked").expect("a table");
    assert!(real.is_nil());
}

#[test]
fn setfenv_works_for_a_script_itself() {
    let lua = state();
    let script = "
        local function f() return x end
        setfenv(f, { x = 5 })
        local function g() setfenv(1, { y = 6 }) return y end
        return f(), g(), select(2, pcall(setfenv, string.match, {}))";
    let told = run(&lua, script);
    assert!(
        told.starts_with("5 6 ") && told.contains("others share"),
        "{told}"
    );
}

#[test]
fn load_takes_text_and_an_environment() {
    let lua = state();
    assert_eq!(
        run(&lua, "return load('return x', 'n', 't', { x = 7 })()"),
        "7"
    );
    assert_eq!(
        run(
            &lua,
            "x = 8 return load('return x')(), loadstring('return x')()"
        ),
        "8 8"
    );
    let pieces = "local parts, i = {'return ', '1', ' + 1'}, 0
        return load(function() i = i + 1 return parts[i] end)()";
    assert_eq!(run(&lua, pieces), "2");
    assert_eq!(
        run(&lua, "return load('return 1', 'n', 'b')"),
        "nil attempt to load chunk with wrong mode"
    );
    assert_eq!(
        run(&lua, "return load('x = = 1', '=c')"),
        "nil c:1: unexpected symbol near '='"
    );
    let told = run(&lua, "return load('return 7 // 2', '=c')");
    assert!(told.contains("line 1: `//` is integer division"), "{told}");
}

#[test]
fn binary_chunks_are_refused_everywhere() {
    let lua = state();
    let dump = "local code = string.dump(function() return 1 end)
        local file = os.tmpname()
        local handle = io.open(file, 'wb') handle:write(code) handle:close()
        local results = { load(code), select(2, loadstring(code)), select(2, load(function() local c = code code = nil return c end)),
            select(2, loadfile(file)), select(2, pcall(dofile, file)) }
        os.remove(file)
        return unpack(results, 1, 5)";
    let told = run(&lua, dump);
    assert_eq!(
        told.matches("binary chunks are not accepted").count(),
        4,
        "{told}"
    );
    assert!(told.starts_with("nil"), "{told}");
}

#[test]
fn the_collector_is_not_steered() {
    let lua = state();
    assert_eq!(
        run(
            &lua,
            "return collectgarbage('stop'), collectgarbage('setpause', 10), type(collectgarbage('count'))"
        ),
        "0 0 number"
    );
    let grown = "local before = collectgarbage('count') for i = 1, 3e5 do local t = { i, {} } end
        return collectgarbage('count') - before < 20000";
    assert_eq!(run(&lua, grown), "true");
}
