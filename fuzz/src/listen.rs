//! Addresses in a configuration: listeners, whose canonical form parses to the same, and ranges of clients.
//!
//! The input is the text of an address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use petrel_config::{AddressRange, ListenAddress, ListenDefaults};

pub fn listen(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    for ipv6 in [false, true] {
        let defaults = ListenDefaults { port: 81, ipv6 };
        if let Ok(address) = ListenAddress::parse(text, defaults) {
            let canonical = address.to_string();
            let again = ListenAddress::parse(&canonical, defaults);
            assert_eq!(again.as_ref(), Ok(&address), "{canonical}");
        }
    }
    if let Ok(range) = AddressRange::parse(text) {
        let _ = range.contains(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let _ = range.contains(IpAddr::V6(Ipv6Addr::LOCALHOST));
    }
}
