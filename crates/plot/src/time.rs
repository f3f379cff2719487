//! Times in log lines, as microseconds since the epoch.

/// Reads `26/Nov/2026:02:33:18 +0000`, the time of `%t`, without its brackets.
pub fn of_common_log(text: &[u8]) -> Option<i64> {
    let [day, month, rest] = split(text, b'/')?;
    let month = MONTHS.iter().position(|name| name.as_bytes() == month)?;
    let (clock, zone) = cut(rest, b' ')?;
    let (year, clock) = cut(clock, b':')?;
    let [hour, minute, second] = split(clock, b':')?;
    let date = days(digits(year)?, month as i64 + 1, digits(day)?)?;
    let seconds = of_clock(digits(hour)?, digits(minute)?, digits(second)?)?;
    let zone = of_zone(zone)?;
    Some((date * 86_400 + seconds - zone) * MICROS)
}

/// Reads `2026-11-26T02:33:18.123456+00:00`, the time of JSON lines.
pub fn of_iso(text: &[u8]) -> Option<i64> {
    let (date, rest) = cut(text, b'T')?;
    let [year, month, day] = split(date, b'-')?;
    let zone_at = rest
        .iter()
        .position(|byte| matches!(byte, b'+' | b'-' | b'Z'))?;
    let (clock, zone) = rest.split_at_checked(zone_at)?;
    let (clock, fraction) = cut(clock, b'.').unwrap_or((clock, b"0"));
    let [hour, minute, second] = split(clock, b':')?;
    let date = days(digits(year)?, digits(month)?, digits(day)?)?;
    let seconds = of_clock(digits(hour)?, digits(minute)?, digits(second)?)?;
    let zone = match zone {
        b"Z" => 0,
        zone => of_zone(zone)?,
    };
    let mut micros = digits(fraction.get(..6).unwrap_or(fraction))?;
    for _ in fraction.len()..6 {
        micros *= 10;
    }
    Some((date * 86_400 + seconds - zone) * MICROS + micros)
}

/// Shows microseconds since the epoch as `2026-11-26 02:33:18`, in UTC.
pub fn shown(micros: i64) -> String {
    let seconds = micros.div_euclid(MICROS);
    let (days, clock) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

const MICROS: i64 = 1_000_000;

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// At most 15 digits, so that no sum of times overflows.
pub(crate) fn digits(text: &[u8]) -> Option<i64> {
    if text.is_empty() || text.len() > 15 {
        return None;
    }
    text.iter().try_fold(0, |number: i64, byte| match byte {
        b'0'..=b'9' => Some(number * 10 + i64::from(byte - b'0')),
        _ => None,
    })
}

fn of_clock(hour: i64, minute: i64, second: i64) -> Option<i64> {
    // A leap second is 60.
    let is_valid = hour < 24 && minute < 60 && second < 61;
    is_valid.then_some(hour * 3600 + minute * 60 + second)
}

/// `+0100` or `+01:00`, in seconds.
fn of_zone(text: &[u8]) -> Option<i64> {
    let (sign, rest) = text.split_first()?;
    let (hours, minutes) = match rest {
        [a, b, c, d] => ([*a, *b], [*c, *d]),
        [a, b, b':', c, d] => ([*a, *b], [*c, *d]),
        _ => return None,
    };
    let seconds = digits(&hours)? * 3600 + digits(&minutes)? * 60;
    match sign {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

/// Days since the epoch, in the Gregorian calendar. A year begins in March here, so that the leap day is its
/// last.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

fn cut(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let place = memchr::memchr(at, text)?;
    Some((text.get(..place)?, text.get(place + 1..)?))
}

fn split(text: &[u8], at: u8) -> Option<[&[u8]; 3]> {
    let (first, rest) = cut(text, at)?;
    let (second, third) = cut(rest, at)?;
    Some([first, second, third])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_time_are_the_same_time() {
        let common = of_common_log(b"26/Nov/2026:03:33:18 +0100").expect("sound");
        assert_eq!(common, 1_795_660_398_000_000);
        assert_eq!(
            of_iso(b"2026-11-26T02:33:18.123456+00:00"),
            Some(common + 123_456)
        );
        assert_eq!(of_iso(b"2026-11-26T02:33:18.5Z"), Some(common + 500_000));
        assert_eq!(of_iso(b"2026-11-25T21:33:18-05:00"), Some(common));
        assert_eq!(shown(common), "2026-11-26 02:33:18");
    }

    #[test]
    fn days_and_dates_are_inverse() {
        for (year, month, day) in [(1970, 1, 1), (2000, 2, 29), (2024, 12, 31), (2100, 3, 1)] {
            let days = days(year, month, day).expect("valid");
            assert_eq!(date(days), (year, month, day));
        }
        assert_eq!(days(1970, 1, 1), Some(0));
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "26/Nov/2026",
            "26/Foo/2026:03:33:18 +0100",
            "99/Nov/2026:03:33:18 +0100",
            "26/Nov/2026:33:33:18 +0100",
            "26/Nov/99999999999999999999:03:33:18 +0100",
            "26/Nov/2026:03:33:18 0100",
        ] {
            assert_eq!(of_common_log(text.as_bytes()), None, "{text}");
            assert_eq!(of_iso(text.as_bytes()), None, "{text}");
        }
        assert_eq!(of_iso(b"2026-11-26T02:33:18.\xff+00:00"), None);
    }
}
