//! Logs as the server uses them: files, rotation, commands, adopted descriptors, floods.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{FileOwner, LogRegistry, LogTarget};
use crate::limits::LOG_QUEUE_BYTES_MAX;

const LIMIT: Duration = Duration::from_secs(60);

/// A directory that is removed at the end of the test.
pub(super) struct Directory(pub(super) PathBuf);

impl Directory {
    pub(super) fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("petrel-log-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Directory(path)
    }

    pub(super) fn target(&self, name: &str) -> LogTarget {
        LogTarget::File(self.0.join(name))
    }

    pub(super) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    /// Waits until `done` is true for the content of `name`.
    fn read_until(&self, name: &str, done: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let text = self.read(name);
            if done(&text) || Instant::now() > deadline {
                return text;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn started(target: &LogTarget) -> LogRegistry {
    let registry = LogRegistry::open([target.clone()]).expect("opens");
    registry.start().expect("a thread");
    registry
}

// As in a chroot, an absolute path and an absolute symbolic link start from its root.
#[test]
fn a_file_below_a_root_stays_there_also_after_a_rotation() {
    let directory = Directory::new("root");
    std::fs::create_dir(directory.0.join("inner")).expect("a directory");
    std::os::unix::fs::symlink("/inner", directory.0.join("logs")).expect("a link");
    let target = LogTarget::File("/logs/a".into());
    let registry = LogRegistry::default();
    registry
        .add_below(Some(&directory.0), FileOwner::default(), [target.clone()])
        .expect("opens");
    registry.get(&target).write(b"one\n");
    assert_eq!(directory.read("inner/a"), "one\n");
    std::fs::rename(directory.0.join("inner/a"), directory.0.join("inner/a.1")).expect("moves");
    registry.reopen_all(FileOwner::default()).expect("opens");
    registry.get(&target).write(b"two\n");
    assert_eq!(directory.read("inner/a"), "two\n");
    assert!(
        registry.add([LogTarget::File("/logs/b".into())]).is_err(),
        "there is no /logs"
    );
}

#[test]
fn before_the_writer_starts_lines_are_written_at_once() {
    let directory = Directory::new("direct");
    let registry = LogRegistry::open([directory.target("a")]).expect("opens");
    registry.get(&directory.target("a")).write(b"one\n");
    assert_eq!(directory.read("a"), "one\n");
    assert!(!registry.get(&directory.target("b")).is_open());
}

#[test]
fn the_writer_writes_without_being_asked() {
    let directory = Directory::new("threaded");
    let registry = started(&directory.target("a"));
    let log = registry.get(&directory.target("a"));
    for round in 1..=3 {
        log.write(b"line\n");
        let text = directory.read_until("a", |text| text.len() == round * 5);
        assert_eq!(text, "line\n".repeat(round));
        // Long enough that the writer sleeps again.
        thread::sleep(Duration::from_millis(120));
    }
    registry.shut_down(LIMIT);
}

#[test]
fn lines_of_many_threads_arrive_whole() {
    let directory = Directory::new("many");
    let registry = started(&directory.target("a"));
    thread::scope(|scope| {
        for thread in 0..4 {
            let log = registry.get(&directory.target("a"));
            scope.spawn(move || {
                for number in 0..5_000 {
                    log.write(format!("thread {thread} line {number:05}\n").as_bytes());
                }
            });
        }
    });
    assert!(registry.flush(LIMIT));
    let text = directory.read("a");
    assert_eq!(text.lines().count(), 20_000);
    for thread in 0..4 {
        let prefix = format!("thread {thread} ");
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with(&prefix))
            .collect();
        assert_eq!(lines.len(), 5_000);
        assert!(lines.is_sorted(), "the order of one thread is kept");
    }
    registry.shut_down(LIMIT);
}

#[test]
fn a_rotated_file_keeps_its_lines_and_the_new_one_gets_the_next() {
    for threaded in [false, true] {
        let directory = Directory::new(if threaded { "rotate-t" } else { "rotate" });
        let registry = LogRegistry::open([directory.target("a")]).expect("opens");
        if threaded {
            registry.start().expect("a thread");
        }
        let log = registry.get(&directory.target("a"));
        log.write(b"before\n");
        std::fs::rename(directory.0.join("a"), directory.0.join("a.1")).expect("a rotation");
        log.write(b"still before\n");
        registry
            .reopen_all(FileOwner::default())
            .expect("opens again");
        assert!(registry.flush(LIMIT));
        log.write(b"after\n");
        assert!(registry.flush(LIMIT));
        assert_eq!(directory.read("a.1"), "before\nstill before\n");
        assert_eq!(directory.read("a"), "after\n");
        registry.shut_down(LIMIT);
    }
}

#[test]
fn a_file_that_cannot_be_reopened_goes_on() {
    let directory = Directory::new("reopen-fails");
    let sub = directory.0.join("sub");
    std::fs::create_dir(&sub).expect("a directory");
    let target = LogTarget::File(sub.join("a"));
    let registry = LogRegistry::open([target.clone(), directory.target("errors")]).expect("opens");
    registry.set_error_log(directory.target("errors"));
    std::fs::rename(&sub, directory.0.join("moved")).expect("a rename");
    assert!(registry.reopen_all(FileOwner::default()).is_err());
    registry.get(&target).write(b"x\n");
    assert_eq!(directory.read("moved/a"), "x\n");
    assert!(
        directory
            .read("errors")
            .contains(&format!("directory {} is missing", sub.display()))
    );
}

#[test]
fn a_full_queue_drops_counts_and_tells() {
    let directory = Directory::new("full");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let target = LogTarget::Pipe("does not read".into());
    let registry = started(&directory.target("errors"));
    registry.set_error_log(directory.target("errors"));
    registry.adopt(vec![(target.clone(), OwnedFd::from(writer))]);
    let log = registry.get(&target);
    let line = [b'x'; 1023]
        .iter()
        .copied()
        .chain([b'\n'])
        .collect::<Vec<u8>>();
    let begun = Instant::now();
    let lines = 2 * LOG_QUEUE_BYTES_MAX as u64 / 1024;
    for _ in 0..lines {
        log.write(&line);
    }
    assert!(begun.elapsed() < LIMIT, "logging does not wait");
    let dropped = log.dropped();
    assert!(dropped > 0 && registry.dropped() == dropped);
    let text = directory.read_until("errors", |text| text.contains("were dropped"));
    assert!(
        text.contains("lines of the log |does not read were dropped: its command reads too slowly"),
        "{text}"
    );
    // Once the reader reads, everything arrives that was not dropped.
    let arrived = thread::spawn(move || std::io::read_to_string(reader).expect("text"));
    assert!(registry.flush(LIMIT));
    registry.shut_down(LIMIT);
    assert_eq!(
        arrived.join().expect("no panic").len() as u64,
        (lines - dropped) * 1024
    );
}

#[test]
fn a_command_gets_the_lines_and_is_waited_for() {
    let directory = Directory::new("pipe");
    let out = directory.0.join("out");
    let target = LogTarget::parse(&format!("|cat >>{} && echo end >>{0}", out.display()));
    let registry = started(&target);
    registry.get(&target).write(b"one\n");
    registry.shut_down(LIMIT);
    assert_eq!(directory.read("out"), "one\nend\n");
}

#[test]
fn a_command_that_dies_is_started_again() {
    let directory = Directory::new("restart");
    let out = directory.0.join("out");
    // This command reads one line and ends.
    let target = LogTarget::parse(&format!("|head -n 1 >>{}", out.display()));
    let registry = started(&target);
    let log = registry.get(&target);
    log.write(b"one\n");
    directory.read_until("out", |text| text == "one\n");
    let deadline = Instant::now() + LIMIT;
    while !directory.read("out").contains("two\n") && Instant::now() < deadline {
        log.write(b"two\n");
        thread::sleep(Duration::from_millis(100));
    }
    assert!(
        directory.read("out").starts_with("one\ntwo\n"),
        "{}",
        directory.read("out")
    );
    registry.shut_down(LIMIT);
}

#[test]
fn a_keeper_renews_the_commands_of_the_process_it_serves() {
    let directory = Directory::new("keeper");
    let out = directory.0.join("out");
    let target = LogTarget::parse(&format!("|head -n 1 >>{}", out.display()));
    let keeper = LogRegistry::open([target.clone()]).expect("starts");
    let server = LogRegistry::default();
    server.adopt(keeper.descriptors().expect("copies"));
    server.start().expect("a thread");
    assert_eq!(server.targets(), [LogTarget::Stderr, target.clone()]);
    server.get(&target).write(b"one\n");
    directory.read_until("out", |text| text == "one\n");
    let deadline = Instant::now() + LIMIT;
    let renewed = loop {
        let renewed = keeper.tend();
        if !renewed.is_empty() || Instant::now() > deadline {
            break renewed;
        }
        thread::sleep(Duration::from_millis(20));
    };
    server.adopt(renewed);
    server.get(&target).write(b"two\n");
    assert_eq!(
        directory.read_until("out", |text| text.contains("two")),
        "one\ntwo\n"
    );
    server.shut_down(LIMIT);
    keeper.shut_down(LIMIT);
}

#[test]
fn adopted_descriptors_replace_files() {
    let directory = Directory::new("adopt");
    let registry = started(&directory.target("a"));
    let log = registry.get(&directory.target("a"));
    log.write(b"old\n");
    let file = File::create(directory.0.join("b")).expect("a file");
    registry.adopt(vec![(directory.target("a"), file.into())]);
    assert!(registry.flush(LIMIT));
    log.write(b"new\n");
    assert!(registry.flush(LIMIT));
    assert_eq!(
        (directory.read("a"), directory.read("b")),
        ("old\n".into(), "new\n".into())
    );
    registry.shut_down(LIMIT);
}

#[test]
fn a_reload_opens_what_is_new_and_closes_what_is_gone() {
    let directory = Directory::new("reload");
    let registry = started(&directory.target("a"));
    let old = registry.get(&directory.target("a"));
    old.write(b"last\n");
    assert!(
        registry
            .add([directory.target("b"), LogTarget::parse("/nowhere/c")])
            .is_err()
    );
    assert_eq!(
        registry.targets().len(),
        2,
        "nothing is kept of a list that fails"
    );
    registry.add([directory.target("b")]).expect("opens");
    registry.retain(&[&directory.target("b")].into(), LIMIT);
    assert_eq!(
        registry.targets(),
        [LogTarget::Stderr, directory.target("b")]
    );
    assert_eq!(directory.read("a"), "last\n");
    old.write(b"nowhere\n");
    registry.shut_down(LIMIT);
    assert_eq!(directory.read("a"), "last\n");
}

#[test]
fn errors_go_to_the_servers_own_log_and_repetitions_are_counted() {
    let directory = Directory::new("errors");
    let registry = started(&directory.target("a"));
    registry.set_error_log(directory.target("a"));
    for _ in 0..100_000 {
        registry.error(format_args!("the same"));
    }
    assert!(registry.flush(LIMIT));
    let text = directory.read("a");
    assert!(text.lines().count() < 100, "{} lines", text.lines().count());
    let repeated: u64 = text
        .lines()
        .filter_map(|line| {
            line.split_once("message repeated ")?
                .1
                .split(' ')
                .next()?
                .parse::<u64>()
                .ok()
        })
        .sum();
    let written = text
        .lines()
        .filter(|line| line.ends_with(": the same"))
        .count() as u64;
    let counts = text
        .lines()
        .filter(|line| line.contains("message repeated"))
        .count() as u64;
    assert_eq!(written - counts + repeated, 100_000);
    registry.shut_down(LIMIT);
}

/// The writer sleeps by then, and no other line comes.
#[test]
fn a_repetition_is_counted_in_the_log_soon() {
    let directory = Directory::new("repetition");
    let registry = started(&directory.target("a"));
    registry.set_error_log(directory.target("a"));
    // In one second, with a pause after which the writer has nothing to do.
    let is_early = |time: SystemTime| {
        let since = time.duration_since(UNIX_EPOCH).expect("after 1970");
        since.subsec_millis() < 300
    };
    while !is_early(SystemTime::now()) {
        thread::sleep(Duration::from_millis(5));
    }
    registry.error(format_args!("the same"));
    thread::sleep(Duration::from_millis(400));
    registry.error(format_args!("the same"));
    let begun = Instant::now();
    while directory.read("a").lines().count() < 2 {
        assert!(begun.elapsed() < LIMIT, "{}", directory.read("a"));
        thread::sleep(Duration::from_millis(10));
    }
    registry.shut_down(LIMIT);
}

#[test]
fn a_process_that_ends_abruptly_flushes_what_it_logged() {
    let directory = Directory::new("flush");
    let registry = started(&directory.target("a"));
    let log = registry.get(&directory.target("a"));
    let mut expected = 0;
    for size in [1, 100, 10_000, 300_000] {
        log.write(&[b"x".repeat(size - 1), vec![b'\n']].concat());
        expected += size;
        assert!(registry.flush(LIMIT));
        assert_eq!(directory.read("a").len(), expected);
    }
    registry.shut_down(LIMIT);
}

#[test]
fn a_full_disk_neither_blocks_nor_ends_the_others() {
    let directory = Directory::new("disk-full");
    let full = LogTarget::parse("/dev/full");
    let registry = LogRegistry::open([full.clone(), directory.target("a")]).expect("opens");
    registry.set_error_log(directory.target("a"));
    registry.start().expect("a thread");
    registry.get(&full).write(b"x\n");
    let text = directory.read_until("a", |text| text.contains("/dev/full"));
    assert!(
        text.contains("writing to the log /dev/full failed: No space left"),
        "{text}"
    );
    assert!(
        !registry.flush(Duration::from_millis(50)),
        "not everything is written"
    );
    registry.shut_down(Duration::from_millis(100));
}

#[test]
fn lines_dropped_while_the_disk_is_full_say_so() {
    let directory = Directory::new("full-disk");
    let full = LogTarget::parse("/dev/full");
    let registry = LogRegistry::open([full.clone(), directory.target("a")]).expect("opens");
    registry.set_error_log(directory.target("a"));
    registry.start().expect("a thread");
    let line = [vec![b'x'; 1023], vec![b'\n']].concat();
    for _ in 0..2 * LOG_QUEUE_BYTES_MAX / 1024 {
        registry.get(&full).write(&line);
    }
    let text = directory.read_until("a", |text| text.contains("were dropped"));
    assert!(
        text.contains("lines of the log /dev/full were dropped: disk full"),
        "{text}"
    );
    registry.shut_down(Duration::from_millis(100));
}

#[test]
fn lines_that_a_full_disk_never_takes_are_counted_at_the_end() {
    let full = LogTarget::parse("/dev/full");
    let registry = LogRegistry::open([full.clone()]).expect("opens");
    registry.start().expect("a thread");
    let log = registry.get(&full);
    for line in [b"one\n", b"two\n"] {
        log.write(line);
        assert!(
            !registry.flush(Duration::from_millis(1)),
            "the disk is full"
        );
    }
    assert_eq!(
        registry.shut_down(Duration::from_millis(1)),
        ["2 lines of the log /dev/full were dropped: disk full"]
    );
    assert_eq!(registry.shut_down(LIMIT), [""; 0], "it is told once");
}

#[test]
fn a_log_that_is_closed_gets_what_had_to_wait() {
    let directory = Directory::new("waits");
    let full = LogTarget::parse("/dev/full");
    let registry = LogRegistry::open([full.clone()]).expect("opens");
    registry.start().expect("a thread");
    registry.get(&full).write(b"one\n");
    assert!(!registry.flush(Duration::from_millis(1)));
    let file = File::create(directory.0.join("a")).expect("a file");
    registry.adopt(vec![(full, file.into())]);
    assert_eq!(registry.shut_down(LIMIT), [""; 0]);
    assert_eq!(directory.read("a"), "one\n");
}

/// The keeper has no writer thread.
#[test]
fn a_process_without_a_writer_writes_later_what_had_to_wait() {
    let directory = Directory::new("keeper-waits");
    let full = LogTarget::parse("/dev/full");
    let registry = LogRegistry::open([full.clone()]).expect("opens");
    assert!(!registry.has_waiting());
    registry.get(&full).write(b"one\n");
    assert!(registry.has_waiting());
    registry.tend();
    assert!(registry.has_waiting());
    let file = File::create(directory.0.join("a")).expect("a file");
    registry.adopt(vec![(full, file.into())]);
    assert_eq!(directory.read("a"), "one\n");
    assert!(!registry.has_waiting());
}

#[test]
fn new_files_are_readable_by_all_and_not_inherited() {
    use std::os::unix::fs::PermissionsExt;
    let directory = Directory::new("mode");
    let registry = LogRegistry::open([directory.target("a")]).expect("opens");
    let mode = std::fs::metadata(directory.0.join("a"))
        .expect("there")
        .permissions()
        .mode();
    let umask = std::process::Command::new("sh")
        .args(["-c", "umask"])
        .output()
        .expect("a shell");
    let umask = u32::from_str_radix(String::from_utf8_lossy(&umask.stdout).trim(), 8);
    assert_eq!(mode & 0o777, 0o644 & !umask.expect("octal digits"));
    for (_, descriptor) in registry.descriptors().expect("copies") {
        let flags = rustix::io::fcntl_getfd(&descriptor).expect("open");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let mut text = String::new();
        assert!(
            File::from(descriptor).read_to_string(&mut text).is_err(),
            "write only"
        );
    }
}

#[test]
fn syslog_is_there_when_it_is_asked_for_and_stays() {
    let registry = LogRegistry::default();
    assert!(registry.get(&LogTarget::Syslog).is_open());
    assert!(registry.error_log(Some(LogTarget::Syslog)).is_open());
    registry.retain(&[].into(), LIMIT);
    assert_eq!(registry.targets(), [LogTarget::Stderr, LogTarget::Syslog]);
    assert!(!LogRegistry::discarding().get(&LogTarget::Syslog).is_open());
}
