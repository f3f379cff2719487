//! Parses responses strictly: what a careful client would refuse is an error here.

use std::fmt;

/// A complete response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// `HTTP/1.1` or `HTTP/1.0`.
    pub version: String,
    /// The status code.
    pub status: u16,
    /// The reason phrase.
    pub reason: String,
    /// Field names and values in the order of arrival.
    pub fields: Vec<(String, String)>,
    /// The body, without its framing.
    pub body: Vec<u8>,
    /// Statuses of the interim responses (1xx) before it.
    pub interim: Vec<u16>,
    /// Bytes of the head, as sent.
    pub head: Vec<u8>,
}

/// Why bytes are no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// More bytes are needed.
    Incomplete,
    /// The body ends with the connection.
    UntilClose,
    /// A violation of the protocol.
    Malformed(String),
}

/// The kind of request, as far as it matters for the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Head,
    Other,
}

impl Response {
    /// The value of the field `name`, in any letter case.
    ///
    /// # Panics
    /// The field occurs twice: use [`Response::all`] where that is right.
    pub fn field(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(
            all.len() <= 1,
            "{name} stands there {} times in {self}",
            all.len()
        );
        all.first().copied()
    }

    /// All values of the field `name`.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let same = self
            .fields
            .iter()
            .filter(|(field, _)| field.eq_ignore_ascii_case(name));
        same.map(|(_, value)| value.as_str()).collect()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Whether the body is an error page that is built into lighttpd.
    pub fn has_page_of_lighttpd(&self) -> bool {
        let text = self.text();
        let title = format!("<title>{}", self.status);
        self.status >= 300 && text.starts_with("<?xml") && text.contains(&title)
    }

    /// Whether the server announced that it will close the connection.
    pub fn closes(&self) -> bool {
        match self
            .field("Connection")
            .map(str::to_ascii_lowercase)
            .as_deref()
        {
            Some("close") => true,
            Some("keep-alive") => false,
            _ => self.version != "HTTP/1.1",
        }
    }

    /// Parses a response at the beginning of `bytes`. Also returns its length. `at_end`: the peer has closed.
    pub(crate) fn parse(
        bytes: &[u8],
        asked: Asked,
        at_end: bool,
    ) -> Result<(Response, usize), ResponseError> {
        let mut interim = Vec::new();
        let mut start = 0;
        loop {
            let rest = &bytes[start..];
            let head = find(rest, b"\r\n\r\n").ok_or(ResponseError::Incomplete)? + 4;
            let mut response = parse_head(&rest[..head])?;
            start += head;
            if (100..200).contains(&response.status) && response.status != 101 {
                interim.push(response.status);
                continue;
            }
            response.interim = interim;
            let used = read_body(&mut response, &bytes[start..], asked, at_end)?;
            return Ok((response, start + used));
        }
    }
}

fn parse_head(head: &[u8]) -> Result<Response, ResponseError> {
    let text = String::from_utf8_lossy(head).into_owned();
    let malformed = || ResponseError::Malformed(format!("head {text:?}"));
    let mut lines = text.trim_end_matches("\r\n").split("\r\n");
    let mut words = lines.next().ok_or_else(malformed)?.splitn(3, ' ');
    let version = words.next().ok_or_else(malformed)?.to_owned();
    let status = words
        .next()
        .filter(|code| code.len() == 3)
        .and_then(|code| code.parse().ok());
    let reason = words.next().ok_or_else(malformed)?.to_owned();
    if !matches!(version.as_str(), "HTTP/1.1" | "HTTP/1.0") {
        return Err(malformed());
    }
    let mut fields = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(": ").ok_or_else(malformed)?;
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !name.bytes().all(is_token) || value.contains(['\r', '\n', '\0']) {
            return Err(malformed());
        }
        fields.push((name.to_owned(), value.to_owned()));
    }
    let status = status.ok_or_else(malformed)?;
    let head = head.to_vec();
    Ok(Response {
        version,
        status,
        reason,
        fields,
        head,
        ..Response::default()
    })
}

/// Reads the body into `response`. Returns its length.
fn read_body(
    response: &mut Response,
    bytes: &[u8],
    asked: Asked,
    at_end: bool,
) -> Result<usize, ResponseError> {
    let lengths = response.all("Content-Length");
    let codings = response.all("Transfer-Encoding");
    if lengths.len() > 1 || codings.len() > 1 || (!lengths.is_empty() && !codings.is_empty()) {
        return Err(ResponseError::Malformed(format!(
            "the framing of {response}"
        )));
    }
    if asked == Asked::Head || matches!(response.status, 101 | 204 | 304) {
        return Ok(0);
    }
    if codings.first() == Some(&"chunked") {
        return read_chunks(response, bytes);
    }
    match lengths.first() {
        Some(length) => {
            let length: usize = length
                .parse()
                .map_err(|_| ResponseError::Malformed(format!("Content-Length {length:?}")))?;
            response.body = bytes
                .get(..length)
                .ok_or(ResponseError::Incomplete)?
                .to_vec();
            Ok(length)
        }
        None if !at_end => Err(ResponseError::UntilClose),
        None => {
            response.body = bytes.to_vec();
            Ok(bytes.len())
        }
    }
}

fn read_chunks(response: &mut Response, bytes: &[u8]) -> Result<usize, ResponseError> {
    let malformed = |what: &str| ResponseError::Malformed(format!("chunk {what:?}"));
    let mut at = 0;
    loop {
        let line = find(&bytes[at..], b"\r\n").ok_or(ResponseError::Incomplete)?;
        let size = String::from_utf8_lossy(&bytes[at..at + line]).into_owned();
        let size = usize::from_str_radix(&size, 16).map_err(|_| malformed(&size))?;
        at += line + 2;
        if size == 0 {
            // There must be no trailers, because the client has not asked for them.
            let end = bytes.get(at..at + 2).ok_or(ResponseError::Incomplete)?;
            return if end == b"\r\n" {
                Ok(at + 2)
            } else {
                Err(malformed("end"))
            };
        }
        let data = bytes
            .get(at..at + size + 2)
            .ok_or(ResponseError::Incomplete)?;
        if !data.ends_with(b"\r\n") {
            return Err(malformed("data"));
        }
        response.body.extend_from_slice(&data[..size]);
        at += size + 2;
    }
}

pub(crate) fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

impl fmt::Display for Response {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.body[..self.body.len().min(400)];
        write!(
            formatter,
            "{}{} ({} bytes of body)",
            String::from_utf8_lossy(&self.head),
            String::from_utf8_lossy(shown),
            self.body.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(Response, usize), ResponseError> {
        Response::parse(text.as_bytes(), Asked::Other, false)
    }

    #[test]
    fn two_responses_are_told_apart() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 404 Not Found\r\n";
        let (response, used) = parse(text).expect("complete");
        assert_eq!(
            (response.status, response.body.as_slice()),
            (200, &b"hi"[..])
        );
        assert!(text[used..].starts_with("HTTP/1.1 404"));
        assert_eq!(parse(&text[used..]), Err(ResponseError::Incomplete));
    }

    #[test]
    fn interim_responses_are_counted() {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(parse(text).expect("complete").0.interim, [100]);
    }

    #[test]
    fn what_is_framed_twice_is_refused() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi";
        assert!(matches!(parse(text), Err(ResponseError::Malformed(_))));
        assert!(matches!(
            parse("HTTP/2 200\r\n\r\n"),
            Err(ResponseError::Malformed(_))
        ));
    }

    #[test]
    fn chunks_are_joined() {
        let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\nrest";
        let (response, used) = parse(text).expect("complete");
        assert_eq!((response.text().as_str(), &text[used..]), ("hi", "rest"));
    }
}
