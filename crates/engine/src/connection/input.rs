//! Bytes that were received and not used yet.

use std::ops::Deref;

/// Received bytes, as a slice. A single pointer, and nothing behind it until there are some: most connections
/// are idle, and each has one.
#[derive(Default)]
pub(super) struct Input(
    #[expect(
        clippy::box_collection,
        reason = "a Vec itself is three times as large"
    )]
    Option<Box<Vec<u8>>>,
);

impl Input {
    /// More of them.
    pub fn push(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.buffer().extend_from_slice(bytes);
        }
    }

    /// The first `count` are used.
    pub fn used(&mut self, count: usize) {
        if let Some(bytes) = &mut self.0 {
            bytes.drain(..count);
        }
    }

    /// They are not wanted; their memory is given back.
    pub fn release(&mut self) {
        self.0 = None;
    }

    /// For whoever takes all of them.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.0.get_or_insert_default()
    }
}

impl Deref for Input {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_and_are_used() {
        let mut input = Input::default();
        input.push(b"");
        assert!(input.0.is_none() && input.is_empty());
        input.used(0);
        input.push(b"GET ");
        input.push(b"/");
        assert_eq!(&*input, b"GET /");
        input.used(4);
        assert_eq!(&*input, b"/");
        input.used(1);
        assert!(input.is_empty());
        input.release();
        assert!(input.0.is_none());
    }

    #[test]
    fn it_is_a_pointer() {
        assert_eq!(size_of::<Input>(), size_of::<usize>());
    }
}
