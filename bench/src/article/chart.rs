//! The final table as one chart: a group of bars for each line, with one bar per server, all on one scale.

use super::final_table::{CONNECTIONS, Entry, ROWS, cell};
use crate::gnuplot::Data;
use crate::report::connections_title;
use crate::results::Results;
use petrel_plot::svg::{COLOURS, rectangle, text};
use std::path::Path;
use std::{fs, io};

/// Writes `final.svg`, and the same for gnuplot.
pub fn write(results: &Results, directory: &Path) -> io::Result<()> {
    fs::write(directory.join("final.svg"), svg(results))?;
    let mut data = Data::new(TITLE, results.servers.iter().copied());
    for row in ROWS.iter().filter(|row| row.was_run(results)) {
        let rate = |server: &&str| match row.entry(results, server) {
            Entry::Figures(summary) => Some(summary.requests_per_s.median),
            Entry::Nothing(_) => None,
        };
        data.row(row.title, results.servers.iter().map(rate));
    }
    data.write(directory, "final")
}

fn svg(results: &Results) -> String {
    let rows: Vec<_> = ROWS.iter().filter(|row| row.was_run(results)).collect();
    let rates = results.cells.iter().filter_map(|cell| cell.summary());
    let rates = rates.map(|summary| summary.requests_per_s.median);
    let scale = BAR_WIDTH_MAX / rates.fold(f64::MIN_POSITIVE, f64::max);
    let group = GROUP_GAP + BAR_STEP * results.servers.len() as f64;
    let height = HEADER + group * rows.len() as f64 + FOOTER;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let title = format!("{TITLE}, {}", connections_title(CONNECTIONS));
    let bold = "font-size=\"18\" font-weight=\"bold\"";
    text(&mut out, (MARGIN, 28.0), bold, &title);
    legend(&mut out, results);
    for (n, row) in rows.iter().enumerate() {
        let top = HEADER + group * n as f64;
        let name = (ZERO - 10.0, top + 12.0);
        let style = "text-anchor=\"end\" font-weight=\"bold\"";
        text(&mut out, name, style, row.title);
        if let Some((ms, rate)) = row.article {
            let words = format!("article: {rate:.0}/s, {ms:.1} ms");
            let place = (ZERO - 10.0, top + 27.0);
            text(&mut out, place, "text-anchor=\"end\" fill=\"#666\"", &words);
        }
        for (m, server) in results.servers.iter().enumerate() {
            let y = top + BAR_STEP * m as f64;
            let base = y + BAR_HEIGHT - 3.0;
            match row.entry(results, server) {
                Entry::Figures(summary) => {
                    let width = summary.requests_per_s.median * scale;
                    let paint = format!("fill=\"{}\"", colour(m));
                    rectangle(&mut out, (ZERO, y), (width, BAR_HEIGHT), &paint);
                    let place = (ZERO + width + 6.0, base);
                    text(&mut out, place, "", &cell(summary));
                }
                Entry::Nothing(why) => {
                    let words = format!("{server} {}", shorten(&why));
                    text(&mut out, (ZERO + 6.0, base), "fill=\"#999\"", &words);
                }
            }
        }
    }
    let axis = (1.0, group * rows.len() as f64 - GROUP_GAP + 8.0);
    rectangle(&mut out, (ZERO - 1.0, HEADER - 4.0), axis, "fill=\"#333\"");
    let machine = format!(
        "{}, {} cores, Linux {} · Apache's scripts in the server are Perl, the others' Lua",
        results.machine.processor, results.machine.cores, results.machine.kernel
    );
    let style = "fill=\"#666\" font-size=\"11\"";
    text(&mut out, (MARGIN, height - 12.0), style, &machine);
    out + "</svg>\n"
}

fn legend(out: &mut String, results: &Results) {
    for (n, server) in results.servers.iter().enumerate() {
        let x = MARGIN + LEGEND_STEP * n as f64;
        let paint = format!("fill=\"{}\"", colour(n));
        rectangle(out, (x, 44.0), (14.0, 12.0), &paint);
        text(out, (x + 20.0, 55.0), "", server);
    }
}

fn colour(n: usize) -> &'static str {
    COLOURS.get(n % COLOURS.len()).copied().unwrap_or("#000")
}

/// An error message may be long; the table has all of it.
fn shorten(why: &str) -> String {
    why.chars().take(REASON_CHARACTERS_MAX).collect()
}

const TITLE: &str = "print \"123\": requests a second";
const WIDTH: f64 = 940.0;
const MARGIN: f64 = 24.0;
/// The x position at which bars begin.
const ZERO: f64 = 210.0;
/// Leaves room for the figure after a bar.
const BAR_WIDTH_MAX: f64 = 560.0;
const BAR_HEIGHT: f64 = 13.0;
const BAR_STEP: f64 = 15.0;
const GROUP_GAP: f64 = 14.0;
const LEGEND_STEP: f64 = 110.0;
const HEADER: f64 = 80.0;
const FOOTER: f64 = 34.0;
const REASON_CHARACTERS_MAX: usize = 90;
