use petrel_engine::testing::{Answer, Site};

use super::testing::{config, extras, try_extras};
use super::*;
use crate::gateway::options::{BackendHost, HostAddress, Protocol};

/// A request through a trusted proxy, so that a test can set the client's address.
fn request(target: &str, fields: &str) -> Answer {
    let config = "server.document-root = \"/nonexistent\"\n\
                  extforward.forwarder = ( \"all\" => \"trust\" )\n\
                  setenv.set-environment = ( \"REMOTE_USER\" => \"j\\\"oe\" )";
    let site = Site::new(
        config,
        &[&crate::extforward::MODULE, &crate::setenv::MODULE],
    );
    site.request(&format!(
        "GET {target} HTTP/1.1\r\nHost: h.example\r\n{fields}\r\n"
    ))
}

/// The value that the client gets instead of `value`.
fn mapped(map: &str, target: &str, name: &str, value: &str) -> String {
    let map = extras(&format!("proxy.header = ( {map} )")).header_map;
    let answer = request(target, "");
    match map.map_reply(answer.exchange(), &backend(), name, value.as_bytes()) {
        Some(mapped) => String::from_utf8(mapped).expect("the tests use text"),
        None => value.to_owned(),
    }
}

fn backend() -> BackendHost {
    let address = HostAddress::Tcp("10.0.0.9".to_owned(), 3000);
    BackendHost::plain("app", address, Protocol::Http)
}

fn forwarding(config: &str, fields: &str) -> String {
    let answer = request("/", fields);
    let mut out = Vec::new();
    extras(config)
        .header_map
        .write_forwarding(answer.exchange(), &mut out);
    String::from_utf8(out).expect("the tests use text")
}

const P: &str = "\"map-urlpath\" => ( \"/p/\" => \"/inner/\" )";
const Q: &str = "\"map-urlpath\" => ( \"/q\" => \"/inner\" ), \
                 \"map-host-request\" => ( \"-\" => \"in.example\" ), \
                 \"map-host-response\" => ( \"-\" => \"-\" )";
const T: &str = "\"map-urlpath\" => ( \"/a\" => \"/inner\", \"/t/\" => \"/inner/\" ), \
                 \"map-host-response\" => ( \"in.example\" => \"-\" )";
const U: &str = "\"map-urlpath\" => ( \"/u\" => \"\" ), \
                 \"map-host-request\" => ( \"h.example\" => \"-\" ), \
                 \"map-host-response\" => ( \"in.example\" => \"\", \"foreign.example\" => \"yes\" )";

/// The expected values are lighttpd 1.4.69's answers.
#[test]
fn urls_in_replies_are_mapped_as_in_lighttpd() {
    for (map, target, name, value, expected) in [
        (
            P,
            "/p/a",
            "Location",
            "http://h.example/inner/one",
            "http://h.example/p/one",
        ),
        (P, "/p/a", "Content-Location", "/inner/two", "/p/two"),
        (
            P,
            "/p/a",
            "Content-Location",
            "http://IN.example:80/inner?x",
            "http://IN.example:80/inner?x",
        ),
        (P, "/p/a", "URI", "/inner/three", "/inner/three"),
        (P, "/p/a", "Refresh", "5; url=/inner/r", "5; url=/inner/r"),
        (
            Q,
            "/q/a",
            "Location",
            "http://in.example/inner/one",
            "http://h.example/q/one",
        ),
        (
            Q,
            "/q/a",
            "Content-Location",
            "https://in.example/inner/two",
            "https://h.example/q/two",
        ),
        (
            Q,
            "/q/a",
            "Content-Location",
            "http://IN.example:80/inner?x",
            "http://IN.example:80/q?x",
        ),
        (
            Q,
            "/q/a",
            "Location",
            "//in.example/inner/x",
            "//in.example/inner/x",
        ),
        (Q, "/q/a", "Location", "inner/x", "inner/x"),
        (
            T,
            "/t/a",
            "Location",
            "http://in.example/inner/one",
            "http://h.example/t/one",
        ),
        (
            T,
            "/t/a",
            "Content-Location",
            "http://IN.example:80/inner?x",
            "http://IN.example:80/a?x",
        ),
        (T, "/t/a", "Location", "/innerx", "/ax"),
        (
            U,
            "/u/a",
            "Location",
            "http://in.example/inner/one",
            "http://in.example/u/inner/one",
        ),
        (
            U,
            "/u/a",
            "Location",
            "http://foreign.example/inner/one",
            "http://yes/u/inner/one",
        ),
    ] {
        assert_eq!(
            mapped(map, target, name, value),
            expected,
            "{name}: {value}"
        );
    }
}

/// lighttpd maps the paths of all hosts, which breaks redirects to other sites.
#[test]
fn urls_of_other_sites_stay_as_they_are() {
    const ALL: &str = "\"map-urlpath\" => ( \"/p/\" => \"/\" ), \"https-remap\" => \"enable\"";
    const SENT: &str = "\"map-urlpath\" => ( \"/p/\" => \"/\" ), \
                        \"map-host-request\" => ( \"-\" => \"in.example\" )";
    for (map, url, expected) in [
        (ALL, "https://idp.example/authorize?a=1", None),
        (ALL, "http://idp.example/x", None),
        (ALL, "//idp.example/x", None),
        (ALL, "http://h.example.idp.example/x", None),
        (ALL, "http://h.example@idp.example/x", None),
        (ALL, "http://h.example:8080/x", None),
        (ALL, "/x", Some("/p/x")),
        (ALL, "http://H.example/x", Some("http://H.example/p/x")),
        (
            ALL,
            "https://h.example:443/x",
            Some("https://h.example:443/p/x"),
        ),
        (
            ALL,
            "http://10.0.0.9:3000/x",
            Some("http://10.0.0.9:3000/p/x"),
        ),
        (ALL, "http://in.example/x", None),
        (SENT, "http://in.example/x", Some("http://in.example/p/x")),
        (SENT, "http://h.example/x", Some("http://h.example/p/x")),
    ] {
        for name in ["Location", "Content-Location"] {
            let expected = expected.unwrap_or(url);
            assert_eq!(mapped(map, "/p/a", name, url), expected, "{name}: {url}");
        }
    }
    let map = extras(&format!(
        "proxy.header = ( {P} )\nproxy.replace-http-host = \"enable\""
    ));
    let answer = request("/p/a", "");
    let map_reply = |url: &str| {
        let map = &map.header_map;
        map.map_reply(answer.exchange(), &backend(), "Location", url.as_bytes())
    };
    assert_eq!(
        map_reply("http://app/inner/x"),
        Some(b"http://app/p/x".to_vec())
    );
    assert_eq!(map_reply("http://app.example/inner/x"), None);
}

#[test]
fn cookies_in_replies_are_mapped_as_in_lighttpd() {
    for (map, target, value, expected) in [
        (
            P,
            "/p/a",
            "a=b; Path=/inner/c; Domain=in.example; HttpOnly",
            "a=b; Path=/p/c; Domain=in.example; HttpOnly",
        ),
        (
            P,
            "/p/a",
            "b=c; domain=.in.example; path=\"/inner\"",
            "b=c; domain=.in.example; path=\"/inner\"",
        ),
        (
            Q,
            "/q/a",
            "b=c; domain=.in.example; path=\"/inner\"",
            "b=c; domain=.h.example; path=\"/q\"",
        ),
        (
            Q,
            "/q/a",
            "c=c; path=/innerx; path=/inner/y",
            "c=c; path=/qx; path=/q/y",
        ),
        (
            Q,
            "/q/a",
            "d=/inner/x; Domain=foreign.example;Path=/inner/",
            "d=/inner/x; Domain=foreign.example;Path=/q/",
        ),
        (Q, "/q/a", "e=1;path=/other", "e=1;path=/other"),
        (
            U,
            "/u/a",
            "d=1; Domain=foreign.example;Path=/inner/",
            "d=1; Domain=yes;Path=/u/inner/",
        ),
        (U, "/u/a", "e=1;path=/other", "e=1;path=/u/other"),
        (
            Q,
            "/q/a",
            "f; path; domain=; path=",
            "f; path; domain=; path=",
        ),
    ] {
        assert_eq!(
            mapped(map, target, "Set-Cookie", value),
            expected,
            "{value}"
        );
    }
}

#[test]
fn paths_of_some_hosts_only_are_mapped_where_that_is_wanted() {
    let only = format!("{P}, \"map-urlpath-resp-host-include\" => ( \"-\", \"cdn.example\" )");
    let not = format!("{P}, \"map-urlpath-resp-host-exclude\" => ( \"Cdn.example\" )");
    for (map, url, expected) in [
        (&only, "http://h.example/inner/x", "http://h.example/p/x"),
        (
            &only,
            "http://cdn.example/inner/x",
            "http://cdn.example/p/x",
        ),
        (
            &only,
            "http://other.example/inner/x",
            "http://other.example/inner/x",
        ),
        (&only, "/inner/x", "/p/x"),
        (
            &not,
            "http://cdn.example/inner/x",
            "http://cdn.example/inner/x",
        ),
        (&not, "http://h.example/inner/x", "http://h.example/p/x"),
        (
            &not,
            "http://other.example/inner/x",
            "http://other.example/inner/x",
        ),
    ] {
        assert_eq!(mapped(map, "/p/a", "Location", url), expected, "{url}");
    }
}

#[test]
fn https_stays_with_clients_that_came_over_it() {
    let map = extras("proxy.header = ( \"https-remap\" => \"enable\" )").header_map;
    for (proto, location, destination) in [
        ("http", "http://h.example/", "https://h.example/"),
        ("https", "https://h.example/", "http://h.example/"),
    ] {
        let fields = format!("X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: {proto}\r\n");
        let answer = request("/", &fields);
        let exchange = answer.exchange();
        let mapped = map.map_reply(exchange, &backend(), "Location", b"http://h.example/");
        let mapped = mapped.unwrap_or(b"http://h.example/".to_vec());
        assert_eq!(mapped, location.as_bytes());
        let sent = map.request_field(exchange, "Destination", b"https://h.example/");
        let sent = sent.unwrap_or(b"https://h.example/".to_vec());
        assert_eq!(sent, destination.as_bytes());
    }
}

/// The expected values are what lighttpd 1.4.69 sent.
#[test]
fn forwarded_has_the_parameters_that_are_wanted() {
    let all =
        "proxy.forwarded = ( \"for\" => 1, \"proto\" => 1, \"host\" => 1, \"by\" => \"enable\" )";
    for (fields, expected) in [
        (
            "",
            "for=127.0.0.1;by=\"127.0.0.1:80\";proto=http;host=\"h.example\"",
        ),
        (
            "Forwarded: for=9.9.9.9;proto=https\r\n",
            "for=9.9.9.9;proto=https, for=127.0.0.1;by=\"127.0.0.1:80\";proto=http;host=\"h.example\"",
        ),
        (
            "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\n",
            "for=\"1.2.3.4\", for=\"127.0.0.1\";by=\"127.0.0.1:80\";proto=http;host=\"h.example\"",
        ),
        (
            "X-Forwarded-For: 1.2.3.4, ::1\r\n",
            "for=\"1.2.3.4\", for=\"[::1]\", for=\"127.0.0.1\";by=\"127.0.0.1:80\";proto=http;host=\"h.example\"",
        ),
    ] {
        let told = forwarding(all, fields);
        let line = told.lines().find(|line| line.starts_with("Forwarded: "));
        assert_eq!(
            line,
            Some(format!("Forwarded: {expected}").as_str()),
            "{fields}"
        );
    }
    let some = "proxy.forwarded = ( \"remote_user\" => 1, \"for\" => 0 )";
    assert!(forwarding(some, "").starts_with("Forwarded: remote_user=\"j\\\"oe\"\r\n"));
    assert!(!forwarding("proxy.forwarded = ( \"for\" => 0 )", "").contains("Forwarded: "));
}

#[test]
fn a_trusted_proxy_is_named_behind_the_client_it_names() {
    let told = forwarding(
        "",
        "X-Forwarded-For: 9.9.9.9, 1.2.3.4\r\nX-Forwarded-Proto: https\r\n",
    );
    assert_eq!(
        told,
        "X-Forwarded-For: 9.9.9.9, 1.2.3.4, 127.0.0.1\r\nX-Host: h.example\r\n\
         X-Forwarded-Host: h.example\r\nX-Forwarded-Proto: https\r\n"
    );
}

#[test]
fn reply_fields_are_rewritten_as_in_lighttpd_15() {
    let config = "proxy-core.rewrite-response = (\n\
                  \"Location\" => ( \"^http://inner(/.*)\" => \"http://${url.authority}$1\" ) )";
    let rewriting = extras(config).rewriting;
    assert!(rewriting.maps_replies() && rewriting.is_empty());
    let answer = request("/", "");
    let rewrite = |name, value: &[u8]| rewriting.map_reply(answer.exchange(), name, value);
    assert_eq!(
        rewrite("location", b"http://inner/a").as_deref(),
        Some(&b"http://h.example/a"[..])
    );
    assert_eq!(rewrite("Location", b"http://outer/a"), None);
    assert_eq!(rewrite("Content-Location", b"http://inner/a"), None);
}

#[test]
fn scripts_are_told_what_the_rules_say() {
    let config = "proxy-core.rewrite-request = (\n\
                  \"_docroot\" => ( \"^/srv\" => \"/mnt\" ),\n\
                  \"_pathinfo\" => ( \"(.*)\" => \"$1/x\" ),\n\
                  \"_scriptname\" => ( \"\\.php$\" => \"/index.php\" ) )";
    let rewriting = extras(config).rewriting;
    let answer = request("/", "");
    let exchange = answer.exchange();
    assert_eq!(
        rewriting.document_root(exchange, b"/srv/www").as_deref(),
        Some(&b"/mnt"[..])
    );
    assert_eq!(rewriting.document_root(exchange, b"/var"), None);
    assert_eq!(
        rewriting.path_info(exchange, b"/p").as_deref(),
        Some(&b"/p/x"[..])
    );
    assert_eq!(
        rewriting.script_name(exchange, b"/a.php").as_deref(),
        Some(&b"/index.php"[..])
    );
    assert_eq!(rewriting.uri(exchange, b"/a.php"), None);
}

#[test]
fn wrong_values_are_refused_with_their_place() {
    for (text, expected) in [
        (
            "proxy.header = ( \"map-path\" => \"x\" )",
            "proxy.header has no key \"map-path\"",
        ),
        (
            "proxy.header = ( \"upgrade\" => \"maybe\" )",
            "\"upgrade\" takes",
        ),
        (
            "proxy.header = ( \"map-urlpath\" => \"/a\" )",
            "\"map-urlpath\" takes a map",
        ),
        (
            "proxy.header = ( \"map-urlpath\" => ( \"/a\" => 1 ) )",
            "\"map-urlpath\" takes a map",
        ),
        (
            "proxy.header = ( \"map-urlpath\" => ( \"/a\" => \"/b c\" ) )",
            "\"map-urlpath\" takes a map",
        ),
        (
            "proxy.header = ( \"map-urlpath-resp-host-include\" => ( 1 ) )",
            "takes a list of hosts",
        ),
        (
            "proxy.forwarded = ( \"fro\" => 1 )",
            "proxy.forwarded has no key \"fro\"",
        ),
        ("proxy.forwarded = ( \"for\" => \"x\" )", "\"for\" takes"),
        (
            "proxy-core.rewrite-request = ( \"_uri\" => \"x\" )",
            "takes one pair for each field",
        ),
        (
            "proxy-core.rewrite-request = ( \"_uri\" => ( \"(\" => \"x\" ) )",
            "is no regular expression",
        ),
        (
            "proxy-core.rewrite-request = ( \"_other\" => ( \"a\" => \"x\" ) )",
            "cannot change \"_other\"",
        ),
        (
            "proxy-core.rewrite-response = ( \"_uri\" => ( \"a\" => \"x\" ) )",
            "cannot change \"_uri\"",
        ),
    ] {
        let error = try_extras(text).expect_err("it must be refused");
        assert!(error.message.contains(expected), "{}", error.message);
    }
}

#[test]
fn what_does_nothing_is_warned_of() {
    let found = warnings(&config("proxy.header = ( \"connect\" => \"enable\" )"));
    assert_eq!(found.len(), 1);
    for harmless in [
        "proxy.header = ( \"connect\" => \"disable\" )",
        "proxy.header = ( \"upgrade\" => 1 )",
    ] {
        assert!(warnings(&config(harmless)).is_empty());
    }
}
