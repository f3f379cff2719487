//! What monitors of lighttpd read: `?auto`, and the fields of lighttpd's `?json`.

use serde::Serialize;

use super::model::{Status, Totals, mean_of_last};

/// The text of `?auto`. A connection with a request is `h` (handle-req) in the scoreboard, an open one
/// without `k` (keep-alive), and one that there may be `_`.
pub(super) fn text(totals: &Totals, uptime_s: u64) -> String {
    let connections = totals.connections.min(SCOREBOARD_MAX);
    let idle = idle(totals).min(SCOREBOARD_MAX - connections);
    let handled = totals.open_requests.min(connections);
    let marks = |mark: &str, count: u64| mark.repeat(usize::try_from(count).unwrap_or(0));
    format!(
        "Total Accesses: {}\nTotal kBytes: {}\nUptime: {uptime_s}\nBusyServers: {}\nIdleServers: {}\nScoreboard: {}{}{}\n",
        totals.requests,
        totals.sent_bytes / KIB,
        totals.connections,
        self::idle(totals),
        marks("h", handled),
        marks("k", connections - handled),
        marks("_", idle),
    )
}

/// The fields of lighttpd's `?json`, and then those of the status.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct StatusOfLighttpd<'s> {
    requests_total: u64,
    traffic_total: u64,
    uptime: u64,
    busy_servers: u64,
    idle_servers: u64,
    #[serde(rename = "RequestAverage5s")]
    request_average: u64,
    #[serde(rename = "TrafficAverage5s")]
    traffic_average: u64,
    #[serde(flatten)]
    status: &'s Status,
}

/// The status with lighttpd's fields.
pub(super) fn fields(status: &Status) -> StatusOfLighttpd<'_> {
    let (totals, seconds) = (&status.totals, &status.seconds);
    StatusOfLighttpd {
        requests_total: totals.requests,
        traffic_total: totals.sent_bytes / KIB,
        uptime: status.server.uptime_s,
        busy_servers: totals.connections,
        idle_servers: idle(totals),
        request_average: mean_of_last(&seconds.requests, MEAN_S) as u64,
        traffic_average: mean_of_last(&seconds.sent_bytes, MEAN_S) as u64 / KIB,
        status,
    }
}

/// Connections that there may be besides the open ones.
fn idle(totals: &Totals) -> u64 {
    totals.connections_max.saturating_sub(totals.connections)
}

const KIB: u64 = 1024;
/// Seconds of lighttpd's averages.
const MEAN_S: usize = 5;
/// The longest scoreboard.
const SCOREBOARD_MAX: u64 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        let mut status = Status::default();
        status.server.uptime_s = 6;
        status.totals = Totals {
            requests: 40,
            sent_bytes: 12_006_400,
            open_requests: 1,
            connections: 3,
            connections_max: 6,
            ..Totals::default()
        };
        status
    }

    /// As lighttpd 1.4.69 after the same requests, apart from the connections.
    #[test]
    fn the_text_is_that_of_lighttpd() {
        assert_eq!(
            text(&status().totals, 6),
            "Total Accesses: 40\nTotal kBytes: 11725\nUptime: 6\nBusyServers: 3\nIdleServers: 3\nScoreboard: hkk___\n"
        );
    }

    #[test]
    fn the_fields_are_those_of_lighttpd() {
        let mut status = status();
        status.seconds.requests = vec![1_000, 8, 8, 8, 8, 8];
        status.seconds.sent_bytes = vec![0, 2_401_280, 2_401_280, 2_401_280, 2_401_280, 2_401_280];
        let json = serde_json::to_string(&fields(&status)).expect("it is JSON");
        let expected = "{\"RequestsTotal\":40,\"TrafficTotal\":11725,\"Uptime\":6,\"BusyServers\":3,\
             \"IdleServers\":3,\"RequestAverage5s\":8,\"TrafficAverage5s\":2345,\"format\":";
        assert!(json.starts_with(expected), "{json}");
    }

    #[test]
    fn a_scoreboard_ends() {
        let mut totals = status().totals;
        (totals.connections, totals.connections_max) = (u64::MAX, u64::MAX);
        assert!(text(&totals, 6).len() < 70_000);
    }
}
