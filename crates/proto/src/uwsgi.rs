//! The uwsgi protocol: a packet of names and values, followed by the body.
//!
//! A reply is a CGI reply or an HTTP/1 response that ends with the connection ([`crate::cgi`] reads both);
//! the protocol adds nothing to it.
//!
//! ```text
//!   0          1     2      3
//!   modifier 1 data length  modifier 2    (little-endian)
//!   then for each variable: length of name, name, length of value, value
//! ```
//!
//! Modifier 1 is 0: a request to a WSGI, PSGI or Rack application, whose variables follow.

/// Length of a packet's header.
const HEADER_BYTES: usize = 4;

/// The request has more than 64 KiB of variables, the most that a packet can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VariablesTooLong;

/// Writes the head of a request directly into the output.
#[derive(Debug)]
pub struct UwsgiEncoder<'o> {
    out: &'o mut Vec<u8>,
    /// Where the packet begins in `out`.
    start: usize,
    /// Whether a variable did not fit.
    is_too_long: bool,
}

impl<'o> UwsgiEncoder<'o> {
    /// Begins a packet.
    pub fn new(out: &'o mut Vec<u8>) -> UwsgiEncoder<'o> {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        UwsgiEncoder {
            out,
            start,
            is_too_long: false,
        }
    }

    /// Appends a variable. Names and values may hold any bytes.
    #[inline]
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        let used = self.out.len() - self.start - HEADER_BYTES;
        let room = usize::from(u16::MAX) - used;
        let needed = name.len().saturating_add(value.len()).saturating_add(4);
        if needed > room {
            self.is_too_long = true;
            return;
        }
        self.out.reserve(needed);
        for part in [name, value] {
            self.out
                .extend_from_slice(&(part.len() as u16).to_le_bytes());
            self.out.extend_from_slice(part);
        }
    }

    /// Ends the packet; the body may follow.
    ///
    /// # Errors
    /// Not everything fitted into the packet. It is removed from the output.
    pub fn finish(self) -> Result<(), VariablesTooLong> {
        if self.is_too_long {
            self.out.truncate(self.start);
            return Err(VariablesTooLong);
        }
        let length = self.out.len() - self.start - HEADER_BYTES;
        let [low, high] = (length as u16).to_le_bytes();
        self.out[self.start..self.start + HEADER_BYTES].copy_from_slice(&[0, low, high, 0]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(variables: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<u8>, VariablesTooLong> {
        let mut out = b"kept".to_vec();
        let mut head = UwsgiEncoder::new(&mut out);
        for (name, value) in variables {
            head.add(name, value);
        }
        let finished = head.finish();
        assert!(out.starts_with(b"kept") && (finished.is_ok() || out.len() == 4));
        finished.map(|()| out.split_off(4))
    }

    #[test]
    fn a_request_is_written_as_the_specification_says() {
        let variables = [(b"AB".to_vec(), b"c".to_vec()), (b"D".to_vec(), Vec::new())];
        let wire = encoded(&variables).expect("it is short");
        assert_eq!(wire, b"\0\x0c\0\0\x02\0AB\x01\0c\x01\0D\0\0");
    }

    #[test]
    fn a_packet_holds_64_kib_less_one_byte() {
        let of = |length: usize| encoded(&[(b"A".to_vec(), vec![b'x'; length])]);
        let wire = of(65_530).expect("it just fits");
        assert_eq!(wire[..4], [0, 0xff, 0xff, 0]);
        for length in [65_531, 70_000, 200_000] {
            assert_eq!(of(length), Err(VariablesTooLong));
        }
        let many = vec![(b"NAME".to_vec(), vec![b'x'; 92]); 656];
        assert_eq!(encoded(&many), Err(VariablesTooLong));
        assert!(encoded(&many[..655]).is_ok());
    }

    proptest! {
        #[test]
        fn variables_come_back(variables in proptest::collection::vec((
            proptest::collection::vec(any::<u8>(), 0..30),
            proptest::collection::vec(any::<u8>(), 0..300),
        ), 0..40)) {
            let wire = encoded(&variables).expect("it is short");
            let (header, mut rest) = wire.split_at(HEADER_BYTES);
            let [low, high] = (rest.len() as u16).to_le_bytes();
            prop_assert_eq!(header, [0, low, high, 0]);
            let mut next = || {
                let (length, behind) = rest.split_first_chunk::<2>()?;
                let (part, behind) = behind.split_at(u16::from_le_bytes(*length).into());
                rest = behind;
                Some(part.to_vec())
            };
            let pair = || Some((next()?, next().expect("a value behind each name")));
            let found: Vec<_> = std::iter::from_fn(pair).collect();
            prop_assert!(rest.is_empty());
            prop_assert_eq!(found, variables);
        }
    }
}
