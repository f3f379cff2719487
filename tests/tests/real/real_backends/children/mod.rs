//! php-fpm, php-cgi and Python servers whose processes are busy: which requests wait, where, and for which others.
//!
//! The scripts and the tests meet in files of the directory `state`. A script adds a line to a file when it runs, and
//! waits until a file exists. So a test counts what ran, and says when a slow script ends.

mod growth;
mod namespaces;
mod others;
mod pool;
mod restart;
mod shares;
mod slow_log;
mod works_on;

use std::collections::HashMap;
use std::process::Command;
use std::thread;
use std::time::Duration;

use petrel_tests::{Builder, Client, Component, Listens, Server, Tree, eventually, skip};
use serde_json::Value;

use crate::real_backends::php::fpm;

/// What all scripts share. `step` adds a line to `state/steps`, which tells the order.
const STATE: &str = r#"<?php
function path($name) { return dirname(__DIR__) . '/state/' . $name; }
function note($name) {
    file_put_contents(path('steps'), "$name\n", FILE_APPEND);
    file_put_contents(path($name), getmypid() . "\n", FILE_APPEND);
}
function wait_for($name) { while (!file_exists(path($name))) usleep(2000); }
"#;

/// The scripts by name.
const SCRIPTS: [(&str, &str); 6] = [
    ("fast", "note('fast'); echo getmypid();"),
    (
        "slow",
        "note('slow'); wait_for($_GET['until']); echo getmypid();",
    ),
    // It prints how many microseconds it took.
    (
        "timed",
        "note('timed'); $begin = hrtime(true); usleep(700000); echo intdiv(hrtime(true) - $begin, 1000);",
    ),
    ("short", "usleep(5000); echo getmypid();"),
    (
        "after",
        "echo 'page'; fastcgi_finish_request(); note('after'); wait_for('end'); note('done');",
    ),
    // It asks its own site behind its reply.
    (
        "own",
        "echo 'page'; fastcgi_finish_request(); \
         $answer = file_get_contents(\"http://127.0.0.1:{$_SERVER['SERVER_PORT']}/fast.php\"); \
         file_put_contents(path('own'), getmypid() . ' ' . $answer);",
    ),
];

/// The time after which a wait has a note, and more.
const NOTED: Duration = Duration::from_millis(50);

/// Whether php-fpm is installed. If not, prints that `test` is skipped.
fn can_run_fpm(test: &str) -> bool {
    let is_installed = fpm().is_some();
    if !is_installed {
        skip(test, "php-fpm is not installed");
    }
    is_installed
}

/// Where php-fpm listens.
#[derive(Clone, Debug)]
enum FpmSocket {
    /// On this path.
    Unix(String),
    /// On this port of 127.0.0.1.
    Port(u16),
}

/// A server, and the files in which scripts and tests meet.
struct Site {
    server: Server,
}

impl FpmSocket {
    /// A socket in this tree.
    fn in_tree(tree: &Tree) -> FpmSocket {
        FpmSocket::Unix(tree.path("listen.sock").display().to_string())
    }

    /// A php-fpm that listens here, with these settings of its pool, started through `command`, if that is given.
    fn start_fpm_through(&self, through: &[&str], pool: &str) -> Component {
        let tree = Tree::new();
        let (listen, listens) = match self {
            FpmSocket::Unix(path) => {
                tree.symlink(path, "fpm.sock");
                (path.clone(), Listens::Unix("fpm.sock"))
            }
            FpmSocket::Port(port) => (format!("127.0.0.1:{port}"), Listens::Port(*port)),
        };
        let conf = format!(
            "[global]\nerror_log = {0}/fpm.log\npid = {0}/fpm.pid\ndaemonize = no\n[www]\n\
             listen = {listen}\nuser = root\ngroup = root\ncatch_workers_output = yes\n{pool}\n",
            tree.root().display()
        );
        tree.write("fpm.conf", conf);
        let program = fpm().expect("it was looked for");
        let mut command = match through.split_first() {
            Some((first, arguments)) => {
                let mut command = Command::new(first);
                command.args(arguments).arg(program);
                command
            }
            None => Command::new(program),
        };
        command
            .args(["--nodaemonize", "--allow-to-run-as-root", "--fpm-config"])
            .arg(tree.path("fpm.conf"));
        Component::start(tree, &mut command, &listens)
    }

    fn start_fpm(&self, pool: &str) -> Component {
        self.start_fpm_through(&[], pool)
    }

    /// With this many processes from the start.
    fn start_static(&self, children: usize) -> Component {
        self.start_fpm(&static_pool(children))
    }

    /// The host of `fastcgi.server`.
    fn host(&self) -> String {
        match self {
            FpmSocket::Unix(path) => format!("\"socket\" => \"{path}\""),
            FpmSocket::Port(port) => format!("\"host\" => \"127.0.0.1\", \"port\" => {port}"),
        }
    }
}

fn static_pool(children: usize) -> String {
    format!("pm = static\npm.max_children = {children}")
}

/// A server with the scripts, a page for [`Site::waiting`], and a log for [`Site::logged`].
fn builder(workers: usize) -> Builder {
    let builder = Server::build()
        .tree(|tree| {
            tree.directory("state").write("www/state.php", STATE);
            for (name, script) in SCRIPTS {
                let script = format!("<?php require __DIR__ . '/state.php'; {script}");
                tree.write(&format!("www/{name}.php"), script);
            }
        })
        .config("server.modules += ( \"mod_status\", \"mod_accesslog\" )")
        .config("status.metrics-url = \"/metrics\"")
        .config("accesslog.filename = var.dir + \"/access.log\"")
        .config("accesslog.format = \"%r %s %{stages}x %{waits}x\"");
    builder.config(&format!("server.max-worker = {workers}"))
}

/// A server whose scripts run in the php-fpm that listens at `socket`. `options` of the host each begin with a comma.
fn site_with(socket: &FpmSocket, workers: usize, options: &str) -> Site {
    let directive = format!(
        "server.modules += ( \"mod_fastcgi\" )\nfastcgi.server = ( \".php\" => (( {}{options} )) )",
        socket.host()
    );
    let server = builder(workers).config(&directive).start();
    Site { server }
}

fn site(socket: &FpmSocket, workers: usize) -> Site {
    site_with(socket, workers, "")
}

/// A request in the access log.
struct LoggedRequest {
    target: String,
    /// Microseconds of each stage.
    stages: HashMap<String, u64>,
    /// What it waited for.
    waits: String,
}

impl Site {
    fn state(&self, name: &str) -> String {
        self.server.tree().text(&format!("state/{name}"))
    }

    /// How many scripts have called `note` with this name.
    fn count(&self, name: &str) -> usize {
        self.state(name).lines().count()
    }

    #[track_caller]
    fn expect_count(&self, name: &str, count: usize) {
        let is_so = eventually(|| self.count(name) >= count);
        assert!(
            is_so,
            "{name}: {} of {count}; {}",
            self.count(name),
            self.server.log()
        );
        assert_eq!(self.count(name), count, "{name}");
    }

    /// How many processes have called `note` with this name.
    fn pids(&self, name: &str) -> usize {
        let state = self.state(name);
        let mut pids: Vec<&str> = state.lines().collect();
        pids.sort_unstable();
        pids.dedup();
        pids.len()
    }

    /// Ends the wait of scripts for this file.
    fn end(&self, name: &str) {
        self.server.tree().write(&format!("state/{name}"), "");
    }

    /// A client that has sent a request.
    fn ask(&self, target: &str) -> Client {
        let mut client = self.server.client();
        client.send(format!(
            "GET {target} HTTP/1.1\r\nHost: petrel.test\r\n\r\n"
        ));
        client
    }

    /// Sends `count` requests that last until [`Site::end`] of `until`, and waits until all of them run.
    #[track_caller]
    fn hold(&self, count: usize, until: &str) -> Vec<Client> {
        let before = self.count("slow");
        let target = format!("/slow.php?until={until}");
        let clients = (0..count).map(|_| self.ask(&target)).collect();
        self.expect_count("slow", before + count);
        // The kernel is asked at intervals whether a process has taken a request.
        let is_known = eventually(|| {
            let backend = self.backend();
            let holders = backend["holders"].as_array().expect("a list");
            let slow = holders.iter().filter(|held| held["path"] == "/slow.php");
            slow.count() >= before + count
        });
        assert!(is_known, "{}", self.backend());
        clients
    }

    /// The backend, as the status page has it.
    fn backend(&self) -> Value {
        let answer = self.server.get("/metrics?json");
        let json: Value = serde_json::from_slice(&answer.body).expect("JSON");
        json["backends"][0].clone()
    }

    /// Waits until so many requests wait in Petrel for a process.
    #[track_caller]
    fn expect_waiting(&self, count: u64) {
        let is_so = eventually(|| self.backend()["waiting"] == count);
        assert!(is_so, "{count}: {}", self.backend());
    }

    /// Sends requests from `clients` clients at once, each `count` times, and expects that all are answered 200.
    #[track_caller]
    fn load(&self, target: &str, clients: usize, count: usize) {
        thread::scope(|scope| {
            for _ in 0..clients {
                scope.spawn(|| {
                    let mut client = self.server.client();
                    for _ in 0..count {
                        let response = client.get(target);
                        assert_eq!(response.status, 200, "{response}; {}", self.server.log());
                    }
                });
            }
        });
    }

    /// The requests for `target`, when so many are in the access log.
    #[track_caller]
    fn logged(&self, target: &str, count: usize) -> Vec<LoggedRequest> {
        let mut logged = Vec::new();
        let is_so = eventually(|| {
            let log = self.server.tree().text("access.log");
            let all = log.lines().filter_map(LoggedRequest::parse);
            logged = all.filter(|request| request.target == target).collect();
            logged.len() >= count
        });
        assert!(is_so, "{target}: {} of {count}", logged.len());
        logged
    }
}

impl LoggedRequest {
    fn parse(line: &str) -> Option<LoggedRequest> {
        let mut parts = line.splitn(6, ' ').skip(1);
        let target = parts.next()?.to_owned();
        let stages = parts.nth(2)?.split(',').filter_map(|stage| {
            let (name, time) = stage.split_once('=')?;
            Some((name.to_owned(), time.parse().ok()?))
        });
        Some(LoggedRequest {
            target,
            stages: stages.collect(),
            waits: parts.next().unwrap_or_default().to_owned(),
        })
    }

    /// Microseconds of a stage.
    fn stage(&self, name: &str) -> u64 {
        self.stages.get(name).copied().unwrap_or(0)
    }
}
