//! `petrel.file`: reads the disk while the worker continues.

use std::time::Instant;

use petrel_tests::SOON;

use crate::lua_api::{ask, says, site};

#[test]
fn files_are_written_read_and_removed() {
    let script = says(
        "local dir = lighty.r.req_attr[\"uri.query\"]\n\
         local path = dir .. \"/a.txt\"\n\
         local text = (\"line\\0\\n\"):rep(50000)\n\
         local all = {}\n\
         local function add(value) all[#all + 1] = tostring(value) end\n\
         add(petrel.file.write(path, text)) add(petrel.file.read(path) == text) add(petrel.file.read(path, 10) == nil)\n\
         local s = petrel.file.stat(path)\n\
         add(s.size == #text) add(s.type) add(petrel.file.stat(dir).type) add(math.abs(s.mtime - petrel.now()) < 60)\n\
         add(table.concat(petrel.file.list(dir), \",\"))\n\
         add(petrel.file.remove(path))\n\
         for _, name in ipairs { \"read\", \"stat\", \"remove\", \"list\" } do\n\
          local value, why = petrel.file[name](path)\n\
          add(value == nil and why:find(path, 1, true) ~= nil or name == \"remove\" and value)\n\
         end\n\
         add((petrel.file.write(dir .. \"/none/a\", \"x\"))) add((petrel.file.read(dir)))\n\
         add((petrel.file.read(\"a\\0b\")))\n\
         return table.concat(all, \" \")",
    );
    let server = site(&[], &[("files", &script)])
        .file("data/b.txt", "b")
        .start();
    let target = format!("/files?{}", server.tree().path("data").display());
    for _ in 0..3 {
        assert_eq!(
            ask(&server, &target),
            "true true true true file directory true a.txt,b.txt true true true true true nil nil nil"
        );
    }
    assert_eq!(server.tree().names("data"), ["b.txt"]);
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    // Opening a pipe without a writer would wait for a writer.
    let script = says("return petrel.file.read(lighty.r.req_attr[\"uri.query\"])");
    let server = site(&[], &[("reads", &script)])
        .config("server.max-worker = 1")
        .tree(|tree| {
            let mut command = std::process::Command::new("mkfifo");
            let made = command.arg(tree.path("pipe")).status();
            assert!(made.is_ok_and(|status| status.success()));
            tree.write("real.txt", "text");
        })
        .start();
    let begin = Instant::now();
    for path in ["pipe", "www"] {
        let path = server.tree().path(path).display().to_string();
        let said = ask(&server, &format!("/reads?{path}"));
        assert!(said.starts_with(&format!("nil {path}: ")), "{said}");
    }
    let real = server.tree().path("real.txt").display().to_string();
    assert_eq!(ask(&server, &format!("/reads?{real}")), "text");
    assert!(begin.elapsed() < SOON);
}
