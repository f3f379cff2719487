//! A recorded request in one line, and how its parts are written.

use engine::cause::CauseCode;
use engine::exchange::client_of_key;
use engine::proto::recording::{NowRecord, Record, RecordFlag};
use engine::recorder::percent_of;
use engine::waits::Time;

/// `2026-11-26 02:30:22.123 0123456789abcdef 503 2.2 s GET www.example.org/report.php (94 % backend-queue) client=...`
pub(crate) fn line(record: &Record) -> String {
    let longest = record.stages.iter().max_by_key(|(_, nanos)| *nanos);
    let stage = longest.map_or(String::new(), |(stage, nanos)| {
        format!(" ({} % {})", percent_of(*nanos, record.total), stage.name())
    });
    let aborted = if is_aborted(record) { " aborted" } else { "" };
    format!(
        "{} {} {} {:>7} {}{stage}{aborted} client={}",
        time(record.started),
        record.id,
        record.status,
        Time(record.total).to_string(),
        request(record),
        client_of_key(record.client),
    )
}

/// Whether the answer was not sent as a whole, for the same reasons as in metrics and on the status page.
pub(crate) fn is_aborted(record: &Record) -> bool {
    !record.is(RecordFlag::Complete)
}

/// `GET www.example.org/report.php`, without control characters.
pub(crate) fn request(record: &Record) -> String {
    format!(
        "{} {}{}{}",
        record.method.as_str(),
        printable(&record.host),
        printable(&record.path),
        if record.is(RecordFlag::Cut) {
            "..."
        } else {
            ""
        }
    )
}

/// The request that a worker worked for when it ended.
pub(crate) fn now(now: &NowRecord) -> String {
    let path = printable(&now.path);
    format!("id={} path={path} begun at {}", now.id, time(now.started))
}

/// Text of a client, escaped so that it is one line and changes no terminal. Quotes stay as they are.
pub(crate) fn printable(text: &[u8]) -> String {
    let mut shown = String::new();
    for character in String::from_utf8_lossy(text).chars() {
        match character {
            '"' | '\'' => shown.push(character),
            _ => shown.extend(character.escape_debug()),
        }
    }
    shown
}

/// A time in UTC: `2026-11-26 02:30:22.123`.
pub(crate) fn time(nanos: u64) -> String {
    let (micros, millis) = ((nanos / 1_000).cast_signed(), nanos / 1_000_000 % 1_000);
    format!("{}.{millis:03}", petrel_plot::time::shown(micros))
}

/// The code of the cause of an error that Petrel made; empty: there is none.
pub(crate) fn cause(record: &Record) -> &'static str {
    match CauseCode::of_number(record.cause) {
        Some(code) => code.name(),
        None if record.cause == 0 => "",
        None => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, shown) in [
            (0, "1970-01-01 00:00:00.000"),
            (951_782_400, "2000-02-29 00:00:00.000"),
            (951_868_799, "2000-02-29 23:59:59.000"),
            (1_795_660_222, "2026-11-26 02:30:22.000"),
            (4_107_542_400, "2100-03-01 00:00:00.000"),
        ] {
            assert_eq!(time(seconds * 1_000_000_000), shown);
        }
        assert_eq!(time(u64::MAX).len(), "2026-11-26 02:30:22.000".len());
    }

    #[test]
    fn text_of_a_client_stays_in_its_line() {
        assert_eq!(printable(b"/a\x1b[2J\nb\xff"), "/a\\u{1b}[2J\\nb\u{fffd}");
        assert_eq!(printable(b"the kernel's \"www\""), "the kernel's \"www\"");
    }
}
