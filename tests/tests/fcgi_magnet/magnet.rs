//! The program under test, and a web server that does as it is told.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use petrel_tests::{PATIENCE, Tree, eventually, fastcgi_record, petrel};
use rustix::process::{Pid, Signal, kill_process};

/// A running `petrel fcgi-magnet` on `magnet.sock` of its tree. Dropped, it is killed.
pub struct Magnet {
    pub child: Child,
    pub tree: Tree,
}

impl Magnet {
    /// Starts it with further `arguments`; its scripts are in `www`.
    pub fn start(scripts: &[(&str, &str)], arguments: &[&str]) -> Magnet {
        let tree = Tree::new();
        tree.directory("www");
        for (name, text) in scripts {
            tree.write(&format!("www/{name}"), text);
        }
        let output = File::create(tree.path("magnet.log")).expect("a file");
        let child = Command::new(petrel())
            .args(["fcgi-magnet", "--mode", "0666", "--socket"])
            .arg(tree.path("magnet.sock"))
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
        let stream = UnixStream::connect(self.tree.path("magnet.sock")).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream.set_write_timeout(Some(PATIENCE)).expect("set");
        let management = Vec::new();
        Peer { stream, management }
    }

    /// The answer to a request for a script in `www`, on a connection of its own.
    pub fn get(&self, script: &str) -> Reply {
        self.ask(script, &[], b"")
    }

    /// The same with more variables and a body.
    pub fn ask(&self, script: &str, params: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut peer = self.connect();
        peer.send(&self.request(1, script, params, body));
        peer.reply(1)
    }

    /// The records of a request that keeps the connection.
    pub fn request(&self, id: u16, script: &str, params: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let file = self.path(&format!("www/{script}"));
        let mut all = vec![("SCRIPT_FILENAME", file.as_str())];
        all.extend_from_slice(params);
        let mut records = begin(id, 1, 1);
        records.extend(params_of(id, &all));
        records.extend(stdin(id, body));
        records
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Its exit code, within a time.
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

/// The web server's end of a connection.
pub struct Peer {
    pub stream: UnixStream,
    /// Records about the connection that came between those of requests.
    pub management: Vec<Record>,
}

/// What came back for a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// STDOUT.
    pub output: Vec<u8>,
    /// STDERR.
    pub log: String,
    /// Application status and protocol status of END_REQUEST; `None`: the connection ended before.
    pub end: Option<(u32, u8)>,
}

/// A record that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub kind: u8,
    pub id: u16,
    pub content: Vec<u8>,
}

impl Reply {
    /// All of STDOUT, as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    /// What is behind the head.
    pub fn body(&self) -> String {
        let text = self.text();
        let (_, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        body.to_owned()
    }

    /// The number behind `Status:`, 200 if there is none.
    pub fn status(&self) -> u16 {
        let text = self.text();
        match text.strip_prefix("Status: ") {
            Some(rest) => rest
                .get(..3)
                .and_then(|number| number.parse().ok())
                .unwrap_or(0),
            None => 200,
        }
    }

    fn add(&mut self, record: &Record) {
        match record.kind {
            STDOUT => self.output.extend_from_slice(&record.content),
            STDERR => self.log.push_str(&String::from_utf8_lossy(&record.content)),
            END_REQUEST => {
                let code = record.content.first_chunk::<4>().expect("eight bytes");
                self.end = Some((u32::from_be_bytes(*code), record.content[4]));
            }
            kind => panic!("a record of kind {kind}"),
        }
    }
}

impl Peer {
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("it takes it");
    }

    /// The next record; `None` at the end of the connection.
    pub fn record(&mut self) -> Option<Record> {
        let mut head = [0; 8];
        match self.stream.read(&mut head[..1]) {
            Ok(0) => return None,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
            read => read.expect("a record"),
        };
        self.stream.read_exact(&mut head[1..]).expect("a header");
        let length = u16::from_be_bytes([head[4], head[5]]);
        let mut content = vec![0; usize::from(length) + usize::from(head[6])];
        self.stream.read_exact(&mut content).expect("a record");
        content.truncate(length.into());
        let id = u16::from_be_bytes([head[2], head[3]]);
        Some(Record {
            kind: head[1],
            id,
            content,
        })
    }

    /// The reply to request `id`, which is the only one.
    pub fn reply(&mut self, id: u16) -> Reply {
        let (reply, other) = self.replies(&[id]).remove(0);
        assert_eq!(other, id);
        reply
    }

    /// The replies to the requests with these ids, in the order in which they end. Less, if the
    /// connection ends before.
    pub fn replies(&mut self, ids: &[u16]) -> Vec<(Reply, u16)> {
        let mut open: Vec<(Reply, u16)> = ids.iter().map(|id| (Reply::default(), *id)).collect();
        let mut ended = Vec::new();
        while !open.is_empty() {
            let Some(record) = self.record() else {
                ended.append(&mut open);
                break;
            };
            if record.id == 0 {
                self.management.push(record);
                continue;
            }
            let index = open.iter().position(|(_, id)| *id == record.id);
            let index = index.unwrap_or_else(|| panic!("nobody asked for {record:?}"));
            open[index].0.add(&record);
            if record.kind == END_REQUEST {
                ended.push(open.remove(index));
            }
        }
        ended
    }

    /// Whether the other side closes the connection without another byte.
    pub fn is_closed(&mut self) -> bool {
        self.record().is_none()
    }
}

pub fn begin(id: u16, role: u16, flags: u8) -> Vec<u8> {
    let [high, low] = role.to_be_bytes();
    fastcgi_record(BEGIN_REQUEST, id, &[high, low, flags, 0, 0, 0, 0, 0])
}

pub fn params_of(id: u16, pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut content = Vec::new();
    for (name, value) in pairs {
        for length in [name.len(), value.len()] {
            let length = u32::try_from(length).expect("short");
            match u8::try_from(length).ok().filter(|length| *length < 128) {
                Some(length) => content.push(length),
                None => content.extend((length | 1 << 31).to_be_bytes()),
            }
        }
        content.extend_from_slice(name.as_bytes());
        content.extend_from_slice(value.as_bytes());
    }
    stream(PARAMS, id, &content)
}

pub fn stdin(id: u16, body: &[u8]) -> Vec<u8> {
    stream(STDIN, id, body)
}

/// A stream with its end.
fn stream(kind: u8, id: u16, content: &[u8]) -> Vec<u8> {
    let mut records = Vec::new();
    for part in content.chunks(60_000) {
        records.extend(fastcgi_record(kind, id, part));
    }
    records.extend(fastcgi_record(kind, id, b""));
    records
}

pub const BEGIN_REQUEST: u8 = 1;
pub const ABORT_REQUEST: u8 = 2;
pub const END_REQUEST: u8 = 3;
pub const PARAMS: u8 = 4;
pub const STDIN: u8 = 5;
pub const STDOUT: u8 = 6;
pub const STDERR: u8 = 7;
pub const GET_VALUES: u8 = 9;
pub const GET_VALUES_RESULT: u8 = 10;
pub const UNKNOWN_TYPE: u8 = 11;
