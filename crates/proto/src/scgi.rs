//! SCGI requests: a netstring of names and values, then the body as it is.
//!
//! A reply is a CGI reply that ends with the connection ([`crate::cgi`]); SCGI adds nothing to it.
//!
//! ```text
//!   70:CONTENT_LENGTH 0 27 0 SCGI 0 1 0 REQUEST_METHOD 0 POST 0 … ,body
//! ```

/// Writes the head of a request, straight into the output.
#[derive(Debug)]
pub struct ScgiEncoder<'o> {
    out: &'o mut Vec<u8>,
    /// Where the head begins in `out`.
    start: usize,
}

impl<'o> ScgiEncoder<'o> {
    /// Begins a head with the two variables that have to come first, for a body of that many bytes.
    pub fn new(out: &'o mut Vec<u8>, content_length: u64) -> ScgiEncoder<'o> {
        let start = out.len();
        out.extend_from_slice(b"CONTENT_LENGTH\0");
        out.extend_from_slice(itoa::Buffer::new().format(content_length).as_bytes());
        out.extend_from_slice(b"\0SCGI\x001\0");
        ScgiEncoder { out, start }
    }

    /// Appends a variable. `CONTENT_LENGTH` and `SCGI` are there already and left out, as a second
    /// one is forbidden. So is a name or value with a NUL in it: it would become two variables.
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
        // The length stands in front and has no fixed width: all moves up to make room for it.
        let prefix = digits.len() + 1;
        self.out.resize(self.start + length + prefix, b',');
        self.out
            .copy_within(self.start..self.start + length, self.start + prefix);
        self.out[self.start..self.start + digits.len()].copy_from_slice(digits);
        self.out[self.start + digits.len()] = b':';
        self.out.push(b',');
    }
}

/// How far the head of a request has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedScgiHead {
    /// More bytes are needed.
    Partial,
    /// The head is complete.
    Complete {
        /// The variables, for [`HeadVariables`].
        variables: std::ops::Range<usize>,
        /// Bytes of input that the head took. The body follows.
        length: usize,
        /// Length of the body in bytes.
        content_length: u64,
    },
}

macro_rules! reasons {
    ($($variant:ident $sentence:literal,)*) => {
        /// Why a request is refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum HeadError {
            $(#[doc = concat!("Refused: ", $sentence, ".")] $variant,)*
        }

        impl HeadError {
            /// What was wrong, for the log, without a full stop.
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(HeadError::$variant => $sentence,)*
                }
            }
        }
    };
}

reasons! {
    Netstring "the SCGI request is not a netstring",
    TooLong "the head of the SCGI request is too long",
    ContentLength "the SCGI request does not begin with CONTENT_LENGTH",
    Version "the SCGI request has no variable SCGI with the value 1",
    Variables "a variable of the SCGI request is cut off",
}

impl std::fmt::Display for HeadError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.sentence())
    }
}

impl std::error::Error for HeadError {}

/// Reads a request's head from the front of `input`, as an application does. At most `bytes_max`
/// bytes of variables are accepted.
///
/// # Errors
/// It is no SCGI request.
pub fn parse(input: &[u8], bytes_max: usize) -> Result<ParsedScgiHead, HeadError> {
    let digits = input
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    if digits > LENGTH_DIGITS_MAX || (digits > 1 && input[0] == b'0') {
        return Err(HeadError::Netstring);
    }
    match input.get(digits) {
        None => return Ok(ParsedScgiHead::Partial),
        Some(b':') if digits > 0 => {}
        Some(_) => return Err(HeadError::Netstring),
    }
    let length = number(&input[..digits]).and_then(|length| usize::try_from(length).ok());
    let length = length.ok_or(HeadError::Netstring)?;
    if length > bytes_max {
        return Err(HeadError::TooLong);
    }
    let variables = digits + 1..digits + 1 + length;
    match input.get(variables.end) {
        None => return Ok(ParsedScgiHead::Partial),
        Some(b',') => {}
        Some(_) => return Err(HeadError::Netstring),
    }
    let content_length = check(&input[variables.clone()])?;
    Ok(ParsedScgiHead::Complete {
        length: variables.end + 1,
        variables,
        content_length,
    })
}

/// Whether the variables are what the specification wants; the length of the body.
fn check(bytes: &[u8]) -> Result<u64, HeadError> {
    let mut variables = HeadVariables::new(bytes);
    let content_length = match variables.next() {
        Some((b"CONTENT_LENGTH", value)) => number(value).ok_or(HeadError::ContentLength)?,
        _ => return Err(HeadError::ContentLength),
    };
    let mut has_version = false;
    for (name, value) in variables.by_ref() {
        has_version |= name == b"SCGI" && value == b"1";
    }
    match (variables.rest.is_empty(), has_version) {
        (false, _) => Err(HeadError::Variables),
        (true, false) => Err(HeadError::Version),
        (true, true) => Ok(content_length),
    }
}

/// Names and values of a head.
#[derive(Clone, Debug)]
pub struct HeadVariables<'b> {
    rest: &'b [u8],
}

impl<'b> HeadVariables<'b> {
    /// The variables in `bytes`: the range that [`ParsedScgiHead::Complete`] names.
    pub fn new(bytes: &'b [u8]) -> HeadVariables<'b> {
        HeadVariables { rest: bytes }
    }
}

impl<'b> Iterator for HeadVariables<'b> {
    type Item = (&'b [u8], &'b [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let name_end = memchr::memchr(0, self.rest)?;
        let (name, after) = (&self.rest[..name_end], &self.rest[name_end + 1..]);
        let value_end = memchr::memchr(0, after)?;
        self.rest = &after[value_end + 1..];
        Some((name, &after[..value_end]))
    }
}

#[inline]
fn has_nul(bytes: &[u8]) -> bool {
    memchr::memchr(0, bytes).is_some()
}

/// Digits only, at most 63 bits.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut value: u64 = 0;
    for &byte in text {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit < 10)?;
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (value <= i64::MAX as u64).then_some(value)
}

/// Digits of a netstring's length.
const LENGTH_DIGITS_MAX: usize = 9;

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

    #[test]
    fn a_head_is_complete_with_its_comma() {
        let wire = encoded(3, &[("A", "b")]);
        for length in 0..wire.len() {
            assert_eq!(
                parse(&wire[..length], 1000),
                Ok(ParsedScgiHead::Partial),
                "{length}"
            );
        }
        let complete = parse(&[&wire[..], b"abc"].concat(), 1000);
        assert_eq!(
            complete,
            Ok(ParsedScgiHead::Complete {
                variables: 3..wire.len() - 1,
                length: wire.len(),
                content_length: 3,
            })
        );
        assert_eq!(parse(&wire, wire.len() - 5), Err(HeadError::TooLong));
    }

    #[test]
    fn other_things_are_refused() {
        for (wire, error) in [
            (&b"x"[..], HeadError::Netstring),
            (b":,", HeadError::Netstring),
            (b"01:a,", HeadError::Netstring),
            (b"1234567890", HeadError::Netstring),
            (b"2:abc", HeadError::Netstring),
            (b"0:,", HeadError::ContentLength),
            (b"7:SCGI\x001\0,", HeadError::ContentLength),
            (b"17:CONTENT_LENGTH\0x\0,", HeadError::ContentLength),
            (b"17:CONTENT_LENGTH\x000\0,", HeadError::Version),
            (b"24:CONTENT_LENGTH\x000\0SCGI\x002\0,", HeadError::Version),
            (
                b"26:CONTENT_LENGTH\x000\0SCGI\x001\0A\0,",
                HeadError::Variables,
            ),
        ] {
            assert_eq!(parse(wire, 1000), Err(error), "{:?}", wire.escape_ascii());
        }
    }

    proptest! {
        #[test]
        fn variables_come_back(
            variables in proptest::collection::vec(("[A-Z]{1,9}", "[^\0]{0,99}"), 0..40),
            content_length in 0..i64::MAX as u64,
        ) {
            let borrowed: Vec<_> = variables.iter().map(|(name, value)| (&name[..], &value[..])).collect();
            let wire = encoded(content_length, &borrowed);
            let Ok(ParsedScgiHead::Complete { variables, length, content_length: read }) = parse(&wire, 1 << 20)
            else {
                panic!("it is complete");
            };
            prop_assert_eq!((length, read), (wire.len(), content_length));
            let found: Vec<_> = HeadVariables::new(&wire[variables]).skip(2).collect();
            let expected: Vec<_> = borrowed.iter()
                .filter(|(name, _)| *name != "SCGI")
                .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
                .collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn nothing_panics(input in proptest::collection::vec(any::<u8>(), 0..99)) {
            let _ = parse(&input, 50);
            let _ = HeadVariables::new(&input).count();
        }
    }
}
