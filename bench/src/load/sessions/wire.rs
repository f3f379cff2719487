//! A socket, with TLS if the workload wants that.
//!
//! Sends and receives bytes. Knows nothing of HTTP.

use super::super::Error;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};
use rustls::client::ClientConnection;
use rustls::{ClientConfig, HandshakeKind};
use std::io::{BufRead as _, ErrorKind, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

/// One connection's bytes.
pub struct Wire {
    socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
}

/// Whether the server may send more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It may.
    Open,
    /// It has closed its side.
    Closed,
}

impl Wire {
    /// Takes a connected socket. The handshake begins when the first bytes are sent, which wait for its end.
    pub fn new(socket: TcpStream, config: Option<&Arc<ClientConfig>>) -> Result<Self, Error> {
        let begin = |config: &Arc<ClientConfig>| {
            ClientConnection::new(config.clone(), super::trust::server_name()).map(Box::new)
        };
        Ok(Self {
            socket,
            tls: config.map(begin).transpose()?,
        })
    }

    /// Sends `bytes`, as one record and one write if they fit. Requests are so small that they always fit
    /// into the socket's buffer.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = match &mut self.tls {
            None => self.socket.write_all(bytes),
            Some(tls) => tls.writer().write_all(bytes),
        };
        written.map_err(|error| failed("send", &error))?;
        self.flush()
    }

    /// Passes on what has arrived, until the socket is drained. `ended`: the server has closed its side, and
    /// no further event reports that.
    pub fn receive(
        &mut self,
        buffer: &mut [u8],
        ended: bool,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<Side, Error> {
        loop {
            let got = match net::recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::CONNRESET | Errno::PIPE) => return Ok(Side::Closed),
                Ok((_, got)) => got,
                Err(Errno::AGAIN) => return Ok(Side::Open),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(Error::System("recv", errno)),
            };
            let side = self.hand_on(&buffer[..got], sink)?;
            if side == Side::Closed || got < buffer.len() && !ended {
                return Ok(side);
            }
        }
    }

    /// The kind of the handshake, when it is over.
    pub fn handshake(&self) -> Option<HandshakeKind> {
        self.tls.as_ref()?.handshake_kind()
    }

    /// Sends close_notify, as browsers do. The server may have closed already.
    pub fn close(mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _gone = self.flush();
        }
    }

    fn hand_on(
        &mut self,
        mut bytes: &[u8],
        sink: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<Side, Error> {
        let Some(tls) = &mut self.tls else {
            return sink(bytes).map(|()| Side::Open);
        };
        let mut side = Side::Open;
        while !bytes.is_empty() {
            tls.read_tls(&mut bytes)
                .map_err(|error| failed("read_tls", &error))?;
            if tls.process_new_packets()?.peer_has_closed() {
                side = Side::Closed;
            }
            let mut reader = tls.reader();
            // An error means that there is no more data yet.
            while let Ok(plain @ [_, ..]) = reader.fill_buf() {
                let length = plain.len();
                sink(plain)?;
                reader.consume(length);
            }
        }
        self.flush()?;
        Ok(side)
    }

    fn flush(&mut self) -> Result<(), Error> {
        let Some(tls) = &mut self.tls else {
            return Ok(());
        };
        while tls.wants_write() {
            tls.write_tls(&mut self.socket)
                .map_err(|error| failed("send", &error))?;
        }
        Ok(())
    }
}

fn failed(call: &'static str, error: &std::io::Error) -> Error {
    match (error.kind(), error.raw_os_error()) {
        (ErrorKind::BrokenPipe | ErrorKind::ConnectionReset, _) => Error::Closed,
        (_, code) => Error::System(call, Errno::from_raw_os_error(code.unwrap_or_default())),
    }
}
