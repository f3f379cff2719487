//! The load average, read at most once per second.

use std::cell::Cell;

use petrel_engine::Exchange;

use super::kept::OfWorker;

/// Whether the load is above `max`. False if it cannot be read.
pub(super) fn is_above(exchange: &Exchange, max: Option<f64>) -> bool {
    let now_s = exchange.worker.clock().seconds();
    max.is_some_and(|max| load(&OfWorker::of(&exchange.worker).load, now_s) > max)
}

/// The load, from `last` or read anew. `now_s` is the worker's coarse clock.
fn load(last: &Cell<(Option<u32>, f64)>, now_s: u32) -> f64 {
    let (read_s, load) = last.get();
    if read_s == Some(now_s) {
        return load;
    }
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = parse(&text);
    last.set((Some(now_s), load));
    load
}

fn parse(text: &str) -> f64 {
    text.split_ascii_whitespace()
        .next()
        .and_then(|first| first.parse().ok())
        .unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_once_a_second() {
        let last = Cell::new((Some(7), 3.5));
        assert_eq!(load(&last, 7), 3.5);
        assert!(load(&last, 8) >= 0.0);
        assert_eq!(last.get().0, Some(8));
    }

    #[test]
    fn the_first_number_is_the_last_minute() {
        assert_eq!(parse("0.42 1.00 2.00 1/178 999\n"), 0.42);
        assert_eq!(parse(""), 0.0);
    }
}
