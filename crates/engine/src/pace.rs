//! Whether a client keeps the least rate that the settings ask of it (`server.min-read-rate`,
//! `server.min-write-rate`).
//!
//! The server has some seconds of patience with each client. They run only while the server waits for the
//! client, and each second's worth of bytes gives one second back, up to the idle time of the settings
//! (`server.max-read-idle`, `server.max-write-idle`). A client begins with [`PATIENCE_S`], or with the idle
//! time if that is less. So the server gives up a client that is slow from the start after 30 seconds, and
//! one that stalls after a fast start after the idle time. This file knows no clock: callers pass the seconds
//! of the worker's coarse clock.
//!
//! Bytes of a request body count when they are received. Bytes of a response count when the client has
//! acknowledged them, which the worker asks the kernel only when the patience would be over.

/// Seconds of patience that a client begins with, unless its idle time is shorter.
const PATIENCE_S: u32 = 30;

/// The least rate in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinRate {
    /// Bytes a second; 0: no minimum.
    pub(crate) bytes_per_second: u32,
    /// The most seconds of patience: how long a client may be idle.
    pub(crate) patience_s: u32,
}

/// How fast a client has been in one direction, since it last had its full patience.
#[derive(Default)]
pub(crate) struct ClientPace {
    /// Since when the server has been waiting for the client; `None`: it is not waiting.
    since_s: Option<u32>,
    /// For how many seconds the server has waited before.
    waited_s: u32,
    /// How many bytes have moved.
    bytes: u64,
    /// The client has earned more patience than it began with.
    was_fast: bool,
}

impl ClientPace {
    /// Counts bytes that have moved.
    #[inline]
    pub(crate) fn moved(&mut self, count: u64) {
        self.bytes += count;
    }

    /// Stops the measurement: the server does not wait for the client, or does not know yet whether it will.
    #[inline]
    pub(crate) fn stop(&mut self, now_s: u32) {
        if let Some(since_s) = self.since_s.take() {
            self.waited_s += now_s.saturating_sub(since_s);
        }
    }

    /// Starts the measurement: the server waits for the client. Returns the second in which its patience is
    /// over if no byte moves.
    pub(crate) fn wait(&mut self, now_s: u32, rate: MinRate) -> Option<u32> {
        self.stop(now_s);
        self.since_s = Some(now_s);
        let patience_s = self.patience_s(rate)?;
        // The present second is over in part already.
        Some(now_s.saturating_add(patience_s).saturating_add(1))
    }

    /// Whether the server waits and its patience is over.
    pub(crate) fn is_over(&self, now_s: u32, rate: MinRate) -> bool {
        let Some(since_s) = self.since_s else {
            return false;
        };
        let left_s = self.left_s(rate);
        left_s.is_some_and(|left_s| i64::from(now_s.saturating_sub(since_s)) > left_s)
    }

    /// The rate until now in bytes a second.
    pub(crate) fn rate(&self, now_s: u32) -> u64 {
        let waits_s = self
            .since_s
            .map_or(0, |since_s| now_s.saturating_sub(since_s));
        self.bytes / u64::from((self.waited_s + waits_s).max(1))
    }

    /// How many seconds of patience are left when a wait begins.
    fn patience_s(&mut self, rate: MinRate) -> Option<u32> {
        let left_s = self.left_s(rate)?;
        // Patience beyond the idle time cannot be saved up, so the count starts again.
        if left_s >= i64::from(rate.patience_s) {
            *self = ClientPace {
                since_s: self.since_s,
                was_fast: true,
                ..ClientPace::default()
            };
            return Some(rate.patience_s);
        }
        Some(u32::try_from(left_s).unwrap_or(0))
    }

    fn left_s(&self, rate: MinRate) -> Option<i64> {
        let earned_s = self.bytes.checked_div(u64::from(rate.bytes_per_second))?;
        let begin_s = match self.was_fast {
            true => rate.patience_s,
            false => rate.patience_s.min(PATIENCE_S),
        };
        let earned_s = i64::try_from(earned_s).unwrap_or(i64::MAX / 2);
        Some(i64::from(begin_s) + earned_s - i64::from(self.waited_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: MinRate = MinRate {
        bytes_per_second: 250,
        patience_s: 30,
    };

    /// The second, within an hour, in which a client is given up that the server always waits for and that
    /// moves `bytes` bytes every `period_s` seconds.
    fn given_up(pace: &mut ClientPace, rate: MinRate, period_s: u32, bytes: u64) -> Option<u32> {
        pace.wait(0, rate);
        (1..3600).find(|&now_s| {
            if pace.is_over(now_s, rate) {
                return true;
            }
            if now_s % period_s == 0 {
                pace.moved(bytes);
                pace.wait(now_s, rate);
            }
            false
        })
    }

    #[test]
    fn a_client_that_trickles_is_given_up_and_one_that_keeps_the_rate_is_not() {
        for (period_s, bytes, expected) in [
            (1, 0, Some(31)),
            (1, 1, Some(31)),
            (10, 100, Some(32)),
            (20, 250, Some(32)),
            (1, 200, Some(147)),
            (1, 250, None),
            (29, 29 * 250, None),
            (60, 60 * 250, Some(31)),
            (1, 1 << 20, None),
        ] {
            let seen = given_up(&mut ClientPace::default(), RATE, period_s, bytes);
            assert_eq!(seen, expected, "{bytes} bytes in {period_s} s");
        }
    }

    #[test]
    fn a_fast_start_does_not_buy_more_than_the_patience_of_the_settings() {
        for patience_s in [5, 30, 360] {
            let rate = MinRate { patience_s, ..RATE };
            let mut pace = ClientPace::default();
            pace.moved(1 << 30);
            assert_eq!(pace.wait(100, rate), Some(100 + patience_s + 1));
            assert!(!pace.is_over(100 + patience_s, rate));
            assert!(pace.is_over(100 + patience_s + 1, rate));
            let slow = given_up(&mut ClientPace::default(), rate, 1, 1);
            assert_eq!(slow, Some(patience_s.min(30) + 1));
        }
    }

    #[test]
    fn a_client_that_pauses_after_a_fast_start_is_given_up_after_the_idle_time() {
        let rate = MinRate {
            patience_s: 360,
            ..RATE
        };
        let mut pace = ClientPace::default();
        assert_eq!(pace.wait(0, rate), Some(31));
        assert!(pace.is_over(31, rate), "nothing is known to have moved");
        pace.moved(50 << 20);
        assert!(!pace.is_over(31, rate));
        assert_eq!(pace.wait(31, rate), Some(31 + 361));
        assert!(!pace.is_over(31 + 360, rate));
        assert!(pace.is_over(31 + 361, rate));
    }

    #[test]
    fn only_the_time_counts_in_which_the_client_is_waited_for() {
        let mut pace = ClientPace::default();
        for minute in 0..20 {
            let begin_s = minute * 60;
            assert!(pace.wait(begin_s, RATE).is_some());
            assert!(!pace.is_over(begin_s + 1, RATE), "{minute}");
            pace.stop(begin_s + 1);
            assert!(!pace.is_over(begin_s + 59, RATE), "it is not waited for");
        }
        assert_eq!(
            pace.wait(2000, RATE),
            Some(2011),
            "20 of 30 seconds are gone"
        );
        assert!(pace.is_over(2011, RATE));
        assert_eq!(pace.rate(2011), 0);
    }

    #[test]
    fn a_rate_of_nothing_asks_for_nothing() {
        let rate = MinRate {
            bytes_per_second: 0,
            ..RATE
        };
        let mut pace = ClientPace::default();
        assert_eq!(pace.wait(0, rate), None);
        assert!(!pace.is_over(u32::MAX, rate));
    }
}
