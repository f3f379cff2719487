use super::*;
use crate::testing::{Tree, refusal};
use petrel_engine::testing::{Answer, Site};

fn site(config: &str) -> Site {
    let modules = [&MODULE, &crate::access::MODULE, &crate::redirect::MODULE];
    Site::new(
        &format!("server.document-root = \"/nonexistent\"\n{config}"),
        &modules,
    )
}

/// The target that `target` is rewritten to.
fn rewritten(config: &str, target: &str) -> String {
    target_of(&site(config).get(target))
}

fn target_of(answer: &Answer) -> String {
    String::from_utf8_lossy(answer.exchange().request.url.target()).into_owned()
}

#[test]
fn the_first_rule_that_matches_replaces_path_and_query() {
    let config =
        "url.rewrite = (\"^/a/(\\d+)\\?(.*)\" => \"/b?id=$1&$2\", \"^/a\" => \"/c${qsa}\")";
    for (target, expected) in [
        ("/a/12?x=%20", "/b?id=12&x=%20"),
        ("/a/12", "/c"),
        ("/a?q", "/c?q"),
        ("/b/../a/%61?q", "/c?q"),
        ("/x", "/x"),
    ] {
        assert_eq!(rewritten(config, target), expected, "{target}");
    }
}

#[test]
fn what_the_client_asked_for_is_kept() {
    let answer = site("url.rewrite = (\"^/a\" => \"/b\")").get("/a?q=1");
    assert_eq!(answer.exchange().request.original_target(), b"/a?q=1");
    assert_eq!(answer.exchange().request.url.path(), b"/b");
}

#[test]
fn a_rule_that_repeats_hands_on_to_the_next_and_a_final_one_does_not() {
    let repeat = "url.rewrite-repeat = (\"^/1\" => \"/2\", \"^/2\" => \"/3\")";
    assert_eq!(rewritten(repeat, "/1"), "/3");
    let once = "url.rewrite-once = (\"^/1\" => \"/2\", \"^/2\" => \"/3\")";
    assert_eq!(rewritten(once, "/1"), "/2");
    let both = "url.rewrite-repeat = (\"^/1\" => \"/2\")\nurl.rewrite-once = (\"^/2\" => \"/1\")";
    assert_eq!(rewritten(both, "/1"), "/1");
}

#[test]
fn a_hundred_rounds_are_allowed_and_no_more() {
    let shorten = "url.rewrite-repeat = (\"^/x(.*)\" => \"/$1\")";
    for (length, status) in [(100, 404), (101, 500)] {
        let answer = site(shorten).get(&format!("/{}", "x".repeat(length)));
        assert_eq!(answer.status(), status, "{length}");
    }
}

#[test]
fn a_rule_that_doubles_the_url_is_stopped_before_memory_is_used_up() {
    let answer = site("url.rewrite-repeat = (\"^/(.*)\" => \"/$1/$1\")").get("/aaaaaaaa");
    assert_eq!(answer.status(), 500);
    assert!(answer.exchange().request.url.target().len() <= TARGET_BYTES_MAX);
}

#[test]
fn settings_are_those_of_the_new_url() {
    let config = "url.rewrite-once = (\"^/open(.*)\" => \"/closed$1?k=1\")\n\
        $HTTP[\"url\"] =^ \"/closed\" { server.tag = \"closed\" }\n\
        $HTTP[\"querystring\"] == \"k=1\" { server.name = \"query\" }";
    let answer = site(config).get("/open/x");
    let core = &answer.exchange().settings.core;
    assert_eq!(core.name.as_deref(), Some(b"query".as_slice()));
}

#[test]
fn access_rules_see_what_is_opened() {
    let config = "url.access-deny = (\".inc\")\nurl.rewrite-once = (\"^/a$\" => \"/a.inc\", \"^/b.inc\" => \"/b\")";
    assert_eq!(site(config).get("/a").status(), 403);
    assert_eq!(site(config).get("/b.inc").status(), 404);
}

#[test]
fn rules_of_the_innermost_block_replace_all_others() {
    let config = "url.rewrite-once = (\"^/\" => \"/outer\")\n\
        $HTTP[\"host\"] == \"a.example\" { url.rewrite-repeat = (\"^/x\" => \"/inner\") }";
    let site = site(config);
    let of = |host: &str| {
        let request = format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n");
        target_of(&site.request(&request))
    };
    assert_eq!(of("a.example"), "/inner");
    assert_eq!(of("b.example"), "/outer");
}

#[test]
fn what_is_no_url_is_refused() {
    for (rule, status) in [
        ("\"^/(.*)\" => \"$1\"", 500),
        ("\"^/\" => \"http://b/\"", 500),
        ("\"^/\" => \"$7\"", 500),
        ("\"^/(.*)\" => \"/${decb64u:1}\"", 400),
        ("\"^/(.*)\" => \"/%%00\"", 400),
    ] {
        let answer = site(&format!("url.rewrite-once = ({rule})")).get("/Cg");
        assert_eq!(answer.status(), status, "{rule}");
    }
}

#[test]
fn no_rule_leads_out_of_the_document_root() {
    let config = "url.rewrite-once = (\"^/get\\?(.*)\" => \"/d/$1\")";
    for target in [
        "/get?../../etc/passwd",
        "/get?%2e%2e/%2e%2e/etc/passwd",
        "/get?..%2f..%2fetc/passwd",
        "/get?/../..//etc/passwd",
    ] {
        let answer = site(config).get(target);
        let path = answer.exchange().request.url.path();
        assert!(
            path.starts_with(b"/") && !path.windows(2).any(|two| two == b".."),
            "{target}: {}",
            path.escape_ascii()
        );
    }
}

#[test]
fn a_path_is_decoded_once() {
    let answer = site("url.rewrite-once = (\"^/a(.*)\" => \"/b$1\")").get("/a%252e%2541");
    assert_eq!(answer.exchange().request.url.path(), b"/b%2e%41");
}

#[test]
fn a_match_that_explodes_is_an_error() {
    let config = "url.rewrite-once = (\"^/(a+)+$\" => \"/b\", \"^/\" => \"/c\")";
    assert_eq!(
        site(config).get(&format!("/{}!", "a".repeat(60))).status(),
        500
    );
    assert_eq!(rewritten(config, "/a"), "/b");
    let config = "url.redirect = (\"^/(a+)+$\" => \"/b\")";
    assert_eq!(
        site(config).get(&format!("/{}!", "a".repeat(60))).status(),
        500
    );
}

#[test]
fn options_for_the_server_are_not_rewritten() {
    let answer = site("url.rewrite-once = (\"\" => \"/b\")")
        .request("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(answer.status(), 200);
}

#[test]
fn wrong_rules_are_refused_at_their_place() {
    let message = refusal("url.rewrite-repeat = (\"^/(\" => \"/x\")", &[&MODULE]);
    assert!(
        message.starts_with("test.conf:1:23: error: \"^/(\" is no regular"),
        "{message}"
    );
}

fn file_site(tree: &Tree, config: &str) -> Site {
    let modules = [
        &MODULE,
        &crate::alias::MODULE,
        &crate::index_file::MODULE,
        &crate::static_file::MODULE,
    ];
    tree.site(
        &format!("index-file.names = (\"index.html\")\n{config}"),
        &modules,
    )
}

#[test]
fn only_urls_without_a_regular_file_are_rewritten() {
    let tree = Tree::new(&[
        ("front.html", "front"),
        ("a.html", "a"),
        ("d/index.html", "index"),
    ]);
    let config = "url.rewrite-if-not-file = (\"^/(.*)$\" => \"/front.html?q=$1\")";
    let site = file_site(&tree, config);
    let long = format!("/{}", "x".repeat(3000));
    for (target, body) in [
        ("/a.html", "a"),
        ("/a.html?q", "a"),
        ("/missing", "front"),
        ("/d/", "front"),
        ("/d", "front"),
        ("/a.html/info", "front"),
        ("/d/index.html", "index"),
        (&long, "front"),
    ] {
        let answer = site.get(target);
        assert_eq!(answer.body(), body.as_bytes(), "{target}");
    }
}

#[test]
fn an_alias_counts_if_its_module_stands_in_front() {
    let tree = Tree::new(&[("front.html", "front"), ("else/f.html", "f")]);
    let config = "alias.url = (\"/x/\" => \"ROOT/else/\")\n\
        url.rewrite-if-not-file = (\"^/x/\" => \"/front.html\")";
    let statics: &ModuleSpec = &crate::static_file::MODULE;
    for (modules, body) in [
        ([&crate::alias::MODULE, &MODULE, statics], "f"),
        ([&MODULE, &crate::alias::MODULE, statics], "front"),
    ] {
        let config = format!(
            "server.compat-module-load = \"disable\"\nserver.modules = (\"{}\", \"{}\", \"{}\")\n{config}",
            modules[0].name, modules[1].name, modules[2].name
        );
        let answer = tree.site(&config, &modules).get("/x/f.html");
        assert_eq!(answer.body(), body.as_bytes());
    }
}

#[test]
fn rules_are_compiled_once_for_all_settings() {
    let config = "url.rewrite-once = (\"^/a\" => \"/b\")\n\
        $HTTP[\"url\"] =^ \"/x\" { server.tag = \"x\" }";
    let site = site(config);
    let profile = |target: &str| site.get(target).exchange().settings.profile;
    assert_ne!(profile("/x"), profile("/y"));
    let config = site.worker().settings_table().config();
    let rules = config.compiled::<RewriteRuleSet>(ALWAYS[0], BlockId::GLOBAL, || {
        panic!("they are compiled already")
    });
    // One is the configuration's, one is here, and each settings have one.
    assert!(rules.is_ok_and(|rules| Arc::strong_count(&rules) >= 4));
}
