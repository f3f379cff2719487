//! What logrotate and others do to log files. The test sets the clock.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, chown, symlink};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::geteuid;

use super::super::tests::Directory;
use super::*;

/// Longer than this code waits for logrotate.
const LONG: Duration = Duration::from_secs(6);

/// A log "a" and an error log "errors" in a directory, watched by [`Rotations`].
struct Followed {
    directory: Directory,
    logs: LogRegistry,
    rotations: Rotations,
    owner: FileOwner,
    now: Instant,
}

impl Followed {
    fn new(name: &str) -> Followed {
        let directory = Directory::new(name);
        fs::create_dir(directory.0.join("logs")).expect("a directory");
        let targets = [directory.target("logs/a"), directory.target("errors")];
        let logs = LogRegistry::open(targets).expect("opens");
        logs.set_error_log(directory.target("errors"));
        let now = Instant::now();
        let mut followed = Followed {
            directory,
            logs,
            rotations: Rotations::new(now),
            owner: FileOwner::default(),
            now,
        };
        assert_eq!(followed.look_after(Duration::ZERO), 0);
        followed
    }

    /// Advances the clock and checks the names. Returns the number of new descriptors.
    fn look_after(&mut self, time: Duration) -> usize {
        self.now += time;
        self.rotations.look(&self.logs, self.owner, self.now).len()
    }

    fn write(&self, line: &str) {
        self.logs
            .get(&self.directory.target("logs/a"))
            .write(line.as_bytes());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.0.join(name)
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).expect("renames");
    }

    fn make(&self, name: &str) {
        File::create_new(self.path(name)).expect("there was none");
    }

    fn told(&self, what: &str) -> usize {
        self.directory.read("errors").matches(what).count()
    }

    /// Whether the descriptor is readable, so that a waiting process wakes.
    fn wakes(&self) -> bool {
        let descriptor = self.rotations.descriptor().expect("there is inotify");
        let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

#[test]
fn a_new_file_of_the_name_gets_the_next_lines() {
    let mut a = Followed::new("rotation-create");
    a.write("one\n");
    assert!(!a.wakes(), "a line is no change of names");
    a.rename("logs/a", "logs/a.1");
    a.write("two\n");
    a.make("logs/a");
    assert!(a.wakes());
    assert_eq!(a.look_after(Duration::ZERO), 1);
    a.write("three\n");
    assert_eq!(a.directory.read("logs/a.1"), "one\ntwo\n");
    assert_eq!(a.directory.read("logs/a"), "three\n");
    assert_eq!(a.told("reopened the log"), 1);
    assert_eq!(a.look_after(LONG), 0, "it is the same file from now on");
}

#[test]
fn other_names_in_the_directory_are_none_of_our_concern() {
    let mut a = Followed::new("rotation-others");
    a.make("logs/b");
    assert_eq!(a.look_after(Duration::ZERO), 0);
    assert_eq!(a.told("log"), 0);
}

#[test]
fn logrotate_has_five_seconds_to_make_the_file() {
    let mut a = Followed::new("rotation-late");
    a.rename("logs/a", "logs/a.1");
    assert_eq!(a.look_after(Duration::ZERO), 0);
    let soon = a.rotations.deadline(a.now) - a.now;
    assert!(soon < Duration::from_secs(1), "it waits: {soon:?}");
    assert_eq!(a.look_after(Duration::from_secs(4)), 0);
    assert!(!a.path("logs/a").exists());
    a.write("one\n");
    a.make("logs/a");
    assert_eq!(a.look_after(Duration::ZERO), 1);
    a.write("two\n");
    assert_eq!(a.directory.read("logs/a.1"), "one\n");
    assert_eq!(a.directory.read("logs/a"), "two\n");
}

#[test]
fn after_five_seconds_the_file_is_made_here() {
    let mut a = Followed::new("rotation-none");
    a.rename("logs/a", "logs/a.1");
    assert_eq!(a.look_after(Duration::ZERO), 0);
    assert_eq!(a.look_after(LONG), 1);
    a.write("one\n");
    assert_eq!(a.directory.read("logs/a"), "one\n");
    assert_eq!(a.told("its file was renamed or removed"), 1);
    // The name of a removed file leads to no file, either.
    fs::remove_file(a.path("logs/a")).expect("it is there");
    assert_eq!(a.look_after(Duration::ZERO), 0);
    assert_eq!(a.look_after(LONG), 1);
    assert_eq!(a.directory.read("logs/a"), "");
}

#[test]
fn a_file_that_was_cut_goes_on() {
    let mut a = Followed::new("rotation-copytruncate");
    a.write("one\n");
    fs::copy(a.path("logs/a"), a.path("logs/a.1")).expect("copies");
    let file = File::options().write(true).open(a.path("logs/a"));
    file.expect("it is there").set_len(0).expect("cuts");
    assert_eq!(a.look_after(LONG), 0);
    a.write("two\n");
    assert_eq!(a.directory.read("logs/a"), "two\n");
    assert_eq!(a.directory.read("logs/a.1"), "one\n");
}

#[test]
fn a_directory_that_is_gone_is_told_once_and_found_again() {
    let mut a = Followed::new("rotation-gone");
    a.rename("logs", "elsewhere");
    assert!(a.wakes());
    assert_eq!(a.look_after(Duration::ZERO), 0);
    for _ in 0..3 {
        assert_eq!(a.look_after(LONG), 0);
    }
    assert_eq!(a.told("lines still go to the old file"), 1);
    assert!(a.rotations.deadline(a.now) - a.now > Duration::from_secs(1));
    a.write("one\n");
    assert_eq!(a.directory.read("elsewhere/a"), "one\n");
    fs::create_dir(a.path("logs")).expect("a directory");
    assert_eq!(a.look_after(LOOK_EVERY), 1);
    a.write("two\n");
    assert_eq!(a.directory.read("logs/a"), "two\n");
    assert_eq!(a.directory.read("elsewhere/a"), "one\n");
}

#[test]
fn where_inotify_is_missing_names_are_looked_at_every_second() {
    let mut a = Followed::new("rotation-poll");
    a.rotations.inotify = None;
    a.rotations.logs_changed(a.now);
    a.look_after(Duration::ZERO);
    a.rename("logs/a", "logs/a.1");
    a.make("logs/a");
    assert_eq!(a.rotations.deadline(a.now) - a.now, Duration::from_secs(1));
    assert_eq!(a.look_after(Duration::from_secs(1)), 1);
}

#[test]
fn what_is_no_regular_file_is_left_alone() {
    let mut a = Followed::new("rotation-kind");
    a.rename("logs/a", "logs/a.1");
    fs::create_dir(a.path("logs/a")).expect("a directory");
    assert_eq!(a.look_after(Duration::ZERO), 0);
    assert_eq!(a.look_after(LONG), 0);
    a.write("one\n");
    assert_eq!(a.directory.read("logs/a.1"), "one\n");
    assert_eq!(a.told("lines still go to the old file"), 1);
}

#[test]
fn the_owner_of_the_directory_cannot_have_root_write_elsewhere() {
    if !geteuid().is_root() {
        return;
    }
    for kind in ["link", "second name"] {
        let mut a = Followed::new(&format!("rotation-attack-{}", kind.len()));
        a.make("precious");
        a.rename("logs/a", "logs/a.1");
        match kind {
            "link" => {
                symlink(a.path("precious"), a.path("logs/a")).expect("a link");
                std::os::unix::fs::lchown(a.path("logs/a"), Some(OTHER), None).expect("chown");
            }
            _ => fs::hard_link(a.path("precious"), a.path("logs/a")).expect("a link"),
        }
        a.owner.user = Some(OTHER);
        assert_eq!(a.look_after(Duration::ZERO), 0, "{kind}");
        assert_eq!(a.look_after(LONG), 0, "{kind}");
        a.write("one\n");
        assert_eq!(a.directory.read("precious"), "", "{kind}");
        assert_eq!(a.directory.read("logs/a.1"), "one\n", "{kind}");
        assert_eq!(a.told("lines still go to the old file"), 1, "{kind}");
        let owner = fs::metadata(a.path("precious")).expect("there").uid();
        assert_eq!(owner, 0, "{kind}");
    }
}

/// The owner of the directory puts something there after the check finds no file and before the file is
/// created.
#[test]
fn what_is_opened_instead_of_made_is_checked() {
    let directory = Directory::new("rotation-checked");
    let path = directory.0.join("a");
    let open = |path: &Path| open_or_make(path, None, FileOwner::default()).and_then(checked);
    assert!(open(&path).is_ok());
    fs::hard_link(&path, directory.0.join("b")).expect("a second name");
    assert_eq!(open(&path).is_err(), geteuid().is_root());
    let refused = open(Path::new("/dev/null")).expect_err("it is a device");
    assert!(
        refused.to_string().contains("not a regular file"),
        "{refused}"
    );
}

#[test]
fn only_files_that_are_made_here_change_their_owner() {
    if !geteuid().is_root() {
        return;
    }
    let owner = FileOwner {
        user: Some(OTHER),
        group: Some(OTHER),
    };
    let mut a = Followed::new("rotation-owner");
    a.owner = owner;
    let owner_of = |path: &Path| {
        let data = fs::metadata(path).expect("it is there");
        (data.uid(), data.gid())
    };
    // logrotate has created it, with the owner from its configuration.
    a.rename("logs/a", "logs/a.1");
    a.make("logs/a");
    chown(a.path("logs/a"), Some(OTHER + 1), Some(0)).expect("chown");
    assert_eq!(a.look_after(Duration::ZERO), 1);
    assert_eq!(owner_of(&a.path("logs/a")), (OTHER + 1, 0));
    a.rename("logs/a", "logs/a.2");
    assert_eq!(a.look_after(Duration::ZERO), 0);
    assert_eq!(a.look_after(LONG), 1);
    assert_eq!(owner_of(&a.path("logs/a")), (OTHER, OTHER));
    // On SIGHUP and at the start, also through a link of root whose target does not exist yet.
    a.rename("logs/a", "logs/a.3");
    a.logs.reopen_all(owner).expect("opens");
    assert_eq!(owner_of(&a.path("logs/a")), (OTHER, OTHER));
    a.make("logs/old");
    symlink("behind", a.path("logs/link")).expect("a link");
    for (name, file, its) in [
        ("logs/new", "logs/new", (OTHER, OTHER)),
        ("logs/link", "logs/behind", (OTHER, OTHER)),
        ("logs/old", "logs/old", (0, owner_of(&a.path("logs/old")).1)),
    ] {
        let target = a.directory.target(name);
        a.logs.add_below(None, owner, [target]).expect("opens");
        assert_eq!(owner_of(&a.path(file)), its, "{name}");
    }
}

/// Any user but root.
const OTHER: u32 = 54_321;
