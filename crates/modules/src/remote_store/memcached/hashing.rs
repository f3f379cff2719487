//! The hash functions that distribute keys among servers, under libmemcached's names.
//!
//! Each computes what libmemcached computes on x86, where `char` is signed, so that keys with bytes above 127
//! also get to the same server from either client.

use md5::{Digest, Md5};

/// A hash function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum HashName {
    /// Jenkins' one-at-a-time, libmemcached's default.
    #[default]
    OneAtATime,
    /// The first four bytes of MD5.
    Md5,
    /// 15 bits of CRC-32.
    Crc,
    /// FNV-1, the lower half of 64 bits.
    Fnv1_64,
    /// FNV-1a, the lower half of 64 bits.
    Fnv1a64,
    /// FNV-1.
    Fnv1_32,
    /// FNV-1a.
    Fnv1a32,
    /// Jenkins' lookup3.
    Jenkins,
    /// MurmurHash2.
    Murmur,
}

impl HashName {
    /// The function with this name, in any letter case.
    pub(crate) fn from_name(name: &str) -> Option<HashName> {
        let known = NAMES
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name));
        known.map(|(_, hash)| *hash)
    }

    /// All names, for messages.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// The hash of `key`.
    pub(crate) fn hash(self, key: &[u8]) -> u32 {
        match self {
            HashName::OneAtATime => one_at_a_time(key),
            HashName::Md5 => md5_word(&md5(key), 0),
            HashName::Crc => (crc32fast::hash(key) >> 16) & 0x7fff,
            HashName::Fnv1_64 => fnv(key, FNV_64_BASIS, FNV_64_PRIME, FnvOrder::MultiplyFirst),
            HashName::Fnv1a64 => fnv(key, FNV_64_BASIS, FNV_64_PRIME, FnvOrder::MixFirst),
            HashName::Fnv1_32 => fnv(key, FNV_32_BASIS, FNV_32_PRIME, FnvOrder::MultiplyFirst),
            HashName::Fnv1a32 => fnv(key, FNV_32_BASIS, FNV_32_PRIME, FnvOrder::MixFirst),
            HashName::Jenkins => lookup3(key),
            HashName::Murmur => murmur2(key),
        }
    }
}

/// MD5 of `key`.
pub(super) fn md5(key: &[u8]) -> [u8; 16] {
    Md5::digest(key).into()
}

/// Word number `index` of the four words of a digest.
pub(super) fn md5_word(digest: &[u8; 16], index: usize) -> u32 {
    let (words, _) = digest.as_chunks::<4>();
    words.get(index).map_or(0, |word| u32::from_le_bytes(*word))
}

/// The number that a byte becomes as a signed `char`.
fn signed(byte: u8) -> u32 {
    byte as i8 as u32
}

fn one_at_a_time(key: &[u8]) -> u32 {
    let mut hash: u32 = 0;
    for &byte in key {
        hash = hash.wrapping_add(signed(byte));
        hash = hash.wrapping_add(hash << 10);
        hash ^= hash >> 6;
    }
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 11;
    hash.wrapping_add(hash << 15)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FnvOrder {
    MultiplyFirst,
    MixFirst,
}

/// Computed in 32 bits: the lower half of a product depends only on the lower halves of its factors.
fn fnv(key: &[u8], basis: u32, prime: u32, order: FnvOrder) -> u32 {
    key.iter().fold(basis, |hash, &byte| match order {
        FnvOrder::MultiplyFirst => hash.wrapping_mul(prime) ^ signed(byte),
        FnvOrder::MixFirst => (hash ^ signed(byte)).wrapping_mul(prime),
    })
}

/// Processes three words at a time, with libmemcached's seed.
fn lookup3(key: &[u8]) -> u32 {
    let start = LOOKUP3_BASIS
        .wrapping_add(key.len() as u32)
        .wrapping_add(LOOKUP3_SEED);
    let (mut a, mut b, mut c) = (start, start, start);
    let mut rest = key;
    while let Some((block, behind)) = rest.split_at_checked(12)
        && !behind.is_empty()
    {
        let [x, y, z] = words_of(block);
        a = a.wrapping_add(x);
        b = b.wrapping_add(y);
        c = c.wrapping_add(z);
        (a, b, c) = lookup3_mix(a, b, c);
        rest = behind;
    }
    if rest.is_empty() {
        return c;
    }
    let [x, y, z] = words_of(rest);
    lookup3_final(a.wrapping_add(x), b.wrapping_add(y), c.wrapping_add(z))
}

/// Up to twelve bytes as three words, padded with zeros.
fn words_of(bytes: &[u8]) -> [u32; 3] {
    let mut words = [0; 3];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks(4)) {
        for (position, &byte) in bytes.iter().enumerate() {
            *word |= u32::from(byte) << (8 * position);
        }
    }
    words
}

/// Six steps; the three words change places after each.
fn lookup3_mix(mut a: u32, mut b: u32, mut c: u32) -> (u32, u32, u32) {
    for by in [4, 6, 8, 16, 19, 4] {
        a = a.wrapping_sub(c) ^ c.rotate_left(by);
        c = c.wrapping_add(b);
        (a, b, c) = (b, c, a);
    }
    (a, b, c)
}

fn lookup3_final(mut a: u32, mut b: u32, mut c: u32) -> u32 {
    let step = |x: u32, y: u32, by: u32| (x ^ y).wrapping_sub(y.rotate_left(by));
    c = step(c, b, 14);
    a = step(a, c, 11);
    b = step(b, a, 25);
    c = step(c, b, 16);
    a = step(a, c, 4);
    b = step(b, a, 14);
    step(c, b, 24)
}

/// The seed depends on the length, as in libmemcached.
fn murmur2(key: &[u8]) -> u32 {
    const MULTIPLIER: u32 = 0x5bd1_e995;
    let seed = 0xdead_beef_u32.wrapping_mul(key.len() as u32);
    let mut hash = seed ^ key.len() as u32;
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        let mut word = u32::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        word ^= word >> 24;
        hash = hash.wrapping_mul(MULTIPLIER) ^ word.wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        let [word, ..] = words_of(rest);
        hash = (hash ^ word).wrapping_mul(MULTIPLIER);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(MULTIPLIER);
    hash ^ (hash >> 15)
}

static NAMES: &[(&str, HashName)] = &[
    ("DEFAULT", HashName::OneAtATime),
    ("ONE_AT_A_TIME", HashName::OneAtATime),
    ("MD5", HashName::Md5),
    ("CRC", HashName::Crc),
    ("FNV1_64", HashName::Fnv1_64),
    ("FNV1A_64", HashName::Fnv1a64),
    ("FNV1_32", HashName::Fnv1_32),
    ("FNV1A_32", HashName::Fnv1a32),
    ("JENKINS", HashName::Jenkins),
    ("MURMUR", HashName::Murmur),
];

const FNV_32_BASIS: u32 = 0x811c_9dc5;
const FNV_32_PRIME: u32 = 0x0100_0193;
/// The lower half of 0xcbf29ce484222325.
const FNV_64_BASIS: u32 = 0x8422_2325;
/// The lower half of 0x100000001b3.
const FNV_64_PRIME: u32 = 0x0000_01b3;
const LOOKUP3_BASIS: u32 = 0xdead_beef;
const LOOKUP3_SEED: u32 = 13;

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 9] = [
        "",
        "a",
        "abc",
        "abcd",
        "/index.html?a=b",
        "exactly12byt",
        "exactly twenty-four byt.",
        "twenty-five bytes are here",
        "sch\u{f6}n/\u{f1}\u{20ac}",
    ];

    /// What libhashkit 1.1.4 computes.
    const EXPECTED: [(&str, [u32; 9]); 9] = [
        (
            "DEFAULT",
            [
                0, 3392050242, 3977453403, 3448463878, 1469716141, 539511519, 4042874791,
                792112524, 160458213,
            ],
        ),
        (
            "MD5",
            [
                3649838548, 3111502092, 2555380112, 1282538722, 226034770, 3069591746, 1739055556,
                3830296842, 2707961333,
            ],
        ),
        (
            "CRC",
            [0, 26807, 13604, 28034, 9202, 14474, 32194, 27805, 26735],
        ),
        (
            "FNV1_64",
            [
                2216829733, 2248259518, 1806675403, 4219752341, 460935196, 2759875743, 2447435796,
                3163116106, 3248018413,
            ],
        ),
        (
            "FNV1A_64",
            [
                2216829733, 2248273036, 88168267, 3993445597, 1416767442, 2241429079, 48302098,
                2208603684, 1468097433,
            ],
        ),
        (
            "FNV1_32",
            [
                2166136261, 84696446, 1134309195, 3118363509, 717066524, 2348267199, 3201684916,
                2675032522, 2908221485,
            ],
        ),
        (
            "FNV1A_32",
            [
                2166136261, 3826002220, 440920331, 3459545533, 2727818738, 3618263479, 3149226578,
                37779908, 3505746265,
            ],
        ),
        (
            "MURMUR",
            [
                0, 1262581116, 2064434216, 4016735919, 3279368297, 3958323956, 329318998,
                2387472419, 2223694522,
            ],
        ),
        (
            "JENKINS",
            [
                3735928572, 3768813200, 2403423744, 3574732058, 2430738188, 2072207262, 1086747466,
                3403588149, 173433257,
            ],
        ),
    ];

    #[test]
    fn hashes_are_those_of_libmemcached() {
        for (name, expected) in EXPECTED {
            let hash = HashName::from_name(name).expect("it is known");
            assert_eq!(
                KEYS.map(|key| hash.hash(key.as_bytes())),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn names_are_known_in_any_case() {
        assert_eq!(HashName::from_name("fnv1a_64"), Some(HashName::Fnv1a64));
        assert_eq!(HashName::from_name("default"), Some(HashName::OneAtATime));
        assert_eq!(HashName::from_name("HSIEH"), None);
        assert!(HashName::names().all(|name| HashName::from_name(name).is_some()));
    }
}
