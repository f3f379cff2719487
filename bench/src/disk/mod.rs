//! The modelled disk: two spindles that take their time, below a real loop device and a real ext4.
//!
//! [`Disk`] is all that a benchmark sees: it is built from a [`Plan`], lies below [`Disk::root`], can be made cold,
//! broken and counted. Knows nothing of servers and clients.

mod counters;
mod plan;

pub use counters::{Block, Counters, LENGTHS, SPINDLES, Spindle, Usage};
pub use plan::{Expected, MARK_EVERY, Plan};

use std::io;
use std::path::Path;

/// By how many milliseconds an answer of the disk may be late in a run that counts.
pub const LATE_MS_LIMIT: f64 = 0.5;

/// Why there can be no modelled disk on this machine.
pub fn available() -> Result<(), String> {
    Err("the modelled disk is not built yet".to_owned())
}

/// What is wrong with the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Reading a file's data at or after an offset fails with EIO. What the page cache has is still there.
    Errors {
        /// URL path below the root.
        path: String,
        /// Before this offset all is well; rounded up to [`MARK_EVERY`].
        from: u64,
    },
    /// Nothing is answered until the fault is another one.
    Hang,
}

/// A disk that is mounted. Goes away, with all that was made for it, when it is dropped.
#[derive(Debug)]
pub struct Disk {
    plan: Plan,
}

impl Disk {
    /// Makes the disk and fills it; takes well under a minute. It is warm and quick then: [`Self::make_cold`] comes next.
    pub fn build(plan: &Plan) -> io::Result<Self> {
        let _ = plan;
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    /// What is on it.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The document root.
    pub fn root(&self) -> &Path {
        Path::new("/")
    }

    /// Unmounts, flushes, mounts, and lets the disk take its time from here on. All servers must have been stopped
    /// (EBUSY).
    pub fn make_cold(&mut self) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    /// Reads all metadata, quickly; data stay as cold as they are.
    pub fn warm_metadata(&mut self) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    /// All counters.
    pub fn counters(&mut self) -> io::Result<Counters> {
        Ok(Counters::default())
    }

    /// Breaks or mends the disk, from the next operation on.
    pub fn set_fault(&mut self, fault: &Fault) -> io::Result<()> {
        let _ = fault;
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}

/// A memory cgroup, for what is to have less memory than the disk holds. Goes away when it is dropped, after its
/// processes have ended.
#[derive(Debug)]
pub struct Cgroup;

impl Cgroup {
    /// Makes one.
    pub fn new(limit_bytes: u64) -> io::Result<Self> {
        let _ = limit_bytes;
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    /// Moves a process there, with the children that it makes from then on.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        let _ = pid;
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}

/// The theoretical limit of the disk, in fetches a second: `depth` clients, each of which asks for the next file as soon as
/// it has one; `operations` reads a file, the last of them of `bytes`, the others of a block of metadata.
pub fn simulate(depth: u32, operations: f64, bytes: u64, seed: u64) -> f64 {
    let _ = (depth, operations, bytes, seed);
    0.0
}
