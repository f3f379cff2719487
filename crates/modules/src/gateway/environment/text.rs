//! Numbers, addresses and joined paths as text, on the stack.

use std::io::Write;
use std::net::IpAddr;

/// A number in decimal digits.
pub(super) struct Decimal(itoa::Buffer, u64);

impl Decimal {
    pub(crate) fn new(number: u64) -> Decimal {
        Decimal(itoa::Buffer::new(), number)
    }

    pub(crate) fn text(&mut self) -> &[u8] {
        self.0.format(self.1).as_bytes()
    }
}

/// An IP address as text; an IPv4-mapped address as IPv4.
pub(in crate::gateway) fn ip_text(address: IpAddr) -> IpText {
    let mut text = IpText {
        bytes: [0; IP_BYTES_MAX],
        length: 0,
    };
    match address.to_canonical() {
        IpAddr::V4(address) => {
            for (position, octet) in address.octets().into_iter().enumerate() {
                if position > 0 {
                    text.push(b'.');
                }
                text.push_octet(octet);
            }
        }
        IpAddr::V6(address) => {
            let mut rest = &mut text.bytes[..];
            let written = write!(rest, "{address}");
            debug_assert!(written.is_ok(), "every IPv6 address fits");
            text.length = IP_BYTES_MAX - rest.len();
        }
    }
    text
}

/// An address as text.
pub(in crate::gateway) struct IpText {
    bytes: [u8; IP_BYTES_MAX],
    length: usize,
}

impl IpText {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    #[inline]
    fn push_octet(&mut self, octet: u8) {
        let [digits @ .., count] = OCTETS[usize::from(octet)];
        // What is behind the digits is overwritten or not shown.
        if let Some(place) = self.bytes[self.length..].first_chunk_mut() {
            *place = digits;
        }
        self.length += usize::from(count);
    }

    #[inline]
    fn push(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }
}

/// For each octet its decimal digits, and how many there are.
static OCTETS: [[u8; 4]; 256] = octets();

const fn octets() -> [[u8; 4]; 256] {
    let mut table = [[0; 4]; 256];
    let mut octet = 0;
    while octet < 256 {
        let [hundreds, tens, ones] = [octet / 100, octet / 10 % 10, octet % 10];
        let [hundreds, tens, ones] = [b'0' + hundreds as u8, b'0' + tens as u8, b'0' + ones as u8];
        table[octet] = match octet {
            0..10 => [ones, 0, 0, 1],
            10..100 => [tens, ones, 0, 2],
            _ => [hundreds, tens, ones, 3],
        };
        octet += 1;
    }
    table
}

/// Two texts joined: borrowed if one of them is empty, on the stack if they are short.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack, for as long as it takes to copy it"
)]
pub(super) enum Joined<'t> {
    Lent(&'t [u8]),
    Short([u8; JOINED_BYTES_MAX], usize),
    Long(Vec<u8>),
}

impl<'t> Joined<'t> {
    /// `first` followed by `second`.
    pub(crate) fn new(first: &'t [u8], second: &'t [u8]) -> Joined<'t> {
        let length = first.len() + second.len();
        if second.is_empty() {
            return Joined::Lent(first);
        }
        if length > JOINED_BYTES_MAX {
            return Joined::Long([first, second].concat());
        }
        let mut bytes = [0; JOINED_BYTES_MAX];
        bytes[..first.len()].copy_from_slice(first);
        bytes[first.len()..length].copy_from_slice(second);
        Joined::Short(bytes, length)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Joined::Lent(bytes) => bytes,
            Joined::Short(bytes, length) => &bytes[..*length],
            Joined::Long(bytes) => bytes,
        }
    }
}

/// The longest text of an IPv6 address: eight groups of four digits, or six and an IPv4 address.
const IP_BYTES_MAX: usize = 45;

/// Paths up to this length are joined on the stack.
const JOINED_BYTES_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_in_full() {
        for (address, expected) in [
            ("0.0.0.0", "0.0.0.0"),
            ("255.255.255.255", "255.255.255.255"),
            ("9.10.99.100", "9.10.99.100"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("::1", "::1"),
            (
                "1111:2222:3333:4444:5555:6666:7777:8888",
                "1111:2222:3333:4444:5555:6666:7777:8888",
            ),
        ] {
            let text = ip_text(address.parse().expect("an address"));
            assert_eq!(text.as_bytes(), expected.as_bytes());
        }
    }

    #[test]
    fn texts_of_any_length_are_joined() {
        for length in [
            0,
            1,
            JOINED_BYTES_MAX - 1,
            JOINED_BYTES_MAX,
            JOINED_BYTES_MAX + 1,
        ] {
            let long = vec![b'x'; length];
            assert_eq!(
                Joined::new(&long, b"y").as_bytes(),
                [&long[..], b"y"].concat()
            );
            assert_eq!(Joined::new(&long, b"").as_bytes(), long);
        }
    }
}
