use std::rc::Rc;

use petrel_engine::config::{Style, render};
use petrel_engine::proto::accept::Coding;
use petrel_engine::testing::{Answer, Site};

use super::body::UnknownLength;
use super::testing::{decoded, sample};
use super::*;
use crate::testing::Tree;
use crate::{setenv, static_file};

/// In an order that a configuration may have. What mod_setenv adds still has to be seen.
const MODULES: &[&ModuleSpec] = &[&MODULE, &setenv::MODULE, &static_file::MODULE];

const BASE: &str = "deflate.mimetypes = (\"text/\", \"image/\")\n";

struct Pages {
    tree: Tree,
    small: String,
    middle: String,
    big: String,
}

impl Pages {
    fn new() -> Pages {
        let text = |length| String::from_utf8(sample(length)).expect("ASCII");
        let (small, middle, big) = (text(5_000), text(300_000), text(1_200_000));
        let files = [
            ("small.txt", &*small),
            ("middle.txt", &middle),
            ("big.txt", &big),
            ("tiny.txt", &small[..256]),
            ("just.txt", &small[..257]),
            ("photo.png", &small),
            ("data.bin", &small),
            ("drawing.svg", &small),
        ];
        Pages {
            tree: Tree::new(&files),
            small,
            middle,
            big,
        }
    }

    fn site(&self, more: &str) -> Site {
        self.tree.site(&format!("{BASE}{more}"), MODULES)
    }
}

fn ask(site: &Site, target: &str, fields: &str) -> Answer {
    site.request(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"))
}

fn gzip(site: &Site, target: &str) -> Answer {
    ask(site, target, "Accept-Encoding: gzip\r\n")
}

fn coding(answer: &Answer) -> Option<String> {
    answer.field("Content-Encoding")
}

#[test]
fn javascript_has_two_names() {
    let text = String::from_utf8(sample(5_000)).expect("ASCII");
    let tree = Tree::new(&[("a.js", &*text)]);
    for listed in ["application/javascript", "text/javascript"] {
        for sent in [
            "application/javascript",
            "text/javascript",
            "application/javascript; charset=utf-8",
        ] {
            let config = format!(
                "deflate.mimetypes = ( \"{listed}\" )\nmimetype.assign = ( \".js\" => \"{sent}\" )"
            );
            let answer = gzip(&tree.site(&config, MODULES), "/a.js");
            assert_eq!(coding(&answer).as_deref(), Some("gzip"), "{listed} {sent}");
        }
    }
}

#[test]
fn a_page_is_sent_in_the_coding_that_is_asked_for() {
    let pages = Pages::new();
    let site = pages.site("");
    for (asked, expected, coding) in [
        ("gzip", "gzip", Coding::Gzip),
        ("x-gzip", "gzip", Coding::Gzip),
        ("deflate", "deflate", Coding::Deflate),
        ("br", "br", Coding::Brotli),
        ("zstd", "zstd", Coding::Zstd),
        ("gzip, deflate, br, zstd", "br", Coding::Brotli),
        ("br;q=0.5, gzip", "gzip", Coding::Gzip),
    ] {
        for (target, content) in [
            ("/small.txt", &pages.small),
            ("/middle.txt", &pages.middle),
            ("/big.txt", &pages.big),
        ] {
            // The second answer may come from memory.
            for _ in 0..2 {
                let answer = ask(&site, target, &format!("Accept-Encoding: {asked}\r\n"));
                assert_eq!(answer.status(), 200);
                assert_eq!(answer.field("Content-Encoding").as_deref(), Some(expected));
                assert_eq!(answer.field("Vary").as_deref(), Some("Accept-Encoding"));
                assert_eq!(answer.field("Accept-Ranges"), None);
                let tag = answer.field("ETag").expect("a tag");
                assert!(tag.ends_with(&format!("-{expected}\"")), "{tag}");
                assert!(
                    decoded(coding, answer.body()) == content.as_bytes(),
                    "{asked} {target}"
                );
            }
        }
    }
}

#[test]
fn the_servers_order_counts_among_equals() {
    let pages = Pages::new();
    let site = pages.site("deflate.allowed-encodings = (\"x-gzip\", \"brotli\", \"bzip2\")");
    let both = ask(&site, "/small.txt", "Accept-Encoding: br, gzip, zstd\r\n");
    assert_eq!(coding(&both).as_deref(), Some("gzip"));
    assert_eq!(
        coding(&ask(&site, "/small.txt", "Accept-Encoding: zstd\r\n")),
        None
    );
}

#[test]
fn what_is_not_worth_it_is_left_alone() {
    let pages = Pages::new();
    let site = pages.site(
        "deflate.max-compress-size = 2\n\
         $HTTP[\"url\"] =~ \"^/just\" { deflate.min-compress-size = 300 }\n\
         $HTTP[\"query-string\"] == \"fixed\" { setenv.set-response-header = (\"Cache-Control\" => \"public, No-Transform\") }\n\
         $HTTP[\"query-string\"] == \"coded\" { setenv.set-response-header = (\"Content-Encoding\" => \"x\") }",
    );
    for target in [
        "/small.txt",
        "/tiny.txt",
        "/just.txt",
        "/data.bin",
        "/photo.png",
    ] {
        let answer = gzip(&site, target);
        assert_eq!(
            (coding(&answer), answer.field("Vary")),
            (None, None),
            "{target}"
        );
    }
    let site = pages.site(
        "$HTTP[\"query-string\"] == \"fixed\" { setenv.set-response-header = (\"Cache-Control\" => \"public, No-Transform\") }\n\
         $HTTP[\"query-string\"] == \"coded\" { setenv.set-response-header = (\"Content-Encoding\" => \"x\") }",
    );
    assert_eq!(coding(&gzip(&site, "/tiny.txt")), None);
    assert_eq!(coding(&gzip(&site, "/just.txt")).as_deref(), Some("gzip"));
    assert_eq!(
        coding(&gzip(&site, "/drawing.svg")).as_deref(),
        Some("gzip")
    );
    assert_eq!(coding(&gzip(&site, "/small.txt?fixed")), None);
    assert_eq!(
        coding(&gzip(&site, "/small.txt?coded")).as_deref(),
        Some("x")
    );
    assert_eq!(
        gzip(&site, "/small.txt?coded").body(),
        pages.small.as_bytes()
    );
}

#[test]
fn it_can_be_switched_off() {
    let pages = Pages::new();
    assert_eq!(
        coding(&gzip(
            &pages.site("deflate.enabled = \"disable\""),
            "/small.txt"
        )),
        None
    );
    let bare = pages.tree.site("", MODULES);
    assert_eq!(coding(&gzip(&bare, "/small.txt")), None);
    let old = "compress.filetype = (\"text/plain\")\ncompress.allowed-encodings = (\"deflate\")";
    let answer = ask(
        &pages.tree.site(old, MODULES),
        "/small.txt",
        "Accept-Encoding: gzip, deflate\r\n",
    );
    assert_eq!(coding(&answer).as_deref(), Some("deflate"));
}

#[test]
fn other_clients_are_told_that_there_are_other_forms() {
    let pages = Pages::new();
    let site = pages.site("");
    for fields in [
        "",
        "Accept-Encoding: gzip;q=0, identity\r\n",
        "Accept-Encoding: compress\r\n",
    ] {
        let answer = ask(&site, "/small.txt", fields);
        assert_eq!(
            (coding(&answer), answer.field("Vary").as_deref()),
            (None, Some("Accept-Encoding"))
        );
        assert_eq!(answer.body(), pages.small.as_bytes());
    }
    let part = ask(
        &site,
        "/small.txt",
        "Accept-Encoding: gzip\r\nRange: bytes=0-9\r\n",
    );
    assert_eq!((part.status(), coding(&part)), (206, None));
    assert_eq!(part.field("Vary").as_deref(), Some("Accept-Encoding"));
    assert_eq!(part.body(), &pages.small.as_bytes()[..10]);
}

#[test]
fn a_tag_of_a_coding_is_known_again() {
    let pages = Pages::new();
    let site = pages.site("");
    let tag = gzip(&site, "/small.txt").field("ETag").expect("a tag");
    let again = |fields: &str| ask(&site, "/small.txt", fields);
    let answer = again(&format!(
        "Accept-Encoding: gzip\r\nIf-None-Match: \"x\", {tag}\r\n"
    ));
    assert_eq!((answer.status(), answer.body()), (304, &b""[..]));
    assert_eq!(answer.field("ETag"), Some(tag.clone()));
    assert_eq!(answer.field("Vary").as_deref(), Some("Accept-Encoding"));
    assert_eq!(coding(&answer), None);
    // A client that would get another form must get that one.
    assert_eq!(
        again(&format!("Accept-Encoding: br\r\nIf-None-Match: {tag}\r\n")).status(),
        200
    );
    assert_eq!(again(&format!("If-None-Match: {tag}\r\n")).status(), 200);
    // There are no ranges of the compressed form: the whole is sent.
    let ranged = again(&format!(
        "Accept-Encoding: gzip\r\nRange: bytes=0-9\r\nIf-Range: {tag}\r\n"
    ));
    assert_eq!(
        (ranged.status(), coding(&ranged).as_deref()),
        (200, Some("gzip"))
    );
}

#[test]
fn a_304_names_the_tag_of_what_would_be_sent() {
    let pages = Pages::new();
    let site = pages.site("");
    let full = gzip(&site, "/small.txt");
    let since = full.field("Last-Modified").expect("a date");
    let answer = ask(
        &site,
        "/small.txt",
        &format!("Accept-Encoding: gzip\r\nIf-Modified-Since: {since}\r\n"),
    );
    assert_eq!(
        (answer.status(), answer.field("ETag")),
        (304, full.field("ETag"))
    );
    let plain = ask(&site, "/small.txt", "").field("ETag").expect("a tag");
    let answer = ask(
        &site,
        "/small.txt",
        &format!("Accept-Encoding: gzip\r\nIf-None-Match: {plain}\r\n"),
    );
    assert_eq!((answer.status(), answer.field("ETag")), (304, Some(plain)));
}

#[test]
fn head_has_the_fields_of_get() {
    let pages = Pages::new();
    let site = pages.site("");
    let head = |target: &str| {
        site.request(&format!(
            "HEAD {target} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n"
        ))
    };
    let before = head("/small.txt");
    let got = gzip(&site, "/small.txt");
    assert_eq!(before.fields(), got.fields());
    let after = head("/small.txt");
    assert_eq!((after.fields(), after.body()), (got.fields(), got.body()));
}

#[test]
fn what_does_not_become_smaller_is_sent_as_it_is() {
    let pages = Pages::new();
    let mut state = 1_u32;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(5_000)
    .collect();
    std::fs::write(pages.tree.path("noise.txt"), &noise).expect("write");
    let site = pages.site("");
    let plain = ask(&site, "/noise.txt", "");
    for asked in ["gzip", "deflate", "br", "zstd"] {
        let fields = format!("Host: a\r\nAccept-Encoding: {asked}\r\n\r\n");
        let head = site.request(&format!("HEAD /noise.txt HTTP/1.1\r\n{fields}"));
        assert_eq!(head.fields(), plain.fields(), "{asked}");
        // The second answer uses the result of the first.
        for _ in 0..2 {
            let answer = site.request(&format!("GET /noise.txt HTTP/1.1\r\n{fields}"));
            assert_eq!(answer.fields(), plain.fields(), "{asked}");
            assert!(answer.body() == noise);
        }
    }
    assert_eq!(plain.field("Vary").as_deref(), Some("Accept-Encoding"));
}

#[test]
fn an_unknown_length_is_not_announced() {
    let body = Body::Source(Box::new(UnknownLength));
    assert_eq!(body.length(), None);
}

#[test]
fn compressed_files_are_kept_below_the_cache_dir() {
    let pages = Pages::new();
    let more =
        "deflate.cache-dir = \"ROOT/../CACHE\"".replace("ROOT/../CACHE", &pages.tree.path("cache"));
    let site = pages.site(&more);
    for (target, content) in [("/small.txt", &pages.small), ("/big.txt", &pages.big)] {
        let first = gzip(&site, target);
        assert!(decoded(Coding::Gzip, first.body()) == content.as_bytes());
        let tag = first.field("ETag").expect("a tag");
        let tag = tag.trim_matches('"');
        let kept = pages.tree.path(&format!(
            "cache{}-{tag}",
            pages.tree.path(target.trim_start_matches('/'))
        ));
        assert_eq!(
            std::fs::read(&kept).expect("it is kept under lighttpd's name"),
            first.body()
        );
        let second = gzip(&pages.site(&more), target);
        assert_eq!(
            (second.fields(), second.body()),
            (first.fields(), first.body())
        );
        // A compressed file that was made from older content with the same tag is not used.
        std::fs::write(&kept, "stale").expect("write");
        assert_eq!(gzip(&pages.site(&more), target).body(), first.body());
    }
}

#[test]
fn a_cache_dir_that_cannot_be_written_costs_nothing_but_the_keeping() {
    let pages = Pages::new();
    let wall = pages.tree.path("cache");
    std::fs::create_dir(&wall).expect("mkdir");
    let first = pages.tree.path("small.txt");
    let first = first
        .trim_start_matches('/')
        .split('/')
        .next()
        .expect("a part");
    std::fs::write(
        format!("{wall}/{first}"),
        "a file where a directory should be",
    )
    .expect("write");
    let site = pages.site(&format!("deflate.cache-dir = \"{wall}\""));
    for (target, content) in [("/small.txt", &pages.small), ("/big.txt", &pages.big)] {
        let answer = gzip(&site, target);
        assert_eq!(coding(&answer).as_deref(), Some("gzip"));
        assert!(decoded(Coding::Gzip, answer.body()) == content.as_bytes());
    }
}

#[test]
fn nothing_new_is_compressed_under_load() {
    let pages = Pages::new();
    let site = pages.site(
        "deflate.max-loadavg = \"0.000001\"\n\
         $HTTP[\"querystring\"] == \"idle\" { deflate.max-loadavg = \"99999\" }",
    );
    if std::fs::read_to_string("/proc/loadavg").is_ok_and(|text| !text.starts_with("0.00")) {
        let answer = gzip(&site, "/small.txt");
        assert_eq!(
            (coding(&answer), answer.field("Vary").as_deref()),
            (None, Some("Accept-Encoding"))
        );
    }
    let idle = gzip(&site, "/small.txt?idle");
    assert_eq!(coding(&idle).as_deref(), Some("gzip"));
    assert_eq!(
        coding(&gzip(&site, "/small.txt")).as_deref(),
        Some("gzip"),
        "it was made before"
    );
}

#[test]
fn wrong_values_are_pointed_at() {
    for (text, needle) in [
        ("deflate.max-loadavg = \"high\"", "no load average"),
        ("deflate.cache-dir = \"cache\"", "no absolute path"),
        ("deflate.compression-level = 12", "a number from 1 to 9"),
        (
            "deflate.params = (\"BROTLI_PARAM_QUALITY\" => 12)",
            "a number from 0 to 11",
        ),
        (
            "deflate.params = (\"ZSTD_c_strategy\" => \"ZSTD_quick\")",
            "\"ZSTD_fast\"",
        ),
    ] {
        let message = Site::try_new(text, &[&MODULE])
            .err()
            .expect("the value is refused");
        assert!(
            message.contains(needle) && message.contains("test.conf:1:"),
            "{message}"
        );
    }
    let fine = "deflate.params = (\"BROTLI_PARAM_MODE\" => \"BROTLI_MODE_TEXT\", \"gzip.strategy\" => 2, \"bzip2.blockSize100k\" => 1)";
    assert!(Site::try_new(fine, &[&MODULE]).is_ok());
}

/// The warnings about `text`: place, message and hint.
fn warned(text: &str) -> Vec<String> {
    let options = petrel_engine::config::LoadOptions::from_process();
    let config = petrel_engine::config::parse_str("test.conf", text, &crate::schema(), &options);
    let config = config.expect("it is accepted");
    let found = warnings(&config).into_iter();
    found
        .map(|warning| render(&warning, &config.sources, Style::Line))
        .collect()
}

#[test]
fn bzip2_is_warned_of() {
    let text = "deflate.allowed-encodings = (\"gzip\", \"bzip2\")\n$HTTP[\"host\"] == \"a\" { compress.allowed-encodings = (\"x-bzip2\") }";
    let found = warned(text);
    assert_eq!(found.len(), 2);
    assert!(found[0].contains("not built in"));
}

#[test]
fn unknown_codings_and_parameters_are_warned_of_and_left_out() {
    let text = "deflate.allowed-encodings = (\"gzip\", \"zst\", \"identity\")\n\
        deflate.params = (\"gzip.levle\" => 3, \"gzip.level\" => 1, \"x\" => \"y\")";
    let found = warned(text);
    for (line, needle) in found.iter().zip([
        "1:38: warning: \"zst\" is no content coding to compress with (did you mean \"zstd\"?)",
        "1:45: warning: \"identity\" is no content coding to compress with (there are ",
        "2:19: warning: deflate.params has no parameter \"gzip.levle\" (did you mean \"gzip.level\"?)",
        "2:57: warning: deflate.params has no parameter \"x\" (there are gzip.level, ",
    ]) {
        assert!(line.contains(needle), "{line}");
    }
    assert_eq!(found.len(), 4);
    let pages = Pages::new();
    let site = pages.site(text);
    let codings = ["gzip", "zstd", "br"].map(|asked| {
        let answer = ask(
            &site,
            "/small.txt",
            &format!("Accept-Encoding: {asked}\r\n"),
        );
        coding(&answer)
    });
    assert_eq!(codings, [Some("gzip".to_owned()), None, None]);
    let none = pages.site("deflate.allowed-encodings = (\"zst\")");
    assert_eq!(
        coding(&ask(&none, "/small.txt", "Accept-Encoding: zstd, br\r\n")),
        None
    );
}

mod while_it_is_sent {
    use std::collections::VecDeque;
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::task::{Context, Poll, Wake, Waker};

    use petrel_engine::body::BodySource;
    use petrel_engine::network_backend::FileReader;
    use petrel_engine::testing::Site;

    use super::*;
    use crate::deflate::body::{CompressedBody, at_once};

    /// Returns its parts one by one and pauses at each `None`.
    struct Script(VecDeque<Option<&'static [u8]>>);

    impl BodySource for Script {
        fn poll_piece(&mut self, _: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
            match self.0.pop_front() {
                None => Poll::Ready(None),
                Some(None) => Poll::Pending,
                Some(Some(part)) => Poll::Ready(Some(Ok(Piece::Bytes(part.into())))),
            }
        }

        fn remaining(&self) -> Option<u64> {
            None
        }
    }

    fn options(text: &str) -> Rc<DeflateOptions> {
        let options = petrel_engine::config::LoadOptions::from_process();
        let schema = petrel_engine::config::Schema::new(&[MODULE.directives]);
        let config = petrel_engine::config::parse_str("t", text, &schema, &options).expect("sound");
        let blocks = config.blocks.iter().map(|block| block.id);
        let values = petrel_engine::settings::Values::merge(&config, &schema, blocks);
        Rc::new(DeflateOptions::new(&values).expect("sound"))
    }

    fn reader() -> FileReader {
        let site = Site::new("", &[]);
        site.worker()
            .file_reader(&site.worker().base_settings().core, 0)
    }

    fn poll(body: &mut CompressedBody) -> Poll<Option<Vec<u8>>> {
        poll_with(body, Waker::noop())
    }

    fn poll_with(body: &mut CompressedBody, waker: &Waker) -> Poll<Option<Vec<u8>>> {
        let mut context = Context::from_waker(waker);
        body.poll_piece(&mut context).map(|piece| {
            let piece = piece?.expect("it goes well");
            piece.in_memory().map(<[u8]>::to_vec)
        })
    }

    /// Whether the task was woken.
    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Relaxed);
        }
    }

    /// Polls as a runtime does: again if the turn ended before the work was done, as it may on a busy
    /// machine.
    fn poll_turns(body: &mut CompressedBody) -> Poll<Option<Vec<u8>>> {
        loop {
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(Arc::clone(&woken));
            let polled = poll_with(body, &waker);
            if polled.is_ready() || !woken.0.load(Relaxed) {
                return polled;
            }
        }
    }

    #[test]
    fn a_pause_brings_out_what_is_there() {
        let script = Script([Some(&b"data: 1\n"[..]), None, None, Some(b"data: 2\n")].into());
        let source = Body::Source(Box::new(script));
        let mut body =
            CompressedBody::new(source, reader(), Coding::Gzip, &options("")).expect("begin");
        let Poll::Ready(Some(first)) = poll_turns(&mut body) else {
            panic!("the first event")
        };
        assert_eq!(
            super::super::testing::decoded_part(Coding::Gzip, &first),
            b"data: 1\n"
        );
        assert_eq!(poll_turns(&mut body), Poll::Pending);
        let Poll::Ready(Some(rest)) = poll_turns(&mut body) else {
            panic!("the rest")
        };
        assert_eq!(
            decoded(Coding::Gzip, &[first, rest].concat()),
            b"data: 1\ndata: 2\n"
        );
        assert_eq!(poll_turns(&mut body), Poll::Ready(None));
    }

    #[test]
    fn sync_flush_brings_out_every_piece() {
        let script = Script([Some(&b"1"[..]), Some(b"2")].into());
        let options = options("deflate.sync-flush = \"enable\"");
        let mut body = CompressedBody::new(
            Body::Source(Box::new(script)),
            reader(),
            Coding::Zstd,
            &options,
        )
        .expect("begin");
        let Poll::Ready(Some(first)) = poll_turns(&mut body) else {
            panic!("the first piece")
        };
        assert_eq!(
            super::super::testing::decoded_part(Coding::Zstd, &first),
            b"1"
        );
    }

    #[test]
    fn a_turn_ends_after_its_bytes() {
        let content = sample(200 * 1024);
        let options = options("deflate.work-block-size = 32");
        let mut body = CompressedBody::new(
            Body::from(content.clone()),
            reader(),
            Coding::Gzip,
            &options,
        )
        .expect("begin");
        let (mut turns, mut whole) = (0, Vec::new());
        loop {
            match poll(&mut body) {
                Poll::Pending => turns += 1,
                Poll::Ready(Some(piece)) => whole.extend(piece),
                Poll::Ready(None) => break,
            }
        }
        assert!(turns >= 6, "{turns}");
        assert_eq!(decoded(Coding::Gzip, &whole), content);
    }

    #[test]
    fn the_slowest_settings_are_worked_off_elsewhere() {
        let content = sample(100 * 1024);
        let options = options("deflate.params = (\"BROTLI_PARAM_QUALITY\" => 11)");
        let source = Body::from(content.clone());
        let mut body =
            CompressedBody::new(source, reader(), Coding::Brotli, &options).expect("begin");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let (whole, waits) = runtime.block_on(async {
            let (mut whole, mut waits) = (Vec::new(), 0);
            loop {
                let next = std::future::poll_fn(|context| match body.poll_piece(context) {
                    Poll::Pending => {
                        waits += 1;
                        Poll::Pending
                    }
                    ready => ready,
                });
                match next.await {
                    Some(piece) => whole.extend_from_slice(
                        piece.expect("it goes well").in_memory().expect("bytes"),
                    ),
                    None => return (whole, waits),
                }
            }
        });
        assert!(waits > 0);
        assert!(decoded(Coding::Brotli, &whole) == content);
    }

    #[test]
    fn only_short_bodies_are_compressed_at_once() {
        let options = options("");
        let at_once = |length: usize| {
            at_once(&Body::from(sample(length)), Coding::Gzip, &options)
                .expect("memory")
                .is_some()
        };
        assert!(at_once(64 * 1024));
        assert!(!at_once(64 * 1024 + 1));
    }
}
