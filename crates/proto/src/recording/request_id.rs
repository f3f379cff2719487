//! The id of a request: 64 bits, shown as 16 hexadecimal digits.

use std::fmt;
use std::str::FromStr;

/// The id of a request or a subrequest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

impl RequestId {
    /// How many digits it is shown with.
    pub const DIGITS: usize = 16;

    /// The id as a number, for records in memory.
    #[inline]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The id that [`RequestId::to_bits`] made a number of.
    #[inline]
    pub const fn from_bits(bits: u64) -> RequestId {
        RequestId(bits)
    }

    /// The digits, without an allocation.
    #[inline]
    pub fn digits(self) -> [u8; RequestId::DIGITS] {
        let mut digits = [0; RequestId::DIGITS];
        let (high, low) = digits.split_at_mut(8);
        high.copy_from_slice(&eight_digits((self.0 >> 32) as u32));
        low.copy_from_slice(&eight_digits(self.0 as u32));
        digits
    }
}

/// The hexadecimal digits of `number`: its bits are spread so that each byte of one word has four of them, and
/// all eight bytes become digits at once.
#[inline]
const fn eight_digits(number: u32) -> [u8; 8] {
    let mut nibbles = number as u64;
    nibbles = (nibbles | nibbles << 16) & 0x0000_ffff_0000_ffff;
    nibbles = (nibbles | nibbles << 8) & 0x00ff_00ff_00ff_00ff;
    nibbles = (nibbles | nibbles << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    // One in each byte of 10 or more.
    let letters = (nibbles + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
    let digits = nibbles + 0x3030_3030_3030_3030 + letters * (b'a' - b'9' - 1) as u64;
    digits.to_be_bytes()
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The text is not an id: 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRequestId;

impl fmt::Display for NoRequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the id of a request has 16 hexadecimal digits")
    }
}

impl std::error::Error for NoRequestId {}

impl FromStr for RequestId {
    type Err = NoRequestId;

    /// Upper-case digits count as well: an id may have come by telephone.
    fn from_str(text: &str) -> Result<RequestId, NoRequestId> {
        let is_digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if text.len() != RequestId::DIGITS || !is_digits {
            return Err(NoRequestId);
        }
        let bits = u64::from_str_radix(text, 16).map_err(|_| NoRequestId)?;
        Ok(RequestId(bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_shown_as_16_digits_and_read_from_them() {
        for (bits, shown) in [
            (0, "0000000000000000"),
            (0x0123_4567_89ab_cdef, "0123456789abcdef"),
            (u64::MAX, "ffffffffffffffff"),
        ] {
            let id = RequestId::from_bits(bits);
            assert_eq!(id.to_string(), shown);
            assert_eq!(id.digits(), shown.as_bytes());
            assert_eq!(shown.parse(), Ok(id));
            assert_eq!(shown.to_uppercase().parse(), Ok(id));
        }
    }

    #[test]
    fn other_text_is_no_id() {
        for text in [
            "",
            "0",
            "0123456789abcde",
            "0123456789abcdef0",
            "+123456789abcdef",
            "0x23456789abcdef",
            "0123456789abcdeg",
            " 123456789abcdef",
            "0123456789abcde\n",
            "\u{e9}1234567890abcd",
        ] {
            assert_eq!(text.parse::<RequestId>(), Err(NoRequestId), "{text:?}");
        }
    }
}
