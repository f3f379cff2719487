//! HTTP/1.1, as little of it as a responder needs: a request is complete when its head is.

use super::responder::{Answers, Malformed, Taken};
use memchr::memmem;

/// One reply for all requests, for each of two HTTP versions.
pub struct Http {
    kept: Vec<u8>,
    closing: Vec<u8>,
}

impl Http {
    /// Answers with `body`, which caches may keep for `max_age` seconds.
    pub fn new(body: &[u8], max_age: Option<u32>) -> Self {
        let cached = max_age.map_or_else(String::new, |seconds| {
            format!("Cache-Control: public, max-age={seconds}\r\n")
        });
        let reply = |connection: &str| {
            let mut reply = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\
                 {cached}Connection: {connection}\r\n\r\n",
                body.len()
            )
            .into_bytes();
            reply.extend_from_slice(body);
            reply
        };
        Self {
            kept: reply("keep-alive"),
            closing: reply("close"),
        }
    }
}

impl Answers for Http {
    fn take(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Taken, Malformed> {
        let mut taken = Taken::default();
        while let Some(end) = memmem::find(&bytes[taken.used..], b"\r\n\r\n") {
            let head = &bytes[taken.used..taken.used + end];
            taken.used += end + 4;
            taken.requests += 1;
            if !head.starts_with(b"GET ") {
                return Err(Malformed);
            }
            if is_last(head) {
                out.extend_from_slice(&self.closing);
                taken.close = true;
                return Ok(taken);
            }
            out.extend_from_slice(&self.kept);
        }
        Ok(taken)
    }
}

/// Whether the connection closes after this request: HTTP/1.0 without `keep-alive`, or `close`.
fn is_last(head: &[u8]) -> bool {
    let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let old = lines.next().is_some_and(|line| line.ends_with(b"HTTP/1.0"));
    let connection = lines.find_map(|line| {
        let (name, value) = line.split_at_checked(b"connection:".len())?;
        name.eq_ignore_ascii_case(b"connection:")
            .then(|| value.trim_ascii())
    });
    match connection {
        Some(value) if value.eq_ignore_ascii_case(b"keep-alive") => false,
        Some(value) if value.eq_ignore_ascii_case(b"close") => true,
        _ => old,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(request: &[u8]) -> (usize, bool, Vec<u8>) {
        let mut out = Vec::new();
        let taken = Http::new(b"hello", None).take(request, &mut out).unwrap();
        (taken.used, taken.close, out)
    }

    #[test]
    fn caches_are_told_how_long() {
        let mut out = Vec::new();
        let taken = Http::new(b"hello", Some(60)).take(b"GET / HTTP/1.1\r\n\r\n", &mut out);
        assert_eq!(taken.unwrap().requests, 1);
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\r\nCache-Control: public, max-age=60\r\n"));
    }

    #[test]
    fn a_request_is_answered_when_its_head_is_whole() {
        let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        assert_eq!(taken(&request[..20]), (0, false, Vec::new()));
        let (used, close, out) = taken(request);
        assert_eq!((used, close), (request.len(), false));
        assert!(out.ends_with(b"\r\n\r\nhello"));
    }

    #[test]
    fn old_and_closing_requests_are_the_last() {
        assert!(taken(b"GET / HTTP/1.0\r\n\r\n").1);
        assert!(taken(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").1);
        assert!(!taken(b"GET / HTTP/1.0\r\nconnection: Keep-Alive\r\n\r\n").1);
    }

    #[test]
    fn what_is_no_get_is_refused() {
        assert!(
            Http::new(b"", None)
                .take(b"POST / HTTP/1.1\r\n\r\n", &mut Vec::new())
                .is_err()
        );
    }
}
