//! Where the time of a request goes, according to the access log and Server-Timing.

use std::thread;
use std::time::Duration;

use petrel_tests::{Backend, Server, SlowFs, Speaks, eventually};

/// How long a request is made to wait.
const PAUSE: Duration = Duration::from_millis(200);

/// The least value of its stage. The server may notice the beginning of a pause later than the client or
/// backend that makes it.
const STAGE_MIN: Duration = Duration::from_millis(100);

const CONFIG: &str = "server.max-worker = 1\nledger.server-timing = \"enable\"\n\
    accesslog.format = \"%U %{stages}x\"\naccesslog.filename = var.dir + \"/access.log\"\n";

/// The milliseconds of `stage` in a Server-Timing field.
fn in_field(field: &str, stage: &str) -> f64 {
    let metrics = field
        .split(", ")
        .filter_map(|metric| metric.split_once(";dur="));
    let millis = metrics.filter(|(name, _)| *name == stage);
    millis
        .map(|(_, millis)| millis.parse::<f64>().expect("a number"))
        .sum()
}

/// The microseconds of `stage` in the line of the access log about `path`.
fn in_log(server: &Server, path: &str, stage: &str) -> u64 {
    let log = server.tree().path("access.log");
    let line_of = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let prefix = format!("{path} ");
        text.lines()
            .find_map(|line| line.strip_prefix(&prefix))
            .map(str::to_owned)
    };
    assert!(eventually(|| line_of().is_some()), "no line about {path}");
    let line = line_of().unwrap_or_default();
    let told = line
        .split([' ', ','])
        .find_map(|part| part.strip_prefix(&format!("{stage}=")));
    told.map_or(0, |micros| micros.parse().expect("a number"))
}

#[track_caller]
fn expect_stage(server: &Server, path: &str, stage: &str) {
    let micros = in_log(server, path, stage);
    assert!(
        u128::from(micros) >= STAGE_MIN.as_micros(),
        "{path} {stage}={micros}"
    );
}

#[test]
fn waiting_for_a_look_up_is_told_as_map() {
    let mut slow = None;
    let server = Server::build()
        .file("www/slow/a.txt", "a")
        .tree(|tree| slow = SlowFs::mount_or_skip("stages", &tree.path("www/slow")))
        .config(&format!("server.modules += (\"mod_accesslog\")\n{CONFIG}"))
        .start();
    let Some(slow) = slow else { return };
    slow.hang();
    let before = slow.total();
    let mut client = server.client();
    client.send("GET /slow/a.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(eventually(|| slow.total() > before), "it is not looked up");
    thread::sleep(PAUSE);
    slow.release();
    let response = client.response();
    assert_eq!(response.text(), "a");
    let field = response.field("Server-Timing").unwrap_or_default();
    assert!(in_field(field, "map") >= 100.0, "{field}");
    expect_stage(&server, "/slow/a.txt", "map");
}

#[test]
fn every_wait_for_a_backend_has_its_stage() {
    let backend = Backend::start(Speaks::Http, |exchange| match exchange.target() {
        "/b/trickles" => {
            exchange.head(200, &[("X-Accel-Buffering", "no")]);
            exchange.body("a");
            exchange.pause(PAUSE);
            exchange.body("b");
            exchange.end();
        }
        _ => {
            exchange.read_body();
            exchange.pause(PAUSE);
            exchange.answer(200, &[], "late");
        }
    });
    let server = Server::build()
        .file(
            "www/p.sh",
            "#!/bin/sh\nsleep 0.2\nprintf 'Content-Type: text/plain\\r\\n\\r\\nc'\n",
        )
        .config(&format!(
            "server.modules += (\"mod_accesslog\", \"mod_cgi\")\n{CONFIG}\
             $HTTP[\"url\"] == \"/b/trickles\" {{ server.stream-response-body = 2 }}\n\
             cgi.assign = (\".sh\" => \"/bin/sh\")\n{}",
            backend.directive("/b/", ""),
        ))
        .start();
    assert_eq!(server.get("/b/late").text(), "late");
    expect_stage(&server, "/b/late", "backend-first-byte");
    assert_eq!(server.get("/b/trickles").text(), "ab");
    expect_stage(&server, "/b/trickles", "backend-body");
    assert_eq!(server.get("/p.sh").text(), "c");
    expect_stage(&server, "/p.sh", "backend-first-byte");

    // The wait begins when the server asks for the body.
    let mut client = server.client();
    client.send(
        "POST /b/posted HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n",
    );
    let interim = client.read_bytes(25);
    assert!(interim.starts_with(b"HTTP/1.1 100 "), "{interim:?}");
    thread::sleep(PAUSE);
    client.send("abc");
    assert_eq!(client.response().text(), "late");
    expect_stage(&server, "/b/posted", "request-body");
    expect_stage(&server, "/b/posted", "backend-first-byte");
}
