//! The head of a backend's reply: a status and header fields, in reused buffers.
//!
//! The decoders of CGI heads and HTTP/1 responses fill it in; a gateway makes the response head from it. It
//! checks nothing itself: the decoders check what they add.

use std::ops::Range;

use crate::status::Status;

/// Status and header fields of a reply.
#[derive(Debug)]
pub struct ReplyHead {
    status: Status,
    names: String,
    values: Vec<u8>,
    fields: Vec<ReplyField>,
    /// A bit set of the names' lengths modulo 64, because most lookups are for names that do not occur.
    lengths: u64,
}

#[derive(Clone, Debug)]
struct ReplyField {
    name: Range<u32>,
    value: Range<u32>,
}

impl Default for ReplyHead {
    fn default() -> ReplyHead {
        ReplyHead::new()
    }
}

impl ReplyHead {
    /// A head with status 200 and no fields.
    pub fn new() -> ReplyHead {
        ReplyHead {
            status: Status::OK,
            names: String::new(),
            values: Vec::new(),
            fields: Vec::new(),
            lengths: 0,
        }
    }

    /// Resets to status 200 and no fields, keeping buffers.
    pub fn clear(&mut self) {
        let ReplyHead {
            status,
            names,
            values,
            fields,
            lengths,
        } = self;
        *lengths = 0;
        *status = Status::OK;
        names.clear();
        values.clear();
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
        let place = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let begins = (place(self.names.len()), place(self.values.len()));
        self.lengths |= length_bit(name);
        self.names.push_str(name);
        self.values.extend_from_slice(value);
        let name = begins.0..place(self.names.len());
        let value = begins.1..place(self.values.len());
        self.fields.push(ReplyField { name, value });
    }

    /// All fields, in the order of arrival.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields
            .iter()
            .map(|field| (self.name(field), self.value(field)))
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
        match self.lengths & length_bit(name) {
            0 => None,
            _ => self.find(name),
        }
    }

    fn find(&self, name: &str) -> Option<&[u8]> {
        let names = self.names.as_bytes();
        let is_it = |field: &&ReplyField| {
            let known = names.get(as_usize(&field.name)).unwrap_or_default();
            // Most programs write names as the RFCs do, and comparing bytes is faster than ignoring letter
            // case.
            known == name.as_bytes() || known.eq_ignore_ascii_case(name.as_bytes())
        };
        Some(self.value(self.fields.iter().find(is_it)?))
    }

    fn name(&self, field: &ReplyField) -> &str {
        self.names.get(as_usize(&field.name)).unwrap_or_default()
    }

    fn value(&self, field: &ReplyField) -> &[u8] {
        self.values.get(as_usize(&field.value)).unwrap_or_default()
    }
}

fn length_bit(name: &str) -> u64 {
    1 << (name.len() % 64)
}

fn as_usize(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

#[cfg(test)]
mod tests {
    use super::*;

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
