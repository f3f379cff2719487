//! Calls that would end the process, block it, or exhaust its memory if they were not limited.

use super::{LibraryOptions, Limits, run, state, state_with};

/// The result of the script, run on a thread with the stack size of a worker.
fn outcome(script: &'static str) -> String {
    let ran = std::thread::spawn(move || run(&state(), script));
    ran.join().expect("it does not panic")
}

#[test]
fn the_c_stack_does_not_end() {
    for (script, shows) in [
        (
            "local t t = setmetatable({}, { __tostring = function() return string.format('%s', t) end })
             return tostring(t)",
            "stack overflow",
        ),
        (
            "local t t = setmetatable({}, { __tostring = function() print(t) return '' end }) print(t)",
            "stack overflow",
        ),
        (
            "local function f() return coroutine.wrap(f)() end return f()",
            "C stack overflow",
        ),
        (
            "local function f() return coroutine.resume(coroutine.create(f)) end return f()",
            "C stack overflow",
        ),
        (
            "local made = {}
             for i = 1, 1e5 do made[i] = coroutine.create(function()
                 return select(2, coroutine.resume(made[i + 1])) end) end
             return select(2, coroutine.resume(made[1]))",
            "C stack overflow",
        ),
    ] {
        let shown = outcome(script);
        assert!(shown.contains(shows), "{script}: {shown}");
    }
    let script = "local function f(n) if n == 0 then return 'deep' end
        return coroutine.wrap(function() return f(n - 1) end)() end return f(150), f(150)";
    assert_eq!(outcome(script), "deep deep");
}

#[test]
fn calls_in_c_are_short() {
    for (script, shows) in [
        ("table.insert({}, -2147483647, 1)", "position out of bounds"),
        ("table.insert({}, 1e10, 1)", "position out of bounds"),
        ("os.date(('%c'):rep(1e6))", "more than 4096 bytes"),
        ("table.insert({}, 0 / 0, 1)", "position out of bounds"),
        (
            "return load(('a or '):rep(2e5) .. 'a')",
            "nil chunk with more than 4096",
        ),
        (
            "return load(('1or '):rep(2e5) .. '1')",
            "nil chunk with more than 4096",
        ),
        (
            "return load('if a then ' .. ('elseif a then '):rep(5e4) .. 'end')",
            "nil chunk with more than 4096",
        ),
        (
            "return load(('do for i = 1, 2 do end end '):rep(1e4)) ~= nil",
            "true",
        ),
    ] {
        let shown = outcome(script);
        assert!(shown.contains(shows), "{script}: {shown}");
    }
}

#[test]
fn calls_in_c_take_no_more_memory_than_a_run_has() {
    for (script, shows) in [
        ("table.new(1e8, 0)", "table.new: the table takes more than"),
        (
            "require('table.new')(0, 6e7)",
            "table.new: the table takes more than",
        ),
        (
            "table.new(0 / 0, 0)",
            "table.new: the table takes more than",
        ),
        (
            "io.open('/dev/zero'):read('*a')",
            "more than 67108864 bytes",
        ),
        ("io.open('/dev/zero'):read(1e9)", "more than 67108864 bytes"),
        (
            "for text in io.lines('/dev/zero', '*a') do return end",
            "more than 67108864 bytes",
        ),
    ] {
        let shown = outcome(script);
        assert!(shown.contains(shows), "{script}: {shown}");
    }
}

#[test]
fn files_without_an_end_give_no_more_than_a_limit() {
    for (script, shows) in [
        ("io.open('/dev/zero'):read()", "more than 1048576 bytes"),
        ("io.open('/dev/zero'):read('*L')", "more than 1048576 bytes"),
        (
            "for line in io.lines('/dev/zero') do end",
            "more than 1048576 bytes",
        ),
        ("io.input('/dev/zero') io.read()", "more than 1048576 bytes"),
        (
            "local f = io.open('/dev/zero') while true do f:read(65536) end",
            "more than 1048576 bytes",
        ),
        (
            "local f = io.tmpfile() f:write((' '):rep(2e6)) f:seek('set') f:read('*n')",
            "more than 1048576 bytes",
        ),
        ("dofile('/dev/zero')", "more than 1048576 bytes"),
        (
            "package.path = '/dev/?' return select(2, pcall(require, 'zero'))",
            "more than 1048576 bytes",
        ),
        ("return #io.open('/dev/urandom'):read(16)", "16"),
        ("return #io.open('/dev/zero'):read(2 ^ 20)", "1048576"),
        ("return io.open('/dev/null'):read()", "nil"),
    ] {
        let limits = Limits {
            file_bytes_max: 1 << 20,
            ..Limits::default()
        };
        let lua = state_with(&LibraryOptions {
            limits,
            ..LibraryOptions::default()
        });
        let shown = run(&lua, script);
        assert!(shown.contains(shows), "{script}: {shown}");
    }
}

#[test]
fn files_are_read_and_written_as_in_lua() {
    for (script, shows) in [
        (
            "local f = io.tmpfile() f:write('ab\\ncd\\n', 12, ' 0x1F -2.5e1 x')
             f:seek('set', 1) local a, b = f:read('L', 3)
             return a, b, f:read('n', 'n', 'n', 'n', 'a')",
            "b\n cd\n 12 31 -25 nil",
        ),
        (
            "local f = io.tmpfile() f:write('0123456789') f:seek('set', 2)
             local two = f:read(2) f:write('XY') f:seek('set')
             return two, f:read('a'), f:seek('cur'), f:seek('end', -3), f:read()",
            "23 0123XY6789 10 7 789",
        ),
        (
            "local f = io.tmpfile() f:write('a\\n\\nb') f:seek('set') local t = {}
             for line in f:lines() do t[#t + 1] = line end return #t, table.concat(t, '|'), io.type(f)",
            "3 a||b file",
        ),
        (
            "local f = io.tmpfile() f:close() return io.type(f), tostring(f), (pcall(f.read, f)), io.type(1)",
            "closed file file (closed) false nil",
        ),
        (
            "return io.open('/nonexistent'), io.open('/dev/null', 'x')",
            "nil nil /dev/null: Invalid argument 22",
        ),
        (
            "return select(2, io.open('/nonexistent')), select(3, io.open('/nonexistent')), (pcall(io.lines, '/nonexistent'))",
            "/nonexistent: No such file or directory 2 false",
        ),
        (
            "return io.open('/dev/null'):write('x')",
            "nil Bad file descriptor 9",
        ),
        (
            "return io.stdout:close()",
            "nil cannot close standard file",
        ),
        (
            "local f = io.open('/proc') return f:read()",
            "nil Is a directory 21",
        ),
        (
            "local t = io.open('/proc/self/smaps'):read('*a') return #t > 8192, t:sub(-1) == '\\n'",
            "true true",
        ),
        (
            "local name, text = os.tmpname(), {}
             io.open(name, 'wt'):write('0123456789'):close()
             local f = io.open(name, 'rt') text[1] = f:read(1e9) f:close()
             return text[1], (io.open(name, 'wx')), os.rename(name, name .. '.new'), os.remove(name .. '.new'),
                 os.remove(name .. '.new') == nil",
            "0123456789 nil true true true",
        ),
        (
            "return os.remove('/nonexistent/file')",
            "nil /nonexistent/file: No such file or directory 2",
        ),
    ] {
        assert_eq!(outcome(script), shows, "{script}");
    }
}

/// Reading the pipe would wait until another program writes.
#[test]
fn pipes_are_not_opened() {
    let path = std::env::temp_dir().join(format!("petrel-lua-pipe-{}", std::process::id()));
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.is_ok_and(|status| status.success()));
    let script = format!(
        "local p = '{}' return io.open(p), pcall(io.lines, p), pcall(io.input, p), io.open(p, 'a'), io.open(p, 'r+')",
        path.display()
    );
    let shown = outcome(script.leak());
    let _ = std::fs::remove_file(&path);
    assert!(shown.starts_with("nil false false"), "{shown}");
    assert!(shown.contains("it is a pipe"), "{shown}");
}

#[test]
fn what_is_not_too_much_works_as_ever() {
    for (script, shows) in [
        (
            "local t = { 1, 2 } table.insert(t, 1, 0) table.insert(t, 3) table.insert(t, 9, 9)
             return #table.new(10, 10), table.concat(t, ' ', 1, 4), t[9]",
            "0 0 1 2 3 9",
        ),
        (
            "local t = setmetatable({}, { __tostring = function() return 'T' end })
             return string.format('%s %d %s', t, 1, nil), string.format('%s%s%s%s%s', 1, 2, 3, 4, t),
             (pcall(string.format, '%s'))",
            "T 1 nil 1234T false",
        ),
        (
            "local f = io.tmpfile() f:write('one\\n2 three\\n') f:seek('set')
             local a, b, c = f:read('*l', '*n', '*a')
             return a, b, c, f:read('*a'), f:read(1), f:read(0), select('#', f:read('*l', '*l'))",
            "one 2  three\n  nil nil 1",
        ),
    ] {
        assert_eq!(outcome(script), shows, "{script}");
    }
}
