//! Scripts that look at files, and send them.

use petrel_tests::{Server, SlowFs};

use super::{asking, expect_others_served, impatient};

/// What each script does with a file of the file system that hangs, and what comes of it.
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
    let source = format!("local path = '{}'\n{source}", path.display());
    server.tree().write("magnet.lua", source);
}

const CONFIG: &str = "server.modules = (\"mod_magnet\", \"mod_cml\")
    cml.extension = \".cml\"
    server.stat-cache-engine = \"disable\"
    magnet.attract-raw-url-to = ( var.dir + \"/magnet.lua\" )";

#[test]
fn a_script_that_waits_for_a_disk_holds_nobody_up() {
    let test = "a_script_that_waits_for_a_disk_holds_nobody_up";
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
    let expected = ["1true", "true", "a1b", "1c", "1", "1"];
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

#[test]
fn a_script_whose_disk_does_not_answer_is_504() {
    let test = "a_script_whose_disk_does_not_answer_is_504";
    let Some((server, slow)) = site(test, &format!("{CONFIG}\n{}", impatient(1))) else {
        return;
    };
    magnet(&server);
    let page = "output_include = { 'slow/one.txt' } return CACHE_HIT";
    server.tree().write("www/page.cml", page);
    for url in ["/stat", "/content", "/body", "/send", "/page.cml"] {
        slow.hang();
        let mut client = asking(&server, url);
        slow.expect_hanging(1);
        expect_others_served(&server);
        let answer = client.response();
        assert_eq!(answer.status, 504, "{url}: {answer}");
        server.expect_log("slow/one.txt");
        slow.release();
    }
}
