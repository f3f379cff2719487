//! The response of an exchange: status, header fields, body.
//!
//! Header fields are stored in wire format ([`HeaderBlock`]). Fields that the connection adds itself (Date,
//! Server, Content-Length, Transfer-Encoding, Connection) are in the block only if a module has set its own.
//! [`Response::set`] notes that, so that the block need not be searched on the hot path.

use std::borrow::Cow;

use bytes::Bytes;
use petrel_proto::header_block::HeaderBlock;
use petrel_proto::status::Status;

use crate::body::{Body, Piece};
use crate::cause::{ErrorCause, StatusOrigin};

/// A response, while hooks build it.
pub struct Response {
    /// The status; 0 until there is a response.
    pub status: Status,
    /// Header fields in wire format. [`Response::set`] and similar functions change them.
    fields: HeaderBlock,
    /// The body. Content-Length follows from it.
    pub body: Body,
    /// The length to announce if the body is not sent (HEAD).
    pub announced_length: Option<u64>,
    /// A HEAD request was answered without a length by code that would have made a body for GET, so there is
    /// no Content-Length (RFC 9110 8.6).
    pub is_length_unknown: bool,
    /// Close the connection after this response.
    pub close: bool,
    /// The body is sent as it is although the status is an error: no error page replaces it.
    pub is_final: bool,
    /// The bandwidth limit of this response in bytes a second, in addition to those of its connection and
    /// scope; 0 is no limit.
    pub bytes_per_second_max: u64,
    /// The content that the body had when a cache or the like provided it, so that a filter may cache its own
    /// output for it. Has no meaning once the body was changed; see [`Response::kept_content`].
    pub kept: Option<KeptContent>,
    own: Own,
    /// Fields that scripts of earlier phases add to the response; see [`Response::carry`].
    carried: HeaderBlock,
    /// Fields of a backend that has redirected internally to another URL; see [`Response::hand_on`].
    handed_on: HeaderBlock,
    has_carried: bool,
    /// Why `status` is an error, if it is one. A new status forgets it.
    pub(crate) origin: StatusOrigin,
}

/// A body that a module keeps.
#[derive(Clone, Debug)]
pub struct KeptContent {
    /// No other content of this process has this number.
    pub number: u64,
    /// The whole body.
    pub bytes: Bytes,
}

/// Which of the fields that the connection usually adds were set by a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// The block has a Date field.
    pub date: bool,
    /// The block has a Server field, or a module has removed the field.
    pub server: bool,
}

const UNSET: Status = Status(0);

impl Default for Response {
    fn default() -> Response {
        Response {
            status: UNSET,
            fields: HeaderBlock::new(),
            body: Body::Empty,
            announced_length: None,
            is_length_unknown: false,
            close: false,
            is_final: false,
            bytes_per_second_max: 0,
            kept: None,
            own: Own::default(),
            carried: HeaderBlock::new(),
            handed_on: HeaderBlock::new(),
            has_carried: false,
            origin: StatusOrigin::Answer,
        }
    }
}

impl Response {
    /// Clears everything but keeps buffers.
    pub fn clear(&mut self) {
        self.carried.clear();
        self.handed_on.clear();
        self.clear_but_extra_fields();
    }

    /// Clears everything but fields of [`Response::carry`] and [`Response::hand_on`].
    #[inline]
    fn clear_but_extra_fields(&mut self) {
        let Response {
            status,
            fields,
            body,
            announced_length,
            is_length_unknown,
            close,
            is_final,
            bytes_per_second_max,
            kept,
            own,
            carried: _,
            handed_on: _,
            has_carried,
            origin,
        } = self;
        *status = UNSET;
        fields.clear();
        *body = Body::Empty;
        *announced_length = None;
        *is_length_unknown = false;
        *close = false;
        *is_final = false;
        *bytes_per_second_max = 0;
        *kept = None;
        *own = Own::default();
        *has_carried = false;
        *origin = StatusOrigin::Answer;
    }

    /// Makes this a response with `status` and no body; an error page may follow. Fields of
    /// [`Response::carry`] and [`Response::hand_on`] stay.
    pub fn answer(&mut self, status: Status) {
        self.clear_but_extra_fields();
        self.status = status;
    }

    /// Makes this an error of the server's own, with the status of `cause` and no body.
    pub fn fail(&mut self, cause: impl Into<ErrorCause>) {
        let cause = cause.into();
        self.fail_with_status(cause, cause.code.status());
    }

    /// Like [`Response::fail`], with a `status` that the configuration has chosen for this cause.
    pub fn fail_with_status(&mut self, cause: impl Into<ErrorCause>, status: Status) {
        self.answer(status);
        self.origin = StatusOrigin::Own(cause.into());
    }

    /// Like [`Response::answer`], with a `status` that the configuration or a script has chosen. If it is an
    /// error, it is not the server's, and has no cause.
    pub fn answer_as_told(&mut self, status: Status) {
        self.answer(status);
        self.origin = StatusOrigin::Told;
    }

    /// Gives the response another status, which a script has chosen. Fields and body stay.
    pub fn set_told_status(&mut self, status: Status) {
        self.status = status;
        self.origin = StatusOrigin::Told;
    }

    /// Why the response is an error. `None`: it is none, or not one of the server's own.
    pub fn cause(&self) -> Option<ErrorCause> {
        match self.origin {
            StatusOrigin::Own(cause) if self.status.is_error() => Some(cause),
            _ => None,
        }
    }

    /// Where the status comes from, for another response that has it.
    pub(crate) fn status_origin(&self) -> StatusOrigin {
        match self.origin {
            StatusOrigin::Answer if self.is_final => StatusOrigin::Told,
            origin => origin,
        }
    }

    /// Whether this is an error that the server has made without saying why.
    pub(crate) fn lacks_cause(&self) -> bool {
        self.status.is_error() && !self.is_final && self.origin == StatusOrigin::Answer
    }

    /// Returns the response, and leaves an empty one with only the fields of [`Response::hand_on`].
    pub fn begin_anew(&mut self) -> Response {
        let handed_on = std::mem::take(&mut self.handed_on);
        let begun = std::mem::take(self);
        self.handed_on = handed_on;
        begun
    }

    /// Adds a field to the response that a later hook makes. It replaces that response's own field; a
    /// Set-Cookie is added. On an error only Set-Cookie counts, because other fields are about another body.
    /// The field is for this request alone, and no cache stores it.
    pub fn carry(&mut self, name: &str, value: &[u8]) {
        self.carried.append(name, value);
    }

    /// Moves the carried fields into the response. The phase loop calls this after the caches have stored the
    /// response. A hook that evaluates conditions or ranges by the fields of its response calls it earlier.
    pub fn take_carried(&mut self) {
        if self.carried.is_empty() {
            return;
        }
        let carried = std::mem::take(&mut self.carried);
        self.take(&carried);
        self.has_carried = true;
    }

    /// `fields` as the client will get them, with the carried fields. What a script has said about the
    /// response decides whether a cache may store it.
    pub fn with_carried<'a>(&self, fields: &'a HeaderBlock) -> Cow<'a, HeaderBlock> {
        if self.carried.is_empty() {
            return Cow::Borrowed(fields);
        }
        let mut all = fields.clone();
        for (name, value) in self.carried.iter() {
            let Ok(name) = std::str::from_utf8(name) else {
                continue;
            };
            if name.eq_ignore_ascii_case("set-cookie") {
                all.append(name, value);
            } else {
                all.set(name, value);
            }
        }
        Cow::Owned(all)
    }

    /// Whether the response has fields that are for this request alone.
    pub fn has_carried(&self) -> bool {
        self.has_carried
    }

    /// Like [`Response::carry`], for a field of a backend that has redirected internally to another URL.
    /// Caches see it as part of the response.
    pub fn hand_on(&mut self, name: &str, value: &[u8]) {
        self.handed_on.append(name, value);
    }

    /// Moves the fields of [`Response::hand_on`] into the response.
    pub fn take_handed_on(&mut self) {
        if !self.handed_on.is_empty() {
            let handed_on = std::mem::take(&mut self.handed_on);
            self.take(&handed_on);
        }
    }

    fn take(&mut self, fields: &HeaderBlock) {
        for (name, value) in fields.iter() {
            let Ok(name) = std::str::from_utf8(name) else {
                continue;
            };
            if name.eq_ignore_ascii_case("set-cookie") {
                self.append(name, value);
            } else if !self.status.is_error() && !self.frames_parts(name) {
                self.set(name, value);
            }
        }
    }

    /// Whether the field `name` tells how to parse a body with several ranges.
    fn frames_parts(&self, name: &str) -> bool {
        self.status == Status::PARTIAL_CONTENT
            && name.eq_ignore_ascii_case("content-type")
            && self
                .get(name)
                .is_some_and(|value| value.starts_with(b"multipart/byteranges"))
    }

    /// The number of the body's content, if the body is still the one in [`Response::kept`].
    pub fn kept_content(&self) -> Option<u64> {
        let kept = self.kept.as_ref()?;
        let Body::Piece(Piece::Bytes(bytes)) = &self.body else {
            return None;
        };
        // While `kept` holds the bytes, no other bytes can be at their address.
        let is_same = bytes.as_ptr() == kept.bytes.as_ptr() && bytes.len() == kept.bytes.len();
        is_same.then_some(kept.number)
    }

    /// The header fields.
    pub fn fields(&self) -> &HeaderBlock {
        &self.fields
    }

    /// The value of the first field `name`.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.fields.get(name)
    }

    /// Adds a field, even if there is one with that name.
    pub fn append(&mut self, name: &str, value: &[u8]) {
        if self.note(name, value) {
            self.fields.append(name, value);
        }
    }

    /// Replaces all fields with that name; an empty value removes them.
    pub fn set(&mut self, name: &str, value: &[u8]) {
        self.remove(name);
        if !value.is_empty() {
            self.append(name, value);
        } else if name.eq_ignore_ascii_case("server") {
            self.own.server = true;
        }
    }

    /// Removes all fields with that name.
    #[inline]
    pub fn remove(&mut self, name: &str) {
        if !self.fields.is_empty() {
            self.fields.remove(name);
        }
    }

    /// Removes all fields that have one of these names.
    pub fn remove_all(&mut self, names: &[&str]) {
        self.fields.remove_all(names);
    }

    /// Adds fields in wire format. None of them may be one that the connection adds.
    #[inline]
    pub fn extend_from_wire(&mut self, fields: &[u8]) {
        self.fields.extend_from_wire(fields);
    }

    /// Like [`Response::extend_from_wire`], with fields that the connection usually adds: `own` tells which
    /// of them there are.
    #[inline]
    pub fn extend_from_wire_with(&mut self, fields: &[u8], own: Own) {
        self.fields.extend_from_wire(fields);
        self.own.date |= own.date;
        self.own.server |= own.server;
    }

    /// Which of the connection's fields the block has.
    pub fn own(&self) -> Own {
        self.own
    }

    /// Updates the flags. Returns false if the connection alone decides about this field; then it is not
    /// stored.
    fn note(&mut self, name: &str, value: &[u8]) -> bool {
        match name.len() {
            4 if name.eq_ignore_ascii_case("date") => self.own.date = true,
            6 if name.eq_ignore_ascii_case("server") => self.own.server = true,
            10 if name.eq_ignore_ascii_case("connection") => {
                self.close |= value.eq_ignore_ascii_case(b"close");
                return false;
            }
            14 if name.eq_ignore_ascii_case("content-length") => return false,
            17 if name.eq_ignore_ascii_case("transfer-encoding") => return false,
            _ => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framing_fields_belong_to_the_connection() {
        let mut response = Response::default();
        response.set("Content-Length", b"3");
        response.append("transfer-encoding", b"chunked");
        response.append("X-A", b"1");
        response.append("connection", b"close");
        assert_eq!(response.fields().as_bytes(), b"X-A: 1\r\n");
        assert!(response.close);
    }

    #[test]
    fn carried_fields_reach_the_answer_of_another() {
        for (status, expected) in [
            (
                Status::OK,
                "Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Type: x/y\r\n",
            ),
            (Status::NOT_FOUND, "Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n"),
        ] {
            let mut response = Response::default();
            response.carry("Set-Cookie", b"b=2");
            response.carry("Content-Type", b"x/y");
            response.answer(status);
            response.append("Set-Cookie", b"a=1");
            response.take_carried();
            let fields = String::from_utf8_lossy(response.fields().as_bytes()).into_owned();
            assert_eq!(fields, expected);
            response.take_carried();
            assert_eq!(fields.len(), response.fields().as_bytes().len());
            assert!(response.has_carried());
            response.carry("X", b"1");
            response.clear();
            response.take_carried();
            assert!(response.fields().is_empty() && !response.has_carried());
        }
    }

    #[test]
    fn what_a_backend_hands_on_outlives_what_scripts_begin() {
        let mut response = Response::default();
        response.hand_on("Cache-Control", b"private");
        response.append("X", b"1");
        let begun = response.begin_anew();
        assert_eq!(begun.fields().as_bytes(), b"X: 1\r\n");
        response.carry("Y", b"2");
        response.answer(Status::OK);
        response.take_handed_on();
        assert_eq!(response.fields().as_bytes(), b"Cache-Control: private\r\n");
        assert!(!response.has_carried());
    }

    #[test]
    fn a_carried_type_does_not_replace_that_of_several_ranges() {
        for (own, expected) in [
            (
                "multipart/byteranges; boundary=b",
                "multipart/byteranges; boundary=b",
            ),
            ("text/plain", "x/y"),
        ] {
            let mut response = Response::default();
            response.carry("content-type", b"x/y");
            response.answer(Status::PARTIAL_CONTENT);
            response.set("Content-Type", own.as_bytes());
            response.take_carried();
            assert_eq!(response.get("Content-Type"), Some(expected.as_bytes()));
        }
    }

    #[test]
    fn content_that_is_kept_is_known_as_long_as_it_is_the_body() {
        let bytes = Bytes::from(vec![1; 10]);
        let mut response = Response {
            kept: Some(KeptContent {
                number: 7,
                bytes: bytes.clone(),
            }),
            body: Body::Piece(Piece::Bytes(bytes.clone())),
            ..Response::default()
        };
        assert_eq!(response.kept_content(), Some(7));
        response.body = Body::Piece(Piece::Bytes(bytes.slice(..5)));
        assert_eq!(response.kept_content(), None);
        response.body = Body::from(vec![1; 10]);
        assert_eq!(response.kept_content(), None);
        response.body = Body::Piece(Piece::Bytes(bytes));
        response.answer(Status::OK);
        assert_eq!(response.kept_content(), None);
    }

    #[test]
    fn own_date_and_server_are_noticed() {
        let mut response = Response::default();
        response.set("Server", b"");
        response.set("Date", b"today");
        assert_eq!(
            response.own(),
            Own {
                date: true,
                server: true
            }
        );
        response.clear();
        assert_eq!(response.own(), Own::default());
    }
}
