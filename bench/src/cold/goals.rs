//! What Petrel must reach with cold files. One line per goal; goals whose cells were not measured are left
//! out.
//!
//! First bytes are those of bodies: a server that sends the head before it has looked at the content gains
//! nothing.

use super::report::in_second;
use super::results::{Cell, Figures, Results};
use crate::report::{aligned, number};

/// The goals that can be judged.
pub fn text(results: &Results) -> String {
    let mut rows = vec![
        ["", "measured", "", "wanted", ""]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(GOALS.iter().filter_map(|goal| goal.row(results)));
    if rows.len() == 1 {
        return String::new();
    }
    format!("\nGoals, with {CLIENTS} clients\n{}", aligned(&rows))
}

struct Goal {
    title: &'static str,
    workload: &'static str,
    figure: fn(&Figures) -> f64,
    wanted: Wanted,
}

enum Wanted {
    AtLeast(f64),
    AtMost(f64),
    /// More than the same figure of that server in the same comparison.
    MoreThan(&'static str),
    /// Less than that.
    LessThan(&'static str),
}

impl Goal {
    fn row(&self, results: &Results) -> Option<Vec<String>> {
        let median = |server| {
            let cell = results.cell(self.workload, server, CLIENTS);
            cell.and_then(|cell: &Cell| cell.median(self.figure))
        };
        let measured = median("petrel")?;
        let (word, wanted, reached) = match self.wanted {
            Wanted::AtLeast(least) => ("≥", least, measured >= least),
            Wanted::AtMost(most) => ("≤", most, measured <= most),
            Wanted::MoreThan(server) => {
                let other = median(server)?;
                (">", other, measured > other)
            }
            Wanted::LessThan(server) => {
                let other = median(server)?;
                ("<", other, measured < other)
            }
        };
        Some(vec![
            self.title.to_owned(),
            number(measured),
            word.to_owned(),
            number(wanted),
            if reached { "met" } else { "MISSED" }.to_owned(),
        ])
    }
}

const fn goal(
    title: &'static str,
    workload: &'static str,
    figure: fn(&Figures) -> f64,
    wanted: Wanted,
) -> Goal {
    Goal {
        title,
        workload,
        figure,
        wanted,
    }
}

const fn beside_hot(title: &'static str, figure: fn(&Figures) -> f64, most: f64) -> Goal {
    goal(title, "hot-beside-cold", figure, Wanted::AtMost(most))
}

static GOALS: &[Goal] = &[
    goal(
        "100 kB, metadata cold: share of the limit for its reads a fetch",
        "small-cold",
        |one| one.of_limit,
        Wanted::AtLeast(0.97),
    ),
    goal(
        "100 kB, metadata cold: reads a fetch, fewer than Apache",
        "small-cold",
        |one| one.operations,
        Wanted::LessThan("apache"),
    ),
    goal(
        "100 kB, metadata cold: fetches/s, more than Apache",
        "small-cold",
        |one| one.cold.fetches_per_s,
        Wanted::MoreThan("apache"),
    ),
    goal(
        "100 kB, metadata warm: share of the limit",
        "small-warm",
        |one| one.of_limit,
        Wanted::AtLeast(0.98),
    ),
    beside_hot(
        "hot beside cold: 99th percentile, ms",
        |one| others(one, |beside| beside.latency.p99),
        2.0,
    ),
    beside_hot(
        "hot beside cold: mean, ms",
        |one| others(one, |beside| beside.latency.mean),
        0.3,
    ),
    goal(
        "hot at once: 99th percentile in the first second, ms",
        "hot-at-once",
        |one| others(one, |beside| in_second(beside, 0)),
        Wanted::AtMost(2.0),
    ),
    goal(
        "hot at once: the same in the worst of the first five, ms",
        "hot-at-once",
        |one| {
            others(one, |beside| {
                (0..5)
                    .map(|second| in_second(beside, second))
                    .fold(0.0, f64::max)
            })
        },
        Wanted::AtMost(2.0),
    ),
    beside_hot(
        "hot beside cold: lost",
        |one| others(one, |beside| beside.lost as f64),
        0.0,
    ),
    beside_hot(
        "cold beside hot: longest ÷ mean time to the first byte",
        |one| one.cold.body.max / one.cold.body.mean.max(1e-9),
        4.0,
    ),
    goal(
        "100 kB, metadata cold: longest ÷ mean time to the first byte",
        "small-cold",
        |one| one.cold.body.max / one.cold.body.mean.max(1e-9),
        Wanted::AtMost(4.0),
    ),
    goal(
        "10 MB: share of the sequential limit",
        "large",
        |one| one.of_limit,
        Wanted::AtLeast(0.8),
    ),
    goal(
        "10 MB: median time to the first byte, ms",
        "large",
        |one| one.cold.body.median,
        Wanted::AtMost(1000.0),
    ),
];

/// A figure of the additional clients. If there are none, no goal is reached.
fn others(figures: &Figures, of: fn(&super::results::Crowd) -> f64) -> f64 {
    figures.beside.as_ref().map_or(f64::INFINITY, of)
}

const CLIENTS: u16 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cold::testing::{figures, results};
    use crate::cold::workload::WORKLOADS;

    #[test]
    fn goals_name_workloads_that_exist() {
        for goal in GOALS {
            let exists = WORKLOADS.iter().any(|one| one.name == goal.workload);
            assert!(exists, "{}", goal.title);
        }
    }

    #[test]
    fn goals_are_met_or_missed() {
        let mut slow = figures(90.0);
        slow.of_limit = 0.5;
        slow.operations = 2.5;
        let mut apache = figures(95.0);
        apache.operations = 3.1;
        let results = results(&[
            ("small-cold", "petrel", "", Ok(slow)),
            ("small-cold", "apache", "", Ok(apache)),
        ]);
        let text = text(&results);
        let line = |words: &str| text.lines().find(|line| line.contains(words)).unwrap();
        assert!(line("share of the limit for").ends_with("MISSED"), "{text}");
        assert!(line("fewer than Apache").ends_with("met"), "{text}");
        assert!(line("more than Apache").ends_with("MISSED"), "{text}");
        assert!(!text.contains("10 MB"), "not measured: {text}");
    }

    #[test]
    fn goals_beside_hot_files_are_judged_by_the_hot_ones() {
        let mut run = figures(100.0);
        let mut hot = run.cold.clone();
        hot.latency.p99 = 1.5;
        hot.latency.mean = 0.4;
        run.beside = Some(hot);
        let results = results(&[("hot-beside-cold", "petrel", "", Ok(run))]);
        let text = text(&results);
        let line = |words: &str| text.lines().find(|line| line.contains(words)).unwrap();
        assert!(line("99th").ends_with("met"), "{text}");
        assert!(line("mean, ms").ends_with("MISSED"), "{text}");
    }
}
