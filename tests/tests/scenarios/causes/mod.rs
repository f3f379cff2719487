//! Causes of slow requests, each of a known length and with a known culprit, and what the access log, the status page
//! and `petrel why` say of them. Each file has one cause. It is tried over HTTP/1 and HTTP/2, unless it is a matter of
//! one of them. Others are in `faults` and `http/stages.rs`.

mod backend_works;
mod bandwidth_limit;
mod busy_worker;
mod client_leaves;
mod compression;
mod deaf_backend;
mod disk_threads;
mod file_of_script;
mod full_pool;
mod handshake_of_backend;
mod handshake_of_client;
mod long_script;
mod missing_name;
mod no_processor;
mod reply_drips;
mod sent_file;
mod silent_tunnel;
mod slow_listing;
mod slow_look_up;
mod slow_read;
mod slow_reader;
mod slow_upload;
mod store_is_silent;
mod subrequest;
mod symlink_to_slow_disk;
mod upload_to_slow_disk;

use std::time::Duration;

use petrel_tests::{
    Backend, Builder, Finished, Server, Speaks, curl, eventually, expect_note_everywhere,
};

/// How long the cause lasts.
const PAUSE: Duration = Duration::from_millis(200);

/// The least time that has to be told. The server may notice the beginning of a pause later than the test that makes
/// it.
const TOLD_MIN: Duration = Duration::from_millis(100);

const CONFIG: &str = "server.max-worker = 1\nserver.h2c = \"enable\"\n\
    accesslog.format = \"%U %{stages}x id=%{request-id}x waits=%{waits}x\"\n\
    accesslog.filename = var.dir + \"/access.log\"\n\
    server.modules += (\"mod_accesslog\", \"mod_status\")\nstatus.status-url = \"/status\"\n";

/// The version of HTTP that the client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Http1,
    Http2,
}

impl Version {
    const BOTH: [Version; 2] = [Version::Http1, Version::Http2];

    /// Asks for `path` with curl, which discards what it gets.
    fn ask(self, server: &Server, path: &str, more: &[&str]) -> Finished {
        let version = match self {
            Version::Http1 => "--http1.1",
            Version::Http2 => "--http2-prior-knowledge",
        };
        let url = server.url(path);
        curl(&[&[version, "--output", "/dev/null", &url], more].concat())
    }
}

fn site() -> Builder {
    Server::build().file("www/a.txt", "a").config(CONFIG)
}

/// A site with a backend below `/b`, which does `work`.
fn site_with(backend: &Backend, options: &str) -> Builder {
    site().config(&backend.directive("/b", options))
}

/// A backend that answers after [`PAUSE`].
fn slow_backend() -> Backend {
    Backend::start(Speaks::Http, |exchange| {
        exchange.read_body();
        exchange.pause(PAUSE);
        exchange.say("late");
    })
}

/// What is told about a request.
struct Told {
    line: String,
    id: String,
}

impl Told {
    /// What the access log says about the request for `path`.
    #[track_caller]
    fn about(server: &Server, path: &str) -> Told {
        let log = server.tree().path("access.log");
        let prefix = format!("{path} ");
        let find = || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            text.lines()
                .find_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
        };
        let is_there = eventually(|| find().is_some());
        let all = || std::fs::read_to_string(&log).unwrap_or_default();
        assert!(is_there, "no line about {path}: {}", all());
        let line = find().unwrap_or_default();
        let id = line.split(' ').find_map(|part| part.strip_prefix("id="));
        Told {
            id: id.expect("an id").to_owned(),
            line,
        }
    }

    /// The time of `stage`.
    fn time(&self, stage: &str) -> Duration {
        let (times, _) = self.line.split_once(" id=").expect("an id");
        let prefix = format!("{stage}=");
        let told = times
            .split([' ', ','])
            .find_map(|part| part.strip_prefix(&prefix));
        let micros = told.map_or(0, |micros| micros.parse().expect("a number"));
        Duration::from_micros(micros)
    }

    /// The cause is told as `stage`, and a note whose text contains `words` says so, wherever people look.
    #[track_caller]
    fn expect(&self, server: &Server, stage: &str, words: &str) -> &Told {
        let note = self.note(stage, words);
        expect_note_everywhere(server, &self.id, note);
        self
    }

    /// The note in the log that the cause was `stage`, with a text that contains `words`.
    #[track_caller]
    fn note(&self, stage: &str, words: &str) -> &str {
        assert!(self.time(stage) >= TOLD_MIN, "{stage}: {}", self.line);
        let notes = self.line.split_once(" waits=").expect("notes").1;
        let mut notes = notes.split("; ");
        let note = notes.find(|note| {
            note.strip_prefix(stage)
                .is_some_and(|rest| rest.starts_with(' ') && rest.contains(words))
        });
        note.unwrap_or_else(|| panic!("no {stage} with {words:?}: {}", self.line))
    }

    /// Less than half of the cause is told as `stage`, which is not to blame.
    #[track_caller]
    fn acquits(&self, stage: &str) -> &Told {
        assert!(self.time(stage) < PAUSE / 2, "{stage}: {}", self.line);
        self
    }
}
