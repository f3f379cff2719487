//! php-fpm's slow log (`slowlog`): where scripts were when they had run for `request_slowlog_timeout`.
//!
//! Each look reads the end of the file that has the name now. So a file that was rotated or cut needs no care, and an
//! entry that is just being written is read again by the next look.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use petrel_engine::blocking::{self, Origin};
use petrel_engine::log::local_time::TimeFormat;
use petrel_engine::shared::lock;
use rustix::fs::OFlags;

use crate::gateway::limits;

/// The slow log of a php-fpm.
pub(super) struct SlowLog {
    pub(super) path: PathBuf,
    entries: Mutex<Vec<SlowEntry>>,
}

/// A script that php-fpm has found to be slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlowEntry {
    /// When, as php-fpm wrote it: `28-Nov-2026 19:50:00`.
    time: String,
    /// When the second of that time began, in milliseconds on the monotonic clock.
    begun_ms: u64,
    /// The child.
    pid: u64,
    script: String,
    /// The innermost calls, as php-fpm wrote them: `sleep() /srv/www/slow.php:3`.
    frames: Vec<String>,
}

/// The present time, on both clocks, in milliseconds.
#[derive(Clone, Copy)]
struct BothClocks {
    wall_ms: u64,
    now_ms: u64,
}

impl SlowLog {
    pub(super) fn new(path: PathBuf) -> SlowLog {
        SlowLog {
            path,
            entries: Mutex::default(),
        }
    }

    /// Reads the file, and keeps the entries of the last minute.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) async fn look(&self, now_ms: u64) -> io::Result<()> {
        let path = self.path.clone();
        // The file system may hang.
        let end = blocking::run(Origin::of_path(&path), move || read_end(&path)).await??;
        let wall_ms = wall_ms();
        *lock(&self.entries) = recent_entries(
            &String::from_utf8_lossy(&end),
            BothClocks { wall_ms, now_ms },
        );
        Ok(())
    }

    /// The last entry that php-fpm wrote since `since_ms` for the child `pid`. If that is not known, for a script that
    /// `is_script` accepts.
    pub(super) fn entry_since(
        &self,
        since_ms: u64,
        pid: Option<u64>,
        is_script: impl Fn(&str) -> bool,
    ) -> Option<SlowEntry> {
        let fits = |entry: &&SlowEntry| {
            let is_its = pid.map_or_else(|| is_script(&entry.script), |pid| entry.pid == pid);
            is_its && entry.begun_ms >= since_ms
        };
        let entries = lock(&self.entries);
        entries.iter().rev().find(fits).cloned()
    }
}

impl fmt::Display for SlowEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (time, pid) = (&self.time, self.pid);
        write!(f, "php-fpm's slow log at {time} of child {pid}: ")?;
        for (number, frame) in self.frames.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            match frame.split_once("() ") {
                Some((function, place)) => write!(f, "{comma}{function}() at {place}")?,
                None => write!(f, "{comma}{frame}")?,
            }
        }
        Ok(())
    }
}

/// Reads the last [`limits::FPM_SLOW_LOG_BYTES_MAX`] bytes of a slow log.
///
/// # Errors
/// The file cannot be read, or is no regular file.
pub(crate) fn read_end(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a FIFO waits for a writer otherwise.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut file = File::options().read(true).custom_flags(flags).open(path)?;
    let data = file.metadata()?;
    if !data.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let bytes_max = limits::FPM_SLOW_LOG_BYTES_MAX;
    file.seek(SeekFrom::Start(data.len().saturating_sub(bytes_max)))?;
    let mut end = Vec::new();
    file.take(bytes_max).read_to_end(&mut end)?;
    Ok(end)
}

/// The entries of the last minute in `text`, the end of a slow log.
fn recent_entries(text: &str, clocks: BothClocks) -> Vec<SlowEntry> {
    let mut entries = entries(text);
    if !entries.is_empty() {
        let seconds = last_minute(clocks);
        entries.retain_mut(|entry| {
            let second = seconds.iter().find(|(time, _)| *time == entry.time);
            entry.begun_ms = second.map_or(0, |(_, begun_ms)| *begun_ms);
            second.is_some()
        });
    }
    entries
}

/// Each second of the last minute, as php-fpm writes it, in the local time that both have.
fn last_minute(clocks: BothClocks) -> Vec<(String, u64)> {
    let format = TimeFormat::new("%d-%b-%Y %H:%M:%S").expect("all of these are known");
    let present = clocks.wall_ms / 1000;
    let seconds = present.saturating_sub(60)..=present;
    let shown = seconds.map(|second| {
        let mut time = Vec::new();
        format.write(second, &mut time);
        let ago_ms = clocks.wall_ms - second * 1000;
        let begun_ms = clocks.now_ms.saturating_sub(ago_ms);
        (String::from_utf8_lossy(&time).into_owned(), begun_ms)
    });
    shown.collect()
}

/// All entries in `text`, without the time on the monotonic clock. What is no entry is left out.
fn entries(text: &str) -> Vec<SlowEntry> {
    let mut entries: Vec<SlowEntry> = Vec::new();
    let mut is_open = false;
    let whole_lines = text.split_inclusive('\n');
    for line in whole_lines.filter_map(|line| line.strip_suffix('\n')) {
        if let Some(entry) = begin_entry(line) {
            entries.push(entry);
            is_open = true;
        } else if line.is_empty() {
            is_open = false;
        } else if let Some(entry) = entries.last_mut().filter(|_| is_open) {
            if let Some(script) = line.strip_prefix("script_filename = ") {
                script.clone_into(&mut entry.script);
            } else if let Some((_, frame)) = line.split_once("] ")
                && line.starts_with("[0x")
                && entry.frames.len() < limits::FPM_SLOW_FRAMES_SHOWN
            {
                entry.frames.push(frame.to_owned());
            }
        }
    }
    entries.retain(|entry| !entry.frames.is_empty());
    entries
}

/// Reads the first line of an entry: `[28-Nov-2026 19:50:00]  [pool www] pid 1234`.
fn begin_entry(line: &str) -> Option<SlowEntry> {
    let (time, rest) = line.strip_prefix('[')?.split_once(']')?;
    let (_, pid) = rest
        .trim_start()
        .strip_prefix("[pool ")?
        .split_once("] pid ")?;
    // With log_level = debug php-fpm adds microseconds.
    let time = time.split('.').next()?;
    Some(SlowEntry {
        time: time.to_owned(),
        begun_ms: 0,
        pid: pid.parse().ok()?,
        script: String::new(),
        frames: Vec::new(),
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the thread of the health checks has no worker"
)]
fn wall_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// As php-fpm 8.2 writes it, with some minutes between the entries.
    fn written(times: [&str; 3]) -> String {
        let [first, second, third] = times;
        format!(
            "\n[{first}]  [pool www] pid 11\nscript_filename = /srv/www/old.php\n\
             [0x00007fbd858151b0] sleep() /srv/www/old.php:3\n\
             \n[{second}]  [pool www] pid 12\nscript_filename = /srv/www/slow.php\n\
             [0x00007fbd858151b0] sleep() /srv/www/lib/wait.php:3\n\
             [0x00007fbd85815150] pause() /srv/www/lib/wait.php:7\n\
             [0x00007fbd858150f0] {{closure}}() /srv/www/slow.php:5\n\
             [0x00007fbd85815080] b() /srv/www/slow.php:6\n\
             \n[{third}]  [pool www] pid 13\nscript_filename = /srv/www/slow.php\n\
             [0x00007fbd858151b0] [INCLUDE_OR_EVAL]() /srv/www/slow.php:2\n"
        )
    }

    /// 28 November 2026, half a second after 19:50:00 in Greenwich.
    const CLOCKS: BothClocks = BothClocks {
        wall_ms: 1_795_895_400_500,
        now_ms: 7_000_000,
    };

    /// A time that is so many seconds before `CLOCKS`, as php-fpm writes it here.
    fn ago(seconds: u64) -> String {
        let format = TimeFormat::new("%d-%b-%Y %H:%M:%S").expect("known");
        let mut time = Vec::new();
        format.write(CLOCKS.wall_ms / 1000 - seconds, &mut time);
        String::from_utf8(time).expect("text")
    }

    fn usual() -> String {
        written([&ago(300), &ago(20), &ago(5)])
    }

    fn log_of(text: &str) -> SlowLog {
        let log = SlowLog::new(PathBuf::new());
        *lock(&log.entries) = recent_entries(text, CLOCKS);
        log
    }

    /// What the log says of a request for slow.php that a process has had for so long.
    fn told(log: &SlowLog, seconds: u64, pid: Option<u64>) -> String {
        let since_ms = CLOCKS.now_ms - seconds * 1000;
        let is_script = |script: &str| script == "/srv/www/slow.php";
        let entry = log.entry_since(since_ms, pid, is_script);
        entry.map_or_else(String::new, |entry| entry.to_string())
    }

    #[test]
    fn the_innermost_calls_of_the_request_are_told() {
        let log = log_of(&usual());
        let expected = format!(
            "php-fpm's slow log at {} of child 12: sleep() at /srv/www/lib/wait.php:3, \
             pause() at /srv/www/lib/wait.php:7, {{closure}}() at /srv/www/slow.php:5",
            ago(20)
        );
        assert_eq!(told(&log, 21, Some(12)), expected);
        let expected = format!(
            "php-fpm's slow log at {} of child 13: [INCLUDE_OR_EVAL]() at /srv/www/slow.php:2",
            ago(5)
        );
        assert_eq!(told(&log, 21, None), expected, "the last one of the script");
    }

    #[test]
    fn entries_of_other_requests_are_not_told() {
        let log = log_of(&usual());
        assert_eq!(told(&log, 19, Some(12)), "", "it began later");
        assert_eq!(told(&log, 21, Some(14)), "", "another child");
        assert_eq!(told(&log, 4, None), "", "it began later");
        assert_eq!(told(&log, 1000, Some(11)), "", "more than a minute ago");
        assert_eq!(log.entry_since(0, None, |_| false), None, "another script");
        // A log of php-fpm in another time zone, or a clock that was set.
        assert_eq!(
            told(
                &log_of(&written(["x", "", "28-Nov-2020 19:50:00"])),
                1000,
                None
            ),
            ""
        );
    }

    #[test]
    fn microseconds_are_left_out() {
        let exact = format!("{}.123456", ago(5));
        let log = log_of(&written([&ago(300), &ago(20), &exact]));
        assert!(told(&log, 21, None).contains("of child 13"));
    }

    /// Each cut text has the entries, and of each the lines, that are whole.
    #[test]
    fn a_log_may_begin_and_end_anywhere() {
        let text = usual();
        let whole = entries(&text);
        assert_eq!(whole.len(), 3);
        for place in 0..text.len() {
            for entry in entries(&text[..place]) {
                let is_it = |known: &&SlowEntry| known.pid == entry.pid;
                let known = whole.iter().find(is_it).expect("it is written");
                assert_eq!(entry.script, known.script, "{place}");
                assert!(known.frames.starts_with(&entry.frames), "{place}");
            }
            for entry in entries(&text[place..]) {
                assert!(whole.contains(&entry), "{place}: {entry:?}");
            }
        }
    }

    #[test]
    fn no_byte_of_a_log_can_end_the_server() {
        let text = usual();
        for place in 0..text.len() {
            for byte in [0, b'\n', b'[', b']', b' ', b'(', 0x1b, 0xff] {
                let mut bytes = text.clone().into_bytes();
                bytes[place] = byte;
                for entry in entries(&String::from_utf8_lossy(&bytes)) {
                    assert!(entry.to_string().len() < 400, "{place} {byte}");
                }
            }
        }
        for line in ["[", "[]", "[x]  [pool ", "[x]  [pool a] pid -1", "[0x] "] {
            assert_eq!(entries(&format!("{line}\n")), []);
        }
    }

    fn end_of(path: &Path) -> String {
        String::from_utf8(read_end(path).expect("it can be read")).expect("text")
    }

    #[test]
    fn the_end_of_the_file_is_read_whatever_becomes_of_it() {
        let tree = crate::testing::Tree::new(&[]);
        let path = PathBuf::from(tree.path("slow.log"));
        let text = usual();
        fs::write(&path, &text).expect("written");
        assert_eq!(end_of(&path), text);
        fs::rename(&path, tree.path("slow.log.1")).expect("rotated");
        assert!(read_end(&path).is_err());
        fs::write(&path, "").expect("made anew");
        assert_eq!(end_of(&path), "");
        let long = "x".repeat(10_000_000);
        fs::write(&path, &long).expect("written");
        assert_eq!(end_of(&path).len() as u64, limits::FPM_SLOW_LOG_BYTES_MAX);
        assert_eq!(entries(&end_of(&path)), []);
        fs::write(&path, format!("{long}\n{text}")).expect("written");
        assert_eq!(entries(&end_of(&path)), entries(&text));
        fs::write(&path, &text).expect("cut");
        assert_eq!(end_of(&path), text);
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let tree = crate::testing::Tree::new(&[]);
        let fifo = PathBuf::from(tree.path("fifo"));
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).expect("made");
        for path in [&fifo, Path::new("/"), Path::new("/dev/zero")] {
            let error = read_end(path).expect_err("it is no file");
            assert_eq!(error.to_string(), "it is no regular file", "{path:?}");
        }
    }

    #[tokio::test(flavor = "local")]
    async fn what_a_look_has_found_is_replaced_by_the_next_one() {
        let tree = crate::testing::Tree::new(&[]);
        let path = PathBuf::from(tree.path("slow.log"));
        let log = SlowLog::new(path.clone());
        assert!(log.look(100_000).await.is_err());
        let present = last_minute(BothClocks {
            wall_ms: wall_ms(),
            now_ms: 100_000,
        });
        let time = &present.last().expect("a minute has seconds").0;
        fs::write(&path, written([time; 3])).expect("written");
        log.look(100_000).await.expect("it can be read");
        assert_eq!(lock(&log.entries).len(), 3);
        fs::write(&path, "").expect("cut");
        log.look(100_000).await.expect("it can be read");
        assert_eq!(lock(&log.entries).len(), 0);
    }
}
