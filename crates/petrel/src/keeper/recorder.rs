//! The keeper's side of the recorder: the memory in which server processes leave counters and records.
//!
//! The keeper makes the memory and hands it on. It never reads what is in there: when the last requests of a
//! crashed process are to be logged, or all records written to files (SIGUSR2), a child does so that has the
//! rights of the server process and no more.

use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use engine::log::LogRegistry;
use engine::metrics::ARENA_BYTES;
use engine::recorder::{Record, Recording, SharedMemory, WorkerRecording};
use engine::settings::ProcessSettings;

use super::process::{ServerProcess, describe};
use super::trial::{Report, StartedTrial, Trial};
use super::{Keeper, KeeperExit, Step};
use crate::recorded::{chrome, lines, otlp};
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
    /// The server process that has crashed; no other one may use its records yet.
    crashed: Option<u32>,
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
        let crashed = self.readers.iter().filter_map(|reader| reader.crashed);
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
        let identity = process.generation.identity.clone();
        self.start_reader(Some(id), &identity, |recording, report| {
            tell_last(recording, id, report);
        })
    }

    /// Writes all records to files, if SIGUSR2 has asked for it.
    pub(super) fn dump_recorder(&mut self) -> Step {
        if !std::mem::take(&mut self.recorder.wants_dump) {
            return ControlFlow::Continue(());
        }
        let process = &self.current.loaded.process;
        let Some(directory) = directory_of(process) else {
            self.logs.error(format_args!(
                "recorder: SIGUSR2 writes no files, because the error log is no file; recorder.dump names a directory"
            ));
            return ControlFlow::Continue(());
        };
        let identity = self.current.identity.clone();
        self.start_reader(None, &identity, |recording, report| {
            report.say(&match write_files(recording, &directory) {
                Ok(line) | Err(line) => line,
            });
        })
    }

    fn start_reader(
        &mut self,
        crashed: Option<u32>,
        identity: &Identity,
        work: impl FnOnce(&Recording, &mut Report),
    ) -> Step {
        let Some(descriptor) = self.recorder.copy_of_descriptor() else {
            return ControlFlow::Continue(());
        };
        match Trial::start() {
            Ok(StartedTrial::Keeper(child)) => {
                self.recorder.readers.push(Reader { child, crashed })
            }
            Ok(StartedTrial::Reader(mut report)) => {
                let memory = File::from(descriptor);
                let read = || -> Result<Recording, String> {
                    identity.assume().map_err(|error| error.to_string())?;
                    Recording::read(&memory).map_err(|error| error.to_string())
                };
                match read() {
                    Ok(recording) => work(&recording, &mut report),
                    Err(error) => report.say(&error),
                }
                return ControlFlow::Break(KeeperExit::Exit(0));
            }
            Err(error) => self.logs.error(format_args!(
                "recorder: the process that reads the records cannot be started: {error}"
            )),
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
            for line in child.lines().iter().take(LINES_MAX) {
                logs.error(format_args!("recorder: {line}"));
            }
            if status.exit_status() != Some(0) {
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

fn unfinished(worker: &WorkerRecording) -> Option<&engine::recorder::NowRecord> {
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

/// Writes the records to two files in `directory`. Returns a line for the log.
fn write_files(recording: &Recording, directory: &Path) -> Result<String, String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let time = lines::time(since.map_or(0, |since| since.as_nanos() as u64));
    let stem: String = time
        .chars()
        .filter(|c| !"-:.".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect();
    let count = recording.all().len();
    let mut names = Vec::new();
    for (ending, content) in [
        ("trace.json", chrome::trace(recording)),
        ("otlp.json", otlp::traces(recording)),
    ] {
        let path = directory.join(format!("petrel-{stem}.{ending}"));
        write_new(&path, &content).map_err(|error| format!("{}: {error}", path.display()))?;
        names.push(path.display().to_string());
    }
    Ok(format!(
        "{count} requests written to {}",
        names.join(" and ")
    ))
}

/// Writes a file that was not there before. Removes it if it cannot be written as a whole.
fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(content).inspect_err(|_| {
        // The first error counts.
        let _ = fs::remove_file(path);
    })
}

/// How many requests of each worker of a crashed process are logged.
const LAST_SHOWN: usize = 3;
/// How many lines of one child are logged.
const LINES_MAX: usize = 64;
