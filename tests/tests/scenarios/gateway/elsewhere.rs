//! Requests that are sent elsewhere: because a backend asks for it, has no room, or does not answer.

use petrel_tests::{Backend, Builder, Exchange, Server, Speaks, fastcgi_record};

use crate::gateway::{in_front_of_all, post};

/// A backend that returns its name and what it was asked.
fn named(name: &'static str) -> Backend {
    Backend::start_on_tcp(Speaks::Http, move |exchange: &mut Exchange<'_>| {
        let body = exchange.read_body();
        let text = format!(
            "{name} {} {} {} {}",
            exchange.param("REQUEST_METHOD"),
            exchange.target(),
            exchange.param("Host"),
            String::from_utf8_lossy(&body)
        );
        exchange.say(&text);
    })
}

/// A backend that redirects requests, as the fields of their head say.
fn dispatcher() -> Backend {
    Backend::start_on_tcp(Speaks::Http, |exchange: &mut Exchange<'_>| {
        exchange.read_body();
        let wanted = ["URI", "Host", "Backend"].map(|name| {
            let value = exchange.param(&format!("To-{name}")).to_owned();
            (format!("X-Rewrite-{name}"), value)
        });
        let fields: Vec<_> = wanted
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        exchange.answer(200, &fields, "the dispatcher");
    })
}

/// A gateway of 1.5 with these backends.
fn core(backends: &[&Backend], config: &str) -> Builder {
    let names = backends
        .iter()
        .map(|backend| format!("\"{}\"", backend.name()));
    let names: Vec<_> = names.collect();
    Server::build()
        .file("www/page.html", "a page")
        .config(&format!(
            "server.modules += ( \"mod_proxy_core\" )
        $HTTP[\"url\"] =~ \"^/(app|deep)/\" {{
        proxy-core.protocol = \"http\"
        proxy-core.balancer = \"static\"
        proxy-core.backends = ( {} )
        {config} }}",
            names.join(", ")
        ))
}

const REWRITE: &str = "proxy-core.allow-x-rewrite = \"enable\"";

#[test]
fn a_backend_sends_a_request_to_another_one() {
    let (first, second) = (dispatcher(), named("second"));
    let server = core(&[&first, &second], REWRITE).start();
    let to = second.name();
    let mut client = server.client();
    let response = client.request("GET", "/app/x?y", &[("To-Backend", &to)]);
    assert_eq!(
        response.text(),
        format!("second GET /app/x?y {} ", "petrel.test")
    );
    assert_eq!(response.field("X-Rewrite-Backend"), None);
    let fields = [
        ("To-Backend", to.as_str()),
        ("To-URI", "/deep/a%20b?c=d"),
        ("To-Host", "other.example"),
    ];
    let response = client.request("GET", "/app/", &fields);
    assert_eq!(response.text(), "second GET /deep/a%20b?c=d other.example ");
    let request = post("/app/", "once").replacen("\r\n", &format!("\r\nTo-Backend: {to}\r\n"), 1);
    let response = server.exchange(request);
    assert_eq!(response.text(), "second POST /app/ petrel.test once");
}

#[test]
fn a_backend_sends_a_request_to_a_file() {
    let first = dispatcher();
    let server = core(&[&first], REWRITE).start();
    let response = server
        .client()
        .request("GET", "/app/", &[("To-URI", "/page.html")]);
    assert_eq!((response.status, response.text().as_str()), (200, "a page"));
}

#[test]
fn impossible_rewrites_are_502_and_endless_ones_end() {
    let first = dispatcher();
    let server = core(&[&first], REWRITE).start();
    for (field, value, status) in [
        ("To-Backend", "127.0.0.1:1", 502),
        ("To-URI", "//evil.example/", 502),
        ("To-URI", "http://evil.example/", 502),
        ("To-Host", "a b", 502),
        ("To-URI", "/app/again", 500),
    ] {
        let response = server.client().request("GET", "/app/", &[(field, value)]);
        assert_eq!(response.status, status, "{field}: {value}: {response}");
    }
    assert!(first.requests().len() < 40);
}

#[test]
fn backends_say_nothing_unless_they_may() {
    let (first, second) = (dispatcher(), named("second"));
    let server = core(&[&first, &second], "").start();
    let to = second.name();
    let response = server
        .client()
        .request("GET", "/app/", &[("To-Backend", &to)]);
    assert_eq!(response.text(), "the dispatcher");
}

#[test]
fn what_was_refused_for_lack_of_room_goes_elsewhere() {
    let full = Backend::start(Speaks::FastCgi, |exchange: &mut Exchange<'_>| {
        exchange.read_body();
        exchange.raw(fastcgi_record(3, 1, &[0, 0, 0, 0, 2, 0, 0, 0]));
        exchange.close();
    });
    let free = Backend::start(Speaks::FastCgi, |exchange: &mut Exchange<'_>| {
        let body = exchange.read_body();
        exchange.say(&String::from_utf8_lossy(&body));
    });
    let server = in_front_of_all(Speaks::FastCgi, &[&full, &free], "")
        .config("fastcgi.balance = \"static\"")
        .start();
    let response = server.exchange(post("/app/", "once"));
    assert_eq!((response.status, response.text().as_str()), (200, "once"));
    server.expect_log("the backend is overloaded and refused the request");
    let server = in_front_of_all(Speaks::FastCgi, &[&full], "").start();
    assert_eq!(server.exchange(post("/app/", "once")).status, 503);
}

#[test]
fn tries_are_counted() {
    let mut backends: Vec<_> = (0..4).map(|_| named("no")).collect();
    let last = named("last");
    for backend in &mut backends {
        backend.stop();
    }
    let mut all: Vec<_> = backends.iter().collect();
    all.push(&last);
    for (again, status) in [(3, 503), (4, 200)] {
        let limit = format!("proxy-core.max-backlog-size = {again}");
        let server = core(&all, &limit).start();
        assert_eq!(server.get("/app/").status, status, "{again}");
    }
}

#[test]
fn debugging_tells_as_much_as_it_is_asked() {
    let backend = named("it");
    let lines = [
        (1, "chosen backend="),
        (1, "status=200 backend="),
        (2, "connects backend="),
        (3, "request: Cookie: (left out)"),
        (3, "reply: Content-Type: text/plain"),
    ];
    for debug in 0..4 {
        let config = format!("proxy-core.debug = {debug}");
        let server = core(&[&backend], &config).start();
        let response = server
            .client()
            .request("GET", "/app/", &[("Cookie", "secret")]);
        assert_eq!(response.status, 200);
        // When this is answered, everything before it was written to the log.
        assert_eq!(server.get("/app/").status, 200);
        for (level, line) in lines {
            match debug >= level {
                true => server.expect_log(line),
                false => assert!(!server.log().contains(line), "{debug}: {line}"),
            }
        }
        assert!(!server.log().contains("secret"));
    }
}

#[test]
fn what_is_left_out_of_stderr_is_told() {
    let backend = Backend::start(Speaks::FastCgi, |exchange: &mut Exchange<'_>| {
        exchange.read_body();
        for _ in 0..3 {
            exchange.log("x".repeat(1024 * 1024 / 2));
        }
        exchange.say("done");
    });
    for mode in [0, 2] {
        let server = in_front_of_all(Speaks::FastCgi, &[&backend], "")
            .config(&format!("server.stream-response-body = {mode}"))
            .start();
        assert_eq!(server.get("/app/").text(), "done");
        server.expect_log("stderr: 524288 more bytes were dropped");
    }
}

#[test]
fn who_is_named_for_the_answer_is_not_sought_among_authorizers() {
    let (first, second) = (dispatcher(), named("second"));
    let authorizer = Backend::start(Speaks::FastCgi, |exchange: &mut Exchange<'_>| {
        exchange.answer(200, &[], "");
    });
    let server = core(&[&first, &second], REWRITE)
        .config(&format!(
            "server.modules += ( \"mod_fastcgi\" )
            fastcgi.server = ( \"/app\" => (( {}, \"mode\" => \"authorizer\", \"check-local\" => \"disable\" )) )",
            authorizer.host()
        ))
        .start();
    let to = second.name();
    let response = server
        .client()
        .request("GET", "/app/", &[("To-Backend", &to)]);
    assert_eq!(response.text(), "second GET /app/ petrel.test ");
    assert_eq!(authorizer.requests().len(), 2, "it is asked each time");
}
