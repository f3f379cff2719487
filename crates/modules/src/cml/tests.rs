//! Tests that run scripts through the phases of a site.

use std::fs::{File, FileTimes};
use std::time::{Duration, SystemTime};

use petrel_engine::module::ModuleSpec;
use petrel_engine::testing::{Answer, Site};

use super::MODULE;
use crate::testing::{Tree, refusal};

const MODULES: &[&ModuleSpec] = &[
    &crate::index_file::MODULE,
    &crate::access::MODULE,
    &crate::alias::MODULE,
    &MODULE,
    &crate::static_file::MODULE,
];

/// The budget is large enough for a debug build on a slow machine.
const CONFIG: &str = "cml.extension = \".cml\"\n\
    lua.max-run-time = 1000\n\
    index-file.names = ( \"index.cml\", \"index.php\" )\n\
    mimetype.assign = ( \".html\" => \"text/html\", \".txt\" => \"text/plain\" )\n";

fn site(tree: &Tree, config: &str) -> Site {
    tree.site(&format!("{CONFIG}{config}"), MODULES)
}

/// A tree with `script` as index.cml, two parts, and an application.
fn tree(script: &str) -> Tree {
    Tree::new(&[
        ("index.cml", script),
        ("head.html", "[head]"),
        ("body.html", "[body]"),
        ("index.php", "made"),
        (
            "sub/page.cml",
            "output_include = { '../head.html' } return CACHE_HIT",
        ),
    ])
}

fn body(answer: &Answer) -> String {
    String::from_utf8_lossy(answer.body()).into_owned()
}

/// The status and body of `GET target`.
fn got(tree: &Tree, config: &str, target: &str) -> (u16, String) {
    let answer = site(tree, config).get(target);
    (answer.status(), body(&answer))
}

/// The value of a Lua expression, as text.
async fn value(expression: &str, target: &str) -> String {
    let script =
        format!("output_include = {{ {{ text = tostring({expression}) }} }} return CACHE_HIT");
    let tree = tree(&script);
    let request = format!(
        "GET {target} HTTP/1.1\r\nHost: a\r\nCookie: a=b; PHPSESSID=abc123; c=../x\r\n\r\n"
    );
    let answer = site(&tree, "").request_async(&request).await;
    assert_eq!(answer.status(), 200, "{expression}");
    body(&answer).replace(&tree.path(""), "ROOT/")
}

const PARTS: &str = "output_contenttype = \"text/html; charset=utf-8\"\n\
    output_include = { \"head.html\", { text = \"-\" }, \"body.html\" }\n\
    return CACHE_HIT";

#[test]
fn parts_become_one_page() {
    let tree = tree(PARTS);
    for target in ["/", "/index.cml", "/index.cml?a=b"] {
        let answer = site(&tree, "").get(target);
        assert_eq!(
            (answer.status(), body(&answer)),
            (200, "[head]-[body]".to_owned())
        );
        let content_type = answer.field("Content-Type");
        assert_eq!(content_type.as_deref(), Some("text/html; charset=utf-8"));
    }
    assert_eq!(got(&tree, "", "/sub/page.cml"), (200, "[head]".to_owned()));
}

#[test]
fn a_page_without_a_type_has_that_of_its_first_file() {
    for (list, expected) in [
        ("'a.txt', 'head.html'", "text/plain"),
        ("'none.x', 'head.html'", "text/html"),
        ("'none.x'", "text/html"),
        ("", "text/html"),
    ] {
        let script = format!("output_include = {{ {list} }} return CACHE_HIT");
        let tree = Tree::new(&[
            ("index.cml", &script),
            ("a.txt", "a"),
            ("none.x", "n"),
            ("head.html", "h"),
        ]);
        let answer = site(&tree, "").get("/");
        assert_eq!(
            answer.field("Content-Type").as_deref(),
            Some(expected),
            "{list}"
        );
        assert_eq!(answer.status(), 200, "{list}");
    }
}

#[test]
fn a_miss_goes_on_with_the_trigger_handler() {
    let miss = "trigger_handler = 'index.php' return CACHE_MISS";
    let tree = tree(miss);
    let site = site(&tree, "");
    let answer = site.get("/?a=b");
    assert_eq!((answer.status(), body(&answer)), (200, "made".to_owned()));
    let exchange = answer.exchange();
    assert_eq!(exchange.request.url.path(), b"/index.php");
    assert_eq!(exchange.request.url.query(), b"a=b");
    assert_eq!(exchange.request.original_target(), b"/?a=b");
    assert!(exchange.physical.path.ends_with(b"/index.php"));
}

#[test]
fn a_trigger_handler_may_be_anywhere_and_bring_a_query() {
    for (handler, expected) in [
        ("../index.php", (200, "/index.php", "x=1")),
        ("/index.php", (200, "/index.php", "x=1")),
        ("../index.php?y=2&z", (200, "/index.php", "y=2&z")),
        ("../../../index.php", (500, "/sub/page.cml", "x=1")),
        ("none.php", (404, "/sub/none.php", "x=1")),
        ("a\\nb", (500, "/sub/page.cml", "x=1")),
        ("a\\0b", (500, "/sub/page.cml", "x=1")),
    ] {
        let script = format!("trigger_handler = \"{handler}\" return CACHE_MISS");
        let tree = Tree::new(&[("index.php", "made"), ("sub/page.cml", &script)]);
        let answer = site(&tree, "").get("/sub/page.cml?x=1");
        let url = &answer.exchange().request.url;
        let (path, query) = (url.path(), url.query());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (status, expected_path, expected_query) = expected;
        assert_eq!(answer.status(), status, "{handler}");
        assert_eq!(text(path), expected_path, "{handler}");
        assert_eq!(text(query), expected_query, "{handler}");
    }
}

#[test]
fn access_rules_see_the_trigger_handler() {
    let tree = tree("trigger_handler = 'index.php' return CACHE_MISS");
    assert_eq!(got(&tree, "url.access-deny = ( \".php\" )", "/").0, 403);
    let of_url = "$HTTP[\"url\"] == \"/index.php\" { url.access-deny = ( \"\" ) }";
    assert_eq!(got(&tree, of_url, "/").0, 403);
    assert_eq!(got(&tree, "url.access-deny = ( \".pl\" )", "/").0, 200);
}

#[test]
fn redirects_and_scripts_do_not_see_the_trigger_handler() {
    let tree = tree("trigger_handler = 'index.php' return CACHE_MISS");
    tree.write(
        "a.lua",
        "if lighty.env['uri.path'] == '/index.php' then return 403 end",
    );
    let config = "url.redirect = ( \"^/index.php\" => \"/\" )
        magnet.attract-raw-url-to = ( \"ROOT/a.lua\" )";
    let modules = [MODULES, &[&crate::redirect::MODULE, &crate::magnet::MODULE]].concat();
    let site = tree.site(&format!("{CONFIG}{config}"), &modules);
    assert_eq!(body(&site.get("/")), "made");
}

#[test]
fn a_part_that_is_missing_is_a_miss() {
    let script = "trigger_handler = 'index.php' output_include = { 'head.html', 'gone.html' } return CACHE_HIT";
    assert_eq!(got(&tree(script), "", "/"), (200, "made".to_owned()));
    let script = "output_include = { 'head.html', 'gone.html' } return CACHE_HIT";
    assert_eq!(got(&tree(script), "", "/").0, 500);
}

#[test]
fn what_a_script_must_not_do_is_500_and_never_its_source() {
    for script in [
        "return CACHE_MISS",
        "return CACHE_HIT",
        "output_include = 'head.html' return CACHE_HIT",
        "output_include = { 7.5, true } return CACHE_HIT",
        "output_include = { name = 'head.html' } return CACHE_HIT",
        "output_include = { {} } return CACHE_HIT",
        "output_include = { 'sub' } return CACHE_HIT",
        "output_include = { 'head.html' } return 7",
        "output_include = { 'head.html' } return 'hit'",
        "output_include = { 'head.html' } output_contenttype = {} return 0",
        "local list = {} for i = 1, 2000 do list[i] = 'head.html' end output_include = list return 0",
        "error('wrong')",
        "this is no Lua",
        "",
    ] {
        let (status, text) = got(&tree(script), "", "/");
        assert_eq!(status, 500, "{script}");
        assert!(script.is_empty() || !text.contains(script), "{text}");
    }
}

#[test]
fn parts_outside_the_root_are_refused() {
    let outside = Tree::new(&[("secret.txt", "secret")]);
    let secret = outside.path("secret.txt");
    let escape = format!("{}{secret}", "/..".repeat(12));
    for name in [
        &*secret,
        &escape,
        "/etc/passwd",
        "../../../../../../etc/passwd",
        "sub/../../x",
        "a\\0b",
    ] {
        let script = format!(
            "trigger_handler = 'index.php' output_include = {{ 'head.html', \"{name}\" }} return 0"
        );
        let (status, text) = got(&tree(&script), "", "/");
        assert_eq!(status, 500, "{name}");
        assert!(
            !text.contains("secret") && !text.contains("[head]"),
            "{text}"
        );
    }
    let script = format!("output_include = {{ \"{secret}\" }} return CACHE_HIT");
    let allowed = format!("cml.include-directories = ( \"{}\" )", outside.path(""));
    assert_eq!(
        got(&tree(&script), &allowed, "/"),
        (200, "secret".to_owned())
    );
}

#[test]
fn symlinks_are_followed_where_they_are_for_urls() {
    let outside = Tree::new(&[("secret.txt", "secret")]);
    let tree = tree("output_include = { 'link' } return CACHE_HIT");
    std::os::unix::fs::symlink(outside.path("secret.txt"), tree.path("link")).expect("a symlink");
    assert_eq!(got(&tree, "", "/"), (200, "secret".to_owned()));
    let refused = "server.follow-symlink = \"disable\"";
    assert_eq!(got(&tree, refused, "/").0, 500);
}

#[test]
fn parts_of_an_alias_are_beside_its_scripts() {
    let elsewhere = Tree::new(&[
        (
            "page.cml",
            "output_include = { 'part.html' } return CACHE_HIT",
        ),
        ("part.html", "part"),
        ("up.cml", "output_include = { '../x' } return CACHE_HIT"),
    ]);
    let config = format!("alias.url = ( \"/e/\" => \"{}\" )", elsewhere.path(""));
    let tree = tree("");
    assert_eq!(got(&tree, &config, "/e/page.cml"), (200, "part".to_owned()));
    assert_eq!(got(&tree, &config, "/e/up.cml").0, 500);
}

#[test]
fn an_unchanged_page_is_304() {
    let tree = tree("output_include = { 'head.html', 'body.html' } return CACHE_HIT");
    let touch = |name: &str, second: u64| {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let file = File::options()
            .write(true)
            .open(tree.path(name))
            .expect("it is there");
        file.set_times(FileTimes::new().set_modified(time))
            .expect("the time is set");
    };
    touch("head.html", 1_000_000_000);
    touch("body.html", 1_000_000_100);
    let site = site(&tree, "");
    let first = site.get("/");
    let modified = first.field("Last-Modified").expect("all parts are files");
    assert_eq!(modified, "Sun, 09 Sep 2001 01:48:20 GMT");
    let etag = first.field("ETag").expect("it has one");
    let asked = |fields: &str| {
        let answer = site.request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        (answer.status(), answer.body().len())
    };
    assert_eq!(asked(&format!("If-None-Match: {etag}\r\n")), (304, 0));
    assert_eq!(
        asked(&format!("If-Modified-Since: {modified}\r\n")),
        (304, 0)
    );
    assert_eq!(asked("If-None-Match: \"other\"\r\n"), (200, 12));
    assert_eq!(asked("If-Match: \"other\"\r\n").0, 412);
    std::fs::write(tree.path("head.html"), "[HEAD!]").expect("it is writable");
    site.worker().files().flush();
    assert_eq!(asked(&format!("If-None-Match: {etag}\r\n")), (200, 13));
    assert_eq!(
        asked(&format!("If-Modified-Since: {modified}\r\n")),
        (200, 13)
    );
}

#[test]
fn a_page_with_text_has_a_tag_and_no_date() {
    let tree = tree(PARTS);
    let answer = site(&tree, "").get("/");
    assert!(answer.field("ETag").is_some());
    assert_eq!(answer.field("Last-Modified"), None);
}

#[test]
fn a_range_of_a_page_may_span_parts() {
    let tree = tree("output_include = { 'head.html', 'body.html' } return CACHE_HIT");
    let site = site(&tree, "");
    let asked = |range: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\nRange: {range}\r\n\r\n");
        let answer = site.request(&request);
        (
            answer.status(),
            body(&answer),
            answer.field("Content-Range"),
        )
    };
    let range = Some("bytes 4-8/12".to_owned());
    assert_eq!(asked("bytes=4-8"), (206, "d][bo".to_owned(), range));
    assert_eq!(asked("bytes=50-").0, 416);
    let range = Some("bytes 0-5/12".to_owned());
    assert_eq!(asked("bytes=0-1,4-5"), (206, "[head]".to_owned(), range));
}

#[tokio::test(flavor = "local")]
async fn scripts_know_the_request() {
    for (expression, expected) in [
        ("request['REQUEST_URI']", "/?id=7&q=a%20b+c&id=8"),
        ("request.SCRIPT_NAME", "/index.cml"),
        ("request.SCRIPT_FILENAME", "ROOT/index.cml"),
        ("request.DOCUMENT_ROOT .. '/'", "ROOT/"),
        ("request.CWD", "ROOT/"),
        ("request.BASEURL", "/"),
        ("request.PATH_INFO", "nil"),
        ("request.nothing", "nil"),
        ("request[1]", "nil"),
        ("get['id']", "8"),
        ("get.q", "a b c"),
        ("get.nothing", "nil"),
        ("cookie.a", "b"),
        ("session.id", "abc123"),
        ("session.c", "nil"),
        ("session.id == session.PHPSESSID", "true"),
        ("md5('123')", "202cb962ac59075b964b07152d234b70"),
        ("crypto.md5('123')", "202cb962ac59075b964b07152d234b70"),
        ("type(petrel)", "table"),
        ("fragment('f', 60, function() return 'made' end)", "made"),
        ("CACHE_HIT .. CACHE_MISS", "01"),
        ("_G.request == request", "true"),
    ] {
        assert_eq!(
            value(expression, "/?id=7&q=a%20b+c&id=8").await,
            expected,
            "{expression}"
        );
    }
    assert_eq!(value("request.PATH_INFO", "/index.cml/more").await, "/more");
    assert_eq!(
        value("request.SCRIPT_NAME", "/index.cml/more").await,
        "/index.cml"
    );
}

#[tokio::test(flavor = "local")]
async fn tables_about_the_request_can_be_gone_through() {
    let count = "(function() local n = 0 for _ in pairs(TABLE) do n = n + 1 end return n end)()";
    for (table, expected) in [("get", "2"), ("cookie", "3"), ("request", "8")] {
        assert_eq!(
            value(&count.replace("TABLE", table), "/?a=1&b").await,
            expected,
            "{table}"
        );
    }
}

#[test]
fn the_document_root_has_the_slash_that_is_configured() {
    let script = "output_include = { { text = request.DOCUMENT_ROOT } } return CACHE_HIT";
    let tree = tree(script);
    for root in [
        tree.path(""),
        tree.path("").trim_end_matches('/').to_owned(),
    ] {
        let config = format!("server.document-root = \"{root}\"\n{CONFIG}");
        let answer = Site::new(&config, MODULES).get("/");
        assert_eq!(body(&answer), root);
    }
}

#[tokio::test(flavor = "local")]
async fn scripts_know_files() {
    for (expression, expected) in [
        ("file_isreg('head.html')", "1"),
        ("file_isreg('sub')", "false"),
        ("file_isreg('none')", "nil"),
        ("file_isdir('sub')", "1"),
        ("file_isdir(request.CWD .. 'sub')", "1"),
        ("file_isdir('head.html')", "false"),
        ("file_mtime('none')", "nil"),
        ("file_mtime('head.html') > 1700000000", "true"),
        ("file_mtime('a\\0b')", "nil"),
        (
            "(function() local s = '' for f in dir_files(request.CWD) do s = s .. f .. ' ' end return s end)()",
            "body.html head.html index.cml index.php sub ",
        ),
        ("dir_files('none')()", "nil"),
    ] {
        assert_eq!(value(expression, "/").await, expected, "{expression}");
    }
}

#[test]
fn globals_do_not_outlive_their_run() {
    let script = "local before = leak leak = 1 request.x = 1 get.y = 2 crypto_ok = pcall(function() crypto.md5 = nil end)\n\
        output_include = { { text = tostring(before) .. tostring(crypto_ok) } } return CACHE_HIT";
    let tree = tree(script);
    let site = site(&tree, "");
    for _ in 0..3 {
        assert_eq!(body(&site.get("/")), "nilfalse");
    }
}

#[test]
fn a_power_magnet_sees_every_request() {
    let magnet = "local dr = request['DOCUMENT_ROOT']\n\
        if get.trigger then trigger_handler = 'index.php' return CACHE_MISS end\n\
        if file_isreg(dr .. '/maintenance.html') then output_include = { dr .. '/maintenance.html' } return CACHE_HIT end\n\
        return CACHE_MISS";
    let tree = Tree::new(&[
        ("magnet.cml", magnet),
        ("a.txt", "a"),
        ("index.php", "made"),
    ]);
    let config = "cml.power-magnet = \"ROOT/magnet.cml\"";
    let site = site(&tree, config);
    let got = |target: &str| {
        let answer = site.get(target);
        (answer.status(), body(&answer))
    };
    assert_eq!(got("/a.txt"), (200, "a".to_owned()));
    assert_eq!(got("/none").0, 404);
    assert_eq!(got("/none?trigger"), (200, "made".to_owned()));
    std::fs::write(tree.path("maintenance.html"), "closed").expect("it is writable");
    site.worker().files().flush();
    assert_eq!(got("/a.txt"), (200, "closed".to_owned()));
    assert_eq!(got("/none"), (200, "closed".to_owned()));
    std::fs::remove_file(tree.path("magnet.cml")).expect("it is there");
    site.worker().files().flush();
    assert_eq!(got("/a.txt").0, 500);
}

#[test]
fn a_script_that_leads_to_itself_ends() {
    let tree = tree("trigger_handler = 'index.cml' return CACHE_MISS");
    assert_eq!(got(&tree, "", "/").0, 500);
}

#[test]
fn other_methods_are_told_which_there_are() {
    let tree = tree(PARTS);
    let site = site(&tree, "");
    for (method, status) in [("HEAD", 200), ("POST", 200), ("PUT", 405), ("OPTIONS", 200)] {
        let request = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        let answer = site.request(&request);
        assert_eq!(answer.status(), status, "{method}");
        assert!(!body(&answer).contains("output_include"), "{method}");
    }
}

#[test]
fn without_hosts_memcache_functions_are_errors() {
    let tree = tree("trigger_handler = 'index.php' if not memcache_exists('k') then return 1 end");
    assert_eq!(got(&tree, "", "/").0, 500);
}

#[tokio::test(flavor = "local")]
async fn a_server_that_is_away_is_a_miss() {
    let script = "trigger_handler = 'index.php'\n\
        assert(memcache_get_string('k') == false and memcache_get_long('k') == false)\n\
        if memcache_exists('k') then output_include = { 'head.html' } return CACHE_HIT end\n\
        return CACHE_MISS";
    let tree = tree(script);
    let site = site(&tree, "cml.memcache-hosts = ( \"127.0.0.1:9\" )");
    for _ in 0..2 {
        let answer = site.get_async("/").await;
        assert_eq!((answer.status(), body(&answer)), (200, "made".to_owned()));
    }
}

#[tokio::test(flavor = "local")]
async fn scripts_that_wait_do_not_mix() {
    let script = "local mine = get.id output_include = { { text = mine } }\n\
        petrel.sleep(get.id == '1' and 0.05 or 0.01)\n\
        output_include[2] = { text = get.id .. request.QUERY_STRING }\n\
        return CACHE_HIT";
    let tree = tree(script);
    let site = site(&tree, "");
    let (one, two) = tokio::join!(site.get_async("/?id=1"), site.get_async("/?id=2"));
    assert_eq!(
        (body(&one), body(&two)),
        ("11id=1".to_owned(), "22id=2".to_owned())
    );
}

#[test]
fn wrong_values_are_told() {
    let refused = |config: &str| refusal(&tree("").config(config), MODULES);
    assert!(refused("cml.memcache-hosts = ( \"a b\" )").contains("no address"));
    assert!(refused("cml.include-directories = ( \"tmp\" )").contains("absolute path"));
    let namespace = "cml.memcache-hosts = ( \"::1\" )\ncml.memcache-namespace = \"a b\"";
    assert!(refused(namespace).contains("without spaces"));
}

/// A tree with `script`, and a page that fragments are made from.
fn tree_with_news(script: &str) -> Tree {
    Tree::new(&[
        ("index.cml", script),
        ("news.html", "one"),
        ("head.html", "["),
    ])
}

#[tokio::test(flavor = "local")]
async fn fragments_of_urls_live_as_long_as_they_are_told() {
    let script = "output_include = { 'head.html', { url = '/news.html', ttl = get.ttl + 0 }, { text = ']' } } return 0";
    let tree = tree_with_news(script);
    let site = site(&tree, "");
    let got = async |target: &str| body(&site.get_async(target).await);
    assert_eq!(got("/?ttl=60").await, "[one]");
    std::fs::write(tree.path("news.html"), "two!").expect("it is writable");
    site.worker().files().flush();
    assert_eq!(got("/?ttl=60").await, "[one]", "it is kept");
    assert_eq!(got("/?ttl=0").await, "[two!]", "it is asked for each time");
}

#[tokio::test(flavor = "local")]
async fn a_fragment_that_there_is_not_is_a_miss() {
    let script = "trigger_handler = 'news.html' output_include = { { url = '/none.html', ttl = 60 } } return 0";
    let tree = tree_with_news(script);
    let answer = site(&tree, "").get_async("/").await;
    assert_eq!((answer.status(), body(&answer)), (200, "one".to_owned()));
    for url in ["/none.html", "news.html", "/a b", "/index.cml"] {
        let script = format!("output_include = {{ {{ url = '{url}', ttl = 60 }} }} return 0");
        let tree = tree_with_news(&script);
        assert_eq!(site(&tree, "").get_async("/").await.status(), 500, "{url}");
    }
}

#[tokio::test(flavor = "local")]
async fn scripts_make_fragments() {
    let script = "made = 0\n\
        local function part()\n\
            return petrel.fragment('part', get.ttl + 0, function()\n\
                if get.fail then error('no news') end\n\
                petrel.sleep(0.01) made = made + 1 return get.text\n\
            end)\n\
        end\n\
        local ok, text = pcall(part)\n\
        output_include = { { text = tostring(text) .. made } } return 0";
    let tree = tree_with_news(script);
    let site = site(&tree, "");
    let got = async |target: &str| body(&site.get_async(target).await);
    assert!(got("/?ttl=60&fail=1").await.contains("no news0"));
    let (one, two) = tokio::join!(got("/?ttl=60&text=a"), got("/?ttl=60&text=b"));
    let mut both = [one, two];
    both.sort();
    assert_eq!(
        both,
        ["a0".to_owned(), "a1".to_owned()],
        "one makes it, the other waits"
    );
    assert_eq!(got("/?ttl=60&text=c&fail=1").await, "a0");
    assert_eq!(got("/?ttl=0&text=d").await, "d1");
}

#[tokio::test(flavor = "local")]
async fn a_fragment_that_a_script_gave_up_is_made_by_the_next() {
    let script = "output_include = { { text = petrel.fragment('f', 60, function() if get.loop then while true do end end return 'made' end) } } return 0";
    let tree = tree_with_news(script);
    let site = site(&tree, "");
    assert_eq!(site.get_async("/?loop=1").await.status(), 500);
    let answer = site.get_async("/").await;
    assert_eq!((answer.status(), body(&answer)), (200, "made".to_owned()));
}

#[tokio::test(flavor = "local")]
async fn fragments_within_each_other_do_not_wait_for_each_other() {
    let script = "local function outer(first, second)\n\
            return petrel.fragment(first, 60, function()\n\
                petrel.sleep(0.02)\n\
                return first .. petrel.fragment(second, 60, function() return second end)\n\
            end)\n\
        end\n\
        output_include = { { text = get.a and outer('a', 'b') or outer('b', 'a') } } return 0";
    let tree = tree_with_news(script);
    let site = site(&tree, "");
    let begin = std::time::Instant::now();
    let (one, two) = tokio::join!(site.get_async("/?a"), site.get_async("/?b"));
    // The later request may find the fragment that the other one has made.
    let both = (body(&one), body(&two));
    assert!(
        both.0.starts_with("ab") && both.1.starts_with("ba"),
        "{both:?}"
    );
    assert!(begin.elapsed() < Duration::from_secs(30));
}
