//! Sends one request after another, and accepts any response.
//!
//! It is slower than [`Client`](super::Client), but any status counts as a response, and each response has
//! its own times.

use super::reply::{Expected, Reply, head_length, status};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant, SystemTime};

/// A client with at most one connection, which it keeps open while the server does.
pub struct Browser {
    port: u16,
    stream: Option<TcpStream>,
    /// A response that pauses for this long is given up.
    patience: Duration,
    buffer: Vec<u8>,
}

/// What came of a request.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// When the request was sent.
    pub began: SystemTime,
    /// How long it took, including the connect.
    pub took: Duration,
}

impl Browser {
    /// A client of the server on a port of 127.0.0.1. It connects when it sends its first request. A response
    /// that pauses for longer than `patience` is given up.
    pub fn new(port: u16, patience: Duration) -> Self {
        Self {
            port,
            stream: None,
            patience,
            buffer: vec![0; 256 << 10],
        }
    }

    /// Requests a path and reads the whole response. If the server has closed the persistent connection,
    /// opens a new one.
    pub fn get(&mut self, path: &str) -> io::Result<Answer> {
        let kept = self.stream.is_some();
        match self.exchange(path) {
            Err(error) if kept && error.kind() != io::ErrorKind::WouldBlock => self.exchange(path),
            done => done,
        }
    }

    /// Closes the connection.
    pub fn close(&mut self) {
        self.stream = None;
    }

    fn exchange(&mut self, path: &str) -> io::Result<Answer> {
        let (began, started) = (SystemTime::now(), Instant::now());
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connect(self.port, self.patience)?,
        };
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nUser-Agent: petrel-bench\r\n\
             Accept: */*\r\n\r\n",
            self.port
        );
        stream.write_all(request.as_bytes())?;
        let status = self.answer(&mut stream)?;
        self.stream = Some(stream);
        Ok(Answer {
            status,
            began,
            took: started.elapsed(),
        })
    }

    /// Reads the whole response.
    fn answer(&mut self, stream: &mut TcpStream) -> io::Result<u16> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let mut came = Vec::new();
        while head_length(&came).is_none() {
            let got = read(stream, &mut self.buffer)?;
            came.extend_from_slice(&self.buffer[..got]);
        }
        let status = status(&came).ok_or_else(|| invalid("no status".to_owned()))?;
        let expected = Expected {
            status,
            body_bytes: None,
        };
        let mut reply = Reply::default();
        let mut take = |bytes: &[u8]| {
            let taken = reply.take(bytes, &expected);
            taken.map_err(|wrong| invalid(wrong.to_string()))
        };
        let mut whole = take(&came)?;
        while !whole {
            let got = read(stream, &mut self.buffer)?;
            whole = take(&self.buffer[..got])?;
        }
        Ok(status)
    }
}

fn connect(port: u16, patience: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    Ok(stream)
}

fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    match stream.read(buffer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        got => Ok(got),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_status_is_an_answer_and_a_closed_connection_is_made_anew() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            for stream in listener.incoming().flatten().take(2) {
                let mut stream: TcpStream = stream;
                assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
                let reply = b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno";
                stream.write_all(reply).unwrap();
            }
        });
        let mut browser = Browser::new(port, Duration::from_secs(5));
        assert_eq!(browser.get("/").unwrap().status, 503);
        assert_eq!(browser.get("/").unwrap().status, 503);
        server.join().unwrap();
    }
}
