//! The report for programs. Times are in nanoseconds, and those that something began since the beginning of
//! its run.

use engine::ledger::Nanos;
use proto::json::JsonWriter;

use super::attribution::{TracedCall, WaterfallRow};
use super::reporter::RequestReport;
use super::text::result;
use super::{RequestCosts, TracedRun, total};

/// One object with a list of the requests.
pub(super) fn text(all: &[RequestCosts]) -> String {
    let mut json = JsonWriter::default();
    json.object(|json| json.key("requests").list(all, request));
    json.out.push(b'\n');
    String::from_utf8_lossy(&json.out).into_owned()
}

fn request(costs: &RequestCosts, json: &mut JsonWriter) {
    json.object(|json| {
        json.text("request", &costs.request);
        json.number("status", costs.warm.report.status.into());
        json.number("body_bytes", costs.warm.report.body_bytes);
        traced(&costs.cold, json.key("cold"));
        traced(&costs.warm, json.key("warm"));
        untraced(&costs.untraced, json.key("not_traced"));
        match costs.budget {
            None => json.key("budget").null(),
            Some(budget) => json.key("budget").object(|json| {
                json.text("route", budget.name);
                json.key("calls").object(|json| {
                    for (name, count) in budget.calls {
                        json.number(name, *count);
                    }
                });
                json.number("allocations", budget.allocations);
            }),
        }
    });
}

fn traced(run: &TracedRun, json: &mut JsonWriter) {
    let begin = run.rows.first().map_or(0, |row| row.from);
    json.object(|json| {
        json.number("total_ns", total(&run.report));
        json.number("calls", run.calls());
        json.key("stages")
            .list(&run.rows, |row, json| stage(row, begin, json));
    });
}

fn stage(row: &WaterfallRow, begin: Nanos, json: &mut JsonWriter) {
    json.object(|json| {
        json.text("name", &row.name);
        json.number("begins_ns", row.from.saturating_sub(begin));
        json.number("ns", row.length());
        json.key("calls")
            .list(&row.calls, |made, json| call(made, begin, json));
    });
}

fn call(call: &TracedCall, begin: Nanos, json: &mut JsonWriter) {
    let bytes = u64::try_from(call.result).ok();
    let error = (call.result < 0).then(|| result(call));
    json.object(|json| {
        json.text("name", &call.name);
        json.text("object", &call.object);
        json.number("begins_ns", call.entered.saturating_sub(begin));
        json.number("ns", call.left.saturating_sub(call.entered));
        json.signed("result", call.result);
        json.optional_number("bytes", bytes.filter(|_| call.moves_bytes));
        json.optional_text("error", error.as_deref());
        json.truth("waits", call.is_wait);
        json.signed("thread", call.thread.into());
    });
}

fn untraced(report: &RequestReport, json: &mut JsonWriter) {
    let mut from = report.started;
    json.object(|json| {
        json.number("total_ns", total(report));
        json.key("stages").list(&report.stamps, |(name, at), json| {
            let length = at.saturating_sub(from);
            from = (*at).max(from);
            json.object(|json| {
                json.text("name", name);
                json.number("ns", length);
            });
        });
    });
}
