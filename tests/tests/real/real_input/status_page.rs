//! The status page in a browser: live, still, in the dark and on a phone.

use petrel_tests::{Browser, Server, skip};

const CONFIG: &str = "server.modules += ( \"mod_status\" )\nstatus.status-url = \"/server-status\"\n\
    status.config-url = \"/server-config\"\nserver.max-worker = 2\n";

/// A server that has answered a few requests, some with paths that mean harm.
fn server() -> Server {
    let server = Server::build()
        .file("www/a.txt", "a")
        .config(CONFIG)
        .start();
    for target in [
        "/a.txt",
        "/none",
        "/%3Cscript%3Ealert(1)%3C/script%3E",
        "/%E2%80%AE%22%27%3E%3Cimg%20src=x%20onerror=alert(1)%3E",
    ] {
        server.get(target);
    }
    server
}

const HAS_ROUTES: &str = "document.querySelectorAll('[data-key=routes] tbody tr').length >= 2";

/// It takes so long because Chromium starts, and the page must change by itself, then stay as it is for three seconds.
#[test]
fn the_page_is_live() {
    let test = "the_page_is_live";
    if let Some(why) = Browser::hindrance() {
        return skip(test, &why);
    }
    let server = server();
    let browser = Browser::start();
    browser.open(&server.url("/server-status"));
    assert!(browser.is_true("document.getElementById('state').textContent == 'live'"));
    // The counts of workers are a second old at most.
    assert!(browser.is_true(HAS_ROUTES));
    let count =
        "Number(document.querySelector('[data-key=mod_staticfile] [data-count]').dataset.count)";
    let before: u64 = browser.evaluate(count).parse().expect("a number");
    for _ in 0..7 {
        server.get("/a.txt");
    }
    assert!(browser.is_true(&format!("{count} == {}", before + 7)));
    // A click sorts, and the order stays when the page changes.
    browser.click("[data-key=routes] th:nth-child(3) button");
    assert!(browser.is_true("document.querySelector('[aria-sort=descending]').cellIndex == 2"));
    let in_order = "[...document.querySelectorAll('[data-key=routes] tbody td:nth-child(3)')]\
        .every((cell, at, all) => at == 0 || Number(all[at - 1].dataset.v) >= Number(cell.dataset.v))";
    server.get("/a.txt");
    assert!(browser.is_true(&format!("{count} == {}", before + 8)));
    assert_eq!(browser.evaluate(in_order), "true");
    // A paused page stays as it is.
    browser.click("#pause");
    assert!(browser.is_true("document.getElementById('state').textContent == 'paused'"));
    server.get("/a.txt");
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(browser.evaluate(count), (before + 8).to_string());
    browser.click("#pause");
    assert!(browser.is_true(&format!("{count} == {}", before + 9)));
    // The paths that mean harm are there as text, and nothing of them became a part of the page.
    for path in ["/<script>alert(1)</script>", "<img src=x onerror=alert(1)>"] {
        let is_text = format!(
            "[...document.querySelectorAll('[data-key=paths] bdi')].some((e) => e.textContent.includes('{path}'))"
        );
        assert!(browser.is_true(&is_text), "{path}");
    }
    assert_eq!(
        browser.evaluate("document.querySelectorAll('main script, main img').length"),
        "0"
    );
    assert_eq!(browser.complaints(), NONE);
    browser.open(&server.url("/server-config"));
    assert!(
        browser
            .evaluate("document.body.innerText")
            .contains("Loaded Modules")
    );
    assert_eq!(browser.complaints(), NONE);
}

/// It takes so long because Chromium starts.
#[test]
fn the_page_fits_on_a_phone_in_the_dark() {
    let test = "the_page_fits_on_a_phone_in_the_dark";
    if let Some(why) = Browser::hindrance() {
        return skip(test, &why);
    }
    let server = server();
    let browser = Browser::start_with(&["--blink-settings=preferredColorScheme=0"]);
    browser.set_width(360);
    browser.open(&server.url("/server-status"));
    assert!(browser.is_true(HAS_ROUTES));
    assert_eq!(
        browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches"),
        "true"
    );
    assert_eq!(
        browser.evaluate("getComputedStyle(document.body).backgroundColor"),
        "\"rgb(16, 19, 22)\""
    );
    assert_eq!(browser.evaluate("window.innerWidth"), "360");
    assert_eq!(
        browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth"),
        "true",
        "{}",
        browser.evaluate(
            "[...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().right > 360)\
             .map((e) => e.outerHTML.slice(0, 80)).slice(0, 5)"
        )
    );
    assert_eq!(browser.complaints(), NONE);
}

#[test]
fn a_still_page_has_everything() {
    let test = "a_still_page_has_everything";
    if let Some(why) = Browser::hindrance() {
        return skip(test, &why);
    }
    let server = server();
    let browser = Browser::start_with(&["--blink-settings=scriptEnabled=false"]);
    browser.open(&server.url("/server-status"));
    // The page loads itself again; after a while it has what was counted.
    assert!(browser.is_true(HAS_ROUTES));
    assert_eq!(
        browser.evaluate("document.documentElement.className"),
        "\"\""
    );
    assert_eq!(
        browser.evaluate("document.querySelectorAll('.chart').length"),
        "2"
    );
    assert_eq!(browser.complaints(), NONE);
}

#[test]
fn a_request_that_a_proxy_has_forwarded_is_refused() {
    let server = server();
    for target in ["/server-status", "/server-status?json", "/server-config"] {
        assert_eq!(server.get(target).status, 200);
        let fields = [("X-Forwarded-For", "127.0.0.1")];
        assert_eq!(server.client().request("GET", target, &fields).status, 403);
    }
}

const NONE: [&str; 0] = [];
