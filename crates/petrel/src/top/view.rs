//! The views of `petrel top`, as lines of text with colours of the terminal.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Instant;

use engine::ledger::Stage;
use modules::status::model::{
    FpmStatus, Percentiles, RequestStatus, RouteStatus, StageGroup, Status, mean_of_last,
};
use modules::status::text::{Age, Bytes, Foreign, Micros, Percent, ShownCount, span};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

/// What is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Overview,
    Backends,
    Slowest,
    Workers,
}

impl View {
    pub(super) const ALL: [View; 4] =
        [View::Overview, View::Backends, View::Slowest, View::Workers];

    pub(super) const fn name(self) -> &'static str {
        match self {
            View::Overview => "overview",
            View::Backends => "backends",
            View::Slowest => "slowest",
            View::Workers => "workers",
        }
    }

    /// Its lines, none much longer than `width`.
    pub(super) fn lines(self, status: &Status, rates: &Rates, width: usize) -> Vec<Line<'static>> {
        match self {
            View::Overview => overview(status, rates, width),
            View::Backends => backends(status, width),
            View::Slowest => slowest(status, width),
            View::Workers => workers(status, width),
        }
    }
}

/// Requests a second that ended, of each route, from the counts that were seen.
#[derive(Default)]
pub(super) struct Rates {
    seen: HashMap<String, Vec<(Instant, u64)>>,
}

impl Rates {
    /// Notes the counts of `status`, which came at `now`.
    pub(super) fn note(&mut self, status: &Status, now: Instant) {
        self.seen
            .retain(|route, _| status.routes.iter().any(|known| known.route == *route));
        for route in &status.routes {
            let seen = match self.seen.entry(route.route.clone()) {
                Entry::Occupied(seen) => seen.into_mut(),
                Entry::Vacant(new) => new.insert(Vec::new()),
            };
            seen.push((now, route.requests));
            if seen.len() > RATE_SAMPLES {
                seen.remove(0);
            }
        }
    }

    fn of(&self, route: &str) -> Option<f64> {
        let seen = self.seen.get(route)?;
        let ((from, before), (to, after)) = (seen.first()?, seen.last()?);
        let seconds = to.duration_since(*from).as_secs_f64();
        (seconds > 0.0).then(|| after.saturating_sub(*before) as f64 / seconds)
    }
}

fn overview(status: &Status, rates: &Rates, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![server_line(status)];
    lines.extend(figures(status));
    lines.push(Line::default());
    lines.extend(chart(status, width));
    lines.push(legend(status));
    lines.push(Line::default());
    lines.extend(routes(status, rates, width));
    lines
}

fn server_line(status: &Status) -> Line<'static> {
    let server = &status.server;
    let mut spans = vec![
        Span::styled(format!("petrel {}", foreign(&server.version)), strong()),
        Span::styled(
            format!(
                "  up {}  configuration {}  pid {}",
                Age(server.uptime_s),
                server.generation,
                server.pid
            ),
            quiet(),
        ),
    ];
    if server.is_draining {
        spans.push(Span::styled("  draining", troubled()));
    }
    Line::from(spans)
}

/// The figures of the whole server: a line for each time that figures are about.
fn figures(status: &Status) -> Vec<Line<'static>> {
    let (seconds, totals) = (&status.seconds, &status.totals);
    let rate = |values: &[u64]| format!("{}/s", ShownCount(mean_of_last(values, RECENT_S)));
    let minute = |values: &[u64]| {
        let sum: u64 = values.iter().rev().take(60).sum();
        ShownCount(sum as f64).to_string()
    };
    let time = |of| time_text(status.latency.minute, of);
    let sent = Bytes(mean_of_last(&seconds.sent_bytes, RECENT_S));
    let lag = seconds.lag_max_us.iter().rev().take(RECENT_S).max();
    vec![
        figure_line(
            span::SECONDS,
            &[
                ("requests ended", rate(&seconds.requests)),
                ("begun", rate(&seconds.begun)),
                ("sent", format!("{sent}/s")),
                ("worst lag", Micros(lag.copied().unwrap_or(0)).to_string()),
            ],
        ),
        figure_line(
            span::MINUTE,
            &[
                ("half within", time(|times| times.p50_us)),
                ("99 % within", time(|times| times.p99_us)),
                ("failed", minute(&seconds.status.server_errors)),
                ("aborted", minute(&seconds.status.aborted)),
                ("4xx", minute(&seconds.status.client_errors)),
            ],
        ),
        figure_line(
            span::NOW,
            &[
                (
                    "open requests",
                    ShownCount(totals.open_requests as f64).to_string(),
                ),
                (
                    "connections",
                    ShownCount(totals.connections as f64).to_string(),
                ),
            ],
        ),
    ]
}

fn figure_line(span: &'static str, figures: &[(&str, String)]) -> Line<'static> {
    let mut spans = vec![Span::styled(format!("{span:<SPAN_COLUMNS$}"), quiet())];
    for (name, value) in figures {
        spans.push(Span::styled(format!("{name} "), quiet()));
        spans.push(Span::styled(format!("{value}   "), strong()));
    }
    Line::from(spans)
}

/// The time of requests by group of stages, over the last five minutes, stacked.
fn chart(status: &Status, width: usize) -> Vec<Line<'static>> {
    let seconds = &status.seconds;
    let room = width.saturating_sub(LABEL_COLUMNS).max(1);
    let step = CHART_SECONDS.div_ceil(room).max(1);
    let columns = CHART_SECONDS.div_ceil(step);
    // For each column, the newest last, the requests that were in each group of stages at once.
    let mut stacks = vec![[0.0; StageGroup::ALL.len()]; columns];
    for (number, group) in StageGroup::ALL.into_iter().enumerate() {
        for stage in group.stages() {
            let Some(times) = seconds.stage_us.get(stage.name()) else {
                continue;
            };
            for (age, time) in times.iter().rev().take(CHART_SECONDS).enumerate() {
                stacks[columns - 1 - age / step][number] += *time as f64 / 1e6 / step as f64;
            }
        }
    }
    let highest = stacks
        .iter()
        .map(|stack| stack.iter().sum())
        .fold(0.0, f64::max);
    let top = nice(highest);
    let unit = top / CHART_LINES as f64;
    let mut lines = Vec::with_capacity(CHART_LINES + 1);
    for row in (0..CHART_LINES).rev() {
        let label = match row {
            row if row + 1 == CHART_LINES => format!("{top:>5} "),
            row if row * 2 == CHART_LINES => format!("{:>5} ", top / 2.0),
            _ => " ".repeat(LABEL_COLUMNS),
        };
        let mut spans = vec![Span::styled(label, quiet())];
        let low = row as f64 * unit;
        for stack in &stacks {
            let (block, group) = cell(stack, low, unit);
            spans.push(Span::styled(block, group.map_or(quiet(), style_of)));
        }
        lines.push(Line::from(spans));
    }
    let axis = format!(
        "{:>5} 5 min ago{:>pad$}",
        0,
        "now",
        pad = columns.saturating_sub(9)
    );
    lines.push(Line::styled(axis, quiet()));
    lines
}

/// The block between `low` and `low + unit` of a column, and the group that it belongs to.
fn cell(stack: &[f64], low: f64, unit: f64) -> (&'static str, Option<StageGroup>) {
    let total: f64 = stack.iter().sum();
    let filled = ((total - low) / unit).clamp(0.0, 1.0);
    let eighths = (filled * 8.0).round() as usize;
    let Some(block) = BLOCKS.get(eighths).filter(|_| eighths > 0) else {
        return (" ", None);
    };
    let middle = low + unit * filled / 2.0;
    let mut below = 0.0;
    let group = StageGroup::ALL
        .into_iter()
        .zip(stack)
        .find_map(|(group, height)| {
            below += height;
            (below >= middle).then_some(group)
        });
    (block, group)
}

fn legend(status: &Status) -> Line<'static> {
    let sum = |stage: Stage| -> u64 {
        let times = status.seconds.stage_us.get(stage.name());
        times.map_or(0, |times| times.iter().sum())
    };
    let total: u64 = Stage::ALL.iter().map(|stage| sum(*stage)).sum();
    let mut spans = vec![Span::raw(" ".repeat(LABEL_COLUMNS))];
    for group in StageGroup::ALL {
        let time: u64 = group.stages().map(sum).sum();
        let most = group.stages().max_by_key(|stage| sum(*stage));
        spans.push(Span::styled("█ ", style_of(group)));
        spans.push(Span::raw(format!(
            "{} {}",
            group.name(),
            Percent(time, total)
        )));
        match most.filter(|stage| sum(*stage) > 0) {
            Some(stage) => spans.push(Span::styled(format!(" ({})   ", stage.name()), quiet())),
            None => spans.push(Span::raw("   ")),
        }
    }
    Line::from(spans)
}

fn routes(status: &Status, rates: &Rates, width: usize) -> Vec<Line<'static>> {
    let all: u64 = status.routes.iter().map(|route| route.time_us).sum();
    let mut grid = Grid::new(&[
        ("", &["ROUTE"]),
        (span::TEN_SECONDS, &[">ENDED/S"]),
        (
            span::START,
            &[
                ">ENDED", ">HALF", ">99 %", ">FAILED", ">ABORTED", ">SENT", ">TIME", "STAGES",
            ],
        ),
    ]);
    for route in status.routes.iter().take(ROUTES_SHOWN) {
        let time = |of| time_text(route.percentiles, of);
        let (failed, aborted) = (route.status.server_errors, route.status.aborted);
        let now = rates.of(&route.route);
        grid.row(vec![
            vec![Span::raw(foreign(&route.route))],
            vec![Span::raw(now.map_or("-".to_owned(), |now| {
                format!("{}/s", ShownCount(now))
            }))],
            vec![Span::raw(ShownCount(route.requests as f64).to_string())],
            vec![Span::raw(time(|times| times.p50_us))],
            vec![Span::raw(time(|times| times.p99_us))],
            vec![Span::styled(
                ShownCount(failed as f64).to_string(),
                trouble_if(failed > 0),
            )],
            vec![Span::raw(ShownCount(aborted as f64).to_string())],
            vec![Span::raw(Bytes(route.sent_bytes as f64).to_string())],
            vec![Span::raw(Percent(route.time_us, all).to_string())],
            stages_of(route),
        ]);
    }
    grid.lines(width)
}

/// A bar with the groups of stages, and the name of the stage with the most time.
fn stages_of(route: &RouteStatus) -> Vec<Span<'static>> {
    let mut spans = Vec::new();
    let (mut before, mut drawn) = (0.0, 0);
    for group in StageGroup::ALL {
        let time: u64 = group.stages().map(|stage| route.stage_us.of(stage)).sum();
        before += time as f64 * BAR_COLUMNS as f64 / route.time_us.max(1) as f64;
        let to = (before.round() as usize).min(BAR_COLUMNS);
        if to > drawn {
            spans.push(Span::styled("█".repeat(to - drawn), style_of(group)));
            drawn = to;
        }
    }
    let most = Stage::ALL
        .iter()
        .max_by_key(|stage| route.stage_us.of(**stage));
    if let Some(stage) = most {
        let share = Percent(route.stage_us.of(*stage), route.time_us);
        spans.push(Span::styled(format!(" {} {share}", stage.name()), quiet()));
    }
    spans
}

fn backends(status: &Status, width: usize) -> Vec<Line<'static>> {
    if status.backends.is_empty() {
        return vec![Line::styled(
            "No backends are configured, or none was needed yet.",
            quiet(),
        )];
    }
    let mut sorted: Vec<_> = status.backends.iter().collect();
    sorted.sort_by_key(|backend| {
        std::cmp::Reverse((backend.is_troubled(), backend.waiting, backend.connections))
    });
    let mut grid = Grid::new(&[
        ("", &["BACKEND"]),
        (span::NOW, &["STATE", ">CONNECTIONS", ">WAITING"]),
        (
            span::START,
            &[">REQUESTS", ">FIRST BYTE, HALF", ">99 %", ">FAILED"],
        ),
        ("", &["ADDRESS"]),
    ]);
    let mut holders = Vec::new();
    for backend in &sorted {
        let time = |of| time_text(backend.first_byte_percentiles, of);
        let connections = match backend.limit {
            Some(limit) => format!("{} of {limit}", backend.connections),
            None => backend.connections.to_string(),
        };
        let is_full = backend
            .limit
            .is_some_and(|limit| backend.connections >= limit);
        let failed = backend.died + backend.overloaded;
        grid.row(vec![
            vec![Span::styled(foreign(&backend.label), strong())],
            vec![Span::styled(
                foreign(&backend.state),
                trouble_if(backend.state != "up"),
            )],
            vec![Span::styled(connections, trouble_if(is_full))],
            vec![Span::styled(
                backend.waiting.to_string(),
                trouble_if(backend.waiting > 0),
            )],
            vec![Span::raw(ShownCount(backend.requests as f64).to_string())],
            vec![Span::raw(time(|times| times.p50_us))],
            vec![Span::raw(time(|times| times.p99_us))],
            vec![Span::raw(ShownCount(failed as f64).to_string())],
            vec![Span::styled(foreign(&backend.address), quiet())],
        ]);
        let held_by = backend.held_by();
        let shown = held_by
            .iter()
            .take(HOLDERS_SHOWN)
            .map(|(path, count, oldest)| {
                format!(
                    "    {count}× {}, oldest {}, client {}",
                    foreign(path),
                    Micros(oldest.age_ms.saturating_mul(1_000)),
                    foreign(&oldest.client)
                )
            });
        let fpm = backend.fpm.iter().flat_map(fpm_lines);
        holders.push(
            shown
                .chain(fpm)
                .map(|text| Line::styled(text, quiet()))
                .collect::<Vec<_>>(),
        );
    }
    let mut lines = grid.lines(width).into_iter();
    let mut all: Vec<Line<'static>> = lines.by_ref().take(HEAD_LINES).collect();
    for (line, holders) in lines.zip(holders) {
        all.push(line);
        all.extend(holders);
    }
    all
}

/// What php-fpm says of itself.
fn fpm_lines(fpm: &FpmStatus) -> Vec<String> {
    let mut lines = vec![format!("    {}", foreign(&fpm.to_string()))];
    for script in fpm.pool.iter().flat_map(|pool| &pool.scripts) {
        let (name, age) = (foreign(&script.name()), Micros(script.age_us));
        lines.push(format!("      {name}, {age}, process {}", script.pid));
    }
    let advice = fpm.advice.iter();
    lines.extend(advice.map(|advice| format!("    {}", foreign(advice))));
    lines
}

fn slowest(status: &Status, width: usize) -> Vec<Line<'static>> {
    if status.slowest.is_empty() {
        return vec![Line::styled("No slow requests were kept yet.", quiet())];
    }
    let mut lines = Vec::new();
    for request in &status.slowest {
        lines.extend(slow_request(status, request, width));
        lines.push(Line::default());
    }
    lines
}

fn slow_request(status: &Status, request: &RequestStatus, width: usize) -> Vec<Line<'static>> {
    let total = request.time_us;
    let age_s = status.server.now_ms.saturating_sub(request.ended_ms) / 1_000;
    let cause = request.cause.as_ref();
    let cause = cause.map_or(String::new(), |cause| format!("{}  ", foreign(cause)));
    let mut lines = vec![
        Line::from(vec![
            Span::styled(format!("{}  ", Micros(total)), strong()),
            Span::styled(
                request.status.to_string(),
                trouble_if(request.status >= 500),
            ),
            Span::raw(if request.is_aborted { ", aborted" } else { "" }),
            Span::raw(format!(
                "  {} {}",
                foreign(&request.method),
                foreign(&request.path)
            )),
        ]),
        Line::styled(
            format!(
                "{}  from {}  {}  {cause}{} ago  {}",
                foreign(&request.host),
                foreign(&request.client),
                foreign(&request.route),
                Age(age_s),
                foreign(&request.id)
            ),
            quiet(),
        ),
    ];
    let columns = width.saturating_sub(FALL_LABEL_COLUMNS).clamp(10, 60);
    let place = |time: u64| (time as f64 * columns as f64 / total.max(1) as f64) as usize;
    let mut at = 0;
    for stage in Stage::ALL {
        let time = request.stage_us.of(*stage);
        let from = at;
        at += time;
        if time == 0 || time * 100 < total {
            continue;
        }
        let left = place(from).min(columns - 1);
        let length = (place(at) - place(from)).clamp(1, columns - left);
        lines.push(Line::from(vec![
            Span::raw(format!(
                "  {:<20}{:>9}  ",
                stage.name(),
                Micros(time).to_string()
            )),
            Span::raw(" ".repeat(left)),
            Span::styled("█".repeat(length), style_of(StageGroup::of(*stage))),
        ]));
    }
    for wait in &request.waits {
        lines.push(Line::styled(
            format!(
                "  {} {}: {}",
                foreign(&wait.stage),
                Micros(wait.time_us),
                foreign(&wait.holder)
            ),
            Style::new().fg(Color::Yellow),
        ));
    }
    lines
}

fn time_text(times: Option<Percentiles>, of: fn(Percentiles) -> u64) -> String {
    times.map_or("-".to_owned(), |times| Micros(of(times)).to_string())
}

fn workers(status: &Status, width: usize) -> Vec<Line<'static>> {
    let mut grid = Grid::new(&[
        ("", &[">WORKER"]),
        (span::SECOND, &[">ENDED/S", ">BEGUN/S"]),
        (span::NOW, &[">CONNECTIONS", ">OPEN"]),
        (span::SECOND, &[">LAG", ">TURN"]),
        ("", &["LAST KEPT BUSY BY"]),
    ]);
    for worker in &status.workers {
        let hog = worker.hog.as_ref().map(|hog| {
            format!(
                "{}: {} in {}, {} ago",
                foreign(&hog.what),
                Micros(hog.ran_us),
                foreign(&hog.stage),
                Age(hog.ago_ms / 1_000)
            )
        });
        grid.row(vec![
            vec![Span::raw(worker.worker.to_string())],
            vec![Span::raw(
                ShownCount(worker.requests_per_s as f64).to_string(),
            )],
            vec![Span::raw(ShownCount(worker.begun_per_s as f64).to_string())],
            vec![Span::raw(worker.connections.to_string())],
            vec![Span::raw(worker.open_requests.to_string())],
            vec![Span::raw(Micros(worker.lag_max_us).to_string())],
            vec![Span::raw(Micros(worker.turn_max_us).to_string())],
            vec![Span::styled(hog.unwrap_or_default(), quiet())],
        ]);
    }
    let mut lines = grid.lines(width);
    lines.push(Line::default());
    lines.extend(disk_work(status, width));
    lines.push(Line::default());
    lines.extend(work(status, width));
    lines
}

/// For which request each worker works.
fn work(status: &Status, width: usize) -> Vec<Line<'static>> {
    let mut grid = Grid::new(&[
        ("", &[">WORKER"]),
        (span::NOW, &["WORKS FOR", ">FOR", "ID"]),
    ]);
    for worker in &status.workers {
        let Some(request) = &worker.works_for else {
            continue;
        };
        grid.row(vec![
            vec![Span::raw(worker.worker.to_string())],
            vec![Span::raw(foreign(&request.path))],
            vec![Span::raw(Micros(request.time_us).to_string())],
            vec![Span::raw(foreign(&request.id))],
        ]);
    }
    grid.lines(width)
}

fn disk_work(status: &Status, width: usize) -> Vec<Line<'static>> {
    let mut grid = Grid::new(&[
        ("", &["DISK WORK"]),
        (span::NOW, &[">RUNNING", ">QUEUED", ">STUCK"]),
        (span::START, &[">JOBS", ">RAN, MEAN", ">RAN, WORST"]),
    ]);
    for class in &status.disk.classes {
        let mean = class.run_us.checked_div(class.jobs).unwrap_or(0);
        grid.row(vec![
            vec![Span::raw(foreign(&class.name))],
            vec![Span::raw(class.running.to_string())],
            vec![Span::raw(class.queued.to_string())],
            vec![Span::styled(
                class.stuck.to_string(),
                trouble_if(class.stuck > 0),
            )],
            vec![Span::raw(ShownCount(class.jobs as f64).to_string())],
            vec![Span::raw(Micros(mean).to_string())],
            vec![Span::raw(Micros(class.run_max_us).to_string())],
        ]);
    }
    let mut lines = grid.lines(width);
    for device in &status.disk.devices {
        let oldest_us = device.oldest_ms.unwrap_or(0).saturating_mul(1_000);
        lines.push(Line::styled(
            format!(
                "{}: {} running, {} queued, oldest {}",
                foreign(device.mount.as_deref().unwrap_or(&device.device)),
                device.running,
                device.queued,
                Micros(oldest_us)
            ),
            trouble_if(oldest_us >= 1_000_000),
        ));
    }
    lines
}

/// A table. Titles that begin with `>` are those of columns whose cells are aligned to the right.
struct Grid {
    /// The time that some columns are about, and how many columns those are.
    spans: Vec<(&'static str, usize)>,
    rows: Vec<Vec<Vec<Span<'static>>>>,
    to_right: Vec<bool>,
}

impl Grid {
    /// A table with these columns, in groups: the time that the columns of a group are about, and their titles.
    fn new(groups: &[(&'static str, &[&'static str])]) -> Grid {
        let titles = || groups.iter().flat_map(|(_, titles)| titles.iter());
        let title =
            |title: &&'static str| vec![Span::styled(title.trim_start_matches('>'), quiet())];
        Grid {
            spans: groups
                .iter()
                .map(|(span, titles)| (*span, titles.len()))
                .collect(),
            rows: vec![titles().map(title).collect()],
            to_right: titles().map(|title| title.starts_with('>')).collect(),
        }
    }

    /// The line above the titles. The columns of a group are at least as wide as the time that they are about.
    fn span_line(&self, widths: &mut [usize]) -> Line<'static> {
        let (mut text, mut from) = (String::new(), 0);
        for (span, count) in &self.spans {
            let end = from + count;
            // The last column is as long as its cells, so the line does not go on above it.
            let drawn = end.min(self.to_right.len() - 1);
            let width: usize = widths[from..drawn].iter().map(|width| width + 2).sum();
            widths[from] += (span.len() + 2).saturating_sub(width);
            let rule = match span.is_empty() {
                true => String::new(),
                false => "─".repeat(width.saturating_sub(span.len() + 3)),
            };
            let width = width.max(span.len() + 2);
            text.push_str(&format!("{:<width$}", format!("{span} {rule}").trim_end()));
            from = end;
        }
        Line::styled(text, quiet())
    }

    fn row(&mut self, cells: Vec<Vec<Span<'static>>>) {
        self.rows.push(cells);
    }

    /// Its lines, the first [`HEAD_LINES`] of them those of the head. Cells that are longer than [`CELL_COLUMNS_MAX`] are cut, the last one at `width`.
    fn lines(self, width: usize) -> Vec<Line<'static>> {
        let length = |cell: &[Span<'static>]| cell.iter().map(Span::width).sum::<usize>();
        let mut widths = vec![0; self.to_right.len()];
        for row in &self.rows {
            for (known, cell) in widths.iter_mut().zip(row) {
                *known = length(cell).min(CELL_COLUMNS_MAX).max(*known);
            }
        }
        let last = widths.len().saturating_sub(1);
        let mut lines = Vec::with_capacity(HEAD_LINES - 1 + self.rows.len());
        lines.push(self.span_line(&mut widths));
        for row in self.rows {
            let mut spans = Vec::new();
            let mut used = 0;
            for (number, cell) in row.into_iter().enumerate() {
                let room = match number == last {
                    true => width.saturating_sub(used),
                    false => widths[number],
                };
                let cell = cut(cell, room);
                let pad = match number == last {
                    true => 0,
                    false => room.saturating_sub(length(&cell)),
                };
                if self.to_right[number] {
                    spans.push(Span::raw(" ".repeat(pad)));
                    spans.extend(cell);
                    spans.push(Span::raw("  "));
                } else {
                    spans.extend(cell);
                    spans.push(Span::raw(" ".repeat(pad + 2)));
                }
                used += widths[number] + 2;
            }
            lines.push(Line::from(spans));
        }
        lines
    }
}

/// A cell that is no wider than `room`.
fn cut(cell: Vec<Span<'static>>, room: usize) -> Vec<Span<'static>> {
    let mut left = room;
    let mut kept = Vec::new();
    for span in cell {
        if span.width() <= left {
            left -= span.width();
            kept.push(span);
            continue;
        }
        let mut text = String::new();
        for c in span.content.chars() {
            text.push(c);
            if Span::raw(text.as_str()).width() + 1 > left {
                text.pop();
                break;
            }
        }
        if left > 0 {
            text.push('…');
        }
        kept.push(Span::styled(text, span.style));
        break;
    }
    kept
}

/// Text of clients and files, without characters that a terminal would obey.
fn foreign(text: &str) -> String {
    Foreign {
        text,
        chars_max: TEXT_CHARS_MAX,
    }
    .to_string()
}

/// Colours of the terminal's own palette, so that they suit its background.
fn style_of(group: StageGroup) -> Style {
    Style::new().fg(match group {
        StageGroup::Waiting => Color::Red,
        StageGroup::BackendStatus => Color::Magenta,
        StageGroup::DiskStatus => Color::Yellow,
        StageGroup::Server => Color::Green,
        StageGroup::Client => Color::Blue,
    })
}

/// For what matters less.
pub(super) fn quiet() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

/// For what needs a look.
pub(super) fn troubled() -> Style {
    Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)
}

fn strong() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn trouble_if(is_so: bool) -> Style {
    match is_so {
        true => troubled(),
        false => Style::new(),
    }
}

/// 1, 2, 4 or 8 and zeros, or tenths, not below `value`.
fn nice(value: f64) -> f64 {
    let mut step = 0.01;
    while step < 1e9 {
        for factor in [1.0, 2.0, 4.0, 8.0] {
            if step * factor >= value {
                return step * factor;
            }
        }
        step *= 10.0;
    }
    step
}

const BLOCKS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// Seconds of which figures show the mean, as on the status page.
const RECENT_S: usize = 5;
const SPAN_COLUMNS: usize = 14;
/// The lines of a table above its rows.
const HEAD_LINES: usize = 2;
const CHART_SECONDS: usize = 300;
const CHART_LINES: usize = 8;
const LABEL_COLUMNS: usize = 6;
const BAR_COLUMNS: usize = 16;
const FALL_LABEL_COLUMNS: usize = 34;
const CELL_COLUMNS_MAX: usize = 32;
const TEXT_CHARS_MAX: usize = 200;
const ROUTES_SHOWN: usize = 20;
const HOLDERS_SHOWN: usize = 3;
/// Rates are means of the last ten seconds.
const RATE_SAMPLES: usize = 11;

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    pub(in crate::top) fn status() -> Status {
        Status::parse(include_str!("../../../../tests/fixtures/status.json"))
            .expect("the fixture is a status")
    }

    fn text(view: View, status: &Status, width: usize) -> String {
        let lines = view.lines(status, &Rates::default(), width);
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn each_view_names_who_holds_requests_up() {
        let status = status();
        let overview = text(View::Overview, &status, 110);
        assert!(overview.contains("mod_fastcgi .php"), "{overview}");
        assert!(overview.contains("(backend-queue)"), "{overview}");
        let backends = text(View::Backends, &status, 110);
        assert!(backends.contains("8 of 8"), "{backends}");
        assert!(
            backends.contains("8× /report.php, oldest 31.0 s, client 192.0.2.7"),
            "{backends}"
        );
        for line in [
            "    php-fpm www (dynamic): 8 of 8 children busy, listen queue 2, ",
            "\n      /cron (/srv/www/cron.php), 12.5 s, process 4111\n",
            "\n    4 requests waited 1.1 s in all in the last minute for 8 children; memory would allow 14\n",
        ] {
            assert!(backends.contains(line), "{line}\n{backends}");
        }
        let slowest = text(View::Slowest, &status, 110);
        assert!(slowest.contains("pool \"www\" full (8 of 8)"), "{slowest}");
        assert!(slowest.contains("  gw-reply-timeout  "), "{slowest}");
        let workers = text(View::Workers, &status, 110);
        assert!(
            workers.contains("/srv/lua/slow.lua: 41 ms in lua"),
            "{workers}"
        );
        let works_for = workers
            .lines()
            .find(|line| line.contains("5a1f0c9e77d2b384"));
        let words: Vec<_> = works_for.expect("a line").split_whitespace().collect();
        assert_eq!(words[..4], ["1", "/report.php", "31.0", "s"], "{workers}");
        assert!(
            workers.contains("/mnt/nfs: 4 running, 3 queued, oldest 2.1 s"),
            "{workers}"
        );
    }

    #[test]
    fn times_are_those_that_the_server_names() {
        let mut status = status();
        let times = Percentiles {
            p50_us: 7_100,
            p99_us: 2_300_000,
            max_us: 2_300_000,
        };
        status.latency.minute = Some(times);
        status.routes[0].percentiles = Some(times);
        status.backends[0].first_byte_percentiles = Some(times);
        let overview = text(View::Overview, &status, 110);
        assert!(
            overview.contains("half within 7.1 ms   99 % within 2.3 s"),
            "{overview}"
        );
        let shown = |text: &str, name: &str| {
            let mut lines = text.lines();
            let line = lines.find(|line| line.starts_with(name)).expect("a line");
            assert!(line.contains("  7.1 ms  "), "{line}");
            assert!(line.contains("  2.3 s  "), "{line}");
        };
        shown(&overview, &status.routes[0].route);
        shown(
            &text(View::Backends, &status, 110),
            &status.backends[0].label,
        );
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_by_much() {
        let status = status();
        for view in [View::Overview, View::Backends, View::Workers] {
            for line in view.lines(&status, &Rates::default(), 120) {
                assert!(line.width() <= 150, "{line}");
            }
        }
    }

    #[test]
    fn the_terminal_gets_no_control_characters_of_clients() {
        let mut status = status();
        let hostile = "/\u{1b}]0;title\u{7}\u{9b}31m\u{202e}/x";
        status.slowest[0].path = hostile.to_owned();
        status.slowest[0].waits[0].holder = hostile.to_owned();
        status.slowest[0].cause = Some(hostile.to_owned());
        let current = status.workers[0].works_for.get_or_insert_default();
        current.path = hostile.to_owned();
        current.id = hostile.to_owned();
        status.backends[0].label = hostile.to_owned();
        status.routes[0].route = hostile.to_owned();
        for view in View::ALL {
            let text = text(view, &status, 200);
            let obeyed = text
                .chars()
                .find(|c| c.is_control() && *c != '\n' || *c == '\u{202e}');
            assert_eq!(obeyed, None, "{text}");
        }
    }

    #[test]
    fn rates_are_means_of_what_was_seen() {
        let mut status = Status::default();
        status.routes.push(Default::default());
        let (mut rates, begin) = (Rates::default(), Instant::now());
        assert_eq!(rates.of(""), None);
        for second in 0..20 {
            status.routes[0].requests = 100 * second * second;
            rates.note(&status, begin + Duration::from_secs(second));
        }
        assert_eq!(rates.of(""), Some(100.0 * (19.0 * 19.0 - 9.0 * 9.0) / 10.0));
    }

    #[test]
    fn each_figure_stands_with_the_time_that_it_is_about() {
        let mut status = status();
        status.seconds.requests = vec![0; 60];
        status.seconds.begun = vec![23; 60];
        status.seconds.status.aborted = vec![1; 60];
        status.totals.open_requests = 23;
        let overview = text(View::Overview, &status, 110);
        for line in [
            "\nlast 5 s      requests ended 0/s   begun 23/s   sent ",
            "\nlast minute   half within ",
            "   aborted 60   4xx ",
            "\nnow           open requests 23   ",
        ] {
            assert!(overview.contains(line), "{line}\n{overview}");
        }
        let lines: Vec<&str> = overview.lines().collect();
        let titles = lines.iter().position(|line| line.starts_with("ROUTE"));
        let titles = titles.expect("the titles of the routes");
        let at = |line: usize, text: &str| {
            let found = lines[line].find(text);
            lines[line][..found.expect(text)].chars().count()
        };
        let since_start = at(titles - 1, "since start");
        assert!(
            at(titles, "ENDED/S") >= at(titles - 1, "last 10 s"),
            "{overview}"
        );
        assert!(at(titles, "ENDED/S") < since_start, "{overview}");
        assert!(at(titles, "FAILED") > since_start, "{overview}");
    }

    #[test]
    fn an_empty_status_is_shown() {
        for view in View::ALL {
            assert!(
                !view
                    .lines(&Status::default(), &Rates::default(), 80)
                    .is_empty()
            );
        }
    }
}
