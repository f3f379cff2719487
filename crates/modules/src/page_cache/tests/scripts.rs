//! Scripts change every answer, while the cache keeps the backend's answer.

use petrel_engine::module::ModuleSpec;
use petrel_engine::testing::Site;

use super::backend::{self, BACKEND, Way, asked, say, say_in_parts};
use super::{ENABLED, MODULE, count, get, later, status, text};
use crate::testing::Tree;
use crate::{deflate, lua, magnet};

const FRESH: &str = "Cache-Control: max-age=60\nETag: \"1\"\nContent-Type: text/plain";

/// mod_magnet before mod_page_cache in `server.modules`, and after it.
const ORDERS: [&[&ModuleSpec]; 2] = [
    &[
        &lua::MODULE,
        &magnet::MODULE,
        &MODULE,
        &deflate::MODULE,
        &BACKEND,
    ],
    &[
        &MODULE,
        &deflate::MODULE,
        &BACKEND,
        &lua::MODULE,
        &magnet::MODULE,
    ],
];

/// Greets the user by name, and says how often it has run on the answer.
const GREETS: &str = "
    local user = lighty.r.req_header['X-User'] or 'guest'
    lighty.header['X-Hello'] = (lighty.r.resp_header['X-Hello'] or '') .. user
    lighty.r.resp_body.add(' for ' .. user)";

/// A site with `script` at `hook`.
fn scripted(
    modules: &[&'static ModuleSpec],
    config: &str,
    hook: &str,
    script: &str,
) -> (Tree, Site) {
    backend::forget();
    let tree = Tree::new(&[("script.lua", script)]);
    let path = tree.path("script.lua");
    let config = format!("{ENABLED}{config}\nmagnet.attract-{hook}-to = (\"{path}\")");
    let site = Site::new(&config, modules);
    later(&site, 0);
    (tree, site)
}

/// The body and the greeting of the page for a user.
fn greeting(site: &Site, user: &str) -> (String, String) {
    let answer = get(site, "/", &format!("X-User: {user}\r\n"));
    (text(&answer), answer.field("X-Hello").unwrap_or_default())
}

fn expected(page: &str, user: &str) -> (String, String) {
    (format!("{page} for {user}"), user.to_owned())
}

#[test]
fn a_script_changes_each_answer_once_and_the_stored_one_never() {
    for modules in ORDERS {
        for way in [Way::Whole, Way::Streamed] {
            let (_tree, site) = scripted(modules, "", "response-start", GREETS);
            say_in_parts(200, FRESH, &["pa", "ge"], way);
            for user in ["ann", "bob", "bob"] {
                assert_eq!(greeting(&site, user), expected("page", user));
            }
            assert_eq!(asked().len(), 1);
            assert_eq!(count(&site, "page-cache.hits"), 2);
        }
    }
}

#[tokio::test(flavor = "local")]
async fn a_page_fetched_in_the_background_is_stored_without_what_scripts_made() {
    for modules in ORDERS {
        let (_tree, site) = scripted(modules, "", "response-start", GREETS);
        let stale = "Cache-Control: max-age=10, stale-while-revalidate=10\nETag: \"1\"";
        say(200, stale, "old");
        greeting(&site, "ann");
        later(&site, 12);
        say(200, stale, "new");
        assert_eq!(greeting(&site, "bob"), expected("old", "bob"));
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(asked().len(), 2);
        assert_eq!(greeting(&site, "eve"), expected("new", "eve"));
        // A validation keeps the stored body as well.
        later(&site, 12);
        say(304, stale, "");
        greeting(&site, "ann");
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(greeting(&site, "bob"), expected("new", "bob"));
        assert_eq!(
            (asked().len(), count(&site, "page-cache.revalidated")),
            (3, 1)
        );
    }
}

#[test]
fn a_stale_page_in_place_of_an_error_is_changed_like_a_fresh_one() {
    for modules in ORDERS {
        let (_tree, site) = scripted(modules, "", "response-start", GREETS);
        say(200, "Cache-Control: max-age=10, stale-if-error=60", "page");
        greeting(&site, "ann");
        later(&site, 12);
        say(503, "", "");
        assert_eq!(greeting(&site, "bob"), expected("page", "bob"));
        assert_eq!(greeting(&site, "eve"), expected("page", "eve"));
    }
}

#[test]
fn parts_and_validations_are_of_what_the_backend_said() {
    for modules in ORDERS {
        let (_tree, site) = scripted(
            modules,
            "",
            "response-start",
            "lighty.header['X-Run'] = '1'",
        );
        say(200, FRESH, "0123456789");
        get(&site, "/", "");
        for (fields, code, body) in [
            ("Range: bytes=2-3\r\n", 206, "23"),
            ("If-None-Match: \"1\"\r\n", 304, ""),
            ("", 200, "0123456789"),
        ] {
            let answer = get(&site, "/", fields);
            assert_eq!((answer.status(), text(&answer).as_str()), (code, body));
            assert_eq!(answer.fields().matches("X-Run: 1\r\n").count(), 1, "{code}");
        }
        let head = site.request("HEAD / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(status(&head), "petrel; hit");
        assert_eq!(head.field("X-Run").as_deref(), Some("1"));
        assert_eq!(asked().len(), 1);
    }
}

#[test]
fn what_a_script_made_is_compressed_for_each_client() {
    for modules in ORDERS {
        let config = "deflate.mimetypes = (\"text/\")\ndeflate.allowed-encodings = (\"gzip\")\n";
        let (_tree, site) = scripted(modules, config, "response-start", GREETS);
        say(200, FRESH, &"compress me ".repeat(100));
        let zipped = |user: &str| {
            let answer = get(
                &site,
                "/",
                &format!("Accept-Encoding: gzip\r\nX-User: {user}\r\n"),
            );
            assert_eq!(answer.field("Content-Encoding").as_deref(), Some("gzip"));
            answer.body().to_vec()
        };
        let (first, second) = (zipped("ann"), zipped("bob"));
        assert!(first != second && zipped("ann") == first);
        assert_eq!(asked().len(), 1);
    }
}

#[test]
fn an_answer_that_a_script_replaces_by_an_error_is_stored_as_it_came() {
    for modules in ORDERS {
        let script = "if lighty.r.req_header['X-User'] == 'ann' then error('no') end";
        let (_tree, site) = scripted(modules, "", "response-start", script);
        say(200, FRESH, "page");
        assert_eq!(get(&site, "/", "X-User: ann\r\n").status(), 500);
        let answer = get(&site, "/", "");
        assert_eq!((answer.status(), text(&answer)), (200, "page".to_owned()));
        assert_eq!(asked().len(), 1);
    }
}

#[test]
fn what_a_script_gives_to_the_answer_beforehand_is_for_one_client() {
    for modules in ORDERS {
        let script = "local user = lighty.r.req_header['X-User']
                      if user then lighty.header['X-Hello'] = user end";
        for hook in ["raw-url", "physical-path"] {
            let (_tree, site) = scripted(modules, "", hook, script);
            say(200, FRESH, "page");
            for user in ["ann", "bob"] {
                assert_eq!(greeting(&site, user), ("page".to_owned(), user.to_owned()));
            }
            assert_eq!(get(&site, "/", "").field("X-Hello"), None, "{hook}");
            assert_eq!(asked().len(), 1);
        }
    }
}

#[test]
fn what_a_script_says_beforehand_about_caches_counts() {
    for modules in ORDERS {
        for field in ["['Cache-Control'] = 'private'", "['Set-Cookie'] = 'a=b'"] {
            let (_tree, site) = scripted(modules, "", "raw-url", &format!("lighty.header{field}"));
            say(200, FRESH, "page");
            get(&site, "/", "");
            assert_eq!(count(&site, "page-cache.entries"), 0, "{field}");
        }
    }
}
