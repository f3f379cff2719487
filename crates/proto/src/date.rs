//! HTTP dates.

/// Writes an IMF-fixdate.
#[allow(unused_variables)]
pub fn format_imf(unix_seconds: u64, out: &mut [u8; 29]) {
    todo!()
}

/// Reads a date in any of the three formats; `None` if it is none.
#[allow(unused_variables)]
pub fn parse(text: &[u8]) -> Option<u64> {
    todo!()
}
