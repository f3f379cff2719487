//! The head of a backend's reply: a status and header fields, in reused buffers.
//!
//! The decoders of CGI heads and HTTP/1 responses fill it in; a gateway makes the response head from it. It
//! checks nothing itself: the decoders check what they add.

use std::ops::Range;

use crate::header_block::HeaderBlock;
use crate::status::Status;
use crate::syntax::is_name;

/// Status and header fields of a reply.
#[derive(Debug)]
pub struct ReplyHead {
    status: Status,
    /// The fields in wire form, in the order of arrival.
    lines: HeaderBlock,
    fields: Vec<ReplyField>,
    /// A bit set of the names' lengths modulo 64, because most lookups are for names that do not occur.
    lengths: u64,
    has_date: bool,
    has_server: bool,
    is_event_stream: bool,
}

#[derive(Clone, Debug)]
struct ReplyField {
    /// Where its line begins in the block.
    start: u32,
    name_length: u32,
    value_length: u32,
    role: FieldRole,
}

/// What a gateway does with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldRole {
    /// It passes it on, whatever its value is.
    Plain,
    /// Date, which it passes on in place of its own.
    Date,
    /// Server, which it passes on in place of its own.
    Server,
    /// Content-Length: it frames the body itself.
    Length,
    /// That depends on the name.
    Other,
}

impl Default for ReplyHead {
    fn default() -> ReplyHead {
        ReplyHead::new()
    }
}

impl ReplyHead {
    /// A head with status 200 and no fields.
    pub const fn new() -> ReplyHead {
        ReplyHead {
            status: Status::OK,
            lines: HeaderBlock::new(),
            fields: Vec::new(),
            lengths: 0,
            has_date: false,
            has_server: false,
            is_event_stream: false,
        }
    }

    /// Resets to status 200 and no fields, keeping buffers.
    pub fn clear(&mut self) {
        let ReplyHead {
            status,
            lines,
            fields,
            lengths,
            has_date,
            has_server,
            is_event_stream,
        } = self;
        *lengths = 0;
        (*has_date, *has_server, *is_event_stream) = (false, false, false);
        *status = Status::OK;
        lines.clear();
        fields.clear();
    }

    /// The status.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Sets the status.
    pub fn set_status(&mut self, status: Status) {
        self.status = status;
    }

    /// Adds a field. The caller has checked that the name is a token, that the value holds no CR, LF or NUL,
    /// and that all fields together stay far below 4 GiB.
    pub fn push(&mut self, name: &str, value: &[u8]) {
        self.push_token(name.as_bytes(), value);
    }

    /// As [`ReplyHead::push`], for a name that was checked and is not text yet.
    #[inline]
    pub(crate) fn push_token(&mut self, name: &[u8], value: &[u8]) {
        let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let role = role(name);
        self.has_date |= role == FieldRole::Date;
        self.has_server |= role == FieldRole::Server;
        self.is_event_stream |= is_event_stream(value)
            && is_name(name, CONTENT_TYPE)
            && self.get(CONTENT_TYPE).is_none();
        self.fields.push(ReplyField {
            start: number(self.lines.as_bytes().len()),
            name_length: number(name.len()),
            value_length: number(value.len()),
            role,
        });
        self.lengths |= length_bit(name.len());
        self.lines.append_checked(name, value);
    }

    /// All fields, in the order of arrival.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let fields = self.fields.iter();
        fields.map(|field| (self.name(field), self.value(field)))
    }

    /// Hands the fields but Content-Length to `target`, in the order of arrival: plain ones to `plain` as
    /// lines in wire form, one or more at once, and the others to `other` with name and value.
    ///
    /// A plain field means the same to every client; Date and Server are plain, too, and [`ReplyHead::has_date`]
    /// and [`ReplyHead::has_server`] tell of them. The others are about the connection or are written by
    /// the server itself, or they may be instructions for it: `X-Accel-Redirect` and the like.
    #[inline]
    pub fn hand_out<T>(
        &self,
        target: &mut T,
        plain: impl Fn(&mut T, &[u8]),
        other: impl Fn(&mut T, &str, &[u8]),
    ) {
        let lines = self.lines.as_bytes();
        let mut start = 0;
        for field in &self.fields {
            if field.role.is_plain() {
                continue;
            }
            let line = field.line();
            if start < line.start {
                plain(target, lines.get(start..line.start).unwrap_or_default());
            }
            if field.role == FieldRole::Other {
                other(target, self.name(field), self.value(field));
            }
            start = line.end;
        }
        if start < lines.len() {
            plain(target, lines.get(start..).unwrap_or_default());
        }
    }

    /// Whether there is a Date field.
    pub fn has_date(&self) -> bool {
        self.has_date
    }

    /// Whether there is a Server field.
    pub fn has_server(&self) -> bool {
        self.has_server
    }

    /// Whether the first Content-Type says that the body is a stream of events, which the client should get
    /// one by one.
    pub fn is_event_stream(&self) -> bool {
        self.is_event_stream
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Value of the first field `name`; letter case is ignored.
    #[inline]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        match self.lengths & length_bit(name.len()) {
            0 => None,
            _ => self.find(name.as_bytes()),
        }
    }

    fn find(&self, name: &[u8]) -> Option<&[u8]> {
        let mut fields = self.fields.iter();
        let is_it = |field: &&ReplyField| {
            let known = self.name_bytes(field);
            // Most programs write names as the RFCs do, and comparing bytes is faster than ignoring letter
            // case.
            known.len() == name.len() && (known == name || known.eq_ignore_ascii_case(name))
        };
        Some(self.value(fields.find(is_it)?))
    }

    #[inline]
    fn name_bytes(&self, field: &ReplyField) -> &[u8] {
        let start = field.start as usize;
        let name = start..start + field.name_length as usize;
        self.lines.as_bytes().get(name).unwrap_or_default()
    }

    fn name(&self, field: &ReplyField) -> &str {
        std::str::from_utf8(self.name_bytes(field)).unwrap_or_default()
    }

    #[inline]
    fn value(&self, field: &ReplyField) -> &[u8] {
        let start = field.start as usize + field.name_length as usize + SEPARATOR_BYTES;
        let value = start..start + field.value_length as usize;
        self.lines.as_bytes().get(value).unwrap_or_default()
    }
}

impl FieldRole {
    #[inline]
    fn is_plain(self) -> bool {
        matches!(self, FieldRole::Plain | FieldRole::Date | FieldRole::Server)
    }
}

/// Whether a gateway passes the field `name` on as it is.
#[inline]
pub(crate) fn is_plain(name: &str) -> bool {
    role(name.as_bytes()).is_plain()
}

impl ReplyField {
    /// Where its line is, with its end.
    fn line(&self) -> Range<usize> {
        let start = self.start as usize;
        let texts = self.name_length as usize + self.value_length as usize;
        start..start + SEPARATOR_BYTES + texts + 2
    }
}

/// The role of the field `name`. Length and first letter nearly always decide.
#[inline]
fn role(name: &[u8]) -> FieldRole {
    let is = |special: &str| is_name(name, special);
    let first = name.first().map_or(0, |first| first | 0x20);
    let is_other = match (name.len(), first) {
        // X-Accel-…, X-LIGHTTPD-…, X-Rewrite-…, X-Sendfile.
        (_, b'x') => matches!(
            name.get(2),
            Some(b'A' | b'L' | b'R' | b'S' | b'a' | b'l' | b'r' | b's')
        ),
        (14, b'c') if is("Content-Length") => return FieldRole::Length,
        (2, b't') => is("TE"),
        (4, b'd') if is("Date") => return FieldRole::Date,
        (6, b's') if is("Server") => return FieldRole::Server,
        (6, b's') => is("Status"),
        (7, b't') => is("Trailer"),
        (7, b'u') => is("Upgrade"),
        (10, b'c') => is("Connection"),
        (10, b'k') => is("Keep-Alive"),
        (14, b'h') => is("HTTP2-Settings"),
        (16, b'p') => is("Proxy-Connection"),
        (17, b't') => is("Transfer-Encoding"),
        _ => false,
    };
    match is_other {
        true => FieldRole::Other,
        false => FieldRole::Plain,
    }
}

#[inline]
fn length_bit(length: usize) -> u64 {
    1 << (length % 64)
}

#[inline]
fn is_event_stream(content_type: &[u8]) -> bool {
    let start = content_type.get(..EVENT_STREAM.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(EVENT_STREAM))
}

const CONTENT_TYPE: &str = "Content-Type";
const EVENT_STREAM: &[u8] = b"text/event-stream";

/// The bytes between name and value.
const SEPARATOR_BYTES: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_head::KnownField;

    #[test]
    fn lines_of_plain_fields_are_handed_out_together() {
        let mut head = ReplyHead::new();
        for (name, value) in [
            ("Content-Type", "a/b"),
            ("ETag", "\"1\""),
            ("content-length", "3"),
            ("X-Powered-By", "P"),
            ("x-sendfile", "/f"),
            ("Vary", ""),
        ] {
            head.push(name, value.as_bytes());
        }
        let mut out = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        head.hand_out(
            &mut out,
            |out: &mut Vec<String>, lines| out.push(text(lines)),
            |out, name, value| out.push(format!("<{name}={}>", text(value))),
        );
        let expected = [
            "Content-Type: a/b\r\nETag: \"1\"\r\n",
            "X-Powered-By: P\r\n",
            "<x-sendfile=/f>",
            "Vary: \r\n",
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn no_field_about_the_connection_is_plain() {
        for known in KnownField::ALL {
            let is_framing = known.is_hop_by_hop() || *known == KnownField::ContentLength;
            assert!(!(is_plain(known.name()) && is_framing), "{}", known.name());
        }
        for name in [
            "status",
            "X-Accel-Redirect",
            "x-lighttpd-a",
            "X-Rewrite-URI",
        ] {
            assert_eq!(role(name.as_bytes()), FieldRole::Other, "{name}");
        }
    }

    #[test]
    fn date_and_server_are_plain_and_known() {
        let mut head = ReplyHead::new();
        assert!(!head.has_date() && !head.has_server());
        head.push("dAte", b"today");
        assert!(head.has_date() && !head.has_server());
        head.push("SERVER", b"s");
        assert!(head.has_server());
        let mut out = Vec::new();
        let plain = |out: &mut Vec<u8>, lines: &[u8]| out.extend_from_slice(lines);
        head.hand_out(&mut out, plain, |_, name, _| panic!("{name}"));
        assert_eq!(out, b"dAte: today\r\nSERVER: s\r\n");
        head.clear();
        assert!(!head.has_date() && !head.has_server());
    }

    #[test]
    fn fields_come_out_as_they_went_in() {
        let mut head = ReplyHead::new();
        head.set_status(Status(302));
        head.push("Location", b"/a");
        head.push("Set-Cookie", b"a=1");
        head.push("Set-Cookie", b"");
        let fields: Vec<_> = head.fields().collect();
        let expected: [(&str, &[u8]); 3] = [
            ("Location", b"/a"),
            ("Set-Cookie", b"a=1"),
            ("Set-Cookie", b""),
        ];
        assert_eq!(fields, expected);
        assert_eq!(head.get("set-cookie"), Some(&b"a=1"[..]));
        head.clear();
        assert!(head.is_empty());
        assert_eq!(head.status(), Status::OK);
    }
}
