//! The reply to a request, as records: the file's name, or an error status and a line for the log.

use proto::escape::percent_encode_all;
use proto::fastcgi::{ProtocolStatus, kind, write_end_of_stream, write_end_request, write_stream};
use proto::status::Status;

use super::Refusal;

/// The reply to the web server: the path of the file to send, or an error.
#[derive(Debug)]
pub(crate) struct StatReply(pub(crate) Result<Vec<u8>, Refusal>);

impl StatReply {
    /// The line for the log, if there is one.
    pub(crate) fn words(&self) -> Option<&str> {
        let refusal = self.0.as_ref().err()?;
        refusal.words.as_deref()
    }

    /// Appends all records of the reply.
    pub(crate) fn write(&self, out: &mut Vec<u8>, id: u16) {
        if let Some(words) = self.words() {
            write_stream(out, kind::STDERR, id, format!("{words}\n").as_bytes());
            write_end_of_stream(out, kind::STDERR, id);
        }
        let text = match &self.0 {
            Ok(path) => naming(path),
            Err(refusal) => refusing(refusal.status),
        };
        write_stream(out, kind::STDOUT, id, &text);
        write_end_of_stream(out, kind::STDOUT, id);
        write_end_request(out, id, 0, ProtocolStatus::RequestComplete);
    }
}

/// The header fields by which web servers send a file. Content-Type is left to the web server.
fn naming(path: &[u8]) -> Vec<u8> {
    let mut head = Vec::with_capacity(64 + 2 * path.len());
    for name in ["X-LIGHTTPD-send-file: ", "X-Sendfile: "] {
        head.extend_from_slice(name.as_bytes());
        // Web servers decode the path once, so a percent sign in a name must be encoded; and no byte of a
        // name may end the field.
        percent_encode_all(&mut head, path);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

fn refusing(status: Status) -> Vec<u8> {
    let line = format!("{} {}", status.0, status.reason());
    let allow = match status {
        Status::METHOD_NOT_ALLOWED => "Allow: GET, HEAD, POST\r\n",
        _ => "",
    };
    let length = line.len() + 1;
    let head = format!(
        "Status: {line}\r\n{allow}Content-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{line}\n"
    );
    head.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_so_that_they_decode_to_themselves() {
        let text = naming(b"/srv/a b%20\r\nX: y\xff/\xc3\xbc+~.txt");
        let path = "/srv/a%20b%2520%0D%0AX%3A%20y%FF/%C3%BC%2B~.txt";
        let expected = format!("X-LIGHTTPD-send-file: {path}\r\nX-Sendfile: {path}\r\n\r\n");
        assert_eq!(String::from_utf8(text), Ok(expected));
    }

    #[test]
    fn a_refusal_is_a_page_and_a_line_for_the_log() {
        let refusal = Refusal::new(Status::METHOD_NOT_ALLOWED, "why".to_owned());
        let mut out = Vec::new();
        StatReply(Err(refusal)).write(&mut out, 7);
        let (log, page) = (b"why\n", refusing(Status::METHOD_NOT_ALLOWED));
        let mut expected = Vec::new();
        write_stream(&mut expected, kind::STDERR, 7, log);
        write_end_of_stream(&mut expected, kind::STDERR, 7);
        write_stream(&mut expected, kind::STDOUT, 7, &page);
        write_end_of_stream(&mut expected, kind::STDOUT, 7);
        write_end_request(&mut expected, 7, 0, ProtocolStatus::RequestComplete);
        assert_eq!(out, expected);
        assert_eq!(
            String::from_utf8(page).expect("text"),
            "Status: 405 Method Not Allowed\r\nAllow: GET, HEAD, POST\r\nContent-Type: text/plain\r\n\
             Content-Length: 23\r\n\r\n405 Method Not Allowed\n"
        );
    }
}
