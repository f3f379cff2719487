//! Byte ranges.
use std::ops::Range;

/// Limits on a Range field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeLimits {
    /// More ranges than this in one field and the field is ignored.
    pub ranges_max: usize,
}

/// What a Range field asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeOutcome {
    /// Send the whole representation (200).
    Ignore,
    /// None of the ranges lies within the representation (416).
    Unsatisfiable,
    /// One range (206).
    Single(Range<u64>),
    /// Several disjoint ranges (206 multipart/byteranges), at least two.
    Multiple(Vec<Range<u64>>),
}

/// Reads a Range field.
#[allow(unused_variables)]
pub fn parse(header: &[u8], size: u64, limits: RangeLimits) -> RangeOutcome {
    todo!()
}

/// Appends the delimiter and header of one part.
#[allow(unused_variables)]
pub fn write_part_header(out: &mut Vec<u8>, boundary: &str, content_type: &[u8], range: &Range<u64>, size: u64) {
    todo!()
}

/// Appends the closing delimiter.
#[allow(unused_variables)]
pub fn write_closing_boundary(out: &mut Vec<u8>, boundary: &str) {
    todo!()
}

/// Length in bytes of the whole multipart body.
#[allow(unused_variables)]
pub fn multipart_length(boundary: &str, content_type: &[u8], ranges: &[Range<u64>], size: u64) -> u64 {
    todo!()
}

/// Appends the value of Content-Range for one range: `bytes 0-9/100`.
#[allow(unused_variables)]
pub fn write_content_range(out: &mut Vec<u8>, range: &Range<u64>, size: u64) {
    todo!()
}
