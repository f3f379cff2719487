//! Many clients that have sent a request and wait, all in this thread.

use crate::load::status;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

/// Clients with one open request each.
pub struct Waiting {
    streams: Vec<TcpStream>,
}

/// The responses of the clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Answers {
    /// Responses with status 200.
    pub good: usize,
    /// Other responses, and missing ones.
    pub bad: usize,
}

impl Waiting {
    /// Connects `count` clients and sends their requests.
    pub fn start(port: u16, path: &str, count: u16) -> io::Result<Self> {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: petrel-bench\r\n\
             Accept: */*\r\n\r\n"
        );
        let ask = |_| {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.write_all(request.as_bytes())?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let streams = (0..count).map(ask).collect::<io::Result<_>>()?;
        Ok(Self { streams })
    }

    /// How many have received a response, or were disconnected, so far.
    pub fn answered(&self) -> usize {
        let waits = |stream: &&TcpStream| {
            let peeked = stream.peek(&mut [0]);
            peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        self.streams.len() - self.streams.iter().filter(waits).count()
    }

    /// Waits for all responses, but no longer than `patience` in all.
    pub fn finish(self, patience: Duration) -> Answers {
        let give_up = Instant::now() + patience;
        let mut answers = Answers::default();
        for stream in self.streams {
            let left = give_up.saturating_duration_since(Instant::now());
            match answer(stream, left.max(LEAST)) {
                Ok(Some(200)) => answers.good += 1,
                _ => answers.bad += 1,
            }
        }
        answers
    }
}

/// The status of a response, whose rest is ignored.
fn answer(mut stream: TcpStream, patience: Duration) -> io::Result<Option<u16>> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(patience))?;
    let mut buffer = [0; 1024];
    let got = stream.read(&mut buffer)?;
    Ok(status(&buffer[..got]))
}

/// A timeout of zero would mean no timeout.
const LEAST: Duration = Duration::from_millis(1);
