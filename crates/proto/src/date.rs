//! HTTP dates (RFC 9110 5.6.7): written as IMF-fixdate, read in all three forms.
//!
//! Times are whole seconds since 1970 in UTC, without leap seconds. There is no clock here: who
//! needs the current date often keeps the formatted one and replaces it once a second.

/// The last second that can be written: the end of the year 9999.
pub const UNIX_SECONDS_MAX: u64 = 253_402_300_799;

const DAY_NAMES: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
const MONTH_NAMES: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// Writes the IMF-fixdate of `unix_seconds`, such as `Sun, 06 Nov 1994 08:49:37 GMT`. Times beyond
/// the year 9999 are written as its last second.
pub fn format_imf(unix_seconds: u64, out: &mut [u8; 29]) {
    let unix_seconds = unix_seconds.min(UNIX_SECONDS_MAX);
    let days = unix_seconds / 86_400;
    let second_of_day = unix_seconds % 86_400;
    let date = Date::from_days(days);
    // 1 January 1970 was a Thursday.
    let day_name = DAY_NAMES[((days + 3) % 7) as usize];
    out.copy_from_slice(b"XXX, 00 XXX 0000 00:00:00 GMT");
    out[..3].copy_from_slice(&day_name.as_bytes()[..3]);
    out[5..7].copy_from_slice(&two_digits(date.day));
    out[8..11].copy_from_slice(MONTH_NAMES[(date.month - 1) as usize].as_bytes());
    out[12..14].copy_from_slice(&two_digits(date.year / 100));
    out[14..16].copy_from_slice(&two_digits(date.year % 100));
    out[17..19].copy_from_slice(&two_digits(second_of_day / 3600));
    out[20..22].copy_from_slice(&two_digits(second_of_day / 60 % 60));
    out[23..25].copy_from_slice(&two_digits(second_of_day % 60));
}

/// Reads an IMF-fixdate, an RFC 850 date or an asctime date; `None` if `text` is none of them, names
/// a day that does not exist, or lies before 1970. The name of the weekday is not compared with the
/// date.
///
/// The two digits of an RFC 850 year mean 1970 to 2069: RFC 9110 asks for the century within fifty
/// years of now, which is the same for the next decades and needs no clock.
pub fn parse(text: &[u8]) -> Option<u64> {
    let comma = memchr::memchr(b',', text);
    match comma {
        Some(3) => parse_imf(text),
        Some(_) => parse_rfc850(text),
        None => parse_asctime(text),
    }
}

fn parse_imf(text: &[u8]) -> Option<u64> {
    let text: &[u8; 29] = text.try_into().ok()?;
    let sound = is_short_day_name(&text[..3])
        && text[3..5] == *b", "
        && [text[7], text[11], text[16]] == [b' '; 3]
        && text[25..] == *b" GMT";
    let year = number(&text[12..16])?;
    let date = Date {
        year,
        month: month(&text[8..11])?,
        day: number(&text[5..7])?,
    };
    date.seconds(time(&text[17..25])?).filter(|_| sound)
}

fn parse_rfc850(text: &[u8]) -> Option<u64> {
    let comma = memchr::memchr(b',', text)?;
    let (day_name, rest) = text.split_at(comma);
    let rest: &[u8; 24] = rest.try_into().ok()?;
    let sound = is_long_day_name(day_name)
        && rest[..2] == *b", "
        && [rest[4], rest[8]] == [b'-'; 2]
        && rest[11] == b' '
        && rest[20..] == *b" GMT";
    let two_digit_year = number(&rest[9..11])?;
    let year = two_digit_year + if two_digit_year < 70 { 2000 } else { 1900 };
    let date = Date {
        year,
        month: month(&rest[5..8])?,
        day: number(&rest[2..4])?,
    };
    date.seconds(time(&rest[12..20])?).filter(|_| sound)
}

fn parse_asctime(text: &[u8]) -> Option<u64> {
    let text: &[u8; 24] = text.try_into().ok()?;
    let sound =
        is_short_day_name(&text[..3]) && [text[3], text[7], text[10], text[19]] == [b' '; 4];
    // The day is padded with a space.
    let day = number(if text[8] == b' ' {
        &text[9..10]
    } else {
        &text[8..10]
    })?;
    let date = Date {
        year: number(&text[20..])?,
        month: month(&text[4..7])?,
        day,
    };
    date.seconds(time(&text[11..19])?).filter(|_| sound)
}

/// A day of the Gregorian calendar.
#[derive(Clone, Copy)]
struct Date {
    year: u64,
    /// 1 to 12.
    month: u64,
    /// 1 to 31.
    day: u64,
}

impl Date {
    /// The date that many days after 1 January 1970. Years are taken to begin in March, so that
    /// the leap day is the last of its year, and months then follow a straight line of 153 days
    /// in five.
    fn from_days(days: u64) -> Date {
        let days = days + 719_468; // Days from 1 March of the year 0.
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 {
            month_from_march + 3
        } else {
            month_from_march - 9
        };
        let year = 400 * era + year_of_era + u64::from(month <= 2);
        Date { year, month, day }
    }

    /// Seconds since 1970 at `second_of_day`; `None` for a day that does not exist or lies before.
    fn seconds(self, second_of_day: u64) -> Option<u64> {
        if self.year < 1970 || !(1..=self.days_in_month()).contains(&self.day) {
            return None;
        }
        let year = self.year - u64::from(self.month <= 2);
        let month_from_march = (self.month + 9) % 12;
        let day_of_year = (153 * month_from_march + 2) / 5 + self.day - 1;
        let days = 365 * year + year / 4 - year / 100 + year / 400 + day_of_year - 719_468;
        Some(days * 86_400 + second_of_day)
    }

    fn days_in_month(self) -> u64 {
        let is_leap = self.year.is_multiple_of(4)
            && (!self.year.is_multiple_of(100) || self.year.is_multiple_of(400));
        match self.month {
            2 => 28 + u64::from(is_leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        }
    }
}

/// Reads `HH:MM:SS`. A leap second counts as the one before.
fn time(text: &[u8]) -> Option<u64> {
    let [_, _, b':', _, _, b':', _, _] = text else {
        return None;
    };
    let (hour, minute, second) = (
        number(&text[..2])?,
        number(&text[3..5])?,
        number(&text[6..])?,
    );
    let sound = hour < 24 && minute < 60 && second <= 60;
    sound.then_some(hour * 3600 + minute * 60 + second.min(59))
}

fn is_short_day_name(text: &[u8]) -> bool {
    DAY_NAMES.iter().any(|name| name.as_bytes()[..3] == *text)
}

fn is_long_day_name(text: &[u8]) -> bool {
    DAY_NAMES.iter().any(|name| name.as_bytes() == text)
}

fn month(text: &[u8]) -> Option<u64> {
    (1..)
        .zip(MONTH_NAMES)
        .find(|(_, name)| name.as_bytes() == text)
        .map(|(month, _)| month)
}

fn number(text: &[u8]) -> Option<u64> {
    text.iter().try_fold(0, |value, byte| {
        byte.is_ascii_digit()
            .then(|| value * 10 + u64::from(byte - b'0'))
    })
}

fn two_digits(value: u64) -> [u8; 2] {
    [b'0' + (value / 10 % 10) as u8, b'0' + (value % 10) as u8]
}

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
