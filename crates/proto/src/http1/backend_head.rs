//! The head of a request to an HTTP backend: the client's fields without those about its connection (RFC 9110 7.6.1)
//! and without those that a backend could take for ones of the gateway.
//!
//! The gateway writes, in this order: [`BackendHead::write_request_line`], [`write_host`],
//! [`BackendHead::write_fields`], [`BackendHead::write_body_length`], its own fields about the client,
//! [`BackendHead::write_connection`], and an empty line. What the configuration changes comes in as arguments.

use super::encode::write_content_length;
use crate::cgi::is_ambiguous;
use crate::method::Method;
use crate::request_head::{BodyFraming, KnownField, RequestHead, Version};

/// A request as an HTTP backend gets it.
#[derive(Clone, Copy, Debug)]
pub struct BackendHead<'a> {
    /// The client's head, with the fields that modules have set.
    pub head: &'a RequestHead,
    /// The method, which modules may change.
    pub method: Method,
    /// [`Version::Http10`]: one request per connection, no chunks, no upgrade. Otherwise the request is HTTP/1.1.
    pub version: Version,
    /// How the body is sent.
    pub body: BodyFraming,
    /// Fields of the client are passed on even if programs confuse their names with others
    /// ([`is_ambiguous`]).
    pub passes_ambiguous: bool,
    /// The gateway writes Forwarded, so that the client's is dropped.
    pub writes_forwarded: bool,
}

impl BackendHead<'_> {
    /// Writes the request line. `write_target` writes the target.
    #[inline]
    pub fn write_request_line(&self, out: &mut Vec<u8>, write_target: impl FnOnce(&mut Vec<u8>)) {
        out.extend_from_slice(self.method.as_str().as_bytes());
        out.push(b' ');
        write_target(out);
        out.extend_from_slice(match self.version {
            Version::Http10 => b" HTTP/1.0\r\n",
            _ => b" HTTP/1.1\r\n",
        });
    }

    /// Writes the client's fields, without those about its connection and those that the gateway writes itself.
    /// `change` gets the name and the value of each field, and returns another value for it.
    #[inline]
    pub fn write_fields(
        &self,
        out: &mut Vec<u8>,
        mut change: impl FnMut(&[u8], &[u8]) -> Option<Vec<u8>>,
    ) {
        let names_fields = self.head.connection_names_fields();
        for (known, name, value) in self.head.iter_with_known() {
            if self.leaves_out(known, name, value) || (names_fields && self.is_named(name, value)) {
                continue;
            }
            out.extend_from_slice(name);
            out.extend_from_slice(b": ");
            let changed = change(name, value);
            out.extend_from_slice(changed.as_deref().unwrap_or(value));
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Whether the backend does not get this field of the client.
    #[inline]
    fn leaves_out(&self, known: Option<KnownField>, name: &[u8], value: &[u8]) -> bool {
        match known {
            // It announces the fields after the last chunk, so it goes with chunks only.
            Some(KnownField::Trailer) => self.body != BodyFraming::Chunked,
            Some(field) if field.is_written_by_sender() => true,
            Some(
                KnownField::Host
                | KnownField::XForwardedFor
                | KnownField::XForwardedProto
                | KnownField::XForwardedHost,
            ) => true,
            Some(KnownField::Forwarded) => self.writes_forwarded,
            Some(_) => false,
            // A backend that runs scripts would make the variable HTTP_PROXY of `Proxy`. `X-Host` is written by
            // the gateway.
            None => {
                name.eq_ignore_ascii_case(b"Proxy")
                    || name.eq_ignore_ascii_case(b"X-Host")
                    || (is_ambiguous(name) && self.is_refused(name, value))
            }
        }
    }

    /// Called for fields that a backend could confuse with others when it turns their names into variables. Such
    /// a field of the client is dropped unless the configuration passes them on, and any such field is dropped if
    /// it could be confused with a field that the gateway writes.
    #[cold]
    fn is_refused(&self, name: &[u8], value: &[u8]) -> bool {
        let ours: [&[u8]; 8] = [
            b"X-Forwarded-For",
            b"X-Forwarded-Proto",
            b"X-Forwarded-Host",
            b"X-Host",
            b"Content-Length",
            b"Transfer-Encoding",
            b"Upgrade",
            b"HTTP2-Settings",
        ];
        let dash = |byte: &u8| match byte.is_ascii_alphanumeric() {
            true => *byte,
            false => b'-',
        };
        let dashed: Vec<u8> = name.iter().map(dash).collect();
        ours.iter().any(|ours| ours.eq_ignore_ascii_case(&dashed))
            || (!self.passes_ambiguous && self.head.was_received(value))
    }

    /// Whether the client's Connection names this field, so that it is not passed on. If a module has set its
    /// value it is passed on: a client cannot take away what the configuration tells the backend.
    #[cold]
    fn is_named(&self, name: &[u8], value: &[u8]) -> bool {
        let mut options = self.head.items(KnownField::Connection);
        self.head.was_received(value) && options.any(|option| option.eq_ignore_ascii_case(name))
    }

    /// Writes the length of the body. A method that usually has a body says so if there is none (RFC 9110 8.6).
    #[inline]
    pub fn write_body_length(&self, out: &mut Vec<u8>) {
        match self.body {
            BodyFraming::Length(length) => write_content_length(out, length),
            BodyFraming::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            BodyFraming::None if self.method.is_get_or_head() => {}
            BodyFraming::None => write_content_length(out, 0),
        }
    }

    /// Writes Connection and the fields that belong to it: usually none, which keeps the connection open. `upgrade`
    /// is the protocol that the client may upgrade to.
    #[inline]
    pub fn write_connection(&self, out: &mut Vec<u8>, upgrade: Option<&[u8]>) {
        if self.version == Version::Http10 {
            return out.extend_from_slice(b"Connection: close\r\n");
        }
        // If the client accepts trailers, the backend may send them: they will reach the client (RFC 9110
        // 10.1.4).
        let wants_trailers = self.head.asks_for_trailers();
        match (wants_trailers, upgrade.is_some()) {
            (false, false) => return,
            (true, false) => out.extend_from_slice(b"Connection: TE\r\n"),
            (false, true) => out.extend_from_slice(b"Connection: upgrade\r\n"),
            (true, true) => out.extend_from_slice(b"Connection: upgrade, TE\r\n"),
        }
        if wants_trailers {
            out.extend_from_slice(b"TE: trailers\r\n");
        }
        if let Some(protocol) = upgrade {
            out.extend_from_slice(b"Upgrade: ");
            out.extend_from_slice(protocol);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// Writes Host.
#[inline]
pub fn write_host(out: &mut Vec<u8>, host: &[u8]) {
    out.extend_from_slice(b"Host: ");
    out.extend_from_slice(host);
    out.extend_from_slice(b"\r\n");
}
