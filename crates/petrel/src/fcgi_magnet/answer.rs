//! The reply to one request: the status and fields that the script sets, what it prints, and how both become
//! STDOUT records.
//!
//! The head is sent when [`HEAD_WAIT_BYTES`] were printed, when the script asks for it, or when the script
//! ends. Until then the script may set the status, and an error of the script still becomes a 500. A script
//! may also print its head itself, as CGI programs do.

use proto::fastcgi::{CONTENT_BYTES_MAX, kind, write_end_of_stream, write_stream};
use proto::status::Status;
use proto::syntax::is_token;

use super::limits::{HEAD_WAIT_BYTES, LOG_BYTES_MAX, UNSENT_WITHOUT_WAIT_BYTES_MAX};
use crate::fcgi_program::limits::UNSENT_BYTES_MAX;

/// A reply in the making.
#[derive(Debug, Default)]
pub(crate) struct ScriptReply {
    status: Option<Status>,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// The bytes that the script printed. Those before `passed_on` are in records already.
    printed: Vec<u8>,
    passed_on: usize,
    log: Vec<u8>,
    is_head_sent: bool,
    wants_flush: bool,
}

/// Why the script may not change its reply, as a sentence for the script.
pub(crate) type Refused = &'static str;

impl ScriptReply {
    /// Resets the reply for the next request. Buffers of usual size are kept.
    pub(crate) fn clear(&mut self) {
        let ScriptReply {
            status,
            fields,
            printed,
            passed_on,
            log,
            is_head_sent,
            wants_flush,
        } = self;
        *status = None;
        fields.clear();
        printed.clear();
        printed.shrink_to(HEAD_WAIT_BYTES);
        *passed_on = 0;
        log.clear();
        *is_head_sent = false;
        *wants_flush = false;
    }

    /// Appends `text` to the body. Returns true if so much is waiting that the script should pause, if it
    /// can, until some of it was sent.
    ///
    /// # Errors
    /// The script printed too much without pausing.
    pub(crate) fn print(&mut self, text: &[u8]) -> Result<bool, Refused> {
        if self.unsent() >= UNSENT_WITHOUT_WAIT_BYTES_MAX {
            return Err("too much was printed within a C function, where it cannot be sent");
        }
        self.printed.extend_from_slice(text);
        Ok(self.unsent() >= HEAD_WAIT_BYTES)
    }

    /// Asks for everything printed so far to be sent, the head first.
    pub(crate) fn flush(&mut self) {
        self.wants_flush = true;
    }

    /// Whether everything that can be sent by now was handed to the connection.
    pub(crate) fn is_passed_on(&self) -> bool {
        match self.is_head_sent {
            true => self.unsent() == 0,
            false => !self.is_due() || self.is_head_half_printed(),
        }
    }

    /// Sets the status.
    ///
    /// # Errors
    /// It is no final status, or the head was sent already.
    pub(crate) fn set_status(&mut self, status: u16) -> Result<(), Refused> {
        self.check_open()?;
        if !(200..=599).contains(&status) {
            return Err("a status is a number from 200 to 599");
        }
        self.status = Some(Status(status));
        Ok(())
    }

    /// Sets the field `name`, replacing one that was set before; Set-Cookie is added to those already there.
    /// `None` removes all fields of that name.
    ///
    /// # Errors
    /// Name or value is not allowed in a head, or the head was sent already.
    pub(crate) fn set_field(&mut self, name: &[u8], value: Option<&[u8]>) -> Result<(), Refused> {
        self.check_open()?;
        if !is_token(name) {
            return Err("the name of a header field is a token");
        }
        if name.eq_ignore_ascii_case(b"Status") {
            return Err("the status is set by status(), not by header()");
        }
        let is_control = |byte: &u8| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f;
        if value.is_some_and(|value| value.iter().any(is_control)) {
            return Err("the value of a header field holds no control characters");
        }
        if value.is_none() || !name.eq_ignore_ascii_case(b"Set-Cookie") {
            self.fields
                .retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        }
        if let Some(value) = value {
            self.fields.push((name.to_vec(), value.to_vec()));
        }
        Ok(())
    }

    /// Appends a line for the web server's log. A line that does not fit into [`LOG_BYTES_MAX`] is cut.
    pub(crate) fn log(&mut self, line: &[u8]) {
        let room = LOG_BYTES_MAX.saturating_sub(self.log.len() + 1);
        let line = line.get(..room).unwrap_or(line);
        if !line.is_empty() {
            self.log.extend_from_slice(line);
            self.log.push(b'\n');
        }
    }

    /// Drops everything that the script printed, so that this program answers with `status` instead.
    ///
    /// # Errors
    /// The head was sent already.
    pub(crate) fn replace(&mut self, status: Status) -> Result<(), Refused> {
        self.check_open()?;
        self.fields.clear();
        self.printed.clear();
        self.status = Some(status);
        self.fields
            .push((b"Content-Type".to_vec(), b"text/plain".to_vec()));
        self.printed
            .extend_from_slice(format!("{} {}\n", status.0, status.reason()).as_bytes());
        Ok(())
    }

    /// Appends what can be sent by now to `out`, as records of request `id`, until `out` is full. Returns
    /// true if it appended anything.
    pub(crate) fn pass_on(&mut self, out: &mut Vec<u8>, id: u16) -> bool {
        let before = out.len();
        self.pass_log_on(out, id);
        if !self.is_head_sent && self.is_due() && !self.is_head_half_printed() {
            self.send_head(out, id, None);
        }
        if self.is_head_sent {
            self.send_body(out, id, UNSENT_BYTES_MAX);
        }
        out.len() > before
    }

    /// Appends the rest of the reply and the end of the stream.
    ///
    /// Returns false if `out` is full. The caller calls again when it has sent some of it.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>, id: u16) -> bool {
        self.pass_log_on(out, id);
        if !self.is_head_sent {
            self.send_head(out, id, Some(self.unsent()));
        }
        self.send_body(out, id, UNSENT_BYTES_MAX);
        if self.unsent() > 0 {
            return false;
        }
        write_end_of_stream(out, kind::STDOUT, id);
        true
    }

    fn unsent(&self) -> usize {
        self.printed.len() - self.passed_on
    }

    fn check_open(&self) -> Result<(), Refused> {
        match self.is_head_sent {
            true => Err("the head of the answer was sent already"),
            false => Ok(()),
        }
    }

    fn pass_log_on(&mut self, out: &mut Vec<u8>, id: u16) {
        write_stream(out, kind::STDERR, id, &self.log);
        self.log.clear();
    }

    /// Whether the head must be sent now.
    fn is_due(&self) -> bool {
        self.wants_flush || self.unsent() >= HEAD_WAIT_BYTES
    }

    fn is_said(&self) -> bool {
        self.status.is_some() || !self.fields.is_empty()
    }

    /// Whether the script is in the middle of printing its own head. Such a head is passed on in one piece.
    fn is_head_half_printed(&self) -> bool {
        !self.is_said()
            && self.unsent() < HEAD_WAIT_BYTES
            && printed_head(&self.printed) == PrintedHead::Begun
    }

    /// Sends the head, together with the body if that is short. `length` is the body's length, if it is
    /// complete.
    fn send_head(&mut self, out: &mut Vec<u8>, id: u16, length: Option<usize>) {
        self.is_head_sent = true;
        if !self.is_said() && printed_head(&self.printed) == PrintedHead::Complete {
            return;
        }
        let mut head = Vec::with_capacity(128 + self.unsent().min(WITH_HEAD_BYTES_MAX));
        self.write_head(&mut head, length);
        if self.unsent() <= WITH_HEAD_BYTES_MAX {
            head.extend_from_slice(&self.printed);
            self.forget_printed();
        }
        write_stream(out, kind::STDOUT, id, &head);
    }

    fn write_head(&self, head: &mut Vec<u8>, length: Option<usize>) {
        let status = self.status.unwrap_or(Status::OK);
        if status != Status::OK {
            let line = format!("Status: {} {}\r\n", status.0, status.reason());
            head.extend_from_slice(line.as_bytes());
        }
        let is_set = |name: &str| {
            let mut fields = self.fields.iter();
            fields.any(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()))
        };
        if !is_set("Content-Type") && !status.is_bodiless() {
            head.extend_from_slice(b"Content-Type: text/html\r\n");
        }
        for (name, value) in &self.fields {
            for part in [name, &b": "[..], value, b"\r\n"] {
                head.extend_from_slice(part);
            }
        }
        if let Some(length) = length
            && !status.is_bodiless()
            && !is_set("Content-Length")
        {
            head.extend_from_slice(b"Content-Length: ");
            head.extend_from_slice(length.to_string().as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
    }

    fn send_body(&mut self, out: &mut Vec<u8>, id: u16, room_max: usize) {
        let room = room_max.saturating_sub(out.len());
        let end = self.printed.len().min(self.passed_on + room);
        let part = self.printed.get(self.passed_on..end).unwrap_or_default();
        write_stream(out, kind::STDOUT, id, part);
        self.passed_on = end;
        if self.unsent() == 0 {
            self.forget_printed();
        }
    }

    fn forget_printed(&mut self) {
        self.printed.clear();
        self.printed.shrink_to(HEAD_WAIT_BYTES);
        self.passed_on = 0;
    }
}

/// A head that the script prints itself: lines `Name: value` up to an empty line, as in CGI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrintedHead {
    /// The head is complete.
    Complete,
    /// There are fields, but the empty line is still missing.
    Begun,
    /// What was printed is no head, so this program makes one.
    No,
}

fn printed_head(text: &[u8]) -> PrintedHead {
    let mut rest = text.get(..HEAD_WAIT_BYTES).unwrap_or(text);
    let mut has_fields = false;
    loop {
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            return match has_fields {
                true => PrintedHead::Begun,
                false => PrintedHead::No,
            };
        };
        let (line, later) = rest.split_at(end + 1);
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return match has_fields {
                true => PrintedHead::Complete,
                false => PrintedHead::No,
            };
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let name = colon.and_then(|colon| line.get(..colon));
        if !name.is_some_and(is_token) {
            return PrintedHead::No;
        }
        has_fields = true;
        rest = later;
    }
}

/// A body up to this length is copied into the head's record.
const WITH_HEAD_BYTES_MAX: usize = 4096;

const _: () = assert!(WITH_HEAD_BYTES_MAX < CONTENT_BYTES_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use proto::fastcgi::{FastCgiDecoder, FastCgiEvent, Stream};

    /// The records in `out` as text, with those of the log in brackets.
    fn shown(out: &[u8]) -> String {
        let mut decoder = FastCgiDecoder::new(1);
        let (mut text, mut rest) = (Vec::new(), out);
        loop {
            let step = decoder.decode(rest).expect("sound records");
            match step.event {
                FastCgiEvent::Data(Stream::Stdout, range) => text.extend_from_slice(&rest[range]),
                FastCgiEvent::Data(Stream::Stderr, range) => {
                    text.push(b'[');
                    text.extend_from_slice(&rest[range]);
                    text.push(b']');
                }
                _ => return String::from_utf8(text).expect("text"),
            }
            rest = &rest[step.consumed..];
        }
    }

    fn finished(make: impl FnOnce(&mut ScriptReply)) -> String {
        let (mut answer, mut out) = (ScriptReply::default(), Vec::new());
        make(&mut answer);
        assert!(answer.finish(&mut out, 1));
        shown(&out)
    }

    #[test]
    fn an_answer_without_a_head_gets_one() {
        let text = finished(|answer| {
            answer.print(b"123").expect("room");
        });
        assert_eq!(
            text,
            "Content-Type: text/html\r\nContent-Length: 3\r\n\r\n123"
        );
    }

    #[test]
    fn a_head_that_was_printed_stays_as_it_is() {
        for printed in [
            "Content-Type: text/plain\r\n\r\n123",
            "Status: 404 Not Found\nX: y\n\nbody",
            "A: b\r\n\r\n",
        ] {
            let text = finished(|answer| {
                answer.print(printed.as_bytes()).expect("room");
            });
            assert_eq!(text, printed);
        }
    }

    #[test]
    fn what_only_looks_like_a_head_is_a_body() {
        for printed in ["a b: c\r\n\r\n", "Note: x", "\r\n\r\n", "x: y\nplain\n\n"] {
            let text = finished(|answer| {
                answer.print(printed.as_bytes()).expect("room");
            });
            assert!(text.starts_with("Content-Type: text/html\r\n"), "{text}");
            assert!(text.ends_with(&format!("\r\n\r\n{printed}")), "{text}");
        }
        let text = finished(|answer| {
            answer.set_status(201).expect("open");
            answer.print(b"A: b\r\n\r\n").expect("room");
        });
        assert!(text.starts_with("Status: 201 Created\r\n"), "{text}");
    }

    #[test]
    fn fields_replace_each_other_but_cookies() {
        let text = finished(|answer| {
            for (name, value) in [
                ("x", "1"),
                ("X", "2"),
                ("Set-Cookie", "a"),
                ("Set-Cookie", "b"),
            ] {
                let value = Some(value.as_bytes());
                answer.set_field(name.as_bytes(), value).expect("sound");
            }
            answer.set_field(b"gone", Some(b"1")).expect("sound");
            answer.set_field(b"Gone", None).expect("sound");
        });
        assert!(
            text.contains("\r\nX: 2\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n"),
            "{text}"
        );
        assert!(!text.to_lowercase().contains("gone"), "{text}");
    }

    #[test]
    fn what_would_split_a_head_is_refused() {
        let mut answer = ScriptReply::default();
        for value in ["a\r\nb: c", "a\nb", "\0", "\r"] {
            assert!(answer.set_field(b"X", Some(value.as_bytes())).is_err());
        }
        for name in ["", "a b", "a:", "a\r\n", "status"] {
            assert!(
                answer.set_field(name.as_bytes(), Some(b"")).is_err(),
                "{name}"
            );
        }
        for status in [0, 100, 199, 600, 65535] {
            assert!(answer.set_status(status).is_err(), "{status}");
        }
    }

    #[test]
    fn an_error_replaces_what_was_not_sent_yet() {
        let text = finished(|answer| {
            answer.print(b"half").expect("room");
            answer.log(b"oh");
            answer.replace(Status(500)).expect("nothing was sent");
        });
        assert!(text.starts_with("[oh\n]Status: 500 "), "{text}");
        assert!(!text.contains("half"), "{text}");
        let (mut answer, mut out) = (ScriptReply::default(), Vec::new());
        answer.print(b"half").expect("room");
        answer.flush();
        assert!(answer.pass_on(&mut out, 1));
        assert!(answer.replace(Status(500)).is_err());
        assert!(answer.set_status(500).is_err());
        assert!(answer.set_field(b"a", None).is_err());
    }

    #[test]
    fn a_head_that_is_being_printed_is_not_flushed_in_halves() {
        let (mut answer, mut out) = (ScriptReply::default(), Vec::new());
        answer.print(b"Content-Type: text/plain\r\n").expect("room");
        answer.flush();
        assert!(answer.is_passed_on(), "the script has to wait for nothing");
        assert!(!answer.pass_on(&mut out, 1));
        answer.print(b"\r\nx").expect("room");
        assert!(answer.pass_on(&mut out, 1));
        assert_eq!(shown(&out), "Content-Type: text/plain\r\n\r\nx");
    }

    #[test]
    fn much_output_waits_for_room() {
        let (mut answer, mut out) = (ScriptReply::default(), Vec::new());
        let text = vec![b'x'; HEAD_WAIT_BYTES - 1];
        assert_eq!(answer.print(&text), Ok(false));
        assert!(
            !answer.pass_on(&mut out, 1),
            "nothing before there is enough"
        );
        assert_eq!(answer.print(&vec![b'x'; 1 << 20]), Ok(true));
        let mut length = 0;
        while !answer.finish(&mut out, 1) {
            assert!(out.len() < UNSENT_BYTES_MAX + 4096, "{}", out.len());
            assert!(!answer.is_passed_on());
            length += shown(&out).len();
            out.clear();
        }
        length += shown(&out).len();
        assert_eq!(
            length,
            "Content-Type: text/html\r\nContent-Length: 1114111\r\n\r\n".len() + HEAD_WAIT_BYTES
                - 1
                + (1 << 20)
        );
        let mut answer = ScriptReply::default();
        answer
            .print(&vec![b'x'; UNSENT_WITHOUT_WAIT_BYTES_MAX])
            .expect("the first");
        assert!(answer.print(b"x").is_err());
    }
}
