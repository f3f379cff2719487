//! Response header fields in wire form, in one reused buffer.
//!
//! A [`HeaderBlock`] holds what is between the status line and the empty line of a response head: lines of
//! `Name: value`, each with CR LF. Modules set and remove fields on it, and HTTP/1 sends it as it is. Other
//! protocols iterate over it with [`HeaderBlock::iter`]. It does not know which fields make sense together.
//!
//! It cannot be used to split a response: [`HeaderBlock::append`] and [`HeaderBlock::set`] replace CR, LF and
//! NUL in values by spaces, and leave out a field whose name is not a token.

use crate::syntax::is_token;

/// Header fields in wire form. Names match in any letter case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderBlock {
    /// Complete lines only, each `Name: value` and CR LF.
    bytes: Vec<u8>,
}

impl HeaderBlock {
    /// No fields.
    pub const fn new() -> HeaderBlock {
        HeaderBlock { bytes: Vec::new() }
    }

    /// Removes all fields but keeps the buffer.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Adds a field after the others, even if there is one of that name.
    #[inline]
    pub fn append(&mut self, name: &str, value: &[u8]) {
        if !is_token(name.as_bytes()) {
            return;
        }
        self.bytes.reserve(name.len() + value.len() + 4);
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b": ");
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        for byte in &mut self.bytes[start..] {
            *byte = if matches!(*byte, b'\r' | b'\n' | b'\0') {
                b' '
            } else {
                *byte
            };
        }
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Adds a field whose name is a token, and whose value was checked for CR, LF and NUL.
    #[inline]
    pub(crate) fn append_checked(&mut self, name: &[u8], value: &[u8]) {
        debug_assert!(is_token(name) && memchr::memchr3(b'\r', b'\n', 0, value).is_none());
        self.bytes.reserve(name.len() + value.len() + 4);
        for part in [name, b": ", value, b"\r\n"] {
            self.bytes.extend_from_slice(part);
        }
    }

    /// Sets the field to this value: others of that name are removed.
    pub fn set(&mut self, name: &str, value: &[u8]) {
        self.remove(name);
        self.append(name, value);
    }

    /// Removes every field of that name. Returns whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        self.remove_all(&[name])
    }

    /// Removes every field that has one of these names. Returns whether there was one.
    #[inline]
    pub fn remove_all(&mut self, names: &[&str]) -> bool {
        let mut start = 0;
        let mut removed = false;
        while start < self.bytes.len()
            && let Some(length) = line_length(&self.bytes[start..])
        {
            let line = &self.bytes[start..start + length];
            if names.iter().any(|name| is_named(line, name)) {
                self.bytes.drain(start..start + length);
                removed = true;
            } else {
                start += length;
            }
        }
        removed
    }

    /// The value of the first field of that name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.lines()
            .find(|line| is_named(line, name))
            .map(|line| split(line).1)
    }

    /// Whether there is a field of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.lines().any(|line| is_named(line, name))
    }

    /// All fields in their order, values without white space around them.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> + '_ {
        fields_of(&self.bytes)
    }

    /// Adds prebuilt lines, each `Name: value` and CR LF. They are not checked, so they must come from
    /// another block or from constants.
    #[inline]
    pub fn extend_from_wire(&mut self, lines: &[u8]) {
        debug_assert!(
            lines.is_empty() || lines.ends_with(b"\r\n"),
            "whole lines only"
        );
        self.bytes.extend_from_slice(lines);
    }

    /// The fields in wire form, without the empty line that ends a head.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        lines_of(&self.bytes)
    }
}

/// The fields of `lines`, each `Name: value` and CR LF. Values are trimmed.
pub(crate) fn fields_of(lines: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    lines_of(lines).map(split)
}

fn lines_of(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (line, after) = rest.split_at(line_length(rest)?);
        rest = after;
        Some(line)
    })
}

/// Length of the first line of `bytes`, its line end included; `None` when there is none.
fn line_length(bytes: &[u8]) -> Option<usize> {
    memchr::memchr(b'\n', bytes).map(|position| position + 1)
}

fn is_named(line: &[u8], name: &str) -> bool {
    line.get(name.len()) == Some(&b':') && line[..name.len()].eq_ignore_ascii_case(name.as_bytes())
}

fn split(line: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b':', line) {
        Some(colon) => (&line[..colon], line[colon + 1..].trim_ascii()),
        None => (line.trim_ascii(), b""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(fields: &[(&str, &str)]) -> HeaderBlock {
        let mut block = HeaderBlock::new();
        for (name, value) in fields {
            block.append(name, value.as_bytes());
        }
        block
    }

    #[test]
    fn fields_stand_there_in_wire_form() {
        let block = block(&[("Server", "petrel"), ("ETag", "\"x\"")]);
        assert_eq!(block.as_bytes(), b"Server: petrel\r\nETag: \"x\"\r\n");
        assert_eq!(block.get("etag"), Some(&b"\"x\""[..]));
        assert_eq!(block.get("ETa"), None);
        assert!(block.contains("SERVER") && !block.contains("Date"));
    }

    #[test]
    fn setting_replaces_all_of_that_name() {
        let mut block = block(&[("A", "1"), ("b", "2"), ("a", "3")]);
        block.set("A", b"4");
        assert_eq!(block.as_bytes(), b"b: 2\r\nA: 4\r\n");
        assert!(block.remove("B"));
        assert!(!block.remove("B"));
        block.extend_from_wire(b"D:6\r\nC:5\r\nd:7\r\nE:8\r\n");
        assert!(block.remove_all(&["e", "D"]));
        assert!(!block.remove_all(&["e", "D"]));
        let fields: Vec<_> = block.iter().collect();
        assert_eq!(fields, [(&b"A"[..], &b"4"[..]), (b"C", b"5")]);
        block.clear();
        assert!(block.is_empty());
    }

    #[test]
    fn a_value_cannot_begin_a_line() {
        let mut fields = block(&[("A", "1\r\nSet-Cookie: x\r\n\r\n<html>\0")]);
        assert_eq!(fields.iter().count(), 1);
        assert_eq!(fields.as_bytes(), b"A: 1  Set-Cookie: x    <html> \r\n");
        for name in ["", "A b", "A:", "A\r\nB", "\u{e4}"] {
            fields.append(name, b"1");
        }
        assert_eq!(fields.iter().count(), 1);
    }
}
