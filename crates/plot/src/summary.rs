//! What many lines say together, in memory that does not grow with their number.

use std::collections::HashMap;
use std::io::{self, BufRead};

use crate::histogram::Histogram;
use crate::line::{Entry, Lines, Read, StageNames};

/// What a log says.
#[derive(Debug)]
pub struct Summary {
    /// The names of the stages.
    pub names: StageNames,
    /// All lines.
    pub lines: u64,
    /// Requests: lines that were understood.
    pub requests: u64,
    /// Lines that were not understood.
    pub bad: u64,
    /// The number of the first of those, from 1.
    pub first_bad: Option<u64>,
    /// The whole time of the requests.
    pub total: Histogram,
    /// The times of each stage, by its number.
    pub stages: Vec<Histogram>,
    /// Whether lines have a time. If none has, the number of the request stands for it, in microseconds.
    pub has_times: bool,
    /// The times by the time of day.
    pub timeline: Timeline,
    /// The slowest requests, the slowest first.
    pub slowest: Vec<Slow>,
    routes: HashMap<Vec<u8>, Route>,
    other_routes: Route,
}

/// The requests of one part of the URL space.
#[derive(Clone, Debug, Default)]
pub struct Route {
    /// How many.
    pub requests: u64,
    /// The nanoseconds of all of them.
    pub total: u64,
    /// The same of each stage, by its number.
    pub stages: Vec<u64>,
}

/// A slow request.
#[derive(Clone, Debug)]
pub struct Slow {
    /// The number of its line, from 1.
    pub line: u64,
    /// What the line says.
    pub entry: Entry,
}

/// How many of the slowest requests are kept.
const SLOWEST: usize = 12;

/// More routes than this are summed up as one.
const ROUTES_MAX: usize = 10_000;

/// Longer paths are cut.
const PATH_BYTES_MAX: usize = 200;

/// Longer lines are not understood; no line of ours is nearly that long.
const LINE_BYTES_MAX: usize = 1 << 20;

impl Summary {
    /// The summary of no lines. `known`: the names of the server's stages.
    pub fn new(known: &[&str]) -> Summary {
        Summary {
            names: StageNames::new(known),
            lines: 0,
            requests: 0,
            bad: 0,
            first_bad: None,
            total: Histogram::default(),
            stages: Vec::new(),
            has_times: false,
            timeline: Timeline::default(),
            slowest: Vec::new(),
            routes: HashMap::new(),
            other_routes: Route::default(),
        }
    }

    /// Adds all lines of `log`. `each` sees every request.
    ///
    /// # Errors
    /// The log cannot be read, or `each` says so.
    pub fn read(
        &mut self,
        log: &mut dyn BufRead,
        lines: &Lines,
        each: &mut dyn FnMut(&Entry, &StageNames) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut line = Vec::new();
        let mut entry = Entry::default();
        while read_line(log, &mut line)? {
            self.lines += 1;
            if line.is_empty() {
                continue;
            }
            match lines.read(&line, &mut self.names, &mut entry) {
                Read::Entry => {
                    each(&entry, &self.names)?;
                    self.add(&entry);
                }
                Read::Other => {}
                Read::Bad => {
                    self.bad += 1;
                    self.first_bad.get_or_insert(self.lines);
                }
            }
        }
        self.timeline.finish();
        Ok(())
    }

    fn add(&mut self, entry: &Entry) {
        self.requests += 1;
        self.total.add(entry.total);
        for (stage, nanos) in &entry.stages {
            at(&mut self.stages, *stage).add(*nanos);
        }
        self.has_times |= entry.at.is_some();
        let at = entry.at.unwrap_or(self.requests as i64);
        self.timeline.add(at, entry);
        self.route(&entry.path).add(entry);
        self.keep_if_slow(entry);
    }

    fn route(&mut self, path: &[u8]) -> &mut Route {
        let key = route_of(path);
        if self.routes.len() >= ROUTES_MAX && !self.routes.contains_key(key) {
            return &mut self.other_routes;
        }
        self.routes.entry(key.to_vec()).or_default()
    }

    fn keep_if_slow(&mut self, entry: &Entry) {
        let is_full = self.slowest.len() >= SLOWEST;
        let least = self.slowest.last().map_or(0, |slow| slow.entry.total);
        if is_full && entry.total <= least {
            return;
        }
        let mut entry = entry.clone();
        entry.path.truncate(PATH_BYTES_MAX);
        let place = self
            .slowest
            .partition_point(|slow| slow.entry.total >= entry.total);
        let line = self.lines;
        self.slowest.insert(place, Slow { line, entry });
        self.slowest.truncate(SLOWEST);
    }

    /// The routes, those that took most time in all first.
    pub fn routes(&self) -> Vec<(String, &Route)> {
        let shown = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
        let mut routes: Vec<_> = self
            .routes
            .iter()
            .map(|(path, route)| (shown(path), route))
            .collect();
        if self.other_routes.requests > 0 {
            routes.push(("all others".to_owned(), &self.other_routes));
        }
        routes.sort_by(|(one, a), (other, b)| b.total.cmp(&a.total).then_with(|| one.cmp(other)));
        routes
    }

    /// The numbers of the stages, those that took most time in all first. Stages without time are left out.
    pub fn stages_by_time(&self) -> Vec<usize> {
        let mut stages: Vec<_> = (0..self.stages.len())
            .filter(|stage| self.sum_of(*stage) > 0)
            .collect();
        stages.sort_by_key(|stage| (std::cmp::Reverse(self.sum_of(*stage)), *stage));
        stages
    }

    /// The nanoseconds of all requests in `stage`.
    pub fn sum_of(&self, stage: usize) -> u64 {
        self.stages.get(stage).map_or(0, Histogram::sum)
    }
}

impl Route {
    fn add(&mut self, entry: &Entry) {
        self.requests += 1;
        self.total = self.total.saturating_add(entry.total);
        for (stage, nanos) in &entry.stages {
            let sum = at(&mut self.stages, *stage);
            *sum = sum.saturating_add(*nanos);
        }
    }
}

/// The first segment of a path stands for all that is below it.
fn route_of(path: &[u8]) -> &[u8] {
    let inner = path.get(1..).unwrap_or_default();
    let end = memchr::memchr(b'/', inner).map_or(path.len(), |slash| slash + 2);
    path.get(..end.min(PATH_BYTES_MAX)).unwrap_or(path)
}

/// Sums by the time of day: at first in short parts, and in coarser ones when the log is longer.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// When the first part begins, in microseconds.
    pub begin: i64,
    /// How long a part is, in microseconds.
    pub width: i64,
    /// The parts.
    pub parts: Vec<Route>,
    /// The log has times between full seconds.
    has_fractions: bool,
}

/// How many parts there are at most.
const PARTS_MAX: usize = 256;

/// How long a part is at first; doubled six times, it is a second.
const WIDTH_MIN: i64 = 1_000_000 / 64;

impl Timeline {
    fn add(&mut self, at: i64, entry: &Entry) {
        if self.parts.is_empty() {
            self.width = WIDTH_MIN;
            self.begin = at.saturating_sub(at.rem_euclid(self.width));
        }
        self.has_fractions |= at % 1_000_000 != 0;
        // Lines are in the order in which requests ended, so that a time may be a little earlier than the
        // first.
        let after = at.saturating_sub(self.begin).max(0);
        while after / self.width >= PARTS_MAX as i64 {
            self.coarsen();
        }
        let part = (after / self.width) as usize;
        crate::summary::at(&mut self.parts, part).add(entry);
    }

    /// All lines were added. If the log has only full seconds, shorter parts would be empty.
    fn finish(&mut self) {
        while !self.has_fractions && (1..1_000_000).contains(&self.width) {
            self.coarsen();
        }
    }

    fn coarsen(&mut self) {
        self.width = self.width.saturating_mul(2);
        let halves = std::mem::take(&mut self.parts);
        for pair in halves.chunks(2) {
            let mut whole = Route::default();
            for half in pair {
                whole.requests += half.requests;
                whole.total = whole.total.saturating_add(half.total);
                for (stage, nanos) in half.stages.iter().enumerate() {
                    let sum = at(&mut whole.stages, stage);
                    *sum = sum.saturating_add(*nanos);
                }
            }
            self.parts.push(whole);
        }
    }
}

/// The element of `list` at `place`, which is made if it is not there.
fn at<T: Default + Clone>(list: &mut Vec<T>, place: usize) -> &mut T {
    if place >= list.len() {
        list.resize(place + 1, T::default());
    }
    &mut list[place]
}

/// Reads a line without its end. Of a line that is too long only the beginning stays. False: the log is over.
fn read_line(log: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut has_read = false;
    loop {
        let there = log.fill_buf()?;
        if there.is_empty() {
            return Ok(has_read);
        }
        has_read = true;
        let end = memchr::memchr(b'\n', there);
        let part = there.get(..end.unwrap_or(there.len())).unwrap_or_default();
        let room = LINE_BYTES_MAX.saturating_sub(line.len());
        line.extend_from_slice(part.get(..room).unwrap_or(part));
        let used = part.len() + usize::from(end.is_some());
        log.consume(used);
        if end.is_some() {
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;

    fn summary(log: &str) -> Summary {
        let mut summary = Summary::new(&["parse", "send"]);
        let lines = Lines::Format(Format::parse("%{sec}t %U %{stages}x").expect("sound"));
        let mut seen = 0;
        summary
            .read(&mut log.as_bytes(), &lines, &mut |_, _| {
                seen += 1;
                Ok(())
            })
            .expect("it is in memory");
        assert_eq!(seen, summary.requests);
        summary
    }

    #[test]
    fn lines_are_counted_and_summed_up() {
        let found =
            summary("7 /a/x parse=1,total=1\nwhat?\r\n\n8 /a/y send=5,total=5\n9 /b total=2");
        assert_eq!(
            (found.lines, found.requests, found.bad, found.first_bad),
            (5, 3, 1, Some(2))
        );
        let routes: Vec<_> = found
            .routes()
            .iter()
            .map(|(name, route)| (name.clone(), route.requests))
            .collect();
        assert_eq!(routes, [("/a/".to_owned(), 2), ("/b".to_owned(), 1)]);
        assert_eq!(found.stages_by_time(), [1, 0]);
        assert_eq!(found.total.max(), 5_000);
        assert_eq!(found.timeline.parts.len(), 3);
        assert_eq!(found.slowest[0].line, 4);
    }

    #[test]
    fn a_long_log_has_coarser_parts_and_bounded_memory() {
        let mut log = String::new();
        for second in 0..100_000 {
            log += &format!("{second} /{second} parse=1,total={}\n", second % 1000);
        }
        let found = summary(&log);
        assert_eq!(found.requests, 100_000);
        assert!(found.timeline.parts.len() <= PARTS_MAX);
        let in_parts: u64 = found.timeline.parts.iter().map(|part| part.requests).sum();
        assert_eq!(in_parts, 100_000);
        assert_eq!(found.timeline.width, 512 * 1_000_000);
        assert_eq!(found.slowest.len(), SLOWEST);
        assert!(found.slowest.iter().all(|slow| slow.entry.total == 999_000));
        assert_eq!(found.routes().len(), ROUTES_MAX + 1);
    }

    #[test]
    fn clocks_that_step_back_lose_no_line() {
        let found = summary("100 /a total=1\n5 /a total=1\n999999999999 /a total=1\n");
        let in_parts: u64 = found.timeline.parts.iter().map(|part| part.requests).sum();
        assert_eq!((found.requests, in_parts), (3, 3));
    }

    #[test]
    fn a_line_without_end_takes_bounded_memory() {
        let mut line = Vec::new();
        let long = vec![b'x'; 3 * LINE_BYTES_MAX];
        assert!(read_line(&mut &long[..], &mut line).expect("in memory"));
        assert_eq!(line.len(), LINE_BYTES_MAX);
    }
}
