//! Helpers for tests: servers that follow a script, real servers, and the stores of a worker.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use petrel_engine::proto::resp::write_command;
use petrel_engine::testing::Site;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{Redis, RedisOptions, StoreAddress, Stores};

/// Runs a test on a runtime like a worker's.
pub(super) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(test);
}

/// The stores of a worker that has no other work.
pub(super) fn stores() -> (Site, Rc<Stores>) {
    let site = Site::new("server.document-root = \"/nonexistent\"", &[]);
    let stores = Stores::of(site.worker());
    (site, stores)
}

/// A Redis client for this address, with a timeout of a minute.
pub(super) fn redis_at(stores: &Stores, address: &str) -> Rc<Redis> {
    stores
        .redis(&redis_options(address))
        .expect("it can be made")
}

/// The options of that client.
pub(super) fn redis_options(address: &str) -> RedisOptions {
    let address = StoreAddress::parse(address, 1).expect("it is an address");
    let mut options = RedisOptions::new(address);
    options.timeout_ms = 60_000;
    options.connect_timeout_ms = 60_000;
    options
}

/// A Redis client with these options and a timeout of so many milliseconds.
pub(super) fn redis_with_timeout(stores: &Stores, mut options: RedisOptions, ms: u64) -> Rc<Redis> {
    options.timeout_ms = ms;
    stores.redis(&options).expect("it can be made")
}

/// Whether the server has closed the idle connection, or has sent something on it. If so, the connection is
/// closed.
pub(super) fn loses_kept_connection(redis: &Redis) -> bool {
    let server = &redis.pool().server;
    let open = server.take_open();
    open.map(|link| server.keep(link)).is_none()
}

/// What a client sends for this command.
pub(super) fn wire(command: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    let arguments: Vec<&str> = command.split(' ').collect();
    write_command(&mut wire, &arguments);
    wire
}

/// What a server does on a connection. After the last step it closes it.
pub(super) enum Step {
    /// Reads exactly this.
    Hear(Vec<u8>),
    /// Waits until something can be read, and leaves it.
    Await,
    /// Sends this.
    Say(&'static [u8]),
    /// Sends this a byte at a time.
    Spell(&'static [u8]),
    /// Does nothing for so many milliseconds.
    Pause(u64),
    /// Waits until the client closes the connection, and ignores what it sends before.
    Closed,
}

/// A server that accepts one connection for each script, and no more.
pub(super) struct FakeServer {
    pub(crate) address: String,
    task: JoinHandle<()>,
}

impl FakeServer {
    /// A server on TCP.
    pub(crate) async fn start(scripts: Vec<Vec<Step>>) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        FakeServer::start_on(listener.expect("a port is free"), scripts)
    }

    /// A server on this TCP listener.
    pub(crate) fn start_on(listener: TcpListener, scripts: Vec<Vec<Step>>) -> FakeServer {
        let address = listener.local_addr().expect("it is bound").to_string();
        let task = tokio::spawn(async move {
            let mut connections = Vec::new();
            for script in scripts {
                let (stream, _) = listener.accept().await.expect("a connection");
                connections.push(tokio::spawn(follow(stream, script)));
            }
            drop(listener);
            for connection in connections {
                connection.await.expect("it went as written");
            }
        });
        FakeServer { address, task }
    }

    /// A server on a unix socket.
    pub(crate) fn start_unix(path: &str, scripts: Vec<Vec<Step>>) -> FakeServer {
        let listener = UnixListener::bind(path).expect("it can be made");
        let task = tokio::spawn(async move {
            for script in scripts {
                let (stream, _) = listener.accept().await.expect("a connection");
                if matches!(script.last(), Some(Step::Await)) {
                    // Closes the connection without reading what was sent.
                    let mut stream = stream;
                    let (last, before) = script.split_last().expect("there is a step");
                    debug_assert!(matches!(last, Step::Await));
                    follow_steps(&mut stream, before).await;
                    stream.readable().await.expect("something comes");
                } else {
                    follow(stream, script).await;
                }
            }
        });
        FakeServer {
            address: format!("unix:{path}"),
            task,
        }
    }

    /// Waits until all scripts are finished.
    pub(crate) async fn finish(self) {
        let over = timeout(Duration::from_secs(60), self.task).await;
        over.expect("it ends").expect("it went as written");
    }
}

async fn follow<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, script: Vec<Step>) {
    follow_steps(&mut stream, &script).await;
}

async fn follow_steps<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, script: &[Step]) {
    for step in script {
        match step {
            Step::Hear(expected) => {
                let mut heard = vec![0; expected.len()];
                stream.read_exact(&mut heard).await.expect("it comes");
                let (heard, expected) = (heard.escape_ascii(), expected.escape_ascii());
                assert_eq!(heard.to_string(), expected.to_string());
            }
            Step::Await => panic!("only a unix socket ends with this"),
            Step::Say(bytes) => {
                stream.write_all(bytes).await.expect("it is taken");
                stream.flush().await.expect("it is sent");
            }
            Step::Spell(bytes) => {
                for byte in bytes.chunks(1) {
                    stream.write_all(byte).await.expect("it is taken");
                    sleep(Duration::from_millis(1)).await;
                }
            }
            Step::Pause(ms) => sleep(Duration::from_millis(*ms)).await,
            Step::Closed => {
                let mut rest = [0; 4096];
                while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
            }
        }
    }
}

/// A real server, which is ended when this is dropped.
pub(super) struct Program {
    child: Child,
}

impl Program {
    /// Starts `name` and waits until its unix socket is there. Where the program is not installed, returns
    /// `None` and prints a line.
    pub fn start(name: &str, arguments: &[&str], socket: &str) -> Option<Program> {
        let started = Command::new(name)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = started else {
            // Written directly, because the test harness captures the output of `println!`.
            let _ = writeln!(
                io::stdout(),
                "SKIPPED tests with {name}: it is not installed"
            );
            return None;
        };
        let program = Program { child };
        for _ in 0..6000 {
            let connected = std::os::unix::net::UnixStream::connect(Path::new(socket));
            if connected.is_ok() {
                return Some(program);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{name} does not listen on {socket}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The error is ignored: the process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
