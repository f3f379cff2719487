//! Times and durations in a line.

use std::cell::RefCell;

use petrel_engine::log::local_time::TimeFormat;

use super::line::decimal;

/// The unit of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Milliseconds,
    Microseconds,
    Nanoseconds,
}

impl Unit {
    pub(super) fn from_name(name: &str) -> Option<Unit> {
        match name {
            "s" | "sec" => Some(Unit::Seconds),
            "ms" | "msec" => Some(Unit::Milliseconds),
            "us" | "usec" => Some(Unit::Microseconds),
            "ns" | "nsec" => Some(Unit::Nanoseconds),
            _ => None,
        }
    }

    fn nanos(self) -> u64 {
        match self {
            Unit::Seconds => 1_000_000_000,
            Unit::Milliseconds => 1_000_000,
            Unit::Microseconds => 1_000,
            Unit::Nanoseconds => 1,
        }
    }

    /// A time since the epoch, in this unit.
    pub(super) fn of_time(self, nanos: u64) -> u64 {
        nanos / self.nanos()
    }

    /// A duration in this unit. Seconds are rounded down, smaller units up, as in lighttpd, so that only a
    /// duration of zero is 0.
    pub(super) fn of_duration(self, nanos: u64) -> u64 {
        match self {
            Unit::Seconds => nanos / self.nanos(),
            _ => nanos.div_ceil(self.nanos()),
        }
    }
}

/// Whether a time is that of the beginning or of the end of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Begin,
    End,
}

/// How a point in time is written.
pub(super) enum Moment {
    /// Formatted with strftime.
    Formatted(CachedTime),
    /// As a number since the epoch.
    Since(Unit),
    /// The fraction of the current second, with all digits of the unit.
    Fraction(Unit),
}

impl Moment {
    pub(super) fn write(&self, nanos: u64, out: &mut Vec<u8>) {
        match self {
            Moment::Formatted(time) => time.write(Unit::Seconds.of_time(nanos), out),
            Moment::Since(unit) => decimal(unit.of_time(nanos), 0, out),
            Moment::Fraction(unit) => {
                let digits = match unit {
                    Unit::Seconds => 1,
                    Unit::Milliseconds => 3,
                    Unit::Microseconds => 6,
                    Unit::Nanoseconds => 9,
                };
                decimal(unit.of_time(nanos % Unit::Seconds.nanos()), digits, out);
            }
        }
    }
}

/// A time that is formatted at most once per second.
pub(super) struct CachedTime {
    format: TimeFormat,
    cache: RefCell<(u64, Vec<u8>)>,
}

impl CachedTime {
    /// # Errors
    /// The format contains something that strftime does not support: a sentence.
    pub(super) fn new(format: &str) -> Result<CachedTime, String> {
        let format = TimeFormat::new(format)?;
        Ok(CachedTime {
            format,
            cache: RefCell::new((u64::MAX, Vec::new())),
        })
    }

    pub(super) fn write(&self, seconds: u64, out: &mut Vec<u8>) {
        let mut cache = self.cache.borrow_mut();
        let (second, text) = &mut *cache;
        if *second != seconds {
            *second = seconds;
            text.clear();
            self.format.write(seconds, text);
        }
        out.extend_from_slice(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_count_begun_units_but_whole_seconds() {
        assert_eq!(Unit::Seconds.of_duration(1_999_999_999), 1);
        assert_eq!(Unit::Milliseconds.of_duration(1), 1);
        assert_eq!(Unit::Microseconds.of_duration(52_001), 53);
        assert_eq!(Unit::Microseconds.of_duration(0), 0);
    }

    #[test]
    fn fractions_have_all_their_digits() {
        let mut out = Vec::new();
        Moment::Fraction(Unit::Milliseconds).write(5_007_999_999, &mut out);
        Moment::Fraction(Unit::Nanoseconds).write(5_007_000_009, &mut out);
        assert_eq!(out, b"007007000009");
    }

    #[test]
    fn a_cached_time_follows_the_clock_both_ways() {
        let time = CachedTime::new("%s").expect("known");
        for seconds in [10, 10, 11, 10] {
            let mut out = Vec::new();
            time.write(seconds, &mut out);
            assert_eq!(out, seconds.to_string().as_bytes());
        }
    }
}
