//! Whether operations should try a server. Pure: times in milliseconds are passed in.
//!
//! A server is *down* if it could not be connected to, or if several operations in a row have timed out.
//! While it is down, operations fail at once, for a pause that doubles each time. After the pause one
//! operation tries the server; the others go on failing until that one has a result.

use super::limits;

/// The state of a server.
#[derive(Debug, Default)]
pub(super) struct Circuit {
    down: Option<Down>,
    timeouts_in_a_row: u32,
}

#[derive(Debug)]
struct Down {
    until_ms: u64,
    pause_ms: u64,
    is_being_tried: bool,
    why: String,
}

/// Whether an operation may try the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It may.
    Up,
    /// It may, and finds out for all others. [`Circuit::trial_ends`] has to be called.
    Trial,
    /// It may not, for this reason.
    Down(String),
}

impl Circuit {
    /// Whether an operation may try the server.
    pub(crate) fn admit(&mut self, now_ms: u64) -> Admission {
        match &mut self.down {
            None => Admission::Up,
            Some(down) if now_ms < down.until_ms || down.is_being_tried => {
                Admission::Down(down.why.clone())
            }
            Some(down) => {
                down.is_being_tried = true;
                Admission::Trial
            }
        }
    }

    /// A trial has ended, with or without a result.
    pub(crate) fn trial_ends(&mut self) {
        if let Some(down) = &mut self.down {
            down.is_being_tried = false;
        }
    }

    /// The server has answered.
    pub(crate) fn answered(&mut self) {
        self.timeouts_in_a_row = 0;
        self.down = None;
    }

    /// The server could not be connected to.
    pub(crate) fn unreachable(&mut self, now_ms: u64, why: &str) {
        let pause_ms = match &self.down {
            None => limits::DOWN_PAUSE_MS_MIN,
            // Operations that began before the server was down fail as well. That is nothing new.
            Some(down) if now_ms < down.until_ms => return,
            Some(down) => (down.pause_ms * 2).min(limits::DOWN_PAUSE_MS_MAX),
        };
        self.down = Some(Down {
            until_ms: now_ms + pause_ms,
            pause_ms,
            is_being_tried: false,
            why: why.to_owned(),
        });
    }

    /// An operation that should have been quick has timed out.
    pub(crate) fn timed_out(&mut self, now_ms: u64, why: &str) {
        self.timeouts_in_a_row = self.timeouts_in_a_row.saturating_add(1);
        if self.timeouts_in_a_row >= limits::TIMEOUTS_IN_A_ROW_MAX {
            self.unreachable(now_ms, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000;

    fn down() -> Admission {
        Admission::Down("refused".to_owned())
    }

    #[test]
    fn pauses_double_and_end_with_an_answer() {
        let mut circuit = Circuit::default();
        assert_eq!(circuit.admit(START), Admission::Up);
        let mut now = 0;
        for pause in [250, 500, 1000, 2000, 4000, 5000, 5000] {
            circuit.unreachable(START + now, "refused");
            // An operation that began before.
            circuit.unreachable(START + now + 1, "refused");
            assert_eq!(circuit.admit(START + now + pause - 1), down());
            now += pause;
            assert_eq!(circuit.admit(START + now), Admission::Trial);
            assert_eq!(circuit.admit(START + now), down(), "one tries");
        }
        circuit.answered();
        circuit.trial_ends();
        assert_eq!(circuit.admit(START + now), Admission::Up);
        circuit.unreachable(START + now, "refused");
        assert_eq!(circuit.admit(START + now + 249), down());
        assert_eq!(circuit.admit(START + now + 250), Admission::Trial);
    }

    #[test]
    fn a_trial_that_is_given_up_leaves_it_to_the_next() {
        let mut circuit = Circuit::default();
        circuit.unreachable(START, "refused");
        for _ in 0..2 {
            assert_eq!(circuit.admit(START + 300), Admission::Trial);
            circuit.trial_ends();
        }
    }

    #[test]
    fn only_timeouts_in_a_row_count() {
        let mut circuit = Circuit::default();
        for _ in 0..3 {
            circuit.timed_out(START, "refused");
        }
        circuit.answered();
        for _ in 0..3 {
            circuit.timed_out(START, "refused");
        }
        assert_eq!(circuit.admit(START), Admission::Up);
        circuit.timed_out(START, "refused");
        assert_eq!(circuit.admit(START), down());
    }
}
