//! Configurations as published for well-known applications: each starts, and answers what its first lines
//! say.
//!
//! They are in `published/`, written from scratch after public documentation. Backends of the test and small
//! programs stand in for the applications and return what they were asked. In a text `DIR` is the directory
//! of the test, `PHP` and `SCGI` are sockets of backends, and `HTTPPORT` is the port of one.

use std::fs;
use std::path::Path;

use petrel_tests::{Backend, Builder, Exchange, Server, Speaks, base64};

/// A request in a text, and its expected result.
struct Asked<'t> {
    method: &'t str,
    /// User name and password, separated by a colon.
    user: Option<&'t str>,
    host: &'t str,
    target: String,
    status: u16,
    /// A part of the response's head or body.
    told: &'t str,
}

/// It takes so long because more than forty servers start, one after the other.
#[test]
fn published_configurations_start_and_answer() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/real_input/published");
    let backends = Backends::start();
    let mut count = 0;
    for entry in fs::read_dir(&directory).expect("the configurations") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("a configuration");
        let name = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        println!("--- {name}");
        let server = start(&text, &backends);
        for asked in requests(&text) {
            asked.expect_of(&server, &name);
        }
        count += 1;
    }
    assert!(count >= 40, "{count} configurations");
}

/// The backends that stand in for applications.
struct Backends {
    fastcgi: Backend,
    scgi: Backend,
    http: Backend,
}

impl Backends {
    fn start() -> Backends {
        let tell = |protocol: &'static str| {
            move |exchange: &mut Exchange<'_>| {
                let names = ["SCRIPT_NAME", "PATH_INFO", "QUERY_STRING"];
                let told = names.map(|name| exchange.param(name).to_owned());
                exchange.say(&format!("{protocol} {}", told.join("|")));
            }
        };
        Backends {
            fastcgi: Backend::start(Speaks::FastCgi, tell("fastcgi")),
            scgi: Backend::start(Speaks::Scgi, tell("scgi")),
            http: Backend::start_on_tcp(Speaks::Http, |exchange| {
                let target = exchange.target().to_owned();
                exchange.say(&format!("http {target}"));
            }),
        }
    }

    /// `text` with the addresses of these backends.
    fn put_into(&self, text: &str) -> String {
        let path = |backend: &Backend| backend.name().trim_start_matches("unix:").to_owned();
        let http = self.http.name();
        let port = http.rsplit(':').next().expect("an address with a port");
        text.replace("\"PHP\"", &format!("\"{}\"", path(&self.fastcgi)))
            .replace("\"SCGI\"", &format!("\"{}\"", path(&self.scgi)))
            .replace("HTTPPORT", port)
    }
}

/// A server with the configuration and the files that it names.
fn start(text: &str, backends: &Backends) -> Server {
    let mut builder: Builder = Server::build();
    for line in text.lines() {
        if let Some(file) = line.strip_prefix("# file: ") {
            builder = match file.split_once('=') {
                Some((path, content)) => builder.file(path, format!("{content}\n")),
                None => builder.file(file, file),
            };
        }
        if let Some(path) = line.strip_prefix("# program: ") {
            let program = match path.ends_with(".pl") {
                true => PERL,
                false => SHELL,
            };
            builder = builder.tree(|tree| {
                tree.write(path, program).mode(path, 0o755);
            });
        }
    }
    let text = backends.put_into(text).replace("\"DIR", "var.dir + \"");
    builder.config(&text).start()
}

/// Answers as the backends do, and adds the user.
const SHELL: &str = "#!/bin/sh\nprintf 'Content-Type: text/plain\\r\\n\\r\\ncgi %s|%s|%s|%s' \
    \"$SCRIPT_NAME\" \"$PATH_INFO\" \"$QUERY_STRING\" \"$REMOTE_USER\"\n";

/// The same in Perl.
const PERL: &str = "print \"Content-Type: text/plain\\r\\n\\r\\ncgi \", \
    join('|', map { $ENV{$_} // '' } qw(SCRIPT_NAME PATH_INFO QUERY_STRING REMOTE_USER));\n";

/// The lines of `text` with an arrow.
fn requests(text: &str) -> Vec<Asked<'_>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("# "));
    let asked = lines.filter_map(|line| line.split_once(" -> "));
    let asked: Vec<Asked<'_>> = asked
        .map(|(request, answer)| Asked::read(request, answer))
        .collect();
    assert!(!asked.is_empty(), "nothing is asked: {text}");
    asked
}

impl<'t> Asked<'t> {
    fn read(request: &'t str, answer: &'t str) -> Asked<'t> {
        let (method, address) = request.split_once(' ').expect("a method");
        let (user, address) = match address.split_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, address),
        };
        let (host, path) = address.split_once('/').expect("a path");
        let (status, told) = answer.split_once(' ').unwrap_or((answer, ""));
        Asked {
            method,
            user,
            host,
            target: format!("/{path}"),
            status: status.parse().expect("a status"),
            told,
        }
    }

    fn expect_of(&self, server: &Server, name: &str) {
        let Asked {
            method,
            host,
            target,
            ..
        } = self;
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n");
        if let Some(user) = self.user {
            let field = base64(user.as_bytes());
            head.push_str(&format!("Authorization: Basic {field}\r\n"));
        }
        if *method != "GET" {
            head.push_str("Content-Length: 0\r\n");
        }
        let response = server.exchange(head + "\r\n");
        let whole = format!(
            "{}{}",
            String::from_utf8_lossy(&response.head),
            response.text()
        );
        let is_right = response.status == self.status && whole.contains(self.told);
        assert!(
            is_right,
            "{name}: {method} {host}{target}: {} {:?} expected:\n{whole}",
            self.status, self.told
        );
    }
}
