//! Which stage of a request made which system call. Knows no clock, process or output: stamps and calls come in,
//! with times of one clock, and a waterfall comes out.

use engine::ledger::Nanos;

use super::reporter::RequestReport;

/// A system call of the private instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TracedCall {
    /// The thread that made it.
    pub(super) thread: i32,
    /// Its name, or its number.
    pub(super) name: String,
    /// The path, file or connection that it acts on; may be empty.
    pub(super) object: String,
    /// Whether the result is a number of bytes.
    pub(super) moves_bytes: bool,
    /// Whether it only waits for an event or for another thread.
    pub(super) is_wait: bool,
    /// What it returned; negative: the number of the error.
    pub(super) result: i64,
    /// When it began.
    pub(super) entered: Nanos,
    /// When it returned.
    pub(super) left: Nanos,
}

impl TracedCall {
    /// Whether it counts as one of the request's calls. Waits do not; neither does hearing that a watched
    /// directory has changed, which other programs cause.
    pub(super) fn counts(&self) -> bool {
        !self.is_wait && self.object != "inotify"
    }
}

/// A time between two stamps, with the calls that began in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WaterfallRow {
    /// The stage, [`ARRIVAL`] or [`AFTERWARDS`].
    pub(super) name: String,
    /// When it began.
    pub(super) from: Nanos,
    /// When it ended.
    pub(super) to: Nanos,
    /// The calls in the order in which they began.
    pub(super) calls: Vec<TracedCall>,
}

impl WaterfallRow {
    /// How long it took.
    pub(super) fn length(&self) -> Nanos {
        self.to.saturating_sub(self.from)
    }
}

/// The row before the first stamp: the connection is accepted, and the request received.
pub(super) const ARRIVAL: &str = "(arrival)";
/// The row after the last stamp.
pub(super) const AFTERWARDS: &str = "(afterwards)";

/// The rows of one request, in the order of time. `window`: from when the client began until it had its
/// response and the server was idle again. Calls outside it are not of this request; neither are waits that
/// had begun before or last longer.
pub(super) fn waterfall(
    report: &RequestReport,
    window: (Nanos, Nanos),
    calls: &[TracedCall],
) -> Vec<WaterfallRow> {
    let mut rows = vec![WaterfallRow {
        name: ARRIVAL.to_owned(),
        from: window.0.min(report.started),
        to: report.started,
        calls: Vec::new(),
    }];
    let mut from = report.started;
    for (stage, at) in &report.stamps {
        // A stamp may be made with a time that was read a little earlier.
        let to = (*at).max(from);
        match rows.last_mut() {
            Some(last) if last.name == *stage => last.to = to,
            _ => rows.push(WaterfallRow {
                name: stage.clone(),
                from,
                to,
                calls: Vec::new(),
            }),
        }
        from = to;
    }
    rows.push(WaterfallRow {
        name: AFTERWARDS.to_owned(),
        from,
        to: from,
        calls: Vec::new(),
    });
    let last = rows.len() - 1;
    let mut inside: Vec<&TracedCall> = calls
        .iter()
        .filter(|call| call.entered >= window.0 && call.left <= window.1)
        .collect();
    inside.sort_by_key(|call| call.entered);
    for call in inside {
        let index = rows
            .iter()
            .position(|row| call.entered < row.to)
            .unwrap_or(last);
        if let Some(row) = rows.get_mut(index) {
            row.calls.push(call.clone());
        }
    }
    if let Some(row) = rows.get_mut(last) {
        // A thread that has nothing to do any more waits.
        row.calls.retain(TracedCall::counts);
        row.to = row.calls.last().map_or(row.from, |call| call.left);
    }
    if rows.last().is_some_and(|row| row.calls.is_empty()) {
        rows.pop();
    }
    rows
}

/// How often each system call was made, in the order of the names.
pub(super) fn tally(rows: &[WaterfallRow]) -> Vec<(String, u64)> {
    let mut names: Vec<&str> = rows
        .iter()
        .flat_map(|row| &row.calls)
        .filter(|call| call.counts())
        .map(|call| call.name.as_str())
        .collect();
    names.sort_unstable();
    let same = names.chunk_by(|one, other| one == other);
    same.filter_map(|names| Some(((*names.first()?).to_owned(), names.len() as u64)))
        .collect()
}

/// How long each stage took in all, in the order in which they began.
pub(super) fn lengths(rows: &[WaterfallRow]) -> Vec<(String, Nanos)> {
    let mut sums: Vec<(String, Nanos)> = Vec::new();
    for row in rows {
        match sums.iter_mut().find(|(name, _)| *name == row.name) {
            Some((_, sum)) => *sum += row.length(),
            None => sums.push((row.name.clone(), row.length())),
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, entered: Nanos, left: Nanos) -> TracedCall {
        TracedCall {
            name: name.to_owned(),
            is_wait: name == "epoll_wait",
            entered,
            left,
            ..TracedCall::default()
        }
    }

    fn report(stamps: &[(&str, Nanos)]) -> RequestReport {
        RequestReport {
            started: 1000,
            stamps: stamps
                .iter()
                .map(|(name, at)| ((*name).to_owned(), *at))
                .collect(),
            ..RequestReport::default()
        }
    }

    /// Rows as `name: call call`.
    fn shown(rows: &[WaterfallRow]) -> Vec<String> {
        let of = |row: &WaterfallRow| {
            let calls: Vec<&str> = row.calls.iter().map(|call| call.name.as_str()).collect();
            format!("{} {}: {}", row.name, row.length(), calls.join(" "))
        };
        rows.iter().map(of).collect()
    }

    #[test]
    fn a_call_belongs_to_the_stage_in_which_it_begins() {
        let report = report(&[("parse", 1100), ("content", 1300), ("send", 1500)]);
        let calls = [
            call("sendto", 1350, 1450),
            call("recvfrom", 950, 990),
            call("openat2", 1100, 1200),
            call("read", 1250, 1320),
        ];
        assert_eq!(
            shown(&waterfall(&report, (900, 2000), &calls)),
            [
                "(arrival) 100: recvfrom",
                "parse 100: ",
                "content 200: openat2 read",
                "send 200: sendto"
            ]
        );
    }

    #[test]
    fn idle_waits_and_other_requests_do_not_count() {
        let report = report(&[
            ("parse", 1100),
            ("backend-first-byte", 1300),
            ("send", 1500),
        ]);
        let calls = [
            call("sendto", 100, 200),
            call("epoll_wait", 500, 950),
            call("recvfrom", 960, 990),
            call("epoll_wait", 1120, 1280),
            call("sendto", 1400, 1450),
            call("close", 1510, 1520),
            call("epoll_wait", 1530, 1540),
            call("epoll_wait", 1550, 9000),
            call("recvfrom", 9001, 9005),
        ];
        let rows = waterfall(&report, (900, 2000), &calls);
        assert_eq!(
            shown(&rows),
            [
                "(arrival) 100: recvfrom",
                "parse 100: ",
                "backend-first-byte 200: epoll_wait",
                "send 200: sendto",
                "(afterwards) 20: close"
            ]
        );
        let counted = tally(&rows);
        let counted: Vec<_> = counted
            .iter()
            .map(|(name, count)| (name.as_str(), *count))
            .collect();
        assert_eq!(counted, [("close", 1), ("recvfrom", 1), ("sendto", 1)]);
    }

    #[test]
    fn a_stage_that_comes_again_has_a_row_for_each_time() {
        let report = report(&[
            ("send", 1100),
            ("send", 1200),
            ("content", 1250),
            ("send", 1300),
        ]);
        let rows = waterfall(&report, (900, 2000), &[call("sendto", 1150, 1160)]);
        assert_eq!(
            shown(&rows),
            [
                "(arrival) 100: ",
                "send 200: sendto",
                "content 50: ",
                "send 50: "
            ]
        );
        assert_eq!(lengths(&rows).len(), 3);
        assert_eq!(lengths(&rows).get(1), Some(&("send".to_owned(), 250)));
    }

    #[test]
    fn times_that_go_back_are_no_negative_lengths() {
        let report = report(&[("parse", 1200), ("map", 1100), ("send", 1300)]);
        let rows = waterfall(&report, (5000, 6000), &[]);
        assert_eq!(
            shown(&rows),
            ["(arrival) 0: ", "parse 200: ", "map 0: ", "send 100: "]
        );
    }
}
