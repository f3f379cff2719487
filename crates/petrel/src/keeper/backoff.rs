//! How long to wait before a process is restarted.

use std::time::Duration;

/// The pause before the next start. It grows when crashes follow each other.
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff {
            next: PAUSE_MIN,
            longest: PAUSE_MAX,
        }
    }
}

impl Backoff {
    /// A backoff whose pauses grow up to `longest`.
    pub(crate) fn up_to(longest: Duration) -> Backoff {
        Backoff {
            longest,
            ..Backoff::default()
        }
    }

    /// The pause after a process that lived for `lived`.
    pub(crate) fn pause(&mut self, lived: Duration) -> Duration {
        if lived > LIVED {
            self.next = PAUSE_MIN;
        }
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }
}

/// The pause after the first crash.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause before a new server process. With it a server that keeps crashing is back in about a
/// second.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A process that lived this long did not crash because of how it was started, so the pauses start over.
const LIVED: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_second_and_a_long_life_resets_them() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u128> = (0..6)
            .map(|_| backoff.pause(Duration::ZERO).as_millis())
            .collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(backoff.pause(Duration::from_secs(11)).as_millis(), 100);
        assert_eq!(backoff.pause(Duration::ZERO).as_millis(), 200);
    }
}
