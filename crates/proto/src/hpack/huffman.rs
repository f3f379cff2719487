//! The Huffman code of HPACK (RFC 7541 5.2 and appendix B).
//!
//! The code is canonical: shorter codes come first, and codes of one length are in the order of their
//! symbols. So the lengths determine all codes, and the tables are computed from them at compile time.

use super::HpackError;

/// The length of the code of `text` in bytes.
#[inline]
pub(super) fn encoded_length(text: &[u8]) -> usize {
    let bits = text
        .iter()
        .map(|byte| usize::from(CODE_BITS[usize::from(*byte)]));
    bits.sum::<usize>().div_ceil(8)
}

/// Appends the code of `text`.
#[inline]
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
    // The lowest `waiting` bits of `bits`, fewer than 32, are not written yet.
    let (mut bits, mut waiting) = (0u64, 0u32);
    for &byte in text {
        let [code, length] = CODES[usize::from(byte)];
        bits = bits << length | u64::from(code);
        waiting += length;
        if waiting >= 32 {
            waiting -= 32;
            out.extend_from_slice(&((bits >> waiting) as u32).to_be_bytes());
        }
    }
    // The padding is the beginning of the code of EOS, which is all ones.
    let padded = (bits << (32 - waiting)) as u32 | u32::MAX >> waiting;
    out.extend_from_slice(&padded.to_be_bytes()[..waiting.div_ceil(8) as usize]);
}

/// Appends the text of a `code`.
///
/// # Errors
/// The code has an EOS symbol, or its padding is longer than seven bits or not all ones.
pub(super) fn decode(code: &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    let start = out.len();
    let mut length = start;
    let mut rest = code;
    // The highest `loaded` bits of `bits` are not decoded yet. The bits below are zeros.
    let (mut bits, mut loaded) = (0u64, 0u32);
    out.resize(start + code.len() * 8 / CODE_BITS_MIN, 0);
    for slot in &mut out[start..] {
        if loaded < CODE_BITS_MAX {
            if let Some((four, behind)) = rest.split_first_chunk::<4>() {
                bits |= u64::from(u32::from_be_bytes(*four)) << (32 - loaded);
                loaded += 32;
                rest = behind;
            } else {
                for &byte in rest {
                    bits |= u64::from(byte) << (56 - loaded);
                    loaded += 8;
                }
                rest = &[];
                if is_padding(bits, loaded) {
                    break;
                }
            }
        }
        let [symbol, symbol_bits] = match SHORT[(bits >> (64 - SHORT_BITS)) as usize] {
            [_, 0] => long(bits)?,
            short => short,
        };
        let symbol_bits = u32::from(symbol_bits);
        if symbol_bits > loaded {
            return Err(HpackError::Huffman);
        }
        *slot = symbol;
        length += 1;
        bits <<= symbol_bits;
        loaded -= symbol_bits;
    }
    if !rest.is_empty() || !is_padding(bits, loaded) {
        return Err(HpackError::Huffman);
    }
    out.truncate(length);
    Ok(())
}

/// Whether the highest `loaded` bits are valid padding. The bits below are zeros.
#[inline]
fn is_padding(bits: u64, loaded: u32) -> bool {
    loaded < 8 && bits == !(u64::MAX >> loaded)
}

/// The symbol at the front of `bits`, whose code is longer than [`SHORT_BITS`], and the length of that code.
#[cold]
fn long(bits: u64) -> Result<[u8; 2], HpackError> {
    let front = bits >> 32;
    let mut length = SHORT_BITS + 1;
    while front >= CANON.ends[length] {
        length += 1;
    }
    let above_first = (front - CANON.firsts[length]) >> (32 - length);
    let symbol = CANON.symbols[CANON.places[length] + above_first as usize];
    match u8::try_from(symbol) {
        Ok(symbol) => Ok([symbol, length as u8]),
        Err(_) => Err(HpackError::Huffman),
    }
}

/// Tables of the canonical code, to find a symbol by the length of its code.
struct Canon {
    /// All symbols in the order of their codes.
    symbols: [u16; SYMBOLS],
    /// For each length of a code, the place of its first symbol in `symbols`.
    places: [usize; CODE_BITS_MAX as usize + 1],
    /// For each length, its first code, shifted left to 32 bits.
    firsts: [u64; CODE_BITS_MAX as usize + 1],
    /// For each length, the code behind its last one, shifted left to 32 bits.
    ends: [u64; CODE_BITS_MAX as usize + 1],
}

const fn canon() -> Canon {
    let mut canon = Canon {
        symbols: [0; SYMBOLS],
        places: [0; CODE_BITS_MAX as usize + 1],
        firsts: [0; CODE_BITS_MAX as usize + 1],
        ends: [0; CODE_BITS_MAX as usize + 1],
    };
    let (mut length, mut place, mut code) = (1, 0, 0u64);
    while length <= CODE_BITS_MAX as usize {
        canon.places[length] = place;
        canon.firsts[length] = code;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if CODE_BITS[symbol] as usize == length {
                canon.symbols[place] = symbol as u16;
                place += 1;
                code += 1 << (32 - length);
            }
            symbol += 1;
        }
        canon.ends[length] = code;
        length += 1;
    }
    // The code is complete: every sequence of bits begins with a code, so `long` always finds one.
    assert!(code == 1 << 32);
    canon
}

const fn codes() -> [[u32; 2]; SYMBOLS] {
    let mut codes = [[0; 2]; SYMBOLS];
    let mut place = 0;
    while place < SYMBOLS {
        let symbol = CANON.symbols[place] as usize;
        let length = CODE_BITS[symbol] as usize;
        let first = CANON.firsts[length] >> (32 - length);
        let code = first as u32 + (place - CANON.places[length]) as u32;
        codes[symbol] = [code, length as u32];
        place += 1;
    }
    codes
}

const fn short() -> [[u8; 2]; 1 << SHORT_BITS] {
    let mut short = [[0; 2]; 1 << SHORT_BITS];
    let mut symbol = 0;
    while symbol < SYMBOLS - 1 {
        let length = CODE_BITS[symbol] as usize;
        if length <= SHORT_BITS {
            let free = SHORT_BITS - length;
            let mut below = 0;
            while below < 1 << free {
                short[(CODES[symbol][0] << free) as usize + below] = [symbol as u8, length as u8];
                below += 1;
            }
        }
        symbol += 1;
    }
    short
}

static CANON: &Canon = &canon();

/// For each symbol its code, in the lowest bits, and the number of its bits.
static CODES: &[[u32; 2]; SYMBOLS] = &codes();

/// For each [`SHORT_BITS`] bits the symbol that they begin with, and the bits of its code; 0 bits if the code
/// is longer.
static SHORT: [[u8; 2]; 1 << SHORT_BITS] = short();

/// Ten bits cover all letters, all digits and most signs, with a table of 2 KiB.
const SHORT_BITS: usize = 10;

const CODE_BITS_MIN: usize = 5;
const CODE_BITS_MAX: u32 = 30;

/// The 256 bytes and EOS.
const SYMBOLS: usize = 257;

/// The number of bits of each symbol's code.
#[rustfmt::skip]
static CODE_BITS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
     6, 10, 10, 12, 13,  6,  8, 11, 10, 10,  8, 11,  8,  6,  6,  6,
     5,  5,  5,  6,  6,  6,  6,  6,  6,  6,  7,  8, 15,  6, 12, 10,
    13,  6,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,
     7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8, 13, 19, 13, 14,  6,
    15,  5,  6,  5,  6,  5,  6,  6,  6,  5,  7,  7,  6,  6,  6,  5,
     6,  7,  6,  5,  5,  6,  7,  7,  7,  7,  7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];
