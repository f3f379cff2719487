//! One question for the status of php-fpm: a FastCGI request on a connection of its own.

use std::io;

use petrel_engine::proto::cgi::{HeadDecoder, HeadLimits, ParsedCgiHead};
use petrel_engine::proto::fastcgi::{
    AfterRequest, FastCgiDecoder, FastCgiEvent, ParamsEncoder, Role, Stream, kind,
    write_begin_request, write_end_of_stream,
};
use petrel_engine::proto::reply_head::ReplyHead;
use petrel_engine::proto::status::Status;
use petrel_engine::tls::TlsServer;

use super::page::FpmPool;
use crate::gateway::active_check::{ReceivedBytes, first_bytes, proxy_prefix, send};
use crate::gateway::limits;
use crate::gateway::stream::{BackendStream, SocketAddress};

/// Why the status is not known.
#[derive(Debug)]
pub(super) enum FpmFailure {
    /// There is no connection, or it broke: a sentence.
    Unreachable(String),
    /// There is no reply in time: all children may be busy.
    Silent,
    /// There is a reply that is not the status: a sentence.
    OtherReply(String),
}

/// How php-fpm is reached.
pub(super) struct FpmRoute {
    /// How to speak TLS with it; `None` in the clear.
    pub(super) tls: Option<TlsServer>,
    /// PROXY protocol version in front of the request: 0, 1 or 2.
    pub(super) proxy_protocol: u8,
    /// `pm.status_path` of its pool.
    pub(super) status_path: Vec<u8>,
}

impl FpmRoute {
    /// Asks the php-fpm at `address`. The caller limits the time.
    pub(super) async fn ask(&self, address: &SocketAddress) -> Result<FpmPool, FpmFailure> {
        let stream = self.connect(address).await.map_err(|error| {
            FpmFailure::Unreachable(match error.kind() {
                io::ErrorKind::WouldBlock => "its listen queue is full".to_owned(),
                _ => format!("cannot connect: {error}"),
            })
        })?;
        let reply = self.fetch(stream).await?;
        self.read(&reply).map_err(FpmFailure::OtherReply)
    }

    async fn connect(&self, address: &SocketAddress) -> io::Result<BackendStream> {
        let prefix = proxy_prefix(self.proxy_protocol);
        address.connect_to(self.tls.as_ref(), prefix.to_vec()).await
    }

    /// Sends the request and reads all of STDOUT.
    async fn fetch(&self, mut stream: BackendStream) -> Result<Vec<u8>, FpmFailure> {
        let sent = send(&mut stream, &self.request()).await;
        sent.map_err(FpmFailure::Unreachable)?;
        let mut decoder = FastCgiDecoder::new(ID);
        let mut received = ReceivedBytes::default();
        let (mut reply, mut received_bytes) = (Vec::new(), 0);
        loop {
            let input = received.bytes();
            let decoded = decoder
                .decode(input)
                .map_err(|error| FpmFailure::OtherReply(error.to_string()))?;
            let mut needs_more = false;
            match decoded.event {
                FastCgiEvent::Data(Stream::Stdout, range) => {
                    reply.extend_from_slice(input.get(range).unwrap_or_default());
                }
                FastCgiEvent::Data(Stream::Stderr, _) => {}
                FastCgiEvent::NeedMore => needs_more = true,
                FastCgiEvent::End { .. } => return Ok(reply),
            }
            received.consume(decoded.consumed);
            received_bytes += decoded.consumed;
            if received_bytes + received.bytes().len() > limits::FPM_PAGE_BYTES_MAX {
                let most = limits::FPM_PAGE_BYTES_MAX;
                let why = format!("its reply has more than {most} bytes");
                return Err(FpmFailure::OtherReply(why));
            }
            if needs_more {
                let read = received.receive(&mut stream).await;
                if !read.map_err(FpmFailure::Unreachable)? {
                    let why = "it closed the connection before its reply was complete";
                    return Err(FpmFailure::Unreachable(why.to_owned()));
                }
            }
        }
    }

    fn request(&self) -> Vec<u8> {
        let path = &*self.status_path;
        let mut request = first_bytes(self.tls.as_ref(), self.proxy_protocol).to_vec();
        write_begin_request(&mut request, ID, Role::Responder, AfterRequest::Close);
        let mut params = ParamsEncoder::new(&mut request, ID);
        // php-fpm compares SCRIPT_NAME.
        for name in ["SCRIPT_NAME", "SCRIPT_FILENAME", "REQUEST_URI"] {
            params.add(name.as_bytes(), path);
        }
        params.add(b"QUERY_STRING", b"json&full");
        params.add(b"REQUEST_METHOD", b"GET");
        params.finish();
        write_end_of_stream(&mut request, kind::STDIN, ID);
        request
    }

    /// Reads head and body of a reply.
    fn read(&self, reply: &[u8]) -> Result<FpmPool, String> {
        let mut head = ReplyHead::new();
        let parsed = HeadDecoder::new(HeadLimits::default()).decode(reply, &mut head);
        let length = match parsed.map_err(|error| error.to_string())? {
            ParsedCgiHead::Complete { length, .. } => length,
            ParsedCgiHead::Partial => return Err("its reply has no body".to_owned()),
        };
        match head.status() {
            Status::OK => FpmPool::read(reply.get(length..).unwrap_or_default(), &self.status_path),
            Status(code) => Err(format!("it answers {code}")),
        }
    }
}

/// The id of the request. There is one on a connection.
const ID: u16 = 1;
