//! `|command` logs: the standard input of a command that is started again when it ends.
//!
//! Writing to the pipe never blocks. The command has a process group of its own, so that Ctrl-C at a terminal
//! leaves it time to read the server's last lines.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// The write end of a pipe, and the command that reads it.
pub(super) struct PipeOutlet {
    /// The command to start again. `None`: another process started it and restarts it.
    command: Option<String>,
    child: Option<Child>,
    input: Option<OwnedFd>,
    /// The write end is new since the last [`PipeOutlet::take_renewed`].
    is_renewed: bool,
    started: Instant,
    pause: Duration,
}

/// The first pause before a command that ended soon is started again. It doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A command that ran this long is started again at once.
const LIVED: Duration = Duration::from_secs(10);
/// The size of the pipe: the kernel's limit for processes without privileges.
const PIPE_BYTES: usize = 1024 * 1024;

impl PipeOutlet {
    /// Starts `command` with /bin/sh.
    pub(super) fn start(command: &str) -> io::Result<PipeOutlet> {
        let (child, input) = spawn(command)?;
        Ok(PipeOutlet {
            command: Some(command.to_owned()),
            child: Some(child),
            input: Some(input),
            is_renewed: false,
            started: Instant::now(),
            pause: PAUSE_MIN,
        })
    }

    /// A pipe to a command that another process has started and restarts.
    pub(super) fn adopt(input: OwnedFd) -> PipeOutlet {
        PipeOutlet {
            command: None,
            child: None,
            input: Some(input),
            is_renewed: false,
            started: Instant::now(),
            pause: PAUSE_MIN,
        }
    }

    /// The write end, unless the command has closed its end.
    pub(super) fn input(&self) -> Option<BorrowedFd<'_>> {
        self.input.as_ref().map(AsFd::as_fd)
    }

    /// The command has closed its end (EPIPE).
    pub(super) fn broke(&mut self) {
        self.input = None;
    }

    /// Whether this process starts the command.
    pub(super) fn is_ours(&self) -> bool {
        self.command.is_some()
    }

    /// The write end, if it is new since the last call.
    pub(super) fn take_renewed(&mut self) -> Option<BorrowedFd<'_>> {
        let is_renewed = std::mem::take(&mut self.is_renewed);
        self.input().filter(|_| is_renewed)
    }

    /// Notices that the command has ended, and starts it again after its pause.
    pub(super) fn tend(&mut self, now: Instant) {
        let Some(command) = &self.command else {
            return;
        };
        if self
            .child
            .as_mut()
            .is_some_and(|child| !matches!(child.try_wait(), Ok(None)))
        {
            self.child = None;
            self.input = None;
        }
        let lived = now.saturating_duration_since(self.started);
        // A command that closed its input but still runs must end first: two at a time would write to the
        // same place.
        let runs = self.child.is_some() || self.input.is_some();
        if runs || (lived < LIVED && lived < self.pause) {
            return;
        }
        self.pause = if lived >= LIVED {
            PAUSE_MIN
        } else {
            PAUSE_MAX.min(self.pause * 2)
        };
        self.started = now;
        let Ok((child, input)) = spawn(command) else {
            return;
        };
        self.child = Some(child);
        self.input = Some(input);
        self.is_renewed = true;
    }

    /// Closes the pipe, so that the command reads the end of its input.
    pub(super) fn close(&mut self) {
        self.command = None;
        self.input = None;
    }

    /// Whether the command has ended. Reaps it.
    pub(super) fn has_ended(&mut self) -> bool {
        if self
            .child
            .as_mut()
            .is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
        {
            self.child = None;
        }
        self.child.is_none()
    }
}

fn spawn(command: &str) -> io::Result<(Child, OwnedFd)> {
    let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
    let child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::from(output))
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()?;
    prepare(input.as_fd())?;
    Ok((child, input))
}

/// Makes writes to a pipe non-blocking, and the pipe larger if that is allowed.
pub(super) fn prepare(input: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(input)?;
    rustix::fs::fcntl_setfl(input, flags | OFlags::NONBLOCK)?;
    // If the kernel refuses (the user has too many pipes), logging is slower, but no line is lost.
    let _ = fcntl_setpipe_size(input, PIPE_BYTES);
    Ok(())
}
