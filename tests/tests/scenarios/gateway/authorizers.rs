//! FastCGI applications in the role of an authorizer, which decide whether a request may continue.

use petrel_tests::{Backend, Builder, Exchange, Server, Speaks};

use crate::gateway::{name, post};

/// An authorizer that requires a password.
fn doorkeeper() -> Backend {
    Backend::start(
        Speaks::FastCgi,
        |exchange: &mut Exchange<'_>| match exchange.param("HTTP_AUTHORIZATION") {
            "right" => {
                let fields = [("Variable-WHO", "anna"), ("Variable-X_LEVEL", "7")];
                exchange.answer(200, &fields, "no client reads this");
            }
            "" => exchange.answer(401, &[("WWW-Authenticate", "Test")], "who is there?"),
            _ => exchange.answer(403, &[], "not you"),
        },
    )
}

/// A responder that returns what it received.
fn teller() -> Backend {
    Backend::start(Speaks::FastCgi, |exchange: &mut Exchange<'_>| {
        let body = exchange.read_body();
        let text = format!(
            "{} {} {}",
            exchange.param("WHO"),
            exchange.param("X_LEVEL"),
            String::from_utf8_lossy(&body)
        );
        exchange.say(&text);
    })
}

/// A server that asks `authorizer` about `key`, and sends `/app` to `responder`.
fn guarded(key: &str, authorizer: &Backend, responder: &Backend, options: &str) -> Builder {
    let (authorizer, responder) = (authorizer.host(), responder.host());
    Server::build().config(&format!(
        "server.modules += ( \"mod_fastcgi\" )
        fastcgi.server = (
            \"{key}\" => (( {authorizer}, \"mode\" => \"authorizer\", {options} )),
            \"/app\" => (( {responder}, \"check-local\" => \"disable\" )),
        )"
    ))
}

#[test]
fn an_authorizer_lets_in_or_answers_itself() {
    for check_local in ["disable", "enable"] {
        let (authorizer, responder) = (doorkeeper(), teller());
        let options = format!("\"check-local\" => \"{check_local}\"");
        let server = guarded("/", &authorizer, &responder, &options)
            .file("www/secret.txt", "a secret")
            .start();
        let mut client = server.client();
        for target in ["/app/", "/secret.txt"] {
            let response = client.get(target);
            assert_eq!(response.status, 401, "{response}");
            assert_eq!(response.text(), "who is there?");
            assert_eq!(response.field("WWW-Authenticate"), Some("Test"));
            let response = client.request("GET", target, &[("Authorization", "wrong")]);
            assert_eq!(
                (response.status, response.text().as_str()),
                (403, "not you")
            );
        }
        assert_eq!(responder.requests().len(), 0);
        let right = [("Authorization", "right")];
        let response = client.request("GET", "/secret.txt", &right);
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, "a secret")
        );
        assert_eq!(response.field("Variable-WHO"), None);
        let response = client.request("GET", "/app/", &right);
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, "anna 7 ")
        );
    }
}

#[test]
fn the_body_is_for_who_answers() {
    for mode in 0..3 {
        let (authorizer, responder) = (doorkeeper(), teller());
        let server = guarded(
            "/",
            &authorizer,
            &responder,
            "\"check-local\" => \"disable\"",
        )
        .config(&format!("server.stream-request-body = {mode}"))
        .start();
        let mut request = post("/app/", "the body");
        request = request.replacen("\r\n", "\r\nAuthorization: right\r\n", 1);
        for _ in 0..2 {
            let response = server.exchange(&request);
            assert_eq!(response.text(), "anna 7 the body", "mode {mode}");
            let asked = authorizer.last();
            assert_eq!((asked.body_bytes, asked.complete), (0, true));
            assert!(matches!(asked.param("CONTENT_LENGTH"), None | Some("0")));
        }
        let refused = server.exchange(post("/app/", "the body"));
        assert_eq!(refused.status, 401, "{refused}");
    }
}

#[test]
fn an_authorizer_of_a_suffix_sees_index_files() {
    let (authorizer, responder) = (doorkeeper(), teller());
    let server = guarded(
        ".html",
        &authorizer,
        &responder,
        "\"check-local\" => \"enable\"",
    )
    .file("www/index.html", "a page")
    .file("www/a.txt", "a text")
    .start();
    for (target, status) in [("/", 401), ("/index.html", 401), ("/a.txt", 200)] {
        assert_eq!(server.get(target).status, status, "{target}");
    }
}

#[test]
fn without_its_authorizer_no_client_gets_in() {
    let (mut authorizer, responder) = (doorkeeper(), teller());
    let server = guarded(
        "/",
        &authorizer,
        &responder,
        "\"check-local\" => \"disable\"",
    )
    .file("www/secret.txt", "a secret")
    .start();
    authorizer.stop();
    let right = [("Authorization", "right")];
    for target in ["/app/", "/secret.txt"] {
        let response = server.client().request("GET", target, &right);
        assert_eq!(response.status, 503, "{response}");
    }
    authorizer.restart();
    let dying = Backend::start(Speaks::FastCgi, |exchange: &mut Exchange<'_>| {
        assert_ne!(name(exchange), "never");
        exchange.close();
    });
    let server = guarded("/", &dying, &responder, "\"check-local\" => \"disable\"").start();
    assert_eq!(server.get("/app/").status, 502);
    assert_eq!(responder.requests().len(), 0);
}
