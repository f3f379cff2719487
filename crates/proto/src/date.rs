//! HTTP dates (RFC 9110 5.6.7): written as IMF-fixdate, read in all three forms.
//!
//! Times are whole seconds since 1970 in UTC, without leap seconds. There is no clock here: a caller that
//! needs the current date often keeps the formatted one and replaces it once a second. The crate `httpdate`
//! does the work; some dates that clients send and it refuses are rewritten for it here.

use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use httpdate::HttpDate;

/// The last second that can be written: the end of the year 9999.
pub const UNIX_SECONDS_MAX: u64 = 253_402_300_799;

/// Writes the IMF-fixdate of `unix_seconds`, such as `Sun, 06 Nov 1994 08:49:37 GMT`. Times beyond
/// the year 9999 are written as its last second.
pub fn format_imf(unix_seconds: u64, out: &mut [u8; 29]) {
    let since_epoch = Duration::from_secs(unix_seconds.min(UNIX_SECONDS_MAX));
    let date = HttpDate::from(UNIX_EPOCH + since_epoch);
    write!(&mut out[..], "{date}").expect("an IMF-fixdate has 29 bytes");
}

/// Reads an IMF-fixdate, an RFC 850 date or an asctime date; `None` if `text` is none of them, names
/// a day that does not exist, or lies before 1970. The name of the weekday is not compared with the
/// date. A leap second counts as the one before.
///
/// The two digits of an RFC 850 year mean 1970 to 2069: RFC 9110 asks for the century within fifty
/// years of now, which is the same for the next decades and needs no clock.
pub fn parse(text: &[u8]) -> Option<u64> {
    if text.len() > DATE_BYTES_MAX || text.trim_ascii() != text {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    read(text).or_else(|| read_inexact(text))
}

fn read(text: &str) -> Option<u64> {
    let date = httpdate::parse_http_date(text).ok()?;
    let since_epoch = date.duration_since(UNIX_EPOCH).ok()?;
    Some(since_epoch.as_secs())
}

/// Reads a date with a leap second or with the wrong weekday.
fn read_inexact(text: &str) -> Option<u64> {
    let name_length = text.find([',', ' '])?;
    let (name, rest) = text.split_at_checked(name_length)?;
    let rest = rest.replacen(":60", ":59", usize::from(!rest.contains(":60:")));
    let is_short = name.len() == 3;
    let names = DAY_NAMES.map(|day| if is_short { &day[..3] } else { day });
    if !names.contains(&name) {
        return None;
    }
    names.iter().find_map(|name| read(&format!("{name}{rest}")))
}

/// The length of `Wednesday, 06-Nov-94 08:49:37 GMT`, the longest date.
const DATE_BYTES_MAX: usize = 33;

const DAY_NAMES: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn formatted(unix_seconds: u64) -> String {
        let mut out = [0; 29];
        format_imf(unix_seconds, &mut out);
        String::from_utf8(out.to_vec()).expect("dates are ASCII")
    }

    #[test]
    fn known_dates_are_written() {
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (UNIX_SECONDS_MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(formatted(seconds), text);
        }
    }

    #[test]
    fn all_three_forms_are_read() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(text.as_bytes()), Some(784_111_777), "{text}");
        }
        assert_eq!(
            parse(b"Sunday, 06-Nov-69 08:49:37 GMT"),
            parse(b"Sun, 06 Nov 2069 08:49:37 GMT")
        );
        assert_eq!(
            parse(b"Sat, 31 Dec 2016 23:59:60 GMT"),
            parse(b"Sat, 31 Dec 2016 23:59:59 GMT")
        );
        for wrong_weekday in [
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Monday, 06-Nov-94 08:49:37 GMT",
            "Mon Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(wrong_weekday.as_bytes()), Some(784_111_777));
        }
    }

    #[test]
    fn other_text_is_no_date() {
        for text in [
            "",
            ",",
            "x",
            "784111777",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Son, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Nov 1994 08:60:37 GMT",
            "Sun, 06 Nov 1994 08:49:61 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 31 Nov 1994 08:49:37 GMT",
            "Thu, 29 Feb 1900 08:49:37 GMT",
            "Mon, 29 Feb 2100 08:49:37 GMT",
            "Wed, 31 Dec 1969 23:59:59 GMT",
            "Sun, 06 Nov 1994 +8:49:37 GMT",
            "Sund, 06-Nov-94 08:49:37 GMT",
            "Sunday, 06 Nov 94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994 ",
            "Sun Nov  x 08:49:37 1994",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(seconds in 0..=UNIX_SECONDS_MAX) {
            prop_assert_eq!(parse(formatted(seconds).as_bytes()), Some(seconds));
        }

        #[test]
        fn random_bytes_never_panic(text in proptest::collection::vec(any::<u8>(), 0..40)) {
            parse(&text);
        }

        #[test]
        fn damaged_dates_never_panic(position in 0..29_usize, byte in any::<u8>()) {
            let mut text = *b"Sun, 06 Nov 1994 08:49:37 GMT";
            text[position] = byte;
            parse(&text);
        }
    }
}
