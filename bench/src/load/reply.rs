//! Decides whether a reply is complete or wrong, looking at as little of it as possible.
//!
//! Knows nothing of sockets. It reads only what it needs of the head: status and the body's length.

use super::chunks::Chunks;
use memchr::memmem;
use std::fmt;

/// What every reply of a workload must be.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// The status code.
    pub status: u16,
    /// The body's length; `None` for any, but the reply must announce it.
    pub body_bytes: Option<u64>,
}

/// A reply, as far as it has arrived.
#[derive(Debug)]
pub enum Reply {
    /// Its head is incomplete; the part that has arrived.
    Head(Vec<u8>),
    /// This many bytes of the body are still to come.
    Body(u64),
    /// The body is chunked.
    Chunked(Chunks),
}

/// How the end of a body is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// By its length.
    Length(u64),
    /// By its last chunk.
    Chunked,
}

/// What is wrong with a reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The head does not begin as it should, or does not end within [`HEAD_BYTES_MAX`].
    Malformed,
    /// Another status than expected.
    Status(u16, u16),
    /// The head does not announce the body's length.
    NoLength,
    /// Another length than expected.
    Length(u64, u64),
    /// More bytes than the body has.
    TooMuch,
}

impl Default for Reply {
    fn default() -> Self {
        Self::Head(Vec::new())
    }
}

impl Reply {
    /// Takes the next bytes. Returns whether the reply is complete.
    pub fn take(&mut self, bytes: &[u8], expected: &Expected) -> Result<bool, Wrong> {
        match self {
            Self::Body(_) => self.skip(bytes.len() as u64),
            Self::Chunked(chunks) => {
                Ok(chunks.take(bytes, &mut |_| {})? && expected.is_length(chunks.content_bytes)?)
            }
            Self::Head(came) if came.is_empty() => match head_length(bytes) {
                Some(end) => self.begin_body(&bytes[..end], &bytes[end..], expected),
                None => self.keep(bytes),
            },
            Self::Head(_) => {
                self.keep(bytes)?;
                let Self::Head(came) = std::mem::take(self) else {
                    return Err(Wrong::Malformed);
                };
                match head_length(&came) {
                    Some(end) => self.begin_body(&came[..end], &came[end..], expected),
                    None => {
                        *self = Self::Head(came);
                        Ok(false)
                    }
                }
            }
        }
    }

    /// Takes `count` bytes of the body without looking at them. Returns whether the reply is complete.
    pub fn skip(&mut self, count: u64) -> Result<bool, Wrong> {
        match self {
            Self::Body(left) if *left >= count => {
                *left -= count;
                Ok(*left == 0)
            }
            _ => Err(Wrong::TooMuch),
        }
    }

    /// Whether everything that follows is body that need not be looked at.
    pub fn only_body_is_missing(&self) -> bool {
        matches!(self, Self::Body(_))
    }

    /// Whether no byte has arrived.
    pub fn nothing_came(&self) -> bool {
        matches!(self, Self::Head(came) if came.is_empty())
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<bool, Wrong> {
        match self {
            Self::Head(came) if came.len() + bytes.len() <= HEAD_BYTES_MAX => {
                came.extend_from_slice(bytes);
                Ok(false)
            }
            _ => Err(Wrong::Malformed),
        }
    }

    fn begin_body(
        &mut self,
        head: &[u8],
        beyond: &[u8],
        expected: &Expected,
    ) -> Result<bool, Wrong> {
        match expected.check(head)? {
            Framing::Length(length) => {
                *self = Self::Body(length);
                self.skip(beyond.len() as u64)
            }
            Framing::Chunked => {
                *self = Self::Chunked(Chunks::default());
                self.take(beyond, expected)
            }
        }
    }
}

impl Expected {
    /// How the body that follows `head` ends, if the head is as expected.
    pub fn check(&self, head: &[u8]) -> Result<Framing, Wrong> {
        let status = status(head).ok_or(Wrong::Malformed)?;
        if status != self.status {
            return Err(Wrong::Status(status, self.status));
        }
        if is_chunked(head) {
            return Ok(Framing::Chunked);
        }
        let length = content_length(head).ok_or(Wrong::NoLength)?;
        self.is_length(length)?;
        Ok(Framing::Length(length))
    }

    /// Returns true if a body may have this length.
    fn is_length(&self, length: u64) -> Result<bool, Wrong> {
        match self.body_bytes {
            Some(expected) if expected != length => Err(Wrong::Length(length, expected)),
            _ => Ok(true),
        }
    }
}

/// The length of the head at the start of `bytes`, including the empty line, if it is complete.
pub fn head_length(bytes: &[u8]) -> Option<usize> {
    memmem::find(bytes, b"\r\n\r\n").map(|at| at + 4)
}

/// The status code that a head begins with.
pub fn status(head: &[u8]) -> Option<u16> {
    let digits = head.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The body's length according to the head.
fn content_length(head: &[u8]) -> Option<u64> {
    std::str::from_utf8(header(head, b"content-length:")?)
        .ok()?
        .parse()
        .ok()
}

fn is_chunked(head: &[u8]) -> bool {
    header(head, b"transfer-encoding:")
        .is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"))
}

/// The value of the first field with this name, which ends in a colon.
fn header<'a>(head: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    head.split(|byte| *byte == b'\n').find_map(|line| {
        let (before, value) = line.split_at_checked(name.len())?;
        before
            .eq_ignore_ascii_case(name)
            .then(|| value.trim_ascii())
    })
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("not an HTTP/1.1 reply"),
            Self::Status(got, expected) => write!(f, "status {got} instead of {expected}"),
            Self::NoLength => f.write_str("no Content-Length"),
            Self::Length(got, expected) => write!(f, "body of {got} bytes instead of {expected}"),
            Self::TooMuch => f.write_str("bytes after the end of the body"),
        }
    }
}

/// A longer head is an error.
const HEAD_BYTES_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE: Expected = Expected {
        status: 200,
        body_bytes: Some(5),
    };
    const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nServer: x\r\ncontent-LENGTH: 5\r\n\r\nhello";

    #[test]
    fn a_reply_is_whole_wherever_it_is_cut() {
        for cut in 0..=REPLY.len() {
            let mut reply = Reply::default();
            let first = !REPLY[..cut].is_empty() && reply.take(&REPLY[..cut], &FIVE).unwrap();
            assert_eq!(first, cut == REPLY.len(), "cut at {cut}");
            assert!(
                first || reply.take(&REPLY[cut..], &FIVE).unwrap(),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn byte_by_byte_it_is_whole_at_the_last() {
        let mut reply = Reply::default();
        let whole: Vec<_> = REPLY
            .iter()
            .map(|b| reply.take(&[*b], &FIVE).unwrap())
            .collect();
        assert_eq!(whole.iter().position(|whole| *whole), Some(REPLY.len() - 1));
    }

    #[test]
    fn a_chunked_reply_is_whole_wherever_it_is_cut() {
        let bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        for cut in 1..bytes.len() {
            let mut reply = Reply::default();
            assert_eq!(reply.take(&bytes[..cut], &FIVE), Ok(false), "cut at {cut}");
            assert_eq!(reply.take(&bytes[cut..], &FIVE), Ok(true), "cut at {cut}");
        }
        let short = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        assert_eq!(
            Reply::default().take(short, &FIVE),
            Err(Wrong::Length(0, 5))
        );
    }

    #[test]
    fn an_empty_body_ends_with_the_head() {
        let expected = Expected {
            status: 404,
            body_bytes: None,
        };
        let head = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(Reply::default().take(head, &expected), Ok(true));
    }

    #[test]
    fn what_is_wrong_is_told() {
        let take = |bytes: &[u8]| Reply::default().take(bytes, &FIVE);
        assert_eq!(
            take(b"HTTP/1.1 500 No\r\n\r\n"),
            Err(Wrong::Status(500, 200))
        );
        assert_eq!(take(b"HTTP/1.1 200 OK\r\n\r\n"), Err(Wrong::NoLength));
        assert_eq!(take(b"SSH-2.0-x\r\n\r\n"), Err(Wrong::Malformed));
        assert_eq!(
            take(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n"),
            Err(Wrong::Length(6, 5))
        );
        assert_eq!(take(&[REPLY, b"!"].concat()), Err(Wrong::TooMuch));
        assert_eq!(take(&[b'x'; HEAD_BYTES_MAX + 1]), Err(Wrong::Malformed));
    }
}
