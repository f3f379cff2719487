//! What works the same with every protocol of backends.

use petrel_tests::{Backend, Speaks};

use crate::gateway::{in_front_of, name, post};

/// A backend that returns what it was asked.
fn echo(speaks: Speaks) -> Backend {
    Backend::start(speaks, |exchange| {
        let body = exchange.read_body();
        let method = exchange.param("REQUEST_METHOD").to_owned();
        match name(exchange) {
            "empty" => exchange.answer(204, &[], ""),
            "unchanged" => exchange.answer(304, &[("ETag", "\"1\"")], ""),
            "mirror" => exchange.answer(200, &[("X-Method", &method)], body),
            "found" => exchange.answer(302, &[("Location", "/elsewhere")], ""),
            other => {
                let answer = format!("{method} {other}");
                exchange.answer(200, &[("Content-Type", "text/plain")], answer);
            }
        }
    })
}

#[test]
fn a_request_and_its_answer() {
    for speaks in Speaks::ALL {
        let backend = echo(speaks);
        let server = in_front_of(&backend).start();
        let mut client = server.client();
        for number in 0..3 {
            let response = client.get(&format!("/app/{number}"));
            assert_eq!(response.status, 200, "{speaks:?}: {response}");
            assert_eq!(response.text(), format!("GET {number}"), "{speaks:?}");
            assert_eq!(response.field("Content-Type"), Some("text/plain"));
            assert_eq!(response.field("Status"), None);
        }
        assert_eq!(client.get("/").text(), "hello", "{speaks:?}");
        assert_eq!(backend.requests().len(), 3);
    }
}

#[test]
fn a_status_and_a_location_are_passed_on() {
    for speaks in Speaks::ALL {
        let backend = echo(speaks);
        let server = in_front_of(&backend).start();
        let response = server.get("/app/found");
        assert_eq!(response.status, 302, "{speaks:?}: {response}");
        let location = response.field("Location").expect("a redirect");
        assert!(location.ends_with("/elsewhere"), "{speaks:?}: {location}");
    }
}

#[test]
fn bodies_go_both_ways() {
    let body: String = (0..140_000).map(|number| format!("{number},")).collect();
    for speaks in Speaks::ALL {
        let backend = echo(speaks);
        let server = in_front_of(&backend).start();
        let mut client = server.client();
        for size in [1, 8186, 8187, 65_535, 65_536, body.len()] {
            let body = &body[..size];
            let response = client.send(post("/app/mirror", body)).response();
            assert_eq!(response.status, 200, "{speaks:?}, {size}: {response}");
            assert_eq!(response.field("X-Method"), Some("POST"));
            assert!(response.text() == body, "{speaks:?}, {size} bytes differ");
        }
        // Without a body there is a length of 0, or no length.
        let response = client.send(post("/app/mirror", "")).response();
        assert_eq!((response.status, response.body.len()), (200, 0));
    }
}

#[test]
fn answers_without_a_body_have_none() {
    for speaks in Speaks::ALL {
        let backend = echo(speaks);
        let server = in_front_of(&backend).start();
        let mut client = server.client();
        let head = client.request("HEAD", "/app/1", &[]);
        assert_eq!(head.status, 200, "{speaks:?}: {head}");
        assert_eq!(
            head.field("Content-Length"),
            Some("6"),
            "{speaks:?}: {head}"
        );
        // Anything after the heads would be taken for the next response.
        assert_eq!(client.get("/app/empty").status, 204, "{speaks:?}");
        let unchanged = client.get("/app/unchanged");
        assert_eq!(unchanged.status, 304, "{speaks:?}");
        assert_eq!(unchanged.field("ETag"), Some("\"1\""));
        assert_eq!(client.get("/app/2").text(), "GET 2", "{speaks:?}");
    }
}

#[test]
fn ports_do_as_well_as_unix_sockets() {
    for speaks in Speaks::ALL {
        let backend = Backend::start_on_tcp(speaks, |exchange| exchange.say("over TCP"));
        let server = in_front_of(&backend).start();
        assert_eq!(server.get("/app/").text(), "over TCP", "{speaks:?}");
    }
}
