//! The collector: its URL, and one request to it.
//!
//! A blocking client for one purpose: a POST on a connection of its own, of whose answer only the status
//! counts.
#![expect(clippy::disallowed_methods, reason = "the thread has no worker")]

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use petrel_engine::proto::otlp::CONTENT_TYPE;
use petrel_engine::tls::{TlsClient, TlsName, TlsServer};

/// The URL of a collector.
#[derive(Debug)]
pub(super) struct Collector {
    /// Host and port as in the URL, for the field Host.
    authority: String,
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
    path: String,
    /// The name in its certificate, if it speaks TLS.
    tls: Option<TlsName>,
}

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The collector has the spans.
    Taken,
    /// The collector will never take them, and why.
    Refused(String),
    /// It may take them later, and why not now; the pause that it asks for.
    Later(String, Option<Duration>),
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path)
    }
}

impl Collector {
    /// Reads a URL.
    ///
    /// # Errors
    /// It is none: a sentence.
    pub(super) fn parse(url: &str) -> Result<Collector, String> {
        let wrong = || format!("{url:?} is no URL of a collector");
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        let is_tls = match () {
            () if scheme.eq_ignore_ascii_case("http") => false,
            () if scheme.eq_ignore_ascii_case("https") => true,
            () => return Err(wrong()),
        };
        let end = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at_checked(end).ok_or_else(wrong)?;
        let is_visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if authority.contains(['@', '?', '#']) || path.contains('#') || !is_visible(rest) {
            return Err(wrong());
        }
        let default = if is_tls { 443 } else { 80 };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| wrong())?),
            _ => (authority, default),
        };
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let bare = bare.unwrap_or(host);
        if bare.is_empty() || port == 0 || (bare == host && host.contains(':')) {
            return Err(wrong());
        }
        Ok(Collector {
            authority: authority.to_owned(),
            host: bare.to_owned(),
            port,
            path: match path {
                "" | "/" => "/v1/traces".to_owned(),
                path => path.to_owned(),
            },
            tls: match is_tls {
                true => Some(TlsName::parse(bare)?),
                false => None,
            },
        })
    }

    /// The name in its certificate, if it speaks TLS.
    pub(super) fn tls_name(&self) -> Option<&TlsName> {
        self.tls.as_ref()
    }

    /// Sends `body`.
    pub(super) fn post(
        &self,
        body: &[u8],
        fields: &[(String, String)],
        tls: Option<&TlsServer>,
    ) -> Answer {
        let mut request = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: petrel/{}\r\nContent-Type: {CONTENT_TYPE}\r\n\
             Content-Length: {}\r\nConnection: close\r\n",
            self.path,
            self.authority,
            env!("CARGO_PKG_VERSION"),
            body.len()
        );
        for (name, value) in fields {
            request += &format!("{name}: {value}\r\n");
        }
        request += "\r\n";
        let request = [request.as_bytes(), body].concat();
        let head = self.connect().and_then(|stream| match tls {
            Some(server) => ask_by_tls(stream, server, &request),
            None => ask(stream, &request),
        });
        match head {
            Ok(head) => judge(&head),
            Err(error) => Answer::Later(error.to_string(), None),
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TIME) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(TIME))?;
                    stream.set_write_timeout(Some(TIME))?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn ask(mut stream: TcpStream, request: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(request)?;
    read_head(|buffer| stream.read(buffer))
}

fn ask_by_tls(mut stream: TcpStream, server: &TlsServer, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut client = server.client(Vec::new()).map_err(io::Error::other)?;
    let mut written = 0;
    while client.is_handshaking() {
        send(&mut client, &mut stream)?;
        receive(&mut client, &mut stream)?;
    }
    while let Some(rest) = request.get(written..).filter(|rest| !rest.is_empty()) {
        written += client.write(rest);
        send(&mut client, &mut stream)?;
    }
    read_head(|buffer| {
        loop {
            if let Some(count) = client.read(buffer)? {
                return Ok(count);
            }
            receive(&mut client, &mut stream)?;
            send(&mut client, &mut stream)?;
        }
    })
}

fn send(client: &mut TlsClient, stream: &mut TcpStream) -> io::Result<()> {
    while !client.unsent().is_empty() {
        let count = stream.write(client.unsent())?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        client.sent(count);
    }
    Ok(())
}

fn receive(client: &mut TlsClient, stream: &mut TcpStream) -> io::Result<()> {
    let mut buffer = [0; 16 << 10];
    match stream.read(&mut buffer)? {
        0 if client.is_handshaking() => Err(io::ErrorKind::UnexpectedEof.into()),
        0 => {
            client.end_of_input();
            Ok(())
        }
        count => {
            let received = client.receive(buffer.get(..count).unwrap_or_default());
            // An alert says why.
            let _ = send(client, stream);
            received.map_err(io::Error::other)
        }
    }
}

/// Reads until the end of the head of the answer.
fn read_head(mut read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<Vec<u8>> {
    let due = Instant::now() + TIME;
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = read(&mut buffer)?;
        head.extend_from_slice(buffer.get(..count).unwrap_or_default());
        if memchr::memmem::find(&head, b"\r\n\r\n").is_some() {
            return Ok(head);
        }
        if count == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "it closed the connection without an answer",
            ));
        }
        if head.len() > HEAD_BYTES_MAX || Instant::now() > due {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its answer has no end",
            ));
        }
    }
}

/// What the head of an answer means (OTLP specification, "OTLP/HTTP Response").
fn judge(head: &[u8]) -> Answer {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| {
        let (version, rest) = line.split_once(' ')?;
        let digits = rest.get(..3).filter(|_| version.starts_with("HTTP/1."))?;
        digits.parse::<u16>().ok()
    });
    let mut pause = || {
        let (_, value) = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("retry-after")
                .then_some((name, value))
        })?;
        value.trim().parse().ok().map(Duration::from_secs)
    };
    match status {
        Some(200..300) => Answer::Taken,
        Some(status @ (429 | 502 | 503 | 504)) => {
            Answer::Later(format!("it answers {status}"), pause())
        }
        Some(status) => Answer::Refused(format!("it answers {status}")),
        None => Answer::Refused("its answer is not HTTP".to_owned()),
    }
}

/// For connecting, for each read and write, and for the whole answer.
const TIME: Duration = Duration::from_secs(10);

const HEAD_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        for (url, shown, host, port) in [
            (
                "http://127.0.0.1:4318",
                "http://127.0.0.1:4318/v1/traces",
                "127.0.0.1",
                4318,
            ),
            (
                "HTTP://[::1]:4318/",
                "http://[::1]:4318/v1/traces",
                "::1",
                4318,
            ),
            (
                "https://a.example/otlp/traces",
                "https://a.example/otlp/traces",
                "a.example",
                443,
            ),
            ("http://a", "http://a/v1/traces", "a", 80),
        ] {
            let endpoint = Collector::parse(url).expect(url);
            assert_eq!(endpoint.to_string(), shown);
            assert_eq!((endpoint.host.as_str(), endpoint.port), (host, port));
        }
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for url in [
            "",
            "127.0.0.1:4318",
            "ftp://a",
            "http://",
            "http://:80",
            "http://a:0",
            "http://a:70000",
            "http://user:password@a",
            "http://a b",
            "http://a/b\r\nc: d",
            "http://::1",
            "http://a?b",
        ] {
            assert!(Collector::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn answers_are_judged() {
        let judge = |head: &str| judge(head.as_bytes());
        assert_eq!(judge("HTTP/1.1 200 OK\r\n\r\n"), Answer::Taken);
        assert_eq!(
            judge("HTTP/1.1 503 Busy\r\nretry-after: 7\r\n\r\n"),
            Answer::Later("it answers 503".to_owned(), Some(Duration::from_secs(7)))
        );
        assert_eq!(
            judge("HTTP/1.0 429\r\nRetry-After: tomorrow\r\n\r\n"),
            Answer::Later("it answers 429".to_owned(), None)
        );
        assert!(matches!(
            judge("HTTP/1.1 400 Bad\r\n\r\n"),
            Answer::Refused(_)
        ));
        assert!(matches!(judge("SSH-2.0\r\n\r\n"), Answer::Refused(_)));
        assert!(matches!(
            judge("HTTP/1.1 2\u{e9}\r\n\r\n"),
            Answer::Refused(_)
        ));
    }
}
