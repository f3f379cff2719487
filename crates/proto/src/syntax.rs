//! Small rules of RFC 9110 that many fields share: tokens, lists, numbers.

/// Whether `name` is a token (RFC 9110 5.6.2), as field names must be.
pub fn is_token(name: &[u8]) -> bool {
    // Names are short and nearly always tokens: looking on is faster than asking whether to.
    let all_allowed = |all, &byte: &u8| all & TOKEN_BYTES[usize::from(byte)];
    !name.is_empty() && name.iter().fold(true, all_allowed)
}

/// How many bytes at the beginning of `text` belong to a token.
#[inline]
pub(crate) fn token_length(text: &[u8]) -> usize {
    let is_other = |&byte: &u8| !TOKEN_BYTES[usize::from(byte)];
    text.iter().position(is_other).unwrap_or(text.len())
}

/// Whether `name` is the field name `known` in any letter case. Most programs write names as the RFCs do, which
/// a comparison of bytes finds sooner.
#[inline(always)]
pub(crate) fn is_name(name: &[u8], known: &str) -> bool {
    name == known.as_bytes() || name.eq_ignore_ascii_case(known.as_bytes())
}

/// Whether `name` is a token without capital letters, as field names of HTTP/2 and 3 must be.
pub(crate) fn is_lower_token(name: &[u8]) -> bool {
    let is_lower = |&byte: &u8| TOKEN_BYTES[usize::from(byte)] && !byte.is_ascii_uppercase();
    !name.is_empty() && name.iter().all(is_lower)
}

/// Which bytes are allowed in a token (RFC 9110 5.6.2).
static TOKEN_BYTES: [bool; 256] = token_bytes();

const fn token_bytes() -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let others = b"!#$%&'*+-.^_`|~";
    let mut index = 0;
    while index < others.len() {
        table[others[index] as usize] = true;
        index += 1;
    }
    table
}

/// Removes the blanks around `value`, and only those: any other white space is a control byte.
#[inline]
pub(crate) fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Whether `byte` is allowed in a field value (RFC 9110 5.5): no control characters but the tab.
#[inline]
pub(crate) fn is_value_byte(byte: u8) -> bool {
    byte >= b' ' && byte != 0x7f || byte == b'\t'
}

/// Whether all of `value` is allowed in a field value. Checks all bytes, several at a time.
#[inline]
pub(crate) fn is_value(value: &[u8]) -> bool {
    let is_sound = |sound: bool, &byte: &u8| sound & is_value_byte(byte);
    value.iter().fold(true, is_sound)
}

/// Parses digits only, with at most 63 bits, so that the length also fits a file offset.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut value: u64 = 0;
    for &byte in text {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit < 10)?;
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (value <= i64::MAX as u64).then_some(value)
}

/// The items of a comma-separated list, trimmed; empty ones are skipped (RFC 9110 5.6.1.2). Commas in quoted
/// strings separate items, too.
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|item| !item.is_empty())
}
