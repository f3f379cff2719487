use std::net::SocketAddr;
use std::time::Duration;

use petrel_engine::exchange::Peer;
use petrel_engine::subrequest::{Subrequest, SubrequestHead};
use petrel_engine::testing::{Answer, Site};

use super::*;
use crate::testing::{Tree, refusal};
use crate::{auth, extforward, magnet, redirect, rewrite, setenv, static_file, status};

const ROOT: &str = "server.document-root = \"/nonexistent\"\n";

fn site(config: &str) -> Site {
    let modules = [
        &MODULE,
        &extforward::MODULE,
        &rewrite::MODULE,
        &redirect::MODULE,
        &status::MODULE,
        &setenv::MODULE,
    ];
    Site::new(&format!("{ROOT}{config}"), &modules)
}

fn limited(options: &str) -> Site {
    site(&format!("limit.rules = ( \"r\" => ( {options} ) )"))
}

/// The answer to a request of the client with this address.
fn ask(site: &mut Site, client: &str, target: &str, fields: &str) -> Answer {
    let mut connection = site.connection();
    connection.peer = match client {
        "unix" => Peer::Unix,
        ip => Peer::Ip(SocketAddr::new(ip.parse().expect("an address"), 1)),
    };
    site.set_connection(connection);
    site.request(&format!(
        "GET {target} HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n"
    ))
}

/// The statuses of requests with these header fields, sent one after the other.
fn statuses(site: &Site, fields: &[&str]) -> Vec<u16> {
    let ask = |fields: &&str| {
        let request = format!("GET / HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n");
        site.request(&request).status()
    };
    fields.iter().map(ask).collect()
}

fn counter(site: &Site, name: &str) -> u64 {
    let mut counters = std::collections::BTreeMap::new();
    read_counters(site.worker().shared(), &mut counters);
    counters[name]
}

#[test]
fn requests_beyond_the_rate_are_told_when_to_come_again() {
    let site = limited("\"rate\" => \"10/m\", \"burst\" => 3");
    site.worker().clock().skip(Duration::ZERO);
    for _ in 0..3 {
        let answer = site.get("/");
        assert_eq!(answer.status(), 404);
        assert_eq!(answer.field("Retry-After"), None);
    }
    let refused = site.get("/");
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.field("Retry-After").as_deref(), Some("6"));
    let page = String::from_utf8_lossy(refused.body()).into_owned();
    assert!(page.contains("429 Too Many Requests"), "{page}");
    site.worker().clock().skip(Duration::from_millis(5500));
    let refused = site.get("/");
    assert_eq!(refused.field("Retry-After").as_deref(), Some("1"));
    site.worker().clock().skip(Duration::from_millis(500));
    assert_eq!(site.get("/").status(), 404);
    assert_eq!(site.get("/").status(), 429);
    assert_eq!(counter(&site, "limit.r.refused-rate"), 3);
}

#[test]
fn addresses_of_a_network_share_what_is_allowed() {
    let mut site = limited("\"rate\" => \"1/d\", \"ipv4-prefix\" => 24");
    let mut status = |client: &str| ask(&mut site, client, "/", "").status();
    assert_eq!((status("192.0.2.1"), status("192.0.2.2")), (404, 429));
    assert_eq!(
        (status("192.0.3.1"), status("::ffff:192.0.3.2")),
        (404, 429)
    );
    assert_eq!((status("2001:db8::1"), status("2001:db8::2")), (404, 429));
    assert_eq!(status("2001:db8:0:1::1"), 404);
    assert_eq!((status("unix"), status("unix")), (404, 429));
}

#[test]
fn behind_a_trusted_proxy_the_clients_are_counted() {
    let mut site = site(
        "extforward.forwarder = ( \"192.0.2.9\" => \"trust\" )
        limit.rules = ( \"r\" => ( \"rate\" => \"1/d\" ) )",
    );
    let mut status = |client: &str, fields: &str| ask(&mut site, client, "/", fields).status();
    let (one, other) = (
        "X-Forwarded-For: 192.0.2.1\r\n",
        "X-Forwarded-For: 192.0.2.2\r\n",
    );
    assert_eq!(status("192.0.2.9", one), 404);
    assert_eq!(status("192.0.2.9", other), 404);
    assert_eq!(status("192.0.2.9", one), 429);
    assert_eq!(
        status("192.0.2.1", other),
        429,
        "who is not trusted is not believed"
    );
}

#[test]
fn header_fields_cookies_and_urls_are_keys() {
    let once = |key: &str| limited(&format!("\"key\" => \"{key}\", \"rate\" => \"1/d\""));
    let (one, other) = ("X-Key: 1\r\n", "x-key: 2\r\n");
    let by_header = once("header:X-Key");
    assert_eq!(statuses(&by_header, &[one, other, one]), [404, 404, 429]);
    // A request without a key is not limited.
    assert_eq!(
        statuses(&by_header, &["", "", "X-Key:\r\n", "X-Key:\r\n"]),
        [404; 4]
    );
    let (one, other) = ("Cookie: a=b; id=1\r\n", "Cookie: id=2; a=b\r\n");
    let by_cookie = once("cookie:id");
    assert_eq!(
        statuses(&by_cookie, &[one, other, one, ""]),
        [404, 404, 429, 404]
    );
    let by_url = once("url");
    let status = |target| by_url.get(target).status();
    assert_eq!(
        (status("/a"), status("/b"), status("/a?b")),
        (404, 404, 429)
    );
    assert_eq!(status("/x/../%61"), 429);
    let together = once("all");
    assert_eq!(
        (together.get("/a").status(), together.get("/b").status()),
        (404, 429)
    );
}

#[test]
fn requests_under_way_are_limited_until_they_are_over() {
    let site = limited("\"concurrent\" => 2");
    let (one, two) = (site.get("/"), site.get("/"));
    let refused = site.get("/");
    assert_eq!(
        (one.status(), two.status(), refused.status()),
        (404, 404, 429)
    );
    assert_eq!(refused.field("Retry-After").as_deref(), Some("1"));
    drop(refused);
    assert_eq!(
        site.get("/").status(),
        429,
        "what is refused is not under way"
    );
    drop(one);
    assert_eq!(site.get("/").status(), 404);
    assert_eq!(counter(&site, "limit.r.refused-concurrent"), 2);
}

#[test]
fn the_status_can_be_another_one() {
    let site = limited("\"rate\" => \"1/d\", \"status\" => 503");
    site.get("/");
    let refused = site.get("/");
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.field("Retry-After").as_deref(), Some("86400"));
}

#[test]
fn error_handlers_are_not_asked_and_error_files_are_sent() {
    let tree = Tree::new(&[
        ("a.txt", "a"),
        ("handler.txt", "h"),
        ("e-429.html", "slow down"),
    ]);
    for handler in ["server.error-handler", "server.error-handler-404"] {
        let site = tree.site(
            &format!(
                "{handler} = \"/handler.txt\"
                server.errorfile-prefix = \"ROOT/e-\"
                limit.rules = ( \"r\" => ( \"rate\" => \"1/d\", \"concurrent\" => 9 ) )"
            ),
            &[&MODULE, &static_file::MODULE],
        );
        // A request that an error handler answers counts once.
        let missing = site.get("/missing");
        assert_eq!(missing.body(), b"h", "{handler}");
        let refused = site.get("/a.txt");
        assert_eq!((refused.status(), refused.body()), (429, &b"slow down"[..]));
        assert!(refused.field("Retry-After").is_some());
    }
}

#[test]
fn a_request_counts_once_under_each_rule() {
    let site = site(
        "limit.rules = ( \"outer\" => ( \"rate\" => \"3/d\" ) )
        url.rewrite-if-not-file = ( \"^/old$\" => \"/new\" )
        $HTTP[\"url\"] == \"/new\" {
            limit.rules = ( \"outer\" => ( \"rate\" => \"3/d\" ), \"inner\" => ( \"rate\" => \"2/d\", \"concurrent\" => 9 ) )
        }",
    );
    let status = |target| site.get(target).status();
    assert_eq!((status("/old"), status("/new")), (404, 404));
    // The inner rule refuses the request after the outer rule has counted it in an earlier phase.
    assert_eq!((status("/old"), status("/other")), (429, 429));
    assert_eq!(counter(&site, "limit.inner.refused-rate"), 1);
    assert_eq!(counter(&site, "limit.outer.refused-rate"), 1);
}

/// The first 64 rules have a mark each. The others remember in another way what they have counted.
#[test]
fn rules_behind_the_64th_count_a_request_once_through_rewriting_and_restarts() {
    let others = (0..66)
        .map(|number| format!("\"r{number}\" => ( \"rate\" => \"100/d\", \"entries\" => 512 ),\n"));
    let config = format!(
        "limit.rules = ( {} \"last\" => ( \"rate\" => \"4/d\", \"entries\" => 512 ) )
        url.rewrite-if-not-file = ( \"^/old$\" => \"/new\" )
        server.error-handler-404 = \"/handler\"",
        others.collect::<String>()
    );
    let site = site(&config);
    // Rewritten, restarted for the error handler, both, neither.
    for target in ["/old", "/other", "/old", "/handler"] {
        assert_eq!(site.get(target).status(), 404, "{target}");
    }
    assert_eq!(counter(&site, "limit.last.refused-rate"), 0);
    // What the last rule refuses costs nothing under those before it.
    for _ in 0..200 {
        assert_eq!(site.get("/old").status(), 429);
    }
    assert_eq!(counter(&site, "limit.last.refused-rate"), 200);
    assert_eq!(counter(&site, "limit.r0.refused-rate"), 0);
    assert_eq!(counter(&site, "limit.r65.refused-rate"), 0);
}

/// Otherwise one client could use up the limit that all clients share.
#[test]
fn what_one_rule_refuses_costs_nothing_under_the_others() {
    for other in ["\"rate\" => \"2/d\"", "\"concurrent\" => 2"] {
        let mut site = site(&format!(
            "limit.rules = (
                \"site\" => ( \"key\" => \"all\", \"rate\" => \"5/d\", \"concurrent\" => 5 ),
                \"client\" => ( {other} ),
                \"behind\" => ( \"rate\" => \"3/d\" )
            )"
        ));
        let (one, two) = ("192.0.2.1", "192.0.2.2");
        let mut under_way = Vec::new();
        for (client, wanted) in [
            (one, [404, 404, 429, 429, 429, 429]),
            (two, [404, 404, 429, 429, 429, 429]),
        ] {
            for status in wanted {
                let answer = ask(&mut site, client, "/", "");
                assert_eq!(answer.status(), status, "{client} {other}");
                under_way.push(answer);
            }
        }
        assert_eq!(ask(&mut site, "192.0.2.3", "/", "").status(), 404);
        assert_eq!(ask(&mut site, "192.0.2.4", "/", "").status(), 429);
        assert_eq!(
            counter(&site, "limit.client.refused-rate")
                + counter(&site, "limit.client.refused-concurrent"),
            8
        );
        assert_eq!(counter(&site, "limit.behind.refused-rate"), 0);
    }
}

#[test]
fn what_is_under_way_counts_through_rewriting_and_is_over_once() {
    let site = site(
        "url.rewrite-if-not-file = ( \"^/old$\" => \"/new\" )
        limit.rules = ( \"r\" => ( \"concurrent\" => 1 ) )
        $HTTP[\"url\"] == \"/new\" { limit.rules = ( \"n\" => ( \"concurrent\" => 5 ) ) }",
    );
    for _ in 0..3 {
        let under_way = site.get("/old");
        assert_eq!(under_way.status(), 404);
        assert_eq!(site.get("/").status(), 429);
    }
}

#[test]
fn other_modules_are_spared_the_work_wherever_it_is_listed() {
    for list in [
        "\"mod_limit\", \"mod_redirect\"",
        "\"mod_redirect\", \"mod_limit\"",
    ] {
        let site = site(&format!(
            "server.modules = ( {list} )\nurl.redirect = ( \"\" => \"/there\" )
            limit.rules = ( \"r\" => ( \"rate\" => \"1/d\" ) )"
        ));
        let statuses = (site.get("/").status(), site.get("/").status());
        assert_eq!(statuses, (301, 429), "{list}");
    }
}

#[test]
fn rules_for_some_files_count_when_the_file_is_known() {
    let tree = Tree::new(&[("a.txt", "a"), ("a.zip", "z")]);
    let site = tree.site(
        "$PHYSICAL[\"path\"] =~ \"\\.zip$\" { $HTTP[\"url\"] != \"/x\" {
            limit.rules = ( \"r\" => ( \"rate\" => \"1/d\" ) )
        } }",
        &[&MODULE, &static_file::MODULE],
    );
    let status = |target| site.get(target).status();
    assert_eq!((status("/a.txt"), status("/a.txt")), (200, 200));
    assert_eq!((status("/a.zip"), status("/a.zip")), (200, 429));
    let site = tree.site(
        "$PHYSICAL[\"path\"] =~ \"\\.txt$\" { server.tag = \"t\" } else {
            limit.rules = ( \"r\" => ( \"rate\" => \"1/d\" ) )
        }",
        &[&MODULE, &static_file::MODULE],
    );
    let status = |target| site.get(target).status();
    assert_eq!((status("/a.txt"), status("/a.txt")), (200, 200));
    assert_eq!((status("/a.zip"), status("/a.zip")), (200, 429));
}

#[tokio::test(flavor = "local")]
async fn scripts_choose_keys() {
    for directive in ["attract-raw-url-to", "attract-physical-path-to"] {
        let tree = Tree::new(&[
            ("a.txt", "a"),
            (
                "key.lua",
                "local r = lighty.r r.req_env['GROUP'] = r.req_attr['uri.query']",
            ),
        ]);
        let site = tree.site(
            &format!(
                "magnet.{directive} = ( \"ROOT/key.lua\" )
                limit.rules = ( \"r\" => ( \"key\" => \"env:GROUP\", \"rate\" => \"1/d\" ) )"
            ),
            &[&MODULE, &magnet::MODULE, &static_file::MODULE],
        );
        let mut statuses = Vec::new();
        for target in ["/a.txt?one", "/a.txt?two", "/a.txt?one", "/a.txt", "/a.txt"] {
            statuses.push(site.get_async(target).await.status());
        }
        assert_eq!(statuses, [200, 200, 429, 200, 200], "{directive}");
    }
}

#[test]
fn users_are_keys() {
    let tree = Tree::new(&[("a.txt", "a"), ("users", "anna:pw\nbob:pw\n")]);
    let site = tree.site(
        "auth.backend = \"plain\"
        auth.backend.plain.userfile = \"ROOT/users\"
        auth.require = ( \"/\" => ( \"method\" => \"basic\", \"realm\" => \"r\", \"require\" => \"valid-user\" ) )
        limit.rules = ( \"r\" => ( \"key\" => \"env:REMOTE_USER\", \"rate\" => \"1/d\" ) )",
        &[&MODULE, &auth::MODULE, &static_file::MODULE],
    );
    let status = |login: &str| {
        let request =
            format!("GET /a.txt HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {login}\r\n\r\n");
        site.request(&request).status()
    };
    let (anna, bob) = ("YW5uYTpwdw==", "Ym9iOnB3");
    assert_eq!((status(anna), status(bob), status(anna)), (200, 200, 429));
}

#[tokio::test(flavor = "local")]
async fn what_the_server_asks_itself_does_not_count() {
    let site = limited("\"rate\" => \"1/d\", \"concurrent\" => 1");
    let parent = site.unanswered("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    for _ in 0..3 {
        let head = SubrequestHead::get(b"/x");
        let mut asked = Subrequest::new(&parent, head).expect("it is sound");
        assert_eq!(asked.head().await.0, 404);
    }
    assert_eq!((site.get("/").status(), site.get("/").status()), (404, 429));
}

#[test]
fn equal_rules_are_one_wherever_they_stand() {
    let rule = "limit.rules = ( \"r\" => ( \"rate\" => \"2/d\" ) )";
    let site = site(&format!(
        "$HTTP[\"url\"] == \"/a\" {{ {rule} }}
        $HTTP[\"url\"] == \"/b\" {{ {rule} }}
        $HTTP[\"url\"] == \"/c\" {{ limit.rules = ( \"r\" => ( \"rate\" => \"1/d\" ) ) }}
        $HTTP[\"url\"] == \"/d\" {{ limit.rules = ( \"h\" => ( \"key\" => \"header:Host\", \"rate\" => \"1/d\" ) ) }}
        $HTTP[\"url\"] == \"/e\" {{ limit.rules = ( \"h\" => ( \"key\" => \"header:host\", \"rate\" => \"1/d\" ) ) }}"
    ));
    let status = |target| site.get(target).status();
    assert_eq!((status("/a"), status("/b"), status("/a")), (404, 404, 429));
    assert_eq!((status("/c"), status("/c"), status("/")), (404, 429, 404));
    assert_eq!((status("/d"), status("/e")), (404, 429));
    assert_eq!(counter(&site, "limit.r.refused-rate"), 2);
}

#[test]
fn wrong_rules_are_told_with_their_line() {
    for (wrong, told) in [
        ("( \"a\" )", "limit.rules takes a map"),
        ("( \"a\" => \"10/m\" )", "limit.rules takes \"name\" => ("),
        ("( \"a\" => () )", "the rule \"a\" limits nothing"),
        (
            "( \"a\" => ( \"key\" => \"url\" ) )",
            "the rule \"a\" limits nothing",
        ),
        (
            "( \"a\" => ( \"rates\" => \"1/s\" ) )",
            "\"rates\" is none of key, ipv4-prefix",
        ),
        (
            "( \"a\" => ( \"rate\" => \"1/week\" ) )",
            "\"1/week\" is no rate such as \"5/s\"",
        ),
        (
            "( \"a\" => ( \"rate\" => 5 ) )",
            "rate takes a string, not an integer",
        ),
        (
            "( \"a\" => ( \"rate\" => \"1/d\", \"burst\" => 9000 ) )",
            "more than a year",
        ),
        (
            "( \"a\" => ( \"concurrent\" => 1, \"burst\" => 9 ) )",
            "there is no rate",
        ),
        (
            "( \"a\" => ( \"kbytes-per-second\" => 0 ) )",
            "kbytes-per-second takes a number from 1 to 4294967295",
        ),
        (
            "( \"a\" => ( \"concurrent\" => 0 ) )",
            "concurrent takes a number from 1 to 4294967295",
        ),
        (
            "( \"a\" => ( \"concurrent\" => 1, \"status\" => 302 ) )",
            "status takes a number from 400 to 599",
        ),
        (
            "( \"a\" => ( \"concurrent\" => 1, \"entries\" => 99999999 ) )",
            "entries takes a number from 512 to 4194304",
        ),
        (
            "( \"a\" => ( \"pool-share\" => 10, \"entries\" => 9999 ) )",
            "how many keys rate or concurrent remember",
        ),
        (
            "( \"a\" => ( \"kbytes-per-second\" => 10, \"entries\" => 9999 ) )",
            "how many keys rate or concurrent remember",
        ),
        (
            "( \"a\" => ( \"kbytes-per-second\" => 10, \"status\" => 503 ) )",
            "kbytes-per-second alone refuses none",
        ),
        (
            "( \"a\" => ( \"concurrent\" => 1, \"ipv4-prefix\" => 33 ) )",
            "ipv4-prefix takes a number from 1 to 32",
        ),
        (
            "( \"a\" => ( \"concurrent\" => 1, \"key\" => \"url\", \"ipv6-prefix\" => 64 ) )",
            "ipv6-prefix is for \"key\" => \"address\" alone",
        ),
        (
            "( \"a\" => ( \"concurrent\" => 1, \"key\" => \"header\" ) )",
            "\"header\" is none of address",
        ),
        (
            "( \"a\" => ( \"concurrent\" => 1, \"key\" => \"cookie:\" ) )",
            "\"cookie:\" is none of address",
        ),
        (
            "( \"a\" => ( \"concurrent\" => 1, \"key\" => \"header:a b\" ) )",
            "\"header:a b\" is none of address",
        ),
    ] {
        let config = format!("{ROOT}$HTTP[\"url\"] == \"/x\" {{\nlimit.rules = {wrong} }}");
        let message = refusal(&config, &[&MODULE]);
        assert!(message.contains(told), "{wrong}: {message}");
        assert!(
            message.contains("test.conf") && message.contains(":3"),
            "{message}"
        );
    }
}

/// Without mod_limit in `server.modules` nothing would be limited, so the server answers 503.
#[test]
fn without_the_module_what_it_protects_is_closed() {
    let config = "server.modules = ( \"mod_setenv\" )\n$HTTP[\"url\"] == \"/a\" { limit.rules = ( \"r\" => ( \"rate\" => \"1/d\" ) ) }";
    let site = site(config);
    assert_eq!(
        (site.get("/a").status(), site.get("/").status()),
        (503, 404)
    );
}
