//! A client that sends exactly the bytes that a test gives it, at the time the test chooses.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use crate::PATIENCE;
use crate::response::{Asked, Response, ResponseError};
use crate::stream::{Address, Stream, is_timeout};

/// One connection.
///
/// # Panics
/// Methods that return no `Result` panic if the server does not do what they wait for; the message shows what
/// it sent instead.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    /// Bytes received after the last response.
    received: Vec<u8>,
    patience: Duration,
    at_end: bool,
}

/// Why there is no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// The server closed or reset the connection without another byte.
    Closed,
    /// The connection ended inside a response; what arrived of it.
    Truncated(Vec<u8>),
    /// Nothing more arrived for as long as the client waits; what arrived so far.
    TimedOut(Vec<u8>),
    /// A violation of the protocol.
    Malformed(String),
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// Those of connect(2).
    pub fn try_connect(address: &Address) -> io::Result<Client> {
        Stream::connect(address).map(Client::of)
    }

    /// Connects.
    pub fn connect(address: &Address) -> Client {
        Client::try_connect(address).unwrap_or_else(|error| panic!("connect {address:?}: {error}"))
    }

    /// Connects by TCP, from one of this machine's addresses.
    pub fn connect_from(from: Ipv4Addr, address: &Address) -> Client {
        let stream = Stream::connect_from(from, address);
        let stream = stream.unwrap_or_else(|error| panic!("connect {address:?}: {error}"));
        Client::of(stream)
    }

    fn of(stream: Stream) -> Client {
        Client {
            stream,
            received: Vec::new(),
            patience: PATIENCE,
            at_end: false,
        }
    }

    /// Changes how long the client waits for a response, which is [`PATIENCE`] by default.
    pub fn with_patience(mut self, patience: Duration) -> Client {
        self.patience = patience;
        self
    }

    /// Lets the kernel buffer no more than about `bytes` that this client has not read.
    pub fn with_receive_buffer(self, bytes: usize) -> Client {
        rustix::net::sockopt::set_socket_recv_buffer_size(&self.stream, bytes)
            .expect("the receive buffer can be set");
        self
    }

    /// The client's own address; none on a unix socket.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.stream.local_address()
    }

    /// Sends. If the server has closed already, the error shows when the response is read.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Client {
        // The caller sees a failure when it reads the response.
        let _ = self.try_send(bytes);
        self
    }

    /// Sends.
    ///
    /// # Errors
    /// The server does not accept the bytes.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Sends in pieces of the given sizes, over and over. Each piece is a packet of its own, followed by a
    /// pause that lets the server read it alone.
    pub fn send_in_pieces(&mut self, bytes: impl AsRef<[u8]>, sizes: &[usize]) -> &mut Client {
        let mut rest = bytes.as_ref();
        for size in sizes.iter().cycle() {
            let (piece, behind) = rest.split_at((*size).min(rest.len()));
            self.send(piece);
            std::thread::sleep(Duration::from_micros(200));
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        self
    }

    /// Sends a GET request for `target` and waits for the response.
    #[track_caller]
    pub fn get(&mut self, target: &str) -> Response {
        self.request("GET", target, &[])
    }

    /// Sends a request without a body, with `fields` after Host, and waits for the response.
    #[track_caller]
    pub fn request(&mut self, method: &str, target: &str, fields: &[(&str, &str)]) -> Response {
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: petrel.test\r\n");
        for (name, value) in fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        self.send(head + "\r\n");
        match method {
            "HEAD" => self.response_to_head(),
            _ => self.response(),
        }
    }

    /// Waits for the next response.
    #[track_caller]
    pub fn response(&mut self) -> Response {
        self.try_response()
            .unwrap_or_else(|error| panic!("no response: {error}"))
    }

    /// Waits for the response to a HEAD request.
    #[track_caller]
    pub fn response_to_head(&mut self) -> Response {
        self.next(Asked::Head)
            .unwrap_or_else(|error| panic!("no response: {error}"))
    }

    /// Waits for the response to a HEAD request.
    ///
    /// # Errors
    /// None arrived, or only a part of one.
    pub fn try_response_to_head(&mut self) -> Result<Response, ClientError> {
        self.next(Asked::Head)
    }

    /// Waits for the next response.
    ///
    /// # Errors
    /// None arrived, or only a part of one.
    pub fn try_response(&mut self) -> Result<Response, ClientError> {
        self.next(Asked::Other)
    }

    /// Reads `count` bytes.
    #[track_caller]
    pub fn read_bytes(&mut self, count: usize) -> Vec<u8> {
        let deadline = Instant::now() + self.patience;
        while self.received.len() < count {
            assert!(
                !self.at_end,
                "closed after {} of {count} bytes",
                self.received.len()
            );
            assert!(
                self.receive(deadline),
                "timed out after {} bytes",
                self.received.len()
            );
        }
        self.received.drain(..count).collect()
    }

    /// Reads everything until the server closes.
    #[track_caller]
    pub fn read_to_end(&mut self) -> Vec<u8> {
        let deadline = Instant::now() + self.patience;
        while !self.at_end {
            assert!(
                self.receive(deadline),
                "still open; got {}",
                show(&self.received)
            );
        }
        std::mem::take(&mut self.received)
    }

    /// Waits until the server closes. Fails if it sends anything before.
    #[track_caller]
    pub fn expect_close(&mut self) {
        let rest = self.read_to_end();
        assert!(rest.is_empty(), "before the close came {}", show(&rest));
    }

    /// Fails if the server sends anything or closes within `time`.
    #[track_caller]
    pub fn expect_silence(&mut self, time: Duration) {
        self.receive(Instant::now() + time);
        assert!(
            self.received.is_empty(),
            "there came {}",
            show(&self.received)
        );
        assert!(!self.at_end, "the server closed the connection");
    }

    /// Closes this side for writing; the response can still be read.
    pub fn half_close(&mut self) -> &mut Client {
        let closed = self.stream.shutdown(Shutdown::Write);
        closed.expect("the connection is open");
        self
    }

    /// Resets the connection instead of closing it.
    pub fn abort(self) {
        self.stream.reset_on_close();
    }

    fn next(&mut self, asked: Asked) -> Result<Response, ClientError> {
        let deadline = Instant::now() + self.patience;
        loop {
            match Response::parse(&self.received, asked, self.at_end) {
                Ok((response, used)) => {
                    self.received.drain(..used);
                    return Ok(response);
                }
                Err(ResponseError::Malformed(what)) => return Err(ClientError::Malformed(what)),
                Err(ResponseError::Incomplete | ResponseError::UntilClose) => {}
            }
            if self.at_end {
                let received = std::mem::take(&mut self.received);
                return Err(match received.is_empty() {
                    true => ClientError::Closed,
                    false => ClientError::Truncated(received),
                });
            }
            if !self.receive(deadline) {
                return Err(ClientError::TimedOut(self.received.clone()));
            }
        }
    }

    /// Receives what is there. Returns false if nothing arrived until `deadline`.
    fn receive(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let mut buffer = vec![0; 256 * 1024];
        self.stream.set_read_timeout(left);
        let count = self.stream.read(&mut buffer);
        match count {
            Ok(0) => self.at_end = true,
            Ok(count) => self.received.extend_from_slice(&buffer[..count]),
            Err(error) if is_timeout(&error) => return false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.at_end = true,
        }
        true
    }
}

fn show(bytes: &[u8]) -> String {
    format!(
        "{:?}",
        String::from_utf8_lossy(&bytes[..bytes.len().min(600)])
    )
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ClientError::Closed => write!(formatter, "the server closed the connection"),
            ClientError::Truncated(bytes) => write!(formatter, "cut short: {}", show(bytes)),
            ClientError::TimedOut(bytes) => write!(formatter, "timed out after {}", show(bytes)),
            ClientError::Malformed(what) => write!(formatter, "malformed: {what}"),
        }
    }
}

impl std::error::Error for ClientError {}
