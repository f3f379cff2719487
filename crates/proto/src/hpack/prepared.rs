//! A cache of header lines in HTTP/1 form, each with its HPACK encoding.
//!
//! Most lines repeat: Server in every answer, Date for a second, Content-Type, the fields of a file that many
//! clients ask for. The cache has what depends only on the text of a line: its name in lower case, its index
//! in the static table, its code. The encoder of each connection adds what depends on that connection's
//! dynamic table.

use super::encode::{hash, literal, mix};
use super::{Indexing, static_table};
use crate::request_head::KnownField;

/// Lines that were encoded before, by any connection of a worker. A line that newer ones have displaced is
/// encoded anew.
#[derive(Debug, Default)]
pub struct PreparedLines {
    /// A two-way set-associative table. Of the two places of a set the first one has the newer line. Empty
    /// before the first line.
    places: Vec<PreparedLine>,
    /// A buffer in which codes are made.
    code: Vec<u8>,
}

/// One line, parsed and encoded.
#[derive(Clone, Debug)]
pub(super) struct PreparedLine {
    line: [u8; LINE_BYTES_MAX],
    line_length: u8,
    /// In lower case.
    name: [u8; NAME_BYTES_MAX],
    name_length: u8,
    value: (u8, u8),
    pub(super) field: Option<KnownField>,
    pub(super) form: PreparedForm,
    code: [u8; CODE_BYTES_MAX],
    code_length: u8,
}

/// How a line is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreparedForm {
    /// By its code: such lines do not enter the dynamic table.
    Code,
    /// By its index in the static table.
    Static(usize),
    /// By the dynamic table of the connection, where it has this hash. `name` is the index of its name in the
    /// static table.
    Table { hash: u32, name: Option<usize> },
}

impl PreparedLines {
    /// Returns a line, which has no line end, and prepares it if it is new. `None`: the line is too long, is
    /// no field, or has a secret or a cookie of one client.
    #[inline]
    pub(super) fn find(&mut self, line: &[u8]) -> Option<&PreparedLine> {
        if line.len() > LINE_BYTES_MAX {
            return None;
        }
        let place = first_place(line);
        let is_there = |&place: &usize| self.places.get(place).is_some_and(|it| it.line() == line);
        let known = [place, place + 1].into_iter().find(is_there);
        if known.is_none() {
            self.prepare(line, place)?;
        }
        self.places.get(known.unwrap_or(place))
    }

    /// Prepares a line whose set begins at `place`. It displaces the older line of the set.
    #[cold]
    fn prepare(&mut self, line: &[u8], place: usize) -> Option<()> {
        let colon = memchr::memchr(b':', line)?;
        let mut room = [0; NAME_BYTES_MAX];
        let name = room.get_mut(..colon)?;
        name.copy_from_slice(&line[..colon]);
        name.make_ascii_lowercase();
        let value = line[colon + 1..].trim_ascii();
        let known = static_table::index_of_name(name);
        let indexing = Indexing::usual(known, value);
        let is_private = indexing == Indexing::Never || known == Some(static_table::SET_COOKIE);
        if name.is_empty() || is_private {
            return None;
        }
        self.code.clear();
        let whole = known.and_then(|first| static_table::index_of_field(first, value));
        let form = match (indexing, whole) {
            (Indexing::Indexed, Some(index)) => PreparedForm::Static(index),
            (Indexing::Indexed, None) => PreparedForm::Table {
                hash: hash(known, name, value),
                name: known,
            },
            _ => {
                literal(&mut self.code, 0, 0x0f, known, name, value);
                PreparedForm::Code
            }
        };
        if self.code.len() > CODE_BYTES_MAX {
            return None;
        }
        let value_start = line.len() - line[colon + 1..].trim_ascii_start().len();
        if self.places.is_empty() {
            self.places = vec![PreparedLine::none(); PLACES];
        }
        self.places.swap(place, place + 1);
        let prepared = &mut self.places[place];
        prepared.line[..line.len()].copy_from_slice(line);
        prepared.line_length = line.len() as u8;
        prepared.field = KnownField::from_name(name);
        prepared.name[..colon].copy_from_slice(name);
        prepared.name_length = colon as u8;
        prepared.value = (value_start as u8, (value_start + value.len()) as u8);
        prepared.form = form;
        prepared.code[..self.code.len()].copy_from_slice(&self.code);
        prepared.code_length = self.code.len() as u8;
        Some(())
    }
}

impl PreparedLine {
    fn none() -> PreparedLine {
        PreparedLine {
            line: [0; LINE_BYTES_MAX],
            line_length: 0,
            name: [0; NAME_BYTES_MAX],
            name_length: 0,
            value: (0, 0),
            field: None,
            form: PreparedForm::Code,
            code: [0; CODE_BYTES_MAX],
            code_length: 0,
        }
    }

    #[inline]
    fn line(&self) -> &[u8] {
        &self.line[..usize::from(self.line_length)]
    }

    #[inline]
    pub(super) fn name(&self) -> &[u8] {
        &self.name[..usize::from(self.name_length)]
    }

    #[inline]
    pub(super) fn value(&self) -> &[u8] {
        let (start, end) = self.value;
        &self.line[usize::from(start)..usize::from(end)]
    }

    #[inline]
    pub(super) fn code(&self) -> &[u8] {
        &self.code[..usize::from(self.code_length)]
    }
}

#[inline]
fn first_place(line: &[u8]) -> usize {
    let hash = mix(0, line) >> 32;
    hash as usize % (PLACES / 2) * 2
}

/// Places of the table, of 24 KiB together: enough for the hot lines of a site.
const PLACES: usize = 128;
const LINE_BYTES_MAX: usize = 80;
const NAME_BYTES_MAX: usize = 32;
const CODE_BYTES_MAX: usize = 56;

#[cfg(test)]
mod tests {
    use super::super::{HpackDecoder, HpackEncoder};
    use super::*;

    const LINES: [&[u8]; 12] = [
        b"Server: Petrel",
        b"Date: Sun, 06 Nov 1994 08:49:37 GMT",
        b"Content-Type:   text/html; charset=utf-8 ",
        b"content-type: text/html; charset=utf-8",
        b"ETag: \"123-456-789\"",
        b"Accept-Encoding: gzip, deflate",
        b"X-Own: ",
        b"Set-Cookie: id=1",
        b"Set-Cookie: id=1234567890123456789012345678901234567890",
        b"Location: /somewhere/else/where/it/is/~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~",
        b"X-Very-Long-Name-Of-A-Field-That-Is-Rare: 1",
        b"Cache-Control: public, max-age=31536000, immutable, stale-while-revalidate=86400, more",
    ];

    fn lines_of(decoder: &mut HpackDecoder, block: &[u8]) -> Vec<(Vec<u8>, Vec<u8>, bool)> {
        let mut lines = Vec::new();
        let decoded = decoder.decode(block, &mut |line| {
            lines.push((line.name.to_vec(), line.value.to_vec(), line.is_sensitive));
        });
        decoded.expect("a sound block");
        lines
    }

    #[test]
    fn a_line_goes_out_as_its_field_does_on_every_connection() {
        let mut lent = PreparedLines::default();
        for _ in 0..3 {
            let (mut encoder, mut plain) = (HpackEncoder::new(), HpackEncoder::new());
            let mut decoder = HpackDecoder::new(4096);
            encoder.lines = std::mem::take(&mut lent);
            for line in LINES.iter().cycle().take(5 * LINES.len()) {
                let (mut block, mut expected) = (Vec::new(), Vec::new());
                encoder.line(&mut block, line, |_| false);
                let colon = line.iter().position(|&byte| byte == b':').expect("a colon");
                let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
                plain.usual_field(&mut expected, name, value);
                assert_eq!(block, expected, "{line:?}");
                let fields = lines_of(&mut decoder, &block);
                assert_eq!(
                    (&fields[0].0, &fields[0].1[..]),
                    (&name.to_ascii_lowercase(), value)
                );
            }
            lent = std::mem::take(&mut encoder.lines);
        }
    }

    #[test]
    fn two_lines_with_the_same_places_are_both_kept_and_of_three_the_oldest_is_not() {
        let mut lines = PreparedLines::default();
        let numbered = (0..).map(|number| format!("ETag: \"{number}\""));
        let numbered = numbered.filter(|line| first_place(line.as_bytes()) == 10);
        let same_places: Vec<String> = numbered.take(3).collect();
        let [a, b, c] = &same_places[..] else {
            unreachable!("three were taken")
        };
        let mut kept = |asked: [&String; 2]| {
            for line in asked {
                let found = lines.find(line.as_bytes()).expect("it is kept");
                assert_eq!(found.line(), line.as_bytes());
            }
            [a, b, c].map(|line| {
                lines.places[10..12]
                    .iter()
                    .any(|it| it.line() == line.as_bytes())
            })
        };
        assert_eq!(kept([a, b]), [true, true, false]);
        assert_eq!(kept([a, c]), [false, true, true]);
    }

    #[test]
    fn lines_that_share_a_place_displace_each_other() {
        let (mut encoder, mut plain) = (HpackEncoder::new(), HpackEncoder::new());
        for number in (0..2000).chain(0..2000) {
            let (mut block, mut expected) = (Vec::new(), Vec::new());
            encoder.line(&mut block, format!("ETag: \"{number}\"").as_bytes(), |_| {
                false
            });
            plain.usual_field(&mut expected, b"etag", format!("\"{number}\"").as_bytes());
            assert_eq!(block, expected);
        }
    }

    #[test]
    fn what_is_one_clients_alone_is_not_kept() {
        let mut lines = PreparedLines::default();
        for line in [
            "Set-Cookie: a",
            "Authorization: b",
            "no field",
            ": nameless",
            "",
        ] {
            assert!(lines.find(line.as_bytes()).is_none(), "{line}");
        }
        assert!(lines.find(&[b'a'; LINE_BYTES_MAX + 1]).is_none());
        assert!(lines.places.is_empty());
        let found = lines.find(b"Content-Length: 1").expect("it is kept");
        assert_eq!(found.field, Some(KnownField::ContentLength));
    }

    #[test]
    fn a_line_is_dropped_by_its_name_also_when_it_was_not_before() {
        let mut encoder = HpackEncoder::new();
        for is_dropped in [false, true, false] {
            let mut block = Vec::new();
            encoder.line(&mut block, b"Content-Length: 7", |field| {
                is_dropped && field == KnownField::ContentLength
            });
            assert_eq!(block.is_empty(), is_dropped);
        }
    }
}
