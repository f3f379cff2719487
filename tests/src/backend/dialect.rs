//! What the protocols of backends have in common, from the backend's side.

use std::io;

use super::wire::Wire;
use super::{ajp13::Ajp13, fastcgi::FastCgi, http::Http, scgi::Scgi};

/// The protocol of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// FastCGI 1.0.
    FastCgi,
    /// SCGI.
    Scgi,
    /// uWSGI's binary protocol.
    Uwsgi,
    /// AJP 1.3.
    Ajp13,
    /// HTTP/1.1.
    Http,
}

impl Speaks {
    /// All protocols.
    pub const ALL: [Speaks; 5] = [
        Speaks::FastCgi,
        Speaks::Scgi,
        Speaks::Uwsgi,
        Speaks::Ajp13,
        Speaks::Http,
    ];

    /// Module and directive of lighttpd 1.4, and a line that must precede the directive.
    pub(super) fn directive(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Speaks::FastCgi => ("mod_fastcgi", "fastcgi.server", ""),
            Speaks::Scgi => ("mod_scgi", "scgi.server", ""),
            Speaks::Uwsgi => ("mod_scgi", "scgi.server", "scgi.protocol = \"uwsgi\"\n"),
            Speaks::Ajp13 => ("mod_ajp13", "ajp13.server", ""),
            Speaks::Http => ("mod_proxy", "proxy.server", ""),
        }
    }

    pub(super) fn dialect(self) -> Box<dyn Dialect> {
        match self {
            Speaks::FastCgi => Box::new(FastCgi::default()),
            Speaks::Scgi => Box::new(Scgi::with_netstrings()),
            Speaks::Uwsgi => Box::new(Scgi::with_binary_lengths()),
            Speaks::Ajp13 => Box::new(Ajp13::default()),
            Speaks::Http => Box::new(Http::default()),
        }
    }
}

/// The variables or header fields of a request.
pub(super) type Params = Vec<(String, String)>;

/// One protocol, on one connection.
pub(super) trait Dialect: Send {
    /// Waits for the next request and reads it up to its body.
    ///
    /// # Errors
    /// The connection ended, or what came is no request.
    fn read_head(&mut self, wire: &mut Wire) -> io::Result<Params>;

    /// Reads the next piece of the request body; `None` at its end.
    ///
    /// # Errors
    /// The connection ended, or what came is no request.
    fn read_body(&mut self, wire: &mut Wire) -> io::Result<Option<Vec<u8>>>;

    /// Appends the head of a response.
    fn write_head(&mut self, out: &mut Vec<u8>, status: u16, fields: &[(&str, &str)]);

    /// Appends a piece of a response's body.
    fn write_body(&mut self, out: &mut Vec<u8>, bytes: &[u8]);

    /// Appends the end of a response. Returns whether the connection may be used again.
    fn write_end(&mut self, out: &mut Vec<u8>) -> bool;

    /// Appends a message for the server's log; nothing if the protocol has no way to send one.
    fn write_log(&mut self, _out: &mut Vec<u8>, _bytes: &[u8]) {}

    /// Whether the gateway has aborted the request since the last call.
    fn was_aborted(&mut self) -> bool {
        false
    }
}

/// The head of a response as CGI programs write it.
pub(super) fn cgi_head(status: u16, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut head = format!("Status: {status}\r\n");
    for (name, value) in fields {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    (head + "\r\n").into_bytes()
}

/// Bytes as text, for comparison. Invalid UTF-8 is replaced.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The error for something that is no request of the protocol.
pub(super) fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// The value of a parameter.
pub(super) fn find<'a>(params: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let same = params
        .iter()
        .find(|(key, _)| key.eq_ignore_ascii_case(name));
    same.map(|(_, value)| value.as_str())
}
