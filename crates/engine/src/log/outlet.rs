//! The destination of a log (a file, a pipe or the syslog daemon), and the bytes that it has not taken yet.
//!
//! Nothing here waits, except a write to a slow disk or to standard error. Bytes that cannot be written are
//! kept and tried again a second later; only their own log is delayed by that.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Mode, OFlags, Uid, fchown, open};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::links;
use super::pipe::{self, PipeOutlet};
use super::syslog::{SYSLOG_PATH, SyslogFacility, SyslogOutlet};
use super::target::LogTarget;
use crate::beneath::open_in_root;

/// Where the bytes of a log go.
pub(super) enum Outlet {
    /// Standard error of the process.
    Stderr,
    /// A file, or a pipe that another process made.
    File(OwnedFd),
    /// The standard input of a command.
    Pipe(PipeOutlet),
    /// The syslog daemon.
    Syslog(SyslogOutlet),
    /// Closed for good; bytes are dropped.
    Closed,
}

/// An outlet, and the bytes that it has not taken yet.
pub(super) struct Sink {
    pub(super) outlet: Outlet,
    /// Whole lines, of which the first `written` bytes were written.
    pub(super) bytes: Vec<u8>,
    written: usize,
    /// The reader had no room.
    pub(super) is_blocked: bool,
    /// After an error: the time of the next attempt.
    retry_at: Option<Instant>,
    /// How many writes have failed.
    pub(super) errors: u64,
    /// The last error, until [`Sink::take_trouble`] finds that all bytes were written.
    trouble: Option<Errno>,
}

/// The result of writing.
#[derive(Debug)]
pub(super) enum Written {
    /// All bytes were written.
    All,
    /// The reader is slow: wait until it takes more.
    Blocked,
    /// A write has failed, now or less than a second ago, or the pipe has no reader: try again later. The
    /// error is set only if it is new.
    Later(Option<Errno>),
}

/// How long to wait after an error before the next attempt.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The most bytes that one call passes to the kernel.
const WRITE_BYTES_MAX: usize = 1024 * 1024;

impl Outlet {
    /// Opens `target`. The path of a file is relative to `root`, if there is one. A new file belongs to
    /// `owner`.
    ///
    /// # Errors
    /// That of the kernel, with the name of the target.
    pub(super) fn open(
        target: &LogTarget,
        root: Option<&Path>,
        owner: FileOwner,
    ) -> io::Result<Outlet> {
        let opened = match target {
            LogTarget::Stderr => Ok(Outlet::Stderr),
            LogTarget::File(path) => open_or_make(path, root, owner).map(Outlet::File),
            LogTarget::Pipe(command) => PipeOutlet::start(command).map(Outlet::Pipe),
            LogTarget::Syslog => Ok(Outlet::Syslog(SyslogOutlet::new(Path::new(SYSLOG_PATH)))),
        };
        opened.map_err(|error| {
            let kind = error.kind();
            let reason = match target {
                LogTarget::File(path) if kind == io::ErrorKind::NotFound => {
                    missing_directory(path, root)
                }
                _ => None,
            };
            let reason = reason.unwrap_or_else(|| error.to_string());
            io::Error::new(kind, format!("the log {target} cannot be opened: {reason}"))
        })
    }

    /// Makes an outlet for `target` from a descriptor that another process opened.
    pub(super) fn adopt(target: &LogTarget, descriptor: OwnedFd) -> Outlet {
        let _ = rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC);
        match target {
            LogTarget::Pipe(_) => {
                let _ = pipe::prepare(descriptor.as_fd());
                Outlet::Pipe(PipeOutlet::adopt(descriptor))
            }
            _ => Outlet::File(descriptor),
        }
    }

    /// The descriptor to write to and to wait for.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Outlet::Stderr => Some(rustix::stdio::stderr()),
            Outlet::File(descriptor) => Some(descriptor.as_fd()),
            Outlet::Pipe(pipe) => pipe.input(),
            Outlet::Syslog(_) | Outlet::Closed => None,
        }
    }
}

/// Why a new file cannot be created at `path`, if its directory is missing.
fn missing_directory(path: &Path, root: Option<&Path>) -> Option<String> {
    let directory = path.parent()?;
    let seen = match root {
        Some(root) => root.join(directory.strip_prefix("/").unwrap_or(directory)),
        None => directory.to_owned(),
    };
    (!seen.exists()).then(|| format!("directory {} is missing", seen.display()))
}

/// Who owns the log files that this process creates. With both `None`, the process itself does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOwner {
    /// A user id.
    pub user: Option<u32>,
    /// A group id.
    pub group: Option<u32>,
}

/// Opens a file for appending, and creates it if it does not exist. Only a new file gets `owner`: an existing
/// name may lead to any file, which keeps its owner.
pub(super) fn open_or_make(
    path: &Path,
    root: Option<&Path>,
    owner: FileOwner,
) -> io::Result<OwnedFd> {
    if owner == FileOwner::default() {
        return open_file(path, root, OFlags::CREATE);
    }
    for _ in 0..TRIES {
        match open_file(path, root, OFlags::empty()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        match open_file(path, root, OFlags::CREATE | OFlags::EXCL) {
            // Another process has created it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(made) => {
                let user = owner.user.map(Uid::from_raw);
                fchown(&made, user, owner.group.map(Gid::from_raw))?;
                return Ok(made);
            }
        }
    }
    // In a chroot, EXCL refuses a symbolic link whose target does not exist yet.
    open_file(path, root, OFlags::CREATE)
}

/// Opens a file for appending, with the additional flags `more`. The names of standard output and standard
/// error in /dev stand for the descriptors themselves, because those may be sockets or pipes of another user,
/// which cannot be opened.
///
/// Root follows only its own links: see [`links`].
///
/// With a `root`, the path means what it means to a process whose root directory that is, also behind
/// symbolic links, because other users may own what is in there. Needs openat2(2), Linux 5.6.
pub(super) fn open_file(path: &Path, root: Option<&Path>, more: OFlags) -> io::Result<OwnedFd> {
    match path.to_str() {
        Some("/dev/stdout") => return rustix::stdio::stdout().try_clone_to_owned(),
        Some("/dev/stderr") => return rustix::stdio::stderr().try_clone_to_owned(),
        _ => {}
    }
    // With NONBLOCK, opening a named pipe without a reader is an error instead of a hang.
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CLOEXEC
        | OFlags::NOCTTY
        | OFlags::NONBLOCK
        | more;
    // The kernel refuses a mode if no file can be created.
    let mode = match more.contains(OFlags::CREATE) {
        true => Mode::from_raw_mode(0o644),
        false => Mode::empty(),
    };
    let Some(root) = root else {
        return match geteuid().is_root() {
            true => links::open(path, flags, mode, 0),
            false => Ok(open(path, flags, mode)?),
        };
    };
    Ok(open_in_root(root, path, flags, mode)?)
}

/// How often the file may appear and disappear between two calls; after that it must be a link without a
/// target.
const TRIES: usize = 3;

impl Sink {
    pub(super) fn new(outlet: Outlet) -> Sink {
        Sink {
            outlet,
            bytes: Vec::new(),
            written: 0,
            is_blocked: false,
            retry_at: None,
            errors: 0,
            trouble: None,
        }
    }

    /// Writes as many bytes as possible.
    pub(super) fn write(&mut self, facility: SyslogFacility, lost: &mut u64) -> Written {
        if self.bytes.is_empty() {
            return Written::All;
        }
        match &mut self.outlet {
            Outlet::Syslog(syslog) => *lost += syslog.send_lines(&self.bytes, facility),
            Outlet::Closed => {}
            _ => return self.write_descriptor(),
        }
        self.finish()
    }

    fn write_descriptor(&mut self) -> Written {
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return Written::Later(None);
        }
        self.retry_at = None;
        self.is_blocked = false;
        while self.written < self.bytes.len() {
            let Some(descriptor) = self.outlet.descriptor() else {
                return Written::Later(None);
            };
            let end = self.bytes.len().min(self.written + WRITE_BYTES_MAX);
            match rustix::io::write(descriptor, &self.bytes[self.written..end]) {
                Ok(0) => return self.failed(Errno::IO),
                Ok(length) => self.written += length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.is_blocked = true;
                    return Written::Blocked;
                }
                Err(error) => return self.failed(error),
            }
        }
        self.finish()
    }

    fn failed(&mut self, error: Errno) -> Written {
        self.errors += 1;
        self.trouble = Some(error);
        match &mut self.outlet {
            Outlet::Pipe(pipe) if error == Errno::PIPE => {
                pipe.broke();
                self.rewind();
            }
            _ => self.retry_at = Some(Instant::now() + RETRY_AFTER),
        }
        Written::Later(Some(error))
    }

    fn finish(&mut self) -> Written {
        self.bytes.clear();
        self.written = 0;
        Written::All
    }

    /// Changes the outlet. A line that was written in part is written whole to the new one.
    pub(super) fn replace(&mut self, outlet: Outlet) {
        self.outlet = outlet;
        self.retry_at = None;
        self.is_blocked = false;
        self.rewind();
    }

    /// Goes back to the start of a line that was written in part.
    fn rewind(&mut self) {
        let out = &self.bytes[..self.written];
        self.written = memchr::memrchr(b'\n', out).map_or(0, |line_end| line_end + 1);
    }

    /// Makes the next write an attempt, also soon after one that failed.
    pub(super) fn retry_now(&mut self) {
        self.retry_at = None;
    }

    /// Drops the lines that were not written. Returns how many.
    pub(super) fn drop_lines(&mut self) -> u64 {
        self.rewind();
        let lines = memchr::memchr_iter(b'\n', &self.bytes[self.written..]).count();
        self.finish();
        lines as u64
    }

    /// Why lines had to wait lately: the last error. Forgets it once all bytes were written.
    pub(super) fn take_trouble(&mut self) -> Option<Errno> {
        match self.is_empty() {
            true => self.trouble.take(),
            false => self.trouble,
        }
    }

    /// Whether all bytes were written.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink_on_full_disk() -> Sink {
        let full =
            open_file(Path::new("/dev/full"), None, OFlags::empty()).expect("every Linux has it");
        let mut sink = Sink::new(Outlet::File(full));
        sink.bytes.extend_from_slice(b"line\n");
        sink
    }

    #[test]
    fn a_full_disk_is_told_once_and_left_alone_for_a_second() {
        let mut sink = sink_on_full_disk();
        let mut write = || sink.write(SyslogFacility::default(), &mut 0);
        assert!(matches!(write(), Written::Later(Some(Errno::NOSPC))));
        assert!(
            matches!(write(), Written::Later(None)),
            "no second attempt at once"
        );
        assert_eq!(sink.errors, 1);
        assert!(!sink.is_empty());
        assert_eq!(sink.take_trouble(), Some(Errno::NOSPC));
        assert_eq!(sink.take_trouble(), Some(Errno::NOSPC), "it is still there");
    }

    #[test]
    fn a_new_file_gets_what_the_full_one_refused() {
        let mut sink = sink_on_full_disk();
        let _ = sink.write(SyslogFacility::default(), &mut 0);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        sink.replace(Outlet::File(writer.into()));
        assert!(matches!(
            sink.write(SyslogFacility::default(), &mut 0),
            Written::All
        ));
        drop(sink);
        assert_eq!(io::read_to_string(reader).expect("text"), "line\n");
    }

    #[test]
    fn a_line_that_is_half_out_goes_whole_to_the_next_outlet() {
        let mut sink = Sink::new(Outlet::Closed);
        sink.bytes.extend_from_slice(b"one\ntwo\n");
        sink.written = 6;
        sink.replace(Outlet::Closed);
        assert_eq!(sink.written, 4);
    }

    #[test]
    fn an_open_error_names_the_file() {
        let target = LogTarget::parse("/nowhere/at/all.log");
        let error = Outlet::open(&target, None, FileOwner::default())
            .err()
            .expect("no such directory");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(
            error.to_string(),
            "the log /nowhere/at/all.log cannot be opened: directory /nowhere/at is missing"
        );
    }
}
