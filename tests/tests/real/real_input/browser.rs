//! A browser on sites that Petrel serves: Chromium, controlled through chromedriver, and the messages on its
//! console.
//!
//! The browser's console has an entry for everything that fails to load, a 404 for instance, and for every
//! error of a script.

use petrel_tests::{Browser, Tree, eventually, petrel, skip};

use crate::real_input::isolated::{Isolated, isolated};
use crate::real_input::python_doc;

/// It takes so long because Chromium starts, and loads three pages, one of them very large.
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
        // The style sheet and the script must have an effect.
        assert!(browser.is_true("document.styleSheets.length > 0"), "{page}");
        assert!(browser.is_true("typeof jQuery == 'function'"), "{page}");
        assert_eq!(browser.complaints(), NONE, "{page}");
    }
    // Each resource was found, or had been cached.
    let log = server.tree().text("access.log");
    let failed: Vec<&str> = log
        .lines()
        .filter(|line| !line.starts_with("200 ") && !line.starts_with("304 "))
        .filter(|line| !line.ends_with(" /favicon.ico"))
        .collect();
    assert_eq!(failed, Vec::<&str>::new());
}

/// It takes so long because Chromium starts.
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
    // The page fits on a phone: nothing is wider than the window.
    assert!(browser.is_true("document.documentElement.scrollWidth <= window.innerWidth"));
}

/// It takes so long because Chromium starts.
#[test]
fn the_bundled_site_opens_without_an_error() {
    let test = "the_bundled_site_opens_without_an_error";
    if let Some(why) = Browser::hindrance() {
        return skip(test, &why);
    }
    isolated(test, || {
        let petrel = petrel().to_str().expect("a plain path");
        let server = Isolated::start(Tree::new(), &[petrel], 8080);
        // The server accepts connections before it says so.
        let is_announced = || server.output().contains("http://127.0.0.1:8080/");
        assert!(eventually(is_announced), "{}", server.output());
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
