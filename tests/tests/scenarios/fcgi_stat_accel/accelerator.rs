//! The program under test.

use std::fs::File;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use petrel_tests::fastcgi::{Peer, Reply, begin, params_of, stdin};
use petrel_tests::{PATIENCE, Tree, eventually, petrel};
use rustix::process::{Pid, Signal, kill_process};

/// A running `petrel fcgi-stat-accel`. Dropping it kills the program.
pub struct Accelerator {
    pub child: Child,
    pub tree: Tree,
}

impl Accelerator {
    /// Starts it on `s` of a tree of its own, with further `arguments`.
    pub fn start(arguments: &[&str]) -> Accelerator {
        let tree = Tree::new();
        let log = File::create(tree.path("log")).expect("a file");
        Accelerator::start_saying(arguments, tree, log)
    }

    /// The same, with `errors` as its standard error.
    pub fn start_saying(arguments: &[&str], tree: Tree, errors: impl Into<Stdio>) -> Accelerator {
        tree.directory("www");
        let mut command = Command::new(petrel());
        command.args(["fcgi-stat-accel", "--mode", "0666", "--socket"]);
        command.arg(tree.path("s")).args(arguments);
        let accelerator = Accelerator::launch(command, tree, errors);
        let socket = accelerator.tree.path("s");
        let listens = eventually(|| UnixStream::connect(&socket).is_ok());
        assert!(listens, "{}", accelerator.log());
        accelerator
    }

    /// Starts it on a port.
    pub fn start_on(port: u16) -> Accelerator {
        let mut command = Command::new(petrel());
        command.args(["fcgi-stat-accel", "--port", &port.to_string()]);
        let accelerator = Accelerator::run(command, Tree::new());
        accelerator.expect_port(port);
        accelerator
    }

    /// Starts it through another program.
    pub fn run(command: Command, tree: Tree) -> Accelerator {
        let log = File::create(tree.path("log")).expect("a file");
        Accelerator::launch(command, tree, log)
    }

    fn launch(mut command: Command, tree: Tree, errors: impl Into<Stdio>) -> Accelerator {
        let child = command
            .current_dir(tree.root())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .expect("petrel is there");
        Accelerator { child, tree }
    }

    pub fn expect_port(&self, port: u16) {
        let listens = eventually(|| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        assert!(listens, "{}", self.log());
    }

    /// What it wrote to standard error.
    pub fn log(&self) -> String {
        self.tree.text("log")
    }

    pub fn connect(&self) -> Peer {
        Peer::connect(&self.tree.path("s"))
    }

    /// The records of a request for a file in `www` that keeps the connection open.
    pub fn request(&self, id: u16, file: &str) -> Vec<u8> {
        let root = self.tree.path("www").display().to_string();
        self.request_with(id, &[("SCRIPT_FILENAME", &format!("{root}/{file}"))])
    }

    /// The records of a request with DOCUMENT_ROOT and these pairs.
    pub fn request_with(&self, id: u16, pairs: &[(&str, &str)]) -> Vec<u8> {
        let root = self.tree.path("www").display().to_string();
        let mut all = vec![("DOCUMENT_ROOT", root.as_str())];
        all.extend_from_slice(pairs);
        let mut records = begin(id, 1, 1);
        records.extend(params_of(id, &all));
        records.extend(stdin(id, b""));
        records
    }

    /// The reply to a request for a file in `www`, on a new connection.
    pub fn ask(&self, file: &str) -> Reply {
        let mut peer = self.connect();
        peer.send(&self.request(1, file));
        peer.reply(1)
    }

    /// The expected reply for an existing file in `www`.
    pub fn naming(&self, file: &str) -> String {
        let path = self.tree.path("www").join(file).display().to_string();
        format!("X-LIGHTTPD-send-file: {path}\r\nX-Sendfile: {path}\r\n\r\n")
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// How many threads it has.
    pub fn threads(&self) -> usize {
        let tasks = Path::new("/proc").join(self.child.id().to_string());
        std::fs::read_dir(tasks.join("task")).map_or(0, Iterator::count)
    }

    /// Waits for its exit code.
    pub fn wait(&mut self) -> i32 {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status.code().unwrap_or(-1);
            }
            assert!(begin.elapsed() < 2 * PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Accelerator {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- fcgi-stat-accel\n{}\n---", self.log());
        }
    }
}
