//! Makes a mounted ext4 with the files of a plan: process, loop device, file system, files.
//!
//! All of it is done by the programs that an administrator would use; their error output is passed on. Knows
//! nothing of time and counters.

use super::control::{self, Answer, Order};
use super::counters::SPINDLES;
use super::leftovers;
use super::plan::{Expected, Plan};
use crate::interrupt;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The beginning of the directory names of disks.
pub const PREFIX: &str = "petrel-bench-disk-";
/// In such a directory: the lock file of its owner.
pub const LOCK: &str = "lock";
/// In such a directory: the mount point of the file below the loop device.
pub const FUSE_POINT: &str = "fuse";
/// In such a directory: the mount point of the volume.
pub const ROOT: &str = "root";
/// In a block device's directory: the path of the file below it.
pub const BACKING: &str = "loop/backing_file";

/// The length of ext4's block groups with the block size below.
pub const GROUP: u64 = 128 * 1024 * 1024;
/// A volume is rounded up to a multiple of this: the same number of groups for each spindle.
const GROUPS: u64 = SPINDLES as u64 * GROUP;
/// ext4's block, and the loop device's sector.
const BLOCK: u64 = 4096;
/// The kernel's usual read-ahead. A loop device has twenty times as much, because the kernel takes its file
/// for a RAID.
const READ_AHEAD_KIB: &str = "128";
/// How long the disk's process may take to clean up before it is killed.
const PATIENCE: Duration = Duration::from_secs(20);
/// Threads that fill the volume.
const FILLERS: usize = 4;

/// Why this machine has no volumes: no right to mount, no loop device, no direct I/O, no ext4, a read-only
/// `/sys`.
#[derive(Debug)]
pub struct Impossible(io::Error);

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there can be no modelled disk: {}", self.0)
    }
}

impl std::error::Error for Impossible {}

/// A volume and what is below it, mounted or not.
#[derive(Debug)]
pub struct Volume {
    /// Dropped before the directory.
    process: Process,
    device: PathBuf,
    directory: PathBuf,
    /// The lock on the directory.
    _lock: File,
}

impl Volume {
    /// Starts the process, makes the file system, fills it, and leaves it unmounted.
    pub fn build(plan: &Plan) -> io::Result<Self> {
        leftovers::clear();
        let (directory, lock) = directory()?;
        // From here on, everything that exists is taken down if a step fails.
        let process = Process::start(&directory, bytes(plan), plan.seed).map_err(impossible)?;
        let file = directory.join(FUSE_POINT).join(super::file::NAME);
        let device = attach(&file).map_err(impossible)?;
        let volume = Self {
            process,
            device,
            directory,
            _lock: lock,
        };
        make_file_system(&volume.device, plan)?;
        volume.mount("noatime").map_err(|error| match has_ext4() {
            true => error,
            false => impossible(error),
        })?;
        volume.spread_files();
        fill(&volume.root(), plan)?;
        volume.unmount()?;
        settle();
        Ok(volume)
    }

    /// The mount point.
    pub fn root(&self) -> PathBuf {
        self.directory.join(ROOT)
    }

    /// Mounts it for measuring: nothing is written, and no inode is read unless it is needed.
    pub fn mount_cold(&self) -> io::Result<()> {
        run(Command::new("blockdev")
            .arg("--flushbufs")
            .arg(&self.device))?;
        self.set("queue/read_ahead_kb", READ_AHEAD_KIB)?;
        self.mount("ro,noatime,inode_readahead_blks=1")
    }

    /// Unmounts it. Fails while a file is open.
    pub fn unmount(&self) -> io::Result<()> {
        run(Command::new("umount").arg(self.root()))
    }

    /// Sends an order to the disk's process.
    pub fn tell(&mut self, order: &Order) -> io::Result<Answer> {
        self.process.tell(order)
    }

    /// The kernel's counters of the loop device.
    pub fn statistics(&self) -> io::Result<String> {
        fs::read_to_string(self.block().join("stat"))
    }

    fn mount(&self, options: &str) -> io::Result<()> {
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "ext4", "-o", options]);
        run(mount.arg(&self.device).arg(self.root()))
    }

    /// Makes ext4 put files into the block group of their directory, or the next one with room. By default it
    /// puts those above 64 KiB one after another from the start of the disk, and chooses groups in its own
    /// ways: a disk in use looks different. Older kernels lack a setting or two, which only changes where
    /// files are.
    fn spread_files(&self) {
        let device = self.device.file_name().unwrap_or_default();
        let ext4 = Path::new("/sys/fs/ext4").join(device);
        let settings = [
            ("mb_stream_req", "1000000"),
            ("mb_group_prealloc", "0"),
            ("mb_max_linear_groups", "1000000"),
        ];
        for (setting, value) in settings {
            let _ = fs::write(ext4.join(setting), value);
        }
    }

    fn set(&self, setting: &str, value: &str) -> io::Result<()> {
        fs::write(self.block().join(setting), value)
    }

    fn block(&self) -> PathBuf {
        Path::new("/sys/block").join(self.device.file_name().unwrap_or_default())
    }
}

/// Length of a volume for a plan, in bytes.
fn bytes(plan: &Plan) -> u64 {
    let blocks: u64 = plan.files().map(|file| file.bytes.div_ceil(BLOCK)).sum();
    // Inodes, directories, bitmaps, and spare room, so that all groups can have the same share.
    let needed = blocks * BLOCK * 11 / 10 + inodes(plan) * 512;
    needed.div_ceil(GROUPS).max(1) * GROUPS
}

/// The number of inodes for a plan: as few as possible, so that they lie densely.
fn inodes(plan: &Plan) -> u64 {
    let files = plan.files().count() as u64;
    files * 11 / 10 + 64
}

/// Makes a directory and locks it.
fn directory() -> io::Result<(PathBuf, File)> {
    // The servers' users must be able to enter it.
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    let directory: TempDir = tempfile::Builder::new()
        .prefix(PREFIX)
        .permissions(readable)
        .tempdir()?;
    let lock = File::create_new(directory.path().join(LOCK))?;
    lock.try_lock()?;
    fs::create_dir(directory.path().join(FUSE_POINT))?;
    fs::create_dir(directory.path().join(ROOT))?;
    // `leftovers` removes it, which does not descend into what is mounted there.
    Ok((directory.keep(), lock))
}

/// The process that provides the file.
#[derive(Debug)]
struct Process {
    child: Child,
    /// Dropped to make the process end.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    directory: PathBuf,
}

impl Process {
    /// Starts it and waits until the file is there.
    fn start(directory: &Path, bytes: u64, seed: u64) -> io::Result<Self> {
        let mut command = at_once(std::env::current_exe()?);
        command.arg("disk-file").arg(directory);
        command.args([bytes.to_string(), seed.to_string()]);
        // Control-C reaches only the benchmark, which ends the disk when it is no longer needed.
        command.process_group(0);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.inspect_err(|_| leftovers::take_down(directory))?;
        let orders = child.stdin.take();
        let answers = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut process = Self {
            child,
            orders,
            answers: BufReader::new(answers),
            directory: directory.to_owned(),
        };
        process.answer()?;
        Ok(process)
    }

    fn tell(&mut self, order: &Order) -> io::Result<Answer> {
        let orders = self.orders.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        control::send(order, orders)?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<Answer> {
        let ended = || io::Error::other("the disk's process has ended");
        control::receive(&mut self.answers)?.ok_or_else(ended)
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.orders = None;
        let deadline = Instant::now() + PATIENCE;
        while !self.has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Does what the process could not do while its file was in use.
        leftovers::take_down(&self.directory);
    }
}

/// A program that the scheduler runs before all others when it has work: a real disk does not wait for the
/// processor either. It never has much work.
fn at_once(program: PathBuf) -> Command {
    let allowed = run(Command::new("chrt").args(["--fifo", "10", "true"])).is_ok();
    let mut command = Command::new(if allowed { Path::new("chrt") } else { &program });
    if allowed {
        command.args(["--fifo", "10"]).arg(&program);
    }
    command
}

/// Attaches a loop device to a file, bypassing the page cache.
fn attach(file: &Path) -> io::Result<PathBuf> {
    let mut command = Command::new("losetup");
    command.args(["--find", "--show", "--direct-io=on", "--sector-size=4096"]);
    let printed = run_for_output(command.arg(file))?;
    let device = PathBuf::from(printed.trim_end());
    let block = Path::new("/sys/block").join(device.file_name().unwrap_or_default());
    if fs::read_to_string(block.join("loop/dio"))?.trim_end() != "1" {
        return Err(io::Error::other("the loop device has no direct I/O"));
    }
    // The spindles determine the order.
    fs::write(block.join("queue/scheduler"), "none")?;
    Ok(device)
}

/// Marks an error as a missing feature or permission of this machine, so that callers know that it can have
/// no disk.
fn impossible(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::Interrupted {
        return error;
    }
    io::Error::other(Impossible(error))
}

/// What the kernel answers when it is asked to mount ext4.
fn has_ext4() -> bool {
    let known = fs::read_to_string("/proc/filesystems");
    known.is_ok_and(|known| known.lines().any(|line| line.trim() == "ext4"))
}

/// Waits until udev, if there is one, has probed the new device. Its reads would be counted.
fn settle() {
    let _ = run(Command::new("udevadm").args(["settle", "--timeout=10"]));
}

fn make_file_system(device: &Path, plan: &Plan) -> io::Result<()> {
    let mut command = Command::new("mkfs.ext4");
    command.args(["-q", "-F", "-b", "4096", "-m", "0"]);
    command.args(["-O", "^has_journal,^flex_bg,^resize_inode,^metadata_csum"]);
    command.args(["-E", "nodiscard,lazy_itable_init=0"]);
    command.arg("-N").arg(inodes(plan).to_string());
    run(command.arg(device))
}

/// Writes all files in full: space that is only reserved would be read without the disk.
fn fill(root: &Path, plan: &Plan) -> io::Result<()> {
    let mut directories: BTreeMap<PathBuf, Vec<Expected>> = BTreeMap::new();
    for file in plan.files() {
        let path = root.join(file.path.trim_start_matches('/'));
        let parent = path.parent().unwrap_or(root).to_owned();
        directories.entry(parent).or_default().push(file);
    }
    // All directories first: ext4 puts each new one into the group with the fewest.
    directories.keys().try_for_each(fs::create_dir)?;
    let directories: Vec<_> = directories.into_values().collect();
    let next = AtomicUsize::new(0);
    let work = || -> io::Result<()> {
        let mut buffer = Vec::new();
        while let Some(files) = directories.get(next.fetch_add(1, Ordering::Relaxed)) {
            if interrupt::asked() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            files
                .iter()
                .try_for_each(|file| write(root, file, &mut buffer))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: [_; FILLERS] = std::array::from_fn(|_| scope.spawn(work));
        let join = |thread: std::thread::ScopedJoinHandle<'_, io::Result<()>>| {
            let panicked = |_| io::Error::other("a thread that fills the disk panicked");
            thread.join().map_err(panicked).flatten()
        };
        threads.into_iter().try_for_each(join)
    })
}

fn write(root: &Path, file: &Expected, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.clear();
    buffer.resize(file.bytes as usize, 0);
    for (offset, line) in file.marks() {
        let at = offset as usize;
        if let Some(target) = buffer.get_mut(at..at + line.len()) {
            target.copy_from_slice(line.as_bytes());
        }
    }
    let path = root.join(file.path.trim_start_matches('/'));
    File::create_new(path)?.write_all_at(buffer, 0)
}

fn run(command: &mut Command) -> io::Result<()> {
    run_for_output(command).map(drop)
}

fn run_for_output(command: &mut Command) -> io::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let told = |text: &str| io::Error::other(format!("{program}: {}", text.trim()));
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| told(&error.to_string()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(told(&String::from_utf8_lossy(&output.stderr)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spindle_has_as_many_whole_groups() {
        assert_eq!(bytes(&Plan::tiny()), GROUPS);
        let published = bytes(&Plan::published());
        assert_eq!(published % GROUPS, 0);
        assert!(
            (14_000_000_000..16_000_000_000).contains(&published),
            "{published}"
        );
    }

    #[test]
    fn what_a_program_says_is_passed_on() {
        let failed = run(Command::new("sh").args(["-c", "echo no room >&2; false"]));
        assert_eq!(
            failed.map_err(|error| error.to_string()),
            Err("sh: no room".to_owned())
        );
        let output = run_for_output(Command::new("echo").arg("/dev/loop7"));
        assert_eq!(output.ok().as_deref(), Some("/dev/loop7\n"));
    }

    #[test]
    fn files_are_written_in_full() {
        let directory = tempfile::tempdir().expect("a directory");
        let plan = Plan::tiny();
        let few = Plan {
            small_files: 3,
            large_files: 1,
            ..plan
        };
        fill(directory.path(), &few).expect("written");
        for file in few.files() {
            let path = directory.path().join(file.path.trim_start_matches('/'));
            let body = fs::read(path).expect("it is there");
            assert_eq!(body.len() as u64, file.bytes);
            assert!(file.matches(0, &body));
        }
    }
}
