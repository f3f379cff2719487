//! An answer for one client never gets to another one, and no client can poison what others get.

use super::backend::{Way, asked, say, say_in_parts};
use super::{count, get, site, status, text};
use crate::extforward;

const FRESH: &str = "Cache-Control: max-age=60";

#[test]
fn answers_for_one_client_are_not_stored() {
    for fields in [
        "Cache-Control: private, max-age=60",
        "Cache-Control: no-store",
        "Cache-Control: max-age=60\nSet-Cookie: session=1",
        "Cache-Control: max-age=60\nVary: *",
    ] {
        let site = site("");
        for body in ["one", "two"] {
            say(200, fields, body);
            assert_eq!(text(&get(&site, "/", "")), body, "{fields}");
        }
        assert_eq!(count(&site, "page-cache.entries"), 0, "{fields}");
    }
}

#[test]
fn cookies_are_for_the_client_that_caused_the_fetch() {
    let site = site("page-cache.store-set-cookie = \"enable\"");
    say(
        200,
        "Cache-Control: max-age=60\nSet-Cookie: session=1",
        "one",
    );
    assert!(get(&site, "/", "").field("Set-Cookie").is_some());
    let second = get(&site, "/", "");
    assert_eq!((second.field("Set-Cookie"), asked().len()), (None, 1));
}

#[test]
fn fields_that_are_private_are_not_stored() {
    let site = site("");
    say(
        200,
        "Cache-Control: max-age=60, private=\"X-User\"\nX-User: me",
        "one",
    );
    assert!(get(&site, "/", "").field("X-User").is_some());
    let second = get(&site, "/", "");
    assert_eq!((second.field("X-User"), asked().len()), (None, 1));
}

#[test]
fn rfc_9111_section_3_5_authorized_answers_are_shared_if_they_say_so() {
    let authorized = "Authorization: Basic eDp5\r\n";
    let site = site("");
    say(200, FRESH, "mine");
    let answer = get(&site, "/", authorized);
    assert_eq!(
        status(&answer),
        "petrel; fwd=uri-miss; detail=authorization"
    );
    say(200, FRESH, "shared");
    get(&site, "/", "");
    say(200, FRESH, "mine");
    assert_eq!(text(&get(&site, "/", authorized)), "mine");
    assert_eq!(text(&get(&site, "/", "")), "shared");
    say(200, "Cache-Control: max-age=60, public", "shared");
    get(&site, "/b", authorized);
    assert_eq!(text(&get(&site, "/b", authorized)), "shared");
    assert_eq!(text(&get(&site, "/b", "")), "shared");
    assert_eq!(asked().len(), 4);
}

#[test]
fn fields_that_are_not_in_the_key_poison_nothing() {
    for field in [
        "X-Forwarded-Host: evil.example",
        "X-Original-URL: /admin",
        "X-HTTP-Method-Override: POST",
        "Forwarded: host=evil.example",
        "x-forwarded-PROTO: https",
        // Backends that make variables of fields take these for the same fields.
        "X_Original_URL: /admin",
        "X-HTTP_Method-Override: POST",
    ] {
        let site = site("");
        say(200, FRESH, "poison");
        let answer = get(&site, "/", &format!("{field}\r\n"));
        assert_eq!(
            status(&answer),
            "petrel; fwd=bypass; detail=request-field",
            "{field}"
        );
        say(200, FRESH, "clean");
        assert_eq!(text(&get(&site, "/", "")), "clean", "{field}");
        // The sender does not get the stored page either, because it may have meant another one.
        say(200, FRESH, "poison");
        assert_eq!(text(&get(&site, "/", &format!("{field}\r\n"))), "poison");
        assert_eq!(text(&get(&site, "/", "")), "clean");
    }
}

/// Fields that applications were seen to use in their answers, and spellings that they take for the same.
const REFLECTED: [&str; 20] = [
    "Forwarded-Host",
    "X-Envoy-Original-Path",
    "X-Forwarded-For-Original",
    "X-Forwarded-Host",
    "X-Forwarded-Prefix",
    "X-Forwarded-Proto",
    "X-Forwarded-Tenant",
    "X-Forwarded-URI",
    "X-Forwarded.Host",
    "X-HTTP-Host-Override",
    "X-Original-Forwarded-Host",
    "X-Original-Host",
    "X-Original-URI",
    "X-Original-URL",
    "X-Replaced-Path",
    "X-Rewrite-URL",
    "X-Script-Name",
    "X.Original_Host",
    "X_FORWARDED_URI",
    "x_script.name",
];

#[test]
fn what_an_application_reflects_reaches_no_second_client() {
    for name in REFLECTED {
        let site = site("");
        say_in_parts(200, FRESH, &["page "], Way::Reflecting);
        let first = get(&site, "/", &format!("{name}: evil.example\r\n"));
        assert!(text(&first).contains("evil"), "{name}");
        assert_eq!(
            status(&first),
            "petrel; fwd=bypass; detail=request-field",
            "{name}"
        );
        for _ in 0..2 {
            assert!(!text(&get(&site, "/", "")).contains("evil"), "{name}");
        }
        assert_eq!(asked().len(), 2, "{name}");
    }
}

#[test]
fn every_proxy_sends_x_forwarded_for() {
    let site = site("");
    say(200, FRESH, "page");
    get(&site, "/", "X-Forwarded-For: 192.0.2.1\r\n");
    assert_eq!(text(&get(&site, "/", "")), "page");
    assert_eq!(asked().len(), 1);
}

#[test]
fn another_spelling_of_a_field_in_the_key_is_not_in_the_key() {
    let site = site("page-cache.key = (\"path\", \"header:X-Forwarded-Host\")");
    for host in ["one.example", "two.example", "one.example"] {
        say(200, FRESH, host);
        let field = format!("X-Forwarded-Host: {host}\r\n");
        assert_eq!(text(&get(&site, "/", &field)), host);
    }
    assert_eq!(asked().len(), 2);
    say(200, FRESH, "poison");
    let answer = get(&site, "/", "X_Forwarded_Host: evil.example\r\n");
    assert_eq!(status(&answer), "petrel; fwd=bypass; detail=request-field");
    say(200, FRESH, "clean");
    assert_eq!(text(&get(&site, "/", "")), "clean");
}

#[test]
fn a_semicolon_hides_no_parameter() {
    let site = site("page-cache.query-ignore = (\"utm_*\")");
    say(200, FRESH, "poison");
    get(&site, "/a?utm_x=1;cb=evil", "");
    say(200, FRESH, "clean");
    for target in ["/a", "/a?utm_x=1", "/a?utm_x=1%3Bcb=evil"] {
        assert_eq!(text(&get(&site, target, "")), "clean");
    }
    assert_eq!(asked().len(), 2);
}

#[test]
fn a_variable_whose_name_begins_like_a_neutral_one_tells_pages_apart() {
    super::backend::forget();
    let script = "lighty.r.req_env['REMOTE_USER_ID'] = lighty.r.req_header['User-Agent']";
    let tree = crate::testing::Tree::new(&[("script.lua", script)]);
    let modules = [
        &crate::lua::MODULE,
        &crate::magnet::MODULE,
        &super::MODULE,
        &super::BACKEND,
    ];
    let path = tree.path("script.lua");
    let config = format!("{}magnet.attract-raw-url-to = (\"{path}\")", super::ENABLED);
    let site = petrel_engine::testing::Site::new(&config, &modules);
    for user in ["ann", "bob"] {
        say(200, FRESH, user);
        assert_eq!(
            text(&get(&site, "/", &format!("User-Agent: {user}\r\n"))),
            user
        );
    }
}

#[test]
fn trusted_proxies_have_pages_of_their_own() {
    super::backend::forget();
    let config = "server.document-root = \"/nonexistent\"\npage-cache.enable = \"enable\"\n\
        extforward.forwarder = (\"127.0.0.1\" => \"trust\")";
    let modules = [&extforward::MODULE, &super::BACKEND, &super::MODULE];
    let site = petrel_engine::testing::Site::new(config, &modules);
    let from = |host: &str| format!("X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Host: {host}\r\n");
    for host in ["one.example", "two.example"] {
        say(200, FRESH, host);
        get(&site, "/", &from(host));
    }
    for host in ["one.example", "two.example"] {
        assert_eq!(text(&get(&site, "/", &from(host))), host);
    }
    assert_eq!(asked().len(), 2);
}

#[test]
fn cookies_that_mean_a_session_pass_the_cache_by() {
    let site = site("page-cache.bypass-cookies = (\"PHPSESSID\", \"wp_*\")");
    say(200, FRESH, "shared");
    get(&site, "/", "");
    say(200, FRESH, "mine");
    for cookie in ["PHPSESSID=1", "a=b; wp_x=1"] {
        let answer = get(&site, "/", &format!("Cookie: {cookie}\r\n"));
        assert_eq!(
            (text(&answer), status(&answer)),
            ("mine".into(), "petrel; fwd=bypass; detail=cookie".into())
        );
    }
    assert_eq!(text(&get(&site, "/", "Cookie: a=PHPSESSID\r\n")), "shared");
}

#[test]
fn a_request_that_says_no_store_is_not_stored() {
    let site = site("");
    say(200, FRESH, "one");
    get(&site, "/", "Cache-Control: no-store\r\n");
    assert_eq!(count(&site, "page-cache.entries"), 0);
}

#[test]
fn a_rewritten_target_does_not_hide_the_one_that_was_asked_for() {
    super::backend::forget();
    let config = "server.document-root = \"/nonexistent\"\npage-cache.enable = \"enable\"\n\
        url.rewrite-once = (\"^/\" => \"/front.php\")";
    let modules = [&super::MODULE, &crate::rewrite::MODULE, &super::BACKEND];
    let site = petrel_engine::testing::Site::new(config, &modules);
    for target in ["/a", "/b"] {
        say(200, FRESH, target);
        assert_eq!(text(&get(&site, target, "")), target);
    }
}

#[test]
fn fields_that_connection_takes_away_poison_nothing() {
    let site = site("page-cache.key = (\"host\", \"path\", \"header:X-Device\")");
    let device = "X-Device: phone\r\n";
    say(
        200,
        "Cache-Control: max-age=60\nVary: Accept-Language",
        "poison",
    );
    let connection = "Connection: keep-alive, x-device, accept-language\r\n";
    let answer = get(&site, "/", &format!("{device}{connection}"));
    assert_eq!(status(&answer), "petrel; fwd=bypass; detail=request-field");
    say(200, FRESH, "clean");
    let usual = "Connection: Keep-Alive,, TE\r\n";
    assert_eq!(text(&get(&site, "/", &format!("{device}{usual}"))), "clean");
    say(200, FRESH, "later");
    assert_eq!(text(&get(&site, "/", device)), "clean");
}

#[test]
fn what_one_client_wants_keeps_no_other_from_waiting_or_validating() {
    let site = site("");
    let stored = "Cache-Control: max-age=10, must-revalidate\nETag: \"1\"";
    say(200, stored, "one");
    get(&site, "/", "");
    super::later(&site, 20);
    for status in [200, 304] {
        say(status, stored, if status == 200 { "one" } else { "" });
        get(&site, "/", "Cache-Control: no-store\r\n");
    }
    say(304, stored, "");
    assert_eq!(text(&get(&site, "/", "")), "one");
    assert_eq!(count(&site, "page-cache.revalidated"), 2);
    for fields in ["Cache-Control: no-store\r\n", "Authorization: x\r\n"] {
        say(200, FRESH, "mine");
        get(&site, "/b", fields);
    }
    let cache = super::PageCache::of(site.worker());
    let now_s = site.worker().clock().seconds();
    let mut key = Vec::new();
    for (mark, part) in [(1_u8, "http"), (2, "a.example"), (3, "/b")] {
        key.push(mark);
        key.extend_from_slice(&u32::try_from(part.len()).expect("short").to_le_bytes());
        key.extend_from_slice(part.as_bytes());
    }
    key.push(0);
    assert!(!cache.front.borrow_mut().passes(&key, now_s));
    say(200, "Cache-Control: private", "mine");
    get(&site, "/b", "");
    assert!(cache.front.borrow_mut().passes(&key, now_s));
}

/// Stands for a script that leads a request elsewhere depending on a field of the client, without changing
/// the target.
mod leader {
    use petrel_engine::Exchange;
    use petrel_engine::config::Diagnostic;
    use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};

    pub(crate) static LEADER: ModuleSpec = ModuleSpec {
        name: "mod_test_leader",
        doc: "Leads requests elsewhere.",
        loaded: Loaded::Listed,
        directives: &[],
        configure,
    };

    fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
        configure.add(Phase::Translate, Lead(false));
        configure.add(Phase::Resolved, Lead(true));
        Ok(())
    }

    struct Lead(bool);

    impl Hook for Lead {
        fn run(&self, exchange: &mut Exchange) -> Outcome {
            let name = if self.0 { "X-File" } else { "X-Path" };
            let value = exchange.request.head.value_of(name).map(<[u8]>::to_vec);
            match (value, self.0) {
                (Some(value), true) => exchange.physical.path = value,
                (Some(value), false) => exchange.set_url_path(&value),
                (None, _) => {}
            }
            Outcome::Next
        }
    }
}

#[test]
fn a_request_that_a_script_leads_elsewhere_is_another_page() {
    super::backend::forget();
    let modules = [&super::MODULE, &leader::LEADER, &super::BACKEND];
    let site = petrel_engine::testing::Site::new(super::ENABLED, &modules);
    let all = ["", "X-Path: /phone/a\r\n", "X-File: /srv/phone/a.php\r\n"];
    for (number, fields) in all.iter().enumerate() {
        say(200, FRESH, &number.to_string());
        assert_eq!(text(&get(&site, "/a", fields)), number.to_string());
    }
    for (number, fields) in all.iter().enumerate() {
        assert_eq!(text(&get(&site, "/a", fields)), number.to_string());
    }
    assert_eq!(asked().len(), 3);
}
