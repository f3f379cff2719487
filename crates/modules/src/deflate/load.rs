//! The load average, asked for at most once a second.

use std::cell::Cell;

/// Whether the load is above `max`. `now_s` is the worker's coarse clock. What cannot be read is
/// no load.
pub(super) fn is_above(max: Option<f64>, now_s: u32) -> bool {
    max.is_some_and(|max| load(now_s) > max)
}

fn load(now_s: u32) -> f64 {
    let (read_s, load) = LAST.get();
    if read_s == Some(now_s) {
        return load;
    }
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = parse(&text);
    LAST.set((Some(now_s), load));
    load
}

fn parse(text: &str) -> f64 {
    text.split_ascii_whitespace()
        .next()
        .and_then(|first| first.parse().ok())
        .unwrap_or(0.0)
}

thread_local! {
    /// When it was read, and what it was.
    static LAST: Cell<(Option<u32>, f64)> = const { Cell::new((None, 0.0)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_once_a_second() {
        LAST.set((Some(7), 3.5));
        assert!(is_above(Some(3.4), 7));
        assert!(!is_above(Some(3.5), 7));
        assert!(!is_above(None, 7));
        assert!(!is_above(Some(1e9), 8));
        assert_eq!(LAST.get().0, Some(8));
    }

    #[test]
    fn the_first_number_is_the_last_minute() {
        assert_eq!(parse("0.42 1.00 2.00 1/178 999\n"), 0.42);
        assert_eq!(parse(""), 0.0);
    }
}
