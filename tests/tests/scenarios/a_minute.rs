//! Twenty reloads in a minute, while clients do everything that takes long, and much that does not.
//!
//! The module's name is the first in the alphabet, so that the harness begins with this test: no other takes so
//! long, and it must not begin when the others have ended.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use petrel_tests::{Backend, Client, ClientError, Server, Speaks, eventually};

use crate::reload::{HANDSHAKE, SWITCHING, echo, in_front_of, reload, server_processes};

const RELOADS: u32 = 20;

/// The duration of all reloads together.
const WHILE_RELOADING: Duration = Duration::from_secs(40);

/// How long a download, an upload, a tunnel and an event stream last.
const LONG: Duration = Duration::from_secs(20);

/// The number of pieces that this time is divided into.
const PIECES: u32 = 240;

/// A page that takes longer than a graceful stop waits.
const SLOW_PAGE: Duration = Duration::from_secs(12);

/// Much more than the buffers between server and client hold.
const DOWNLOAD: usize = 24 << 20;

const UPLOAD: usize = 6 << 20;

/// A reload does not close a connection that has been idle for less than this.
const IDLE: Duration = Duration::from_millis(900);

/// The responses that clients got: how often each URL had each status.
#[derive(Default)]
struct Answers(Mutex<BTreeMap<String, usize>>);

impl Answers {
    fn count(&self, status: u16, url: &str) {
        let mut answers = self.0.lock().expect("no client panics here");
        *answers.entry(format!("{status} {url}")).or_default() += 1;
    }
}

/// Something that takes long, with a name.
type Long = fn(&Scene<'_>, &str);

/// What each client needs to know.
struct Scene<'a> {
    server: &'a Server,
    answers: Answers,
    end: Instant,
}

impl Scene<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    fn client(&self) -> Client {
        self.server.client().with_patience(6 * LONG)
    }

    /// Downloads a file a little at a time.
    fn download(&self, name: &str) {
        let mut client = self.client().with_receive_buffer(64 * 1024);
        client.send(format!(
            "GET /{name} HTTP/1.1\r\nHost: petrel.test\r\nConnection: close\r\n\r\n"
        ));
        let mut received = 0;
        for _ in 0..PIECES {
            let piece = DOWNLOAD / PIECES as usize;
            received += client.read_bytes(piece).len();
            thread::sleep(LONG / PIECES);
        }
        received += client.read_to_end().len();
        assert!(
            (DOWNLOAD + 100..DOWNLOAD + 1000).contains(&received),
            "{received} bytes"
        );
        self.answers.count(200, &format!("/{name}"));
    }

    /// Uploads a body a little at a time.
    fn upload(&self, name: &str) {
        let mut client = self.client();
        client.send(format!(
            "POST /app/{name} HTTP/1.1\r\nHost: petrel.test\r\nContent-Length: {UPLOAD}\r\n\r\n"
        ));
        let pieces = vec![b'u'; UPLOAD];
        for piece in pieces.chunks(UPLOAD.div_ceil(PIECES as usize)) {
            client.try_send(piece).expect("the server takes it");
            thread::sleep(LONG / PIECES);
        }
        let response = client.response();
        assert_eq!(
            (response.status, response.text()),
            (200, format!("{UPLOAD} bytes"))
        );
        self.answers.count(200, &format!("/app/{name}"));
    }

    /// Sends something through a tunnel now and then.
    fn tunnel(&self, name: &str) {
        let mut client = self.client();
        client.send(HANDSHAKE.replace("TARGET", name));
        assert_eq!(client.response().status, 101);
        for _ in 0..PIECES {
            echo(&mut client);
            thread::sleep(LONG / PIECES);
        }
        self.answers.count(101, &format!("/app/{name}"));
    }

    /// Reads an event stream to its end.
    fn events(&self, name: &str) {
        let events = self.client().get(&format!("/app/{name}"));
        let text = events.text();
        assert_eq!(
            text.matches("data: ").count(),
            PIECES as usize,
            "{}",
            text.len()
        );
        self.answers.count(200, &format!("/app/{name}"));
    }

    /// Requests one page after another, on one connection for as long as the server allows, with a pause of
    /// `pause` in between. During a reload the server keeps an idle connection open for one second. A client
    /// that is slower may find it closed, and sends its request again, as HTTP specifies.
    fn pages(&self, url: &str, pause: Duration) {
        let mut kept: Option<(Client, Instant)> = None;
        while !self.is_over() {
            let last_asked = kept.as_ref().map(|(_, asked)| *asked);
            let mut client = kept
                .take()
                .map_or_else(|| self.client(), |(client, _)| client);
            let asked = Instant::now();
            client.send(format!("GET {url} HTTP/1.1\r\nHost: petrel.test\r\n\r\n"));
            let sent = Instant::now();
            match client.try_response() {
                Ok(response) => {
                    assert_eq!(response.status, 200, "{url}: {response}");
                    self.answers.count(200, url);
                    kept = (!response.closes()).then_some((client, asked));
                }
                Err(ClientError::Closed)
                    if last_asked.is_some_and(|last| sent.duration_since(last) > IDLE) =>
                {
                    continue;
                }
                Err(error) => panic!("{url}: {error}, asked before: {last_asked:?}"),
            }
            thread::sleep(pause);
        }
    }
}

/// A backend with tunnels, event streams, slow pages and uploads.
fn application() -> Backend {
    Backend::start(Speaks::Http, |exchange| {
        let target = exchange.target().to_owned();
        if target.starts_with("/app/tunnel") {
            exchange.raw(SWITCHING);
            loop {
                let bytes = exchange.receive(1 << 16);
                if bytes.is_empty() {
                    return exchange.close();
                }
                exchange.raw(&bytes);
            }
        } else if target.starts_with("/app/events") {
            exchange.head(200, &[("Content-Type", "text/event-stream")]);
            for number in 0..PIECES {
                exchange.body(format!("data: {number}\n\n"));
                exchange.pause(LONG / PIECES);
            }
            exchange.end();
        } else if target.starts_with("/app/upload") {
            let mut bytes = 0;
            while let Some(piece) = exchange.read_some() {
                bytes += piece.len();
            }
            exchange.say(&format!("{bytes} bytes"));
        } else {
            if target.starts_with("/app/slow") {
                exchange.pause(SLOW_PAGE);
            }
            exchange.say(&target);
        }
    })
}

/// It takes so long because there are so many reloads, and because some pages take longer than a stop waits.
#[test]
fn twenty_reloads_in_a_minute_fail_no_request() {
    let application = application();
    let php = Backend::start(Speaks::FastCgi, |exchange| exchange.say("a page"));
    let config = format!(
        "server.drain-generations = 30\nserver.max-request-size = 100000\n\
         server.max-keep-alive-requests = 1000000\n{}",
        php.directive("/php", "\"check-local\" => \"disable\"")
    );
    let server = in_front_of(&application, &config).start();
    for number in 0..5 {
        let name = format!("www/download-{number}");
        server.tree().write(&name, vec![b'x'; DOWNLOAD]);
    }
    let scene = Scene {
        server: &server,
        answers: Answers::default(),
        end: Instant::now() + WHILE_RELOADING,
    };
    thread::scope(|threads| {
        for number in 0..5 {
            let scene = &scene;
            // The last ones begin in the middle, and end with the reloads.
            let begin = (WHILE_RELOADING - LONG) / 4 * number;
            let actions: [(Long, &str); 4] = [
                (|scene, name| scene.download(name), "download"),
                (|scene, name| scene.upload(name), "upload"),
                (|scene, name| scene.tunnel(name), "tunnel"),
                (|scene, name| scene.events(name), "events"),
            ];
            for (action, what) in actions {
                threads.spawn(move || {
                    thread::sleep(begin);
                    action(scene, &format!("{what}-{number}"));
                });
            }
        }
        for (url, pause_ms) in [
            ("/", 5),
            ("/", 300),
            ("/", 2500),
            ("/app/page", 10),
            ("/php/page", 10),
            ("/php/other", 500),
            ("/app/slow", 0),
            ("/app/slow", 0),
        ] {
            let scene = &scene;
            threads.spawn(move || scene.pages(url, Duration::from_millis(pause_ms)));
        }
        for round in 0..RELOADS {
            let due = scene.end - WHILE_RELOADING / RELOADS * (RELOADS - 1 - round);
            thread::sleep(
                due.saturating_duration_since(Instant::now() + WHILE_RELOADING / RELOADS / 2),
            );
            for _ in 0..reload(&server, &format!("round {round}")) {
                scene.answers.count(200, "/");
            }
        }
    });
    assert!(
        eventually(|| server_processes(&server) == 1),
        "an old server process is still there"
    );
    let log = server.log();
    for word in ["cut short", "cannot be sent", "drain"] {
        assert!(!log.contains(word), "{log}");
    }
    let access_log = || {
        let mut lines: BTreeMap<String, usize> = BTreeMap::new();
        for line in server.tree().text("access.log").lines() {
            *lines.entry(line.to_owned()).or_default() += 1;
        }
        lines
    };
    let answers = scene.answers.0.into_inner().expect("no client panicked");
    let is_whole = || access_log() == answers;
    assert!(
        eventually(is_whole),
        "clients: {answers:?}\nlog: {:?}",
        access_log()
    );
}
