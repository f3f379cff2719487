//! One request: what the web server says about it, and the reply that the script makes.
//!
//! Knows nothing of records and connections. While a script runs, the request is lent to the functions that
//! the script calls.

use super::answer::ScriptReply;
use crate::fcgi_program::params::Params;

/// A request. Its memory is reused for later requests.
#[derive(Debug)]
pub(crate) struct Request {
    /// The name-value pairs.
    pub(crate) params: Params,
    /// The part of the body that has arrived.
    body: Vec<u8>,
    body_state: BodyState,
    /// The reply.
    pub(crate) answer: ScriptReply,
}

/// How much of a request's body has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyState {
    /// More is to come.
    Coming,
    /// The body is complete.
    Complete,
    /// The body exceeded the limit.
    TooLong,
}

impl Request {
    /// An empty request.
    pub(crate) fn new() -> Request {
        Request {
            params: Params::new(),
            body: Vec::new(),
            body_state: BodyState::Coming,
            answer: ScriptReply::default(),
        }
    }

    /// Resets the request for the next one. Buffers of usual size are kept.
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

    /// The value of `name`. If it occurs several times, the last one counts.
    pub(crate) fn param(&self, name: &[u8]) -> Option<&[u8]> {
        self.params.get(name)
    }

    /// Appends to the body, up to `bytes_max` bytes in all. Once that is exceeded, the rest is dropped.
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

    /// Marks the body as complete.
    pub(crate) fn end_body(&mut self) {
        if self.body_state == BodyState::Coming {
            self.body_state = BodyState::Complete;
        }
    }

    /// How much of the body has arrived.
    pub(crate) fn body_state(&self) -> BodyState {
        self.body_state
    }

    /// The part of the body that has arrived.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Whether the web server announces a body of more than `bytes_max` bytes.
    pub(crate) fn announces_too_much(&self, bytes_max: usize) -> bool {
        let length = self.param(b"CONTENT_LENGTH").unwrap_or_default();
        let length = std::str::from_utf8(length).unwrap_or_default();
        // A CONTENT_LENGTH that is no number announces nothing; the limit then applies as the body arrives.
        length.parse().is_ok_and(|length: usize| length > bytes_max)
    }
}

/// Bytes of the body's buffer that are kept for the next request.
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
