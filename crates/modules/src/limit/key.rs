//! The key of a request under a rule: the client's address, a header field, a cookie, the URL, a variable, or
//! one key for all requests.
//!
//! [`LimitKey::hash`] turns the key into 64 bits, which is all that the table of a rule stores of it. Each
//! server process hashes with a secret of its own, so a client cannot choose keys whose hashes collide. Text
//! is hashed by SipHash. Addresses are hashed by multiply-shift, which takes a fifth of SipHash's time: with
//! a rule by address the worker hashes one for every request. [`super::state`] calls this; nothing here knows
//! of tables or rates.

use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use petrel_engine::Exchange;
use petrel_engine::exchange::Peer;
use petrel_engine::proto::request_head::KnownField;

use crate::cookies::cookies_of;

/// What identifies the requests that a rule counts together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LimitKey {
    /// The network of the client's address.
    Address(Networks),
    /// The value of a header field.
    Header(Box<str>),
    /// The value of a cookie.
    Cookie(Box<str>),
    /// The URL path.
    Url,
    /// The value of a variable of the request, which a script or another module has set.
    Environment(Box<str>),
    /// All requests have one key.
    All,
}

/// Which bits of an address make the key: clients whose addresses agree in them share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Networks {
    ipv4_mask: u32,
    ipv6_mask: u128,
}

impl Networks {
    /// Masks for prefixes of this many bits, each at least one.
    pub(super) fn new(ipv4_bits: u8, ipv6_bits: u8) -> Networks {
        Networks {
            ipv4_mask: u32::MAX << (32 - u32::from(ipv4_bits)),
            ipv6_mask: u128::MAX << (128 - u32::from(ipv6_bits)),
        }
    }

    fn hash(self, ip: Option<IpAddr>, secret: &HashSecret) -> u64 {
        match ip {
            Some(IpAddr::V4(ip)) => self.hash_v4(ip, secret),
            Some(IpAddr::V6(ip)) => secret.of_number(ip.to_bits() & self.ipv6_mask),
            // All clients of a unix socket share one key. No client has the address ff…ff.
            None => secret.of_number(u128::MAX),
        }
    }

    /// The hash of its IPv4-mapped IPv6 address (::ffff:a.b.c.d), so that both spellings are one key.
    #[inline]
    fn hash_v4(self, ip: Ipv4Addr, secret: &HashSecret) -> u64 {
        let network = u64::from(ip.to_bits() & self.ipv4_mask);
        secret.of_lower_half(0xffff << 32 | network)
    }
}

/// The random numbers that make the hashes of this process differ from those of any other.
#[derive(Clone)]
pub(super) struct HashSecret {
    for_text: RandomState,
    /// The factors for the upper and the lower 64 bits of a number, and the summand.
    for_numbers: [u128; 3],
}

impl HashSecret {
    /// Multiply-shift (Dietzfelbinger 1996). For any two different numbers that were chosen without knowing
    /// the secret, all pairs of hashes are equally likely.
    #[inline]
    fn of_number(&self, number: u128) -> u64 {
        let [upper, lower, sum] = self.for_numbers;
        let upper = upper.wrapping_mul(number >> 64);
        let lower = lower.wrapping_mul(number & u128::from(u64::MAX));
        (sum.wrapping_add(upper).wrapping_add(lower) >> 64) as u64
    }

    /// [`HashSecret::of_number`] of a number whose upper 64 bits are 0.
    #[inline]
    fn of_lower_half(&self, number: u64) -> u64 {
        let [_, lower, sum] = self.for_numbers;
        (sum.wrapping_add(lower.wrapping_mul(number.into())) >> 64) as u64
    }
}

impl Default for HashSecret {
    fn default() -> HashSecret {
        let random = RandomState::new();
        let number = |index: u64| {
            let [upper, lower] = [2 * index, 2 * index + 1].map(|part| random.hash_one(part));
            u128::from(upper) << 64 | u128::from(lower)
        };
        HashSecret {
            for_numbers: [number(0), number(1), number(2)],
            for_text: RandomState::new(),
        }
    }
}

impl LimitKey {
    /// Whether a request may get this key only while it is processed: a script or mod_auth sets the variable.
    pub(super) fn is_variable(&self) -> bool {
        matches!(self, LimitKey::Environment(_))
    }

    /// Whether the key is known when the head of the request is not.
    pub(super) fn needs_no_head(&self) -> bool {
        matches!(self, LimitKey::Address(_) | LimitKey::All)
    }

    /// The hash of the key that this request has. It is never 0, which marks a free slot of the table. `None`
    /// if the request has no key.
    #[inline(always)]
    pub(super) fn hash(&self, exchange: &Exchange, secret: &HashSecret) -> Option<u64> {
        let hash = match (self, &exchange.connection.peer) {
            (LimitKey::Address(networks), Peer::Ip(SocketAddr::V4(address))) => {
                networks.hash_v4(*address.ip(), secret)
            }
            _ => self.hash_of_others(exchange, secret)?,
        };
        Some(hash.max(1))
    }

    #[inline(never)]
    fn hash_of_others(&self, exchange: &Exchange, secret: &HashSecret) -> Option<u64> {
        Some(match self {
            LimitKey::Address(networks) => networks.hash(exchange.connection.peer.ip(), secret),
            _ => secret.for_text.hash_one(self.text(exchange)?),
        })
    }

    /// The text of a key that is hashed as text. A request whose text is empty has no key.
    fn text<'e>(&self, exchange: &'e Exchange) -> Option<&'e [u8]> {
        let head = &exchange.request.head;
        let text = match self {
            LimitKey::Address(_) | LimitKey::All => return Some(b""),
            LimitKey::Url => exchange.request.url.path(),
            LimitKey::Header(name) => head.value_of(name)?,
            LimitKey::Cookie(name) => {
                let cookies = head.field(KnownField::Cookie)?;
                let mut named = cookies_of(cookies).filter(|(found, _)| *found == name.as_bytes());
                named.next()?.1
            }
            LimitKey::Environment(name) => exchange.environment.get(name)?,
        };
        Some(text).filter(|text| !text.is_empty())
    }

    /// The key of this request as the log shows it. Header fields, cookies and variables may be secrets, so
    /// the log shows only how they begin.
    pub(super) fn shown(&self, exchange: &Exchange) -> String {
        match self {
            LimitKey::Address(Networks {
                ipv4_mask,
                ipv6_mask,
            }) => match exchange.connection.peer.ip() {
                Some(IpAddr::V4(ip)) => {
                    let network = Ipv4Addr::from_bits(ip.to_bits() & ipv4_mask);
                    format!("{network}/{}", ipv4_mask.count_ones())
                }
                Some(IpAddr::V6(ip)) => {
                    let network = Ipv6Addr::from_bits(ip.to_bits() & ipv6_mask);
                    format!("{network}/{}", ipv6_mask.count_ones())
                }
                None => "unix:".to_owned(),
            },
            LimitKey::All => "all".to_owned(),
            LimitKey::Url => begin_of(self.text(exchange), URL_SHOWN_MAX),
            LimitKey::Header(_) | LimitKey::Cookie(_) | LimitKey::Environment(_) => {
                format!("{self}:{}", begin_of(self.text(exchange), SECRET_SHOWN_MAX))
            }
        }
    }
}

impl std::fmt::Display for LimitKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LimitKey::Address(_) => f.write_str("address"),
            LimitKey::Header(name) => write!(f, "header:{name}"),
            LimitKey::Cookie(name) => write!(f, "cookie:{name}"),
            LimitKey::Url => f.write_str("url"),
            LimitKey::Environment(name) => write!(f, "env:{name}"),
            LimitKey::All => f.write_str("all"),
        }
    }
}

fn begin_of(text: Option<&[u8]>, bytes_max: usize) -> String {
    let text = text.unwrap_or_default();
    let begin = &text[..text.len().min(bytes_max)];
    // A log line has spaces only between its fields.
    let mut shown = begin.escape_ascii().to_string().replace(' ', "\\x20");
    if text.len() > bytes_max {
        let _ = write!(shown, "... ({} bytes)", text.len());
    }
    shown
}

/// How many bytes of a header field, cookie or variable the log shows: enough to recognise it, and too few to
/// use it.
const SECRET_SHOWN_MAX: usize = 8;

/// How many bytes of a URL the log shows.
const URL_SHOWN_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use petrel_engine::testing::Site;

    use super::*;

    fn address(ipv4_bits: u8, ipv6_bits: u8) -> LimitKey {
        LimitKey::Address(Networks::new(ipv4_bits, ipv6_bits))
    }

    /// Hash and log text of the key of a client with this address. An empty address stands for a unix socket.
    fn of_client(key: &LimitKey, client: &str, secret: &HashSecret) -> (Option<u64>, String) {
        let mut site = Site::new("server.document-root = \"/nonexistent\"", &[]);
        let mut connection = site.connection();
        connection.peer = match client {
            "" => Peer::Unix,
            ip => Peer::Ip(SocketAddr::new(ip.parse().expect("an address"), 1)),
        };
        site.set_connection(connection);
        let answer = site.get("/");
        (
            key.hash(answer.exchange(), secret),
            key.shown(answer.exchange()),
        )
    }

    #[test]
    fn addresses_of_a_network_are_one_key() {
        let secret = HashSecret::default();
        for (ipv4_bits, ipv6_bits, one, other, is_same) in [
            (32, 64, "192.0.2.1", "192.0.2.1", true),
            (32, 64, "192.0.2.1", "::ffff:192.0.2.1", true),
            (32, 64, "192.0.2.1", "192.0.2.2", false),
            (24, 64, "192.0.2.1", "192.0.2.254", true),
            (24, 64, "192.0.2.1", "192.0.3.1", false),
            (1, 64, "1.0.0.0", "127.255.255.255", true),
            (1, 64, "1.0.0.0", "128.0.0.0", false),
            (32, 64, "2001:db8::1", "2001:db8::ffff:1", true),
            (32, 64, "2001:db8::1", "2001:db8:0:1::1", false),
            (32, 48, "2001:db8::1", "2001:db8:0:1::1", true),
            (32, 128, "2001:db8::1", "2001:db8::2", false),
            (32, 128, "2001:db8::1", "2001:db8::1", true),
            (32, 65, "2001:db8::1", "2001:db8::8000:0:0:0", false),
            // The bits of the IPv4 address are the upper bits of the IPv6 address.
            (32, 64, "0.0.0.1", "0:0:0:1::", false),
            (32, 64, "", "0.0.0.0", false),
            (32, 64, "", "", true),
        ] {
            let key = address(ipv4_bits, ipv6_bits);
            let (one_hash, _) = of_client(&key, one, &secret);
            let (other_hash, _) = of_client(&key, other, &secret);
            assert!(one_hash.is_some());
            assert_eq!(one_hash == other_hash, is_same, "{one} {other} {key:?}");
        }
        let key = address(24, 48);
        assert_eq!(of_client(&key, "192.0.2.77", &secret).1, "192.0.2.0/24");
        assert_eq!(of_client(&key, "2001:db8::7", &secret).1, "2001:db8::/48");
        assert_eq!(of_client(&key, "", &secret).1, "unix:");
    }

    #[test]
    fn another_process_has_other_hashes() {
        let key = address(32, 64);
        let hash = || of_client(&key, "192.0.2.1", &HashSecret::default()).0;
        assert_ne!(hash(), hash());
    }

    #[test]
    fn fields_cookies_and_urls_are_keys_and_shown_in_part() {
        let site = Site::new("server.document-root = \"/nonexistent\"", &[]);
        let long = "x".repeat(5000);
        let answer = site.request(&format!(
            "GET /a%20b?q HTTP/1.1\r\nHost: a\r\nX-Key: 123456789abc\r\nX-None:\r\nX-Long: {long}\r\nCookie: a=b; id=\"1\"\r\n\r\n"
        ));
        let exchange = answer.exchange();
        let secret = HashSecret::default();
        let name = |name: &str| -> Box<str> { name.into() };
        for (key, shown) in [
            (
                LimitKey::Header(name("x-key")),
                Some("header:x-key:12345678... (12 bytes)"),
            ),
            (
                LimitKey::Header(name("x-long")),
                Some("header:x-long:xxxxxxxx... (5000 bytes)"),
            ),
            (LimitKey::Header(name("x-none")), None),
            (LimitKey::Header(name("x-absent")), None),
            (LimitKey::Cookie(name("id")), Some("cookie:id:\\\"1\\\"")),
            (LimitKey::Cookie(name("b")), None),
            (LimitKey::Environment(name("a")), None),
            (LimitKey::Url, Some("/a\\x20b")),
            (LimitKey::All, Some("all")),
        ] {
            assert_eq!(
                key.hash(exchange, &secret).is_some(),
                shown.is_some(),
                "{key:?}"
            );
            if let Some(shown) = shown {
                assert_eq!(key.shown(exchange), shown);
            }
        }
    }
}
