//! Tests of `require`, `module` and `package` with files.

use std::path::PathBuf;

use super::{run, state};

/// A directory with files, removed when dropped.
struct Files(PathBuf);

impl Files {
    fn new(name: &str, files: &[(&str, &str)]) -> Files {
        let folder = std::env::temp_dir().join(format!("petrel-lua-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a directory");
        for (name, text) in files {
            std::fs::write(folder.join(name), text).expect("a file");
        }
        Files(folder)
    }

    /// A script that finds the modules.
    fn script(&self, script: &str) -> String {
        format!("package.path = '{}/?.lua'\n{script}", self.0.display())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn modules_are_loaded_once_per_state() {
    let files = Files::new(
        "once",
        &[(
            "counter.lua",
            "local n = 0 return { count = function() n = n + 1 return n end, name = ... }",
        )],
    );
    let lua = state();
    let script = files.script("local c = require('counter') return c.count(), c.name, c == require('counter'), c == package.loaded.counter");
    assert_eq!(run(&lua, &script), "1 counter true true");
    assert_eq!(run(&lua, &script), "2 counter true true");
    assert_eq!(run(&state(), &script), "1 counter true true");
}

#[test]
fn globals_and_additions_of_a_module_reach_only_who_requires_it() {
    let text = "function helper() return limit end limit = 5 function string.shout(s) return s:upper() .. '!' end";
    let files = Files::new("globals", &[("old.lua", text)]);
    let lua = state();
    for _ in 0..2 {
        let told = run(
            &lua,
            &files.script("return require('old'), helper(), limit, ('a'):shout()"),
        );
        assert_eq!(told, "true 5 5 A!");
        assert_eq!(
            run(&lua, "return helper, limit, string.shout"),
            "nil nil nil"
        );
    }
}

#[test]
fn modules_of_the_older_style_work() {
    let text =
        "module('my.part', package.seeall) function double(x) return x * 2 end version = _NAME";
    let files = Files::new("style", &[("part.lua", text)]);
    let lua = state();
    for _ in 0..2 {
        let told = run(
            &lua,
            &files
                .script("require('part') return part.double(4), part.version, getmetatable(part)"),
        );
        assert_eq!(told, "8 my.part false");
        assert_eq!(run(&lua, "return part"), "nil");
    }
}

#[test]
fn paths_and_forgetting_belong_to_the_run() {
    let files = Files::new("paths", &[("fresh.lua", "return {}")]);
    let lua = state();
    let script = files.script("local a = require('fresh') package.loaded.fresh = nil local b = require('fresh') return a == b, b == require('fresh')");
    assert_eq!(run(&lua, &script), "false true");
    let again = files.script("local a = require('fresh') return a == require('fresh')");
    assert_eq!(run(&lua, &again), "true");
    assert!(run(&lua, "return require('fresher')").contains("module 'fresher' not found"));
    let own = "package.preload.mine = function(name) return { name = name } end return require('mine').name";
    assert_eq!(run(&lua, own), "mine");
    assert!(run(&lua, "return require('mine')").contains("not found"));
}

#[test]
fn faults_of_modules_name_their_file() {
    let files = Files::new(
        "faults",
        &[
            ("a.lua", "return require('b')"),
            ("b.lua", "return require('a')"),
            ("syntax.lua", "\nreturn 1 // 2"),
            ("throws.lua", "error('no')"),
            ("binary.lua", "\x1bLJ"),
            ("shell.lua", "#!/usr/bin/lua\nreturn 7"),
        ],
    );
    let lua = state();
    for (name, words) in [
        ("a", "loop or previous error loading module 'a'"),
        ("syntax", "line 2: `//` is integer division"),
        ("throws", "throws.lua:1: no"),
        ("binary", "binary chunks are not accepted"),
    ] {
        let script = files.script(&format!(
            "local ok, words = pcall(require, '{name}') return (words:gsub('%s+', ' '))"
        ));
        for _ in 0..2 {
            let told = run(&lua, &script);
            assert!(told.contains(words), "{name}: {told}");
        }
    }
    assert_eq!(run(&lua, &files.script("return require('shell')")), "7");
}

#[test]
fn a_module_may_not_leave_the_libraries_changed() {
    let files = Files::new(
        "pollute",
        &[(
            "bad.lua",
            "string.len = nil math.pi = 3 rawset(_G, 'x', 1) setfenv(1, {}) return true",
        )],
    );
    let lua = state();
    assert_eq!(
        run(
            &lua,
            &files.script("require('bad') return string.len, math.pi")
        ),
        "nil 3"
    );
    assert_eq!(
        run(&lua, "return ('abc'):len(), math.pi > 3, x"),
        "3 true nil"
    );
}

#[test]
fn environments_of_modules_are_not_exchanged_by_scripts() {
    let files = Files::new(
        "exchange",
        &[(
            "shared.lua",
            "name = 'm' return { get = function() return name end }",
        )],
    );
    let lua = state();
    let script = files.script("local m = require('shared') local ok = pcall(setfenv, m.get, { name = 'x' }) return ok, m.get()");
    assert_eq!(run(&lua, &script), "false m");
}

/// A tail call counts as a call by the module itself.
#[test]
fn nor_by_callbacks_of_theirs() {
    let files = Files::new(
        "callback",
        &[(
            "each.lua",
            "setfenv(1, setmetatable({ name = 'm' }, { __index = getfenv(1) }))
             return { each = function(f) pcall(f) return name end }",
        )],
    );
    let lua = state();
    let script = files.script(
        "local m = require('each')
         m.each(function() return setfenv(1, { name = 'x', pcall = pcall }) end) return m.each(function() end)",
    );
    assert_eq!(run(&lua, &script), "m");
    let (module, old) = (
        Files::new("callback-plain", &[]),
        "name = 'm'
        return { each = function(f) f() return name end }",
    );
    std::fs::write(module.0.join("plain.lua"), old).expect("a file");
    let script = module.script(
        "local m = require('plain')
         local ok = pcall(m.each, function() return setfenv(1, { name = 'x' }) end)
         return ok, m.each(function() end)",
    );
    assert_eq!(run(&lua, &script), "false m");
}

/// Two sites have a module of the same name each.
#[test]
fn a_name_means_what_the_path_of_the_run_says() {
    let one = Files::new(
        "one",
        &[("config.lua", "secret = 1 return { name = 'one' }")],
    );
    let other = Files::new("other", &[("config.lua", "return { name = 'other' }")]);
    let lua = state();
    let script = "local c = require('config')
        return c.name, secret, c == require('config'), c == package.loaded.config";
    for _ in 0..2 {
        assert_eq!(run(&lua, &one.script(script)), "one 1 true true");
        assert_eq!(run(&lua, &other.script(script)), "other nil true true");
    }
    assert_eq!(run(&lua, "return package.loaded.config"), "nil");
    assert!(run(&lua, "require('config')").contains("module 'config' not found"));
}
