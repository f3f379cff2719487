//! Lines of error logs: with the time in front, with control characters escaped so that a message cannot
//! forge a line, and with the same message at most once a second.

use std::fmt::{self, Arguments, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::local_time::TimeFormat;
use crate::limits::{ERROR_MESSAGE_BYTES_MAX, ERROR_REPEATS_MAX};

/// How precise the time in error logs is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimePrecision {
    /// `2026-11-21 20:40:46: `
    #[default]
    Seconds,
    /// `2026-11-21 20:40:46.185323537: ` (server.errorlog-high-precision)
    Nanoseconds,
    /// No time: syslog adds its own.
    None,
}

/// Which counts of repeated messages to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    /// Counts of seconds that are over.
    OfEarlierSeconds,
    /// All counts, because the log may get no further line.
    All,
}

/// The state of one error log.
pub(super) struct ErrorLines {
    format: TimeFormat,
    second: u64,
    stamp: Vec<u8>,
    seen: Vec<Seen>,
}

/// A message of the present second, and how often it was repeated.
struct Seen {
    message: String,
    repeated: u64,
}

impl Default for ErrorLines {
    fn default() -> Self {
        ErrorLines {
            format: TimeFormat::new("%Y-%m-%d %H:%M:%S").expect("a format that the tests check"),
            second: u64::MAX,
            stamp: Vec::new(),
            seen: Vec::new(),
        }
    }
}

impl ErrorLines {
    /// Passes to `write` the counts of repeated messages of earlier seconds and then `message` with its
    /// details. If the message was written in this second already, only counts it and does not build its
    /// text: under a flood of requests that fail, building it would be most of their cost. Returns whether that begins a
    /// count, so that there is something to write when the second is over.
    pub(super) fn message(
        &mut self,
        message: Arguments<'_>,
        details: Arguments<'_>,
        precision: TimePrecision,
        now: SystemTime,
        write: &mut dyn FnMut(&[u8]),
    ) -> bool {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.begin_second(now, precision, write);
        let mut seen = self.seen.iter_mut();
        if let Some(seen) = seen.find(|seen| is_text_of(message, &seen.message)) {
            seen.repeated += 1;
            return seen.repeated == 1;
        }
        let message = message.to_string();
        if self.seen.len() < ERROR_REPEATS_MAX {
            self.seen.push(Seen {
                message: message.clone(),
                repeated: 0,
            });
        }
        let details = details.to_string();
        write(&self.line(&message, &details, precision, now.subsec_nanos()));
        false
    }

    /// Passes the counts of repeated messages to `write`.
    pub(super) fn tell_repeats(
        &mut self,
        which: Repeats,
        precision: TimePrecision,
        now: SystemTime,
        write: &mut dyn FnMut(&[u8]),
    ) {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        if which == Repeats::All {
            self.second = u64::MAX;
        }
        self.begin_second(now, precision, write);
    }

    /// Whether a count of repeated messages has to be written.
    pub(super) fn holds_back(&self) -> bool {
        self.seen.iter().any(|seen| seen.repeated > 0)
    }

    fn begin_second(
        &mut self,
        now: Duration,
        precision: TimePrecision,
        write: &mut dyn FnMut(&[u8]),
    ) {
        if now.as_secs() == self.second {
            return;
        }
        self.second = now.as_secs();
        self.stamp.clear();
        self.format.write(self.second, &mut self.stamp);
        for seen in std::mem::take(&mut self.seen) {
            if seen.repeated > 0 {
                let text = format!("message repeated {} times: {}", seen.repeated, seen.message);
                write(&self.line(&text, "", precision, now.subsec_nanos()));
            }
        }
    }

    /// A message that is cut does not lose its details: the id of the request is among them.
    fn line(&self, message: &str, details: &str, precision: TimePrecision, nanos: u32) -> Vec<u8> {
        let mut line = String::with_capacity(message.len() + details.len() + 32);
        if precision != TimePrecision::None {
            line.push_str(std::str::from_utf8(&self.stamp).unwrap_or_default());
            if precision == TimePrecision::Nanoseconds {
                let _ = write!(line, ".{nanos:09}");
            }
            line.push_str(": ");
        }
        for part in [message, details] {
            let part = part.trim_end_matches('\n');
            let end = part.floor_char_boundary(ERROR_MESSAGE_BYTES_MAX);
            escape_controls(&mut line, &part[..end]);
            if end < part.len() {
                line.push_str("...");
            }
        }
        line.push('\n');
        line.into_bytes()
    }
}

/// Whether `message` would be written as `text`. Stops at the first byte that differs.
fn is_text_of(message: Arguments<'_>, text: &str) -> bool {
    /// The rest of the text, which has not been compared yet.
    struct Remaining<'t>(&'t str);

    impl fmt::Write for Remaining<'_> {
        fn write_str(&mut self, piece: &str) -> fmt::Result {
            self.0 = self.0.strip_prefix(piece).ok_or(fmt::Error)?;
            Ok(())
        }
    }

    let mut remaining = Remaining(text);
    remaining.write_fmt(message).is_ok() && remaining.0.is_empty()
}

/// Appends `message` with control characters as `\xHH`, byte by byte.
fn escape_controls(line: &mut String, message: &str) {
    let mut bytes = [0; 4];
    for character in message.chars() {
        if !character.is_control() {
            line.push(character);
            continue;
        }
        for byte in character.encode_utf8(&mut bytes).bytes() {
            let _ = write!(line, "\\x{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(messages: &[(u64, &str)], precision: TimePrecision) -> Vec<String> {
        let mut written = Vec::new();
        let mut errors = ErrorLines::default();
        for (millis, message) in messages {
            let now = UNIX_EPOCH + Duration::from_millis(1_795_295_290_000 + millis);
            errors.message(
                format_args!("{message}"),
                format_args!(""),
                precision,
                now,
                &mut |line| {
                    written.push(String::from_utf8_lossy(line).into_owned());
                },
            );
        }
        written
    }

    #[test]
    fn the_time_stands_in_front() {
        let [line] = &lines(&[(7, "a")], TimePrecision::Seconds)[..] else {
            panic!("one line")
        };
        let shape: String = line
            .chars()
            .map(|c| if c.is_ascii_digit() { '9' } else { c })
            .collect();
        assert_eq!(shape, "9999-99-99 99:99:99: a\n");
        let [line] = &lines(&[(7, "a")], TimePrecision::Nanoseconds)[..] else {
            panic!("one line")
        };
        assert!(line.ends_with(".007000000: a\n"), "{line}");
        assert_eq!(lines(&[(7, "a")], TimePrecision::None), ["a\n"]);
    }

    #[test]
    fn messages_that_differ_in_details_are_one() {
        let mut written = Vec::new();
        let mut errors = ErrorLines::default();
        for (millis, details) in [(0, " of a"), (1, " of b"), (2, " of c"), (1000, " of d")] {
            let now = UNIX_EPOCH + Duration::from_millis(millis);
            let (message, details) = (format_args!("bad"), format_args!("{details}"));
            errors.message(message, details, TimePrecision::None, now, &mut |line| {
                written.push(String::from_utf8_lossy(line).into_owned());
            });
        }
        let expected = [
            "bad of a\n",
            "message repeated 2 times: bad\n",
            "bad of d\n",
        ];
        assert_eq!(written, expected);
    }

    #[test]
    fn text_that_is_not_written_is_not_built() {
        let mut errors = ErrorLines::default();
        let built = std::cell::Cell::new(0);
        let details = std::fmt::from_fn(|f| {
            built.set(built.get() + 1);
            f.write_str(" of x")
        });
        let mut written = Vec::new();
        for code in [1, 2, 1, 11, 1, 2] {
            let (message, details) = (format_args!("bad {code}"), format_args!("{details}"));
            errors.message(
                message,
                details,
                TimePrecision::None,
                UNIX_EPOCH,
                &mut |line| {
                    written.push(String::from_utf8_lossy(line).into_owned());
                },
            );
        }
        assert_eq!(written, ["bad 1 of x\n", "bad 2 of x\n", "bad 11 of x\n"]);
        assert_eq!(built.get(), 3);
    }

    #[test]
    fn a_message_cannot_forge_a_line() {
        let message = "a\nb\r\x1b[2Jc\u{9b}\u{e9}\n";
        assert_eq!(
            lines(&[(0, message)], TimePrecision::None),
            ["a\\x0Ab\\x0D\\x1B[2Jc\\xC2\\x9B\u{e9}\n"]
        );
    }

    #[test]
    fn a_long_message_is_cut() {
        let message = "\u{e9}".repeat(ERROR_MESSAGE_BYTES_MAX);
        let line = &lines(&[(0, &message)], TimePrecision::None)[0];
        assert_eq!(line.len(), ERROR_MESSAGE_BYTES_MAX + "...\n".len());
    }

    #[test]
    fn the_details_of_a_message_that_is_cut_are_not() {
        let mut written = Vec::new();
        let message = "a".repeat(2 * ERROR_MESSAGE_BYTES_MAX);
        ErrorLines::default().message(
            format_args!("{message}"),
            format_args!(" id=1\n2"),
            TimePrecision::None,
            UNIX_EPOCH,
            &mut |line| written.extend_from_slice(line),
        );
        assert!(written.ends_with(b"aaa... id=1\\x0A2\n"));
    }

    #[test]
    fn repetitions_are_counted_and_told_when_the_second_is_over() {
        let messages = [
            (0, "a"),
            (10, "b"),
            (20, "a"),
            (30, "a"),
            (1000, "a"),
            (1001, "c"),
        ];
        assert_eq!(
            lines(&messages, TimePrecision::None),
            ["a\n", "b\n", "message repeated 2 times: a\n", "a\n", "c\n"]
        );
    }

    #[test]
    fn a_tick_tells_what_was_held_back() {
        let mut errors = ErrorLines::default();
        let mut count = 0;
        for millis in [0, 1, 2] {
            let now = UNIX_EPOCH + Duration::from_millis(millis);
            let (message, details) = (format_args!("a"), format_args!(""));
            errors.message(message, details, TimePrecision::None, now, &mut |_| {
                count += 1
            });
        }
        assert!(errors.holds_back());
        let mut told = Vec::new();
        let mut tick = |millis, told: &mut Vec<u8>| {
            let now = UNIX_EPOCH + Duration::from_millis(millis);
            errors.tell_repeats(
                Repeats::OfEarlierSeconds,
                TimePrecision::None,
                now,
                &mut |line| told.extend_from_slice(line),
            );
        };
        tick(999, &mut told);
        assert!(told.is_empty());
        tick(1000, &mut told);
        assert_eq!(told, b"message repeated 2 times: a\n");
        assert_eq!(count, 1);
    }
}
