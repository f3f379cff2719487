//! Reads lists of ciphers in OpenSSL's language, and chooses among the cipher suites that rustls has.

use petrel_engine::rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;
use petrel_engine::rustls::{CipherSuite, SupportedCipherSuite};

/// The suites that a list of ciphers chooses, and the names in it that rustls has nothing for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ChosenCiphers {
    /// In the order of the list.
    pub(super) suites: Vec<CipherSuite>,
    /// Names in the list that rustls has no suite for.
    pub(super) unknown: Vec<String>,
}

/// The TLS 1.2 suites that a list in `CipherString` or `ssl.cipher-list` chooses.
pub(super) fn tls12(list: &str) -> ChosenCiphers {
    let mut chosen = ChosenCiphers::default();
    let mut removed: Vec<CipherSuite> = Vec::new();
    for word in list
        .split([':', ',', ' ', ';'])
        .filter(|word| !word.is_empty())
    {
        if word.starts_with('@') {
            if word.eq_ignore_ascii_case("@STRENGTH") {
                chosen
                    .suites
                    .sort_by_key(|suite| std::cmp::Reverse(bits_of(*suite)));
            }
            continue;
        }
        // As in "DEFAULT@SECLEVEL=1". Security levels do not matter: rustls has no weak suites.
        let word = word.split_once('@').map_or(word, |(word, _)| word);
        let (sign, name) = match word.split_at_checked(1) {
            Some((sign @ ("!" | "-" | "+"), name)) => (sign, name),
            _ => ("", word),
        };
        let matching: Vec<CipherSuite> = TLS12
            .iter()
            .filter(|known| known.is_named(name))
            .map(|known| known.suite)
            .collect();
        match sign {
            "!" => {
                chosen.suites.retain(|suite| !matching.contains(suite));
                removed.extend(matching);
            }
            "-" => chosen.suites.retain(|suite| !matching.contains(suite)),
            "+" => chosen.suites.sort_by_key(|suite| matching.contains(suite)),
            _ if matching.is_empty() && tls13_suite(name).is_none() => {
                chosen.unknown.push(name.to_owned());
            }
            _ => {
                let new = matching
                    .into_iter()
                    .filter(|suite| !removed.contains(suite));
                let new: Vec<_> = new.filter(|suite| !chosen.suites.contains(suite)).collect();
                chosen.suites.extend(new);
            }
        }
    }
    chosen
}

/// The TLS 1.3 suites that a list in `Ciphersuites` chooses.
pub(super) fn tls13(list: &str) -> ChosenCiphers {
    let mut chosen = ChosenCiphers::default();
    for name in list.split([':', ',', ' ']).filter(|name| !name.is_empty()) {
        match tls13_suite(name) {
            Some(suite) if chosen.suites.contains(&suite) => {}
            Some(suite) => chosen.suites.push(suite),
            None => chosen.unknown.push(name.to_owned()),
        }
    }
    chosen
}

/// The suites of TLS 1.2 that are offered by default, in Mozilla's order for intermediate compatibility.
pub(super) fn tls12_default() -> Vec<CipherSuite> {
    use CipherSuite as Suite;
    vec![
        Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        Suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        Suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        Suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ]
}

/// The suites of TLS 1.3, in the same order.
pub(super) fn tls13_default() -> Vec<CipherSuite> {
    TLS13.iter().map(|(_, suite)| *suite).collect()
}

/// rustls's implementation of `suite`.
pub(super) fn implementation(suite: CipherSuite) -> Option<SupportedCipherSuite> {
    ALL_CIPHER_SUITES
        .iter()
        .find(|known| known.suite() == suite)
        .copied()
}

fn tls13_suite(name: &str) -> Option<CipherSuite> {
    let found = TLS13
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, suite)| *suite)
}

/// A TLS 1.2 suite, with the names and words that OpenSSL knows it by.
struct Tls12Suite {
    suite: CipherSuite,
    name: &'static str,
    standard_name: &'static str,
    bits: u16,
    /// Words of a list that match this suite, beside [`WORDS_OF_ALL`].
    words: &'static [&'static str],
}

impl Tls12Suite {
    /// Whether `name` matches the suite: it is the suite's own name, or words joined by `+` that all match.
    fn is_named(&self, name: &str) -> bool {
        let is_own = |own: &str| own.eq_ignore_ascii_case(name);
        is_own(self.name)
            || is_own(self.standard_name)
            || name
                .split('+')
                .all(|word| WORDS_OF_ALL.contains(&word) || self.words.contains(&word))
    }
}

fn bits_of(suite: CipherSuite) -> u16 {
    let known = TLS12.iter().find(|known| known.suite == suite);
    known.map_or(0, |known| known.bits)
}

/// Words of a list that match every TLS 1.2 suite that rustls has.
const WORDS_OF_ALL: [&str; 11] = [
    "ALL", "DEFAULT", "HIGH", "ECDHE", "EECDH", "kECDHE", "kEECDH", "ECDH", "AEAD", "TLSv1.2",
    "TLSv1_2",
];

const TLS13: [(&str, CipherSuite); 3] = [
    (
        "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_128_GCM_SHA256,
    ),
    (
        "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_AES_256_GCM_SHA384,
    ),
    (
        "TLS_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    ),
];

/// In OpenSSL's order, which is the order of the result when one word matches several suites.
const TLS12: [Tls12Suite; 6] = [
    Tls12Suite {
        suite: CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        name: "ECDHE-ECDSA-AES256-GCM-SHA384",
        standard_name: "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        bits: 256,
        words: &["aECDSA", "ECDSA", "AES", "AESGCM", "AES256", "FIPS"],
    },
    Tls12Suite {
        suite: CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        name: "ECDHE-RSA-AES256-GCM-SHA384",
        standard_name: "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        bits: 256,
        words: &["aRSA", "AES", "AESGCM", "AES256", "FIPS"],
    },
    Tls12Suite {
        suite: CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        name: "ECDHE-ECDSA-CHACHA20-POLY1305",
        standard_name: "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        bits: 256,
        words: &["aECDSA", "ECDSA", "CHACHA20"],
    },
    Tls12Suite {
        suite: CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        name: "ECDHE-RSA-CHACHA20-POLY1305",
        standard_name: "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        bits: 256,
        words: &["aRSA", "CHACHA20"],
    },
    Tls12Suite {
        suite: CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        name: "ECDHE-ECDSA-AES128-GCM-SHA256",
        standard_name: "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        bits: 128,
        words: &["aECDSA", "ECDSA", "AES", "AESGCM", "AES128", "FIPS"],
    },
    Tls12Suite {
        suite: CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        name: "ECDHE-RSA-AES128-GCM-SHA256",
        standard_name: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        bits: 128,
        words: &["aRSA", "AES", "AESGCM", "AES128", "FIPS"],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Vec<&'static str> {
        let chosen = tls12(list).suites;
        let name = |suite| {
            TLS12
                .iter()
                .find(|known| known.suite == suite)
                .map(|known| known.name)
        };
        chosen.into_iter().filter_map(name).collect()
    }

    #[test]
    fn every_suite_of_the_tables_is_implemented() {
        let all = tls12_default().into_iter().chain(tls13_default());
        assert_eq!(
            all.filter_map(implementation).count(),
            ALL_CIPHER_SUITES.len()
        );
        assert_eq!(tls12_default().len(), TLS12.len());
    }

    #[test]
    fn words_and_signs_choose_as_openssl_does() {
        assert_eq!(names("HIGH:!aNULL:!MD5").len(), 6);
        assert_eq!(
            names("EECDH+AESGCM:AES256+EECDH:!aRSA"),
            [
                "ECDHE-ECDSA-AES256-GCM-SHA384",
                "ECDHE-ECDSA-AES128-GCM-SHA256"
            ]
        );
        assert_eq!(
            names(
                "ECDHE-RSA-AES128-GCM-SHA256 ecdhe-rsa-aes256-gcm-sha384:ALL:-ECDSA:+AES128:!CHACHA20"
            ),
            ["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"]
        );
        assert_eq!(
            names("AES128+aRSA:AES256+aRSA:@STRENGTH:@SECLEVEL=2"),
            ["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"]
        );
        assert_eq!(names("DEFAULT@SECLEVEL=1").len(), 6);
        assert_eq!(names("HIGH@SECLEVEL=0:!aRSA").len(), 3);
        // What is removed for good does not come back.
        assert!(names("!CHACHA20:CHACHA20").is_empty());
    }

    #[test]
    fn what_is_not_to_be_had_is_named() {
        let chosen = tls12("TLS_AES_128_GCM_SHA256:AES128-SHA:DHE+AESGCM:HIGH:!RC4");
        assert_eq!(chosen.unknown, ["AES128-SHA", "DHE+AESGCM"]);
        let chosen = tls13("TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_CCM_SHA256");
        assert_eq!(chosen.suites, [CipherSuite::TLS13_CHACHA20_POLY1305_SHA256]);
        assert_eq!(chosen.unknown, ["TLS_AES_128_CCM_SHA256"]);
    }
}
