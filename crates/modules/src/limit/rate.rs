//! How fast requests of one key may come: a token bucket, kept as the time at which it is full again (GCRA).
//!
//! A bucket is one number, so that a table holds very many. Times are nanoseconds of the workers' monotonic clock, given by
//! the caller. Two workers may have read it at slightly different moments: a time before the last one only makes the
//! bucket look emptier by that much.

use petrel_engine::ledger::Nanos;

/// So many requests in so much time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    /// As the configuration has it, for logs.
    text: Box<str>,
    /// The time after which one more request may come.
    interval: Nanos,
    /// How long an empty bucket takes to fill.
    fill_time: Nanos,
    burst: u32,
}

impl Rate {
    /// `text` is a number of requests for each second, minute, hour or day, such as `10/m`. As many may come at once, or
    /// `burst` of them.
    ///
    /// # Errors
    /// What is wrong with them.
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

    /// Takes one request out of the bucket that is full at `full_at`: when it is full then.
    ///
    /// # Errors
    /// It is empty; how long until one may come.
    #[inline]
    pub(super) fn take(&self, full_at: Nanos, now: Nanos) -> Result<Nanos, Nanos> {
        let full_at = full_at.max(now).saturating_add(self.interval);
        match (full_at - now).checked_sub(self.fill_time) {
            None | Some(0) => Ok(full_at),
            Some(wait) => Err(wait),
        }
    }

    /// When the bucket is full at `full_at`, and one that was taken is put back: when it is full then.
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

/// Requests in one period. At more the limit is the server itself.
const COUNT_MAX: u32 = 1_000_000;

/// An hundredth of what nanoseconds of 64 bits can tell.
const FILL_TIME_MAX: Nanos = 366 * 24 * 3600 * SECOND;

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str, burst: Option<u32>) -> Rate {
        Rate::new(text, burst).expect("a rate")
    }

    /// At which of `times` a request may come.
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
