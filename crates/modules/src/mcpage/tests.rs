//! Pages are looked up and stored, with a real memcached.

use std::cell::Cell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use petrel_engine::Exchange;
use petrel_engine::body::Body;
use petrel_engine::config::Diagnostic;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::proto::status::Status;
use petrel_engine::testing::{Answer, Site};

use super::MODULE;
use crate::testing::{Tree, refusal};

/// Stands for a backend. Its answer says how often it was asked, and has the field that the query names.
static BACKEND: ModuleSpec = ModuleSpec {
    name: "mod_test_backend",
    doc: "Counts.",
    loaded: Loaded::Always,
    directives: &[],
    configure: count,
};

const MODULES: &[&ModuleSpec] = &[
    &crate::access::MODULE,
    &MODULE,
    &BACKEND,
    &crate::static_file::MODULE,
];

fn count(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    configure.add(Phase::Translate, Leads);
    configure.add(Phase::Content, Counts(Cell::new(0)));
    Ok(())
}

/// Acts like a script that leads a request elsewhere depending on what the client sent, without changing its
/// target.
struct Leads;

impl Hook for Leads {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let path = exchange.request.head.value_of("X-Path").map(<[u8]>::to_vec);
        if let Some(path) = path {
            exchange.set_url_path(&path);
        }
        Outcome::Next
    }
}

struct Counts(Cell<u32>);

impl Hook for Counts {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if !exchange.request.url.path().ends_with(b".app") {
            return Outcome::Next;
        }
        self.0.set(self.0.get() + 1);
        let query = String::from_utf8_lossy(exchange.request.url.query()).into_owned();
        exchange.response.answer(Status::OK);
        exchange.response.set("Content-Type", b"text/x-made");
        if let Some((name, value)) = query.split_once('=') {
            exchange.response.set(name, value.as_bytes());
        }
        exchange.response.body = Body::from(format!("made {}", self.0.get()).into_bytes());
        Outcome::Answer
    }
}

/// memcached on a unix socket in the tree.
struct Memcached {
    child: Child,
    socket: String,
}

impl Memcached {
    fn start(tree: &Tree, name: &str) -> Memcached {
        let socket = tree.path(name);
        let child = Command::new("memcached")
            .args(["-u", "root", "-s", &socket, "-m", "16", "-t", "1"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("memcached is installed; `cargo xtask test` installs what tests need");
        let begun = Memcached { child, socket };
        for _ in 0..6000 {
            if UnixStream::connect(&begun.socket).is_ok() {
                return begun;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("memcached does not listen");
    }

    /// The reply of memcached to a command.
    fn say(&self, command: &[u8]) -> String {
        let mut stream = UnixStream::connect(&self.socket).expect("it listens");
        stream.write_all(command).expect("it reads");
        stream.write_all(b"quit\r\n").expect("it reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn set(&self, key: &str, value: &[u8]) {
        let mut command = format!("set {key} 0 0 {}\r\n", value.len()).into_bytes();
        command.extend_from_slice(value);
        command.extend_from_slice(b"\r\n");
        assert_eq!(self.say(&command), "STORED\r\n");
    }

    fn get(&self, key: &str) -> String {
        self.say(format!("get {key}\r\n").as_bytes())
    }

    fn config(&self) -> String {
        format!(
            "mcpage.enable = \"enable\"\nmcpage.memcached-hosts = ( \"unix:{}\" )\n",
            self.socket
        )
    }

    fn stop(mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn got(site: &Site, target: &str) -> String {
    text(&site.get_async(target).await)
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(answer.body()).into_owned()
}

/// Waits long enough for a page to be stored after it was sent.
async fn stored(memcached: &Memcached, key: &str) -> bool {
    for _ in 0..12_000 {
        if memcached.get(key) != "END\r\n" {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    false
}

#[tokio::test(flavor = "local")]
async fn pages_that_applications_have_stored_are_sent() {
    let tree = Tree::new(&[("there.html", "file")]);
    let memcached = Memcached::start(&tree, "m");
    let types = "mimetype.assign = ( \".txt\" => \"text/plain\" )\n";
    let site = tree.site(&format!("{types}{}", memcached.config()), MODULES);
    memcached.set("http://a.example/none.txt", b"stored");
    memcached.set("http://a.example/there.html?q=1", b"stored too");
    memcached.set("http://b.example/other", b"of another host");
    let answer = site.get_async("/none.txt").await;
    assert_eq!((answer.status(), text(&answer)), (200, "stored".to_owned()));
    assert_eq!(
        answer.field("X-Served-by-memcached").as_deref(),
        Some("yes")
    );
    assert_eq!(answer.field("Content-Type").as_deref(), Some("text/plain"));
    assert_eq!(got(&site, "/there.html?q=1").await, "stored too");
    assert_eq!(got(&site, "/there.html").await, "file");
    assert_eq!(site.get_async("/other").await.status(), 404);
    let ranged = "GET /none.txt HTTP/1.1\r\nHost: a.example\r\nRange: bytes=2-3\r\n\r\n";
    let answer = site.request_async(ranged).await;
    assert_eq!((answer.status(), text(&answer)), (206, "or".to_owned()));
    let known = "GET /none.txt HTTP/1.1\r\nHost: a.example\r\nAuthorization: x\r\n\r\n";
    assert_eq!(site.request_async(known).await.status(), 404);
}

#[tokio::test(flavor = "local")]
async fn answers_are_stored_and_found() {
    let tree = Tree::new(&[("x.app", ""), ("y.app", ""), ("static.html", "file")]);
    let memcached = Memcached::start(&tree, "m");
    let config = format!("{}mcpage.announce = \"disable\"\n", memcached.config());
    let site = tree.site(&config, MODULES);
    assert_eq!(got(&site, "/x.app?X-A=b").await, "made 1");
    assert!(stored(&memcached, "http://a.example/x.app?X-A=b").await);
    let answer = site.get_async("/x.app?X-A=b").await;
    assert_eq!(text(&answer), "made 1");
    assert_eq!(answer.field("Content-Type").as_deref(), Some("text/x-made"));
    assert_eq!(answer.field("X-A").as_deref(), Some("b"));
    assert_eq!(answer.field("X-Served-by-memcached"), None);
    let head = "HEAD /x.app?X-A=b HTTP/1.1\r\nHost: a.example\r\n\r\n";
    assert_eq!(site.request_async(head).await.status(), 200);
    assert_eq!(got(&site, "/x.app?X-A=c").await, "made 2");
    got(&site, "/static.html").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(memcached.get("http://a.example/static.html"), "END\r\n");
}

#[tokio::test(flavor = "local")]
async fn a_script_changes_each_answer_and_the_stored_one_never() {
    let script = "local user = lighty.r.req_header['X-User']
        lighty.header['X-Hello'] = (lighty.r.resp_header['X-Hello'] or '') .. user
        lighty.r.resp_body.add(' for ' .. user)";
    let before = "lighty.header['X-Before'] = lighty.r.req_header['X-User']";
    let tree = Tree::new(&[
        ("x.app", ""),
        ("script.lua", script),
        ("before.lua", before),
    ]);
    let memcached = Memcached::start(&tree, "m");
    let config = format!(
        "{}magnet.attract-response-start-to = (\"ROOT/script.lua\")\n\
         magnet.attract-raw-url-to = (\"ROOT/before.lua\")",
        memcached.config()
    );
    let scripts: &[&ModuleSpec] = &[&crate::lua::MODULE, &crate::magnet::MODULE];
    let site = tree.site(&config, &[scripts, MODULES].concat());
    for user in ["ann", "bob"] {
        let head = format!("GET /x.app HTTP/1.1\r\nHost: a.example\r\nX-User: {user}\r\n\r\n");
        let answer = site.request_async(&head).await;
        assert_eq!(text(&answer), format!("made 1 for {user}"));
        assert_eq!(answer.field("X-Hello").as_deref(), Some(user));
        assert_eq!(answer.field("X-Before").as_deref(), Some(user));
        assert!(stored(&memcached, "http://a.example/x.app").await);
        let value = memcached.get("http://a.example/x.app");
        assert!(!value.contains(user), "{value}");
    }
}

#[tokio::test(flavor = "local")]
async fn an_answer_that_may_be_for_one_client_is_not_stored() {
    let tree = Tree::new(&[("x.app", "")]);
    let memcached = Memcached::start(&tree, "m");
    let site = tree.site(&memcached.config(), MODULES);
    let ask = async |target: &str, fields: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n");
        text(&site.request_async(&request).await)
    };
    for (number, (target, fields)) in [
        ("/x.app?Set-Cookie=a", ""),
        ("/x.app?Cache-Control=private", ""),
        ("/x.app?Vary=Cookie", ""),
        ("/x.app", "Cookie: a=b\r\n"),
        ("/x.app", "X-Original-URL: /admin\r\n"),
        ("/x.app", "x_http_method_override: DELETE\r\n"),
        ("/x.app", "Connection: close, Accept-Language\r\n"),
        ("/x.app", "Authorization: Basic eDp5\r\n"),
        ("/x.app", "Cache-Control: no-store\r\n"),
    ]
    .into_iter()
    .enumerate()
    {
        let expected = |again: usize| format!("made {}", 2 * number + again);
        assert_eq!(ask(target, fields).await, expected(1), "{target} {fields}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(ask(target, fields).await, expected(2), "{target} {fields}");
    }
    assert!(!memcached.say(b"stats items\r\n").contains("number"));
}

#[tokio::test(flavor = "local")]
async fn a_request_that_a_script_leads_elsewhere_is_no_page() {
    let tree = Tree::new(&[("x.app", ""), ("b c/x.app", ""), ("phone/x.app", "")]);
    let memcached = Memcached::start(&tree, "m");
    let site = tree.site(&memcached.config(), MODULES);
    let ask = async |target: &str, fields: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n");
        text(&site.request_async(&request).await)
    };
    for (target, number) in [("/x.app", 1), ("/b%20c/x.app", 3)] {
        let made = |number: usize| format!("made {number}");
        assert_eq!(ask(target, "X-Path: /phone/x.app\r\n").await, made(number));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(ask(target, "").await, made(number + 1));
        assert!(stored(&memcached, &format!("http://a.example{target}")).await);
        assert_eq!(ask(target, "").await, made(number + 1));
    }
}

#[tokio::test(flavor = "local")]
async fn compressed_pages_are_decoded_for_who_wants_them_plain() {
    // `printf hello | gzip -n`.
    let hello = [
        0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xcb, 0x48, 0xcd, 0xc9, 0xc9, 7, 0, 0x86, 0xa6, 0x10,
        0x36, 5, 0, 0, 0,
    ];
    let tree = Tree::new(&[("page", "file")]);
    let memcached = Memcached::start(&tree, "m");
    let site = tree.site(&memcached.config(), MODULES);
    memcached.set("http://a.example/page", &hello);
    let answer = site.get_async("/page").await;
    assert_eq!(text(&answer), "hello");
    assert_eq!(answer.field("Content-Encoding"), None);
    assert_eq!(answer.field("Vary").as_deref(), Some("Accept-Encoding"));
    let request = "GET /page HTTP/1.1\r\nHost: a.example\r\nAccept-Encoding: gzip\r\n\r\n";
    let answer = site.request_async(request).await;
    assert_eq!(answer.body(), hello);
    assert_eq!(answer.field("Content-Encoding").as_deref(), Some("gzip"));
    memcached.set("http://a.example/page", &hello[..12]);
    assert_eq!(got(&site, "/page").await, "file", "it is broken");
    memcached.set("http://a.example/none", &hello[..12]);
    assert_eq!(site.get_async("/none").await.status(), 404);
}

#[tokio::test(flavor = "local")]
async fn access_rules_hold_for_stored_pages() {
    let tree = Tree::new(&[("x.inc", "file")]);
    let memcached = Memcached::start(&tree, "m");
    let config = format!("{}url.access-deny = ( \".inc\" )", memcached.config());
    let site = tree.site(&config, MODULES);
    memcached.set("http://a.example/x.inc", b"stored");
    memcached.set("http://a.example/none.inc", b"stored");
    for target in ["/x.inc", "/none.inc"] {
        assert_eq!(site.get_async(target).await.status(), 403, "{target}");
    }
}

#[tokio::test(flavor = "local")]
async fn a_memcached_that_is_away_makes_no_difference() {
    let tree = Tree::new(&[("x.app", ""), ("a.html", "file")]);
    let memcached = Memcached::start(&tree, "m");
    let site = tree.site(&memcached.config(), MODULES);
    assert_eq!(got(&site, "/x.app").await, "made 1");
    assert!(stored(&memcached, "http://a.example/x.app").await);
    memcached.stop();
    assert_eq!(got(&site, "/x.app").await, "made 2");
    assert_eq!(got(&site, "/a.html").await, "file");
}

#[tokio::test(flavor = "local")]
async fn the_local_memcached_is_asked_first() {
    let tree = Tree::new(&[("x.app", "")]);
    let shared = Memcached::start(&tree, "shared");
    let local = Memcached::start(&tree, "local");
    let config = format!(
        "{}mcpage.localmc-enable = \"enable\"\nmcpage.localmc-socket = \"{}\"\nmcpage.memcached-keyprefix = \"p-\"\n",
        shared.config(),
        local.socket
    );
    let site = tree.site(&config, MODULES);
    shared.set("p-http://a.example/x", b"shared");
    assert_eq!(got(&site, "/x").await, "shared");
    assert!(stored(&local, "p-http://a.example/x").await);
    local.set("p-http://a.example/x", b"local");
    assert_eq!(got(&site, "/x").await, "local");
    assert_eq!(got(&site, "/x.app").await, "made 1");
    assert!(stored(&local, "p-http://a.example/x.app").await);
    assert!(stored(&shared, "p-http://a.example/x.app").await);
}

#[tokio::test(flavor = "local")]
async fn keys_may_be_hashed_and_pages_too_small() {
    let tree = Tree::new(&[("x.app", "")]);
    let memcached = Memcached::start(&tree, "m");
    let hashed = format!("{}mcpage.md5 = \"enable\"\n", memcached.config());
    let site = tree.site(&hashed, MODULES);
    // `printf http://a.example/x | md5sum`.
    memcached.set("3b0f361c22e1755442ab57b07ab1e3b9", b"hashed");
    assert_eq!(got(&site, "/x").await, "hashed");
    let small = format!("{}mcpage.memcached-minsize = 1\n", memcached.config());
    let site = tree.site(&small, MODULES);
    assert_eq!(got(&site, "/x.app").await, "made 1");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(got(&site, "/x.app").await, "made 2");
}

#[test]
fn wrong_values_are_told() {
    let tree = Tree::new(&[]);
    let refused = |config: &str| {
        let config = format!("mcpage.enable = \"enable\"\n{config}");
        refusal(&tree.config(&config), MODULES)
    };
    let hosts = "mcpage.memcached-hosts = ( \"127.0.0.1\" )\n";
    assert!(refused("").contains("needs mcpage.memcached-hosts"));
    assert!(refused("mcpage.memcached-hosts = ( \"a b\" )").contains("no address"));
    let with = |line: &str| refused(&format!("{hosts}{line}"));
    assert!(with("mcpage.memcached-hashing = \"rot13\"").contains("none of"));
    assert!(with("mcpage.memcached-behavior = \"chaos\"").contains("none of"));
    assert!(with("mcpage.memcached-keyprefix = \"a b\"").contains("no spaces"));
}
