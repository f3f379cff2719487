//! `petrel.file`: the disk, while the worker goes on.

use std::time::{Duration, Instant};

use crate::{ask, says, site};

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
fn a_file_that_never_comes_stops_nobody_else() {
    // Opening a pipe without a writer waits for one.
    let script = says("return petrel.file.read(lighty.r.req_attr[\"uri.query\"])");
    let server = site(&[], &[("reads", &script)])
        .config("server.max-worker = 1")
        .tree(|tree| {
            let made = std::process::Command::new("mkfifo")
                .arg(tree.path("pipe"))
                .status();
            assert!(made.is_ok_and(|status| status.success()));
            tree.write("real.txt", "text");
        })
        .start();
    let pipe = format!("/reads?{}", server.tree().path("pipe").display());
    let real = format!("/reads?{}", server.tree().path("real.txt").display());
    let mut waiting = server.client();
    waiting.send(format!("GET {pipe} HTTP/1.1\r\nHost: a\r\n\r\n"));
    let begin = Instant::now();
    assert_eq!(ask(&server, "/index.html"), "hello");
    assert_eq!(ask(&server, &real), "text");
    assert!(begin.elapsed() < Duration::from_secs(1));
    // Whoever opens it for reading and writing waits for nobody.
    let mut pipe = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(server.tree().path("pipe"))
        .expect("the pipe");
    std::io::Write::write_all(&mut pipe, b"through the pipe").expect("there is room");
    std::thread::sleep(Duration::from_millis(100));
    drop(pipe);
    println!("{}", waiting.response().text());
}
