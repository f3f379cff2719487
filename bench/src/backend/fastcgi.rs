//! FastCGI, as little of it as a responder and a fixed request need.
//!
//! Of a request only the record headers are read: type, id and length. The responder answers when the
//! request's FCGI_STDIN ends, regardless of what it asks for.

use super::responder::{Answers, Malformed, Taken};

/// One reply: head and body in one FCGI_STDOUT, its end, and FCGI_END_REQUEST.
pub struct FastCgi {
    reply: Vec<u8>,
}

impl FastCgi {
    /// Answers with `body`.
    pub fn new(body: &[u8]) -> Self {
        let mut content = format!(
            "Status: 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        content.extend_from_slice(body);
        let mut reply = Vec::new();
        record(&mut reply, STDOUT, &content);
        record(&mut reply, STDOUT, &[]);
        // Application status 0, protocol status FCGI_REQUEST_COMPLETE.
        record(&mut reply, END_REQUEST, &[0; 8]);
        Self { reply }
    }

    /// Appends the reply, with the request's id in each record header.
    fn answer(&self, id: [u8; 2], out: &mut Vec<u8>) {
        let from = out.len();
        out.extend_from_slice(&self.reply);
        let mut rest = &mut out[from..];
        while let Some(length) = record_length(rest) {
            rest[2..4].copy_from_slice(&id);
            rest = &mut rest[length..];
        }
    }
}

impl Answers for FastCgi {
    fn take(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Taken, Malformed> {
        let (mut at, mut close, mut taken) = (0, false, Taken::default());
        while let Some(length) = record_length(&bytes[at..]) {
            let record = &bytes[at..at + length];
            if record[0] != VERSION {
                return Err(Malformed);
            }
            at += length;
            match (record[1], record[4..6] == [0, 0]) {
                (BEGIN_REQUEST, _) => {
                    close = record.get(10).is_none_or(|flags| flags & KEEP_CONN == 0);
                }
                (STDIN, true) => {
                    self.answer([record[2], record[3]], out);
                    taken.used = at;
                    taken.requests += 1;
                    if close {
                        return Ok(Taken { close, ..taken });
                    }
                }
                _ => {}
            }
        }
        Ok(taken)
    }
}

/// The request of a web server for `path`, with a script of that name below `root`. The connection stays open
/// afterwards.
pub fn request(path: &str, root: &str) -> Vec<u8> {
    let script = format!("{root}{path}");
    let parameters = [
        ("SCRIPT_FILENAME", script.as_str()),
        ("QUERY_STRING", ""),
        ("REQUEST_METHOD", "GET"),
        ("CONTENT_TYPE", ""),
        ("CONTENT_LENGTH", ""),
        ("SCRIPT_NAME", path),
        ("REQUEST_URI", path),
        ("DOCUMENT_URI", path),
        ("DOCUMENT_ROOT", root),
        ("SERVER_PROTOCOL", "HTTP/1.1"),
        ("REQUEST_SCHEME", "http"),
        ("GATEWAY_INTERFACE", "CGI/1.1"),
        ("SERVER_SOFTWARE", "floor/0.1.0"),
        ("REMOTE_ADDR", "127.0.0.1"),
        ("REMOTE_PORT", "40000"),
        ("SERVER_ADDR", "127.0.0.1"),
        ("SERVER_PORT", "80"),
        ("SERVER_NAME", ""),
        ("REDIRECT_STATUS", "200"),
        ("HTTP_HOST", "127.0.0.1:40000"),
        ("HTTP_USER_AGENT", "petrel-bench"),
        ("HTTP_ACCEPT", "*/*"),
    ];
    let mut pairs = Vec::new();
    for (name, value) in parameters {
        length(&mut pairs, name.len());
        length(&mut pairs, value.len());
        pairs.extend_from_slice(name.as_bytes());
        pairs.extend_from_slice(value.as_bytes());
    }
    let mut out = Vec::new();
    record(
        &mut out,
        BEGIN_REQUEST,
        &[0, RESPONDER, KEEP_CONN, 0, 0, 0, 0, 0],
    );
    record(&mut out, PARAMS, &pairs);
    record(&mut out, PARAMS, &[]);
    record(&mut out, STDIN, &[]);
    out
}

/// The length of the record at the start of `bytes`, if it is complete.
fn record_length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.get(..8)?;
    let content = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let length = 8 + content + usize::from(head[6]);
    (bytes.len() >= length).then_some(length)
}

/// Appends a record of request 1, padded to a multiple of eight bytes as the specification recommends.
fn record(out: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let padding = content.len().wrapping_neg() % 8;
    let length = u16::try_from(content.len()).expect("canned content is short");
    let [high, low] = length.to_be_bytes();
    out.extend_from_slice(&[VERSION, kind, 0, 1, high, low, padding as u8, 0]);
    out.extend_from_slice(content);
    out.resize(out.len() + padding, 0);
}

/// Appends the length of a name or value: one byte, or four with the highest bit set.
fn length(out: &mut Vec<u8>, length: usize) {
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => out.push(short),
        _ => out.extend_from_slice(&(length as u32 | 0x8000_0000).to_be_bytes()),
    }
}

const VERSION: u8 = 1;
const BEGIN_REQUEST: u8 = 1;
const END_REQUEST: u8 = 3;
const PARAMS: u8 = 4;
const STDIN: u8 = 5;
const STDOUT: u8 = 6;
/// The role in FCGI_BEGIN_REQUEST.
const RESPONDER: u8 = 1;
/// The flag in FCGI_BEGIN_REQUEST.
const KEEP_CONN: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_when_it_is_whole_and_with_its_id() {
        let fastcgi = FastCgi::new(b"hello");
        let mut request = request("/fcgi/x", "/srv");
        request[3] = 7;
        let end = request.len() - 8;
        request[end + 3] = 7;
        for cut in 0..request.len() {
            let mut out = Vec::new();
            let taken = fastcgi.take(&request[..cut], &mut out).unwrap();
            assert_eq!(taken, Taken::default());
            assert!(out.is_empty());
        }
        let mut out = Vec::new();
        let taken = fastcgi.take(&request, &mut out).unwrap();
        let all = Taken {
            used: request.len(),
            requests: 1,
            close: false,
        };
        assert_eq!(taken, all);
        assert_eq!((out[1], out[3]), (STDOUT, 7));
        let last = &out[out.len() - 16..];
        assert_eq!((last[1], last[3]), (END_REQUEST, 7));
    }

    #[test]
    fn without_the_flag_the_connection_is_closed() {
        let mut request = request("/", "/srv");
        request[10] = 0;
        let taken = FastCgi::new(b"").take(&request, &mut Vec::new());
        assert!(taken.unwrap().close);
    }

    #[test]
    fn another_version_is_refused() {
        let mut request = request("/", "/srv");
        request[0] = 2;
        assert!(FastCgi::new(b"").take(&request, &mut Vec::new()).is_err());
    }
}
