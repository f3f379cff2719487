//! Chromium: a page with many parts, and a reload in between.

use std::fmt::Write as _;

use petrel_tests::{Browser, eventually, skip};
use rustix::process::Signal;

use super::{https, over_tls};

/// It takes the certificate although nothing has told it to trust that.
fn browser(test: &str) -> Option<Browser> {
    match Browser::hindrance() {
        Some(why) => {
            skip(test, &why);
            None
        }
        None => Some(Browser::start_with(&["--ignore-certificate-errors"])),
    }
}

/// The protocols of all that the page has loaded, without repeats.
const PROTOCOLS: &str =
    "[...new Set(performance.getEntries().map(e => e.nextHopProtocol).filter(p => p))].join()";

const PICTURES: usize = 200;

/// It takes so long because Chromium starts, and loads a page with 200 pictures twice.
#[test]
fn a_page_with_200_pictures_and_a_reload_in_between() {
    let test = "a_page_with_200_pictures_and_a_reload_in_between";
    let Some(browser) = browser(test) else {
        return;
    };
    let pictures = (0..PICTURES).fold(String::new(), |mut page, n| {
        let _infallible = write!(page, "<img src='/picture.svg?{n}'>");
        page
    });
    let page =
        format!("<!DOCTYPE html><title>pictures</title><link rel='icon' href='data:,'>{pictures}");
    let server = over_tls()
        .file("www/page.html", page)
        .file(
            "www/picture.svg",
            "<svg xmlns='http://www.w3.org/2000/svg' width='8' height='8'><rect width='8' height='8'/></svg>",
        )
        .config("mimetype.assign = (\".html\" => \"text/html\", \".svg\" => \"image/svg+xml\")")
        .start();
    let url = https(&server, "/page.html");
    let see = || {
        browser.open(&url);
        let loaded = "[...document.images].filter(i => i.complete && i.naturalWidth === 8).length";
        assert_eq!(browser.evaluate(loaded), PICTURES.to_string());
        assert_eq!(browser.evaluate(PROTOCOLS), "\"h2\"");
        assert_eq!(browser.complaints(), [""; 0]);
    };
    see();
    server.write_configuration(&format!("server.tag = \"new\"\n{}", server.configuration()));
    server.signal(Signal::USR1);
    let is_new = || {
        let head = petrel_tests::curl(&["--noproxy", "*", "--insecure", "--head", &url]);
        head.text().to_ascii_lowercase().contains("server: new")
    };
    assert!(eventually(is_new), "{}", server.log());
    see();
}

/// The server process is replaced while the page is loading: no picture is missing, whichever process it comes from.
/// It takes so long because Chromium starts, and because the pictures come slowly enough for a reload in between.
#[test]
fn a_reload_while_a_page_is_loading() {
    let Some(browser) = browser("a_reload_while_a_page_is_loading") else {
        return;
    };
    let pictures: String = (0..PICTURES)
        .map(|n| format!("<img src='/picture.svg?{n}'>"))
        .collect();
    let page =
        format!("<!DOCTYPE html><title>pictures</title><link rel='icon' href='data:,'>{pictures}");
    let rest = "x".repeat(8000);
    let server = over_tls()
        .file("www/page.html", page)
        .file(
            "www/picture.svg",
            format!(
                "<svg xmlns='http://www.w3.org/2000/svg' width='8' height='8'><!--{rest}--></svg>"
            ),
        )
        .config(
            "mimetype.assign = (\".html\" => \"text/html\", \".svg\" => \"image/svg+xml\")\n\
             server.modules += (\"mod_accesslog\")\n\
             accesslog.filename = var.dir + \"/access.log\"\n\
             server.kbytes-per-second = 700",
        )
        .config("accesslog.format = \"first %U %s %I %O %D\"")
        .start();
    let answered = |by: &str| {
        let log = server.tree().text("access.log");
        let line = format!("{by} /picture.svg");
        log.lines().filter(|known| known.starts_with(&line)).count()
    };
    let processes = server.processes().pids.len();
    let mut before = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(eventually(|| answered("first") > PICTURES / 10));
            let second = server.configuration().replace("first", "second");
            server.write_configuration(&second);
            server.signal(Signal::USR1);
            server.expect_log("configuration reloaded");
            before = answered("first") + answered("second");
        });
        browser.open(&https(&server, "/page.html"));
    });
    let loaded = "[...document.images].filter(i => i.complete && i.naturalWidth === 8).length";
    println!("{} first {} second", answered("first"), answered("second"));
    println!(
        "{}",
        browser.evaluate("[...document.images].filter(i => !i.complete).length")
    );
    println!("{:?}", browser.complaints());
    println!(
        "{:?}",
        server
            .tree()
            .text("access.log")
            .lines()
            .filter(|l| !l.contains("svg 200") || l.contains(" 0 "))
            .collect::<Vec<_>>()
    );
    assert_eq!(browser.evaluate(loaded), PICTURES.to_string());
    assert_eq!(browser.evaluate(PROTOCOLS), "\"h2\"");
    assert_eq!(browser.complaints(), [""; 0]);
    assert!(eventually(
        || answered("first") + answered("second") == PICTURES
    ));
    assert!(before < PICTURES, "the page had loaded before the reload");
    // The connection to the process of before ends by itself.
    assert!(eventually(|| server.processes().pids.len() == processes));
    browser.open(&https(&server, "/page.html?again"));
    assert_eq!(browser.evaluate(loaded), PICTURES.to_string());
    assert!(eventually(|| answered("second") >= PICTURES));
}
