use petrel_engine::config::{LoadOptions, Shell, parse_str};
use petrel_engine::subrequest::{Subrequest, SubrequestHead};
use petrel_engine::testing::{Answer, Site};

use super::*;
use crate::testing::refusal;

/// The proxy is 127.0.0.1, the address that every request of a site comes from.
const TRUSTED: &str = "extforward.forwarder = ( \"127.0.0.1\" => \"trust\", \"10.0.0.0/8\" => \"trust\" )\n\
                       extforward.headers = ( \"Forwarded\", \"X-Forwarded-For\", \"Forwarded-For\" )\n";

const ALL: &str = "extforward.forwarder = ( \"all\" => \"trust\" )\n";

fn ask(config: &str, fields: &str) -> Answer {
    Site::new(
        &format!("server.document-root = \"/nonexistent\"\n{config}"),
        &[&crate::redirect::MODULE, &MODULE],
    )
    .request(&format!(
        "GET / HTTP/1.1\r\nHost: h.example\r\n{fields}\r\n\r\n"
    ))
}

/// The client of a request with these fields.
fn client(config: &str, fields: &str) -> String {
    ask(config, fields)
        .exchange()
        .connection
        .peer
        .address_text()
}

fn variable(answer: &Answer, name: &str) -> Option<String> {
    let value = answer.exchange().environment.get(name)?;
    Some(String::from_utf8_lossy(value).into_owned())
}

#[test]
fn what_an_untrusted_client_says_of_itself_is_dropped_where_that_is_wanted() {
    let fields = "X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\nx-real-ip: 1.2.3.4\r\n\
                  X-Forwarded-Proto: https\r\nCF-Connecting-IP: 1.2.3.4\r\nX-Own: 1";
    const DROP: &str = "extforward.drop-untrusted = \"enable\"\n";
    const OTHER: &str = "extforward.forwarder = ( \"10.0.0.0/8\" => \"trust\" )\n\
                         extforward.headers = ( \"CF-Connecting-IP\" )\n";
    let left = |config: &str| {
        let answer = ask(config, fields);
        let head = &answer.exchange().request.head;
        let names = head
            .iter()
            .map(|(name, _)| String::from_utf8_lossy(name).into_owned());
        names.collect::<Vec<_>>().join(" ")
    };
    let all = "Host X-Forwarded-For Forwarded x-real-ip X-Forwarded-Proto CF-Connecting-IP X-Own";
    assert_eq!(left(OTHER), all);
    assert_eq!(left(&format!("{OTHER}{DROP}")), "Host X-Own");
    assert_eq!(left(DROP), "Host CF-Connecting-IP X-Own");
    assert_eq!(left(&format!("{ALL}{DROP}")), all, "the proxy is trusted");
}

#[test]
fn the_client_is_the_last_address_that_is_no_trusted_proxy() {
    for (fields, expected) in [
        ("X-Forwarded-For: 1.2.3.4", "1.2.3.4"),
        ("X-Forwarded-For: 9.9.9.9, 1.2.3.4, 10.1.1.1", "1.2.3.4"),
        (
            "X-Forwarded-For: 9.9.9.9\r\nX-Forwarded-For: 2.2.2.2",
            "2.2.2.2",
        ),
        (
            "Forwarded-For: 9.9.9.9\r\nForwarded-For: 3.3.3.3",
            "3.3.3.3",
        ),
        ("X-Forwarded-For: 9.9.9.9,2001:db8::1 ", "2001:db8::1"),
        ("X-Forwarded-For: 1.2.3.4:5678, 10.1.1.1:80", "1.2.3.4"),
        ("X-Forwarded-For: ::ffff:1.2.3.4", "1.2.3.4"),
        ("X-Forwarded-For: 10.1.1.1, 10.2.2.2", "127.0.0.1"),
        ("X-Forwarded-For: 1.2.3.4, junk", "127.0.0.1"),
        ("X-Forwarded-For: junk, 1.2.3.4", "1.2.3.4"),
        ("X-Forwarded-For: ", "127.0.0.1"),
        ("X-Forwarded-Proto: https", "127.0.0.1"),
        ("Forwarded: for=1.2.3.4", "1.2.3.4"),
        (
            "Forwarded: for=9.9.9.9, for=\"[2001:db8::1]:47\", for=10.1.1.1",
            "2001:db8::1",
        ),
        ("Forwarded: for=10.1.1.1, for=10.2.2.2", "10.1.1.1"),
        ("Forwarded: for=1.2.3.4, for=_hidden", "127.0.0.1"),
        ("Forwarded: proto=https", "127.0.0.1"),
        (
            "Forwarded: for=unknown\r\nX-Forwarded-For: 6.6.6.6",
            "127.0.0.1",
        ),
        (
            "Forwarded: for=1.1.1.1\r\nX-Forwarded-For: 6.6.6.6",
            "1.1.1.1",
        ),
    ] {
        assert_eq!(client(TRUSTED, fields), expected, "{fields:?}");
    }
}

#[test]
fn what_strangers_say_counts_for_nothing() {
    let field = "X-Forwarded-For: 1.2.3.4";
    for forwarder in [
        "",
        "extforward.forwarder = ( \"10.0.0.0/8\" => \"trust\" )",
        "extforward.forwarder = ( \"127.0.0.1\" => \"no\" )",
        "extforward.forwarder = ( \"all\" => \"no\", \"127.0.0.1\" => \"trust\" )",
        "extforward.forwarder = ( \"\" => \"trust\" )",
    ] {
        assert_eq!(client(forwarder, field), "127.0.0.1", "{forwarder}");
    }
    let headers = format!(
        "{TRUSTED}$HTTP[\"host\"] == \"h.example\" {{ extforward.headers = ( \"X-Mine\" ) }}"
    );
    assert_eq!(client(&headers, field), "127.0.0.1");
    assert_eq!(client(&headers, "x-mine: 1.2.3.4"), "1.2.3.4");
}

#[test]
fn where_all_are_trusted_the_last_address_counts() {
    assert_eq!(client(ALL, "X-Forwarded-For: 9.9.9.9, 1.2.3.4"), "1.2.3.4");
    let unnamed = ask(ALL, "Forwarded: for=8.8.8.8")
        .exchange()
        .connection
        .peer;
    assert_eq!(
        unnamed.address_text(),
        "127.0.0.1",
        "Forwarded must be named"
    );
}

#[test]
fn conditions_see_the_client_in_any_order_of_modules() {
    let config = format!(
        "server.modules = ( \"mod_redirect\", \"mod_extforward\" )\n{TRUSTED}\
         url.redirect = ( \"\" => \"/proxy\" )\n\
         $HTTP[\"remoteip\"] == \"1.2.3.0/24\" {{ url.redirect = ( \"\" => \"/client\" ) }}\n\
         $HTTP[\"scheme\"] == \"https\" {{ url.redirect = ( \"\" => \"${{url.scheme}}:/safe\" ) }}"
    );
    for (fields, location) in [
        ("X: y", "/proxy"),
        ("X-Forwarded-For: 1.2.3.4", "/client"),
        ("X-Forwarded-For: 1.2.4.4", "/proxy"),
        (
            "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: HTTPS",
            "https:/safe",
        ),
        (
            "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: ftp",
            "/client",
        ),
        (
            "Forwarded: for=1.2.3.4;proto=https, for=10.1.1.1;proto=http",
            "https:/safe",
        ),
        (
            "Forwarded: for=1.2.3.4, for=10.1.1.1;proto=https",
            "/client",
        ),
    ] {
        let answer = ask(&config, fields);
        assert_eq!(
            answer.field("Location").as_deref(),
            Some(location),
            "{fields:?}"
        );
    }
}

#[test]
fn the_environment_tells_who_it_really_was() {
    let answer = ask(
        TRUSTED,
        "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https",
    );
    assert_eq!(variable(&answer, ACTUAL_FOR).as_deref(), Some("127.0.0.1"));
    assert_eq!(variable(&answer, ACTUAL_PROTO).as_deref(), Some("http"));
    assert_eq!(variable(&answer, ACTUAL_HOST), None);
    let untouched = ask(TRUSTED, "X-Forwarded-For: 10.1.1.1");
    assert_eq!(variable(&untouched, ACTUAL_FOR), None);
}

#[test]
fn host_and_user_count_if_they_are_wanted() {
    let field = "Forwarded: for=1.2.3.4;host=\"Other.example:80\";remote_user=joe";
    let answer = ask(TRUSTED, field);
    assert_eq!(answer.exchange().request.head.host(), b"h.example");
    assert_eq!(variable(&answer, "REMOTE_USER"), None);
    let params =
        "extforward.params = ( \"host\" => \"enable\", \"remote_user\" => 1, \"by\" => 0 )\n";
    let config = format!(
        "{TRUSTED}{params}$HTTP[\"host\"] == \"other.example\" {{ url.redirect = ( \"\" => \"/other\" ) }}"
    );
    let answer = ask(&config, field);
    assert_eq!(answer.exchange().request.head.host(), b"other.example");
    assert_eq!(answer.field("Location").as_deref(), Some("/other"));
    assert_eq!(variable(&answer, "REMOTE_USER").as_deref(), Some("joe"));
    assert_eq!(variable(&answer, ACTUAL_HOST).as_deref(), Some("h.example"));
    let malformed = "Forwarded: for=1.2.3.4;host=\"a b\"";
    assert_eq!(ask(&config, malformed).status(), 400);
}

#[test]
fn a_malformed_field_of_a_trusted_proxy_is_refused() {
    for field in [
        "Forwarded: for=\"",
        "Forwarded: junk",
        "Forwarded: for=1.1.1.1;for=2.2.2.2",
    ] {
        assert_eq!(ask(TRUSTED, field).status(), 400, "{field}");
        assert_ne!(ask("", field).status(), 400, "{field}");
    }
}

#[test]
fn wrong_values_are_refused_and_useless_ones_warned_of() {
    let with = |text: &str| refusal(text, &[&MODULE]);
    let message = with("extforward.params = ( \"fro\" => 1 )");
    assert!(message.contains("has no key \"fro\""), "{message}");
    let message = with("extforward.params = ( \"host\" => \"maybe\" )");
    assert!(message.contains("\"enable\" or \"disable\""), "{message}");
    let options = LoadOptions {
        variables: Vec::new(),
        environment: &|_| None,
        shell: Shell::Refuse,
        directory: "/".into(),
    };
    let text = "extforward.forwarder = ( \"proxy.example\" => \"trust\", \"10.0.0.0/99\" => \"trust\", \
                \"\" => \"trust\", \"all\" => \"trust\", \"::1\" => \"trust\", \"other\" => \"no\" )";
    let config = parse_str("test", text, &crate::schema(), &options).expect("it is sound");
    let found: Vec<_> = warnings(&config)
        .into_iter()
        .map(|found| found.message)
        .collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].contains("proxy.example") && found[1].contains("/99"),
        "{found:?}"
    );
}

#[test]
fn every_address_of_a_range_is_trusted_and_unix_sockets_by_the_empty_key() {
    let trust = |text: &str| {
        let options = LoadOptions {
            variables: Vec::new(),
            environment: &|_| None,
            shell: Shell::Refuse,
            directory: "/".into(),
        };
        let schema = crate::schema();
        let config = parse_str("test", text, &schema, &options).expect("it is sound");
        let global = std::iter::once(petrel_engine::config::BlockId::GLOBAL);
        Trust::parse(&Values::merge(&config, &schema, global))
    };
    let ranges = trust(
        "extforward.forwarder = ( \"10.0.0.0/8\" => \"trust\", \"2001:db8::/32\" => \"Trust\" )",
    );
    for (address, expected) in [
        ("10.255.0.1", true),
        ("11.0.0.1", false),
        ("2001:db8:1::1", true),
        ("2001:db9::1", false),
    ] {
        let address = address.parse().expect("an address");
        assert_eq!(ranges.includes(Some(address)), expected);
        assert_eq!(ranges.names(address), expected);
    }
    assert!(!ranges.includes(None));
    let unix = trust("extforward.forwarder = ( \"\" => \"trust\" )");
    assert!(unix.includes(None) && !unix.is_empty());
    assert!(!unix.includes(Some([127, 0, 0, 1].into())));
    assert!(trust("extforward.forwarder = ( \"1.2.3.4\" => \"no\" )").is_empty());
}

#[test]
fn a_subrequest_has_the_client_of_its_parent() {
    let answer = ask(ALL, "X-Forwarded-For: 1.2.3.4");
    let mut head = SubrequestHead::get(b"/");
    head.fields = vec![("X-Forwarded-For".to_owned(), b"5.6.7.8".to_vec())];
    let mut asked = Subrequest::new(answer.exchange(), head).expect("it is sound");
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    assert!(asked.poll_head(context).is_ready());
    let peer = asked.exchange().connection.peer;
    assert_eq!(peer.address_text(), "1.2.3.4");
}
