use std::os::unix::fs::symlink;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use petrel_engine::cause::CauseCode;
use petrel_engine::config::Diagnostic;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Pending, Phase};
use petrel_engine::proto::status::Status;
use petrel_engine::testing::{Answer, Site};

use super::*;
use crate::gateway::options::{HostAddress, Protocol};
use crate::testing::Tree;
use crate::{access, deflate, static_file};

/// Stands for a gateway. The reply head is what follows `/reply?` in the URL, with `&` between fields and `=`
/// after names. ROOT/sf is the directory for files, ROOT/tmp that for temporary files.
static BACKEND: ModuleSpec = ModuleSpec {
    name: "mod_test_backend",
    doc: "Answers with what the URL says.",
    loaded: Loaded::Always,
    directives: &[],
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    configure.add(Phase::Map, Backend);
    Ok(())
}

struct Backend;

impl Hook for Backend {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if !exchange.request.url.path().starts_with(b"/reply") {
            return Outcome::Next;
        }
        let root = exchange.physical.document_root.clone();
        let root = String::from_utf8(root).expect("the tree's path is text");
        let mut host = host(&root);
        host.x_sendfile = exchange.request.url.path() != b"/reply-off";
        if exchange.request.url.path() == b"/reply-root" {
            host.x_sendfile_docroot.clear();
        }
        let host = Rc::new(host);
        let head = head(exchange, &root);
        exchange.response.status = head.status();
        for (name, value) in head.fields() {
            if !is_withheld(name, &host) {
                exchange.response.append(name, value);
            }
        }
        match offload(exchange, &host, &head) {
            Offload::None => {
                exchange.response.body = b"the backend's body".to_vec().into();
                Outcome::Answer
            }
            Offload::Answered(outcome) => outcome,
            Offload::Opening(opening) => Outcome::Later(Box::new(Waits(opening))),
            Offload::Refused => exchange.fail(CauseCode::GwReplyRefused),
        }
    }
}

/// A reply that waits for the disk.
struct Waits(Box<Opening>);

impl Pending for Waits {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        self.0.poll(exchange, context).map(|opened| match opened {
            Offload::Answered(outcome) => outcome,
            Offload::Refused => exchange.fail(CauseCode::GwReplyRefused),
            Offload::None | Offload::Opening(_) => unreachable!("it has an end"),
        })
    }
}

fn head(exchange: &Exchange, root: &str) -> ReplyHead {
    let mut head = ReplyHead::new();
    let query = String::from_utf8(exchange.request.url.query().to_vec()).expect("it is text");
    for field in query.split('&').filter(|field| !field.is_empty()) {
        let (name, value) = field.split_once('=').expect("fields have values");
        // The query is percent-encoded once more than the reply.
        let value = value.replace("ROOT", root).replace("%25", "%");
        let value = value
            .replace("%20", " ")
            .replace("%22", "\"")
            .replace('~', "%20");
        match name {
            "Status" => head.set_status(Status(value.parse().expect("a number"))),
            name => head.push(name, value.as_bytes()),
        }
    }
    head
}

fn host(root: &str) -> BackendHost {
    let directory = |name: &str| format!("{root}/{name}").into_bytes();
    BackendHost {
        x_sendfile: true,
        x_sendfile_docroot: vec![directory("other/"), directory("sf/")],
        tempfile_dirs: vec![directory("tmp")],
        ..BackendHost::plain(
            "test",
            HostAddress::Unix(b"/nowhere".to_vec()),
            Protocol::FastCgi,
        )
    }
}

fn tree() -> Tree {
    let tree = Tree::new(&[
        ("sf/a b.txt", "0123456789"),
        ("sf/deep/er/file", "deep"),
        ("sf2/no.txt", "no"),
        ("secret/s.txt", "secret"),
        ("page.html", "<p>page</p>"),
        ("tmp/one", "temporary"),
        ("tmp/sub/two", "second"),
        ("tmp/empty", ""),
        ("outside", "stays"),
    ]);
    let link = |target: &str, name: &str| symlink(target, tree.path(name)).expect("a symlink");
    link("a b.txt", "sf/inside");
    link("deep/../deep/er", "sf/way");
    link(&tree.path("sf/deep"), "sf/absolute");
    link("../secret/s.txt", "sf/out");
    link(&tree.path("secret"), "sf/out-absolute");
    link("self", "sf/self");
    link("../outside", "tmp/link");
    link("../secret", "tmp/dirlink");
    tree
}

fn site(tree: &Tree) -> Site {
    tree.site(
        "mimetype.assign = ( \".txt\" => \"text/plain\", \".html\" => \"text/html\" )",
        &[&access::MODULE, &BACKEND, &static_file::MODULE],
    )
}

/// Whether the name exists, even as a dangling symlink.
fn is_there(path: &str) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

/// A GET with these further fields.
fn ask(site: &Site, target: &str, fields: &str) -> Answer {
    site.request(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"))
}

#[test]
fn a_file_is_sent_with_the_fields_of_both() {
    let tree = tree();
    let site = site(&tree);
    for name in ["X-Sendfile", "x-lighttpd-SEND-file"] {
        let answer = site.get(&format!("/reply?{name}=ROOT/sf/a~b.txt&Set-Cookie=a"));
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.body(), b"0123456789");
        assert_eq!(answer.field("Content-Type").as_deref(), Some("text/plain"));
        assert_eq!(answer.field("Set-Cookie").as_deref(), Some("a"));
        assert_eq!(answer.field("Accept-Ranges").as_deref(), Some("bytes"));
        assert!(answer.field("Last-Modified").is_some());
        assert!(answer.field("ETag").is_some());
        assert_eq!(answer.field(name), None);
    }
}

#[test]
fn fields_of_the_backend_win_and_decide_conditions() {
    let tree = tree();
    let site = site(&tree);
    let target = "/reply?X-Sendfile=ROOT/sf/inside&Content-Type=a/b&ETag=%22e%22\
        &Last-Modified=Sat,%2001%20Jan%202000%2000:00:00%20GMT";
    let answer = site.get(target);
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.field("Content-Type").as_deref(), Some("a/b"));
    assert_eq!(answer.field("ETag").as_deref(), Some("\"e\""));
    for (condition, status) in [
        ("If-None-Match: \"e\"", 304),
        ("If-None-Match: \"f\"", 200),
        ("If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT", 304),
        ("If-Match: \"f\"", 412),
    ] {
        let answer = ask(&site, target, &format!("{condition}\r\n"));
        assert_eq!(answer.status(), status, "{condition}");
    }
}

#[test]
fn ranges_are_of_the_file() {
    let tree = tree();
    let site = site(&tree);
    let target = "/reply?X-Sendfile=ROOT/sf/a~b.txt";
    let answer = ask(&site, target, "Range: bytes=2-4\r\n");
    assert_eq!((answer.status(), answer.body()), (206, &b"234"[..]));
    assert_eq!(
        answer.field("Content-Range").as_deref(),
        Some("bytes 2-4/10")
    );
    assert_eq!(ask(&site, target, "Range: bytes=10-\r\n").status(), 416);
    let other_status = format!("{target}&Status=404");
    let answer = ask(&site, &other_status, "Range: bytes=2-4\r\n");
    assert_eq!((answer.status(), answer.body()), (404, &b"0123456789"[..]));
}

/// Flask and others answer a Range themselves, and then name the file.
#[test]
fn a_range_that_the_backend_has_cut_is_not_believed() {
    let tree = tree();
    let site = site(&tree);
    for name in [
        "X-Sendfile",
        "X-LIGHTTPD-send-file",
        "X-LIGHTTPD-send-tempfile",
    ] {
        for (range, status, body, content_range) in [
            ("", 200, "0123456789", None),
            ("Range: bytes=2-4\r\n", 206, "234", Some("bytes 2-4/10")),
        ] {
            std::fs::write(tree.path("tmp/ten"), "0123456789").expect("a file");
            let path = match name {
                "X-LIGHTTPD-send-tempfile" => "ROOT/tmp/ten",
                _ => "ROOT/sf/inside",
            };
            let target = format!(
                "/reply?Status=206&Content-Range=bytes%203-4/100&ETag=%22e%22&Content-Type=a/b\
                 &{name}={path}"
            );
            let answer = ask(&site, &target, range);
            let what = format!("{name}: {range}");
            assert_eq!(
                (answer.status(), answer.body()),
                (status, body.as_bytes()),
                "{what}"
            );
            assert_eq!(
                answer.field("Content-Range").as_deref(),
                content_range,
                "{what}"
            );
            assert_eq!(answer.field("ETag").as_deref(), Some("\"e\""), "{what}");
            assert_eq!(
                answer.field("Content-Type").as_deref(),
                Some("a/b"),
                "{what}"
            );
        }
    }
    let several = "/reply?Status=206&X-Sendfile=ROOT/sf/a~b.txt\
                   &Content-Type=multipart/byteranges;%20boundary=x";
    let answer = site.get(several);
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.field("Content-Type").as_deref(), Some("text/plain"));
    let refused = "/reply?Status=404&Content-Range=bytes%20*/9&X-Sendfile=ROOT/sf/inside";
    let answer = site.get(refused);
    assert_eq!(
        (answer.status(), answer.field("Content-Range")),
        (404, None)
    );
}

#[test]
fn nothing_outside_the_directories_is_sent() {
    let tree = tree();
    let site = site(&tree);
    for path in [
        "ROOT/secret/s.txt",
        "ROOT/sf2/no.txt",
        "ROOT/sf/../secret/s.txt",
        "ROOT/sf/%252e%252e/secret/s.txt",
        "ROOT/sf/out",
        "ROOT/sf/out-absolute/s.txt",
        "../sf/inside",
        "inside",
        "/etc/passwd",
        "ROOT/sf",
        "ROOT/sf/a%2500b",
    ] {
        for name in ["X-Sendfile", "X-LIGHTTPD-send-file", "X-Sendfile2"] {
            let range = if name == "X-Sendfile2" { "%200-" } else { "" };
            let answer = site.get(&format!("/reply?{name}={path}{range}&Set-Cookie=a"));
            assert_eq!(answer.status(), 502, "{path}");
            assert!(!String::from_utf8_lossy(answer.body()).contains("secret"));
            assert!(!answer.fields().contains("Set-Cookie"), "{path}");
            assert!(!answer.fields().to_lowercase().contains("send"), "{path}");
        }
    }
}

#[test]
fn symlinks_that_stay_inside_are_followed() {
    let tree = tree();
    let site = site(&tree);
    for (path, body) in [
        ("inside", "0123456789"),
        ("way/file", "deep"),
        ("absolute/er/file", "deep"),
        ("deep//er/./file", "deep"),
    ] {
        for _ in 0..2 {
            let answer = site.get(&format!("/reply?X-Sendfile=ROOT/sf/{path}"));
            assert_eq!(answer.body(), body.as_bytes(), "{path}");
        }
    }
}

#[test]
fn a_symlink_that_is_turned_outside_is_noticed() {
    let tree = tree();
    let site = site(&tree);
    let target = "/reply?X-Sendfile=ROOT/sf/inside";
    assert_eq!(site.get(target).status(), 200);
    std::fs::remove_file(tree.path("sf/inside")).expect("it is there");
    symlink("../secret/s.txt", tree.path("sf/inside")).expect("a symlink");
    site.worker().files().process_events();
    assert_eq!(site.get(target).status(), 502);
}

#[test]
fn a_warm_file_is_not_looked_for_again() {
    let tree = tree();
    let site = site(&tree);
    let target = "/reply?X-Sendfile=ROOT/sf/inside";
    assert_eq!(site.get(target).status(), 200);
    // The site does not read inotify events by itself, so only a look at the path could notice the change.
    std::fs::rename(tree.path("sf"), tree.path("elsewhere")).expect("it is there");
    assert_eq!(site.get(target).status(), 200);
    site.worker().files().process_events();
    assert_eq!(site.get(target).status(), 404);
}

#[test]
fn without_directories_the_document_root_is_the_limit() {
    let tree = tree();
    let site = site(&tree);
    let answer = site.get("/reply-root?X-Sendfile=ROOT/secret/s.txt");
    assert_eq!(answer.body(), b"secret");
    assert_eq!(site.get("/reply-root?X-Sendfile=/etc/passwd").status(), 502);
}

#[test]
fn what_cannot_be_opened_is_answered_as_for_a_url() {
    let tree = tree();
    let site = site(&tree);
    for (path, status) in [
        ("none", 404),
        ("a~b.txt/x", 404),
        ("deep", 403),
        ("deep/", 403),
        ("self", 403),
    ] {
        let answer = site.get(&format!("/reply?X-Sendfile=ROOT/sf/{path}"));
        assert_eq!(answer.status(), status, "{path}");
    }
}

#[test]
fn instructions_reach_no_client_also_when_they_are_not_followed() {
    let tree = tree();
    let site = site(&tree);
    let answer = site.get(
        "/reply-off?X-Sendfile=/etc/passwd&X-Sendfile2=/etc/passwd%200-&X-LIGHTTPD-send-file=/x\
         &X-LIGHTTPD-send-tempfile=ROOT/tmp/one&X-LIGHTTPD-KBytes-per-second=7&X-Other=1",
    );
    assert_eq!(answer.fields(), "X-Other: 1\r\n");
    assert_eq!(answer.body(), b"the backend's body");
    assert_eq!(answer.exchange().response.bytes_per_second_max, 7 * 1024);
    assert!(is_there(&tree.path("tmp/one")));
    let answer = site.get("/reply-off?X-Accel-Redirect=/page.html");
    assert_eq!(
        answer.field("X-Accel-Redirect").as_deref(),
        Some("/page.html")
    );
}

#[test]
fn stretches_of_files_are_joined() {
    let tree = tree();
    let site = site(&tree);
    let answer = site.get(
        "/reply?Status=206&X-Sendfile2=ROOT/sf/a~b.txt%202-4,ROOT/sf/deep/er/file%200-,\
         ROOT/sf/inside%209-9&Content-Range=x",
    );
    assert_eq!((answer.status(), answer.body()), (206, &b"234deep9"[..]));
    assert_eq!(answer.field("Content-Range").as_deref(), Some("x"));
    for wrong in ["", "ROOT/sf/inside", "ROOT/sf/inside%200-10", "a%200-,"] {
        let answer = site.get(&format!("/reply?X-Sendfile2={wrong}"));
        assert_eq!(answer.status(), 502, "{wrong}");
    }
}

#[test]
fn a_temporary_file_is_sent_and_gone() {
    let tree = tree();
    let site = site(&tree);
    for (name, fields, status, body) in [
        ("one", "", 200, "temporary"),
        ("sub/two", "Range: bytes=0-1\r\n", 206, "se"),
        ("empty", "Range: bytes=0-1\r\n", 200, ""),
    ] {
        let target = format!("/reply?X-LIGHTTPD-send-tempfile=ROOT/tmp/{name}&X-A=1");
        let answer = ask(&site, &target, fields);
        assert_eq!(answer.status(), status, "{name}");
        assert_eq!(answer.body(), body.as_bytes());
        assert_eq!(answer.field("X-A").as_deref(), Some("1"));
        assert!(!is_there(&tree.path(&format!("tmp/{name}"))));
        assert_eq!(site.get(&target).status(), 502);
    }
}

#[test]
fn a_temporary_file_elsewhere_is_refused_and_stays() {
    let tree = tree();
    std::fs::hard_link(tree.path("outside"), tree.path("tmp/same")).expect("a link");
    let site = site(&tree);
    for name in [
        "outside",
        "tmp/link",
        "tmp/dirlink/s.txt",
        "tmp/../outside",
        "tmp/sub",
        "tmp/",
        "tmp",
        "tmp/sub/",
    ] {
        let target = format!("/reply?X-LIGHTTPD-send-tempfile=ROOT/{name}");
        let answer = site.get(&target);
        assert_eq!(answer.status(), 502, "{name}");
        assert!(!answer.fields().contains("LIGHTTPD"));
    }
    for name in ["outside", "tmp/link", "secret/s.txt", "tmp/sub/two"] {
        assert!(is_there(&tree.path(name)), "{name}");
    }
}

#[test]
fn a_temporary_file_without_a_request_is_removed() {
    let tree = tree();
    let host = host(tree.path("").trim_end_matches('/'));
    let mut head = ReplyHead::new();
    head.push(TEMPFILE, tree.path("outside").as_bytes());
    discard(&host, &head);
    head.clear();
    head.push(TEMPFILE, tree.path("tmp/one").as_bytes());
    discard(&host, &head);
    let begin = Instant::now();
    while is_there(&tree.path("tmp/one")) {
        assert!(begin.elapsed() < Duration::from_secs(60), "it stays");
        std::thread::sleep(Duration::from_millis(1));
    }
    // "outside" was to be discarded before "tmp/one", so its turn has passed.
    assert!(is_there(&tree.path("outside")));
}

#[test]
fn another_url_answers_with_the_fields_that_are_kept() {
    let tree = tree();
    let site = site(&tree);
    let answer = site.get(
        "/reply?Status=404&X-Accel-Redirect=/page.html?x&Set-Cookie=a&Set-Cookie=b\
         &Content-Type=a/b&X-Powered-By=c&ETag=%22e%22",
    );
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.body(), b"<p>page</p>");
    assert_eq!(answer.field("Content-Type").as_deref(), Some("a/b"));
    assert_eq!(answer.fields().matches("Set-Cookie: ").count(), 2);
    assert_eq!(answer.fields().matches("Content-Type").count(), 1);
    assert_ne!(answer.field("ETag").as_deref(), Some("\"e\""));
    assert_eq!(answer.field("X-Powered-By"), None);
    let missing = site.get("/reply?X-Accel-Redirect=/none&Content-Type=a/b&Set-Cookie=a");
    assert_eq!(missing.status(), 404);
    assert_eq!(missing.field("Set-Cookie").as_deref(), Some("a"));
    let page_type = missing.field("Content-Type").expect("a page has a type");
    assert!(page_type.starts_with("text/html"), "{page_type}");
}

#[test]
fn another_url_is_asked_with_get_and_its_own_rules() {
    let tree = tree();
    let site = tree.site(
        "$HTTP[\"url\"] =^ \"/secret/\" { url.access-deny = ( \"\" ) }",
        &[&access::MODULE, &BACKEND, &static_file::MODULE],
    );
    let post =
        "POST /reply?X-Accel-Redirect=/page.html HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(site.request(post).body(), b"<p>page</p>");
    let answer = site.get("/reply?X-Accel-Redirect=/secret/s.txt");
    assert_eq!(answer.status(), 403);
    for wrong in ["http://b/", "//b/", "page.html", "@name", ""] {
        let answer = site.get(&format!("/reply?X-Accel-Redirect={wrong}"));
        assert_eq!(answer.status(), 502, "{wrong}");
    }
    let again = "/reply?X-Accel-Redirect=/reply?X-Accel-Redirect=/page.html";
    assert_eq!(site.get(again).body(), b"<p>page</p>");
}

#[test]
fn urls_that_lead_to_themselves_end() {
    let tree = tree();
    let site = site(&tree);
    let mut target = "/page.html".to_owned();
    for _ in 0..=petrel_engine::limits::RESTARTS_MAX {
        target = format!("/reply?X-Accel-Redirect={target}");
    }
    assert_eq!(site.get(&target).status(), 500);
}

#[test]
fn files_and_temporary_files_are_compressed() {
    let text = "compress me ".repeat(100);
    let tree = Tree::new(&[("sf/a.txt", &text), ("tmp/t", &text), ("page.txt", &text)]);
    let site = tree.site(
        "mimetype.assign = ( \".txt\" => \"text/plain\" )
         deflate.mimetypes = ( \"text/\" )
         deflate.allowed-encodings = ( \"gzip\" )",
        &[&BACKEND, &static_file::MODULE, &deflate::MODULE],
    );
    for target in [
        "/reply?X-Sendfile=ROOT/sf/a.txt",
        "/reply?X-LIGHTTPD-send-tempfile=ROOT/tmp/t&Content-Type=text/plain",
        "/reply?X-Accel-Redirect=/page.txt",
    ] {
        let answer = ask(&site, target, "Accept-Encoding: gzip\r\n");
        assert_eq!(
            answer.field("Content-Encoding").as_deref(),
            Some("gzip"),
            "{target}"
        );
        assert!(answer.body().len() < text.len() / 4, "{target}");
    }
}

#[test]
fn a_walk_agrees_with_the_kernel() {
    let tree = tree();
    let directory = tree.path("sf");
    for name in [
        "a b.txt",
        "inside",
        "way/file",
        "deep/er",
        "out",
        "out-absolute/s.txt",
        "self",
        "none",
        "a b.txt/x",
        "deep/er/../../../secret/s.txt",
    ] {
        petrel_engine::beneath::assert_walk_agrees(directory.as_bytes(), name.as_bytes());
    }
}
