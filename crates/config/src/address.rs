//! Ranges of IP addresses: one address, or `address/prefix`.

use std::net::IpAddr;

/// A range of addresses of one family. IPv4 addresses that are mapped into IPv6 count as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    network: IpAddr,
    prefix_bits: u8,
}

impl AddressRange {
    /// Parses `10.0.0.1`, `10.0.0.0/8` or `2001:db8::/32`. The address may be in brackets.
    ///
    /// # Errors
    /// A message if `text` is no address, or if the prefix is longer than the address.
    pub fn parse(text: &str) -> Result<AddressRange, String> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let bare = address
            .strip_prefix('[')
            .and_then(|inner| inner.strip_suffix(']'))
            .unwrap_or(address);
        let parsed: IpAddr = bare
            .parse()
            .map_err(|_| format!("\"{}\" is no IP address", crate::lexer::shortened(text)))?;
        let width = width(parsed);
        let bits = match prefix {
            None => width,
            Some(digits) => prefix_of(digits, width).ok_or_else(|| {
                format!(
                    "the prefix \"/{}\" is no number from 0 to {width}",
                    crate::lexer::shortened(digits)
                )
            })?,
        };
        Ok(AddressRange::new(parsed, bits))
    }

    fn new(address: IpAddr, bits: u8) -> AddressRange {
        match address.to_canonical() {
            IpAddr::V4(mapped) if address.is_ipv6() && bits >= 96 => AddressRange {
                network: mapped.into(),
                prefix_bits: bits - 96,
            },
            _ => AddressRange {
                network: address,
                prefix_bits: bits,
            },
        }
    }

    /// Whether `address` is in the range.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let shift = 32 - u32::from(self.prefix_bits.min(32));
                (u32::from(network) ^ u32::from(address))
                    .checked_shr(shift)
                    .unwrap_or(0)
                    == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let shift = 128 - u32::from(self.prefix_bits.min(128));
                (u128::from(network) ^ u128::from(address))
                    .checked_shr(shift)
                    .unwrap_or(0)
                    == 0
            }
            _ => false,
        }
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn prefix_of(digits: &str, width: u8) -> Option<u8> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|&bits| plain && bits <= width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(range: &str, address: &str) -> bool {
        AddressRange::parse(range)
            .expect("a range")
            .contains(address.parse().expect("an address"))
    }

    #[test]
    fn a_prefix_covers_the_addresses_that_share_it() {
        assert!(contains("10.1.0.0/16", "10.1.255.255"));
        assert!(!contains("10.1.0.0/16", "10.2.0.0"));
        assert!(contains("10.1.2.3/31", "10.1.2.2"));
        assert!(contains("0.0.0.0/0", "203.0.113.9"));
        assert!(contains("::/0", "2001:db8::1"));
        assert!(contains("2001:db8::/33", "2001:db8:7fff::1"));
        assert!(!contains("2001:db8::/33", "2001:db8:8000::1"));
    }

    #[test]
    fn an_address_alone_is_itself() {
        assert!(contains("[::1]", "::1"));
        assert!(!contains("::1", "::2"));
        assert!(contains("192.0.2.1", "::ffff:192.0.2.1"));
        assert!(contains("::ffff:192.0.2.0/120", "192.0.2.77"));
    }

    #[test]
    fn families_do_not_mix() {
        assert!(!contains("::/0", "192.0.2.1"));
        assert!(!contains("0.0.0.0/0", "2001:db8::1"));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "a",
            "1.2.3",
            "1.2.3.4/33",
            "1.2.3.4/",
            "1.2.3.4/-1",
            "1.2.3.4/+8",
            "::/129",
            "[::1",
            "1.2.3.4/8/8",
        ] {
            assert!(AddressRange::parse(text).is_err(), "{text}");
        }
    }
}
