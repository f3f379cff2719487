//! The modelled disk: two spindles with realistic delays, below a real loop device and a real ext4.
//!
//! Benchmarks see only [`Disk`]: it is built from a [`Plan`], is mounted at [`Disk::root`], can be made cold
//! or broken, and has counters. Below it are, from the top:
//!
//! | file | |
//! |---|---|
//! | `plan` | the files on it |
//! | `volume` | ext4, the loop device, and the process that provides the file below it |
//! | `control` | the messages between the two processes |
//! | `file` | in that process: the file, by FUSE |
//! | `spindle` | a thread and a queue |
//! | `model` | how long an operation takes, and which is next |
//! | `store` | the bytes |
//!
//! Page cache, read-ahead, inodes, directories and io_uring are the kernel's: only the disk itself is a
//! model. `simulate` is the same model without a machine, `probe` compares the two. Knows nothing of servers
//! and HTTP.

mod cgroup;
mod check;
mod control;
mod counters;
mod file;
mod leftovers;
mod model;
mod plan;
mod probe;
mod simulate;
mod spindle;
mod store;
mod volume;

pub use cgroup::Cgroup;
pub use control::Contents;
pub use counters::{Counters, Spindle, Usage};
pub use file::serve;
pub use plan::{Expected, Plan};
pub use probe::run;
pub use simulate::{SEQUENTIAL_MB_PER_SECOND, fetches as simulate};

use control::{Answer, Order, Pace};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use volume::Volume;

/// How many milliseconds a reply of the disk may be late in a run that counts.
pub const LATE_MS_LIMIT: f64 = 0.5;

/// Programs that make a volume.
const PROGRAMS: [&str; 5] = ["losetup", "mkfs.ext4", "mount", "umount", "blockdev"];

/// Why a modelled disk is not possible on this machine.
pub fn available() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("the modelled disk needs root".to_owned());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        let opened = File::options().read(true).write(true).open(device);
        opened.map_err(|error| format!("the modelled disk needs {device}: {error}"))?;
    }
    let missing = PROGRAMS.iter().find(|program| !installed(program));
    missing.map_or(Ok(()), |program| {
        Err(format!("the modelled disk needs the program {program}"))
    })
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// A fault of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Reads of a file's data at or after an offset fail with EIO. What is in the page cache can still be
    /// read, and so can the pieces between two blocks with a mark.
    Errors {
        /// URL path below the root.
        path: String,
        /// Data before this offset can be read; rounded up to [`plan::MARK_EVERY`].
        from: u64,
    },
    /// No read is answered until the fault changes.
    Hang,
}

/// A mounted disk. Dropping it takes it down with everything that was made for it. If this process is killed,
/// the disk's own process does that.
#[derive(Debug)]
pub struct Disk {
    plan: Plan,
    root: PathBuf,
    volume: Mutex<Volume>,
}

impl Disk {
    /// Makes the disk, fills it, mounts it, and makes it slow from then on. The published disk takes half a
    /// minute. The error is `ErrorKind::Interrupted` if a signal asked to stop meanwhile.
    pub fn build(plan: &Plan) -> io::Result<Self> {
        let volume = Volume::build(plan)?;
        let disk = Self {
            plan: plan.clone(),
            root: volume.root(),
            volume: Mutex::new(volume),
        };
        disk.volume().mount_cold()?;
        disk.tell(&Order::Model(Pace::Modelled))?;
        Ok(disk)
    }

    /// Its plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The document root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Unmounts, flushes, mounts. All servers must have been stopped; otherwise it fails (EBUSY) and nothing
    /// changes.
    pub fn make_cold(&mut self) -> io::Result<()> {
        self.tell(&Order::Model(Pace::Quick))?;
        let volume = self.volume();
        let mounted = volume.unmount().and_then(|()| volume.mount_cold());
        drop(volume);
        self.tell(&Order::Model(Pace::Modelled))?;
        mounted
    }

    /// Reads all metadata, quickly; data stays as cold as it is.
    pub fn warm_metadata(&self) -> io::Result<()> {
        self.tell(&Order::Model(Pace::Quick))?;
        let look = |file: Expected| {
            let path = self.path_of(&file.path);
            std::fs::metadata(path).map(drop)
        };
        let warm = self.plan.files().try_for_each(look);
        self.tell(&Order::Model(Pace::Modelled))?;
        warm
    }

    /// Makes the kernel cache the hot files, including their data.
    pub fn warm_hot_files(&self) -> io::Result<()> {
        self.tell(&Order::Model(Pace::Quick))?;
        let paths = (0..self.plan.hot_files).map(|n| self.path_of(&self.plan.hot(n)));
        let warm = paths.map(std::fs::read).try_for_each(|read| read.map(drop));
        self.tell(&Order::Model(Pace::Modelled))?;
        warm
    }

    /// The file of a URL path.
    pub fn path_of(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Reads a file with plain reads of a buffer each. Fails if the content is not what was written.
    pub fn read(&self, file: &Expected, buffer: &mut [u8]) -> io::Result<()> {
        let mut opened = File::open(self.path_of(&file.path))?;
        let mut offset = 0;
        loop {
            let length = opened.read(buffer)?;
            let piece = buffer.get(..length).unwrap_or_default();
            let complete = length > 0 || offset == file.bytes;
            if !complete || !file.matches(offset, piece) {
                let message = format!("{} is not what was written", file.path);
                return Err(io::Error::other(message));
            }
            if length == 0 {
                return Ok(());
            }
            offset += length as u64;
        }
    }

    /// All counters. Resets their maxima.
    pub fn counters(&self) -> io::Result<Counters> {
        let Answer::Counters(spindles) = self.tell(&Order::Counters)? else {
            return Err(unexpected());
        };
        let statistics = self.volume().statistics()?;
        let block = counters::Block::parse(&statistics).ok_or_else(unexpected)?;
        Ok(Counters {
            at_ns: spindle::now_ns(),
            spindles,
            block,
        })
    }

    /// What it stores, by spindle.
    pub fn contents(&self) -> io::Result<Contents> {
        match self.tell(&Order::Contents)? {
            Answer::Contents(contents) => Ok(contents),
            _ => Err(unexpected()),
        }
    }

    /// Breaks or repairs the disk, from the next operation on. `ErrorKind::NotFound` if a file that is to
    /// fail does not exist.
    pub fn set_fault(&self, fault: &Fault) -> io::Result<()> {
        self.tell(&Order::Mend)?;
        let order = match fault {
            Fault::None => return Ok(()),
            Fault::Hang => Order::Hang,
            Fault::Errors { path, from } => {
                let file = self.plan.expected(path).ok_or(io::ErrorKind::NotFound)?;
                Order::errors(file, *from)
            }
        };
        match self.tell(&order)? {
            Answer::Failing(0) => Err(io::ErrorKind::NotFound.into()),
            _ => Ok(()),
        }
    }

    fn tell(&self, order: &Order) -> io::Result<Answer> {
        self.volume().tell(order)
    }

    fn volume(&self) -> MutexGuard<'_, Volume> {
        self.volume.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unexpected() -> io::Error {
    io::Error::other("the disk or the kernel says something unexpected")
}
