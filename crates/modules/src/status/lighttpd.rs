//! What monitors of lighttpd read: `?auto`, and the fields of lighttpd's `?json`.

use super::model::{Status, mean_of_last};

/// The text of `?auto`. A connection with a request is `h` (handle-req) in the scoreboard, an open one
/// without `k` (keep-alive), and one that there may be `_`.
pub(super) fn text(status: &Status) -> String {
    let totals = &status.totals;
    let connections = totals.connections.min(SCOREBOARD_MAX);
    let idle = idle(status).min(SCOREBOARD_MAX - connections);
    let handled = totals.open_requests.min(connections);
    let marks = |mark: &str, count: u64| mark.repeat(usize::try_from(count).unwrap_or(0));
    format!(
        "Total Accesses: {}\nTotal kBytes: {}\nUptime: {}\nBusyServers: {}\nIdleServers: {}\nScoreboard: {}{}{}\n",
        totals.requests,
        totals.sent_bytes / KIB,
        status.server.uptime_s,
        totals.connections,
        self::idle(status),
        marks("h", handled),
        marks("k", connections - handled),
        marks("_", idle),
    )
}

/// `json`, the status, with lighttpd's fields at its beginning.
pub(super) fn json(status: &Status, json: &str) -> String {
    let mean = |values: &[u64]| mean_of_last(values, MEAN_S) as u64;
    let totals = &status.totals;
    let fields = json.trim_start().strip_prefix('{').unwrap_or("}");
    format!(
        "{{\n\t\"RequestsTotal\": {},\n\t\"TrafficTotal\": {},\n\t\"Uptime\": {},\n\t\"BusyServers\": {},\n\
         \t\"IdleServers\": {},\n\t\"RequestAverage5s\": {},\n\t\"TrafficAverage5s\": {},\n{fields}",
        totals.requests,
        totals.sent_bytes / KIB,
        status.server.uptime_s,
        totals.connections,
        idle(status),
        mean(&status.seconds.requests),
        mean(&status.seconds.sent_bytes) / KIB,
    )
}

/// Connections that there may be besides the open ones.
fn idle(status: &Status) -> u64 {
    let totals = &status.totals;
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
        let json = r#"{"server": {"uptime_s": 6}, "totals": {"requests": 40, "sent_bytes": 12006400,
            "open_requests": 1, "connections": 3, "connections_max": 6},
            "seconds": {"requests": [1000, 8, 8, 8, 8, 8], "sent_bytes": [0, 2401280, 2401280, 2401280, 2401280, 2401280]}}"#;
        Status::parse(json).expect("a status")
    }

    /// As lighttpd 1.4.69 after the same requests, apart from the connections.
    #[test]
    fn the_text_is_that_of_lighttpd() {
        assert_eq!(
            text(&status()),
            "Total Accesses: 40\nTotal kBytes: 11725\nUptime: 6\nBusyServers: 3\nIdleServers: 3\nScoreboard: hkk___\n"
        );
    }

    #[test]
    fn the_fields_of_lighttpd_stand_before_the_others() {
        let merged = json(&status(), "{\"format\":1}\n");
        let object: serde_json::Value = serde_json::from_str(&merged).expect("JSON");
        for (name, value) in [
            ("RequestsTotal", 40),
            ("TrafficTotal", 11_725),
            ("Uptime", 6),
            ("BusyServers", 3),
            ("IdleServers", 3),
            ("RequestAverage5s", 8),
            ("TrafficAverage5s", 2_345),
            ("format", 1),
        ] {
            assert_eq!(object[name], value, "{merged}");
        }
    }

    #[test]
    fn a_scoreboard_ends() {
        let mut status = status();
        status.totals.connections = u64::MAX;
        status.totals.connections_max = u64::MAX;
        assert!(text(&status).len() < 70_000);
    }
}
