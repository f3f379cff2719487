//! A server on an isolated machine: with its own network, mounts and processes.
//!
//! So a stock configuration runs unchanged: port 80, files in /run and /var/log, another user. Files and
//! directories of a [`Tree`] are mounted where the configuration expects them; what is really installed there
//! is neither seen nor changed.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use petrel_tests::{
    Address, Client, Finished, PATIENCE, ProcessTree, Response, Tree, eventually, is_installed,
    package, run, skip,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A running server in its own name spaces. The thread that started it is in the server's network.
pub struct Isolated {
    /// `unshare`. When it dies, the server does.
    holder: Child,
    pub tree: Tree,
    port: u16,
}

/// Which directories and files of the tree are mounted where.
const MOUNTS: &[(&str, &str)] = &[
    ("run", "/run"),
    ("log", "/var/log"),
    ("cache", "/var/cache/lighttpd"),
    ("srv", "/srv"),
    ("www", "/var/www/html"),
    ("lighttpd", "/etc/lighttpd"),
    ("share", "/usr/share/lighttpd"),
    ("javascript", "/usr/share/javascript"),
    ("mime.types", "/etc/mime.types"),
];

/// The packages from which the tree is made.
const PACKAGES: &[&str] = &[
    "lighttpd",
    "lighttpd-mod-deflate",
    "lighttpd-mod-openssl",
    "javascript-common",
    "media-types",
];

/// What the server's user must be able to write, as set up by the package's own scripts.
const ITS_OWN: &[&str] = &[
    "log/lighttpd",
    "cache/compress",
    "cache/uploads",
    "run/lighttpd",
];

impl Isolated {
    /// Why no server can be isolated here, if so.
    pub fn hindrance() -> Option<String> {
        let missing = ["unshare", "mount", "ip", "lighttpd", "perl"]
            .into_iter()
            .find(|program| !is_installed(program));
        if let Some(program) = missing {
            return Some(format!("{program} is not installed"));
        }
        if let Some((_, place)) = MOUNTS.iter().find(|(_, place)| !Path::new(place).exists()) {
            return Some(format!(
                "{place} does not exist, so that nothing can be mounted there"
            ));
        }
        if let Some(why) = PACKAGES.iter().find_map(|name| package(name).err()) {
            return Some(why);
        }
        let mut probe = isolating();
        probe.args(["sh", "-c", "mount --bind /tmp /tmp && ip link set lo up"]);
        match probe.stderr(Stdio::null()).status() {
            Ok(status) if status.success() => None,
            _ => Some("name spaces need root, and a kernel that lets it".to_owned()),
        }
    }

    /// Starts `server`, a program and its arguments, on `tree`, and waits until it accepts connections on
    /// `port` of 127.0.0.1.
    ///
    /// # Panics
    /// It does not.
    pub fn start(tree: Tree, server: &[&str], port: u16) -> Isolated {
        let mut command = in_machine(&tree, server);
        let output = File::create(tree.path("output")).expect("a file for the output");
        let holder = command
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a descriptor"))
            .stderr(output)
            .spawn()
            .expect("unshare can be run");
        let isolated = Isolated { holder, tree, port };
        isolated.enter_network();
        let accepts = || Client::try_connect(&isolated.address(Ipv4Addr::LOCALHOST.into())).is_ok();
        assert!(
            eventually(accepts),
            "it does not accept: {}",
            isolated.output()
        );
        isolated
    }

    /// Runs `program`, with its arguments, on `tree` until it ends.
    pub fn run(tree: &Tree, program: &[&str]) -> Finished {
        run(&mut in_machine(tree, program), PATIENCE)
    }

    /// What it printed.
    pub fn output(&self) -> String {
        self.tree.text("output")
    }

    /// A new connection over IPv4.
    pub fn client(&self) -> Client {
        Client::connect(&self.address(Ipv4Addr::LOCALHOST.into()))
    }

    /// A new connection over IPv6.
    pub fn client_ipv6(&self) -> Client {
        Client::connect(&self.address(Ipv6Addr::LOCALHOST.into()))
    }

    /// Sends a GET on a new connection.
    pub fn get(&self, target: &str) -> Response {
        self.client().get(target)
    }

    /// Sends a signal to the server.
    pub fn signal(&self, signal: Signal) {
        let pid = self.server_pid().and_then(|pid| Pid::from_raw(pid as i32));
        kill_process(pid.expect("the server runs"), signal).expect("the server runs");
    }

    /// Waits until the server ends. Returns its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        eventually(|| {
            status = self.holder.try_wait().expect("it is our child");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    fn address(&self, ip: IpAddr) -> Address {
        Address::Ip(SocketAddr::new(ip, self.port))
    }

    /// The process id, as seen from outside, of process 1 inside.
    fn server_pid(&self) -> Option<u32> {
        ProcessTree::of(self.holder.id()).pids.get(1).copied()
    }

    /// Moves this thread into the server's network, which processes that it starts inherit.
    fn enter_network(&self) {
        let mut pid = None;
        let has_begun = eventually(|| {
            pid = self.server_pid();
            pid.is_some()
        });
        assert!(has_begun, "it does not start: {}", self.output());
        let path = format!("/proc/{}/ns/net", pid.unwrap_or_default());
        let network = File::open(path).expect("the network of a running process");
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("root may enter");
    }
}

impl Drop for Isolated {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- output\n{}\n---", self.output());
        }
        // It may have ended by itself; --kill-child ends what runs inside.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Runs `test` in a thread of its own, which stays in the network that it entered; or prints why it cannot.
pub fn isolated(name: &str, test: fn()) {
    match Isolated::hindrance() {
        Some(why) => skip(name, &why),
        None => {
            let outcome = thread::Builder::new().name(name.to_owned()).spawn(test);
            let outcome = outcome.expect("a thread").join();
            assert!(outcome.is_ok(), "see above");
        }
    }
}

/// A command that runs another one as process 1 of an isolated machine.
fn isolating() -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child=KILL",
        "--mount-proc",
    ]);
    command
}

/// A command that runs `program` as process 1 of a machine made from `tree`.
fn in_machine(tree: &Tree, program: &[&str]) -> Command {
    for (name, place) in MOUNTS {
        if !tree.path(name).exists() {
            match Path::new(place).is_dir() {
                true => tree.directory(name),
                false => tree.write(name, ""),
            };
        }
    }
    for directory in ITS_OWN {
        tree.directory(directory);
        let chown = Command::new("chown")
            .arg("www-data")
            .arg(tree.path(directory))
            .status();
        assert!(
            chown.is_ok_and(|status| status.success()),
            "chown {directory}"
        );
    }
    let mut command = isolating();
    command
        .args(["sh", "-euc", &set_up(tree), "sh"])
        .args(program);
    command
}

/// The script that prepares the machine, then becomes the server.
fn set_up(tree: &Tree) -> String {
    let mount = |(directory, place): &(&str, &str)| {
        format!("mount --bind {} {place}\n", quoted(&tree.path(directory)))
    };
    let mounts: String = MOUNTS.iter().map(mount).collect();
    format!("PATH=$PATH:/usr/sbin:/sbin\n{mounts}ip link set lo up\nexec \"$@\"")
}

/// A path quoted for the shell. The paths here need no more than that.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}
