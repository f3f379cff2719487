//! The web server's side of FastCGI, record by record, to test programs that answer it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::PATIENCE;
use crate::backend::fastcgi_record;

/// The web server's end of a connection.
#[derive(Debug)]
pub struct Peer {
    /// The connection.
    pub stream: UnixStream,
    /// Records about the connection that arrived between those of requests.
    pub management: Vec<Record>,
}

/// The reply to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// STDOUT.
    pub output: Vec<u8>,
    /// STDERR.
    pub log: String,
    /// Application status and protocol status of END_REQUEST; `None` if the connection ended before.
    pub end: Option<(u32, u8)>,
}

/// A record that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its kind.
    pub kind: u8,
    /// The request's id; 0 for the connection.
    pub id: u16,
    /// The content without padding.
    pub content: Vec<u8>,
}

impl Reply {
    /// All of STDOUT, as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    /// The part after the head.
    pub fn body(&self) -> String {
        let text = self.text();
        let (_, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        body.to_owned()
    }

    /// The number after `Status:`; 200 if there is none.
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
    /// A connection to the program that listens at `socket`.
    pub fn connect(socket: &Path) -> Peer {
        let stream = UnixStream::connect(socket).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream.set_write_timeout(Some(PATIENCE)).expect("set");
        let management = Vec::new();
        Peer { stream, management }
    }

    /// Sends records.
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

    /// Reads the reply to request `id`, the only one on the connection.
    pub fn reply(&mut self, id: u16) -> Reply {
        let (reply, other) = self.replies(&[id]).remove(0);
        assert_eq!(other, id);
        reply
    }

    /// Reads the replies to the requests with these ids, in the order in which they end. If the connection
    /// ends first, there are fewer.
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
            let index = index.unwrap_or_else(|| panic!("no request was sent for {record:?}"));
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

/// FCGI_BEGIN_REQUEST. The role of a responder is 1, and the flag to keep the connection is 1, too.
pub fn begin(id: u16, role: u16, flags: u8) -> Vec<u8> {
    let [high, low] = role.to_be_bytes();
    fastcgi_record(BEGIN_REQUEST, id, &[high, low, flags, 0, 0, 0, 0, 0])
}

/// FCGI_PARAMS, with its end.
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

/// FCGI_STDIN, with its end.
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

/// Begins a request.
pub const BEGIN_REQUEST: u8 = 1;
/// Aborts a request.
pub const ABORT_REQUEST: u8 = 2;
/// Ends a request.
pub const END_REQUEST: u8 = 3;
/// Name-value pairs.
pub const PARAMS: u8 = 4;
/// The request body.
pub const STDIN: u8 = 5;
/// The reply.
pub const STDOUT: u8 = 6;
/// Messages for the log.
pub const STDERR: u8 = 7;
/// Asks the program for its properties.
pub const GET_VALUES: u8 = 9;
/// The reply to GET_VALUES.
pub const GET_VALUES_RESULT: u8 = 10;
/// The reply to an unknown record.
pub const UNKNOWN_TYPE: u8 = 11;
