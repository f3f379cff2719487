//! `petrel fcgi-magnet`, with the test as its web server.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::fastcgi::{Peer, Reply, begin, params_of, stdin};
use crate::{PATIENCE, Tree, eventually, petrel};

/// A running `petrel fcgi-magnet`, on `magnet.sock` of its tree. Dropping it kills the program.
#[derive(Debug)]
pub struct Magnet {
    /// The program.
    pub child: Child,
    /// Its files.
    pub tree: Tree,
}

const RUN_TIME: &str = "--max-run-time";

impl Magnet {
    /// Starts it with further `arguments`; its scripts are in `www`. Unless the arguments say how much processor
    /// time a script may use, it is a second: the default of ten milliseconds is too short for a slow machine.
    ///
    /// # Panics
    /// It does not listen.
    pub fn start(scripts: &[(&str, &str)], arguments: &[&str]) -> Magnet {
        let tree = Tree::new();
        tree.directory("www");
        for (name, text) in scripts {
            tree.write(&format!("www/{name}"), text);
        }
        let budget = match arguments.contains(&RUN_TIME) {
            true => [].as_slice(),
            false => &[RUN_TIME, "1000"],
        };
        let output = File::create(tree.path("magnet.log")).expect("a file");
        let child = Command::new(petrel())
            .args(["fcgi-magnet", "--mode", "0666", "--socket"])
            .arg(tree.path("magnet.sock"))
            .args(budget)
            .args(arguments)
            .current_dir(tree.root())
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a descriptor"))
            .stderr(output)
            .spawn()
            .expect("petrel is there");
        let magnet = Magnet { child, tree };
        let listens = eventually(|| UnixStream::connect(magnet.tree.path("magnet.sock")).is_ok());
        assert!(listens, "{}", magnet.log());
        magnet
    }

    /// What it wrote to standard error.
    pub fn log(&self) -> String {
        self.tree.text("magnet.log")
    }

    /// The absolute path of a file of its tree.
    pub fn path(&self, name: &str) -> String {
        self.tree.path(name).display().to_string()
    }

    /// A connection.
    pub fn connect(&self) -> Peer {
        Peer::connect(&self.tree.path("magnet.sock"))
    }

    /// The reply to a request for a script in `www`, on a new connection.
    pub fn get(&self, script: &str) -> Reply {
        self.ask(script, &[], b"")
    }

    /// The same with more variables and a body.
    pub fn ask(&self, script: &str, params: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut peer = self.connect();
        peer.send(&self.request(1, script, params, body));
        peer.reply(1)
    }

    /// The records of a request that keeps the connection open.
    pub fn request(&self, id: u16, script: &str, params: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let file = self.path(&format!("www/{script}"));
        let mut all = vec![("SCRIPT_FILENAME", file.as_str())];
        all.extend_from_slice(params);
        let mut records = begin(id, 1, 1);
        records.extend(params_of(id, &all));
        records.extend(stdin(id, body));
        records
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// It has ended.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits for its exit code.
    ///
    /// # Panics
    /// It does not end.
    pub fn wait(&mut self) -> i32 {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status.code().unwrap_or(-1);
            }
            assert!(begin.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Magnet {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- fcgi-magnet\n{}\n---", self.log());
        }
    }
}
