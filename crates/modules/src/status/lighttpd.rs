//! What monitors of lighttpd read: `?auto`, and the fields of lighttpd's `?json`.

use petrel_engine::metrics::{RouteCounts, Totals};
use petrel_engine::proto::json::JsonWriter;

use super::model::mean_of_last;
use super::report::Report;

/// The text of `?auto`. A connection with a request is `h` (handle-req) in the scoreboard, an open one
/// without `k` (keep-alive), and one that there may be `_`.
pub(super) fn text(report: &Report) -> String {
    let totals = report.totals();
    let connections = report.connections.min(SCOREBOARD_MAX);
    let idle = idle(report).min(SCOREBOARD_MAX - connections);
    let handled = report.open_requests().min(connections);
    let marks = |mark: &str, count: u64| mark.repeat(usize::try_from(count).unwrap_or(0));
    format!(
        "Total Accesses: {}\nTotal kBytes: {}\nUptime: {}\nBusyServers: {}\nIdleServers: {}\nScoreboard: {}{}{}\n",
        totals.requests(),
        totals.sent_bytes() / KIB,
        report.uptime.as_secs(),
        report.connections,
        self::idle(report),
        marks("h", handled),
        marks("k", connections - handled),
        marks("_", idle),
    )
}

/// The fields of lighttpd's `?json`. `all` are the counts of all routes.
pub(super) fn fields(report: &Report, all: &RouteCounts, json: &mut JsonWriter) {
    let mean = |value: fn(&Totals) -> u64| {
        let seconds = report.requests.seconds.iter().rev().take(MEAN_S);
        let values: Vec<u64> = seconds.map(|second| value(&second.totals)).collect();
        mean_of_last(&values, MEAN_S) as u64
    };
    json.number("RequestsTotal", all.requests());
    json.number("TrafficTotal", all.sent_bytes() / KIB);
    json.number("Uptime", report.uptime.as_secs());
    json.number("BusyServers", report.connections);
    json.number("IdleServers", idle(report));
    json.number("RequestAverage5s", mean(Totals::requests));
    json.number("TrafficAverage5s", mean(|totals| totals.sent_bytes) / KIB);
}

/// Connections that there may be besides the open ones.
fn idle(report: &Report) -> u64 {
    report.connections_max.saturating_sub(report.connections)
}

const KIB: u64 = 1024;
/// Seconds of lighttpd's averages.
const MEAN_S: usize = 5;
/// The longest scoreboard.
const SCOREBOARD_MAX: u64 = 65_536;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use petrel_engine::metrics::{Second, WorkerGauges, WorkerState};
    use petrel_engine::shared::Shared;

    use super::*;

    fn report() -> Report {
        let mut report = Report::new(&Shared::new(1, 1));
        (report.connections, report.connections_max) = (3, 6);
        report.uptime = Duration::from_millis(6_900);
        report.requests.workers = vec![WorkerState {
            gauges: WorkerGauges {
                open_requests: 1,
                ..WorkerGauges::default()
            },
            ..WorkerState::default()
        }];
        let mut counts = RouteCounts::default();
        counts.classes[1].latency.buckets[3] = 40;
        counts.classes[1].sent_bytes = 12_006_400;
        report.requests.routes = vec![("mod_a".into(), Box::new(counts))];
        report
    }

    /// As lighttpd 1.4.69 after the same requests, apart from the connections.
    #[test]
    fn the_text_is_that_of_lighttpd() {
        assert_eq!(
            text(&report()),
            "Total Accesses: 40\nTotal kBytes: 11725\nUptime: 6\nBusyServers: 3\nIdleServers: 3\nScoreboard: hkk___\n"
        );
    }

    #[test]
    fn the_fields_are_those_of_lighttpd() {
        let mut report = report();
        let second = |requests, sent_bytes| Second {
            totals: Totals {
                classes: [requests, 0, 0, 0, 0, 0],
                sent_bytes,
                ..Totals::default()
            },
            ..Second::default()
        };
        report.requests.seconds = vec![second(8, 2_401_280); 6];
        report.requests.seconds[0] = second(1_000, 0);
        let mut json = JsonWriter::default();
        json.object(|json| fields(&report, &report.totals(), json));
        let expected = "{\"RequestsTotal\":40,\"TrafficTotal\":11725,\"Uptime\":6,\"BusyServers\":3,\
             \"IdleServers\":3,\"RequestAverage5s\":8,\"TrafficAverage5s\":2345}";
        assert_eq!(String::from_utf8_lossy(&json.out), expected);
    }

    #[test]
    fn a_scoreboard_ends() {
        let mut report = report();
        (report.connections, report.connections_max) = (u64::MAX, u64::MAX);
        assert!(text(&report).len() < 70_000);
    }
}
