//! A hash that is the same on every machine, in every version and after every restart.
//!
//! Clients keep its results (in cookies), and front ends that share backends must agree on them. So it is
//! written out here and not taken from a library, which may change its hash. It does not resist attackers and
//! need not: a client that may choose the URL can choose the backend with any hash.

/// Hashes a list of byte strings. Their boundaries count: ("a", "b") is not ("ab", "").
pub(crate) fn stable_hash(parts: &[&[u8]]) -> u64 {
    parts.iter().fold(SEED, |hash, part| mix(hash, one(part)))
}

/// Mixes two numbers so that each bit of the result depends on all bits of both.
#[inline]
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    // The two rounds of xor, shift and multiply are SplitMix64's last step (Steele, Lea, Flood 2014).
    let mut hash = a.wrapping_mul(ODD) ^ b;
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

/// A number above 0 and below 1 from the upper 52 bits: with one half added, a double holds that exactly.
#[inline]
pub(super) fn unit(hash: u64) -> f64 {
    ((hash >> 12) as f64 + 0.5) / (1u64 << 52) as f64
}

/// Hashes one string, eight bytes at a time: 60 steps for a URL of 500 bytes.
fn one(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let step = |hash: u64, word: u64| {
        let mixed = (hash ^ word).wrapping_mul(ODD);
        mixed ^ mixed >> 32
    };
    let hash = words
        .iter()
        .fold(SEED, |hash, word| step(hash, u64::from_le_bytes(*word)));
    let mut last = [0u8; 8];
    for (place, byte) in last.iter_mut().zip(rest) {
        *place = *byte;
    }
    let hash = step(hash, u64::from_le_bytes(last));
    // The length distinguishes a string that ends with zeros from one that was padded with zeros.
    mix(hash, bytes.len() as u64)
}

/// 2^64 divided by the golden ratio, made odd.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Any number but 0, so that leading zeros count.
const SEED: u64 = 0x5065_7472_656c_2131;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_what_they_are() {
        // Cookies and other front ends depend on these numbers: do not change this test.
        assert_eq!(stable_hash(&[]), 0x5065_7472_656c_2131);
        assert_eq!(stable_hash(&[b""]), 0x715c_5e13_024c_d526);
        assert_eq!(stable_hash(&[b"127.0.0.1:8080"]), 0x72e8_ada0_76fd_efde);
        let of_two = stable_hash(&[b"example.org", b"/index.html"]);
        assert_eq!(of_two, 0x9370_6c59_d191_9636);
    }

    #[test]
    fn parts_and_lengths_matter() {
        let different: [&[&[u8]]; 8] = [
            &[],
            &[b""],
            &[b"", b""],
            &[b"ab", b""],
            &[b"a", b"b"],
            &[b"ab"],
            &[b"ab\0"],
            &[b"ab\0\0\0\0\0\0\0"],
        ];
        let hashes: std::collections::HashSet<u64> =
            different.iter().map(|parts| stable_hash(parts)).collect();
        assert_eq!(hashes.len(), different.len());
    }

    #[test]
    fn every_bit_of_the_input_changes_half_of_the_output() {
        let base = *b"an input of 24 bytes ...";
        let hash = stable_hash(&[&base]);
        for bit in 0..base.len() * 8 {
            let mut changed = base;
            changed[bit / 8] ^= 1 << (bit % 8);
            let flipped = (stable_hash(&[&changed]) ^ hash).count_ones();
            assert!((12..=52).contains(&flipped), "bit {bit}: {flipped}");
        }
    }

    #[test]
    fn units_are_between_0_and_1() {
        for hash in [0, 1, u64::MAX, u64::MAX - 2047, 1 << 63] {
            let unit = unit(hash);
            assert!(0.0 < unit && unit < 1.0, "{hash}: {unit}");
        }
    }
}
