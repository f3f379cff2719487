//! A table with bars. Each column has its own scale, from zero (or logarithmic).

use crate::gnuplot::Data;
use crate::machine::Machine;
use crate::report::number;
use petrel_plot::svg::{COLOURS, rectangle, text};
use std::path::Path;
use std::{fs, io};

/// A drawing.
pub struct Chart {
    /// What is shown.
    pub title: &'static str,
    /// How it was measured.
    pub note: &'static str,
    /// The groups of bars.
    pub columns: Vec<Column>,
    /// The names of the rows.
    pub rows: Vec<String>,
}

/// A group of bars, one for each row.
pub struct Column {
    /// What its bars are.
    pub title: String,
    /// How long a bar is.
    pub scale: Scale,
    /// The value of a bar that fills the column; `None` for that of the longest bar.
    pub full: Option<f64>,
    /// One value per row.
    pub values: Vec<Option<f64>>,
}

/// What the length of a bar means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// It is proportional to the value.
    Linear,
    /// From [`LOGARITHM_ZERO`].
    Logarithmic,
}

impl Chart {
    /// Writes `NAME.svg`, and data and a script for gnuplot beside it. Without rows it writes nothing.
    pub fn write(&self, machine: &Machine, directory: &Path, name: &str) -> io::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        fs::write(directory.join(format!("{name}.svg")), self.svg(machine))?;
        let titles = self.columns.iter().map(|column| column.title.as_str());
        let mut data = Data::new(self.title, titles);
        // Columns of one unit have one scale.
        if self.columns.iter().any(|column| column.full.is_none()) {
            data = data.apart();
        }
        for (n, row) in self.rows.iter().enumerate() {
            let values = self.columns.iter();
            data.row(
                row,
                values.map(|column| column.values.get(n).copied().flatten()),
            );
        }
        data.write(directory, name)
    }

    fn label_width(&self) -> f64 {
        let longest = self.rows.iter().map(|row| row.chars().count()).max();
        (longest.unwrap_or(0) as f64 * CHARACTER_WIDTH + 10.0).max(LABEL_WIDTH_MIN)
    }

    fn svg(&self, machine: &Machine) -> String {
        let label_width = self.label_width();
        let width = MARGIN + label_width + self.columns.len() as f64 * COLUMN_WIDTH;
        let height = HEADER + BAR_STEP * self.rows.len() as f64 + FOOTER;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        let bold = "font-size=\"18\" font-weight=\"bold\"";
        text(&mut out, (MARGIN, 28.0), bold, self.title);
        text(&mut out, (MARGIN, 47.0), "fill=\"#666\"", self.note);
        for (n, row) in self.rows.iter().enumerate() {
            let base = HEADER + BAR_STEP * n as f64 + BAR_HEIGHT - 4.0;
            let place = (MARGIN + label_width - 10.0, base);
            text(&mut out, place, "text-anchor=\"end\"", row);
        }
        for (n, column) in self.columns.iter().enumerate() {
            let x = MARGIN + label_width + n as f64 * COLUMN_WIDTH;
            let colour = COLOURS.get(n % COLOURS.len()).copied().unwrap_or("#000");
            column.draw(&mut out, x, colour);
        }
        let words = format!(
            "{}, {} cores, Linux {}",
            machine.processor, machine.cores, machine.kernel
        );
        let style = "fill=\"#666\" font-size=\"11\"";
        text(&mut out, (MARGIN, height - 12.0), style, &words);
        out + "</svg>\n"
    }
}

impl Column {
    fn draw(&self, out: &mut String, x: f64, colour: &str) {
        let bold = "font-weight=\"bold\"";
        text(out, (x, HEADER - 10.0), bold, &self.title);
        let longest = self.values.iter().flatten().copied();
        let longest = longest.fold(f64::MIN_POSITIVE, f64::max);
        let full = self.full.unwrap_or(longest).max(f64::MIN_POSITIVE);
        for (n, value) in self.values.iter().enumerate() {
            let y = HEADER + BAR_STEP * n as f64;
            let base = y + BAR_HEIGHT - 4.0;
            let Some(value) = value else {
                text(out, (x + 6.0, base), "fill=\"#999\"", "no figure");
                continue;
            };
            let length = BAR_LENGTH * self.scale.share(*value, full);
            let paint = format!("fill=\"{colour}\"");
            rectangle(out, (x, y), (length, BAR_HEIGHT), &paint);
            text(out, (x + length + 6.0, base), "", &number(*value));
        }
        let height = BAR_STEP * self.values.len() as f64;
        rectangle(out, (x - 1.0, HEADER - 3.0), (1.0, height), "fill=\"#333\"");
    }
}

impl Scale {
    /// The share of the column that a bar fills, from 0 to 1.
    fn share(self, value: f64, full: f64) -> f64 {
        let share = match self {
            Self::Linear => value / full,
            Self::Logarithmic => {
                let decades = (value.max(LOGARITHM_ZERO) / LOGARITHM_ZERO).log10();
                decades / (full / LOGARITHM_ZERO).log10()
            }
        };
        share.clamp(0.0, 1.0)
    }
}

const MARGIN: f64 = 24.0;
const LABEL_WIDTH_MIN: f64 = 140.0;
/// Of a letter of a usual sans-serif font.
const CHARACTER_WIDTH: f64 = 6.5;
const COLUMN_WIDTH: f64 = 240.0;
/// Leaves room for the figure after a bar.
const BAR_LENGTH: f64 = 170.0;
const BAR_HEIGHT: f64 = 16.0;
const BAR_STEP: f64 = 22.0;
const HEADER: f64 = 92.0;
const FOOTER: f64 = 34.0;
/// Milliseconds: less than any latency.
const LOGARITHM_ZERO: f64 = 0.01;
/// Milliseconds: the time that a client waits at most.
pub const LOGARITHM_FULL: f64 = 100_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_scale_says() {
        assert_eq!(Scale::Linear.share(5.0, 10.0), 0.5);
        assert_eq!(Scale::Linear.share(20.0, 10.0), 1.0);
        assert_eq!(Scale::Logarithmic.share(0.0, LOGARITHM_FULL), 0.0);
        let middle = Scale::Logarithmic.share(31.622_776_6, LOGARITHM_FULL);
        assert!((middle - 0.5).abs() < 1e-6, "{middle}");
    }
}
