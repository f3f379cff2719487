//! The charts over the last five minutes: stages, latency, and the small lines beside the figures.

use std::fmt::Write;

use petrel_engine::ledger::Stage;

use super::markup::stage_class;
use crate::status::model::{COLUMN_S, StageGroup, Status};
use crate::status::text::{Micros, Percent, ShownCount};

/// How many seconds charts show.
pub(super) const SECONDS: usize = 300;
/// Seconds of a point of the small lines.
const LINE_STEP_S: usize = 3;
/// The height of the chart of stages, in its own units.
const HEIGHT: f64 = 1000.0;

/// A line over the last five minutes, filled below. Its points are means of [`LINE_STEP_S`] seconds.
pub(super) fn line(out: &mut String, values: &[u64]) {
    let values = &values[values.len().saturating_sub(SECONDS)..];
    let lead = values.len() % LINE_STEP_S;
    let points: Vec<u64> = values[lead..]
        .chunks(LINE_STEP_S)
        .map(|chunk| chunk.iter().sum())
        .collect();
    let top = points.iter().copied().max().unwrap_or(0).max(1) as f64;
    let first = SECONDS / LINE_STEP_S - points.len();
    let mut path = String::new();
    for (index, value) in points.iter().enumerate() {
        let y = 99.0 - *value as f64 * 95.0 / top;
        let command = if index == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{command}{} {y:.0}", first + index);
    }
    let width = SECONDS / LINE_STEP_S - 1;
    let _ = write!(
        out,
        "<svg class=\"line\" viewBox=\"0 0 {width} 100\" preserveAspectRatio=\"none\" aria-hidden=\"true\">"
    );
    if points.len() > 1 {
        let _ = write!(
            out,
            "<path class=\"fill\" d=\"{path}V100H{first}z\"/><path class=\"stroke\" d=\"{path}\"/>"
        );
    }
    out.push_str("</svg>");
}

/// The time of each stage, stacked. The height is how many requests were in the stage at once, on the
/// average of a second.
pub(super) fn stages(out: &mut String, status: &Status) {
    let seconds = &status.seconds;
    let length = seconds.requests.len().min(SECONDS);
    let first = SECONDS - length;
    let mut below = vec![0_u64; length];
    let mut areas: Vec<(Stage, Vec<(u64, u64)>)> = Vec::new();
    for stage in StageGroup::ALL.iter().flat_map(|group| group.stages()) {
        let Some(times) = seconds.stage_us.get(stage.name()) else {
            continue;
        };
        let times = &times[times.len().saturating_sub(length)..];
        let mut area = Vec::with_capacity(length);
        for (below, time) in below.iter_mut().zip(times) {
            area.push((*below, *below + time));
            *below += time;
        }
        areas.push((stage, area));
    }
    let top_us = nice(below.iter().copied().max().unwrap_or(0));
    let y = |time: u64| HEIGHT - time as f64 * HEIGHT / top_us as f64;
    out.push_str("<div class=\"plot\"><div class=\"scale\" aria-hidden=\"true\">");
    for part in [4, 3, 2, 1, 0] {
        let _ = write!(out, "<span>{}</span>", ChartNumber(top_us * part / 4));
    }
    let _ = write!(
        out,
        "</div><svg class=\"chart\" viewBox=\"0 0 {} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"Time of requests by stage, over the last five minutes\">\
         <path class=\"grid\" d=\"M0 250H{SECONDS}M0 500H{SECONDS}M0 750H{SECONDS}\"/>",
        SECONDS - 1
    );
    for (stage, area) in &areas {
        // Too thin to be seen; it still lifts the areas above it.
        let is_seen = |(low, high): &(u64, u64)| y(*low) - y(*high) >= 1.0;
        if area.len() < 2 || !area.iter().any(is_seen) {
            continue;
        }
        let _ = write!(out, "<path class=\"area s-{}\" d=\"", stage.name());
        let upper = area
            .iter()
            .enumerate()
            .map(|(index, (_, high))| (index, y(*high)));
        edge(out, 'M', first, upper);
        let lower = area
            .iter()
            .enumerate()
            .map(|(index, (low, _))| (index, y(*low)));
        edge(out, 'L', first, lower.rev());
        out.push_str("z\"/>");
    }
    columns(out, status, length);
    out.push_str("</svg></div>");
    time_axis(out);
}

/// One edge of an area. Points within a level stretch are left out.
fn edge(
    out: &mut String,
    mut command: char,
    first: usize,
    points: impl ExactSizeIterator<Item = (usize, f64)>,
) {
    let last = points.len().saturating_sub(1);
    let mut before = f64::NAN;
    let mut held = None;
    for (number, (index, y)) in points.enumerate() {
        let y = y.round();
        if y == before && number < last {
            held = Some(index);
            continue;
        }
        if let Some(index) = held.take() {
            let _ = write!(out, "L{} {before}", first + index);
        }
        let _ = write!(out, "{command}{} {y}", first + index);
        command = 'L';
        before = y;
    }
}

/// How many requests took how long: a stronger colour is more.
pub(super) fn latency(out: &mut String, status: &Status) {
    let all = &status.seconds.latency;
    let length = all.len().min(SECONDS);
    let recent = &all[all.len() - length..];
    let mut grid: Vec<Vec<u64>> = Vec::new();
    // Columns end where the newest second ends.
    let lead = (COLUMN_S - length % COLUMN_S) % COLUMN_S;
    for (index, histogram) in recent.iter().enumerate() {
        let column = (index + lead) / COLUMN_S;
        grid.resize_with(grid.len().max(column + 1), Vec::new);
        add_histogram(&mut grid[column], histogram);
    }
    let rows = status.latency_bounds_us.len() + 1;
    let has = |row: usize| {
        grid.iter()
            .any(|column| column.get(row).is_some_and(|n| *n > 0))
    };
    let lowest = (0..rows).find(|row| has(*row)).unwrap_or(0);
    let highest = (0..rows).rev().find(|row| has(*row)).unwrap_or(0);
    let highest = highest
        .max(lowest + ROWS_MIN - 1)
        .min(rows.max(ROWS_MIN) - 1);
    let lowest = lowest.min(highest + 1 - ROWS_MIN);
    let shown = highest - lowest + 1;
    let most = grid.iter().flatten().copied().max().unwrap_or(0);
    let first = SECONDS / COLUMN_S - grid.len().min(SECONDS / COLUMN_S);
    let mut levels: [String; LEVELS] = Default::default();
    for row in lowest..=highest {
        let mut column = 0;
        while column < grid.len() {
            let level = level_of(grid[column].get(row).copied().unwrap_or(0), most);
            let begin = column;
            while column < grid.len()
                && level_of(grid[column].get(row).copied().unwrap_or(0), most) == level
            {
                column += 1;
            }
            if let Some(level) = level {
                let (x, y, width) = (first + begin, highest - row, column - begin);
                let _ = write!(levels[level], "M{x} {y}h{width}v1h-{width}z");
            }
        }
    }
    out.push_str("<div class=\"plot\"><div class=\"scale rows\" aria-hidden=\"true\">");
    for row in (lowest..=highest).rev() {
        out.push_str("<span>");
        if let Some(label) = decade(&status.latency_bounds_us, row) {
            out.push_str(label);
        }
        out.push_str("</span>");
    }
    let _ = write!(
        out,
        "</div><svg class=\"chart heat\" viewBox=\"0 0 {} {shown}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"How many requests took how long, over the last five minutes\">",
        SECONDS / COLUMN_S
    );
    for (level, path) in levels.iter().enumerate() {
        if !path.is_empty() {
            let _ = write!(out, "<path class=\"h{}\" d=\"{path}\"/>", level + 1);
        }
    }
    heat_columns(out, status, &grid, first, shown);
    out.push_str("</svg></div>");
    time_axis(out);
}

/// Invisible columns with a description each, which the script shows under the pointer.
fn columns(out: &mut String, status: &Status, length: usize) {
    let seconds = &status.seconds;
    let shown = |values: &[u64], from: usize| -> u64 {
        let offset = values.len().saturating_sub(length);
        values.iter().skip(offset + from).take(COLUMN_S).sum()
    };
    let mut end = length;
    while end > 0 {
        let from = end.saturating_sub(COLUMN_S);
        let width = end - from;
        let mut stages: Vec<(&str, u64)> = seconds
            .stage_us
            .iter()
            .map(|(name, values)| (name.as_str(), shown(values, from)))
            .filter(|(_, time)| *time > 0)
            .collect();
        stages.sort_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(other.0)));
        let total: u64 = stages.iter().map(|(_, time)| time).sum();
        let _ = write!(
            out,
            "<rect class=\"column\" x=\"{}\" width=\"{width}\" height=\"{HEIGHT}\"><title>{}: {} requests/s",
            SECONDS - length + from,
            ago(length - end),
            ShownCount(shown(&seconds.requests, from) as f64 / width as f64),
        );
        for (name, time) in stages.iter().take(4) {
            let _ = write!(out, ", {name} {}", Percent(*time, total));
        }
        out.push_str("</title></rect>");
        end = from;
    }
}

fn heat_columns(out: &mut String, status: &Status, grid: &[Vec<u64>], first: usize, rows: usize) {
    let columns = &status.latency.columns;
    let times = &columns[columns.len().saturating_sub(grid.len())..];
    for (index, histogram) in grid.iter().enumerate() {
        let time = ago((grid.len() - 1 - index) * COLUMN_S);
        let _ = write!(
            out,
            "<rect class=\"column\" x=\"{}\" width=\"1\" height=\"{rows}\"><title>{time}: ",
            first + index
        );
        let times = times.get(index).copied().flatten();
        let _ = match times {
            Some(times) => write!(
                out,
                "{} requests, half within {}, 99 % within {}, all within {}",
                ShownCount(histogram.iter().sum::<u64>() as f64),
                Micros(times.p50_us),
                Micros(times.p99_us),
                Micros(times.max_us)
            ),
            None => out.write_str("no requests"),
        };
        out.push_str("</title></rect>");
    }
}

/// Adds the counts of `more` to `sum`.
fn add_histogram(sum: &mut Vec<u64>, more: &[u64]) {
    if sum.len() < more.len() {
        sum.resize(more.len(), 0);
    }
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

/// The legend: each group with its stages and their parts of the time.
pub(super) fn legend(out: &mut String, status: &Status) {
    let sum = |stage: Stage| -> u64 {
        let times = status.seconds.stage_us.get(stage.name());
        times.map_or(0, |times| times.iter().rev().take(SECONDS).sum())
    };
    let total: u64 = Stage::ALL.iter().map(|stage| sum(*stage)).sum();
    out.push_str("<ul class=\"legend\">");
    for group in StageGroup::ALL {
        let mut stages: Vec<(Stage, u64)> = group
            .stages()
            .map(|stage| (stage, sum(stage)))
            .filter(|(_, time)| *time > 0)
            .collect();
        stages.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        let time: u64 = stages.iter().map(|(_, time)| time).sum();
        stages.truncate(LEGEND_STAGES);
        let name = group.name();
        let _ = write!(
            out,
            "<li><span class=\"stage\"><span class=\"key g-{name}\"></span><b>{name}</b> \
             <span class=\"n\">{}</span></span><ul>",
            Percent(time, total)
        );
        for (stage, time) in stages {
            let name = stage.name();
            let _ = write!(
                out,
                "<li class=\"stage\" title=\"{}\"><span class=\"key {}\"></span>{name} <span class=\"n\">{}</span></li>",
                super::markup::Text(stage.meaning()),
                stage_class(name),
                Percent(time, total)
            );
        }
        out.push_str("</ul></li>");
    }
    out.push_str("</ul>");
}

fn time_axis(out: &mut String) {
    out.push_str(
        "<div class=\"times\" aria-hidden=\"true\"><span>5 min ago</span><span>4</span><span>3</span>\
         <span>2</span><span>1</span><span>now</span></div>",
    );
}

fn ago(seconds: usize) -> String {
    match seconds {
        0 => "now".to_owned(),
        _ => format!("{} ago", crate::status::text::Age(seconds as u64)),
    }
}

/// A round number that is not below `value`: 1, 2, 4 or 8 and zeros, in microseconds.
fn nice(value: u64) -> u64 {
    let mut step = 1_000;
    loop {
        for factor in [1, 2, 4, 8] {
            if step * factor >= value || step >= u64::MAX / 100 {
                return step * factor;
            }
        }
        step *= 10;
    }
}

/// Seconds a second, without superfluous zeros.
struct ChartNumber(u64);

impl std::fmt::Display for ChartNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.4}", self.0 as f64 / 1e6);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// The label of a row whose bucket begins at a power of ten, or is the first above it.
fn decade(bounds_us: &[u64], row: usize) -> Option<&'static str> {
    let low = row
        .checked_sub(1)
        .and_then(|row| bounds_us.get(row))
        .copied()?;
    let before = row
        .checked_sub(2)
        .and_then(|row| bounds_us.get(row))
        .copied();
    let passes = |mark: u64| before.unwrap_or(0) < mark && low >= mark;
    let known = DECADES.iter().find(|(mark, _)| passes(*mark))?;
    Some(known.1)
}

/// The level of a field; `None` without requests. Levels are steps of equal factors.
fn level_of(count: u64, most: u64) -> Option<usize> {
    if count == 0 {
        return None;
    }
    let part = (count as f64).ln_1p() / (most.max(1) as f64).ln_1p();
    Some(((part * LEVELS as f64) as usize).min(LEVELS - 1))
}

const LEGEND_STAGES: usize = 4;
const LEVELS: usize = 6;
const ROWS_MIN: usize = 8;
const DECADES: [(u64, &str); 8] = [
    (10, "10 µs"),
    (100, "100 µs"),
    (1_000, "1 ms"),
    (10_000, "10 ms"),
    (100_000, "100 ms"),
    (1_000_000, "1 s"),
    (10_000_000, "10 s"),
    (100_000_000, "100 s"),
];
