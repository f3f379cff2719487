//! Look-ups of files for a request, and the wait for the disk.
//!
//! A hook calls [`Exchange::look_up`]. `None` means that the disk has to be read: the hook returns
//! [`Outcome::Cold`], and the phase loop calls it again after a disk thread has looked. The exchange keeps
//! the results, so that the second call finds them even if the file cache has dropped them already.

use std::cell::{RefCell, RefMut};
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use rustix::io::Errno;

use crate::blocking::{self, Class, DeviceLoad, FileDeadline, Late, NotDone, Origin, RunningJob};
use crate::cause::{CauseCode, ErrorCause};
use crate::exchange::Exchange;
use crate::exchange::dry_run::LookUpSource;
use crate::file_cache::read::read_full;
use crate::file_cache::{
    Asker, DiskWait, FileEntry, FoundFile, LookResult, LookTimes, NextNames, Symlinks,
};
use crate::ledger::{Nanos, Stage};
use crate::limits;
use crate::module::{Outcome, Pending};
use crate::mounts;
use crate::network_backend::FileReader;
use crate::waits::{self, HolderText, ShownPath};

/// Look-ups and reads that one request started, and their results. Most requests start none, and use one word
/// of memory for this.
#[derive(Default)]
pub(crate) struct ColdFiles(RefCell<Option<Box<Asked>>>);

#[derive(Default)]
struct Asked {
    found: Vec<FoundFile>,
    waiting: Option<DiskWait>,
    /// How long the disk threads took for what the request waited for last.
    times: Vec<LookTimes>,
    /// The path that the request waits for, or waited for last.
    awaited: Vec<u8>,
    /// That wait is for the content of a whole file, not for a look-up.
    awaits_content: bool,
    /// A read of a whole file, running or finished.
    reading: Option<ReadWhole>,
    /// The file system did not answer in time, so the request waits for no further file.
    is_late: bool,
    /// The status for the response if a file could not be looked up or read for a script.
    failure: Option<ErrorCause>,
}

/// A whole file that a disk thread reads.
struct ReadWhole {
    path: Vec<u8>,
    file: Rc<FileEntry>,
    running: RunningJob<io::Result<Bytes>>,
    done: Option<io::Result<Bytes>>,
}

impl ColdFiles {
    #[inline]
    pub(crate) fn clear(&mut self) {
        *self.0.get_mut() = None;
    }

    #[inline]
    fn find(&self, path: &[u8], symlinks: Symlinks) -> Option<Rc<FileEntry>> {
        let asked = self.0.borrow();
        let known = asked
            .as_ref()?
            .found
            .iter()
            .find(|known| &*known.path == path && known.symlinks == symlinks)?;
        Some(Rc::clone(&known.entry))
    }

    /// The first bytes of `file`, if the job that looked it up has read them. Returns them once.
    pub(crate) fn take_first(&self, file: &Rc<FileEntry>) -> Option<Bytes> {
        let mut asked = self.0.borrow_mut();
        let known = asked
            .as_mut()?
            .found
            .iter_mut()
            .find(|known| Rc::ptr_eq(&known.entry, file))?;
        known.first.take()
    }

    fn change(&self) -> RefMut<'_, Asked> {
        RefMut::map(self.0.borrow_mut(), |asked| {
            &mut **asked.get_or_insert_default()
        })
    }

    /// Makes the next look-up of `path` return `file`, even if no cache has it any more.
    fn hold(&self, path: &[u8], symlinks: Symlinks, file: &Rc<FileEntry>) {
        let found = &mut self.change().found;
        if found.iter().any(|known| Rc::ptr_eq(&known.entry, file)) {
            return;
        }
        found.push(FoundFile {
            path: path.into(),
            symlinks,
            entry: Rc::clone(file),
            first: None,
            times: LookTimes::default(),
        });
    }

    /// The content of `file`, if a read of it has finished.
    fn take_whole(&self, file: &Rc<FileEntry>) -> Option<io::Result<Bytes>> {
        let mut asked = self.0.borrow_mut();
        let reading = &mut asked.as_mut()?.reading;
        let is_it = |one: &mut ReadWhole| Rc::ptr_eq(&one.file, file) && one.done.is_some();
        reading.take_if(is_it)?.done
    }

    fn poll_whole(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut asked = self.0.borrow_mut();
        let reading = asked.as_mut().and_then(|asked| asked.reading.as_mut());
        let Some(reading) = reading.filter(|reading| reading.done.is_none()) else {
            return Poll::Ready(());
        };
        let done = ready!(Pin::new(&mut reading.running).poll(context));
        reading.done = Some(done.unwrap_or_else(|lost| Err(lost.into())));
        Poll::Ready(())
    }

    /// The path of the file that the request waited for; ends the wait.
    fn take_late_path(&self) -> Vec<u8> {
        let mut asked = self.0.borrow_mut();
        let Some(asked) = asked.as_mut() else {
            return Vec::new();
        };
        match (asked.reading.take(), asked.waiting.take()) {
            (Some(reading), _) => reading.path,
            (None, Some(waiting)) => waiting.path().to_vec(),
            (None, None) => Vec::new(),
        }
    }

    /// Keeps the path that the request begins to wait for, to name it afterwards.
    fn note_awaited(&self) {
        let mut asked = self.change();
        asked.times.clear();
        asked.awaits_content = asked.reading.is_some();
        asked.awaited = match (&asked.reading, &asked.waiting) {
            (Some(reading), _) => reading.path.clone(),
            (None, Some(waiting)) => waiting.path().to_vec(),
            (None, None) => Vec::new(),
        };
    }

    fn take_waiting(&self) -> Option<DiskWait> {
        self.0.borrow_mut().as_mut()?.waiting.take()
    }
}

impl Exchange {
    /// The file at `path`, which is absolute and has no NUL. `None`: the disk has to be read, and the hook
    /// returns [`Outcome::Cold`].
    #[inline]
    pub fn look_up(&self, path: &[u8], symlinks: Symlinks) -> Option<Rc<FileEntry>> {
        self.look_up_with(path, symlinks, || None)
    }

    /// Whether [`Exchange::look_up`] would find `file` again. For files that many requests look up: this takes
    /// a tenth of the instructions. False: look it up.
    #[inline]
    pub fn is_sure_of(&self, file: &FileEntry) -> bool {
        let now_s = self.worker.clock().seconds();
        self.worker.files().is_sure_of(file, now_s)
    }

    /// Like [`Exchange::look_up`]. If the disk has to be read, the same job looks up the `next` names, too.
    #[inline]
    pub(crate) fn look_up_with(
        &self,
        path: &[u8],
        symlinks: Symlinks,
        next: impl FnOnce() -> Option<NextNames>,
    ) -> Option<Rc<FileEntry>> {
        if let Some(known) = self.cold.find(path, symlinks) {
            return Some(known);
        }
        let now_s = self.worker.clock().seconds();
        let asker = Asker {
            client: self.connection.client_key(),
            wants_first: self.settings.core.network_backend.reads_by_threads(),
        };
        let kernel_look_ups = self.dry_run().map(|_| self.kernel_look_ups());
        match self
            .worker
            .files()
            .lookup(path, symlinks, now_s, asker, next)
        {
            LookResult::Here(entry) => {
                if let (Some(before), Some(dry_run)) = (kernel_look_ups, self.dry_run()) {
                    let source = match before == self.kernel_look_ups() {
                        true => LookUpSource::Memory,
                        false => LookUpSource::Kernel,
                    };
                    dry_run.looked_up(path, source, &entry);
                }
                Some(entry)
            }
            LookResult::Cold(waiting) => {
                self.cold.change().waiting = Some(waiting);
                None
            }
        }
    }

    /// How many look-ups the kernel has answered from its caches.
    fn kernel_look_ups(&self) -> u64 {
        self.worker.shared().contents().look_ups().cached
    }

    /// The file at `path`, if the file cache knows it. Otherwise starts a look-up, so that later calls find
    /// the file, and does not wait for it.
    pub(crate) fn look_up_now(&self, path: &[u8], symlinks: Symlinks) -> Option<Rc<FileEntry>> {
        let found = self.look_up(path, symlinks);
        self.cold.take_waiting();
        found
    }

    /// Whether a file system has been too slow for this request already.
    pub fn gave_up_on_files(&self) -> bool {
        self.cold
            .0
            .borrow()
            .as_ref()
            .is_some_and(|asked| asked.is_late)
    }

    /// The file system did not answer in time for work on `path`. Writes that to the log. From now on the
    /// request waits for no file that it could do without.
    pub fn give_up_on_file(&self, stage: &str, path: &[u8]) {
        self.cold.change().is_late = true;
        self.log_late_file(stage, path);
    }

    /// Gives up on `path` and answers 504.
    pub fn answer_late_file(&mut self, stage: &str, path: &[u8]) -> Outcome {
        let outcome = self.fail(CauseCode::DiskTimeout);
        self.give_up_on_file(stage, path);
        outcome
    }

    /// How long this request waits for a file system. The time runs from its first wait.
    pub fn file_deadline(&self) -> FileDeadline {
        self.worker.file_deadline(self.settings.core.file_wait_s)
    }

    /// A reader for the files that this request is answered with. It reads under the client's turn at the
    /// disk and with the settings of the request.
    pub fn file_reader(&self) -> FileReader {
        let client = self.connection.client_key();
        self.worker.file_reader(&self.settings.core, client)
    }

    /// Notes that a file system failed while a script of this request used it. The script gets an error. If
    /// it does not catch the error, [`Exchange::file_failure`] is the cause of the response.
    pub fn fail_on_file(&self, cause: ErrorCause) {
        self.cold.change().failure = Some(cause);
    }

    /// The cause of the response when a script failed because of a file: a timeout if the file system was too
    /// slow, else the last failure.
    pub fn file_failure(&self) -> Option<ErrorCause> {
        let asked = self.cold.0.borrow();
        let asked = asked.as_ref()?;
        match asked.is_late {
            true => Some(CauseCode::DiskTimeout.into()),
            false => asked.failure,
        }
    }

    /// Logs that the file system did not answer in time for work on `path`. For work that the request can do
    /// without.
    pub fn log_late_file(&self, stage: &str, path: &[u8]) {
        self.log_error(
            stage,
            format_args!(
                "{} path={:?}",
                self.file_deadline().late(),
                String::from_utf8_lossy(path)
            ),
        );
    }

    /// Forgets the result for `path`, so that the next look-up asks the file system again. For scripts, which
    /// may wait until a file changes.
    pub fn forget_look_up(&self, path: &[u8]) {
        if let Some(asked) = &mut *self.cold.0.borrow_mut() {
            asked.found.retain(|known| &*known.path != path);
        }
    }

    /// Forgets all results: an application has answered meanwhile and may have changed the files.
    pub fn forget_look_ups(&self) {
        if let Some(asked) = &mut *self.cold.0.borrow_mut() {
            asked.found.clear();
        }
    }

    /// Forgets what this request and the file cache know about `path`.
    pub fn forget_file(&self, path: &[u8]) {
        self.forget_look_up(path);
        self.worker.files().forget(path);
    }

    /// The content of `file`, which was looked up by `path` and `symlinks`; at most `bytes_max` bytes.
    /// `None`: the disk has to be read, as for [`Exchange::look_up`]. Until the content is returned, a
    /// look-up of `path` finds the same file. Returns the content once.
    ///
    /// # Errors
    /// Those of pread(2) and of [`blocking::run_io`]; `FileTooLarge`; `UnexpectedEof` if the file has become
    /// shorter.
    pub fn read_whole(
        &self,
        path: &[u8],
        symlinks: Symlinks,
        file: &Rc<FileEntry>,
        bytes_max: usize,
    ) -> io::Result<Option<Bytes>> {
        let length = usize::try_from(file.stat().size).unwrap_or(usize::MAX);
        if length > bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if let Some(content) = file.share_content() {
            return Ok(Some(content));
        }
        if let Some(done) = self.cold.take_whole(file) {
            return done.map(Some);
        }
        let descriptor = file.share_descriptor().ok_or(io::ErrorKind::NotFound)?;
        let origin = file.origin(self.connection.client_key(), length);
        let running = blocking::run_for(Class::Read, origin, move || {
            let mut bytes = vec![0; length];
            let count = read_full(&*descriptor, &mut bytes, 0)?;
            match count == length {
                true => Ok(bytes.into()),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        });
        self.cold.hold(path, symlinks, file);
        self.cold.change().reading = Some(ReadWhole {
            path: path.to_vec(),
            file: Rc::clone(file),
            running,
            done: None,
        });
        Ok(None)
    }

    /// The end of a wait for the disk: gives each part of the work of the disk threads to its stage. What lies
    /// between the end of the work and now is lag.
    fn stamp_disk_wait(&mut self) {
        let now = self.worker.clock().now();
        let (times, path, file, awaits_content) = {
            let mut asked = self.cold.change();
            let asked = &mut *asked;
            let path = std::mem::take(&mut asked.awaited);
            let file = asked.found.iter().find(|one| *one.path == *path);
            let file = file.map(|one| Rc::clone(&one.entry));
            (
                std::mem::take(&mut asked.times),
                path,
                file,
                asked.awaits_content,
            )
        };
        let file = file.as_deref();
        let before = [Stage::DiskQueue, Stage::Open, Stage::Stat, Stage::ReadFile]
            .map(|stage| (stage, self.ledger.stage(stage)));
        let mut at = 0;
        for one in &times {
            self.ledger.stamp_part(Stage::DiskQueue, one.begun, now);
            at = one.begun + one.open;
            self.ledger.stamp_part(Stage::Open, at, now);
            at += one.stat;
            self.ledger.stamp_part(Stage::Stat, at, now);
        }
        if let Some(first) = times.iter().find(|one| one.read_begun > 0) {
            self.ledger
                .stamp_part(Stage::DiskQueue, first.read_begun, now);
            at = first.read_begun + first.read;
            self.ledger.stamp_part(Stage::ReadFile, at, now);
        }
        match at {
            // No thread has reported: the time is up, or a whole file was read for a script.
            0 => {
                let stage = match awaits_content {
                    true => Stage::ReadFile,
                    false => Stage::Open,
                };
                self.stamp_wait_latest(stage, |_, text| tell_holder_of_file(&path, file, text));
            }
            _ => {
                for (stage, before) in before {
                    let waited = self.ledger.stage(stage) - before;
                    if waited >= limits::NOTED_WAIT_NANOS {
                        self.note_wait(stage, waited, |_, text| match stage {
                            Stage::DiskQueue => tell_holder_of_threads(&path, text),
                            _ => tell_holder_of_file(&path, file, text),
                        });
                    }
                }
                let lag = now.saturating_sub(self.ledger.last());
                self.ledger.stamp_part(Stage::Lag, now, now);
                self.note_if_lagged(lag);
            }
        }
    }

    fn poll_cold(&self, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.cold.poll_whole(context));
        let Some(mut waiting) = self.cold.take_waiting() else {
            return Poll::Ready(());
        };
        let now_s = self.worker.clock().seconds();
        match self.worker.files().poll_cold(&mut waiting, now_s, context) {
            Poll::Ready(found) => {
                if let Some(dry_run) = self.dry_run() {
                    for file in &found {
                        dry_run.looked_up(&file.path, LookUpSource::Disk, &file.entry);
                    }
                }
                let mut asked = self.cold.change();
                asked.times = found.iter().map(|one| one.times).collect();
                asked.found.extend(found);
                Poll::Ready(())
            }
            Poll::Pending => {
                self.cold.change().waiting = Some(waiting);
                Poll::Pending
            }
        }
    }
}

/// Says what held up a request that waited for its file.
pub fn tell_holder_of_own_file(exchange: &Exchange, text: &mut HolderText<'_>) {
    let physical = &exchange.physical;
    tell_holder_of_file(&physical.path, physical.file.as_deref(), text);
}

/// Notes that a script waited for the file at `path` from `begun` to `ended`, for [`waits::with_slow_peer`].
pub fn note_file_of_script(path: &Path, begun: Nanos, ended: Nanos) {
    let waited = ended.saturating_sub(begun);
    if waited >= limits::NOTED_WAIT_NANOS {
        waits::note_slow_peer(waited, ended, |text| {
            let device = Origin::of_path(path).device;
            tell_holder_on(device, path.as_os_str().as_bytes(), text);
        });
    }
}

/// Says what held up a request that waited for the file at `path`: its file system, and the jobs there. A symlink may
/// lead to another file system than the one that the path is on by its text: which one is known when the file is open.
pub(crate) fn tell_holder_of_file(
    path: &[u8],
    file: Option<&FileEntry>,
    text: &mut HolderText<'_>,
) {
    let known = file
        .map(FileEntry::file_system)
        .filter(|device| *device != 0);
    let by_text = || mounts::over_path(path).map_or(0, |mount| mount.place.device);
    tell_holder_on(known.unwrap_or_else(by_text), path, text);
}

/// The same for a file on the file system `device`; 0: it is not known.
fn tell_holder_on(device: u64, path: &[u8], text: &mut HolderText<'_>) {
    write!(text, "{}", ShownPath(path));
    if device == 0 {
        return;
    }
    text.write_str(" on ");
    tell_file_system(device, text);
    tell_load(device, &blocking::device_loads(), text);
}

/// Says what held up a request whose job for `path` waited for a disk thread.
fn tell_holder_of_threads(path: &[u8], text: &mut HolderText<'_>) {
    write!(text, "no disk thread was free for {}", ShownPath(path));
    let loads = blocking::device_loads();
    if let Some(load) = loads.iter().max_by_key(|load| load.oldest) {
        text.write_str("; the oldest job is on ");
        tell_file_system(load.device, text);
        tell_load(load.device, &loads, text);
    }
}

fn tell_file_system(device: u64, text: &mut HolderText<'_>) {
    match mounts::of_device(device) {
        Some((point, kind, _)) => write!(text, "{} ({kind})", ShownPath(&point)),
        None => write!(text, "the file system {}", mounts::DeviceNumber(device)),
    }
}

fn tell_load(device: u64, loads: &[DeviceLoad], text: &mut HolderText<'_>) {
    if let Some(load) = loads.iter().find(|load| load.device == device) {
        let (running, waiting) = (load.running, load.waiting);
        write!(text, ", {running} jobs run there and {waiting} wait");
        if let Some(oldest) = load.oldest {
            let nanos = u64::try_from(oldest.as_nanos()).unwrap_or(u64::MAX);
            write!(text, ", the oldest for {}", waits::Time(nanos));
        }
    }
}

/// A wait for files that [`Exchange::look_up`] did not know. All of them together get `server.max-file-wait`.
pub struct ColdWait {
    /// The deadline. The caller may use it for other waits that share the same time.
    pub deadline: FileDeadline,
    /// The disk did not answer at the first poll.
    has_waited: bool,
}

impl ColdWait {
    /// A wait that has not begun.
    pub fn new(exchange: &Exchange) -> ColdWait {
        ColdWait {
            deadline: exchange.file_deadline(),
            has_waited: false,
        }
    }

    /// Ready when the disk has answered; then the next look-up of the same path returns the file.
    ///
    /// # Errors
    /// The time is up. The hook returns this outcome, which answers 504.
    pub fn poll(
        &mut self,
        exchange: &mut Exchange,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Outcome>> {
        self.poll_in_time(exchange, context)
            .map_err(|_| exchange.fail(CauseCode::DiskTimeout))
    }

    /// Like [`ColdWait::poll`], for a caller that makes the response itself.
    ///
    /// # Errors
    /// The time is up, and the log has a line about it.
    pub fn poll_in_time(
        &mut self,
        exchange: &mut Exchange,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Late>> {
        let polled = exchange.poll_cold(context);
        let Poll::Ready(limited) = self.deadline.limit(polled, context) else {
            if !std::mem::replace(&mut self.has_waited, true) {
                // The time until now belongs to the phase; the time from now on is a wait for the file
                // system.
                exchange.stamp(exchange.progress.stage());
                exchange.cold.note_awaited();
            }
            return Poll::Pending;
        };
        if std::mem::take(&mut self.has_waited) {
            exchange.stamp_disk_wait();
        }
        if limited.is_err() {
            let path = exchange.cold.take_late_path();
            exchange.give_up_on_file("map", &path);
        }
        Poll::Ready(limited)
    }
}

/// A [`ColdWait`] that the phase loop polls after a hook returned [`Outcome::Cold`].
pub(crate) struct Cold {
    wait: ColdWait,
    /// The outcome after the disk has answered.
    then: Option<Outcome>,
    /// The request has a response already; the file is for its error page, or for a hook that changes it.
    has_answer: bool,
}

impl Cold {
    /// Waits for the disk; afterwards the outcome is `then`.
    pub(crate) fn until(exchange: &Exchange, then: Outcome, has_answer: bool) -> Cold {
        Cold {
            wait: ColdWait::new(exchange),
            has_answer,
            then: Some(then),
        }
    }
}

impl Pending for Cold {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let then = match ready!(self.wait.poll_in_time(exchange, context)) {
            Ok(()) => self.then.take().unwrap_or(Outcome::Next),
            // The response is right without the file. An error gets the built-in page, and a hook that
            // changes responses is called again and sees that no look-up is waited for any more.
            Err(_) if self.has_answer => self.then.take().unwrap_or(Outcome::Next),
            Err(_) => exchange.fail(CauseCode::DiskTimeout),
        };
        Poll::Ready(then)
    }
}

/// The cause for an error of the file system: 503 if a resource ran short, 504 if the file system is away (a
/// network file system with a `soft` mount), 500 otherwise.
pub fn cause_of_failure(errno: Errno) -> ErrorCause {
    let code = match errno {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::BUSY => CauseCode::DiskShortage,
        Errno::TIMEDOUT => CauseCode::DiskTimeout,
        _ => CauseCode::DiskError,
    };
    ErrorCause::from(code).with_errno(errno)
}

/// Like [`cause_of_failure`], for errors of disk threads: 504 also for a file system that did not answer in
/// time. An error that carries its own cause has that.
pub fn cause_of_error(error: &io::Error) -> ErrorCause {
    let code = match (Errno::from_io_error(error), error.kind()) {
        (Some(errno), _) => return cause_of_failure(errno),
        (None, io::ErrorKind::TimedOut) => CauseCode::DiskTimeout,
        (None, io::ErrorKind::ResourceBusy | io::ErrorKind::OutOfMemory) => CauseCode::DiskShortage,
        (None, _) => CauseCode::DiskError,
    };
    ErrorCause::carried_by(error).unwrap_or(code.into())
}

/// The cause if a disk thread has not done its work.
pub fn cause_of_not_done(not_done: NotDone) -> ErrorCause {
    match not_done {
        NotDone::QueueFull => CauseCode::DiskShortage.into(),
        NotDone::Lost => CauseCode::DiskJobLost.into(),
    }
}

#[cfg(test)]
mod tests {
    use petrel_proto::status::Status;

    use super::*;
    use crate::file_cache::FileKind;
    use crate::module::{Configure, Hook, Loaded, ModuleSpec, Phase};
    use crate::testing::Site;

    static MODULE: ModuleSpec = ModuleSpec {
        name: "mod_makes",
        doc: "For tests.",
        loaded: Loaded::Always,
        directives: &[],
        configure: |configure: &mut Configure<'_>| {
            configure.add(Phase::Translate, Makes);
            configure.add(Phase::Content, Sends);
            Ok(())
        },
    };

    /// Creates the missing file, as an application does that makes thumbnails.
    struct Makes;

    impl Hook for Makes {
        fn run(&self, exchange: &mut Exchange) -> Outcome {
            let root = exchange.settings.core.document_root.clone();
            if let (true, Some(root)) = (exchange.handles_error(), root) {
                let root = String::from_utf8_lossy(&root).into_owned();
                std::fs::write(format!("{root}/made"), "made").expect("write");
                // The worker does this while an application creates the file.
                exchange.worker.files().process_events();
            }
            Outcome::Next
        }
    }

    struct Sends;

    impl Hook for Sends {
        fn run(&self, exchange: &mut Exchange) -> Outcome {
            exchange.response.answer(Status::NO_CONTENT);
            Outcome::Answer
        }
    }

    #[test]
    fn a_file_that_was_made_for_the_request_is_found_by_it() {
        let root = std::env::temp_dir().join(format!("petrel-made-{}", std::process::id()));
        // Nothing has looked up a name in it before, so the disk has to be read.
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).expect("mkdir");
        let root = root.canonicalize().expect("it was just made");
        let text = format!("server.document-root = {root:?}\nserver.error-handler-404 = \"/made\"");
        let site = Site::new(&text, &[&MODULE]);
        let answer = site.get("/made");
        let kind = answer
            .exchange()
            .physical
            .file
            .as_ref()
            .map(|file| file.kind());
        std::fs::remove_dir_all(&root).expect("remove");
        assert_eq!(kind, Some(FileKind::Regular));
        assert_eq!(answer.status(), 204);
    }

    static FAILING: ModuleSpec = ModuleSpec {
        name: "mod_failing",
        doc: "For tests.",
        loaded: Loaded::Always,
        directives: &[],
        configure: |configure: &mut Configure<'_>| {
            configure.add(Phase::DocumentRoot, Failing);
            Ok(())
        },
    };

    /// A hook that looks up `ROOT/file`, or the path in the query, and answers with the status of the
    /// failure.
    struct Failing;

    impl Hook for Failing {
        fn run(&self, exchange: &mut Exchange) -> Outcome {
            let root = exchange.settings.core.document_root.clone();
            let root = root.expect("it is configured");
            let path = [&*root, b"/file", exchange.request.url.query()].concat();
            let files = exchange.worker.files();
            let failed = files.failed(&path, Symlinks::Follow, Errno::MFILE, 0);
            exchange.cold.change().found.push(failed);
            Outcome::Next
        }
    }

    #[test]
    fn a_part_of_the_path_that_cannot_be_looked_at_is_not_missing() {
        let root = std::env::temp_dir().join(format!("petrel-parts-{}", std::process::id()));
        std::fs::create_dir_all(&root).expect("mkdir");
        std::fs::write(root.join("file"), "x").expect("write");
        let text = format!("server.document-root = {root:?}");
        let status = |modules: &[_], target: &str| Site::new(&text, modules).get(target).status();
        // The paths that are looked up, one after the other.
        for failing in ["/a/b/c", "/a", ""] {
            let target = format!("/file/a/b/c?{failing}");
            assert_eq!(status(&[&MODULE], &target), 204, "{failing}");
            assert_eq!(status(&[&FAILING, &MODULE], &target), 503, "{failing}");
        }
        std::fs::remove_dir_all(&root).expect("remove");
    }

    #[test]
    fn only_what_is_given_up_counts_for_the_request() {
        let site = Site::new("server.document-root = \"/nonexistent\"", &[]);
        let exchange = site.unanswered("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        exchange.log_late_file("map", b"/a");
        assert!(!exchange.gave_up_on_files() && exchange.file_failure().is_none());
        exchange.fail_on_file(CauseCode::DiskShortage.into());
        assert!(!exchange.gave_up_on_files());
        assert_eq!(
            exchange.file_failure(),
            Some(CauseCode::DiskShortage.into())
        );
        exchange.give_up_on_file("map", b"/b");
        assert!(exchange.gave_up_on_files());
        assert_eq!(exchange.file_failure(), Some(CauseCode::DiskTimeout.into()));
    }

    #[test]
    fn failures_say_whether_it_is_worth_asking_again() {
        for (error, status) in [
            (io::ErrorKind::TimedOut.into(), 504),
            (NotDone::QueueFull.into(), 503),
            (Errno::MFILE.into(), 503),
            (Errno::NOMEM.into(), 503),
            (Errno::IO.into(), 500),
            (io::ErrorKind::UnexpectedEof.into(), 500),
            (NotDone::Lost.into(), 500),
        ] {
            let error: io::Error = error;
            assert_eq!(cause_of_error(&error).code.status().0, status, "{error}");
        }
    }
}
