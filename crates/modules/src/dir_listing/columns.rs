//! Writes sizes and times in the form that people read.

use std::io::Write as _;

use jiff::Timestamp;

/// Appends a size: as bytes up to 1023, then with a letter for the power of 1024.
pub(super) fn write_size(out: &mut Vec<u8>, bytes: u64) {
    const LETTERS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];
    if bytes < 1024 {
        let _ = write!(out, "{bytes}");
        return;
    }
    // Rounded to tenths. What rounds up to 1024.0 is written in the next unit.
    let mut unit = 0;
    let mut tenths = u128::from(bytes) * 10;
    tenths = (tenths + 512) / 1024;
    while tenths >= 10_240 && unit + 1 < LETTERS.len() {
        tenths = (tenths + 512) / 1024;
        unit += 1;
    }
    let letter = LETTERS.get(unit).copied().unwrap_or('E');
    let _ = write!(out, "{}.{}{letter}", tenths / 10, tenths % 10);
}

/// Appends `2026-11-21 21:24` in UTC, as the head of the column says.
pub(super) fn write_time(out: &mut Vec<u8>, unix_seconds: u64) {
    let time = i64::try_from(unix_seconds).ok();
    let time = time.and_then(|seconds| Timestamp::from_second(seconds).ok());
    let time = time.unwrap_or(Timestamp::MAX);
    let _ = write!(out, "{}", time.strftime("%Y-%m-%d %H:%M"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(bytes: u64) -> String {
        let mut out = Vec::new();
        write_size(&mut out, bytes);
        String::from_utf8(out).expect("ASCII")
    }

    fn time(seconds: u64) -> String {
        let mut out = Vec::new();
        write_time(&mut out, seconds);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn sizes_have_one_decimal() {
        let shown = [
            0,
            1023,
            1024,
            108_909,
            1_048_575,
            1 << 20,
            3 << 40,
            u64::MAX,
        ]
        .map(size);
        assert_eq!(
            shown,
            [
                "0", "1023", "1.0K", "106.4K", "1.0M", "1.0M", "3.0T", "16.0E"
            ]
        );
    }

    #[test]
    fn times_are_utc() {
        assert_eq!(time(0), "1970-01-01 00:00");
        assert_eq!(time(784_111_777), "1994-11-06 08:49");
        assert_eq!(time(951_782_399), "2000-02-28 23:59");
        assert_eq!(time(951_782_400), "2000-02-29 00:00");
        assert_eq!(time(4_107_542_400), "2100-03-01 00:00");
    }
}
