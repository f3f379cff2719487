//! A server under test: its files, its configuration, its processes and what it logged.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::client::Client;
use crate::process::{Holdings, ProcessTree};
use crate::response::Response;
use crate::stream::Address;
use crate::tree::Tree;
use crate::{PATIENCE, eventually, free_port, petrel};

/// More time than the server buffers a log line.
const LOG_ROUND: Duration = Duration::from_millis(120);

/// How many looks in a row, 40 ms apart, must see the same before a server counts as idle.
const STEADY_TIMES: usize = 8;

/// Builds and starts a server.
///
/// The configuration begins with [`DEFAULTS`]. A line of the test that begins with the name of a directive
/// there replaces it. `var.dir` is the directory of the tree, `var.port` the port.
#[derive(Debug)]
pub struct Builder {
    tree: Tree,
    config: String,
    environment: Vec<(String, String)>,
    program: Program,
}

/// The program to start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Program {
    #[default]
    Petrel,
    Lighttpd,
}

/// The beginning of every configuration.
const DEFAULTS: [&str; 7] = [
    "server.bind = \"127.0.0.1\"",
    "server.port = var.port",
    "server.document-root = var.dir + \"/www\"",
    "server.errorlog = var.dir + \"/error.log\"",
    "server.max-worker = 2",
    // So that connections which a test uses again later are still open then, even on a slow machine.
    "server.max-keep-alive-idle = 60",
    "index-file.names = (\"index.html\")",
];

/// Tests ask for the pages of mod_status by a name that the configuration does not have.
const STATUS_ALLOW: &str = "status.allow = ( \"127.0.0.0/8\" )";

impl Builder {
    /// Adds a file; `path` is relative to the tree, in which `www` is the document root.
    pub fn file(self, path: &str, content: impl AsRef<[u8]>) -> Builder {
        self.tree.write(path, content);
        self
    }

    /// Changes the tree.
    pub fn tree(self, make: impl FnOnce(&Tree)) -> Builder {
        make(&self.tree);
        self
    }

    /// Adds lines to the configuration.
    pub fn config(mut self, lines: &str) -> Builder {
        self.config.push_str(lines);
        self.config.push('\n');
        self
    }

    /// Sets an environment variable of the server.
    pub fn environment(mut self, name: &str, value: &str) -> Builder {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts Petrel and waits until it accepts connections.
    ///
    /// # Panics
    /// It does not.
    pub fn start(self) -> Server {
        let mut command = Command::new(petrel());
        command.arg("-D");
        self.launch(command)
    }

    /// Starts lighttpd on the same tree and configuration.
    ///
    /// # Panics
    /// It does not accept connections.
    pub fn start_lighttpd(mut self) -> Server {
        self.program = Program::Lighttpd;
        let mut command = Command::new("lighttpd");
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin")).arg("-D");
        self.launch(command)
    }

    /// Starts the server through `command`, another program that runs Petrel. The command gets `-f` and the
    /// configuration as its last arguments.
    ///
    /// # Panics
    /// It does not accept connections.
    pub fn start_as(self, command: Command) -> Server {
        self.launch(command)
    }

    /// Runs `petrel` with `arguments` and `-f` with the configuration, until it ends.
    pub fn check(self, arguments: &[&str]) -> crate::Finished {
        self.check_as(Command::new(petrel()), arguments)
    }

    /// As [`Builder::check`], through `command`, another program that runs Petrel.
    pub fn check_as(self, mut command: Command, arguments: &[&str]) -> crate::Finished {
        self.tree.directory("www");
        write_configuration(&self.tree, free_port(), &self.config, Program::Petrel);
        command
            .args(arguments)
            .arg("-f")
            .arg(self.tree.path(CONFIGURATION));
        crate::run(&mut command, 4 * PATIENCE)
    }

    fn launch(self, mut command: Command) -> Server {
        self.tree.directory("www");
        let port = free_port();
        write_configuration(&self.tree, port, &self.config, self.program);
        let output = File::create(self.tree.path("output")).expect("a file for the output");
        command
            .arg("-f")
            .arg(self.tree.path(CONFIGURATION))
            .envs(self.environment)
            .current_dir(self.tree.root())
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a descriptor"))
            .stderr(output);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let address = Address::Ip(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let mut server = Server {
            child,
            ended: None,
            tree: self.tree,
            config: self.config,
            port,
            address,
            program: self.program,
        };
        server.wait_until_it_accepts();
        server
    }
}

/// A running server. Dropping it kills it together with its child processes, and shows its log if the test
/// panics.
#[derive(Debug)]
pub struct Server {
    child: Child,
    ended: Option<ExitStatus>,
    tree: Tree,
    config: String,
    port: u16,
    address: Address,
    program: Program,
}

impl Server {
    /// A builder for a server, with an empty document root.
    pub fn build() -> Builder {
        Builder {
            tree: Tree::new(),
            config: String::new(),
            environment: Vec::new(),
            program: Program::default(),
        }
    }

    /// Starts Petrel with `config` on a document root in which `index.html` says "hello".
    ///
    /// # Panics
    /// It does not start.
    pub fn start(config: &str) -> Server {
        Server::build()
            .file("www/index.html", "hello")
            .config(config)
            .start()
    }

    /// The tree it serves.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The port of the main listener.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The main listener.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// `http://127.0.0.1:PORT` and `path`.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The process that was started.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The server's process and all its descendants.
    pub fn processes(&self) -> ProcessTree {
        ProcessTree::of(self.pid())
    }

    /// A new connection to the main listener.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(&self.address)
    }

    /// Sends a GET on a new connection.
    #[track_caller]
    pub fn get(&self, target: &str) -> Response {
        self.client().get(target)
    }

    /// Sends `bytes` on a new connection and waits for one response.
    #[track_caller]
    pub fn exchange(&self, bytes: impl AsRef<[u8]>) -> Response {
        self.client().send(bytes).response()
    }

    /// Sends a signal to the process that was started.
    ///
    /// # Panics
    /// It has ended.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the server is running");
    }

    /// Replaces the configuration file. The server reads it at the next reload.
    pub fn write_configuration(&self, config: &str) {
        write_configuration(&self.tree, self.port, config, self.program);
    }

    /// The test's own part of the configuration.
    pub fn configuration(&self) -> &str {
        &self.config
    }

    /// Starts lighttpd with the files of this server, which has ended.
    ///
    /// # Panics
    /// As [`Builder::start_lighttpd`].
    pub fn start_again_as_lighttpd(mut self) -> Server {
        let builder = Builder {
            tree: std::mem::replace(&mut self.tree, Tree::new()),
            config: self.config.clone(),
            environment: Vec::new(),
            program: Program::default(),
        };
        builder.start_lighttpd()
    }

    /// Its exit status, if it ends within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let begin = Instant::now();
        loop {
            if self.ended.is_none() {
                self.ended = self.child.try_wait().expect("it is our child");
            }
            if self.ended.is_some() || begin.elapsed() > limit {
                return self.ended;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Everything in its error log so far, and its output. The server buffers lines for a twentieth of a
    /// second; this waits longer.
    pub fn log(&self) -> String {
        std::thread::sleep(LOG_ROUND);
        self.tree.text("error.log") + &self.tree.text("output")
    }

    /// Waits until `text` is in the log.
    ///
    /// # Panics
    /// It does not appear.
    #[track_caller]
    pub fn expect_log(&self, text: &str) {
        if !eventually(|| self.log().contains(text)) {
            panic!("{text:?} is not in the log:\n{}", self.log());
        }
    }

    /// What its processes hold, once that stays the same for a moment: a connection that was just closed may
    /// still be open on the server's side, and so may those of a worker that is waiting for a processor.
    pub fn holdings(&self) -> Holdings {
        let mut last = self.processes().holdings();
        let mut times = 0;
        for _ in 0..100 {
            std::thread::sleep(Duration::from_millis(40));
            let now = self.processes().holdings();
            times = if now == last { times + 1 } else { 0 };
            if times == STEADY_TIMES {
                break;
            }
            last = now;
        }
        last
    }

    /// Waits until its processes hold the same as `before`: see [`Holdings::are_as`].
    ///
    /// # Panics
    /// They still hold something else.
    #[track_caller]
    pub fn expect_holdings(&self, before: &Holdings) {
        if !eventually(|| self.processes().holdings().are_as(before)) {
            panic!("before: {before:#?}\nafter: {:#?}", self.holdings());
        }
    }

    fn wait_until_it_accepts(&mut self) {
        let begin = Instant::now();
        while Client::try_connect(&self.address).is_err() {
            if let Some(status) = self.wait(Duration::ZERO) {
                panic!("the server ended, {status}:\n{}", self.log());
            }
            assert!(
                begin.elapsed() < 4 * PATIENCE,
                "the server does not accept:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.wait(Duration::ZERO).is_none() {
            // Lists the children before the keeper is killed: after that none of them can be restarted.
            let pids = self.processes().pids;
            // It may end by itself in between.
            let _ = self.child.kill();
            let _ = self.child.wait();
            for pid in pids.into_iter().skip(1) {
                if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
        }
        if std::thread::panicking() {
            let log = self.log();
            let shown: Vec<&str> = log.lines().take(60).collect();
            eprintln!("--- the server's log\n{}\n---", shown.join("\n"));
        }
    }
}

const CONFIGURATION: &str = "petrel.conf";

/// By default root's socket would be in /run, and stay there when a test kills its server.
const CONTROL_SOCKET: &str = "server.control-socket = var.dir + \"/control\"";

fn write_configuration(tree: &Tree, port: u16, config: &str, program: Program) {
    let mut text = format!(
        "var.dir = \"{}\"\nvar.port = {port}\n",
        tree.root().display()
    );
    let is_petrel = program == Program::Petrel;
    let of_petrel = is_petrel.then_some(CONTROL_SOCKET);
    let of_status = (is_petrel && config.contains("status.")).then_some(STATUS_ALLOW);
    for line in DEFAULTS.into_iter().chain(of_petrel).chain(of_status) {
        let name = line.split(' ').next().expect("it begins with a name");
        if !config
            .lines()
            .any(|own| own.split([' ', '=']).next() == Some(name))
        {
            text.push_str(line);
            text.push('\n');
        }
    }
    tree.write(CONFIGURATION, text + config);
}
