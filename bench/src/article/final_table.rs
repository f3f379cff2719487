//! The article's last table: one line per way to answer `123`, one column per server.
//!
//! Where a server has no figure, a letter refers to the reason.

use crate::report::aligned;
use crate::results::{Cell, Outcome, Results, Summary};
use crate::workload::{Service, WORKLOADS};
use std::fmt::Write as _;

/// A line of the table.
pub struct Row {
    /// The workload's name.
    pub workload: &'static str,
    /// The name of this way in the article.
    pub title: &'static str,
    /// The article's figures: ms, and requests per second.
    pub article: Option<(f64, f64)>,
}

/// The article's lines in its order, with newer ones in between.
pub static ROWS: &[Row] = &[
    then("php-close", "PHP without keep-alive", 2.9, 345.0),
    then("php-reconnect", "PHP", 2.4, 416.0),
    since("php-kept", "PHP, FastCGI kept"),
    then("php-patched", "PHP patched, kept", 2.1, 465.0),
    since("php-fpm", "php-fpm, kept"),
    then("lua-fastcgi", "lua-fastcgi", 1.6, 625.0),
    then("in-core", "mod-magnet (Lua, Perl)", 0.6, 1700.0),
    since("cached", "page cache"),
    since("cml", "index.cml"),
    since("perl", "Perl, FCGI"),
    since("python", "Python, flup"),
    since("ruby", "Ruby, fcgi"),
];

/// The result of a line with a server.
pub enum Entry<'a> {
    /// It was measured.
    Figures(&'a Summary),
    /// It was not measured, for this reason.
    Nothing(String),
}

impl Row {
    /// The result of this line with a server.
    pub fn entry<'a>(&self, results: &'a Results, server: &str) -> Entry<'a> {
        match results.cell(server, self.workload, CONNECTIONS) {
            Some(Cell {
                outcome: Outcome::Figures(summary),
                ..
            }) => Entry::Figures(summary),
            Some(Cell {
                outcome: Outcome::Error(error),
                ..
            }) => Entry::Nothing(error.clone()),
            None => Entry::Nothing(self.why_not()),
        }
    }

    /// Whether the line was run with any server.
    pub fn was_run(&self, results: &Results) -> bool {
        let mut cells = results.cells.iter();
        cells.any(|cell| cell.workload == self.workload && cell.connections == CONNECTIONS)
    }

    /// Why a server was not measured.
    fn why_not(&self) -> String {
        let workload = WORKLOADS.iter().find(|one| one.name == self.workload);
        let reason = match workload.map(|workload| workload.needs) {
            Some(Service::KeepFastCgi) => "keeps no FastCGI connections: its figure is PHP's",
            Some(Service::PageCache(_)) => "has no cache for pages",
            Some(Service::Cml) => "has no mod_cml",
            Some(Service::Scripts) => "runs no scripts",
            _ => "cannot do that",
        };
        reason.to_owned()
    }
}

/// The table as text.
pub fn text(results: &Results) -> String {
    let mut reasons: Vec<String> = Vec::new();
    let mut head = vec![String::new(), "article".to_owned()];
    head.extend(results.servers.iter().map(|server| (*server).to_owned()));
    let mut rows = vec![head];
    for row in ROWS.iter().filter(|row| row.was_run(results)) {
        let article = row
            .article
            .map_or_else(String::new, |(ms, rate)| format!("{rate:.0}/s  {ms:.1} ms"));
        let mut line = vec![row.title.to_owned(), article];
        for server in &results.servers {
            line.push(match row.entry(results, server) {
                Entry::Figures(summary) => cell(summary),
                Entry::Nothing(why) => {
                    format!("– ({})", letter(&mut reasons, format!("{server} {why}")))
                }
            });
        }
        rows.push(line);
    }
    let mut out = format!(
        "\nThe article's final table: print \"123\", one connection, one request at a time. Requests a second and ms a\n\
         request; the article's machine was an AMD Duron of 1.3 GHz. {NOTE}\n\n{}",
        aligned(&rows)
    );
    for (n, reason) in reasons.iter().enumerate() {
        let _infallible = writeln!(out, "  ({}) {reason}", nth_letter(n));
    }
    out
}

/// `41234/s  0.024 ms`.
pub fn cell(summary: &Summary) -> String {
    let rate = summary.requests_per_s.median;
    format!("{rate:.0}/s  {:.3} ms", 1e3 / rate)
}

/// Explanations of the figures.
pub const NOTE: &str = "lighttpd makes a\nconnection for each FastCGI request; Apache's scripts in the server are Perl, the others' Lua.";
/// As in the article.
pub const CONNECTIONS: u16 = 1;

/// The letter for a reason. A new reason is added to the list.
fn letter(reasons: &mut Vec<String>, reason: String) -> char {
    let known = reasons.iter().position(|other| *other == reason);
    nth_letter(known.unwrap_or_else(|| {
        reasons.push(reason);
        reasons.len() - 1
    }))
}

fn nth_letter(n: usize) -> char {
    ('a'..='z').nth(n).unwrap_or('*')
}

const fn then(workload: &'static str, title: &'static str, ms: f64, rate: f64) -> Row {
    Row {
        workload,
        title,
        article: Some((ms, rate)),
    }
}

const fn since(workload: &'static str, title: &'static str) -> Row {
    Row {
        workload,
        title,
        article: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Suite, choose};

    #[test]
    fn every_workload_of_the_article_has_a_row() {
        let workloads = choose(Suite::Article, &[]).unwrap();
        assert_eq!(workloads.len(), ROWS.len());
        for workload in workloads {
            assert!(
                ROWS.iter().any(|row| row.workload == workload.name),
                "{}",
                workload.name
            );
        }
    }

    #[test]
    fn equal_reasons_share_a_letter() {
        let mut reasons = Vec::new();
        let mut letters = ["x", "y", "x"].map(|why| letter(&mut reasons, why.to_owned()));
        assert_eq!(letters, ['a', 'b', 'a']);
        letters[0] = letter(&mut reasons, "z".to_owned());
        assert_eq!(letters[0], 'c');
    }
}
