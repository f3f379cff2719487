//! The file that the keeper was started from, to tell after an upgrade that another one has taken its place.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The program that runs.
pub(super) struct Program {
    /// Where it was at the start; `None` where /proc does not tell.
    path: Option<PathBuf>,
}

impl Program {
    /// The program of this process.
    pub(super) fn running() -> Program {
        Program {
            path: std::env::current_exe().ok(),
        }
    }

    /// The path, if another file is there now.
    pub(super) fn newer(&self) -> Option<&Path> {
        let path = self.path.as_deref()?;
        // This link leads to the file that runs, also when it has lost its name.
        let runs = fs::metadata("/proc/self/exe").ok()?;
        let is_there = fs::metadata(path).ok()?;
        let id = |data: &Metadata| (data.dev(), data.ino());
        (id(&runs) != id(&is_there)).then_some(path)
    }
}
