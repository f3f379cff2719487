//! Byte ranges (RFC 9110 14): parses a Range field, and writes the parts of a multipart response.
//!
//! A field with another unit or with too many ranges is ignored, as the RFC allows; the response is then the
//! whole representation. As in lighttpd, a malformed range is left out, and a field without a valid one is
//! unsatisfiable. [`crate::conditional`] handles If-Range.

use std::ops::Range;

/// Limits on a Range field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeLimits {
    /// A field with more ranges than this, counted as sent, is ignored.
    pub ranges_max: usize,
}

/// What a Range field asks for. Ranges are half-open: `0..10` is `bytes=0-9`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeOutcome {
    /// Send the whole representation (200).
    Ignore,
    /// No range lies within the representation (416).
    Unsatisfiable,
    /// One range (206), never empty.
    Single(Range<u64>),
    /// Several ranges (206 multipart/byteranges): at least two, none empty, with at least [`GAP_MIN`] bytes
    /// between them, in the requested order.
    Multiple(Vec<Range<u64>>),
}

/// Parses a Range field for a representation of `size` bytes. Ranges that overlap or are closer than
/// [`GAP_MIN`] bytes are merged. For an empty representation the field is ignored, as in lighttpd and Apache
/// httpd. Allocates only for more than one range.
pub fn parse(header: &[u8], size: u64, limits: RangeLimits) -> RangeOutcome {
    if size == 0 {
        return RangeOutcome::Ignore;
    }
    let Some(set) = ranges_of_bytes_unit(header.trim_ascii()) else {
        return RangeOutcome::Ignore;
    };
    let mut merged = Merged::None;
    let mut count = 0;
    for spec in set.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
        if spec.is_empty() {
            continue;
        }
        count += 1;
        match Spec::parse(spec).map(|spec| spec.resolve(size)) {
            None => {}
            Some(_) if count > limits.ranges_max => return RangeOutcome::Ignore,
            Some(Resolved::Whole) => return RangeOutcome::Ignore,
            Some(Resolved::Outside) => {}
            Some(Resolved::Within(range)) => merged.add(range),
        }
    }
    match merged {
        Merged::None => RangeOutcome::Unsatisfiable,
        Merged::One(range) => RangeOutcome::Single(range),
        Merged::Several(ranges) => RangeOutcome::Multiple(ranges),
    }
}

/// Appends the value of Content-Range for one range, such as `bytes 0-9/100`. `range` is not empty.
pub fn write_content_range(out: &mut Vec<u8>, range: &Range<u64>, size: u64) {
    debug_assert!(range.start < range.end, "an empty range cannot be written");
    out.extend_from_slice(b"bytes ");
    write_number(out, range.start);
    out.push(b'-');
    write_number(out, range.end.saturating_sub(1));
    out.push(b'/');
    write_number(out, size);
}

/// Appends what precedes the data of one part: delimiter, Content-Type unless it is empty, Content-Range and
/// the empty line.
///
/// `boundary` must not occur in the data, and neither it nor `content_type` may contain a line end.
pub fn write_part_header(
    out: &mut Vec<u8>,
    boundary: &str,
    content_type: &[u8],
    range: &Range<u64>,
    size: u64,
) {
    out.extend_from_slice(b"\r\n--");
    out.extend_from_slice(boundary.as_bytes());
    if !content_type.is_empty() {
        out.extend_from_slice(b"\r\nContent-Type: ");
        out.extend_from_slice(content_type);
    }
    out.extend_from_slice(b"\r\nContent-Range: ");
    write_content_range(out, range, size);
    out.extend_from_slice(b"\r\n\r\n");
}

/// Appends what follows the data of the last part.
pub fn write_closing_boundary(out: &mut Vec<u8>, boundary: &str) {
    out.extend_from_slice(b"\r\n--");
    out.extend_from_slice(boundary.as_bytes());
    out.extend_from_slice(b"--\r\n");
}

/// The ranges merged so far.
enum Merged {
    None,
    One(Range<u64>),
    /// At least two.
    Several(Vec<Range<u64>>),
}

impl Merged {
    fn add(&mut self, range: Range<u64>) {
        *self = match std::mem::replace(self, Merged::None) {
            Merged::None => Merged::One(range),
            Merged::One(one) if touch(&one, &range) => Merged::One(union(&one, &range)),
            Merged::One(one) => Merged::Several(vec![one, range]),
            Merged::Several(ranges) => merged_with(ranges, range),
        };
    }
}

/// Ranges with fewer bytes between them are merged, as in lighttpd, because the head of a part is about this
/// long (RFC 9110 15.3.7.2 allows it).
pub const GAP_MIN: u64 = 80;

/// Adds `range` to ranges that do not touch each other. The result takes the place of the first one that it
/// touches.
fn merged_with(mut ranges: Vec<Range<u64>>, mut range: Range<u64>) -> Merged {
    let mut place = None;
    let mut position = 0;
    while let Some(other) = ranges.get(position) {
        if !touch(other, &range) {
            position += 1;
            continue;
        }
        range = union(other, &range);
        match place {
            None => {
                place = Some(position);
                position += 1;
            }
            Some(_) => {
                ranges.remove(position);
            }
        }
        // Ranges that did not touch before still do not.
    }
    match place {
        None => ranges.push(range),
        Some(_) if ranges.len() == 1 => return Merged::One(range),
        Some(place) => ranges[place] = range,
    }
    Merged::Several(ranges)
}

fn touch(left: &Range<u64>, right: &Range<u64>) -> bool {
    let is_near = |from: u64, to: u64| from < to.saturating_add(GAP_MIN);
    is_near(left.start, right.end) && is_near(right.start, left.end)
}

fn union(left: &Range<u64>, right: &Range<u64>) -> Range<u64> {
    left.start.min(right.start)..left.end.max(right.end)
}

/// One range of the field.
enum Spec {
    /// `first-last`, or `first-` with the largest number as the last.
    From { first: u64, last: u64 },
    /// `-length`
    Suffix { length: u64 },
}

/// A range within a representation of known size.
enum Resolved {
    Within(Range<u64>),
    Outside,
    /// A suffix of an empty representation: satisfiable, but it cannot be written as a part.
    Whole,
}

impl Spec {
    fn parse(spec: &[u8]) -> Option<Spec> {
        let dash = memchr::memchr(b'-', spec)?;
        let (first, last) = (&spec[..dash], &spec[dash + 1..]);
        if first.is_empty() {
            return Some(Spec::Suffix {
                length: number(last)?,
            });
        }
        let first = number(first)?;
        let last = if last.is_empty() {
            u64::MAX
        } else {
            number(last)?
        };
        (first <= last).then_some(Spec::From { first, last })
    }

    fn resolve(self, size: u64) -> Resolved {
        match self {
            Spec::From { first, last } if first < size => {
                Resolved::Within(first..last.saturating_add(1).min(size))
            }
            Spec::From { .. } | Spec::Suffix { length: 0 } => Resolved::Outside,
            Spec::Suffix { .. } if size == 0 => Resolved::Whole,
            Spec::Suffix { length } => Resolved::Within(size.saturating_sub(length)..size),
        }
    }
}

/// The list after `bytes=`, with the unit in any letter case; `None` for another unit.
fn ranges_of_bytes_unit(header: &[u8]) -> Option<&[u8]> {
    let (unit, set) = header.split_at_checked(6)?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(set)
}

/// Parses digits only. A number that does not fit becomes the largest one, which is beyond any size.
fn number(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let digits = text.iter().map(|byte| u64::from(byte & 0xf));
    is_number.then(|| {
        digits.fold(0, |value: u64, digit| {
            value.saturating_mul(10).saturating_add(digit)
        })
    })
}

fn write_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::RangeOutcome::{Ignore, Multiple, Single, Unsatisfiable};
    use super::*;

    const LIMITS: RangeLimits = RangeLimits { ranges_max: 10 };

    fn parsed(header: &str) -> RangeOutcome {
        parse(header.as_bytes(), 100, LIMITS)
    }

    #[test]
    fn one_range() {
        for (header, range) in [
            ("bytes=0-0", 0..1),
            ("bytes=10-19", 10..20),
            ("bytes=90-", 90..100),
            ("bytes=0-1000", 0..100),
            ("bytes=-10", 90..100),
            ("bytes=-1000", 0..100),
            ("Bytes=,0-0 ,", 0..1),
            ("bytes=0-99999999999999999999999", 0..100),
            ("bytes=0-18446744073709551615", 0..100),
            ("bytes=0-0,100-", 0..1),
        ] {
            assert_eq!(parsed(header), Single(range), "{header}");
        }
    }

    #[test]
    fn what_is_not_a_range_set_is_ignored() {
        for header in ["", "bytes", "bytes =0-0", "bytes: 0-0", "lines=0-0"] {
            assert_eq!(parsed(header), Ignore, "{header}");
        }
    }

    #[test]
    fn what_lies_outside_is_unsatisfiable() {
        for header in [
            "bytes=100-",
            "bytes=-0",
            "bytes=100-200,-0",
            "bytes=99999999999999999999-",
            "bytes=",
            "bytes=,",
            "bytes=-",
            "bytes=x",
            "bytes=1",
            "bytes=5-2",
            "bytes=0--",
            "bytes=--1",
            "bytes=+1-2",
            "bytes=1-2-3",
            "bytes=0x1-2",
            "bytes=0 - 1",
        ] {
            assert_eq!(parsed(header), Unsatisfiable, "{header}");
        }
        assert_eq!(parse(b"bytes=0-", 0, LIMITS), Ignore);
        assert_eq!(parse(b"bytes=-5", 0, LIMITS), Ignore);
    }

    #[test]
    fn ranges_that_are_near_are_taken_together() {
        let parsed = |header: &str| parse(header.as_bytes(), 1000, LIMITS);
        assert_eq!(parsed("bytes=0-1,2-3"), Single(0..4));
        assert_eq!(parsed("bytes=5-9,0-6"), Single(0..10));
        assert_eq!(parsed("bytes=0-0,2-2,1-1"), Single(0..3));
        assert_eq!(parsed("bytes=0-9,89-99"), Single(0..100));
        assert_eq!(parsed("bytes=0-9,90-99"), Multiple(vec![0..10, 90..100]));
        assert_eq!(parsed("bytes=0-0,x,90-90"), Multiple(vec![0..1, 90..91]));
        assert_eq!(
            parsed("bytes=0-0,500-,-600,3-4"),
            Multiple(vec![0..5, 400..1000])
        );
        assert_eq!(parsed("bytes=200-299,0-9,400-499,5-450"), Single(0..500));
        assert_eq!(
            parsed("bytes=800-899,200-299,0-9,5-250"),
            Multiple(vec![800..900, 0..300])
        );
    }

    #[test]
    fn too_many_ranges_are_ignored() {
        let header = |count| format!("bytes={}", vec!["0-"; count].join(","));
        assert_eq!(parsed(&header(10)), Single(0..100));
        assert_eq!(parsed(&header(11)), Ignore);
        assert_eq!(parsed(&header(1000)), Ignore);
    }

    #[test]
    fn parts_are_written_as_the_rfc_shows() {
        let mut out = Vec::new();
        write_part_header(&mut out, "xyz", b"text/plain", &(5..10), 100);
        write_closing_boundary(&mut out, "xyz");
        let expected = "\r\n--xyz\r\nContent-Type: text/plain\r\nContent-Range: bytes 5-9/100\r\n\r\n\
                        \r\n--xyz--\r\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    proptest! {
        #[test]
        fn merging_keeps_the_bytes_that_were_asked_for(
            asked in proptest::collection::vec((0..400_u64, 0..12_u64), 1..10),
        ) {
            let specs: Vec<_> = asked.iter().map(|(first, more)| format!("{first}-{}", first + more)).collect();
            let outcome = parse(format!("bytes={}", specs.join(",")).as_bytes(), 400, LIMITS);
            let ranges = match outcome {
                Single(range) => vec![range],
                Multiple(ranges) => ranges,
                other => panic!("{other:?}"),
            };
            for byte in 0..400 {
                let is_wanted = |byte| asked.iter().any(|(first, more)| (*first..=first + more).contains(&byte));
                let given = ranges.iter().filter(|range| range.contains(&byte)).count();
                prop_assert!(given <= 1);
                let is_near = (byte.saturating_sub(GAP_MIN)..byte + GAP_MIN).any(is_wanted);
                prop_assert!(given == 1 || !is_wanted(byte));
                prop_assert!(given == 0 || is_near);
            }
            for (position, range) in ranges.iter().enumerate() {
                prop_assert!(ranges[position + 1..].iter().all(|other| !touch(range, other)));
            }
        }

        #[test]
        fn random_fields_never_panic(header in "(bytes=)?[-0-9, x]{0,40}", size in any::<u64>()) {
            if let Multiple(ranges) = parse(header.as_bytes(), size, LIMITS) {
                prop_assert!(ranges.len() >= 2 && ranges.iter().all(|range| range.end <= size));
            }
        }
    }
}
