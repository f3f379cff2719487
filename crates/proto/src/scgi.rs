//! SCGI requests: a netstring of names and values, followed by the body.
//!
//! A reply is a CGI reply that ends with the connection ([`crate::cgi`]); SCGI adds nothing to it.
//!
//! ```text
//!   70:CONTENT_LENGTH 0 27 0 SCGI 0 1 0 REQUEST_METHOD 0 POST 0 … ,body
//! ```

/// Writes the head of a request directly into the output.
#[derive(Debug)]
pub struct ScgiEncoder<'o> {
    out: &'o mut Vec<u8>,
    /// Where the head begins in `out`.
    start: usize,
}

impl<'o> ScgiEncoder<'o> {
    /// Begins a head with the two variables that must come first. `content_length` is the length of the body.
    pub fn new(out: &'o mut Vec<u8>, content_length: u64) -> ScgiEncoder<'o> {
        let start = out.len();
        out.extend_from_slice(b"CONTENT_LENGTH\0");
        out.extend_from_slice(itoa::Buffer::new().format(content_length).as_bytes());
        out.extend_from_slice(b"\0SCGI\x001\0");
        ScgiEncoder { out, start }
    }

    /// Appends a variable. `CONTENT_LENGTH` and `SCGI` are left out, because the head has them already and a
    /// second one is forbidden. A name or value with a NUL is left out as well: it would become two
    /// variables.
    #[inline]
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        let is_first = matches!(name, b"CONTENT_LENGTH" | b"SCGI");
        if is_first || has_nul(name) || has_nul(value) {
            return;
        }
        self.out.reserve(name.len() + value.len() + 2);
        self.out.extend_from_slice(name);
        self.out.push(0);
        self.out.extend_from_slice(value);
        self.out.push(0);
    }

    /// Ends the head; the body may follow.
    pub fn finish(self) {
        let length = self.out.len() - self.start;
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(length).as_bytes();
        // The length in front has no fixed width, so everything moves to make room for it.
        let prefix = digits.len() + 1;
        self.out.resize(self.start + length + prefix, b',');
        self.out
            .copy_within(self.start..self.start + length, self.start + prefix);
        self.out[self.start..self.start + digits.len()].copy_from_slice(digits);
        self.out[self.start + digits.len()] = b':';
        self.out.push(b',');
    }
}

#[inline]
fn has_nul(bytes: &[u8]) -> bool {
    memchr::memchr(0, bytes).is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(content_length: u64, variables: &[(&str, &str)]) -> Vec<u8> {
        let mut out = b"kept".to_vec();
        let mut head = ScgiEncoder::new(&mut out, content_length);
        for (name, value) in variables {
            head.add(name.as_bytes(), value.as_bytes());
        }
        head.finish();
        assert!(out.starts_with(b"kept"));
        out.split_off(4)
    }

    #[test]
    fn a_request_is_written_as_the_specification_says() {
        let wire = encoded(
            27,
            &[("REQUEST_METHOD", "POST"), ("REQUEST_URI", "/deepthought")],
        );
        let expected = b"70:CONTENT_LENGTH\x0027\0SCGI\x001\0\
            REQUEST_METHOD\0POST\0REQUEST_URI\0/deepthought\0,";
        assert_eq!(wire, expected);
    }

    #[test]
    fn what_would_be_two_variables_or_the_same_twice_is_left_out() {
        let bare = encoded(0, &[("A", "")]);
        let fields = [
            ("CONTENT_LENGTH", "5"),
            ("A", ""),
            ("B", "1\0C"),
            ("D\0", ""),
            ("SCGI", "2"),
        ];
        assert_eq!(encoded(0, &fields), bare);
    }

    proptest! {
        #[test]
        fn variables_come_back(
            variables in proptest::collection::vec(("[A-Z]{1,9}", "[^\0]{0,99}"), 0..40),
            content_length in 0..i64::MAX as u64,
        ) {
            let borrowed: Vec<_> = variables.iter().map(|(name, value)| (&name[..], &value[..])).collect();
            let wire = encoded(content_length, &borrowed);
            let others = borrowed.iter().filter(|(name, _)| *name != "SCGI");
            let mut head = format!("CONTENT_LENGTH\0{content_length}\0SCGI\x001\0");
            head.extend(others.flat_map(|(name, value)| [name, "\0", value, "\0"]));
            let expected = format!("{}:{head},", head.len());
            prop_assert_eq!(wire, expected.as_bytes());
        }
    }
}
