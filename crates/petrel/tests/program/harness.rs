//! A site in a temporary directory, the server for it, and a small client.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

/// The longest wait of a test. It is long because a machine that builds and tests at the same time is slow; a
/// test that passes never waits that long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Far more time than anything takes that does not have to wait, also on such a machine.
pub const SOON: Duration = Duration::from_secs(30);

/// A command that runs the program.
pub fn petrel() -> Command {
    Command::new(env!("CARGO_BIN_EXE_petrel"))
}

/// Runs the program until it exits.
pub fn run(arguments: &[&str]) -> Output {
    petrel()
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

/// /dev/full, which refuses every write as a full disk does.
pub fn full() -> fs::File {
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    full.expect("it is there")
}

/// A free port, another one at each call. It is below the ports that the kernel gives to clients and to
/// listeners that ask for any port, so that tests running in parallel do not collide.
pub fn free_port() -> u16 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..500 {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Each test program begins at another place.
        let place = std::process::id().wrapping_mul(97).wrapping_add(count) % 10_000;
        let port = 11_000 + u16::try_from(place).expect("it is below ten thousand");
        if is_free(port) {
            return port;
        }
    }
    panic!("no port is free");
}

/// Whether no program has bound the port. The socket does not listen: a child that another thread has just forked may
/// hold it for a while, and would take connections that are for the server.
fn is_free(port: u16) -> bool {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket
        .set_reuse_address(true)
        .expect("an option of every socket");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    socket.bind(&address.into()).is_ok()
}

/// A directory with a document root (`hello.txt`: "hello\n") and a configuration.
pub struct Site {
    directory: TempDir,
    pub port: u16,
}

impl Site {
    pub fn new() -> Site {
        let directory = tempfile::tempdir().expect("a directory");
        let site = Site {
            directory,
            port: free_port(),
        };
        fs::create_dir(site.path("root")).expect("a directory");
        fs::write(site.path("root/hello.txt"), "hello\n").expect("a file");
        site
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the configuration: the usual lines and `more`.
    pub fn configure(&self, more: &str) -> PathBuf {
        let text = format!(
            "server.document-root = \"{}\"\nserver.bind = \"127.0.0.1\"\nserver.port = {}\n\
             server.errorlog = \"{}\"\nserver.max-worker = 2\n{more}\n",
            self.path("root").display(),
            self.port,
            self.path("error.log").display(),
        );
        let path = self.path("petrel.conf");
        // The file is replaced at once: a running server may be reading it.
        fs::write(self.path("next.conf"), text).expect("the configuration is written");
        fs::rename(self.path("next.conf"), &path).expect("the configuration is replaced");
        path
    }

    /// Starts the server with `more` in its configuration and waits until it answers.
    pub fn start(&self, more: &str) -> Server {
        let server = self.launch(more);
        server.wait_for("a first answer", || fetch(self.port, "/hello.txt").is_ok());
        server
    }

    /// Starts the server without waiting until it serves.
    pub fn launch(&self, more: &str) -> Server {
        let file = self.configure(more);
        Server::spawn(petrel().args(["-D", "-f"]).arg(file))
    }

    pub fn error_log(&self) -> String {
        fs::read_to_string(self.path("error.log")).unwrap_or_default()
    }
}

/// A running keeper. Dropping the value kills it, and its server process ends with it.
pub struct Server {
    child: Child,
}

impl Server {
    pub fn spawn(command: &mut Command) -> Server {
        Server::spawn_saying(command, Stdio::piped(), Stdio::piped())
    }

    /// As `spawn`, with other files than pipes as standard output and standard error.
    pub fn spawn_saying(
        command: &mut Command,
        output: impl Into<Stdio>,
        errors: impl Into<Stdio>,
    ) -> Server {
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        Server {
            child: command.spawn().expect("the program starts"),
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub fn signal(&self, signal: Signal) {
        signal_to(self.pid(), signal);
    }

    /// The server processes, oldest first.
    pub fn children(&self) -> Vec<i32> {
        let id = self.pid();
        let text = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        text.split_whitespace()
            .filter_map(|id| id.parse().ok())
            .collect()
    }

    /// The only server process.
    pub fn only_child(&self) -> i32 {
        match self.children()[..] {
            [one] => one,
            ref others => panic!("one server process, not {others:?}"),
        }
    }

    /// Polls until `condition` holds.
    pub fn wait_for(&self, what: &str, mut condition: impl FnMut() -> bool) {
        wait_until(what, &mut condition);
    }

    /// Waits until the keeper exits. Returns its exit code.
    pub fn code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait().expect("our child") {
                Some(status) => break status.code(),
                None if Instant::now() > deadline => panic!("the server does not end"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// As [`Server::code`], but also returns standard output and standard error.
    pub fn end(mut self) -> (Option<i32>, String, String) {
        let code = self.code();
        let mut texts = [String::new(), String::new()];
        let pipes: [Option<Box<dyn Read>>; 2] = [
            self.child
                .stdout
                .take()
                .map(|pipe| Box::new(pipe) as Box<dyn Read>),
            self.child
                .stderr
                .take()
                .map(|pipe| Box::new(pipe) as Box<dyn Read>),
        ];
        for (pipe, text) in pipes.into_iter().zip(&mut texts) {
            pipe.expect("piped").read_to_string(text).expect("text");
        }
        let [out, err] = texts;
        (code, out, err)
    }

    /// The next line on standard output.
    pub fn first_line(&mut self) -> String {
        let mut line = String::new();
        let out = self.child.stdout.as_mut().expect("piped");
        BufReader::new(out).read_line(&mut line).expect("text");
        line
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn signal_to(pid: i32, signal: Signal) {
    let pid = Pid::from_raw(pid).expect("an id");
    kill_process(pid, signal).expect("the process is there");
}

pub fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim().chars().next());
    state.is_some_and(|state| state != 'Z')
}

/// Polls until `condition` holds; panics after [`PATIENCE`].
pub fn wait_until(what: &str, condition: &mut dyn FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends one request on a connection of its own. Returns head and body.
pub fn fetch(port: u16, path: &str) -> io::Result<(String, Vec<u8>)> {
    Client::connect(port)?.request(path, "close")
}

/// A connection for several requests, one after the other.
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(port: u16) -> io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Client {
            stream: BufReader::new(stream),
        })
    }

    pub fn stream(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    pub fn send(&mut self, path: &str, connection: &str) -> io::Result<()> {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes())
    }

    /// Reads a whole response. One that is shorter than announced is an error.
    pub fn receive(&mut self) -> io::Result<(String, Vec<u8>)> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head)? == 0 {
                let message = format!("the connection ended in the head: {head:?}");
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
            }
        }
        let mut body = vec![
            0;
            header(&head, "content-length")
                .and_then(|n| n.parse().ok())
                .unwrap_or(0)
        ];
        self.stream.read_exact(&mut body)?;
        Ok((head, body))
    }

    pub fn request(&mut self, path: &str, connection: &str) -> io::Result<(String, Vec<u8>)> {
        self.send(path, connection)?;
        self.receive()
    }
}

/// The value of a header field.
pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .find_map(|(found, value)| found.eq_ignore_ascii_case(name).then_some(value.trim()))
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// As [`is_root`], but prints that `test` is skipped if not.
pub fn is_root_or_skip(test: &str) -> bool {
    if !is_root() {
        skip(test, "it takes root");
    }
    is_root()
}

/// Prints that a test is skipped. It bypasses the test harness, which swallows the output of `println!`. The
/// summary of `cargo xtask test` repeats the line.
pub fn skip(test: &str, why: &str) {
    // If standard output is closed, there is no other place to report to.
    let _ = writeln!(io::stdout(), "SKIPPED {test}: {why}");
}

/// A listening socket for a child to inherit as its standard input.
pub fn as_stdin(listener: TcpListener) -> Stdio {
    Stdio::from(OwnedFd::from(listener))
}

/// Makes `path` reachable and readable for every user, up to the temporary directory.
pub fn open_to_all(site: &Site) {
    use std::os::unix::fs::PermissionsExt;
    for path in [site.path(""), site.path("root")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("ours");
    }
}

/// The content of a file in /proc/PID.
pub fn proc_text(pid: i32, name: &str) -> String {
    fs::read_to_string(Path::new("/proc").join(pid.to_string()).join(name)).expect("alive")
}
