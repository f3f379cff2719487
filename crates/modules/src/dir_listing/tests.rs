use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use petrel_engine::file_cache::Symlinks;
use petrel_engine::testing::Site;

use super::*;

/// A document root that is removed after the test.
struct Root(PathBuf);

impl Root {
    fn new(name: &str) -> Root {
        let path =
            std::env::temp_dir().join(format!("petrel-dirlist-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("www")).expect("create");
        Root(path)
    }

    fn write(&self, name: impl AsRef<[u8]>, text: &str) {
        let path = self
            .0
            .join("www")
            .join(std::ffi::OsStr::from_bytes(name.as_ref()));
        std::fs::create_dir_all(path.parent().expect("below the root")).expect("mkdir");
        std::fs::write(path, text).expect("write");
    }

    fn site(&self, more: &str) -> Site {
        self.site_of(more, &[&MODULE])
    }

    fn site_of(&self, more: &str, modules: &[&'static ModuleSpec]) -> Site {
        let root = self.0.join("www");
        let text = format!(
            "server.document-root = \"{}\"\ndir-listing.activate = \"enable\"\n{}",
            root.display(),
            more.replace("ROOT", &self.0.display().to_string()),
        );
        Site::new(&text, modules)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn page(site: &Site, target: &str) -> String {
    let answer = site.get(target);
    assert_eq!(answer.status(), 200, "{target}");
    String::from_utf8(answer.body().to_vec()).expect("the page is UTF-8")
}

/// The names in a page, in order.
fn names(page: &str) -> Vec<String> {
    let rows = page.split("<td class=\"n\">").skip(1);
    rows.map(|row| {
        let start = row.find('>').expect("a link") + 1;
        row[start..row.find("</a>").expect("its end")].to_owned()
    })
    .collect()
}

#[test]
fn directories_come_first_then_names_by_their_bytes() {
    let root = Root::new("order");
    for name in ["b", "a10", "a9", "B", "z/x", "Y/x", ".hidden"] {
        root.write(name, "");
    }
    let site = root.site("");
    assert_eq!(names(&page(&site, "/")), ["Y", "z", "B", "a10", "a9", "b"]);
    assert_eq!(names(&page(&site, "/z/")), ["..", "x"]);
    assert_eq!(
        names(&page(&site, "/?C=N;O=D")),
        ["b", "a9", "a10", "B", "z", "Y"]
    );
    let site = root.site("dir-listing.hide-dotfiles = \"disable\"");
    assert!(names(&page(&site, "/")).contains(&".hidden".to_owned()));
}

#[test]
fn only_directories_are_answered_and_only_when_it_is_on() {
    let root = Root::new("only");
    root.write("d/a", "");
    let site = root.site("$HTTP[\"url\"] =~ \"^/d/\" { dir-listing.activate = \"disable\" }");
    assert_eq!(site.get("/").status(), 200);
    assert_eq!(site.get("/d").status(), 301);
    assert_eq!(site.get("/d/").status(), 403);
    assert_eq!(
        site.request("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
            .status(),
        403
    );
    assert_eq!(
        site.request("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").status(),
        200
    );
    let old = Site::new(
        &format!(
            "server.document-root = \"{}\"\nserver.dir-listing = \"enable\"",
            root.0.display()
        ),
        &[&MODULE],
    );
    assert_eq!(old.get("/").status(), 200);
}

#[test]
fn names_are_escaped_for_where_they_stand() {
    let root = Root::new("escape");
    root.write("<i>'\"&?#%:x", "");
    root.write(b"bad\xff\xe4", "");
    root.write("<d>/x", "");
    let site = root.site(SERVES_ALL_BYTES);
    let text = page(&site, "/");
    assert!(
        text.contains(
            "<a href=\"%3Ci%3E%27%22%26%3F%23%25%3Ax\">&lt;i&gt;&#39;&quot;&amp;?#%:x</a>"
        ),
        "{text}"
    );
    assert!(
        text.contains("<a href=\"bad%FF%E4\">bad\u{fffd}\u{fffd}</a>"),
        "{text}"
    );
    let inside = page(&site, "/%3Cd%3E/");
    assert!(
        inside.contains("<title>Index of /&lt;d&gt;/</title>"),
        "{inside}"
    );
    assert!(
        inside.contains("<h1>Index of <a href=\"../\">/</a>&lt;d&gt;/</h1>"),
        "{inside}"
    );
    assert!(!inside.contains("<d>"));
}

const SERVES_ALL_BYTES: &str =
    "server.http-parseopts = (\"url-invalid-utf8-reject\" => \"disable\")";

/// Whatever the options are, the link of each name that is listed is answered.
#[test]
fn only_names_whose_links_are_answered_are_listed() {
    let root = Root::new("answered");
    let names: [&[u8]; 6] = [
        b"tab\t",
        b"line\n",
        b"del\x7f",
        b"no-utf8\xff",
        b"back\\slash",
        b"latin\xe4",
    ];
    for name in names {
        root.write([b"f-", name].concat(), "x");
        root.write([b"d-", name, b"/in".as_slice()].concat(), "x");
    }
    for (options, expected) in [
        ("", [&b"back\\slash"[..], b"latin\xe4"].as_slice()),
        (
            SERVES_ALL_BYTES,
            &[b"back\\slash", b"latin\xe4", b"no-utf8\xff"],
        ),
        (
            "server.http-parseopts = (\"url-ctrls-reject\" => \"disable\")",
            &[b"back\\slash", b"latin\xe4"],
        ),
        (
            "server.http-parseopts = (\"url-path-backslash-trans\" => \"enable\")",
            &[b"latin\xe4"],
        ),
    ] {
        let site = root.site_of(options, &[&MODULE, &crate::static_file::MODULE]);
        let hrefs = |kind: &str, end: &str| -> Vec<String> {
            let encode = |name: &&[u8]| {
                let mut href = Vec::from(kind);
                petrel_engine::proto::escape::percent_encode_path(&mut href, name);
                String::from_utf8(href).expect("ASCII") + end
            };
            expected.iter().map(encode).collect()
        };
        let all = [hrefs("d-", "/"), hrefs("f-", "")].concat();
        let json = String::from_utf8_lossy(site.get("/?json").body()).into_owned();
        let listed = json.split("\"href\":\"").skip(1);
        let listed: Vec<&str> = listed.filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(listed, all, "{options}");
        let page = page(&site, "/");
        for href in all {
            assert!(
                page.contains(&format!("<a href=\"{href}\"")),
                "{href}: {page}"
            );
            assert_eq!(
                site.get(&format!("/{href}")).status(),
                200,
                "{href} {options}"
            );
        }
    }
}

#[test]
fn names_in_another_encoding_pass_as_they_are() {
    let root = Root::new("latin");
    root.write(b"\xe4", "");
    let answer = root.site("dir-listing.encoding = \"iso-8859-1\"").get("/");
    assert_eq!(
        answer.field("Content-Type").as_deref(),
        Some("text/html;charset=iso-8859-1")
    );
    let needle = b"<a href=\"%E4\">\xe4</a>";
    assert!(
        answer
            .body()
            .windows(needle.len())
            .any(|window| window == needle)
    );
}

#[test]
fn programs_get_json() {
    let root = Root::new("json");
    root.write("a \"b\"", "12345");
    root.write("d/x", "");
    let site = root.site("");
    let by_query = site.get("/?json");
    assert_eq!(
        by_query.field("Content-Type").as_deref(),
        Some("application/json")
    );
    assert_eq!(by_query.field("Vary").as_deref(), Some("Accept"));
    let text = String::from_utf8_lossy(by_query.body()).into_owned();
    let shape: String = text
        .split(|c: char| c.is_ascii_digit())
        .filter(|part| !part.is_empty())
        .collect();
    assert_eq!(
        shape,
        "[\n{\"name\":\"d\",\"href\":\"d/\",\"type\":\"directory\",\"size\":null,\"mtime\":},\
         \n{\"name\":\"a \\\"b\\\"\",\"href\":\"a%%b%\",\"type\":\"file\",\"size\":,\"mtime\":}\n]\n"
    );
    assert!(text.contains("\"size\":5,"), "{text}");
    let by_accept = site.request("GET / HTTP/1.1\r\nHost: a\r\nAccept: application/json\r\n\r\n");
    assert_eq!(by_accept.body(), by_query.body());
}

#[test]
fn an_empty_directory_is_valid_in_both_forms() {
    let root = Root::new("empty");
    let site = root.site("");
    assert!(page(&site, "/").contains("This directory is empty."));
    assert_eq!(site.get("/?json").body(), b"[\n]\n");
}

#[test]
fn some_names_are_left_out() {
    let root = Root::new("exclude");
    for name in ["a.bak", "a.txt", "core", "README.txt", "HEADER.txt"] {
        root.write(name, "<text>");
    }
    let more = "dir-listing.exclude = (\"\\.bak$\", \"^core$\")\ndir-listing.show-readme = \"enable\"\n\
        dir-listing.hide-readme-file = \"enable\"\ndir-listing.show-header = \"HEADER.txt\"\n\
        dir-listing.encode-header = \"disable\"";
    let text = page(&root.site(more), "/");
    assert_eq!(names(&text), ["HEADER.txt", "a.txt"]);
    assert!(text.contains("<body>\n<text><h1>"), "{text}");
    assert!(
        text.contains("<pre class=\"readme\">&lt;text&gt;</pre>"),
        "{text}"
    );
}

#[test]
fn symlinks_count_as_what_they_lead_to() {
    let root = Root::new("symlinks");
    root.write("d/x", "");
    let www = root.0.join("www");
    for (to, name) in [("d", "link"), ("nowhere", "broken")] {
        std::os::unix::fs::symlink(to, www.join(name)).expect("symlink");
    }
    let _pipe = std::os::unix::net::UnixListener::bind(www.join("socket")).expect("bind");
    let text = page(&root.site(""), "/");
    assert_eq!(names(&text), ["d", "link"]);
    assert!(text.contains("<a href=\"link/\">link</a>/"), "{text}");
    assert_eq!(
        names(&page(
            &root.site("server.follow-symlink = \"disable\""),
            "/"
        )),
        ["d"]
    );
}

#[test]
fn style_script_footer_and_layout_can_be_replaced() {
    let root = Root::new("layout");
    let text = page(&root.site(""), "/");
    assert!(text.contains("<style>") && text.contains("<script>"));
    let more = "dir-listing.external-css = \"/s?a&b\"\ndir-listing.external-js = \"/j\"\n\
        dir-listing.set-footer = \"<b>us</b>\"";
    let text = page(&root.site(more), "/");
    assert!(
        text.contains("<link rel=\"stylesheet\" href=\"/s?a&amp;b\">") && !text.contains("<style>")
    );
    assert!(text.contains("<script src=\"/j\"></script>") && !text.contains("<script>"));
    assert!(text.contains("<div class=\"foot\"><b>us</b></div>"));
    let text = page(&root.site("dir-listing.auto-layout = \"disable\""), "/");
    assert!(
        text.starts_with("<h1>") && text.ends_with("</p>\n"),
        "{text}"
    );
    let text = page(&root.site("dir-listing.sort = \"disable\""), "/");
    assert!(
        !text.contains("?C=") && !text.contains("<script>"),
        "{text}"
    );
}

#[test]
fn a_listing_is_kept_in_memory_for_its_time() {
    let root = Root::new("memory");
    root.write("a", "");
    let site = root.site("dir-listing.cache = (\"max-age\" => 60)");
    assert_eq!(names(&page(&site, "/")), ["a"]);
    root.write("b", "");
    assert_eq!(names(&page(&site, "/")), ["a"]);
    assert_eq!(
        site.get("/").field("Cache-Control").as_deref(),
        Some("max-age=60")
    );
    assert_eq!(
        names(&page(&site, "/?C=N;O=D")),
        ["b", "a"],
        "another view is another listing"
    );
    assert_eq!(names(&page(&root.site(""), "/")), ["a", "b"]);
}

#[tokio::test(flavor = "local")]
async fn a_listing_is_kept_as_a_file() {
    let root = Root::new("file");
    root.write("a", "");
    let more = "dir-listing.cache = (\"max-age\" => 60, \"path\" => \"ROOT/cache\")";
    let kept = root
        .0
        .join("cache")
        .join(root.0.strip_prefix("/").expect("absolute"))
        .join("www");
    let answer = root.site(more).get_async("/").await;
    assert_eq!(answer.status(), 200);
    let is_kept = || {
        let mut files = std::fs::read_dir(&kept).into_iter().flatten().flatten();
        files.any(|file| file.file_name().as_bytes().starts_with(b"dirlist-"))
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_kept() {
        assert!(Instant::now() < deadline, "it is not kept");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    root.write("b", "");
    assert_eq!(
        names(&page(&root.site(more), "/")),
        ["a"],
        "another worker finds it"
    );
    let files: Vec<_> = std::fs::read_dir(kept)
        .expect("the cache")
        .flatten()
        .collect();
    assert_eq!(files.len(), 1);
    let old = std::time::SystemTime::now() - Duration::from_secs(61);
    let file = std::fs::File::options()
        .write(true)
        .open(files[0].path())
        .expect("open");
    file.set_modified(old).expect("set the time");
    let answer = root.site(more).get_async("/").await;
    assert_eq!(names(&String::from_utf8_lossy(answer.body())), ["a", "b"]);
}

#[test]
fn a_directory_that_cannot_be_read_is_forbidden() {
    use std::os::unix::fs::PermissionsExt;
    let root = Root::new("denied");
    root.write("d/a", "");
    let closed = root.0.join("www/d");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o311)).expect("chmod");
    let may_all = std::fs::read_dir(&closed).is_ok();
    let status = root.site("").get("/d/").status();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    // Root can read everything, so only the mapping of errors can be tested then.
    assert!(may_all || status == 403, "{status}");
    assert_eq!(cause_of(Errno::ACCESS).code.status(), Status::FORBIDDEN);
    assert_eq!(cause_of(Errno::NOENT).code.status(), Status::NOT_FOUND);
    assert_eq!(
        cause_of(Errno::IO).code.status(),
        Status::INTERNAL_SERVER_ERROR
    );
    assert_eq!(
        cause_of(Errno::BUSY).code.status(),
        Status::SERVICE_UNAVAILABLE
    );
    assert_eq!(
        cause_of(Errno::TIMEDOUT).code.status(),
        Status::GATEWAY_TIMEOUT
    );
}

#[tokio::test(flavor = "local")]
async fn a_directory_that_hangs_does_not_hold_up_what_is_mounted_in_its_place() {
    let root = Root::new("replaced");
    root.write("a", "");
    let wanted = || WantedDirectory {
        directory: root.0.join("www").into_os_string().into_vec(),
        symlinks: Symlinks::Follow,
        names: Arc::default(),
        url_options: Default::default(),
        header: AroundFile::Nothing,
        readme: AroundFile::Nothing,
    };
    let mount = |device| Origin {
        device,
        ..Origin::default()
    };
    // A thread that hangs in the first file system.
    let (open, is_open) = std::sync::mpsc::channel::<()>();
    let (begin_it, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let hangs = move || {
        begin_it.send(()).expect("the test waits");
        assert!(is_open.recv().is_err());
        Err(Errno::IO)
    };
    let key = ReadKey::of(0, ListingFormat::Json, mount(1), &wanted());
    let jobs = SharedJobs::default();
    let first = jobs.join_next(key, 2, mount(1), hangs);
    has_begun.recv().await.expect("a thread has begun");
    let behind = begin(&jobs, 0, ListingFormat::Json, mount(1), wanted()).expect("there is room");
    assert!(behind.clone().now_or_never().is_none());
    let second = begin(&jobs, 0, ListingFormat::Json, mount(2), wanted()).expect("there is room");
    let read = tokio::time::timeout(Duration::from_secs(60), second).await;
    let read = read.expect("it does not wait").expect("it is done");
    assert_eq!(read.expect("it is there").entries.len(), 1);
    assert!(behind.now_or_never().is_none());
    drop((first, open));
}

#[test]
fn many_entries_take_several_turns_and_come_out_whole() {
    let root = Root::new("many");
    for number in 0..2500 {
        root.write(format!("{number:05}"), "");
    }
    let found = names(&page(&root.site(""), "/"));
    assert_eq!(found.len(), 2500);
    assert!(found.is_sorted());
}

#[test]
fn wrong_values_are_pointed_at() {
    for (text, needle) in [
        (
            "dir-listing.exclude = (\"a\", \"(\")",
            "is no regular expression",
        ),
        (
            "dir-listing.cache = (\"maxage\" => 3)",
            "did you mean \"max-age\"?",
        ),
        (
            "dir-listing.cache = (\"max-age\" => \"x\")",
            "a number of seconds",
        ),
        ("dir-listing.cache = (\"path\" => \"x\")", "absolute path"),
        (
            "dir-listing.encoding = \"utf-16\"",
            "cannot be the character set",
        ),
        (
            "dir-listing.encoding = \"a\\\"b\"",
            "cannot be the character set",
        ),
    ] {
        let refused = Site::try_new(text, &[&MODULE]);
        let message = refused.err().expect("the value is refused");
        assert!(
            message.contains(needle) && message.contains("test.conf:1:"),
            "{message}"
        );
    }
}
