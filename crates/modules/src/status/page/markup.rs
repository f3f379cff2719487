//! Small pieces of HTML: escaped text, bars, tables.

use std::fmt::{self, Write};

use petrel_engine::ledger::Stage;

use crate::status::model::{StageGroup, StageTimes};
use crate::status::text::Foreign;

/// Text for HTML, escaped, without invisible characters, and cut.
#[derive(Clone, Copy)]
pub(in crate::status) struct Text<'a>(pub(in crate::status) &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let visible = Foreign {
            text: self.0,
            chars_max: TEXT_CHARS_MAX,
        };
        write!(Escape(f), "{visible}")
    }
}

/// Escapes what is written for HTML text and quoted attributes.
struct Escape<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escape<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut from = 0;
        for (index, byte) in text.bytes().enumerate() {
            let escaped = match byte {
                b'&' => "&amp;",
                b'<' => "&lt;",
                b'>' => "&gt;",
                b'"' => "&quot;",
                b'\'' => "&#39;",
                _ => continue,
            };
            self.0.write_str(&text[from..index])?;
            self.0.write_str(escaped)?;
            from = index + 1;
        }
        self.0.write_str(&text[from..])
    }
}

/// The stages with time in `times`, in the order in which charts stack them, and what is left of `total`.
pub(super) fn stacked(times: &StageTimes, total: u64) -> (Vec<(Stage, u64)>, u64) {
    let stages = StageGroup::ALL.iter().flat_map(|group| group.stages());
    let with_time = stages.map(|stage| (stage, times.of(stage)));
    let parts: Vec<_> = with_time.filter(|(_, time)| *time > 0).collect();
    let known: u64 = parts.iter().map(|(_, time)| time).sum();
    (parts, total.saturating_sub(known))
}

/// A bar of `whole` with a piece for each part; `class` and value. It has no text: what it shows stands
/// beside it.
pub(super) fn bar(out: &mut String, parts: &[(String, u64)], whole: u64) {
    out.push_str(
        "<svg class=\"bar\" viewBox=\"0 0 1000 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">",
    );
    let mut x = 0.0;
    for (class, value) in parts {
        let width = *value as f64 * 1000.0 / whole.max(1) as f64;
        if width >= 0.5 {
            out.push_str(&format!(
                "<rect class=\"{class}\" x=\"{x:.1}\" width=\"{width:.1}\" height=\"10\"/>"
            ));
        }
        x += width;
    }
    out.push_str("</svg>");
}

/// A piece of a bar from `from` to `to` of `whole`.
pub(super) fn track(out: &mut String, class: &str, from: u64, to: u64, whole: u64) {
    let at = |value: u64| value as f64 * 1000.0 / whole.max(1) as f64;
    // A stage that has time is seen, however short.
    let width = (at(to) - at(from)).max(3.0);
    let x = at(from).min(1000.0 - width);
    out.push_str(&format!(
        "<svg class=\"bar\" viewBox=\"0 0 1000 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <rect class=\"{class}\" x=\"{x:.1}\" width=\"{width:.1}\" height=\"10\"/></svg>"
    ));
}

/// The class of a stage's colour.
pub(super) fn stage_class(name: &str) -> String {
    // Names come from the table of stages; any other text gets the colour of unattributed time.
    match Stage::ALL.iter().any(|stage| stage.name() == name) {
        true => format!("s-{name}"),
        false => "s-none".to_owned(),
    }
}

/// A column of a table: its title, the class of its cells, and the time that its figures are about. `n` is for
/// numbers, and narrow windows leave out what is `wide`.
pub(super) struct TableColumn(&'static str, &'static str, &'static str);

/// A column.
pub(super) const fn column(title: &'static str, class: &'static str) -> TableColumn {
    TableColumn(title, class, "")
}

impl TableColumn {
    /// The column with the time that its figures are about below its title.
    pub(super) const fn over(self, span: &'static str) -> TableColumn {
        TableColumn(self.0, self.1, span)
    }
}

/// The beginning of a table. `name` tells tables apart for the script.
pub(super) fn begin_table(
    out: &mut String,
    name: &str,
    caption: &str,
    columns: &[TableColumn],
    can_sort: bool,
) {
    out.push_str(&format!(
        "<table data-key=\"{name}\"><caption>{caption}</caption><thead><tr>"
    ));
    let sorts = if can_sort { " data-sort" } else { "" };
    for TableColumn(title, class, span) in columns {
        out.push_str(&format!(
            "<th scope=\"col\" class=\"{class}\"{sorts}>{title}"
        ));
        if !span.is_empty() {
            out.push_str(&format!("<br><small>{span}</small>"));
        }
        out.push_str("</th>");
    }
    out.push_str("</tr></thead><tbody>");
}

/// The end of a table.
pub(super) fn end_table(out: &mut String) {
    out.push_str("</tbody></table>");
}

/// A cell with a number: what is shown, and what it is sorted by.
pub(super) fn number(
    out: &mut String,
    class: &str,
    shown: impl fmt::Display,
    value: impl fmt::Display,
) {
    out.push_str(&format!(
        "<td class=\"{class}\" data-v=\"{value}\">{shown}</td>"
    ));
}

/// The longest text of a client on the page, in characters.
const TEXT_CHARS_MAX: usize = 200;
