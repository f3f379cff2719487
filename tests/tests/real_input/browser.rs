//! A browser on what Petrel serves: Chromium, steered by chromedriver, and what its console says.
//!
//! The console has an entry for everything that does not load, a 404 for instance, and for every
//! error of a script.

use std::process::{Child, Command, Stdio};

use petrel_tests::{ProcessTree, Tree, curl, eventually, free_port, is_installed, petrel};
use rustix::process::{Pid, Signal, kill_process};

use crate::isolated::{Isolated, isolated};
use crate::{python_doc, skip};

#[test]
fn a_page_of_the_documentation_opens_without_an_error() {
    let test = "a_page_of_the_documentation_opens_without_an_error";
    let root = match python_doc::root().and_then(|root| Browser::hindrance().map_or(Ok(root), Err))
    {
        Ok(root) => root,
        Err(why) => return skip(test, &why),
    };
    let server = python_doc::start(&root);
    let browser = Browser::start();
    for page in [
        "/library/functions.html",
        "/genindex.html",
        "/search.html?q=server",
    ] {
        browser.open(&server.url(page));
        assert!(
            browser.evaluate("document.title").contains("Python"),
            "{page}"
        );
        // A style sheet and a script that count.
        assert!(browser.is_true("document.styleSheets.length > 0"), "{page}");
        assert!(browser.is_true("typeof jQuery == 'function'"), "{page}");
        assert_eq!(browser.complaints(), NONE, "{page}");
    }
    // Each resource was found, or had been.
    let log = server.tree().text("access.log");
    let failed: Vec<&str> = log
        .lines()
        .filter(|line| !line.starts_with("200 ") && !line.starts_with("304 "))
        .filter(|line| !line.ends_with(" /favicon.ico"))
        .collect();
    assert_eq!(failed, Vec::<&str>::new());
}

#[test]
fn a_listing_opens_without_an_error() {
    let test = "a_listing_opens_without_an_error";
    let root = match python_doc::root().and_then(|root| Browser::hindrance().map_or(Ok(root), Err))
    {
        Ok(root) => root,
        Err(why) => return skip(test, &why),
    };
    let server = python_doc::start(&root);
    let browser = Browser::start();
    browser.open(&server.url("/_sources/library/"));
    assert!(
        browser
            .evaluate("document.title")
            .contains("/_sources/library/")
    );
    assert!(browser.is_true("document.links.length > 200"));
    assert_eq!(browser.complaints(), NONE);
    // Readable on a phone: nothing is wider than the window.
    assert!(browser.is_true("document.documentElement.scrollWidth <= window.innerWidth"));
}

#[test]
fn the_bundled_site_opens_without_an_error() {
    let test = "the_bundled_site_opens_without_an_error";
    if let Some(why) = Browser::hindrance() {
        return skip(test, &why);
    }
    isolated(test, || {
        let petrel = petrel().to_str().expect("a plain path");
        let server = Isolated::start(Tree::new(), &[petrel], 8080);
        assert!(
            server.output().contains("http://127.0.0.1:8080/"),
            "{}",
            server.output()
        );
        let browser = Browser::start();
        browser.open("http://127.0.0.1:8080/");
        assert!(
            browser
                .evaluate("document.body.innerText")
                .contains("Petrel")
        );
        assert_eq!(browser.complaints(), NONE);
    });
}

const NONE: [&str; 0] = [];

/// A running browser with one page, in this thread's network.
struct Browser {
    driver: Child,
    /// The URL of the session.
    session: String,
    /// Where the browser keeps its things.
    _profile: Tree,
}

impl Browser {
    /// Why there is no browser here, if so.
    fn hindrance() -> Option<String> {
        let missing = ["chromium", "chromedriver"]
            .into_iter()
            .find(|program| !is_installed(program));
        missing.map(|program| format!("{program} is not installed"))
    }

    /// Starts it, with nothing that talks to anybody but the server under test.
    fn start() -> Browser {
        let port = free_port();
        let profile = Tree::new();
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .env("HOME", profile.root())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver can be run");
        let base = format!("http://127.0.0.1:{port}");
        let session = format!("{base}/session");
        let mut browser = Browser {
            driver,
            session,
            _profile: profile,
        };
        let status = format!("{base}/status");
        let is_ready = || {
            curl(&["--noproxy", "*", &status])
                .text()
                .contains("\"ready\":true")
        };
        assert!(eventually(is_ready), "chromedriver does not answer");
        let capabilities = browser.capabilities();
        let created = browser.post("", &capabilities);
        let id = created
            .split_once("\"sessionId\":\"")
            .and_then(|(_, rest)| rest.split_once('"'));
        let (id, _) = id.unwrap_or_else(|| panic!("no session: {created}"));
        browser.session = format!("{base}/session/{id}");
        browser
    }

    fn capabilities(&self) -> String {
        let profile = self._profile.path("profile");
        let switches = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-proxy-server",
        ];
        let switches = switches.map(|switch| format!("\"{switch}\"")).join(",");
        format!(
            "{{\"capabilities\":{{\"alwaysMatch\":{{\"browserName\":\"chrome\",\
             \"goog:loggingPrefs\":{{\"browser\":\"ALL\"}},\
             \"goog:chromeOptions\":{{\"args\":[{switches},\"--user-data-dir={}\"]}}}}}}}}",
            profile.display()
        )
    }

    /// Opens a page and waits until it has loaded with all its parts.
    fn open(&self, url: &str) {
        let answer = self.post("/url", &format!("{{\"url\":\"{url}\"}}"));
        assert_eq!(answer, "{\"value\":null}", "{url}");
    }

    /// The value of an expression in the page, in JSON.
    fn evaluate(&self, expression: &str) -> String {
        let body = format!("{{\"script\":\"return {expression}\",\"args\":[]}}");
        value(&self.post("/execute/sync", &body)).to_owned()
    }

    /// Whether an expression in the page becomes true: scripts may still run.
    fn is_true(&self, expression: &str) -> bool {
        eventually(|| self.evaluate(expression) == "true")
    }

    /// The entries of the console since it was asked last, in JSON. Not about the page are those of
    /// the browser's own pages, and the icon it looks for where a page names none.
    fn complaints(&self) -> Vec<String> {
        let answer = self.post("/se/log", "{\"type\":\"browser\"}");
        let is_ours =
            |entry: &&str| !entry.contains("\"chrome://") && !entry.contains("/favicon.ico - ");
        value(&answer)
            .split("{\"level\":")
            .skip(1)
            .filter(is_ours)
            .map(str::to_owned)
            .collect()
    }

    fn post(&self, path: &str, body: &str) -> String {
        let url = format!("{}{path}", self.session);
        let finished = curl(&["--noproxy", "*", "--data-binary", body, &url]);
        assert_eq!(finished.code(), 0, "{url}: {}", finished.errors);
        finished.text()
    }
}

/// What stands in `{"value":…}`.
fn value(answer: &str) -> &str {
    let value = answer
        .strip_prefix("{\"value\":")
        .and_then(|rest| rest.strip_suffix('}'));
    value.unwrap_or_else(|| panic!("not a value: {answer}"))
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser's processes first noted, then killed after the driver: nobody starts them anew.
        let pids = ProcessTree::of(self.driver.id()).pids;
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        for pid in pids.into_iter().skip(1) {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                // It may have ended with its parent.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}
