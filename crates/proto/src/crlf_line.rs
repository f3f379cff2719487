//! Reads lines that end with CR LF and nothing else, in any number of pieces. It serves decoders that get
//! each byte once and keep what they need.

/// The incomplete or complete line, without its end.
#[derive(Debug, Default)]
pub(crate) struct Line {
    bytes: Vec<u8>,
    has_carriage_return: bool,
}

/// The result of reading some input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Scanned {
    /// The input was used up, and the line is still incomplete.
    More,
    /// The line is complete; this many bytes of the input were used.
    Complete(usize),
}

/// Why a line is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineError {
    /// It has more bytes than allowed.
    TooLong,
    /// A CR or LF stands alone.
    End,
}

impl Line {
    /// Adds `input` up to the end of the line. A line may have at most `bytes_max` bytes without its end.
    pub(crate) fn scan(&mut self, input: &[u8], bytes_max: usize) -> Result<Scanned, LineError> {
        if self.has_carriage_return {
            return match input.first() {
                None => Ok(Scanned::More),
                Some(b'\n') => Ok(Scanned::Complete(1)),
                Some(_) => Err(LineError::End),
            };
        }
        let end = memchr::memchr2(b'\r', b'\n', input);
        let (part, rest) = input.split_at(end.unwrap_or(input.len()));
        if self.bytes.len() + part.len() > bytes_max {
            return Err(LineError::TooLong);
        }
        self.bytes.extend_from_slice(part);
        match rest {
            [] => Ok(Scanned::More),
            [b'\r', b'\n', ..] => Ok(Scanned::Complete(part.len() + 2)),
            [b'\r'] => {
                self.has_carriage_return = true;
                Ok(Scanned::More)
            }
            _ => Err(LineError::End),
        }
    }

    /// The complete line.
    pub(crate) fn text(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the complete line, and begins another.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.has_carriage_return = false;
        std::mem::take(&mut self.bytes)
    }

    /// Begins another line in the same buffer.
    pub(crate) fn clear(&mut self) {
        self.has_carriage_return = false;
        self.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_wherever_it_is_cut() {
        let text = b"abc\r\nrest";
        for cut in 0..5 {
            let mut line = Line::default();
            assert_eq!(line.scan(&text[..cut], 3), Ok(Scanned::More));
            let used = 5 - cut;
            assert_eq!(line.scan(&text[cut..], 3), Ok(Scanned::Complete(used)));
            assert_eq!(line.text(), b"abc");
            assert_eq!(line.take(), b"abc");
            assert_eq!(line.scan(b"x\r\n", 3), Ok(Scanned::Complete(3)));
        }
    }

    #[test]
    fn half_an_end_and_too_much_are_refused() {
        for (text, error) in [
            ("a\n", LineError::End),
            ("a\rb", LineError::End),
            ("\r\r\n", LineError::End),
            ("abcd", LineError::TooLong),
        ] {
            for cut in 0..text.len() {
                let mut line = Line::default();
                let (first, second) = text.as_bytes().split_at(cut);
                let refused = line.scan(first, 3).and_then(|_| line.scan(second, 3));
                assert_eq!(refused, Err(error), "{text:?} cut at {cut}");
            }
        }
    }
}
