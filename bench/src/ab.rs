//! ApacheBench, which the articles measured with.
//!
//! It speaks HTTP/1.0, and its table of times has a resolution of one millisecond. So its figures are shown
//! beside those of this program's own client, for comparison with the articles, and do not replace them.

use crate::workload::Reuse;
use serde::Serialize;
use std::process::Command;

/// The figures that `ab` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ab {
    /// Requests per second.
    pub requests_per_s: f64,
    /// Mean time per request, ms.
    pub mean_ms: f64,
    /// Whether the server used persistent connections.
    pub kept: bool,
    /// The last line of its table, ms: min, mean, standard deviation, median and max.
    pub total_ms: Vec<f64>,
}

/// Sends requests for a path to a server, over `connections` connections.
pub fn run(port: u16, path: &str, connections: u16, reuse: Reuse) -> Result<Ab, String> {
    let mut command = Command::new("ab");
    command.args(["-q", "-n", REQUESTS, "-c", &connections.to_string()]);
    if reuse == Reuse::Keep {
        command.arg("-k");
    }
    command.arg(format!("http://127.0.0.1:{port}{path}"));
    let output = command.output().map_err(|error| format!("ab: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).ok_or_else(|| {
        let words = String::from_utf8_lossy(&output.stderr);
        format!("ab: {}", words.lines().next_back().unwrap_or("no report"))
    })
}

/// `None` if the text is incomplete or any request failed.
fn parse(text: &str) -> Option<Ab> {
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let first = |name: &str| line(name)?.split_whitespace().next()?.parse::<f64>().ok();
    let all_well = first("Failed requests:") == Some(0.0) && line("Non-2xx responses:").is_none();
    let total = line("Total:")?.split_whitespace();
    let total_ms: Vec<f64> = total.map_while(|word| word.parse().ok()).collect();
    (all_well && total_ms.len() == 5).then_some(Ab {
        requests_per_s: first("Requests per second:")?,
        mean_ms: first("Time per request:")?,
        kept: first("Keep-Alive requests:").is_some_and(|kept| kept > 0.0),
        total_ms,
    })
}

/// Enough for about a second.
const REQUESTS: &str = "4000";

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
Complete requests:      100
Failed requests:        0
Keep-Alive requests:    100
Requests per second:    418.00 [#/sec] (mean)
Time per request:       2.394 [ms] (mean)
Time per request:       2.394 [ms] (mean, across all concurrent requests)

Connection Times (ms)
              min  mean[+/-sd] median   max
Connect:        0    0   0.0      0       0
Total:          2    2   0.5      2       7
";

    #[test]
    fn its_report_is_read() {
        let expected = Ab {
            requests_per_s: 418.0,
            mean_ms: 2.394,
            kept: true,
            total_ms: vec![2.0, 2.0, 0.5, 2.0, 7.0],
        };
        assert_eq!(parse(REPORT), Some(expected));
    }

    #[test]
    fn failures_void_it() {
        assert_eq!(
            parse(&REPORT.replace("requests:        0", "requests:        1")),
            None
        );
        assert_eq!(parse(&format!("{REPORT}Non-2xx responses:      3\n")), None);
    }
}
