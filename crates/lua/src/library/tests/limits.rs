//! Tests of limited work, and of callbacks that wait.

use super::{run, state};

#[test]
fn errors_name_the_line_of_the_script() {
    let lua = state();
    for (script, error) in [
        (
            "\nlocal x = string.rep('x', 1e10)",
            "script:2: string.rep: the result is longer than 16777216 bytes",
        ),
        (
            "\n\nlocal x = string.match('x', {})",
            "script:3: bad argument #2 to 'match' (string expected, got table)",
        ),
        (
            "local x = string.rep('x')",
            "script:1: bad argument #2 to 'rep' (number expected, got nil)",
        ),
        (
            "local x = table.concat({1, {}})",
            "script:1: invalid value (table) at index 2 in table for 'concat'",
        ),
        (
            "local x = ('x'):gsub('x', function() return {} end)",
            "script:1: invalid replacement value (a table)",
        ),
        (
            "local x = ('x'):rep(200):gsub('.-.-.-x', function() return {} end)",
            "script:1: invalid replacement value (a table)",
        ),
        (
            "local x = ('x'):rep(200):match('.-.-.-.-(')",
            "script:1: unfinished capture",
        ),
    ] {
        assert_eq!(run(&lua, script), format!("error: {error}"), "{script}");
    }
}

#[test]
fn long_subjects_take_the_same_arguments() {
    let lua = state();
    let long = "local s = ('-'):rep(70000) .. 'a1b2' ";
    for (call, answer) in [
        ("s:match('(%a)(%d)')", "a 1"),
        ("s:find('.-%a', '70001')", "70001 70001"),
        ("s:find('b', -2, true)", "70003 70003"),
        ("s:gsub('.-(%a)', '<%1>', 1)", "<a>1b2 1"),
        ("s:gsub('(.-)%d', { ['b'] = 'c' }):sub(-4)", "-a1c"),
        ("s:match('.-%a.*$', 70003)", "b2"),
        ("s:rep(20):gsub('.-(%a)', '<%1>'):sub(1, 9)", "<a><b><a>"),
        ("select('#', s:rep(20):gsub('.-%a', ''))", "2"),
        ("select(2, s:rep(20):gsub('.-%a', ''))", "40"),
        ("select(2, s:rep(20):gsub('.-%a', '', 33))", "33"),
        ("#s:rep(20):gsub('x*', '.')", "2800161"),
        ("select(2, s:rep(20):gsub('^.-%a', ''))", "1"),
        ("s:match('.-%a.-$', 80000)", "nil"),
    ] {
        assert_eq!(
            run(&lua, &format!("{long} return {call}")),
            answer,
            "{call}"
        );
    }
    for (call, name) in [
        ("s:match('.-.-.-x', {})", "match"),
        ("s:find('.-.-.-x', {})", "find"),
        ("s:gsub('.-.-.-x', '', {})", "gsub"),
    ] {
        let told = run(&lua, &format!("{long} local x = {call}"));
        assert!(
            told.starts_with("error: script:1: bad argument") && told.contains(name),
            "{told}"
        );
    }
}

#[test]
fn a_whole_collection_goes_in_steps() {
    let lua = state();
    let script = "local t = {} for i = 1, 1e5 do t[i] = { i } end t = nil local before = collectgarbage('count')
        return collectgarbage(), collectgarbage(), collectgarbage('count') < before, type(collectgarbage('step', 1e9))";
    assert_eq!(run(&lua, script), "0 0 true boolean");
}

#[test]
fn costly_patterns_stop() {
    let lua = state();
    for function in ["match", "find", "gmatch", "gsub"] {
        let call = match function {
            "gmatch" => "for _ in s:gmatch(p) do end".to_owned(),
            "gsub" => "s:gsub(p, '')".to_owned(),
            other => format!("s:{other}(p)"),
        };
        let script =
            format!("local s, p = ('a'):rep(300), ('a?'):rep(60) .. ('a'):rep(300) .. 'b' {call}");
        let told = run(&lua, &script);
        assert!(
            told.contains(&format!("string.{function}: the pattern needs more than")),
            "{told}"
        );
    }
    let told = run(
        &lua,
        "return ('a'):rep(3000):gsub('.-.-.-.-b', function() end)",
    );
    assert!(told.contains("the pattern needs more than"), "{told}");
}

#[test]
fn gmatch_takes_a_caret_literally() {
    let lua = state();
    let script = "local t = {} for c in ('^a^b'):gmatch('^%a') do t[#t + 1] = c end return table.concat(t, ' ')";
    assert_eq!(run(&lua, script), "^a ^b");
    let costly = "for _ in ('^'):rep(3000):gmatch('^.-.-.-x') do end";
    assert!(run(&lua, costly).contains("string.gmatch: the pattern needs more than"));
}

#[test]
fn long_results_stop() {
    let lua = state();
    for (script, function) in [
        ("return ('x'):rep(1e10)", "string.rep"),
        ("return ('x'):rep(2, ('y'):rep(16777216))", "string.rep"),
        (
            "local s = ('x'):rep(1e6) return s:gsub('', s)",
            "string.gsub",
        ),
        (
            "local s = ('x'):rep(1e6) return s:gsub('', function() return s end)",
            "string.gsub",
        ),
        (
            "local s, t = ('x'):rep(1e6), {} for i = 1, 100 do t[i] = s end return table.concat(t)",
            "table.concat",
        ),
        (
            "return table.concat({'a', 'b', 'c'}, ('x'):rep(1e7))",
            "table.concat",
        ),
    ] {
        let told = run(&lua, script);
        assert!(
            told.contains(&format!("{function}: the result is longer than")),
            "{script}: {told}"
        );
    }
    assert_eq!(
        run(
            &lua,
            "return #(''):rep(1e12), #('x'):rep(-5), ('ab'):rep('2', ',')"
        ),
        "0 0 ab,ab"
    );
}

#[test]
fn sort_survives_comparisons_that_lie() {
    let lua = state();
    let prelude = "local t = {} for i = 1, 1000 do t[i] = (i * 7919) % 1009 end ";
    assert_eq!(
        run(
            &lua,
            &format!(
                "{prelude} table.sort(t) for i = 2, 1000 do if t[i - 1] > t[i] then return i end end return 'sorted'"
            )
        ),
        "sorted"
    );
    for lie in ["true", "math.random() < 0.5", "a ~= b", "false"] {
        let script = format!(
            "{prelude} local sum = 0 table.sort(t, function(a, b) return {lie} end)
            for i = 1, 1000 do sum = sum + t[i] end return #t, sum > 0"
        );
        assert_eq!(run(&lua, &script), "1000 true", "{lie}");
    }
    let waits = "local t = {3, 1, 2} local run = coroutine.wrap(function()
        table.sort(t, function(a, b) coroutine.yield('w') return a < b end) return 'done' end)
        local last repeat last = run() until last == 'done' return table.concat(t)";
    assert_eq!(run(&lua, waits), "123");
    let fails = "local t = {3, 1, 2} pcall(table.sort, t, function() error('x') end) return table.concat(t)";
    assert_eq!(run(&lua, fails), "312");
    assert!(run(&lua, "table.sort({1, 'a'})").contains("attempt to compare"));
}

#[test]
fn replacements_of_gsub_may_wait() {
    let lua = state();
    let script = "local run = coroutine.wrap(function()
            return (('a-b-c'):gsub('%a', function(c) return coroutine.yield(c) end)) end)
        run() run('1') run('2') return run('3')";
    assert_eq!(run(&lua, script), "1-2-3");
}

#[test]
fn gsub_in_lua_does_what_the_native_one_does() {
    let lua = state();
    for (subject, pattern) in [
        ("hello world", "o*"),
        ("", ""),
        ("abc", "^a"),
        ("abc", ""),
        ("a b  c", "%s*"),
        ("key=val, k2=v2", "(%w+)=(%w+)"),
        ("abc", "()"),
        ("THE (quick) fox", "%f[%a]%a+"),
        ("aXb", "%u"),
        ("x", "$"),
        ("abcde", "(.)(.)(.)(.)(.)"),
        ("abab", "(a)(b)%1"),
    ] {
        let script = format!("
            local s, p = '{subject}', '{pattern}'
            local plain = string.gsub(s, p, '<%0>')
            local called = string.gsub(s, p, function() end)
            local count = select(2, string.gsub(s, p, function() end, 2))
            local wrapped = string.gsub(s, p, setmetatable({{}}, {{ __index = function(_, k) return '<' .. k .. '>' end }}))
            local direct = string.gsub(s, p, '<%1>')
            local longer = ('-'):rep(70000)
            local long = string.gsub(longer .. s, p, function(...) return table.concat({{...}}, '.') end)
            local long_direct = string.gsub(longer .. s, p, '%1')
            long = long == long_direct or select('#', string.find(s, p)) > 3
            return called == s, count == select(2, string.gsub(s, p, '', 2)), wrapped == direct, long, plain");
        let told = run(&lua, &script);
        assert!(told.starts_with("true true true true"), "{pattern}: {told}");
    }
}
