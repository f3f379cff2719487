//! A program that runs beside the server under test.

use std::fs::File;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{ProcessTree, Tree, is_installed, skip};

/// A running program and its files. Dropping it kills the program and its descendants.
#[derive(Debug)]
pub struct Component {
    child: Child,
    /// Its files.
    pub tree: Tree,
}

/// Where a program listens when it is ready.
#[derive(Clone, Copy, Debug)]
pub enum Listens {
    /// On this unix socket of its tree.
    Unix(&'static str),
    /// On this port of 127.0.0.1.
    Port(u16),
}

/// The slowest of them is a Java machine on two busy cores.
const PATIENCE: Duration = Duration::from_secs(90);

impl Component {
    /// Starts `command` in `tree`, and waits until it listens.
    ///
    /// # Panics
    /// It does not.
    pub fn start(tree: Tree, command: &mut Command, listens: &Listens) -> Component {
        let output = File::create(tree.path("component.log")).expect("a file for the output");
        let child = command
            .current_dir(tree.root())
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a descriptor"))
            .stderr(output)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut component = Component { child, tree };
        let begin = Instant::now();
        while !component.is_ready(listens) {
            let ended = component.child.try_wait().expect("it is our child");
            assert!(
                ended.is_none() && begin.elapsed() < PATIENCE,
                "{command:?} does not listen ({ended:?}):\n{}",
                component.tree.text("component.log")
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        component
    }

    /// The absolute path of a file of its tree.
    pub fn path(&self, name: &str) -> String {
        self.tree.path(name).display().to_string()
    }

    fn is_ready(&self, listens: &Listens) -> bool {
        match listens {
            Listens::Unix(name) => UnixStream::connect(self.tree.path(name)).is_ok(),
            Listens::Port(port) => TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_ok(),
        }
    }
}

impl Drop for Component {
    fn drop(&mut self) {
        // Lists the children before the program is killed: after that none of them can be restarted.
        let pids = ProcessTree::of(self.child.id()).pids;
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for pid in pids.into_iter().skip(1) {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        if std::thread::panicking() {
            eprintln!("--- the backend\n{}\n---", self.tree.text("component.log"));
        }
    }
}

/// Whether all of `needs`, programs or absolute paths, exist. If not, prints that `test` is skipped.
pub fn can_run(test: &str, needs: &[&str]) -> bool {
    let is_missing = |need: &&&str| match need.starts_with('/') {
        true => !PathBuf::from(need).exists(),
        false => !is_installed(need),
    };
    match needs.iter().find(is_missing) {
        Some(need) => {
            skip(test, &format!("{need} is not installed"));
            false
        }
        None => true,
    }
}
