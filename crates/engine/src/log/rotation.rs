//! Notices log files that were renamed or removed without telling this server.
//!
//! Debian's logrotate signals lighttpd by the path of its program, which does not reach Petrel. So the
//! process that opens the logs watches their names: inotify reports most changes at once, and every few
//! seconds the process checks what inotify does not see (a link on the path, another machine). If a name
//! leads to another regular file, that file is opened. If it leads to no file, logrotate gets five seconds to
//! create the new file with the mode and the owner of its own configuration. After that, this process creates
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

/// The watched names of the log files.
pub struct Rotations {
    /// `None`: the kernel has no inotify instance left. Then the names are checked more often.
    inotify: Option<OwnedFd>,
    /// The watches of the directories that contain logs. Two paths may lead to the same directory.
    watches: HashMap<PathBuf, i32>,
    /// When all names are checked again, even without an event.
    look_at: Instant,
    /// Logs whose name leads to no file, or to a file that a log must not be written to.
    lost: Vec<Lost>,
}

struct Lost {
    target: LogTarget,
    since: Instant,
    /// The error log has a message about it. From then on the name is checked only as often as the others.
    is_told: bool,
}

/// Where the name of a log leads.
enum Name {
    /// To the open file, or to one that this code leaves alone.
    Same,
    /// To another file, now open for appending.
    Another(OwnedFd),
    Nowhere,
    /// To something that a log must not be written to.
    Refused(io::Error),
}

/// The events that inotify has reported.
#[derive(Default)]
struct Changes {
    /// The names in the events, by watch.
    names: HashMap<i32, HashSet<OsString>>,
    /// A directory itself has changed, or events were lost.
    anything: bool,
}

impl Rotations {
    /// Nothing is watched before the first call of [`Rotations::look`], which is due `now`.
    pub fn new(now: Instant) -> Rotations {
        Rotations {
            inotify: init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok(),
            watches: HashMap::new(),
            look_at: now,
            lost: Vec::new(),
        }
    }

    /// Readable when names should be checked.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// When names have to be checked next, even without an event.
    pub fn deadline(&self, now: Instant) -> Instant {
        match self.lost.iter().all(|lost| lost.is_told) {
            true => self.look_at,
            false => self.look_at.min(now + LOOK_FOR_LOST_EVERY),
        }
    }

    /// All names have to be checked, because logs were opened or closed.
    pub fn logs_changed(&mut self, now: Instant) {
        self.look_at = now;
    }

    /// Checks the names that may lead elsewhere, and opens their logs again. New files belong to `owner`.
    /// Returns the new descriptors, for the processes that write these logs.
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
            // The watches come before the checks, so that a change in between causes an event.
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

    /// Checks one log. Returns a duplicate of the new descriptor if there is one.
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
            return take(logs, log, file, "its name leads to another file now");
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
            // The name may lead to a file by now, so the opened file is checked here as well.
            (_, LogTarget::File(path)) => open_or_make(path, log.root(), owner).and_then(checked),
            _ => return None,
        };
        match made {
            Ok(file) => {
                self.lost.swap_remove(index);
                let why = "its file was renamed or removed";
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
        // Ends with EAGAIN, when all events were read.
        while let Ok(event) = reader.next() {
            match event.file_name() {
                _ if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => changes.anything = true,
                Some(name) => {
                    let names = changes.names.entry(event.wd()).or_default();
                    names.insert(OsStr::from_bytes(name.to_bytes()).to_owned());
                }
                // An event without a name is of no interest if its watch was removed.
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

    /// Watches the directories of `files`, and removes all other watches.
    fn watch(&mut self, files: &[(Arc<Log>, PathBuf)]) {
        let Some(inotify) = &self.inotify else { return };
        let directories = files.iter().filter_map(|(_, path)| path.parent());
        let directories: HashSet<&Path> = directories.collect();
        // For a directory that is watched already, the kernel returns the same watch. A directory that does
        // not exist is tried again by the next call.
        let watches = directories.into_iter().filter_map(|directory| {
            let watch = add_watch(inotify, directory, NAME_EVENTS).ok()?;
            Some((directory.to_owned(), watch))
        });
        let watches: HashMap<PathBuf, i32> = watches.collect();
        for watch in self.watches.values() {
            if watches.values().all(|kept| kept != watch) {
                // If the directory was removed, the kernel has removed the watch already.
                let _ = remove_watch(inotify, *watch);
            }
        }
        self.watches = watches;
    }
}

/// The path of a log that is a file, as this process sees it. `None` for names that stand for a descriptor of
/// this process.
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

/// Finds out where the name of `log` leads now, by the same rules as for opening it.
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

/// Returns `file` if a log may continue in it without an explicit order: it must be a regular file and, for
/// root, have only one name. With a second name, the owner of the directory could make root write to any file
/// of the same file system.
fn checked(file: OwnedFd) -> io::Result<OwnedFd> {
    let found = fstat(&file)?;
    if !is_regular(&found) {
        return Err(io::Error::other("it is not a regular file"));
    }
    if found.st_nlink > 1 && geteuid().is_root() {
        return Err(io::Error::other("the file has a second name (hard link)"));
    }
    Ok(file)
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Lets `log` continue in `file`. Returns a duplicate for other processes.
fn take(logs: &LogRegistry, log: &Log, file: OwnedFd, why: &str) -> Option<OwnedFd> {
    // Without a duplicate the others would continue in the old file: the next call tries again.
    let copy = file.try_clone();
    match copy {
        Ok(_) => {
            log.replace(Outlet::File(file));
            logs.error(format_args!("reopened the log {}: {why}", log.target));
        }
        Err(ref error) => logs.error(format_args!(
            "the log {} was not reopened: {error}",
            log.target
        )),
    }
    copy.ok()
}

/// Events about names in a directory, and not about contents: otherwise each log line would wake this
/// process.
const NAME_EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);
/// Room for several events with long names.
const EVENT_BUFFER_BYTES: usize = 4096;
/// How long logrotate has to create a new file.
const WAIT_FOR_LOGROTATE: Duration = Duration::from_secs(5);
/// How often a name without a file is checked during that time. Not at once, because logrotate may change the
/// owner of a new file after inotify has reported it.
const LOOK_FOR_LOST_EVERY: Duration = Duration::from_millis(250);
/// How often all names are checked for changes that inotify does not see.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The same if there is no inotify.
const LOOK_EVERY_WITHOUT_INOTIFY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
