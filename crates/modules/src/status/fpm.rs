//! What php-fpm says of itself, for readers of the status, and the advice that follows.

use super::model::{FpmPoolStatus, FpmScript, FpmStatus};
use super::text::Micros;
use crate::gateway::fpm::{FpmPool, FpmReport, RunningScript, WaitCounts};

/// What readers get to know of `report`.
pub(super) fn status(report: FpmReport) -> FpmStatus {
    let (waited, allowed) = (report.waited, report.children_allowed);
    let (pool, error) = match report.result {
        Some(Ok(pool)) => (Some(pool_status(pool)), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let children = pool.as_ref().map(|pool| pool.children);
    FpmStatus {
        path: report.path,
        age_ms: report.age_ms,
        error,
        pool,
        advice: children.and_then(|children| advice(waited, children, allowed)),
    }
}

fn pool_status(pool: FpmPool) -> FpmPoolStatus {
    let script = |script: RunningScript| FpmScript {
        pid: script.pid,
        uri: script.uri,
        script: script.script,
        age_us: script.age_us,
    };
    FpmPoolStatus {
        children: pool.children(),
        name: pool.name,
        manager: pool.manager,
        working: pool.working,
        reading: pool.reading,
        idle: pool.idle,
        listen_queue: pool.listen_queue,
        listen_queue_max: pool.listen_queue_max,
        max_children_reached: pool.max_children_reached,
        memory_max_bytes: pool.memory.map(|memory| memory.max_bytes),
        memory_mean_bytes: pool.memory.map(|memory| memory.mean_bytes),
        scripts: pool.scripts.into_iter().map(script).collect(),
    }
}

/// What to think about, in a sentence: `4 requests waited 1.1 s in all in the last minute for 8 children; memory would
/// allow 14`. `waited`: in the last minute. `allowed`: for how many children there is memory.
fn advice(waited: WaitCounts, children: u64, allowed: Option<u64>) -> Option<String> {
    let requests = match waited.requests {
        0 => return None,
        1 => "1 request".to_owned(),
        count => format!("{count} requests"),
    };
    let time = match (waited.nanos / 1000, waited.requests) {
        (0, _) => "had to wait".to_owned(),
        (micros, 1) => format!("waited {}", Micros(micros)),
        (micros, _) => format!("waited {} in all", Micros(micros)),
    };
    let memory = match allowed {
        None => String::new(),
        Some(allowed) if allowed <= children => "; memory allows no more of them".to_owned(),
        Some(allowed) => format!("; memory would allow {allowed}"),
    };
    let noun = if children == 1 { "child" } else { "children" };
    Some(format!(
        "{requests} {time} in the last minute for {children} {noun}{memory}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_says_what_was_seen() {
        let waited = |requests, millis: u64| WaitCounts {
            requests,
            nanos: millis * 1_000_000,
        };
        for (waited, children, allowed, sentence) in [
            (
                waited(4, 1100),
                8,
                Some(14),
                "4 requests waited 1.1 s in all in the last minute for 8 children; memory would allow 14",
            ),
            (
                waited(1, 20),
                1,
                None,
                "1 request waited 20 ms in the last minute for 1 child",
            ),
            (
                waited(2, 0),
                8,
                Some(8),
                "2 requests had to wait in the last minute for 8 children; memory allows no more of them",
            ),
        ] {
            assert_eq!(advice(waited, children, allowed).as_deref(), Some(sentence));
        }
        assert_eq!(advice(waited(0, 5), 8, Some(14)), None);
    }
}
