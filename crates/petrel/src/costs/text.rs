//! The report for a person, at most 100 columns wide.

use std::fmt::Write as _;

use engine::ledger::Nanos;
use nix::errno::Errno;

use super::attribution::{TracedCall, WaterfallRow, lengths, tally, waterfall};
use super::{RequestCosts, TracedRun, is_outside, total};

/// The whole report. `is_coloured`: with the escape codes of a terminal.
pub(super) fn text(all: &[RequestCosts], is_coloured: bool) -> String {
    let pen = Pen { is_coloured };
    let mut out = String::new();
    for costs in all {
        request(costs, pen, &mut out);
    }
    if let [one, other] = all {
        comparison(one, other, pen, &mut out);
    }
    out
}

#[derive(Clone, Copy)]
struct Pen {
    is_coloured: bool,
}

impl Pen {
    fn in_style(self, code: &str, text: &str) -> String {
        match self.is_coloured && !text.is_empty() {
            true => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            false => text.to_owned(),
        }
    }

    fn bold(self, text: &str) -> String {
        self.in_style("1", text)
    }

    fn dim(self, text: &str) -> String {
        self.in_style("2", text)
    }

    fn bar(self, text: &str) -> String {
        self.in_style("36", text)
    }
}

fn request(costs: &RequestCosts, pen: Pen, out: &mut String) {
    let report = &costs.warm.report;
    let _ = writeln!(
        out,
        "{}  {}, {} bytes\n",
        pen.bold(&costs.request),
        report.status,
        report.body_bytes
    );
    traced("cold", &costs.cold, pen, out);
    traced("warm", &costs.warm, pen, out);
    let _ = writeln!(
        out,
        "{}  {}",
        pen.bold("warm, not traced"),
        duration(total(&costs.untraced))
    );
    wrapped(&stage_list(&untraced(costs)), out);
    let calls = tally(&costs.warm.rows);
    match costs.budget {
        Some(budget) => {
            let allowed: Vec<_> = budget
                .calls
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect();
            let verdict = match calls == allowed {
                true => "as here".to_owned(),
                false => format!("here {}", call_list(&calls)),
            };
            let _ = writeln!(out, "{}  {}", pen.bold("budget"), budget.name);
            let items = [
                format!("{} ({verdict})", call_list(&allowed)),
                match budget.allocations {
                    0 => "no allocation".to_owned(),
                    1 => "1 allocation".to_owned(),
                    count => format!("{count} allocations"),
                },
            ];
            wrapped(&items, out);
        }
        None => {
            let _ = writeln!(out, "{}  none for such a request", pen.bold("budget"));
        }
    }
    out.push('\n');
}

/// The stages of the request that was not traced.
fn untraced(costs: &RequestCosts) -> Vec<WaterfallRow> {
    let report = &costs.untraced;
    let mut rows = waterfall(report, (report.started, report.ended()), &[]);
    rows.retain(|row| !is_outside(row));
    rows
}

fn stage_list(rows: &[WaterfallRow]) -> Vec<String> {
    let stages = lengths(rows).into_iter().filter(|(_, length)| *length > 0);
    stages
        .map(|(name, length)| format!("{name} {}", duration(length)))
        .collect()
}

/// Writes items with commas between them, in indented lines.
fn wrapped(items: &[String], out: &mut String) {
    let mut line = String::new();
    for (index, item) in items.iter().enumerate() {
        let comma = if index + 1 < items.len() { "," } else { "" };
        if line.chars().count() + item.chars().count() > LINE {
            let _ = writeln!(out, " {line}");
            line.clear();
        }
        line += &format!(" {item}{comma}");
    }
    let _ = writeln!(out, " {line}");
}

fn call_list(calls: &[(String, u64)]) -> String {
    let calls = calls.iter().map(|(name, count)| match count {
        1 => name.clone(),
        count => format!("{count} × {name}"),
    });
    let calls: Vec<String> = calls.collect();
    match calls.is_empty() {
        true => "no system call".to_owned(),
        false => calls.join(", "),
    }
}

fn traced(name: &str, run: &TracedRun, pen: Pen, out: &mut String) {
    let _ = writeln!(
        out,
        "{}  {} in {} system calls",
        pen.bold(name),
        duration(total(&run.report)),
        run.calls()
    );
    let begin = run.rows.first().map_or(0, |row| row.from);
    let end = run.rows.last().map_or(0, |row| row.to);
    for row in run.rows.iter().take(ROWS_MAX) {
        let _ = writeln!(
            out,
            "  {:<NAME$} {:>TIME$}  {}",
            row.name,
            duration(row.length()),
            pen.bar(&bar(row, begin, end))
        );
        for call in row.calls.iter().take(CALLS_MAX) {
            let line = call_line(call);
            let line = if call.is_wait { pen.dim(&line) } else { line };
            let _ = writeln!(out, "{line}");
        }
        more(row.calls.len().saturating_sub(CALLS_MAX), "calls", out);
    }
    more(run.rows.len().saturating_sub(ROWS_MAX), "stages", out);
    out.push('\n');
}

fn more(count: usize, what: &str, out: &mut String) {
    if count > 0 {
        let _ = writeln!(out, "      … and {count} more {what} (--json has all)");
    }
}

fn call_line(call: &TracedCall) -> String {
    let object = match call.is_wait {
        true => "(waits)".to_owned(),
        false => shortened(&call.object, OBJECT),
    };
    let line = format!(
        "      {:<CALL$} {object:<OBJECT$} {:>RESULT$} {:>TIME$}",
        call.name,
        result(call),
        duration(call.left.saturating_sub(call.entered)),
    );
    line.trim_end().to_owned()
}

/// What a call returned.
pub(super) fn result(call: &TracedCall) -> String {
    if call.is_wait {
        return String::new();
    }
    match i32::try_from(call.result) {
        Ok(number) if number < 0 => format!("{:?}", Errno::from_raw(-number)),
        _ if call.moves_bytes => format!("{} bytes", call.result),
        Ok(0) | Err(_) => String::new(),
        Ok(number) => format!("= {number}"),
    }
}

/// Keeps the end of a long path, which tells more than its beginning. Control characters are escaped: paths
/// may hold any.
fn shortened(text: &str, most: usize) -> String {
    let text: String = text.chars().flat_map(shown_char).collect();
    let length = text.chars().count();
    match length <= most {
        true => text,
        false => text
            .chars()
            .take(1)
            .map(|_| '…')
            .chain(text.chars().skip(length + 1 - most))
            .collect(),
    }
}

fn shown_char(c: char) -> Vec<char> {
    match c.is_control() {
        true => c.escape_default().collect(),
        false => vec![c],
    }
}

/// The time of a row on a scale from `begin` to `end`, in eighths of a column.
fn bar(row: &WaterfallRow, begin: Nanos, end: Nanos) -> String {
    let scale = end.saturating_sub(begin).max(1) as f64;
    let at = |time: Nanos| {
        let part = time.saturating_sub(begin) as f64 / scale;
        (part * (BAR * 8) as f64).round() as usize
    };
    let (from, to) = (at(row.from), at(row.to));
    let blank = " ".repeat(from / 8);
    let eighths = to.saturating_sub(from / 8 * 8).max(1);
    let full = "█".repeat(eighths / 8);
    let rest = match eighths % 8 {
        0 => None,
        rest => EIGHTHS.chars().nth(rest - 1),
    };
    blank + &full + &rest.map(String::from).unwrap_or_default()
}

fn comparison(one: &RequestCosts, other: &RequestCosts, pen: Pen, out: &mut String) {
    let _ = writeln!(
        out,
        "{}\n  A  {}\n  B  {}\n",
        pen.bold("A and B"),
        one.request,
        other.request
    );
    let both = [
        ("cold", one.cold.rows.clone(), other.cold.rows.clone()),
        ("warm", one.warm.rows.clone(), other.warm.rows.clone()),
        ("warm, not traced", untraced(one), untraced(other)),
    ];
    for (name, one, other) in both {
        let heading = format!("{name:<NAME$} {:>TIME$} {:>TIME$}   B / A", "A", "B");
        let _ = writeln!(out, "{}", pen.bold(&format!("  {heading}")));
        for (stage, ours, theirs) in beside(&one, &other) {
            let shown = |length: Option<Nanos>| length.map_or("–".to_owned(), duration);
            let line = format!(
                "  {stage:<NAME$} {:>TIME$} {:>TIME$} {:>7}",
                shown(ours),
                shown(theirs),
                ratio(ours, theirs)
            );
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out.push('\n');
    }
}

/// The lengths of each stage in both requests, and those of all stages of the ledger at the end.
pub(super) fn beside(
    one: &[WaterfallRow],
    other: &[WaterfallRow],
) -> Vec<(String, Option<Nanos>, Option<Nanos>)> {
    let (ours, theirs) = (lengths(one), lengths(other));
    let of = |lengths: &[(String, Nanos)], stage: &str| {
        let mut all = lengths.iter();
        all.find(|(name, _)| name == stage)
            .map(|(_, length)| *length)
    };
    let mut stages: Vec<&str> = ours.iter().map(|(name, _)| name.as_str()).collect();
    let unknown = theirs.iter().map(|(name, _)| name.as_str());
    let unknown: Vec<&str> = unknown.filter(|name| !stages.contains(name)).collect();
    stages.extend(unknown);
    let mut lines: Vec<_> = stages
        .into_iter()
        .map(|stage| (stage.to_owned(), of(&ours, stage), of(&theirs, stage)))
        .collect();
    let sum = |rows: &[WaterfallRow]| {
        let stages = rows.iter().filter(|row| !is_outside(row));
        Some(stages.map(WaterfallRow::length).sum())
    };
    lines.push(("total".to_owned(), sum(one), sum(other)));
    lines
}

fn ratio(one: Option<Nanos>, other: Option<Nanos>) -> String {
    match (one, other) {
        (Some(one), Some(other)) if one > 0 => format!("{:.2}", other as f64 / one as f64),
        _ => String::new(),
    }
}

/// A time in the unit that suits it.
pub(super) fn duration(nanos: Nanos) -> String {
    let number = nanos as f64;
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} µs", number / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", number / 1e6),
        _ => format!("{:.2} s", number / 1e9),
    }
}

/// Columns of a line of items.
const LINE: usize = 94;
/// Columns of the name of a stage.
const NAME: usize = 18;
/// Columns of a time.
const TIME: usize = 9;
/// Columns of the waterfall.
const BAR: usize = 66;
/// Columns of the name of a call.
const CALL: usize = 17;
/// Columns of what a call acts on.
const OBJECT: usize = 45;
/// Columns of what a call returned.
const RESULT: usize = 16;
/// The most stages that are shown.
const ROWS_MAX: usize = 40;
/// The most calls of a stage that are shown.
const CALLS_MAX: usize = 40;
/// A column filled from the left by one eighth, two eighths and so on.
const EIGHTHS: &str = "▏▎▍▌▋▊▉";

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, from: Nanos, to: Nanos) -> WaterfallRow {
        WaterfallRow {
            name: name.to_owned(),
            from,
            to,
            calls: Vec::new(),
        }
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let call = TracedCall {
            name: "inotify_add_watch".to_owned(),
            object: format!("/srv/\u{1b}[2J{}/index.html", "long/".repeat(40)),
            moves_bytes: true,
            result: 1_234_567_890,
            left: 999_999,
            ..TracedCall::default()
        };
        let mut rows = vec![row("backend-connect", 0, 500), row("send", 500, 1_000_000)];
        rows[1].calls = vec![call.clone(); 50];
        let traced = || TracedRun {
            report: super::super::RequestReport::default(),
            rows: rows.clone(),
        };
        let costs = |request: &str| RequestCosts {
            request: request.to_owned(),
            budget: None,
            cold: traced(),
            warm: traced(),
            untraced: super::super::RequestReport::default(),
        };
        let text = text(&[costs("GET /a"), costs("GET /b")], false);
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        assert!(!text.contains('\u{1b}'), "a path writes to the terminal");
        assert!(text.contains("index.html") && text.contains("… and 10 more calls"));
        assert!(text.contains("\n  total            "), "{text}");
    }

    #[test]
    fn bars_stand_where_their_time_is() {
        let width = |bar: String| bar.chars().count();
        assert_eq!(width(bar(&row("a", 0, 1000), 0, 1000)), BAR);
        assert_eq!(bar(&row("a", 500, 500), 0, 1000), " ".repeat(BAR / 2) + "▏");
        assert!(width(bar(&row("a", 1000, 1000), 0, 1000)) <= BAR + 1);
        assert_eq!(bar(&row("a", 0, 0), 0, 0), "▏");
    }

    #[test]
    fn results_say_bytes_or_the_error() {
        let of = |moves_bytes, result| {
            super::result(&TracedCall {
                moves_bytes,
                result,
                ..TracedCall::default()
            })
        };
        assert_eq!(of(true, 78), "78 bytes");
        assert_eq!(of(true, -11), "EAGAIN");
        assert_eq!(
            (of(false, 9), of(false, 0)),
            ("= 9".to_owned(), String::new())
        );
        assert_eq!(
            [duration(850), duration(12_345), duration(3_000_000_000)],
            ["850 ns", "12.3 µs", "3.00 s"]
        );
    }

    #[test]
    fn stages_of_both_requests_stand_beside_each_other() {
        let one = [row("(arrival)", 0, 100), row("parse", 100, 200)];
        let other = [row("parse", 0, 150), row("lua", 150, 650)];
        assert_eq!(
            beside(&one, &other),
            [
                ("(arrival)".to_owned(), Some(100), None),
                ("parse".to_owned(), Some(100), Some(150)),
                ("lua".to_owned(), None, Some(500)),
                ("total".to_owned(), Some(100), Some(650)),
            ]
        );
        assert_eq!(ratio(Some(100), Some(650)), "6.50");
        assert_eq!(ratio(Some(0), Some(650)) + &ratio(None, Some(1)), "");
    }
}
