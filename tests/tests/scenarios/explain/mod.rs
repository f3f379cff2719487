//! `petrel explain` beside a running server, under generated configurations: what it says of a request has to
//! be what the server does.
//!
//! Each configuration has nested conditions with `else`, and in its blocks rewriting, redirects, aliases,
//! document roots, virtual hosts, index files, error handlers and a backend. The content of each file is its
//! path, so that an answer tells which file was opened. `server.tag` and a response field differ in each
//! block, so that an answer tells which blocks applied.

mod configuration;

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use petrel_tests::{Backend, Client, PATIENCE, Response, Server, Speaks, petrel, run};
use serde_json::Value;

use configuration::{FILES, Random};

/// How many configurations there are.
const CONFIGURATIONS: u64 = 200;

/// After this time no further configuration is tried.
const TIME: Duration = Duration::from_secs(20);

/// How many are tried at least, on a slow machine.
const CONFIGURATIONS_MIN: u64 = 20;

/// Configurations that are tried at the same time.
const THREADS: usize = 2;

/// How many URLs are asked for in each way, under one configuration.
const URLS: usize = 6;

/// Set to the number of one configuration, it is tried alone and shown.
const ONLY: &str = "PETREL_EXPLAIN_SEED";

/// It takes so long because it tries as many configurations as the time allows.
#[test]
fn it_says_what_the_server_does() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        let told = ["SCRIPT_FILENAME", "PATH_INFO"].map(|name| {
            let value = exchange.request().param(name).unwrap_or_default();
            format!("{name}={value}\n")
        });
        exchange.say(&told.concat());
    });
    let only: Option<u64> = std::env::var(ONLY)
        .ok()
        .map(|seed| seed.parse().expect("a number"));
    if let Some(seed) = only {
        let (found, text) = differences(seed, &backend);
        println!("{text}");
        assert!(found.is_empty(), "{}", found.join("\n"));
        return;
    }
    let (next, tried) = (AtomicU64::new(0), AtomicU64::new(0));
    let findings = Mutex::new(Vec::new());
    let begin = Instant::now();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= CONFIGURATIONS || seed > CONFIGURATIONS_MIN && begin.elapsed() > TIME
                    {
                        return;
                    }
                    let (found, _) = differences(seed, &backend);
                    tried.fetch_add(1, Ordering::Relaxed);
                    findings
                        .lock()
                        .expect("no thread panics with it")
                        .extend(found);
                }
            });
        }
    });
    let findings = findings.into_inner().expect("no thread panics with it");
    println!(
        "{} configurations in {:?}",
        tried.into_inner(),
        begin.elapsed()
    );
    assert!(
        findings.is_empty(),
        "{} differences ({ONLY}=N shows the configuration N):\n{}",
        findings.len(),
        findings.join("\n")
    );
}

/// What differs under configuration number `seed`, and its text.
fn differences(seed: u64, backend: &Backend) -> (Vec<String>, String) {
    let mut random = Random::new(seed);
    let text = configuration::make(&mut random, &backend.host());
    let server = Server::build()
        .tree(|tree| {
            for file in FILES {
                tree.write(file, file);
            }
        })
        .config(&text)
        .start();
    let from = *random.choose(&[[127, 0, 0, 1], [127, 0, 0, 7], [127, 1, 0, 1]]);
    let mut found = Vec::new();
    for (method, field) in [
        ("GET", None),
        (
            *random.choose(&["GET", "HEAD", "POST", "PUT"]),
            Some("X-Field: two"),
        ),
    ] {
        let asked = Asked {
            method,
            field,
            from: Ipv4Addr::from(from),
            urls: (0..URLS)
                .map(|_| {
                    (
                        *random.choose(&configuration::HOSTS),
                        random.choose(&configuration::TARGETS).to_string(),
                    )
                })
                .collect(),
        };
        for (url, note) in asked.differences(&server) {
            found.push(format!(
                "{seed}: {method} {url} from {}: {note}",
                asked.from
            ));
        }
    }
    (found, text)
}

/// Requests that differ only in their URLs.
struct Asked {
    method: &'static str,
    field: Option<&'static str>,
    from: Ipv4Addr,
    /// Hosts and targets.
    urls: Vec<(&'static str, String)>,
}

impl Asked {
    fn differences(&self, server: &Server) -> Vec<(String, String)> {
        let explained = self.explain(server);
        assert_eq!(explained.len(), self.urls.len());
        let mut found = Vec::new();
        for ((host, target), explained) in self.urls.iter().zip(&explained) {
            let answer = self.send(server, host, target);
            for note in compare(explained, &answer, server, self.method) {
                found.push((format!("http://{host}{target}"), note));
            }
        }
        found
    }

    fn explain(&self, server: &Server) -> Vec<Value> {
        let mut command = Command::new(petrel());
        command
            .args(["explain", "--json", "-X", self.method, "--client"])
            .arg(self.from.to_string())
            .arg("-f")
            .arg(server.tree().path("petrel.conf"));
        if let Some(field) = self.field {
            command.args(["-H", field]);
        }
        for (host, target) in &self.urls {
            command.arg(format!("http://{host}:{}{target}", server.port()));
        }
        let finished = run(&mut command, PATIENCE);
        assert_eq!(finished.code(), 0, "{}", finished.errors);
        let text = finished.text();
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect()
    }

    fn send(&self, server: &Server, host: &str, target: &str) -> Response {
        let mut head = format!(
            "{} {target} HTTP/1.1\r\nHost: {host}:{}\r\n",
            self.method,
            server.port()
        );
        if let Some(field) = self.field {
            head += &format!("{field}\r\n");
        }
        if self.method == "POST" {
            head += "Content-Length: 0\r\n";
        }
        let mut client = Client::connect_from(self.from, server.address());
        client.send(format!("{head}\r\n"));
        match self.method {
            "HEAD" => client.response_to_head(),
            _ => client.response(),
        }
    }
}

/// What the explanation has wrong.
fn compare(explained: &Value, answer: &Response, server: &Server, method: &str) -> Vec<String> {
    let mut notes = Vec::new();
    let mut differs = |what: &str, said: &str, is: &str| {
        if said != is {
            notes.push(format!("{what}: explain says {said:?}, the server {is:?}"));
        }
    };
    let said = &explained["answer"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let directives = explained["directives"].as_array().expect("a list");
    let tag = directives
        .iter()
        .find(|directive| directive["name"] == "server.tag");
    let tag = tag.map(|tag| text(&tag["value"])).unwrap_or_default();
    differs(
        "server.tag",
        tag.trim_matches('"'),
        answer.field("Server").unwrap_or_default(),
    );
    for field in said["fields"].as_array().expect("a list") {
        let (name, value) = (text(&field[0]), text(&field[1]));
        let all = answer.all(&name);
        if !all.contains(&&*value) {
            differs(&name, &value, &all.join(" | "));
        }
    }
    let path = text(&explained["file"]["path"]);
    match said["status"].as_u64() {
        Some(status) => {
            differs("status", &status.to_string(), &answer.status.to_string());
            if let Some(length) = said["length"].as_u64().filter(|_| method != "HEAD") {
                let length = length.to_string();
                differs(
                    "length",
                    &length,
                    answer.field("Content-Length").unwrap_or("0"),
                );
            }
            if said["module"] == "mod_staticfile" && status == 200 && method != "HEAD" {
                let root = format!("{}/", server.tree().root().display());
                differs(
                    "file",
                    path.strip_prefix(&root).unwrap_or(&path),
                    &answer.text(),
                );
            }
        }
        // No application has answered a HEAD with the words of ours.
        None if method == "HEAD" => {}
        None => {
            let info = text(&explained["file"]["path_info"]);
            let told = format!("SCRIPT_FILENAME={path}\nPATH_INFO={info}\n");
            differs("what the backend got", &told, &answer.text());
        }
    }
    notes
}
