//! What a line of a log says about one request.

use serde_json::Value;

use crate::format::{Format, without_query};
use crate::time;

/// The names of stages by their number: those that the server has, and others that stand in the log.
#[derive(Clone, Debug)]
pub struct StageNames(Vec<String>);

/// More names than this are no log of ours.
const NAMES_MAX: usize = 64;

const NAME_BYTES_MAX: usize = 32;

impl StageNames {
    /// The names that the server has, in their order.
    pub fn new(known: &[&str]) -> StageNames {
        StageNames(known.iter().map(|name| (*name).to_owned()).collect())
    }

    /// The number of `name`. `None`: it is none, or one too many.
    fn number(&mut self, name: &[u8]) -> Option<usize> {
        if let Some(known) = self.0.iter().position(|known| known.as_bytes() == name) {
            return Some(known);
        }
        let is_name = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let is_valid = !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.iter().all(is_name);
        if !is_valid || self.0.len() >= NAMES_MAX {
            return None;
        }
        self.0.push(String::from_utf8(name.to_vec()).ok()?);
        Some(self.0.len() - 1)
    }

    /// The name of the stage with this number.
    pub fn name(&self, number: usize) -> &str {
        self.0.get(number).map_or("", String::as_str)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// One request, as a line tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Microseconds since the epoch; the format may have no time.
    pub at: Option<i64>,
    /// The path of its URL; may be empty.
    pub path: Vec<u8>,
    /// Nanoseconds of the whole request.
    pub total: u64,
    /// Nanoseconds of each stage that took time, by the number of the stage.
    pub stages: Vec<(usize, u64)>,
}

impl Entry {
    fn clear(&mut self) {
        self.at = None;
        self.path.clear();
        self.total = 0;
        self.stages.clear();
    }
}

/// How the lines are written.
#[derive(Debug)]
pub enum Lines {
    /// In a format of `accesslog.format`.
    Format(Format),
    /// With `accesslog.format = "json"`.
    Json,
    /// By `debug.log-timing`, in the error log. Other lines of that log are passed over.
    Timing,
}

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// A request.
    Entry,
    /// Something that need not be understood.
    Other,
    /// It is not understood.
    Bad,
}

impl Lines {
    /// How the lines of a log are written, as far as `line`, one of the first, shows it.
    pub fn guess(line: &[u8]) -> Option<Lines> {
        if line.starts_with(b"{") {
            return Some(Lines::Json);
        }
        memchr::memmem::find(line, TIMING).map(|_| Lines::Timing)
    }

    /// Reads `line` into `entry`.
    pub fn read(&self, line: &[u8], names: &mut StageNames, entry: &mut Entry) -> Read {
        entry.clear();
        let understood = match self {
            Lines::Format(format) => of_format(format, line, names, entry),
            Lines::Json => of_json(line, names, entry),
            Lines::Timing => match memchr::memmem::find(line, TIMING) {
                Some(at) => of_timing(line.get(at..).unwrap_or_default(), names, entry),
                None => return Read::Other,
            },
        };
        match understood {
            Some(()) => Read::Entry,
            None => Read::Bad,
        }
    }
}

fn of_format(
    format: &Format,
    line: &[u8],
    names: &mut StageNames,
    entry: &mut Entry,
) -> Option<()> {
    let parts = format.read(line)?;
    entry.at = parts.at;
    entry.path.extend_from_slice(parts.path);
    for part in parts.stages.split(|byte| *byte == b',') {
        let equals = memchr::memchr(b'=', part)?;
        let (name, micros) = part.split_at_checked(equals)?;
        let nanos = time::digits(micros.get(1..)?)? as u64 * 1_000;
        add(name, nanos, names, entry)?;
    }
    Some(())
}

fn of_json(line: &[u8], names: &mut StageNames, entry: &mut Entry) -> Option<()> {
    let line: Value = serde_json::from_slice(line).ok()?;
    entry.at = line
        .get("time")
        .and_then(Value::as_str)
        .and_then(|text| time::of_iso(text.as_bytes()));
    let target = line
        .get("target")
        .and_then(Value::as_str)
        .unwrap_or_default();
    entry
        .path
        .extend_from_slice(without_query(target.as_bytes()));
    for (name, nanos) in line.get("stages_ns")?.as_object()? {
        add(name.as_bytes(), nanos.as_u64()?, names, entry)?;
    }
    add(b"total", line.get("total_ns")?.as_u64()?, names, entry)
}

/// `(timing) write-start: S.UUUUUU read-queue-wait: N ms read-time: N ms write-time: N ms tls=0.000 … us …`
fn of_timing(line: &[u8], names: &mut StageNames, entry: &mut Entry) -> Option<()> {
    let line = line.strip_prefix(TIMING)?;
    let mut words = line.split(|byte| *byte == b' ');
    let start = words.next()?;
    let dot = memchr::memchr(b'.', start)?;
    let (seconds, micros) = start.split_at_checked(dot)?;
    let micros = time::digits(micros.get(1..)?)?;
    entry.at = Some(
        time::digits(seconds)?
            .checked_mul(1_000_000)?
            .checked_add(micros)?,
    );
    for word in words.by_ref().skip(9) {
        if word == b"us" {
            break;
        }
        let equals = memchr::memchr(b'=', word)?;
        let (name, time) = word.split_at_checked(equals)?;
        let time = time.get(1..)?;
        let dot = memchr::memchr(b'.', time)?;
        let (micros, nanos) = time.split_at_checked(dot)?;
        let nanos = time::digits(micros)? as u64 * 1_000 + time::digits(nanos.get(1..)?)? as u64;
        add(name, nanos, names, entry)?;
    }
    let request = memchr::memmem::find(line, b" request=\"")?;
    let request = line.get(request + b" request=\"".len()..)?;
    let target = request.split(|byte| matches!(byte, b' ' | b'"')).nth(1)?;
    entry.path.extend_from_slice(without_query(target));
    Some(())
}

const TIMING: &[u8] = b"(timing) write-start: ";

/// More than a year is no time of a request.
const NANOS_MAX: u64 = 400 * 86_400 * 1_000_000_000;

fn add(name: &[u8], nanos: u64, names: &mut StageNames, entry: &mut Entry) -> Option<()> {
    if nanos > NANOS_MAX {
        return None;
    }
    match name {
        b"total" => entry.total = nanos,
        _ if nanos > 0 => entry.stages.push((names.number(name)?, nanos)),
        _ => {}
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &Lines, line: &str) -> (Read, Entry, StageNames) {
        let mut names = StageNames::new(&["parse", "send"]);
        let mut entry = Entry::default();
        let read = lines.read(line.as_bytes(), &mut names, &mut entry);
        (read, entry, names)
    }

    #[test]
    fn all_three_kinds_of_lines_say_the_same() {
        let format = Format::parse("%{usec}t %U %{stages}x").expect("sound");
        let timing = "2026-11-26 02:33:18: (timing) write-start: 5.000001 read-queue-wait: 0 ms \
                      read-time: 0 ms write-time: 0 ms parse=1.000 lua=0.000 send=2.000 \
                      unattributed=0.000 total=3.000 us client=::1 host=h request=\"GET /a?b\" id=0";
        for (lines, line) in [
            (Lines::Format(format), "5000001 /a parse=1,send=2,total=3"),
            (
                Lines::Json,
                "{\"time\":\"1970-01-01T00:00:05.000001+00:00\",\"target\":\"/a?b\",\
                 \"total_ns\":3000,\"stages_ns\":{\"parse\":1000,\"send\":2000}}",
            ),
            (Lines::Timing, timing),
        ] {
            let (read, entry, names) = read(&lines, line);
            assert_eq!(read, Read::Entry, "{line}");
            let expected = Entry {
                at: Some(5_000_001),
                path: b"/a".to_vec(),
                total: 3_000,
                stages: vec![(0, 1_000), (1, 2_000)],
            };
            assert_eq!(entry, expected, "{line}");
            assert_eq!(names.count(), 2);
        }
    }

    #[test]
    fn unknown_stages_are_stages_and_nonsense_is_bad() {
        let format = || Lines::Format(Format::parse("%U %{stages}x").expect("sound"));
        let (good, entry, names) = read(&format(), "/a receive=7,total=9");
        assert_eq!((good, entry.stages[0]), (Read::Entry, (2, 7_000)));
        assert_eq!(names.name(2), "receive");
        for line in [
            "/a receive=7,total",
            "/a <b>=7,total=9",
            "/a receive=-7,total=9",
            "/a receive=99999999999999999999,total=9",
            "/a receive=999999999999999,total=9",
            "/a =1,total=9",
        ] {
            assert_eq!(read(&format(), line).0, Read::Bad, "{line}");
        }
        for line in [
            "{",
            "{}",
            "[1]",
            "{\"total_ns\":1}",
            "{\"stages_ns\":{\"a\":-1},\"total_ns\":1}",
        ] {
            assert_eq!(read(&Lines::Json, line).0, Read::Bad, "{line}");
        }
        assert_eq!(read(&Lines::Timing, "another line").0, Read::Other);
        assert_eq!(read(&Lines::Timing, "(timing) write-start: 5").0, Read::Bad);
    }

    #[test]
    fn no_log_makes_names_without_end() {
        let mut names = StageNames::new(&[]);
        let found = (0..1000).filter(|n| names.number(format!("s{n}").as_bytes()).is_some());
        assert_eq!(found.count(), NAMES_MAX);
        assert_eq!(names.number(&[b'a'; NAME_BYTES_MAX + 1]), None);
    }

    #[test]
    fn the_kind_of_a_log_is_guessed() {
        assert!(matches!(Lines::guess(b"{\"time\""), Some(Lines::Json)));
        let timing = b"x: (timing) write-start: 1.0";
        assert!(matches!(Lines::guess(timing), Some(Lines::Timing)));
        assert!(Lines::guess(b"::1 - - [").is_none());
    }
}
