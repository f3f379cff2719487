//! The request body, as far as it has been received.
//!
//! The connection fills it; handlers read it. A handler that needs the body answers
//! [`crate::module::Outcome::NeedBody`] and is called again when it is complete; nobody else makes
//! the connection keep a body: what no handler asks for is read and thrown away.

/// The received request body of one exchange.
#[derive(Default)]
pub struct RequestBody {
    received: Vec<u8>,
    wanted: bool,
    complete: bool,
}

impl RequestBody {
    /// Forgets everything: a new request begins.
    pub fn clear(&mut self) {
        self.received.clear();
        self.received
            .shrink_to(crate::limits::POOLED_BUFFER_BYTES_MAX);
        self.wanted = false;
        self.complete = false;
    }

    /// Asks the connection to keep the body.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// Whether a handler asked for the bytes.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Takes bytes in, if they are wanted.
    pub fn receive(&mut self, bytes: &[u8]) {
        if self.wanted {
            self.received.extend_from_slice(bytes);
        }
    }

    /// The last byte has been received.
    pub fn complete(&mut self) {
        self.complete = true;
    }

    /// Whether everything has been received.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The bytes received so far.
    pub fn bytes(&self) -> &[u8] {
        &self.received
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwanted_body_is_not_kept() {
        let mut body = RequestBody::default();
        body.receive(b"abc");
        assert_eq!(body.bytes(), b"");
        body.want();
        body.receive(b"def");
        assert_eq!(body.bytes(), b"def");
        body.clear();
        assert!(!body.is_wanted() && body.bytes().is_empty());
    }
}
