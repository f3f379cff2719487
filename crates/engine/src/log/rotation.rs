//! Log files that were renamed or removed: a rotation that tells this server nothing.
//!
//! Debian's logrotate tells lighttpd by the path of its program, which does not reach us. So the
//! process that opens the logs looks at their names itself: at once when inotify reports one of them,
//! and every few seconds for what inotify does not see (a link on the way, another machine). A name
//! that leads to another regular file is opened. One that leads nowhere has five seconds, in which
//! logrotate makes the new file with the mode and the owner of its own configuration; then we make
//! it. Until then lines go to the old file, so that none is lost.
//!
//! Has no thread and no clock: the keeper calls [`Rotations::look`].

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::inotify::{
    CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch,
};
use rustix::fs::{FileType, OFlags, Stat, fstat};
use rustix::process::geteuid;

use super::LogRegistry;
use super::handle::Log;
use super::outlet::{FileOwner, Outlet, open_file, open_or_make};
use super::target::LogTarget;

/// What is known of the names of the log files.
pub struct Rotations {
    /// None: the kernel has no more of them. Names are looked at more often then.
    inotify: Option<OwnedFd>,
    /// The watches of the directories that logs are in. Two paths may lead to one directory.
    watches: HashMap<PathBuf, i32>,
    /// When all names are looked at again, whatever inotify says.
    look_at: Instant,
    /// Names that lead nowhere, or where a log must not go.
    lost: Vec<Lost>,
}

struct Lost {
    target: LogTarget,
    since: Instant,
    /// The error log knows. From then on the name is looked at as seldom as the others.
    is_told: bool,
}

/// Where the name of a log leads.
enum Name {
    /// To the file that is open, or to one that is none of our concern.
    Same,
    /// To another file, which is open for appending.
    Another(OwnedFd),
    Nowhere,
    /// To something that a log must not go to.
    Refused(io::Error),
}

/// What inotify has reported.
#[derive(Default)]
struct Changes {
    /// The names that were reported, by watch.
    names: HashMap<i32, HashSet<OsString>>,
    /// A directory itself has changed, or reports were lost.
    anything: bool,
}

impl Rotations {
    /// Nothing is watched before the first look, which is due `now`.
    pub fn new(now: Instant) -> Rotations {
        Rotations {
            inotify: init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok(),
            watches: HashMap::new(),
            look_at: now,
            lost: Vec::new(),
        }
    }

    /// Becomes readable when a look is worth it.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// When the next look is due in any case.
    pub fn deadline(&self, now: Instant) -> Instant {
        match self.lost.iter().all(|lost| lost.is_told) {
            true => self.look_at,
            false => self.look_at.min(now + LOOK_FOR_LOST_EVERY),
        }
    }

    /// Makes a look at all names due: logs were opened or closed.
    pub fn logs_changed(&mut self, now: Instant) {
        self.look_at = now;
    }

    /// Looks at the names that may lead elsewhere, and opens their logs anew; files that are made
    /// belong to `owner`. Answers the new descriptors, for the processes that write these logs.
    pub fn look(
        &mut self,
        logs: &LogRegistry,
        owner: FileOwner,
        now: Instant,
    ) -> Vec<(LogTarget, OwnedFd)> {
        let changes = self.read_changes();
        let all = changes.anything || self.look_at <= now;
        let watches_for_lost = self.lost.iter().any(|lost| !lost.is_told);
        if !all && changes.names.is_empty() && !watches_for_lost {
            return Vec::new();
        }
        let files = logs.logs().into_iter().filter_map(|log| {
            let path = path_of(&log)?;
            Some((log, path))
        });
        let files: Vec<(Arc<Log>, PathBuf)> = files.collect();
        if all {
            // Before the names are looked at: what changes in between is reported.
            self.watch(&files);
            let pace = match self.inotify {
                Some(_) => LOOK_EVERY,
                None => LOOK_EVERY_WITHOUT_INOTIFY,
            };
            self.look_at = now + pace;
            let is_open = |lost: &Lost| files.iter().any(|(log, _)| log.target == lost.target);
            self.lost.retain(is_open);
        }
        let mut renewed = Vec::new();
        for (log, path) in files {
            let is_waited_for = |lost: &Lost| !lost.is_told && lost.target == log.target;
            if (all || self.is_reported(&path, &changes) || self.lost.iter().any(is_waited_for))
                && let Some(file) = self.look_at_one(logs, &log, owner, now)
            {
                renewed.push((log.target.clone(), file));
            }
        }
        renewed
    }

    /// Answers a copy of the new descriptor, if there is one.
    fn look_at_one(
        &mut self,
        logs: &LogRegistry,
        log: &Log,
        owner: FileOwner,
        now: Instant,
    ) -> Option<OwnedFd> {
        let name = name_of(log);
        let index = self.lost.iter().position(|lost| lost.target == log.target);
        if let Name::Same = name {
            index.map(|index| self.lost.swap_remove(index));
            return None;
        }
        if let Name::Another(file) = name {
            index.map(|index| self.lost.swap_remove(index));
            return take(logs, log, file, "its name led to another file");
        }
        let index = index.unwrap_or_else(|| {
            self.lost.push(Lost {
                target: log.target.clone(),
                since: now,
                is_told: false,
            });
            self.lost.len() - 1
        });
        if now.saturating_duration_since(self.lost[index].since) < WAIT_FOR_LOGROTATE {
            return None;
        }
        let made = match (name, &log.target) {
            (Name::Refused(error), _) => Err(error),
            // The name may lead somewhere by now, so what was opened is checked here as well.
            (_, LogTarget::File(path)) => open_or_make(path, log.root(), owner).and_then(checked),
            _ => return None,
        };
        match made {
            Ok(file) => {
                self.lost.swap_remove(index);
                let why = "there was no file of its name any more";
                take(logs, log, file, why)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.lost[index].is_told, true) {
                    logs.error(format_args!(
                        "the name of the log {} no longer leads to the file that is written to, and none can be \
                         opened in its place: {error}; lines still go to the old file",
                        log.target
                    ));
                }
                None
            }
        }
    }

    fn read_changes(&self) -> Changes {
        let mut changes = Changes::default();
        let Some(inotify) = &self.inotify else {
            return changes;
        };
        let mut buffer = [MaybeUninit::uninit(); EVENT_BUFFER_BYTES];
        let mut reader = Reader::new(inotify, &mut buffer);
        // Ends with AGAIN, when everything was read.
        while let Ok(event) = reader.next() {
            match event.file_name() {
                _ if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => changes.anything = true,
                Some(name) => {
                    let names = changes.names.entry(event.wd()).or_default();
                    names.insert(OsStr::from_bytes(name.to_bytes()).to_owned());
                }
                // Nothing, if it is about a watch that was given up.
                None => changes.anything |= self.watches.values().any(|watch| *watch == event.wd()),
            }
        }
        changes
    }

    fn is_reported(&self, path: &Path, changes: &Changes) -> bool {
        let watch = path
            .parent()
            .and_then(|directory| self.watches.get(directory));
        let names = watch.and_then(|watch| changes.names.get(watch));
        let name = path.file_name();
        names.is_some_and(|names| name.is_some_and(|name| names.contains(name)))
    }

    /// Watches the directories of `files`, and no others.
    fn watch(&mut self, files: &[(Arc<Log>, PathBuf)]) {
        let Some(inotify) = &self.inotify else { return };
        let directories = files.iter().filter_map(|(_, path)| path.parent());
        let directories: HashSet<&Path> = directories.collect();
        // Asked for again, the kernel answers the same watch. A directory that is not there is
        // looked for again by the next look.
        let watches = directories.into_iter().filter_map(|directory| {
            let watch = add_watch(inotify, directory, NAME_EVENTS).ok()?;
            Some((directory.to_owned(), watch))
        });
        let watches: HashMap<PathBuf, i32> = watches.collect();
        for watch in self.watches.values() {
            if watches.values().all(|kept| kept != watch) {
                // The kernel has given it up by itself if the directory was removed.
                let _ = remove_watch(inotify, *watch);
            }
        }
        self.watches = watches;
    }
}

/// The path of a log that is a file, as this process sees it. None for a name that stands for a
/// descriptor of this process.
fn path_of(log: &Log) -> Option<PathBuf> {
    let LogTarget::File(path) = &log.target else {
        return None;
    };
    let is_descriptor = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"];
    if is_descriptor.iter().any(|place| path.starts_with(place)) {
        return None;
    }
    match log.root() {
        Some(root) => Some(root.join(path.strip_prefix("/").unwrap_or(path))),
        None => std::path::absolute(path).ok(),
    }
}

/// Looks where the name of `log` leads now, by the rules for opening it.
fn name_of(log: &Log) -> Name {
    let open = log
        .copy_descriptor()
        .and_then(|file| fstat(file.ok()?).ok());
    let (Some(open), LogTarget::File(path)) = (open, &log.target) else {
        return Name::Same;
    };
    if !is_regular(&open) {
        return Name::Same;
    }
    let file = match open_file(path, log.root(), OFlags::empty()) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Name::Nowhere,
        Err(error) => return Name::Refused(error),
    };
    let Ok(found) = fstat(&file) else {
        return Name::Same;
    };
    if (found.st_dev, found.st_ino) == (open.st_dev, open.st_ino) {
        return Name::Same;
    }
    match checked(file) {
        Ok(file) => Name::Another(file),
        Err(error) => Name::Refused(error),
    }
}

/// Answers `file` if a log may go on there without an administrator's word: it is a regular file and, for root, has
/// one name only. With a second name the owner of the directory could have root write to any file of the same file
/// system.
fn checked(file: OwnedFd) -> io::Result<OwnedFd> {
    let found = fstat(&file)?;
    if !is_regular(&found) {
        return Err(io::Error::other("it is no regular file"));
    }
    if found.st_nlink > 1 && geteuid().is_root() {
        return Err(io::Error::other("the file has other names"));
    }
    Ok(file)
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Lets `log` go on in `file`. Answers a copy for other processes.
fn take(logs: &LogRegistry, log: &Log, file: OwnedFd, why: &str) -> Option<OwnedFd> {
    // Without a copy the others would go on in the old file: the next look tries again.
    let copy = file.try_clone();
    match copy {
        Ok(_) => {
            log.replace(Outlet::File(file));
            logs.error(format_args!("opened the log {} anew: {why}", log.target));
        }
        Err(ref error) => logs.error(format_args!(
            "the log {} was not opened anew: {error}",
            log.target
        )),
    }
    copy.ok()
}

/// What happens to names in a directory, but not to contents: else each line would wake us.
const NAME_EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);
/// Room for some events with long names.
const EVENT_BUFFER_BYTES: usize = 4096;
/// How long logrotate has to make a new file.
const WAIT_FOR_LOGROTATE: Duration = Duration::from_secs(5);
/// How often a name that leads nowhere is looked at meanwhile. The new file may still get its owner
/// when inotify reports it.
const LOOK_FOR_LOST_EVERY: Duration = Duration::from_millis(250);
/// How often all names are looked at, for what inotify does not see.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The same where there is no inotify.
const LOOK_EVERY_WITHOUT_INOTIFY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
