//! Where the time of a request goes, according to the access log and Server-Timing. More causes of slow requests are in
//! `causes`.

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use petrel_tests::http2::Http2Client;
use petrel_tests::{
    Backend, Operation, Server, SlowFs, Speaks, eventually, expect_note_everywhere,
};

/// How long a request is made to wait.
const PAUSE: Duration = Duration::from_millis(200);

/// The least value of its stage. The server may notice the beginning of a pause later than the client or
/// backend that makes it.
const STAGE_MIN: Duration = Duration::from_millis(100);

const CONFIG: &str = "server.max-worker = 1\nledger.server-timing = \"enable\"\n\
    accesslog.format = \"%U %{stages}x in-kernel=%{in-kernel}x id=%{request-id}x waits=%{waits}x\"\n\
    accesslog.filename = var.dir + \"/access.log\"\n\
    server.modules += (\"mod_accesslog\", \"mod_status\")\nstatus.status-url = \"/status\"\n";

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

/// What the access log says about `path`.
struct Line(String);

impl Line {
    #[track_caller]
    fn about(server: &Server, path: &str) -> Line {
        let log = server.tree().path("access.log");
        let prefix = format!("{path} ");
        let find = || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
        };
        assert!(eventually(|| find().is_some()), "no line about {path}");
        Line(find().unwrap_or_default())
    }

    /// The microseconds of `stage`.
    fn micros(&self, stage: &str) -> u64 {
        let (times, _) = self.0.split_once(" waits=").expect("the notes are last");
        let prefix = format!("{stage}=");
        let told = times
            .split([' ', ','])
            .find_map(|part| part.strip_prefix(&prefix));
        told.map_or(0, |micros| micros.parse().expect("a number"))
    }

    /// The notes about what held the request up.
    fn waits(&self) -> &str {
        self.0.split_once(" waits=").expect("the notes are last").1
    }

    /// The pause was in `stage`, and the rest of the request took no time that a reader would look for.
    #[track_caller]
    fn expect(&self, stage: &str) -> &Line {
        let micros = self.micros(stage);
        assert!(u128::from(micros) >= STAGE_MIN.as_micros(), "{}", self.0);
        self
    }

    /// There is a note about `stage` whose holder contains `words`, in the log and wherever people look for it.
    #[track_caller]
    fn expect_note(&self, server: &Server, stage: &str, words: &str) -> &Line {
        let mut notes = self.waits().split("; ");
        let is_it = |note: &&str| {
            note.strip_prefix(stage)
                .is_some_and(|rest| rest.starts_with(' ') && rest.contains(words))
        };
        let note = notes.find(is_it);
        let note = note.unwrap_or_else(|| panic!("no {stage} with {words:?}: {}", self.0));
        let id = self.0.split(' ').find_map(|part| part.strip_prefix("id="));
        expect_note_everywhere(server, id.expect("an id"), note);
        self
    }
}

#[track_caller]
fn expect_stage(server: &Server, path: &str, stage: &str) {
    Line::about(server, path).expect(stage);
}

/// A server with a file on a file system that hangs on request. `None`: there is no FUSE here.
fn slow_site(test: &str) -> Option<(Server, SlowFs)> {
    let mut slow = None;
    let server = Server::build()
        .file("www/slow/a.txt", "a")
        .file("www/slow/big.txt", vec![b'x'; 300_000])
        .tree(|tree| slow = SlowFs::mount_or_skip(test, &tree.path("www/slow")))
        .config(CONFIG)
        .start();
    Some((server, slow?))
}

/// Requests `path` and lets the file system answer after [`PAUSE`]. Returns Server-Timing.
fn get_slowly(server: &Server, slow: &SlowFs, path: &str) -> String {
    let mut client = server.client();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    slow.expect_hanging(1);
    thread::sleep(PAUSE);
    slow.release();
    let response = client.response();
    assert_eq!(response.status, 200);
    response
        .field("Server-Timing")
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn a_slow_look_up_is_told_as_open() {
    let Some((server, slow)) = slow_site("open") else {
        return;
    };
    slow.hang_on(&[Operation::Lookup]);
    let field = get_slowly(&server, &slow, "/slow/a.txt");
    assert!(in_field(&field, "open") >= 100.0, "{field}");
    assert!(in_field(&field, "map") < 50.0, "{field}");
    Line::about(&server, "/slow/a.txt")
        .expect("open")
        .expect_note(&server, "open", "/slow (fuse");
}

/// Opening a file may ask the file system for its metadata as well, to check permissions. FUSE does so here.
#[test]
fn slow_metadata_is_told_as_open_or_stat() {
    let Some((server, slow)) = slow_site("stat") else {
        return;
    };
    slow.hang_on(&[Operation::Stat]);
    let field = get_slowly(&server, &slow, "/slow/a.txt");
    let asked = in_field(&field, "open") + in_field(&field, "stat");
    assert!(asked >= 100.0, "{field}");
    assert!(in_field(&field, "map") < 50.0, "{field}");
    let line = Line::about(&server, "/slow/a.txt");
    assert!(line.waits().contains("/slow/a.txt on "), "{}", line.0);
}

#[test]
fn every_wait_for_a_backend_has_its_stage() {
    let backend = Backend::start(Speaks::Http, |exchange| match exchange.target() {
        "/b/trickles" | "/b/drips" => {
            exchange.head(200, &[]);
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
            "server.modules += (\"mod_cgi\")\n{CONFIG}\
             $HTTP[\"url\"] == \"/b/trickles\" {{ server.stream-response-body = 2 }}\n\
             cgi.assign = (\".sh\" => \"/bin/sh\")\n{}",
            backend.directive("/b/", ""),
        ))
        .start();
    assert_eq!(server.get("/b/late").text(), "late");
    expect_stage(&server, "/b/late", "backend-first-byte");
    assert_eq!(server.get("/b/trickles").text(), "ab");
    expect_stage(&server, "/b/trickles", "backend-body");
    // The first part is sent after 50 ms.
    assert_eq!(server.get("/b/drips").text(), "ab");
    for path in ["/b/trickles", "/b/drips"] {
        Line::about(&server, path)
            .expect("backend-body")
            .expect_note(&server, "backend-body", " sent its reply");
    }
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

/// A script that keeps its worker busy for 300 ms.
const BUSY: &str = "local begin = os.clock()\nwhile os.clock() - begin < 0.3 do end\n";

fn busy_site() -> Server {
    Server::build()
        .file("busy.lua", BUSY)
        .file("www/a.txt", "a")
        .file("www/lagged.txt", "b")
        .config(&format!(
            "server.modules += (\"mod_magnet\")\n{CONFIG}\
             lua.max-run-time = 2000\nserver.h2c = \"enable\"\n\
             $HTTP[\"url\"] =~ \"^/busy\" {{ magnet.attract-raw-url-to = (var.dir + \"/busy.lua\") }}\n"
        ))
        .start()
}

#[test]
fn a_busy_worker_is_told_as_lag_and_names_the_script() {
    let server = busy_site();
    let mut clients = [(); 3].map(|()| server.client());
    for client in &mut clients {
        assert_eq!(client.get("/a.txt").text(), "a");
    }
    // While the worker runs the script for the first client, two more requests come. It learns of both at
    // once, and runs the script for the second client before it reads the request of the third.
    for (client, target) in clients
        .iter_mut()
        .zip(["/busy-1", "/busy-2", "/lagged.txt"])
    {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        thread::sleep(PAUSE / 4);
    }
    for client in &mut clients {
        client.response();
    }
    let line = Line::about(&server, "/lagged.txt");
    line.expect("lag")
        .expect_note(&server, "lag", "busy.lua ran ");
    let line = Line::about(&server, "/busy-2");
    line.expect("in-kernel")
        .expect_note(&server, "lag", "busy.lua ran ");
}

#[test]
fn a_request_of_http2_is_told_what_kept_its_worker_busy() {
    let server = busy_site();
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    let mut http2 = Http2Client::begin(stream, "http");
    assert_eq!(http2.get("/a.txt", 1).ok, 1);
    let mut busy = server.client();
    assert_eq!(busy.get("/a.txt").text(), "a");
    busy.send("GET /busy HTTP/1.1\r\nHost: a\r\n\r\n");
    thread::sleep(PAUSE / 4);
    assert_eq!(http2.get("/lagged.txt", 1).ok, 1);
    Line::about(&server, "/lagged.txt")
        .expect("in-kernel")
        .expect_note(&server, "lag", "busy.lua ran ");
}
