//! The signals that the keeper acts on, read from a signalfd, so that no handler and no thread is needed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The signals of the process, as a stream.
pub(crate) struct Signals {
    descriptor: SignalFd,
}

impl Signals {
    /// Blocks the signals and opens the stream. Child processes must unblock the signals that they want.
    ///
    /// # Errors
    /// Those of signalfd(2).
    pub(crate) fn open() -> io::Result<Signals> {
        let mask = SigSet::from_iter([
            Signal::SIGTERM,
            Signal::SIGINT,
            Signal::SIGHUP,
            Signal::SIGUSR1,
            Signal::SIGUSR2,
            Signal::SIGCHLD,
        ]);
        mask.thread_block()?;
        let descriptor =
            SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Signals { descriptor })
    }

    /// The next signal, if one has arrived.
    pub(crate) fn next(&self) -> Option<Received> {
        let info = self.descriptor.read_signal().ok().flatten()?;
        let signal = Signal::try_from(i32::try_from(info.ssi_signo).ok()?).ok()?;
        Some(Received {
            signal,
            sender_user: info.ssi_uid,
            sender: info.ssi_pid,
        })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A signal and its sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// The signal.
    pub(crate) signal: Signal,
    /// The user id of the sender.
    pub(crate) sender_user: u32,
    /// The process id of the sender; 0 for the kernel.
    pub(crate) sender: u32,
}
