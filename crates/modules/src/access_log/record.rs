//! The values that a line can contain: borrowed from an exchange, or made up by a test.

use std::net::{IpAddr, SocketAddr};

use petrel_engine::Exchange;
use petrel_engine::clock::Clock;
use petrel_engine::exchange::{Environment, Peer, SentBytes};
use petrel_engine::ledger::Ledger;
use petrel_engine::proto::method::Method;
use petrel_engine::proto::request_head::{KnownField, RequestHead};
use petrel_engine::proto::url::Url;
use petrel_engine::request_id::RequestId;
use petrel_engine::response::Response;
use petrel_engine::waits::Wait;

/// A finished request.
pub(super) struct Record<'a> {
    pub(super) id: RequestId,
    pub(super) head: &'a RequestHead,
    pub(super) url: &'a Url,
    /// The target as the client sent it.
    pub(super) original_target: &'a [u8],
    /// The first line of a head that was rejected.
    pub(super) refused_line: &'a [u8],
    pub(super) body_bytes_received: u64,
    pub(super) physical_path: &'a [u8],
    pub(super) response: &'a Response,
    pub(super) environment: &'a Environment,
    pub(super) ledger: &'a Ledger,
    pub(super) waits: &'a [Wait],
    pub(super) sent: SentBytes,
    pub(super) peer: Peer,
    /// The address that the client connected to; `None` for a unix socket.
    pub(super) local_address: Option<SocketAddr>,
    pub(super) listener_port: u16,
    /// server.port
    pub(super) server_port: u16,
    /// server.name
    pub(super) server_name: Option<&'a [u8]>,
    /// The number of the request on its connection, starting with 1.
    pub(super) request_number: u32,
    pub(super) clock: &'a Clock,
}

impl<'a> Record<'a> {
    pub(super) fn of(exchange: &'a Exchange, server_port: u16) -> Record<'a> {
        Record {
            id: exchange.id,
            head: &exchange.request.head,
            url: &exchange.request.url,
            original_target: exchange.request.original_target(),
            refused_line: &exchange.request.refused_line,
            body_bytes_received: exchange.request.body_bytes,
            physical_path: &exchange.physical.path,
            response: &exchange.response,
            environment: &exchange.environment,
            ledger: &exchange.ledger,
            waits: exchange.waits(),
            sent: exchange.sent,
            peer: exchange.connection.peer,
            local_address: exchange.local_address(),
            listener_port: exchange.connection.listener.port,
            server_port,
            server_name: exchange.settings.core.name.as_deref(),
            request_number: exchange.connection.request_number,
            clock: exchange.worker.clock(),
        }
    }

    /// When the request began, in nanoseconds since the epoch.
    pub(super) fn begun(&self) -> u64 {
        self.clock.wall_nanos_at(self.ledger.started())
    }

    /// When the request ended, in nanoseconds since the epoch.
    pub(super) fn ended(&self) -> u64 {
        self.clock
            .wall_nanos_at(self.ledger.started() + self.ledger.total())
    }

    pub(super) fn protocol(&self) -> &'static [u8] {
        self.head.version().as_str().as_bytes()
    }

    /// The target in origin form, as lighttpd logs it: an absolute target without scheme and host.
    pub(super) fn request_target(&self) -> &'a [u8] {
        if matches!(self.original_target.first(), Some(b'/' | b'*') | None) {
            return self.original_target;
        }
        let origin = self.url.scheme().len() + b"://".len() + self.url.authority().len();
        self.original_target
            .get(origin..)
            .unwrap_or(self.original_target)
    }

    pub(super) fn bytes_received(&self) -> u64 {
        self.head.head_length() as u64 + self.body_bytes_received
    }

    /// A field of the response. The fields that the connection writes are derived from what it did. Date and
    /// Server are only logged if a module has set them, as in lighttpd.
    pub(super) fn response_field(&self, name: &str) -> Option<ResponseField<'a>> {
        if name.eq_ignore_ascii_case("content-length") {
            let length = match self.head.method() {
                Method::Head => self.response.announced_length,
                _ => self.sent.is_complete.then_some(self.sent.body_bytes),
            };
            return length.map(ResponseField::Number);
        }
        if name.eq_ignore_ascii_case("connection") {
            return (!self.sent.keep_alive).then_some(ResponseField::Text(b"close"));
        }
        self.response.get(name).map(ResponseField::Text)
    }

    /// The value of a cookie that the client sent.
    pub(super) fn cookie(&self, name: &[u8]) -> Option<&'a [u8]> {
        let cookies = self.head.field(KnownField::Cookie)?;
        cookies
            .split(|byte| *byte == b';')
            .find_map(|cookie| cookie.trim_ascii().strip_prefix(name)?.strip_prefix(b"="))
    }

    /// The address that the client connected to; `None` for a unix socket.
    pub(super) fn local_ip(&self) -> Option<IpAddr> {
        self.local_address
            .map(|address| address.ip().to_canonical())
    }

    pub(super) fn remote_ip(&self) -> Option<IpAddr> {
        self.peer.ip()
    }

    pub(super) fn remote_port(&self) -> Option<u16> {
        match self.peer {
            Peer::Ip(address) => Some(address.port()),
            Peer::Unix => None,
        }
    }

    /// server.name, or, if it is not set, the host of the request with its port, as in lighttpd.
    pub(super) fn server_name(&self) -> &'a [u8] {
        self.server_name.unwrap_or_else(|| self.head.host())
    }
}

/// A response field as it can be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseField<'a> {
    Text(&'a [u8]),
    Number(u64),
}

#[cfg(test)]
pub(super) mod tests {
    use petrel_engine::ledger::Stage;
    use petrel_engine::proto::request_head::HeadOptions;
    use petrel_engine::proto::status::Status;
    use petrel_engine::proto::url::UrlOptions;

    use super::*;

    /// Owns what a [`Record`] borrows.
    pub(in super::super) struct Request {
        pub(in super::super) head: RequestHead,
        url: Url,
        target: Vec<u8>,
        pub(in super::super) refused_line: Vec<u8>,
        pub(in super::super) response: Response,
        pub(in super::super) environment: Environment,
        ledger: Ledger,
        pub(in super::super) waits: Vec<Wait>,
        pub(in super::super) sent: SentBytes,
        pub(in super::super) peer: Peer,
        pub(in super::super) server_name: Option<Vec<u8>>,
        pub(in super::super) path: Vec<u8>,
        clock: Clock,
    }

    impl Request {
        /// A request with this head, answered with 200 and six bytes in 1,234,567 ns.
        pub(in super::super) fn new(head: &[u8]) -> Request {
            let mut parsed = RequestHead::new();
            let options = HeadOptions {
                header_strict: false,
                ..HeadOptions::default()
            };
            parsed.parse(head, &options).expect("a sound head");
            let mut url = Url::new();
            let target = parsed.target().to_vec();
            url.parse(&target, parsed.method(), &UrlOptions::default())
                .expect("a sound target");
            let clock = Clock::new();
            let mut ledger = Ledger::default();
            let now = clock.now();
            ledger.start_late(now, now, 7_001);
            ledger.stamp(Stage::ReadHead, now + 1_000);
            ledger.stamp(Stage::Content, now + 34_567);
            ledger.stamp(Stage::Send, now + 1_234_567);
            let mut response = Response::default();
            response.answer(Status::OK);
            response.append("Content-Type", b"text/plain");
            Request {
                head: parsed,
                url,
                target,
                refused_line: Vec::new(),
                response,
                environment: Environment::default(),
                ledger,
                waits: Vec::new(),
                sent: SentBytes {
                    bytes: 250,
                    body_bytes: 6,
                    head_bytes: 244,
                    keep_alive: true,
                    is_complete: true,
                },
                peer: Peer::Ip(SocketAddr::from(([127, 0, 0, 1], 42168))),
                server_name: None,
                path: Vec::new(),
                clock,
            }
        }

        pub(in super::super) fn record(&self) -> Record<'_> {
            Record {
                id: RequestId::from_bits(0x0123_4567_89ab_cdef),
                head: &self.head,
                url: &self.url,
                original_target: &self.target,
                refused_line: &self.refused_line,
                body_bytes_received: 0,
                physical_path: &self.path,
                response: &self.response,
                environment: &self.environment,
                ledger: &self.ledger,
                waits: &self.waits,
                sent: self.sent,
                peer: self.peer,
                local_address: match self.peer {
                    Peer::Ip(_) => Some(SocketAddr::from(([127, 0, 0, 1], 18471))),
                    Peer::Unix => None,
                },
                listener_port: 18471,
                server_port: 80,
                server_name: self.server_name.as_deref(),
                request_number: 3,
                clock: &self.clock,
            }
        }
    }
}
