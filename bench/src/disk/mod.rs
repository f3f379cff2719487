//! The modelled disk: two spindles that take their time, below a real loop device and a real ext4.
//!
//! [`Disk`] is all that a benchmark sees: it is built from a [`Plan`], lies below [`Disk::root`], can be made cold, broken
//! and counted. Below it are, from the top:
//!
//! | file | |
//! |---|---|
//! | `plan` | what is on it |
//! | `volume` | ext4, the loop device, and the process that has the file below it |
//! | `control` | what the two processes say to each other |
//! | `file` | in that process: the file, by FUSE |
//! | `spindle` | a thread and a queue |
//! | `model` | how long an operation takes, and which is next |
//! | `store` | the bytes |
//!
//! Page cache, read-ahead, inodes, directories and io_uring are the kernel's: only the disk itself is a model. `simulate` is
//! the same model without a machine, `probe` compares the two. Knows nothing of servers and HTTP.

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

/// By how many milliseconds an answer of the disk may be late in a run that counts.
pub const LATE_MS_LIMIT: f64 = 0.5;

/// Programs that make a volume.
const PROGRAMS: [&str; 5] = ["losetup", "mkfs.ext4", "mount", "umount", "blockdev"];

/// Why there can be no modelled disk on this machine.
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

/// What is wrong with the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Reading a file's data at or after an offset fails with EIO. What the page cache has is still there, and so are the
    /// pieces between two blocks with a mark.
    Errors {
        /// URL path below the root.
        path: String,
        /// Before this offset all is well; rounded up to [`plan::MARK_EVERY`].
        from: u64,
    },
    /// Nothing is answered until the fault is another one.
    Hang,
}

/// A disk that is mounted. Goes away, with all that was made for it, when it is dropped. For those who are killed, its
/// own process does that.
#[derive(Debug)]
pub struct Disk {
    plan: Plan,
    root: PathBuf,
    volume: Mutex<Volume>,
}

impl Disk {
    /// Makes the disk, fills it, mounts it, and lets it take its time from then on. The published one takes half a minute.
    /// `ErrorKind::Interrupted` if someone wants us to stop meanwhile.
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

    /// What is on it.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The document root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Unmounts, flushes, mounts. All servers must have been stopped, else it fails (EBUSY) and nothing has changed.
    pub fn make_cold(&mut self) -> io::Result<()> {
        self.tell(&Order::Model(Pace::Quick))?;
        let volume = self.volume();
        let mounted = volume.unmount().and_then(|()| volume.mount_cold());
        drop(volume);
        self.tell(&Order::Model(Pace::Modelled))?;
        mounted
    }

    /// Reads all metadata, quickly; data stay as cold as they are.
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

    /// Has the kernel know the hot files, their data included.
    pub fn warm_hot_files(&self) -> io::Result<()> {
        self.tell(&Order::Model(Pace::Quick))?;
        let paths = (0..self.plan.hot_files).map(|n| self.path_of(&self.plan.hot(n)));
        let warm = paths.map(std::fs::read).try_for_each(|read| read.map(drop));
        self.tell(&Order::Model(Pace::Modelled))?;
        warm
    }

    /// Where a URL path's file is.
    pub fn path_of(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Reads a file as a server does that has no better idea, a buffer at a time; fails if it is not what was written.
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

    /// All counters. Their maxima start anew.
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

    /// What it keeps, and where.
    pub fn contents(&self) -> io::Result<Contents> {
        match self.tell(&Order::Contents)? {
            Answer::Contents(contents) => Ok(contents),
            _ => Err(unexpected()),
        }
    }

    /// Breaks or mends the disk, from the next operation on. `ErrorKind::NotFound` if a file that is to fail is not there.
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
