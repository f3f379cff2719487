//! mod_cml: pages assembled by scripts, fragments, and pages in memcached.

mod fragments;
mod pages;
mod stored;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use petrel_tests::{Backend, Builder, Server, Tree, eventually, free_port};

/// A server with mod_cml in front of `backend`, which gets all URLs that end with `.php`.
fn in_front_of(backend: &Backend) -> Builder {
    Server::build()
        .file("www/index.php", "")
        .file("www/head.html", "<h1>head</h1>")
        .file("www/foot.html", "<p>foot</p>")
        .config("server.modules += ( \"mod_cml\", \"mod_fastcgi\" )")
        .config("index-file.names = ( \"index.cml\", \"index.php\" )")
        .config("mimetype.assign = ( \".html\" => \"text/html\" )")
        .config("cml.extension = \".cml\"")
        // The default of ten milliseconds is too short for a slow machine.
        .config("lua.max-run-time = 1000")
        .config(&backend.directive(".php", ""))
}

/// Sets a file's age.
fn age(tree: &Tree, path: &str, age: Duration) {
    let file = std::fs::File::options().write(true).open(tree.path(path));
    let file = file.expect("it is there");
    let times = std::fs::FileTimes::new().set_modified(SystemTime::now() - age);
    file.set_times(times).expect("the time is set");
}

/// A real memcached.
struct Memcached {
    child: Child,
    port: u16,
}

impl Memcached {
    fn start() -> Memcached {
        let port = free_port();
        let child = Command::new("memcached")
            .args(["-u", "root", "-l", "127.0.0.1", "-m", "16", "-t", "1"])
            .args(["-U", "0", "-p", &port.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("memcached is installed; `cargo xtask test` installs what tests need");
        let memcached = Memcached { child, port };
        let listens = eventually(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
        assert!(listens, "memcached does not listen");
        memcached
    }

    fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn say(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream
            .write_all(format!("{command}quit\r\n").as_bytes())
            .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    fn set(&self, key: &str, value: &str) {
        let command = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
        assert_eq!(self.say(&command), "STORED\r\n");
    }

    fn stop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        self.stop();
    }
}
