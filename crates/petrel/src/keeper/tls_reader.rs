//! The TLS reader: a child process that watches the files of TLS while the server runs, and reads those that
//! have changed.
//!
//! The keeper does not do this itself, because a file system that does not answer would keep it from handling
//! signals and commands. It cannot use a thread either, because it forks. The child sends changes to the
//! keeper through a pipe. It has the keeper's privileges, and dies with it.

use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use modules::openssl::{TlsChange, TlsStore, TlsWatch};
use nix::sys::signal::Signal as Death;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use sys::process::{Forked, fork};

use crate::stdio;
use crate::tls_files::{TlsFiles, now_s};

/// The TLS reader, as the keeper sees it.
pub(crate) struct TlsReader {
    pid: Pid,
    /// The number of the configuration whose files it watches.
    pub(crate) generation: u64,
    /// The pipe with its changes; `None` once that has ended.
    pipe: Option<PipeReader>,
    received: Vec<u8>,
    /// The keeper has killed it.
    pub(crate) is_killed: bool,
}

/// The TLS reader, as it sees itself.
pub(crate) struct TlsReading {
    keeper: u32,
    store: Arc<TlsStore>,
    watch: TlsWatch,
    pipe: PipeWriter,
}

/// The result of starting it, in the parent and in the child.
pub(crate) enum StartedTlsReader {
    /// In the keeper.
    Keeper(TlsReader),
    /// In the TLS reader.
    Reader(Box<TlsReading>),
}

impl TlsReader {
    /// Forks the TLS reader for the files of a configuration.
    ///
    /// # Errors
    /// The system has no processes, descriptors or memory left.
    pub(crate) fn start(files: &TlsFiles, generation: u64) -> io::Result<StartedTlsReader> {
        let keeper = std::process::id();
        let (reader, pipe) = io::pipe()?;
        rustix::io::ioctl_fionbio(&reader, true)?;
        Ok(match fork()? {
            Forked::Parent(id) => StartedTlsReader::Keeper(TlsReader {
                pid: Pid::from_raw(id).expect("fork answers the id of a process"),
                generation,
                pipe: Some(reader),
                received: Vec::new(),
                is_killed: false,
            }),
            Forked::Child => StartedTlsReader::Reader(Box::new(TlsReading {
                keeper,
                store: Arc::clone(&files.store),
                watch: files.watch.clone(),
                pipe,
            })),
        })
    }

    /// The pipe to poll for changes.
    pub(crate) fn tells(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// The next change that has arrived in full.
    pub(crate) fn next(&mut self) -> Option<TlsChange> {
        let mut buffer = [0; 16 * 1024];
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut buffer) {
                Ok(count) if count > 0 => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => self.pipe = None,
            }
        }
        let mut rest = self.received.as_slice();
        let lines = next_part(&mut rest)?;
        let handed = next_part(&mut rest)?;
        let change = TlsChange {
            lines: String::from_utf8_lossy(lines)
                .lines()
                .map(str::to_owned)
                .collect(),
            handed: handed.to_vec(),
        };
        self.received = rest.to_vec();
        Some(change)
    }

    /// How it ended, once it has.
    pub(crate) fn wait(&self) -> Option<WaitStatus> {
        let waited = waitpid(Some(self.pid), WaitOptions::NOHANG).ok().flatten();
        waited.map(|(_, status)| status)
    }

    /// Kills the TLS reader. If it waits for a file system that does not answer, it may take longer to end.
    pub(crate) fn kill(&mut self) {
        // The keeper has not reaped the process yet, so its id cannot belong to another one.
        let _ = kill_process(self.pid, Signal::KILL);
        self.is_killed = true;
        self.pipe = None;
    }
}

/// Watches the files until the keeper ends the process. Returns the exit code.
pub(crate) fn run(mut reading: TlsReading) -> u8 {
    // An error means that the keeper is gone.
    let _ = reading.look_for_ever();
    0
}

impl TlsReading {
    fn look_for_ever(&mut self) -> io::Result<()> {
        // The child must not hold the terminal, nor a pipe whose reader waits for the server's output to end.
        stdio::let_go()?;
        nix::sys::prctl::set_pdeathsig(Death::SIGKILL)?;
        while std::os::unix::process::parent_id() == self.keeper {
            thread::sleep(LOOK_EVERY);
            let change = self.watch.look(&self.store, now_s());
            if change.handed.is_empty() && change.lines.is_empty() {
                continue;
            }
            for part in [change.lines.join("\n").as_bytes(), &change.handed] {
                self.pipe.write_all(&(part.len() as u64).to_be_bytes())?;
                self.pipe.write_all(part)?;
            }
        }
        Ok(())
    }
}

/// A part of a change: its length, then its bytes.
fn next_part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length = usize::try_from(u64::from_be_bytes(*length)).ok()?;
    let (part, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some(part)
}

/// How often it looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(1);
