//! The waterfalls as a picture, for a page or a report.

use std::fmt::Write as _;

use engine::ledger::Nanos;

use super::attribution::WaterfallRow;
use super::text::duration;
use super::{RequestCosts, TracedRun, is_outside, total};

/// The picture: a waterfall for each run, one below the other.
pub(super) fn text(all: &[RequestCosts]) -> String {
    let mut drawing = String::new();
    let mut y = MARGIN;
    for costs in all {
        y += LINE;
        label(&mut drawing, MARGIN, y, "title", &costs.request);
        for (name, run) in [("cold", &costs.cold), ("warm", &costs.warm)] {
            y = traced(&mut drawing, y + LINE, name, run);
        }
        y += LINE;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\">\n<style>{STYLE}</style>\n\
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>\n{drawing}</svg>\n",
        height = y + MARGIN
    )
}

/// Draws one run below `y`. Returns where it ends.
fn traced(drawing: &mut String, mut y: u32, name: &str, run: &TracedRun) -> u32 {
    let heading = format!(
        "{name}: {} in {} system calls",
        duration(total(&run.report)),
        run.calls()
    );
    y += LINE;
    label(drawing, MARGIN, y, "heading", &heading);
    let begin = run.rows.first().map_or(0, |row| row.from);
    let end = run.rows.last().map_or(0, |row| row.to);
    for row in run.rows.iter().take(ROWS_MAX) {
        y += LINE;
        draw_row(drawing, y, row, begin, end);
    }
    y
}

fn draw_row(drawing: &mut String, y: u32, row: &WaterfallRow, begin: Nanos, end: Nanos) {
    let scale = end.saturating_sub(begin).max(1) as f64;
    let at = |time: Nanos| {
        f64::from(BARS_AT) + time.saturating_sub(begin) as f64 / scale * f64::from(BARS_WIDTH)
    };
    label(drawing, MARGIN, y, "name", &row.name);
    label(drawing, TIME_AT, y, "time", &duration(row.length()));
    let class = if is_outside(row) { "outside" } else { "stage" };
    rectangle(
        drawing,
        class,
        (at(row.from), at(row.to)),
        y,
        BAR_HEIGHT,
        &row.name,
    );
    for call in &row.calls {
        let class = if call.is_wait { "wait" } else { "call" };
        let span = (at(call.entered), at(call.left));
        let words = format!(
            "{} {} {}",
            call.name,
            call.object,
            duration(call.left.saturating_sub(call.entered))
        );
        rectangle(drawing, class, span, y, CALL_HEIGHT, &words);
    }
}

/// A bar with a text that browsers show under the pointer.
fn rectangle(
    drawing: &mut String,
    class: &str,
    span: (f64, f64),
    y: u32,
    height: u32,
    words: &str,
) {
    let (from, to) = span;
    let _ = writeln!(
        drawing,
        "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{height}\"><title>{}</title></rect>",
        y - BAR_HEIGHT,
        (to - from).max(1.0),
        escaped(words)
    );
}

fn label(drawing: &mut String, x: u32, y: u32, class: &str, words: &str) {
    let _ = writeln!(
        drawing,
        "<text class=\"{class}\" x=\"{x}\" y=\"{}\">{}</text>",
        y - 2,
        escaped(words)
    );
}

/// Text in XML. Control characters are not allowed there.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

const WIDTH: u32 = 960;
const MARGIN: u32 = 16;
const LINE: u32 = 20;
const TIME_AT: u32 = 230;
const BARS_AT: u32 = 250;
const BARS_WIDTH: u32 = WIDTH - BARS_AT - MARGIN;
const BAR_HEIGHT: u32 = 14;
const CALL_HEIGHT: u32 = 6;
/// The most stages that are drawn.
const ROWS_MAX: usize = 200;
/// For light and dark pages.
const STYLE: &str = "text{font:13px sans-serif;fill:#222}.title{font-weight:bold}.heading{fill:#555}\
    .time{text-anchor:end}.ground{fill:#fff}.stage{fill:#7fb2d9}.outside{fill:#ccc}.call{fill:#c0392b}\
    .wait{fill:#e6c35c}@media(prefers-color-scheme:dark){text{fill:#ddd}.heading{fill:#aaa}.ground{fill:#181818}\
    .stage{fill:#3f7fae}.outside{fill:#555}}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("a<b>&\u{1b}\""), "a&lt;b&gt;&amp;?\"");
    }
}
