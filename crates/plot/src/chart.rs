//! Draws a [`Summary`] as SVG: stage times by time, percentiles of the stages, routes, and the slowest
//! requests.
//!
//! The SVG is written directly, since it consists of rectangles and texts. Names and paths come from a log
//! and pass through `svg::text`, which escapes them.

use crate::summary::{Route, Slow, Summary};
use crate::svg::{OTHERS, colour_of, rectangle, text};
use crate::time;

/// A part of the drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Panel {
    /// The mean stage times, stacked, over the time of the log.
    Time,
    /// Percentiles of each stage.
    Stage,
    /// The mean stage times of each route.
    Route,
    /// The slowest requests.
    Slowest,
}

impl Panel {
    /// All of them, from above to below.
    pub const ALL: [Panel; 4] = [Panel::Time, Panel::Stage, Panel::Route, Panel::Slowest];
}

/// Draws `panels` of `summary` under the title `title`.
pub fn draw(summary: &Summary, panels: &[Panel], title: &str) -> String {
    let palette = Palette::of(summary);
    let mut body = String::new();
    let mut y = MARGIN + 22.0;
    text(
        &mut body,
        (MARGIN, y),
        "font-size=\"18\" font-weight=\"bold\"",
        title,
    );
    y += 20.0;
    let mut facts = format!("{} requests", grouped(summary.requests));
    if summary.bad > 0 {
        facts += &format!(", {} lines not understood", grouped(summary.bad));
    }
    text(&mut body, (MARGIN, y), GREY, &facts);
    y = palette.draw(&mut body, y + 14.0) + 10.0;
    for panel in panels {
        y = match panel {
            Panel::Time => timeline(&mut body, y, summary, &palette),
            Panel::Stage => percentiles(&mut body, y, summary, &palette),
            Panel::Route => routes(&mut body, y, summary, &palette),
            Panel::Slowest => slowest(&mut body, y, summary, &palette),
        };
    }
    let height = y + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

/// Stages that are drawn apart; the rest of the time is drawn as one.
const STAGES_MAX: usize = 8;

/// The stages that took most time, which have their own colours.
struct Palette {
    stages: Vec<(usize, String)>,
    has_others: bool,
}

impl Palette {
    fn of(summary: &Summary) -> Palette {
        let stages = summary.stages_by_time();
        let named = stages.iter().take(STAGES_MAX);
        Palette {
            stages: named
                .map(|stage| (*stage, summary.names.name(*stage).to_owned()))
                .collect(),
            has_others: stages.len() > STAGES_MAX,
        }
    }

    fn colour(&self, stage: usize) -> &'static str {
        let mut own = self.stages.iter().filter(|(known, _)| *known == stage);
        own.next().map_or(OTHERS, |(_, name)| colour_of(name))
    }

    /// The parts of `total` in the order of the palette, with their colours. What belongs to no stage of the
    /// palette is last.
    fn parts(&self, total: u64, of: impl Fn(usize) -> u64) -> Vec<(u64, &'static str)> {
        let mut parts: Vec<_> = self
            .stages
            .iter()
            .map(|(stage, _)| (of(*stage), self.colour(*stage)))
            .collect();
        let named = sum(parts.iter().map(|(nanos, _)| *nanos));
        parts.push((total.saturating_sub(named), OTHERS));
        parts
    }

    fn draw(&self, out: &mut String, y: f64) -> f64 {
        let others = self.has_others.then_some("all others");
        let names = self
            .stages
            .iter()
            .map(|(_, name)| name.as_str())
            .chain(others);
        let (mut x, mut y) = (MARGIN, y);
        for name in names {
            let width = 30.0 + 7.5 * name.len() as f64;
            if x + width > WIDTH - MARGIN {
                (x, y) = (MARGIN, y + 20.0);
            }
            rectangle(out, (x, y), (12.0, 12.0), &fill(colour_of(name)));
            text(out, (x + 17.0, y + 11.0), "", name);
            x += width;
        }
        y + 24.0
    }
}

fn heading(out: &mut String, y: f64, words: &str, note: &str) -> f64 {
    text(out, (MARGIN, y + 16.0), "font-weight=\"bold\"", words);
    text(
        out,
        (MARGIN + 8.0 * words.len() as f64 + 12.0, y + 16.0),
        GREY,
        note,
    );
    y + 28.0
}

fn timeline(out: &mut String, y: f64, summary: &Summary, palette: &Palette) -> f64 {
    let timeline = &summary.timeline;
    let note = match summary.has_times {
        true => {
            let width = shown(timeline.width.unsigned_abs().saturating_mul(1_000));
            format!("mean of the requests that ended within {width}, stacked by stage")
        }
        false => format!("mean of {} requests each, stacked by stage", timeline.width),
    };
    let y = heading(out, y, "Over time", &note);
    let (left, width) = (MARGIN + LABEL, WIDTH - 2.0 * MARGIN - LABEL);
    let mean = |part: &Route| part.total / part.requests.max(1);
    let largest = timeline.parts.iter().map(mean).max().unwrap_or(0).max(1);
    let bottom = y + CHART_HEIGHT;
    for quarter in 0..=4 {
        let line = bottom - CHART_HEIGHT * f64::from(quarter) / 4.0;
        rectangle(out, (left, line), (width, 0.5), &fill("#ccc"));
        let value = shown(largest * quarter as u64 / 4);
        text(out, (left - 6.0, line + 4.0), RIGHT, &value);
    }
    let step = width / timeline.parts.len().max(1) as f64;
    for (n, part) in timeline.parts.iter().enumerate() {
        let requests = part.requests.max(1);
        let mut top = bottom;
        let of = |stage| part.stages.get(stage).copied().unwrap_or(0);
        for (nanos, colour) in palette.parts(part.total, of) {
            let height = CHART_HEIGHT * (nanos / requests) as f64 / largest as f64;
            if height < 0.05 {
                continue;
            }
            top -= height;
            // A little wider than the step, so that no gaps show.
            let place = (left + step * n as f64, top);
            rectangle(out, place, (step + 0.2, height), &fill(colour));
        }
    }
    let length = timeline.width.saturating_mul(timeline.parts.len() as i64);
    let end = timeline.begin.saturating_add(length);
    let (from, to) = match summary.has_times {
        true => (
            format!("{} UTC", time::shown(timeline.begin)),
            time::shown(end),
        ),
        false => ("the first request".to_owned(), "the last one".to_owned()),
    };
    text(out, (left, bottom + 18.0), GREY, &from);
    let right = format!("{GREY} {RIGHT}");
    text(out, (left + width, bottom + 18.0), &right, &to);
    bottom + 36.0
}

fn percentiles(out: &mut String, y: f64, summary: &Summary, palette: &Palette) -> f64 {
    let note = "bars from the median to the 99th percentile, on a logarithmic scale";
    let mut y = heading(out, y, "Stages", note);
    let columns = ["share", "50 %", "90 %", "99 %", "99.9 %", "max"];
    let column = |n: usize| MARGIN + LABEL + 68.0 * (n + 1) as f64;
    for (n, name) in columns.iter().enumerate() {
        text(out, (column(n), y + 12.0), &format!("{GREY} {RIGHT}"), name);
    }
    y += ROW;
    let bars = column(columns.len() - 1) + 16.0;
    // What takes less than a microsecond is of no interest here.
    let magnitude = |nanos: u64| (nanos.max(1_000) as f64 / 1e3).ln();
    let scale = (WIDTH - MARGIN - bars) / magnitude(summary.total.max().max(2_000));
    let of = summary.requests;
    let stages = summary.stages_by_time();
    let rows = stages.iter().filter_map(|stage| {
        let name = summary.names.name(*stage);
        Some((name, summary.stages.get(*stage)?, palette.colour(*stage)))
    });
    for (name, histogram, colour) in [("total", &summary.total, "#333")].into_iter().chain(rows) {
        text(out, (MARGIN + LABEL, y + 12.0), RIGHT, name);
        let share = 100.0 * histogram.sum() as f64 / summary.total.sum().max(1) as f64;
        let values = [500, 900, 990, 999].map(|part| histogram.percentile(part, of));
        let texts = values.map(shown);
        let texts = [format!("{share:.1} %")].into_iter().chain(texts);
        for (n, value) in texts.chain([shown(histogram.max())]).enumerate() {
            text(out, (column(n), y + 12.0), RIGHT, &value);
        }
        let place = |nanos: u64| bars + scale * magnitude(nanos);
        let (from, to) = (place(values[0]), place(values[2]));
        rectangle(
            out,
            (from, y + 3.0),
            ((to - from).max(1.5), 10.0),
            &fill(colour),
        );
        y += ROW;
    }
    y + GAP
}

fn routes(out: &mut String, y: f64, summary: &Summary, palette: &Palette) -> f64 {
    let routes = summary.routes();
    let more = match routes.len().saturating_sub(ROUTES) {
        0 => String::new(),
        more => format!("; {} more are left out", grouped(more as u64)),
    };
    let note = format!("mean of a request; those first that took most time in all{more}");
    let mut y = heading(out, y, "Routes", &note);
    let mean = |route: &Route| route.total / route.requests.max(1);
    let shown_routes = || routes.iter().take(ROUTES);
    let largest = shown_routes()
        .map(|(_, route)| mean(route))
        .max()
        .unwrap_or(0);
    for (name, route) in shown_routes() {
        let of = |stage| route.stages.get(stage).copied().unwrap_or(0) / route.requests.max(1);
        let label = format!("{} × {}", grouped(route.requests), shown(mean(route)));
        bar(
            out,
            y,
            (name, &label),
            palette.parts(mean(route), of),
            largest,
        );
        y += ROW;
    }
    y + GAP
}

fn slowest(out: &mut String, y: f64, summary: &Summary, palette: &Palette) -> f64 {
    let mut y = heading(out, y, "Slowest requests", "with the number of the line");
    let largest = summary.slowest.first().map_or(0, |slow| slow.entry.total);
    for Slow { line, entry } in &summary.slowest {
        let of = |stage| {
            let of_stage = entry.stages.iter().filter(|(known, _)| *known == stage);
            sum(of_stage.map(|(_, nanos)| *nanos))
        };
        let label = format!("{}, line {line}", shown(entry.total));
        let name = String::from_utf8_lossy(&entry.path);
        bar(
            out,
            y,
            (&name, &label),
            palette.parts(entry.total, of),
            largest,
        );
        y += ROW;
    }
    y + GAP
}

/// A name, a bar of parts, and a label behind it. `largest` fills the width.
fn bar(
    out: &mut String,
    y: f64,
    (name, label): (&str, &str),
    parts: Vec<(u64, &'static str)>,
    largest: u64,
) {
    let left = MARGIN + NAME;
    text(out, (left - 6.0, y + 12.0), RIGHT, &cut(name));
    let scale = (WIDTH - MARGIN - left - 170.0) / largest.max(1) as f64;
    let mut x = left;
    for (nanos, colour) in parts {
        let width = nanos as f64 * scale;
        if width < 0.05 {
            continue;
        }
        rectangle(out, (x, y), (width, 15.0), &fill(colour));
        x += width;
    }
    text(out, (x + 6.0, y + 12.0), "", label);
}

/// At most the 36 last characters, which differ most.
fn cut(name: &str) -> String {
    let count = name.chars().count();
    match count.checked_sub(36) {
        None | Some(0) => name.to_owned(),
        Some(more) => format!("…{}", name.chars().skip(more + 1).collect::<String>()),
    }
}

/// A duration for readers, with two or three digits.
fn shown(nanos: u64) -> String {
    let value = nanos as f64;
    match nanos {
        0 => "0".to_owned(),
        1..10_000 => format!("{:.1} µs", value / 1e3),
        10_000..1_000_000 => format!("{:.0} µs", value / 1e3),
        1_000_000..10_000_000 => format!("{:.1} ms", value / 1e6),
        10_000_000..1_000_000_000 => format!("{:.0} ms", value / 1e6),
        1_000_000_000..100_000_000_000 => format!("{:.1} s", value / 1e9),
        _ => format!("{:.0} s", value / 1e9),
    }
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A line can claim anything.
fn sum(times: impl Iterator<Item = u64>) -> u64 {
    times.fold(0, u64::saturating_add)
}

fn fill(colour: &str) -> String {
    format!("fill=\"{colour}\"")
}

const GREY: &str = "fill=\"#666\"";
const RIGHT: &str = "text-anchor=\"end\"";
const WIDTH: f64 = 960.0;
const MARGIN: f64 = 24.0;
const LABEL: f64 = 130.0;
const NAME: f64 = 270.0;
const CHART_HEIGHT: f64 = 260.0;
const ROW: f64 = 20.0;
const GAP: f64 = 16.0;
const ROUTES: usize = 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::Format;
    use crate::line::Lines;

    fn summary(log: &str) -> Summary {
        let mut summary = Summary::new(&["parse", "send"]);
        let lines = Lines::Format(Format::parse("%{sec}t %U %{stages}x").expect("sound"));
        summary
            .read(&mut log.as_bytes(), &lines, &mut |_, _| Ok(()))
            .expect("in memory");
        summary
    }

    #[test]
    fn an_empty_log_is_drawn() {
        let svg = draw(&summary(""), &Panel::ALL, "nothing");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn stages_are_stacked_to_the_total() {
        let found = summary("1 /a parse=250,send=750,total=1000\n");
        let svg = draw(&found, &[Panel::Route], "t");
        let width = |colour: &str| -> f64 {
            let end = format!("height=\"15.0\" {}/>", fill(colour));
            let line = svg
                .lines()
                .find(|line| line.ends_with(&end))
                .expect("a bar");
            let (_, rest) = line.split_once("width=\"").expect("a width");
            rest.split('"')
                .next()
                .expect("a number")
                .parse()
                .expect("a number")
        };
        let full = WIDTH - MARGIN - MARGIN - NAME - 170.0;
        assert!(
            (width(colour_of("send")) - full * 0.75).abs() < 0.2,
            "send took more"
        );
        assert!((width(colour_of("parse")) - full * 0.25).abs() < 0.2);
    }

    #[test]
    fn what_a_client_sent_cannot_change_the_drawing() {
        let svg = draw(&summary("1 /<script>&\u{1} total=9\n"), &Panel::ALL, "t");
        assert!(svg.contains(">/&lt;script>&amp;?</text>"), "{svg}");
        assert!(!svg.contains("<script"), "{svg}");
    }

    #[test]
    fn more_stages_than_colours_share_the_last_one() {
        let stages: Vec<_> = (0..12).map(|n| format!("s{n}={}", n + 1)).collect();
        let svg = draw(
            &summary(&format!("1 /a {},total=78\n", stages.join(","))),
            &Panel::ALL,
            "t",
        );
        assert!(svg.contains(">all others</text>"), "{svg}");
        assert!(
            svg.contains(">s0</text>"),
            "every stage has its percentiles"
        );
    }

    #[test]
    fn claims_that_no_server_makes_are_drawn() {
        let stages = "parse=34000000000000,".repeat(2_000);
        let log = format!("-9223372036854 /a total=1\n9223372036854 /a {stages}total=1\n");
        let svg = draw(&summary(&log), &Panel::ALL, "t");
        assert!(svg.contains("2 requests"), "{svg}");
    }

    #[test]
    fn lines_without_a_time_are_in_their_order() {
        let mut summary = Summary::new(&[]);
        let lines = Lines::Format(Format::parse("%{stages}x").expect("sound"));
        let log = "total=1\n".repeat(20_000);
        let read = summary.read(&mut log.as_bytes(), &lines, &mut |_, _| Ok(()));
        read.expect("in memory");
        let svg = draw(&summary, &[Panel::Time], "t");
        assert!(svg.contains("mean of 15625 requests each"), "{svg}");
        assert!(!svg.contains("1970"), "{svg}");
    }

    #[test]
    fn numbers_are_short() {
        let times = [
            0,
            87,
            999_999,
            2_100_000,
            412_000_000,
            2_100_000_000,
            180_000_000_000,
        ];
        let shown = times.map(shown);
        assert_eq!(
            shown,
            [
                "0", "0.1 µs", "1000 µs", "2.1 ms", "412 ms", "2.1 s", "180 s"
            ]
        );
        assert_eq!(
            (grouped(1_234_567), grouped(12)),
            ("1,234,567".to_owned(), "12".to_owned())
        );
        assert_eq!(cut(&"x".repeat(40)).chars().count(), 36);
    }

    /// Draws `log` as each kind of lines.
    fn draw_each(log: &[u8]) {
        let formats = [
            "%{sec}t %U %{stages}x",
            "%t \\\"%r\\\" %{stages}x",
            "%{nsec}t %h%u %{stages}x",
        ];
        let of_formats = formats.map(|format| Lines::Format(Format::parse(format).expect("sound")));
        for lines in of_formats.into_iter().chain([Lines::Json, Lines::Timing]) {
            let mut summary = Summary::new(&["parse"]);
            let read = summary.read(&mut &*log, &lines, &mut |_, _| Ok(()));
            read.expect("in memory");
            let svg = draw(&summary, &Panel::ALL, "t");
            assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
        }
    }

    proptest! {
        #[test]
        fn no_log_is_a_panic(log in proptest::collection::vec(any::<u8>(), 0..400)) {
            draw_each(&log);
        }

        #[test]
        fn no_line_is_a_panic(
            log in "(-?[0-9]{0,20} /[ -~]{0,9} ([a-z-]{0,9}=[0-9]{0,19},){0,4}total=[0-9]{0,18}\n){0,4}",
            json in "(\\{\"time\":\"[0-9TZ:.+-]{0,30}\",\"total_ns\":[0-9]{1,20},\"stages_ns\":\\{\"a\":[0-9]{1,20}\\}\\}\n){0,4}",
            timing in "(\\(timing\\) write-start: [0-9.]{0,20} a b c d e f g h i (a=[0-9.]{0,20} ){0,3}us request=\"[ -~]{0,9}\"\n){0,4}",
        ) {
            draw_each(log.as_bytes());
            draw_each(json.as_bytes());
            draw_each(timing.as_bytes());
        }
    }
}
