//! The keeper's side of the recorder: the memory in which server processes leave counters and records.
//!
//! The keeper makes the memory and hands it on. It never reads what is in there: when the last requests of a
//! crashed process are to be logged, or all records written to files (SIGUSR2), a child does so that has the
//! rights of the server process and no more. The keeper makes the files, as it makes those of logs: in the
//! directory of the logs the server process may make none.

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use engine::log::LogRegistry;
use engine::metrics::ARENA_BYTES;
use engine::proto::recording::{NowRecord, Record, Recording, WorkerRecording};
use engine::recorder::{FileSource, SharedMemory};
use engine::settings::ProcessSettings;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

use super::process::{ServerProcess, describe};
use super::trial::{Report, StartedTrial, Trial};
use super::{Keeper, KeeperExit, Step};
use crate::recorded::{chrome, lines, otlp};
use crate::terminal::EXIT_FAILURE;
use crate::user::Identity;

/// The memory, and the children that read it.
pub(super) struct KeptRecorder {
    memory: SharedMemory,
    /// By it other programs can read the memory. `None`: there is none that they could read.
    descriptor: Option<OwnedFd>,
    readers: Vec<Reader>,
    /// SIGUSR2 has arrived.
    pub(super) wants_dump: bool,
}

/// A child that reads the memory and reports lines for the log.
struct Reader {
    child: Trial,
    task: Task,
}

/// What a child reads the memory for.
enum Task {
    /// To log the last requests of this server process, which has crashed. No other one may use its records yet.
    Crash(u32),
    /// To write all records to these files.
    Dump(Dump),
}

/// The two files of SIGUSR2. The keeper has made them, and a child fills them.
struct Dump {
    directory: OwnedFd,
    names: [String; 2],
}

impl Dump {
    /// Makes both files in `directory`, or none. Their names begin with `stem`.
    fn create(directory: &Path, stem: &str) -> Result<(Dump, [File; 2]), String> {
        let failed = |error: Errno| format!("{}: {error}", directory.display());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dump = Dump {
            directory: openat(CWD, directory, flags, Mode::empty()).map_err(failed)?,
            names: [format!("{stem}.trace.json"), format!("{stem}.otlp.json")],
        };
        let make = |name: &String| {
            // A link or file of this name that another user has put there is not written to.
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(&dump.directory, name, flags, Mode::RUSR | Mode::WUSR);
            let path = directory.join(name);
            file.map_err(|error| format!("{}: {error}", path.display()))
        };
        let [first, second] = &dump.names;
        let first_file = make(first)?;
        let second_file = make(second).inspect_err(|_| dump.remove(first))?;
        Ok((dump, [first_file.into(), second_file.into()]))
    }

    /// Removes one of the files, of which not all was written.
    fn remove(&self, name: &str) {
        // The first error counts.
        let _ = unlinkat(&self.directory, name, AtFlags::empty());
    }
}

impl Task {
    /// The child has failed: removes what it has not written as a whole.
    fn failed(&self) {
        if let Task::Dump(dump) = self {
            dump.names.iter().for_each(|name| dump.remove(name));
        }
    }

    fn crashed(&self) -> Option<u32> {
        match self {
            Task::Crash(process) => Some(*process),
            Task::Dump(_) => None,
        }
    }
}

impl KeptRecorder {
    /// Makes the memory for a server with the settings `process`. If that fails, counters and records end
    /// with each server process.
    pub(super) fn open(process: &ProcessSettings, logs: &LogRegistry) -> KeptRecorder {
        let of_worker = process.recorder.bytes.saturating_add(ARENA_BYTES);
        let bytes = process.workers.get().saturating_mul(of_worker);
        let (memory, descriptor) = match SharedMemory::create(bytes) {
            Ok((memory, descriptor)) => (memory, Some(descriptor)),
            Err(error) => {
                logs.error(format_args!(
                    "recorder: no shared memory ({error}); counters and records end with each server process"
                ));
                (SharedMemory::private(), None)
            }
        };
        KeptRecorder {
            memory,
            descriptor,
            readers: Vec::new(),
            wants_dump: false,
        }
    }

    /// The memory for a server process that is forked while `others` are there.
    pub(super) fn memory_beside(&self, others: &[ServerProcess]) -> SharedMemory {
        let alive = others.iter().map(|process| process.id().unsigned_abs());
        let crashed = self
            .readers
            .iter()
            .filter_map(|reader| reader.task.crashed());
        self.memory.beside(alive.chain(crashed).collect())
    }

    /// A descriptor for another program.
    pub(super) fn copy_of_descriptor(&self) -> Option<OwnedFd> {
        self.descriptor.as_ref()?.try_clone().ok()
    }

    /// The pipes to poll.
    pub(super) fn says(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.readers.iter().filter_map(|reader| reader.child.says())
    }

    /// When a child must have ended.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let readers = self.readers.iter();
        readers.filter_map(|reader| reader.child.deadline).min()
    }
}

impl Keeper {
    /// Logs the last requests of a server process that has crashed.
    pub(super) fn report_crash(&mut self, process: &ServerProcess) -> Step {
        let id = process.id().unsigned_abs();
        if process.generation.loaded.process.recorder.bytes == 0 {
            return ControlFlow::Continue(());
        }
        let readers = self.recorder.readers.iter();
        if readers
            .filter(|reader| reader.task.crashed().is_some())
            .count()
            >= CRASHES_READ_MAX
        {
            self.logs.error(format_args!(
                "recorder: the last requests of process {id} are not logged, because those of earlier ones still are read"
            ));
            return ControlFlow::Continue(());
        }
        let identity = process.generation.identity.clone();
        self.start_reader(Task::Crash(id), &identity, |recording, report| {
            tell_last(recording, id, report);
            Ok(())
        })
    }

    /// Writes all records to files, if SIGUSR2 has asked for it.
    pub(super) fn dump_recorder(&mut self) -> Step {
        if !std::mem::take(&mut self.recorder.wants_dump) {
            return ControlFlow::Continue(());
        }
        let (dump, files, paths) = match self.make_files() {
            Ok(made) => made,
            Err(why) => {
                self.logs.error(format_args!("recorder: {why}"));
                return ControlFlow::Continue(());
            }
        };
        let identity = self.current.identity.clone();
        self.start_reader(Task::Dump(dump), &identity, |recording, report| {
            write_files(recording, files)?;
            let count = recording.all().len();
            report.say(&format!("{count} requests written to {paths}"));
            Ok(())
        })
    }

    /// Makes the files for SIGUSR2. Also returns their paths, for the log.
    fn make_files(&self) -> Result<(Dump, [File; 2], String), String> {
        let mut readers = self.recorder.readers.iter();
        if readers.any(|reader| matches!(reader.task, Task::Dump(_))) {
            return Err(
                "SIGUSR2 is ignored, because the files of the last one still are written"
                    .to_owned(),
            );
        }
        let directory = directory_of(&self.current.loaded.process).ok_or(
            "SIGUSR2 writes no files, because the error log is no file; recorder.dump names a directory",
        )?;
        let (dump, files) = Dump::create(&directory, &stem())?;
        let paths = dump.names.each_ref().map(|name| directory.join(name));
        let paths = paths.map(|path| path.display().to_string()).join(" and ");
        Ok((dump, files, paths))
    }

    fn start_reader(
        &mut self,
        task: Task,
        identity: &Identity,
        work: impl FnOnce(&Recording, &mut Report) -> Result<(), String>,
    ) -> Step {
        let Some(descriptor) = self.recorder.copy_of_descriptor() else {
            task.failed();
            return ControlFlow::Continue(());
        };
        match Trial::start() {
            Ok(StartedTrial::Keeper(child)) => {
                self.recorder.readers.push(Reader { child, task });
            }
            Ok(StartedTrial::Reader(mut report)) => {
                let memory = File::from(descriptor);
                let read = || -> Result<Recording, String> {
                    identity.assume().map_err(|error| error.to_string())?;
                    Recording::read(&FileSource(&memory)).map_err(|error| error.to_string())
                };
                let done = read().and_then(|recording| work(&recording, &mut report));
                let code = match done {
                    Ok(()) => 0,
                    Err(why) => {
                        report.say(&why);
                        EXIT_FAILURE
                    }
                };
                return ControlFlow::Break(KeeperExit::Exit(code));
            }
            Err(error) => {
                task.failed();
                self.logs.error(format_args!(
                    "recorder: the process that reads the records cannot be started: {error}"
                ));
            }
        }
        ControlFlow::Continue(())
    }

    /// Logs what the children report.
    pub(super) fn hear_recorder(&mut self, now: Instant) {
        let logs = &self.logs;
        self.recorder.readers.retain_mut(|reader| {
            let child = &mut reader.child;
            child.check_deadline(now);
            let ended = child.wait();
            child.hear();
            let Some(status) = ended else { return true };
            let lines = child.lines();
            for line in lines.iter().take(LINES_MAX) {
                logs.error(format_args!("recorder: {line}"));
            }
            let has_failed = status.exit_status() != Some(0);
            if has_failed {
                reader.task.failed();
            }
            // A child that has failed by itself says why.
            if has_failed && (lines.is_empty() || status.exit_status().is_none()) {
                logs.error(format_args!(
                    "recorder: the process that reads the records {}",
                    describe(status)
                ));
            }
            false
        });
    }
}

/// Reports the last requests of each worker of process `id`.
fn tell_last(recording: &Recording, id: u32, report: &mut Report) {
    let workers = recording.workers.iter();
    for worker in workers.filter(|worker| worker.process == id) {
        let number = worker.worker;
        match unfinished(worker) {
            Some(now) => report.say(&format!(
                "worker {number} of process {id} worked last for {}, which did not end",
                lines::now(now)
            )),
            None => report.say(&format!(
                "worker {number} of process {id} had ended the request that it worked for last"
            )),
        }
        let last = worker.recent.iter().rev().take(LAST_SHOWN).rev();
        for record in last {
            report.say(&format!("worker {number}, ended: {}", lines::line(record)));
        }
    }
}

fn unfinished(worker: &WorkerRecording) -> Option<&NowRecord> {
    let now = worker.now.as_ref()?;
    let is_it = |record: &Record| record.id == now.id;
    let mut records = worker.recent.iter().rev();
    (!records.any(is_it)).then_some(now)
}

/// Where SIGUSR2 writes files. Paths of the configuration are below the chroot, as those of logs are.
fn directory_of(process: &ProcessSettings) -> Option<PathBuf> {
    let directory = process.recorder_dump.as_deref()?;
    Some(match &process.chroot {
        Some(root) => root.join(directory.strip_prefix("/").unwrap_or(directory)),
        None => directory.to_owned(),
    })
}

/// What the names of the files begin with: `petrel-20261126-023022123`.
fn stem() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let time = lines::time(since.map_or(0, |since| since.as_nanos() as u64));
    let written = |c: char| match c {
        '-' | ':' | '.' => None,
        ' ' => Some('-'),
        c => Some(c),
    };
    format!(
        "petrel-{}",
        time.chars().filter_map(written).collect::<String>()
    )
}

/// Writes the records to both files of a [`Dump`].
fn write_files(recording: &Recording, [mut trace, mut spans]: [File; 2]) -> Result<(), String> {
    let failed = |error| format!("the files of SIGUSR2 could not be written: {error}");
    trace.write_all(&chrome::trace(recording)).map_err(failed)?;
    spans.write_all(&otlp::traces(recording)).map_err(failed)
}

/// How many requests of each worker of a crashed process are logged.
const LAST_SHOWN: usize = 3;
/// How many lines of one child are logged.
const LINES_MAX: usize = 64;
/// How many children read the records of crashed processes at one time. Each may take half a minute.
const CRASHES_READ_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn both_files_are_made_or_none() {
        let directory = std::env::temp_dir().join(format!("petrel-dump-{}", std::process::id()));
        fs::create_dir(&directory).expect("a new directory");
        let names = || {
            let entries = fs::read_dir(&directory).expect("it is there");
            let names = entries.map(|entry| entry.expect("an entry").file_name());
            let mut names: Vec<_> = names.collect();
            names.sort();
            names
        };
        let (dump, files) = Dump::create(&directory, "a").expect("both are new");
        assert_eq!(names(), ["a.otlp.json", "a.trace.json"]);
        let mode = fs::metadata(directory.join("a.otlp.json"))
            .expect("it is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        write_files(&Recording::default(), files).expect("they are open");
        assert!(fs::read(directory.join("a.trace.json")).is_ok_and(|text| text.starts_with(b"{")));
        assert!(Dump::create(&directory, "a").is_err());
        Task::Dump(dump).failed();
        assert!(names().is_empty());

        // The second one is a link of another user, to a file that is not there yet.
        let target = directory.join("target");
        symlink(&target, directory.join("b.otlp.json")).expect("a link");
        let error = Dump::create(&directory, "b")
            .err()
            .expect("it is not followed");
        assert!(error.contains("b.otlp.json: "), "{error}");
        assert_eq!(names(), ["b.otlp.json"]);
        fs::remove_dir_all(&directory).expect("it is removed");
        let error = Dump::create(&directory, "c").err().expect("it is gone");
        assert!(
            error.starts_with(&directory.display().to_string()),
            "{error}"
        );
    }
}
