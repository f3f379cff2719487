//! Errors of backends and of Petrel: which error page the client gets.

use petrel_tests::{Backend, Builder, Exchange, Server, Speaks};

use crate::gateway::{in_front_of, in_front_of_with, name, post};

/// A backend that answers with the status that the URL names, or not at all.
fn failing() -> Backend {
    Backend::start(Speaks::FastCgi, |exchange: &mut Exchange<'_>| {
        exchange.read_body();
        match name(exchange) {
            "close" => exchange.close(),
            "hang" => drop(exchange.hang()),
            "nonsense" => exchange.raw("nonsense, and more of it"),
            "empty" => exchange.answer(404, &[], ""),
            status => {
                let status = status.parse().expect("the test names a status");
                exchange.answer(status, &[("X-Own", "1")], "the application's words");
            }
        }
    })
}

/// Requests for which the server itself makes the error, and their statuses.
const OURS: &[(&str, u16)] = &[
    ("/app/close", 502),
    ("/app/nonsense", 502),
    ("/app/hang", 504),
];

/// Requests for which the application makes the error.
const THEIRS: &[(&str, u16)] = &[("/app/403", 403), ("/app/404", 404), ("/app/503", 503)];

fn server(backend: &Backend) -> Builder {
    in_front_of_with(backend, "\"read-timeout\" => 3, ")
        .file("www/handler.html", "the handler")
        .file("www/error-502.html", "page 502")
        .file("www/error-404.html", "page 404")
}

#[test]
fn errors_of_ours_have_the_built_in_page() {
    let backend = failing();
    let server = server(&backend).start();
    for (target, status) in OURS {
        let response = server.get(target);
        assert_eq!(response.status, *status, "{target}: {response}");
        assert!(
            response.text().contains(&format!("<h1>{status} ")),
            "{target}"
        );
    }
    let mut gone = failing();
    let server = in_front_of(&gone).start();
    gone.stop();
    let response = server.get("/app/200");
    assert_eq!(response.status, 503);
    assert!(response.text().contains("<h1>503 "), "{response}");
}

#[test]
fn errors_of_ours_have_the_configured_page_or_handler() {
    let backend = failing();
    let with_pages = server(&backend)
        .config("server.errorfile-prefix = var.dir + \"/www/error-\"")
        .start();
    let response = with_pages.get("/app/close");
    assert_eq!(
        (response.status, response.text().as_str()),
        (502, "page 502")
    );
    let with_handler = server(&backend)
        .config("server.error-handler = \"/handler.html\"")
        .start();
    for (target, status) in OURS {
        let response = with_handler.get(target);
        assert_eq!(
            (response.status, response.text().as_str()),
            (*status, "the handler")
        );
    }
}

#[test]
fn errors_of_applications_stay_as_they_are() {
    let backend = failing();
    let server = server(&backend)
        .config("server.errorfile-prefix = var.dir + \"/www/error-\"")
        .config("server.error-handler = \"/handler.html\"")
        .start();
    for (target, status) in THEIRS {
        let response = server.get(target);
        assert_eq!(response.status, *status, "{target}");
        assert_eq!(response.text(), "the application's words");
        assert_eq!(response.field("X-Own"), Some("1"));
    }
    let response = server.get("/app/empty");
    assert_eq!((response.status, response.text().as_str()), (404, ""));
}

// Pages and statuses are those of lighttpd 1.4.69.
#[test]
fn intercepted_errors_of_applications_are_as_ours() {
    let backend = failing();
    let intercepted = || server(&backend).config("server.error-intercept = \"enable\"");
    let bare = intercepted().start();
    for (target, status) in THEIRS {
        let response = bare.get(target);
        assert_eq!(response.status, *status, "{target}");
        assert!(
            response.text().contains(&format!("<h1>{status} ")),
            "{response}"
        );
    }
    let with_pages = intercepted()
        .config("server.errorfile-prefix = var.dir + \"/www/error-\"")
        .start();
    for target in ["/app/404", "/app/empty"] {
        let response = with_pages.get(target);
        assert_eq!(
            (response.status, response.text().as_str()),
            (404, "page 404")
        );
    }
    let with_handler = intercepted()
        .config("server.error-handler = \"/handler.html\"")
        .start();
    let response = with_handler.get("/app/503");
    assert_eq!(
        (response.status, response.text().as_str()),
        (503, "the handler")
    );
    assert_eq!(
        with_handler.get("/app/200").text(),
        "the application's words"
    );
}

/// An application that answers all scripts with 200 unless the URL asks for an error.
fn front_controller(directive: &str) -> (Backend, Server) {
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        exchange.read_body();
        let status = match exchange.param("REQUEST_URI").contains("gone") {
            true => 410,
            false => 200,
        };
        exchange.answer(status, &[], "the application");
    });
    let server = Server::build()
        .file("www/index.php", "<?php")
        .config(&format!("{directive} = \"/index.php\""))
        .config(&backend.directive(".php", ""))
        .start();
    (backend, server)
}

#[test]
fn a_front_controller_gets_the_request_as_it_came() {
    let (backend, server) = front_controller("server.error-handler-404");
    let mut client = server.client();
    for method in ["POST", "PUT", "DELETE"] {
        let request = post("/pretty/url?a", "the body").replacen("POST", method, 1);
        let response = client.send(request).response();
        assert_eq!(
            (response.status, response.text().as_str()),
            (200, "the application")
        );
        let request = backend.last();
        assert_eq!(request.param("REQUEST_METHOD"), Some(method));
        assert_eq!(request.param("REDIRECT_STATUS"), Some("404"));
        assert_eq!(request.body, b"the body");
    }
    assert_eq!(client.get("/gone").status, 410);
}

#[test]
fn an_application_that_handles_errors_is_asked_by_get_and_says_the_status() {
    let (backend, server) = front_controller("server.error-handler");
    let mut client = server.client();
    let large = "x".repeat(300_000);
    for body in ["the body", &large] {
        assert_eq!(
            client.send(post("/pretty/url?a", body)).response().status,
            200
        );
        let request = backend.last();
        assert_eq!(request.param("REQUEST_METHOD"), Some("GET"));
        assert_eq!(request.param("CONTENT_LENGTH"), Some("0"));
        assert_eq!(request.body, b"");
    }
    assert_eq!(client.get("/gone").status, 410);
}

#[test]
fn a_file_does_not_handle_the_error_of_a_method_that_files_do_not_have() {
    let server = Server::build()
        .file("www/sorry.txt", "sorry")
        .config("server.error-handler-404 = \"/sorry.txt\"")
        .start();
    assert_eq!(server.get("/missing").status, 200);
    let put = post("/missing", "body").replacen("POST", "PUT", 1);
    assert_eq!(server.exchange(put).status, 404);
}
