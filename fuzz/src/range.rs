//! Range fields: what is to be sent lies within the representation, and parts are far enough apart.
//!
//! The input is the value of a Range field. It is tried with sizes around the usual boundaries.

use std::ops::Range;

use petrel_proto::range::{self, RangeLimits, RangeOutcome};

const LIMITS: RangeLimits = RangeLimits { ranges_max: 16 };

pub fn range(field: &[u8]) {
    for size in [0, 1, 2, 100, 65_536, i64::MAX as u64, u64::MAX] {
        match range::parse(field, size, LIMITS) {
            RangeOutcome::Ignore | RangeOutcome::Unsatisfiable => {}
            RangeOutcome::Single(range) => is_within(&range, size),
            RangeOutcome::Multiple(ranges) => are_apart(&ranges, size),
        }
    }
}

fn is_within(range: &Range<u64>, size: u64) {
    assert!(range.start < range.end && range.end <= size);
}

fn are_apart(ranges: &[Range<u64>], size: u64) {
    assert!((2..=LIMITS.ranges_max).contains(&ranges.len()));
    for range in ranges {
        is_within(range, size);
        let mut head = Vec::new();
        range::write_part_header(&mut head, "b", b"", range, size);
        let expected = format!(
            "\r\n--b\r\nContent-Range: bytes {}-{}/{size}\r\n\r\n",
            range.start,
            range.end - 1
        );
        assert_eq!(head, expected.as_bytes());
    }
    for (position, left) in ranges.iter().enumerate() {
        for right in &ranges[position + 1..] {
            assert!(
                left.end < right.start || right.end < left.start,
                "{ranges:?}"
            );
        }
    }
}
