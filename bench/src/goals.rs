//! What Petrel must reach, mostly as ratios of two cells of one comparison.
//!
//! One line per goal. Goals whose cells were not measured are left out, and so is the whole table if none
//! was.

use crate::report::aligned;
use crate::results::{Results, Summary};
use crate::workload::WORKLOADS;

/// The goals that can be judged, each with the usual number of connections.
pub fn text(results: &Results) -> String {
    let mut rows = vec![["", "is", "at most", ""].map(str::to_owned).to_vec()];
    rows.extend(GOALS.iter().filter_map(|goal| goal.row(results)));
    if rows.len() == 1 {
        return String::new();
    }
    format!(
        "\nGoals, ratios of CPU a request where they say nothing else\n{}",
        aligned(&rows)
    )
}

struct Goal {
    title: &'static str,
    of: Place,
    /// The divisor; `None` if the figure itself counts.
    to: Option<Place>,
    figure: fn(&Summary) -> Option<f64>,
    ratio_max: f64,
}

/// A server and a workload.
type Place = (&'static str, &'static str);

impl Goal {
    fn row(&self, results: &Results) -> Option<Vec<String>> {
        let figure = |(server, workload): Place| {
            let known = WORKLOADS.iter().find(|one| one.name == workload)?;
            let connections = *known.usual_connections().first()?;
            let cell = results.cell(server, workload, connections)?;
            cell.summary().and_then(self.figure)
        };
        let divisor = match self.to {
            Some(place) => figure(place)?,
            None => 1.0,
        };
        let ratio = figure(self.of)? / divisor;
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

/// Server CPU per request.
const fn goal(title: &'static str, of: Place, to: Place, ratio_max: f64) -> Goal {
    Goal {
        title,
        of,
        to: Some(to),
        figure: |summary| Some(summary.cpu_us.median),
        ratio_max,
    }
}

/// The same workload with Petrel and with another server.
const fn beside(
    title: &'static str,
    workload: &'static str,
    server: &'static str,
    ratio_max: f64,
) -> Goal {
    goal(title, (PETREL, workload), (server, workload), ratio_max)
}

/// A figure of Petrel alone.
const fn own(
    title: &'static str,
    workload: &'static str,
    figure: fn(&Summary) -> Option<f64>,
    max: f64,
) -> Goal {
    Goal {
        to: None,
        figure,
        ..goal(title, (PETREL, workload), (PETREL, workload), max)
    }
}

fn connection_kib(summary: &Summary) -> Option<f64> {
    summary.connection_kib.map(|spread| spread.median)
}

/// Server and backend CPU per request; without a backend the server's.
const fn both_sides(title: &'static str, of: Place, to: Place, ratio_max: f64) -> Goal {
    Goal {
        figure: |summary| Some(summary.both_cpu_us.unwrap_or(summary.cpu_us).median),
        ..goal(title, of, to, ratio_max)
    }
}

/// A counterpart of Apache's fastest way to answer a URL that is no file.
const fn story(title: &'static str, workload: &'static str) -> Goal {
    both_sides(
        title,
        (PETREL, workload),
        ("apache", "stat-noht-trans"),
        0.25,
    )
}

static GOALS: &[Goal] = &[
    beside(
        "10,000 files, just changed: Petrel ÷ lighttpd",
        "tree-young",
        "lighttpd",
        0.75,
    ),
    beside(
        "FastCGI by TCP: Petrel ÷ nginx",
        "fastcgi-tcp",
        "nginx",
        0.72,
    ),
    beside("php-fpm by TCP: Petrel ÷ nginx", "php-tcp", "nginx", 0.8),
    both_sides(
        "PHP, both sides: Petrel and php-fpm ÷ Apache with mod_php",
        (PETREL, "php-inside"),
        ("apache", "php-inside"),
        1.0,
    ),
    story("a document root: Petrel ÷ Apache, noht+trans", "root-3"),
    story("alias.url: Petrel ÷ Apache, noht+trans", "alias-3"),
    story(
        "a FastCGI route, both sides: Petrel ÷ Apache, noht+trans",
        "route-3",
    ),
    story("a Lua script: Petrel ÷ Apache, noht+trans", "script-3"),
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
    both_sides(
        "behind Petrel, both sides: fcgi-magnet ÷ php-fpm",
        ("petrel", "fcgi-lua"),
        ("petrel", "fcgi-php"),
        0.6,
    ),
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
    beside(
        "a log-in, remembered: Petrel ÷ nginx",
        "login-remembered",
        "nginx",
        0.9,
    ),
    beside(
        "a log-in, remembered: Petrel ÷ lighttpd",
        "login-remembered",
        "lighttpd",
        0.9,
    ),
    beside(
        "a log-in, remembered: Petrel ÷ Apache",
        "login-remembered",
        "apache",
        0.9,
    ),
    beside(
        "a log-in, hashed: Petrel ÷ nginx",
        "login-first",
        "nginx",
        0.9,
    ),
    beside(
        "a log-in, hashed: Petrel ÷ lighttpd",
        "login-first",
        "lighttpd",
        0.9,
    ),
    beside(
        "a log-in, hashed: Petrel ÷ Apache",
        "login-first",
        "apache",
        0.9,
    ),
    beside("1 rule: Petrel ÷ nginx", "rewrite-1-hit", "nginx", 0.9),
    beside(
        "1 rule: Petrel ÷ lighttpd",
        "rewrite-1-hit",
        "lighttpd",
        0.9,
    ),
    beside("1 rule: Petrel ÷ Apache", "rewrite-1-hit", "apache", 0.9),
    beside("50 rules: Petrel ÷ nginx", "rewrite-50-hit", "nginx", 0.9),
    beside(
        "50 rules: Petrel ÷ lighttpd",
        "rewrite-50-hit",
        "lighttpd",
        0.9,
    ),
    beside("50 rules: Petrel ÷ Apache", "rewrite-50-hit", "apache", 0.9),
    beside(
        "50 rules, no match: Petrel ÷ nginx",
        "rewrite-50-miss",
        "nginx",
        0.9,
    ),
    beside(
        "50 rules, no match: Petrel ÷ lighttpd",
        "rewrite-50-miss",
        "lighttpd",
        0.9,
    ),
    beside(
        "50 rules, no match: Petrel ÷ Apache",
        "rewrite-50-miss",
        "apache",
        0.9,
    ),
    beside(
        "10,000 rules: Petrel ÷ nginx",
        "rewrite-10000-hit",
        "nginx",
        0.9,
    ),
    beside(
        "10,000 rules: Petrel ÷ lighttpd",
        "rewrite-10000-hit",
        "lighttpd",
        0.9,
    ),
    beside(
        "10,000 rules: Petrel ÷ Apache",
        "rewrite-10000-hit",
        "apache",
        0.9,
    ),
    beside(
        "10,000 rules, no match: Petrel ÷ nginx",
        "rewrite-10000-miss",
        "nginx",
        0.9,
    ),
    beside(
        "10,000 rules, no match: Petrel ÷ lighttpd",
        "rewrite-10000-miss",
        "lighttpd",
        0.9,
    ),
    beside(
        "10,000 rules, no match: Petrel ÷ Apache",
        "rewrite-10000-miss",
        "apache",
        0.9,
    ),
    beside("HTTP/2 over TLS, 4 KiB: Petrel ÷ h2o", "h2-4k", "h2o", 0.9),
    beside(
        "HTTP/2 over TLS, 4 KiB: Petrel ÷ lighttpd",
        "h2-4k",
        "lighttpd",
        0.9,
    ),
    beside(
        "HTTP/2 in the clear, 4 KiB: Petrel ÷ h2o",
        "h2c-4k",
        "h2o",
        0.9,
    ),
    own(
        "HTTP/2 in the clear, 4 KiB: system calls a request",
        "h2c-4k",
        |summary| {
            let calls = &summary.system_calls;
            calls.tracer.map(|_| calls.total)
        },
        1.5,
    ),
    beside(
        "HTTP/1.1 over TLS, 4 KiB: Petrel ÷ lighttpd",
        "tls-4k",
        "lighttpd",
        0.9,
    ),
    beside(
        "HTTP/1.1 over TLS, 4 KiB: Petrel ÷ nginx",
        "tls-4k",
        "nginx",
        0.9,
    ),
    beside(
        "HTTP/1.1 over TLS, 4 KiB: Petrel ÷ h2o",
        "tls-4k",
        "h2o",
        0.9,
    ),
    beside(
        "HTTP/1.1 over TLS, 1 MiB: Petrel ÷ nginx",
        "tls-1m",
        "nginx",
        1.0,
    ),
    beside(
        "HTTP/1.1 over TLS, 10 MiB: Petrel ÷ nginx",
        "tls-10m",
        "nginx",
        1.0,
    ),
    beside(
        "HTTP/2 over TLS, 1 MiB: Petrel ÷ nginx",
        "h2-1m",
        "nginx",
        1.0,
    ),
    beside(
        "HTTP/2 over TLS, 10 MiB: Petrel ÷ nginx",
        "h2-10m",
        "nginx",
        1.0,
    ),
    beside("full handshake: Petrel ÷ nginx", "handshake", "nginx", 1.0),
    beside("resumed handshake: Petrel ÷ nginx", "resumed", "nginx", 1.0),
    own(
        "connection that waits, HTTP/1.1 over TLS: KiB",
        "tls-idle",
        connection_kib,
        8.0,
    ),
    own(
        "connection that waits, HTTP/2 over TLS: KiB",
        "h2-idle",
        connection_kib,
        12.0,
    ),
];
const PETREL: &str = "petrel";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::PEERS;

    #[test]
    fn goals_name_servers_and_workloads_that_exist() {
        for goal in GOALS {
            for (server, workload) in [Some(goal.of), goal.to].into_iter().flatten() {
                let workload = WORKLOADS.iter().find(|one| one.name == workload).unwrap();
                let peer = PEERS.iter().find(|peer| peer.name == server).unwrap();
                assert!(peer.serves.contains(&workload.needs), "{}", goal.title);
                assert!(!workload.usual_connections().is_empty());
            }
        }
    }
}
