//! The basic encoding rules (X.690) as LDAP uses them: every length is definite.

/// A tag with its class and form, as the first byte of an element has it. LDAP uses no tag number above 30.
pub(super) type Tag = u8;

pub(super) const INTEGER: Tag = 0x02;
pub(super) const BOOLEAN: Tag = 0x01;
pub(super) const OCTET_STRING: Tag = 0x04;
pub(super) const ENUMERATED: Tag = 0x0a;
pub(super) const SEQUENCE: Tag = 0x30;

/// Appends an element.
pub(super) fn write(tag: Tag, content: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    match u8::try_from(content.len()) {
        Ok(length) if length < 0x80 => out.push(length),
        _ => {
            let bytes = content.len().to_be_bytes();
            let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
            let significant = bytes.get(zeros..).unwrap_or_default();
            out.push(0x80 | significant.len() as u8);
            out.extend_from_slice(significant);
        }
    }
    out.extend_from_slice(content);
}

/// Appends a number.
pub(super) fn write_number(tag: Tag, number: u32, out: &mut Vec<u8>) {
    let bytes = u64::from(number).to_be_bytes();
    // A first byte of 0x80 or more would make the number negative, so a zero byte stands before it.
    let is_enough = |from: &usize| bytes.get(*from).is_some_and(|byte| *byte >= 0x80);
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count().min(7);
    let from = zeros - usize::from(is_enough(&zeros));
    write(tag, bytes.get(from..).unwrap_or_default(), out);
}

/// Why an element cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// The input ends too early. The element needs at least this many bytes.
    Partial(usize),
    /// The bytes are no element, or its length does not fit in a `usize`.
    Malformed,
}

/// Splits the first element off `input`: its tag, its content, and the bytes behind it.
pub(super) fn read(input: &[u8]) -> Result<(Tag, &[u8], &[u8]), Unread> {
    let [tag, first, rest @ ..] = input else {
        return Err(Unread::Partial(2));
    };
    if tag & 0x1f == 0x1f {
        return Err(Unread::Malformed);
    }
    let (length, rest) = match usize::from(*first) {
        short @ 0..0x80 => (short, rest),
        long => {
            let count = long & 0x7f;
            if !(1..=4).contains(&count) {
                return Err(Unread::Malformed);
            }
            let bytes = rest.get(..count).ok_or(Unread::Partial(2 + count))?;
            let length = bytes
                .iter()
                .fold(0, |length, byte| length << 8 | usize::from(*byte));
            (length, rest.get(count..).unwrap_or_default())
        }
    };
    let header = input.len() - rest.len();
    match rest.split_at_checked(length) {
        Some((content, behind)) => Ok((*tag, content, behind)),
        None => Err(Unread::Partial(header.saturating_add(length))),
    }
}

/// The content of the first element of `input`, and the bytes behind it. `None`: its tag is not `tag`.
pub(super) fn read_as(tag: Tag, input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = read(input).ok()?;
    (found == tag).then_some((content, rest))
}

/// The value of a number that fits in 32 bits without a sign.
pub(super) fn number(content: &[u8]) -> Option<u32> {
    if content.first()? >= &0x80 || content.len() > 5 {
        return None;
    }
    let number = content
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte));
    u32::try_from(number).ok()
}
