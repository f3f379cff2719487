//! How many requests have waited for a php-fpm in the last minute, and how much memory is left.

use std::collections::VecDeque;

/// Requests that had to wait for a connection, and for how long those have waited that wait no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitCounts {
    pub(crate) requests: u64,
    pub(crate) nanos: u64,
}

impl WaitCounts {
    /// Adds the counts of another backend.
    pub(super) fn add(&mut self, other: WaitCounts) {
        self.requests = self.requests.saturating_add(other.requests);
        self.nanos = self.nanos.saturating_add(other.nanos);
    }

    /// What has come since `before`. A backend that has gone took its counts along.
    fn since(self, before: WaitCounts) -> WaitCounts {
        WaitCounts {
            requests: self.requests.saturating_sub(before.requests),
            nanos: self.nanos.saturating_sub(before.nanos),
        }
    }
}

/// The counts of the last minute: at most one sample for each second.
#[derive(Debug, Default)]
pub(super) struct WaitWindow {
    samples: VecDeque<(u64, WaitCounts)>,
}

impl WaitWindow {
    /// Notes the counts at `now_ms`. The caller does so before and after each second in which requests wait.
    /// A call that follows too soon is ignored.
    pub(super) fn note(&mut self, now_ms: u64, counts: WaitCounts) {
        let is_recent = |(at_ms, _): &(u64, WaitCounts)| now_ms.saturating_sub(*at_ms) < SAMPLE_MS;
        if self.samples.back().is_some_and(is_recent) {
            return;
        }
        self.samples.push_back((now_ms, counts));
        let begin_ms = now_ms.saturating_sub(WINDOW_MS);
        // The last sample before the minute is where the minute begins.
        while self
            .samples
            .get(1)
            .is_some_and(|(at_ms, _)| *at_ms <= begin_ms)
        {
            self.samples.pop_front();
        }
    }

    /// What was counted in the minute before `now_ms`, of which `counts` is the end.
    pub(super) fn last_minute(&self, now_ms: u64, counts: WaitCounts) -> WaitCounts {
        let begin_ms = now_ms.saturating_sub(WINDOW_MS);
        let before = self
            .samples
            .iter()
            .rev()
            .find(|(at_ms, _)| *at_ms <= begin_ms);
        let first = before.or(self.samples.front());
        first.map_or(WaitCounts::default(), |(_, before)| counts.since(*before))
    }
}

/// MemAvailable of the text of /proc/meminfo, in bytes.
pub(super) fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// How far back the advice looks.
const WINDOW_MS: u64 = 60_000;

/// The shortest time between two samples.
const SAMPLE_MS: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(requests: u64) -> WaitCounts {
        WaitCounts {
            requests,
            nanos: requests * 1_000_000,
        }
    }

    #[test]
    fn a_minute_is_looked_back() {
        let mut window = WaitWindow::default();
        for second in 0..200 {
            window.note(second * 1000, counts(second));
            assert!(window.samples.len() <= 62, "{}", window.samples.len());
        }
        assert_eq!(window.last_minute(199_000, counts(199)), counts(60));
        assert_eq!(window.last_minute(210_000, counts(199)), counts(49));
        assert_eq!(window.last_minute(500_000, counts(199)), counts(0));
    }

    #[test]
    fn many_notes_in_a_second_are_one_sample() {
        let mut window = WaitWindow::default();
        for number in 0..10_000 {
            window.note(2000 + number / 20, counts(number));
        }
        assert_eq!(window.samples.len(), 1);
        assert_eq!(window.last_minute(2600, counts(9999)), counts(9999));
        window.note(3000, counts(9999));
        assert_eq!(window.last_minute(62_000, counts(9999)), counts(9999));
        assert_eq!(window.last_minute(63_000, counts(9999)), counts(0));
    }

    #[test]
    fn a_backend_that_has_gone_takes_its_counts_along() {
        let mut window = WaitWindow::default();
        window.note(0, counts(7));
        assert_eq!(window.last_minute(1000, counts(3)), counts(0));
    }

    #[test]
    fn available_memory_is_read_from_the_kernels_text() {
        let text = "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(available_bytes(text), Some(2 << 20));
        for text in [
            "",
            "MemAvailable:",
            "MemAvailable: x kB",
            "MemAvailable: 99999999999999999999 kB",
        ] {
            assert_eq!(available_bytes(text), None, "{text}");
        }
        assert_eq!(
            available_bytes("MemAvailable: 18446744073709551615 kB"),
            None
        );
    }
}
