//! The basic encoding rules (X.690) as LDAP uses them: definite lengths alone.

/// A tag with its class and form, as it is on the wire. LDAP has none above 30.
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
    // One zero in front keeps the number from being negative.
    let is_enough = |from: &usize| bytes.get(*from).is_some_and(|byte| *byte >= 0x80);
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count().min(7);
    let from = zeros - usize::from(is_enough(&zeros));
    write(tag, bytes.get(from..).unwrap_or_default(), out);
}

/// Why an element cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// More bytes are needed; so many for all of it, as far as that is known.
    Partial(usize),
    /// It is none, or is longer than memory.
    Malformed,
}

/// The element that `input` begins with: its tag, its content, and what follows.
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

/// The content of the element `tag` that `input` begins with, and what follows. `None`: it is another one.
pub(super) fn read_as(tag: Tag, input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = read(input).ok()?;
    (found == tag).then_some((content, rest))
}

/// A number that is not negative and has 32 bits.
pub(super) fn number(content: &[u8]) -> Option<u32> {
    if content.first()? >= &0x80 || content.len() > 5 {
        return None;
    }
    let number = content
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte));
    u32::try_from(number).ok()
}
