//! Replacement strings: `$1`, `${name}`, `$$`.

use super::engine::Groups;

/// A part of a replacement.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(Vec<u8>),
    /// A group, by its number.
    Group(usize),
}

/// Parses a replacement. `names` are the named groups.
pub(super) fn pieces(text: &[u8], names: &[(Vec<u8>, usize)]) -> Result<Vec<Piece>, &'static str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    loop {
        let plain = memchr::memchr(b'$', rest).unwrap_or(rest.len());
        let (before, after) = rest.split_at(plain);
        if !before.is_empty() {
            pieces.push(Piece::Text(before.to_vec()));
        }
        let Some(after) = after.strip_prefix(b"$") else {
            return Ok(pieces);
        };
        let (piece, after) = reference(after, names)?;
        pieces.push(piece);
        rest = after;
    }
}

fn reference<'a>(
    text: &'a [u8],
    names: &[(Vec<u8>, usize)],
) -> Result<(Piece, &'a [u8]), &'static str> {
    match text {
        [b'$', rest @ ..] => Ok((Piece::Text(b"$".to_vec()), rest)),
        [digit @ b'0'..=b'9', rest @ ..] => Ok((Piece::Group(usize::from(digit - b'0')), rest)),
        [b'{', rest @ ..] => {
            let end =
                memchr::memchr(b'}', rest).ok_or("a `${` is not closed in the replacement")?;
            let (name, after) = rest.split_at(end);
            let named = names.iter().find(|(known, _)| known == name);
            let number = std::str::from_utf8(name)
                .ok()
                .and_then(|name| name.parse().ok());
            let group = named.map(|(_, number)| *number).or(number).ok_or(UNKNOWN)?;
            Ok((Piece::Group(group), after.get(1..).unwrap_or_default()))
        }
        _ => Err("a `$` stands alone in the replacement; write `$$`"),
    }
}

/// Why a replacement is refused.
const UNKNOWN: &str = "the replacement names a group that is not there";

/// Whether all groups of a replacement exist; `count` is their number, including the whole match.
pub(super) fn check(pieces: &[Piece], count: usize) -> Result<(), &'static str> {
    let known = |piece: &Piece| !matches!(piece, Piece::Group(group) if *group >= count);
    pieces.iter().all(known).then_some(()).ok_or(UNKNOWN)
}

/// Appends the replacement of one match.
pub(super) fn write(pieces: &[Piece], subject: &[u8], groups: &Groups, result: &mut Vec<u8>) {
    for piece in pieces {
        match piece {
            Piece::Text(text) => result.extend_from_slice(text),
            Piece::Group(group) => {
                let place = groups.get(*group).copied().flatten();
                let text = place.and_then(|(start, end)| subject.get(start..end));
                result.extend_from_slice(text.unwrap_or_default());
            }
        }
    }
}
