//! One request: what the web server says about it, and the answer that a script makes.
//!
//! Knows nothing of records and connections; it is what functions of scripts get lent while a script
//! runs.

use super::answer::ScriptReply;
use crate::fcgi_program::params::Params;

/// A request. They are used again.
#[derive(Debug)]
pub(crate) struct Request {
    /// The name-value pairs.
    pub(crate) params: Params,
    /// The body, as far as it has come.
    body: Vec<u8>,
    body_state: BodyState,
    /// The answer.
    pub(crate) answer: ScriptReply,
}

/// How far the body of a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyState {
    /// More comes.
    Coming,
    /// It is all there.
    Complete,
    /// There was too much of it.
    TooLong,
}

impl Request {
    /// With nothing in it.
    pub(crate) fn new() -> Request {
        Request {
            params: Params::new(),
            body: Vec::new(),
            body_state: BodyState::Coming,
            answer: ScriptReply::default(),
        }
    }

    /// As new, keeping memory of usual size.
    pub(crate) fn clear(&mut self) {
        let Request {
            params,
            body,
            body_state,
            answer,
        } = self;
        params.clear();
        body.clear();
        body.shrink_to(KEPT_BYTES_MAX);
        *body_state = BodyState::Coming;
        answer.clear();
    }

    /// The name-value pairs.
    pub(crate) fn params(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.params.iter()
    }

    /// The value of `name`; if there are several, the last.
    pub(crate) fn param(&self, name: &[u8]) -> Option<&[u8]> {
        self.params.get(name)
    }

    /// Appends to the body, which may have `bytes_max` bytes. What comes after too much is dropped.
    pub(crate) fn add_body(&mut self, bytes: &[u8], bytes_max: usize) {
        if self.body_state != BodyState::Coming {
            return;
        }
        if self.body.len() + bytes.len() > bytes_max {
            self.body_state = BodyState::TooLong;
            self.body = Vec::new();
            return;
        }
        self.body.extend_from_slice(bytes);
    }

    /// The body has ended.
    pub(crate) fn end_body(&mut self) {
        if self.body_state == BodyState::Coming {
            self.body_state = BodyState::Complete;
        }
    }

    /// How far the body has come.
    pub(crate) fn body_state(&self) -> BodyState {
        self.body_state
    }

    /// What has come of the body.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Whether the web server announces a body of more than `bytes_max` bytes.
    pub(crate) fn announces_too_much(&self, bytes_max: usize) -> bool {
        let length = self.param(b"CONTENT_LENGTH").unwrap_or_default();
        let length = std::str::from_utf8(length).unwrap_or_default();
        // What is no number is none that the body will be held to.
        length.parse().is_ok_and(|length: usize| length > bytes_max)
    }
}

/// Memory that a request keeps for the next one's body.
const KEPT_BYTES_MAX: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fcgi_program::params::testing;

    #[test]
    fn bodies_are_limited() {
        let mut request = Request::new();
        request.params = testing::params(&[("CONTENT_LENGTH", b"11")]);
        assert!(request.announces_too_much(10));
        assert!(!request.announces_too_much(11));
        request.add_body(b"12345", 10);
        request.add_body(b"67890", 10);
        assert_eq!(request.body_state(), BodyState::Coming);
        request.end_body();
        assert_eq!(
            (request.body_state(), request.body()),
            (BodyState::Complete, &b"1234567890"[..])
        );
        request.clear();
        request.add_body(b"12345678901", 10);
        request.add_body(b"1", 10);
        request.end_body();
        assert_eq!(
            (request.body_state(), request.body().len()),
            (BodyState::TooLong, 0)
        );
    }
}
