//! The file below the loop device: a FUSE file system with one file, whose reads go to the spindles.
//!
//! It runs in a process of its own, which [`super::volume`] starts and controls through [`super::control`].
//! When that pipe ends, the benchmark has ended; then this process takes down everything that was built on
//! the file. Knows nothing of the file's content.
//!
//! The file is striped over the spindles, and a stripe is a block group of ext4. So reading a file of any
//! length involves one spindle, and both spindles have the same share of files and of metadata.

use super::control::{self, Answer, Contents, Order, Pace};
use super::counters::SPINDLES;
use super::leftovers;
use super::plan::Expected;
use super::spindle::{Reply, Spindle};
use super::store::{BLOCK, Store};
use super::volume::{FUSE_POINT, GROUP};
use crate::cli::DiskFileOptions;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, WriteFlags,
};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, UNIX_EPOCH};

/// The file's name below its mount point.
pub const NAME: &str = "disk";

/// The most reads that the kernel may have in progress. A loop device has 128, and more than 64 must arrive
/// here.
const BACKGROUND: u16 = 1024;
/// The longest write that is accepted at once. The kernel's own limit is a MiB.
const WRITE_BYTES: u32 = 1 << 20;
/// Nothing about the file ever changes, so the kernel may cache its attributes for ever.
const FOREVER: Duration = Duration::from_secs(1 << 30);
const FILE: INodeNo = INodeNo(2);

/// Mounts the file, follows orders, and cleans up when the benchmark has ended.
pub fn serve(options: &DiskFileOptions) -> io::Result<()> {
    let shared = Arc::new(Shared::new(options.bytes, options.seed));
    let session = mount(&options.directory, Arc::clone(&shared))?;
    std::thread::scope(|scope| {
        for spindle in &shared.spindles {
            scope.spawn(|| spindle.work());
        }
        let obeyed = obey(&shared);
        // While reads hang, nothing can be unmounted.
        shared.mend();
        leftovers::take_down(&options.directory);
        for spindle in &shared.spindles {
            spindle.end();
        }
        obeyed
    })?;
    // The file is unmounted already, unless that failed; then it is unmounted when the process ends.
    drop(session);
    Ok(())
}

fn mount(directory: &Path, shared: Arc<Shared>) -> io::Result<BackgroundSession> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("petrel-bench".to_owned()),
        MountOption::Subtype("disk".to_owned()),
    ];
    let point = directory.join(FUSE_POINT);
    Session::new(DiskFile(shared), point, &config)?.spawn()
}

/// Follows the benchmark's orders until it ends.
fn obey(shared: &Shared) -> io::Result<()> {
    let (mut from, mut to) = (io::stdin().lock(), io::stdout().lock());
    control::send(&Answer::Done, &mut to)?;
    while let Some(order) = control::receive(&mut from)? {
        control::send(&shared.carry_out(order), &mut to)?;
    }
    Ok(())
}

/// What all threads share.
#[derive(Debug)]
struct Shared {
    bytes: u64,
    store: RwLock<Store>,
    /// Numbers of blocks that cannot be read.
    failing: RwLock<HashSet<u64>>,
    spindles: [Spindle<Read>; SPINDLES],
}

impl Shared {
    fn new(bytes: u64, seed: u64) -> Self {
        let capacity = bytes / SPINDLES as u64;
        Self {
            bytes,
            store: RwLock::default(),
            failing: RwLock::default(),
            spindles: std::array::from_fn(|n| Spindle::new(capacity, seed.wrapping_add(n as u64))),
        }
    }

    fn carry_out(&self, order: Order) -> Answer {
        match order {
            Order::Model(pace) => self.set_pace(pace),
            Order::Errors { path, bytes, from } => {
                let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
                let blocks = store.blocks_of(&Expected { path, bytes }, from);
                let count = blocks.len();
                self.set_failing(blocks.into_iter().collect());
                return Answer::Failing(count);
            }
            Order::Hang => self.set_hang(true),
            Order::Mend => self.mend(),
            Order::Contents => return self.contents(),
            Order::Counters => {
                return Answer::Counters(self.spindles.each_ref().map(Spindle::counters));
            }
        }
        Answer::Done
    }

    fn set_pace(&self, pace: Pace) {
        self.spindles
            .iter()
            .for_each(|spindle| spindle.set_pace(pace));
    }

    fn set_hang(&self, hangs: bool) {
        self.spindles
            .iter()
            .for_each(|spindle| spindle.set_hang(hangs));
    }

    fn set_failing(&self, blocks: HashSet<u64>) {
        *self.failing.write().unwrap_or_else(PoisonError::into_inner) = blocks;
    }

    fn mend(&self) {
        self.set_failing(HashSet::new());
        self.set_hang(false);
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Errno> {
        let failing = self.failing.read().unwrap_or_else(PoisonError::into_inner);
        let end = offset + buffer.len() as u64;
        let blocks = offset / BLOCK as u64..end.div_ceil(BLOCK as u64);
        if !failing.is_empty() && failing.iter().any(|block| blocks.contains(block)) {
            return Err(Errno::EIO);
        }
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        store.read(offset, buffer);
        Ok(())
    }

    fn write(&self, change: impl FnOnce(&mut Store)) {
        change(&mut self.store.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn contents(&self) -> Answer {
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        let mut blocks = [0; SPINDLES];
        for block in store.blocks() {
            let (spindle, _) = place(block * BLOCK as u64);
            if let Some(count) = blocks.get_mut(spindle) {
                *count += 1;
            }
        }
        Answer::Contents(Contents {
            stored: store.stored(),
            blocks,
        })
    }

    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let file = inode == FILE;
        let size = if file { self.bytes } else { 0 };
        FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if file {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: if file { 0o600 } else { 0o700 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: BLOCK as u32,
            flags: 0,
        }
    }
}

/// The spindle of an offset, and the position there.
fn place(offset: u64) -> (usize, u64) {
    let (stripe, within) = (offset / GROUP, offset % GROUP);
    let count = SPINDLES as u64;
    ((stripe % count) as usize, stripe / count * GROUP + within)
}

/// A read that waits for its spindle.
#[derive(Debug)]
struct Read {
    shared: Arc<Shared>,
    offset: u64,
    buffer: Vec<u8>,
    result: Result<(), Errno>,
    reply: ReplyData,
}

impl Reply for Read {
    fn prepare(&mut self) {
        self.result = self.shared.read(self.offset, &mut self.buffer);
    }

    fn send(self) {
        match self.result {
            Ok(()) => self.reply.data(&self.buffer),
            Err(errno) => self.reply.error(errno),
        }
    }
}

/// The file system: a directory with one file.
#[derive(Debug)]
struct DiskFile(Arc<Shared>);

impl Filesystem for DiskFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without this the kernel sends the reads of a descriptor one after another, and no queue builds up
        // here.
        config
            .add_capabilities(InitFlags::FUSE_ASYNC_DIO)
            .map_err(|_| io::Error::from(io::ErrorKind::Unsupported))?;
        let limits = config
            .set_max_background(BACKGROUND)
            .and_then(|_| config.set_congestion_threshold(BACKGROUND));
        limits.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let write = config.set_max_write(WRITE_BYTES);
        write
            .map(drop)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == NAME {
            reply.entry(&FOREVER, &self.0.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.0.attributes(inode));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // The page cache must be above the loop device only.
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = u64::from(size).min(self.0.bytes.saturating_sub(offset));
        let read = Read {
            shared: Arc::clone(&self.0),
            offset,
            buffer: vec![0; bytes as usize],
            result: Ok(()),
            reply,
        };
        let (number, at) = place(offset);
        if let Some(spindle) = self.0.spindles.get(number) {
            spindle.ask(at, bytes, read);
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if offset.saturating_add(data.len() as u64) > self.0.bytes {
            return reply.error(Errno::ENOSPC);
        }
        self.0.write(|store| store.write(offset, data));
        reply.written(data.len() as u32);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        // Of fallocate's modes a loop device uses those for holes and for zeros.
        const ZEROED: i32 = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE;
        if mode & ZEROED == 0 || offset.saturating_add(length) > self.0.bytes {
            return reply.error(Errno::EOPNOTSUPP);
        }
        self.0.write(|store| store.discard(offset, length));
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }
}

/// From `linux/falloc.h`.
const FALLOC_FL_PUNCH_HOLE: i32 = 0x02;
const FALLOC_FL_ZERO_RANGE: i32 = 0x10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_take_turns_and_each_lies_whole_on_one_spindle() {
        assert_eq!(place(0), (0, 0));
        assert_eq!(place(GROUP - 1), (0, GROUP - 1));
        assert_eq!(place(GROUP), (1, 0));
        assert_eq!(place(5 * GROUP + 7), (1, 2 * GROUP + 7));
    }

    #[test]
    fn a_read_over_a_failing_block_fails_and_others_do_not() {
        let shared = Shared::new(2 * GROUP, 1);
        let file = Expected {
            path: "/a".to_owned(),
            bytes: 8192,
        };
        let line = file.marks().map(|(_, line)| line).collect::<String>();
        shared.write(|store| store.write(40_960, line.as_bytes()));
        let order = Order::errors(file, 0);
        assert!(matches!(shared.carry_out(order), Answer::Failing(1)));
        let mut buffer = [1; 8192];
        assert!(shared.read(36_864, &mut buffer).is_err());
        assert!(shared.read(45_056, &mut buffer).is_ok());
        assert!(matches!(shared.carry_out(Order::Mend), Answer::Done));
        assert!(shared.read(36_864, &mut buffer).is_ok());
        assert!(buffer[..4096].iter().all(|byte| *byte == 0));
        assert!(buffer[4096..].starts_with(line.as_bytes()));
    }
}
