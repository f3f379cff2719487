//! What Petrel has to reach, as ratios of two cells of one comparison.
//!
//! One line a goal. Goals whose cells were not measured are left out, and so is the whole table when
//! none were.

use crate::report::aligned;
use crate::results::{Results, Summary};

/// The goals that can be judged, with 64 connections.
pub fn text(results: &Results) -> String {
    let mut rows = vec![["", "ratio", "at most", ""].map(str::to_owned).to_vec()];
    rows.extend(GOALS.iter().filter_map(|goal| goal.row(results)));
    if rows.len() == 1 {
        return String::new();
    }
    format!(
        "\nGoals, by CPU a request with {CONNECTIONS} connections\n{}",
        aligned(&rows)
    )
}

struct Goal {
    title: &'static str,
    of: Place,
    to: Place,
    figure: fn(&Summary) -> Option<f64>,
    ratio_max: f64,
}

/// A server and a workload.
type Place = (&'static str, &'static str);

impl Goal {
    fn row(&self, results: &Results) -> Option<Vec<String>> {
        let figure = |(server, workload): Place| {
            let cell = results.cell(server, workload, CONNECTIONS)?;
            cell.summary().and_then(self.figure)
        };
        let ratio = figure(self.of)? / figure(self.to)?;
        let reached = if ratio <= self.ratio_max {
            ""
        } else {
            "MISSED"
        };
        Some(vec![
            self.title.to_owned(),
            format!("{ratio:.2}"),
            format!("{:.2}", self.ratio_max),
            reached.to_owned(),
        ])
    }
}

/// Server CPU a request.
const fn goal(title: &'static str, of: Place, to: Place, ratio_max: f64) -> Goal {
    Goal {
        title,
        of,
        to,
        figure: |summary| Some(summary.cpu_us.median),
        ratio_max,
    }
}

static GOALS: &[Goal] = &[
    goal(
        "print 123: Petrel ÷ nginx with LuaJIT",
        ("petrel", "lua-print"),
        ("nginx", "lua-print"),
        1.0,
    ),
    goal(
        "print 123: Petrel ÷ lighttpd mod_magnet",
        ("petrel", "lua-print"),
        ("lighttpd", "lua-print"),
        0.85,
    ),
    goal(
        "a page: Petrel ÷ nginx with LuaJIT",
        ("petrel", "lua-page"),
        ("nginx", "lua-page"),
        0.9,
    ),
    goal(
        "the same in one script: Petrel ÷ nginx with LuaJIT",
        ("petrel", "lua-flat"),
        ("nginx", "lua-flat"),
        0.9,
    ),
    Goal {
        figure: |summary| summary.both_cpu_us.map(|both| both.median),
        ..goal(
            "behind Petrel, both sides: fcgi-magnet ÷ php-fpm",
            ("petrel", "fcgi-lua"),
            ("petrel", "fcgi-php"),
            0.6,
        )
    },
    goal(
        "100 B: Petrel's cache ÷ its file",
        ("petrel", "cache-100b"),
        ("petrel", "file-100b"),
        1.1,
    ),
    goal(
        "4 KiB: Petrel's cache ÷ its file",
        ("petrel", "cache-4k"),
        ("petrel", "file-4k"),
        1.1,
    ),
    goal(
        "100 KiB: Petrel's cache ÷ its file",
        ("petrel", "cache-100k"),
        ("petrel", "file-100k"),
        1.1,
    ),
];
const CONNECTIONS: u16 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::PEERS;
    use crate::workload::WORKLOADS;

    #[test]
    fn goals_name_servers_and_workloads_that_exist() {
        for goal in GOALS {
            for (server, workload) in [goal.of, goal.to] {
                let workload = WORKLOADS.iter().find(|one| one.name == workload).unwrap();
                let peer = PEERS.iter().find(|peer| peer.name == server).unwrap();
                assert!(peer.serves.contains(&workload.needs), "{}", goal.title);
                assert!(workload.suite.connections().contains(&CONNECTIONS));
            }
        }
    }
}
