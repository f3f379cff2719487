//! `os.execute` and `io.popen`: scripts wait for programs, and the worker does not.

use std::path::Path;

use petrel_tests::{Server, eventually};

use crate::lua_api::{ask, lua_lines, says, site};

#[test]
fn programs_answer_as_in_lighttpd() {
    let script = says(
        "local all = {}\n\
         local function add(...) for i = 1, select('#', ...) do all[#all + 1] = tostring((select(i, ...))) end end\n\
         add(os.execute(), 'run', os.execute('exit 3')) add(os.execute('true'))\n\
         add(os.execute('kill -9 $$'))\n\
         local f = io.popen('echo one; echo two; printf three; exit 4')\n\
         add(io.type(f), f:read(), f:read('*l'), f:read('*a'), f:read()) add(f:close())\n\
         add(io.type(f))\n\
         local big = io.popen('head -c 300000 /dev/zero'):read('*a') add(#big)\n\
         local name = os.tmpname()\n\
         f = io.popen('cat > ' .. name, 'w')\n\
         add(f:write(('x'):rep(200000)) == f, f:close()) add(#io.open(name):read('*a')) os.remove(name)\n\
         for line in io.popen('echo a; echo b'):lines() do add(line) end\n\
         add((io.popen('cat'):seek('set', 1))) add(pcall(io.popen, 'true', 'x'))\n\
         return table.concat(all, ' ')",
    );
    let server = site(&[], &[("programs", &script)])
        .config("server.max-worker = 1")
        .start();
    for _ in 0..2 {
        assert_eq!(
            ask(&server, "/programs"),
            "true run nil exit 3 true exit 0 nil signal 9 file one two three nil nil exit 4 closed file 300000 \
             true true exit 0 200000 a b nil false bad argument #2 to 'popen' (invalid mode)"
        );
    }
}

/// Calls a program that writes its process id to `FILE.pid` and ends when `FILE.go` exists. FILE is the query.
fn waits_for(call: &str) -> String {
    format!(
        "local file = lighty.r.req_attr[\"uri.query\"]\n\
         {call}('echo $$ > ' .. file .. '.pid; until test -e ' .. file .. '.go; do sleep 0.05; done; echo done')"
    )
}

fn pid(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[test]
fn the_worker_serves_others_while_a_program_runs() {
    let read = format!("{} return f:read('*a')", waits_for("local f = io.popen"));
    let read = says(&read);
    let execute = says(&waits_for("return os.execute"));
    let server = site(&[], &[("read", &read), ("execute", &execute)])
        .config("server.max-worker = 1")
        .start();
    for (name, answer) in [("read", "done\n"), ("execute", "true exit 0")] {
        let file = server.tree().path(name).display().to_string();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| ask(&server, &format!("/{name}?{file}")));
            let pid_file = server.tree().path(&format!("{name}.pid"));
            assert!(eventually(|| pid(&pid_file).is_some()), "{}", server.log());
            assert_eq!(ask(&server, "/index.html"), "hello");
            assert!(!waits.is_finished());
            server.tree().write(&format!("{name}.go"), "");
            assert_eq!(waits.join().expect("it is answered"), answer);
        });
    }
}

/// A program has 3 s to end by itself when its script has gone, and again after the signal.
#[test]
fn programs_end_with_their_request() {
    let forgets = format!("{} return 204", waits_for("kept = io.popen"));
    let execute = says(&waits_for("return os.execute"));
    let server = site(&[], &[("forgets", &forgets), ("execute", &execute)]).start();
    let ends = |name: &str| {
        let pid_file = server.tree().path(&format!("{name}.pid"));
        assert!(eventually(|| pid(&pid_file).is_some()), "{}", server.log());
        let process = format!("/proc/{}", pid(&pid_file).unwrap_or_default());
        assert!(eventually(|| !Path::new(&process).exists()), "{process}");
    };
    let target = |name: &str| format!("/{name}?{}", server.tree().path(name).display());
    assert_eq!(server.get(&target("forgets")).status, 204);
    ends("forgets");
    let mut client = server.client();
    client.send(format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", target("execute")).as_bytes());
    let pid_file = server.tree().path("execute.pid");
    assert!(eventually(|| pid(&pid_file).is_some()), "{}", server.log());
    client.abort();
    ends("execute");
}

#[test]
fn a_program_that_runs_for_too_long_is_ended() {
    let script = says(
        "local _, why = os.execute('sleep 600')\n\
         local _, late = io.popen('sleep 30 & echo x'):read('*a')\n\
         return why, late",
    );
    let server = site(&[], &[("long", &script)])
        .config("lua.max-program-time = 1")
        .start();
    let late = "it took more than 1 s";
    assert_eq!(ask(&server, "/long"), format!("sleep 600: {late} {late}"));
    assert!(lua_lines(&server).is_empty());
}

#[test]
fn functions_that_are_switched_off_are_warned_of() {
    let script = "local f = io.popen('true')\nreturn os.exit() -- os.execute";
    let check = |config: &str| -> Vec<String> {
        let site = site(&[], &[("uses", script)]).config(config);
        let checked = site.config(
            "$HTTP[\"url\"] == \"/none\" { magnet.attract-physical-path-to = ( \"/none.lua\" ) }",
        );
        let checked = checked.check(&["-tt"]);
        assert_eq!(checked.code(), 0, "{}", checked.errors);
        let lines = checked.errors.lines();
        lines
            .filter(|line| line.contains(".lua"))
            .map(str::to_owned)
            .collect()
    };
    let has = |lines: &[String], text: &str| lines.iter().any(|line| line.contains(text));
    let lines = check("");
    assert!(!has(&lines, "io.popen is"), "{lines:?}");
    assert!(
        has(&lines, "uses.lua:2: os.exit is switched off"),
        "{lines:?}"
    );
    assert!(!has(&lines, "os.execute is"), "{lines:?}");
    assert!(
        has(&lines, "the script /none.lua cannot be read"),
        "{lines:?}"
    );
    let lines = check("lua.allow = ( \"os.exit\" )");
    assert!(
        has(&lines, "uses.lua:1: io.popen is switched off"),
        "{lines:?}"
    );
    assert!(!has(&lines, "os.exit is"), "{lines:?}");
}

/// The log says what a script misses.
#[test]
fn a_script_without_programs_gets_an_error() {
    let script = says("return os.execute('true')");
    let server: Server = site(&[], &[("runs", &script)])
        .config("lua.allow = ()")
        .start();
    assert_eq!(server.get("/runs").status, 500);
    assert!(eventually(|| lua_lines(&server)
        .iter()
        .any(|line| line.contains("lua.allow"))));
}
