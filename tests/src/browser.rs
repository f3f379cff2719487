//! A real browser: Chromium, controlled through chromedriver by WebDriver.
//!
//! The browser's console has an entry for everything that fails to load, a 404 for instance, and for every
//! error of a script.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::{ProcessTree, Tree, curl, eventually, free_port, is_installed};

/// A running browser with one page, in this thread's network namespace.
///
/// # Panics
/// Methods panic if the browser does not do what they ask.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    /// The URL of the session.
    session: String,
    /// The browser's profile directory.
    _profile: Tree,
}

impl Browser {
    /// Why no browser can run here, if so.
    pub fn hindrance() -> Option<String> {
        let missing = ["chromium", "chromedriver"]
            .into_iter()
            .find(|program| !is_installed(program));
        missing.map(|program| format!("{program} is not installed"))
    }

    /// Starts the browser, with nothing that connects to other servers than the one under test.
    pub fn start() -> Browser {
        Browser::start_with(&[])
    }

    /// The same with further switches, which have no quotes and no backslashes.
    pub fn start_with(further: &[&str]) -> Browser {
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
        let capabilities = browser.capabilities(further);
        let created = browser.post("", &capabilities);
        let id = created
            .split_once("\"sessionId\":\"")
            .and_then(|(_, rest)| rest.split_once('"'));
        let (id, _) = id.unwrap_or_else(|| panic!("no session: {created}"));
        browser.session = format!("{base}/session/{id}");
        browser
    }

    fn capabilities(&self, further: &[&str]) -> String {
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
        let switches = switches.iter().chain(further);
        let switches: Vec<String> = switches.map(|switch| format!("\"{switch}\"")).collect();
        let switches = switches.join(",");
        format!(
            "{{\"capabilities\":{{\"alwaysMatch\":{{\"browserName\":\"chrome\",\
             \"goog:loggingPrefs\":{{\"browser\":\"ALL\"}},\
             \"goog:chromeOptions\":{{\"args\":[{switches},\"--user-data-dir={}\"]}}}}}}}}",
            profile.display()
        )
    }

    /// Opens a page and waits until it has loaded with all its parts.
    pub fn open(&self, url: &str) {
        let answer = self.post("/url", &format!("{{\"url\":\"{url}\"}}"));
        assert_eq!(answer, "{\"value\":null}", "{url}");
    }

    /// The value of an expression in the page, in JSON.
    pub fn evaluate(&self, expression: &str) -> String {
        let body = format!("{{\"script\":\"return {expression}\",\"args\":[]}}");
        value(&self.post("/execute/sync", &body)).to_owned()
    }

    /// Waits until an expression in the page is true, since scripts may still run. Returns whether it became
    /// so.
    pub fn is_true(&self, expression: &str) -> bool {
        eventually(|| self.evaluate(expression) == "true")
    }

    /// Gives the page a window of this width, also one that is narrower than windows of the browser can be.
    pub fn set_width(&self, width: u32) {
        let command = "Emulation.setDeviceMetricsOverride";
        let body = format!(
            "{{\"cmd\":\"{command}\",\"params\":{{\"width\":{width},\"height\":800,\
             \"deviceScaleFactor\":1,\"mobile\":false}}}}"
        );
        let answer = self.post("/goog/cdp/execute", &body);
        assert!(!answer.contains("\"error\""), "{answer}");
    }

    /// Clicks on the first element that a CSS selector finds, and waits until what that loads is there.
    pub fn click(&self, selector: &str) {
        let element = self.element(selector);
        let answer = self.post(&format!("{element}/click"), "{}");
        assert_eq!(answer, "{\"value\":null}", "{selector}");
    }

    /// Types into the first element that a CSS selector finds. For a file field, `text` is the path. `text`
    /// has no quotes and no backslashes but those of `\n`.
    pub fn type_into(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        let answer = self.post(
            &format!("{element}/value"),
            &format!("{{\"text\":\"{text}\"}}"),
        );
        assert_eq!(answer, "{\"value\":null}", "{selector}");
    }

    /// The path of an element below the session, once it is there.
    fn element(&self, selector: &str) -> String {
        let body = format!("{{\"using\":\"css selector\",\"value\":\"{selector}\"}}");
        let mut found = String::new();
        let is_there = || {
            found = self.post("/element", &body);
            !found.contains("\"error\"")
        };
        assert!(eventually(is_there), "{selector}: {found}");
        let id = value(&found)
            .rsplit_once("\":\"")
            .and_then(|(_, id)| id.split_once('"'));
        let (id, _) = id.unwrap_or_else(|| panic!("{selector}: {found}"));
        format!("/element/{id}")
    }

    /// The console's entries since the last call, in JSON. Entries of the browser's own pages are left out,
    /// and so are those about the icon that it requests when a page names none.
    pub fn complaints(&self) -> Vec<String> {
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

/// The value in `{"value":…}`.
fn value(answer: &str) -> &str {
    let value = answer
        .strip_prefix("{\"value\":")
        .and_then(|rest| rest.strip_suffix('}'));
    value.unwrap_or_else(|| panic!("not a value: {answer}"))
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Lists the browser's processes before the driver is killed: after that none of them can be
        // restarted.
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
