//! What the logs say about requests on real connections.

use petrel_tests::{Address, Client, Server, eventually};

const LOGS: &str = r#"
    server.modules = ("mod_accesslog")
    accesslog.filename = var.dir + "/access.log"
"#;

/// Waits until the access log has a line with this text.
#[track_caller]
fn expect_access(server: &Server, text: &str) {
    let log = || String::from_utf8_lossy(&server.tree().read("access.log")).into_owned();
    assert!(
        eventually(|| log().contains(text)),
        "{text:?} is not in\n{}",
        log()
    );
}

#[test]
fn a_refused_head_is_told_by_its_first_line() {
    let server = Server::start(&format!("{LOGS}accesslog.format = \"[%r] %s\""));
    for (head, status, access, error) in [
        (
            "GE T / HTTP/1.1\r\n\r\n",
            400,
            "[GE T / HTTP/1.1] 400",
            "request=\"GE T / HTTP/1.1\"",
        ),
        (
            "BREW /\" HTTP/1.1\r\n\r\n",
            501,
            "[BREW /\\\" HTTP/1.1] 501",
            "request=\"BREW /\\\" HTTP/1.1\"",
        ),
        (
            "GET /\x01\x1b HTTP/1.1\r\n\r\n",
            400,
            "[GET /\\x01\\x1B HTTP/1.1] 400",
            "request=\"GET /\\x01\\x1b HTTP/1.1\"",
        ),
        (
            "GET /h HTTP/1.1\r\nA b: c\r\n\r\n",
            400,
            "[GET /h HTTP/1.1] 400",
            "request=\"GET /h HTTP/1.1\"",
        ),
    ] {
        assert_eq!(server.exchange(head).status, status, "{head:?}");
        expect_access(&server, access);
        server.expect_log(error);
    }
    server.expect_log(
        "(read-head) The request method is not known. client=127.0.0.1 host= request=\"BREW",
    );
    // The next request has no such value.
    assert_eq!(server.get("/").status, 200);
    expect_access(&server, "[GET / HTTP/1.1] 200");
}

/// The error log counts equal lines of many connections.
#[test]
fn a_flood_of_the_same_refused_head_is_a_few_lines() {
    let server = Server::start("");
    for _ in 0..200 {
        server.client().send("NONSENSE\r\n\r\n").read_to_end();
    }
    server.expect_log("message repeated");
    let lines = server
        .log()
        .lines()
        .filter(|line| line.contains("NONSENSE"))
        .count();
    assert!(lines < 40, "{lines} lines\n{}", server.log());
}

/// An operator finds the lines about a request by the id on its error page.
#[test]
fn an_error_page_leads_to_the_lines_of_its_request() {
    let server = Server::start(&format!(
        "{LOGS}accesslog.format = \"%{{request-id}}x %{{cause}}x %s\"\n\
         debug.log-file-not-found = \"enable\"\nserver.error-cause-header = \"enable\""
    ));
    let answer = server.get("/missing");
    assert_eq!(answer.field("Petrel-Cause"), Some("file-missing"));
    let page = answer.text();
    let (_, rest) = page.split_once("Request id: <code>").expect("an id");
    let (id, _) = rest.split_once('<').expect("its end");
    assert_eq!(id.len(), 16, "{page}");
    server.expect_log(&format!(
        "request=\"GET /missing\" cause=file-missing id={id}\n"
    ));
    expect_access(&server, &format!("{id} file-missing 404\n"));
    // A long target is cut, and the id is not.
    let long = format!("/{}", "%01".repeat(2000));
    let head = format!("GET {long} HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(server.exchange(&head).status, 400);
    server.expect_log("%\" cause=url-malformed id=");
}

/// With a wildcard listener only the connection knows the address.
#[test]
fn the_local_address_is_the_one_connected_to() {
    let server = Server::start(&format!(
        "{LOGS}accesslog.format = \"%A|%U\"\nserver.bind = \"0.0.0.0\""
    ));
    for (address, path) in [([127, 0, 0, 1], "/one"), ([127, 0, 0, 2], "/two")] {
        let address = std::net::SocketAddr::from((address, server.port()));
        let mut client = Client::connect(&Address::Ip(address));
        for turn in 0..2 {
            assert_eq!(client.get(&format!("{path}{turn}")).status, 404);
            expect_access(&server, &format!("{}|{path}{turn}", address.ip()));
        }
    }
}

#[test]
fn headers_are_traced_in_a_line_each() {
    let server = Server::start(
        "debug.log-request-header = \"enable\"\ndebug.log-response-header = \"enable\"",
    );
    server.client().request("GET", "/", &[("X-A", "b\u{e9}")]);
    server.expect_log("(request-header) GET / HTTP/1.1\\r\\nHost: ");
    server.expect_log("X-A: b\\xc3\\xa9");
    server.expect_log("(response-header) HTTP/1.1 200 OK\\r\\n");
    server.exchange("BREW / HTTP/1.1\r\nX-B: c\r\n\r\n");
    server.expect_log("(request-header) BREW / HTTP/1.1\\r\\nX-B: c client=127.0.0.1 ");
}

#[test]
fn only_headers_of_errors_are_traced_where_only_those_are_wanted() {
    let server = Server::start("debug.log-request-header-on-error = \"enable\"");
    server.client().request("GET", "/", &[("X-A", "fine")]);
    server
        .client()
        .request("GET", "/nope", &[("X-A", "missing")]);
    server.exchange("GET / HTTP/1.1\r\nX-A: refused\r\n\r\n");
    server.expect_log("X-A: missing");
    server.expect_log("(request-header) GET / HTTP/1.1\\r\\nX-A: refused");
    assert!(!server.log().contains("X-A: fine"), "{}", server.log());
}

#[test]
fn true_conditions_are_traced_with_their_places() {
    let server = Server::start(
        "debug.log-condition-handling = \"enable\"\n\
         $HTTP[\"url\"] =^ \"/a\" { server.tag = \"A\"\n $HTTP[\"host\"] == \"petrel.test\" { server.tag = \"B\" } }\n\
         else { server.tag = \"C\" }\n\
         $PHYSICAL[\"path\"] =$ \"/index.html\" { server.tag = \"D\" }",
    );
    let text = server.tree().text("petrel.conf");
    let first = 1 + text
        .lines()
        .position(|line| line.contains("=^"))
        .expect("it is there");
    server
        .client()
        .send("GET /a HTTP/1.1\r\nHost: petrel.test\r\n\r\n")
        .response();
    server.expect_log("(conditions) true: $HTTP[\"url\"] =^ \"/a\" (");
    server.expect_log(&format!(":{first}), $HTTP[\"host\"] == \"petrel.test\" ("));
    server.expect_log(&format!(":{}) client=127.0.0.1 ", first + 1));
    server
        .client()
        .send("GET /b HTTP/1.1\r\nHost: other\r\n\r\n")
        .response();
    server.expect_log("(conditions) true: else (");
}

#[test]
fn the_stages_of_a_request_are_traced() {
    let server = Server::start("debug.log-timing = \"enable\"");
    server.get("/?timed");
    server.expect_log("?timed");
    let log = server.log();
    let line = log
        .lines()
        .find(|line| line.contains("(timing)"))
        .expect("a line");
    let (_, line) = line.split_once("(timing) ").expect("it was found");
    let (line, _) = line.split_once(" us ").expect("microseconds");
    // As in lighttpd 1.5: `write-start: S.UUUUUU read-queue-wait: N ms read-time: N ms write-time: N ms`.
    let words: Vec<_> = line.split(' ').collect();
    let (lighttpd, stages) = words.split_at(11);
    let digits = |word: &str| word.replace(|c: char| c.is_ascii_digit(), "");
    let shape: Vec<_> = lighttpd.iter().map(|word| digits(word)).collect();
    assert_eq!(
        shape.join(" "),
        "write-start: . read-queue-wait:  ms read-time:  ms write-time:  ms"
    );
    // The stages add up exactly, to the nanosecond.
    let nanos = |text: &str| text.replace('.', "").parse::<u64>().expect("a number");
    let times: Vec<(&str, u64)> = stages
        .iter()
        .map(|stage| stage.split_once('=').expect("a name and a time"))
        .map(|(name, time)| (name, nanos(time)))
        .collect();
    let (total, parts) = times.split_last().expect("several");
    assert_eq!((times[0].0, total.0), ("tls", "total"));
    assert_eq!(parts.len(), 27, "26 stages and the rest: {line}");
    assert_eq!(
        parts.iter().map(|(_, time)| time).sum::<u64>(),
        total.1,
        "{line}"
    );
}

#[test]
fn steps_and_states_are_traced() {
    let server = Server::start(
        "debug.log-request-handling = \"enable\"\ndebug.log-state-handling = \"enable\"\n\
         debug.log-file-not-found = \"enable\"",
    );
    assert_eq!(server.get("/no%20pe?q").status, 404);
    server.expect_log("(request-handling) URL: path=\"/no pe\" query=\"q\" client=");
    server.expect_log("/www/no pe\" path-info=\"\" found=Some(Missing) client=");
    server.expect_log("(request-handling) answered 404 in the phase Map client=");
    server.expect_log("(map) file not found path=");
    server.expect_log("(state) connection=");
    server.expect_log("Head -> Walk client=");
    server.expect_log("Walk -> Send client=");
}

/// It takes so long because three time limits must pass, one to two seconds each.
#[test]
fn time_outs_are_traced() {
    let server = Server::start(
        "debug.log-timeouts = \"enable\"\nserver.max-read-idle = 1\nserver.max-keep-alive-idle = 1",
    );
    server.client().read_to_end();
    server.expect_log("(time-out) no request came client=127.0.0.1\n");
    let mut kept = server.client();
    kept.get("/");
    kept.read_to_end();
    server.expect_log("(time-out) no further request came client=127.0.0.1\n");
    server.client().send("GET /slow").read_to_end();
    server.expect_log("(time-out) the request head came too slowly client=");
    server.expect_log(
        "(read-head) the request head came too slowly client=127.0.0.1 host= request=\"GET /slow\"",
    );
}
