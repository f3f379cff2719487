//! A token bucket: how fast requests of one key may arrive. It is stored as the time at which the bucket is
//! full again (GCRA).
//!
//! So a bucket is one number, and a table can hold millions. The caller passes the time, in nanoseconds of
//! the workers' monotonic clock. Two workers may have read that clock at slightly different moments. A time
//! earlier than the last one makes the bucket look emptier by the difference, and does nothing worse.

use petrel_engine::ledger::Nanos;

/// A rate with its burst.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    /// The rate as it stands in the configuration, for the log.
    text: Box<str>,
    /// The time in which one token comes back.
    interval: Nanos,
    /// The time in which an empty bucket fills.
    fill_time: Nanos,
    burst: u32,
}

impl Rate {
    /// `text` is a number of requests a second, minute, hour or day, such as `10/m`. The bucket holds `burst`
    /// tokens, or that number.
    ///
    /// # Errors
    /// The rate or the burst cannot be used. The message says why.
    pub(super) fn new(text: &str, burst: Option<u32>) -> Result<Rate, String> {
        let wrong =
            || format!("{text:?} is no rate such as \"5/s\", \"10/m\", \"100/h\" or \"1000/d\"");
        let (count, unit) = text.split_once('/').ok_or_else(wrong)?;
        let is_number = !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
        let count: u32 = match count.parse() {
            Ok(count) if is_number && count > 0 => count,
            _ => return Err(wrong()),
        };
        if count > COUNT_MAX {
            return Err(format!("a rate is at most {COUNT_MAX} requests"));
        }
        let period_s: Nanos = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 60 * 60,
            "d" => 24 * 60 * 60,
            _ => return Err(wrong()),
        };
        let burst = burst.unwrap_or(count);
        let interval = period_s * SECOND / Nanos::from(count);
        let fill_time = interval
            .checked_mul(burst.into())
            .filter(|time| *time <= FILL_TIME_MAX)
            .ok_or_else(|| {
                format!("with this rate a burst of {burst} takes more than a year to come back")
            })?;
        Ok(Rate {
            text: text.into(),
            interval,
            fill_time,
            burst,
        })
    }

    /// Takes one token out of a bucket that is full again at `full_at`. Returns when it is full again after
    /// that.
    ///
    /// # Errors
    /// The bucket is empty. The error is how long the next token takes.
    #[inline]
    pub(super) fn take(&self, full_at: Nanos, now: Nanos) -> Result<Nanos, Nanos> {
        let full_at = full_at.max(now).saturating_add(self.interval);
        match (full_at - now).checked_sub(self.fill_time) {
            None | Some(0) => Ok(full_at),
            Some(wait) => Err(wait),
        }
    }

    /// Puts one token back into a bucket that is full again at `full_at`. Returns when it is full again after
    /// that.
    pub(super) fn give_back(&self, full_at: Nanos) -> Nanos {
        full_at.saturating_sub(self.interval)
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} with a burst of {}", self.text, self.burst)
    }
}

const SECOND: Nanos = 1_000_000_000;

/// The most requests a period may have. Beyond this the server itself is the limit.
const COUNT_MAX: u32 = 1_000_000;

/// A year: well below the 584 years that 64 bits of nanoseconds can count.
const FILL_TIME_MAX: Nanos = 366 * 24 * 3600 * SECOND;

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str, burst: Option<u32>) -> Rate {
        Rate::new(text, burst).expect("a rate")
    }

    /// Those of `times` at which a request is admitted.
    fn admitted(rate: &Rate, times: &[Nanos]) -> Vec<Nanos> {
        let mut full_at = 0;
        let mut admitted = Vec::new();
        for now in times {
            if let Ok(later) = rate.take(full_at, *now) {
                full_at = later;
                admitted.push(*now);
            }
        }
        admitted
    }

    #[test]
    fn a_burst_comes_at_once_and_the_others_one_by_one() {
        let begin = 5 * SECOND;
        let at_once = [begin; 9];
        assert_eq!(admitted(&rate("10/m", Some(3)), &at_once).len(), 3);
        assert_eq!(admitted(&rate("7/s", None), &at_once).len(), 7);
        let each_second: Vec<Nanos> = (0..60).map(|second| begin + second * SECOND).collect();
        let seconds = |burst| -> Vec<Nanos> {
            let admitted = admitted(&rate("10/m", Some(burst)), &each_second);
            admitted.iter().map(|at| (at - begin) / SECOND).collect()
        };
        assert_eq!(seconds(1), [0, 6, 12, 18, 24, 30, 36, 42, 48, 54]);
        assert_eq!(seconds(3), [0, 1, 2, 6, 12, 18, 24, 30, 36, 42, 48, 54]);
    }

    #[test]
    fn what_is_refused_costs_nothing_and_is_told_when_to_come_again() {
        let rate = rate("1/s", Some(2));
        let full_at = rate.take(0, 0).and_then(|at| rate.take(at, 0));
        let full_at = full_at.expect("two at once");
        assert_eq!(rate.take(full_at, 0), Err(SECOND));
        assert_eq!(rate.take(full_at, SECOND / 4), Err(SECOND * 3 / 4));
        assert_eq!(rate.take(full_at, SECOND), Ok(full_at + SECOND));
    }

    #[test]
    fn a_bucket_that_was_not_used_for_long_holds_no_more_than_its_burst() {
        let rate = rate("100/s", Some(2));
        let much_later = [0, 0, 0, Nanos::MAX / 2, Nanos::MAX / 2, Nanos::MAX / 2];
        assert_eq!(admitted(&rate, &much_later).len(), 4);
    }

    #[test]
    fn time_may_go_backwards_and_end() {
        let rate = rate("1/s", Some(1));
        let full_at = rate.take(0, 10 * SECOND).expect("the first");
        assert_eq!(rate.take(full_at, 9 * SECOND), Err(2 * SECOND));
        assert_eq!(rate.take(full_at, 11 * SECOND), Ok(12 * SECOND));
        assert_eq!(rate.take(Nanos::MAX, Nanos::MAX), Ok(Nanos::MAX));
        assert!(rate.take(Nanos::MAX, 0).is_err());
    }

    #[test]
    fn wrong_rates_are_refused() {
        for text in [
            "",
            "10",
            "10/",
            "/s",
            "0/s",
            "-1/s",
            "+1/s",
            "1.5/s",
            "1/w",
            "1/S",
            "99999999999/s",
            "1000001/s",
            "1 /s",
        ] {
            assert!(Rate::new(text, None).is_err(), "{text:?}");
        }
        let message = Rate::new("1/d", Some(1000)).expect_err("it is too long");
        assert!(message.contains("more than a year"), "{message}");
    }
}
