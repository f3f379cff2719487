//! What clients measured: counts and times, with exact extremes beside the quantiles.
//!
//! Knows nothing of sockets. Times come in as durations and go out in milliseconds, as the tables show them.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// What one group of clients measured while it was counted.
#[derive(Debug, Default)]
pub struct Seen {
    /// Responses that were complete and correct.
    pub fetches: u64,
    /// Bytes of bodies, including those of responses that were incomplete when counting ended.
    pub bytes: u64,
    /// From the first packet until the connection was established; persistent connections have no such time.
    pub connect: Times,
    /// From the request to the first byte of the response.
    pub first: Times,
    /// From the request to the first byte of the body: a server may send a head before it knows anything of
    /// the file's content.
    pub body: Times,
    /// From the time when the request was due to the last byte of the response, including the connect.
    pub latency: Times,
    /// The same, separately for each of the first [`SECONDS_TOLD`] in which requests were due.
    pub latency_by_second: Vec<Times>,
    /// How late the client itself was in sending a request that was due. Waiting for a free connection is not
    /// included, since that is caused by the server.
    pub late: Times,
    /// Persistent connections that the server closed and the client reopened.
    pub reconnects: u64,
    /// Requests without a response or with an incorrect one.
    pub lost: u64,
    /// What happened to the first of those.
    pub lost_because: Option<String>,
}

/// A set of times.
#[derive(Debug)]
pub struct Times {
    histogram: Histogram<u64>,
    sum: Duration,
    min: Option<Duration>,
    max: Duration,
}

/// The statistics of a set of times that tables show, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Milliseconds {
    /// The number of times.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Half of them are shorter.
    pub median: f64,
    /// 99 of 100 are shorter.
    pub p99: f64,
    /// The longest.
    pub max: f64,
    /// The shortest.
    pub min: f64,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            histogram: Histogram::new_with_bounds(1, NANOSECONDS_MAX, 3)
                .expect("the bounds are in order and three digits are allowed"),
            sum: Duration::ZERO,
            min: None,
            max: Duration::ZERO,
        }
    }
}

impl Times {
    /// Adds a time.
    pub fn add(&mut self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record(nanoseconds);
        self.sum += time;
        self.min = Some(self.min.map_or(time, |min| min.min(time)));
        self.max = self.max.max(time);
    }

    /// Notes that a client has already been waiting for this long and still waits: the longest time is at
    /// least this, however the wait ends.
    pub fn at_least(&mut self, time: Duration) {
        self.max = self.max.max(time);
    }

    /// The statistics for tables.
    pub fn milliseconds(&self) -> Milliseconds {
        let count = self.histogram.len();
        let quantile = |share| self.histogram.value_at_quantile(share) as f64 / 1e6;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Milliseconds {
            count,
            mean: ms(self.sum) / count.max(1) as f64,
            // A quantile is rounded up to the end of its bucket, which may be beyond the longest time.
            median: quantile(0.5).min(ms(self.max)),
            p99: quantile(0.99).min(ms(self.max)),
            max: ms(self.max),
            min: self.min.map_or(0.0, ms),
        }
    }
}

impl Seen {
    /// Adds the time of a complete fetch that was due this long after counting began.
    pub fn add_latency(&mut self, due_after: Duration, took: Duration) {
        self.latency.add(took);
        let second = usize::try_from(due_after.as_secs()).unwrap_or(usize::MAX);
        if second < SECONDS_TOLD {
            let seconds = self.latency_by_second.len().max(second + 1);
            self.latency_by_second.resize_with(seconds, Times::default);
            if let Some(times) = self.latency_by_second.get_mut(second) {
                times.add(took);
            }
        }
    }
}

/// Formats them as http_load does.
impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [mean, max, min] = [self.mean, self.max, self.min].map(six_digits);
        write!(f, "{mean} mean, {max} max, {min} min")
    }
}

/// Formats as C's `%g` does: six significant digits, with an exponent if the integer part has more.
pub fn six_digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".to_owned();
    }
    // Rounding may carry: 999999.7 gets seven digits.
    let rounded: f64 = format!("{value:.5e}").parse().unwrap_or(value);
    let power = rounded.abs().log10().floor() as i32;
    if (-4..6).contains(&power) {
        let places = usize::try_from(5 - power).unwrap_or(0);
        return without_zeros(&format!("{rounded:.places$}")).to_owned();
    }
    let digits = rounded / 10_f64.powi(power);
    let sign = if power < 0 { '-' } else { '+' };
    format!(
        "{}e{sign}{:02}",
        without_zeros(&format!("{digits:.5}")),
        power.abs()
    )
}

fn without_zeros(text: &str) -> &str {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    }
}

/// How many of the first seconds have separate latencies.
const SECONDS_TOLD: usize = 5;
/// Longer times count as this one in quantiles.
const NANOSECONDS_MAX: u64 = 600_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_look_as_in_the_article() {
        let cases = [
            (274.323, "274.323"),
            (1.024e9, "1.024e+09"),
            (3.73283e6, "3.73283e+06"),
            (36.453_41, "36.4534"),
            (0.181, "0.181"),
            (6178.2, "6178.2"),
            (999_999.7, "1e+06"),
            (0.000_012, "1.2e-05"),
            (0.0, "0"),
        ];
        for (value, text) in cases {
            assert_eq!(six_digits(value), text);
        }
    }

    #[test]
    fn times_are_summed_up() {
        let mut times = Times::default();
        for ms in [1, 2, 3, 10] {
            times.add(Duration::from_millis(ms));
        }
        times.at_least(Duration::from_millis(40));
        let all = times.milliseconds();
        assert_eq!((all.count, all.mean), (4, 4.0));
        assert_eq!((all.min, all.max), (1.0, 40.0));
        assert!((all.median - 2.0).abs() < 0.01, "{all:?}");
        let mut seen = Seen::default();
        let ms = Duration::from_millis;
        for (due_after, took) in [(0, 1), (2999, 7), (3000, 9), (60_000, 90)] {
            seen.add_latency(ms(due_after), ms(took));
        }
        let seconds = seen.latency_by_second.iter().map(|one| one.milliseconds());
        let seconds: Vec<_> = seconds.map(|one| (one.count, one.max)).collect();
        assert_eq!(seconds, [(1, 1.0), (0, 0.0), (1, 7.0), (1, 9.0)]);
        assert_eq!(seen.latency.milliseconds().count, 4);
        assert_eq!(
            Times::default().milliseconds().to_string(),
            "0 mean, 0 max, 0 min"
        );
    }
}
