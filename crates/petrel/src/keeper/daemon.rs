//! Going to the background: the process that was started ends when the server runs, or failed.
//!
//! The working directory stays, so that relative paths of the configuration mean the same at every
//! reload.

use std::io::{self, PipeReader, PipeWriter, Read, Write};

use nix::unistd::setsid;
use sys::process::{Forked, fork};

use crate::stdio;

/// What became of the process.
pub(crate) enum Detached {
    /// This is the process that was started: it ends with this code.
    Launcher(u8),
    /// This is the one in the background.
    Background(Launch),
}

/// Tells the launcher that all went well.
pub(crate) struct Launch {
    pipe: PipeWriter,
}

/// Goes to the background.
///
/// # Errors
/// Those of pipe(2) and fork(2).
pub(crate) fn detach() -> io::Result<Detached> {
    let (reader, pipe) = io::pipe()?;
    if let Forked::Parent(_) = fork()? {
        drop(pipe);
        return Ok(Detached::Launcher(wait(reader)));
    }
    drop(reader);
    setsid()?;
    // The leader of a session could get a terminal again by opening one. Its child cannot.
    match fork()? {
        Forked::Parent(_) => Ok(Detached::Launcher(0)),
        Forked::Child => Ok(Detached::Background(Launch { pipe })),
    }
}

impl Launch {
    /// Lets go of the launcher and of its terminal.
    pub(crate) fn succeeded(mut self) -> io::Result<()> {
        // A launcher that was killed meanwhile changes nothing.
        let _ = self.pipe.write_all(&[0]);
        stdio::let_go()
    }
}

/// The exit code that the background process sends, or that of a failure if it ends before.
fn wait(mut reader: PipeReader) -> u8 {
    let mut code = [0];
    match reader.read_exact(&mut code) {
        Ok(()) => code[0],
        Err(_) => crate::terminal::EXIT_FAILURE,
    }
}
