//! The report for programs. Times are in nanoseconds, and those that something began since the beginning of
//! its run.

use engine::ledger::Nanos;
use proto::escape;

use super::attribution::{TracedCall, WaterfallRow};
use super::reporter::RequestReport;
use super::text::result;
use super::{RequestCosts, TracedRun, total};

/// One object with a list of the requests.
pub(super) fn text(all: &[RequestCosts]) -> String {
    let requests = all.iter().map(request);
    format!("{{\"requests\":{}}}\n", list(requests))
}

fn request(costs: &RequestCosts) -> String {
    let budget = costs.budget.map_or_else(
        || "null".to_owned(),
        |budget| {
            let calls: Vec<String> = budget
                .calls
                .iter()
                .map(|(name, count)| format!("{}:{count}", quoted(name)))
                .collect();
            format!(
                "{{\"route\":{},\"calls\":{{{}}},\"allocations\":{}}}",
                quoted(budget.name),
                calls.join(","),
                budget.allocations
            )
        },
    );
    format!(
        "{{\"request\":{},\"status\":{},\"body_bytes\":{},\"cold\":{},\"warm\":{},\"not_traced\":{},\"budget\":{budget}}}",
        quoted(&costs.request),
        costs.warm.report.status,
        costs.warm.report.body_bytes,
        traced(&costs.cold),
        traced(&costs.warm),
        untraced(&costs.untraced),
    )
}

fn traced(run: &TracedRun) -> String {
    let begin = run.rows.first().map_or(0, |row| row.from);
    format!(
        "{{\"total_ns\":{},\"calls\":{},\"stages\":{}}}",
        total(&run.report),
        run.calls(),
        list(run.rows.iter().map(|row| stage(row, begin)))
    )
}

fn stage(row: &WaterfallRow, begin: Nanos) -> String {
    format!(
        "{{\"name\":{},\"begins_ns\":{},\"ns\":{},\"calls\":{}}}",
        quoted(&row.name),
        row.from.saturating_sub(begin),
        row.length(),
        list(row.calls.iter().map(|made| call(made, begin)))
    )
}

fn call(call: &TracedCall, begin: Nanos) -> String {
    let error = match call.result < 0 {
        true => quoted(&result(call)),
        false => "null".to_owned(),
    };
    let bytes = match call.moves_bytes && call.result >= 0 {
        true => call.result.to_string(),
        false => "null".to_owned(),
    };
    format!(
        "{{\"name\":{},\"object\":{},\"begins_ns\":{},\"ns\":{},\"result\":{},\"bytes\":{bytes},\"error\":{error},\"waits\":{},\"thread\":{}}}",
        quoted(&call.name),
        quoted(&call.object),
        call.entered.saturating_sub(begin),
        call.left.saturating_sub(call.entered),
        call.result,
        call.is_wait,
        call.thread,
    )
}

fn untraced(report: &RequestReport) -> String {
    let mut from = report.started;
    let stages = report.stamps.iter().map(|(name, at)| {
        let length = at.saturating_sub(from);
        from = (*at).max(from);
        format!("{{\"name\":{},\"ns\":{length}}}", quoted(name))
    });
    let stages = list(stages);
    format!("{{\"total_ns\":{},\"stages\":{stages}}}", total(report))
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut out = b"\"".to_vec();
    escape::json(&mut out, text.as_bytes());
    out.push(b'"');
    String::from_utf8_lossy(&out).into_owned()
}
