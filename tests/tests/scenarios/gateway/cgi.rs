//! Programs that are started per request: what they inherit, and what they leave behind.

use petrel_tests::{Server, eventually};

use crate::gateway::post;

/// A server that runs scripts by the shell.
fn server(script: &str, config: &str) -> Server {
    Server::build()
        .file("www/run.cgi", script)
        .file("www/page.html", "the page")
        .config("server.modules += ( \"mod_cgi\", \"mod_status\" )")
        .config("status.statistics-url = \"/counters\"")
        .config("cgi.assign = ( \".cgi\" => \"/bin/sh\" )")
        .config(config)
        .start()
}

#[test]
fn a_program_has_no_descriptor_of_the_server() {
    let server = server("printf 'A: b\\n\\n'; exec ls /proc/self/fd", "");
    // The last descriptor belongs to the listing itself.
    assert_eq!(server.get("/run.cgi").text(), "0\n1\n2\n3\n");
}

#[test]
fn bodies_go_both_ways_and_path_info_is_told() {
    let script = "printf 'Content-Type: text/x\\n\\n'; echo \"$PATH_INFO $QUERY_STRING\"; pwd; cat";
    let server = server(script, "");
    let response = server.exchange(post("/run.cgi/info?a+b", "the body"));
    let directory = server.tree().path("www").display().to_string();
    assert_eq!(response.text(), format!("/info a+b\n{directory}\nthe body"));
    assert_eq!(response.field("Content-Type"), Some("text/x"));
}

#[test]
fn output_without_a_head_is_a_body() {
    for script in [
        "echo 'hello world'; echo 'a: b'",
        "printf 'hel'; sleep 0.2; printf 'lo world\na: b\n'",
        "printf 'hello world'; sleep 0.1; printf '\na: b\n'; sleep 0.1",
    ] {
        let response = server(script, "").get("/run.cgi");
        let expected = (200, "hello world\na: b\n".to_owned());
        assert_eq!((response.status, response.text()), expected, "{script}");
    }
    let response = server("printf hello", "").get("/run.cgi");
    assert_eq!((response.status, response.text()), (200, "hello".into()));
    for script in ["", "printf 'A: b'"] {
        assert_eq!(server(script, "").get("/run.cgi").status, 502, "{script}");
    }
}

/// RFC 9110 8.6: a Content-Length would have to be that of GET.
#[test]
fn head_has_no_length_that_the_program_did_not_tell() {
    let body = "[ $REQUEST_METHOD = HEAD ] || printf 12345";
    for (head, length) in [("", None), ("Content-Length: 5\\n", Some("5"))] {
        let server = server(&format!("printf 'A: b\\n{head}\\n'; {body}"), "");
        let mut client = server.client();
        let response = client.request("HEAD", "/run.cgi", &[]);
        assert_eq!(response.field("Content-Length"), length);
        assert_eq!(client.get("/run.cgi").text(), "12345");
    }
}

#[test]
fn the_document_root_is_told_as_it_is_configured() {
    let script = "printf 'A: b\\n\\n'; echo $DOCUMENT_ROOT";
    let config = "$HTTP[\"query-string\"] == \"slash\" { server.document-root = server.document-root + \"/\" }";
    let server = server(script, config);
    let root = server.tree().path("www").display().to_string();
    assert_eq!(server.get("/run.cgi").text(), format!("{root}\n"));
    assert_eq!(server.get("/run.cgi?slash").text(), format!("{root}/\n"));
}

#[test]
fn a_local_redirect_is_answered_from_within_where_that_is_wanted() {
    let script = "printf 'Location: /page.html\\n\\n'";
    let inside = server(script, "cgi.local-redir = \"enable\"");
    let response = inside.get("/run.cgi");
    assert_eq!((response.status, response.text()), (200, "the page".into()));
    let outside = server(script, "");
    assert_eq!(outside.get("/run.cgi").status, 302);
}

#[test]
fn a_program_that_takes_too_long_is_ended() {
    let server = server("sleep 60", "cgi.limits = ( \"read-timeout\" => 1 )");
    assert_eq!(server.get("/run.cgi").status, 504);
    assert!(eventually(|| server
        .get("/counters")
        .text()
        .contains("cgi.programs: 0\n")));
}

#[test]
fn a_script_without_its_execute_bit_is_neither_run_nor_sent() {
    let server = server("echo the source", "cgi.execute-x-only = \"enable\"");
    let response = server.get("/run.cgi");
    assert_eq!(response.status, 403);
    assert!(!response.text().contains("source"));
}

#[test]
fn a_reply_that_is_complete_is_sent_in_ranges() {
    let server = Server::build()
        .file(
            "www/digits.sh",
            "printf 'ETag: \"a\"\\nCache-Control: max-age=60\\nX-Own: x\\n%s\\n\\n0123456789' \"$QUERY_STRING\"",
        )
        .file(
            "www/big.sh",
            "printf 'Content-Type: text/plain\\n\\n'; seq -w 1 600000",
        )
        .config("server.modules += ( \"mod_cgi\", \"mod_setenv\" )")
        .config("cgi.assign = ( \".sh\" => \"/bin/sh\" )")
        .config("setenv.add-response-header = ( \"X-Site\" => \"s\" )")
        .config("$HTTP[\"querystring\"] == \"X-How:streamed\" { server.stream-response-body = 1 }")
        .config(
            "$HTTP[\"querystring\"] == \"X-How:without\" { server.range-requests = \"disable\" }",
        )
        .start();
    let mut client = server.client();
    let digits = "/digits.sh?Content-Type:text/x";
    let part = client.request("GET", digits, &[("Range", "bytes=2-5")]);
    assert_eq!((part.status, part.text().as_str()), (206, "2345"), "{part}");
    assert_eq!(part.field("Content-Range"), Some("bytes 2-5/10"));
    assert_eq!(part.field("Accept-Ranges"), Some("bytes"));
    assert_eq!(
        (part.field("X-Own"), part.field("X-Site")),
        (Some("x"), Some("s"))
    );
    let parts = client.request(
        "GET",
        "/big.sh",
        &[("Range", "bytes=0-2,3500000-3500006,-3")],
    );
    assert_eq!(parts.status, 206);
    assert_eq!(parts.field("Accept-Ranges"), Some("bytes"));
    let text = parts.text();
    for expected in [
        "Content-Type: text/plain\r\nContent-Range: bytes 0-2/4200000\r\n\r\n000\r\n",
        "Content-Range: bytes 3500000-3500006/4200000\r\n\r\n500001\n\r\n",
        "Content-Range: bytes 4199997-4199999/4200000\r\n\r\n00\n\r\n",
    ] {
        assert!(text.contains(expected), "{expected:?} in {text:?}");
    }
    let beyond = client.request("GET", digits, &[("Range", "bytes=10-")]);
    assert_eq!(beyond.status, 416, "{beyond}");
    assert_eq!(beyond.field("Content-Range"), Some("bytes */10"));
    assert_eq!(
        (beyond.field("ETag"), beyond.field("X-Site")),
        (None, Some("s"))
    );
    assert_eq!(beyond.field("Cache-Control"), None, "{beyond}");
    assert!(
        beyond.text().contains("416 Range Not Satisfiable"),
        "{beyond}"
    );
    let range = ("Range", "bytes=2-5");
    for (method, target, fields) in [
        ("GET", digits, vec![range, ("If-Range", "\"b\"")]),
        ("GET", "/digits.sh?X-How:streamed", vec![range]),
        ("GET", "/digits.sh?X-How:without", vec![range]),
        ("GET", "/digits.sh?Content-Encoding:br", vec![range]),
        ("GET", "/digits.sh?Accept-Ranges:none", vec![range]),
        ("GET", "/digits.sh?Status:201", vec![range]),
        ("POST", digits, vec![range, ("Content-Length", "0")]),
    ] {
        let mut client = server.client();
        let whole = client.request(method, target, &fields);
        assert!(
            whole.text() == "0123456789" && whole.status < 206,
            "{method} {target} {fields:?}: {whole}"
        );
    }
    let same = client.request("GET", digits, &[range, ("If-Range", "\"a\"")]);
    assert_eq!(same.status, 206);
}

/// A client that resumes a download would append a part of it to its file.
#[test]
fn what_an_error_handler_answers_is_sent_whole() {
    let server = Server::build()
        .file(
            "www/error.sh",
            "printf 'Content-Type: text/plain\\n\\n0123456789'",
        )
        .config("server.modules += ( \"mod_cgi\" )")
        .config("cgi.assign = ( \".sh\" => \"/bin/sh\" )")
        .config("server.error-handler = \"/error.sh\"")
        .start();
    let answer = server
        .client()
        .request("GET", "/gone.iso", &[("Range", "bytes=2-5")]);
    assert_eq!(answer.text(), "0123456789", "{answer}");
    assert_ne!(answer.status, 206);
}
