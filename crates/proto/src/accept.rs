//! Accept-Encoding (RFC 9110 12.5.3): which content coding the client prefers.
//!
//! Knows the codings by name only; a module has the compressors.

/// A content coding the server may apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coding {
    /// `br` (RFC 7932)
    Brotli,
    /// `zstd` (RFC 8878)
    Zstd,
    /// `gzip`, also asked for as `x-gzip`
    Gzip,
    /// `deflate`: the zlib format
    Deflate,
    /// `identity`: no coding
    Identity,
}

impl Coding {
    /// The name for Content-Encoding.
    pub const fn name(self) -> &'static str {
        match self {
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
            Coding::Gzip => "gzip",
            Coding::Deflate => "deflate",
            Coding::Identity => "identity",
        }
    }

    /// The coding of that name, in any letter case.
    pub fn from_name(name: &[u8]) -> Option<Coding> {
        let all = [
            Coding::Brotli,
            Coding::Zstd,
            Coding::Gzip,
            Coding::Deflate,
            Coding::Identity,
        ];
        if name.eq_ignore_ascii_case(b"x-gzip") {
            return Some(Coding::Gzip);
        }
        all.into_iter()
            .find(|coding| coding.name().as_bytes().eq_ignore_ascii_case(name))
    }
}

/// Chooses among `offered`, which is in the server's order of preference, the coding that the field
/// gives the highest weight. `None` when nothing offered is acceptable.
///
/// `Identity` is offered only if listed. A field that does not mention it accepts it as the last
/// choice. Without a field only `Identity` is chosen: the RFC would allow anything, but clients that
/// do not ask seldom decode. An item with a malformed weight is as if it were not there.
pub fn choose_coding(accept_encoding: Option<&[u8]>, offered: &[Coding]) -> Option<Coding> {
    let weights = Weights::read(accept_encoding.unwrap_or_default());
    let mut best = None;
    let mut best_weight = 0;
    for &coding in offered {
        let weight = weights.of(coding);
        if weight > best_weight {
            (best, best_weight) = (Some(coding), weight);
        }
    }
    best
}

/// Weights in thousandths; `None` for codings that the field does not mention.
#[derive(Default)]
struct Weights {
    named: [Option<u16>; 5],
    /// The weight of `*`.
    others: Option<u16>,
}

impl Weights {
    fn read(field: &[u8]) -> Weights {
        let mut weights = Weights::default();
        for item in field.split(|&byte| byte == b',') {
            let mut parts = item.splitn(2, |&byte| byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default();
            let Some(weight) = parts.next().map_or(Some(1000), weight) else {
                continue;
            };
            if name == b"*" {
                weights.others = Some(weight);
            } else if let Some(coding) = Coding::from_name(name) {
                weights.named[coding as usize] = Some(weight);
            }
        }
        weights
    }

    /// A weight to compare: twice the thousandths, so that there is a value just above 0 for an identity
    /// coding that the field accepts without mentioning it.
    fn of(&self, coding: Coding) -> u16 {
        match (self.named[coding as usize].or(self.others), coding) {
            (Some(weight), _) => weight * 2,
            (None, Coding::Identity) => 1,
            (None, _) => 0,
        }
    }
}

/// Reads `q=0.123` (RFC 9110 12.4.2) in thousandths.
fn weight(parameter: &[u8]) -> Option<u16> {
    let [b'q' | b'Q', b'=', number @ ..] = parameter else {
        return None;
    };
    let (whole, decimals) = match number {
        [whole @ (b'0' | b'1')] => (*whole, &[][..]),
        [whole @ (b'0' | b'1'), b'.', decimals @ ..] => (*whole, decimals),
        _ => return None,
    };
    if decimals.len() > 3 || !decimals.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = decimals.iter().chain(b"000").take(3);
    let thousandths = digits.fold(0, |value, digit| value * 10 + u16::from(digit - b'0'));
    match (whole, thousandths) {
        (b'1', 0) => Some(1000),
        (b'1', _) => None,
        _ => Some(thousandths),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OFFERED: &[Coding] = &[Coding::Brotli, Coding::Gzip, Coding::Identity];

    fn chosen(field: &str) -> Option<Coding> {
        choose_coding(Some(field.as_bytes()), OFFERED)
    }

    #[test]
    fn the_server_prefers_where_the_client_does_not() {
        assert_eq!(chosen("gzip, deflate, br, zstd"), Some(Coding::Brotli));
        assert_eq!(chosen("gzip"), Some(Coding::Gzip));
        assert_eq!(chosen("X-GZIP;q=0.1"), Some(Coding::Gzip));
        assert_eq!(chosen("*"), Some(Coding::Brotli));
        assert_eq!(chosen("identity, gzip"), Some(Coding::Gzip));
    }

    #[test]
    fn weights_decide() {
        assert_eq!(chosen("br;q=0.5, gzip;q=0.501"), Some(Coding::Gzip));
        assert_eq!(chosen("gzip;q=0.5, identity"), Some(Coding::Identity));
        assert_eq!(chosen("br;q=0, *;q=0.1"), Some(Coding::Gzip));
        assert_eq!(chosen("gzip;q=0.001"), Some(Coding::Gzip));
    }

    #[test]
    fn identity_is_the_last_choice_unless_refused() {
        assert_eq!(chosen(""), Some(Coding::Identity));
        assert_eq!(chosen("deflate"), Some(Coding::Identity));
        assert_eq!(chosen("gzip;q=0"), Some(Coding::Identity));
        assert_eq!(chosen("identity;q=0"), None);
        assert_eq!(chosen("*;q=0"), None);
        assert_eq!(chosen("*;q=0, gzip"), Some(Coding::Gzip));
        assert_eq!(choose_coding(None, OFFERED), Some(Coding::Identity));
        assert_eq!(choose_coding(Some(b""), &[Coding::Gzip]), None);
    }

    #[test]
    fn malformed_items_do_not_count() {
        for field in [
            "gzip;q=2",
            "gzip;q=1.001",
            "gzip;q=0.1234",
            "gzip;q=",
            "gzip;q=.5",
            "gzip;x",
            "gz ip",
            "gzip;q=-1",
        ] {
            assert_eq!(chosen(field), Some(Coding::Identity), "{field}");
        }
        assert_eq!(chosen("gzip ; q=1.000"), Some(Coding::Gzip));
        assert_eq!(chosen(",,gzip;Q=1.,"), Some(Coding::Gzip));
    }

    proptest! {
        #[test]
        fn random_fields_never_panic(field in "[a-z*;=q., 01]{0,40}") {
            choose_coding(Some(field.as_bytes()), OFFERED);
        }
    }
}
