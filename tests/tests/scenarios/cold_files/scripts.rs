//! Scripts that look up files and send them.

use petrel_tests::{Operation, Server, SlowFs};

use super::{asking, content, expect_others_served, forget_content, impatient};

/// What each script does with a file on the hanging file system, and the result.
const SCRIPTS: &[(&str, &str)] = &[
    (
        "/stat",
        "local s = lighty.stat(path) lighty.content = { s.st_size .. tostring(s.is_file) } return 200",
    ),
    (
        "/owner",
        "local s = lighty.stat(path) lighty.content = { tostring(s.st_uid ~= nil) } return 200",
    ),
    (
        "/content",
        "lighty.content = { 'a', { filename = path }, 'b' } return 200",
    ),
    (
        "/body",
        "lighty.r.resp_body.set({ { filename = path }, 'c' }) return 200",
    ),
    (
        "/send",
        "return lighty.stat(path)['http-response-send-file']",
    ),
    (
        "/request",
        "lighty.r.req_body.set({ { filename = path } }) lighty.content = { lighty.r.req_body.get } return 200",
    ),
    (
        "/read",
        "lighty.content = { petrel.file.read(path) } return 200",
    ),
    (
        "/size",
        "lighty.content = { petrel.file.stat(path).size } return 200",
    ),
    (
        "/list",
        "lighty.content = { table.concat(petrel.file.list(dir), ' ') } return 200",
    ),
    (
        "/names",
        "local n = 0 for _ in lighty.c.readdir(dir) do n = n + 1 end lighty.content = { n } return 200",
    ),
    (
        "/link",
        "lighty.content = { tostring(lighty.c.readlink(path)) } return 200",
    ),
];

fn site(test: &str, config: &str) -> Option<(Server, SlowFs)> {
    super::site(test, &[("one.txt", b"1"), ("two.txt", b"22")], config)
}

fn magnet(server: &Server) {
    let source: String = SCRIPTS
        .iter()
        .map(|(url, script)| format!("if lighty.env['uri.path'] == '{url}' then {script} end\n"))
        .collect();
    let path = server.tree().path("www/slow/one.txt");
    let source = format!(
        "local path = '{}'\nlocal dir = path:match('(.*)/')\n{source}",
        path.display()
    );
    server.tree().write("magnet.lua", source);
}

const CONFIG: &str = "server.modules = (\"mod_magnet\", \"mod_cml\")
    cml.extension = \".cml\"
    lua.max-run-time = 1000
    server.stat-cache-engine = \"disable\"
    magnet.attract-raw-url-to = ( var.dir + \"/magnet.lua\" )";

#[test]
fn a_script_that_waits_for_a_disk_delays_no_other_request() {
    let test = "a_script_that_waits_for_a_disk_delays_no_other_request";
    let Some((server, slow)) = site(test, CONFIG) else {
        return;
    };
    magnet(&server);
    let page = "output_include = { 'slow/one.txt' } output_contenttype = 'text/plain'
        local size = file_mtime('slow/two.txt') and file_isreg('slow/two.txt')
        if not size then error('it is there') end
        return CACHE_HIT";
    server.tree().write("www/page.cml", page);
    let cases = SCRIPTS.iter().map(|(url, _)| *url).chain(["/page.cml"]);
    let expected = [
        "1true",
        "true",
        "a1b",
        "1c",
        "1",
        "1",
        "1",
        "1",
        "one.txt two.txt",
        "2",
        "nil",
        "1",
    ];
    for (url, expected) in cases.zip(expected) {
        slow.hang();
        let mut client = asking(&server, url);
        slow.expect_hanging(1);
        expect_others_served(&server);
        slow.release();
        let answer = client.response();
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (200, expected),
            "{url}: {answer}"
        );
    }
}

/// It takes so long because each script waits one to two seconds for a disk that hangs, one after the other.
#[test]
fn a_script_whose_disk_does_not_answer_is_504() {
    let test = "a_script_whose_disk_does_not_answer_is_504";
    let Some((server, slow)) = site(test, &format!("{CONFIG}\n{}", impatient(1))) else {
        return;
    };
    magnet(&server);
    let page = "output_include = { 'slow/one.txt' } return CACHE_HIT";
    server.tree().write("www/page.cml", page);
    let names = "for name in dir_files('slow') do output_include = { name } end return CACHE_HIT";
    server.tree().write("www/names.cml", names);
    let cases = SCRIPTS.iter().map(|(url, _)| *url);
    for url in cases.chain(["/page.cml", "/names.cml"]) {
        slow.hang();
        let mut client = asking(&server, url);
        slow.expect_hanging(1);
        expect_others_served(&server);
        let answer = client.response();
        assert_eq!(answer.status, 504, "{url}: {answer}");
        server.expect_log("www/slow");
        slow.release();
    }
}

#[test]
fn files_that_hang_are_not_in_the_way_of_those_that_do_not() {
    let test = "files_that_hang_are_not_in_the_way_of_those_that_do_not";
    let Some((server, slow)) = site(test, CONFIG) else {
        return;
    };
    let script = format!(
        "local path = '{}/www' .. lighty.env['uri.path']
        if path:find('%.txt$') then lighty.content = {{ petrel.file.read(path) }} return 200 end",
        server.tree().path("").display()
    );
    server.tree().write("magnet.lua", script);
    server.tree().write("www/local.txt", "local");
    slow.hang();
    // More requests than jobs may run for one file system.
    let ask = |_| asking(&server, "/slow/one.txt");
    let clients: Vec<_> = (0..100).map(ask).collect();
    slow.expect_hanging(16);
    assert_eq!(server.get("/local.txt").text(), "local");
    assert_eq!(slow.hanging(), 16);
    slow.release();
    for mut client in clients {
        assert_eq!(client.response().text(), "1");
    }
}

#[test]
fn a_body_that_a_script_sees_is_read_by_a_thread() {
    let test = "a_body_that_a_script_sees_is_read_by_a_thread";
    let config = "server.modules = (\"mod_magnet\")
        lua.max-run-time = 1000
        $HTTP[\"url\"] =^ \"/slow/\" {
            magnet.attract-response-start-to = ( var.dir + \"/measures.lua\" )
        }";
    let text = "x".repeat(300_000);
    let files: [(&str, &[u8]); 1] = [("large.txt", text.as_bytes())];
    let Some((server, slow)) = super::site(test, &files, config) else {
        return;
    };
    let script = "local body = lighty.r.resp_body body.set('length ' .. #body.get)";
    server.tree().write("measures.lua", script);
    assert_eq!(server.get("/slow/large.txt").text(), "length 300000");
    forget_content(&server, "www/slow/large.txt");
    slow.hang_on(&[Operation::Read]);
    let mut client = asking(&server, "/slow/large.txt");
    slow.expect_hanging(1);
    expect_others_served(&server);
    slow.release();
    assert_eq!(client.response().text(), "length 300000");
}

#[test]
fn a_long_script_waits_for_its_disk_like_a_short_one() {
    let test = "a_long_script_waits_for_its_disk_like_a_short_one";
    let config = "server.modules = (\"mod_magnet\")
        lua.max-run-time = 1000
        magnet.attract-raw-url-to = ( var.dir + \"/www/slow/long.lua\" )";
    let script = format!(
        "if lighty.env['uri.path'] ~= '/long' then return end
        {} lighty.content = {{ 'long' }} return 200",
        "-- a comment\n".repeat(50_000)
    );
    let files: [(&str, &[u8]); 1] = [("long.lua", script.as_bytes())];
    let Some((server, slow)) = super::site(test, &files, config) else {
        return;
    };
    assert_eq!(server.get("/long").text(), "long");
    // Long enough that the server's cache has forgotten the file.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    slow.hang_on(&[Operation::Read]);
    let mut client = asking(&server, "/long");
    slow.expect_hanging(1);
    slow.release();
    assert_eq!(client.response().text(), "long");
}

#[test]
fn a_long_script_is_read_where_no_look_up_is_remembered() {
    // Larger than what workers keep in memory. The kernel knows the file, so each lookup succeeds at once.
    let script = format!(
        "{} lighty.content = {{ 'long' }} return 200",
        "-- a comment\n".repeat(5000)
    );
    let page = format!(
        "{} output_contenttype = 'text/plain' output_include = {{ 'hot.txt' }} return CACHE_HIT",
        "-- a comment\n".repeat(5000)
    );
    for engine in ["disable", "simple", "inotify"] {
        let server = Server::build()
            .file("long.lua", &script)
            .file("www/hot.txt", "hot")
            .file("www/page.cml", &page)
            .config(&format!(
                "server.max-worker = 1
                server.modules = (\"mod_magnet\", \"mod_cml\")
                lua.max-run-time = 1000
                server.stat-cache-engine = \"{engine}\"
                cml.extension = \".cml\"
                $HTTP[\"url\"] == \"/long\" {{
                    magnet.attract-raw-url-to = ( var.dir + \"/long.lua\" )
                }}"
            ))
            .start();
        for _ in 0..3 {
            assert_eq!(server.get("/long").text(), "long", "{engine}");
            assert_eq!(server.get("/page.cml").text(), "hot", "{engine}");
        }
    }
}

/// It takes so long because the server waits for the disk four times, one to two seconds each.
#[test]
fn a_body_of_a_script_whose_disk_does_not_answer_is_504() {
    let test = "a_body_of_a_script_whose_disk_does_not_answer_is_504";
    let script = "local path = lighty.env['physical.doc-root'] .. '/slow' .. lighty.env['uri.path']
        if path:find('%.bin$') then lighty.content = { { filename = path } } return 200 end";
    let measures = "local body = lighty.r.resp_body body.set('length ' .. #body.get)";
    let files: [(&str, &[u8]); 2] = [
        ("sent.bin", &content(400_000)),
        ("seen.bin", &content(400_000)),
    ];
    // Either the lookup job reads the file, or the network backend does.
    for backend in ["auto", "io_uring"] {
        let config = format!(
            "server.modules = (\"mod_magnet\")
            lua.max-run-time = 1000
            server.network-backend = \"{backend}\"
            magnet.attract-physical-path-to = ( var.dir + \"/sends.lua\" )
            $HTTP[\"url\"] == \"/seen.bin\" {{
                magnet.attract-response-start-to = ( var.dir + \"/measures.lua\" )
            }}
            {}",
            impatient(1)
        );
        let Some((server, slow)) = super::site(test, &files, &config) else {
            return;
        };
        server.tree().write("sends.lua", script);
        server.tree().write("measures.lua", measures);
        assert_eq!(server.get("/hot.txt").text(), "hot");
        for name in ["sent.bin", "seen.bin"] {
            slow.hang_on(&[Operation::Read]);
            let mut client = asking(&server, &format!("/{name}"));
            slow.expect_hanging(1);
            expect_others_served(&server);
            let late = client.response();
            assert_eq!(late.status, 504, "{backend} {name}: {late}");
            server.expect_log("server.max-file-wait");
            slow.release();
        }
        assert!(
            server.get("/sent.bin").body == content(400_000),
            "{backend}"
        );
        assert_eq!(server.get("/seen.bin").text(), "length 400000", "{backend}");
    }
}
