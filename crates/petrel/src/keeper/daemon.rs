//! Going to the background: the process that the user started exits when the server runs or has failed.
//!
//! The working directory does not change, so that relative paths of the configuration stay valid at a reload.

use std::io::{self, PipeReader, PipeWriter, Read, Write};

use nix::unistd::setsid;
use sys::process::{Forked, fork};

use crate::stdio;

/// Which of the two processes this is.
pub(crate) enum Detached {
    /// The process that the user started. It exits with this code.
    Launcher(u8),
    /// The process in the background.
    Background(Launch),
}

/// Reports a successful start to the process that the user started.
pub(crate) struct Launch {
    pipe: PipeWriter,
}

/// Forks into the background.
///
/// # Errors
/// Those of pipe(2) and fork(2).
pub(crate) fn detach() -> io::Result<Detached> {
    let (reader, pipe) = io::pipe()?;
    if let Forked::Parent(_) = fork()? {
        // As long as this process holds the pipe's writing end, `wait` sees no end of it.
        drop(pipe);
        return Ok(Detached::Launcher(wait(reader)));
    }
    drop(reader);
    setsid()?;
    // The leader of a session gets a new controlling terminal when it opens one. Its child does not.
    match fork()? {
        Forked::Parent(_) => Ok(Detached::Launcher(0)),
        Forked::Child => Ok(Detached::Background(Launch { pipe })),
    }
}

impl Launch {
    /// Reports success and closes the terminal.
    pub(crate) fn succeeded(mut self) -> io::Result<()> {
        // If the launcher was killed in the meantime, the server runs anyway.
        let _ = self.pipe.write_all(&[0]);
        stdio::let_go()
    }
}

/// Waits for the exit code from the background process. If that ends without sending one, this is a failure.
fn wait(mut reader: PipeReader) -> u8 {
    let mut code = [0];
    match reader.read_exact(&mut code) {
        Ok(()) => code[0],
        Err(_) => crate::terminal::EXIT_FAILURE,
    }
}
